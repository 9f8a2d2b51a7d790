/* exp, tanh and erf over simd.h. Minimax polynomials, fitted in double and
 * rounded to float32; largest errors found over all of the stated range:
 *
 *   vf_exp    1.0 ulp; 0 below -104, infinity above 88.73, subnormals kept
 *   vf_tanh   1.3 ulp
 *   vf_erf    2.5 ulp
 *
 * NaN gives NaN. Every lane is computed alike, so a value's result does not
 * depend on its lane. */
#ifndef CPU_SIMD_MATH_H
#define CPU_SIMD_MATH_H

#include "backend/cpu/simd.h"

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; ln 2 in two parts.
 * Gives e^r. */
static inline vf vf_exp_parts(vf x, vf *n)
{
    *n = vf_round(vf_mul(x, vf_set1(0x1.715476p+0f)));
    vf r = vf_fma(*n, vf_set1(-0x1.62e4p-1f), x);
    r = vf_fma(*n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_set1(0x1.6a234ep-10f);
    p = vf_fma(p, r, vf_set1(0x1.123a6cp-7f));
    p = vf_fma(p, r, vf_set1(0x1.5558f4p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555490p-3f));
    p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
    p = vf_fma(p, vf_mul(r, r), r);
    return vf_add(p, vf_set1(1.0f));
}

static inline vf vf_exp(vf x)
{
    vf n, p = vf_exp_parts(vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x)), &n);
    return vf_ldexp(p, n);
}

/* For x <= 0, with fewer steps: the same as vf_exp down to -87, 0 below -87.7. */
static inline vf vf_exp_negative(vf x)
{
    vf n, p = vf_exp_parts(vf_max(vf_set1(-88.0f), x), &n); /* of -88, n is -127 */
    return vf_ldexp_normal(p, n);
}

/* |x| < 0.625: x + x^3 P(x^2); else 1 - 2 / (e^(2|x|) + 1). */
static inline vf vf_tanh(vf x)
{
    vf a = vf_abs(x), t = vf_mul(x, x);
    vf p = vf_set1(-0x1.75e1a8p-8f);
    p = vf_fma(p, t, vf_set1(0x1.522692p-6f));
    p = vf_fma(p, t, vf_set1(-0x1.b83c58p-5f));
    p = vf_fma(p, t, vf_set1(0x1.110726p-3f));
    p = vf_fma(p, t, vf_set1(-0x1.555532p-2f));
    p = vf_fma(vf_mul(p, t), a, a);
    vf e = vf_add(vf_exp(vf_add(a, a)), vf_set1(1.0f));
    vf q = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), e));
    return vf_copysign(vf_select_lt(a, vf_set1(0.625f), p, q), x);
}

/* |x| < 1: x P(x^2); else 1 - e^-Q(|x|), Q fitted to -log(erfc) up to 4. */
static inline vf vf_erf(vf x)
{
    vf a = vf_abs(x), t = vf_mul(x, x);
    vf p = vf_set1(0x1.496a26p-14f);
    p = vf_fma(p, t, vf_set1(-0x1.a3f6fcp-11f));
    p = vf_fma(p, t, vf_set1(0x1.5405b2p-8f));
    p = vf_fma(p, t, vf_set1(-0x1.b7f90cp-6f));
    p = vf_fma(p, t, vf_set1(0x1.ce2cf8p-4f));
    p = vf_fma(p, t, vf_set1(-0x1.81273ep-2f));
    p = vf_fma(p, t, vf_set1(0x1.20dd74p+0f));
    p = vf_mul(p, a);
    vf b = vf_min(vf_set1(4.0f), a);
    vf q = vf_set1(-0x1.651fcap-13f);
    q = vf_fma(q, b, vf_set1(0x1.6eec04p-9f));
    q = vf_fma(q, b, vf_set1(-0x1.5cae4ap-6f));
    q = vf_fma(q, b, vf_set1(0x1.a1ddf0p-4f));
    q = vf_fma(q, b, vf_set1(0x1.47549ap-1f));
    q = vf_fma(q, b, vf_set1(0x1.205dacp+0f));
    q = vf_fma(q, b, vf_set1(0x1.029b90p-11f));
    q = vf_sub(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), q)));
    return vf_copysign(vf_select_lt(a, vf_set1(1.0f), p, q), x);
}

#endif
