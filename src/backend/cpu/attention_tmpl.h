/* The attention kernels over simd.h. Included once per instruction set by a
 * file that defines ISA(name) as name_<isa>.
 *
 * Scores and weighted sums share one scheme: a register tile of up to six
 * query rows by some vectors (of tokens for scores, of value dimensions for
 * sums) that stays in registers over the whole inner loop, so that each key or
 * value vector loaded serves all rows. A row's arithmetic is the same in every
 * tile: one fused multiply-add per step, in the order of the inner loop. */
#include "backend/cpu/simd_math.h"
#include "backend/cpu/vector_kernels.h"

#include <float.h>
#include <math.h>

#if defined(__GNUC__)
#define TILE_INLINE static inline __attribute__((always_inline))
#else
#define TILE_INLINE static inline
#endif

/* Vectors in a tile of r rows, so that r * TILE_VECTORS(r) accumulators and
 * their operands fit the registers (16 on AVX2, 32 on the others). */
enum { TILE_ROWS = 6 };
#if defined(__AVX512F__) || defined(TLM_SIMD_AVX512)
#define TILE_VECTORS(r) 4
#elif defined(__AVX2__)
#define TILE_VECTORS(r) ((r) == 1 ? 8 : (r) == 2 ? 4 : 2)
#else
#define TILE_VECTORS(r) ((r) <= 2 ? 8 : 4)
#endif

/* The lines at `ahead` that lie where the step's own lie in k or v: over a whole
 * block, everything there. Memory then works while this block is computed. */
TILE_INLINE void ISA(prefetch)(enum kv_type type, const void *ahead, int64_t element, int width)
{
    const int64_t size = type == KV_F32 ? 4 : 2;
    const char *at = (const char *)ahead + element * size;
    for (int64_t i = 0; i < width * size; i += 64)
        __builtin_prefetch(at + i);
}

TILE_INLINE vf ISA(kv_load)(enum kv_type type, const void *p, int64_t i)
{
    switch (type) {
    case KV_F16:
        return vf_load_f16((const uint16_t *)p + i);
    case KV_BF16:
        return vf_load_bf16((const uint16_t *)p + i);
    default:
        return vf_load((const float *)p + i);
    }
}

TILE_INLINE vf ISA(kv_load_part)(enum kv_type type, const void *p, int64_t i, int n)
{
    switch (type) {
    case KV_F16:
        return vf_load_f16_part((const uint16_t *)p + i, n);
    case KV_BF16:
        return vf_load_bf16_part((const uint16_t *)p + i, n);
    default:
        return vf_load_part((const float *)p + i, n);
    }
}

TILE_INLINE void ISA(qk_tile)(enum kv_type type, int rows, int vectors, float *s, const float *q, const void *k,
                              int dim, const void *ahead)
{
    for (int t = 0; t < KV_BLOCK; t += vectors * VF_LANES) {
        vf acc[TILE_ROWS][8];
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < vectors; j++)
                acc[r][j] = vf_zero();
        for (int d = 0; d < dim; d++) {
            vf kv[8];
            if (ahead)
                ISA(prefetch)(type, ahead, (int64_t)t * dim + d * vectors * VF_LANES, vectors * VF_LANES);
            for (int j = 0; j < vectors; j++)
                kv[j] = ISA(kv_load)(type, k, (int64_t)d * KV_BLOCK + t + j * VF_LANES);
            for (int r = 0; r < rows; r++) {
                vf qv = vf_set1(q[(int64_t)r * dim + d]);
                for (int j = 0; j < vectors; j++)
                    acc[r][j] = vf_fma(qv, kv[j], acc[r][j]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < vectors; j++)
                vf_store(s + r * KV_BLOCK + t + j * VF_LANES, acc[r][j]);
    }
}

/* Columns j0 up of acc and v, for `vectors` vectors; with part > 0 the one
 * vector's first `part` lanes. */
TILE_INLINE void ISA(pv_columns)(enum kv_type type, int rows, int vectors, int part, float *acc, const float *p,
                                 const void *v, int lo, int hi, int dim, int j0, const void *ahead)
{
    vf a[TILE_ROWS][8];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vectors; j++) {
            const float *from = acc + (int64_t)r * dim + j0 + j * VF_LANES;
            a[r][j] = part ? vf_load_part(from, part) : vf_load(from);
        }
    for (int t = lo; t < hi; t++) {
        vf vv[8];
        if (ahead)
            ISA(prefetch)(type, ahead, (int64_t)j0 * KV_BLOCK + t * vectors * VF_LANES, vectors * VF_LANES);
        for (int j = 0; j < vectors; j++) {
            int64_t at = (int64_t)t * dim + j0 + j * VF_LANES;
            vv[j] = part ? ISA(kv_load_part)(type, v, at, part) : ISA(kv_load)(type, v, at);
        }
        for (int r = 0; r < rows; r++) {
            vf pv = vf_set1(p[r * KV_BLOCK + t]);
            for (int j = 0; j < vectors; j++)
                a[r][j] = vf_fma(pv, vv[j], a[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vectors; j++) {
            float *to = acc + (int64_t)r * dim + j0 + j * VF_LANES;
            if (part)
                vf_store_part(to, a[r][j], part);
            else
                vf_store(to, a[r][j]);
        }
}

TILE_INLINE void ISA(pv_tile)(enum kv_type type, int rows, int vectors, float *acc, const float *p, const void *v,
                              int lo, int hi, int dim, const void *ahead)
{
    int j = 0;
    for (; j + vectors * VF_LANES <= dim; j += vectors * VF_LANES)
        ISA(pv_columns)(type, rows, vectors, 0, acc, p, v, lo, hi, dim, j, ahead);
    if (vectors > 2)
        for (; j + 2 * VF_LANES <= dim; j += 2 * VF_LANES)
            ISA(pv_columns)(type, rows, 2, 0, acc, p, v, lo, hi, dim, j, ahead);
    if (j + VF_LANES <= dim) {
        ISA(pv_columns)(type, rows, 1, 0, acc, p, v, lo, hi, dim, j, ahead);
        j += VF_LANES;
    }
    if (j < dim)
        ISA(pv_columns)(type, rows, 1, dim - j, acc, p, v, lo, hi, dim, j, ahead);
}

/* Calls tile(rows) for groups of rows, each a constant to the compiler. */
#define FOR_TILES(nq, tile)                                                                                            \
    for (; nq >= TILE_ROWS; nq -= TILE_ROWS)                                                                           \
        tile(TILE_ROWS);                                                                                               \
    switch (nq) {                                                                                                      \
    case 5:                                                                                                            \
        tile(5);                                                                                                       \
        break;                                                                                                         \
    case 4:                                                                                                            \
        tile(4);                                                                                                       \
        break;                                                                                                         \
    case 3:                                                                                                            \
        tile(3);                                                                                                       \
        break;                                                                                                         \
    case 2:                                                                                                            \
        tile(2);                                                                                                       \
        break;                                                                                                         \
    case 1:                                                                                                            \
        tile(1);                                                                                                       \
        break;                                                                                                         \
    default:                                                                                                           \
        break;                                                                                                         \
    }

#define QK_TILE(r)                                                                                                     \
    (ISA(qk_tile)(type, r, TILE_VECTORS(r), s, q, k, head_dim, ahead), s += (r)*KV_BLOCK, q += (int64_t)(r)*head_dim,  \
     ahead = NULL)
#define PV_TILE(r)                                                                                                     \
    (ISA(pv_tile)(type, r, TILE_VECTORS(r), acc, p, v, lo, hi, v_dim, ahead), acc += (int64_t)(r)*v_dim,               \
     p += (r)*KV_BLOCK, ahead = NULL)

TILE_INLINE void ISA(attn_qk)(enum kv_type type, float *s, const float *q, const void *k, int nq, int head_dim,
                              const void *ahead){FOR_TILES(nq, QK_TILE)}

TILE_INLINE void ISA(attn_pv)(enum kv_type type, float *acc, const float *p, const void *v, int nq, int lo, int hi,
                              int v_dim, const void *ahead){FOR_TILES(nq, PV_TILE)}

#define ATTN(name, type)                                                                                               \
    static void ISA(attn_qk_##name)(float *s, const float *q, const void *k, int nq, int head_dim, const void *ahead)  \
    {                                                                                                                  \
        ISA(attn_qk)(type, s, q, k, nq, head_dim, ahead);                                                              \
    }                                                                                                                  \
    static void ISA(attn_pv_##name)(float *acc, const float *p, const void *v, int nq, int lo, int hi, int v_dim,      \
                                    const void *ahead)                                                                 \
    {                                                                                                                  \
        ISA(attn_pv)(type, acc, p, v, nq, lo, hi, v_dim, ahead);                                                       \
    }

ATTN(f32, KV_F32) ATTN(f16, KV_F16) ATTN(bf16, KV_BF16)

    /* x <= 0 */
    static inline float ISA(exp_one)(float x)
{
    float t[VF_LANES];
    vf_store(t, vf_exp_negative(vf_set1(x)));
    return t[0];
}

/* Logits of one row; the greatest of them and of m. */
TILE_INLINE float ISA(logits)(float *s, int lo, int hi, float scale, float cap, float m)
{
    vf best = vf_set1(m), f = vf_set1(scale), c = vf_set1(cap);
    for (int t = 0; t < KV_BLOCK; t += VF_LANES) {
        vf x = vf_mul(vf_load(s + t), f);
        if (cap != 0)
            x = vf_mul(c, vf_tanh(vf_div(x, c)));
        vf_store(s + t, x);
        best = vf_max_number(x, best);
    }
    if (hi - lo == KV_BLOCK)
        return vf_reduce_max(best);
    best = vf_set1(m);
    for (int t = 0; t < KV_BLOCK; t++)
        s[t] = t >= lo && t < hi ? s[t] : -INFINITY;
    for (int t = 0; t < KV_BLOCK; t += VF_LANES)
        best = vf_max_number(vf_load(s + t), best);
    return vf_reduce_max(best);
}

/* Probabilities of one row; their sum. */
TILE_INLINE float ISA(probabilities)(float *s, float m)
{
    vf vm = vf_max(vf_set1(-FLT_MAX), vf_set1(m)), sum[32 / VF_LANES];
    for (int j = 0; j < 32 / VF_LANES; j++) {
        float *a = s + j * VF_LANES;
        vf p1 = vf_exp_negative(vf_sub(vf_load(a), vm)), p2 = vf_exp_negative(vf_sub(vf_load(a + 32), vm));
        vf_store(a, p1);
        vf_store(a + 32, p2);
        sum[j] = vf_add(p1, p2);
    }
    for (int n = 32 / VF_LANES / 2; n; n /= 2)
        for (int j = 0; j < n; j++)
            sum[j] = vf_add(sum[j], sum[j + n]);
    return vf_sum(sum[0]);
}

TILE_INLINE float ISA(update)(struct attn_state *st, float m, float total)
{
    if (m == -INFINITY) {
        if (total == 0) /* only logits of -infinity so far: as if unseen */
            return 1;
        m = 0; /* NaN, which must not get lost */
    }
    float factor = st->m == m && m < INFINITY ? 1 : ISA(exp_one)(st->m - m);
    st->l = st->l * factor + total;
    st->m = m;
    return factor;
}

/* Greatest logits of all rows first: a row's steps wait for each other, those of two rows do not. */
static void ISA(attn_softmax_f32)(float *s, float *factor, int rows, int lo, int hi, float scale, float cap,
                                  struct attn_state *st)
{
    float m[SOFTMAX_ROWS], total[SOFTMAX_ROWS];
    if (lo >= hi) {
        memset(s, 0, (size_t)rows * KV_BLOCK * sizeof *s);
        for (int r = 0; r < rows; r++)
            factor[r] = 1;
        return;
    }
    for (int r = 0; r < rows; r++)
        m[r] = cap != 0 ? ISA(logits)(s + r * KV_BLOCK, lo, hi, scale, cap, st[r].m)
                        : ISA(logits)(s + r * KV_BLOCK, lo, hi, scale, 0, st[r].m);
    for (int r = 0; r < rows; r++)
        total[r] = ISA(probabilities)(s + r * KV_BLOCK, m[r]);
    for (int r = 0; r < rows; r++)
        factor[r] = ISA(update)(&st[r], m[r], total[r]);
}

static void ISA(attn_merge_f32)(struct attn_state *st, float *acc, const struct attn_state *part_st, const float *part,
                                int64_t n)
{
    if (part_st->m == -INFINITY)
        return;
    float m = st->m > part_st->m ? st->m : part_st->m;
    float f1 = ISA(exp_one)(st->m - m), f2 = ISA(exp_one)(part_st->m - m);
    st->l = st->l * f1 + part_st->l * f2;
    st->m = m;
    vf v1 = vf_set1(f1), v2 = vf_set1(f2);
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(acc + i, vf_fma(vf_load(part + i), v2, vf_mul(vf_load(acc + i), v1)));
    if (i < n) {
        int r = (int)(n - i);
        vf_store_part(acc + i, vf_fma(vf_load_part(part + i, r), v2, vf_mul(vf_load_part(acc + i, r), v1)), r);
    }
}

static void ISA(attn_finish_f32)(float *y, const float *acc, const struct attn_state *st, const float *sink, int64_t n)
{
    float factor = 1.0f, l = st->l;
    if (sink) {
        float m = st->m > *sink ? st->m : *sink;
        factor = ISA(exp_one)(st->m - m);
        l = l * factor + ISA(exp_one)(*sink - m);
    }
    vf f = vf_set1(factor / l);
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_mul(vf_load(acc + i), f));
    if (i < n)
        vf_store_part(y + i, vf_mul(vf_load_part(acc + i, (int)(n - i)), f), (int)(n - i));
}

#include "backend/cpu/attention_int_tmpl.h"
#include "backend/cpu/kv_tmpl.h"

void ISA(attention_init)(struct vector_kernels *k)
{
    ISA(kv_init)(k);
    ISA(int_init)(k);
    k->attn_qk[KV_F32] = ISA(attn_qk_f32);
    k->attn_qk[KV_F16] = ISA(attn_qk_f16);
    k->attn_qk[KV_BF16] = ISA(attn_qk_bf16);
    k->attn_pv[KV_F32] = ISA(attn_pv_f32);
    k->attn_pv[KV_F16] = ISA(attn_pv_f16);
    k->attn_pv[KV_BF16] = ISA(attn_pv_bf16);
    k->attn_softmax = ISA(attn_softmax_f32);
    k->attn_merge = ISA(attn_merge_f32);
    k->attn_finish = ISA(attn_finish_f32);
}
