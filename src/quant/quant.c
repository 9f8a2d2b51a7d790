/* The table of weight formats and what is common to all of them. */
#include "quant/quant.h"

#include <stdio.h>
#include <string.h>

#include "base/fp.h"
#include "quant/hadamard.h"
#include "quant/quant_formats.h"

enum row {
#define QUANT(name, ...) ROW_##name,
#include "quant/quants.def"
#undef QUANT
    ROWS
};

static const struct quant table[ROWS] = {
#define QUANT(id, code_, bits_, group_, block_, bytes_, scale_, offset_, zero_, table_, unit_, codes_, scales_,        \
              levels_, ggml)                                                                                           \
    [ROW_##id] = {.name = #id,                                                                                         \
                  .code = QUANT_##code_,                                                                               \
                  .bits = bits_,                                                                                       \
                  .group = group_,                                                                                     \
                  .block = block_,                                                                                     \
                  .block_bytes = bytes_,                                                                               \
                  .scale = QUANT_SCALE_##scale_,                                                                       \
                  .has_offset = offset_,                                                                               \
                  .zero = zero_,                                                                                       \
                  .table = table_,                                                                                     \
                  .unit = unit_,                                                                                       \
                  .codes = codes_,                                                                                     \
                  .scales = scales_,                                                                                   \
                  .levels = levels_},
#include "quant/quants.def"
#undef QUANT
};

static const int16_t ggml_types[ROWS] = {
#define QUANT(id, code_, bits_, group_, block_, bytes_, scale_, offset_, zero_, table_, unit_, codes_, scales_,        \
              levels_, ggml)                                                                                           \
    [ROW_##id] = ggml,
#include "quant/quants.def"
#undef QUANT
};

const struct quant *quant_at(int i)
{
    return i >= 0 && i < ROWS ? &table[i] : NULL;
}

const struct quant *quant_by_name(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

const struct quant *quant_by_ggml_type(uint32_t type)
{
    for (int i = 0; i < ROWS; i++)
        if (ggml_types[i] >= 0 && (uint32_t)ggml_types[i] == type)
            return &table[i];
    return NULL;
}

const struct quant *quant_dense(enum dtype t)
{
    switch (t) {
    case DT_F32:
        return &table[ROW_f32];
    case DT_F16:
        return &table[ROW_f16];
    case DT_BF16:
        return &table[ROW_bf16];
    default:
        return NULL;
    }
}

void quant_view_name(const struct quant_view *v, char out[32])
{
    if (v->format->group || v->group >= v->cols) /* one group is a scale per row or tensor */
        snprintf(out, 32, "%s", v->format->name);
    else
        snprintf(out, 32, "%sg%d", v->format->name, v->group);
}

/* Products of a scale with a zero point or a factor fit no half. */
enum quant_scale quant_view_scale(const struct quant_view *v)
{
    const bool product = v->format->has_offset && !v->offsets;
    if (v->factor != 0 || (v->format->scale == QUANT_SCALE_F32 && product))
        return QUANT_SCALE_F32;
    if (v->format->scale == QUANT_SCALE_F32 && v->scale_dtype == DT_F8_E8M0)
        return QUANT_SCALE_BF16;
    if (v->format->scale == QUANT_SCALE_F32 && v->scale_dtype == DT_F16)
        return QUANT_SCALE_F16;
    if (v->format->scale == QUANT_SCALE_F32 && v->scale_dtype == DT_BF16)
        return QUANT_SCALE_BF16;
    return v->format->scale;
}

size_t quant_view_scale_bytes(const struct quant_view *v)
{
    if (!v->scales)
        return 0;
    if (v->scale_group_bytes) /* one row per group */
        return (size_t)((v->cols + v->group - 1) / v->group) * v->scale_group_bytes;
    return (size_t)((v->rows + v->scale_rows - 1) / v->scale_rows) * v->scale_row_bytes;
}

size_t quant_view_bytes(const struct quant_view *v)
{
    return (size_t)v->rows * v->row_bytes + quant_view_scale_bytes(v) * (v->offsets ? 2 : 1) + v->zero_bytes;
}

static void decode_dense(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, float *restrict out)
{
    const uint8_t *p = quant_row(v, r) + k0 * v->format->block_bytes;
    if (v->format == &table[ROW_f32])
        memcpy(out, p, (size_t)n * 4);
    else if (v->format == &table[ROW_bf16])
        for (int64_t i = 0; i < n; i++)
            out[i] = fp_from_bf16(load_u16(p + 2 * i));
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = load_f16(p + 2 * i);
}

/* n codes of one group. Formats without stored offsets subtract their zero
 * from the code, as their originals do: that also keeps -0 and infinities. */
static void decode_run(const struct quant *q, const uint8_t *restrict code, int64_t n, float scale, float offset,
                       float *restrict out)
{
    switch (q->code) {
    case QUANT_UINT:
        if (q->has_offset)
            for (int64_t i = 0; i < n; i++)
                out[i] = (float)code[i] * scale + offset;
        else
            for (int64_t i = 0; i < n; i++)
                out[i] = (float)(code[i] - q->zero) * scale;
        return;
    case QUANT_INT8:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(int8_t)code[i] * scale;
        return;
    case QUANT_TABLE:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)q->table[code[i] & 15] * scale;
        return;
    case QUANT_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] = fp_from_e4m3(code[i]) * scale;
        return;
    case QUANT_REAL: {
        const float *level = quant_real_levels(q->bits);
        for (int64_t i = 0; i < n; i++)
            out[i] = level[code[i]] * scale;
        return;
    }
    case QUANT_DENSE:
        return;
    }
}

/* Scales of groups g0 .. g0+n, which lie in one superblock if there are such. */
static void scales_of(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    const struct quant *q = v->format;
    if (q->scale != QUANT_SCALE_LEVELS) {
        q->scales(v, r, g0, n, scale, offset);
        return;
    }
    struct quant_levels l;
    int64_t per_block = q->block / q->group;
    q->levels(v, r, g0 / per_block, &l);
    float d = fp_from_f16(l.d), dmin = fp_from_f16(l.dmin);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = g0 % per_block + i;
        scale[i] = d * (float)l.sc[j];
        offset[i] = -(dmin * (float)l.mn[j]);
    }
}

enum { CHUNK = 256 }; /* a multiple of every block */

/* Columns as the codes have them. */
static void decode_columns(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, float *out)
{
    const struct quant *q = v->format;
    if (q->code == QUANT_DENSE) {
        decode_dense(v, r, k0, n, out);
        return;
    }
    int64_t group = q->group ? q->group : v->group, end = k0 + n;
    uint8_t code[CHUNK];
    float scale[CHUNK], offset[CHUNK];
    while (k0 < end) {
        int64_t base = k0 - k0 % q->block, stop = base + CHUNK < end ? base + CHUNK : end;
        int64_t g0 = k0 / group, blocks = (stop - base + q->block - 1) / q->block;
        q->codes(v, r, base, blocks * q->block, code);
        scales_of(v, r, g0, (stop - 1) / group - g0 + 1, scale, offset);
        while (k0 < stop) {
            int64_t g = k0 / group, next = (g + 1) * group < stop ? (g + 1) * group : stop;
            decode_run(q, code + (k0 - base), next - k0, scale[g - g0], offset[g - g0], out);
            out += next - k0;
            k0 = next;
        }
    }
}

/* Block by block; with an order the wanted inputs may be anywhere. */
static void decode_input(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, float *out)
{
    const struct quant_input *in = v->input;
    float y[QUANT_BLOCK_MAX];
    const int64_t block = in->block ? in->block : CHUNK;
    int64_t first = in->order ? 0 : k0 - k0 % block, end = in->order ? v->cols : k0 + n;
    for (int64_t b = first; b < end; b += block) {
        int64_t count = v->cols - b < block ? v->cols - b : block;
        decode_columns(v, r, b, count, y);
        quant_input_rotate_back(in, b, y, count);
        for (int64_t k = 0; k < count; k++) {
            int64_t at = (in->order ? in->order[b + k] : b + k) - k0;
            if (at >= 0 && at < n)
                out[at] = y[k];
        }
    }
}

void quant_decode(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, float *out)
{
    if (v->input)
        decode_input(v, r, k0, n, out);
    else
        decode_columns(v, r, k0, n, out);
}
