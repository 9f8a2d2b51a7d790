/* Kernels of one thread for everything that is not a matrix product: norms,
 * activations, rotary positions, element conversions, the steps of attention,
 * and what sampling asks of a row of logits.
 *
 * Elementwise kernels give an element the same bits wherever it lies in the
 * row and however long the row is, so a caller may cut rows as it likes. They
 * allow y to be one of the inputs. No kernel reads or writes past the lengths
 * given. No pointer needs more than its element's alignment.
 *
 * Sums run in 32 lanes (element i belongs to lane i % 32), which are then
 * halved: lane j += lane j + 16, + 8, … + 1. All instruction sets do this, so
 * they agree to the bit except where exp, tanh or erf come in. */
#ifndef CPU_VECTOR_KERNELS_H
#define CPU_VECTOR_KERNELS_H

#include <stdint.h>

#include "backend/backend.h"

enum { ACT_COUNT = ACT_RELU2 + 1 };

/* What one query row has seen so far of a run of blocks: the largest logit m,
 * the sum l of exp(logit - m). Nothing yet: m = -infinity, l = 0. */
struct attn_state {
    float m, l;
};
enum { SOFTMAX_ROWS = 8 };

/* Attention over encoded blocks in integers. Greatest magnitude of a key's element that is made of a
 * scale and an offset per channel, before it is turned; least of what is not taken for 0. */
enum { KEY_MOST = 4095 };
#define INT_SMALLEST 1e-30f

/* a * b / 2^15, rounded half up */
static inline int high_word(int a, int b)
{
    return (a * b + (1 << 14)) >> 15;
}

struct int_dot {
    int rows, n, width;                      /* n a multiple of 8, width of 32 */
    int64_t a_stride, tile_stride, y_stride; /* tile_stride: columns of the whole tile */
    bool add;                                /* to y; else y is overwritten */
    const char *ahead;                       /* bytes to bring into the cache meanwhile, or NULL */
    size_t ahead_bytes;
};

struct vector_kernels {
    /* y = x / sqrt(mean(x^2) + eps) * (w + add); w NULL: no weight. */
    void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps, float add);
    void (*add)(float *y, const float *x1, const float *x2, int64_t n);
    void (*scale)(float *y, const float *x, float factor, int64_t n);
    /* y = act(gate) * up, by enum act */
    void (*act_mul[ACT_COUNT])(float *y, const float *gate, const float *up, int64_t n);
    /* y = cap * tanh(x / cap) */
    void (*softcap)(float *y, const float *x, float cap, int64_t n);
    /* One head: the first `dims` elements rotated by dims/2 angles.
     * [0] pairs (i, i + dims/2), [1] pairs (2i, 2i + 1). */
    void (*rope[2])(float *y, const float *x, const float *cos, const float *sin, int64_t dims);

    /* y [n] = x as it meets the codes of a weight (quant.h): in order, whole
     * blocks rotated. y is not x when there is an order. Rounds as
     * quant_input_apply does. */
    void (*input)(float *y, const float *x, const struct quant_input *in, int64_t n);

    /* To a cache element type and back, by enum kv_type. */
    void (*store[KV_TYPE_COUNT])(void *y, const float *x, int64_t n);
    void (*load[KV_TYPE_COUNT])(float *y, const void *x, int64_t n);

    /* s[r][t] = sum over d of q[r][d] * k[d][t], for r < nq and all KV_BLOCK t;
     * fused multiply-adds in the order of d. s [nq, KV_BLOCK], q [nq, head_dim],
     * k [head_dim, KV_BLOCK]. Unwritten tokens of k may hold anything. As much
     * memory as k has is fetched into the cache from `ahead`, unless that is NULL. */
    void (*attn_qk[KV_TYPE_COUNT])(float *s, const float *q, const void *k, int nq, int head_dim, const void *ahead);
    /* acc[r][j] += sum over t in [lo, hi) of p[r][t] * v[t][j]; fused, in the
     * order of t. acc [nq, v_dim], p [nq, KV_BLOCK], v [KV_BLOCK, v_dim]. Tokens
     * outside [lo, hi) are not read. `ahead` as above. */
    void (*attn_pv[KV_TYPE_COUNT])(float *acc, const float *p, const void *v, int nq, int lo, int hi, int v_dim,
                                   const void *ahead);
    /* One block of up to SOFTMAX_ROWS rows: s [rows, KV_BLOCK] are dot products
     * and become probabilities exp(logit - m), zero outside [lo, hi). The logit
     * is s * scale, then cap * tanh(logit / cap) unless cap is 0. Brings the
     * states [rows] up to date; factor [rows] becomes what the sums so far are
     * to be multiplied with. lo >= hi: no state changes and factors are 1. */
    void (*attn_softmax)(float *s, float *factor, int rows, int lo, int hi, float scale, float cap,
                         struct attn_state *st);
    /* Adds a partial result (part_st, part [n]) to (st, acc [n]); a partial
     * that saw nothing changes nothing. */
    void (*attn_merge)(struct attn_state *st, float *acc, const struct attn_state *part_st, const float *part,
                       int64_t n);
    /* y = acc / l, after adding the logit of a sink (NULL: none) to l. */
    void (*attn_finish)(float *y, const float *acc, const struct attn_state *st, const float *sink, int64_t n);

    /* Rows of codes of a cache block (kvformat/kv_planes.h) to floats: n codes,
     * a multiple of 8, of 1 to 8 bits. */
    void (*kv_affine)(float *y, const uint8_t *in, int bits, int n, float scale, float offset);
    /* Rows of KV_RUN codes: row i goes to y + at[i] * KV_RUN, by scale[at[i]] and offset[at[i]]. */
    void (*kv_affine_runs)(float *y, const uint8_t *in, int bits, const uint16_t *at, int runs, const float *scale,
                           const float *offset);
    /* With a scale and an offset for each column. */
    void (*kv_affine_columns)(float *y, const uint8_t *in, int bits, int n, const float *scale, const float *offset);
    /* y = levels[code], at most 5 bits; levels [KV_LEVELS_MAX], all readable. */
    void (*kv_levels)(float *y, const uint8_t *in, int bits, int n, const float *levels);
    /* y = e4m3(in) * scale; no NaN among them. */
    void (*kv_e4m3)(float *y, const uint8_t *in, int n, float scale);
    /* Rows a and b [KV_BLOCK] turned by an angle for each column. */
    void (*kv_turn)(float *a, float *b, const float *cos, const float *sin);
    /* s [KV_BLOCK] = s * factor[t] + add */
    void (*kv_scores)(float *s, const float *factor, float add);

    /* Floats as integers: out[i] = x[i] * factor[i] / unit to the nearest, with the unit that gives the
     * greatest magnitude `limit`, which is returned: 0 when all are nearly 0, NaN when one is no finite number (out
     * is 0 then). factor NULL: 1. With weight, *sum = sum of x[i] * weight[i]. n is a multiple of 32. */
    float (*int_pack)(int16_t *out, float *sum, const float *x, const float *factor, const float *weight, int64_t n,
                      int limit);
    /* Tiles of words: two rows at a time, side by side, in an order of each family's own. What starts at an even row i
     * lies i * columns words from the start of the tile, what starts at a column x (a multiple of 32) 2 * x further. */

    /* y[r][x] = (add: y[r][x]) + base[r] + scale[r] * sum over i < n of a[r][i] * tile[i][x], the sum in int32,
     * which the caller keeps from overflowing. base NULL: 0. */
    void (*int_dot)(float *y, const int16_t *a, const int16_t *tile, const float *scale, const float *base,
                    const struct int_dot *d);
    /* A tile of codes as they are; rows even, width a multiple of KV_RUN. */
    void (*kv_words)(int16_t *tile, const uint8_t *in, int bits, int rows, int width);
    /* Of levels[code], at most 4 bits; levels [16]. */
    void (*kv_level_words)(int16_t *tile, const uint8_t *in, int bits, int rows, int width, const int16_t *levels);
    /* Rows [2 * pairs][KV_RUN], one after the other, become a tile. */
    void (*kv_pair_words)(int16_t *rows, int pairs);
    /* They do so turned, two at a time, by angles whose cosines and sines [pairs][KV_RUN] are in 2^-15; products are
     * rounded half up. */
    void (*kv_turn_words)(int16_t *rows, int pairs, const int16_t *cos, const int16_t *sin);
    /* Rows of words turned back: y[2 * i], y[2 * i + 1] from x[i], x[half + i] by the angle i, the rest as it is. */
    void (*int_turn_back)(int16_t *y, const int16_t *x, int rows, int width, const int16_t *cos, const int16_t *sin,
                          int half);
    /* Factors and offsets of n channels (a multiple of 32), of which no code takes more than `width` bits, for
     * kv_channel_words with a shift of 14 - width. Returns the unit of what that gives, at most KEY_MOST. */
    float (*kv_channel_units)(int16_t *factor, int16_t *offset, const float *scale, const float *low, int n, int width);
    /* Rows of KV_RUN codes, one for each channel c of 64 whose bit is set: they go to y + at[c] * KV_RUN as
     * (code << shift) * factor[c] / 2^15 + offset[c], the product rounded half up. Returns the end of the codes. */
    const uint8_t *(*kv_channel_words)(int16_t *y, const uint8_t *in, int bits, uint64_t channels, const uint16_t *at,
                                       int shift, const int16_t *factor, const int16_t *offset);
    /* s [KV_BLOCK] = s + c * offset[t] + x[t] * factor[t] */
    void (*kv_scores_add)(float *s, const float *x, const float *factor, const float *offset, float c);

    /* Rows of logits, n >= 1. NaN entries are passed over. */
    int64_t (*argmax)(const float *x, int64_t n); /* the first of the greatest; -1: all are NaN */
    float (*max)(const float *x, int64_t n);      /* -infinity when all are NaN */
    /* log(sum(exp(x))); a NaN entry makes it NaN */
    float (*log_sum_exp)(const float *x, int64_t n);
    /* sum(exp(x - lse) * (x - y)): the first part of a Kullback-Leibler divergence */
    double (*relative)(const float *x, const float *y, int64_t n, float lse);
};

void vector_init_scalar(struct vector_kernels *k);
void vector_init_avx2(struct vector_kernels *k);
void vector_init_avx512(struct vector_kernels *k);
void vector_init_neon(struct vector_kernels *k);

/* The best kernels of the given bits (base/cpu.h). */
void vector_init(struct vector_kernels *k, unsigned cpu_features);

/* Each family's attention part is a file of its own. */
void attention_init_scalar(struct vector_kernels *k);
void attention_int_init_scalar(struct vector_kernels *k);
void attention_init_avx2(struct vector_kernels *k);
void attention_init_avx512(struct vector_kernels *k);
void attention_init_neon(struct vector_kernels *k);

#endif
