/* The public functions: open, encode, look up. Decoding: detok.c. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

struct tlm_tokenizer *tokenizer_alloc(struct tlm_error *e)
{
    struct tlm_tokenizer *t = mem_new(sizeof *t);
    if (!t) {
        err_nomem(e, sizeof *t);
        return NULL;
    }
    t->bos = t->eos = t->unk = t->pad = t->model.unk = -1;
    return t;
}

void model_deinit(struct tok_model *m)
{
    mem_free(m->prefix);
    mem_free(m->suffix);
    mem_free(m->pairs);
    mem_free_pages(m->pair_slots, m->pair_slots ? ((size_t)m->pair_mask + 1) * sizeof *m->pair_slots : 0);
    mem_free(m->order);
    mem_free(m->scores);
    matcher_deinit(&m->pieces);
    *m = (struct tok_model){0};
}

void tlm_tokenizer_free(struct tlm_tokenizer *t)
{
    if (!t)
        return;
    added_deinit(&t->added);
    norm_deinit(&t->norms);
    pretok_deinit(&t->pretoks);
    model_deinit(&t->model);
    template_deinit(&t->post);
    decoder_deinit(&t->decoders);
    vocab_deinit(&t->vocab);
    mem_free(t);
}

enum tlm_status tlm_tokenizer_open(const char *path, struct tlm_tokenizer **out, struct tlm_error *e)
{
    struct gguf *g;
    if (!path || !out)
        return err_set(e, TLM_EINVAL, "tokenizer: no path");
    *out = NULL;
    if (file_is_dir(path))
        return tokenizer_from_dir(path, out, e);
    if (!gguf_is_file(path))
        return tokenizer_from_json_file(path, out, e);
    enum tlm_status s = gguf_open(path, &g, e);
    if (s != TLM_OK)
        return s;
    s = tokenizer_from_gguf(g, out, e);
    gguf_close(g);
    return s;
}

/* Longest piece and lowest score of the models that search by text. */
static void measure_pieces(struct tlm_tokenizer *t)
{
    struct tok_model *m = &t->model;
    const struct tok_vocab *v = &t->vocab;
    bool any = false;
    for (uint32_t id = 0; id < v->n; id++) {
        if (!(v->flags[id] & TOK_MODEL))
            continue;
        if (v->piece[id].len > m->max_piece)
            m->max_piece = v->piece[id].len;
        if (m->scores && (!any || m->scores[id] < m->min_score))
            m->min_score = m->scores[id];
        any = true;
    }
}

enum tlm_status tokenizer_finish(struct tlm_tokenizer *t, struct tlm_error *e)
{
    const struct tok_pretoks *p = &t->pretoks;
    if (!t->vocab.n)
        return err_set(e, TLM_EFORMAT, "the vocabulary is empty");
    if (t->model.kind != MODEL_BPE && t->model.kind != MODEL_SPM)
        measure_pieces(t);
    if (t->model.kind == MODEL_BPE && p->n && p->list[p->n - 1].kind == PRETOK_BYTE_LEVEL)
        t->level_model = true;
    enum tlm_status s = TLM_OK;
    if (t->model.kind == MODEL_LONGEST || t->model.kind == MODEL_CHEAPEST)
        s = pieces_build(t, e);
    if (s == TLM_OK && t->model.kind != MODEL_WORDPIECE && t->model.kind != MODEL_WORDLEVEL)
        s = bpe_finish(t, e);
    if (s == TLM_OK)
        s = added_build(t, e);
    if (t->unk < 0)
        t->unk = t->model.unk;
    if (t->post.n_before) /* what opens every text */
        t->adds_bos = t->bos < 0 || t->post.before[0] == t->bos;
    if (t->adds_bos && t->bos < 0)
        t->bos = t->post.before[0];
    return s;
}

int32_t tokenizer_find(const struct tlm_tokenizer *t, const char *s, size_t n)
{
    for (uint32_t i = 0; i < t->added.n; i++) {
        struct tok_piece p = t->vocab.piece[t->added.list[i].id];
        if (p.len == n && !memcmp(t->vocab.blob + p.off, s, n))
            return (int32_t)t->added.list[i].id;
    }
    return vocab_find(&t->vocab, s, n);
}

void tlm_tokenizer_info_get(const struct tlm_tokenizer *t, struct tlm_tokenizer_info *out)
{
    static const char *const kinds[] = {"BPE",    "SentencePiece BPE", "Unigram", "WordPiece", "word level", "RWKV",
                                        "PLaMo 2"};
    const char *kind = kinds[t->model.kind];
    if (t->model.kind == MODEL_SPM && t->model.leftmost)
        kind = "byte-level BPE";
    if (t->model.kind == MODEL_BPE)
        kind = t->level_model ? "byte-level BPE" : t->model.byte_fallback ? "SentencePiece BPE" : "BPE";
    *out = (struct tlm_tokenizer_info){kind, (int32_t)t->vocab.n, t->bos, t->eos, t->unk, t->pad, t->adds_bos};
}

int32_t tlm_tokenizer_token_id(const struct tlm_tokenizer *t, const char *token)
{
    return token ? tokenizer_find(t, token, strlen(token)) : -1;
}

const char *tlm_tokenizer_token_text(const struct tlm_tokenizer *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->vocab.n || !(t->vocab.flags[id] & TOK_PRESENT))
        return NULL;
    return vocab_text(&t->vocab, (uint32_t)id);
}

int tlm_tokenizer_is_special(const struct tlm_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab.n && (t->vocab.flags[id] & TOK_SPECIAL) != 0;
}

enum tlm_status encoder_push(struct encoder *x, int32_t id)
{
    if (x->n_ids == x->cap_ids) {
        enum tlm_status s = tok_grow(&x->ids, &x->cap_ids, x->n_ids + 1, sizeof *x->ids, x->e);
        if (s != TLM_OK)
            return s;
    }
    x->ids[x->n_ids++] = id;
    return TLM_OK;
}

static void encoder_deinit(struct encoder *x)
{
    struct buf *bufs[] = {&x->a, &x->b, &x->norm_a, &x->norm_b, &x->c, &x->key, &x->cache_text};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        buf_deinit(bufs[i]);
    mem_free(x->words.at);
    mem_free(x->spare.at);
    mem_free(x->raw.at);
    mem_free(x->cuts.at);
    mem_free(x->symbols);
    mem_free(x->heap);
    mem_free(x->cache);
    mem_free(x->lattice);
    mem_free(x->ids);
    regex_work_free(x->regex);
}

/* The cache of words pays from some hundred bytes on and needs no lock, as it
 * belongs to one call. */
static enum tlm_status encoder_init(struct encoder *x, const struct tlm_tokenizer *t, size_t len, struct tlm_error *e)
{
    *x = (struct encoder){.t = t, .e = e};
    struct buf *bufs[] = {&x->a, &x->b, &x->norm_a, &x->norm_b, &x->c, &x->key, &x->cache_text};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        buf_init(bufs[i], TOK_MAX_TEXT);
    x->regex = regex_work_new();
    if (!x->regex)
        return err_nomem(e, 0);
    if (len < 256)
        return TLM_OK;
    size_t size = 64;
    while (size < len / 8 && size < 1 << 15)
        size *= 2;
    x->cache = mem_new_array(size, sizeof *x->cache);
    if (!x->cache)
        return err_nomem(e, size * sizeof *x->cache);
    x->cache_mask = (uint32_t)(size - 1);
    return TLM_OK;
}

static enum tlm_status run_word(struct encoder *x, const char *s, size_t n, bool level)
{
    switch (x->t->model.kind) {
    case MODEL_UNIGRAM:
        return unigram_word(x, s, n);
    case MODEL_WORDPIECE:
    case MODEL_WORDLEVEL:
        return wordpiece_word(x, s, n);
    case MODEL_LONGEST:
        return longest_word(x, s, n);
    case MODEL_CHEAPEST:
        return cheapest_word(x, s, n);
    default:
        return bpe_word(x, s, n, level);
    }
}

static enum tlm_status run_cached(struct encoder *x, const char *s, size_t n, bool level)
{
    if (!x->cache || n > 64 || x->n_ids > UINT32_MAX / 2)
        return run_word(x, s, n, level);
    uint64_t hash = tok_hash(s, n);
    struct tok_cache_entry *c = &x->cache[hash & x->cache_mask];
    if (c->hash == hash && c->len == n && !memcmp(x->cache_text.data + c->off, s, n)) {
        enum tlm_status status = tok_grow(&x->ids, &x->cap_ids, x->n_ids + c->n_ids, sizeof *x->ids, x->e);
        if (status != TLM_OK)
            return status;
        for (uint32_t i = 0; i < c->n_ids; i++)
            x->ids[x->n_ids++] = x->ids[c->first_id + i];
        return TLM_OK;
    }
    size_t first = x->n_ids;
    enum tlm_status status = run_word(x, s, n, level);
    if (status != TLM_OK || x->cache_text.len > (16u << 20))
        return status;
    *c = (struct tok_cache_entry){hash, (uint32_t)x->cache_text.len, (uint32_t)n, (uint32_t)first,
                                  (uint32_t)(x->n_ids - first)};
    if (buf_add(&x->cache_text, s, n) != TLM_OK)
        return buf_check(&x->cache_text, x->e, "tokenizer cache");
    return TLM_OK;
}

/* Cuts a word at places which no piece spans; see tok_model.cut_at_mark. */
static enum tlm_status run_cut(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    size_t start = 0;
    enum tlm_status status = TLM_OK;
    for (size_t i = 1; i + 3 <= n && status == TLM_OK; i++) {
        const char *at = memchr(s + i, 0xe2, n - i - 2);
        if (!at)
            break;
        i = (size_t)(at - s);
        if (memcmp(at, "\xe2\x96\x81", 3) || m->no_cut_after[(uint8_t)at[-1]] ||
            (i >= 3 && !memcmp(at - 3, "\xe2\x96\x81", 3)))
            continue;
        status = run_cached(x, s + start, i - start, false);
        start = i;
    }
    return status == TLM_OK && start < n ? run_cached(x, s + start, n - start, false) : status;
}

enum tlm_status model_run(struct encoder *x, const char *text, bool level)
{
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; i < x->words.n && s == TLM_OK; i++) {
        const char *word = text + x->words.at[i].start;
        size_t n = x->words.at[i].end - x->words.at[i].start;
        if (n)
            s = x->t->model.cut_at_mark ? run_cut(x, word, n) : run_cached(x, word, n, level);
    }
    return s;
}

/* A stretch of raw text between added tokens. */
static enum tlm_status encode_part(struct encoder *x, const char *s, size_t n, bool first, bool plain)
{
    const struct tlm_tokenizer *t = x->t;
    enum tlm_status status = norm_run(&t->norms, x->regex, &s, &n, &x->norm_a, &x->norm_b, x->e);
    if (status == TLM_OK)
        status = added_cut(t, &t->added.normalized, s, n, plain, &x->cuts, x->e);
    for (size_t i = 0; i < x->cuts.n && status == TLM_OK; i++) {
        struct tok_cut c = x->cuts.at[i];
        const char *text = s + c.start;
        size_t len = c.end - c.start;
        if (c.id >= 0) {
            status = encoder_push(x, c.id);
            continue;
        }
        status = pretok_run(x, &text, &len, first && c.start == 0);
        if (status == TLM_OK)
            status = model_run(x, text, t->level_model);
    }
    return status;
}

static enum tlm_status encode_valid(struct encoder *x, const char *text, size_t len, unsigned flags)
{
    const struct tok_template *post = &x->t->post;
    bool plain = flags & TLM_ENCODE_PLAIN;
    enum tlm_status s = TLM_OK;
    for (uint32_t i = 0; (flags & TLM_ENCODE_SPECIAL) && i < post->n_before && s == TLM_OK; i++)
        s = encoder_push(x, post->before[i]);
    if (s == TLM_OK)
        s = added_cut(x->t, &x->t->added.raw, text, len, plain, &x->raw, x->e);
    for (size_t i = 0; i < x->raw.n && s == TLM_OK; i++) {
        struct tok_cut c = x->raw.at[i];
        s = c.id >= 0 ? encoder_push(x, c.id) : encode_part(x, text + c.start, c.end - c.start, c.start == 0, plain);
    }
    for (uint32_t i = 0; (flags & TLM_ENCODE_SPECIAL) && i < post->n_after && s == TLM_OK; i++)
        s = encoder_push(x, post->after[i]);
    return s;
}

enum tlm_status tlm_tokenizer_encode(const struct tlm_tokenizer *t, const char *text, size_t len, unsigned flags,
                                     int32_t **ids, size_t *n, struct tlm_error *e)
{
    struct encoder x;
    struct buf clean;
    if (!t || (!text && len) || !ids || !n)
        return err_set(e, TLM_EINVAL, "tokenizer: a null argument");
    if (flags & ~(unsigned)(TLM_ENCODE_SPECIAL | TLM_ENCODE_PLAIN))
        return err_set(e, TLM_EINVAL, "tokenizer: unknown flags %#x", flags);
    if (len > TOK_MAX_TEXT / 4)
        return err_set(e, TLM_ELIMIT, "a text of %zu bytes, at most %zu are taken at once", len, TOK_MAX_TEXT / 4);
    *ids = NULL;
    *n = 0;
    text = len ? text : "";
    buf_init(&clean, TOK_MAX_TEXT);
    enum tlm_status s = encoder_init(&x, t, len, e);
    if (s == TLM_OK && !utf8_valid(text, len)) {
        if (utf8_add_lossy(&clean, text, len) != TLM_OK)
            s = buf_check(&clean, e, "text");
        text = buf_str(&clean);
        len = clean.len;
    }
    if (s == TLM_OK)
        s = encode_valid(&x, text, len, flags);
    if (s == TLM_OK)
        s = tok_grow(&x.ids, &x.cap_ids, 1, sizeof *x.ids, e);
    if (s == TLM_OK) {
        *ids = x.ids;
        *n = x.n_ids;
        x.ids = NULL;
    }
    encoder_deinit(&x);
    buf_deinit(&clean);
    return s;
}
