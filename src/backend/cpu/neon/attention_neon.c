/* The attention kernels for NEON. */
#define ISA(name) name##_neon
#include "backend/cpu/attention_tmpl.h"
