/* The attention kernels for AVX2. */
#define ISA(name) name##_avx2
#include "backend/cpu/attention_tmpl.h"
