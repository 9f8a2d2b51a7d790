/* The vector kernels in plain C: the definition of what each computes. */
#include "backend/cpu/vector_kernels.h"

#include <math.h>
#include <string.h>

#include "base/fp.h"
#include "quant/hadamard.h"

/* The 32 lanes of a sum, halved down to one. */
static float sum_lanes(float *lane)
{
    for (int n = 16; n; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] += lane[i + n];
    return lane[0];
}

static void rms_norm_f32_scalar(float *y, const float *x, const float *w, int64_t n, float eps, float add)
{
    float lane[32] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] = fmaf(x[i], x[i], lane[i % 32]);
    float factor = 1.0f / sqrtf(sum_lanes(lane) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = w ? x[i] * factor * (w[i] + add) : x[i] * factor;
}

static void add_f32_scalar(float *y, const float *x1, const float *x2, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x1[i] + x2[i];
}

static void scale_f32_scalar(float *y, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor;
}

static void act_mul_silu_scalar(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void act_mul_gelu_tanh_scalar(float *y, const float *gate, const float *up, int64_t n)
{
    const float k = 0.79788456080286536f; /* sqrt(2 / pi) */
    for (int64_t i = 0; i < n; i++) {
        float x = gate[i];
        y[i] = 0.5f * x * (1.0f + tanhf(k * (x + 0.044715f * x * x * x))) * up[i];
    }
}

static void act_mul_gelu_erf_scalar(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = 0.5f * gate[i] * (1.0f + erff(gate[i] * 0.70710678118654752f)) * up[i];
}

static void act_mul_relu_scalar(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (gate[i] < 0 ? 0 : gate[i]) * up[i];
}

static void act_mul_relu2_scalar(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (gate[i] < 0 ? 0 : gate[i] * gate[i]) * up[i];
}

static void softcap_f32_scalar(float *y, const float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = cap * tanhf(x[i] / cap);
}

static void rope_half_f32_scalar(float *y, const float *x, const float *cos, const float *sin, int64_t dims)
{
    int64_t h = dims / 2;
    for (int64_t i = 0; i < h; i++) {
        float a = x[i], b = x[i + h];
        y[i] = a * cos[i] - b * sin[i];
        y[i + h] = b * cos[i] + a * sin[i];
    }
}

static void rope_pairs_f32_scalar(float *y, const float *x, const float *cos, const float *sin, int64_t dims)
{
    for (int64_t i = 0; i < dims / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cos[i] - b * sin[i];
        y[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

static void input_f32_scalar(float *y, const float *x, const struct quant_input *in, int64_t n)
{
    quant_input_apply(in, x, n, y);
}

static void store_f32_scalar(void *y, const float *x, int64_t n)
{
    memcpy(y, x, (size_t)n * 4);
}

static void load_f32_scalar(float *y, const void *x, int64_t n)
{
    memcpy(y, x, (size_t)n * 4);
}

static void store_f16_scalar(void *y, const float *x, int64_t n)
{
    uint16_t *h = y;
    for (int64_t i = 0; i < n; i++)
        h[i] = fp_to_f16(x[i]);
}

static void load_f16_scalar(float *y, const void *x, int64_t n)
{
    const uint16_t *h = x;
    for (int64_t i = 0; i < n; i++)
        y[i] = fp_from_f16(h[i]);
}

static void store_bf16_scalar(void *y, const float *x, int64_t n)
{
    uint16_t *h = y;
    for (int64_t i = 0; i < n; i++)
        h[i] = fp_to_bf16(x[i]);
}

static void load_bf16_scalar(float *y, const void *x, int64_t n)
{
    const uint16_t *h = x;
    for (int64_t i = 0; i < n; i++)
        y[i] = fp_from_bf16(h[i]);
}

static float max_f32_scalar(const float *x, int64_t n)
{
    float best = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

static int64_t argmax_f32_scalar(const float *x, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

static double relative_f32_scalar(const float *x, const float *y, int64_t n, float lse)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)(expf(x[i] - lse) * (x[i] - y[i]));
    return sum;
}

static float log_sum_exp_f32_scalar(const float *x, int64_t n)
{
    float m = max_f32_scalar(x, n);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return x[i];
        if (!isinf(m))
            sum += (double)expf(x[i] - m);
    }
    return isinf(m) ? m : (float)((double)m + log(sum));
}

void vector_init_scalar(struct vector_kernels *k)
{
    k->rms_norm = rms_norm_f32_scalar;
    k->add = add_f32_scalar;
    k->scale = scale_f32_scalar;
    k->act_mul[ACT_SILU] = act_mul_silu_scalar;
    k->act_mul[ACT_GELU_TANH] = act_mul_gelu_tanh_scalar;
    k->act_mul[ACT_GELU_ERF] = act_mul_gelu_erf_scalar;
    k->act_mul[ACT_RELU] = act_mul_relu_scalar;
    k->act_mul[ACT_RELU2] = act_mul_relu2_scalar;
    k->softcap = softcap_f32_scalar;
    k->rope[0] = rope_half_f32_scalar;
    k->rope[1] = rope_pairs_f32_scalar;
    k->input = input_f32_scalar;
    k->store[KV_F32] = store_f32_scalar;
    k->store[KV_F16] = store_f16_scalar;
    k->store[KV_BF16] = store_bf16_scalar;
    k->load[KV_F32] = load_f32_scalar;
    k->load[KV_F16] = load_f16_scalar;
    k->load[KV_BF16] = load_bf16_scalar;
    k->argmax = argmax_f32_scalar;
    k->max = max_f32_scalar;
    k->log_sum_exp = log_sum_exp_f32_scalar;
    k->relative = relative_f32_scalar;
    attention_init_scalar(k);
}
