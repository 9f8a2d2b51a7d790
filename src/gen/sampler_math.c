/* Arithmetic on a row of logits.
 *
 * The exponential is MLX's for CPUs (the Cephes polynomial for 2^f), not that
 * of the C library, so that a seed gives the same draws as there and with any
 * C library. Loops over BLOCK values let the compiler use vectors; sums stay
 * scalar because their order is part of the definition. */
#include "gen/sampler_parts.h"

#include <float.h>
#include <math.h>

#include "base/fp.h"

enum { BLOCK = 64 };

/* 2^f for f in [-0.5, 0.5], highest power first. */
static const float exp2_coefficient[7] = {
    1.535336188319500e-4f,
    1.339887440266574e-3f,
    9.618437357674640e-3f,
    5.550332471162809e-2f,
    2.402264791363012e-1f,
    6.931472028550421e-1f,
    1.0f,
};

/* x <= 0 or slightly above; 2^-126 is the least result, then 0. Masks instead of
 * branches, which compilers do not turn into vectors. */
static inline float exp_one(float x)
{
    const uint32_t low = 0u - (uint32_t)(x < -88.0f);
    float in = fp_from_bits((fp_bits(x) & ~low) | (fp_bits(-88.0f) & low));
    float y = in * 1.442695f;
    float shifted = y + 0.5f; /* exact where it decides the whole part, as y <= 0 */
    int32_t whole = (int32_t)shifted;
    whole -= shifted < (float)whole; /* floor */
    float f = y - (float)whole;
    float p = exp2_coefficient[0] * f + exp2_coefficient[1];
    p = p * f + exp2_coefficient[2];
    p = p * f + exp2_coefficient[3];
    p = p * f + exp2_coefficient[4];
    p = p * f + exp2_coefficient[5];
    p = p * f + exp2_coefficient[6];
    float e = fp_from_bits((uint32_t)(whole + 127) << 23) * p;
    return fp_from_bits(fp_bits(e) & ~low);
}

static void exp_block(const float *restrict x, float scale, float shift, float *restrict out)
{
    for (int i = 0; i < BLOCK; i++) {
        float y = x[i] * scale;
        out[i] = exp_one(y - shift);
    }
}

void row_exp(const float *x, size_t n, float scale, float shift, float *restrict out)
{
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        exp_block(x + i, scale, shift, out + i);
    for (; i < n; i++) {
        float y = x[i] * scale;
        out[i] = exp_one(y - shift);
    }
}

float row_logsumexp(const float *x, size_t n, float max)
{
    float e[BLOCK], sum = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t m = n - i < BLOCK ? n - i : BLOCK;
        row_exp(x + i, m, 1, max, e);
        for (size_t j = 0; j < m; j++)
            sum += e[j];
    }
    return logf(sum) + max;
}

float row_max(const float *x, size_t n, size_t *bad)
{
    enum { LANES = 16 };
    float lane[LANES], max = -INFINITY;
    int32_t good[LANES];
    for (int j = 0; j < LANES; j++) {
        lane[j] = -INFINITY;
        good[j] = 1;
    }
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
            good[j] &= x[i + j] <= FLT_MAX;
        }
    int all_good = 1;
    for (; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        all_good &= x[i] <= FLT_MAX;
    }
    for (int j = 0; j < LANES; j++) {
        max = lane[j] > max ? lane[j] : max;
        all_good &= good[j];
    }
    *bad = n;
    for (i = 0; !all_good && i < n; i++)
        if (!(x[i] <= FLT_MAX)) {
            *bad = i;
            break;
        }
    return max;
}

uint32_t row_key(float x)
{
    uint32_t b = fp_bits(x + 0.0f); /* -0 becomes 0 */
    return b & 0x80000000 ? ~b : b | 0x80000000;
}

size_t row_draw(struct sampler_row *r, float scale, float u)
{
    size_t bad;
    const float max = row_max(r->x, r->n, &bad);
    const float shift = max * scale;
    if (isfinite(shift)) {
        row_exp(r->x, r->n, scale, shift, r->sum);
    } else { /* temperature so low that the scale overflows: the limit, uniform over the best */
        for (size_t i = 0; i < r->n; i++)
            r->sum[i] = r->x[i] == max;
    }
    float sum = 0;
    for (size_t i = 0; i < r->n; i++) {
        sum += r->sum[i];
        r->sum[i] = sum;
    }
    /* u < 1 makes u * sum < sum, and the first partial sum above it belongs to
     * a token of positive weight. */
    const float target = u * sum;
    size_t lo = 0, hi = r->n - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->sum[mid] > target)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}
