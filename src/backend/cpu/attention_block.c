/* What one cache block adds to a tile of queries.
 *
 * Exact blocks are read as they are. An encoded block's head is decoded to a
 * tile of floats in the worker's memory, keys [head_dim][KV_BLOCK] and then
 * values [KV_BLOCK][v_dim], which all queries of the tile share. Nothing is
 * un-rotated: scores are taken in the frame of the codes with queries that were
 * rotated once, factors of tokens multiply scores and probabilities, and sums
 * of rotated values are collected apart and turned back once per chunk. */
#include <math.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "base/fp.h"

/* A tile's rows [ra, rb) and one block; `lo` and `hi` bound the tokens that a
 * row sees. `kept`: the pass over positions below keep for rows whose window
 * begins after them. */
struct visit {
    const struct attend *x;
    const struct tile *t;
    struct area *w;
    const struct attn_block *block;
    const struct attn_block *next; /* the one that comes after, if it is stored alike; or NULL */
    int64_t p0;                    /* position of the tile's first row */
    bool kept;
    int64_t ra, rb;
};

static int clamp(int64_t v, int64_t most)
{
    return (int)(v < 0 ? 0 : v > most ? most : v);
}

/* Tokens that row r of the tile sees. */
static void range(const struct visit *v, int64_t r, int *lo, int *hi)
{
    const struct attn_args *a = v->x->a;
    const struct attn_block *b = v->block;
    int64_t p = v->p0 + r, from = a->window > 0 && a->window <= p ? p - a->window + 1 : 0;
    int64_t to = p + 1;
    if (from > a->keep) {
        if (v->kept) {
            from = 0;
            to = a->keep;
        }
    } else {
        from = 0;
        if (v->kept)
            to = 0;
    }
    *lo = clamp(from - b->start, b->count);
    *hi = clamp(to - b->start, b->count);
}

/* Sums of the probabilities in w->s with values v into acc. Tokens that all
 * rows see go through the shared loads, those before and after row by row, so
 * that each row's tokens come in order and none but its own are read. `ahead`:
 * what will be read next, or NULL. */
static void add_values(const struct visit *v, enum kv_type type, const void *values, float *acc, const void *ahead)
{
    const struct attend *x = v->x;
    int n = v->t->heads, dim = x->a->shape.v_dim, shared_lo, shared_hi, lo, hi;
    range(v, v->rb - 1, &shared_lo, &hi); /* the last row's window begins last */
    range(v, v->ra, &lo, &shared_hi);     /* and the first row ends first */
    if (shared_lo > shared_hi)
        shared_lo = shared_hi = KV_BLOCK;
    for (int after = 0; after < 2; after++) {
        for (int64_t r = v->ra; r < v->rb; r++) {
            range(v, r, &lo, &hi);
            if (after)
                lo = lo > shared_hi ? lo : shared_hi;
            else
                hi = hi < shared_lo ? hi : shared_lo;
            if (lo < hi)
                x->b->vector.attn_pv[type](acc + r * n * dim, v->w->s + r * n * KV_BLOCK, values, n, lo, hi, dim, NULL);
        }
        if (!after && shared_lo < shared_hi)
            x->b->vector.attn_pv[type](acc + v->ra * n * dim, v->w->s + v->ra * n * KV_BLOCK, values,
                                       (int)(v->rb - v->ra) * n, shared_lo, shared_hi, dim, ahead);
    }
}

/* Queries [i, i + n), which see the same tokens. */
static void softmax_some(const struct visit *v, int64_t i, int n, int lo, int hi)
{
    const struct attn_args *a = v->x->a;
    struct area *w = v->w;
    const struct vector_kernels *k = &v->x->b->vector;
    int dim = a->shape.v_dim;
    float factor[SOFTMAX_ROWS];
    k->attn_softmax(w->s + i * KV_BLOCK, factor, n, lo, hi, a->scale, a->softcap, &w->st[i]);
    for (int j = 0; j < n; j++) {
        if (factor[j] == 1)
            continue;
        float *acc = w->acc + (i + j) * dim, *rotated = w->acc_rotated + (i + j) * dim;
        k->scale(acc, acc, factor[j], dim);
        if (w->has_rotated)
            k->scale(rotated, rotated, factor[j], dim);
    }
}

static void softmax_rows(const struct visit *v)
{
    int n = v->t->heads;
    for (int64_t r = v->ra; r < v->rb; r++) {
        int lo, hi;
        range(v, r, &lo, &hi);
        for (int h = 0; h < n; h += SOFTMAX_ROWS)
            softmax_some(v, r * n + h, n - h < SOFTMAX_ROWS ? n - h : SOFTMAX_ROWS, lo, hi);
    }
}

/* --- exact blocks --------------------------------------------------------- */

static void visit_exact(const struct visit *v)
{
    const struct kv_shape *s = &v->x->a->shape;
    const char *data = v->block->data;
    size_t elem = kv_elem_bytes(s->type), head = (size_t)v->t->kv_head * KV_BLOCK * elem;
    const char *values = data + kv_keys_bytes(s) + head * (size_t)s->v_dim;
    int n = v->t->heads;
    v->x->b->vector.attn_qk[s->type](v->w->s + v->ra * n * KV_BLOCK, v->w->q + v->ra * n * s->head_dim,
                                     data + head * (size_t)s->head_dim, (int)(v->rb - v->ra) * n, s->head_dim, values);
    softmax_rows(v);
    add_values(v, s->type, values, v->w->acc, v->next ? (char *)v->next->data + head * (size_t)s->head_dim : NULL);
}

/* --- encoded blocks ------------------------------------------------------- */

/* Queries turned back by the angles of the block's start. */
static const float *turn_queries(const struct visit *v, const float *q, const struct kv_turn *turn)
{
    int dim = v->x->a->shape.head_dim, half = turn->dims / 2, n = v->t->heads;
    float back[KV_DIM_MAX / 2];
    for (int j = 0; j < half; j++)
        back[j] = -turn->start_sin[j];
    for (int64_t i = v->ra * n; i < v->rb * n; i++) {
        float *to = v->w->turned + i * dim;
        v->x->b->vector.rope[turn->interleaved](to, q + i * dim, turn->start_cos, back, turn->dims);
        memcpy(to + turn->dims, q + i * dim + turn->dims, (size_t)(dim - turn->dims) * sizeof *to);
    }
    return v->w->turned;
}

static void load_halves(float *to, const uint8_t *in, int n, const struct vector_kernels *k)
{
    k->load[KV_F16](to, in, n);
}

/* The head's part of an encoded block: keys, or values. */
static const uint8_t *encoded_head(const struct visit *v, const struct attn_block *b, bool values)
{
    const struct attn_args *a = v->x->a;
    size_t keys = (size_t)a->shape.n_heads * a->key->bytes;
    if (!b)
        return NULL;
    return (const uint8_t *)b->data +
           (values ? keys + (size_t)v->t->kv_head * a->value->bytes : (size_t)v->t->kv_head * a->key->bytes);
}

/* The inner product with the block's centre, in the frame of the codes. */
static float centre_score(const struct kv_codec *c, const uint8_t *in, const float *q)
{
    double sum = 0;
    for (int d = 0; d < c->dim; d++)
        sum += (double)q[d] * load_f16(in + c->centre + (size_t)d * 2);
    return (float)sum;
}

static void float_scores(const struct visit *v, int nq, const void *in, const void *ahead)
{
    const struct attn_args *a = v->x->a;
    const struct kv_codec *c = a->key;
    struct area *w = v->w;
    struct kv_turn turn = {0};
    int64_t first = v->ra * v->t->heads;
    bool rotated = c->rotation.dim && c->f.kind != KVF_SPLIT;
    const float *q = rotated ? w->rotated : w->q;
    if (c->f.pre && a->turn) {
        turn = *a->turn;
        turn.start_cos = v->block->turn;
        turn.start_sin = v->block->turn + turn.dims / 2;
        q = turn_queries(v, w->q, &turn);
    }
    const float *tile = cpu_key_tile(v->x->b, c, in, ahead, turn.dims ? &turn : NULL, w->codec);
    v->x->b->vector.attn_qk[KV_F32](w->s + first * KV_BLOCK, q + first * c->dim, tile, nq, c->dim, NULL);
}

static void scores(const struct visit *v)
{
    const struct attn_args *a = v->x->a;
    const struct cpu_backend *b = v->x->b;
    const struct vector_kernels *k = &b->vector;
    const struct kv_codec *c = a->key;
    const uint8_t *in = encoded_head(v, v->block, false), *ahead = encoded_head(v, v->next, false);
    struct area *w = v->w;
    int dim = c->dim, n = v->t->heads, nq = (int)(v->rb - v->ra) * n;
    int64_t first = v->ra * n;
    float factor[KV_BLOCK], *s = w->s + first * KV_BLOCK;
    if (kv_format_is_exact(&c->f) && c->f.kind == kv_type_kind(a->shape.type)) {
        k->attn_qk[a->shape.type](s, w->q + first * dim, in, nq, dim, ahead);
        return;
    }
    if (cpu_int_keys(a))
        cpu_int_scores(v->x, w, first, nq, v->block, in, ahead);
    else
        float_scores(v, nq, in, ahead);
    bool has_factor = c->f.kind == KVF_TQ || c->f.kind == KVF_PROD;
    if (has_factor)
        load_halves(factor, in + c->scales, KV_BLOCK, k);
    for (int i = 0; has_factor && i < nq; i++)
        k->kv_scores(s + i * KV_BLOCK, factor, c->f.centred ? centre_score(c, in, w->q + (first + i) * dim) : 0);
    if (!c->sketch)
        return;
    float *s2 = w->s2 + first * KV_BLOCK;
    const float *tile = cpu_sketch_tile(b, c, in, w->codec);
    k->attn_qk[KV_F32](s2, w->sketch + first * dim, tile, nq, dim, NULL);
    load_halves(factor, in + c->sketch_scales, KV_BLOCK, k);
    k->scale(factor, factor, c->sketch_factor, KV_BLOCK);
    for (int i = 0; i < nq; i++) {
        k->kv_scores(s2 + i * KV_BLOCK, factor, 0);
        k->add(s + i * KV_BLOCK, s + i * KV_BLOCK, s2 + i * KV_BLOCK, KV_BLOCK);
    }
}

static void sums(const struct visit *v)
{
    const struct attn_args *a = v->x->a;
    const struct cpu_backend *b = v->x->b;
    const struct vector_kernels *k = &b->vector;
    const struct kv_codec *c = a->value;
    const uint8_t *in = encoded_head(v, v->block, true), *ahead = encoded_head(v, v->next, true);
    struct area *w = v->w;
    int n = v->t->heads;
    if (kv_format_is_exact(&c->f) && c->f.kind == kv_type_kind(a->shape.type)) {
        add_values(v, a->shape.type, in, w->acc, ahead);
        return;
    }
    float *acc = w->acc;
    if (c->f.kind == KVF_TQ) {
        if (!w->has_rotated)
            memset(w->acc_rotated, 0, (size_t)(v->t->rows * n * c->dim) * sizeof *acc);
        w->has_rotated = true;
        acc = w->acc_rotated;
    }
    if (cpu_int_values(a)) {
        cpu_int_sums(v->x, w, v->ra * n, (int)(v->rb - v->ra) * n, in, ahead, acc);
        return;
    }
    const float *tile = cpu_value_tile(b, c, in, ahead, w->codec);
    if (c->f.kind == KVF_TQ) {
        float factor[KV_BLOCK];
        load_halves(factor, in + c->scales, KV_BLOCK, k);
        for (int64_t i = v->ra * n; i < v->rb * n; i++)
            k->kv_scores(w->s + i * KV_BLOCK, factor, 0);
    }
    add_values(v, KV_F32, tile, acc, NULL);
}

static void visit_block(struct visit *v)
{
    int lo, hi;
    for (v->ra = 0; v->ra < v->t->rows; v->ra++) {
        range(v, v->ra, &lo, &hi);
        if (lo < hi)
            break;
    }
    for (v->rb = v->t->rows; v->rb > v->ra; v->rb--) {
        range(v, v->rb - 1, &lo, &hi);
        if (lo < hi)
            break;
    }
    if (v->ra >= v->rb)
        return;
    if (!v->block->encoded) {
        visit_exact(v);
        return;
    }
    scores(v);
    softmax_rows(v);
    sums(v);
}

/* A block as rows of the tile see it. */
static const struct attn_block *seen_block(const struct tile *t, int block)
{
    const struct attn_span *s = t->span;
    return t->own >= 0 && block == s->own_first + t->own ? &s->own[t->own] : &s->blocks[block];
}

void cpu_attend_block(const struct attend *x, const struct tile *t, struct area *w, int block)
{
    struct visit v = {.x = x, .t = t, .w = w, .block = seen_block(t, block), .p0 = t->span->pos + t->row};
    if (block + 1 < t->to)
        v.next = seen_block(t, block + 1);
    if (v.next && v.next->encoded != v.block->encoded)
        v.next = NULL;
    if (x->a->keep > v.block->start) {
        v.kept = true;
        visit_block(&v);
        v.kept = false;
    }
    visit_block(&v);
}
