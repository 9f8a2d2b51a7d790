/* The attention kernels in plain C: the definition of what each computes. */
#include "backend/cpu/vector_kernels.h"

#include <math.h>

#include "base/fp.h"

static float kv_get(enum kv_type type, const void *p, int64_t i)
{
    switch (type) {
    case KV_F16:
        return fp_from_f16(((const uint16_t *)p)[i]);
    case KV_BF16:
        return fp_from_bf16(((const uint16_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

static void attn_qk(enum kv_type type, float *s, const float *q, const void *k, int nq, int head_dim)
{
    for (int64_t i = 0; i < (int64_t)nq * KV_BLOCK; i++)
        s[i] = 0;
    for (int d = 0; d < head_dim; d++)
        for (int t = 0; t < KV_BLOCK; t++) {
            float key = kv_get(type, k, (int64_t)d * KV_BLOCK + t);
            for (int r = 0; r < nq; r++)
                s[r * KV_BLOCK + t] = fmaf(q[(int64_t)r * head_dim + d], key, s[r * KV_BLOCK + t]);
        }
}

static void attn_pv(enum kv_type type, float *acc, const float *p, const void *v, int nq, int lo, int hi, int v_dim)
{
    for (int t = lo; t < hi; t++)
        for (int j = 0; j < v_dim; j++) {
            float value = kv_get(type, v, (int64_t)t * v_dim + j);
            for (int r = 0; r < nq; r++) {
                float *a = acc + (int64_t)r * v_dim + j;
                *a = fmaf(p[r * KV_BLOCK + t], value, *a);
            }
        }
}

static void attn_qk_f32_scalar(float *s, const float *q, const void *k, int nq, int head_dim, const void *ahead)
{
    (void)ahead;
    attn_qk(KV_F32, s, q, k, nq, head_dim);
}

static void attn_qk_f16_scalar(float *s, const float *q, const void *k, int nq, int head_dim, const void *ahead)
{
    (void)ahead;
    attn_qk(KV_F16, s, q, k, nq, head_dim);
}

static void attn_qk_bf16_scalar(float *s, const float *q, const void *k, int nq, int head_dim, const void *ahead)
{
    (void)ahead;
    attn_qk(KV_BF16, s, q, k, nq, head_dim);
}

static void attn_pv_f32_scalar(float *acc, const float *p, const void *v, int nq, int lo, int hi, int v_dim,
                               const void *ahead)
{
    (void)ahead;
    attn_pv(KV_F32, acc, p, v, nq, lo, hi, v_dim);
}

static void attn_pv_f16_scalar(float *acc, const float *p, const void *v, int nq, int lo, int hi, int v_dim,
                               const void *ahead)
{
    (void)ahead;
    attn_pv(KV_F16, acc, p, v, nq, lo, hi, v_dim);
}

static void attn_pv_bf16_scalar(float *acc, const float *p, const void *v, int nq, int lo, int hi, int v_dim,
                                const void *ahead)
{
    (void)ahead;
    attn_pv(KV_BF16, acc, p, v, nq, lo, hi, v_dim);
}

static float softmax_row(float *s, int lo, int hi, float scale, float cap, struct attn_state *st)
{
    float m = st->m;
    for (int t = 0; t < KV_BLOCK; t++) {
        s[t] *= scale;
        if (cap != 0)
            s[t] = cap * tanhf(s[t] / cap);
        if (t < lo || t >= hi)
            s[t] = -INFINITY;
        if (s[t] > m)
            m = s[t];
    }
    float at = m == -INFINITY ? 0 : m, lane[32];
    for (int t = 0; t < KV_BLOCK; t++)
        s[t] = expf(s[t] - at);
    for (int i = 0; i < 32; i++)
        lane[i] = s[i] + s[i + 32];
    for (int n = 16; n; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] += lane[i + n];
    if (m == -INFINITY && lane[0] == 0)
        return 1.0f; /* no logit, or none above -infinity: as if unseen */
    float factor = expf(st->m - at);
    st->l = st->l * factor + lane[0];
    st->m = at;
    return factor;
}

static void attn_softmax_f32_scalar(float *s, float *factor, int rows, int lo, int hi, float scale, float cap,
                                    struct attn_state *st)
{
    for (int r = 0; r < rows; r++)
        factor[r] = softmax_row(s + r * KV_BLOCK, lo, hi, scale, cap, &st[r]);
}

static void attn_merge_f32_scalar(struct attn_state *st, float *acc, const struct attn_state *part_st,
                                  const float *part, int64_t n)
{
    if (part_st->m == -INFINITY)
        return;
    float m = st->m > part_st->m ? st->m : part_st->m;
    float f1 = expf(st->m - m), f2 = expf(part_st->m - m);
    st->l = st->l * f1 + part_st->l * f2;
    st->m = m;
    for (int64_t i = 0; i < n; i++)
        acc[i] = fmaf(part[i], f2, acc[i] * f1);
}

static void attn_finish_f32_scalar(float *y, const float *acc, const struct attn_state *st, const float *sink,
                                   int64_t n)
{
    float factor = 1.0f, l = st->l;
    if (sink) {
        float m = st->m > *sink ? st->m : *sink;
        factor = expf(st->m - m);
        l = l * factor + expf(*sink - m);
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = acc[i] * (factor / l);
}

static void kv_affine_scalar(float *y, const uint8_t *in, int bits, int n, float scale, float offset)
{
    for (int i = 0; i < n; i += KV_RUN) {
        uint8_t codes[KV_RUN];
        int r = n - i < KV_RUN ? n - i : KV_RUN;
        kv_planes_unpack(codes, in + kv_planes_bytes(i, bits), r, bits);
        for (int j = 0; j < r; j++)
            y[i + j] = fmaf(codes[j], scale, offset);
    }
}

static void kv_affine_runs_scalar(float *y, const uint8_t *in, int bits, const uint16_t *at, int runs,
                                  const float *scale, const float *offset)
{
    for (int i = 0; i < runs; i++)
        kv_affine_scalar(y + (size_t)at[i] * KV_RUN, in + (size_t)i * kv_planes_bytes(KV_RUN, bits), bits, KV_RUN,
                         scale[at[i]], offset[at[i]]);
}

static void kv_affine_columns_scalar(float *y, const uint8_t *in, int bits, int n, const float *scale,
                                     const float *offset)
{
    for (int i = 0; i < n; i += KV_RUN) {
        uint8_t codes[KV_RUN];
        int r = n - i < KV_RUN ? n - i : KV_RUN;
        kv_planes_unpack(codes, in + kv_planes_bytes(i, bits), r, bits);
        for (int j = 0; j < r; j++)
            y[i + j] = fmaf(codes[j], scale[i + j], offset[i + j]);
    }
}

static void kv_levels_scalar(float *y, const uint8_t *in, int bits, int n, const float *levels)
{
    for (int i = 0; i < n; i += KV_RUN) {
        uint8_t codes[KV_RUN];
        int r = n - i < KV_RUN ? n - i : KV_RUN;
        kv_planes_unpack(codes, in + kv_planes_bytes(i, bits), r, bits);
        for (int j = 0; j < r; j++)
            y[i + j] = levels[codes[j]];
    }
}

static void kv_e4m3_scalar(float *y, const uint8_t *in, int n, float scale)
{
    for (int i = 0; i < n; i++)
        y[i] = fp_from_e4m3(in[i]) * scale;
}

static void kv_turn_scalar(float *a, float *b, const float *cos, const float *sin)
{
    for (int t = 0; t < KV_BLOCK; t++) {
        float x = a[t], y = b[t];
        a[t] = x * cos[t] - y * sin[t];
        b[t] = fmaf(x, sin[t], y * cos[t]);
    }
}

static void kv_scores_scalar(float *s, const float *factor, float add)
{
    for (int t = 0; t < KV_BLOCK; t++)
        s[t] = fmaf(s[t], factor[t], add);
}

void attention_init_scalar(struct vector_kernels *k)
{
    attention_int_init_scalar(k);
    k->kv_affine = kv_affine_scalar;
    k->kv_affine_runs = kv_affine_runs_scalar;
    k->kv_affine_columns = kv_affine_columns_scalar;
    k->kv_levels = kv_levels_scalar;
    k->kv_e4m3 = kv_e4m3_scalar;
    k->kv_turn = kv_turn_scalar;
    k->kv_scores = kv_scores_scalar;
    k->attn_qk[KV_F32] = attn_qk_f32_scalar;
    k->attn_qk[KV_F16] = attn_qk_f16_scalar;
    k->attn_qk[KV_BF16] = attn_qk_bf16_scalar;
    k->attn_pv[KV_F32] = attn_pv_f32_scalar;
    k->attn_pv[KV_F16] = attn_pv_f16_scalar;
    k->attn_pv[KV_BF16] = attn_pv_bf16_scalar;
    k->attn_softmax = attn_softmax_f32_scalar;
    k->attn_merge = attn_merge_f32_scalar;
    k->attn_finish = attn_finish_f32_scalar;
}
