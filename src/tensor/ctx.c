/* Step memory and the first error of a pass. */
#include "tensor/ctx.h"

#include <unistd.h>

/* Addresses only: pages count when they are touched. */
static size_t reserve_bytes(void)
{
    size_t limit = (size_t)16 << 30;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0 && (size_t)pages < limit / (size_t)page)
        limit = (size_t)pages * (size_t)page;
    return limit;
}

static enum tlm_status reserve(struct ctx *c, size_t n, struct tlm_error *e)
{
    enum tlm_status s = arena_init(&c->step, n, e);
    if (s == TLM_OK)
        s = arena_init(&c->layer[0], n, e);
    if (s == TLM_OK)
        s = arena_init(&c->layer[1], n, e);
    if (s != TLM_OK)
        ctx_deinit(c);
    return s;
}

enum tlm_status ctx_init(struct ctx *c, struct backend *be, struct tlm_error *e)
{
    enum { LEAST = 64 << 20 };
    *c = (struct ctx){.be = be};
    /* Where addresses are limited (ulimit -v), less has to do. */
    for (size_t n = reserve_bytes(); n > LEAST; n /= 2)
        if (reserve(c, n, NULL) == TLM_OK)
            return TLM_OK;
    return reserve(c, LEAST, e);
}

void ctx_deinit(struct ctx *c)
{
    arena_deinit(&c->step);
    arena_deinit(&c->layer[0]);
    arena_deinit(&c->layer[1]);
}

void ctx_begin(struct ctx *c)
{
    c->err = (struct tlm_error){0};
    arena_reset(&c->step, 0);
    arena_reset(&c->layer[0], 0);
    arena_reset(&c->layer[1], 0);
    c->current = 0;
}

void ctx_next_layer(struct ctx *c)
{
    if (c->abort && atomic_load_explicit(c->abort, memory_order_relaxed))
        err_set(&c->err, TLM_ECANCELED, "the pass was cancelled");
    c->current ^= 1;
    arena_reset(&c->layer[c->current], 0);
}

void *ctx_step_alloc(struct ctx *c, size_t count, size_t size)
{
    if (!ctx_ok(c))
        return NULL;
    void *p = size && count > SIZE_MAX / size ? NULL : arena_alloc(&c->step, count * size);
    if (!p)
        err_set(&c->err, TLM_ENOMEM, "step memory is used up: %zu x %zu bytes do not fit", count, size);
    return p;
}

struct tensor *ctx_tensor2(struct ctx *c, int64_t rows, int64_t cols)
{
    if (!ctx_ok(c))
        return NULL;
    struct arena *a = &c->layer[c->current];
    struct tensor *t = arena_alloc(a, sizeof *t);
    float *data = NULL;
    if (t && rows >= 0 && cols > 0 && rows <= INT64_MAX / 4 / cols)
        data = arena_alloc(a, (size_t)(rows * cols) * sizeof *data);
    if (!data) {
        err_set(&c->err, TLM_ENOMEM, "step memory is used up: a tensor [%lld, %lld] does not fit", (long long)rows,
                (long long)cols);
        return NULL;
    }
    *t = (struct tensor){DT_F32, 2, {rows, cols, 1, 1}, data};
    return t;
}
