/* AVX-512 intrinsics in terms of narrower ones, so that kernels for AVX-512 can
 * be checked on machines without it. Put before a kernel file with
 *
 *     -include tests/simde_avx512.h -DTLM_SIMDE -DTLM_SIMD_AVX512
 *
 * and the flags of AVX2. SIMDe has most; those that its
 * releases lack are here. */
#ifndef TESTS_SIMDE_AVX512_H
#define TESTS_SIMDE_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <string.h>

static inline simde__m512 emulated_cvtph_ps(simde__m256i a)
{
    float t[16];
    _mm256_storeu_ps(t, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
    _mm256_storeu_ps(t + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
    return simde_mm512_loadu_ps(t);
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) emulated_cvtph_ps(a)

static inline simde__m256i emulated_cvtps_ph(simde__m512 a)
{
    float t[16];
    simde_mm512_storeu_ps(t, a);
    __m128i lo = _mm256_cvtps_ph(_mm256_loadu_ps(t), _MM_FROUND_TO_NEAREST_INT);
    __m128i hi = _mm256_cvtps_ph(_mm256_loadu_ps(t + 8), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)

static inline simde__m512i emulated_cvtepu16_epi32(simde__m256i a)
{
    int32_t t[16];
    _mm256_storeu_si256((__m256i *)t, _mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)));
    _mm256_storeu_si256((__m256i *)(t + 8), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
    return simde_mm512_loadu_si512(t);
}
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(a) emulated_cvtepu16_epi32(a)

static inline simde__m256i emulated_cvtepi32_epi16(simde__m512i a)
{
    int32_t t[16];
    uint16_t h[16];
    simde_mm512_storeu_si512(t, a);
    for (int i = 0; i < 16; i++)
        h[i] = (uint16_t)t[i];
    return _mm256_loadu_si256((const __m256i *)h);
}
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16(a) emulated_cvtepi32_epi16(a)

static inline simde__m512 emulated_maskz_loadu_ps(unsigned mask, const float *p)
{
    float t[16] = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            t[i] = p[i];
    return simde_mm512_loadu_ps(t);
}
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, p) emulated_maskz_loadu_ps(mask, p)

static inline void emulated_mask_storeu_ps(float *p, unsigned mask, simde__m512 a)
{
    float t[16];
    simde_mm512_storeu_ps(t, a);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            p[i] = t[i];
}
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(p, mask, a) emulated_mask_storeu_ps(p, mask, a)

#endif
