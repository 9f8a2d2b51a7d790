/* Matmul kernels for AArch64's base instruction set. */
#include <sys/auxv.h>

#define MATMUL_ISA neon
#define MATMUL_TILE_FLOAT 4
#define MATMUL_TILE_MANY 6
#include "backend/cpu/matmul_tmpl.h"

void matmul_init_neon(struct matmul_kernels *k)
{
    NAME(init_all)(k);
}

bool matmul_has_neon_dot(void)
{
    const unsigned long asimddp = 1ul << 20; /* HWCAP_ASIMDDP */
    return (getauxval(AT_HWCAP) & asimddp) != 0;
}
