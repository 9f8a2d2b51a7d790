/* SentencePiece models (tokenizer.model): BPE by score, or Unigram. Set up as
 * transformers does from that file alone: for the class LlamaTokenizer as that
 * class has it, without a class by the file's own settings. Other classes move
 * ids or have settings of their own and are refused.
 *
 * The file is a protobuf message. Fields that are used:
 *   1 pieces     {1 text, 2 score, 3 type: 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte}
 *   2 trainer    {3 model: 1 unigram, 2 BPE; 24 space as suffix; 35 byte fallback; 40 unk, 41 bos, 42 eos, 43 pad id}
 *   3 normalizer {2 character map; 3 space in front; 4 remove extra spaces; 5 escape spaces} */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/fp.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define MAX_FILE ((size_t)256 << 20)
#define MARK "\xe2\x96\x81" /* U+2581 */

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };

struct reader {
    const uint8_t *p, *end;
    bool bad;
};

struct field {
    uint32_t number;
    uint64_t value;   /* of a varint or four bytes */
    struct reader in; /* of a message, text or bytes */
};

static uint64_t get_varint(struct reader *r)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->p == r->end)
            break;
        uint8_t b = *r->p++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128)
            return v;
    }
    r->bad = true;
    return 0;
}

/* The next field; false at the end and when the message is broken. */
static bool next_field(struct reader *r, struct field *f)
{
    if (r->bad || r->p == r->end)
        return false;
    uint64_t key = get_varint(r), size = 0;
    *f = (struct field){(uint32_t)(key >> 3), 0, {NULL, NULL, false}};
    switch (key & 7) {
    case 0:
        f->value = get_varint(r);
        return !r->bad;
    case 1:
        size = 8;
        break;
    case 2:
        size = get_varint(r);
        break;
    case 5:
        size = 4;
        break;
    default:
        r->bad = true;
    }
    if (r->bad || size > (uint64_t)(r->end - r->p) || !f->number) {
        r->bad = true;
        return false;
    }
    f->in = (struct reader){r->p, r->p + size, false};
    if (size == 4)
        f->value = load_u32(r->p);
    r->p += size;
    return true;
}

struct spm {
    struct reader charsmap;
    uint32_t model;
    struct buf user; /* regex of the user-defined pieces, the longer ones first */
    bool suffix, fallback, prefix, merge_spaces, escape, llama;
    int32_t unk, bos, eos, pad;
};

static bool read_trainer(struct reader r, struct spm *m)
{
    struct field f;
    while (next_field(&r, &f)) {
        int32_t *const id = f.number == 40 ? &m->unk : f.number == 41 ? &m->bos : f.number == 42 ? &m->eos : &m->pad;
        if (f.number == 3)
            m->model = (uint32_t)f.value;
        else if (f.number == 24)
            m->suffix = f.value != 0;
        else if (f.number == 35)
            m->fallback = f.value != 0;
        else if (f.number >= 40 && f.number <= 43)
            *id = f.value < TOK_MAX_ID ? (int32_t)f.value : -1;
    }
    return !r.bad;
}

static bool read_normalizer(struct reader r, struct spm *m)
{
    struct field f;
    while (next_field(&r, &f)) {
        if (f.number == 2)
            m->charsmap = f.in;
        else if (f.number == 3)
            m->prefix = f.value != 0;
        else if (f.number == 4)
            m->merge_spaces = f.value != 0;
        else if (f.number == 5)
            m->escape = f.value != 0;
    }
    return !r.bad;
}

/* Smaller for a higher score. */
static uint32_t order_of(uint32_t bits)
{
    uint32_t rising = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    uint32_t order = ~rising;
    return order == UINT32_MAX ? UINT32_MAX - 1 : order;
}

static enum tlm_status put_piece(struct tlm_tokenizer *t, struct spm *m, struct reader r, uint32_t id,
                                 struct tlm_error *e)
{
    struct field f;
    struct reader text = {NULL, NULL, false};
    uint32_t score = 0, type = PIECE_NORMAL;
    while (next_field(&r, &f)) {
        if (f.number == 1)
            text = f.in;
        else if (f.number == 2)
            score = (uint32_t)f.value;
        else if (f.number == 3)
            type = (uint32_t)f.value;
    }
    size_t n = (size_t)(text.end - text.p);
    double value = (double)fp_from_bits(score);
    if (r.bad || !text.p || !utf8_valid((const char *)text.p, n) || type < PIECE_NORMAL || type > PIECE_BYTE ||
        !(value > -1e30 && value < 1e30))
        return err_set(e, TLM_EFORMAT, "piece %u is broken", id);
    /* Without a class, a user-defined piece is cut out after the space in front is there. */
    bool user = type == PIECE_USER, special = type == PIECE_CONTROL || type == PIECE_UNKNOWN;
    bool added = special || (user && m->llama);
    uint8_t flags = (uint8_t)(n && (t->model.kind == MODEL_UNIGRAM || type != PIECE_CONTROL) ? TOK_MODEL : 0);
    if (added)
        flags |= (uint8_t)(TOK_ADDED | (special ? TOK_SPECIAL : 0));
    if (t->model.kind == MODEL_UNIGRAM)
        t->model.scores[id] = value;
    else
        t->model.order[id] = type == PIECE_NORMAL ? order_of(score) : UINT32_MAX;
    if (n > t->model.max_piece)
        t->model.max_piece = (uint32_t)n;
    enum tlm_status s = vocab_put_later(&t->vocab, id, (const char *)text.p, n, flags, e);
    if (s == TLM_OK && added && n)
        s = added_put(&t->added, (struct tok_added){.id = id, .special = special}, e);
    return s;
}

static int longer_first(const void *pa, const void *pb)
{
    const struct tok_match_key *a = pa, *b = pb;
    return a->n != b->n ? (a->n < b->n) - (a->n > b->n) : (a->added > b->added) - (a->added < b->added);
}

/* The regex of all user-defined pieces. */
static enum tlm_status join_user(const struct tlm_tokenizer *t, struct spm *m, struct reader whole, struct tlm_error *e)
{
    struct reader r = whole;
    struct field f, g;
    uint32_t id = 0, n = 0;
    struct tok_match_key *keys = mem_alloc_array(t->vocab.n, sizeof *keys);
    if (!keys)
        return err_nomem(e, t->vocab.n * sizeof *keys);
    while (next_field(&r, &f)) {
        if (f.number != 1 || !f.in.p)
            continue;
        for (struct reader in = f.in; next_field(&in, &g);)
            if (g.number == 3 && g.value == PIECE_USER && t->vocab.piece[id].len)
                keys[n++] = (struct tok_match_key){vocab_text(&t->vocab, id), t->vocab.piece[id].len, id};
        id++;
    }
    if (n)
        qsort(keys, n, sizeof *keys, longer_first);
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            buf_add_char(&m->user, '|');
        for (uint32_t k = 0; k < keys[i].n; k++) {
            char c = keys[i].s[k];
            if ((uint8_t)c < 0x80 && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z'))
                buf_add_char(&m->user, '\\');
            buf_add_char(&m->user, c);
        }
    }
    mem_free(keys);
    return buf_check(&m->user, e, "the regex of user-defined pieces");
}

static enum tlm_status put_pieces(struct tlm_tokenizer *t, struct spm *m, struct reader whole, struct tlm_error *e)
{
    struct reader r = whole;
    struct field f;
    size_t n = 0;
    uint32_t id = 0;
    while (next_field(&r, &f))
        n += f.number == 1 && f.in.p;
    if (!n || n > TOK_MAX_ID)
        return err_set(e, TLM_EFORMAT, "found %zu pieces, expected 1 to %d", n, TOK_MAX_ID);
    if (t->model.kind == MODEL_UNIGRAM)
        t->model.scores = mem_new_array(n, sizeof *t->model.scores);
    else
        t->model.order = mem_new_array(n, sizeof *t->model.order);
    if (!t->model.scores && !t->model.order)
        return err_nomem(e, n * sizeof *t->model.scores);
    enum tlm_status s = vocab_reserve(&t->vocab, n, (size_t)(whole.end - whole.p), e);
    for (r = whole; s == TLM_OK && next_field(&r, &f);)
        if (f.number == 1 && f.in.p)
            s = put_piece(t, m, f.in, id++, e);
    vocab_flush(&t->vocab);
    return s;
}

static enum tlm_status add_replace(struct tlm_tokenizer *t, const char *regex, const char *from, const char *to,
                                   struct tlm_error *e)
{
    struct tok_norm *p = norm_push(&t->norms);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->kind = NORM_REPLACE;
    p->content = mem_strdup(to);
    p->content_n = strlen(to);
    p->pattern.n = from ? strlen(from) : 0;
    p->pattern.text = from ? mem_strdup(from) : NULL;
    if (!p->content || (from && !p->pattern.text))
        return err_nomem(e, 0);
    return regex ? regex_new(regex, strlen(regex), &p->pattern.regex, e) : TLM_OK;
}

static enum tlm_status set_normalizers(struct tlm_tokenizer *t, const struct spm *m, bool legacy, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    if (m->charsmap.p && m->charsmap.p < m->charsmap.end) {
        struct tok_norm *p = norm_push(&t->norms);
        if (!p)
            return err_nomem(e, sizeof *p);
        p->kind = NORM_PRECOMPILED;
        s = charsmap_new_raw((const char *)m->charsmap.p, (size_t)(m->charsmap.end - m->charsmap.p), &p->map, e);
    }
    /* A run of spaces is looked at once, from its start. */
    if (s == TLM_OK && m->merge_spaces)
        s = add_replace(t, "\\A +|(?<! ) ++\\z", NULL, "", e);
    if (s == TLM_OK && m->merge_spaces)
        s = add_replace(t, " {2,}", NULL, " ", e);
    if (s == TLM_OK && m->escape)
        s = add_replace(t, NULL, " ", MARK, e);
    if (s == TLM_OK && m->prefix && legacy)
        s = add_replace(t, "\\A" MARK, NULL, MARK MARK, e);
    return s;
}

static enum tlm_status add_decoder(struct tlm_tokenizer *t, enum decoder_kind kind, struct tlm_error *e)
{
    struct tok_decoder *p = decoder_push(&t->decoders);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->kind = kind;
    p->start = 1;
    p->content = mem_strdup(" ");
    p->content_n = 1;
    p->pattern.n = 3;
    p->pattern.text = mem_strdup(MARK);
    return p->content && p->pattern.text ? TLM_OK : err_nomem(e, 4);
}

static enum tlm_status set_parts(struct tlm_tokenizer *t, const struct spm *m, bool legacy, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    if (m->prefix) {
        struct tok_pretok *p = pretok_push(&t->pretoks);
        if (!p)
            return err_nomem(e, sizeof *p);
        p->kind = PRETOK_METASPACE;
        p->prepend = legacy ? PRETOK_PREPEND_ALWAYS : PRETOK_PREPEND_FIRST;
        p->mark_n = 3;
        memcpy(p->mark, MARK, 3);
    }
    if (m->user.len) {
        struct tok_pretok *p = pretok_push(&t->pretoks);
        if (!p)
            return err_nomem(e, sizeof *p);
        p->kind = PRETOK_SPLIT;
        s = regex_new(m->user.data, m->user.len, &p->pattern.regex, e);
    }
    if (s == TLM_OK)
        s = add_decoder(t, DECODER_REPLACE, e);
    if (s == TLM_OK && m->fallback)
        s = add_decoder(t, DECODER_BYTE_FALLBACK, e);
    if (s == TLM_OK && (m->prefix || m->fallback))
        s = add_decoder(t, DECODER_FUSE, e);
    return s == TLM_OK && m->prefix ? add_decoder(t, DECODER_STRIP, e) : s;
}

/* The settings; which the class LlamaTokenizer has of its own. */
static enum tlm_status read_settings(struct spm *m, struct reader r, struct tlm_error *e)
{
    struct field f;
    bool good = true;
    while (next_field(&r, &f) && good) {
        if (f.number == 2 && f.in.p)
            good = read_trainer(f.in, m);
        else if (f.number == 3 && f.in.p)
            good = read_normalizer(f.in, m);
    }
    if (!good || r.bad)
        return err_set(e, TLM_EFORMAT, "not a SentencePiece model, or cut off");
    if (m->model != 1 && m->model != 2)
        return err_set(e, TLM_EUNSUPPORTED, "trainer_spec.model_type: found %u, expected unigram (1) or BPE (2)",
                       m->model);
    if (m->suffix)
        return err_set(e, TLM_EUNSUPPORTED, "trainer_spec.treat_whitespace_as_suffix: true is not supported");
    if (m->llama && m->model != 2)
        return err_set(e, TLM_EUNSUPPORTED, "a Unigram model with the class LlamaTokenizer");
    if (m->llama) {
        m->charsmap = (struct reader){NULL, NULL, false};
        m->merge_spaces = m->escape = false;
        m->prefix = m->fallback = true;
    }
    return TLM_OK;
}

static enum tlm_status read_model(struct tlm_tokenizer *t, struct reader whole, struct spm *m, bool legacy,
                                  struct tlm_error *e)
{
    enum tlm_status s = read_settings(m, whole, e);
    if (s != TLM_OK)
        return s;
    t->model.kind = m->model == 1 ? MODEL_UNIGRAM : MODEL_SPM;
    t->model.byte_fallback = m->fallback;
    t->model.fuse_unk = t->model.shorter_left = true;
    s = put_pieces(t, m, whole, e);
    if (s == TLM_OK && m->unk >= (int32_t)t->vocab.n)
        s = err_set(e, TLM_EFORMAT, "trainer_spec.unk_id: found %d, expected less than %u", (int)m->unk, t->vocab.n);
    if (s == TLM_OK && !m->llama)
        s = join_user(t, m, whole, e);
    if (s != TLM_OK)
        return s;
    t->model.unk = t->unk = m->unk;
    t->bos = m->bos < (int32_t)t->vocab.n ? m->bos : -1;
    t->eos = m->eos < (int32_t)t->vocab.n ? m->eos : -1;
    t->pad = m->pad < (int32_t)t->vocab.n ? m->pad : -1;
    t->model.ignore_merges = m->model == 2 && m->user.len;
    s = m->llama ? TLM_OK : set_normalizers(t, m, legacy, e);
    return s == TLM_OK ? set_parts(t, m, legacy, e) : s;
}

enum tlm_status tokenizer_read_spm(struct tlm_tokenizer *t, const char *path, const char *class, const bool *legacy,
                                   struct tlm_error *e)
{
    static const char *const known[] = {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer",
                                        "PreTrainedTokenizerFast", "TokenizersBackend"};
    size_t k = 0, n = sizeof known / sizeof *known;
    while (class && k < n && strcmp(class, known[k]) != 0)
        k++;
    if (class && k == n)
        return err_set(
            e, TLM_EUNSUPPORTED,
            "tokenizer_config.json: tokenizer_class: \"%s\" with a SentencePiece model and no tokenizer.json "
            "is not supported",
            class);
    struct file_map file;
    struct spm m = {.model = 1, .prefix = true, .merge_spaces = true, .escape = true, .bos = 1, .eos = 2, .pad = -1};
    enum tlm_status s = file_map_open(&file, path, e);
    if (s != TLM_OK)
        return s;
    m.llama = class && k < 3;
    buf_init(&m.user, 1 << 16);
    if (file.size > MAX_FILE)
        s = err_set(e, TLM_ELIMIT, "%zu bytes, at most %zu are taken", file.size, MAX_FILE);
    else
        s = read_model(t, (struct reader){file.data, file.data + file.size, false}, &m, legacy ? *legacy : !m.llama, e);
    buf_deinit(&m.user);
    file_map_close(&file);
    return s;
}
