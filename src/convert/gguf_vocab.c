/* A directory's tokenizer as tokenizer.ggml.*: the inverse of
 * text/tokenizer_gguf.c. Two of its models are written:
 *   gpt2    byte-level BPE: texts, types, merges, and the name of the splitting
 *   llama   BPE on U+2581 text with bytes for what is unknown: texts, types and
 *           scores. Of two neighbours that one with the higher score of the
 *           result is merged; merge lists of SentencePiece models are in that
 *           order, others are refused.
 * The vocabulary gets as many entries as the embedding has rows. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "convert/gguf_out.h"
#include "text/chat.h"
#include "text/tokenizer_gguf.h"

#define MARK "\xe2\x96\x81" /* U+2581 */

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };

struct vocab {
    const struct source *s;
    const struct tlm_tokenizer *t;
    struct gguf_writer *w;
    uint32_t rows; /* of the embedding */
    bool marks;    /* llama, not gpt2 */
    bool space_prefix;
    int32_t *types;
    float *scores;
};

/* ---- what stands around the model ---- */

static bool is_replace(const struct tok_norm *n)
{
    return n->kind == NORM_REPLACE && !n->pattern.regex && n->pattern.n == 1 && n->pattern.text[0] == ' ' &&
           n->content_n == 3 && !memcmp(n->content, MARK, 3);
}

/* Spaces become U+2581, perhaps with one in front, and nothing else happens. */
static enum tlm_status read_marks(struct vocab *v, struct tlm_error *e)
{
    const struct tlm_tokenizer *t = v->t;
    bool replaced = false, known = true;
    for (uint32_t i = 0; i < t->norms.n; i++) {
        const struct tok_norm *n = &t->norms.list[i];
        if (is_replace(n))
            replaced = true;
        else if (n->kind == NORM_PREPEND && n->content_n == 3 && !memcmp(n->content, MARK, 3))
            v->space_prefix = true;
        else
            known = false;
    }
    for (uint32_t i = 0; i < t->pretoks.n; i++) {
        const struct tok_pretok *p = &t->pretoks.list[i];
        bool mark = p->kind == PRETOK_METASPACE && !p->split && p->mark_n == 3 && !memcmp(p->mark, MARK, 3);
        bool space = p->kind == PRETOK_SPLIT && !p->pattern.regex && p->pattern.n == 1 && p->pattern.text[0] == ' ';
        if (mark && p->prepend != PRETOK_PREPEND_NEVER) {
            v->space_prefix = true;
            log_warn("tokenizer: readers of GGUF files put a space before every text; this one not where one is there, "
                     "and perhaps not after special tokens");
        }
        replaced = replaced || mark;
        known = known && (mark || (space && replaced)); /* no space is left to split at */
    }
    if (!known || !replaced)
        return err_set(e, TLM_EUNSUPPORTED,
                       "tokenizer: its normalizer or pre-tokenizer has no form in GGUF files: expected U+2581 for "
                       "spaces and nothing else");
    return TLM_OK;
}

static enum tlm_status read_kind(struct vocab *v, struct tlm_error *e)
{
    const struct tok_model *m = &v->t->model;
    struct tlm_tokenizer_info info;
    tlm_tokenizer_info_get(v->t, &info);
    v->marks = !v->t->level_model;
    bool bpe = m->kind == MODEL_BPE && !m->prefix_n && !m->suffix_n && (v->t->level_model || m->byte_fallback);
    bool spm = m->kind == MODEL_SPM && m->byte_fallback && !m->leftmost;
    if (!bpe && !spm)
        return err_set(e, TLM_EUNSUPPORTED,
                       "tokenizer: %s as this one has it is not written to GGUF files; byte-level BPE of "
                       "tokenizer.json and SentencePiece BPE with bytes are",
                       info.kind);
    for (uint32_t i = 0; i < v->t->added.n; i++) {
        const struct tok_added *a = &v->t->added.list[i];
        if (a->lstrip || a->rstrip || a->single_word) {
            log_warn("tokenizer: that tokens take the white space beside them (lstrip, rstrip, single_word) has no "
                     "form in GGUF files: token %u",
                     a->id);
            break;
        }
    }
    return v->marks ? read_marks(v, e) : TLM_OK;
}

/* ---- tokens ---- */

static bool all_marks(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i += 3)
        if (n - i < 3 || memcmp(s + i, MARK, 3))
            return false;
    return n > 3;
}

static bool is_byte(const char *s, size_t n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>' && strchr("0123456789ABCDEF", s[3]) &&
           strchr("0123456789ABCDEF", s[4]);
}

static bool present(const struct vocab *v, uint32_t id)
{
    const struct tok_vocab *tv = &v->t->vocab;
    return id < tv->n && (tv->flags[id] & TOK_PRESENT) && !(tv->flags[id] & TOK_SILENT);
}

/* Entries that only fill the embedding, and are in some vocabularies already. */
static bool is_padding(const struct vocab *v, uint32_t id)
{
    char name[32];
    snprintf(name, sizeof name, "[PAD%u]", id);
    return !strcmp(vocab_text(&v->t->vocab, id), name);
}

static int32_t type_of(const struct vocab *v, uint32_t id)
{
    if (!present(v, id))
        return PIECE_UNUSED;
    unsigned flags = v->t->vocab.flags[id];
    if (flags & TOK_SPECIAL)
        return PIECE_CONTROL;
    if (flags & TOK_ADDED)
        return PIECE_USER;
    if (is_padding(v, id))
        return PIECE_UNUSED;
    if (v->marks && (int32_t)id == v->t->model.unk)
        return PIECE_UNKNOWN;
    bool byte = v->marks && is_byte(vocab_text(&v->t->vocab, id), v->t->vocab.piece[id].len);
    return byte ? PIECE_BYTE : PIECE_NORMAL;
}

/* User-defined runs of U+2581 stand for the spaces themselves. */
static enum tlm_status put_token(const struct vocab *v, uint32_t id, struct tlm_error *e)
{
    if (!present(v, id)) {
        char name[32];
        int n = snprintf(name, sizeof name, "[PAD%u]", id);
        return gguf_writer_item(v->w, name, (size_t)n, e);
    }
    static const char spaces[] = "                                                                ";
    const char *text = vocab_text(&v->t->vocab, id);
    size_t n = v->t->vocab.piece[id].len;
    if (v->marks && v->types[id] == PIECE_USER && all_marks(text, n) && n / 3 < sizeof spaces)
        return gguf_writer_item(v->w, spaces, n / 3, e);
    return gguf_writer_item(v->w, text, n, e);
}

static enum tlm_status put_tokens(struct vocab *v, struct tlm_error *e)
{
    uint32_t beyond = 0;
    for (uint32_t id = v->rows; id < v->t->vocab.n; id++)
        beyond += present(v, id);
    if (beyond)
        log_warn("tokenizer: %u tokens from id %u on are left out: the model has no rows for them", beyond, v->rows);
    v->types = mem_alloc_array(v->rows, sizeof *v->types);
    if (!v->types)
        return err_nomem(e, v->rows * sizeof *v->types);
    for (uint32_t id = 0; id < v->rows; id++)
        v->types[id] = type_of(v, id);
    enum tlm_status s = gguf_writer_list(v->w, "tokenizer.ggml.tokens", v->rows, e);
    for (uint32_t id = 0; id < v->rows && s == TLM_OK; id++)
        s = put_token(v, id, e);
    return s == TLM_OK ? gguf_writer_array(v->w, "tokenizer.ggml.token_type", GGUF_I32, v->rows, v->types, e) : s;
}

/* ---- merges and scores ---- */

static enum tlm_status put_merges(const struct vocab *v, struct tlm_error *e)
{
    const struct tok_model *m = &v->t->model;
    const struct tok_vocab *tv = &v->t->vocab;
    struct buf text;
    buf_init(&text, 1 << 20);
    enum tlm_status s = gguf_writer_list(v->w, "tokenizer.ggml.merges", m->n_pairs, e);
    for (uint32_t i = 0; i < m->n_pairs && s == TLM_OK; i++) {
        const struct bpe_pair *p = &m->pairs[i];
        buf_clear(&text);
        buf_add(&text, vocab_text(tv, p->left), tv->piece[p->left].len);
        buf_add_char(&text, ' ');
        buf_add(&text, vocab_text(tv, p->right), tv->piece[p->right].len);
        s = buf_check(&text, e, "merges");
        if (s == TLM_OK)
            s = gguf_writer_item(v->w, text.data, text.len, e);
    }
    buf_deinit(&text);
    return s;
}

static bool is_added(const struct vocab *v, uint32_t id)
{
    return (v->t->vocab.flags[id] & TOK_ADDED) != 0;
}

/* -1 for the first result of the merges, -2 for the next. All merges that give
 * a piece must stand together: that is the order by the piece's score. */
static enum tlm_status score_by_merges(struct vocab *v, struct tlm_error *e)
{
    const struct tok_model *m = &v->t->model;
    float next = 0;
    for (uint32_t i = 0; i < m->n_pairs; i++) {
        uint32_t id = m->pairs[i].id;
        if (is_added(v, id) || id >= v->rows || (i && m->pairs[i - 1].id == id))
            continue;
        if (v->scores[id] != 0)
            return err_set(e, TLM_EUNSUPPORTED,
                           "tokenizer: merge %u (\"%.40s\" + \"%.40s\") stands apart from others with the same "
                           "result: this order is not that of scores, as GGUF files have them",
                           i, vocab_text(&v->t->vocab, m->pairs[i].left), vocab_text(&v->t->vocab, m->pairs[i].right));
        v->scores[id] = --next;
    }
    for (uint32_t id = 0; id < v->rows; id++)
        if (v->scores[id] == 0 && v->types[id] == PIECE_NORMAL)
            v->scores[id] = next - 1; /* single characters */
    return TLM_OK;
}

/* The score of a SentencePiece model, from its order; see tokenizer_spm.c. */
static void score_by_order(struct vocab *v)
{
    for (uint32_t id = 0; id < v->rows && id < v->t->vocab.n; id++) {
        uint32_t order = v->t->model.order[id], rising = ~order;
        uint32_t bits = rising & 0x80000000 ? rising ^ 0x80000000 : ~rising;
        if (order != UINT32_MAX && v->types[id] == PIECE_NORMAL)
            memcpy(&v->scores[id], &bits, 4);
    }
}

static enum tlm_status put_scores(struct vocab *v, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    v->scores = mem_new_array(v->rows, sizeof *v->scores);
    if (!v->scores)
        return err_nomem(e, v->rows * sizeof *v->scores);
    if (v->t->model.kind == MODEL_SPM)
        score_by_order(v);
    else
        s = score_by_merges(v, e);
    for (uint32_t id = 0; id < v->rows; id++)
        if (v->types[id] != PIECE_NORMAL)
            v->scores[id] = v->types[id] == PIECE_BYTE ? 0.0f : -1000.0f; /* never looked at */
    return s == TLM_OK ? gguf_writer_array(v->w, "tokenizer.ggml.scores", GGUF_F32, v->rows, v->scores, e) : s;
}

/* ---- special ids ---- */

/* The tokenizer's, or what the model's configs say. */
static enum tlm_status put_id(const struct vocab *v, const char *key, int32_t id, const char *config_key,
                              struct tlm_error *e)
{
    const struct checkpoint *ck = v->s->model.ck;
    const cJSON *const places[] = {ck->config, json_get(ck->config, "text_config"), ck->generation_config};
    for (size_t i = 0; i < sizeof places / sizeof places[0] && id < 0; i++) {
        int64_t ids[64];
        int n = 0;
        enum tlm_status s = config_key ? json_ints(places[i], config_key, ids, 64, &n, e) : TLM_OK;
        if (s != TLM_OK)
            return s;
        if (n && ids[0] >= 0 && ids[0] < v->rows)
            id = (int32_t)ids[0];
    }
    return id >= 0 && (uint32_t)id < v->rows ? gguf_writer_u32(v->w, key, (uint32_t)id, e) : TLM_OK;
}

/* Further tokens that end an answer; files have room for two, which readers
 * call the ends of a turn and of a message. */
static enum tlm_status put_more_eos(const struct vocab *v, int32_t eos, struct tlm_error *e)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    enum { KEYS = sizeof keys / sizeof keys[0], IDS = 64 };
    const struct checkpoint *ck = v->s->model.ck;
    const cJSON *const places[] = {ck->generation_config, ck->config, json_get(ck->config, "text_config")};
    int64_t put[KEYS] = {-1, -1};
    int used = 0;
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int64_t ids[IDS];
        int n = 0;
        s = json_ints(places[i], "eos_token_id", ids, IDS, &n, e);
        for (int k = 0; k < n && s == TLM_OK; k++) {
            if (ids[k] == eos || ids[k] == put[0] || ids[k] == put[1] || ids[k] < 0 || ids[k] >= v->rows)
                continue;
            if (used == KEYS) {
                log_warn("%s: eos_token_id: the file says of %d ids that they end an answer; %lld is left out",
                         ck->path, KEYS + 1, (long long)ids[k]);
                return TLM_OK;
            }
            s = gguf_writer_u32(v->w, keys[used], (uint32_t)ids[k], e);
            put[used++] = ids[k];
        }
        if (s != TLM_OK)
            return s;
    }
    return s;
}

static enum tlm_status put_ids(const struct vocab *v, struct tlm_error *e)
{
    const struct tlm_tokenizer *t = v->t;
    const struct tok_template *p = &t->post;
    bool bos = p->n_before == 1 && p->before[0] == t->bos, eos = p->n_after == 1 && p->after[0] == t->eos;
    if ((p->n_before && !bos) || (p->n_after && !eos))
        return err_set(e, TLM_EUNSUPPORTED,
                       "tokenizer: it puts other tokens around a text than bos and eos, which has no form in GGUF "
                       "files");
    enum tlm_status s = put_id(v, "tokenizer.ggml.bos_token_id", t->bos, "bos_token_id", e);
    if (s == TLM_OK)
        s = put_id(v, "tokenizer.ggml.eos_token_id", t->eos, "eos_token_id", e);
    if (s == TLM_OK && t->eos >= 0)
        s = put_more_eos(v, t->eos, e);
    if (s == TLM_OK)
        s = put_id(v, "tokenizer.ggml.unknown_token_id", t->unk, NULL, e);
    if (s == TLM_OK)
        s = put_id(v, "tokenizer.ggml.padding_token_id", t->pad, "pad_token_id", e);
    if (s == TLM_OK)
        s = gguf_writer_bool(v->w, "tokenizer.ggml.add_bos_token", bos, e);
    if (s == TLM_OK)
        s = gguf_writer_bool(v->w, "tokenizer.ggml.add_eos_token", eos, e);
    return s == TLM_OK ? gguf_writer_bool(v->w, "tokenizer.ggml.add_space_prefix", v->space_prefix, e) : s;
}

/* ---- chat template ---- */

static enum tlm_status put_templates(const struct tlm_chat_template *t, struct gguf_writer *w, struct tlm_error *e)
{
    uint64_t named = 0;
    enum tlm_status s = TLM_OK;
    char key[256];
    for (size_t i = 0; i < t->n_named && s == TLM_OK; i++) {
        const struct chat_named *n = &t->named[i];
        bool usual = !strcmp(n->name, "default");
        named += !usual;
        if (snprintf(key, sizeof key, "tokenizer.chat_template%s%s", usual ? "" : ".", usual ? "" : n->name) >=
            (int)sizeof key)
            return err_set(e, TLM_ELIMIT, "chat template \"%.100s\": its name is too long", n->name);
        s = gguf_writer_string(w, key, n->source, strlen(n->source), e);
    }
    if (s == TLM_OK && named)
        s = gguf_writer_list(w, "tokenizer.chat_templates", named, e);
    for (size_t i = 0; i < t->n_named && s == TLM_OK && named; i++)
        if (strcmp(t->named[i].name, "default"))
            s = gguf_writer_item(w, t->named[i].name, strlen(t->named[i].name), e);
    return s;
}

static enum tlm_status put_chat(const struct vocab *v, struct tlm_error *e)
{
    struct tlm_chat_template *t = NULL;
    struct tlm_error why = {TLM_OK, ""};
    enum tlm_status s = tlm_chat_template_open(v->s->model.ck->path, &t, &why);
    if (s == TLM_ENOMEM)
        return err_set(e, s, "%s", why.message);
    if (s != TLM_OK)
        log_warn("the chat template is left out: %s", why.message);
    else if (t && t->builtin != CHAT_JINJA)
        log_warn("%s: the chat template is left out: it is no text", v->s->model.ck->path);
    s = t ? put_templates(t, v->w, e) : TLM_OK;
    tlm_chat_template_free(t);
    return s;
}

/* ---- the whole ---- */

static enum tlm_status put_vocab(struct vocab *v, struct tlm_error *e)
{
    const char *pre = "default";
    enum tlm_status s = read_kind(v, e);
    if (s == TLM_OK && !v->marks)
        s = tok_pre_name(v->t, &pre, e);
    if (s == TLM_OK)
        s = gguf_writer_string(v->w, "tokenizer.ggml.model", v->marks ? "llama" : "gpt2", v->marks ? 5 : 4, e);
    if (s == TLM_OK)
        s = gguf_writer_string(v->w, "tokenizer.ggml.pre", pre, strlen(pre), e);
    if (s == TLM_OK)
        s = put_tokens(v, e);
    if (s == TLM_OK)
        s = v->marks ? put_scores(v, e) : put_merges(v, e);
    return s == TLM_OK ? put_ids(v, e) : s;
}

enum tlm_status gguf_vocab_write(const struct source *s, struct gguf_writer *w, struct tlm_error *e)
{
    struct tlm_tokenizer *t = NULL;
    struct tlm_error local = {TLM_OK, ""};
    const char *path = s->model.ck->path;
    enum tlm_status st = tokenizer_from_dir(path, &t, &local);
    struct vocab v = {.s = s, .t = t, .w = w, .rows = (uint32_t)model_base(&s->model)->cfg.vocab_size};
    if (st == TLM_OK)
        st = put_vocab(&v, &local);
    else if (st == TLM_ENOTFOUND) {
        log_warn("%s: there is no tokenizer; the file gets none", path);
        st = gguf_writer_string(w, "tokenizer.ggml.model", "no_vocab", 8, e);
    }
    mem_free(v.types);
    mem_free(v.scores);
    tlm_tokenizer_free(t);
    if (st == TLM_OK)
        return put_chat(&v, e);
    if (!strstr(local.message, path))
        err_prefix(&local, "%s", path);
    return err_set(e, st, "%s", local.message);
}
