/* Callbacks and tables that the rows of quants.def name. Inside quant/ only;
 * contracts in quant/quant.h. */
#ifndef QUANT_QUANT_FORMATS_H
#define QUANT_QUANT_FORMATS_H

#include "base/fp.h"
#include "quant/quant.h"

typedef void quant_codes_fn(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out);
typedef void quant_scales_fn(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset);
typedef void quant_levels_fn(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out);

extern const int8_t quant_table_iq4[16];
extern const int8_t quant_table_e2m1[16]; /* doubled */
extern const int8_t quant_table_turbo2[16], quant_table_turbo3[16], quant_table_turbo4[16];

/* ggml_block.c */
quant_codes_fn quant_codes_q4_0, quant_codes_q4_1, quant_codes_q5_0, quant_codes_q5_1, quant_codes_q8_0,
    quant_codes_mxfp4_gguf;
quant_scales_fn quant_scales_q4_0, quant_scales_q4_1, quant_scales_q5_0, quant_scales_q5_1, quant_scales_q8_0,
    quant_scales_iq4_nl, quant_scales_mxfp4_gguf;

/* ggml_superblock.c */
quant_codes_fn quant_codes_q2_k, quant_codes_q3_k, quant_codes_q4_k, quant_codes_q5_k, quant_codes_q6_k,
    quant_codes_iq4_xs;
quant_levels_fn quant_levels_q2_k, quant_levels_q3_k, quant_levels_q4_k, quant_levels_q5_k, quant_levels_q6_k,
    quant_levels_iq4_xs;

/* bitstream.c */
quant_codes_fn quant_codes_affine2, quant_codes_affine3, quant_codes_affine4, quant_codes_affine5, quant_codes_affine6,
    quant_codes_bytes;
quant_scales_fn quant_scales_tensor, quant_scales_e8m0, quant_scales_e4m3;

/* foreign.c */
quant_codes_fn quant_codes_awq, quant_codes_gptq2, quant_codes_gptq3, quant_codes_gptq4, quant_codes_gptq8,
    quant_codes_packed4, quant_codes_packed8, quant_codes_bitnet;
quant_scales_fn quant_scales_awq, quant_scales_awq_rows, quant_scales_gptq, quant_scales_packed;

static inline const uint8_t *quant_row(const struct quant_view *v, int64_t r)
{
    return (const uint8_t *)v->data + (size_t)r * v->row_bytes;
}

/* Eight codes of b bits to eight bytes, halving the distance in each step. */
static inline uint64_t quant_spread(uint64_t x, unsigned b)
{
    const uint64_t four = ((uint64_t)1 << 4 * b) - 1;
    const uint64_t two = (((uint64_t)1 << 2 * b) - 1) * 0x0000000100000001;
    const uint64_t one = (((uint64_t)1 << b) - 1) * 0x0001000100010001;
    x = (x & four) | (x & four << 4 * b) << (32 - 4 * b);
    x = (x & two) | (x & two << 2 * b) << (16 - 2 * b);
    return (x & one) | (x & one << b) << (8 - b);
}

/* The bytes of eight codes. bits is a constant, so one of the branches stays. */
static inline uint64_t quant_load(const uint8_t *p, unsigned bits)
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

#endif
