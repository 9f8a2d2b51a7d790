/* Ids to text, whole or token by token: the same stages, so that the pieces of
 * a stream joined are the whole decoding.
 *
 * A stage takes tokens and gives tokens. A token comes whole, or (after Fuse
 * and ByteLevel, which make one token of all) in parts; a stage that can not
 * work on parts gathers them to the end. What leaves the last stage passes
 * utf8_stream, which holds back an incomplete character.
 *
 * ByteFallback decides over a whole run of byte tokens: all of it is valid
 * UTF-8, or each of its bytes is U+FFFD. So a run is held until it ends. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum { PART_BEGIN = 1, PART_END = 2, PART_WHOLE = 3 };

struct stage {
    const struct tok_decoder *d;
    struct buf hold, work;
    struct utf8_stream bytes;
    uint64_t index; /* tokens begun */
    bool open;      /* its one output token has begun */
    bool seen_last; /* hold has a token */
    int64_t left;   /* strip: characters that may still go at the start */
    int64_t tail;   /* strip: characters held at the end */
};

struct tlm_detokenizer {
    const struct tlm_tokenizer *t;
    unsigned flags;
    struct stage *stages;
    uint32_t n;
    struct utf8_stream last;
    struct buf out;
    struct tok_regex_work *regex;
    struct tlm_error *e;
};

static enum tlm_status feed(struct tlm_detokenizer *d, uint32_t k, const char *s, size_t n, int part);

static enum tlm_status check(struct tlm_detokenizer *d, const struct buf *b)
{
    return b->status == TLM_OK ? TLM_OK : buf_check(b, d->e, "decoded text");
}

static void replace_all(struct buf *out, const char *s, size_t n, const char *what, size_t what_n, const char *by,
                        size_t by_n)
{
    for (size_t i = 0; i < n;) {
        if (what_n && n - i >= what_n && !memcmp(s + i, what, what_n)) {
            buf_add(out, by, by_n);
            i += what_n;
        } else {
            buf_add_char(out, s[i++]);
        }
    }
}

static enum tlm_status do_replace(struct tlm_detokenizer *d, struct stage *p, const char *s, size_t n)
{
    size_t done = 0, at = 0, start = 0, end = 0;
    while (at <= n) {
        bool found;
        enum tlm_status status = pattern_next(&p->d->pattern, d->regex, s, n, at, &start, &end, &found, d->e);
        if (status != TLM_OK)
            return status;
        if (!found)
            break;
        buf_add(&p->work, s + done, start - done);
        buf_add(&p->work, p->d->content, p->d->content_n);
        done = end;
        at = end > start ? end : end < n ? end + (size_t)utf8_len(s[end]) : n + 1;
    }
    buf_add(&p->work, s + done, n - done);
    return TLM_OK;
}

/* The spaces which tokenization put before punctuation and contractions. */
static void clean_up(struct buf *out, const char *s, size_t n)
{
    static const struct {
        const char *from, *to;
    } rule[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    struct buf other;
    buf_init(&other, out->max);
    size_t from = out->len;
    buf_add(out, s, n);
    for (size_t r = 0; r < sizeof rule / sizeof *rule && out->status == TLM_OK && other.status == TLM_OK; r++) {
        buf_clear(&other);
        replace_all(&other, out->data + from, out->len - from, rule[r].from, strlen(rule[r].from), rule[r].to,
                    strlen(rule[r].to));
        out->len = from;
        buf_add(out, buf_str(&other), other.len);
    }
    if (other.status != TLM_OK)
        out->status = other.status;
    buf_deinit(&other);
}

static enum tlm_status strip_whole(struct stage *p, const char *s, size_t n)
{
    const char *c = p->d->content;
    size_t len = p->d->content_n;
    for (int64_t i = 0; i < p->d->start && n >= len && !memcmp(s, c, len); i++) {
        s += len;
        n -= len;
    }
    for (int64_t i = 0; i < p->d->stop && n >= len && !memcmp(s + n - len, c, len); i++)
        n -= len;
    return buf_add(&p->work, s, n);
}

/* Strip on a token that comes in parts; parts end between characters. */
static enum tlm_status strip_part(struct stage *p, const char *s, size_t n, int part)
{
    const char *c = p->d->content;
    size_t len = p->d->content_n;
    if (part & PART_BEGIN) {
        p->left = p->d->start;
        p->tail = 0;
    }
    while (p->left && n >= len && !memcmp(s, c, len)) {
        s += len;
        n -= len;
        p->left--;
    }
    if (n)
        p->left = 0;
    int64_t tail = 0;
    while (tail < p->d->stop && n >= len && !memcmp(s + n - len, c, len)) {
        n -= len;
        tail++;
    }
    if (n) /* what was held stands inside the text after all */
        for (; p->tail; p->tail--)
            buf_add(&p->work, c, len);
    buf_add(&p->work, s, n);
    p->tail += tail;
    for (; p->tail > p->d->stop; p->tail--)
        buf_add(&p->work, c, len);
    return p->work.status;
}

static int byte_of(const char *s, size_t n)
{
    int v = 0;
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        if (c >= '0' && c <= '9')
            v = v << 4 | (c - '0');
        else if ((c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'))
            v = v << 4 | ((c | 32) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

static enum tlm_status flush_bytes(struct tlm_detokenizer *d, uint32_t k)
{
    struct stage *p = &d->stages[k];
    enum tlm_status s = TLM_OK;
    if (p->hold.len && utf8_valid(p->hold.data, p->hold.len))
        s = feed(d, k + 1, p->hold.data, p->hold.len, PART_WHOLE);
    else
        for (size_t i = 0; i < p->hold.len && s == TLM_OK; i++)
            s = feed(d, k + 1, "\xef\xbf\xbd", 3, PART_WHOLE);
    buf_clear(&p->hold);
    return s;
}

static enum tlm_status byte_fallback(struct tlm_detokenizer *d, uint32_t k, const char *s, size_t n)
{
    struct stage *p = &d->stages[k];
    int b = byte_of(s, n);
    if (b >= 0) {
        buf_add_char(&p->hold, (char)b);
        return check(d, &p->hold);
    }
    enum tlm_status status = flush_bytes(d, k);
    return status == TLM_OK ? feed(d, k + 1, s, n, PART_WHOLE) : status;
}

/* A token whose characters do not all stand for bytes is its own bytes. */
static enum tlm_status byte_level(struct tlm_detokenizer *d, struct stage *p, const char *s, size_t n)
{
    size_t i = 0;
    int len;
    buf_clear(&p->hold);
    for (; i < n; i += (size_t)len) {
        bool cut;
        int bad;
        len = utf8_scan(s + i, n - i, &bad, &cut);
        int b = len ? byte_level_byte(utf8_get(s + i, &len)) : -1;
        if (b < 0)
            break;
        buf_add_char(&p->hold, (char)b);
    }
    if (i < n) {
        buf_clear(&p->hold);
        buf_add(&p->hold, s, n);
    }
    enum tlm_status status = check(d, &p->hold);
    if (status != TLM_OK)
        return status;
    utf8_stream_add(&p->bytes, &p->work, buf_str(&p->hold), p->hold.len);
    buf_clear(&p->hold);
    return check(d, &p->work);
}

static enum tlm_status ctc(struct tlm_detokenizer *d, uint32_t k, const char *s, size_t n)
{
    struct stage *p = &d->stages[k];
    struct buf other;
    if (p->seen_last && p->hold.len == n && !memcmp(buf_str(&p->hold), s, n))
        return TLM_OK;
    buf_clear(&p->hold);
    buf_add(&p->hold, s, n);
    p->seen_last = true;
    replace_all(&p->work, s, n, p->d->content, p->d->content_n, "", 0);
    if (check(d, &p->hold) != TLM_OK || check(d, &p->work) != TLM_OK)
        return TLM_ENOMEM;
    if (p->d->cleanup) {
        buf_init(&other, TOK_MAX_TEXT);
        clean_up(&other, buf_str(&p->work), p->work.len);
        buf_clear(&p->work);
        replace_all(&p->work, buf_str(&other), other.len, p->d->delimiter, p->d->delimiter_n, " ", 1);
        if (other.status != TLM_OK)
            p->work.status = other.status;
        buf_deinit(&other);
    }
    if (check(d, &p->work) != TLM_OK)
        return p->work.status;
    return p->work.len ? feed(d, k + 1, p->work.data, p->work.len, PART_WHOLE) : TLM_OK;
}

/* The BPE decoder treats the last token differently: hold one. */
static enum tlm_status bpe_suffix(struct tlm_detokenizer *d, uint32_t k, const char *s, size_t n, bool end)
{
    struct stage *p = &d->stages[k];
    enum tlm_status status = TLM_OK;
    if (p->seen_last) {
        replace_all(&p->work, buf_str(&p->hold), p->hold.len, p->d->content, p->d->content_n, " ", end ? 0 : 1);
        status = check(d, &p->work);
        if (status == TLM_OK)
            status = feed(d, k + 1, buf_str(&p->work), p->work.len, PART_WHOLE);
    }
    p->seen_last = !end;
    buf_clear(&p->hold);
    buf_add(&p->hold, s, n);
    return status == TLM_OK ? check(d, &p->hold) : status;
}

static void metaspace(struct stage *p, const char *s, size_t n)
{
    bool drop = p->index == 1 && p->d->prepend != PRETOK_PREPEND_NEVER;
    replace_all(&p->work, s, n, p->d->content, p->d->content_n, " ", drop ? 0 : 1);
}

static void wordpiece(struct stage *p, const char *s, size_t n)
{
    struct buf joined;
    buf_init(&joined, TOK_MAX_TEXT);
    if (p->index > 1) {
        if (n >= p->d->content_n && !memcmp(s, p->d->content, p->d->content_n)) {
            s += p->d->content_n;
            n -= p->d->content_n;
        } else {
            buf_add_char(&joined, ' ');
        }
    }
    buf_add(&joined, s, n);
    if (p->d->cleanup)
        clean_up(&p->work, buf_str(&joined), joined.len);
    else
        buf_add(&p->work, buf_str(&joined), joined.len);
    if (joined.status != TLM_OK)
        p->work.status = joined.status;
    buf_deinit(&joined);
}

static bool takes_parts(const struct tok_decoder *d)
{
    switch (d->kind) {
    case DECODER_FUSE:
    case DECODER_METASPACE:
    case DECODER_STRIP:
    case DECODER_JOIN:
        return true;
    case DECODER_REPLACE: /* one character never lies across two parts */
        return !d->pattern.regex && d->pattern.n && d->pattern.n == (size_t)utf8_len(d->pattern.text[0]);
    default:
        return false;
    }
}

/* A token, or a part of it, for the stages that pass on one piece for one. */
static enum tlm_status run_stage(struct tlm_detokenizer *d, uint32_t k, const char *s, size_t n, int part)
{
    struct stage *p = &d->stages[k];
    enum tlm_status status = TLM_OK;
    buf_clear(&p->work);
    switch (p->d->kind) {
    case DECODER_JOIN:
        if ((part & PART_BEGIN) && p->index > 1)
            buf_add_char(&p->work, ' ');
        buf_add(&p->work, s, n);
        break;
    case DECODER_BYTE_FALLBACK:
        return byte_fallback(d, k, s, n);
    case DECODER_CTC:
        return ctc(d, k, s, n);
    case DECODER_BPE:
        return bpe_suffix(d, k, s, n, false);
    case DECODER_BYTE_LEVEL:
    case DECODER_FUSE:
        if (p->d->kind == DECODER_BYTE_LEVEL)
            status = byte_level(d, p, s, n);
        else
            buf_add(&p->work, s, n);
        part = p->open ? 0 : PART_BEGIN;
        p->open = true;
        break;
    case DECODER_REPLACE:
        status = do_replace(d, p, s, n);
        break;
    case DECODER_STRIP:
        status = part == PART_WHOLE ? strip_whole(p, s, n) : strip_part(p, s, n, part);
        break;
    case DECODER_METASPACE:
        metaspace(p, s, n);
        break;
    case DECODER_WORDPIECE:
        wordpiece(p, s, n);
        break;
    }
    if (status == TLM_OK || p->work.status != TLM_OK)
        status = check(d, &p->work);
    return status == TLM_OK ? feed(d, k + 1, buf_str(&p->work), p->work.len, part) : status;
}

/* Recursion is as deep as there are stages, at most 65. */
static enum tlm_status feed(struct tlm_detokenizer *d, uint32_t k, const char *s, size_t n, int part)
{
    if (k == d->n) {
        utf8_stream_add(&d->last, &d->out, s, n);
        return check(d, &d->out);
    }
    struct stage *p = &d->stages[k];
    p->index += part & PART_BEGIN;
    if (part == PART_WHOLE || takes_parts(p->d))
        return run_stage(d, k, s, n, part);
    /* Gather. The stages that hold between tokens see one token only here. */
    if (part & PART_BEGIN)
        buf_clear(&p->hold);
    buf_add(&p->hold, s, n);
    if (!(part & PART_END))
        return check(d, &p->hold);
    size_t len;
    char *whole = buf_take(&p->hold, &len);
    if (!whole)
        return err_nomem(d->e, n);
    buf_init(&p->hold, TOK_MAX_TEXT);
    enum tlm_status status = run_stage(d, k, whole, len, PART_WHOLE);
    mem_free(whole);
    return status;
}

static enum tlm_status finish_stage(struct tlm_detokenizer *d, uint32_t k)
{
    struct stage *p = &d->stages[k];
    enum tlm_status s = TLM_OK;
    if (p->d->kind == DECODER_BYTE_FALLBACK)
        s = flush_bytes(d, k);
    else if (p->d->kind == DECODER_BPE) {
        buf_clear(&p->work);
        s = bpe_suffix(d, k, "", 0, true);
    }
    if (s == TLM_OK && p->open) {
        buf_clear(&p->work);
        utf8_stream_end(&p->bytes, &p->work);
        s = check(d, &p->work);
        if (s == TLM_OK)
            s = feed(d, k + 1, buf_str(&p->work), p->work.len, PART_END);
    }
    return s;
}

static void reset(struct tlm_detokenizer *d)
{
    for (uint32_t k = 0; k < d->n; k++) {
        struct stage *p = &d->stages[k];
        buf_clear(&p->hold);
        p->bytes.n = 0;
        p->index = 0;
        p->open = p->seen_last = false;
        p->left = p->tail = 0;
    }
    d->last.n = 0;
}

enum tlm_status tlm_detokenizer_new(const struct tlm_tokenizer *t, unsigned decode_flags, struct tlm_detokenizer **out,
                                    struct tlm_error *e)
{
    if (!t || !out)
        return err_set(e, TLM_EINVAL, "detokenizer: a null argument");
    *out = NULL;
    if (decode_flags & ~(unsigned)TLM_DECODE_SKIP_SPECIAL)
        return err_set(e, TLM_EINVAL, "detokenizer: unknown flags %#x", decode_flags);
    struct tlm_detokenizer *d = mem_new(sizeof *d);
    if (!d)
        return err_nomem(e, sizeof *d);
    d->t = t;
    d->flags = decode_flags;
    buf_init(&d->out, TOK_MAX_TEXT);
    d->stages = mem_new_array((size_t)t->decoders.n + 1, sizeof *d->stages);
    d->regex = regex_work_new();
    if (!d->stages || !d->regex) {
        tlm_detokenizer_free(d);
        return err_nomem(e, 0);
    }
    for (; d->n < t->decoders.n; d->n++) {
        d->stages[d->n].d = &t->decoders.list[d->n];
        buf_init(&d->stages[d->n].hold, TOK_MAX_TEXT);
        buf_init(&d->stages[d->n].work, TOK_MAX_TEXT);
    }
    *out = d;
    return TLM_OK;
}

void tlm_detokenizer_free(struct tlm_detokenizer *d)
{
    if (!d)
        return;
    for (uint32_t k = 0; k < d->n; k++) {
        buf_deinit(&d->stages[k].hold);
        buf_deinit(&d->stages[k].work);
    }
    mem_free(d->stages);
    regex_work_free(d->regex);
    buf_deinit(&d->out);
    mem_free(d);
}

static enum tlm_status push_id(struct tlm_detokenizer *d, int32_t id)
{
    const struct tok_vocab *v = &d->t->vocab;
    if (id < 0)
        return err_set(d->e, TLM_EINVAL, "detokenizer: token id %d", (int)id);
    /* A model may have more rows than its tokenizer has tokens: no text. */
    if ((uint32_t)id >= v->n || !(v->flags[id] & TOK_PRESENT) || (v->flags[id] & TOK_SILENT))
        return TLM_OK;
    if ((d->flags & TLM_DECODE_SKIP_SPECIAL) && (v->flags[id] & TOK_SPECIAL))
        return TLM_OK;
    return feed(d, 0, vocab_text(v, (uint32_t)id), v->piece[id].len, PART_WHOLE);
}

static enum tlm_status end_all(struct tlm_detokenizer *d)
{
    enum tlm_status s = TLM_OK;
    for (uint32_t k = 0; k < d->n && s == TLM_OK; k++)
        s = finish_stage(d, k);
    utf8_stream_end(&d->last, &d->out);
    if (s == TLM_OK)
        s = check(d, &d->out);
    reset(d);
    return s;
}

enum tlm_status tlm_detokenizer_push(struct tlm_detokenizer *d, int32_t id, const char **piece, size_t *len,
                                     struct tlm_error *e)
{
    if (!d || !piece || !len)
        return err_set(e, TLM_EINVAL, "detokenizer: a null argument");
    d->e = e;
    buf_clear(&d->out);
    enum tlm_status s = push_id(d, id);
    *piece = buf_str(&d->out);
    *len = d->out.len;
    return s;
}

enum tlm_status tlm_detokenizer_finish(struct tlm_detokenizer *d, const char **piece, size_t *len, struct tlm_error *e)
{
    if (!d || !piece || !len)
        return err_set(e, TLM_EINVAL, "detokenizer: a null argument");
    d->e = e;
    buf_clear(&d->out);
    enum tlm_status s = end_all(d);
    *piece = buf_str(&d->out);
    *len = d->out.len;
    return s;
}

enum tlm_status tlm_tokenizer_decode(const struct tlm_tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                                     char **text, size_t *len, struct tlm_error *e)
{
    struct tlm_detokenizer *d;
    if (!t || (!ids && n) || !text || !len)
        return err_set(e, TLM_EINVAL, "tokenizer: a null argument");
    *text = NULL;
    *len = 0;
    enum tlm_status s = tlm_detokenizer_new(t, flags, &d, e);
    if (s != TLM_OK)
        return s;
    d->e = e;
    for (size_t i = 0; i < n && s == TLM_OK; i++)
        s = push_id(d, ids[i]);
    if (s == TLM_OK)
        s = end_all(d);
    if (s == TLM_OK) {
        *text = buf_take(&d->out, len);
        s = *text ? TLM_OK : err_nomem(e, 1);
    }
    tlm_detokenizer_free(d);
    return s;
}
