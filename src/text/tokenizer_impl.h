/* The parts of a tokenizer, shared by the files src/text/tokenizer_*, pretok*,
 * bpe*, detok*.
 *
 * Encoding: text -> added tokens that match raw text cut it -> normalizers ->
 * added tokens that match normalized text cut it -> pre-tokenizers cut it into
 * words -> model gives ids -> template puts special ids around them.
 * Decoding: ids -> their texts -> decoder stages (detok.c).
 *
 * Each component is a tagged struct in a flat list (a Sequence is flattened).
 * Semantics are those of the HF tokenizers library, 0.23. */
#ifndef TEXT_TOKENIZER_IMPL_H
#define TEXT_TOKENIZER_IMPL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "text/tokenizer.h"

enum { TOK_MAX_ID = 1 << 23 };         /* highest id that is taken from a file */
#define TOK_MAX_TEXT ((size_t)1 << 30) /* bytes of text in one call, and of all tokens together */

/* ---- components of tokenizer.json (tokenizer_parts.c) ---- */

/* Appends the part v of this type to the list out. */
typedef enum tlm_status tok_part_fn(const cJSON *v, const char *type, void *out, struct tlm_error *e);
/* v: a part or a Sequence with its parts under list_key; absent is nothing.
 * what names it in messages; depth is 0 from outside. */
enum tlm_status tok_parse_parts(const cJSON *v, const char *what, const char *list_key, tok_part_fn *add, void *out,
                                int depth, struct tlm_error *e);

/* ---- vocabulary (tokenizer_vocab.c) ---- */

enum tok_flag {
    TOK_PRESENT = 1, /* the id has a text */
    TOK_MODEL = 2,   /* the model knows it */
    TOK_ADDED = 4,
    TOK_SPECIAL = 8,
    TOK_SILENT = 16 /* padding of the vocabulary: no text, never matched */
};

struct tok_piece {
    uint32_t off, len; /* in vocab.blob; a NUL follows */
};

struct tok_slot {
    uint32_t hash, id_plus_1; /* 0: empty */
};

enum { VOCAB_LATER = 64 };

struct tok_vocab {
    char *blob;
    size_t blob_len, blob_cap;
    struct tok_piece *piece; /* [cap], by id */
    uint8_t *flags;
    uint32_t n, cap;        /* n: one more than the highest id */
    struct tok_slot *slots; /* of the model's tokens */
    uint32_t mask, used;
    bool repeats; /* a text stood twice */
    struct tok_slot later[VOCAB_LATER];
    uint32_t n_later; /* see vocab_put_later */
};

enum tlm_status vocab_reserve(struct tok_vocab *v, size_t ids, size_t bytes, struct tlm_error *e);
/* flags with TOK_MODEL puts it into the hash table; a text that is there
 * already then means the new id. */
enum tlm_status vocab_put(struct tok_vocab *v, uint32_t id, const char *s, size_t n, uint8_t flags,
                          struct tlm_error *e);
/* For many in a row: the table is filled in groups, so that its cache misses
 * overlap. Nothing is found before vocab_flush. */
enum tlm_status vocab_put_later(struct tok_vocab *v, uint32_t id, const char *s, size_t n, uint8_t flags,
                                struct tlm_error *e);
void vocab_flush(struct tok_vocab *v);
int32_t vocab_find(const struct tok_vocab *v, const char *s, size_t n); /* among the model's, or -1 */
/* The same for n texts that stand one after the other, lengths in len. */
void vocab_find_many(const struct tok_vocab *v, const char *s, const uint32_t *len, uint32_t n, int32_t *ids);
void vocab_deinit(struct tok_vocab *v);

static inline const char *vocab_text(const struct tok_vocab *v, uint32_t id)
{
    return v->blob + v->piece[id].off;
}

uint64_t tok_hash(const char *s, size_t n);

/* ---- added tokens (tokenizer_added.c) ---- */

struct tok_added {
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

struct tok_match_key {
    const char *s;
    uint32_t n, added; /* index into the list */
};

/* Longest match at a place by narrowing a range of the sorted texts. */
struct tok_matcher {
    struct tok_match_key *keys;
    uint32_t n;
    uint32_t first[257]; /* keys[first[b] .. first[b+1]) begin with byte b */
    struct buf texts;    /* of normalized tokens */
};

struct tok_added_list {
    struct tok_added *list;
    uint32_t n, cap;
    struct tok_matcher raw, normalized;
};

enum tlm_status added_put(struct tok_added_list *a, struct tok_added token, struct tlm_error *e);
/* Builds the matchers; after the normalizers are known. */
struct tlm_tokenizer;
enum tlm_status added_build(struct tlm_tokenizer *t, struct tlm_error *e);
void added_deinit(struct tok_added_list *a);
/* Sorts the keys. */
void matcher_index(struct tok_matcher *m);
void matcher_deinit(struct tok_matcher *m);
/* Longest key that s begins with, or NULL. */
const struct tok_match_key *matcher_longest(const struct tok_matcher *m, const char *s, size_t n);
/* The shortest key that s begins with and that is longer than the one before;
 * *p starts as {0}. */
struct tok_match_place {
    uint32_t lo, hi, depth;
};
const struct tok_match_key *matcher_next(const struct tok_matcher *m, struct tok_match_place *p, const char *s,
                                         size_t n);

struct tok_cut {
    size_t start, end;
    int32_t id; /* -1: text between */
};

struct tok_cuts {
    struct tok_cut *at;
    size_t n, cap;
};

enum tlm_status added_cut(const struct tlm_tokenizer *t, const struct tok_matcher *m, const char *s, size_t n,
                          bool plain_special, struct tok_cuts *out, struct tlm_error *e);

/* ---- patterns (pretok_regex.c) ---- */

struct tok_regex;      /* compiled, shared by threads */
struct tok_regex_work; /* one encoding's working memory */

/* Oniguruma syntax, as far as tokenizer files use it. */
enum tlm_status regex_new(const char *pattern, size_t n, struct tok_regex **out, struct tlm_error *e);
void regex_free(struct tok_regex *r);
struct tok_regex_work *regex_work_new(void);
void regex_work_free(struct tok_regex_work *w);
/* Next match at or after from: *start, *end; *found false when there is none. */
enum tlm_status regex_next(const struct tok_regex *r, struct tok_regex_work *w, const char *s, size_t n, size_t from,
                           size_t *start, size_t *end, bool *found, struct tlm_error *e);

/* What to look for: an exact text, or a regex. */
struct tok_pattern {
    char *text;
    size_t n;
    struct tok_regex *regex; /* NULL: the exact text */
};

enum tlm_status pattern_parse(const cJSON *v, struct tok_pattern *out, struct tlm_error *e);
void pattern_deinit(struct tok_pattern *p);
enum tlm_status pattern_next(const struct tok_pattern *p, struct tok_regex_work *w, const char *s, size_t n,
                             size_t from, size_t *start, size_t *end, bool *found, struct tlm_error *e);

/* ---- normalizers (tokenizer_norm.c) ---- */

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_NMT,
    NORM_BERT,
    NORM_BYTE_LEVEL,
    NORM_PRECOMPILED
};

struct tok_charsmap; /* tokenizer_charsmap.c */

struct tok_norm {
    enum norm_kind kind;
    struct tok_pattern pattern; /* replace */
    char *content;              /* replace, prepend */
    size_t content_n;
    bool left, right;                /* strip */
    bool clean, han, accents, lower; /* BERT */
    struct tok_charsmap *map;
};

struct tok_norms {
    struct tok_norm *list;
    uint32_t n;
};

enum tlm_status norm_parse(const cJSON *v, struct tok_norms *out, struct tlm_error *e);
/* A zeroed new entry, or NULL. */
struct tok_norm *norm_push(struct tok_norms *l);
void norm_deinit(struct tok_norms *l);
/* *text, *n: the input, then the result, in a or b. */
enum tlm_status norm_run(const struct tok_norms *l, struct tok_regex_work *w, const char **text, size_t *n,
                         struct buf *a, struct buf *b, struct tlm_error *e);

enum tlm_status charsmap_new(const char *base64, struct tok_charsmap **out, struct tlm_error *e);
/* Into out, which has room for 3/4 of n; SIZE_MAX when it is not base64. */
size_t base64_decode(char *out, const char *s, size_t n);
enum tlm_status charsmap_new_raw(const char *blob, size_t n, struct tok_charsmap **out, struct tlm_error *e);
void charsmap_free(struct tok_charsmap *m);
enum tlm_status charsmap_add(const struct tok_charsmap *m, struct buf *out, const char *s, size_t n);

/* ---- pre-tokenizers (pretok.c) ---- */

enum pretok_kind {
    PRETOK_BYTE_LEVEL,
    PRETOK_SPLIT,
    PRETOK_DIGITS,
    PRETOK_METASPACE,
    PRETOK_PUNCTUATION,
    PRETOK_WHITESPACE,
    PRETOK_WHITESPACE_SPLIT,
    PRETOK_BERT,
    PRETOK_DELIMITER,
    PRETOK_FIXED_LENGTH,
    PRETOK_SCRIPTS,
    PRETOK_THOUSANDS, /* decimal digits before the end of a word in threes from the right */
    PRETOK_THREES     /* cuts before every group of three, counted from the right */
};

enum pretok_behavior {
    PRETOK_REMOVED,
    PRETOK_ISOLATED,
    PRETOK_MERGED_WITH_PREVIOUS,
    PRETOK_MERGED_WITH_NEXT,
    PRETOK_CONTIGUOUS
};

enum pretok_prepend { PRETOK_PREPEND_FIRST, PRETOK_PREPEND_NEVER, PRETOK_PREPEND_ALWAYS };

struct tok_pretok {
    enum pretok_kind kind;
    struct tok_pattern pattern; /* split; byte level with use_regex */
    enum pretok_behavior behavior;
    bool invert, individual_digits, add_prefix_space, use_regex, split;
    enum pretok_prepend prepend;
    char mark[4]; /* metaspace, delimiter */
    int mark_n;
    uint32_t length;
};

struct tok_pretoks {
    struct tok_pretok *list;
    uint32_t n;
};

struct tok_span {
    uint32_t start, end;
};

struct tok_words {
    struct tok_span *at;
    size_t n, cap;
};

enum tlm_status pretok_parse(const cJSON *v, struct tok_pretoks *out, struct tlm_error *e);
struct tok_pretok *pretok_push(struct tok_pretoks *l);
void pretok_deinit(struct tok_pretoks *l);
enum tlm_status pretok_parse_replacement(const cJSON *v, const char *kind, char mark[4], int *n, struct tlm_error *e);
enum tlm_status pretok_parse_prepend(const cJSON *v, enum pretok_prepend *out, struct tlm_error *e);

/* ---- byte level (tokenizer_bytes.c) ---- */

extern const uint16_t byte_level_char[256]; /* the character that stands for a byte */
int byte_level_byte(uint32_t c);            /* and back, or -1 */
enum tlm_status byte_level_add(struct buf *out, const char *s, size_t n);

/* ---- models ---- */

enum model_kind {
    MODEL_BPE,
    MODEL_SPM,
    MODEL_UNIGRAM,
    MODEL_WORDPIECE,
    MODEL_WORDLEVEL,
    MODEL_LONGEST, /* RWKV: the longest token from the left, of bytes */
    MODEL_CHEAPEST /* PLaMo 2: the segmentation with the lowest sum of costs */
};

struct bpe_pair {
    uint32_t left, right, id; /* of the result */
};

struct tok_model {
    enum model_kind kind;
    bool byte_fallback, fuse_unk, ignore_merges;
    bool leftmost;         /* SPM: of equal results the leftmost, whatever its parts */
    bool shorter_left;     /* SPM: of equal results that with the shorter left part */
    int32_t unk;           /* -1: none */
    char *prefix, *suffix; /* of continued and last pieces; NULL: none */
    size_t prefix_n, suffix_n;
    /* BPE */
    struct bpe_pair *pairs; /* by rank */
    size_t cap_pairs;
    struct tok_slot *pair_slots; /* hash of a pair to its rank + 1 */
    uint32_t pair_mask, n_pairs;
    uint32_t guess;           /* while merges are read: the next result's likely id */
    int32_t byte_piece[256];  /* "<0x00>" … */
    int32_t level_piece[256]; /* of the one-character pieces that stand for bytes */
    /* Cut before U+2581 unless one of these bytes precedes it: no piece spans
     * such a place, so the parts are merged apart and can be cached. */
    bool cut_at_mark;
    uint8_t no_cut_after[256];
    /* SPM by score: the smaller, the earlier; UINT32_MAX: never a result */
    uint32_t *order;
    /* Unigram: scores by id; WordPiece: longest word */
    double *scores;
    double min_score;
    uint32_t max_piece;
    uint32_t max_chars;
    struct tok_matcher pieces; /* longest, cheapest: all pieces; added is the id */
};

void model_deinit(struct tok_model *m);

/* ---- template of the post-processor (tokenizer_post.c) ---- */

struct tok_template {
    int32_t *before, *after;
    uint32_t n_before, n_after;
    bool present;
};

enum tlm_status template_parse(const cJSON *v, struct tlm_tokenizer *t, int depth, struct tlm_error *e);
enum tlm_status template_set(struct tok_template *p, int32_t bos, int32_t eos, struct tlm_error *e);
void template_deinit(struct tok_template *p);

/* ---- decoders (detok.c, detok_parse.c) ---- */

enum decoder_kind {
    DECODER_JOIN, /* none in the file: texts joined by spaces */
    DECODER_BYTE_LEVEL,
    DECODER_REPLACE,
    DECODER_BYTE_FALLBACK,
    DECODER_FUSE,
    DECODER_STRIP,
    DECODER_METASPACE,
    DECODER_WORDPIECE,
    DECODER_BPE,
    DECODER_CTC
};

struct tok_decoder {
    enum decoder_kind kind;
    struct tok_pattern pattern;
    char *content; /* replace: by; strip: the character; WordPiece: prefix; BPE: suffix; CTC: pad */
    size_t content_n;
    char *delimiter; /* CTC */
    size_t delimiter_n;
    int64_t start, stop;
    bool cleanup;
    enum pretok_prepend prepend;
};

struct tok_decoders {
    struct tok_decoder *list;
    uint32_t n;
};

enum tlm_status decoder_parse(const cJSON *v, struct tok_decoders *out, struct tlm_error *e);
struct tok_decoder *decoder_push(struct tok_decoders *l);
void decoder_deinit(struct tok_decoders *l);

/* ---- the whole ---- */

struct tlm_tokenizer {
    struct tok_vocab vocab;
    struct tok_added_list added;
    struct tok_norms norms;
    struct tok_pretoks pretoks;
    struct tok_model model;
    struct tok_template post;
    struct tok_decoders decoders;
    bool level_model; /* the last pre-tokenizer is ByteLevel: words stay bytes and the model maps them */
    int32_t bos, eos, unk, pad;
    bool adds_bos;
};

/* Checks and completes after all parts are read. */
enum tlm_status tokenizer_finish(struct tlm_tokenizer *t, struct tlm_error *e);
int32_t tokenizer_find(const struct tlm_tokenizer *t, const char *s, size_t n); /* added tokens too */
struct tlm_tokenizer *tokenizer_alloc(struct tlm_error *e);

/* Working memory of one encoding. */
struct tok_symbol {
    uint32_t id, len; /* len 0: merged away */
    uint32_t off;     /* of its text in the word */
    int32_t prev, next;
};

struct tok_candidate {
    uint64_t key; /* rank or order above, id of the result below */
    uint32_t tie, pos, len;
};

struct tok_cache_entry {
    uint64_t hash;
    uint32_t off, len;        /* in cache_text; len 0: empty */
    uint32_t first_id, n_ids; /* in ids */
};

struct encoder {
    const struct tlm_tokenizer *t;
    struct tlm_error *e;
    int32_t *ids;
    size_t n_ids, cap_ids;
    struct buf a, b;           /* pre-tokenized text */
    struct buf norm_a, norm_b; /* normalized text */
    struct buf c, key;         /* one word in another spelling */
    struct buf cache_text;     /* the words in the cache */
    struct tok_words words, spare;
    struct tok_cuts raw, cuts;
    struct tok_regex_work *regex;
    struct tok_symbol *symbols;
    size_t cap_symbols;
    struct tok_candidate *heap;
    size_t n_heap, cap_heap;
    struct tok_cache_entry *cache; /* NULL: off */
    uint32_t cache_mask;
    uint64_t *lattice; /* Unigram: best score and length by byte */
    size_t cap_lattice;
};

enum tlm_status encoder_push(struct encoder *x, int32_t id);
/* Cuts text into x->words; *text may become one of x's buffers. first: the
 * text begins where the whole text begins. */
enum tlm_status pretok_run(struct encoder *x, const char **text, size_t *n, bool first);
/* Appends the ids of the words of text. */
enum tlm_status model_run(struct encoder *x, const char *text, bool level);

enum tlm_status bpe_word(struct encoder *x, const char *s, size_t n, bool level);
enum tlm_status unigram_word(struct encoder *x, const char *s, size_t n);
enum tlm_status wordpiece_word(struct encoder *x, const char *s, size_t n);
enum tlm_status longest_word(struct encoder *x, const char *s, size_t n);
enum tlm_status cheapest_word(struct encoder *x, const char *s, size_t n);
/* Builds tok_model.pieces. */
enum tlm_status pieces_build(struct tlm_tokenizer *t, struct tlm_error *e);

/* Merges that a reader passes in the order of their rank, left and right part
 * in turn; they are worked off in groups, the last by bpe_batch_flush. */
enum { BPE_BATCH = 64 };

struct bpe_batch {
    struct buf text; /* all parts, one after the other */
    uint32_t len[2 * BPE_BATCH], n;
};

enum tlm_status bpe_reserve(struct tlm_tokenizer *t, size_t merges, struct tlm_error *e);
void bpe_batch_init(struct bpe_batch *b);
enum tlm_status bpe_batch_add(struct tlm_tokenizer *t, struct bpe_batch *b, const char *part, size_t n,
                              struct tlm_error *e);
enum tlm_status bpe_batch_flush(struct tlm_tokenizer *t, struct bpe_batch *b, struct tlm_error *e);
void bpe_batch_deinit(struct bpe_batch *b);
/* Tables that depend on the vocabulary alone. */
enum tlm_status bpe_finish(struct tlm_tokenizer *t, struct tlm_error *e);

/* Grows an array to hold n elements of size bytes; *cap in elements. */
enum tlm_status tok_grow(void *array, size_t *cap, size_t n, size_t size, struct tlm_error *e);

/* The files beside a vocabulary (tokenizer_dir.c): tokens and special ids. */
struct tok_beside {
    const char *class;           /* tokenizer_class, or NULL */
    cJSON *config, *map, *added; /* tokenizer_config.json, special_tokens_map.json, added_tokens.json; NULL: none */
};

/* Puts a token of a file's list of added tokens; the vocabulary's own id wins. */
enum tlm_status tokenizer_put_added(struct tlm_tokenizer *t, struct tok_added a, const char *s, size_t n,
                                    struct tlm_error *e);
enum tlm_status tokenizer_read_json_file(struct tlm_tokenizer *t, const char *path, struct tlm_error *e);
/* A tiktoken file: "base64 rank" a line; what stands around it by the class
 * that the configuration names. *limit: ids below it that have no token are reserved. */
enum tlm_status tokenizer_read_tiktoken(struct tlm_tokenizer *t, const char *path, const char *class, uint32_t *limit,
                                        struct tlm_error *e);
/* The first regex of a row of tokenizer_pre.def. */
const char *tok_pre_regex(const char *name);
/* A SentencePiece model; legacy: what the configuration says, or NULL. */
enum tlm_status tokenizer_read_spm(struct tlm_tokenizer *t, const char *path, const char *class, const bool *legacy,
                                   struct tlm_error *e);
/* tokenizer_json.c */
enum tlm_status tokenizer_read_json(struct tlm_tokenizer *t, const char *text, size_t n, const char *where,
                                    struct tlm_error *e);

#endif
