/* Kernels of the matmul family. They run on one thread and know nothing of
 * tasks; matmul.c and pack.c drive them.
 *
 * Two activation forms. Integer kernels take 16-bit activations, one scale
 * per 32 inputs, as two planes of int8: with one plane the mean KL divergence
 * against float activations is 2.5e-3 on a 135M model, with two below 1e-6.
 * Float kernels take the f32 inputs themselves. Both are cut into
 * tiles of a few tokens, and a tile is stored block by block:
 * tile[block * tokens + token], so that a kernel reads it forwards.
 *
 * One output element is, over its groups in order,
 *
 *     integer: y += (xscale * scale) * (dot(codes, 256 * hi + lo) + bias * isum);  y += offset * sum
 *     float:   y += scale * dot(values, x);                            y += offset * sum
 *
 * with groups longer than 32 taken 32 inputs at a time. */
#ifndef CPU_MATMUL_KERNELS_H
#define CPU_MATMUL_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/bf12.h"
#include "backend/cpu/panel.h"

/* 32 inputs of one token: x ~ scale * (256 * hi + lo), both planes within
 * -127 .. 127. Index 0 and 1 of the sums are the halves of 16. */
struct act_q16 {
    int8_t hi[PANEL_BLOCK], lo[PANEL_BLOCK];
    float scale;
    float sum32, sum16[2]; /* scale * isum */
    int32_t isum32, isum16[2];
    int32_t unused;
};

/* 32 inputs of one token. */
struct act_f32 {
    float x[PANEL_BLOCK];
    float sum32, sum16[2];
    float unused;
};

enum {
    MATMUL_TILE_INT = 48,     /* tokens per tile of act_q16 */
    MATMUL_PANELS_INT = 8,    /* panels that share a tile of act_q16 */
    MATMUL_PANELS_SIDE = 4,   /* panels that some kernels read side by side */
    MATMUL_TILE_MAX = 8,      /* largest tile of act_f32 */
    MATMUL_DENSE_FEW = 3,     /* tokens that take the rows of a dense matrix as they are */
    MATMUL_DENSE_TOKENS = 96, /* per call of a dense kernel for more */
    MATMUL_DENSE_INPUTS = 512 /* that its rows are unpacked at once */
};

/* Neighbouring panels, at most MATMUL_PANELS_INT, times one tile: y [panels, tokens, 16], overwritten. */
typedef void matmul_int_fn(const struct panel_layout *l, const uint8_t *panel, int panels, const struct act_q16 *x,
                           int tokens, float *y);
/* One panel times one tile: y [tokens, 16], overwritten. */
typedef void matmul_float_fn(const struct panel_layout *l, const uint8_t *panel, const struct act_f32 *x, int tokens,
                             float *y);
/* n <= 16 dense rows, row_bytes apart and unaligned, times `tokens` rows of x
 * (x_stride floats apart): y [tokens, 16]. */
typedef void matmul_dense_fn(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int64_t x_stride,
                             int tokens, float *y);

/* The same for more tokens, x as matmul_dense_inputs() lays it out. The sums are the same, bit for bit. */
typedef void matmul_dense_many_fn(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int tokens,
                                  float *y);
/* A panel of a bf12 matrix, without its rest, times `tokens` rows of x: y [tokens, 16]; and the same for more tokens.
 */
typedef void matmul_bf12_fn(const uint8_t *panel, int64_t cols, const float *x, int64_t x_stride, int tokens, float *y);
typedef void matmul_bf12_many_fn(const uint8_t *panel, int64_t cols, const float *x, int tokens, float *y);

struct matmul_kernels {
    matmul_int_fn *panel_int[PANEL_CODES][PANEL_SCALES][2]; /* last index: group of 32 and up; NULL for E8 */
    matmul_float_fn *panel_float[PANEL_CODES][PANEL_SCALES][2];
    matmul_dense_fn *dense_f32, *dense_f16, *dense_bf16;
    matmul_dense_many_fn *many_f32, *many_f16, *many_bf16; /* NULL: the set has none */
    matmul_bf12_fn *bf12;
    matmul_bf12_many_fn *many_bf12; /* NULL: none */
    int lanes;                      /* of a vector */
    int tile_many;                  /* tokens whose sums the latter keep in registers */
    int tile_float;                 /* tokens per tile of act_f32, at most MATMUL_TILE_MAX */

    /* cols inputs of one token into every `stride`-th block, zeros up to
     * `blocks` blocks. Inputs that are not finite give NaN scales. */
    void (*act_to_q16)(const float *x, int64_t cols, int64_t blocks, int stride, struct act_q16 *out);
    void (*act_to_f32)(const float *x, int64_t cols, int64_t blocks, int stride, struct act_f32 *out);

    /* One block of codes from 16 rows of 32 bytes, `stride` apart. */
    void (*pack_block)(enum panel_code code, const uint8_t *codes, size_t stride, uint8_t *out);
    void (*pack_f16)(const float *x, int64_t n, uint16_t *out); /* round to nearest even */
    /* Turns n vectors of quads: byte 4i + j of every 16 goes to 4j + i. */
    void (*turn_quads)(uint8_t *p, int n);
};

/* Dense kernels sum inputs l, sums + l, 2 * sums + l ... of a row apart, and then these sums. There are as many as a
 * vector has lanes, or BF12_SUMS. For many tokens rows are lanes, one l is summed after another, and inputs come in
 * that order: by MATMUL_DENSE_INPUTS inputs (zeros up to whole steps of `sums`), in them by l, by tiles of tokens, by
 * step, by token of the tile. */
static inline int matmul_dense_tiles(int tokens, int most)
{
    return (tokens + most - 1) / most;
}

static inline int matmul_dense_tile_start(int tokens, int most, int tile)
{
    return tokens * tile / matmul_dense_tiles(tokens, most);
}

/* Floats that a token's inputs take. */
static inline int64_t matmul_dense_inputs_padded(int sums, int64_t cols)
{
    return (cols + sums - 1) / sums * sums;
}

/* Those of tokens first .. end of `tokens`, for tiles of at most tile_many. x [end - first, cols] */
void matmul_dense_inputs(int tile_many, int sums, const float *x, int64_t cols, int tokens, int first, int end,
                         float *out);

/* The best that `features` (cpu_features) allows. */
void matmul_init(struct matmul_kernels *k, unsigned features);

/* Every one fills or overwrites the slots it has. */
void matmul_init_scalar(struct matmul_kernels *k);
void matmul_init_avx2(struct matmul_kernels *k);
void matmul_init_avx512(struct matmul_kernels *k);
void matmul_init_avx512vnni(struct matmul_kernels *k);
void matmul_init_neon(struct matmul_kernels *k);
void matmul_init_neon_dot(struct matmul_kernels *k);
/* Whether this AArch64 processor has the dot product instructions. */
bool matmul_has_neon_dot(void);

#endif
