/* Formats whose codes are one bit stream per row, first code in the lowest
 * bits, and whose scales are a tensor of their own: MLX affine (2, 3, 4, 5, 6,
 * 8 bits), mxfp4, nvfp4, mxfp8, and Hugging Face fp8.
 *
 *     affine   w = q s + b
 *     mx, nv   w = value(q) s, s = 2^(e-127) or e4m3
 *     fp8      w = e4m3(q) s
 *
 * MLX calls the stream little-endian uint32; a stream of bytes is the same. */
#include <string.h>

#include "base/fp.h"
#include "quant/quant_formats.h"

const int8_t quant_table_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Eight codes of b bits to eight bytes, halving the distance in each step. */
static inline uint64_t spread_codes(uint64_t x, unsigned b)
{
    const uint64_t four = ((uint64_t)1 << 4 * b) - 1;
    const uint64_t two = (((uint64_t)1 << 2 * b) - 1) * 0x0000000100000001;
    const uint64_t one = (((uint64_t)1 << b) - 1) * 0x0001000100010001;
    x = (x & four) | (x & four << 4 * b) << (32 - 4 * b);
    x = (x & two) | (x & two << 2 * b) << (16 - 2 * b);
    return (x & one) | (x & one << b) << (8 - b);
}

/* The bytes of eight codes. bits is a constant, so one of the branches stays. */
static inline uint64_t load_codes(const uint8_t *p, unsigned bits)
{
    switch (bits) {
    case 2:
        return load_u16(p);
    case 3:
        return load_u16(p) | (uint64_t)p[2] << 16;
    case 4:
        return load_u32(p);
    case 5:
        return load_u32(p) | (uint64_t)p[4] << 32;
    default:
        return load_u32(p) | (uint64_t)load_u16(p + 4) << 32;
    }
}

/* n is a multiple of 8, so that every run of eight codes starts on a byte. */
static inline void stream_codes(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *restrict out,
                                unsigned bits)
{
    const uint8_t *restrict p = quant_row(v, r) + k0 / 8 * bits;
    for (int64_t i = 0; i < n; i += 8, p += bits) {
        uint64_t x = spread_codes(load_codes(p, bits), bits);
        memcpy(out + i, &x, 8);
    }
}

void quant_codes_affine2(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    stream_codes(v, r, k0, n, out, 2);
}

void quant_codes_affine3(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    stream_codes(v, r, k0, n, out, 3);
}

void quant_codes_affine4(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    stream_codes(v, r, k0, n, out, 4);
}

void quant_codes_affine5(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    stream_codes(v, r, k0, n, out, 5);
}

void quant_codes_affine6(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    stream_codes(v, r, k0, n, out, 6);
}

void quant_codes_bytes(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    memcpy(out, quant_row(v, r) + k0, (size_t)n);
}

static const uint8_t *scale_row(const struct quant_view *v, const void *tensor, int64_t r)
{
    return (const uint8_t *)tensor + (size_t)(r / v->scale_rows) * v->scale_row_bytes;
}

static void floats_load(const uint8_t *p, enum dtype t, int64_t g0, int64_t n, float *out)
{
    if (t == DT_F32)
        memcpy(out, p + g0 * 4, (size_t)n * 4);
    else if (t == DT_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = fp_from_bf16(load_u16(p + (g0 + i) * 2));
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = load_f16(p + (g0 + i) * 2);
}

void quant_scales_tensor(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    floats_load(scale_row(v, v->scales, r), v->scale_dtype, g0, n, scale);
    if (v->offsets)
        floats_load(scale_row(v, v->offsets, r), v->scale_dtype, g0, n, offset);
    else
        for (int64_t i = 0; i < n; i++)
            offset[i] = 0;
}

void quant_scales_e8m0(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    const uint8_t *p = scale_row(v, v->scales, r) + g0;
    for (int64_t i = 0; i < n; i++) {
        scale[i] = fp_from_e8m0(p[i]) * v->format->unit;
        offset[i] = 0;
    }
}

void quant_scales_e4m3(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    const uint8_t *p = scale_row(v, v->scales, r) + g0;
    for (int64_t i = 0; i < n; i++) {
        scale[i] = fp_from_e4m3(p[i]) * v->format->unit;
        offset[i] = 0;
    }
}
