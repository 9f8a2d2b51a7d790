/* A cache format for heads of one size: how one head's 64 tokens of keys or of
 * values become bytes, and back. The scalar definition; backends read the same
 * bytes with kernels of their own.
 *
 * Codes form rows of planes (kv_planes.h). Keys: a row per channel, over the
 * block's 64 tokens; values: a row per token, over the channels, rounded up to
 * a multiple of 8 (kv_codec.row codes). Beside them, all f16 unless said:
 *
 *   exact        keys [dim][64], values [64][dim] elements
 *   fp8          one f32 scale (8 bytes)
 *   affine       scales, then offsets: keys [dim/group][64], values [64][dim/group]
 *   chan         scales [dim], offsets [dim]; mix: two bit sets of the channels, of
 *                width bits + 1 and of width bits - 1 (as many of these as of those, so
 *                that the size is fixed); rows in the order of width, the widest first
 *   rot          affine; qjl: lengths [64] and a row of signs per channel
 *   tq           scalars [64]; centred: the mean [dim]
 *   prod         scalars [64] and sketch scalars [64], rows of codes, rows of signs
 *   split        a bit set of the wide channels; scalars [64] of those and of the others
 *
 * A decoded key vector is what a score is the inner product with, so for
 * sketches it is the estimator, not a point near the key. */
#ifndef KVFORMAT_KV_CODEC_H
#define KVFORMAT_KV_CODEC_H

#include "kvformat/kv_format.h"
#include "kvformat/kv_levels.h"
#include "kvformat/kv_planes.h"
#include "kvformat/kv_rotate.h"

enum { KV_BLOCK = KV_RUN, KV_DIM_MAX = 1024 }; /* tokens of a cache block; channels of a head */
enum { KV_LEVEL_WORD = 2047 };                 /* the greatest level as an integer */

struct kv_codec {
    struct kv_format f;
    int dim;
    bool key;
    int row;      /* codes in a row */
    size_t bytes; /* of one head's part of a block, a multiple of 8 */
    /* Offsets of the parts within it, where the format has them. */
    size_t scales, offsets, sets, centre, codes, sketch_scales, sketch;
    struct kv_rotation rotation; /* of codes; dim 0: none */
    struct kv_rotation second;   /* of the sketch; SPLIT: of the narrow channels */
    float *gauss;                /* PROD: [dim][dim], sketch of x is gauss . x; else NULL */
    float sketch_factor;         /* on the sum of sketch signs times lengths */
    float levels[KV_LEVELS_MAX];
    int16_t level_words[16]; /* TQ of at most 4 bits: levels in level_unit */
    float level_unit;
    float wide_levels[KV_LEVELS_MAX]; /* SPLIT */
    int wide;                         /* SPLIT: channels of the wide kind */
};

/* The rotation of a key's channels by its position, which `pre` undoes: by the
 * angles of the block's first position, then by those of the token's place in
 * the block. No attention factor in it. */
struct kv_turn {
    int dims; /* rotated channels */
    bool interleaved;
    const float *start_cos, *start_sin;   /* [dims / 2] */
    const float *cos, *sin;               /* [dims / 2][64] */
    const int16_t *cos_words, *sin_words; /* the same in 2^-15, at most 32767 */
    const uint16_t *rows; /* [KV_DIM_MAX], of each channel: where it stands when those of a pair are neighbours */
};

/* dim: channels of a head. */
enum tlm_status kv_codec_init(struct kv_codec *c, const struct kv_format *f, int dim, bool key, struct tlm_error *e);
void kv_codec_deinit(struct kv_codec *c);

/* Bits per element of a sealed block, everything counted. */
double kv_codec_bits(const struct kv_codec *c);

/* Floats of scratch that encoding and decoding need. */
size_t kv_codec_work(const struct kv_codec *c);

/* x [64][dim], tokens of one head (keys after rotary) to out [bytes] and back.
 * turn: for pre (NULL: no rotary). */
void kv_codec_encode(const struct kv_codec *c, const float *x, const struct kv_turn *turn, void *out, float *work);
void kv_codec_decode(const struct kv_codec *c, const void *in, const struct kv_turn *turn, float *x, float *work);

/* Fills rows of struct kv_turn [KV_DIM_MAX]. */
void kv_turn_rows(uint16_t *rows, int dims, bool interleaved);
/* Undoes the rotation of x [64][dim], or does it again. */
void kv_turn_back(const struct kv_turn *r, float *x, int dim);
void kv_turn_forth(const struct kv_turn *r, float *x, int dim);

/* CHAN with mix: the width of every channel, from a block's sets. */
static inline int kv_codec_width(const struct kv_codec *c, const uint8_t *in, int channel)
{
    if (!c->f.mix)
        return c->f.bits;
    const uint8_t *wide = in + c->sets, *narrow = wide + (c->dim + 7) / 8;
    int bit = 1 << (channel & 7);
    return c->f.bits + !!(wide[channel >> 3] & bit) - !!(narrow[channel >> 3] & bit);
}

#endif
