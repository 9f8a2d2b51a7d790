/* The matmul kernels over simd.h and simd_int.h, built once per instruction
 * set. The including file defines MATMUL_ISA (the suffix of every name),
 * MATMUL_TILE_FLOAT and MATMUL_TILE_MANY, or MATMUL_INTEGER_ONLY for a set
 * that adds only integer instructions.
 *
 * A panel's rows are lanes, PARTS vectors of them. For one row and token the
 * operations and their order are the same in the body for one token and in the
 * body for many. */
#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/simd_int.h"

enum { PARTS = PANEL_ROWS / VF_LANES, QUADS = PANEL_BLOCK / 4, VECTOR = 4 * PANEL_ROWS };

#define NAME_2(a, b) a##_##b
#define NAME_1(a, b) NAME_2(a, b)
#define NAME(a) NAME_1(a, MATMUL_ISA)

/* Weights are read once, faster than the processor's own prefetching foresees: it stops at the ends of pages and begins
 * each anew. So a kernel that is bound by them asks for what it will read this many bytes later; behind the last panel
 * that is memory of others or none, which does no harm. Where there is little to compute for a byte, panels are read
 * side by side instead, which the processor foresees better than one stream. */
enum {
    FETCH_AHEAD = 2048,
    FETCH_AHEAD_SIDE = 512,    /* in each of SIDE panels, by one token */
    FETCH_AHEAD_PANELS = 1024, /* in each of several, by many */
    SIDE = MATMUL_PANELS_SIDE
};

ALWAYS_INLINE void fetch(const uint8_t *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i);
}

/* What to ask for at byte `at` of n panels of this length: behind their end come the next n. */
ALWAYS_INLINE int64_t fetch_at(int64_t at, int64_t length, int n)
{
    const int64_t ahead = n > 1 ? FETCH_AHEAD_SIDE : FETCH_AHEAD;
    return at + ahead + (at + ahead < length ? 0 : (n - 1) * length);
}

/* n bits of every byte from bit `from` on, to bit `to`. */
ALWAYS_INLINE vq move_bits(vq v, int n, int from, int to)
{
    v = from < to ? vq_shl(v, to - from) : from > to ? vq_shr(v, from - to) : v;
    return vq_and(v, vq_set1(((1 << n) - 1) << to));
}

/* Quads 2 * pair and the next of one block, one part; p points at the part. */
ALWAYS_INLINE void unpack_pair(enum panel_code code, const uint8_t *p, vq table, int pair, vq c[2])
{
    const int bits = code == PANEL_U2 || code == PANEL_U3 ? 2 : code == PANEL_S8 || code == PANEL_E8 ? 8 : 4;
    const int per = 8 / bits; /* quads of the low plane's vector */
#pragma GCC unroll 2
    for (int i = 0, q = 2 * pair; i < 2; i++, q++) {
        c[i] = vq_load(p + q / per * VECTOR);
        if (bits < 8)
            c[i] = move_bits(c[i], bits, q % per * bits, 0);
        if (code == PANEL_U3)
            c[i] = vq_or(c[i], move_bits(vq_load(p + 2 * VECTOR), 1, q, 2));
        if (code == PANEL_U5)
            c[i] = vq_or(c[i], move_bits(vq_load(p + 4 * VECTOR), 1, q, 4));
        if (code == PANEL_U6)
            c[i] = vq_or(c[i], move_bits(vq_load(p + (4 + q / 4) * VECTOR), 2, q % 4 * 2, 4));
        if (code == PANEL_T4 || code == PANEL_T4S)
            c[i] = vq_lookup(table, c[i]);
    }
}

ALWAYS_INLINE void unpack(enum panel_code code, const uint8_t *p, vq table, vq c[QUADS])
{
#pragma GCC unroll 4
    for (int pair = 0; pair < QUADS / 2; pair++)
        unpack_pair(code, p, table, pair, c + 2 * pair);
}

/* Scales and offsets of one block, one part: one of each, or two for groups of
 * 16; zeros where there are none. */
struct factors {
    vf scale[2], offset[2];
};

ALWAYS_INLINE vf load_scale(const uint8_t *p, enum dtype t, int lane)
{
    if (t == DT_F16)
        return vf_load_f16((const void *)(p + 2 * lane));
    if (t == DT_BF16)
        return vf_load_bf16((const void *)(p + 2 * lane));
    return vf_load((const void *)(p + 4 * lane));
}

/* unit: the unit's header; b: block in the unit. */
ALWAYS_INLINE struct factors load_factors(const struct panel_layout *l, const uint8_t *unit, int b, int part,
                                          enum panel_scale scale, int group)
{
    struct factors f = {{vf_zero(), vf_zero()}, {vf_zero(), vf_zero()}};
    const int n = group == 16 ? 2 : 1, lane = part * VF_LANES;
    if (scale == PANEL_PLAIN || scale == PANEL_OFFSET) {
        for (int i = 0; i < n; i++) {
            f.scale[i] = load_scale(unit, l->scale_type, i * PANEL_ROWS + lane);
            if (scale == PANEL_OFFSET)
                f.offset[i] = load_scale(unit, l->scale_type, (n + i) * PANEL_ROWS + lane);
        }
        return f;
    }
    vf d = vf_load_f16((const void *)(unit + 2 * lane));
    if (scale == PANEL_LEVELS_ONLY) {
        for (int i = 0; i < n; i++)
            f.scale[i] = vf_mul(d, vf_from_vi(vi_load_i8(unit + 32 + (n * b + i) * PANEL_ROWS + lane)));
        return f;
    }
    vf min = vf_load_f16((const void *)(unit + 32 + 2 * lane));
    for (int i = 0; i < n; i++) {
        const uint8_t *p = unit + 64 + (n * b + i) * PANEL_ROWS + lane;
        vi sc = vi_load_u8(p), mn;
        if (group == 16) {
            mn = vi_shr(sc, 4);
            sc = vi_and(sc, vi_set1(15));
        } else {
            mn = vi_load_u8(p + PANEL_LEVELS / 32 * PANEL_ROWS);
        }
        f.scale[i] = vf_mul(d, vf_from_vi(sc));
        f.offset[i] = vf_mul(min, vf_from_vi(mn));
    }
    return f;
}

ALWAYS_INLINE bool has_offset(enum panel_scale scale)
{
    return scale == PANEL_OFFSET || scale == PANEL_LEVELS_MIN;
}

/* ---- integer ---- */

ALWAYS_INLINE enum dot dot_kind(enum panel_code code)
{
    switch (code) {
    case PANEL_U2:
    case PANEL_U3:
    case PANEL_U4:
        return DOT_4;
    case PANEL_U5:
    case PANEL_T4S:
        return DOT_5;
    case PANEL_U6:
        return DOT_6;
    default:
        return DOT_SIGNED;
    }
}

enum { T4S_SHIFT = 16 }; /* makes the entries of small tables unsigned */

/* Whether the sum of the activations enters a dot product, times the bias. */
ALWAYS_INLINE bool needs_bias(enum panel_code code, enum panel_scale scale)
{
    if (code == PANEL_T4S || (dot_kind(code) == DOT_SIGNED && VQ_SIGNED_BIAS != 0))
        return true;
    if (code == PANEL_S8)
        return scale == PANEL_OFFSET; /* unsigned bytes */
    return code <= PANEL_U6 && (scale == PANEL_PLAIN || scale == PANEL_LEVELS_ONLY);
}

/* What the dot product of group g begins with. */
ALWAYS_INLINE int32_t int_start(const struct act_q16 *x, int g, int bias, enum panel_code code, enum panel_scale scale,
                                int group)
{
    return needs_bias(code, scale) ? bias * (group == 16 ? x->isum16[g] : x->isum32) : 0;
}

/* The dot product of group g enters y. */
ALWAYS_INLINE vf int_add(vf y, vi dot, const struct act_q16 *x, const struct factors *f, int g, enum panel_scale scale,
                         int group)
{
    y = vf_fma(vf_mul(vf_set1(x->scale), f->scale[g]), vf_from_vi(dot), y);
    if (has_offset(scale))
        y = vf_fma(f->offset[g], vf_set1(group == 16 ? x->sum16[g] : x->sum32), y);
    return y;
}

ALWAYS_INLINE void int_codes(enum panel_code code, const uint8_t *p, vq table, int pair, vq c[2])
{
    unpack_pair(code, p, table, pair, c);
    if (dot_kind(code) == DOT_SIGNED)
        for (int i = 0; i < 2; i++)
            c[i] = vq_signed(c[i]);
}

/* Many panels by many tokens of one block: y[i], of panel i, is [tokens, 16]. */
#ifdef SIMD_WORDS

/* An instruction on bytes gives sums of 16 bits that have to be added up, in both planes. One on words takes half as
 * many, but both planes at once, and adds in 32 bits. So where there are tokens to share the work, codes become words,
 * and activations words in all rows. */
enum { PAIRS = PANEL_BLOCK / 2, WORD_TOKENS = 8 / PARTS /* whose sums stay in registers */ };

/* One pair of inputs of a token by one panel. */
ALWAYS_INLINE void word_step(vi d[PARTS], const vq w[PARTS], const int16_t *words)
{
    int32_t two;
    memcpy(&two, words, sizeof two);
    for (int p = 0; p < PARTS; p++)
        d[p] = vi_in_order(vq_word_dot(d[p], w[p], vq_set_quad(two)));
}

/* A block of one panel by n tokens, a constant. The first two steps are outside of the loop, since sums that begin with
 * the same number would be copied around in it. */
ALWAYS_INLINE void word_tile(const vq w[PAIRS][PARTS], const int16_t (*words)[PANEL_BLOCK], const int32_t (*start)[2],
                             const struct act_q16 *x, int n, const struct factors *f, float *y, enum panel_scale scale,
                             int group)
{
    const int groups = group == 16 ? 2 : 1, pairs = PAIRS / groups;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++, w += pairs) {
        vi d[WORD_TOKENS][PARTS];
        for (int t = 0; t < n; t++) {
            for (int p = 0; p < PARTS; p++)
                d[t][p] = vi_set1(start[t][g]);
            word_step(d[t], w[0], words[t] + 2 * g * pairs);
        }
        for (int t = 0; t < n; t++)
            word_step(d[t], w[1], words[t] + 2 * (g * pairs + 1));
#pragma GCC unroll 1
        for (int k = 2; k < pairs; k += 2)
            for (int i = 0; i < 2; i++)
                for (int t = 0; t < n; t++)
                    word_step(d[t], w[k + i], words[t] + 2 * (g * pairs + k + i));
        for (int t = 0; t < n; t++)
            for (int p = 0; p < PARTS; p++) {
                float *out = y + t * PANEL_ROWS + p * VF_LANES;
                vf_store(out, int_add(vf_load(out), d[t][p], x + t, f + p, g, scale, group));
            }
    }
}

/* By all tokens. Functions of their own, since codes make no difference here. */
#define DEFINE(SCALE, scale, group)                                                                                    \
    static __attribute__((noinline)) void word_tiles_##scale##_##group(                                                \
        const vq w[PAIRS][PARTS], const int16_t(*words)[PANEL_BLOCK], const int32_t(*start)[2],                        \
        const struct act_q16 *x, int tokens, const struct factors *f, float *y)                                        \
    {                                                                                                                  \
        int t = 0;                                                                                                     \
        for (; t + WORD_TOKENS <= tokens; t += WORD_TOKENS)                                                            \
            word_tile(w, words + t, start + t, x + t, WORD_TOKENS, f, y + t * PANEL_ROWS, PANEL_##SCALE, group);       \
        for (; t < tokens; t++)                                                                                        \
            word_tile(w, words + t, start + t, x + t, 1, f, y + t * PANEL_ROWS, PANEL_##SCALE, group);                 \
    }
DEFINE(PLAIN, plain, 16)
DEFINE(PLAIN, plain, 32)
DEFINE(OFFSET, offset, 16)
DEFINE(OFFSET, offset, 32)
#undef DEFINE

ALWAYS_INLINE void int_block(const struct panel_layout *l, const uint8_t *unit, int b, int panels,
                             const struct act_q16 *x, int tokens, float *y, vq table, int bias, enum panel_code code,
                             enum panel_scale scale, int group)
{
    int16_t words[MATMUL_TILE_INT][PANEL_BLOCK];
    int32_t start[MATMUL_TILE_INT][2];
    for (int t = 0; t < tokens; t++) {
        act_words(words[t], x[t].hi, x[t].lo);
        for (int g = 0; g < (group == 16 ? 2 : 1); g++)
            start[t][g] = int_start(x + t, g, bias, code, scale, group);
    }
    for (int i = 0; i < panels; i++, unit += l->panel_bytes, y += tokens * PANEL_ROWS) {
        const uint8_t *codes = unit + l->header_bytes + b * l->block_bytes;
        vq w[PAIRS][PARTS];
        struct factors f[PARTS];
        fetch(codes + FETCH_AHEAD_PANELS, l->block_bytes);
        for (int p = 0; p < PARTS; p++) {
            vq c[QUADS];
#pragma GCC unroll 4
            for (int pair = 0; pair < QUADS / 2; pair++)
                int_codes(code, codes + p * VQ_BYTES, table, pair, c + 2 * pair);
            for (int k = 0; k < PAIRS; k++)
                w[k][p] = vq_words(c[k / 2], dot_kind(code) == DOT_SIGNED, k & 1);
            f[p] = load_factors(l, unit, b, p, scale, group);
        }
        if (has_offset(scale))
            (group == 16 ? word_tiles_offset_16 : word_tiles_offset_32)(w, words, start, x, tokens, f, y);
        else
            (group == 16 ? word_tiles_plain_16 : word_tiles_plain_32)(w, words, start, x, tokens, f, y);
    }
}

#else

/* One block, one part, one token. */
ALWAYS_INLINE vf int_step(vf y, vq c[QUADS / 2][2], const struct act_q16 *x, const struct factors *f, int bias,
                          enum panel_code code, enum panel_scale scale, int group)
{
    const int groups = group == 16 ? 2 : 1, pairs = QUADS / 2 / groups;
    for (int g = 0; g < groups; g++) {
        struct vq_sums sums = vq_sums();
        for (int k = 0; k < pairs; k++)
            vq_sums_add(&sums, c[g * pairs + k], x->hi + 8 * (g * pairs + k), x->lo + 8 * (g * pairs + k), k,
                        dot_kind(code));
        vi start = vi_set1(int_start(x, g, bias, code, scale, group));
        y = int_add(y, vq_sums_total(&sums, start, dot_kind(code)), x, f, g, scale, group);
    }
    return y;
}

ALWAYS_INLINE void int_block(const struct panel_layout *l, const uint8_t *unit, int b, int panels,
                             const struct act_q16 *x, int tokens, float *y, vq table, int bias, enum panel_code code,
                             enum panel_scale scale, int group)
{
    for (int i = 0; i < panels; i++, unit += l->panel_bytes, y += tokens * PANEL_ROWS)
        for (int part = 0; part < PARTS; part++) {
            const uint8_t *codes = unit + l->header_bytes + b * l->block_bytes + part * VQ_BYTES;
            vq c[QUADS / 2][2];
            if (part == 0)
                fetch(codes + FETCH_AHEAD_PANELS, l->block_bytes);
#pragma GCC unroll 4
            for (int pair = 0; pair < QUADS / 2; pair++)
                int_codes(code, codes, table, pair, c[pair]);
            struct factors f = load_factors(l, unit, b, part, scale, group);
            for (int t = 0; t < tokens; t++) {
                float *out = y + t * PANEL_ROWS + part * VF_LANES;
                vf_store(out, int_step(vf_load(out), c, x + t, &f, bias, code, scale, group));
            }
        }
}

#endif

/* One block of a panel by one token. Both parts take turns, so that activations are loaded once and codes are used up
 * as they are unpacked: there are not registers for more. */
ALWAYS_INLINE void int_block_1(const struct panel_layout *l, const uint8_t *unit, const uint8_t *codes, int b,
                               const struct act_q16 *x, vf y[PARTS], vq table, int bias, enum panel_code code,
                               enum panel_scale scale, int group)
{
    const int groups = group == 16 ? 2 : 1, pairs = QUADS / 2 / groups;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        struct vq_sums sums[PARTS];
        for (int p = 0; p < PARTS; p++)
            sums[p] = vq_sums();
#pragma GCC unroll 4
        for (int k = 0; k < pairs; k++) {
            const int pair = g * pairs + k;
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++) {
                vq c[2];
                int_codes(code, codes + p * VQ_BYTES, table, pair, c);
                vq_sums_add(&sums[p], c, x->hi + 8 * pair, x->lo + 8 * pair, k, dot_kind(code));
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) {
            const struct factors f = load_factors(l, unit, b, p, scale, group);
            const vi start = vi_set1(int_start(x, g, bias, code, scale, group));
            y[p] = int_add(y[p], vq_sums_total(&sums[p], start, dot_kind(code)), x, &f, g, scale, group);
        }
    }
}

/* n panels, a constant, side by side, by one token of x. */
ALWAYS_INLINE void panel_int_1(const struct panel_layout *l, const uint8_t *p, int n, const struct act_q16 *x,
                               int tokens, float *y, vq table, int bias, enum panel_code code, enum panel_scale scale,
                               int group)
{
    const int64_t units = l->units, header = l->header_bytes, block = l->block_bytes;
    const int64_t length = (int64_t)l->panel_bytes;
    const int blocks = l->unit / PANEL_BLOCK;
    vf acc[SIDE][PARTS];
    for (int s = 0; s < n; s++)
        for (int i = 0; i < PARTS; i++)
            acc[s][i] = vf_zero();
    for (int64_t u = 0, at = 0; u < units; u++) {
        const uint8_t *unit = p + at;
        at += header;
        for (int b = 0; b < blocks; b++, at += block, x += tokens) {
            const int64_t ahead = fetch_at(at, length, n);
#pragma GCC unroll 1
            for (int s = 0; s < n; s++) {
                fetch(p + ahead + s * length, block);
                int_block_1(l, unit + s * length, p + at + s * length, b, x, acc[s], table, bias, code, scale, group);
            }
        }
    }
    for (int s = 0; s < n; s++)
        for (int i = 0; i < PARTS; i++)
            vf_store(y + s * tokens * PANEL_ROWS + i * VF_LANES, acc[s][i]);
}

/* Tokens that take a panel one after another, since making words of its codes does not pay for so few. */
ALWAYS_INLINE int few_tokens(enum panel_code code)
{
#ifdef SIMD_WORDS
    return dot_kind(code) == DOT_4 ? 3 : 1;
#else
    (void)code;
    return 1;
#endif
}

ALWAYS_INLINE void panel_int(const struct panel_layout *l, const uint8_t *p, int panels, const struct act_q16 *x,
                             int tokens, float *y, enum panel_code code, enum panel_scale scale, int group)
{
    const int blocks = l->unit / PANEL_BLOCK;
    int bias = l->bias - (dot_kind(code) == DOT_SIGNED ? VQ_SIGNED_BIAS : 0);
    vq table = vq_table(l->table);
    if (code == PANEL_T4S) {
        table = vq_add(table, vq_set1(T4S_SHIFT));
        bias -= T4S_SHIFT;
    }
    if (tokens <= few_tokens(code)) {
        const size_t bytes = l->panel_bytes;
        const int side = panel_bits(code) == 8 && tokens == 1 ? panels / SIDE * SIDE : 0, row = tokens * PANEL_ROWS;
        for (int i = 0; i < side; i += SIDE)
            panel_int_1(l, p + i * bytes, SIDE, x, 1, y + i * row, table, bias, code, scale, group);
        for (int i = side; i < panels; i++)
            for (int t = 0; t < tokens; t++)
                panel_int_1(l, p + i * bytes, 1, x + t, tokens, y + i * row + t * PANEL_ROWS, table, bias, code, scale,
                            group);
        return;
    }
    for (int i = 0; i < panels * tokens * PARTS; i++)
        vf_store(y + i * VF_LANES, vf_zero());
    for (int64_t u = 0; u < l->units; u++, p += l->unit_bytes)
        for (int b = 0; b < blocks; b++, x += tokens)
            int_block(l, p, b, panels, x, tokens, y, table, bias, code, scale, group);
}

#define DEFINE(CODE, code, SCALE, scale, group)                                                                        \
    static void NAME(panel_int_##code##_##scale##_##group)(const struct panel_layout *l, const uint8_t *p, int panels, \
                                                           const struct act_q16 *x, int tokens, float *y)              \
    {                                                                                                                  \
        panel_int(l, p, panels, x, tokens, y, PANEL_##CODE, PANEL_##SCALE, group);                                     \
    }
PANEL_INTEGER_VARIANTS(DEFINE)
#undef DEFINE

static void NAME(init_int)(struct matmul_kernels *k)
{
#define SET(CODE, code, SCALE, scale, group)                                                                           \
    k->panel_int[PANEL_##CODE][PANEL_##SCALE][group / 32] = NAME(panel_int_##code##_##scale##_##group);
    PANEL_INTEGER_VARIANTS(SET)
#undef SET
}

#ifndef MATMUL_INTEGER_ONLY

/* ---- float ---- */

/* Codes with an offset are counted from the middle of their range, and the
 * offset likewise: the two sums, of code times input and of inputs, would
 * otherwise be large and nearly cancel, and leave their rounding behind. */
ALWAYS_INLINE int float_middle(enum panel_code code, enum panel_scale scale)
{
    if (!has_offset(scale) || code > PANEL_S8)
        return 0;
    return 1 << (panel_bits(code) - 1);
}

/* Codes as signed bytes; e4m3 bytes as they are. Stored 8-bit codes with an
 * offset are less their middle already. */
ALWAYS_INLINE void float_codes(enum panel_code code, enum panel_scale scale, const uint8_t *p, vq table, int bias,
                               vq c[QUADS])
{
    unpack(code, p, table, c);
    if (code > PANEL_U6)
        return;
    const vq add = vq_set1(has_offset(scale) ? -float_middle(code, scale) : bias);
    for (int i = 0; i < QUADS; i++)
        c[i] = vq_add(c[i], add);
}

/* Input j of a quad as float lanes. */
ALWAYS_INLINE vf float_value(enum panel_code code, vq c, int j)
{
    vi b = vi_of_vq(c);
    if (j < 3)
        b = vi_shl(b, 24 - 8 * j);
    b = vi_sar(b, 24);
    if (code == PANEL_E8) {
        /* Exponent moves from bias 7 to 127. Below 2^-6 the number is rest * 2^-9. */
        vi rest = vi_and(b, vi_set1(0x7f)), sign = vi_and(b, vi_set1(INT32_MIN));
        vi normal = vi_add(vi_shl(rest, 20), vi_set1(120 << 23));
        vi small = vi_bits(vf_mul(vf_from_vi(rest), vf_set1(0x1p-9f)));
        return vf_bits(vi_or(sign, vi_select_gt(rest, vi_set1(7), normal, small)));
    }
    return vf_from_vi(b);
}

/* One block, `n` tokens (a constant), of which those past `tokens` repeat the
 * first. */
ALWAYS_INLINE void float_step(vf *y, vq c[PARTS][QUADS], const struct act_f32 *const *x, const struct factors *f, int n,
                              enum panel_code code, enum panel_scale scale, int group)
{
    const int groups = group == 16 ? 2 : 1, quads = QUADS / groups;
    for (int g = 0; g < groups; g++) {
        vf acc[MATMUL_TILE_FLOAT][PARTS];
        for (int t = 0; t < n; t++)
            for (int p = 0; p < PARTS; p++)
                acc[t][p] = vf_zero();
#pragma GCC unroll 1
        for (int i = g * quads; i < (g + 1) * quads; i++)
            for (int j = 0; j < 4; j++) {
                vf v[PARTS];
                for (int p = 0; p < PARTS; p++)
                    v[p] = float_value(code, c[p][i], j);
                for (int t = 0; t < n; t++) {
                    vf a = vf_set1(x[t]->x[4 * i + j]);
                    for (int p = 0; p < PARTS; p++)
                        acc[t][p] = vf_fma(v[p], a, acc[t][p]);
                }
            }
        for (int t = 0; t < n; t++)
            for (int p = 0; p < PARTS; p++) {
                vf *out = y + t * PARTS + p;
                *out = vf_fma(f[p].scale[g], acc[t][p], *out);
                if (has_offset(scale))
                    *out = vf_fma(f[p].offset[g], vf_set1(groups == 1 ? x[t]->sum32 : x[t]->sum16[g]), *out);
            }
    }
}

ALWAYS_INLINE void panel_float_n(const struct panel_layout *l, const uint8_t *p, const struct act_f32 *x, int tokens,
                                 float *y, int n, enum panel_code code, enum panel_scale scale, int group)
{
    const int64_t units = l->units, header = l->header_bytes, block = l->block_bytes;
    const int blocks = l->unit / PANEL_BLOCK;
    const vq table = vq_table(l->table);
    const struct act_f32 *xt[MATMUL_TILE_FLOAT];
    vf acc[MATMUL_TILE_FLOAT * PARTS];
    for (int i = 0; i < n * PARTS; i++)
        acc[i] = vf_zero();
    for (int t = 0; t < n; t++)
        xt[t] = x + (t < tokens ? t : 0);
    for (int64_t u = 0; u < units; u++) {
        const uint8_t *unit = p;
        p += header;
        for (int b = 0; b < blocks; b++, p += block) {
            if (n == 1)
                fetch(p + FETCH_AHEAD, block);
            vq c[PARTS][QUADS];
            struct factors f[PARTS];
            for (int i = 0; i < PARTS; i++) {
                float_codes(code, scale, p + i * VQ_BYTES, table, l->bias, c[i]);
                f[i] = load_factors(l, unit, b, i, scale, group);
                if (float_middle(code, scale))
                    for (int g = 0; g < (group == 16 ? 2 : 1); g++)
                        f[i].offset[g] =
                            vf_fma(f[i].scale[g], vf_set1((float)float_middle(code, scale)), f[i].offset[g]);
            }
            float_step(acc, c, xt, f, n, code, scale, group);
            for (int t = 0; t < n; t++)
                xt[t] += tokens;
        }
    }
    for (int t = 0; t < n && t < tokens; t++)
        for (int i = 0; i < PARTS; i++)
            vf_store(y + t * PANEL_ROWS + i * VF_LANES, acc[t * PARTS + i]);
}

ALWAYS_INLINE void panel_float(const struct panel_layout *l, const uint8_t *p, const struct act_f32 *x, int tokens,
                               float *y, enum panel_code code, enum panel_scale scale, int group)
{
    if (tokens == 1)
        panel_float_n(l, p, x, 1, y, 1, code, scale, group);
    else
        panel_float_n(l, p, x, tokens, y, MATMUL_TILE_FLOAT, code, scale, group);
}

#define DEFINE(CODE, code, SCALE, scale, group)                                                                        \
    static void NAME(panel_float_##code##_##scale##_##group)(const struct panel_layout *l, const uint8_t *p,           \
                                                             const struct act_f32 *x, int tokens, float *y)            \
    {                                                                                                                  \
        panel_float(l, p, x, tokens, y, PANEL_##CODE, PANEL_##SCALE, group);                                           \
    }
PANEL_INTEGER_VARIANTS(DEFINE)
PANEL_FLOAT_VARIANTS(DEFINE)
#undef DEFINE

#include "backend/cpu/dense_tmpl.h"

/* ---- activations ---- */

enum { BLOCK_VECTORS = PANEL_BLOCK / VF_LANES };

ALWAYS_INLINE void block_to_q16(const float *x, struct act_q16 *out)
{
    vf v[BLOCK_VECTORS], top = vf_zero(), bad = vf_zero();
    for (int i = 0; i < BLOCK_VECTORS; i++) {
        v[i] = vf_load(x + i * VF_LANES);
        top = vf_max(top, vf_abs(v[i]));
        bad = vf_fma(v[i], vf_zero(), bad);
    }
    memset(out, 0, sizeof *out);
    float not_finite = vf_sum(bad), step = vf_reduce_max(top) / 127;
    if (not_finite != 0) {
        out->scale = out->sum32 = out->sum16[0] = out->sum16[1] = not_finite;
        return;
    }
    if (step < 0x1p-100f)
        return;
    const vf inverse = vf_set1(1 / step), most = vf_set1(127), least = vf_set1(-127), full = vf_set1(256);
    const float scale = step / 256;
    float sum[2];
    for (int h = 0; h < 2; h++) {
        vf s = vf_zero();
        for (int i = h * BLOCK_VECTORS / 2; i < (h + 1) * BLOCK_VECTORS / 2; i++) {
            vf x1 = vf_mul(v[i], inverse);
            vi hi = vi_round(x1);
            vf rest = vf_mul(vf_sub(x1, vf_from_vi(hi)), full);
            vi lo = vi_round(vf_max(vf_min(rest, most), least));
            vi_store_i8(out->hi + i * VF_LANES, hi);
            vi_store_i8(out->lo + i * VF_LANES, lo);
            s = vf_add(s, vf_add(vf_mul(vf_from_vi(hi), full), vf_from_vi(lo))); /* exact */
        }
        sum[h] = vf_sum(s);
    }
    out->scale = scale;
    for (int h = 0; h < 2; h++) {
        out->isum16[h] = (int32_t)sum[h];
        out->sum16[h] = scale * sum[h];
    }
    out->isum32 = out->isum16[0] + out->isum16[1];
    out->sum32 = scale * (sum[0] + sum[1]);
}

static void NAME(act_to_q16)(const float *x, int64_t cols, int64_t blocks, int stride, struct act_q16 *out)
{
    for (int64_t b = 0; b < blocks; b++, out += stride) {
        int64_t left = cols - b * PANEL_BLOCK;
        if (left >= PANEL_BLOCK) {
            block_to_q16(x + b * PANEL_BLOCK, out);
        } else {
            float part[PANEL_BLOCK] = {0};
            if (left > 0)
                memcpy(part, x + b * PANEL_BLOCK, (size_t)left * sizeof *x);
            block_to_q16(part, out);
        }
    }
}

/* ---- packing ---- */

static void NAME(pack_f16)(const float *x, int64_t n, uint16_t *out)
{
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store_f16(out + i, vf_load(x + i));
    if (i < n)
        vf_store_f16_part(out + i, vf_load_part(x + i, (int)(n - i)), (int)(n - i));
}

static void NAME(init_all)(struct matmul_kernels *k)
{
    NAME(init_int)(k);
#define SET(CODE, code, SCALE, scale, group)                                                                           \
    k->panel_float[PANEL_##CODE][PANEL_##SCALE][group / 32] = NAME(panel_float_##code##_##scale##_##group);
    PANEL_INTEGER_VARIANTS(SET)
    PANEL_FLOAT_VARIANTS(SET)
#undef SET
    k->dense_f32 = NAME(dense_f32);
    k->dense_f16 = NAME(dense_f16);
    k->dense_bf16 = NAME(dense_bf16);
    k->many_f32 = NAME(many_f32);
    k->many_f16 = NAME(many_f16);
    k->many_bf16 = NAME(many_bf16);
    k->lanes = VF_LANES;
    k->tile_many = MATMUL_TILE_MANY;
    k->tile_float = MATMUL_TILE_FLOAT;
    k->act_to_q16 = NAME(act_to_q16);
    k->pack_f16 = NAME(pack_f16);
    k->bf12 = NAME(bf12);
    k->many_bf12 = NAME(many_bf12);
    k->turn_quads = NAME(turn_quads);
}

#endif
