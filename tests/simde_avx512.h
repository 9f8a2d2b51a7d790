/* AVX-512 intrinsics by SIMDe under their own names, so that the kernels can be
 * checked on machines without AVX-512; those that Debian's version of SIMDe does
 * not have are made of two AVX2 halves. Put before a kernel file with
 *
 *     -include tests/simde_avx512.h -DTLM_SIMDE -DTLM_SIMD_AVX512
 *
 * and the flags of AVX2. */
#ifndef TESTS_SIMDE_AVX512_H
#define TESTS_SIMDE_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <string.h>

/* SIMDe has this one, but its alias asks for four arguments. */
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

#define emulated_inline static inline __attribute__((always_inline, unused))

/* Halves, 0 the lower. */
emulated_inline __m256i emulated_half(__m512i a, int half)
{
    __m256i halves[2];
    _mm512_storeu_si512(halves, a);
    return halves[half];
}

emulated_inline __m256 emulated_half_ps(__m512 a, int half)
{
    float lanes[16];
    _mm512_storeu_ps(lanes, a);
    return _mm256_loadu_ps(lanes + 8 * half);
}

emulated_inline __m512i emulated_join(__m256i low, __m256i high)
{
    __m256i halves[2] = {low, high};
    return _mm512_loadu_si512(halves);
}

emulated_inline __m512 emulated_join_ps(__m256 low, __m256 high)
{
    return _mm512_castsi512_ps(emulated_join(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

emulated_inline __m512 emulated_cvtph_ps(__m256i a)
{
    return emulated_join_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                            _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
#define _mm512_cvtph_ps(a) emulated_cvtph_ps(a)

emulated_inline __m256i emulated_cvtps_ph(__m512 a)
{
    __m128i low = _mm256_cvtps_ph(emulated_half_ps(a, 0), _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph(emulated_half_ps(a, 1), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a) /* always to nearest here */

emulated_inline __m512i emulated_cvtps_epi32(__m512 a)
{
    return emulated_join(_mm256_cvtps_epi32(emulated_half_ps(a, 0)), _mm256_cvtps_epi32(emulated_half_ps(a, 1)));
}
#define _mm512_cvtps_epi32(a) emulated_cvtps_epi32(a)

emulated_inline __m512 emulated_cvtepi32_ps(__m512i a)
{
    return emulated_join_ps(_mm256_cvtepi32_ps(emulated_half(a, 0)), _mm256_cvtepi32_ps(emulated_half(a, 1)));
}
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)

emulated_inline __m512i emulated_cvtepu16_epi32(__m256i a)
{
    return emulated_join(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                         _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
}
#define _mm512_cvtepu16_epi32(a) emulated_cvtepu16_epi32(a)

emulated_inline __m512i emulated_cvtepu8_epi16(__m256i a)
{
    return emulated_join(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(a)),
                         _mm256_cvtepu8_epi16(_mm256_extracti128_si256(a, 1)));
}
#define _mm512_cvtepu8_epi16(a) emulated_cvtepu8_epi16(a)

emulated_inline __m512i emulated_cvtepi8_epi32(__m128i a)
{
    return emulated_join(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}
#define _mm512_cvtepi8_epi32(a) emulated_cvtepi8_epi32(a)

emulated_inline __m512i emulated_cvtepu8_epi32(__m128i a)
{
    return emulated_join(_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8)));
}
#define _mm512_cvtepu8_epi32(a) emulated_cvtepu8_epi32(a)

/* Truncation, not saturation. */
emulated_inline __m256i emulated_cvtepi32_epi16(__m512i a)
{
    int32_t wide[16];
    int16_t narrow[16];
    _mm512_storeu_si512(wide, a);
    for (int i = 0; i < 16; i++)
        narrow[i] = (int16_t)(uint16_t)(uint32_t)wide[i];
    return _mm256_loadu_si256((const __m256i *)narrow);
}
#define _mm512_cvtepi32_epi16(a) emulated_cvtepi32_epi16(a)

emulated_inline __m128i emulated_cvtepi32_epi8(__m512i a)
{
    int32_t wide[16];
    int8_t narrow[16];
    _mm512_storeu_si512(wide, a);
    for (int i = 0; i < 16; i++)
        narrow[i] = (int8_t)(uint8_t)(uint32_t)wide[i];
    return _mm_loadu_si128((const __m128i *)narrow);
}
#define _mm512_cvtepi32_epi8(a) emulated_cvtepi32_epi8(a)

emulated_inline __m512i emulated_srai_epi32(__m512i a, unsigned count)
{
    int n = count > 31 ? 31 : (int)count;
    return emulated_join(_mm256_srai_epi32(emulated_half(a, 0), n), _mm256_srai_epi32(emulated_half(a, 1), n));
}
#define _mm512_srai_epi32(a, count) emulated_srai_epi32(a, count)

/* Also in SIMDe, but through exp2f and nearbyintf lane by lane, which takes minutes
 * in the accuracy sweeps. Exact in double, then rounded once. */
emulated_inline __m512 emulated_scalef_ps(__m512 a, __m512 b)
{
    float x[16], n[16];
    _mm512_storeu_ps(x, a);
    _mm512_storeu_ps(n, b);
    for (int i = 0; i < 16; i++) {
        float limited = n[i] > 600 ? 600 : n[i] > -600 ? n[i] : -600;
        int whole = (int)limited - ((float)(int)limited > limited);
        uint64_t bits = (uint64_t)(1023 + whole) << 52;
        double power;
        memcpy(&power, &bits, sizeof power);
        x[i] = n[i] == n[i] ? (float)(x[i] * power) : n[i];
    }
    return _mm512_loadu_ps(x);
}
#undef _mm512_scalef_ps
#define _mm512_scalef_ps(a, b) emulated_scalef_ps(a, b)

/* Whole numbers only: the upper half of `how`, the scale, is 0 in the kernels. */
#define emulated_roundscale_ps(a, how)                                                                                 \
    emulated_join_ps(_mm256_round_ps(emulated_half_ps(a, 0), how), _mm256_round_ps(emulated_half_ps(a, 1), how))
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) emulated_roundscale_ps(a, how)

#undef _mm512_permute_ps
#define _mm512_permute_ps(a, how)                                                                                      \
    emulated_join_ps(_mm256_permute_ps(emulated_half_ps(a, 0), how), _mm256_permute_ps(emulated_half_ps(a, 1), how))

/* Quarters of a, then of b. */
emulated_inline __m512 emulated_shuffle_f32x4(__m512 a, __m512 b, int how)
{
    float from[2][16], to[16];
    _mm512_storeu_ps(from[0], a);
    _mm512_storeu_ps(from[1], b);
    for (int i = 0; i < 4; i++)
        memcpy(to + 4 * i, from[i / 2] + 4 * (how >> 2 * i & 3), 16);
    return _mm512_loadu_ps(to);
}
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, how) emulated_shuffle_f32x4(a, b, how)

/* Lanes that are masked out are neither read nor written: they may lie beyond the last page. */
emulated_inline __m512 emulated_maskz_loadu_ps(__mmask16 mask, const float *p)
{
    float lanes[16] = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            lanes[i] = p[i];
    return _mm512_loadu_ps(lanes);
}
#define _mm512_maskz_loadu_ps(mask, p) emulated_maskz_loadu_ps(mask, p)

emulated_inline void emulated_mask_storeu_ps(float *p, __mmask16 mask, __m512 a)
{
    float lanes[16];
    _mm512_storeu_ps(lanes, a);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            p[i] = lanes[i];
}
#define _mm512_mask_storeu_ps(p, mask, a) emulated_mask_storeu_ps(p, mask, a)

#endif
