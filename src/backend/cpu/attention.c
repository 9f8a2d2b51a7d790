/* Cache writes and causal attention over cache blocks.
 *
 * A query row at position p sees positions max(0, p - window + 1) .. p. Logits
 * are q.k * scale, then softcapped; a sink's logit joins the sum of
 * exponentials.
 *
 * One result whatever shares the call: positions are cut into chunks of 1,024,
 * counted from position 0. Each chunk is taken from a fresh state, block by
 * block with an online softmax, and gives a partial result; partial results
 * are merged in rising order. Whether one task does all chunks of a row or
 * several share them changes who computes, not what. A block that a row does
 * not see would leave its state as it was, so it is left out. The rows of a
 * tile share loads and nothing else.
 *
 * A tile is some rows of one sequence times some query heads of one key head.
 * It is a task, or one task per chunk when it is much of the whole. All memory
 * is a scratch area of fixed size that the backend has had from the start, so
 * nothing here can fail; what does not fit is done in further rounds. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "base/pool.h"

enum {
    CHUNK = 1024,              /* positions per partial result: part of the numerics */
    TILE_QUERIES = 24,         /* query vectors that share a pass over the blocks */
    WORKER_FLOATS = 64 * 1024, /* bounds head_dim + 2 * v_dim */
    MAX_TASKS = 4096,
    PART_FLOATS = 2 * 1024 * 1024,
    MIN_WORK = 32 * 1024, /* multiply-adds, or elements, worth another thread */
    WRITE_DIMS = 64       /* key dimensions transposed at a time */
};

struct tile {
    const struct attn_span *span;
    int64_t row, rows; /* of the span */
    int kv_head;
    int head, heads; /* query heads */
    int64_t chunk, chunks;
    float *part; /* [chunks][queries * (2 + v_dim)]: states, then sums; NULL: finished in the task */
};

struct attend {
    struct cpu_backend *b;
    const struct attn_args *a;
    float *y;
    const float *q;
    char *areas;
    struct tile *tasks, *merges; /* a split tile is one task per chunk and one merge */
    int n_tasks, n_merges;
    float *parts;
    int64_t part_floats;
    int64_t split; /* cost above which a tile is split */
    int64_t work;  /* multiply-adds of the call, about */
};

/* A worker's memory for one tile. */
struct area {
    float *q, *s; /* [queries, head_dim], [queries, KV_BLOCK] */
    struct attn_state *st, *total_st;
    float *acc, *total; /* [queries, v_dim] */
};

size_t cpu_attend_scratch(int threads)
{
    return (size_t)threads * WORKER_FLOATS * sizeof(float) + 2 * MAX_TASKS * sizeof(struct tile) +
           PART_FLOATS * sizeof(float);
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int in_block(int64_t n)
{
    return (int)max64(0, min64(n, KV_BLOCK));
}

static int64_t query_floats(const struct kv_shape *s)
{
    return s->head_dim + KV_BLOCK + 2 * (int64_t)s->v_dim + 4;
}

static int tile_queries(const struct kv_shape *s)
{
    int64_t n = WORKER_FLOATS / query_floats(s);
    assert(n > 0);
    return (int)min64(n, TILE_QUERIES);
}

static struct area area_of(const struct attend *x, int worker, int64_t queries)
{
    const struct kv_shape *s = &x->a->shape;
    struct area w;
    w.q = (float *)(void *)(x->areas + (size_t)worker * WORKER_FLOATS * sizeof(float));
    w.s = w.q + queries * s->head_dim;
    w.acc = w.s + queries * KV_BLOCK;
    w.total = w.acc + queries * s->v_dim;
    w.st = (struct attn_state *)(void *)(w.total + queries * s->v_dim);
    w.total_st = w.st + queries;
    return w;
}

/* The first position that a row at p sees, as far as blocks go back. */
static int64_t first_seen(const struct attn_args *a, const struct attn_span *s, int64_t p)
{
    return a->window > 0 && a->window <= p ? max64(p - a->window + 1, s->base) : s->base;
}

/* Sums of one block for rows [ra, rb) of a tile, n queries each, whose
 * probabilities are in w->s. Tokens that all rows see go through the shared
 * loads, those before and after row by row, so that each row's tokens come in
 * order and none but its own are read. */
static void block_sums(const struct attend *x, const struct area *w, const void *v, int64_t p, int64_t window,
                       int64_t ra, int64_t rb, int n)
{
    enum kv_type type = x->a->shape.type;
    int dim = x->a->shape.v_dim;
    int shared_lo = window ? in_block(p + rb - window) : 0, shared_hi = in_block(p + ra + 1);
    if (shared_lo > shared_hi)
        shared_lo = shared_hi = KV_BLOCK;
    for (int after = 0; after < 2; after++) {
        for (int64_t r = ra; r < rb; r++) {
            int lo = window ? in_block(p + r - window + 1) : 0, hi = in_block(p + r + 1);
            if (after)
                lo = (int)max64(lo, shared_hi);
            else
                hi = (int)min64(hi, shared_lo);
            if (lo < hi)
                x->b->vector.attn_pv[type](w->acc + r * n * dim, w->s + r * n * KV_BLOCK, v, n, lo, hi, dim);
        }
        if (!after && shared_lo < shared_hi)
            x->b->vector.attn_pv[type](w->acc + ra * n * dim, w->s + ra * n * KV_BLOCK, v, (int)(rb - ra) * n,
                                       shared_lo, shared_hi, dim);
    }
}

/* One chunk of a tile from a fresh state, into w->st and w->acc. */
static void chunk_partial(const struct attend *x, const struct tile *t, const struct area *w, int64_t chunk)
{
    const struct vector_kernels *k = &x->b->vector;
    const struct attn_args *a = x->a;
    const struct kv_shape *shape = &a->shape;
    const struct attn_span *span = t->span;
    size_t elem = kv_elem_bytes(shape->type);
    int n = t->heads;
    int64_t p0 = span->pos + t->row, p1 = p0 + t->rows - 1;
    int64_t window = a->window > 0 && a->window <= p1 ? a->window : 0;

    for (int64_t i = 0; i < t->rows * n; i++)
        w->st[i] = (struct attn_state){-INFINITY, 0};
    memset(w->acc, 0, (size_t)(t->rows * n * shape->v_dim) * sizeof(float));

    int64_t from = max64(first_seen(a, span, p0), chunk * CHUNK), to = min64(p1, chunk * CHUNK + CHUNK - 1);
    for (int64_t b = (from - span->base) / KV_BLOCK; b <= (to - span->base) / KV_BLOCK; b++) {
        int64_t p = p0 - (span->base + b * KV_BLOCK); /* the first row, as seen from the block */
        int64_t ra = max64(0, -p), rb = window ? min64(t->rows, KV_BLOCK - 1 + window - p) : t->rows;
        if (ra >= rb)
            continue;
        const char *keys =
            (const char *)span->blocks[b] + (size_t)t->kv_head * (size_t)shape->head_dim * KV_BLOCK * elem;
        const char *values = (const char *)span->blocks[b] + kv_keys_bytes(shape) +
                             (size_t)t->kv_head * (size_t)shape->v_dim * KV_BLOCK * elem;
        k->attn_qk[shape->type](w->s + ra * n * KV_BLOCK, w->q + ra * n * shape->head_dim, keys, (int)(rb - ra) * n,
                                shape->head_dim);
        for (int64_t i = ra * n; i < rb * n; i++) {
            int64_t r = i / n;
            int lo = window ? in_block(p + r - window + 1) : 0, hi = in_block(p + r + 1);
            float f = k->attn_softmax(w->s + i * KV_BLOCK, lo, hi, a->scale, a->softcap, &w->st[i]);
            if (f != 1.0f)
                k->scale(w->acc + i * shape->v_dim, w->acc + i * shape->v_dim, f, shape->v_dim);
        }
        block_sums(x, w, values, p, window, ra, rb, n);
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

static void run_tile(void *arg, int task, int worker)
{
    const struct attend *x = arg;
    const struct tile *t = &x->tasks[task];
    int64_t queries = t->rows * t->heads, dim = x->a->shape.head_dim;
    struct area w = area_of(x, worker, queries);
    for (int64_t r = 0; r < t->rows; r++)
        memcpy(w.q + r * t->heads * dim, x->q + ((t->span->row + t->row + r) * x->a->n_heads + t->head) * dim,
               (size_t)(t->heads * dim) * sizeof(float));
    if (t->part) {
        w.st = (struct attn_state *)(void *)t->part;
        w.acc = t->part + 2 * queries;
        chunk_partial(x, t, &w, t->chunk);
        return;
    }
    start_totals(x, &w, queries);
    for (int64_t c = t->chunk; c < t->chunk + t->chunks; c++) {
        chunk_partial(x, t, &w, c);
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
    for (int64_t c = 0; c < t->chunks; c++) {
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

static void plan_tile(struct attend *x, struct tile t)
{
    int64_t p0 = t.span->pos + t.row, p1 = p0 + t.rows - 1, from = first_seen(x->a, t.span, p0);
    int64_t queries = t.rows * t.heads, per_chunk = queries * (2 + x->a->shape.v_dim);
    t.chunk = from / CHUNK;
    t.chunks = p1 / CHUNK - t.chunk + 1;
    bool split = t.chunks > 1 && queries * (p1 - from + 1) > x->split && t.chunks <= MAX_TASKS &&
                 t.chunks <= PART_FLOATS / per_chunk;
    int64_t tasks = split ? t.chunks : 1, floats = split ? t.chunks * per_chunk : 0;
    if (x->n_tasks + tasks > MAX_TASKS || x->part_floats + floats > PART_FLOATS)
        run_round(x);
    if (!split) {
        x->tasks[x->n_tasks++] = t;
        return;
    }
    t.part = x->parts + x->part_floats;
    x->part_floats += floats;
    x->merges[x->n_merges++] = t;
    for (int64_t c = 0; c < t.chunks; c++) {
        struct tile one = t;
        one.chunk = t.chunk + c;
        one.part = t.part + c * per_chunk;
        x->tasks[x->n_tasks++] = one;
    }
}

/* The later rows of a span are the longest, so they come first. */
static void plan_span(struct attend *x, const struct attn_span *span)
{
    const struct attn_args *a = x->a;
    int group = a->n_heads / a->shape.n_heads, queries = tile_queries(&a->shape);
    int heads = (int)min64(group, queries);
    int64_t rows = queries / heads;
    for (int kv_head = 0; kv_head < a->shape.n_heads; kv_head++)
        for (int h = 0; h < group; h += heads)
            for (int64_t end = span->rows; end > 0; end -= rows) {
                struct tile t = {.span = span, .kv_head = kv_head, .head = kv_head * group + h};
                t.heads = (int)min64(heads, group - h);
                t.row = max64(0, end - rows);
                t.rows = end - t.row;
                plan_tile(x, t);
            }
}

void cpu_attend(struct backend *base, const struct attn_args *a, struct tensor *y, const struct tensor *q)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    struct attend x = {.b = b, .a = a, .y = tensor_f32(y), .q = tensor_f32(q)};
    x.areas = cpu_scratch(b, cpu_attend_scratch(b->threads));
    x.tasks = (struct tile *)(void *)(x.areas + (size_t)b->threads * WORKER_FLOATS * sizeof(float));
    x.merges = x.tasks + MAX_TASKS;
    x.parts = (float *)(void *)(x.merges + MAX_TASKS);

    int64_t seen = 0; /* pairs of a query and a position */
    for (int i = 0; i < a->n_spans; i++) {
        const struct attn_span *s = &a->spans[i];
        int64_t last = s->pos + s->rows - 1;
        seen += s->rows * a->n_heads * (last - first_seen(a, s, last) + 1);
    }
    x.split = b->threads > 1 ? seen / (4 * b->threads) : INT64_MAX;
    x.work = seen * (a->shape.head_dim + a->shape.v_dim);

    for (int i = 0; i < a->n_spans; i++)
        plan_span(&x, &a->spans[i]);
    run_round(&x);
}

/* Cache writes. A task is one span's rows of one block. */

struct kv_write {
    struct cpu_backend *b;
    const struct attn_args *a;
    const struct attn_span *span;
    const float *k, *v;
};

static void transpose_u16(uint16_t *to, const uint16_t *from, int tokens, int dims)
{
    for (int d = 0; d < dims; d++)
        for (int t = 0; t < tokens; t++)
            to[d * KV_BLOCK + t] = from[t * WRITE_DIMS + d];
}

static void transpose_u32(uint32_t *to, const uint32_t *from, int tokens, int dims)
{
    for (int d = 0; d < dims; d++)
        for (int t = 0; t < tokens; t++)
            to[d * KV_BLOCK + t] = from[t * WRITE_DIMS + d];
}

/* Rows k (stride floats apart) of one head become tokens t0 up of its keys. */
static void write_keys(const struct kv_write *x, char *keys, const float *k, int64_t stride, int t0, int tokens)
{
    const struct kv_shape *s = &x->a->shape;
    uint32_t buffer[KV_BLOCK * WRITE_DIMS];
    size_t elem = kv_elem_bytes(s->type);
    for (int d = 0; d < s->head_dim; d += WRITE_DIMS) {
        int dims = (int)min64(WRITE_DIMS, s->head_dim - d);
        for (int t = 0; t < tokens; t++)
            x->b->vector.store[s->type]((char *)buffer + (size_t)t * WRITE_DIMS * elem, k + t * stride + d, dims);
        void *to = keys + ((size_t)d * KV_BLOCK + (size_t)t0) * elem;
        if (elem == 2)
            transpose_u16(to, (const uint16_t *)(const void *)buffer, tokens, dims);
        else
            transpose_u32(to, buffer, tokens, dims);
    }
}

static void write_block(void *arg, int task, int worker)
{
    (void)worker;
    const struct kv_write *x = arg;
    const struct kv_shape *s = &x->a->shape;
    const struct attn_span *span = x->span;
    int64_t first = (span->pos - span->base) / KV_BLOCK + task; /* block */
    int64_t at = span->base + first * KV_BLOCK;
    int64_t from = max64(span->pos, at), to = min64(span->pos + span->rows, at + KV_BLOCK);
    int t0 = (int)(from - at), tokens = (int)(to - from);
    int64_t row = span->row + from - span->pos;
    int64_t k_stride = (int64_t)s->n_heads * s->head_dim, v_stride = (int64_t)s->n_heads * s->v_dim;
    size_t elem = kv_elem_bytes(s->type);
    char *keys = span->blocks[first], *values = keys + kv_keys_bytes(s);
    for (int h = 0; h < s->n_heads; h++) {
        write_keys(x, keys + (size_t)h * (size_t)s->head_dim * KV_BLOCK * elem,
                   x->k + row * k_stride + (int64_t)h * s->head_dim, k_stride, t0, tokens);
        for (int t = 0; t < tokens; t++)
            x->b->vector.store[s->type](values + ((size_t)h * KV_BLOCK + (size_t)(t0 + t)) * (size_t)s->v_dim * elem,
                                        x->v + (row + t) * v_stride + (int64_t)h * s->v_dim, s->v_dim);
    }
}

void cpu_kv_write(struct backend *base, const struct attn_args *a, const struct tensor *k, const struct tensor *v)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    for (int i = 0; i < a->n_spans; i++) {
        const struct attn_span *s = &a->spans[i];
        if (s->rows <= 0)
            continue;
        struct kv_write x = {b, a, s, tensor_f32(k), tensor_f32(v)};
        int64_t first = (s->pos - s->base) / KV_BLOCK, last = (s->pos + s->rows - 1 - s->base) / KV_BLOCK;
        int tasks = (int)(last - first + 1);
        if (s->rows * a->shape.n_heads * (a->shape.head_dim + a->shape.v_dim) > MIN_WORK)
            pool_run(b->base.pool, tasks, write_block, &x);
        else
            for (int t = 0; t < tasks; t++)
                write_block(&x, t, 0);
    }
}
