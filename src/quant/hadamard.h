/* Orthonormal Hadamard transforms of blocks, in the order of additions that MLX
 * has, and rotations made of them and of signs.
 *
 * A block of h = m * 2^k numbers, m in {1, 12, 20, 28}, seen as [m][2^k], goes
 * through Sylvester butterflies along 2^k, then the m x m Hadamard matrix along
 * m, times 1/sqrt(h). */
#ifndef QUANT_HADAMARD_H
#define QUANT_HADAMARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "quant/quant.h"

/* h(n): the largest divisor of n of the form m * 2^k. */
int64_t hadamard_block(int64_t n);
/* Of h = m * 2^k: m, and its matrix as signs [m][m]: y[j] = sum over i of sign[j][i] x[i]. */
enum { HADAMARD_M_MAX = 28 };
int hadamard_odd(int64_t h);
void hadamard_signs(int m, bool back, float *out);

/* In place, x [h]. back: the transposed matrix, the inverse. */
void hadamard(float *x, int64_t h, bool back);
/* With every step rounded to f16 or bf16, as MLX computes on arrays of them. */
void hadamard_rounded(float *x, int64_t h, enum dtype t);

/* What meets the codes for inputs x [n] (quant.h), and the way back. y and x
 * may be the same unless there is an order. */
void quant_input_apply(const struct quant_input *in, const float *x, int64_t n, float *y);
void quant_input_rotate(const struct quant_input *in, float *x, int64_t n);
/* x [n] are whole blocks, whose first input is k0. */
void quant_input_rotate_back(const struct quant_input *in, int64_t k0, float *x, int64_t n);

#endif
