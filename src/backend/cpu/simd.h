/* Float vectors under one set of names, so that a kernel is written once and
 * built per instruction set. The scalar kernels do not use this: they are the
 * independent definition that these are checked against.
 *
 *   vf       VF_LANES float32 lanes: 8 (AVX2), 16 (AVX-512), 4 (NEON)
 *   vf_fma   a * b + c with one rounding
 *   vf_sum   sum across lanes: the upper half onto the lower, down to one
 *   vf_max   (a, b): NaN when b is; vf_min likewise
 *   vf_max_number  the other operand when a is NaN
 *   vf_round       to the nearest integer, ties to even
 *   vf_ldexp       a * 2^n, rounded once; n integral, -252 <= n <= 252
 *   vf_ldexp_normal  the same for normal a and result, n <= 126; 0 for n = -127
 *   vf_select_lt   a < b ? x : y
 *   vf_..._part    the first n lanes only, 0 < n < VF_LANES; the rest loads as 0
 *   vf_transpose   VF_LANES vectors; lane i of v[j] comes to lane j of v[i]
 *   vf_load2       even elements to a, odd ones to b; vf_store2 is its inverse
 */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(TLM_SIMD_AVX512)

#ifndef TLM_SIMDE /* tests: the same code emulated on machines without AVX-512 */
#include <immintrin.h>
#endif

typedef __m512 vf;
enum { VF_LANES = 16 };

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
static inline vf vf_set1(float a)
{
    return _mm512_set1_ps(a);
}
static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline void vf_transpose(vf v[16])
{
    vf a[16];
    for (int i = 0; i < 16; i += 4) {
        __m512d x = _mm512_castps_pd(_mm512_unpacklo_ps(v[i], v[i + 1]));
        __m512d y = _mm512_castps_pd(_mm512_unpacklo_ps(v[i + 2], v[i + 3]));
        __m512d z = _mm512_castps_pd(_mm512_unpackhi_ps(v[i], v[i + 1]));
        __m512d w = _mm512_castps_pd(_mm512_unpackhi_ps(v[i + 2], v[i + 3]));
        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(z, w));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(z, w));
    }
    for (int i = 0; i < 4; i++) {
        vf x = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), y = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        vf z = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88), w = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(x, z, 0x88);
        v[i + 4] = _mm512_shuffle_f32x4(y, w, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(x, z, 0xdd);
        v[i + 12] = _mm512_shuffle_f32x4(y, w, 0xdd);
    }
}
static inline float vf_sum(vf a)
{
    float t[16];
    _mm512_storeu_ps(t, a);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            t[i] += t[i + n];
    return t[0];
}
static inline vf vf_max_number(vf a, vf b)
{
    return _mm512_max_ps(a, b);
} /* b when either is NaN */
static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_ldexp(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}
static inline vf vf_ldexp_normal(vf a, vf n)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-127.0f), _CMP_NEQ_UQ), a, n);
}
static inline vf vf_abs(vf a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
static inline vf vf_copysign(vf a, vf sign)
{
    __m512i s = _mm512_and_si512(_mm512_castps_si512(sign), _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(vf_abs(a)), s));
}
static inline vf vf_select_lt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x);
}
static inline float vf_reduce_max(vf a)
{
    float t[16];
    _mm512_storeu_ps(t, a);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            t[i] = t[i] > t[i + n] ? t[i] : t[i + n];
    return t[0];
}
static inline vf vf_load_part(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void vf_store_part(float *p, vf a, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}
static inline void vf_load2(const float *p, vf *a, vf *b)
{
    __m512 lo = vf_load(p), hi = vf_load(p + 16);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *a = _mm512_permutex2var_ps(lo, even, hi);
    *b = _mm512_permutex2var_ps(lo, _mm512_add_epi32(even, _mm512_set1_epi32(1)), hi);
}
/* Lanes i and i ^ step exchanged, step below VF_LANES. */
static inline vf vf_swap(vf a, int step)
{
    switch (step) {
    case 1:
        return _mm512_permute_ps(a, 0xb1);
    case 2:
        return _mm512_permute_ps(a, 0x4e);
    case 4:
        return _mm512_shuffle_f32x4(a, a, 0xb1);
    default:
        return _mm512_shuffle_f32x4(a, a, 0x4e);
    }
}
static inline void vf_store2(float *p, vf a, vf b)
{
    const __m512i lo = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    vf_store(p, _mm512_permutex2var_ps(a, lo, b));
    vf_store(p + 16, _mm512_permutex2var_ps(a, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), b));
}
static inline void vf_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vf_store_bf16(uint16_t *p, vf a)
{
    __m512i b = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd), 16);
    __m512i nan = _mm512_or_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(0x40));
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(up));
}

/* Integers of 32 bits, as many as floats. */
typedef __m512i vu;
static inline vu vu_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
/* The low `bits` bits after a shift to the right, then to the left. */
static inline vu vu_field(vu a, int right, int bits, int left)
{
    return _mm512_slli_epi32(
        _mm512_and_si512(_mm512_srli_epi32(a, (unsigned)right), _mm512_set1_epi32((1 << bits) - 1)), (unsigned)left);
}
static inline vu vu_or(vu a, vu b)
{
    return _mm512_or_si512(a, b);
}
static inline vf vf_from_vu(vu a)
{
    return _mm512_cvtepi32_ps(a);
}
/* Bits i of 8 bytes, then bits i + 1, at `left`. */
static inline vu vu_two_bits(const uint8_t *p, int i, int left)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    __m512i a = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(b, b));
    a = _mm512_srlv_epi32(a, _mm512_inserti64x4(_mm512_set1_epi32(i), _mm256_set1_epi32(i + 1), 1));
    return _mm512_slli_epi32(_mm512_and_si512(a, _mm512_set1_epi32(1)), (unsigned)left);
}
/* Floats found by number: the first n of 32 that are there. */
struct vf_table {
    __m512 part[2];
    int n;
};
static inline struct vf_table vf_table_load(const float *x, int n)
{
    return (struct vf_table){{_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}, n};
}
static inline vf vf_table_get(const struct vf_table *t, vu i)
{
    return t->n <= 16 ? _mm512_permutexvar_ps(i, t->part[0]) : _mm512_permutex2var_ps(t->part[0], i, t->part[1]);
}
/* e4m3 bytes, NaN excepted: the value is the byte's low 7 bits moved into place, times 2^120. */
static inline vf vf_from_e4m3(const uint8_t *p)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i v = _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(0x7f)), 20),
                                _mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(0x80)), 24));
    return _mm512_mul_ps(_mm512_castsi512_ps(v), _mm512_set1_ps(0x1p120f));
}

#elif defined(__AVX2__)

#include <immintrin.h>

typedef __m256 vf;
enum { VF_LANES = 8 };

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
static inline vf vf_set1(float a)
{
    return _mm256_set1_ps(a);
}
static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline void vf_transpose(vf v[8])
{
    vf a[8];
    for (int i = 0; i < 8; i += 4) {
        vf x = _mm256_unpacklo_ps(v[i], v[i + 1]), y = _mm256_unpacklo_ps(v[i + 2], v[i + 3]);
        vf z = _mm256_unpackhi_ps(v[i], v[i + 1]), w = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
        a[i] = _mm256_shuffle_ps(x, y, 0x44);
        a[i + 1] = _mm256_shuffle_ps(x, y, 0xee);
        a[i + 2] = _mm256_shuffle_ps(z, w, 0x44);
        a[i + 3] = _mm256_shuffle_ps(z, w, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
    }
}
static inline float vf_sum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline vf vf_max_number(vf a, vf b)
{
    return _mm256_max_ps(a, b);
} /* b when either is NaN */
static inline vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_ldexp(vf a, vf n)
{
    /* Two factors, both normal numbers. The first product is exact for any a
     * near 1, so only the second one rounds. */
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i f1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i f2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(f1)), _mm256_castsi256_ps(f2));
}
static inline vf vf_ldexp_normal(vf a, vf n)
{
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}
static inline vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf vf_copysign(vf a, vf sign)
{
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, a), _mm256_and_ps(bit, sign));
}
static inline vf vf_select_lt(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline float vf_reduce_max(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline __m256i vf_part_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_load_part(const float *p, int n)
{
    return _mm256_maskload_ps(p, vf_part_mask(n));
}
static inline void vf_store_part(float *p, vf a, int n)
{
    _mm256_maskstore_ps(p, vf_part_mask(n), a);
}
static inline void vf_load2(const float *p, vf *a, vf *b)
{
    __m256 x = vf_load(p), y = vf_load(p + 8);
    __m256 lo = _mm256_permute2f128_ps(x, y, 0x20), hi = _mm256_permute2f128_ps(x, y, 0x31);
    *a = _mm256_shuffle_ps(lo, hi, 0x88);
    *b = _mm256_shuffle_ps(lo, hi, 0xdd);
}
static inline vf vf_swap(vf a, int step)
{
    switch (step) {
    case 1:
        return _mm256_permute_ps(a, 0xb1);
    case 2:
        return _mm256_permute_ps(a, 0x4e);
    default:
        return _mm256_permute2f128_ps(a, a, 1);
    }
}
static inline void vf_store2(float *p, vf a, vf b)
{
    __m256 lo = _mm256_unpacklo_ps(a, b), hi = _mm256_unpackhi_ps(a, b);
    vf_store(p, _mm256_permute2f128_ps(lo, hi, 0x20));
    vf_store(p + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
}
static inline void vf_store_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vf_store_bf16(uint16_t *p, vf a)
{
    __m256i b = _mm256_castps_si256(a), high = _mm256_srli_epi32(b, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    up = _mm256_blendv_epi8(up, nan, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1)));
}

typedef __m256i vu;
static inline vu vu_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline vu vu_field(vu a, int right, int bits, int left)
{
    return _mm256_slli_epi32(_mm256_and_si256(_mm256_srli_epi32(a, right), _mm256_set1_epi32((1 << bits) - 1)), left);
}
static inline vu vu_or(vu a, vu b)
{
    return _mm256_or_si256(a, b);
}
static inline vf vf_from_vu(vu a)
{
    return _mm256_cvtepi32_ps(a);
}
/* Code bytes, 32 at a time. */
#define SIMD_CODE_BYTES 1
typedef __m256i vc;
/* Codes 32 half up of a run from a plane of b = 1, 2 or 4 bits (kvformat/kv_planes.h), or of bytes. */
static inline vc vc_plane(const uint8_t *in, int b, int half)
{
    long long low;
    __m128i two;
    const int s = 4 * half;
    switch (b) {
    case 1:
        memcpy(&low, in, 8);
        return _mm256_and_si256(_mm256_srlv_epi64(_mm256_set1_epi64x(low), _mm256_set_epi64x(s + 3, s + 2, s + 1, s)),
                                _mm256_set1_epi8(1));
    case 2:
        two = _mm_loadu_si128((const __m128i *)in);
        return _mm256_and_si256(
            _mm256_srlv_epi64(_mm256_broadcastsi128_si256(two), _mm256_set_epi64x(s + 2, s + 2, s, s)),
            _mm256_set1_epi8(3));
    case 4:
        return _mm256_and_si256(_mm256_srli_epi64(_mm256_loadu_si256((const __m256i *)in), s), _mm256_set1_epi8(15));
    default:
        return _mm256_loadu_si256((const __m256i *)(in + 32 * half));
    }
}
/* a | b << n; no bit leaves its byte. */
static inline vc vc_or_shl(vc a, vc b, int n)
{
    return _mm256_or_si256(a, _mm256_slli_epi64(b, n));
}
static inline void vc_store(uint8_t *p, vc a)
{
    _mm256_storeu_si256((__m256i *)p, a);
}

/* A table of n floats, at most 32, and of the bytes of its first 16. */
struct vf_table {
    __m256 part[4];
    __m256i bytes[4];
    int n;
};
static inline struct vf_table vf_table_load(const float *x, int n)
{
    const __m128i each = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i v[4], a, b, c, d;
    for (int i = 0; i < 4; i++)
        v[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(x + 4 * i)), each);
    a = _mm_unpacklo_epi32(v[0], v[1]);
    b = _mm_unpacklo_epi32(v[2], v[3]);
    c = _mm_unpackhi_epi32(v[0], v[1]);
    d = _mm_unpackhi_epi32(v[2], v[3]);
    return (struct vf_table){
        {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)},
        {_mm256_broadcastsi128_si256(_mm_unpacklo_epi64(a, b)), _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(a, b)),
         _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(c, d)), _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(c, d))},
        n};
}
static inline vf vf_table_get(const struct vf_table *t, vu i)
{
    vf lo = _mm256_permutevar8x32_ps(t->part[0], i);
    if (t->n <= 8)
        return lo;
    __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(i, 28));
    lo = _mm256_blendv_ps(lo, _mm256_permutevar8x32_ps(t->part[1], i), bit3);
    if (t->n <= 16)
        return lo;
    vf hi = _mm256_blendv_ps(_mm256_permutevar8x32_ps(t->part[2], i), _mm256_permutevar8x32_ps(t->part[3], i), bit3);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(i, 27)));
}
/* 32 codes below 16 to y, each byte of the floats by a lookup of its own. Codes
 * go to the places from which unpacking, which stays in 128-bit lanes, leaves
 * the floats in order. */
static inline void vf_table_store(float *y, const struct vf_table *t, vc codes)
{
    __m256i c = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    __m256i b0 = _mm256_shuffle_epi8(t->bytes[0], c), b1 = _mm256_shuffle_epi8(t->bytes[1], c);
    __m256i b2 = _mm256_shuffle_epi8(t->bytes[2], c), b3 = _mm256_shuffle_epi8(t->bytes[3], c);
    __m256i l = _mm256_unpacklo_epi8(b0, b1), h = _mm256_unpacklo_epi8(b2, b3);
    _mm256_storeu_si256((__m256i *)y, _mm256_unpacklo_epi16(l, h));
    _mm256_storeu_si256((__m256i *)(y + 8), _mm256_unpackhi_epi16(l, h));
    l = _mm256_unpackhi_epi8(b0, b1);
    h = _mm256_unpackhi_epi8(b2, b3);
    _mm256_storeu_si256((__m256i *)(y + 16), _mm256_unpacklo_epi16(l, h));
    _mm256_storeu_si256((__m256i *)(y + 24), _mm256_unpackhi_epi16(l, h));
}
static inline vf vf_from_e4m3(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i v = _mm256_or_si256(_mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(0x7f)), 20),
                                _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(0x80)), 24));
    return _mm256_mul_ps(_mm256_castsi256_ps(v), _mm256_set1_ps(0x1p120f));
}

#elif defined(__aarch64__)

#include <arm_neon.h>

typedef float32x4_t vf;
enum { VF_LANES = 4 };

static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void vf_store(float *p, vf a)
{
    vst1q_f32(p, a);
}
static inline vf vf_set1(float a)
{
    return vdupq_n_f32(a);
}
static inline vf vf_zero(void)
{
    return vdupq_n_f32(0);
}
static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return vmaxq_f32(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return vminq_f32(a, b);
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void vf_transpose(vf v[4])
{
    float32x4x2_t a = vtrnq_f32(v[0], v[1]), b = vtrnq_f32(v[2], v[3]);
    v[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    v[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    v[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    v[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
static inline float vf_sum(vf a)
{
    float32x2_t s = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
static inline vf vf_max_number(vf a, vf b)
{
    return vmaxnmq_f32(a, b);
}
static inline vf vf_round(vf a)
{
    return vrndnq_f32(a);
}
static inline vf vf_ldexp(vf a, vf n)
{
    /* Two factors, both normal numbers. The first product is exact for any a
     * near 1, so only the second one rounds. */
    int32x4_t i = vcvtq_s32_f32(n), half = vshrq_n_s32(i, 1), bias = vdupq_n_s32(127);
    int32x4_t f1 = vshlq_n_s32(vaddq_s32(half, bias), 23);
    int32x4_t f2 = vshlq_n_s32(vaddq_s32(vsubq_s32(i, half), bias), 23);
    return vmulq_f32(vmulq_f32(a, vreinterpretq_f32_s32(f1)), vreinterpretq_f32_s32(f2));
}
static inline vf vf_ldexp_normal(vf a, vf n)
{
    int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(a, vreinterpretq_f32_s32(bits));
}
static inline vf vf_abs(vf a)
{
    return vabsq_f32(a);
}
static inline vf vf_copysign(vf a, vf sign)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a);
}
static inline vf vf_select_lt(vf a, vf b, vf x, vf y)
{
    return vbslq_f32(vcltq_f32(a, b), x, y);
}
static inline float vf_reduce_max(vf a)
{
    return vmaxvq_f32(a);
}
static inline vf vf_load_part(const float *p, int n)
{
    float t[4] = {0};
    memcpy(t, p, (size_t)n * 4);
    return vld1q_f32(t);
}
static inline void vf_store_part(float *p, vf a, int n)
{
    float t[4];
    vst1q_f32(t, a);
    memcpy(p, t, (size_t)n * 4);
}
static inline void vf_load2(const float *p, vf *a, vf *b)
{
    float32x4x2_t t = vld2q_f32(p);
    *a = t.val[0];
    *b = t.val[1];
}
static inline vf vf_swap(vf a, int step)
{
    return step == 1 ? vrev64q_f32(a) : vextq_f32(a, a, 2);
}
static inline void vf_store2(float *p, vf a, vf b)
{
    vst2q_f32(p, (float32x4x2_t){{a, b}});
}
static inline void vf_store_f16(uint16_t *p, vf a)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
static inline void vf_store_bf16(uint16_t *p, vf a)
{
    uint32x4_t b = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(vaddq_u32(b, vdupq_n_u32(0x7fff)), odd);
    up = vbslq_u32(vceqq_f32(a, a), up, vorrq_u32(b, vdupq_n_u32(0x400000)));
    vst1_u16(p, vshrn_n_u32(up, 16));
}

typedef uint32x4_t vu;
static inline vu vu_load_u8(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    uint8x8_t b = vreinterpret_u8_u32(vdup_n_u32(w));
    return vmovl_u16(vget_low_u16(vmovl_u8(b)));
}
static inline vu vu_field(vu a, int right, int bits, int left)
{
    return vshlq_u32(vandq_u32(vshlq_u32(a, vdupq_n_s32(-right)), vdupq_n_u32((1u << bits) - 1)), vdupq_n_s32(left));
}
static inline vu vu_or(vu a, vu b)
{
    return vorrq_u32(a, b);
}
static inline vf vf_from_vu(vu a)
{
    return vcvtq_f32_u32(a);
}
struct vf_table {
    uint8x16x4_t part[2];
    int n;
};
static inline struct vf_table vf_table_load(const float *x, int n)
{
    struct vf_table r = {.n = n};
    for (int i = 0; i < 8; i++)
        r.part[i / 4].val[i % 4] = vreinterpretq_u8_f32(vld1q_f32(x + 4 * i));
    return r;
}
/* The four bytes of each float, one table lookup each. */
static inline vf vf_table_get(const struct vf_table *t, vu i)
{
    uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), i, 0x04040404);
    uint8x16_t b = vreinterpretq_u8_u32(at), r = vqtbl4q_u8(t->part[0], b);
    if (t->n > 16)
        r = vqtbx4q_u8(r, t->part[1], vsubq_u8(b, vdupq_n_u8(64)));
    return vreinterpretq_f32_u8(r);
}
static inline vf vf_from_e4m3(const uint8_t *p)
{
    uint32x4_t b = vu_load_u8(p);
    uint32x4_t v =
        vorrq_u32(vshlq_n_u32(vandq_u32(b, vdupq_n_u32(0x7f)), 20), vshlq_n_u32(vandq_u32(b, vdupq_n_u32(0x80)), 24));
    return vmulq_f32(vreinterpretq_f32_u32(v), vdupq_n_f32(0x1p120f));
}

#else
#error "no vector type for this instruction set"
#endif

/* Element types of two bytes, in part. */
static inline vf vf_load_f16_part(const uint16_t *p, int n)
{
    uint16_t t[VF_LANES] = {0};
    memcpy(t, p, (size_t)n * 2);
    return vf_load_f16(t);
}
static inline vf vf_load_bf16_part(const uint16_t *p, int n)
{
    uint16_t t[VF_LANES] = {0};
    memcpy(t, p, (size_t)n * 2);
    return vf_load_bf16(t);
}
static inline void vf_store_f16_part(uint16_t *p, vf a, int n)
{
    uint16_t t[VF_LANES];
    vf_store_f16(t, a);
    memcpy(p, t, (size_t)n * 2);
}
static inline void vf_store_bf16_part(uint16_t *p, vf a, int n)
{
    uint16_t t[VF_LANES];
    vf_store_bf16(t, a);
    memcpy(p, t, (size_t)n * 2);
}

#endif
