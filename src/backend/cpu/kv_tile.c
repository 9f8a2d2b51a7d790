/* Decoding one head of an encoded block to floats, for the queries of a tile to
 * share. Formats that are made for speed go through the row kernels; the others
 * through their definition (kvformat/kv_decode.c). */
#include <string.h>

#include "backend/cpu/attention.h"
#include "base/fp.h"

/* Work memory: the tile, vectors of scales and offsets, then a tile of tokens
 * and the definition's own scratch. */
static size_t tile_floats(const struct kv_codec *c)
{
    return (size_t)KV_BLOCK * (size_t)(c->row > c->dim ? c->row : c->dim);
}

size_t cpu_codec_floats(const struct kv_codec *c)
{
    return 3 * tile_floats(c) + kv_codec_work(c);
}

static void halves(const struct cpu_backend *b, float *to, const void *in, int64_t n)
{
    b->vector.load[KV_F16](to, in, n);
}

/* x [64][dim], tokens, as [dim][64]. */
static void transpose(float *to, const float *x, int dim)
{
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < dim; d++)
            to[d * KV_BLOCK + t] = x[t * dim + d];
}

static void turn_tile(const struct cpu_backend *b, const struct kv_turn *turn, float *x)
{
    for (int i = 0; i < turn->dims / 2; i++) {
        float *a = x + (turn->interleaved ? 2 * i : i) * KV_BLOCK;
        float *c = turn->interleaved ? a + KV_BLOCK : a + turn->dims / 2 * KV_BLOCK;
        b->vector.kv_turn(a, c, turn->cos + i * KV_BLOCK, turn->sin + i * KV_BLOCK);
    }
}

static void chan_keys(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x, float *work)
{
    float *scale = work, *offset = work + c->dim;
    const uint8_t *codes = in + c->codes;
    halves(b, scale, in + c->scales, c->dim);
    halves(b, offset, in + c->offsets, c->dim);
    if (!c->f.mix) {
        for (int d = 0; d < c->dim; d++, codes += c->f.bits * 8)
            b->vector.kv_affine(x + d * KV_BLOCK, codes, c->f.bits, KV_BLOCK, scale[d], offset[d]);
        return;
    }
    for (int w = c->f.bits + 1; w >= c->f.bits - 1; w--)
        for (int d = 0; d < c->dim; d++)
            if (kv_codec_width(c, in, d) == w) {
                b->vector.kv_affine(x + d * KV_BLOCK, codes, w, KV_BLOCK, scale[d], offset[d]);
                codes += w * 8;
            }
}

static void affine_keys(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x)
{
    float scale[KV_BLOCK], offset[KV_BLOCK];
    for (int d = 0; d < c->dim; d++) {
        if (d % c->f.group == 0) {
            size_t at = (size_t)(d / c->f.group) * KV_BLOCK * 2;
            halves(b, scale, in + c->scales + at, KV_BLOCK);
            halves(b, offset, in + c->offsets + at, KV_BLOCK);
        }
        b->vector.kv_affine_columns(x + d * KV_BLOCK, in + c->codes + d * c->f.bits * 8, c->f.bits, KV_BLOCK, scale,
                                    offset);
    }
}

float *cpu_key_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *data, const struct kv_turn *turn,
                    float *x)
{
    const uint8_t *in = data;
    float *work = x + tile_floats(c);
    int bits = c->f.bits - (c->f.kind == KVF_PROD);
    float scale;
    switch (c->f.kind) {
    case KVF_FP8:
        memcpy(&scale, in + c->scales, sizeof scale);
        b->vector.kv_e4m3(x, in + c->codes, KV_BLOCK * c->dim, scale);
        break;
    case KVF_AFFINE:
    case KVF_ROT:
        affine_keys(b, c, in, x);
        break;
    case KVF_CHAN:
        chan_keys(b, c, in, x, work);
        if (turn)
            turn_tile(b, turn, x);
        break;
    case KVF_TQ:
    case KVF_PROD:
        for (int d = 0; d < c->dim; d++)
            b->vector.kv_levels(x + d * KV_BLOCK, in + c->codes + d * bits * 8, bits, KV_BLOCK, c->levels);
        break;
    default:
        kv_codec_decode(c, in, turn, work, work + tile_floats(c));
        transpose(x, work, c->dim);
    }
    return x;
}

float *cpu_sketch_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *data, float *x)
{
    static const float signs[KV_LEVELS_MAX] = {-1, 1};
    const uint8_t *in = data;
    for (int d = 0; d < c->dim; d++)
        b->vector.kv_levels(x + d * KV_BLOCK, in + c->sketch + d * 8, 1, KV_BLOCK, signs);
    return x;
}

static void affine_values(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x,
                          float *work)
{
    int g = c->f.group, groups = c->dim / g;
    float *scale = work, *offset = scale + KV_BLOCK * groups;
    size_t row = kv_planes_bytes(c->row, c->f.bits), run = kv_planes_bytes(KV_RUN, c->f.bits);
    halves(b, scale, in + c->scales, (int64_t)KV_BLOCK * groups);
    halves(b, offset, in + c->offsets, (int64_t)KV_BLOCK * groups);
    for (int t = 0; t < KV_BLOCK; t++) {
        const uint8_t *codes = in + c->codes + (size_t)t * row;
        for (int i = 0; i < c->dim; i += KV_RUN, codes += run) {
            int n = c->dim - i < KV_RUN ? c->dim - i : KV_RUN, at = t * groups + i / g;
            float s[KV_RUN], o[KV_RUN];
            if (g >= n) {
                b->vector.kv_affine(x + t * c->dim + i, codes, c->f.bits, n, scale[at], offset[at]);
                continue;
            }
            for (int j = 0; j < n; j++) {
                s[j] = scale[at + j / g];
                o[j] = offset[at + j / g];
            }
            b->vector.kv_affine_columns(x + t * c->dim + i, codes, c->f.bits, n, s, o);
        }
    }
}

/* Rows of `row` codes become rows of dim floats: where they differ, by way of
 * a row apart. */
static void rows_of(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x, float *work)
{
    float *scale = work, *offset = scale + c->row, *row = offset + c->row;
    size_t bytes = kv_planes_bytes(c->row, c->f.bits);
    if (c->f.kind == KVF_CHAN) {
        memset(scale, 0, 2 * (size_t)c->row * sizeof *scale);
        halves(b, scale, in + c->scales, c->dim);
        halves(b, offset, in + c->offsets, c->dim);
    }
    for (int t = 0; t < KV_BLOCK; t++) {
        const uint8_t *codes = in + c->codes + (size_t)t * bytes;
        float *to = c->row == c->dim ? x + t * c->dim : row;
        if (c->f.kind == KVF_CHAN)
            b->vector.kv_affine_columns(to, codes, c->f.bits, c->row, scale, offset);
        else
            b->vector.kv_levels(to, codes, c->f.bits, c->row, c->levels);
        if (to == row)
            memcpy(x + t * c->dim, row, (size_t)c->dim * sizeof *row);
    }
}

float *cpu_value_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *data, float *x)
{
    const uint8_t *in = data;
    float *work = x + tile_floats(c);
    float scale;
    switch (c->f.kind) {
    case KVF_FP8:
        if (c->row != c->dim) {
            kv_codec_decode(c, in, NULL, x, work);
            break;
        }
        memcpy(&scale, in + c->scales, sizeof scale);
        b->vector.kv_e4m3(x, in + c->codes, KV_BLOCK * c->dim, scale);
        break;
    case KVF_AFFINE:
        affine_values(b, c, in, x, work);
        break;
    case KVF_CHAN:
    case KVF_TQ:
        rows_of(b, c, in, x, work);
        break;
    default:
        kv_codec_decode(c, in, NULL, x, work);
    }
    return x;
}
