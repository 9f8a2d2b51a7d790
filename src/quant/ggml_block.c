/* GGUF formats of 32 inputs per block, each block a scale and its codes:
 *
 *     q4_0    d f16, 16 bytes                 w = d (q - 8)
 *     q4_1    d f16, m f16, 16 bytes          w = d q + m
 *     q5_0    d f16, 32 high bits, 16 bytes   w = d (q - 16)
 *     q5_1    d f16, m f16, 32 high bits, 16 bytes
 *     q8_0    d f16, 32 signed bytes          w = d q
 *     iq4_nl  as q4_0 with a table of values
 *     mxfp4   e8m0 byte, 16 bytes of e2m1
 *
 * Input i has the low nibble of byte i, input i + 16 the high one.
 * Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h */
#include <string.h>

#include "base/fp.h"
#include "quant/quant_formats.h"

enum { INPUTS = 32 };

const int8_t quant_table_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static inline void split_nibbles(const uint8_t *restrict b, uint8_t *restrict out)
{
    for (int i = 0; i < 16; i++)
        out[i] = b[i] & 15;
    for (int i = 0; i < 16; i++)
        out[i + 16] = b[i] >> 4;
}

/* Bit i of h becomes 16 in byte i of the result. */
static inline uint64_t spread_fifth_bits(uint8_t h)
{
    const uint64_t ones = 0x0101010101010101, low7 = ones * 0x7f;
    uint64_t x = h * ones & 0x8040201008040201; /* byte i holds bit i in its own place, or 0 */
    x = (((x & low7) + low7) | x) & ~low7;      /* 0x80 where not 0 */
    return x >> 3;
}

static inline void join_5_bits(const uint8_t *restrict high, const uint8_t *restrict low, uint8_t *restrict out)
{
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f;
    uint64_t b[2], codes[4];
    memcpy(b, low, 16);
    for (int i = 0; i < 2; i++) {
        codes[i] = (b[i] & nibbles) | spread_fifth_bits(high[i]);
        codes[i + 2] = (b[i] >> 4 & nibbles) | spread_fifth_bits(high[i + 2]);
    }
    memcpy(out, codes, 32);
}

/* Block bytes, offset of the high bits (-1: none), offset of the nibbles. */
static inline void nibble_codes(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out, int bytes,
                                int high, int low)
{
    const uint8_t *b = quant_row(v, r) + k0 / INPUTS * bytes;
    for (int64_t i = 0; i < n; i += INPUTS, b += bytes) {
        if (high >= 0)
            join_5_bits(b + high, b + low, out + i);
        else
            split_nibbles(b + low, out + i);
    }
}

void quant_codes_q4_0(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    nibble_codes(v, r, k0, n, out, 18, -1, 2);
}

void quant_codes_q4_1(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    nibble_codes(v, r, k0, n, out, 20, -1, 4);
}

void quant_codes_q5_0(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    nibble_codes(v, r, k0, n, out, 22, 2, 6);
}

void quant_codes_q5_1(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    nibble_codes(v, r, k0, n, out, 24, 4, 8);
}

void quant_codes_mxfp4_gguf(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    nibble_codes(v, r, k0, n, out, 17, -1, 1);
}

void quant_codes_q8_0(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = quant_row(v, r) + k0 / INPUTS * 34;
    for (int64_t i = 0; i < n; i += INPUTS, b += 34)
        memcpy(out + i, b + 2, INPUTS);
}

/* A scale in front of each block; zero: the code that stands for 0. */
static inline void f16_scales(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset,
                              int bytes, float zero)
{
    const uint8_t *b = quant_row(v, r) + g0 * bytes;
    for (int64_t g = 0; g < n; g++, b += bytes) {
        scale[g] = load_f16(b);
        offset[g] = zero != 0 ? -zero * scale[g] : 0;
    }
}

static inline void f16_pairs(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset,
                             int bytes)
{
    const uint8_t *b = quant_row(v, r) + g0 * bytes;
    for (int64_t g = 0; g < n; g++, b += bytes) {
        scale[g] = load_f16(b);
        offset[g] = load_f16(b + 2);
    }
}

void quant_scales_q4_0(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    f16_scales(v, r, g0, n, scale, offset, 18, 8);
}

void quant_scales_q4_1(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    f16_pairs(v, r, g0, n, scale, offset, 20);
}

void quant_scales_q5_0(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    f16_scales(v, r, g0, n, scale, offset, 22, 16);
}

void quant_scales_q5_1(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    f16_pairs(v, r, g0, n, scale, offset, 24);
}

void quant_scales_q8_0(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    f16_scales(v, r, g0, n, scale, offset, 34, 0);
}

void quant_scales_iq4_nl(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    f16_scales(v, r, g0, n, scale, offset, 18, 0);
}

/* ggml has no NaN here: 0xff is 2^128, which halved is finite. */
static float e8m0_half(uint8_t e)
{
    return fp_from_bits(e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23);
}

void quant_scales_mxfp4_gguf(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    const uint8_t *b = quant_row(v, r) + g0 * 17;
    for (int64_t g = 0; g < n; g++, b += 17) {
        scale[g] = e8m0_half(*b);
        offset[g] = 0;
    }
}
