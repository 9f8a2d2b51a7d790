/* Weight formats.
 *
 * Nearly every format is one thing: integer codes of b bits in groups along the
 * input axis, and per group a scale and perhaps an offset:
 *
 *     w[r, k] = scale[r, k / group] * value(code[r, k]) + offset[r, k / group]
 *
 * A format is one row of quants.def: how its bytes yield codes, scales and
 * offsets. Everything else (decoding, packing for a backend, checks) is
 * generic. The backend's own layout is not described here. */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

enum quant_code {
    QUANT_DENSE, /* no codes: f32, f16, bf16 elements */
    QUANT_UINT,  /* value = code, 0 .. 2^bits - 1 */
    QUANT_INT8,  /* value = (int8_t)code, -128 .. 127; bits is 8 */
    QUANT_TABLE, /* value = table[code], 16 int8 entries; bits is at most 4 */
    QUANT_E4M3,  /* value = e4m3 float; bits is 8 */
    QUANT_REAL   /* value = quant_real_levels(bits)[code], floats */
};

/* What a scale is stored as, so that packing loses nothing. */
enum quant_scale {
    QUANT_SCALE_NONE, /* dense */
    QUANT_SCALE_F16,  /* exactly an f16 (e4m3 scales are too) */
    QUANT_SCALE_BF16, /* exactly a bf16 (e8m0 scales are too) */
    QUANT_SCALE_F32,
    QUANT_SCALE_LEVELS /* f16 super-scale per 256 inputs x small integer per group */
};

struct quant_view;

/* What happens to a vector x of inputs before it meets the codes, whose columns
 * are then no longer the inputs themselves:
 *
 *     y[k] = x[order[k]]          (order NULL: y = x)
 *     each block of y: sign * H y, or H (sign * y) with signs_first
 *
 * H is the orthonormal Hadamard transform of `block` inputs (quant/hadamard.h;
 * block 0: no rotation). A view's codes, groups and formats know nothing of it;
 * quant_decode undoes it, matrix products apply it to their inputs first. */
struct quant_input {
    const int32_t *order; /* [cols] a permutation */
    int64_t block;        /* m * 2^k, m in {1, 12, 20, 28}; divides cols; at most QUANT_BLOCK_MAX */
    bool signs_first;
    const float *signs; /* [cols] of -1 and 1 */
    uint64_t seed;      /* that they were drawn with */
};

enum { QUANT_BLOCK_MAX = 1 << 16 }; /* decoding has a block on the stack */

/* Two-level scales of 256 inputs: scale[g] = d * sc[g], offset[g] = -dmin * mn[g].
 * 256 / group entries are used; sc is signed for formats without offsets
 * (q3_k, q6_k, iq4_xs) and 0..63 otherwise. */
struct quant_levels {
    uint16_t d, dmin; /* f16 bits */
    int8_t sc[16];
    uint8_t mn[16];
};

struct quant {
    const char *name; /* "q4_k", "affine4", "bf16" */
    enum quant_code code;
    uint8_t bits;           /* per code; of an element when dense */
    int16_t group;          /* inputs per scale; 0: the view says */
    int16_t block;          /* inputs per file block; k0 and n below are multiples of it */
    int16_t block_bytes;    /* of the codes' tensor */
    enum quant_scale scale; /* F32: a tensor of its own, whose scale_dtype (in the view) is f16, bf16 or f32 */
    bool has_offset;        /* stored offsets */
    int16_t zero;           /* without stored offsets: offset = -zero * scale */
    const int8_t *table;    /* QUANT_TABLE */
    float unit;             /* factor on every scale: 0.5 for e2m1, whose table holds doubled values; else 1 */

    /* Codes of row r, inputs k0 .. k0+n, one byte each. */
    void (*codes)(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out);
    /* Scales and offsets of groups g0 .. g0+n of row r, unit and zero applied
     * (offset 0 when neither). NULL for QUANT_SCALE_LEVELS and dense. */
    void (*scales)(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset);
    /* Superblock b (256 inputs) of row r. Only QUANT_SCALE_LEVELS. */
    void (*levels)(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out);
};

/* One weight matrix [rows, cols] as its file has it. Pointers into mappings,
 * unaligned. rows are outputs (for an embedding: tokens), cols are inputs. */
struct quant_view {
    const struct quant *format;
    int64_t rows, cols;
    int group;        /* inputs per scale */
    const void *data; /* codes or elements, row-major */
    size_t row_bytes;
    const void *scales; /* own tensor, row-major [rows / scale_rows, ceil(cols / group)], or NULL */
    enum dtype scale_dtype;
    int64_t scale_rows; /* rows that share one row of scales: 1, or 128 for block fp8, or rows */
    size_t scale_row_bytes;
    const void *offsets;             /* own tensor of the scales' type and shape, or NULL */
    const struct quant_input *input; /* NULL: columns are the inputs */

    /* Layouts of other quantisers (foreign.c); zero and NULL elsewhere. */
    size_t stride;            /* one stored row holds codes of several outputs: bytes to the next such row.
                               * rows x row_bytes is then still the size of all codes */
    size_t scale_group_bytes; /* from one group's scale to the next; 0: an element */
    const void *zeros;        /* packed zero points: offset = -zero * scale */
    size_t zero_row_bytes, zero_bytes;
    int zero_add; /* to a stored zero point, modulo 2^bits */
    float factor; /* on every scale; 0: none */
};

const struct quant *quant_by_name(const char *name); /* NULL when unknown */
const struct quant *quant_by_ggml_type(uint32_t type);
const struct quant *quant_dense(enum dtype t); /* f32, f16, bf16; else NULL */
const struct quant *quant_at(int i);           /* all rows, NULL at the end */

/* Lloyd-Max levels of the normal distribution as mlx_turboquant computes them,
 * 2^bits; bits is 2, 4 or 8. (turbo_levels.c) */
const float *quant_real_levels(int bits);

/* The name with its group for formats that have several: "affine4g64". */
void quant_view_name(const struct quant_view *v, char out[32]);
/* Which of F16, BF16, F32, LEVELS packing may use for this view. */
enum quant_scale quant_view_scale(const struct quant_view *v);

/* Elements k0 .. k0+n of row r as float32: the definition of the format. n and
 * k0 may be anything inside the row. */
void quant_decode(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, float *out);

/* Bytes that this view occupies, scales and offsets included; and of its
 * tensor of scales alone. */
size_t quant_view_bytes(const struct quant_view *v);
size_t quant_view_scale_bytes(const struct quant_view *v);

#endif
