/* Callbacks and tables that the rows of quants.def name. Inside quant/ only;
 * contracts in quant/quant.h. */
#ifndef QUANT_QUANT_FORMATS_H
#define QUANT_QUANT_FORMATS_H

#include "quant/quant.h"

typedef void quant_codes_fn(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out);
typedef void quant_scales_fn(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset);
typedef void quant_levels_fn(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out);

extern const int8_t quant_table_iq4[16];
extern const int8_t quant_table_e2m1[16]; /* doubled */

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

static inline const uint8_t *quant_row(const struct quant_view *v, int64_t r)
{
    return (const uint8_t *)v->data + (size_t)r * v->row_bytes;
}

#endif
