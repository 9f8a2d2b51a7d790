/* Causal attention over cache blocks: planning and merging.
 *
 * A query row at position p sees positions max(0, p - window + 1) .. p, and
 * those below `keep`. Logits are q.k * scale, then softcapped; a sink's logit
 * joins the sum of exponentials.
 *
 * One result whatever shares the call: a sequence's blocks are cut into chunks
 * of 16, counted from its first. Each chunk is taken from a fresh state, block
 * by block with an online softmax, and gives a partial result; partial results
 * are merged in rising order. Whether one task does all chunks of a row or
 * several share them changes who computes, not what. A block that a row does
 * not see would leave its state as it was, so it is left out. The rows of a
 * tile share loads and nothing else.
 *
 * A tile is some rows of one sequence times some query heads of one key head.
 * It is a task, or one task per chunk when it is much of the whole. With
 * encoded blocks its rows stand in one block, which they alone see exactly.
 * All memory is a scratch area of fixed size that the backend has had from the
 * start, so nothing here can fail; what does not fit is done in further
 * rounds. */
#include "backend/cpu/attention.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "quant/hadamard.h"

enum {
    CHUNK = 16,                /* blocks per partial result: part of the numerics */
    TILE_QUERIES = 48,         /* query vectors that share a pass over the blocks */
    WORKER_FLOATS = 64 * 1024, /* bounds what a query takes */
    MAX_TASKS = 4096,
    PART_FLOATS = 2 * 1024 * 1024,
    MIN_WORK = 32 * 1024 /* multiply-adds worth another thread */
};

static size_t area_bytes(const struct cpu_backend *b)
{
    return (WORKER_FLOATS + b->codec_floats) * sizeof(float);
}

size_t cpu_attend_scratch(const struct cpu_backend *b)
{
    return (size_t)b->threads * area_bytes(b) + 2 * MAX_TASKS * sizeof(struct tile) + PART_FLOATS * sizeof(float);
}

static int64_t query_floats(const struct attn_args *a)
{
    const struct kv_shape *s = &a->shape;
    int64_t n = s->head_dim + KV_BLOCK + 2 * (int64_t)s->v_dim + 4;
    if (!a->key)
        return n;
    n += 3 * (int64_t)s->head_dim + KV_BLOCK + s->v_dim;
    return n + (s->head_dim + KV_BLOCK) / 2 + 2 * (s->head_dim / 32) + 4;
}

static int tile_queries(const struct attn_args *a)
{
    int64_t n = WORKER_FLOATS / query_floats(a);
    assert(n > 0);
    return (int)min64(n, TILE_QUERIES);
}

static struct area area_of(const struct attend *x, int worker, int64_t queries)
{
    const struct kv_shape *s = &x->a->shape;
    struct area w = {0};
    w.q = (float *)(void *)(x->areas + (size_t)worker * x->area_bytes);
    w.codec = w.q + WORKER_FLOATS;
    w.s = w.q + queries * s->head_dim;
    w.acc = w.s + queries * KV_BLOCK;
    w.total = w.acc + queries * s->v_dim;
    w.queries = queries;
    w.st = (struct attn_state *)(void *)(w.total + queries * s->v_dim);
    w.total_st = w.st + queries;
    if (x->a->key) {
        w.rotated = (float *)(void *)(w.total_st + queries);
        w.sketch = w.rotated + queries * s->head_dim;
        w.turned = w.sketch + queries * s->head_dim;
        w.s2 = w.turned + queries * s->head_dim;
        w.acc_rotated = w.s2 + queries * KV_BLOCK;
        w.words = (int16_t *)(void *)(w.acc_rotated + queries * s->v_dim);
        w.value_words = w.words + queries * s->head_dim;
        w.value_units = (float *)(void *)(w.value_words + queries * KV_BLOCK);
        w.value_sums = w.value_units + queries;
        w.units = w.value_sums + queries;
        w.query_sums = w.units + queries * (s->head_dim / 32 + 1);
    }
    return w;
}

/* --- computing ------------------------------------------------------------ */

/* Queries as the key codec's frame has them. */
static void rotate_queries(const struct attend *x, const struct area *w, int64_t queries)
{
    const struct kv_codec *c = x->a->key;
    int64_t dim = x->a->shape.head_dim;
    if (c && cpu_int_keys(x->a) && !c->rotation.dim)
        cpu_int_queries(x, w, w->q);
    if (!c || !c->rotation.dim || c->f.kind == KVF_SPLIT)
        return;
    for (int64_t i = 0; i < queries; i++) {
        float *r = w->rotated + i * dim, *s = w->sketch + i * dim;
        memcpy(r, w->q + i * dim, (size_t)dim * sizeof *r);
        kv_rotate(&c->rotation, r);
        if (c->gauss) {
            for (int64_t d = 0; d < dim; d++) {
                s[d] = 0;
                for (int64_t j = 0; j < dim; j++)
                    s[d] += c->gauss[d * dim + j] * r[j];
            }
        } else if (c->second.dim) {
            memcpy(s, r, (size_t)dim * sizeof *s);
            kv_rotate(&c->second, s);
        }
    }
    if (cpu_int_keys(x->a))
        cpu_int_queries(x, w, w->rotated);
}

/* The inverse of a rotation in blocks of 2^k is the same with the signs on the other side. */
static void rotate_back(const struct cpu_backend *b, const struct kv_rotation *r, float *x)
{
    if (hadamard_odd(r->block) != 1) {
        kv_rotate_back(r, x);
        return;
    }
    struct quant_input back = {.block = r->block, .signs_first = !r->signs_first, .signs = r->signs};
    b->vector.input(x, x, &back, r->dim);
}

/* Blocks [from, to) of a tile, all of one chunk, from a fresh state into w->st
 * and w->acc. */
static void chunk_partial(const struct attend *x, const struct tile *t, struct area *w, int from, int to)
{
    int64_t queries = t->rows * t->heads, dim = x->a->shape.v_dim;
    for (int64_t i = 0; i < queries; i++)
        w->st[i] = (struct attn_state){-INFINITY, 0};
    memset(w->acc, 0, (size_t)(queries * dim) * sizeof(float));
    w->has_rotated = false;
    for (int b = from; b < to; b++)
        cpu_attend_block(x, t, w, b);
    for (int64_t i = 0; w->has_rotated && i < queries; i++) {
        rotate_back(x->b, &x->a->value->rotation, w->acc_rotated + i * dim);
        x->b->vector.add(w->acc + i * dim, w->acc + i * dim, w->acc_rotated + i * dim, dim);
    }
}

static void merge_queries(const struct attend *x, const struct area *w, const struct attn_state *st, const float *acc,
                          int64_t queries)
{
    int64_t dim = x->a->shape.v_dim;
    for (int64_t i = 0; i < queries; i++)
        x->b->vector.attn_merge(&w->total_st[i], w->total + i * dim, &st[i], acc + i * dim, dim);
}

static void start_totals(const struct attend *x, const struct area *w, int64_t queries)
{
    for (int64_t i = 0; i < queries; i++)
        w->total_st[i] = (struct attn_state){-INFINITY, 0};
    memset(w->total, 0, (size_t)(queries * x->a->shape.v_dim) * sizeof(float));
}

static void finish_queries(const struct attend *x, const struct tile *t, const struct area *w)
{
    const struct attn_args *a = x->a;
    int64_t dim = a->shape.v_dim;
    for (int64_t r = 0; r < t->rows; r++)
        for (int h = 0; h < t->heads; h++) {
            int64_t i = r * t->heads + h, row = t->span->row + t->row + r;
            float *y = x->y + (row * a->n_heads + t->head + h) * dim;
            x->b->vector.attn_finish(y, w->total + i * dim, &w->total_st[i], a->sinks ? &a->sinks[t->head + h] : NULL,
                                     dim);
        }
}

/* The end of the chunk that block `from` begins, at most `to`. */
static int chunk_end(const struct attn_span *s, int from, int to)
{
    int64_t chunk = s->blocks[from].index / CHUNK;
    int b = from + 1;
    while (b < to && s->blocks[b].index / CHUNK == chunk)
        b++;
    return b;
}

static void run_tile(void *arg, int task, int worker)
{
    const struct attend *x = arg;
    const struct tile *t = &x->tasks[task];
    int64_t queries = t->rows * t->heads, dim = x->a->shape.head_dim;
    struct area w = area_of(x, worker, queries);
    for (int64_t r = 0; r < t->rows; r++)
        memcpy(w.q + r * t->heads * dim, x->q + ((t->span->row + t->row + r) * x->a->n_heads + t->head) * dim,
               (size_t)(t->heads * dim) * sizeof(float));
    rotate_queries(x, &w, queries);
    if (t->part) {
        w.st = (struct attn_state *)(void *)t->part;
        w.acc = t->part + 2 * queries;
        chunk_partial(x, t, &w, t->from, t->to);
        return;
    }
    start_totals(x, &w, queries);
    for (int b = t->from, end; b < t->to; b = end) {
        end = chunk_end(t->span, b, t->to);
        chunk_partial(x, t, &w, b, end);
        merge_queries(x, &w, w.st, w.acc, queries);
    }
    finish_queries(x, t, &w);
}

static void run_merge(void *arg, int task, int worker)
{
    const struct attend *x = arg;
    const struct tile *t = &x->merges[task];
    int64_t queries = t->rows * t->heads;
    struct area w = area_of(x, worker, queries);
    start_totals(x, &w, queries);
    for (int64_t c = 0; c < t->parts; c++) {
        const float *part = t->part + c * queries * (2 + x->a->shape.v_dim);
        merge_queries(x, &w, (const struct attn_state *)(const void *)part, part + 2 * queries, queries);
    }
    finish_queries(x, t, &w);
}

/* Does what has been planned and makes room for more. */
static void run_round(struct attend *x)
{
    if (x->work < MIN_WORK)
        for (int i = 0; i < x->n_tasks; i++)
            run_tile(x, i, 0);
    else
        pool_run(x->b->base.pool, x->n_tasks, run_tile, x);
    if (x->n_merges)
        pool_run(x->b->base.pool, x->n_merges, run_merge, x);
    x->n_tasks = x->n_merges = 0;
    x->part_floats = 0;
}

/* --- planning ------------------------------------------------------------- */

/* The first position that a row at p sees in its window. */
static int64_t window_start(const struct attn_args *a, int64_t p)
{
    return a->window > 0 && a->window <= p ? p - a->window + 1 : 0;
}

static bool is_seen(const struct attn_args *a, const struct attn_block *b, int64_t p0, int64_t p1)
{
    return b->start <= p1 && (b->start + b->count > window_start(a, p0) || b->start < a->keep);
}

static void plan_tile(struct attend *x, struct tile t)
{
    const struct attn_span *s = t.span;
    int64_t p0 = s->pos + t.row, p1 = p0 + t.rows - 1;
    while (t.from < s->n_blocks && !is_seen(x->a, &s->blocks[t.from], p0, p1))
        t.from++;
    for (t.to = s->n_blocks; t.to > t.from && s->blocks[t.to - 1].start > p1;)
        t.to--;
    t.parts = 0;
    for (int b = t.from; b < t.to; b = chunk_end(s, b, t.to))
        t.parts++;
    int64_t queries = t.rows * t.heads, per_chunk = queries * (2 + x->a->shape.v_dim);
    bool split = t.parts > 1 && queries * (int64_t)(t.to - t.from) * KV_BLOCK > x->split && t.parts <= MAX_TASKS &&
                 t.parts <= PART_FLOATS / per_chunk;
    int64_t tasks = split ? t.parts : 1, floats = split ? t.parts * per_chunk : 0;
    if (x->n_tasks + tasks > MAX_TASKS || x->part_floats + floats > PART_FLOATS)
        run_round(x);
    if (!split) {
        x->tasks[x->n_tasks++] = t;
        return;
    }
    t.part = x->parts + x->part_floats;
    x->part_floats += floats;
    x->merges[x->n_merges++] = t;
    int b = t.from;
    for (int c = 0; c < t.parts; c++) {
        struct tile one = t;
        one.from = b;
        one.to = b = chunk_end(s, b, t.to);
        one.part = t.part + c * per_chunk;
        x->tasks[x->n_tasks++] = one;
    }
}

/* Rows [begin, end) of a span, the later ones, which see the most, first. */
static void plan_rows(struct attend *x, const struct attn_span *span, int own, int64_t begin, int64_t end)
{
    const struct attn_args *a = x->a;
    int group = a->n_heads / a->shape.n_heads, queries = tile_queries(a);
    int heads = (int)min64(group, queries);
    int64_t rows = queries / heads;
    for (int kv_head = 0; kv_head < a->shape.n_heads; kv_head++)
        for (int h = 0; h < group; h += heads)
            for (int64_t last = end; last > begin; last -= rows) {
                struct tile t = {.span = span, .kv_head = kv_head, .head = kv_head * group + h, .own = own};
                t.heads = (int)min64(heads, group - h);
                t.row = max64(begin, last - rows);
                t.rows = last - t.row;
                plan_tile(x, t);
            }
}

static void plan_span(struct attend *x, const struct attn_span *s)
{
    if (!x->a->key) {
        plan_rows(x, s, -1, 0, s->rows);
        return;
    }
    for (int i = s->n_own; i-- > 0;) {
        int64_t begin = s->own[i].start - s->pos, end = begin + s->own[i].count;
        plan_rows(x, s, i, max64(begin, 0), min64(end, s->rows));
    }
}

void cpu_attend(struct backend *base, const struct attn_args *a, struct tensor *y, const struct tensor *q)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    struct attend x = {.b = b, .a = a, .y = tensor_f32(y), .q = tensor_f32(q), .area_bytes = area_bytes(b)};
    x.areas = cpu_scratch(b, cpu_attend_scratch(b));
    x.tasks = (struct tile *)(void *)(x.areas + (size_t)b->threads * x.area_bytes);
    x.merges = x.tasks + MAX_TASKS;
    x.parts = (float *)(void *)(x.merges + MAX_TASKS);

    int64_t seen = 0; /* pairs of a query and a position */
    for (int i = 0; i < a->n_spans; i++) {
        const struct attn_span *s = &a->spans[i];
        int64_t last = s->pos + s->rows - 1;
        for (int k = 0; k < s->n_blocks; k++)
            if (is_seen(a, &s->blocks[k], last, last))
                seen += s->rows * a->n_heads * s->blocks[k].count;
    }
    x.split = b->threads > 1 ? seen / (4 * b->threads) : INT64_MAX;
    x.work = seen * (a->shape.head_dim + a->shape.v_dim);

    for (int i = 0; i < a->n_spans; i++)
        plan_span(&x, &a->spans[i]);
    run_round(&x);
}
