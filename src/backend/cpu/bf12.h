/* A bf16 matrix in 12 bits per element, without loss.
 *
 * The weights of a few neighbouring rows hardly ever span more than 14 powers of two. So the upper byte of an element,
 * its sign and all but the last bit of its exponent, is one of 16 for nearly all of them, and 4 bits say which. The
 * lower byte stays as it is. The few elements that are elsewhere are zeros in the codes and stand in a list.
 *
 * A panel is 16 rows, lanes [16], inputs in sequence:
 *
 *     tables   [4][16] bytes, of 4 rows each: entry 0 is 0, entries 1 .. 7 follow one another, 8 .. 15 are these with
 *              the sign
 *     blocks   of 32 inputs: 8 vectors of lower bytes, 4 of codes, vector p with quad 2p in the low nibbles and 2p+1
 *              in the high ones; past the last row and column there are zeros
 *     rest     the number of elements that are elsewhere, and they, up to `most`
 *
 * A vector is 64 bytes: a quad of 4 inputs by 16 rows, input i of row r at byte r / 4 * 16 + i * 4 + r % 4. */
#ifndef CPU_BF12_H
#define CPU_BF12_H

#include <stddef.h>
#include <stdint.h>

enum {
    BF12_TABLES = 64, /* bytes */
    BF12_CODES = 512, /* from the start of a block */
    BF12_BLOCK = 768,
    BF12_SUMS = 4 /* of a row: of inputs l, 4 + l, 8 + l ... */
};

struct bf12_element {
    uint32_t col;
    uint16_t row; /* of the panel */
    uint16_t bits;
};

struct bf12_rest {
    uint32_t count, unused;
    struct bf12_element element[];
};

struct bf12_matrix {
    int64_t rows, cols;
    int64_t panels, blocks; /* blocks per panel */
    size_t panel_bytes;
    int most; /* elements that a panel's rest has room for */
    const uint8_t *panel;
};

/* Where a panel's rest is in it. */
static inline size_t bf12_rest_at(const struct bf12_matrix *m)
{
    return BF12_TABLES + (size_t)m->blocks * BF12_BLOCK;
}

static inline const struct bf12_rest *bf12_rest(const struct bf12_matrix *m, const uint8_t *panel)
{
    return (const void *)(panel + bf12_rest_at(m));
}

#endif
