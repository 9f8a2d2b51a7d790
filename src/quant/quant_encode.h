/* Encoding rows into the formats of MLX, bit for bit as the CPU build of mlx
 * does it. (Its GPU builds round differently.)
 *
 * A row is float32 whose values are those of its type, f32, f16 or bf16: mlx
 * computes partly in that type, and scales and biases are stored in it. */
#ifndef QUANT_QUANT_ENCODE_H
#define QUANT_QUANT_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

enum quant_mode { QUANT_AFFINE, QUANT_MXFP4, QUANT_NVFP4, QUANT_MXFP8, QUANT_TURBO, QUANT_LUT };

struct quant_params {
    enum quant_mode mode;
    int bits, group;
    uint64_t seed; /* TURBO: of the rotations (turbo.h) */
};

const char *quant_mode_name(enum quant_mode mode);
/* Name, bits and group of a mode; 0 takes the mode's default. Refuses what mlx refuses. */
enum tlm_status quant_params_set(struct quant_params *p, const char *mode, int bits, int group, struct tlm_error *e);
/* What a scale is stored as. */
enum dtype quant_params_scale_type(const struct quant_params *p, enum dtype type);

/* Not for TURBO and LUT: turbo.h. One row of n inputs, a multiple of the group: codes get n * bits / 8 bytes,
 * scales and biases (affine; else not touched) an entry per group. False when
 * the row holds something that is not finite. */
bool quant_encode(const struct quant_params *p, enum dtype type, const float *w, int64_t n, uint8_t *codes,
                  void *scales, void *biases);

/* A value rounded to f32 (itself), f16 or bf16. */
float quant_round(enum dtype type, float x);
/* Whether all of them can be rounded so: no finite one becomes infinite; finite: nor is one infinite or NaN already. */
bool quant_holds(enum dtype type, const float *x, int64_t n, bool finite);
/* n floats rounded and stored. */
void quant_store(enum dtype type, const float *x, int64_t n, void *out);

#endif
