/* What one forward pass runs in: a backend, step memory, the first error.
 *
 * Step memory is three arenas. `step` lives until the pass ends (tables, the
 * batch's index arrays). The two layer arenas take turns: a layer's tensors go
 * into one while the residual stream that it reads is still in the other.
 * Nothing is allocated from the heap. */
#ifndef TENSOR_CTX_H
#define TENSOR_CTX_H

#include <stdatomic.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "base/arena.h"

struct ctx {
    struct backend *be;
    struct arena step;
    struct arena layer[2];
    int current;             /* which layer arena new tensors go into */
    struct tlm_error err;    /* the first one sticks; ops return NULL from then on */
    const atomic_int *abort; /* not 0: the pass ends at the next layer; may be NULL */
};

enum tlm_status ctx_init(struct ctx *c, struct backend *be, struct tlm_error *e);
void ctx_deinit(struct ctx *c);

/* Starts a pass: forgets the error and every tensor. */
void ctx_begin(struct ctx *c);
/* Starts a layer: tensors of the layer before the last one are gone. */
void ctx_next_layer(struct ctx *c);

static inline bool ctx_ok(const struct ctx *c)
{
    return c->err.status == TLM_OK;
}

/* Memory that lives until the pass ends; NULL after an error or when full. */
void *ctx_step_alloc(struct ctx *c, size_t count, size_t size);

/* A new f32 tensor of the current layer, or NULL with the error set. */
struct tensor *ctx_tensor2(struct ctx *c, int64_t rows, int64_t cols);

#endif
