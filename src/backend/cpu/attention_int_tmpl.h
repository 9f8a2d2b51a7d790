/* The integer kernels of attention over encoded blocks, over simd_int.h.
 * Included by attention_tmpl.h. */
#include "backend/cpu/simd_int.h"

enum { INT_LANES = 2 * VF_LANES };

/* Rows in a tile at most: two accumulators each, and the operands. */
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(TLM_SIMD_AVX512)
#define INT_ROWS 4
#else
#define INT_ROWS 8
#endif

/* What is NULL is a constant to the compiler. Probabilities, which have factors, cannot be NaN without their sum being
 * it, so only vectors without are looked through for it. */
TILE_INLINE float ISA(pack)(bool factors, bool weights, int16_t *out, float *sum, const float *x, const float *factor,
                            const float *weight, int64_t n, int limit)
{
    vf most = vf_zero(), bad = vf_zero(), zero = vf_zero(), total[32 / VF_LANES];
    for (int j = 0; j < 32 / VF_LANES; j++)
        total[j] = zero;
    for (int64_t i = 0; i < n; i += 32)
        for (int j = 0; j < 32 / VF_LANES; j++) {
            vf v = vf_load(x + i + j * VF_LANES);
            if (weights)
                total[j] = vf_fma(v, vf_load(weight + i + j * VF_LANES), total[j]);
            if (factors)
                v = vf_mul(v, vf_load(factor + i + j * VF_LANES));
            else
                bad = vf_fma(v, zero, bad);
            most = vf_max(vf_abs(v), most);
        }
    if (weights) {
        for (int k = 32 / VF_LANES / 2; k; k /= 2)
            for (int j = 0; j < k; j++)
                total[j] = vf_add(total[j], total[j + k]);
        *sum = vf_sum(total[0]);
    }
    float top = vf_reduce_max(most), nan = factors ? 0 : vf_sum(bad);
    if (nan != 0 || !(top >= INT_SMALLEST)) {
        memset(out, 0, (size_t)n * sizeof *out);
        return nan; /* 0 or NaN */
    }
    vf f = vf_set1((float)limit / top);
    for (int64_t i = 0; i < n; i += INT_LANES) {
        vf a = vf_load(x + i), b = vf_load(x + i + VF_LANES);
        if (factors) {
            a = vf_mul(a, vf_load(factor + i));
            b = vf_mul(b, vf_load(factor + i + VF_LANES));
        }
        vw_store(out + i, vw_round(vf_mul(a, f), vf_mul(b, f)));
    }
    return top / (float)limit;
}

static float ISA(int_pack)(int16_t *out, float *sum, const float *x, const float *factor, const float *weight,
                           int64_t n, int limit)
{
    if (factor)
        return weight ? ISA(pack)(true, true, out, sum, x, factor, weight, n, limit)
                      : ISA(pack)(true, false, out, sum, x, factor, weight, n, limit);
    return weight ? ISA(pack)(false, true, out, sum, x, factor, weight, n, limit)
                  : ISA(pack)(false, false, out, sum, x, factor, weight, n, limit);
}

/* A step takes STEP pairs of rows and brings some of what is ahead. */
TILE_INLINE void ISA(int_dot_rows)(int rows, float *y, const int16_t *a, const int16_t *tile, const float *scale,
                                   const float *base, const struct int_dot *d, const char *ahead)
{
    enum { STEP = 4 };
    const int n = d->n, width = d->width;
    const int64_t a_stride = d->a_stride, tile_stride = 2 * d->tile_stride;
    const bool add = d->add;
    const size_t steps = (size_t)(n / (2 * STEP) * (width / INT_LANES)), bytes = ahead ? d->ahead_bytes : 0;
    const size_t share = bytes / steps + 1;
    size_t fetched = 0, goal = 0;
    for (int x = 0; x < width; x += INT_LANES) {
        const int16_t *t = tile + 2 * x, *q = a;
        vi acc[INT_ROWS][2];
        for (int r = 0; r < rows; r++)
            acc[r][0] = acc[r][1] = vi_set1(0);
        for (const int16_t *last = a + n; q < last;) {
            for (goal += share; fetched < goal && fetched < bytes; fetched += 64)
                __builtin_prefetch(ahead + fetched);
            for (int j = 0; j < STEP; j++, t += tile_stride, q += 2) {
                vp p = vp_load(t);
                for (int r = 0; r < rows; r++) {
                    int32_t two;
                    memcpy(&two, q + r * a_stride, sizeof two);
                    vp_dot(acc[r], p, two);
                    acc[r][0] = vi_in_order(acc[r][0]);
                    acc[r][1] = vi_in_order(acc[r][1]);
                }
            }
        }
        for (int r = 0; r < rows; r++) {
            float *to = y + r * d->y_stride + x;
            vp_order(acc[r]);
            for (int j = 0; j < 2; j++, to += VF_LANES) {
                vf from = add ? vf_load(to) : vf_zero();
                if (base)
                    from = vf_add(from, vf_set1(base[r]));
                vf_store(to, vf_fma(vf_from_vi(acc[r][j]), vf_set1(scale[r]), from));
            }
        }
    }
}

#define INT_TILE(r)                                                                                                    \
    case r:                                                                                                            \
        ISA(int_dot_rows)(r, y, a, tile, scale, base, d, ahead);                                                       \
        break;

/* In as few groups of rows as there can be, of sizes that differ by one at most. */
static void ISA(int_dot)(float *y, const int16_t *a, const int16_t *tile, const float *scale, const float *base,
                         const struct int_dot *d)
{
    const char *ahead = d->ahead;
    int groups = (d->rows + INT_ROWS - 1) / INT_ROWS;
    for (int left = d->rows; groups; groups--, ahead = NULL) {
        int rows = (left + groups - 1) / groups;
        switch (rows) {
            INT_TILE(1)
            INT_TILE(2)
            INT_TILE(3)
            INT_TILE(4)
#if INT_ROWS == 8
            INT_TILE(5)
            INT_TILE(6)
            INT_TILE(7)
            INT_TILE(8)
#endif
        default:
            break;
        }
        left -= rows;
        y += rows * d->y_stride;
        a += rows * d->a_stride;
        scale += rows;
        base = base ? base + rows : NULL;
    }
}

/* Runs of two rows to a tile. */
TILE_INLINE void ISA(store_runs)(int16_t *tile, const vw *a, const vw *b)
{
    for (int t = 0; t < KV_RUN / INT_LANES; t++)
        vp_store(tile + 2 * t * INT_LANES, a[t], b[t]);
}

/* Calls body(bits), each a constant to the compiler. */
#define FOR_BITS(body)                                                                                                 \
    switch (bits) {                                                                                                    \
    case 1:                                                                                                            \
        body(1) break;                                                                                                 \
    case 2:                                                                                                            \
        body(2) break;                                                                                                 \
    case 3:                                                                                                            \
        body(3) break;                                                                                                 \
    case 4:                                                                                                            \
        body(4) break;                                                                                                 \
    case 5:                                                                                                            \
        body(5) break;                                                                                                 \
    case 6:                                                                                                            \
        body(6) break;                                                                                                 \
    case 7:                                                                                                            \
        body(7) break;                                                                                                 \
    default:                                                                                                           \
        body(8) break;                                                                                                 \
    }

static void ISA(kv_words)(int16_t *tile, const uint8_t *in, int bits, int rows, int width)
{
    vw first[KV_RUN / INT_LANES], second[KV_RUN / INT_LANES];
#define WORDS(b)                                                                                                       \
    for (int r = 0; r < rows; r += 2, in += width / 8 * (b))                                                           \
        for (int i = 0; i < width; i += KV_RUN, in += 8 * (b), tile += 2 * KV_RUN) {                                   \
            run_codes(first, in, b);                                                                                   \
            run_codes(second, in + width / 8 * (b), b);                                                                \
            ISA(store_runs)(tile, first, second);                                                                      \
        }
    FOR_BITS(WORDS)
#undef WORDS
}

TILE_INLINE void ISA(run_channel)(int bits, int16_t *y, const uint8_t *in, int shift, vw factor, vw offset)
{
    vw codes[KV_RUN / INT_LANES];
    run_codes(codes, in, bits);
    for (int t = 0; t < KV_RUN / INT_LANES; t++)
        vw_store(y + t * INT_LANES, vw_add(vw_mul(vw_shl(codes[t], shift), factor), offset));
}

static const uint8_t *ISA(kv_channel_words)(int16_t *y, const uint8_t *in, int bits, uint64_t channels,
                                            const uint16_t *at, int shift, const int16_t *factor, const int16_t *offset)
{
#define CHANNEL(b)                                                                                                     \
    for (; channels; channels &= channels - 1, in += 8 * (b)) {                                                        \
        int c = __builtin_ctzll(channels);                                                                             \
        ISA(run_channel)(b, y + at[c] * KV_RUN, in, shift, vw_set1(factor[c]), vw_set1(offset[c]));                    \
    }
    FOR_BITS(CHANNEL)
#undef CHANNEL
    return in;
}

static float ISA(kv_channel_units)(int16_t *factor, int16_t *offset, const float *scale, const float *low, int n,
                                   int width)
{
    vf most = vf_zero(), top = vf_set1((float)((1 << width) - 1));
    for (int i = 0; i < n; i += VF_LANES)
        most = vf_max(vf_fma(vf_abs(vf_load(scale + i)), top, vf_abs(vf_load(low + i))), most);
    float greatest = vf_reduce_max(most), unit = greatest / KEY_MOST;
    if (!(greatest >= INT_SMALLEST)) {
        memset(factor, 0, (size_t)n * sizeof *factor);
        memset(offset, 0, (size_t)n * sizeof *offset);
        return 0;
    }
    vf f = vf_set1(ldexpf(1 / unit, width + 1)), o = vf_set1(1 / unit);
    for (int i = 0; i < n; i += INT_LANES) {
        vw_store(factor + i, vw_round(vf_mul(vf_load(scale + i), f), vf_mul(vf_load(scale + i + VF_LANES), f)));
        vw_store(offset + i, vw_round(vf_mul(vf_load(low + i), o), vf_mul(vf_load(low + i + VF_LANES), o)));
    }
    return unit;
}

static void ISA(kv_level_words)(int16_t *tile, const uint8_t *in, int bits, int rows, int width, const int16_t *levels)
{
    vt table = vw_table(levels);
    vw first[KV_RUN / INT_LANES], second[KV_RUN / INT_LANES];
#define LEVELS(b)                                                                                                      \
    for (int r = 0; r < rows; r += 2, in += width / 8 * (b))                                                           \
        for (int i = 0; i < width; i += KV_RUN, in += 8 * (b), tile += 2 * KV_RUN) {                                   \
            run_levels(first, in, b, table);                                                                           \
            run_levels(second, in + width / 8 * (b), b, table);                                                        \
            ISA(store_runs)(tile, first, second);                                                                      \
        }
    switch (bits) {
    case 1:
        LEVELS(1) break;
    case 2:
        LEVELS(2) break;
    case 3:
        LEVELS(3) break;
    default:
        LEVELS(4) break;
    }
#undef LEVELS
}

/* Two rows of KV_RUN words. */
TILE_INLINE void ISA(load_two)(vw *a, vw *b, const int16_t *rows)
{
    for (int t = 0; t < KV_RUN / INT_LANES; t++) {
        a[t] = vw_load(rows + t * INT_LANES);
        b[t] = vw_load(rows + KV_RUN + t * INT_LANES);
    }
}

static void ISA(kv_pair_words)(int16_t *rows, int pairs)
{
    vw a[KV_RUN / INT_LANES], b[KV_RUN / INT_LANES];
    for (; pairs; pairs--, rows += 2 * KV_RUN) {
        ISA(load_two)(a, b, rows);
        ISA(store_runs)(rows, a, b);
    }
}

static void ISA(kv_turn_words)(int16_t *rows, int pairs, const int16_t *cos, const int16_t *sin)
{
    vw a[KV_RUN / INT_LANES], b[KV_RUN / INT_LANES];
    for (; pairs; pairs--, rows += 2 * KV_RUN, cos += KV_RUN, sin += KV_RUN) {
        ISA(load_two)(a, b, rows);
        for (int t = 0; t < KV_RUN / INT_LANES; t++) {
            vw c = vw_load(cos + t * INT_LANES), s = vw_load(sin + t * INT_LANES);
            vp_store(rows + 2 * t * INT_LANES, vw_sub(vw_mul(a[t], c), vw_mul(b[t], s)),
                     vw_add(vw_mul(a[t], s), vw_mul(b[t], c)));
        }
    }
}

TILE_INLINE void ISA(turn_row)(int16_t *y, const int16_t *x, const int16_t *cos, const int16_t *sin, int half)
{
    int i = 0;
    for (; i + INT_LANES <= half; i += INT_LANES) {
        vw a = vw_load(x + i), b = vw_load(x + half + i), c = vw_load(cos + i), s = vw_load(sin + i);
        vw_store_zip(y + 2 * i, vw_add(vw_mul(a, c), vw_mul(b, s)), vw_sub(vw_mul(b, c), vw_mul(a, s)));
    }
    for (; i < half; i++) {
        int a = x[i], b = x[half + i];
        y[2 * i] = (int16_t)(high_word(a, cos[i]) + high_word(b, sin[i]));
        y[2 * i + 1] = (int16_t)(high_word(b, cos[i]) - high_word(a, sin[i]));
    }
}

static void ISA(int_turn_back)(int16_t *y, const int16_t *x, int rows, int width, const int16_t *cos,
                               const int16_t *sin, int half)
{
    for (; rows; rows--, x += width, y += width) {
        ISA(turn_row)(y, x, cos, sin, half);
        for (int i = 2 * half; i < width; i++)
            y[i] = x[i];
    }
}

static void ISA(kv_scores_add)(float *s, const float *x, const float *factor, const float *offset, float c)
{
    vf sum = vf_set1(c);
    for (int t = 0; t < KV_RUN; t += VF_LANES)
        vf_store(s + t, vf_fma(vf_load(x + t), vf_load(factor + t), vf_fma(sum, vf_load(offset + t), vf_load(s + t))));
}

static void ISA(int_init)(struct vector_kernels *k)
{
    k->int_pack = ISA(int_pack);
    k->int_dot = ISA(int_dot);
    k->kv_words = ISA(kv_words);
    k->kv_channel_words = ISA(kv_channel_words);
    k->kv_channel_units = ISA(kv_channel_units);
    k->kv_level_words = ISA(kv_level_words);
    k->kv_pair_words = ISA(kv_pair_words);
    k->kv_turn_words = ISA(kv_turn_words);
    k->int_turn_back = ISA(int_turn_back);
    k->kv_scores_add = ISA(kv_scores_add);
}
