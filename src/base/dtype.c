/* Names and sizes of element types. */
#include "base/dtype.h"

static const struct {
    const char *name;
    size_t size;
    int is_float;
} table[DT_COUNT] = {
    [DT_NONE] = {"none", 0, 0},       [DT_F32] = {"f32", 4, 1},         [DT_F16] = {"f16", 2, 1},
    [DT_BF16] = {"bf16", 2, 1},       [DT_F64] = {"f64", 8, 1},         [DT_F8_E4M3] = {"f8_e4m3", 1, 1},
    [DT_F8_E5M2] = {"f8_e5m2", 1, 1}, [DT_F8_E8M0] = {"f8_e8m0", 1, 1}, [DT_U8] = {"u8", 1, 0},
    [DT_I8] = {"i8", 1, 0},           [DT_U16] = {"u16", 2, 0},         [DT_I16] = {"i16", 2, 0},
    [DT_U32] = {"u32", 4, 0},         [DT_I32] = {"i32", 4, 0},         [DT_U64] = {"u64", 8, 0},
    [DT_I64] = {"i64", 8, 0},         [DT_BOOL] = {"bool", 1, 0},
};

size_t dtype_size(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? table[t].size : 0;
}

const char *dtype_name(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? table[t].name : "unknown";
}

int dtype_is_float(enum dtype t)
{
    return (unsigned)t < DT_COUNT && table[t].is_float;
}
