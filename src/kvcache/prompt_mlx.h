/* The cache classes of mlx-lm as rows of keys and values by position. Internal
 * to kvcache/. */
#ifndef KVCACHE_PROMPT_MLX_H
#define KVCACHE_PROMPT_MLX_H

#include "io/st_writer.h"
#include "kvcache/kv_private.h"
#include "kvcache/prompt_file.h"

struct prompt_run {
    int64_t row, count;
};

/* One layer of a file. Rows lie in runs, oldest first; the first `keep` of them
 * are the first tokens, the others the last ones of `length`. */
struct prompt_layer {
    const char *class_name;
    const struct st_tensor *part[2]; /* keys, values [1, heads, rows, dim]; codes when bits is set */
    const struct st_tensor *scales[2], *offsets[2];
    int bits, group; /* 0: not quantised */
    int64_t heads, rows, dim[2];
    int64_t length, size, keep; /* size: most tokens of a rotating one, else 0 */
    struct prompt_run runs[3];
    int64_t n_rows; /* in the runs */
};

/* The layers of an opened file; new_form: as 0.32.2 writes. */
enum tlm_status prompt_layers_read(struct prompt_file *f, bool new_form, struct tlm_error *e);

/* The row of a position, or -1. */
int64_t prompt_layer_row(const struct prompt_layer *l, int64_t position);
/* One head's vector: which 0 is keys, 1 values. */
void prompt_layer_fetch(const struct prompt_layer *l, int which, int64_t head, int64_t row, float *x);
/* Codes [dim], scales and offsets [dim / group] of a quantised vector. */
void prompt_layer_codes(const struct prompt_layer *l, int which, int64_t head, int64_t row, uint8_t *codes,
                        float *scales, float *offsets);

/* What a layer of a cache is written as. */
enum prompt_class { PROMPT_NONE, PROMPT_KV, PROMPT_QUANTIZED, PROMPT_ROTATING };
enum prompt_class prompt_class_of(const struct kv_seq *s, int layer);
/* Does that class hold this entry's keys and values bit for bit? */
bool prompt_class_holds(const struct kv_seq *s, int layer, int entry, const struct prompt_rotary *r);

/* Tensors, numbers and class names of every layer; then their data. */
enum tlm_status prompt_layers_declare(const struct kv_seq *s, struct st_writer *w, struct tlm_error *e);
enum tlm_status prompt_layers_write(const struct kv_seq *s, const struct prompt_rotary *r, struct st_writer *w,
                                    struct tlm_error *e);

/* --- one head's part of a block (prompt_block.c) --- */

/* x [64][dim] of keys (which 0) or values of an entry's block, in this model's
 * order of channels. work: kv_codec_work floats. */
void prompt_block_get(const struct kv_seq *s, int layer, int entry, int which, int head, float *x, float *work);
/* The other way, into a block of that entry. */
void prompt_block_put(const struct kv_seq *s, int layer, int entry, int which, int head, const float *x, float *work);
/* Where its bytes are. */
char *prompt_block_at(const struct kv_seq *s, int layer, int entry, int which, int head);

/* Codes [64][dim], scales and offsets [64][dim / group] of an affine block. */
struct prompt_codes {
    uint8_t codes[KV_BLOCK * KV_DIM_MAX];
    uint16_t scales[KV_BLOCK * KV_DIM_MAX / 32], offsets[KV_BLOCK * KV_DIM_MAX / 32];
};
void prompt_codes_get(const struct kv_codec *c, const void *block, struct prompt_codes *out);
void prompt_codes_put(const struct kv_codec *c, const struct prompt_codes *in, void *block);
/* MLX's packing: a stream of bits, the lowest first. row: a multiple of 4 bytes. */
void prompt_bits_pack(const uint8_t *codes, int n, int bits, uint8_t *row);
void prompt_bits_unpack(const uint8_t *row, int n, int bits, uint8_t *codes);

/* Have the codes of a key the same scales in mlx-lm's order of channels and this
 * model's? Where a group holds all channels that change places. */
bool prompt_same_groups(const struct kv_format *f, const struct prompt_rotary *r);
/* Codes of a key from mlx-lm's order to this model's, or back. */
void prompt_permute_codes(uint8_t *codes, int64_t dim, const struct prompt_rotary *r, bool back);
/* Channels of a key from mlx-lm's order to this model's, or back. */
void prompt_permute(float *x, int64_t dim, const struct prompt_rotary *r, bool back);

#endif
