/* Formats whose codes are one bit stream per row, first code in the lowest
 * bits, and whose scales are a tensor of their own: MLX affine (2, 3, 4, 5, 6,
 * 8 bits), mxfp4, nvfp4, mxfp8, and Hugging Face fp8.
 *
 *     affine   w = q s + b
 *     mx, nv   w = value(q) s, s = 2^(e-127) or e4m3
 *     fp8      w = e4m3(q) s, s of any float type or e8m0
 *
 * MLX calls the stream little-endian uint32; a stream of bytes is the same. */
#include <string.h>

#include "base/fp.h"
#include "quant/quant_formats.h"

const int8_t quant_table_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* n is a multiple of 8, so that every run of eight codes starts on a byte. */
static inline void stream_codes(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *restrict out,
                                unsigned bits)
{
    const uint8_t *restrict p = quant_row(v, r) + k0 / 8 * bits;
    for (int64_t i = 0; i < n; i += 8, p += bits) {
        uint64_t x = quant_spread(quant_load(p, bits), bits);
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

/* n numbers, `step` bytes apart. */
static void floats_load(const uint8_t *p, enum dtype t, size_t step, int64_t n, float *out)
{
    if (t == DT_F32)
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i, p + (size_t)i * step, 4);
    else if (t == DT_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = fp_from_bf16(load_u16(p + (size_t)i * step));
    else if (t == DT_F8_E8M0)
        for (int64_t i = 0; i < n; i++)
            out[i] = fp_from_e8m0(p[(size_t)i * step]);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = load_f16(p + (size_t)i * step);
}

void quant_scales_tensor(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    const size_t step = v->scale_group_bytes ? v->scale_group_bytes : dtype_size(v->scale_dtype);
    const size_t at = (size_t)g0 * step;
    if (v->scales)
        floats_load(scale_row(v, v->scales, r) + at, v->scale_dtype, step, n, scale);
    for (int64_t i = 0; i < n; i++)
        scale[i] = (v->scales ? scale[i] : 1) * (v->factor != 0 ? v->factor : 1);
    if (v->offsets)
        floats_load(scale_row(v, v->offsets, r) + at, v->scale_dtype, step, n, offset);
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
        scale[i] = fp_from_e4m3(p[i]) * v->format->unit * (v->factor != 0 ? v->factor : 1);
        offset[i] = 0;
    }
}
