/* Ops: check shapes once, allocate the output, call the backend's slot. Inputs
 * are never written. After the first error every op returns NULL, and accepts
 * NULL inputs, so that model code checks once a layer. T is the number of
 * packed rows; no op but attention knows how many sequences they are. */
#ifndef TENSOR_OP_H
#define TENSOR_OP_H

#include "tensor/ctx.h"

/* A matrix with an optional bias. w.view.format is NULL when absent. */
struct linear {
    struct weight w; /* [out, in] */
    struct weight b; /* [out] */
};

static inline bool weight_present(const struct weight *w)
{
    return w->view.format != NULL;
}

/* [T] ids -> [T, D] */
struct tensor *op_embed(struct ctx *c, const int32_t *ids, int64_t n, const struct weight *w);
/* [T, I] -> [T, O] */
struct tensor *op_linear(struct ctx *c, const struct tensor *x, const struct linear *l);
/* The same for n matrices that share x, in one parallel pass: y[i] [T, O_i]. */
enum { OP_LINEAR_MAX = 4 };
void op_linears(struct ctx *c, const struct tensor *x, int n, const struct linear *const *l, struct tensor **y);
/* [T, O] = x . w^T for a bare weight: a tied output head. */
struct tensor *op_matmul(struct ctx *c, const struct tensor *x, const struct weight *w);
/* Rows of w's length, one or several per row of x: x / rms(x) * (w + add). */
struct tensor *op_rms_norm(struct ctx *c, const struct tensor *x, const struct weight *w, float eps, float add);
struct tensor *op_add(struct ctx *c, const struct tensor *a, const struct tensor *b);
struct tensor *op_scale(struct ctx *c, const struct tensor *x, float factor);
/* act(gate) * up */
struct tensor *op_act_mul(struct ctx *c, const struct tensor *gate, const struct tensor *up, enum act act);
/* cap * tanh(x / cap) */
struct tensor *op_softcap(struct ctx *c, const struct tensor *x, float cap);
/* Rows idx[i] of x: [n, D] */
struct tensor *op_rows(struct ctx *c, const struct tensor *x, const int32_t *idx, int64_t n);
/* [T, H*hd], first dims of each head rotated. */
struct tensor *op_rope(struct ctx *c, const struct tensor *x, const struct rope_args *r);

#endif
