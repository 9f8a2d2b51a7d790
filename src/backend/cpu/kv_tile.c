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

/* What is to be brought into the cache while a tile is decoded, some at each step. */
struct ahead {
    const char *at, *end;
    size_t step;
};

static struct ahead ahead_in_steps(const void *at, size_t bytes, int steps)
{
    if (!at)
        return (struct ahead){0};
    return (struct ahead){at, (const char *)at + bytes, (bytes / (size_t)steps + 64) & ~(size_t)63};
}

static void fetch(struct ahead *f)
{
    if (!f->at)
        return;
    const char *to = f->at + f->step;
    for (; f->at < to && f->at < f->end; f->at += 64)
        __builtin_prefetch(f->at);
}

enum { STEPS = 16, STEP = KV_BLOCK / STEPS }; /* of a tile; rows in one */

/* Rows of codes one after the other; where each goes, and whose factors it takes: at [n]. */
static void affine_rows(const struct cpu_backend *b, float *x, const uint8_t *codes, int bits, const uint16_t *at,
                        int n, const float *scale, const float *offset, struct ahead *f)
{
    for (int i = 0; i < n; i += STEP, codes += STEP * bits * KV_RUN / 8) {
        fetch(f);
        b->vector.kv_affine_runs(x, codes, bits, at + i, n - i < STEP ? n - i : STEP, scale, offset);
    }
}

enum { SET_WORDS = KV_DIM_MAX / 64 };

/* The channels of each width, the widest first, as bits. */
static void channel_sets(const struct kv_codec *c, const uint8_t *in, uint64_t sets[3][SET_WORDS])
{
    int words = (c->dim + 63) / 64;
    size_t bytes = ((size_t)c->dim + 7) / 8;
    for (int w = 0; w < words; w++)
        sets[0][w] = sets[2][w] = 0;
    if (c->f.mix) {
        memcpy(sets[0], in + c->sets, bytes);
        memcpy(sets[2], in + c->sets + bytes, bytes);
    }
    for (int w = 0; w < words; w++) {
        uint64_t all = (w + 1) * 64 <= c->dim ? ~UINT64_C(0) : (UINT64_C(1) << (c->dim & 63)) - 1;
        uint64_t both = sets[0][w] ^ sets[2][w];
        sets[1][w] = all & ~both;
        sets[0][w] &= both & all;
        sets[2][w] &= both & all;
    }
}

/* Channels by width; n[0 .. 2] of each. */
static void sort_channels(const struct kv_codec *c, const uint8_t *in, uint16_t *order, int n[3])
{
    uint64_t sets[3][SET_WORDS];
    channel_sets(c, in, sets);
    for (int k = 0; k < 3; k++) {
        const uint16_t *first = order;
        for (int w = 0; w * 64 < c->dim; w++)
            for (uint64_t set = sets[k][w]; set; set &= set - 1)
                *order++ = (uint16_t)(w * 64 + __builtin_ctzll(set));
        n[k] = (int)(order - first);
    }
}

static void chan_keys(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x, float *work,
                      struct ahead *f)
{
    float *scale = work, *offset = work + c->dim;
    const uint8_t *codes = in + c->codes;
    uint16_t order[KV_DIM_MAX];
    int n[3], done = 0;
    halves(b, scale, in + c->scales, c->dim);
    halves(b, offset, in + c->offsets, c->dim);
    sort_channels(c, in, order, n);
    for (int i = 0; i < 3; i++) {
        int bits = c->f.bits + 1 - i;
        affine_rows(b, x, codes, bits, order + done, n[i], scale, offset, f);
        codes += n[i] * bits * KV_RUN / 8;
        done += n[i];
    }
}

/* Rows of levels, `rows` of n codes each, n a multiple of KV_RUN. */
static void level_rows(const struct cpu_backend *b, const struct kv_codec *c, int bits, const uint8_t *codes, float *x,
                       int rows, int n, struct ahead *f)
{
    for (int i = 0; i < rows; i += STEP) {
        fetch(f);
        b->vector.kv_levels(x + i * n, codes + kv_planes_bytes(i * n, bits), bits,
                            (rows - i < STEP ? rows - i : STEP) * n, c->levels);
    }
}

static void affine_keys(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x,
                        struct ahead *f)
{
    float scale[KV_BLOCK], offset[KV_BLOCK];
    for (int first = 0; first < c->dim; first += c->f.group) {
        size_t at = (size_t)(first / c->f.group) * KV_BLOCK * 2;
        halves(b, scale, in + c->scales + at, KV_BLOCK);
        halves(b, offset, in + c->offsets + at, KV_BLOCK);
        for (int d = first; d < first + c->f.group; d++) {
            if (d % STEP == 0)
                fetch(f);
            b->vector.kv_affine_columns(x + d * KV_BLOCK, in + c->codes + d * c->f.bits * 8, c->f.bits, KV_BLOCK, scale,
                                        offset);
        }
    }
}

float *cpu_key_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *data, const void *ahead,
                    const struct kv_turn *turn, float *x)
{
    const uint8_t *in = data;
    struct ahead f = ahead_in_steps(ahead, c->bytes, STEPS * c->dim / KV_BLOCK);
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
        affine_keys(b, c, in, x, &f);
        break;
    case KVF_CHAN:
        chan_keys(b, c, in, x, work, &f);
        if (turn)
            turn_tile(b, turn, x);
        break;
    case KVF_TQ:
    case KVF_PROD:
        level_rows(b, c, bits, in + c->codes, x, c->dim, KV_BLOCK, &f);
        break;
    default:
        kv_codec_decode(c, in, turn, work, work + tile_floats(c));
        transpose(x, work, c->dim);
    }
    return x;
}

static void code_words(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *codes, int16_t *tile,
                       int rows, int width)
{
    if (c->f.kind == KVF_TQ)
        b->vector.kv_level_words(tile, codes, c->f.bits, rows, width, c->level_words);
    else
        b->vector.kv_words(tile, codes, c->f.bits, rows, width);
}

static void chan_words(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in,
                       const struct kv_turn *turn, int16_t *x, float *work, float *unit)
{
    float *scale = work, *low = work + c->dim;
    int16_t factor[KV_DIM_MAX], offset[KV_DIM_MAX];
    uint64_t sets[3][SET_WORDS];
    uint16_t same[KV_DIM_MAX];
    const uint16_t *rows = turn ? turn->rows : same;
    const uint8_t *codes = in + c->codes;
    int width = c->f.bits + c->f.mix;
    for (int i = 0; !turn && i < c->dim; i++)
        same[i] = (uint16_t)i;
    halves(b, scale, in + c->scales, c->dim);
    halves(b, low, in + c->offsets, c->dim);
    *unit = b->vector.kv_channel_units(factor, offset, scale, low, c->dim, width);
    channel_sets(c, in, sets);
    for (int k = 0; k < 3; k++)
        for (int w = 0, at = 0; at < c->dim; w++, at += 64)
            codes = b->vector.kv_channel_words(x, codes, c->f.bits + 1 - k, sets[k][w], rows + at, 14 - width,
                                               factor + at, offset + at);
}

int16_t *cpu_key_words(const struct cpu_backend *b, const struct kv_codec *c, const void *data,
                       const struct kv_turn *turn, float *work, float *unit)
{
    const uint8_t *in = data;
    int16_t *tile = (int16_t *)(void *)work;
    *unit = c->f.kind == KVF_TQ ? c->level_unit : 1;
    if (c->f.kind != KVF_CHAN) {
        code_words(b, c, in + c->codes, tile, c->dim, KV_BLOCK);
        return tile;
    }
    int dims = turn ? turn->dims : 0;
    chan_words(b, c, in, turn, tile, work + tile_floats(c), unit);
    if (turn)
        b->vector.kv_turn_words(tile, dims / 2, turn->cos_words, turn->sin_words);
    b->vector.kv_pair_words(tile + (size_t)dims * KV_BLOCK, (c->dim - dims) / 2);
    return tile;
}

int16_t *cpu_value_words(const struct cpu_backend *b, const struct kv_codec *c, const void *data, float *work,
                         float *unit)
{
    int16_t *tile = (int16_t *)(void *)work;
    *unit = c->f.kind == KVF_TQ ? c->level_unit : 1;
    code_words(b, c, (const uint8_t *)data + c->codes, tile, KV_BLOCK, c->dim);
    return tile;
}

float *cpu_sketch_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *data, float *x)
{
    static const float signs[KV_LEVELS_MAX] = {-1, 1};
    const uint8_t *in = data;
    b->vector.kv_levels(x, in + c->sketch, 1, c->dim * KV_BLOCK, signs);
    return x;
}

static void affine_values(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x,
                          float *work, struct ahead *f)
{
    int g = c->f.group, groups = c->dim / g;
    float *scale = work, *offset = scale + KV_BLOCK * groups;
    size_t row = kv_planes_bytes(c->row, c->f.bits), run = kv_planes_bytes(KV_RUN, c->f.bits);
    halves(b, scale, in + c->scales, (int64_t)KV_BLOCK * groups);
    halves(b, offset, in + c->offsets, (int64_t)KV_BLOCK * groups);
    if (c->dim % KV_RUN == 0 && g == KV_RUN) {
        uint16_t at[KV_DIM_MAX];
        for (int i = 0; i < KV_BLOCK * groups; i++)
            at[i] = (uint16_t)i;
        affine_rows(b, x, in + c->codes, c->f.bits, at, KV_BLOCK * groups, scale, offset, f);
        return;
    }
    for (int t = 0; t < KV_BLOCK; t++) {
        const uint8_t *codes = in + c->codes + (size_t)t * row;
        if (t % STEP == 0)
            fetch(f);
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
static void rows_of(const struct cpu_backend *b, const struct kv_codec *c, const uint8_t *in, float *x, float *work,
                    struct ahead *f)
{
    float *scale = work, *offset = scale + c->row, *row = offset + c->row;
    size_t bytes = kv_planes_bytes(c->row, c->f.bits);
    if (c->f.kind == KVF_TQ && c->row == c->dim && c->dim % KV_RUN == 0) {
        level_rows(b, c, c->f.bits, in + c->codes, x, KV_BLOCK, c->dim, f);
        return;
    }
    if (c->f.kind == KVF_CHAN) {
        memset(scale, 0, 2 * (size_t)c->row * sizeof *scale);
        halves(b, scale, in + c->scales, c->dim);
        halves(b, offset, in + c->offsets, c->dim);
    }
    for (int t = 0; t < KV_BLOCK; t++) {
        const uint8_t *codes = in + c->codes + (size_t)t * bytes;
        float *to = c->row == c->dim ? x + t * c->dim : row;
        if (t % STEP == 0)
            fetch(f);
        if (c->f.kind == KVF_CHAN)
            b->vector.kv_affine_columns(to, codes, c->f.bits, c->row, scale, offset);
        else
            b->vector.kv_levels(to, codes, c->f.bits, c->row, c->levels);
        if (to == row)
            memcpy(x + t * c->dim, row, (size_t)c->dim * sizeof *row);
    }
}

float *cpu_value_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *data, const void *ahead,
                      float *x)
{
    const uint8_t *in = data;
    struct ahead f = ahead_in_steps(ahead, c->bytes, STEPS);
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
        affine_values(b, c, in, x, work, &f);
        break;
    case KVF_CHAN:
    case KVF_TQ:
        rows_of(b, c, in, x, work, &f);
        break;
    default:
        kv_codec_decode(c, in, NULL, x, work);
    }
    return x;
}
