/* What the processor can do, read once. TURBOLM_CPU names the highest set to
 * use, for tests: scalar, avx2, avx512, avx512vnni, avx512bf16, neon; unset: all. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include "base/err.h"

enum cpu_isa { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512_VNNI, CPU_AVX512_BF16, CPU_NEON, CPU_ISA_COUNT };

/* AVX2 stands for AVX2 + FMA + F16C; AVX512 for F, BW, VL, DQ; each higher one
 * includes the lower. NEON stands for AArch64's base set; its dot product
 * instructions are tested for apart. */
unsigned cpu_features(void); /* bits 1u << enum cpu_isa */
const char *cpu_isa_name(enum cpu_isa isa);
/* Fails when TURBOLM_CPU names no set, or one that this processor does not have. */
enum tlm_status cpu_check(struct tlm_error *e);

int cpu_physical_cores(void); /* at least 1; what this process may run on */

#endif
