/* The vector kernels over simd.h. Included once per instruction set by a file
 * that defines ISA(name) as name_<isa>. */
#include "backend/cpu/simd_math.h"
#include "backend/cpu/vector_kernels.h"
#include "quant/hadamard.h"

#include <math.h>

/* Vectors that make the 32 lanes of a sum. */
enum { SUM_VECTORS = 32 / VF_LANES };

static float ISA(sum_lanes_f32)(vf *acc)
{
    for (int n = SUM_VECTORS / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            acc[i] = vf_add(acc[i], acc[i + n]);
    return vf_sum(acc[0]);
}

static float ISA(sum_squares_f32)(const float *x, int64_t n)
{
    vf acc[SUM_VECTORS];
    for (int j = 0; j < SUM_VECTORS; j++)
        acc[j] = vf_zero();
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < SUM_VECTORS; j++) {
            vf v = vf_load(x + i + j * VF_LANES);
            acc[j] = vf_fma(v, v, acc[j]);
        }
    for (int j = 0; i < n; j++, i += VF_LANES) {
        vf v = n - i >= VF_LANES ? vf_load(x + i) : vf_load_part(x + i, (int)(n - i));
        acc[j] = vf_fma(v, v, acc[j]);
    }
    return ISA(sum_lanes_f32)(acc);
}

static void ISA(rms_norm_f32)(float *y, const float *x, const float *w, int64_t n, float eps, float add)
{
    float factor = 1.0f / sqrtf(ISA(sum_squares_f32)(x, n) / (float)n + eps);
    vf f = vf_set1(factor), a = vf_set1(add);
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) {
        vf v = vf_mul(vf_load(x + i), f);
        vf_store(y + i, w ? vf_mul(v, vf_add(vf_load(w + i), a)) : v);
    }
    if (i < n) {
        int r = (int)(n - i);
        vf v = vf_mul(vf_load_part(x + i, r), f);
        vf_store_part(y + i, w ? vf_mul(v, vf_add(vf_load_part(w + i, r), a)) : v, r);
    }
}

static void ISA(add_f32)(float *y, const float *x1, const float *x2, int64_t n)
{
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_add(vf_load(x1 + i), vf_load(x2 + i)));
    for (; i < n; i++)
        y[i] = x1[i] + x2[i];
}

static void ISA(scale_f32)(float *y, const float *x, float factor, int64_t n)
{
    vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_mul(vf_load(x + i), f));
    for (; i < n; i++)
        y[i] = x[i] * factor;
}

static inline vf ISA(silu)(vf x)
{
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
static inline vf ISA(gelu_tanh)(vf x)
{
    const float k = 0.79788456080286536f;
    vf c = vf_fma(vf_mul(x, x), vf_set1(-2 * k * 0.044715f), vf_set1(-2 * k));
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_mul(x, c))));
}

static inline vf ISA(gelu_erf)(vf x)
{
    vf e = vf_erf(vf_mul(x, vf_set1(0.70710678118654752f)));
    return vf_mul(vf_mul(x, vf_set1(0.5f)), vf_add(vf_set1(1.0f), e));
}

static inline vf ISA(relu)(vf x)
{
    return vf_max(vf_zero(), x);
}

static inline vf ISA(relu2)(vf x)
{
    vf r = vf_max(vf_zero(), x);
    return vf_mul(r, r);
}

#define ACT_MUL(act)                                                                                                   \
    static void ISA(act_mul_##act)(float *y, const float *gate, const float *up, int64_t n)                            \
    {                                                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + VF_LANES <= n; i += VF_LANES)                                                                       \
            vf_store(y + i, vf_mul(ISA(act)(vf_load(gate + i)), vf_load(up + i)));                                     \
        if (i < n) {                                                                                                   \
            int r = (int)(n - i);                                                                                      \
            vf_store_part(y + i, vf_mul(ISA(act)(vf_load_part(gate + i, r)), vf_load_part(up + i, r)), r);             \
        }                                                                                                              \
    }

ACT_MUL(silu)
ACT_MUL(gelu_tanh)
ACT_MUL(gelu_erf)
ACT_MUL(relu)
ACT_MUL(relu2)

static void ISA(softcap_f32)(float *y, const float *x, float cap, int64_t n)
{
    vf c = vf_set1(cap);
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_mul(c, vf_tanh(vf_div(vf_load(x + i), c))));
    if (i < n) {
        int r = (int)(n - i);
        vf_store_part(y + i, vf_mul(c, vf_tanh(vf_div(vf_load_part(x + i, r), c))), r);
    }
}

/* Products and sums round apart, as in the usual x * cos + rotated * sin. */
static inline void ISA(rotate)(vf *a, vf *b, vf cos, vf sin)
{
    vf x1 = *a, x2 = *b;
    *a = vf_sub(vf_mul(x1, cos), vf_mul(x2, sin));
    *b = vf_add(vf_mul(x2, cos), vf_mul(x1, sin));
}

static void ISA(rope_half_f32)(float *y, const float *x, const float *cos, const float *sin, int64_t dims)
{
    int64_t h = dims / 2, i = 0;
    for (; i + VF_LANES <= h; i += VF_LANES) {
        vf a = vf_load(x + i), b = vf_load(x + h + i);
        ISA(rotate)(&a, &b, vf_load(cos + i), vf_load(sin + i));
        vf_store(y + i, a);
        vf_store(y + h + i, b);
    }
    if (i < h) {
        int r = (int)(h - i);
        vf a = vf_load_part(x + i, r), b = vf_load_part(x + h + i, r);
        ISA(rotate)(&a, &b, vf_load_part(cos + i, r), vf_load_part(sin + i, r));
        vf_store_part(y + i, a, r);
        vf_store_part(y + h + i, b, r);
    }
}

static void ISA(rope_pairs_f32)(float *y, const float *x, const float *cos, const float *sin, int64_t dims)
{
    int64_t h = dims / 2, i = 0;
    vf a, b;
    for (; i + VF_LANES <= h; i += VF_LANES) {
        vf_load2(x + 2 * i, &a, &b);
        ISA(rotate)(&a, &b, vf_load(cos + i), vf_load(sin + i));
        vf_store2(y + 2 * i, a, b);
    }
    if (i < h) {
        int r = (int)(h - i);
        float t[2 * VF_LANES] = {0};
        memcpy(t, x + 2 * i, (size_t)r * 8);
        vf_load2(t, &a, &b);
        ISA(rotate)(&a, &b, vf_load_part(cos + i, r), vf_load_part(sin + i, r));
        vf_store2(t, a, b);
        memcpy(y + 2 * i, t, (size_t)r * 8);
    }
}

/* Steps of butterflies inside vectors, then between them; n is a multiple of VF_LANES. */
static void ISA(butterflies)(float *x, int64_t n)
{
    float lane_sign[VF_LANES];
    vf sign[VF_LANES];
    for (int step = 1; step < VF_LANES; step *= 2) {
        for (int i = 0; i < VF_LANES; i++)
            lane_sign[i] = i & step ? -1.0f : 1.0f;
        sign[step] = vf_load(lane_sign);
    }
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_load(x + i);
        for (int step = 1; step < VF_LANES; step *= 2)
            v = vf_fma(v, sign[step], vf_swap(v, step));
        vf_store(x + i, v);
    }
    for (int64_t len = VF_LANES; len < n; len *= 2)
        for (int64_t i = 0; i < n; i += 2 * len)
            for (int64_t j = i; j < i + len; j += VF_LANES) {
                vf a = vf_load(x + j), b = vf_load(x + j + len);
                vf_store(x + j, vf_add(a, b));
                vf_store(x + j + len, vf_sub(a, b));
            }
}

static void ISA(hadamard)(float *x, int64_t h, const float *signs)
{
    const int m = hadamard_odd(h);
    const int64_t n = h / m;
    if (n % VF_LANES) {
        hadamard(x, h, false);
        return;
    }
    for (int i = 0; i < m; i++)
        ISA(butterflies)(x + i * n, n);
    const vf scale = vf_set1((float)(1 / sqrt((double)h)));
    for (int64_t c = 0; c < n; c += VF_LANES) {
        vf in[HADAMARD_M_MAX];
        for (int i = 0; i < m; i++)
            in[i] = vf_load(x + i * n + c);
        for (int j = 0; j < m; j++) {
            vf sum = m > 1 ? vf_zero() : in[0];
            for (int i = 0; m > 1 && i < m; i++)
                sum = vf_fma(vf_set1(signs[j * m + i]), in[i], sum);
            vf_store(x + j * n + c, vf_mul(sum, scale));
        }
    }
}

static void ISA(flip)(float *y, const float *x, const float *sign, int64_t n)
{
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_mul(vf_load(x + i), vf_load(sign + i)));
    for (; i < n; i++)
        y[i] = x[i] * sign[i];
}

static void ISA(input_f32)(float *y, const float *x, const struct quant_input *in, int64_t n)
{
    float signs[HADAMARD_M_MAX * HADAMARD_M_MAX];
    if (in->order)
        for (int64_t k = 0; k < n; k++)
            y[k] = x[in->order[k]];
    if (!in->block)
        return;
    if (in->signs_first)
        ISA(flip)(y, in->order ? y : x, in->signs, n);
    else if (!in->order && y != x)
        memcpy(y, x, (size_t)n * sizeof *y);
    hadamard_signs(hadamard_odd(in->block), false, signs);
    for (int64_t k = 0; k < n; k += in->block)
        ISA(hadamard)(y + k, in->block, signs);
    if (!in->signs_first)
        ISA(flip)(y, y, in->signs, n);
}

static void ISA(store_f32)(void *y, const float *x, int64_t n)
{
    memcpy(y, x, (size_t)n * 4);
}

static void ISA(load_f32)(float *y, const void *x, int64_t n)
{
    memcpy(y, x, (size_t)n * 4);
}

#define CONVERT(type)                                                                                                  \
    static void ISA(store_##type)(void *y, const float *x, int64_t n)                                                  \
    {                                                                                                                  \
        uint16_t *h = y;                                                                                               \
        int64_t i = 0;                                                                                                 \
        for (; i + VF_LANES <= n; i += VF_LANES)                                                                       \
            vf_store_##type(h + i, vf_load(x + i));                                                                    \
        if (i < n)                                                                                                     \
            vf_store_##type##_part(h + i, vf_load_part(x + i, (int)(n - i)), (int)(n - i));                            \
    }                                                                                                                  \
    static void ISA(load_##type)(float *y, const void *x, int64_t n)                                                   \
    {                                                                                                                  \
        const uint16_t *h = x;                                                                                         \
        int64_t i = 0;                                                                                                 \
        for (; i + VF_LANES <= n; i += VF_LANES)                                                                       \
            vf_store(y + i, vf_load_##type(h + i));                                                                    \
        if (i < n)                                                                                                     \
            vf_store_part(y + i, vf_load_##type##_part(h + i, (int)(n - i)), (int)(n - i));                            \
    }

CONVERT(f16)
CONVERT(bf16)

static float ISA(max_f32)(const float *x, int64_t n)
{
    vf m[4];
    for (int j = 0; j < 4; j++)
        m[j] = vf_set1(-INFINITY);
    int64_t i = 0;
    for (; i + 4 * VF_LANES <= n; i += 4 * VF_LANES)
        for (int j = 0; j < 4; j++)
            m[j] = vf_max_number(vf_load(x + i + j * VF_LANES), m[j]);
    float best = vf_reduce_max(vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3])));
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

static int64_t ISA(argmax_f32)(const float *x, int64_t n)
{
    float best = ISA(max_f32)(x, n);
    for (int64_t i = 0; i < n; i++)
        if (x[i] == best)
            return i;
    return -1;
}

/* Partial sums of 4,096 elements in float32, those in double. */
static double ISA(relative_f32)(const float *x, const float *y, int64_t n, float lse)
{
    vf shift = vf_set1(lse);
    double total = 0;
    int64_t i = 0;
    while (i + 32 <= n) {
        int64_t end = n - i > 1024 ? i + 1024 : n;
        vf acc[SUM_VECTORS];
        for (int j = 0; j < SUM_VECTORS; j++)
            acc[j] = vf_zero();
        for (; i + 32 <= end; i += 32)
            for (int j = 0; j < SUM_VECTORS; j++) {
                vf a = vf_load(x + i + j * VF_LANES), b = vf_load(y + i + j * VF_LANES);
                acc[j] = vf_fma(vf_exp(vf_sub(a, shift)), vf_sub(a, b), acc[j]);
            }
        total += (double)ISA(sum_lanes_f32)(acc);
    }
    for (; i < n; i++)
        total += (double)(expf(x[i] - lse) * (x[i] - y[i]));
    return total;
}

static float ISA(log_sum_exp_f32)(const float *x, int64_t n)
{
    float m = ISA(max_f32)(x, n);
    if (isinf(m)) {
        for (int64_t i = 0; i < n; i++)
            if (isnan(x[i]))
                return x[i];
        return m;
    }
    vf vm = vf_set1(m);
    double total = 0;
    for (int64_t i = 0; i < n;) {
        int64_t end = n - i > 4096 ? i + 4096 : n;
        vf acc[SUM_VECTORS];
        for (int j = 0; j < SUM_VECTORS; j++)
            acc[j] = vf_zero();
        for (; i + 32 <= end; i += 32)
            for (int j = 0; j < SUM_VECTORS; j++)
                acc[j] = vf_add(acc[j], vf_exp(vf_sub(vf_load(x + i + j * VF_LANES), vm)));
        for (int j = 0; i < end; j++, i += VF_LANES) {
            float t[VF_LANES];
            for (int k = 0; k < VF_LANES; k++)
                t[k] = i + k < end ? x[i + k] : -INFINITY;
            acc[j] = vf_add(acc[j], vf_exp(vf_sub(vf_load(t), vm)));
        }
        i = end;
        total += (double)ISA(sum_lanes_f32)(acc);
    }
    return (float)((double)m + log(total));
}

void ISA(vector_init)(struct vector_kernels *k)
{
    k->rms_norm = ISA(rms_norm_f32);
    k->add = ISA(add_f32);
    k->scale = ISA(scale_f32);
    k->act_mul[ACT_SILU] = ISA(act_mul_silu);
    k->act_mul[ACT_GELU_TANH] = ISA(act_mul_gelu_tanh);
    k->act_mul[ACT_GELU_ERF] = ISA(act_mul_gelu_erf);
    k->act_mul[ACT_RELU] = ISA(act_mul_relu);
    k->act_mul[ACT_RELU2] = ISA(act_mul_relu2);
    k->softcap = ISA(softcap_f32);
    k->rope[0] = ISA(rope_half_f32);
    k->rope[1] = ISA(rope_pairs_f32);
    k->input = ISA(input_f32);
    k->store[KV_F32] = ISA(store_f32);
    k->store[KV_F16] = ISA(store_f16);
    k->store[KV_BF16] = ISA(store_bf16);
    k->load[KV_F32] = ISA(load_f32);
    k->load[KV_F16] = ISA(load_f16);
    k->load[KV_BF16] = ISA(load_bf16);
    k->argmax = ISA(argmax_f32);
    k->max = ISA(max_f32);
    k->log_sum_exp = ISA(log_sum_exp_f32);
    k->relative = ISA(relative_f32);
    ISA(attention_init)(k);
}
