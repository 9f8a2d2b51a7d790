/* Shape checks and calls of the backend. */
#include "tensor/op.h"

/* NULL inputs only follow an error that is already set. */
static bool have(struct ctx *c, const struct tensor *a)
{
    return ctx_ok(c) && a;
}

static void shape_error(struct ctx *c, const char *op, const char *what, int64_t found, int64_t expected)
{
    err_set(&c->err, TLM_EINTERNAL, "%s: %s is %lld, expected %lld", op, what, (long long)found, (long long)expected);
}

static bool same_shape(struct ctx *c, const char *op, const struct tensor *a, const struct tensor *b)
{
    if (!have(c, a) || !have(c, b))
        return false;
    if (tensor_rows(a) != tensor_rows(b) || tensor_cols(a) != tensor_cols(b)) {
        shape_error(c, op, "number of elements", tensor_count(b), tensor_count(a));
        return false;
    }
    return true;
}

static struct tensor *like(struct ctx *c, const struct tensor *x)
{
    return ctx_tensor2(c, tensor_rows(x), tensor_cols(x));
}

struct tensor *op_embed(struct ctx *c, const int32_t *ids, int64_t n, const struct weight *w)
{
    struct tensor *y = ctx_tensor2(c, n, w->view.cols);
    if (!y)
        return NULL;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->view.rows) {
            err_set(&c->err, TLM_EINVAL, "token id %d is outside the vocabulary of %lld", ids[i],
                    (long long)w->view.rows);
            return NULL;
        }
    c->be->ops->embed(c->be, y, ids, w);
    return y;
}

void op_linears(struct ctx *c, const struct tensor *x, int n, const struct linear *const *l, struct tensor **y)
{
    const struct weight *w[OP_LINEAR_MAX], *b[OP_LINEAR_MAX];
    for (int i = 0; i < n; i++)
        y[i] = NULL;
    if (!have(c, x))
        return;
    for (int i = 0; i < n; i++) {
        if (l[i]->w.view.cols != tensor_cols(x)) {
            shape_error(c, l[i]->w.name, "input width", tensor_cols(x), l[i]->w.view.cols);
            return;
        }
        w[i] = &l[i]->w;
        b[i] = weight_present(&l[i]->b) ? &l[i]->b : NULL;
        y[i] = ctx_tensor2(c, tensor_rows(x), w[i]->view.rows);
        if (!y[i])
            return;
    }
    c->be->ops->linear(c->be, y, x, w, b, n);
}

struct tensor *op_linear(struct ctx *c, const struct tensor *x, const struct linear *l)
{
    struct tensor *y;
    op_linears(c, x, 1, &l, &y);
    return y;
}

struct tensor *op_matmul(struct ctx *c, const struct tensor *x, const struct weight *w)
{
    if (!have(c, x))
        return NULL;
    if (w->view.cols != tensor_cols(x)) {
        shape_error(c, w->name, "input width", tensor_cols(x), w->view.cols);
        return NULL;
    }
    struct tensor *y = ctx_tensor2(c, tensor_rows(x), w->view.rows);
    const struct weight *no_bias = NULL;
    if (y)
        c->be->ops->linear(c->be, &y, x, &w, &no_bias, 1);
    return y;
}

struct tensor *op_rms_norm(struct ctx *c, const struct tensor *x, const struct weight *w, float eps, float add)
{
    if (!have(c, x))
        return NULL;
    if (tensor_cols(x) % w->view.cols) {
        shape_error(c, w->name, "length", w->view.cols, tensor_cols(x));
        return NULL;
    }
    struct tensor *y = like(c, x);
    if (y)
        c->be->ops->rms_norm(c->be, y, x, w, eps, add);
    return y;
}

struct tensor *op_add(struct ctx *c, const struct tensor *a, const struct tensor *b)
{
    struct tensor *y = same_shape(c, "add", a, b) ? like(c, a) : NULL;
    if (y)
        c->be->ops->add(c->be, y, a, b);
    return y;
}

struct tensor *op_scale(struct ctx *c, const struct tensor *x, float factor)
{
    struct tensor *y = have(c, x) ? like(c, x) : NULL;
    if (y)
        c->be->ops->scale(c->be, y, x, factor);
    return y;
}

struct tensor *op_act_mul(struct ctx *c, const struct tensor *gate, const struct tensor *up, enum act act)
{
    struct tensor *y = same_shape(c, "act_mul", gate, up) ? like(c, gate) : NULL;
    if (y)
        c->be->ops->act_mul(c->be, y, gate, up, act);
    return y;
}

struct tensor *op_softcap(struct ctx *c, const struct tensor *x, float cap)
{
    struct tensor *y = have(c, x) ? like(c, x) : NULL;
    if (y)
        c->be->ops->softcap(c->be, y, x, cap);
    return y;
}

struct tensor *op_rows(struct ctx *c, const struct tensor *x, const int32_t *idx, int64_t n)
{
    struct tensor *y = have(c, x) ? ctx_tensor2(c, n, tensor_cols(x)) : NULL;
    if (y)
        c->be->ops->rows(c->be, y, x, idx);
    return y;
}

struct tensor *op_rope(struct ctx *c, const struct tensor *x, const struct rope_args *r)
{
    if (!have(c, x))
        return NULL;
    if (tensor_cols(x) % r->head_dim || r->dims > r->head_dim || r->dims % 2) {
        shape_error(c, "rope", "head size", r->head_dim, tensor_cols(x));
        return NULL;
    }
    struct tensor *y = like(c, x);
    if (y)
        c->be->ops->rope(c->be, y, x, r);
    return y;
}
