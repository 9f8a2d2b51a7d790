/* Encoding of rotated weights.
 *
 * Per group x: the number of largest size says where scales may lie; from a few
 * starts on either side, nearest levels and the least-squares scale take turns,
 *
 *     v = nearest level of x / s,  s = <x, v> / <v, v>
 *
 * then s is rounded to bf16 and the start with the least squared error wins.
 * All in float32, sums in eight lanes, so that it can be restated exactly. */
#include "quant/turbo.h"

#include <math.h>
#include <string.h>

#include "base/fp.h"
#include "quant/hadamard.h"
#include "quant/quant_encode.h"
#include "quant/quant_formats.h"

enum { GROUP_MAX = 128, LANES = 8, ROUNDS = 2 };

/* Where the largest number of a group is to lie, in units of the outermost level. */
static const float starts[] = {0.6f, 0.7f, 0.8f, 0.9f, 1.0f, 1.1f, 1.2f};
enum { STARTS = sizeof starts / sizeof *starts };

int64_t turbo_block(int64_t n)
{
    int64_t block = hadamard_block(n);
    while (block > QUANT_BLOCK_MAX)
        block /= 2;
    return block < 16 ? 0 : block;
}

bool turbo_bits_known(int64_t bits)
{
    return (bits >= 2 && bits <= 6) || bits == 8;
}

bool turbo_group_known(int64_t group)
{
    return group == 32 || group == 64 || group == 128;
}

uint64_t turbo_layer_seed(const char *path, uint64_t base)
{
    uint32_t crc = 0xffffffff;
    for (; *path; path++) {
        crc ^= (uint8_t)*path;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return (~crc ^ (uint32_t)base) & 0x7fffffff;
}

/* ---- levels ---- */

enum { CELLS = 512 };

/* Tables lie on whole numbers up to 127, their midpoints on halves: a cell of
 * ceil(2 y) = 256 - cell has one nearest level. */
struct levels {
    int bits;
    float edge;       /* the outermost level on the longer side */
    float least, top; /* of evenly spaced levels */
    float value[CELLS];
    uint8_t code[CELLS];
};

static void levels_init(struct levels *l, int bits)
{
    static const int8_t *const tables[5] = {
        [2] = quant_table_turbo2, [3] = quant_table_turbo3, [4] = quant_table_turbo4};
    l->bits = bits;
    if (bits > 4) {
        l->least = l->edge = -(float)(1 << (bits - 1));
        l->top = -l->least - 1;
        return;
    }
    const int8_t *t = tables[bits];
    int n = 1 << bits;
    l->edge = t[n - 1];
    for (int cell = 0; cell < CELLS; cell++) {
        int code = 0;
        while (code + 1 < n && CELLS / 2 - cell > t[code] + t[code + 1])
            code++;
        l->code[cell] = (uint8_t)code;
        l->value[cell] = t[code];
    }
}

static float clamp(float x, float low, float high)
{
    x = x > low ? x : low;
    return x < high ? x : high;
}

/* The cells, or codes, of x / s, and the levels. */
static void nearest(const struct levels *l, const float *restrict x, float s, int n, int32_t *restrict cell,
                    float *restrict v)
{
    const float inverse = 1 / s, whole = 0x1.8p23f; /* adding it rounds to a whole number, halves to even */
    if (l->bits <= 4) {
        for (int k = 0; k < n; k++)
            cell[k] = (int32_t)clamp(CELLS / 2 - 2 * (x[k] * inverse), 0, CELLS - 1);
        for (int k = 0; k < n; k++)
            v[k] = l->value[cell[k]];
    } else {
        for (int k = 0; k < n; k++) {
            v[k] = (clamp(x[k] * inverse, l->least, l->top) + whole) - whole;
            cell[k] = (int32_t)(v[k] - l->least);
        }
    }
}

/* ---- groups ---- */

static float lanes_sum(const float *s)
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static float refit(const float *restrict x, const float *restrict v, int n)
{
    float xv[LANES] = {0}, vv[LANES] = {0};
    for (int k = 0; k < n; k += LANES)
        for (int i = 0; i < LANES; i++) {
            xv[i] += x[k + i] * v[k + i];
            vv[i] += v[k + i] * v[k + i];
        }
    float size = lanes_sum(vv);
    return size > 0 ? lanes_sum(xv) / size : 0;
}

static float distance(const float *restrict x, const float *restrict v, float s, int n)
{
    float sum[LANES] = {0};
    for (int k = 0; k < n; k += LANES)
        for (int i = 0; i < LANES; i++) {
            float d = x[k + i] - s * v[k + i];
            sum[i] += d * d;
        }
    return lanes_sum(sum);
}

/* Below it, a scale counts as zero: its inverse would not be finite. */
static bool is_scale(float s)
{
    return fabsf(s) >= 0x1p-120f;
}

static uint16_t encode_group(const struct levels *l, const float *x, int n, uint8_t *codes)
{
    float v[GROUP_MAX], best = INFINITY, best_scale = 0, top = 0;
    int32_t cell[GROUP_MAX], best_cell[GROUP_MAX];
    for (int k = 0; k < n; k++)
        if (fabsf(x[k]) > fabsf(top))
            top = x[k];
    for (int i = 0; i < 2 * STARTS; i++) {
        float s = top / l->edge * starts[i / 2] * (i % 2 ? -1.0f : 1.0f);
        for (int round = 0; round < ROUNDS && is_scale(s); round++) {
            nearest(l, x, s, n, cell, v);
            s = refit(x, v, n);
        }
        s = fp_from_bf16(fp_to_bf16(s));
        if (!is_scale(s))
            continue;
        nearest(l, x, s, n, cell, v);
        float d = distance(x, v, s, n);
        if (d < best) {
            best = d;
            best_scale = s;
            memcpy(best_cell, cell, (size_t)n * sizeof *cell);
        }
    }
    for (int k = 0; k < n; k++)
        codes[k] = best_scale == 0 ? 0 : l->bits > 4 ? (uint8_t)best_cell[k] : l->code[best_cell[k]];
    return fp_to_bf16(best_scale);
}

/* Eight codes of `bits` bits to bits bytes. */
static void pack(const uint8_t *codes, int n, int bits, uint8_t *out)
{
    for (int k = 0; k < n; k += 8, out += bits) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= (uint64_t)codes[k + i] << i * bits;
        for (int i = 0; i < bits; i++)
            out[i] = (uint8_t)(word >> 8 * i);
    }
}

/* Finite, and so far from the largest float that sums of squares are too. */
static bool all_usable(const float *w, int64_t n)
{
    int bad = 0;
    for (int64_t k = 0; k < n; k++)
        bad |= !(fabsf(w[k]) < 0x1p48f);
    return !bad;
}

bool turbo_encode(int bits, int group, const struct quant_input *in, float *w, int64_t n, uint8_t *codes,
                  uint8_t *scales)
{
    struct levels l;
    uint8_t code[GROUP_MAX];
    if (!all_usable(w, n))
        return false;
    if (in)
        quant_input_rotate(in, w, n);
    levels_init(&l, bits);
    for (int64_t k = 0; k < n; k += group, codes += group * bits / 8) {
        uint16_t scale = encode_group(&l, w + k, group, code);
        memcpy(scales, &scale, sizeof scale);
        scales += sizeof scale;
        pack(code, group, bits, codes);
    }
    return true;
}

/* ---- mlx_turboquant ---- */

void turbo_rotate_rounded(const struct quant_input *in, enum dtype t, float *w, int64_t n)
{
    for (int64_t k = 0; k < n; k += in->block)
        hadamard_rounded(w + k, in->block, t);
    for (int64_t k = 0; k < n; k++)
        w[k] *= in->signs[k];
}

static int lut_code(const float *level, int n, float y)
{
    int low = 0; /* how many midpoints lie below y */
    for (int step = n / 2; step; step /= 2)
        if (y > 0.5f * (level[low + step - 1] + level[low + step]))
            low += step;
    return low;
}

/* The scale starts at the root of the mean square and is fitted four times. */
static float lut_scale(const float *level, int n, const float *x, int group)
{
    float sum = 0;
    for (int k = 0; k < group; k++)
        sum += x[k] * x[k];
    float s = sqrtf(sum / (float)group) + 1e-8f;
    for (int round = 0; round < 4; round++) {
        float xl = 0, ll = 0;
        for (int k = 0; k < group; k++) {
            float l = level[lut_code(level, n, x[k] / s)];
            xl += x[k] * l;
            ll += l * l;
        }
        s = fabsf(xl / (ll + 1e-8f)) + 1e-8f;
    }
    return s;
}

bool turbo_encode_lut(int bits, int group, enum dtype t, const float *w, int64_t n, uint8_t *codes, uint8_t *scales)
{
    const float *level = quant_real_levels(bits);
    uint8_t code[TURBO_LUT_GROUP_MAX];
    if (!all_usable(w, n))
        return false;
    for (int64_t k = 0; k < n; k += group, codes += group * bits / 8) {
        float s = lut_scale(level, 1 << bits, w + k, group);
        for (int i = 0; i < group; i++)
            code[i] = (uint8_t)lut_code(level, 1 << bits, w[k + i] / s);
        pack(code, group, bits, codes);
        quant_store(t, &s, 1, scales);
        scales += dtype_size(t);
    }
    return true;
}
