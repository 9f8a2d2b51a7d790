/* GGUF formats of 256 inputs per block with two levels of scales ("K" family
 * and iq4_xs). Bytes of a block, in order:
 *
 *     q2_k    16 scales (low nibble) and minima (high), 64 codes, d, dmin
 *     q3_k    32 high bits, 64 low bits, 12 scales of 6 bits, d
 *     q4_k    d, dmin, 12 scales and minima of 6 bits, 128 codes
 *     q5_k    d, dmin, 12 scales and minima of 6 bits, 32 high bits, 128 codes
 *     q6_k    128 low nibbles, 64 high pairs, 16 scales, d
 *     iq4_xs  d, 2 high bits of scales, 4 low nibbles of scales, 128 codes
 *
 * Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h */
#include <string.h>

#include "base/fp.h"
#include "quant/quant_formats.h"

enum { INPUTS = 256, Q2_K = 84, Q3_K = 110, Q4_K = 144, Q5_K = 176, Q6_K = 210, IQ4_XS = 136 };

static inline const uint8_t *block_at(const struct quant_view *v, int64_t r, int64_t b, int bytes)
{
    return quant_row(v, r) + b * bytes;
}

/* 32 bytes of four 2-bit codes to 128 codes: input 32 j + i has bits 2j of
 * byte i. */
static inline void split_pairs(const uint8_t *restrict b, uint8_t *restrict out)
{
    for (int i = 0; i < 32; i++) {
        out[i] = b[i] & 3;
        out[i + 32] = b[i] >> 2 & 3;
        out[i + 64] = b[i] >> 4 & 3;
        out[i + 96] = b[i] >> 6;
    }
}

/* 32 bytes of two nibbles to 64 codes. */
static inline void split_nibbles(const uint8_t *restrict b, uint8_t *restrict out)
{
    for (int i = 0; i < 32; i++)
        out[i] = b[i] & 15;
    for (int i = 0; i < 32; i++)
        out[i + 32] = b[i] >> 4;
}

/* Bit j of byte i sets `bit` in code 32 j + i, for 256 codes. */
static inline void add_high_bits(const uint8_t *restrict high, uint8_t *restrict out, uint8_t bit)
{
    for (int j = 0; j < 8; j++) {
        uint8_t mask = (uint8_t)(1u << j);
        for (int i = 0; i < 32; i++)
            out[32 * j + i] |= (high[i] & mask) ? bit : 0;
    }
}

void quant_codes_q2_k(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = block_at(v, r, k0 / INPUTS, Q2_K);
    for (int64_t i = 0; i < n; i += INPUTS, b += Q2_K) {
        split_pairs(b + 16, out + i);
        split_pairs(b + 48, out + i + 128);
    }
}

void quant_codes_q3_k(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = block_at(v, r, k0 / INPUTS, Q3_K);
    for (int64_t i = 0; i < n; i += INPUTS, b += Q3_K) {
        split_pairs(b + 32, out + i);
        split_pairs(b + 64, out + i + 128);
        add_high_bits(b, out + i, 4);
    }
}

void quant_codes_q4_k(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = block_at(v, r, k0 / INPUTS, Q4_K);
    for (int64_t i = 0; i < n; i += INPUTS, b += Q4_K)
        for (int c = 0; c < 4; c++)
            split_nibbles(b + 16 + 32 * c, out + i + 64 * c);
}

void quant_codes_q5_k(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = block_at(v, r, k0 / INPUTS, Q5_K);
    for (int64_t i = 0; i < n; i += INPUTS, b += Q5_K) {
        for (int c = 0; c < 4; c++)
            split_nibbles(b + 48 + 32 * c, out + i + 64 * c);
        add_high_bits(b + 16, out + i, 16);
    }
}

/* 128 codes: 64 bytes of low nibbles, 32 of high pairs. */
static inline void join_6_bits(const uint8_t *restrict low, const uint8_t *restrict high, uint8_t *restrict out)
{
    for (int i = 0; i < 32; i++) {
        out[i] = (low[i] & 15) | (uint8_t)(high[i] << 4 & 0x30);
        out[i + 32] = (low[i + 32] & 15) | (uint8_t)(high[i] << 2 & 0x30);
        out[i + 64] = low[i] >> 4 | (high[i] & 0x30);
        out[i + 96] = low[i + 32] >> 4 | (high[i] >> 2 & 0x30);
    }
}

void quant_codes_q6_k(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = block_at(v, r, k0 / INPUTS, Q6_K);
    for (int64_t i = 0; i < n; i += INPUTS, b += Q6_K) {
        join_6_bits(b, b + 128, out + i);
        join_6_bits(b + 64, b + 160, out + i + 128);
    }
}

/* Nibbles of 16 bytes, low ones first, per 32 inputs. */
void quant_codes_iq4_xs(const struct quant_view *v, int64_t r, int64_t k0, int64_t n, uint8_t *out)
{
    const uint8_t *b = block_at(v, r, k0 / INPUTS, IQ4_XS);
    for (int64_t i = 0; i < n; i += INPUTS, b += IQ4_XS)
        for (int c = 0; c < 8; c++) {
            const uint8_t *restrict q = b + 8 + 16 * c;
            uint8_t *restrict o = out + i + 32 * c;
            for (int j = 0; j < 16; j++) {
                o[j] = q[j] & 15;
                o[j + 16] = q[j] >> 4;
            }
        }
}

void quant_levels_q2_k(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out)
{
    const uint8_t *p = block_at(v, r, b, Q2_K);
    out->d = load_u16(p + 80);
    out->dmin = load_u16(p + 82);
    for (int g = 0; g < 16; g++) {
        out->sc[g] = (int8_t)(p[g] & 15);
        out->mn[g] = p[g] >> 4;
    }
}

/* Scale g: low nibble from byte g % 8, high pair from byte 8 + g % 4. */
void quant_levels_q3_k(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out)
{
    const uint8_t *p = block_at(v, r, b, Q3_K), *s = p + 96;
    *out = (struct quant_levels){.d = load_u16(p + 108)};
    for (int g = 0; g < 16; g++) {
        int low = s[g % 8] >> 4 * (g / 8) & 15, high = s[8 + g % 4] >> 2 * (g / 4) & 3;
        out->sc[g] = (int8_t)((low | high << 4) - 32);
    }
}

/* q4_k and q5_k. The first four scales and minima are the low six bits of
 * bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 and their
 * high pairs on top of the first eight bytes. */
static void levels_6_bits(const uint8_t *p, struct quant_levels *out)
{
    const uint8_t *s = p + 4;
    *out = (struct quant_levels){.d = load_u16(p), .dmin = load_u16(p + 2)};
    for (int g = 0; g < 4; g++) {
        out->sc[g] = (int8_t)(s[g] & 63);
        out->mn[g] = s[g + 4] & 63;
        out->sc[g + 4] = (int8_t)((s[g + 8] & 15) | (s[g] >> 2 & 0x30));
        out->mn[g + 4] = (uint8_t)(s[g + 8] >> 4 | (s[g + 4] >> 2 & 0x30));
    }
}

void quant_levels_q4_k(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out)
{
    levels_6_bits(block_at(v, r, b, Q4_K), out);
}

void quant_levels_q5_k(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out)
{
    levels_6_bits(block_at(v, r, b, Q5_K), out);
}

void quant_levels_q6_k(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out)
{
    const uint8_t *p = block_at(v, r, b, Q6_K);
    *out = (struct quant_levels){.d = load_u16(p + 208)};
    memcpy(out->sc, p + 192, 16);
}

void quant_levels_iq4_xs(const struct quant_view *v, int64_t r, int64_t b, struct quant_levels *out)
{
    const uint8_t *p = block_at(v, r, b, IQ4_XS);
    unsigned high = load_u16(p + 2);
    *out = (struct quant_levels){.d = load_u16(p)};
    for (int g = 0; g < 8; g++)
        out->sc[g] = (int8_t)(((p[4 + g / 2] >> 4 * (g & 1) & 15) | (int)(high >> 2 * g & 3) << 4) - 32);
}
