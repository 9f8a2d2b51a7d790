/* The packed form of a quantised weight matrix: panels of 16 output rows, each
 * one forward stream over the inputs.
 *
 * A panel is a run of units of `unit` inputs. A unit is, in this order,
 *
 *     PLAIN, OFFSET   scales[unit / group or 1][16], offsets likewise (OFFSET),
 *                     elements of scale_type
 *     LEVELS          d[16] f16, sc[256 / group][16] int8
 *     LEVELS_MIN      d[16] f16, -dmin[16] f16, then for groups of 32
 *                     sc[8][16], mn[8][16] uint8; for groups of 16
 *                     (sc | mn << 4)[16][16], both below 16
 *     codes           one block per 32 inputs
 *
 * where lanes [16] are the rows. A unit is 256 inputs for the LEVELS kinds,
 * else max(32, group). Inputs past the last column and rows past the last row
 * are zero codes under zero scales.
 *
 * A block of codes is 8 quads of 4 inputs by 16 rows. A quad vector is 64
 * bytes, row r at bytes 4r .. 4r+3. Planes of fewer bits share vectors:
 *
 *     4 bits   4 vectors; vector p: quad 2p in the low nibbles, 2p+1 in the high
 *     2 bits   2 vectors; vector p: quad 4p+i in bits 2i, 2i+1
 *     1 bit    1 vector; quad i in bit i
 *
 * 3, 5 and 6 bits are the 2- or 4-bit plane of the low bits followed by the
 * plane of the rest. 8 bits are 8 vectors of signed bytes.
 *
 * What a code stands for: value(code) + bias, where value is the code itself,
 * its signed byte, its table entry or its e4m3 number. */
#ifndef CPU_PANEL_H
#define CPU_PANEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum {
    PANEL_ROWS = 16,
    PANEL_BLOCK = 32,  /* inputs per block of codes */
    PANEL_LEVELS = 256 /* inputs per unit of the LEVELS kinds; activations are padded to it */
};

/* T4S is a table whose entries are within -16 .. 16, which some instruction
 * sets can add up without widening. */
enum panel_code {
    PANEL_U2,
    PANEL_U3,
    PANEL_U4,
    PANEL_U5,
    PANEL_U6,
    PANEL_S8,
    PANEL_T4,
    PANEL_T4S,
    PANEL_E8,
    PANEL_CODES
};

enum panel_scale { PANEL_PLAIN, PANEL_OFFSET, PANEL_LEVELS_ONLY, PANEL_LEVELS_MIN, PANEL_SCALES };

struct panel_layout {
    int64_t rows, cols;
    int64_t panels, units; /* units per panel */
    size_t unit_bytes, panel_bytes;
    enum panel_code code;
    enum panel_scale scale;
    enum dtype scale_type; /* DT_F16, DT_BF16, DT_F32 */
    int group;             /* 16, 32, 64, 128 */
    int unit;              /* inputs per unit */
    int header_bytes;      /* of a unit, before the codes */
    int block_bytes;       /* of a block of codes */
    int bias;              /* added to every value */
    int8_t table[16];
};

/* What weight->device points at for a quantised matrix. */
struct packed_weight {
    struct panel_layout layout;
    const uint8_t *panels; /* in the same allocation */
};

static inline int panel_bits(enum panel_code c)
{
    static const uint8_t bits[PANEL_CODES] = {2, 3, 4, 5, 6, 8, 4, 4, 8};
    return bits[c];
}

/* Every combination that some format needs: code, scale kind, group (32 stands
 * for 32 and up). E8 has no integer kernel: its activations stay f32. */
#define PANEL_VARIANTS_OF_CODE(X, CODE, code)                                                                          \
    X(CODE, code, PLAIN, plain, 16)                                                                                    \
    X(CODE, code, PLAIN, plain, 32)                                                                                    \
    X(CODE, code, OFFSET, offset, 16)                                                                                  \
    X(CODE, code, OFFSET, offset, 32)

#define PANEL_INTEGER_VARIANTS(X)                                                                                      \
    PANEL_VARIANTS_OF_CODE(X, U2, u2)                                                                                  \
    PANEL_VARIANTS_OF_CODE(X, U3, u3)                                                                                  \
    PANEL_VARIANTS_OF_CODE(X, U4, u4)                                                                                  \
    PANEL_VARIANTS_OF_CODE(X, U5, u5)                                                                                  \
    PANEL_VARIANTS_OF_CODE(X, U6, u6)                                                                                  \
    PANEL_VARIANTS_OF_CODE(X, S8, s8)                                                                                  \
    X(T4, t4, PLAIN, plain, 16)                                                                                        \
    X(T4, t4, PLAIN, plain, 32)                                                                                        \
    X(T4S, t4s, PLAIN, plain, 16)                                                                                      \
    X(T4S, t4s, PLAIN, plain, 32)                                                                                      \
    X(U3, u3, LEVELS_ONLY, levels, 16)                                                                                 \
    X(U6, u6, LEVELS_ONLY, levels, 16)                                                                                 \
    X(T4, t4, LEVELS_ONLY, levels, 32)                                                                                 \
    X(U2, u2, LEVELS_MIN, levels_min, 16)                                                                              \
    X(U4, u4, LEVELS_MIN, levels_min, 32)                                                                              \
    X(U5, u5, LEVELS_MIN, levels_min, 32)

#define PANEL_FLOAT_VARIANTS(X)                                                                                        \
    X(E8, e8, PLAIN, plain, 16)                                                                                        \
    X(E8, e8, PLAIN, plain, 32)

#endif
