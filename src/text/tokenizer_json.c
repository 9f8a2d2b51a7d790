/* tokenizer.json; the files beside it: tokenizer_dir.c. The large
 * parts (vocabulary, merges, added tokens) are read as a stream; the small
 * ones (normalizer, pre-tokenizer, …) through cJSON.
 *
 * Keys may stand in any order, so a first pass notes where each value is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/json_stream.h"
#include "text/tokenizer_impl.h"

#define MAX_FILE ((size_t)1 << 30)

struct section {
    const char *key;
    struct json_text span; /* s NULL: absent or null */
    struct section *inner; /* of an object whose members are wanted, n_inner of them */
    size_t n_inner;
};

/* Notes the spans of an object's members. */
static enum tlm_status find_sections(struct json_stream *j, struct section *list, size_t n)
{
    struct json_text key, span = {NULL, 0};
    if (!json_enter(j, '{'))
        return j->status;
    while (json_next_key(j, &key)) {
        size_t k = 0;
        while (k < n && !json_text_is(key, list[k].key))
            k++;
        if (k < n && list[k].inner && json_peek(j) == '{') {
            const char *from = j->p;
            for (size_t i = 0; i < list[k].n_inner; i++)
                list[k].inner[i].span = (struct json_text){NULL, 0};
            if (find_sections(j, list[k].inner, list[k].n_inner) != TLM_OK)
                break;
            span = (struct json_text){from, (size_t)(j->p - from)};
        } else if (!json_skip(j, &span)) {
            break;
        }
        if (k < n)
            list[k].span = json_text_is(span, "null") ? (struct json_text){NULL, 0} : span;
    }
    return j->status;
}

/* A reader at a noted span, with line numbers of the whole document. */
static void open_span(struct json_stream *j, const struct json_stream *whole, struct json_text span)
{
    json_stream_init(j, whole->start, (size_t)(span.s + span.n - whole->start), whole->where, whole->e);
    j->p = span.s;
}

static enum tlm_status small_part(const struct json_stream *whole, struct json_text span, const char *key, cJSON **out)
{
    char where[512];
    size_t n = strlen(whole->where), skip = n > 400 ? n - 400 : 0;
    memcpy(where, whole->where + skip, n - skip);
    where[n - skip] = 0;
    strncat(where, ": ", 3);
    strncat(where, key, 64);
    *out = NULL;
    if (!span.s)
        return TLM_OK;
    /* cJSON ends a string at U+0000, so that a pattern would change. */
    for (size_t i = 0; i + 6 <= span.n; i++)
        if (!memcmp(span.s + i, "\\u0000", 6) && (i == 0 || span.s[i - 1] != '\\'))
            return err_set(whole->e, TLM_EUNSUPPORTED, "%s: U+0000 in a string", where);
    return json_parse(span.s, span.n, where, out, whole->e);
}

/* ---- added tokens ---- */

enum tlm_status tokenizer_put_added(struct tlm_tokenizer *t, struct tok_added a, const char *s, size_t n,
                                    struct tlm_error *e)
{
    int32_t have = vocab_find(&t->vocab, s, n);
    if (have >= 0) /* the model's own id wins, as in the original */
        a.id = (uint32_t)have;
    if (a.id < t->vocab.n && (t->vocab.flags[a.id] & TOK_PRESENT) && have < 0) {
        struct tok_piece p = t->vocab.piece[a.id];
        if (p.len != n || memcmp(t->vocab.blob + p.off, s, n))
            return err_set(e, TLM_EFORMAT,
                           "added_tokens: id %u is \"%.*s\", but the vocabulary has another token there", a.id,
                           n > 200 ? 200 : (int)n, s);
    }
    uint8_t flags = (uint8_t)(TOK_ADDED | (a.special ? TOK_SPECIAL : 0));
    enum tlm_status status = TLM_OK;
    if (have < 0)
        status = vocab_put(&t->vocab, a.id, s, n, flags, e);
    else
        t->vocab.flags[a.id] |= flags;
    return status == TLM_OK ? added_put(&t->added, a, e) : status;
}

static enum tlm_status read_added_token(struct tlm_tokenizer *t, struct json_stream *j)
{
    struct json_text key, text;
    struct buf content;
    struct tok_added a = {.normalized = true};
    int64_t id = -1;
    bool normalized_given = false, has_content = false;
    buf_init(&content, TOK_MAX_TEXT);
    json_enter(j, '{');
    while (json_next_key(j, &key)) {
        if (json_text_is(key, "id")) {
            if (json_int_get(j, &id) && (id < 0 || id >= TOK_MAX_ID))
                json_fail(j, "an id out of range");
        } else if (json_text_is(key, "content")) {
            buf_clear(&content);
            if (json_text_get(j, &text))
                buf_add(&content, text.s, text.n);
            has_content = true;
        } else if (json_text_is(key, "single_word")) {
            json_bool_get(j, &a.single_word);
        } else if (json_text_is(key, "lstrip")) {
            json_bool_get(j, &a.lstrip);
        } else if (json_text_is(key, "rstrip")) {
            json_bool_get(j, &a.rstrip);
        } else if (json_text_is(key, "special")) {
            json_bool_get(j, &a.special);
        } else if (json_text_is(key, "normalized")) {
            normalized_given = json_bool_get(j, &a.normalized);
        } else {
            json_skip(j, NULL);
        }
    }
    if (!normalized_given)
        a.normalized = !a.special;
    if (j->status == TLM_OK && (id < 0 || !has_content))
        json_fail(j, "an added token without id or content");
    a.id = (uint32_t)id;
    enum tlm_status s = j->status;
    if (s == TLM_OK)
        s = buf_check(&content, j->e, "added_tokens");
    if (s == TLM_OK && content.len)
        s = tokenizer_put_added(t, a, content.data, content.len, j->e);
    buf_deinit(&content);
    return s;
}

static enum tlm_status read_added(struct tlm_tokenizer *t, const struct json_stream *whole, struct json_text span)
{
    struct json_stream j;
    if (!span.s)
        return TLM_OK;
    open_span(&j, whole, span);
    enum tlm_status s = TLM_OK;
    json_enter(&j, '[');
    while (s == TLM_OK && json_next(&j))
        s = read_added_token(t, &j);
    if (s == TLM_OK)
        s = j.status;
    json_stream_deinit(&j);
    return s;
}

/* ---- model ---- */

/* For reserving, so that the tables need not grow. */
static size_t count_quotes(const char *p, const char *end)
{
    size_t n = 0;
    for (; p < end; p++)
        n += *p == '"';
    return n;
}

/* {"token": id, …} */
static enum tlm_status read_vocab_object(struct tlm_tokenizer *t, struct json_stream *j)
{
    struct json_text key;
    int64_t id = 0;
    size_t most = count_quotes(j->p, j->end) / 2;
    enum tlm_status s =
        vocab_reserve(&t->vocab, most < TOK_MAX_ID ? most : TOK_MAX_ID, (size_t)(j->end - j->p) / 2, j->e);
    json_enter(j, '{');
    while (s == TLM_OK && json_next_key(j, &key)) {
        if (!json_int_get(j, &id))
            break;
        if (id < 0 || id >= TOK_MAX_ID) {
            json_fail(j, "a token id out of range");
            break;
        }
        s = vocab_put_later(&t->vocab, (uint32_t)id, key.s, key.n, TOK_MODEL, j->e);
    }
    return s == TLM_OK ? j->status : s;
}

/* [["token", score], …]: the id is the index. */
static enum tlm_status read_vocab_array(struct tlm_tokenizer *t, struct json_stream *j)
{
    struct json_text text = {NULL, 0};
    size_t cap = 0;
    uint32_t id = 0;
    enum tlm_status s = TLM_OK;
    json_enter(j, '[');
    for (; s == TLM_OK && json_next(j); id++) {
        double score = 0;
        if (!json_enter(j, '[') || !json_next(j) || !json_text_get(j, &text))
            break;
        s = vocab_put_later(&t->vocab, id, text.s, text.n, TOK_MODEL, j->e);
        if (s == TLM_OK)
            s = tok_grow(&t->model.scores, &cap, (size_t)id + 1, sizeof(double), j->e);
        if (s != TLM_OK || !json_next(j) || !json_double_get(j, &score))
            break;
        t->model.scores[id] = score;
        if (json_next(j))
            json_fail(j, "more than a token and its score");
    }
    if (s == TLM_OK && j->status == TLM_OK && !id)
        json_fail(j, "an empty vocabulary");
    return s == TLM_OK ? j->status : s;
}

/* One merge: "left right" or ["left", "right"]. */
static enum tlm_status read_merge(struct tlm_tokenizer *t, struct json_stream *j, struct bpe_batch *batch)
{
    struct json_text a;
    if (json_peek(j) == '"') {
        if (!json_text_get(j, &a))
            return j->status;
        const char *space = memchr(a.s, ' ', a.n);
        if (!space || memchr(space + 1, ' ', a.n - (size_t)(space - a.s) - 1))
            return json_fail(j, "a merge that is not two texts with a space between");
        size_t n = (size_t)(space - a.s);
        enum tlm_status s = bpe_batch_add(t, batch, a.s, n, j->e);
        return s == TLM_OK ? bpe_batch_add(t, batch, space + 1, a.n - n - 1, j->e) : s;
    }
    if (!json_enter(j, '['))
        return j->status;
    for (int part = 0; part < 2; part++) {
        if (!json_next(j) || !json_text_get(j, &a))
            return json_fail(j, "a merge that is not two texts");
        enum tlm_status s = bpe_batch_add(t, batch, a.s, a.n, j->e);
        if (s != TLM_OK)
            return s;
    }
    if (json_next(j))
        return json_fail(j, "a merge that is not two texts");
    return j->status;
}

static enum tlm_status read_merges(struct tlm_tokenizer *t, const struct json_stream *whole, struct json_text span)
{
    struct json_stream j;
    struct bpe_batch batch;
    if (!span.s)
        return err_set(whole->e, TLM_EFORMAT, "%s: model.merges is missing", whole->where);
    open_span(&j, whole, span);
    bpe_batch_init(&batch);
    json_enter(&j, '[');
    /* Two texts or one for a merge; a wrong guess only costs. */
    bool pairs = j.p < j.end && memchr(j.p, '[', (size_t)(j.end - j.p) < 16 ? (size_t)(j.end - j.p) : 16);
    enum tlm_status s = bpe_reserve(t, count_quotes(j.p, j.end) / (pairs ? 4 : 2), j.e);
    while (s == TLM_OK && json_next(&j))
        s = read_merge(t, &j, &batch);
    if (s == TLM_OK)
        s = j.status;
    if (s == TLM_OK)
        s = bpe_batch_flush(t, &batch, j.e);
    json_stream_deinit(&j);
    bpe_batch_deinit(&batch);
    return s;
}

enum model_key {
    KEY_TYPE,
    KEY_VOCAB,
    KEY_MERGES,
    KEY_UNK_TOKEN,
    KEY_PREFIX,
    KEY_SUFFIX,
    KEY_FUSE_UNK,
    KEY_BYTE_FALLBACK,
    KEY_IGNORE_MERGES,
    KEY_DROPOUT,
    KEY_UNK_ID,
    KEY_MAX_CHARS,
    KEY_COUNT
};

/* A copy of an optional string; *out stays NULL for null and "". */
static enum tlm_status copy_text(const struct json_stream *whole, struct json_text span, char **out, size_t *n)
{
    struct json_stream j;
    struct json_text text;
    if (!span.s)
        return TLM_OK;
    open_span(&j, whole, span);
    if (json_text_get(&j, &text) && text.n) {
        *out = mem_strndup(text.s, text.n);
        *n = text.n;
        if (!*out)
            j.status = err_nomem(j.e, text.n);
    }
    json_stream_deinit(&j);
    return j.status;
}

static enum tlm_status read_flag(const struct json_stream *whole, struct json_text span, bool *out)
{
    struct json_stream j;
    if (!span.s)
        return TLM_OK;
    open_span(&j, whole, span);
    json_bool_get(&j, out);
    return j.status;
}

static enum tlm_status read_number(const struct json_stream *whole, struct json_text span, double *out)
{
    struct json_stream j;
    if (!span.s)
        return TLM_OK;
    open_span(&j, whole, span);
    json_double_get(&j, out);
    return j.status;
}

static enum tlm_status read_kind(struct tlm_tokenizer *t, const struct json_stream *whole, const struct section *k)
{
    static const struct {
        const char *name;
        enum model_kind kind;
    } known[] = {
        {"\"BPE\"", MODEL_BPE},
        {"\"Unigram\"", MODEL_UNIGRAM},
        {"\"WordPiece\"", MODEL_WORDPIECE},
        {"\"WordLevel\"", MODEL_WORDLEVEL},
    };
    struct json_text type = k[KEY_TYPE].span;
    if (!k[KEY_VOCAB].span.s)
        return err_set(whole->e, TLM_EFORMAT, "%s: model.vocab is missing", whole->where);
    if (!type.s) { /* older files: by what the model holds */
        if (k[KEY_MERGES].span.s)
            t->model.kind = MODEL_BPE;
        else if (k[KEY_VOCAB].span.s[0] == '[')
            t->model.kind = MODEL_UNIGRAM;
        else if (k[KEY_PREFIX].span.s)
            t->model.kind = MODEL_WORDPIECE;
        else
            t->model.kind = MODEL_WORDLEVEL;
        return TLM_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_text_is(type, known[i].name)) {
            t->model.kind = known[i].kind;
            return TLM_OK;
        }
    return err_set(whole->e, TLM_EUNSUPPORTED, "%s: model.type: unknown %.*s", whole->where,
                   type.n > 100 ? 100 : (int)type.n, type.s);
}

static enum tlm_status read_unk(struct tlm_tokenizer *t, const struct json_stream *whole, const struct section *k)
{
    struct tok_model *m = &t->model;
    char *unk = NULL;
    size_t n = 0;
    double id = -1;
    enum tlm_status s = copy_text(whole, k[KEY_UNK_TOKEN].span, &unk, &n);
    if (s == TLM_OK && m->kind == MODEL_UNIGRAM)
        s = read_number(whole, k[KEY_UNK_ID].span, &id);
    if (s == TLM_OK && id >= 0) {
        if (id >= t->vocab.n)
            s = err_set(whole->e, TLM_EFORMAT, "%s: model.unk_id: found %.0f, expected less than %u", whole->where, id,
                        t->vocab.n);
        else
            m->unk = (int32_t)id;
    } else if (s == TLM_OK && unk) {
        m->unk = vocab_find(&t->vocab, unk, n);
        if (m->unk < 0)
            s = err_set(whole->e, TLM_EFORMAT, "%s: model.unk_token: \"%.100s\" is not in the vocabulary", whole->where,
                        unk);
    }
    mem_free(unk);
    return s;
}

static enum tlm_status read_model(struct tlm_tokenizer *t, const struct json_stream *whole, const struct section *k)
{
    struct tok_model *m = &t->model;
    struct json_stream j;
    enum tlm_status s = TLM_OK;
    if (s == TLM_OK)
        s = read_kind(t, whole, k);
    if (s == TLM_OK)
        s = copy_text(whole, k[KEY_PREFIX].span, &m->prefix, &m->prefix_n);
    if (s == TLM_OK)
        s = copy_text(whole, k[KEY_SUFFIX].span, &m->suffix, &m->suffix_n);
    if (s == TLM_OK)
        s = read_flag(whole, k[KEY_FUSE_UNK].span, &m->fuse_unk);
    if (s == TLM_OK)
        s = read_flag(whole, k[KEY_BYTE_FALLBACK].span, &m->byte_fallback);
    if (s == TLM_OK)
        s = read_flag(whole, k[KEY_IGNORE_MERGES].span, &m->ignore_merges);
    if (s == TLM_OK && m->kind == MODEL_WORDPIECE && !k[KEY_PREFIX].span.s) {
        m->prefix = mem_strdup("##");
        m->prefix_n = 2;
        s = m->prefix ? TLM_OK : err_nomem(whole->e, 3);
    }
    double dropout = 0, max_chars = 100;
    if (s == TLM_OK)
        s = read_number(whole, k[KEY_DROPOUT].span, &dropout);
    if (s == TLM_OK)
        s = read_number(whole, k[KEY_MAX_CHARS].span, &max_chars);
    if (s == TLM_OK && dropout != 0)
        return err_set(whole->e, TLM_EUNSUPPORTED, "%s: model.dropout: %g makes encoding random", whole->where,
                       dropout);
    m->max_chars = max_chars >= 0 && max_chars <= UINT32_MAX ? (uint32_t)max_chars : UINT32_MAX;
    if (s != TLM_OK)
        return s;
    open_span(&j, whole, k[KEY_VOCAB].span);
    s = m->kind == MODEL_UNIGRAM ? read_vocab_array(t, &j) : read_vocab_object(t, &j);
    json_stream_deinit(&j);
    vocab_flush(&t->vocab);
    if (s == TLM_OK && m->kind == MODEL_BPE)
        s = read_merges(t, whole, k[KEY_MERGES].span);
    return s == TLM_OK ? read_unk(t, whole, k) : s;
}

/* ---- the file ---- */

enum file_key { PART_ADDED, PART_NORM, PART_PRETOK, PART_POST, PART_DECODER, PART_MODEL, PART_COUNT };

static enum tlm_status read_small_parts(struct tlm_tokenizer *t, const struct json_stream *j,
                                        const struct section *part)
{
    enum tlm_status s = TLM_OK;
    for (int k = PART_NORM; k <= PART_DECODER && s == TLM_OK; k++) {
        cJSON *v;
        s = small_part(j, part[k].span, part[k].key, &v);
        if (s == TLM_OK && k == PART_NORM)
            s = norm_parse(v, &t->norms, j->e);
        else if (s == TLM_OK && k == PART_PRETOK)
            s = pretok_parse(v, &t->pretoks, j->e);
        else if (s == TLM_OK && k == PART_POST)
            s = template_parse(v, t, 0, j->e);
        else if (s == TLM_OK)
            s = decoder_parse(v, &t->decoders, j->e);
        cJSON_Delete(v);
    }
    if (s == TLM_OK && !t->decoders.n) {
        struct tok_decoder *d = decoder_push(&t->decoders);
        if (!d)
            return err_nomem(j->e, sizeof *d);
        d->kind = DECODER_JOIN;
    }
    return s;
}

enum tlm_status tokenizer_read_json(struct tlm_tokenizer *t, const char *text, size_t n, const char *where,
                                    struct tlm_error *e)
{
    struct json_stream j;
    struct section k[KEY_COUNT] = {
        [KEY_TYPE] = {.key = "type"},
        [KEY_VOCAB] = {.key = "vocab"},
        [KEY_MERGES] = {.key = "merges"},
        [KEY_UNK_TOKEN] = {.key = "unk_token"},
        [KEY_PREFIX] = {.key = "continuing_subword_prefix"},
        [KEY_SUFFIX] = {.key = "end_of_word_suffix"},
        [KEY_FUSE_UNK] = {.key = "fuse_unk"},
        [KEY_BYTE_FALLBACK] = {.key = "byte_fallback"},
        [KEY_IGNORE_MERGES] = {.key = "ignore_merges"},
        [KEY_DROPOUT] = {.key = "dropout"},
        [KEY_UNK_ID] = {.key = "unk_id"},
        [KEY_MAX_CHARS] = {.key = "max_input_chars_per_word"},
    };
    struct section part[PART_COUNT] = {
        [PART_ADDED] = {.key = "added_tokens"},   [PART_NORM] = {.key = "normalizer"},
        [PART_PRETOK] = {.key = "pre_tokenizer"}, [PART_POST] = {.key = "post_processor"},
        [PART_DECODER] = {.key = "decoder"},      [PART_MODEL] = {.key = "model", .inner = k, .n_inner = KEY_COUNT},
    };
    json_stream_init(&j, text, n, where, e);
    enum tlm_status s = find_sections(&j, part, PART_COUNT);
    if (s == TLM_OK && !json_at_end(&j))
        s = j.status;
    if (s == TLM_OK)
        s = read_model(t, &j, k);
    if (s == TLM_OK)
        s = read_added(t, &j, part[PART_ADDED].span);
    if (s == TLM_OK)
        s = read_small_parts(t, &j, part);
    json_stream_deinit(&j);
    return s;
}

enum tlm_status tokenizer_read_json_file(struct tlm_tokenizer *t, const char *path, struct tlm_error *e)
{
    struct file_map m;
    enum tlm_status s = file_map_open(&m, path, e);
    if (s != TLM_OK)
        return s;
    if (m.size > MAX_FILE)
        s = err_set(e, TLM_ELIMIT, "%zu bytes, at most %zu are taken", m.size, MAX_FILE);
    else
        s = tokenizer_read_json(t, (const char *)m.data, m.size, path, e);
    file_map_close(&m);
    return s;
}
