/* Small floating-point formats, one value at a time. Scalar definitions; the
 * kernels have their own wide forms.
 * f16: IEEE binary16. bf16: the upper half of binary32. e4m3: OCP FP8 E4M3
 * (no infinities, NaN 0x7f, largest 448). e8m0: OCP MX scale, 2^(b-127), NaN
 * 0xff. e2m1: OCP FP4. */
#ifndef BASE_FP_H
#define BASE_FP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float fp_from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static inline uint32_t fp_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

static inline float fp_from_bf16(uint16_t h)
{
    return fp_from_bits((uint32_t)h << 16);
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t fp_to_bf16(float f)
{
    uint32_t b = fp_bits(f);
    if ((b & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static inline float fp_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) /* infinity, NaN */
        return fp_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return fp_from_bits(sign | ((rest << 13) + 0x38000000));
    float sub = (float)rest * 0x1p-24f; /* exact */
    return fp_from_bits(sign | fp_bits(sub));
}

/* Round to nearest even; overflow gives infinity. */
static inline uint16_t fp_to_f16(float f)
{
    uint32_t b = fp_bits(f), sign = b >> 16 & 0x8000;
    b &= 0x7fffffff;
    if (b > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (b >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (b < 0x38800000) {                 /* below 2^-14: subnormal or zero */
        float m = fp_from_bits(b) + 0.5f; /* rounds at 2^-24, to even */
        return (uint16_t)(sign | (fp_bits(m) - 0x3f000000));
    }
    return (uint16_t)(sign | (((b + 0xfff + (b >> 13 & 1)) >> 13) - 0x1c000));
}

static inline float fp_from_e4m3(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80) << 24, e = b >> 3 & 15, m = b & 7;
    if (e == 15 && m == 7)
        return fp_from_bits(sign | 0x7fc00000);
    if (e == 0)
        return fp_from_bits(sign | fp_bits((float)m * 0x1p-9f));
    return fp_from_bits(sign | (e + 120) << 23 | m << 20);
}

/* Round to nearest even; beyond 448 saturates; NaN stays NaN. */
static inline uint8_t fp_to_e4m3(float f)
{
    uint32_t b = fp_bits(f), sign = b >> 24 & 0x80;
    b &= 0x7fffffff;
    if (b > 0x7f800000)
        return (uint8_t)(sign | 0x7f);
    if (b >= 0x43e00000) /* 448 */
        return (uint8_t)(sign | 0x7e);
    if (b < 0x3c800000) {                    /* below 2^-6: subnormal or zero */
        float m = fp_from_bits(b) + 0x1p14f; /* rounds at 2^-9, to even */
        return (uint8_t)(sign | (fp_bits(m) - 0x46800000));
    }
    return (uint8_t)(sign | (((b + 0x7ffff + (b >> 20 & 1)) >> 20) - 0x3c0));
}

static inline float fp_from_e5m2(uint8_t b)
{
    return fp_from_f16((uint16_t)(b << 8));
}

static inline float fp_from_e8m0(uint8_t b)
{
    if (b == 0xff)
        return fp_from_bits(0x7fc00000);
    return b ? fp_from_bits((uint32_t)b << 23) : 0x1p-127f;
}

static inline float fp_from_e2m1(uint8_t b)
{
    static const float value[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    return b & 8 ? -value[b & 7] : value[b & 7];
}

/* Little-endian loads from unaligned bytes. The hosts we run on are
 * little-endian; checked at build. */
static inline uint16_t load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline uint32_t load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint64_t load_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline float load_f16(const void *p)
{
    return fp_from_f16(load_u16(p));
}

#endif
