/* Files of a sequence's cache: mlx-lm's prompt cache files with an extension.
 *
 * mlx-lm (0.32.2) writes a safetensors file: tensors "<layer>.<part>" are the
 * state of each layer's cache object, metadata "0.<key>" what the caller adds,
 * "1.<layer>" the class names, "2.<n>.0" and "2.<n>.1" the name and kind of each
 * tensor that stands for a number. Up to 0.32.0 the numbers were metadata
 * "0.<layer>[.<i>]", the caller's keys "1.<key>", the classes "2.<layer>". Both
 * are read, the former is written.
 *
 * The extension is metadata "0.turbolm", a JSON object, and tensors under the
 * number after the last layer, where mlx-lm's loader does not look:
 *
 *   <n>.tokens      i32 [length]
 *   <n>.entries     i64 [entries, 3]: first position, tokens, sealed or not
 *   <n>.have.<g>    u8 [entries] of layer group g: 0 no block, 1 a block of those
 *                   below, 2 a block that mlx-lm's tensors hold bit for bit
 *   <n>.open.<g>    u8 [blocks, bytes] exact ones, in the order of entries
 *   <n>.sealed.<g>  u8 [blocks, bytes]
 *
 * Where a layer's format is none that mlx-lm has, only the extension is written
 * and the class name says so, which is what mlx-lm then fails with. */
#ifndef KVCACHE_PROMPT_FILE_H
#define KVCACHE_PROMPT_FILE_H

#include <cjson/cJSON.h>

#include "io/safetensors.h"
#include "kvcache/kv.h"

struct prompt_layer; /* prompt_mlx.h */

struct prompt_file {
    struct st_file *st;
    cJSON *extension;            /* NULL: mlx-lm made it */
    struct prompt_layer *layers; /* [n_layers] mlx-lm's part; n_layers 0: there is none */
    int n_layers;
    int64_t length;               /* tokens */
    int32_t *tokens;              /* [length]; NULL: mlx-lm made it */
    const char *model;            /* as its maker was given it, or NULL */
    const char *tokenizer_config; /* JSON, or NULL */
};

enum { PROMPT_LENGTH_MAX = 1 << 26 };

/* What conversion must know of a model beside its cache. */
struct prompt_rotary {
    bool permuted; /* pairs that mlx-lm has at (i, i + dims/2) are neighbours here */
    int64_t dims;  /* of those */
};

/* Reads and checks all but the data. */
enum tlm_status prompt_file_open(const char *path, struct prompt_file **out, struct tlm_error *e);
void prompt_file_close(struct prompt_file *f);

/* What a cache for a file of mlx-lm must be: bits and group 0 when nothing is
 * quantised; size, keep: of rotating caches in every layer, else 0. */
struct prompt_kind {
    int bits, group;
    int64_t size, keep;
};
struct prompt_kind prompt_file_kind(const struct prompt_file *f);

/* The format that a cache for a quantised file of mlx-lm must have, exact in the
 * layers that are not quantised there; free with mem_free. NULL: no memory. */
char *prompt_file_spec(const struct prompt_file *f);

/* The tokens of a sequence whose tokens are known, else NULL. */
const int32_t *kv_seq_tokens(const struct kv_seq *s);

/* The file's sequence as one of kv. */
enum tlm_status prompt_file_load(const struct prompt_file *f, struct kv_cache *kv, const struct prompt_rotary *r,
                                 struct kv_seq **out, struct tlm_error *e);

/* Rewinds s to at most n tokens, no encoded block cut, such that it can be gone
 * on from; to none where that is not possible. */
void prompt_cut(struct kv_seq *s, int64_t n);

/* extension: an object with what the caller records; the cache's part is added
 * to it. */
struct prompt_record {
    const char *model, *tokenizer_config;
    cJSON *extension;
};
enum tlm_status prompt_file_save(const struct kv_seq *s, const struct prompt_rotary *r, const struct prompt_record *m,
                                 const char *path, struct tlm_error *e);

/* kv's formats as kv_spec_parse reads them; free with mem_free. NULL: no memory. */
char *prompt_spec(const struct kv_cache *kv);

#endif
