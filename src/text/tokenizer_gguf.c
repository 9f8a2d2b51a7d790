/* Tokenizer from GGUF metadata, set up so that it gives what the HF tokenizer
 * of the same model gives.
 *   tokenizer.ggml.model "gpt2": byte-level BPE; `pre` names the splitting.
 *   tokenizer.ggml.model "llama": SentencePiece BPE by score with byte fallback.
 * Converters write user-defined tokens of spaces with real spaces, where the
 * vocabulary has U+2581; these are turned back. */
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };

enum { PRE_NFC = 1, PRE_WHOLE = 2, PRE_BOS = 4, PRE_REGEXES = 8 };

struct pre_row {
    const char *name;
    unsigned flags;
    const char *regex[PRE_REGEXES];
};

static const struct pre_row pre_rows[] = {
#define TOK_PRE(name, flags, ...) {name, flags, {__VA_ARGS__}},
#include "text/tokenizer_pre.def"
};

struct source {
    const struct gguf *g;
    const struct gguf_array *tokens, *types, *scores, *merges;
    bool level; /* gpt2 */
};

static bool str_is(struct gguf_str s, const char *text)
{
    return strlen(text) == s.len && !memcmp(s.data, text, s.len);
}

static enum tlm_status read_arrays(struct source *p, struct tlm_error *e)
{
    const struct gguf *g = p->g;
    enum tlm_status s = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &p->tokens, e);
    if (s == TLM_OK)
        s = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &p->types, e);
    if (s == TLM_OK)
        s = gguf_get_array(g, "tokenizer.ggml.scores", GGUF_F32, &p->scores, e);
    if (s == TLM_OK)
        s = gguf_get_array(g, "tokenizer.ggml.merges", GGUF_STR, &p->merges, e);
    if (s != TLM_OK)
        return s;
    if (!p->tokens || !p->tokens->n || p->tokens->n > TOK_MAX_ID)
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.tokens: found %llu tokens, expected 1 to %d",
                       p->tokens ? (unsigned long long)p->tokens->n : 0, TOK_MAX_ID);
    if (p->types && p->types->n != p->tokens->n)
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.token_type: found %llu entries, expected %llu",
                       (unsigned long long)p->types->n, (unsigned long long)p->tokens->n);
    if (!p->level && (!p->scores || p->scores->n != p->tokens->n))
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.scores: found %llu entries, expected %llu",
                       p->scores ? (unsigned long long)p->scores->n : 0, (unsigned long long)p->tokens->n);
    if (p->level && !p->merges)
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.merges is missing");
    return TLM_OK;
}

static int type_of(const struct source *p, uint64_t id)
{
    return p->types ? (int)load_u32((const char *)p->types->data + 4 * id) : PIECE_NORMAL;
}

/* Smaller is better; UINT32_MAX is never given out here. User-defined pieces
 * come first, as the converters drop their score. */
static uint32_t order_of(const struct source *p, uint64_t id, int type)
{
    if (type == PIECE_USER)
        return 0;
    uint32_t bits = load_u32((const char *)p->scores->data + 4 * id);
    uint32_t rising = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    uint32_t order = ~rising;
    return order == 0 ? 1 : order == UINT32_MAX ? UINT32_MAX - 1 : order;
}

static bool all_spaces(struct gguf_str s)
{
    for (uint64_t i = 0; i < s.len; i++)
        if (s.data[i] != ' ')
            return false;
    return s.len > 1;
}

static enum tlm_status put_piece(struct tlm_tokenizer *t, const struct source *p, uint32_t id, struct buf *marks,
                                 struct tlm_error *e)
{
    struct gguf_str text = p->tokens->strings[id];
    int type = type_of(p, id);
    uint8_t flags = 0;
    bool added = false;
    switch (type) {
    case PIECE_NORMAL:
    case PIECE_UNKNOWN:
    case PIECE_BYTE:
        flags = TOK_MODEL;
        break;
    case PIECE_CONTROL:
        flags = TOK_ADDED | TOK_SPECIAL;
        added = true;
        break;
    case PIECE_USER:
        flags = TOK_MODEL | TOK_ADDED;
        added = true;
        break;
    case PIECE_UNUSED:
        flags = TOK_SILENT;
        break;
    default:
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.token_type: token %u has unknown type %d", id, type);
    }
    if (!p->level) {
        if (type == PIECE_UNKNOWN)
            flags |= TOK_SPECIAL;
        t->model.order[id] = type == PIECE_NORMAL || type == PIECE_USER ? order_of(p, id, type) : UINT32_MAX;
    }
    if (!p->level && type == PIECE_USER && all_spaces(text)) {
        buf_clear(marks);
        for (uint64_t i = 0; i < text.len; i++)
            buf_add(marks, "\xe2\x96\x81", 3);
        if (buf_check(marks, e, "tokenizer.ggml.tokens") != TLM_OK)
            return marks->status;
        text = (struct gguf_str){marks->data, marks->len};
        flags = TOK_MODEL;
        added = false;
    }
    if (!text.len)
        flags &= (uint8_t)~TOK_MODEL;
    if ((flags & TOK_MODEL) && text.len > t->model.max_piece)
        t->model.max_piece = text.len > UINT32_MAX ? UINT32_MAX : (uint32_t)text.len;
    enum tlm_status s = vocab_put(&t->vocab, id, text.len ? text.data : "", text.len, flags, e);
    if (s == TLM_OK && added && text.len && utf8_valid(text.data, text.len))
        s = added_put(&t->added, (struct tok_added){.id = id, .special = type == PIECE_CONTROL}, e);
    return s;
}

static enum tlm_status put_pieces(struct tlm_tokenizer *t, const struct source *p, struct tlm_error *e)
{
    size_t bytes = 0;
    struct buf marks;
    for (uint64_t i = 0; i < p->tokens->n; i++) {
        if (p->tokens->strings[i].len > TOK_MAX_TEXT - bytes)
            return err_set(e, TLM_ELIMIT, "tokenizer.ggml.tokens: more than %zu bytes", TOK_MAX_TEXT);
        bytes += p->tokens->strings[i].len + 1;
    }
    enum tlm_status s = vocab_reserve(&t->vocab, p->tokens->n, bytes, e);
    if (s == TLM_OK && !p->level) {
        t->model.order = mem_alloc_array(p->tokens->n, sizeof *t->model.order);
        if (!t->model.order)
            return err_nomem(e, p->tokens->n * sizeof *t->model.order);
    }
    buf_init(&marks, TOK_MAX_TEXT);
    for (uint64_t i = 0; i < p->tokens->n && s == TLM_OK; i++)
        s = put_piece(t, p, (uint32_t)i, &marks, e);
    buf_deinit(&marks);
    return s;
}

static enum tlm_status put_merges(struct tlm_tokenizer *t, const struct source *p, struct tlm_error *e)
{
    enum tlm_status s = bpe_reserve(t, p->merges->n, e);
    for (uint64_t i = 0; i < p->merges->n && s == TLM_OK; i++) {
        struct gguf_str m = p->merges->strings[i];
        /* A left part may begin with a space of its own. */
        const char *space = m.len > 1 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
        if (!space)
            return err_set(e, TLM_EFORMAT, "tokenizer.ggml.merges: entry %llu is not two texts with a space between",
                           (unsigned long long)i);
        size_t n = (size_t)(space - m.data);
        s = bpe_add_merge(t, m.data, n, space + 1, m.len - n - 1, e);
    }
    return s;
}

/* ---- the parts around the model ---- */

static enum tlm_status add_norm(struct tlm_tokenizer *t, enum norm_kind kind, const char *from, const char *to,
                                struct tlm_error *e)
{
    struct tok_norm *p = norm_push(&t->norms);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->kind = kind;
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
        if (str_is(pre, pre_rows[i].name)) {
            *out = &pre_rows[i];
            return TLM_OK;
        }
    return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.pre: unknown \"%.*s\"", pre.len > 100 ? 100 : (int)pre.len,
                   pre.data);
}

static enum tlm_status setup_level(struct tlm_tokenizer *t, const struct source *p, bool *bos, struct tlm_error *e)
{
    const struct pre_row *pre = NULL;
    bool space = false;
    enum tlm_status s = find_pre(p->g, &pre, e);
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.add_space_prefix", &space, e);
    if (s != TLM_OK)
        return s;
    *bos = pre->flags & PRE_BOS;
    t->model.kind = MODEL_BPE;
    t->model.ignore_merges = pre->flags & PRE_WHOLE;
    if (pre->flags & PRE_NFC)
        s = add_norm(t, NORM_NFC, NULL, NULL, e);
    struct tok_pretok *step;
    for (int i = 0; s == TLM_OK && i < PRE_REGEXES && pre->regex[i]; i++) {
        step = pretok_push(&t->pretoks);
        if (!step)
            return err_nomem(e, sizeof *step);
        step->kind = PRETOK_SPLIT;
        s = regex_new(pre->regex[i], strlen(pre->regex[i]), &step->pattern.regex, e);
    }
    step = s == TLM_OK ? pretok_push(&t->pretoks) : NULL;
    if (s == TLM_OK && !step)
        return err_nomem(e, sizeof *step);
    if (step) {
        step->kind = PRETOK_BYTE_LEVEL;
        s = add_decoder(t, DECODER_BYTE_LEVEL, NULL, NULL, e);
    }
    if (s == TLM_OK && space)
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.add_space_prefix: true with a byte-level model");
    return s;
}

static enum tlm_status setup_spm(struct tlm_tokenizer *t, const struct source *p, struct tlm_error *e)
{
    bool space = true;
    struct gguf_str pre = {"default", 7};
    enum tlm_status s = gguf_bool(p->g, "tokenizer.ggml.add_space_prefix", &space, e);
    if (s == TLM_OK)
        s = gguf_string(p->g, "tokenizer.ggml.pre", &pre, e);
    if (s == TLM_OK && !str_is(pre, "default"))
        s = err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.pre: unknown \"%.*s\" for the model \"llama\"",
                    pre.len > 100 ? 100 : (int)pre.len, pre.data);
    t->model.kind = MODEL_SPM;
    t->model.byte_fallback = t->model.fuse_unk = true;
    if (s == TLM_OK && space)
        s = add_norm(t, NORM_PREPEND, NULL, "\xe2\x96\x81", e);
    if (s == TLM_OK)
        s = add_norm(t, NORM_REPLACE, " ", "\xe2\x96\x81", e);
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_REPLACE, "\xe2\x96\x81", " ", e);
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_BYTE_FALLBACK, NULL, NULL, e);
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_FUSE, NULL, NULL, e);
    return s == TLM_OK && space ? add_decoder(t, DECODER_STRIP, NULL, " ", e) : s;
}

static enum tlm_status read_ids(struct tlm_tokenizer *t, const struct source *p, bool add_bos, struct tlm_error *e)
{
    static const char *const keys[] = {"bos", "eos", "unknown", "padding"};
    int32_t *out[] = {&t->bos, &t->eos, &t->unk, &t->pad};
    bool add_eos = false;
    enum tlm_status s = TLM_OK;
    for (int k = 0; k < 4 && s == TLM_OK; k++) {
        char key[64];
        int64_t id = p->level || k == 3 ? -1 : (k + 1) % 3; /* llama: unk 0, bos 1, eos 2 */
        memcpy(key, "tokenizer.ggml.", 16);
        strncat(key, keys[k], 16);
        strncat(key, "_token_id", 10);
        /* -1 stands for none in some files. */
        s = gguf_int(p->g, key, -1, (int64_t)UINT32_MAX, &id, e);
        if (s == TLM_OK && id >= (int64_t)t->vocab.n && id != (int64_t)UINT32_MAX && gguf_find(p->g, key))
            s = err_set(e, TLM_EFORMAT, "%s: found %lld, expected less than %u", key, (long long)id, t->vocab.n);
        *out[k] = id < (int64_t)t->vocab.n ? (int32_t)id : -1;
    }
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.add_bos_token", &add_bos, e);
    if (s == TLM_OK)
        s = gguf_bool(p->g, "tokenizer.ggml.add_eos_token", &add_eos, e);
    if (!p->level)
        t->model.unk = t->unk;
    return s == TLM_OK ? template_set(&t->post, add_bos ? t->bos : -1, add_eos ? t->eos : -1, e) : s;
}

static enum tlm_status build(struct tlm_tokenizer *t, const struct gguf *g, struct tlm_error *e)
{
    struct source p = {.g = g};
    struct gguf_str model = {"", 0};
    bool bos = true;
    enum tlm_status s = gguf_string(g, "tokenizer.ggml.model", &model, e);
    if (s != TLM_OK)
        return s;
    if (!model.len)
        return err_set(e, TLM_ENOTFOUND, "tokenizer.ggml.model is missing: the file has no tokenizer");
    p.level = str_is(model, "gpt2");
    if (!p.level && !str_is(model, "llama"))
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.model: unknown \"%.*s\"",
                       model.len > 100 ? 100 : (int)model.len, model.data);
    s = read_arrays(&p, e);
    if (s == TLM_OK)
        s = p.level ? setup_level(t, &p, &bos, e) : setup_spm(t, &p, e);
    if (s == TLM_OK)
        s = put_pieces(t, &p, e);
    if (s == TLM_OK && p.level)
        s = put_merges(t, &p, e);
    if (s == TLM_OK)
        s = read_ids(t, &p, bos, e);
    return s == TLM_OK ? tokenizer_finish(t, e) : s;
}

enum tlm_status tokenizer_from_gguf(const struct gguf *g, struct tlm_tokenizer **out, struct tlm_error *e)
{
    struct tlm_error local = {TLM_OK, ""};
    struct tlm_tokenizer *t = tokenizer_alloc(e);
    *out = NULL;
    if (!t)
        return TLM_ENOMEM;
    enum tlm_status s = build(t, g, &local);
    if (s != TLM_OK) {
        if (g->path && !strstr(local.message, g->path))
            err_prefix(&local, "%s", g->path);
        tlm_tokenizer_free(t);
        return err_set(e, s, "%s", local.message);
    }
    *out = t;
    return TLM_OK;
}
