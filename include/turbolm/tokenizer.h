/* Text to token ids and back.
 *
 * Ids are those of the model's vocabulary, 0 .. vocab_size - 1. Text is UTF-8;
 * invalid input becomes one U+FFFD for each maximal invalid part. A tokenizer
 * is immutable after opening and may be used from many threads at once. */
#ifndef TURBOLM_TOKENIZER_H
#define TURBOLM_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tlm_tokenizer;
struct tlm_detokenizer;

struct tlm_tokenizer_info {
    const char *kind;           /* "byte-level BPE", "SentencePiece BPE", … */
    int32_t vocab_size;         /* one more than the highest id */
    int32_t bos, eos, unk, pad; /* -1: none */
    int adds_bos;               /* TLM_ENCODE_SPECIAL puts bos first */
};

/* A model directory, a tokenizer.json, or a GGUF file (one that holds only a
 * vocabulary is enough). */
TLM_API enum tlm_status tlm_tokenizer_open(const char *path, struct tlm_tokenizer **out, struct tlm_error *e);
TLM_API void tlm_tokenizer_free(struct tlm_tokenizer *t);
TLM_API void tlm_tokenizer_info_get(const struct tlm_tokenizer *t, struct tlm_tokenizer_info *out);

enum tlm_encode_flags {
    TLM_ENCODE_SPECIAL = 1, /* add what the post-processor adds (bos, eos) */
    TLM_ENCODE_PLAIN = 2    /* names of special tokens inside the text are plain text */
};

/* *ids: n ids, free with tlm_free. */
TLM_API enum tlm_status tlm_tokenizer_encode(const struct tlm_tokenizer *t, const char *text, size_t len,
                                             unsigned flags, int32_t **ids, size_t *n, struct tlm_error *e);

enum tlm_decode_flags {
    TLM_DECODE_SKIP_SPECIAL = 1 /* special tokens give no text */
};

/* Whole-text decoding as the HF library's decode() without clean-up of spaces.
 * *text: len bytes and a NUL, free with tlm_free. */
TLM_API enum tlm_status tlm_tokenizer_decode(const struct tlm_tokenizer *t, const int32_t *ids, size_t n,
                                             unsigned flags, char **text, size_t *len, struct tlm_error *e);

/* The id of a token by its text as the vocabulary has it, or -1. */
TLM_API int32_t tlm_tokenizer_token_id(const struct tlm_tokenizer *t, const char *token);
/* The vocabulary's text of an id (not decoded), or NULL for a gap. */
TLM_API const char *tlm_tokenizer_token_text(const struct tlm_tokenizer *t, int32_t id);
TLM_API int tlm_tokenizer_is_special(const struct tlm_tokenizer *t, int32_t id);

/* Streaming: the pieces joined are the decoding of all ids; no piece ends
 * inside a character. */
TLM_API enum tlm_status tlm_detokenizer_new(const struct tlm_tokenizer *t, unsigned decode_flags,
                                            struct tlm_detokenizer **out, struct tlm_error *e);
TLM_API void tlm_detokenizer_free(struct tlm_detokenizer *d);
/* *piece (not NUL-terminated, maybe empty) is valid until the next call. */
TLM_API enum tlm_status tlm_detokenizer_push(struct tlm_detokenizer *d, int32_t id, const char **piece, size_t *len,
                                             struct tlm_error *e);
/* What was held back; then ready for a new text. */
TLM_API enum tlm_status tlm_detokenizer_finish(struct tlm_detokenizer *d, const char **piece, size_t *len,
                                               struct tlm_error *e);

/* Frees what a function of this library says to free with it. NULL allowed. */
TLM_API void tlm_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
