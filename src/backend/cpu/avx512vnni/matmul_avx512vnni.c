/* Integer matmul kernels for AVX-512 with VNNI; the rest are those of AVX-512. */
#define MATMUL_ISA avx512vnni
#define MATMUL_INTEGER_ONLY
#include "backend/cpu/matmul_tmpl.h"

void matmul_init_avx512vnni(struct matmul_kernels *k)
{
    NAME(init_int)(k);
}
