/* q8_0, q4_0, q4_1, f16, bf16 and f32 from float32; layouts: ggml_block.c.
 *
 *     q8_0   d = max |x| / 127                   q = round(x / d), halves away from zero
 *     q4_0   d = m / -8, m the value of largest  q = min(15, trunc(x / d + 8.5))
 *            magnitude with its sign
 *     q4_1   d = (max - min) / 15, m = min       q = min(15, trunc((x - min) / d + 0.5))
 *
 * x / d is x times the float32 reciprocal of d before d is rounded to f16.
 * Where d is so small that the reciprocal overflows, codes are those of zero. */
#include "quant/ggml_encode.h"

#include <math.h>
#include <string.h>

#include "base/fp.h"

enum { INPUTS = 32, F16_MAX = 65504 };

static inline void store_u16(uint8_t *out, uint16_t v)
{
    out[0] = (uint8_t)v;
    out[1] = (uint8_t)(v >> 8);
}

static inline float inverse(float d)
{
    float id = d != 0 ? 1.0f / d : 0.0f;
    return isfinite(id) ? id : 0.0f;
}

static bool finite_block(const float *x)
{
    float sum = 0;
    for (int i = 0; i < INPUTS; i++)
        sum += x[i] * 0.0f; /* NaN for infinities too */
    return sum == 0.0f;
}

static bool row_q8_0(const float *x, int64_t n, uint8_t *out)
{
    for (int64_t b = 0; b < n; b += INPUTS, x += INPUTS, out += 34) {
        float most = 0;
        for (int i = 0; i < INPUTS; i++)
            most = fmaxf(most, fabsf(x[i]));
        float d = most / 127, id = inverse(d);
        if (!finite_block(x) || d > F16_MAX)
            return false;
        store_u16(out, fp_to_f16(d));
        for (int i = 0; i < INPUTS; i++)
            out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * id);
    }
    return true;
}

static inline uint8_t code4(float v)
{
    int q = (int)v;
    return (uint8_t)(q < 15 ? q : 15);
}

static bool row_q4_0(const float *x, int64_t n, uint8_t *out)
{
    for (int64_t b = 0; b < n; b += INPUTS, x += INPUTS, out += 18) {
        float most = 0, value = 0;
        for (int i = 0; i < INPUTS; i++)
            if (most < fabsf(x[i])) {
                most = fabsf(x[i]);
                value = x[i];
            }
        float d = value / -8, id = inverse(d);
        if (!finite_block(x) || fabsf(d) > F16_MAX)
            return false;
        store_u16(out, fp_to_f16(d));
        for (int i = 0; i < INPUTS / 2; i++)
            out[2 + i] = (uint8_t)(code4(x[i] * id + 8.5f) | code4(x[i + INPUTS / 2] * id + 8.5f) << 4);
    }
    return true;
}

static bool row_q4_1(const float *x, int64_t n, uint8_t *out)
{
    for (int64_t b = 0; b < n; b += INPUTS, x += INPUTS, out += 20) {
        float least = x[0], most = x[0];
        for (int i = 1; i < INPUTS; i++) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
        }
        float d = (most - least) / 15, id = inverse(d);
        if (!finite_block(x) || !(d <= F16_MAX) || fabsf(least) > F16_MAX)
            return false;
        store_u16(out, fp_to_f16(d));
        store_u16(out + 2, fp_to_f16(least));
        for (int i = 0; i < INPUTS / 2; i++)
            out[4 + i] =
                (uint8_t)(code4((x[i] - least) * id + 0.5f) | code4((x[i + INPUTS / 2] - least) * id + 0.5f) << 4);
    }
    return true;
}

static bool row_f16(const float *x, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = fp_to_f16(x[i]);
        if ((h & 0x7c00) == 0x7c00)
            return false;
        store_u16(out + 2 * i, h);
    }
    return true;
}

static bool row_bf16(const float *x, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = fp_to_bf16(x[i]);
        if ((h & 0x7f80) == 0x7f80)
            return false;
        store_u16(out + 2 * i, h);
    }
    return true;
}

static bool row_f32(const float *x, int64_t n, uint8_t *out)
{
    memcpy(out, x, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static const struct ggml_encoder encoders[] = {
    {"Q8_0", 8, 7, INPUTS, 34, row_q8_0}, {"Q4_0", 2, 2, INPUTS, 18, row_q4_0}, {"Q4_1", 3, 3, INPUTS, 20, row_q4_1},
    {"F16", 1, 1, 1, 2, row_f16},         {"BF16", 30, 32, 1, 2, row_bf16},     {"F32", 0, 0, 1, 4, row_f32},
};

enum { ENCODERS = sizeof encoders / sizeof encoders[0] };

const struct ggml_encoder *ggml_encoder_at(int i)
{
    return i >= 0 && i < ENCODERS ? &encoders[i] : NULL;
}

static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a >= 'a' && *a <= 'z' ? *a - 32 : *a) != *b)
            return false;
    return *a == *b;
}

const struct ggml_encoder *ggml_encoder_by_name(const char *name)
{
    for (int i = 0; i < ENCODERS; i++)
        if (same_name(name, encoders[i].name))
            return &encoders[i];
    return NULL;
}
