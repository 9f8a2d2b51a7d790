/* The integer kernels of attention in plain C: the definition of what each computes. */
#include <math.h>
#include <string.h>

#include "backend/cpu/vector_kernels.h"

static float int_pack_scalar(int16_t *out, float *sum, const float *x, const float *factor, const float *weight,
                             int64_t n, int limit)
{
    float most = 0, bad = 0, lane[32] = {0};
    for (int64_t i = 0; i < n; i++) {
        float v = factor ? x[i] * factor[i] : x[i];
        if (weight)
            lane[i % 32] = fmaf(x[i], weight[i], lane[i % 32]);
        most = fabsf(v) > most ? fabsf(v) : most;
        if (!factor)
            bad += v * 0.0f;
    }
    for (int k = 16; weight && k; k /= 2)
        for (int i = 0; i < k; i++)
            lane[i] += lane[i + k];
    if (weight)
        *sum = lane[0];
    if (bad != 0 || !(most >= INT_SMALLEST)) {
        memset(out, 0, (size_t)n * sizeof *out);
        return bad;
    }
    float f = (float)limit / most;
    for (int64_t i = 0; i < n; i++)
        out[i] = (int16_t)lrintf((factor ? x[i] * factor[i] : x[i]) * f);
    return most / (float)limit;
}

static void int_dot_scalar(float *y, const int16_t *a, const int16_t *tile, const float *scale, const float *base,
                           const struct int_dot *d)
{
    for (int r = 0; r < d->rows; r++)
        for (int x = 0; x < d->width; x++) {
            int32_t sum = 0;
            for (int i = 0; i < d->n; i++)
                sum += a[r * d->a_stride + i] * tile[(i & ~1) * d->tile_stride + 2 * x + (i & 1)];
            float *to = &y[r * d->y_stride + x], from = d->add ? *to : 0;
            *to = fmaf((float)sum, scale[r], base ? from + base[r] : from);
        }
}

static void kv_words_scalar(int16_t *tile, const uint8_t *in, int bits, int rows, int width)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i += KV_RUN, in += kv_planes_bytes(KV_RUN, bits)) {
            uint8_t codes[KV_RUN];
            kv_planes_unpack(codes, in, KV_RUN, bits);
            for (int j = 0; j < KV_RUN; j++)
                tile[(r & ~1) * width + 2 * (i + j) + (r & 1)] = codes[j];
        }
}

static float kv_channel_units_scalar(int16_t *factor, int16_t *offset, const float *scale, const float *low, int n,
                                     int width)
{
    float most = 0, top = (float)((1 << width) - 1);
    for (int i = 0; i < n; i++) {
        float m = fmaf(fabsf(scale[i]), top, fabsf(low[i]));
        most = m > most ? m : most;
    }
    if (!(most >= INT_SMALLEST)) {
        memset(factor, 0, (size_t)n * sizeof *factor);
        memset(offset, 0, (size_t)n * sizeof *offset);
        return 0;
    }
    float unit = most / KEY_MOST, f = ldexpf(1 / unit, width + 1), o = 1 / unit;
    for (int i = 0; i < n; i++) {
        factor[i] = (int16_t)lrintf(scale[i] * f);
        offset[i] = (int16_t)lrintf(low[i] * o);
    }
    return unit;
}

static const uint8_t *kv_channel_words_scalar(int16_t *y, const uint8_t *in, int bits, uint64_t channels,
                                              const uint16_t *at, int shift, const int16_t *factor,
                                              const int16_t *offset)
{
    for (int c = 0; c < 64; c++) {
        uint8_t codes[KV_RUN];
        if (!(channels >> c & 1))
            continue;
        kv_planes_unpack(codes, in, KV_RUN, bits);
        in += kv_planes_bytes(KV_RUN, bits);
        for (int j = 0; j < KV_RUN; j++)
            y[at[c] * KV_RUN + j] = (int16_t)(high_word(codes[j] << shift, factor[c]) + offset[c]);
    }
    return in;
}

static void kv_level_words_scalar(int16_t *tile, const uint8_t *in, int bits, int rows, int width,
                                  const int16_t *levels)
{
    kv_words_scalar(tile, in, bits, rows, width);
    for (int i = 0; i < rows * width; i++)
        tile[i] = levels[tile[i]];
}

static void kv_pair_words_scalar(int16_t *rows, int pairs)
{
    for (; pairs; pairs--, rows += 2 * KV_RUN) {
        int16_t two[2][KV_RUN];
        memcpy(two, rows, sizeof two);
        for (int t = 0; t < KV_RUN; t++) {
            rows[2 * t] = two[0][t];
            rows[2 * t + 1] = two[1][t];
        }
    }
}

static void kv_turn_words_scalar(int16_t *rows, int pairs, const int16_t *cos, const int16_t *sin)
{
    kv_pair_words_scalar(rows, pairs);
    for (; pairs; pairs--, rows += 2 * KV_RUN, cos += KV_RUN, sin += KV_RUN)
        for (int t = 0; t < KV_RUN; t++) {
            int a = rows[2 * t], b = rows[2 * t + 1];
            rows[2 * t] = (int16_t)(high_word(a, cos[t]) - high_word(b, sin[t]));
            rows[2 * t + 1] = (int16_t)(high_word(a, sin[t]) + high_word(b, cos[t]));
        }
}

static void int_turn_back_scalar(int16_t *y, const int16_t *x, int rows, int width, const int16_t *cos,
                                 const int16_t *sin, int half)
{
    for (; rows; rows--, x += width, y += width) {
        for (int i = 0; i < half; i++) {
            int a = x[i], b = x[half + i];
            y[2 * i] = (int16_t)(high_word(a, cos[i]) + high_word(b, sin[i]));
            y[2 * i + 1] = (int16_t)(high_word(b, cos[i]) - high_word(a, sin[i]));
        }
        memcpy(y + 2 * half, x + 2 * half, (size_t)(width - 2 * half) * sizeof *y);
    }
}

static void kv_scores_add_scalar(float *s, const float *x, const float *factor, const float *offset, float c)
{
    for (int t = 0; t < KV_BLOCK; t++)
        s[t] = fmaf(x[t], factor[t], fmaf(c, offset[t], s[t]));
}

void attention_int_init_scalar(struct vector_kernels *k)
{
    k->int_pack = int_pack_scalar;
    k->int_dot = int_dot_scalar;
    k->kv_words = kv_words_scalar;
    k->kv_channel_units = kv_channel_units_scalar;
    k->kv_channel_words = kv_channel_words_scalar;
    k->kv_level_words = kv_level_words_scalar;
    k->kv_pair_words = kv_pair_words_scalar;
    k->kv_turn_words = kv_turn_words_scalar;
    k->int_turn_back = int_turn_back_scalar;
    k->kv_scores_add = kv_scores_add_scalar;
}
