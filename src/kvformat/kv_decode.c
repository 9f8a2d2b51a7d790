/* Decoding one head's block: the definition of every format. */
#include <string.h>

#include "base/fp.h"
#include "kvformat/kv_codec.h"

struct decoder {
    const struct kv_codec *c;
    const uint8_t *in;
    float *x;       /* [64][dim] */
    uint8_t *codes; /* [rows][row] */
    float *spare;   /* [3 dim] */
};

static float half_at(const struct decoder *n, size_t part, int i)
{
    return load_f16(n->in + part + (size_t)i * 2);
}

static int code_at(const struct decoder *n, int t, int d)
{
    return n->c->key ? n->codes[d * KV_BLOCK + t] : n->codes[t * n->c->row + d];
}

static void unpack_rows(const struct decoder *n, int bits)
{
    const struct kv_codec *c = n->c;
    const uint8_t *in = n->in + c->codes;
    if (c->f.mix) {
        for (int w = c->f.bits + 1; w >= c->f.bits - 1; w--)
            for (int d = 0; d < c->dim; d++)
                if (kv_codec_width(c, n->in, d) == w) {
                    kv_planes_unpack(n->codes + d * KV_BLOCK, in, KV_BLOCK, w);
                    in += kv_planes_bytes(KV_BLOCK, w);
                }
        return;
    }
    int rows = c->key ? c->dim : KV_BLOCK;
    for (int r = 0; r < rows; r++)
        kv_planes_unpack(n->codes + r * c->row, in + (size_t)r * kv_planes_bytes(c->row, bits), c->row, bits);
}

static void decode_exact(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++) {
            size_t at = c->key ? (size_t)d * KV_BLOCK + (size_t)t : (size_t)t * (size_t)c->dim + (size_t)d;
            float *v = &n->x[t * c->dim + d];
            if (c->f.kind == KVF_F32)
                memcpy(v, n->in + at * 4, 4);
            else
                *v = c->f.kind == KVF_F16 ? load_f16(n->in + at * 2) : fp_from_bf16(load_u16(n->in + at * 2));
        }
}

static void decode_fp8(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    float scale;
    memcpy(&scale, n->in + c->scales, 4);
    unpack_rows(n, 8);
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++)
            n->x[t * c->dim + d] = fp_from_e4m3((uint8_t)code_at(n, t, d)) * scale;
}

static void decode_affine(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    int g = c->f.group, groups = c->dim / g;
    unpack_rows(n, c->f.bits);
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++) {
            int at = c->key ? d / g * KV_BLOCK + t : t * groups + d / g;
            n->x[t * c->dim + d] = (float)code_at(n, t, d) * half_at(n, c->scales, at) + half_at(n, c->offsets, at);
        }
}

/* Adds, in the frame of the codes, what the sketch says of the rest. */
static void add_sketch(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    for (int d = 0; d < c->dim; d++)
        kv_planes_unpack(n->codes + d * KV_BLOCK, n->in + c->sketch + (size_t)d * 8, KV_BLOCK, 1);
    for (int t = 0; t < KV_BLOCK; t++) {
        float *s = n->spare, *y = s + c->dim, factor = c->sketch_factor * half_at(n, c->sketch_scales, t);
        for (int d = 0; d < c->dim; d++)
            s[d] = n->codes[d * KV_BLOCK + t] ? factor : -factor;
        if (c->gauss) {
            memset(y, 0, (size_t)c->dim * sizeof *y);
            for (int d = 0; d < c->dim; d++)
                for (int i = 0; i < c->dim; i++)
                    y[i] += c->gauss[d * c->dim + i] * s[d];
            s = y;
        } else {
            kv_rotate_back(&c->second, s);
        }
        for (int d = 0; d < c->dim; d++)
            n->x[t * c->dim + d] += s[d];
    }
}

static void decode_chan(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    unpack_rows(n, c->f.bits);
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++)
            n->x[t * c->dim + d] = (float)code_at(n, t, d) * half_at(n, c->scales, d) + half_at(n, c->offsets, d);
}

static void decode_levels(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    unpack_rows(n, c->f.bits - (c->f.kind == KVF_PROD));
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++)
            n->x[t * c->dim + d] = c->levels[code_at(n, t, d)] * half_at(n, c->scales, t);
}

static void decode_split(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    const uint8_t *set = n->in + c->sets, *in = n->in + c->codes;
    int narrow = c->dim - c->wide, wide_row = (c->wide + 7) / 8 * 8, narrow_row = (narrow + 7) / 8 * 8;
    for (int d = 0; c->key && d < c->dim; d++) {
        int bits = c->f.bits + (d < c->wide);
        kv_planes_unpack(n->codes + d * KV_BLOCK, in, KV_BLOCK, bits);
        in += kv_planes_bytes(KV_BLOCK, bits);
    }
    for (int t = 0; t < KV_BLOCK; t++) {
        uint8_t codes[KV_DIM_MAX + 16];
        float *a = n->spare, *b = a + c->wide;
        if (c->key) {
            for (int d = 0; d < c->dim; d++)
                codes[d < c->wide ? d : wide_row + d - c->wide] = n->codes[d * KV_BLOCK + t];
        } else {
            kv_planes_unpack(codes, in, wide_row, c->f.bits + 1);
            in += kv_planes_bytes(wide_row, c->f.bits + 1);
            kv_planes_unpack(codes + wide_row, in, narrow_row, c->f.bits);
            in += kv_planes_bytes(narrow_row, c->f.bits);
        }
        for (int d = 0; d < c->wide; d++)
            a[d] = c->wide_levels[codes[d]] * half_at(n, c->scales, t);
        for (int d = 0; d < narrow; d++)
            b[d] = c->levels[codes[wide_row + d]] * half_at(n, c->offsets, t);
        kv_rotate_back(&c->rotation, a);
        kv_rotate_back(&c->second, b);
        for (int d = 0, i = 0, j = 0; d < c->dim; d++)
            n->x[t * c->dim + d] = set[d >> 3] >> (d & 7) & 1 ? a[i++] : b[j++];
    }
}

/* Out of the frame of the codes. */
static void unrotate(const struct decoder *n)
{
    const struct kv_codec *c = n->c;
    for (int t = 0; t < KV_BLOCK; t++) {
        float *x = n->x + t * c->dim;
        kv_rotate_back(&c->rotation, x);
        for (int d = 0; c->f.centred && d < c->dim; d++)
            x[d] += half_at(n, c->centre, d);
    }
}

void kv_codec_decode(const struct kv_codec *c, const void *in, const struct kv_turn *turn, float *x, float *work)
{
    struct decoder n = {c, in, x, NULL, work};
    n.codes = (uint8_t *)(void *)(work + 3 * c->dim);
    switch (c->f.kind) {
    case KVF_FP8:
        decode_fp8(&n);
        break;
    case KVF_AFFINE:
        decode_affine(&n);
        break;
    case KVF_ROT:
        decode_affine(&n);
        if (c->f.qjl)
            add_sketch(&n);
        unrotate(&n);
        break;
    case KVF_CHAN:
        decode_chan(&n);
        if (c->f.pre && turn)
            kv_turn_forth(turn, x, c->dim);
        break;
    case KVF_TQ:
        decode_levels(&n);
        unrotate(&n);
        break;
    case KVF_PROD:
        decode_levels(&n);
        add_sketch(&n);
        unrotate(&n);
        break;
    case KVF_SPLIT:
        decode_split(&n);
        break;
    default:
        decode_exact(&n);
    }
}
