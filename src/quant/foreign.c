/* Layouts of other quantisers' checkpoints. Q is the stored matrix, n inputs, m
 * outputs, b bits; words are little-endian uint32, so a column or row of them is
 * one stream of codes, first code in the lowest bits.
 *
 *     gptq    Q [n b / 32, m]: down each column the stream of an output's codes;
 *             zero points [groups, m b / 32]: a stream of outputs, stored less 1
 *             (v1) or as they are (v2)
 *     awq     Q [n, m / 8], zero points [groups, m / 8]: a word holds outputs
 *             8 j + {0, 2, 4, 6, 1, 3, 5, 7} from its lowest nibble on
 *     awq4v   Q [m, n / 8] and zero points [m, .]: streams of inputs and groups
 *     packed  Q [m, n b / 32]: streams of inputs; zero points [m b / 32, groups]:
 *             down each column a stream of outputs
 *     bitnet  Q [m / 4, n] bytes: output i m / 4 + j in bits 2 i, 2 i + 1 of row j
 *
 * w = (q - zero) s. The scales of gptq and awq are [groups, m].
 *
 * With act order the codes of gptq and packed lie in the order of the inputs, and
 * groups are of inputs anywhere: column k of the view is then input order[k]. */
#include <string.h>

#include "quant/quant_formats.h"

/* Where output r % 8 lies in a word of awq. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

void quant_codes_awq(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const unsigned place = awq_place[r & 7], shift = place % 2 * 4;
    const uint8_t *restrict p = (const uint8_t *)v->data + (size_t)k0 * v->stride + r / 8 * 4 + place / 2;
    for (int64_t i = 0; i < n; i++, p += v->stride)
        out[i] = *p >> shift & 15;
}

/* 32 codes are `bits` words of a column. */
static inline void column_codes(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *restrict out,
                                unsigned bits)
{
    const uint8_t *restrict p = (const uint8_t *)v->data + (size_t)(k0 / 32) * bits * v->stride + r * 4;
    for (int64_t i = 0; i < n; i += 32) {
        uint8_t words[32];
        for (unsigned w = 0; w < bits; w++, p += v->stride)
            memcpy(words + w * 4, p, 4);
        if (bits == 8)
            memcpy(out + i, words, 32);
        else
            for (unsigned k = 0; k < 4; k++) {
                uint64_t x = quant_spread(quant_load(words + k * bits, bits), bits);
                memcpy(out + i + k * 8, &x, 8);
            }
    }
}

/* Code i of a stream. */
static inline unsigned stream_code(const uint8_t *p, int64_t i, unsigned bits)
{
    const int64_t bit = i * bits;
    const unsigned shift = bit & 7;
    unsigned x = p[bit / 8];
    if (shift + bits > 8)
        x |= (unsigned)p[bit / 8 + 1] << 8;
    return x >> shift & ((1u << bits) - 1);
}

static const int32_t *order_of(const struct quant_view *v)
{
    return v->input ? v->input->order : NULL;
}

/* Codes of inputs in any order; bytes of a column's stream are in fours. */
static void column_codes_ordered(const struct quant_view *v, int64_t r, const int32_t *order, int64_t n, uint8_t *out)
{
    const unsigned bits = v->format->bits, mask = (1u << bits) - 1;
    const uint8_t *column = (const uint8_t *)v->data + r * 4;
    for (int64_t k = 0; k < n; k++) {
        const int64_t bit = (int64_t)order[k] * bits;
        const unsigned shift = bit & 31;
        const uint8_t *p = column + (size_t)(bit / 32) * v->stride;
        uint32_t x = load_u32(p) >> shift;
        if (shift + bits > 32)
            x |= load_u32(p + v->stride) << (32 - shift);
        out[k] = (uint8_t)(x & mask);
    }
}

static inline void gptq_codes(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out, int bits)
{
    if (order_of(v))
        column_codes_ordered(v, r, order_of(v) + k0, n, out);
    else
        column_codes(v, r, k0, n, out, bits);
}

void quant_codes_gptq2(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    gptq_codes(v, r, k0, n, out, 2);
}

void quant_codes_gptq3(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    gptq_codes(v, r, k0, n, out, 3);
}

void quant_codes_gptq4(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    gptq_codes(v, r, k0, n, out, 4);
}

void quant_codes_gptq8(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    gptq_codes(v, r, k0, n, out, 8);
}

static void row_codes_ordered(const struct quant_view *v, int64_t r, const int32_t *order, int64_t n, uint8_t *out)
{
    for (int64_t k = 0; k < n; k++)
        out[k] = (uint8_t)stream_code(quant_row(v, r), order[k], v->format->bits);
}

void quant_codes_packed4(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    if (order_of(v))
        row_codes_ordered(v, r, order_of(v) + k0, n, out);
    else
        quant_codes_affine4(v, r, k0, n, out);
}

void quant_codes_packed8(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    if (order_of(v))
        row_codes_ordered(v, r, order_of(v) + k0, n, out);
    else
        quant_codes_bytes(v, r, k0, n, out);
}

void quant_codes_bitnet(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const int64_t stored = v->rows / 4;
    const unsigned shift = (unsigned)(r / stored) * 2;
    const uint8_t *restrict p = (const uint8_t *)v->data + (size_t)(r % stored) * v->stride + k0;
    for (int64_t i = 0; i < n; i++)
        out[i] = p[i] >> shift & 3;
}

/* Offsets of groups whose zero points are codes of streams: group g is code
 * index + g * step of stream line + g * (1 - step). Without zero points they
 * are the middle code. */
static void zero_offsets(const struct quant_view *v, int64_t line, int64_t index, int step, int64_t g0, int64_t n,
                         const float *scale, float *offset)
{
    const unsigned bits = v->format->bits, mask = (1u << bits) - 1;
    for (int64_t g = g0; g < g0 + n; g++) {
        unsigned zero = 1u << (bits - 1);
        if (v->zeros) {
            const uint8_t *p = (const uint8_t *)v->zeros + (size_t)(line + g * (1 - step)) * v->zero_row_bytes;
            zero = (stream_code(p, index + g * step, bits) + (unsigned)v->zero_add) & mask;
        }
        offset[g - g0] = -((float)zero * scale[g - g0]);
    }
}

void quant_scales_gptq(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    quant_scales_tensor(v, r, g0, n, scale, offset);
    zero_offsets(v, 0, r, 0, g0, n, scale, offset);
}

void quant_scales_awq(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    quant_scales_tensor(v, r, g0, n, scale, offset);
    zero_offsets(v, 0, r / 8 * 8 + awq_place[r & 7], 0, g0, n, scale, offset);
}

void quant_scales_awq_rows(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    quant_scales_tensor(v, r, g0, n, scale, offset);
    zero_offsets(v, r, 0, 1, g0, n, scale, offset);
}

/* 4 or 8 bits: no code lies in two words. A column's next word is a row on. */
void quant_scales_packed(const struct quant_view *v, int64_t r, int64_t g0, int64_t n, float *scale, float *offset)
{
    const unsigned bits = v->format->bits, per_word = 32 / bits;
    const uint8_t *word = (const uint8_t *)v->zeros + (size_t)(r / per_word) * v->zero_row_bytes;
    quant_scales_tensor(v, r, g0, n, scale, offset);
    for (int64_t i = 0; i < n; i++) {
        unsigned zero = stream_code(word + (g0 + i) * 4, r % per_word, bits);
        offset[i] = -((float)zero * scale[i]);
    }
}
