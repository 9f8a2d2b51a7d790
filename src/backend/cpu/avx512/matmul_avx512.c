/* Matmul kernels for AVX-512 F, BW, VL and DQ. */
#define MATMUL_ISA avx512
#define MATMUL_TILE_FLOAT 8
#define MATMUL_TILE_MANY 12
#include "backend/cpu/matmul_tmpl.h"

void matmul_init_avx512(struct matmul_kernels *k)
{
    NAME(init_all)(k);
}
