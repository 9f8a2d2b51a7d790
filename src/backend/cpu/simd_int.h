/* Integer vectors for the matmul kernels, next to the floats of simd.h.
 *
 *   vq       one part of a quad vector: VF_LANES rows of 4 bytes each
 *   vi       VF_LANES int32 lanes, one row each
 *   vq_set_quad  the same four bytes in every row
 *   vi_round to the nearest integer, ties to even
 *   vi_store_i8  values are within -128 .. 127
 *   vq_shr   bits move within bytes or across them, so the result needs a mask
 *   vq_sums  sums over quads of 4 codes x 4 activations of 16 bits, 256 * hi + lo, per row;
 *            vq_sums_add for the quads 2 * pair and 2 * pair + 1, whose activations are
 *            given, in sequence from pair 0; vq_sums_total gives init + them
 *   vq_words where SIMD_WORDS is defined: bytes 0, 2 (odd: 1, 3) of every row as
 *            16-bit integers, and vq_word_dot multiplies them by two such activations
 *            in every row and adds the sum; vi_in_order keeps the compiler from regrouping
 *            such additions, for which there are not enough registers
 *
 * Codes are signed bytes where DOT_SIGNED says so. The others promise that
 * codes are not negative and at most 2^b - 1 (or 2^5 for DOT_5), which lets
 * 16-bit sums of several quads pass without overflow:
 * 2 * 127 * 15 * 8 = 30480, 2 * 127 * 32 * 4 = 32512, 2 * 127 * 63 * 2 = 32004.
 * Where SIMD_WORDS is defined vq_sums are made of these: vq_sign (x, negated where c is
 * negative), vq_abs, vq_byte_products (of unsigned c and signed x, sums of two in 16
 * bits), vq_add_words and vq_word_dot.
 *
 * vq_floats: bf16 numbers of lower bytes and upper ones, byte 16 * g + 4 * i + r of input i
 * and row 4 * g + r, as floats out[i] with rows as lanes.
 *
 * VQ_SIGNED_BIAS is what vq_signed() added to signed codes; the caller takes it
 * back through init.
 *
 *   vw       2 * VF_LANES int16 lanes
 *   vw_mul   a * b / 2^15, rounded half up
 *   vw_round two vectors of floats, to the nearest integers, within int16
 *   vt       a table of 16 int16 entries
 *   vp       two rows of int16, side by side in pairs
 *   vp_store writes such a pair, vp_load reads it
 *   vp_dot   acc[0 .. 1], together 2 * VF_LANES lanes in an order of its own,
 *            += row a * low half of q + row b * high half of q
 *   vp_order brings them into the order of the rows
 *   run_codes the 64 codes of a run of planes (kvformat/kv_planes.h)
 *   vw_store_zip  a[0], b[0], a[1], b[1] and on
 *   run_levels entries of a table by 64 codes below 16 */
#ifndef CPU_SIMD_INT_H
#define CPU_SIMD_INT_H

#include <stdbool.h>

#include "backend/cpu/simd.h"

enum dot { DOT_4, DOT_5, DOT_6, DOT_SIGNED };

enum { VQ_BYTES = 4 * VF_LANES };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Quad i of the activations, in every row. */
ALWAYS_INLINE int32_t quad_load(const int8_t *x, int i)
{
    int32_t q;
    memcpy(&q, x + 4 * i, 4);
    return q;
}

#if defined(__AVX2__)
/* 256 * hi + lo of 8 quads, inputs 0, 2, 1, 3 of each. */
ALWAYS_INLINE void act_words(int16_t out[32], const int8_t *hi, const int8_t *lo)
{
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    __m256i l = _mm256_loadu_si256((const __m256i *)(const void *)lo);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)hi);
    h = _mm256_shuffle_epi8(_mm256_add_epi8(h, _mm256_cmpgt_epi8(_mm256_setzero_si256(), l)), order);
    l = _mm256_shuffle_epi8(l, order);
    __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h);
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_castsi256_si128(a));
    _mm_storeu_si128((__m128i *)(void *)(out + 8), _mm256_castsi256_si128(b));
    _mm_storeu_si128((__m128i *)(void *)(out + 16), _mm256_extracti128_si256(a, 1));
    _mm_storeu_si128((__m128i *)(void *)(out + 24), _mm256_extracti128_si256(b, 1));
}
#endif

/* One line per operation, to be read as a table. */
/* clang-format off */

#if defined(__AVX512F__) || defined(TLM_SIMD_AVX512)

typedef __m512i vq;
typedef __m512i vi;

ALWAYS_INLINE vq vq_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE vq vq_set1(int a) { return _mm512_set1_epi8((char)a); }
ALWAYS_INLINE vq vq_set_quad(int32_t q) { return _mm512_set1_epi32(q); }
ALWAYS_INLINE vq vq_and(vq a, vq b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE vq vq_or(vq a, vq b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE vq vq_add(vq a, vq b) { return _mm512_add_epi8(a, b); }
ALWAYS_INLINE vq vq_shr(vq a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }
ALWAYS_INLINE vq vq_shl(vq a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
ALWAYS_INLINE vq vq_table(const int8_t *t)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t));
}
ALWAYS_INLINE vq vq_lookup(vq table, vq a) { return _mm512_shuffle_epi8(table, a); }
ALWAYS_INLINE void vq_store(uint8_t *p, vq a) { _mm512_storeu_si512(p, a); }
ALWAYS_INLINE void vq_floats(vq low, vq high, vf out[4])
{
    const vq zero = _mm512_setzero_si512(), a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
    out[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, a));
    out[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, a));
    out[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, b));
    out[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, b));
}

ALWAYS_INLINE vi vi_set1(int32_t a) { return _mm512_set1_epi32(a); }
ALWAYS_INLINE vi vi_load_i8(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS_INLINE vi vi_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
ALWAYS_INLINE vi vi_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
ALWAYS_INLINE vi vi_shr(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
ALWAYS_INLINE vi vi_sar(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
ALWAYS_INLINE vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
ALWAYS_INLINE vi vi_bits(vf a) { return _mm512_castps_si512(a); }
ALWAYS_INLINE vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
ALWAYS_INLINE vi vi_select_gt(vi a, vi b, vi x, vi y)
{
    return _mm512_mask_mov_epi32(y, _mm512_cmpgt_epi32_mask(a, b), x);
}
ALWAYS_INLINE vi vi_of_vq(vq a) { return a; }
ALWAYS_INLINE vi vi_round(vf a) { return _mm512_cvtps_epi32(a); }
ALWAYS_INLINE void vi_store_i8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }

#if defined(__AVX512VNNI__) || defined(TLM_SIMD_VNNI)

enum { VQ_SIGNED_BIAS = 128 };
ALWAYS_INLINE vq vq_signed(vq a) { return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80)); }

struct vq_sums { vi hi, lo; };
ALWAYS_INLINE struct vq_sums vq_sums(void) { return (struct vq_sums){vi_set1(0), vi_set1(0)}; }
ALWAYS_INLINE void vq_sums_add(struct vq_sums *s, const vq c[2], const int8_t *hi, const int8_t *lo, int pair,
                               enum dot d)
{
    (void)pair, (void)d;
    for (int i = 0; i < 2; i++) {
        s->hi = _mm512_dpbusd_epi32(s->hi, c[i], _mm512_set1_epi32(quad_load(hi, i)));
        s->lo = _mm512_dpbusd_epi32(s->lo, c[i], _mm512_set1_epi32(quad_load(lo, i)));
    }
}
ALWAYS_INLINE vi vq_sums_total(const struct vq_sums *s, vi init, enum dot d)
{
    (void)d;
    return vi_add(vi_add(init, s->lo), vi_shl(s->hi, 8));
}

#else

enum { VQ_SIGNED_BIAS = 0 };
ALWAYS_INLINE vq vq_signed(vq a) { return a; }

#define SIMD_WORDS
ALWAYS_INLINE vq vq_sign(vq x, vq c)
{
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(c), _mm512_setzero_si512(), x);
}
ALWAYS_INLINE vq vq_abs(vq c) { return _mm512_abs_epi8(c); }
ALWAYS_INLINE vq vq_byte_products(vq c, vq x) { return _mm512_maddubs_epi16(c, x); }
ALWAYS_INLINE vq vq_add_words(vq a, vq b) { return _mm512_add_epi16(a, b); }
ALWAYS_INLINE vi vq_word_dot(vi acc, vq c, vq x) { return _mm512_add_epi32(acc, _mm512_madd_epi16(c, x)); }
ALWAYS_INLINE vi vi_in_order(vi a)
{
#ifndef TLM_SIMDE
    __asm__("" : "+v"(a));
#endif
    return a;
}
ALWAYS_INLINE vq vq_set1_word(int a) { return _mm512_set1_epi16((short)a); }
ALWAYS_INLINE vq vq_words(vq c, bool is_signed, bool odd)
{
    if (is_signed)
        return _mm512_srai_epi16(odd ? c : _mm512_slli_epi16(c, 8), 8);
    return odd ? _mm512_srli_epi16(c, 8) : _mm512_and_si512(c, _mm512_set1_epi16(0xff));
}

#endif

typedef __m512i vw;
typedef struct { __m512i lo, hi; } vp;
typedef __m512i vt;

ALWAYS_INLINE vw vw_load(const int16_t *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void vw_store(int16_t *p, vw a) { _mm512_storeu_si512(p, a); }
ALWAYS_INLINE vw vw_set1(int a) { return _mm512_set1_epi16((short)a); }
ALWAYS_INLINE vw vw_shl(vw a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
ALWAYS_INLINE vw vw_add(vw a, vw b) { return _mm512_add_epi16(a, b); }
ALWAYS_INLINE vw vw_sub(vw a, vw b) { return _mm512_sub_epi16(a, b); }
ALWAYS_INLINE vw vw_mul(vw a, vw b) { return _mm512_mulhrs_epi16(a, b); }
ALWAYS_INLINE vw vw_round(vf a, vf b)
{
    __m256i x = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a)), y = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(b));
    return _mm512_inserti64x4(_mm512_castsi256_si512(x), y, 1);
}
ALWAYS_INLINE vt vw_table(const int16_t *t)
{
    return _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)t));
}
ALWAYS_INLINE void vp_store(int16_t *p, vw a, vw b)
{
    _mm512_storeu_si512(p, _mm512_unpacklo_epi16(a, b));
    _mm512_storeu_si512(p + 32, _mm512_unpackhi_epi16(a, b));
}
ALWAYS_INLINE vp vp_load(const int16_t *p) { return (vp){_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32)}; }
ALWAYS_INLINE void vp_dot(vi acc[2], vp p, int32_t q)
{
    __m512i v = _mm512_set1_epi32(q);
#if defined(__AVX512VNNI__) || defined(TLM_SIMD_VNNI)
    acc[0] = _mm512_dpwssd_epi32(acc[0], p.lo, v);
    acc[1] = _mm512_dpwssd_epi32(acc[1], p.hi, v);
#else
    acc[0] = _mm512_add_epi32(acc[0], _mm512_madd_epi16(p.lo, v));
    acc[1] = _mm512_add_epi32(acc[1], _mm512_madd_epi16(p.hi, v));
#endif
}
ALWAYS_INLINE void vp_order(vi acc[2])
{
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    vi a = acc[0], b = acc[1];
    acc[0] = _mm512_permutex2var_epi64(a, low, b);
    acc[1] = _mm512_permutex2var_epi64(a, high, b);
}
ALWAYS_INLINE void vw_store_zip(int16_t *p, vw a, vw b)
{
    vi pair[2] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
    vp_order(pair);
    vw_store(p, pair[0]);
    vw_store(p + 32, pair[1]);
}
ALWAYS_INLINE __m512i run_plane(const uint8_t *in, int b)
{
    int64_t one;
    switch (b) {
    case 1:
        memcpy(&one, in, 8);
        return _mm512_and_si512(_mm512_srlv_epi64(_mm512_set1_epi64(one), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)),
                                _mm512_set1_epi8(1));
    case 2:
        return _mm512_and_si512(_mm512_srlv_epi64(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)in)),
                                                  _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6)),
                                _mm512_set1_epi8(3));
    default:
        return _mm512_and_si512(_mm512_srlv_epi64(_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)in)),
                                                  _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)),
                                _mm512_set1_epi8(15));
    }
}
ALWAYS_INLINE __m512i run_bytes(const uint8_t *in, int bits)
{
    __m512i c = _mm512_setzero_si512();
    if (bits == 8)
        c = _mm512_loadu_si512(in);
    for (int b = 4, low = 0; b && bits < 8; b /= 2)
        if (bits & b) {
            c = _mm512_or_si512(c, _mm512_slli_epi64(run_plane(in + low * 8, b), (unsigned)low));
            low += b;
        }
    return c;
}
ALWAYS_INLINE void run_codes(vw out[2], const uint8_t *in, int bits)
{
    __m512i c = run_bytes(in, bits);
    out[0] = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(c));
    out[1] = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(c, 1));
}
ALWAYS_INLINE void run_levels(vw out[2], const uint8_t *in, int bits, vt table)
{
    run_codes(out, in, bits);
    out[0] = _mm512_permutexvar_epi16(out[0], table);
    out[1] = _mm512_permutexvar_epi16(out[1], table);
}

#elif defined(__AVX2__)

typedef __m256i vq;
typedef __m256i vi;

ALWAYS_INLINE vq vq_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
ALWAYS_INLINE vq vq_set1(int a) { return _mm256_set1_epi8((char)a); }
ALWAYS_INLINE vq vq_set_quad(int32_t q) { return _mm256_set1_epi32(q); }
ALWAYS_INLINE vq vq_and(vq a, vq b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE vq vq_or(vq a, vq b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE vq vq_add(vq a, vq b) { return _mm256_add_epi8(a, b); }
ALWAYS_INLINE vq vq_shr(vq a, int n) { return _mm256_srli_epi16(a, n); }
ALWAYS_INLINE vq vq_shl(vq a, int n) { return _mm256_slli_epi16(a, n); }
ALWAYS_INLINE vq vq_table(const int8_t *t)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t));
}
ALWAYS_INLINE vq vq_lookup(vq table, vq a) { return _mm256_shuffle_epi8(table, a); }
ALWAYS_INLINE void vq_store(uint8_t *p, vq a) { _mm256_storeu_si256((__m256i *)p, a); }
ALWAYS_INLINE void vq_floats(vq low, vq high, vf out[4])
{
    const vq zero = _mm256_setzero_si256(), a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    out[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a));
    out[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a));
    out[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b));
    out[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b));
}

ALWAYS_INLINE vi vi_set1(int32_t a) { return _mm256_set1_epi32(a); }
ALWAYS_INLINE vi vi_load_i8(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
ALWAYS_INLINE vi vi_load_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
ALWAYS_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
ALWAYS_INLINE vi vi_shl(vi a, int n) { return _mm256_slli_epi32(a, n); }
ALWAYS_INLINE vi vi_shr(vi a, int n) { return _mm256_srli_epi32(a, n); }
ALWAYS_INLINE vi vi_sar(vi a, int n) { return _mm256_srai_epi32(a, n); }
ALWAYS_INLINE vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps(a); }
ALWAYS_INLINE vi vi_bits(vf a) { return _mm256_castps_si256(a); }
ALWAYS_INLINE vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
ALWAYS_INLINE vi vi_select_gt(vi a, vi b, vi x, vi y)
{
    return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi32(a, b));
}
ALWAYS_INLINE vi vi_of_vq(vq a) { return a; }
ALWAYS_INLINE vi vi_round(vf a) { return _mm256_cvtps_epi32(a); }
ALWAYS_INLINE void vi_store_i8(int8_t *p, vi a)
{
    __m128i t = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(t, t));
}

enum { VQ_SIGNED_BIAS = 0 };
ALWAYS_INLINE vq vq_signed(vq a) { return a; }

#define SIMD_WORDS
ALWAYS_INLINE vq vq_sign(vq x, vq c) { return _mm256_sign_epi8(x, c); }
ALWAYS_INLINE vq vq_abs(vq c) { return _mm256_abs_epi8(c); }
ALWAYS_INLINE vq vq_byte_products(vq c, vq x) { return _mm256_maddubs_epi16(c, x); }
ALWAYS_INLINE vq vq_add_words(vq a, vq b) { return _mm256_add_epi16(a, b); }
ALWAYS_INLINE vi vq_word_dot(vi acc, vq c, vq x) { return _mm256_add_epi32(acc, _mm256_madd_epi16(c, x)); }
ALWAYS_INLINE vi vi_in_order(vi a)
{
    __asm__("" : "+x"(a));
    return a;
}
ALWAYS_INLINE vq vq_set1_word(int a) { return _mm256_set1_epi16((short)a); }
ALWAYS_INLINE vq vq_words(vq c, bool is_signed, bool odd)
{
    if (is_signed)
        return _mm256_srai_epi16(odd ? c : _mm256_slli_epi16(c, 8), 8);
    return odd ? _mm256_srli_epi16(c, 8) : _mm256_and_si256(c, _mm256_set1_epi16(0xff));
}

typedef __m256i vw;
typedef struct { __m256i lo, hi; } vp;
typedef __m256i vt;

ALWAYS_INLINE vw vw_load(const int16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
ALWAYS_INLINE void vw_store(int16_t *p, vw a) { _mm256_storeu_si256((__m256i *)p, a); }
ALWAYS_INLINE vw vw_set1(int a) { return _mm256_set1_epi16((short)a); }
ALWAYS_INLINE vw vw_shl(vw a, int n) { return _mm256_slli_epi16(a, n); }
ALWAYS_INLINE vw vw_add(vw a, vw b) { return _mm256_add_epi16(a, b); }
ALWAYS_INLINE vw vw_sub(vw a, vw b) { return _mm256_sub_epi16(a, b); }
ALWAYS_INLINE vw vw_mul(vw a, vw b) { return _mm256_mulhrs_epi16(a, b); }
ALWAYS_INLINE vw vw_round(vf a, vf b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
}
/* Low and high bytes in the halves. */
ALWAYS_INLINE vt vw_table(const int16_t *t)
{
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m256i v = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)t), _mm256_broadcastsi128_si256(split));
    return _mm256_permute4x64_epi64(v, 0xd8);
}
ALWAYS_INLINE void vp_store(int16_t *p, vw a, vw b)
{
    vw_store(p, _mm256_unpacklo_epi16(a, b));
    vw_store(p + 16, _mm256_unpackhi_epi16(a, b));
}
ALWAYS_INLINE vp vp_load(const int16_t *p) { return (vp){vw_load(p), vw_load(p + 16)}; }
ALWAYS_INLINE void vp_dot(vi acc[2], vp p, int32_t q)
{
    __m256i v = _mm256_set1_epi32(q);
    acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(p.lo, v));
    acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(p.hi, v));
}
ALWAYS_INLINE void vp_order(vi acc[2])
{
    vi a = acc[0], b = acc[1];
    acc[0] = _mm256_permute2x128_si256(a, b, 0x20);
    acc[1] = _mm256_permute2x128_si256(a, b, 0x31);
}
ALWAYS_INLINE void vw_store_zip(int16_t *p, vw a, vw b)
{
    vi pair[2] = {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
    vp_order(pair);
    vw_store(p, pair[0]);
    vw_store(p + 16, pair[1]);
}
/* Codes 32 half up of a plane of b bits, as bytes, in the order for unpacking to words: 0 to 7, 16 to 23, 8 to 15 and
 * 24 to 31. Both halves share what moves across lanes. */
ALWAYS_INLINE __m256i run_plane(const uint8_t *in, int b, int half)
{
    int64_t one;
    const int s = 4 * half;
    switch (b) {
    case 1:
        memcpy(&one, in, 8);
        return _mm256_and_si256(_mm256_srlv_epi64(_mm256_set1_epi64x(one), _mm256_setr_epi64x(s, s + 2, s + 1, s + 3)),
                                _mm256_set1_epi8(1));
    case 2:
        return _mm256_and_si256(
            _mm256_srlv_epi64(
                _mm256_permute4x64_epi64(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)in)), 0x50),
                _mm256_setr_epi64x(s, s + 2, s, s + 2)),
            _mm256_set1_epi8(3));
    case 4:
        return _mm256_and_si256(
            _mm256_srli_epi64(_mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)in), 0xd8), s),
            _mm256_set1_epi8(15));
    default:
        return _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(in + 32 * half)), 0xd8);
    }
}
ALWAYS_INLINE __m256i run_bytes(const uint8_t *in, int bits, int half)
{
    if (bits == 8)
        return run_plane(in, 8, half);
    int low = 0;
    __m256i c = _mm256_setzero_si256();
    for (int b = 4; b; b /= 2)
        if (bits & b) {
            c = _mm256_or_si256(c, _mm256_slli_epi64(run_plane(in + low * 8, b, half), low));
            low += b;
        }
    return c;
}
ALWAYS_INLINE void run_codes(vw out[4], const uint8_t *in, int bits)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        __m256i c = run_bytes(in, bits, half);
        out[2 * half] = _mm256_unpacklo_epi8(c, zero);
        out[2 * half + 1] = _mm256_unpackhi_epi8(c, zero);
    }
}
ALWAYS_INLINE void run_levels(vw out[4], const uint8_t *in, int bits, vt table)
{
    const __m256i low = _mm256_permute4x64_epi64(table, 0x44), high = _mm256_permute4x64_epi64(table, 0xee);
    for (int half = 0; half < 2; half++) {
        __m256i c = run_bytes(in, bits, half), l = _mm256_shuffle_epi8(low, c), h = _mm256_shuffle_epi8(high, c);
        out[2 * half] = _mm256_unpacklo_epi8(l, h);
        out[2 * half + 1] = _mm256_unpackhi_epi8(l, h);
    }
}

#elif defined(__aarch64__)

typedef uint8x16_t vq;
typedef int32x4_t vi;

ALWAYS_INLINE vq vq_load(const uint8_t *p) { return vld1q_u8(p); }
ALWAYS_INLINE vq vq_set1(int a) { return vdupq_n_u8((uint8_t)a); }
ALWAYS_INLINE vq vq_set_quad(int32_t q) { return vreinterpretq_u8_s32(vdupq_n_s32(q)); }
ALWAYS_INLINE vq vq_and(vq a, vq b) { return vandq_u8(a, b); }
ALWAYS_INLINE vq vq_or(vq a, vq b) { return vorrq_u8(a, b); }
ALWAYS_INLINE vq vq_add(vq a, vq b) { return vaddq_u8(a, b); }
ALWAYS_INLINE vq vq_shr(vq a, int n) { return vshlq_u8(a, vdupq_n_s8((int8_t)-n)); }
ALWAYS_INLINE vq vq_shl(vq a, int n) { return vshlq_u8(a, vdupq_n_s8((int8_t)n)); }
ALWAYS_INLINE vq vq_table(const int8_t *t) { return vreinterpretq_u8_s8(vld1q_s8(t)); }
ALWAYS_INLINE vq vq_lookup(vq table, vq a) { return vqtbl1q_u8(table, a); }
ALWAYS_INLINE void vq_store(uint8_t *p, vq a) { vst1q_u8(p, a); }
ALWAYS_INLINE void vq_floats(vq low, vq high, vf out[4])
{
    const uint16x8_t zero = vdupq_n_u16(0);
    const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low, high)), b = vreinterpretq_u16_u8(vzip2q_u8(low, high));
    out[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, a));
    out[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, a));
    out[2] = vreinterpretq_f32_u16(vzip1q_u16(zero, b));
    out[3] = vreinterpretq_f32_u16(vzip2q_u16(zero, b));
}

ALWAYS_INLINE vi vi_set1(int32_t a) { return vdupq_n_s32(a); }
ALWAYS_INLINE vi vi_load_i8(const uint8_t *p)
{
    uint32_t t;
    memcpy(&t, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(t)))));
}
ALWAYS_INLINE vi vi_load_u8(const uint8_t *p)
{
    uint32_t t;
    memcpy(&t, p, 4);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(t))))));
}
ALWAYS_INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
ALWAYS_INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
ALWAYS_INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
ALWAYS_INLINE vi vi_shl(vi a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
ALWAYS_INLINE vi vi_shr(vi a, int n)
{
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n)));
}
ALWAYS_INLINE vi vi_sar(vi a, int n) { return vshlq_s32(a, vdupq_n_s32(-n)); }
ALWAYS_INLINE vf vf_from_vi(vi a) { return vcvtq_f32_s32(a); }
ALWAYS_INLINE vi vi_bits(vf a) { return vreinterpretq_s32_f32(a); }
ALWAYS_INLINE vf vf_bits(vi a) { return vreinterpretq_f32_s32(a); }
ALWAYS_INLINE vi vi_select_gt(vi a, vi b, vi x, vi y) { return vbslq_s32(vcgtq_s32(a, b), x, y); }
ALWAYS_INLINE vi vi_of_vq(vq a) { return vreinterpretq_s32_u8(a); }
ALWAYS_INLINE vi vi_round(vf a) { return vcvtnq_s32_f32(a); }
ALWAYS_INLINE void vi_store_i8(int8_t *p, vi a)
{
    int16x4_t t = vqmovn_s32(a);
    uint32_t b = vget_lane_u32(vreinterpret_u32_s8(vqmovn_s16(vcombine_s16(t, t))), 0);
    memcpy(p, &b, 4);
}

enum { VQ_SIGNED_BIAS = 0 };
ALWAYS_INLINE vq vq_signed(vq a) { return a; }

/* All codes fit a signed byte, so there is one way for all. */
struct vq_sums { vi hi[2], lo[2]; }; /* two partial sums per row */
ALWAYS_INLINE struct vq_sums vq_sums(void)
{
    const vi zero = vdupq_n_s32(0);
    return (struct vq_sums){{zero, zero}, {zero, zero}};
}
ALWAYS_INLINE void vq_sums_plane(vi sum[2], const vq c[2], const int8_t *x)
{
#ifdef __ARM_FEATURE_DOTPROD
    int8x8_t q = vld1_s8(x);
    sum[0] = vdotq_lane_s32(sum[0], vreinterpretq_s8_u8(c[0]), q, 0);
    sum[1] = vdotq_lane_s32(sum[1], vreinterpretq_s8_u8(c[1]), q, 1);
#else
    for (int i = 0; i < 2; i++) {
        int8x16_t w = vreinterpretq_s8_u8(c[i]), q = vreinterpretq_s8_s32(vdupq_n_s32(quad_load(x, i)));
        sum[0] = vpadalq_s16(sum[0], vmull_s8(vget_low_s8(w), vget_low_s8(q)));
        sum[1] = vpadalq_s16(sum[1], vmull_high_s8(w, q));
    }
#endif
}
ALWAYS_INLINE vi vq_sums_of_rows(const vi sum[2])
{
#ifdef __ARM_FEATURE_DOTPROD
    return vaddq_s32(sum[0], sum[1]);
#else
    return vpaddq_s32(sum[0], sum[1]);
#endif
}
ALWAYS_INLINE void vq_sums_add(struct vq_sums *s, const vq c[2], const int8_t *hi, const int8_t *lo, int pair,
                               enum dot d)
{
    (void)pair, (void)d;
    vq_sums_plane(s->hi, c, hi);
    vq_sums_plane(s->lo, c, lo);
}
ALWAYS_INLINE vi vq_sums_total(const struct vq_sums *s, vi init, enum dot d)
{
    (void)d;
    return vi_add(vi_add(init, vq_sums_of_rows(s->lo)), vi_shl(vq_sums_of_rows(s->hi), 8));
}

typedef int16x8_t vw;
typedef struct { int16x8_t a, b; } vp;

ALWAYS_INLINE vw vw_load(const int16_t *p) { return vld1q_s16(p); }
ALWAYS_INLINE void vw_store(int16_t *p, vw a) { vst1q_s16(p, a); }
ALWAYS_INLINE vw vw_set1(int a) { return vdupq_n_s16((int16_t)a); }
ALWAYS_INLINE vw vw_shl(vw a, int n) { return vshlq_s16(a, vdupq_n_s16((int16_t)n)); }
ALWAYS_INLINE vw vw_add(vw a, vw b) { return vaddq_s16(a, b); }
ALWAYS_INLINE vw vw_sub(vw a, vw b) { return vsubq_s16(a, b); }
ALWAYS_INLINE vw vw_mul(vw a, vw b) { return vqrdmulhq_s16(a, b); }
ALWAYS_INLINE vw vw_round(vf a, vf b)
{
    return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a)), vqmovn_s32(vcvtnq_s32_f32(b)));
}
typedef struct { uint8x16_t low, high; } vt;
ALWAYS_INLINE vt vw_table(const int16_t *t)
{
    uint8x16x2_t v = vld2q_u8((const uint8_t *)t);
    return (vt){v.val[0], v.val[1]};
}
ALWAYS_INLINE void vp_store(int16_t *p, vw a, vw b)
{
    vst1q_s16(p, a);
    vst1q_s16(p + 8, b);
}
ALWAYS_INLINE vp vp_load(const int16_t *p) { return (vp){vld1q_s16(p), vld1q_s16(p + 8)}; }
ALWAYS_INLINE void vp_dot(vi acc[2], vp p, int32_t q)
{
    int16x4_t v = vreinterpret_s16_s32(vdup_n_s32(q));
    acc[0] = vmlal_lane_s16(vmlal_lane_s16(acc[0], vget_low_s16(p.a), v, 0), vget_low_s16(p.b), v, 1);
    acc[1] = vmlal_high_lane_s16(vmlal_high_lane_s16(acc[1], p.a, v, 0), p.b, v, 1);
}
ALWAYS_INLINE void vp_order(vi acc[2]) { (void)acc; }
ALWAYS_INLINE vi vi_in_order(vi a) { return a; }
ALWAYS_INLINE void vw_store_zip(int16_t *p, vw a, vw b) { vst2q_s16(p, (int16x8x2_t){{a, b}}); }
/* Codes 16 at up of a run from a plane of b bits. */
ALWAYS_INLINE uint8x16_t run_plane(const uint8_t *in, int b, int at)
{
    uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << b) - 1));
    if (b == 1) {
        uint8x8_t v = vld1_u8(in);
        int8x8_t first = vdup_n_s8((int8_t)(-at / 8)), next = vdup_n_s8((int8_t)(-at / 8 - 1));
        return vandq_u8(vcombine_u8(vshl_u8(v, first), vshl_u8(v, next)), mask);
    }
    return vandq_u8(vshlq_u8(vld1q_u8(in + at % (8 * b)), vdupq_n_s8((int8_t)(-b * (at / (8 * b))))), mask);
}
ALWAYS_INLINE uint8x16_t run_bytes(const uint8_t *in, int bits, int at)
{
    uint8x16_t c = vdupq_n_u8(0);
    if (bits == 8)
        return vld1q_u8(in + at);
    for (int b = 4, low = 0; b; b /= 2)
        if (bits & b) {
            c = vorrq_u8(c, vshlq_u8(run_plane(in + low * 8, b, at), vdupq_n_s8((int8_t)low)));
            low += b;
        }
    return c;
}
ALWAYS_INLINE void run_codes(vw out[8], const uint8_t *in, int bits)
{
    for (int i = 0; i < 4; i++) {
        uint8x16_t c = run_bytes(in, bits, 16 * i);
        out[2 * i] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(c)));
        out[2 * i + 1] = vreinterpretq_s16_u16(vmovl_high_u8(c));
    }
}
ALWAYS_INLINE void run_levels(vw out[8], const uint8_t *in, int bits, vt t)
{
    for (int i = 0; i < 4; i++) {
        uint8x16_t c = run_bytes(in, bits, 16 * i), l = vqtbl1q_u8(t.low, c), h = vqtbl1q_u8(t.high, c);
        out[2 * i] = vreinterpretq_s16_u8(vzip1q_u8(l, h));
        out[2 * i + 1] = vreinterpretq_s16_u8(vzip2q_u8(l, h));
    }
}

#endif
/* clang-format on */

#ifdef SIMD_WORDS
struct vq_sums {
    vq hi, lo; /* sums of 16 bits, of the quads since the total grew */
    vi total;
};

ALWAYS_INLINE struct vq_sums vq_sums(void)
{
    return (struct vq_sums){vq_set1(0), vq_set1(0), vi_set1(0)};
}

/* 256 * hi + lo enter the total. */
ALWAYS_INLINE vi vq_sums_flush(const struct vq_sums *s)
{
    return vq_word_dot(vq_word_dot(s->total, s->hi, vq_set1_word(256)), s->lo, vq_set1_word(1));
}

ALWAYS_INLINE void vq_sums_add(struct vq_sums *s, const vq c[2], const int8_t *hi, const int8_t *lo, int pair,
                               enum dot d)
{
    if (d == DOT_SIGNED) {
        for (int i = 0; i < 2; i++) {
            const vq size = vq_abs(c[i]);
            s->hi = vq_byte_products(size, vq_sign(vq_set_quad(quad_load(hi, i)), c[i]));
            s->lo = vq_byte_products(size, vq_sign(vq_set_quad(quad_load(lo, i)), c[i]));
            s->total = vi_in_order(vq_sums_flush(s));
        }
        return;
    }
    const int pairs = d == DOT_4 ? 4 : d == DOT_5 ? 2 : 1; /* that 16 bits hold */
    const vq h = vq_add_words(vq_byte_products(c[0], vq_set_quad(quad_load(hi, 0))),
                              vq_byte_products(c[1], vq_set_quad(quad_load(hi, 1))));
    const vq l = vq_add_words(vq_byte_products(c[0], vq_set_quad(quad_load(lo, 0))),
                              vq_byte_products(c[1], vq_set_quad(quad_load(lo, 1))));
    if (pair % pairs) {
        s->hi = vi_in_order(vq_add_words(s->hi, h));
        s->lo = vi_in_order(vq_add_words(s->lo, l));
        return;
    }
    if (pair)
        s->total = vi_in_order(vq_sums_flush(s));
    s->hi = h;
    s->lo = l;
}

ALWAYS_INLINE vi vq_sums_total(const struct vq_sums *s, vi init, enum dot d)
{
    return vi_add(init, d == DOT_SIGNED ? s->total : vq_sums_flush(s));
}
#endif

#endif
