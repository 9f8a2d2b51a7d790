/* Element types of stored tensors. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stddef.h>

enum dtype {
    DT_NONE,
    DT_F32,
    DT_F16,
    DT_BF16,
    DT_F64,
    DT_F8_E4M3,
    DT_F8_E5M2,
    DT_F8_E8M0,
    DT_U8,
    DT_I8,
    DT_U16,
    DT_I16,
    DT_U32,
    DT_I32,
    DT_U64,
    DT_I64,
    DT_BOOL,
    DT_COUNT
};

size_t dtype_size(enum dtype t);      /* bytes; 0 for DT_NONE */
const char *dtype_name(enum dtype t); /* "bf16" */
int dtype_is_float(enum dtype t);     /* f32, f16, bf16, f64, f8 */

#endif
