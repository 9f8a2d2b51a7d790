/* The vector kernels for NEON. */
#define ISA(name) name##_neon
#include "backend/cpu/vector_tmpl.h"
