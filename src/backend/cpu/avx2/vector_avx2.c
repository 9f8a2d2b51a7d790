/* The vector kernels for AVX2. */
#define ISA(name) name##_avx2
#include "backend/cpu/vector_tmpl.h"
