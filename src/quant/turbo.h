/* Rotated weights of 2, 3, 4, 5, 6 or 8 bits (docs/internals/turbo-weights.md).
 *
 * A row w of n inputs is rotated, y = H (sign * w), and every group of 32, 64
 * or 128 numbers of y becomes codes and one bf16 scale:
 *
 *     y[k] ~ scale * value(code)
 *
 * value is a table of int8 (2 to 4 bits) or code - 2^(bits-1). The tables are
 * not symmetric: the sign of the scale says which side has the longer tail. */
#ifndef QUANT_TURBO_H
#define QUANT_TURBO_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/quant.h"

/* Inputs that are rotated together: the largest divisor of n that is a block
 * of a Hadamard transform (quant/hadamard.h); 0 where that is below 16: no
 * rotation. */
int64_t turbo_block(int64_t n);
bool turbo_bits_known(int64_t bits);
bool turbo_group_known(int64_t group);

/* Row w [n] in place: rotated. Then codes, n * bits / 8 bytes, first code in
 * the lowest bits, and n / group scales (bf16). False when w holds something
 * that is not finite or too large. in: NULL where nothing is rotated. */
bool turbo_encode(int bits, int group, const struct quant_input *in, float *w, int64_t n, uint8_t *codes,
                  uint8_t *scales);

/* mlx_turboquant: a row of a matrix of type t, rotated with every step in that
 * type, and codes and scales (of type t) of its mode lut; false when w holds
 * something that is not finite. */
enum { TURBO_LUT_GROUP_MAX = 4096 };
void turbo_rotate_rounded(const struct quant_input *in, enum dtype t, float *w, int64_t n);
bool turbo_encode_lut(int bits, int group, enum dtype t, const float *w, int64_t n, uint8_t *codes, uint8_t *scales);

/* Seed of a layer's signs in mlx_turboquant, by its path. */
uint64_t turbo_layer_seed(const char *path, uint64_t base);

#endif
