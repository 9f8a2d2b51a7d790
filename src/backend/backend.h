/* What a device must do. One vtable per backend; ops (tensor/op.h) check shapes
 * and call the slots, so slots may trust their arguments.
 *
 * Every slot MUST be set. Results do not depend on how many rows or sequences
 * share a call: each output element is accumulated in an order of its own.
 * CPU: slots run to completion. A device with streams may return earlier;
 * `sync` waits. */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "backend/kv_block.h"
#include "backend/tensor.h"
#include "backend/weight.h"

enum act { ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU, ACT_RELU2 };

/* This layer's part of one block of a sequence (kv_block.h). */
struct attn_block {
    void *data;
    int64_t start;             /* position of its first token */
    int64_t index;             /* its place in the sequence, blocks that are gone counted */
    int count;                 /* its tokens, at most KV_BLOCK */
    bool encoded;              /* else exact */
    const float *turn;         /* encoded keys before rotary: cos, then sin [dims / 2] of `start` */
    const int16_t *turn_words; /* the same in 2^-15 */
};

/* One sequence's share of an attention call. A row sees the block that it
 * stands in exactly and those before it as `blocks` has them. */
struct attn_span {
    int64_t row, rows;               /* rows of q, k, v in the packed batch */
    int64_t pos;                     /* position of the first row */
    const struct attn_block *blocks; /* [n_blocks], in order, up to that of the last row */
    int n_blocks;
    const struct attn_block *own; /* [n_own] exact: the blocks that rows stand in; own[i] is blocks[own_first + i] */
    int n_own, own_first;
};

struct attn_args {
    struct kv_shape shape;              /* kv heads, head dims, element type of exact blocks */
    const struct kv_codec *key, *value; /* of encoded blocks; NULL: every block is exact */
    const struct kv_turn *turn;         /* keys before rotary: of places in a block; NULL: no rotary */
    int n_heads;                        /* query heads, a multiple of shape.n_heads */
    float scale;                        /* on q.k */
    float softcap;                      /* 0: none; else s = cap * tanh(s / cap) */
    int64_t window;                     /* 0: none; else row p sees positions > p - window */
    int64_t keep;                       /* positions below it are seen whatever the window */
    const float *sinks;                 /* [n_heads] extra logit per head, or NULL */
    const struct attn_span *spans;
    int n_spans;
};

struct rope_args {
    int64_t head_dim;
    int64_t dims;     /* rotated, even, <= head_dim; the rest passes */
    bool interleaved; /* pairs (2i, 2i+1) instead of (i, i + dims/2) */
    const float *cos; /* [T, dims/2]: attention factor included */
    const float *sin;
};

struct row_score {
    double loss, r_loss, kl;
    bool same;
};

struct backend;

struct backend_ops {
    const char *name; /* "cpu" */

    void (*free)(struct backend *b);
    void (*sync)(struct backend *b);

    /* Brings a weight into the form its uses want. The view stays readable
     * (it is the definition), but its pages may be dropped. */
    enum tlm_status (*weight_load)(struct backend *b, struct weight *w, struct tlm_error *e);
    void (*weight_unload)(struct backend *b, struct weight *w);

    /* y [T, D] = rows ids[t] of w, as float32. */
    void (*embed)(struct backend *b, struct tensor *y, const int32_t *ids, const struct weight *w);
    /* y[i] [T, O_i] = x [T, I] . w[i]^T + bias[i] (bias[i] may be NULL), for n
     * weights that share x. */
    void (*linear)(struct backend *b, struct tensor *const *y, const struct tensor *x, const struct weight *const *w,
                   const struct weight *const *bias, int n);
    /* Each row: y = x / sqrt(mean(x^2) + eps) * (w + add). w NULL: no weight.
     * The row length is w's; x may hold several such rows per token. */
    void (*rms_norm)(struct backend *b, struct tensor *y, const struct tensor *x, const struct weight *w, float eps,
                     float add);
    void (*add)(struct backend *b, struct tensor *y, const struct tensor *x1, const struct tensor *x2);
    void (*scale)(struct backend *b, struct tensor *y, const struct tensor *x, float factor);
    /* y = act(gate) * up */
    void (*act_mul)(struct backend *b, struct tensor *y, const struct tensor *gate, const struct tensor *up,
                    enum act act);
    /* y = cap * tanh(x / cap) */
    void (*softcap)(struct backend *b, struct tensor *y, const struct tensor *x, float cap);
    /* y [T, H*hd] = x with the first dims of each head rotated. */
    void (*rope)(struct backend *b, struct tensor *y, const struct tensor *x, const struct rope_args *r);
    /* Of each row of logits x [n, vocab] and its token t: loss = log(sum(exp(x)))
     * - x[t]. With rows r (NULL: none) of another model also its loss, kl =
     * KL(r || x), and same: both are greatest at the same place. */
    void (*score)(struct backend *b, const float *x, const float *r, const int32_t *t, int64_t n, int64_t vocab,
                  struct row_score *out);
    /* y [n, D] = rows idx[i] of x. */
    void (*rows)(struct backend *b, struct tensor *y, const struct tensor *x, const int32_t *idx);

    /* Makes room for the work of attention over encoded blocks, before the
     * first such call; the slots below cannot fail. */
    enum tlm_status (*kv_prepare)(struct backend *b, const struct kv_codec *key, const struct kv_codec *value,
                                  struct tlm_error *e);
    /* Writes k [T, Hk*hd] and v [T, Hk*vd] of every span into its own blocks. */
    void (*kv_write)(struct backend *b, const struct attn_args *a, const struct tensor *k, const struct tensor *v);
    /* Encodes every own block whose place in `blocks` is to be encoded. */
    void (*kv_seal)(struct backend *b, const struct attn_args *a);
    /* y [T, H*vd]: causal attention over the blocks, which hold the rows' own
     * keys and values already. Accumulates in spans of fixed length. */
    void (*attend)(struct backend *b, const struct attn_args *a, struct tensor *y, const struct tensor *q);
};

struct pool;

struct backend {
    const struct backend_ops *ops;
    struct pool *pool; /* owned by the backend */
    bool exact;        /* f32 activations in every matmul */
};

enum tlm_status backend_cpu_new(int threads, bool exact, struct backend **out, struct tlm_error *e);
/* "scalar avx2* avx512 …": what this build has, with a star what it uses here. */
const char *backend_cpu_isa_list(void);

#endif
