/* The vector kernels for AVX-512. */
#define ISA(name) name##_avx512
#include "backend/cpu/vector_tmpl.h"
