/* Matmul kernels in plain C: the definition that the others are checked
 * against. Written over the packed layout of panel.h, without vectors. */
#include <math.h>
#include <string.h>

#include "backend/cpu/matmul_kernels.h"
#include "base/fp.h"

enum { QUADS = PANEL_BLOCK / 4, VECTOR = 4 * PANEL_ROWS };

/* ---- the packed layout ---- */

static int bits_at(const uint8_t *plane, int bits, int quad, int byte)
{
    int per = 8 / bits;
    return plane[quad / per * VECTOR + byte] >> quad % per * bits & ((1 << bits) - 1);
}

static int code_at(enum panel_code code, const uint8_t *block, int quad, int byte)
{
    switch (code) {
    case PANEL_U2:
        return bits_at(block, 2, quad, byte);
    case PANEL_U3:
        return bits_at(block, 2, quad, byte) | bits_at(block + 2 * VECTOR, 1, quad, byte) << 2;
    case PANEL_U5:
        return bits_at(block, 4, quad, byte) | bits_at(block + 4 * VECTOR, 1, quad, byte) << 4;
    case PANEL_U6:
        return bits_at(block, 4, quad, byte) | bits_at(block + 4 * VECTOR, 2, quad, byte) << 4;
    case PANEL_S8:
    case PANEL_E8:
        return block[quad * VECTOR + byte];
    default:
        return bits_at(block, 4, quad, byte);
    }
}

/* Integer codes of a block as the values they stand for, without the bias. */
static void block_values(const struct panel_layout *l, const uint8_t *block, int16_t out[PANEL_ROWS][PANEL_BLOCK])
{
    for (int q = 0; q < QUADS; q++)
        for (int r = 0; r < PANEL_ROWS; r++)
            for (int i = 0; i < 4; i++) {
                int c = code_at(l->code, block, q, 4 * r + i);
                if (l->code == PANEL_S8)
                    c = (int8_t)c;
                else if (l->code == PANEL_T4 || l->code == PANEL_T4S)
                    c = l->table[c];
                out[r][4 * q + i] = (int16_t)c;
            }
}

static float scale_at(const uint8_t *p, enum dtype t, int i)
{
    if (t == DT_F16)
        return load_f16(p + 2 * i);
    if (t == DT_BF16)
        return fp_from_bf16(load_u16(p + 2 * i));
    return fp_from_bits(load_u32(p + 4 * i));
}

/* Scale and offset of group g of a unit, row r. */
static float group_scale(const struct panel_layout *l, const uint8_t *unit, int g, int r, float *offset)
{
    int at = g * PANEL_ROWS + r;
    *offset = 0;
    if (l->scale == PANEL_PLAIN)
        return scale_at(unit, l->scale_type, at);
    if (l->scale == PANEL_OFFSET) {
        *offset = scale_at(unit, l->scale_type, l->unit / l->group * PANEL_ROWS + at);
        return scale_at(unit, l->scale_type, at);
    }
    float d = load_f16(unit + 2 * r);
    if (l->scale == PANEL_LEVELS_ONLY)
        return d * (float)(int8_t)unit[32 + at];
    float min = load_f16(unit + 32 + 2 * r);
    int sc = unit[64 + at], mn;
    if (l->group == 16) {
        mn = sc >> 4;
        sc &= 15;
    } else {
        mn = unit[64 + PANEL_LEVELS / 32 * PANEL_ROWS + at];
    }
    *offset = min * (float)mn;
    return d * (float)sc;
}

/* ---- panels ---- */

static void int_block(const struct panel_layout *l, const uint8_t *unit, const uint8_t *block, int b,
                      const struct act_q16 *x, int tokens, float *y)
{
    int16_t value[PANEL_ROWS][PANEL_BLOCK];
    block_values(l, block, value);
    const int n = l->group == 16 ? 2 : 1, len = PANEL_BLOCK / n;
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int i = 0; i < n; i++) {
            float offset, scale = group_scale(l, unit, (b * PANEL_BLOCK + i * len) / l->group, r, &offset);
            for (int t = 0; t < tokens; t++) {
                int32_t dot = l->bias * (n == 1 ? x[t].isum32 : x[t].isum16[i]);
                for (int k = i * len; k < (i + 1) * len; k++)
                    dot += value[r][k] * (256 * x[t].hi[k] + x[t].lo[k]);
                float *out = y + t * PANEL_ROWS + r;
                *out += x[t].scale * scale * (float)dot;
                *out += offset * (n == 1 ? x[t].sum32 : x[t].sum16[i]);
            }
        }
}

static void panel_int_scalar(const struct panel_layout *l, const uint8_t *panel, int panels, const struct act_q16 *x,
                             int tokens, float *y)
{
    memset(y, 0, (size_t)(panels * tokens) * PANEL_ROWS * sizeof *y);
    for (int i = 0; i < panels; i++, panel += l->panel_bytes, y += tokens * PANEL_ROWS) {
        const uint8_t *p = panel;
        const struct act_q16 *xb = x;
        for (int64_t u = 0; u < l->units; u++) {
            const uint8_t *unit = p;
            p += l->header_bytes;
            for (int b = 0; b < l->unit / PANEL_BLOCK; b++, p += l->block_bytes, xb += tokens)
                int_block(l, unit, p, b, xb, tokens, y);
        }
    }
}

static void float_block(const struct panel_layout *l, const uint8_t *unit, const uint8_t *block, int b,
                        const struct act_f32 *x, int tokens, float *y)
{
    float value[PANEL_ROWS][PANEL_BLOCK];
    if (l->code == PANEL_E8) {
        for (int r = 0; r < PANEL_ROWS; r++)
            for (int k = 0; k < PANEL_BLOCK; k++)
                value[r][k] = fp_from_e4m3(block[k / 4 * VECTOR + 4 * r + k % 4]);
    } else {
        int16_t v[PANEL_ROWS][PANEL_BLOCK];
        block_values(l, block, v);
        for (int r = 0; r < PANEL_ROWS; r++)
            for (int k = 0; k < PANEL_BLOCK; k++)
                value[r][k] = (float)(v[r][k] + l->bias);
    }
    const int n = l->group == 16 ? 2 : 1, len = PANEL_BLOCK / n;
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int i = 0; i < n; i++) {
            float offset, scale = group_scale(l, unit, (b * PANEL_BLOCK + i * len) / l->group, r, &offset);
            for (int t = 0; t < tokens; t++) {
                float dot = 0;
                for (int k = i * len; k < (i + 1) * len; k++)
                    dot += value[r][k] * x[t].x[k];
                float *out = y + t * PANEL_ROWS + r;
                *out += scale * dot;
                *out += offset * (n == 1 ? x[t].sum32 : x[t].sum16[i]);
            }
        }
}

static void panel_float_scalar(const struct panel_layout *l, const uint8_t *p, const struct act_f32 *x, int tokens,
                               float *y)
{
    memset(y, 0, (size_t)tokens * PANEL_ROWS * sizeof *y);
    for (int64_t u = 0; u < l->units; u++) {
        const uint8_t *unit = p;
        p += l->header_bytes;
        for (int b = 0; b < l->unit / PANEL_BLOCK; b++, p += l->block_bytes, x += tokens)
            float_block(l, unit, p, b, x, tokens, y);
    }
}

/* ---- dense ---- */

/* Eight partial sums, so that long rows lose little. */
static float dense_dot(const uint8_t *w, int64_t cols, const float *x, enum dtype t)
{
    float sum[8] = {0};
    for (int64_t k = 0; k < cols; k++)
        sum[k % 8] += scale_at(w + k * (t == DT_F32 ? 4 : 2), t, 0) * x[k];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void dense(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int64_t x_stride, int tokens,
                  float *y, enum dtype type)
{
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < n; r++)
            y[t * PANEL_ROWS + r] = dense_dot(w + (size_t)r * row_bytes, cols, x + t * x_stride, type);
}

static void dense_f32_scalar(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int64_t x_stride,
                             int tokens, float *y)
{
    dense(w, row_bytes, n, cols, x, x_stride, tokens, y, DT_F32);
}

static void dense_f16_scalar(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int64_t x_stride,
                             int tokens, float *y)
{
    dense(w, row_bytes, n, cols, x, x_stride, tokens, y, DT_F16);
}

static void dense_bf16_scalar(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int64_t x_stride,
                              int tokens, float *y)
{
    dense(w, row_bytes, n, cols, x, x_stride, tokens, y, DT_BF16);
}

static float bf12_at(const uint8_t *panel, int r, int64_t k)
{
    const uint8_t *block = panel + BF12_TABLES + k / PANEL_BLOCK * BF12_BLOCK;
    const int quad = (int)(k % PANEL_BLOCK / 4), byte = r / 4 * 16 + (int)(k % 4) * 4 + r % 4;
    const int code = bits_at(block + BF12_CODES, 4, quad, byte);
    return fp_from_bf16((uint16_t)(panel[r / 4 * 16 + code] << 8 | block[quad * VECTOR + byte]));
}

static void bf12_scalar(const uint8_t *panel, int64_t cols, const float *x, int64_t x_stride, int tokens, float *y)
{
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < PANEL_ROWS; r++) {
            float sum[BF12_SUMS] = {0};
            for (int64_t k = 0; k < cols; k++)
                sum[k % BF12_SUMS] += bf12_at(panel, r, k) * x[t * x_stride + k];
            y[t * PANEL_ROWS + r] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
        }
}

/* ---- activations ---- */

static void load_block(const float *x, int64_t cols, int64_t b, float out[PANEL_BLOCK])
{
    int64_t left = cols - b * PANEL_BLOCK, n = left < 0 ? 0 : left < PANEL_BLOCK ? left : PANEL_BLOCK;
    memset(out, 0, PANEL_BLOCK * sizeof *out);
    memcpy(out, x + b * PANEL_BLOCK, (size_t)n * sizeof *out);
}

static void block_to_q16(const float x[PANEL_BLOCK], struct act_q16 *out)
{
    float top = 0, bad = 0;
    for (int i = 0; i < PANEL_BLOCK; i++) {
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        bad += x[i] * 0;
    }
    const float step = top / 127;
    *out = (struct act_q16){.scale = step / 256};
    if (bad != 0) {
        out->scale = out->sum32 = out->sum16[0] = out->sum16[1] = bad;
        return;
    }
    if (step < 0x1p-100f) {
        out->scale = 0;
        return;
    }
    float inverse = 1 / step;
    for (int i = 0; i < PANEL_BLOCK; i++) {
        float hi = rintf(x[i] * inverse);
        out->hi[i] = (int8_t)hi;
        out->lo[i] = (int8_t)rintf(fmaxf(fminf((x[i] * inverse - hi) * 256, 127), -127));
        out->isum16[i / 16] += 256 * out->hi[i] + out->lo[i];
    }
    out->isum32 = out->isum16[0] + out->isum16[1];
    out->sum32 = out->scale * (float)out->isum32;
    for (int h = 0; h < 2; h++)
        out->sum16[h] = out->scale * (float)out->isum16[h];
}

static void act_to_q16_scalar(const float *x, int64_t cols, int64_t blocks, int stride, struct act_q16 *out)
{
    float block[PANEL_BLOCK];
    for (int64_t b = 0; b < blocks; b++, out += stride) {
        load_block(x, cols, b, block);
        block_to_q16(block, out);
    }
}

static void act_to_f32_scalar(const float *x, int64_t cols, int64_t blocks, int stride, struct act_f32 *out)
{
    for (int64_t b = 0; b < blocks; b++, out += stride) {
        load_block(x, cols, b, out->x);
        for (int h = 0; h < 2; h++) {
            float sum[4] = {0};
            for (int i = 0; i < 16; i++)
                sum[i % 4] += out->x[16 * h + i];
            out->sum16[h] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
        }
        out->sum32 = out->sum16[0] + out->sum16[1];
        out->unused = 0;
    }
}

/* ---- packing ---- */

/* Plane of `bits` bits from bits `low` and up of every code. */
static uint8_t *pack_plane(const uint8_t quads[QUADS * VECTOR], int bits, int low, uint8_t *out)
{
    const int per = 8 / bits;
    for (int v = 0; v < QUADS / per; v++, out += VECTOR)
        for (int i = 0; i < VECTOR; i++) {
            unsigned b = 0;
            for (int j = 0; j < per; j++)
                b |= (quads[(v * per + j) * VECTOR + i] >> low & ((1u << bits) - 1)) << j * bits;
            out[i] = (uint8_t)b;
        }
    return out;
}

static void pack_block_scalar(enum panel_code code, const uint8_t *codes, size_t stride, uint8_t *out)
{
    uint8_t quads[QUADS * VECTOR];
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int q = 0; q < QUADS; q++)
            memcpy(quads + q * VECTOR + 4 * r, codes + (size_t)r * stride + 4 * q, 4);
    int bits = panel_bits(code);
    if (bits == 8) {
        memcpy(out, quads, sizeof quads);
        return;
    }
    int low = bits >= 4 ? 4 : 2;
    out = pack_plane(quads, low, 0, out);
    if (bits > low)
        pack_plane(quads, bits - low, low, out);
}

static void turn_quads_scalar(uint8_t *p, int n)
{
    for (int i = 0; i < n * VECTOR; i += 16) {
        uint8_t from[16];
        memcpy(from, p + i, sizeof from);
        for (int j = 0; j < 16; j++)
            p[i + j % 4 * 4 + j / 4] = from[j];
    }
}

static void pack_f16_scalar(const float *x, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = fp_to_f16(x[i]);
}

void matmul_init_scalar(struct matmul_kernels *k)
{
    *k = (struct matmul_kernels){
        .dense_f32 = dense_f32_scalar,
        .dense_f16 = dense_f16_scalar,
        .dense_bf16 = dense_bf16_scalar,
        .tile_float = MATMUL_TILE_MAX,
        .act_to_q16 = act_to_q16_scalar,
        .act_to_f32 = act_to_f32_scalar,
        .pack_block = pack_block_scalar,
        .pack_f16 = pack_f16_scalar,
        .bf12 = bf12_scalar,
        .turn_quads = turn_quads_scalar,
    };
    for (int c = 0; c < PANEL_CODES; c++)
        for (int s = 0; s < PANEL_SCALES; s++)
            for (int g = 0; g < 2; g++) {
                k->panel_int[c][s][g] = c == PANEL_E8 ? NULL : panel_int_scalar;
                k->panel_float[c][s][g] = panel_float_scalar;
            }
}
