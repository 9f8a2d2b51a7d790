/* Backend slots that are neither matrix products nor attention: each cuts its
 * rows into ranges for the pool and calls one-thread kernels. */
#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu.h"
#include "base/pool.h"

void vector_init(struct vector_kernels *k, unsigned cpu_features)
{
    vector_init_scalar(k);
#if defined(__x86_64__)
    if (cpu_features & 1u << CPU_AVX2)
        vector_init_avx2(k);
    if (cpu_features & 1u << CPU_AVX512)
        vector_init_avx512(k);
#elif defined(__aarch64__)
    if (cpu_features & 1u << CPU_NEON)
        vector_init_neon(k);
#else
    (void)cpu_features;
#endif
}

enum {
    MIN_ELEMENTS = 16 * 1024, /* of a call, worth waking another thread */
    MIN_RANGE = 4 * 1024,     /* of a task */
    SPAN = 1024               /* what elementwise ops are cut by */
};

typedef void range_fn(const void *arg, int64_t from, int64_t to);

struct ranges {
    range_fn *fn;
    const void *arg;
    int64_t n;
    int tasks;
};

static void run_range(void *arg, int task, int worker)
{
    (void)worker;
    const struct ranges *r = arg;
    r->fn(r->arg, r->n * task / r->tasks, r->n * (task + 1) / r->tasks);
}

/* fn over 0 .. n, each item being about `elements` of work. */
static void for_ranges(struct backend *base, int64_t n, int64_t elements, range_fn *fn, const void *arg)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    if (n <= 0)
        return;
    if (b->threads == 1 || n == 1 || n * elements < MIN_ELEMENTS) {
        fn(arg, 0, n);
        return;
    }
    int64_t tasks = n * elements / MIN_RANGE, most = 4 * (int64_t)b->threads;
    tasks = tasks < most ? tasks : most;
    struct ranges r = {fn, arg, n, (int)(tasks < n ? tasks : n)};
    pool_run(base->pool, r.tasks, run_range, &r);
}

struct vector_call {
    const struct vector_kernels *k;
    float *y;
    const float *x1, *x2;
    int64_t n; /* elements, or of a row */
    float f1, f2;
    enum act act;
    const int32_t *ids;
    const struct weight *w;
    const struct rope_args *rope;
    int64_t heads;
};

static const struct vector_kernels *kernels_of(struct backend *b)
{
    return &((struct cpu_backend *)b)->vector;
}

/* Range ends are in SPANs; the last one may be cut short. */
static void elementwise(struct backend *b, const struct vector_call *c, range_fn *fn)
{
    for_ranges(b, (c->n + SPAN - 1) / SPAN, SPAN, fn, c);
}

static int64_t span_count(const struct vector_call *c, int64_t from, int64_t to)
{
    int64_t end = to * SPAN < c->n ? to * SPAN : c->n;
    return end - from * SPAN;
}

static void embed_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    for (int64_t t = from; t < to; t++)
        quant_decode(&c->w->view, c->ids[t], 0, c->n, c->y + t * c->n);
}

void cpu_embed(struct backend *b, struct tensor *y, const int32_t *ids, const struct weight *w)
{
    struct vector_call c = {.y = tensor_f32(y), .ids = ids, .w = w, .n = w->view.cols};
    for_ranges(b, tensor_rows(y), c.n, embed_range, &c);
}

static void rms_norm_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    for (int64_t r = from; r < to; r++)
        c->k->rms_norm(c->y + r * c->n, c->x1 + r * c->n, c->x2, c->n, c->f1, c->f2);
}

void cpu_rms_norm(struct backend *b, struct tensor *y, const struct tensor *x, const struct weight *w, float eps,
                  float add)
{
    struct vector_call c = {.k = kernels_of(b), .y = tensor_f32(y), .x1 = tensor_f32(x), .f1 = eps, .f2 = add};
    c.n = w ? w->view.cols : tensor_cols(x);
    if (w) /* without a device form the view itself is f32 */
        c.x2 = w->device ? w->device : w->view.data;
    for_ranges(b, c.n ? tensor_count(x) / c.n : 0, c.n, rms_norm_range, &c);
}

static void add_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    int64_t at = from * SPAN;
    c->k->add(c->y + at, c->x1 + at, c->x2 + at, span_count(c, from, to));
}

void cpu_add(struct backend *b, struct tensor *y, const struct tensor *x1, const struct tensor *x2)
{
    struct vector_call c = {.k = kernels_of(b), .y = tensor_f32(y), .x1 = tensor_f32(x1), .x2 = tensor_f32(x2)};
    c.n = tensor_count(y);
    elementwise(b, &c, add_range);
}

static void scale_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    c->k->scale(c->y + from * SPAN, c->x1 + from * SPAN, c->f1, span_count(c, from, to));
}

void cpu_scale(struct backend *b, struct tensor *y, const struct tensor *x, float factor)
{
    struct vector_call c = {.k = kernels_of(b), .y = tensor_f32(y), .x1 = tensor_f32(x), .f1 = factor};
    c.n = tensor_count(y);
    elementwise(b, &c, scale_range);
}

static void act_mul_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    int64_t at = from * SPAN;
    c->k->act_mul[c->act](c->y + at, c->x1 + at, c->x2 + at, span_count(c, from, to));
}

void cpu_act_mul(struct backend *b, struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act)
{
    struct vector_call c = {.k = kernels_of(b), .y = tensor_f32(y), .x1 = tensor_f32(gate), .x2 = tensor_f32(up)};
    c.n = tensor_count(y);
    c.act = act;
    elementwise(b, &c, act_mul_range);
}

static void softcap_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    c->k->softcap(c->y + from * SPAN, c->x1 + from * SPAN, c->f1, span_count(c, from, to));
}

void cpu_softcap(struct backend *b, struct tensor *y, const struct tensor *x, float cap)
{
    struct vector_call c = {.k = kernels_of(b), .y = tensor_f32(y), .x1 = tensor_f32(x), .f1 = cap};
    c.n = tensor_count(y);
    elementwise(b, &c, softcap_range);
}

static void rope_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    const struct rope_args *r = c->rope;
    for (int64_t t = from; t < to; t++) {
        const float *cos = r->cos + t * (r->dims / 2), *sin = r->sin + t * (r->dims / 2);
        for (int64_t h = 0; h < c->heads; h++) {
            int64_t at = t * c->n + h * r->head_dim;
            c->k->rope[r->interleaved](c->y + at, c->x1 + at, cos, sin, r->dims);
            if (c->y != c->x1)
                memcpy(c->y + at + r->dims, c->x1 + at + r->dims, (size_t)(r->head_dim - r->dims) * sizeof(float));
        }
    }
}

void cpu_rope(struct backend *b, struct tensor *y, const struct tensor *x, const struct rope_args *r)
{
    struct vector_call c = {.k = kernels_of(b), .y = tensor_f32(y), .x1 = tensor_f32(x), .rope = r};
    int64_t tokens = x->dim[0];
    if (!tokens)
        return;
    c.n = tensor_count(x) / tokens;
    c.heads = c.n / r->head_dim;
    for_ranges(b, tokens, c.n, rope_range, &c);
}

static void rows_range(const void *arg, int64_t from, int64_t to)
{
    const struct vector_call *c = arg;
    for (int64_t r = from; r < to; r++)
        memcpy(c->y + r * c->n, c->x1 + c->ids[r] * c->n, (size_t)c->n * sizeof(float));
}

void cpu_rows(struct backend *b, struct tensor *y, const struct tensor *x, const int32_t *idx)
{
    struct vector_call c = {.y = tensor_f32(y), .x1 = tensor_f32(x), .ids = idx, .n = tensor_cols(x)};
    for_ranges(b, tensor_rows(y), c.n, rows_range, &c);
}

struct score_call {
    const struct vector_kernels *k;
    const float *x, *r;
    const int32_t *t;
    int64_t vocab;
    struct row_score *out;
};

static void score_row(void *arg, int task, int worker)
{
    (void)worker;
    const struct score_call *c = arg;
    const float *x = c->x + task * c->vocab, *r = c->r ? c->r + task * c->vocab : NULL;
    struct row_score *s = &c->out[task];
    float lse = c->k->log_sum_exp(x, c->vocab);
    *s = (struct row_score){.loss = (double)lse - (double)x[c->t[task]]};
    if (!r)
        return;
    float r_lse = c->k->log_sum_exp(r, c->vocab);
    s->r_loss = (double)r_lse - (double)r[c->t[task]];
    s->kl = c->k->relative(r, x, c->vocab, r_lse) - ((double)r_lse - (double)lse);
    s->same = c->k->argmax(x, c->vocab) == c->k->argmax(r, c->vocab);
}

void cpu_score(struct backend *base, const float *x, const float *r, const int32_t *t, int64_t n, int64_t vocab,
               struct row_score *out)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    struct score_call c = {&b->vector, x, r, t, vocab, out};
    pool_run(base->pool, (int)n, score_row, &c);
}
