/* Scores and sums over encoded blocks in integers.
 *
 * Codes are small integers, so a product of queries with codes needs no floats:
 * a query becomes 16-bit integers with one unit for it (or for each group of
 * channels that has scales of its own), and so do the probabilities of a block
 * once the factors of its tokens are in them. Sums are exact in int32, which
 * bounds the integers: n products of at most `most` each leave 2^31 / (n * most)
 * for the other side. Formats:
 *
 *   keys    affine, rot   s = sum over groups of scale[t] * <q, codes> + offset[t] * sum(q)
 *           chan          the tile is made of scales and offsets, in one unit for the block, and turned
 *           tq            levels; s = scalar[t] * <q, levels> + <q, centre>
 *   values  affine        p * scale[t], and the sum of p * offset[t], for each group
 *           tq            p * scalar[t]
 *
 * In exact precision (32-bit blocks) and for all other formats tiles are floats. */
#include <string.h>

#include "backend/cpu/attention.h"

bool cpu_int_keys(const struct attn_args *a)
{
    const struct kv_format *f = &a->key->f;
    if (a->shape.type == KV_F32 || a->key->dim % 32)
        return false;
    return f->kind == KVF_AFFINE || (f->kind == KVF_ROT && !f->qjl) || f->kind == KVF_CHAN ||
           (f->kind == KVF_TQ && f->bits <= 4);
}

bool cpu_int_values(const struct attn_args *a)
{
    const struct kv_format *f = &a->value->f;
    if (a->shape.type == KV_F32 || a->value->dim % KV_RUN)
        return false;
    return f->kind == KVF_AFFINE || (f->kind == KVF_TQ && f->bits <= 4);
}

/* Channels that share scales. */
static int group_of(const struct kv_codec *c)
{
    return c->f.kind == KVF_AFFINE || c->f.kind == KVF_ROT ? c->f.group : c->dim;
}

/* The greatest element of a tile. */
static int most_of(const struct kv_codec *c)
{
    enum { TURNED = KEY_MOST * 1415 / 1000 + 2 }; /* times the root of 2, roundings */
    return c->f.kind == KVF_CHAN ? TURNED : c->f.kind == KVF_TQ ? KV_LEVEL_WORD : (1 << c->f.bits) - 1;
}

static int limit(int n, int most)
{
    int64_t l = INT32_MAX / ((int64_t)n * most);
    return l < INT16_MAX ? (int)l : INT16_MAX;
}

static const struct kv_turn *turn_of(const struct attn_args *a)
{
    return a->key->f.pre ? a->turn : NULL;
}

/* Channels of rotary pairs half the turned channels apart. */
static void pairs_apart(float *to, const float *q, int dims, int dim)
{
    for (int i = 0; i < dims / 2; i++) {
        to[i] = q[2 * i];
        to[dims / 2 + i] = q[2 * i + 1];
    }
    memcpy(to + dims, q + dims, (size_t)(dim - dims) * sizeof *to);
}

void cpu_int_queries(const struct attend *x, const struct area *w, const float *q)
{
    const struct kv_codec *c = x->a->key;
    const struct kv_turn *turn = turn_of(x->a);
    int g = group_of(c), most = limit(g, most_of(c));
    bool has_sums = c->f.kind == KVF_AFFINE || c->f.kind == KVF_ROT;
    float apart[KV_DIM_MAX];
    if (turn) /* turned words are at most root 2 times as large, and rounded */
        most = most * 1000 / 1415 - 2;
    for (int64_t i = 0; i < w->queries; i++, q += c->dim) {
        const float *from = q;
        if (turn && turn->interleaved) {
            pairs_apart(apart, q, turn->dims, c->dim);
            from = apart;
        }
        for (int at = 0; at < c->dim; at += g) {
            int64_t k = at / g * w->queries + i;
            float sum = 0;
            for (int d = at; has_sums && d < at + g; d++)
                sum += from[d];
            w->query_sums[k] = sum;
            w->units[k] = x->b->vector.int_pack(w->words + i * c->dim + at, NULL, from + at, NULL, NULL, g, most);
        }
    }
}

/* Words of queries turned back by the angles of the block's start, channels of a rotary pair side by side as they are
 * in the tile. */
static const int16_t *turn_queries(const struct attend *x, const struct area *w, int64_t first, int n,
                                   const struct attn_block *block)
{
    int dims = x->a->turn->dims, dim = x->a->key->dim;
    int16_t *turned = (int16_t *)(void *)w->turned;
    x->b->vector.int_turn_back(turned, w->words + first * dim, n, dim, block->turn_words, block->turn_words + dims / 2,
                               dims / 2);
    return turned;
}

/* The tile's unit and the queries'. */
static void joint_units(float *out, const float *units, float unit, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = units[i] * unit;
}

void cpu_int_scores(const struct attend *x, const struct area *w, int64_t first, int n, const struct attn_block *block,
                    const void *in, const void *ahead)
{
    const struct vector_kernels *k = &x->b->vector;
    const struct kv_codec *c = x->a->key;
    const struct kv_turn *turn = turn_of(x->a);
    const uint8_t *data = in;
    float unit, scale[KV_BLOCK], offset[KV_BLOCK], *s = w->s + first * KV_BLOCK, *part = w->s2 + first * KV_BLOCK;
    const int16_t *tile = cpu_key_words(x->b, c, in, turn, w->codec, &unit);
    const int16_t *q = turn ? turn_queries(x, w, first, n, block) : w->words + first * c->dim;
    int g = group_of(c);
    struct int_dot d = {n, g, KV_BLOCK, c->dim, KV_BLOCK, KV_BLOCK, false, ahead, c->bytes};
    if (c->f.kind == KVF_CHAN || c->f.kind == KVF_TQ) {
        joint_units(w->value_units, w->units + first, unit, n);
        k->int_dot(s, q, tile, w->value_units, NULL, &d);
        return;
    }
    memset(s, 0, (size_t)n * KV_BLOCK * sizeof *s);
    for (int at = 0; at < c->dim; at += g) {
        int64_t group = at / g;
        k->load[KV_F16](scale, data + c->scales + (size_t)group * KV_BLOCK * 2, KV_BLOCK);
        k->load[KV_F16](offset, data + c->offsets + (size_t)group * KV_BLOCK * 2, KV_BLOCK);
        k->int_dot(part, q + at, tile + (int64_t)at * KV_BLOCK, w->units + group * w->queries + first, NULL, &d);
        d.ahead = NULL;
        for (int i = 0; i < n; i++)
            k->kv_scores_add(s + i * KV_BLOCK, part + i * KV_BLOCK, scale, offset,
                             w->query_sums[group * w->queries + first + i]);
    }
}

/* Column g of [KV_BLOCK][groups] halves. */
static void load_column(const struct vector_kernels *k, float *to, const uint8_t *in, int g, int groups)
{
    uint16_t column[KV_BLOCK];
    if (groups == 1) {
        k->load[KV_F16](to, in, KV_BLOCK);
        return;
    }
    for (int t = 0; t < KV_BLOCK; t++)
        memcpy(&column[t], in + ((size_t)t * (size_t)groups + (size_t)g) * 2, 2);
    k->load[KV_F16](to, column, KV_BLOCK);
}

void cpu_int_sums(const struct attend *x, const struct area *w, int64_t first, int n, const void *in, const void *ahead,
                  float *sums)
{
    const struct vector_kernels *k = &x->b->vector;
    const struct kv_codec *c = x->a->value;
    const uint8_t *data = in;
    bool affine = c->f.kind == KVF_AFFINE;
    float unit, scale[KV_BLOCK], offset[KV_BLOCK];
    const int16_t *tile = cpu_value_words(x->b, c, in, w->codec, &unit);
    int g = group_of(c), most = limit(KV_BLOCK, most_of(c));
    struct int_dot d = {n, KV_BLOCK, g, KV_BLOCK, c->dim, c->dim, true, ahead, c->bytes};
    for (int at = 0; at < c->dim; at += g) {
        load_column(k, scale, data + c->scales, at / g, c->dim / g);
        if (affine)
            load_column(k, offset, data + c->offsets, at / g, c->dim / g);
        for (int i = 0; i < n; i++)
            w->value_units[i] =
                unit * k->int_pack(w->value_words + i * KV_BLOCK, &w->value_sums[i], w->s + (first + i) * KV_BLOCK,
                                   scale, affine ? offset : NULL, KV_BLOCK, most);
        k->int_dot(sums + first * c->dim + at, w->value_words, tile + 2 * at, w->value_units,
                   affine ? w->value_sums : NULL, &d);
        d.ahead = NULL;
    }
}
