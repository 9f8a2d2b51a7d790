/* Vocabulary of a GGUF tokenizer: pieces by their type, merges, special ids.
 * What stands around the model: tokenizer_gguf_setup.c.
 *
 * Converters change texts, which is turned back here: user-defined tokens of
 * spaces have real spaces where the vocabulary has U+2581; BERT's pieces have
 * U+2581 at a word's start and nothing inside instead of nothing and ##; RWKV's
 * bytes are escaped as in a Python literal. */
#include <math.h>

#include "base/fp.h"
#include "base/mem.h"
#include "text/tokenizer_gguf.h"
#include "text/utf8.h"

#define MARK "\xe2\x96\x81" /* U+2581 */

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };

static bool has_scores(const struct tok_source *p)
{
    return p->kind == SOURCE_SPM || p->kind == SOURCE_UNIGRAM || p->kind == SOURCE_PLAMO;
}

static enum tlm_status read_arrays(struct tok_source *p, struct tlm_error *e)
{
    const struct gguf *g = p->g;
    bool merges = p->kind == SOURCE_LEVEL || p->kind == SOURCE_MARKS;
    enum tlm_status s = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &p->tokens, e);
    if (s == TLM_OK)
        s = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &p->types, e);
    if (s == TLM_OK && has_scores(p))
        s = gguf_get_array(g, "tokenizer.ggml.scores", GGUF_F32, &p->scores, e);
    if (s == TLM_OK && merges)
        s = gguf_get_array(g, "tokenizer.ggml.merges", GGUF_STR, &p->merges, e);
    if (s != TLM_OK)
        return s;
    if (!p->tokens || !p->tokens->n || p->tokens->n > TOK_MAX_ID)
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.tokens: found %llu tokens, expected 1 to %d",
                       p->tokens ? (unsigned long long)p->tokens->n : 0, TOK_MAX_ID);
    if (p->types && p->types->n != p->tokens->n)
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.token_type: found %llu entries, expected %llu",
                       (unsigned long long)p->types->n, (unsigned long long)p->tokens->n);
    if (has_scores(p) && (!p->scores || p->scores->n != p->tokens->n))
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.scores: found %llu entries, expected %llu",
                       p->scores ? (unsigned long long)p->scores->n : 0, (unsigned long long)p->tokens->n);
    if (merges && !p->merges)
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.merges is missing");
    return TLM_OK;
}

static int type_of(const struct tok_source *p, uint64_t id)
{
    return p->types ? (int)gguf_array_int(p->types, id) : PIECE_NORMAL;
}

/* Smaller is better; UINT32_MAX is never given out here. User-defined pieces
 * come first, as the converters drop their score. */
static uint32_t order_of(const struct tok_source *p, uint64_t id, int type)
{
    if (type == PIECE_USER)
        return 0;
    uint32_t bits = load_u32((const char *)p->scores->data + 4 * id);
    uint32_t rising = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    uint32_t order = ~rising;
    return order == 0 ? 1 : order == UINT32_MAX ? UINT32_MAX - 1 : order;
}

/* Scores by id, as the model kind uses them. */
static enum tlm_status put_score(struct tlm_tokenizer *t, const struct tok_source *p, uint32_t id, int type,
                                 struct tlm_error *e)
{
    struct tok_model *m = &t->model;
    if (!has_scores(p))
        return TLM_OK;
    if (p->kind == SOURCE_SPM) {
        m->order[id] = type == PIECE_NORMAL || type == PIECE_USER ? order_of(p, id, type) : UINT32_MAX;
        return TLM_OK;
    }
    double score = (double)fp_from_bits(load_u32((const char *)p->scores->data + 4 * (uint64_t)id));
    if (!isfinite(score))
        return err_set(e, TLM_EFORMAT, "tokenizer.ggml.scores: token %u has no finite score", id);
    if (p->kind == SOURCE_PLAMO) /* bytes are never pieces of a text */
        score = type == PIECE_BYTE ? HUGE_VAL : -round(score * 1e4);
    else if (type == PIECE_USER)
        score = 0;
    m->scores[id] = score;
    return TLM_OK;
}

static bool all_spaces(struct gguf_str s)
{
    for (uint64_t i = 0; i < s.len; i++)
        if (s.data[i] != ' ')
            return false;
    return s.len > 1;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* \t, \n, \r, \xhh, and any other character for itself. */
static bool unescape(struct buf *out, struct gguf_str s)
{
    for (uint64_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        if (c != '\\' || i + 1 == s.len) {
            buf_add_char(out, c);
            continue;
        }
        c = s.data[++i];
        if (c == 'x') {
            if (s.len - i < 3 || hex_digit(s.data[i + 1]) < 0 || hex_digit(s.data[i + 2]) < 0)
                return false;
            c = (char)(hex_digit(s.data[i + 1]) << 4 | hex_digit(s.data[i + 2]));
            i += 2;
        } else if (c == 't' || c == 'n' || c == 'r') {
            c = c == 't' ? '\t' : c == 'n' ? '\n' : '\r';
        }
        buf_add_char(out, c);
    }
    return true;
}

/* The text as the model's own vocabulary has it, in work where it differs;
 * *plain: it is an ordinary piece after all. */
static enum tlm_status own_text(const struct tok_source *p, uint32_t id, int type, struct buf *work,
                                struct gguf_str *text, bool *plain, struct tlm_error *e)
{
    buf_clear(work);
    *plain = false;
    if (p->kind == SOURCE_RWKV && type != PIECE_CONTROL) {
        if (!unescape(work, *text))
            return err_set(e, TLM_EFORMAT, "tokenizer.ggml.tokens: token %u has an invalid escape", id);
    } else if (p->kind == SOURCE_BERT && type == PIECE_NORMAL) {
        if (text->len >= 3 && !memcmp(text->data, MARK, 3)) {
            text->data += 3;
            text->len -= 3;
            return TLM_OK;
        }
        buf_add_str(work, "##");
        buf_add(work, text->data, text->len);
    } else if ((p->kind == SOURCE_SPM || p->kind == SOURCE_MARKS) && type == PIECE_USER && all_spaces(*text)) {
        *plain = true;
        for (uint64_t i = 0; i < text->len; i++)
            buf_add(work, MARK, 3);
    } else {
        return TLM_OK;
    }
    if (buf_check(work, e, "tokenizer.ggml.tokens") != TLM_OK)
        return work->status;
    *text = (struct gguf_str){buf_str(work), work->len};
    return TLM_OK;
}

static enum tlm_status put_piece(struct tlm_tokenizer *t, const struct tok_source *p, uint32_t id, struct buf *work,
                                 struct tlm_error *e)
{
    struct gguf_str text = p->tokens->strings[id];
    int type = type_of(p, id);
    uint8_t flags = 0;
    bool plain, special = type == PIECE_CONTROL || type == PIECE_UNKNOWN;
    switch (type) {
    case PIECE_NORMAL:
    case PIECE_BYTE:
        flags = TOK_MODEL;
        break;
    case PIECE_UNKNOWN:
        flags = TOK_MODEL | TOK_ADDED | TOK_SPECIAL;
        break;
    case PIECE_CONTROL:
        flags = TOK_ADDED | TOK_SPECIAL;
        break;
    case PIECE_USER:
        flags = TOK_MODEL | TOK_ADDED;
        break;
    case PIECE_UNUSED:
        flags = TOK_SILENT;
        break;
    default:
        return err_set(e, TLM_EUNSUPPORTED, "tokenizer.ggml.token_type: token %u has unknown type %d", id, type);
    }
    enum tlm_status s = put_score(t, p, id, type, e);
    if (s == TLM_OK)
        s = own_text(p, id, type, work, &text, &plain, e);
    if (s != TLM_OK)
        return s;
    bool added = (type == PIECE_USER && !plain) || special;
    if (plain)
        flags = TOK_MODEL;
    if (!text.len)
        flags &= (uint8_t)~TOK_MODEL;
    if ((flags & TOK_MODEL) && text.len > t->model.max_piece)
        t->model.max_piece = text.len > UINT32_MAX ? UINT32_MAX : (uint32_t)text.len;
    s = vocab_put_later(&t->vocab, id, text.len ? text.data : "", text.len, flags, e);
    if (s == TLM_OK && added && text.len && utf8_valid(text.data, text.len))
        s = added_put(&t->added, (struct tok_added){.id = id, .special = special}, e);
    return s;
}

static enum tlm_status put_pieces(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    size_t bytes = 0, n = p->tokens->n;
    struct buf work;
    for (uint64_t i = 0; i < n; i++) {
        if (p->tokens->strings[i].len > TOK_MAX_TEXT - bytes)
            return err_set(e, TLM_ELIMIT, "tokenizer.ggml.tokens: more than %zu bytes", TOK_MAX_TEXT);
        bytes += p->tokens->strings[i].len + 1;
    }
    enum tlm_status s = vocab_reserve(&t->vocab, n, bytes, e);
    if (s == TLM_OK && p->kind == SOURCE_SPM)
        t->model.order = mem_alloc_array(n, sizeof *t->model.order);
    else if (s == TLM_OK && has_scores(p))
        t->model.scores = mem_new_array(n, sizeof *t->model.scores);
    if (s == TLM_OK && has_scores(p) && !t->model.order && !t->model.scores)
        return err_nomem(e, n * sizeof(double));
    buf_init(&work, TOK_MAX_TEXT);
    for (uint64_t i = 0; i < n && s == TLM_OK; i++)
        s = put_piece(t, p, (uint32_t)i, &work, e);
    vocab_flush(&t->vocab);
    buf_deinit(&work);
    return s;
}

static enum tlm_status put_merges(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    struct bpe_batch batch;
    enum tlm_status s = bpe_reserve(t, p->merges->n, e);
    bpe_batch_init(&batch);
    for (uint64_t i = 0; i < p->merges->n && s == TLM_OK; i++) {
        struct gguf_str m = p->merges->strings[i];
        /* A left part may begin with a space of its own. */
        const char *space = m.len > 1 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
        size_t n = space ? (size_t)(space - m.data) : 0;
        if (space)
            s = bpe_batch_add(t, &batch, m.data, n, e);
        else
            s = err_set(e, TLM_EFORMAT, "tokenizer.ggml.merges: entry %llu is not two texts with a space between",
                        (unsigned long long)i);
        if (s == TLM_OK)
            s = bpe_batch_add(t, &batch, space + 1, m.len - n - 1, e);
    }
    if (s == TLM_OK)
        s = bpe_batch_flush(t, &batch, e);
    bpe_batch_deinit(&batch);
    return s;
}

static enum tlm_status read_id(const struct tlm_tokenizer *t, const struct tok_source *p, const char *key, int64_t id,
                               int32_t *out, struct tlm_error *e)
{
    /* -1 stands for none in some files. */
    enum tlm_status s = gguf_int(p->g, key, -1, (int64_t)UINT32_MAX, &id, e);
    if (s == TLM_OK && id >= (int64_t)t->vocab.n && id != (int64_t)UINT32_MAX && gguf_find(p->g, key))
        s = err_set(e, TLM_EFORMAT, "%s: found %lld, expected less than %u", key, (long long)id, t->vocab.n);
    *out = id < (int64_t)t->vocab.n ? (int32_t)id : -1;
    return s;
}

/* Special ids, with those that hold for the kind where the file has none. */
static enum tlm_status read_ids(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    static const struct {
        int8_t bos, eos, unk, sep, pad;
    } usual[] = {
        [SOURCE_LEVEL] = {-1, -1, -1, -1, -1}, [SOURCE_MARKS] = {-1, -1, -1, -1, -1},
        [SOURCE_SPM] = {1, 2, 0, -1, -1},      [SOURCE_BERT] = {101, -1, 100, 102, 0},
        [SOURCE_UNIGRAM] = {-1, 1, 2, -1, 0},  [SOURCE_RWKV] = {-1, -1, -1, -1, -1},
        [SOURCE_PLAMO] = {1, 2, 0, -1, 3},
    };
    int32_t cls, sep;
    enum tlm_status s = read_id(t, p, "tokenizer.ggml.cls_token_id", usual[p->kind].bos, &cls, e);
    if (s == TLM_OK)
        s = read_id(t, p, "tokenizer.ggml.bos_token_id", p->kind == SOURCE_BERT ? cls : usual[p->kind].bos, &t->bos, e);
    if (s == TLM_OK)
        s = read_id(t, p, "tokenizer.ggml.eos_token_id", usual[p->kind].eos, &t->eos, e);
    if (s == TLM_OK)
        s = read_id(t, p, "tokenizer.ggml.unknown_token_id", usual[p->kind].unk, &t->unk, e);
    if (s == TLM_OK)
        s = read_id(t, p, "tokenizer.ggml.seperator_token_id", usual[p->kind].sep, &sep, e);
    if (s == TLM_OK)
        s = read_id(t, p, "tokenizer.ggml.padding_token_id", usual[p->kind].pad, &t->pad, e);
    if (s != TLM_OK)
        return s;
    if (p->kind != SOURCE_LEVEL)
        t->model.unk = t->unk;
    if ((p->add_bos && t->bos < 0 && gguf_find(p->g, "tokenizer.ggml.add_bos_token")) ||
        (p->add_eos && t->eos < 0 && gguf_find(p->g, "tokenizer.ggml.add_eos_token")))
        log_warn("%s: the file says to add a token at the start or end and does not say which", p->g->path);
    /* A separator ends what has no other end; elsewhere it stands between texts. */
    int32_t end = p->kind == SOURCE_BERT && p->add_sep ? sep : p->add_eos ? t->eos : -1;
    return template_set(&t->post, p->add_bos ? t->bos : -1, end, e);
}

static bool has_part(struct gguf_str s, const char *part)
{
    size_t n = strlen(part);
    for (uint64_t i = 0; i + n <= s.len; i++) {
        size_t k = 0;
        while (k < n && (s.data[i + k] == part[k] || (s.data[i + k] | 32) == part[k]))
            k++;
        if (k == n)
            return true;
    }
    return false;
}

/* The files do not say which tokens take the white space beside them. */
static enum tlm_status set_strip(struct tlm_tokenizer *t, const struct tok_source *p, struct tlm_error *e)
{
    struct gguf_str name = {"", 0}, pre = {"", 0};
    enum tlm_status s = gguf_string(p->g, "general.name", &name, e);
    if (s == TLM_OK)
        s = gguf_string(p->g, "tokenizer.ggml.pre", &pre, e);
    bool phi = has_part(name, "phi-3") || has_part(name, "phi3");
    bool roberta = p->kind == SOURCE_UNIGRAM || has_part(pre, "jina-v") || has_part(pre, "roberta");
    bool modern = has_part(pre, "modern-bert");
    for (uint32_t i = 0; i < t->added.n && (phi || roberta || modern); i++) {
        struct tok_added *a = &t->added.list[i];
        const char *text = vocab_text(&t->vocab, a->id);
        if ((roberta && !strcmp(text, "<mask>")) || (modern && !strcmp(text, "[MASK]")))
            a->lstrip = true;
        if (phi && strcmp(text, "<unk>") != 0 && strcmp(text, "<s>") != 0 && strcmp(text, "<|endoftext|>") != 0)
            a->rstrip = true;
    }
    return s;
}

static enum tlm_status build(struct tlm_tokenizer *t, const struct gguf *g, struct tlm_error *e)
{
    struct tok_source p = {.g = g};
    enum tlm_status s = gguf_setup(t, &p, e);
    if (s == TLM_OK)
        s = read_arrays(&p, e);
    if (s == TLM_OK)
        s = put_pieces(t, &p, e);
    if (s == TLM_OK && p.merges)
        s = put_merges(t, &p, e);
    if (s == TLM_OK)
        s = read_ids(t, &p, e);
    if (s == TLM_OK)
        s = set_strip(t, &p, e);
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
