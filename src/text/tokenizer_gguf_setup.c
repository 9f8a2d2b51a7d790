/* What stands around the model of a GGUF tokenizer, so that it gives what the
 * HF tokenizer of the same model gives. tokenizer.ggml.model is
 *   gpt2         byte-level BPE, or BPE on U+2581 text; `pre` names the splitting
 *   gemma4       BPE on U+2581 text
 *   llama        SentencePiece BPE by score with byte fallback
 *   bert         WordPiece
 *   t5           Unigram with a character map
 *   rwkv         longest match of byte strings
 *   plamo2       cheapest segmentation
 *   whitespace   BPE on words between white space. */
#include "base/mem.h"
#include "text/tokenizer_gguf.h"

#define MARK "\xe2\x96\x81" /* U+2581 */

static const struct pre_row pre_rows[] = {
#define TOK_PRE(name, flags, ...) {name, flags, {__VA_ARGS__}},
#include "text/tokenizer_pre.def"
};

const struct pre_row *tok_pre_row(size_t i)
{
    return i < sizeof pre_rows / sizeof *pre_rows ? &pre_rows[i] : NULL;
}

const char *tok_pre_regex(const char *name)
{
    size_t i = 0;
    while (strcmp(pre_rows[i].name, name) != 0)
        i++;
    return pre_rows[i].step[0];
}

static enum tlm_status add_norm(struct tlm_tokenizer *t, enum norm_kind kind, const char *from, const char *to,
                                struct tlm_error *e)
{
    struct tok_norm *p = norm_push(&t->norms);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->kind = kind;
    p->left = p->right = true;
    if (from) {
        p->pattern.text = mem_strdup(from);
        p->pattern.n = strlen(from);
    }
    if (to) {
        p->content = mem_strdup(to);
        p->content_n = strlen(to);
    }
    return (from && !p->pattern.text) || (to && !p->content) ? err_nomem(e, 0) : TLM_OK;
}

static enum tlm_status add_decoder(struct tlm_tokenizer *t, enum decoder_kind kind, const char *from, const char *to,
                                   struct tlm_error *e)
{
    struct tok_decoder *p = decoder_push(&t->decoders);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->kind = kind;
    p->cleanup = true;
    if (from) {
        p->pattern.text = mem_strdup(from);
        p->pattern.n = strlen(from);
    }
    if (to) {
        p->content = mem_strdup(to);
        p->content_n = strlen(to);
        p->start = 1;
    }
    return (from && !p->pattern.text) || (to && !p->content) ? err_nomem(e, 0) : TLM_OK;
}

static enum tlm_status add_pretok(struct tlm_tokenizer *t, enum pretok_kind kind, struct tlm_error *e)
{
    struct tok_pretok *p = pretok_push(&t->pretoks);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->kind = kind;
    if (kind == PRETOK_PUNCTUATION)
        p->behavior = PRETOK_CONTIGUOUS;
    if (kind == PRETOK_WHITESPACE_SPLIT)
        p->behavior = PRETOK_REMOVED;
    if (kind != PRETOK_METASPACE)
        return TLM_OK;
    p->behavior = PRETOK_MERGED_WITH_NEXT;
    p->prepend = PRETOK_PREPEND_ALWAYS;
    p->mark_n = 3;
    memcpy(p->mark, MARK, 3);
    p->pattern.n = 3;
    p->pattern.text = mem_strdup(MARK);
    return p->pattern.text ? TLM_OK : err_nomem(e, 4);
}

static enum tlm_status find_pre(const struct gguf *g, const struct pre_row **out, struct tlm_error *e)
{
    struct gguf_str pre = {NULL, 0};
    if (gguf_string(g, "tokenizer.ggml.pre", &pre, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!pre.data) {
        log_warn("%s: tokenizer.ggml.pre is missing; \"default\" is a guess", g->path ? g->path : "GGUF");
        pre = (struct gguf_str){"default", 7};
    }
    for (size_t i = 0; i < sizeof pre_rows / sizeof *pre_rows; i++)
        if (gguf_str_is(pre, pre_rows[i].name)) {
            *out = &pre_rows[i];
            return TLM_OK;
        }
    return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.pre: unknown \"%.*s\"", pre.len > 100 ? 100 : (int)pre.len,
                   pre.data);
}

/* One step of a row; see tokenizer_pre.def. */
static enum tlm_status add_step(struct tlm_tokenizer *t, const char *step, struct tlm_error *e)
{
    static const struct {
        const char *name;
        enum pretok_kind kind;
    } named[] = {
        {"@Punctuation", PRETOK_PUNCTUATION}, {"@DigitRuns", PRETOK_DIGITS}, {"@ByteLevel", PRETOK_BYTE_LEVEL},
        {"@Thousands", PRETOK_THOUSANDS},     {"@Threes", PRETOK_THREES},
    };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (!strcmp(step, named[i].name))
            return add_pretok(t, named[i].kind, e);
    enum tlm_status s = add_pretok(t, PRETOK_SPLIT, e);
    if (s != TLM_OK)
        return s;
    return regex_new(step, strlen(step), &t->pretoks.list[t->pretoks.n - 1].pattern.regex, e);
}

static enum tlm_status setup_level(struct tlm_tokenizer *t, struct tok_source *p, const struct pre_row *pre,
                                   struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    bool level = false;
    if (pre->flags & PRE_NFC)
        s = add_norm(t, NORM_NFC, NULL, NULL, e);
    if (pre->flags & PRE_NFKC)
        s = add_norm(t, NORM_NFKC, NULL, NULL, e);
    for (int i = 0; s == TLM_OK && i < PRE_STEPS && pre->step[i]; i++) {
        level = level || !strcmp(pre->step[i], "@ByteLevel");
        s = add_step(t, pre->step[i], e);
    }
    if (s == TLM_OK && !level)
        s = add_pretok(t, PRETOK_BYTE_LEVEL, e);
    if (s == TLM_OK && p->space_prefix)
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.add_space_prefix: true with a byte-level model");
    return s == TLM_OK ? add_decoder(t, DECODER_BYTE_LEVEL, NULL, NULL, e) : s;
}

/* Spaces are U+2581, what the vocabulary lacks is bytes. */
static enum tlm_status setup_marks(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    t->model.byte_fallback = t->model.fuse_unk = true;
    if (p->merge_spaces) {
        s = add_norm(t, NORM_STRIP, NULL, NULL, e);
        if (s == TLM_OK)
            s = add_norm(t, NORM_REPLACE, NULL, " ", e);
        if (s == TLM_OK)
            s = regex_new(" {2,}", 5, &t->norms.list[t->norms.n - 1].pattern.regex, e);
    }
    if (s == TLM_OK && p->space_prefix)
        s = add_norm(t, NORM_PREPEND, NULL, MARK, e);
    if (s == TLM_OK)
        s = add_norm(t, NORM_REPLACE, " ", MARK, e);
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_REPLACE, MARK, " ", e);
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_BYTE_FALLBACK, NULL, NULL, e);
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_FUSE, NULL, NULL, e);
    return s == TLM_OK && p->space_prefix ? add_decoder(t, DECODER_STRIP, NULL, " ", e) : s;
}

static enum tlm_status setup_bert(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    struct tok_model *m = &t->model;
    enum tlm_status s = add_norm(t, NORM_BERT, NULL, NULL, e);
    if (s != TLM_OK)
        return s;
    struct tok_norm *norm = &t->norms.list[0];
    norm->clean = norm->han = norm->lower = true;
    m->max_chars = 100;
    m->prefix = mem_strdup("##");
    m->prefix_n = 2;
    if (!m->prefix)
        return err_nomem(e, 3);
    s = gguf_bool(p->g, "tokenizer.ggml.normalizer.lowercase", &norm->lower, e);
    norm->accents = norm->lower;
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.normalizer.strip_accents", &norm->accents, e);
    if (s == TLM_OK)
        s = add_pretok(t, PRETOK_BERT, e);
    return s == TLM_OK ? add_decoder(t, DECODER_WORDPIECE, NULL, "##", e) : s;
}

/* With spaces merged, words are what stands between them, each with U+2581
 * before it; else all spaces count and the text is one word for each space. */
static enum tlm_status setup_unigram(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    const struct gguf_array *map = NULL;
    enum tlm_status s = gguf_get_array(p->g, "tokenizer.ggml.precompiled_charsmap", GGUF_I8, &map, e);
    if (s == TLM_OK && map && map->type != GGUF_I8 && map->type != GGUF_U8)
        s = err_set(e, TLM_EFORMAT, "tokenizer.ggml.precompiled_charsmap: found wide integers, expected bytes");
    if (s == TLM_OK && map && map->n) {
        s = add_norm(t, NORM_PRECOMPILED, NULL, NULL, e);
        if (s == TLM_OK)
            s = charsmap_new_raw(map->data, map->n, &t->norms.list[0].map, e);
    }
    if (s == TLM_OK && p->merge_spaces)
        s = add_pretok(t, PRETOK_WHITESPACE_SPLIT, e);
    if (s == TLM_OK)
        s = add_pretok(t, PRETOK_METASPACE, e);
    if (s == TLM_OK) {
        struct tok_pretok *last = &t->pretoks.list[t->pretoks.n - 1];
        last->split = true;
        if (!p->merge_spaces && !p->space_prefix)
            last->prepend = PRETOK_PREPEND_NEVER;
        s = add_decoder(t, DECODER_METASPACE, NULL, MARK, e);
    }
    if (s == TLM_OK)
        t->decoders.list[0].prepend = p->merge_spaces || p->space_prefix ? PRETOK_PREPEND_ALWAYS : PRETOK_PREPEND_NEVER;
    return s;
}

static enum tlm_status setup_whitespace(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    bool lower = false;
    enum tlm_status s = gguf_bool(p->g, "tokenizer.ggml.normalizer.lowercase", &lower, e);
    t->model.byte_fallback = true;
    if (s == TLM_OK && lower)
        s = add_norm(t, NORM_LOWERCASE, NULL, NULL, e);
    if (s == TLM_OK)
        s = add_pretok(t, PRETOK_WHITESPACE_SPLIT, e);
    return s == TLM_OK ? add_decoder(t, DECODER_FUSE, NULL, NULL, e) : s;
}

static enum tlm_status read_flags(struct tok_source *p, struct tlm_error *e)
{
    enum tlm_status s = gguf_bool(p->g, "tokenizer.ggml.add_space_prefix", &p->space_prefix, e);
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.remove_extra_whitespaces", &p->merge_spaces, e);
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.add_bos_token", &p->add_bos, e);
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.add_eos_token", &p->add_eos, e);
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.add_sep_token", &p->add_sep, e);
    return s;
}

static enum tlm_status setup_kind(struct tlm_tokenizer *t, struct tok_source *p, const struct pre_row *pre,
                                  struct tlm_error *e)
{
    static const enum model_kind models[] = {
        [SOURCE_LEVEL] = MODEL_BPE,      [SOURCE_MARKS] = MODEL_BPE,       [SOURCE_SPM] = MODEL_SPM,
        [SOURCE_BERT] = MODEL_WORDPIECE, [SOURCE_UNIGRAM] = MODEL_UNIGRAM, [SOURCE_RWKV] = MODEL_LONGEST,
        [SOURCE_PLAMO] = MODEL_CHEAPEST,
    };
    t->model.kind = models[p->kind];
    t->model.ignore_merges = pre && (pre->flags & PRE_WHOLE);
    switch (p->kind) {
    case SOURCE_LEVEL:
        return setup_level(t, p, pre, e);
    case SOURCE_MARKS:
        return pre ? setup_marks(t, p, e) : setup_whitespace(t, p, e);
    case SOURCE_SPM:
        return setup_marks(t, p, e);
    case SOURCE_BERT:
        return setup_bert(t, p, e);
    case SOURCE_UNIGRAM:
        return setup_unigram(t, p, e);
    case SOURCE_RWKV:
        return add_decoder(t, DECODER_FUSE, NULL, NULL, e);
    case SOURCE_PLAMO:
        return add_decoder(t, DECODER_BYTE_FALLBACK, NULL, NULL, e);
    }
    return TLM_EINTERNAL;
}

enum tlm_status gguf_setup(struct tlm_tokenizer *t, struct tok_source *p, struct tlm_error *e)
{
    static const struct {
        const char *name;
        enum tok_source_kind kind;
    } known[] = {
        {"gpt2", SOURCE_LEVEL}, {"gemma4", SOURCE_MARKS}, {"whitespace", SOURCE_MARKS}, {"llama", SOURCE_SPM},
        {"bert", SOURCE_BERT},  {"t5", SOURCE_UNIGRAM},   {"rwkv", SOURCE_RWKV},        {"plamo2", SOURCE_PLAMO},
    };
    struct gguf_str model = {"", 0};
    const struct pre_row *pre = NULL;
    enum tlm_status s = gguf_string(p->g, "tokenizer.ggml.model", &model, e);
    if (s != TLM_OK)
        return s;
    if (!model.len || gguf_str_is(model, "none") || gguf_str_is(model, "no_vocab"))
        return err_set(e, TLM_ENOTFOUND, "tokenizer.ggml.model is missing: the file has no tokenizer");
    size_t k = 0;
    while (k < sizeof known / sizeof *known && !gguf_str_is(model, known[k].name))
        k++;
    if (k == sizeof known / sizeof *known)
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.model: unknown \"%.*s\"",
                       model.len > 100 ? 100 : (int)model.len, model.data);
    p->kind = known[k].kind;
    if (p->kind == SOURCE_LEVEL)
        s = find_pre(p->g, &pre, e);
    if (gguf_str_is(model, "gemma4"))
        for (pre = pre_rows; strcmp(pre->name, "gemma4") != 0;)
            pre++;
    if (s != TLM_OK)
        return s;
    if (pre && (pre->flags & PRE_MARKS))
        p->kind = SOURCE_MARKS;
    p->add_bos = p->kind == SOURCE_SPM || p->kind == SOURCE_BERT || (pre && (pre->flags & PRE_BOS));
    p->add_eos = p->kind == SOURCE_UNIGRAM;
    p->add_sep = p->kind == SOURCE_BERT;
    p->space_prefix = p->kind == SOURCE_SPM;
    s = read_flags(p, e);
    return s == TLM_OK ? setup_kind(t, p, pre, e) : s;
}
