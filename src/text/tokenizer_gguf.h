/* The two halves of the GGUF tokenizer: tokenizer_gguf.c reads the vocabulary,
 * tokenizer_gguf_setup.c sets up what stands around the model. */
#ifndef TEXT_TOKENIZER_GGUF_H
#define TEXT_TOKENIZER_GGUF_H

#include <string.h>

#include "io/gguf.h"
#include "text/tokenizer_impl.h"

enum tok_source_kind { SOURCE_LEVEL, SOURCE_MARKS, SOURCE_SPM, SOURCE_BERT, SOURCE_UNIGRAM, SOURCE_RWKV, SOURCE_PLAMO };

struct tok_source {
    const struct gguf *g;
    enum tok_source_kind kind;
    const struct gguf_array *tokens, *types, *scores, *merges;
    /* The file's flags, or what holds for its kind without them. */
    bool add_bos, add_eos, add_sep, space_prefix, merge_spaces;
};

static inline bool gguf_str_is(struct gguf_str s, const char *text)
{
    return strlen(text) == s.len && !memcmp(s.data, text, s.len);
}

/* Rows of tokenizer_pre.def. */
enum { PRE_NFC = 1, PRE_WHOLE = 2, PRE_BOS = 4, PRE_NFKC = 8, PRE_MARKS = 16, PRE_STEPS = 8 };

struct pre_row {
    const char *name;
    unsigned flags;
    const char *step[PRE_STEPS];
};

const struct pre_row *tok_pre_row(size_t i); /* NULL at the end */

/* The value of tokenizer.ggml.pre for a byte-level tokenizer: the row that
 * splits as it does. Its normalizer may be another one than the row's: a
 * warning. TLM_EUNSUPPORTED when no row does. */
enum tlm_status tok_pre_name(const struct tlm_tokenizer *t, const char **name, struct tlm_error *e);

/* Sets source->kind and the flags from the file, the parts of t from the kind. */
enum tlm_status gguf_setup(struct tlm_tokenizer *t, struct tok_source *p, struct tlm_error *e);

#endif
