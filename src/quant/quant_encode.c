/* Scales and codes of MLX's formats.
 *
 * Affine, N = 2^bits - 1, all in float32:
 *     s = max((max - min) / N, 1e-7), e = min   when |min| > |max|
 *     s = -the same,                  e = max   else
 *     q0 = round(e / s);  when q0 != 0: s = e / q0, b = e;  else b = 0
 *     q = clip(round((w - b) / s), 0, N);  then s and b are rounded to the type
 * mxfp4, mxfp8: m = max|w| / 6 or / 448 in the row's type, n = ceil(log2 m), byte
 *     n + 127, codes of w / 2^n in the row's type. A group of zeros has byte 127.
 *     (mlx up to 0.32.2 took the nearest exponent, which clipped the largest.)
 * nvfp4: byte = e4m3(m), codes of w / byte in the row's type; all 0 when the byte is 0.
 *
 * Where a group's scale lies below 2^-127, mlx lets its byte wrap round and
 * the group decodes to something huge; here the byte is 0. */
#include "quant/quant_encode.h"

#include <math.h>
#include <string.h>

#include "base/fp.h"
#include "quant/turbo.h"

enum { GROUP_MAX = 128 };

static const struct {
    const char *name;
    int bits, group;
} modes[] = {
    [QUANT_AFFINE] = {"affine", 4, 64}, [QUANT_MXFP4] = {"mxfp4", 4, 32}, [QUANT_NVFP4] = {"nvfp4", 4, 16},
    [QUANT_MXFP8] = {"mxfp8", 8, 32},   [QUANT_TURBO] = {"turbo", 4, 32}, [QUANT_LUT] = {"lut", 4, 64},
};

const char *quant_mode_name(enum quant_mode mode)
{
    return modes[mode].name;
}

static enum tlm_status check_affine(const struct quant_params *p, struct tlm_error *e)
{
    if (p->group != 32 && p->group != 64 && p->group != 128)
        return err_set(e, TLM_EINVAL,
                       "[quantize] The requested group size %d is not supported. The supported group sizes are 32, 64, "
                       "and 128.",
                       p->group);
    if (p->bits < 2 || p->bits > 8 || p->bits == 7)
        return err_set(e, TLM_EINVAL,
                       "[quantize] The requested number of bits %d is not supported. The supported bits are 2, 3, 4, "
                       "5, 6 and 8.",
                       p->bits);
    return TLM_OK;
}

static enum tlm_status check_lut(const struct quant_params *p, struct tlm_error *e)
{
    if (p->bits != 2 && p->bits != 4 && p->bits != 8)
        return err_set(e, TLM_EINVAL, "mode lut: %d bits, expected 2, 4 or 8", p->bits);
    if (p->group % 8 != 0 || p->group * p->bits % 32 != 0 || p->group > TURBO_LUT_GROUP_MAX)
        return err_set(e, TLM_EINVAL, "mode lut: groups of %d, expected a multiple of %d up to %d", p->group,
                       p->bits == 2 ? 16 : 8, TURBO_LUT_GROUP_MAX);
    return TLM_OK;
}

enum tlm_status quant_params_set(struct quant_params *p, const char *mode, int bits, int group, struct tlm_error *e)
{
    size_t i = 0, n = sizeof modes / sizeof modes[0];
    while (i < n && strcmp(modes[i].name, mode))
        i++;
    if (i == n)
        return err_set(e, TLM_EINVAL, "[quantize] Invalid quantization mode '%s'.", mode);
    *p = (struct quant_params){(enum quant_mode)i, bits ? bits : modes[i].bits, group ? group : modes[i].group, 0};
    if (p->mode == QUANT_AFFINE || p->mode == QUANT_TURBO) /* the same groups and bits */
        return check_affine(p, e);
    if (p->mode == QUANT_LUT)
        return check_lut(p, e);
    if (p->group != modes[i].group)
        return err_set(e, TLM_EINVAL, "[quantize] %s quantization requires group size %d but got %d.", mode,
                       modes[i].group, p->group);
    if (p->bits != modes[i].bits)
        return err_set(e, TLM_EINVAL, "[quantize] %s quantization requires bits to be %d but got %d.", mode,
                       modes[i].bits, p->bits);
    return TLM_OK;
}

enum dtype quant_params_scale_type(const struct quant_params *p, enum dtype type)
{
    return p->mode == QUANT_AFFINE || p->mode == QUANT_LUT ? type : p->mode == QUANT_TURBO ? DT_BF16 : DT_U8;
}

float quant_round(enum dtype type, float x)
{
    return type == DT_BF16 ? fp_from_bf16(fp_to_bf16(x)) : type == DT_F16 ? fp_from_f16(fp_to_f16(x)) : x;
}

void quant_store(enum dtype type, const float *x, int64_t n, void *out)
{
    uint8_t *p = out;
    if (type == DT_F32) {
        memcpy(out, x, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = type == DT_BF16 ? fp_to_bf16(x[i]) : fp_to_f16(x[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}

bool quant_holds(enum dtype type, const float *x, int64_t n, bool finite)
{
    /* The least value that rounds to infinity; of negative ones as of positive. */
    const uint32_t infinity = 0x7f800000u, least = type == DT_F16    ? 0x477ff000u
                                                   : type == DT_BF16 ? 0x7f7f8000u
                                                                     : infinity;
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = fp_bits(x[i]) & 0x7fffffffu;
        bad |= (size >= least) & ((size < infinity) | finite);
    }
    return !bad;
}

/* In lanes, so that compilers use wide instructions. */
enum { LANES = 8 };

static bool all_finite(const float *w, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= (fp_bits(w[i]) & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static void range_of(const float *w, int n, float *lo, float *hi)
{
    float low[LANES], high[LANES];
    for (int j = 0; j < LANES; j++)
        low[j] = high[j] = w[j];
    for (int i = LANES; i < n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            low[j] = w[i + j] < low[j] ? w[i + j] : low[j];
            high[j] = w[i + j] > high[j] ? w[i + j] : high[j];
        }
    *lo = low[0];
    *hi = high[0];
    for (int j = 1; j < LANES; j++) {
        *lo = low[j] < *lo ? low[j] : *lo;
        *hi = high[j] > *hi ? high[j] : *hi;
    }
}

/* Codes of one group into its part of the bit stream, first code lowest. */
static void pack(const uint32_t *q, int n, int bits, uint8_t *out)
{
    for (int i = 0; i < n; i += 8, out += bits) {
        uint64_t x = 0;
        for (int j = 0; j < 8; j++)
            x |= (uint64_t)q[i + j] << (j * bits);
        for (int j = 0; j < bits; j++)
            out[j] = (uint8_t)(x >> (8 * j));
    }
}

static void affine_group(const float *w, int n, int bits, uint8_t *codes, float *scale, float *bias)
{
    const float levels = (float)((1 << bits) - 1), magic = 0x1.8p23f; /* adding it rounds to even */
    float lo, hi, b = 0;
    uint32_t q[GROUP_MAX];
    range_of(w, n, &lo, &hi);
    bool low = fabsf(lo) > fabsf(hi);
    float s = (hi - lo) / levels, edge = low ? lo : hi;
    s = s < 1e-7f ? 1e-7f : s;
    s = low ? s : -s;
    float q0 = rintf(edge / s);
    if (q0 != 0) {
        s = edge / q0;
        b = edge;
    }
    for (int i = 0; i < n; i++) {
        float x = (w[i] - b) / s;
        x = x < 0 ? 0 : x;
        x = x > levels ? levels : x;
        q[i] = fp_bits(x + magic) & 0xff;
    }
    pack(q, n, bits, codes);
    *scale = s;
    *bias = b;
}

static void encode_affine(const struct quant_params *p, enum dtype type, const float *w, int64_t n, uint8_t *codes,
                          uint8_t *scales, uint8_t *biases)
{
    size_t size = dtype_size(type);
    for (int64_t i = 0; i < n; i += p->group, scales += size, biases += size) {
        float s, b;
        affine_group(w + i, p->group, p->bits, codes + i / 8 * p->bits, &s, &b);
        quant_store(type, &s, 1, scales);
        quant_store(type, &b, 1, biases);
    }
}

/* Ties go to the smaller magnitude, as with the nearest entry of a table; there is no -0. */
static uint32_t to_e2m1(float x)
{
    float a = fabsf(x);
    uint32_t m = (uint32_t)(a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
    return m | (uint32_t)(x < 0 && m) << 3;
}

static float largest(const float *w, int n)
{
    float lo, hi;
    range_of(w, n, &lo, &hi);
    return fabsf(lo) > fabsf(hi) ? fabsf(lo) : fabsf(hi);
}

static void encode_nvfp4(enum dtype type, const float *w, int64_t n, uint8_t *codes, uint8_t *scales)
{
    uint32_t q[16];
    for (int64_t i = 0; i < n; i += 16) {
        uint8_t byte = fp_to_e4m3(quant_round(type, largest(w + i, 16) / 6));
        float s = fp_from_e4m3(byte);
        for (int j = 0; j < 16; j++)
            q[j] = s == 0 ? 0 : to_e2m1(quant_round(type, w[i + j] / s));
        pack(q, 16, 4, codes + i / 2);
        scales[i / 16] = byte;
    }
}

static void encode_mx(const struct quant_params *p, enum dtype type, const float *w, int64_t n, uint8_t *codes,
                      uint8_t *scales)
{
    uint32_t q[32];
    for (int64_t i = 0; i < n; i += 32) {
        float m = quant_round(type, largest(w + i, 32) / (p->bits == 4 ? 6.0f : 448.0f));
        int e = 0;
        if (m != 0 && frexpf(m, &e) == 0.5f)
            e--;
        e = e < -127 ? -127 : e;
        float s = ldexpf(1, e);
        for (int j = 0; j < 32; j++) {
            float x = quant_round(type, w[i + j] / s);
            q[j] = p->bits == 4 ? to_e2m1(x) : fp_to_e4m3(x);
        }
        pack(q, 32, p->bits, codes + i / 8 * p->bits);
        scales[i / 32] = (uint8_t)(e + 127);
    }
}

bool quant_encode(const struct quant_params *p, enum dtype type, const float *w, int64_t n, uint8_t *codes,
                  void *scales, void *biases)
{
    if (!all_finite(w, n))
        return false;
    if (p->mode == QUANT_AFFINE)
        encode_affine(p, type, w, n, codes, scales, biases);
    else if (p->mode == QUANT_NVFP4)
        encode_nvfp4(type, w, n, codes, scales);
    else
        encode_mx(p, type, w, n, codes, scales);
    return true;
}
