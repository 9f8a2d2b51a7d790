/* Integer matmul kernels for AArch64 with the dot product instructions; the
 * rest are those of matmul_neon.c. */
#define MATMUL_ISA neon_dot
#define MATMUL_INTEGER_ONLY
#include "backend/cpu/matmul_tmpl.h"

void matmul_init_neon_dot(struct matmul_kernels *k)
{
    NAME(init_int)(k);
}
