/* Pre-tokenizers: cut text into the words that the model sees apart. A step
 * reads x->words (ranges of the text), writes x->spare, and the two change
 * places; ByteLevel and Metaspace also write a new text. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include "text/utf8.h"

static enum tlm_status push(struct encoder *x, size_t start, size_t end)
{
    if (x->spare.n == x->spare.cap) {
        enum tlm_status s = tok_grow(&x->spare.at, &x->spare.cap, x->spare.n + 1, sizeof *x->spare.at, x->e);
        if (s != TLM_OK)
            return s;
    }
    x->spare.at[x->spare.n++] = (struct tok_span){(uint32_t)start, (uint32_t)end};
    return TLM_OK;
}

/* How matches and what lies between them become pieces of one word. */
struct splitter {
    struct encoder *x;
    enum pretok_behavior behavior;
    bool invert;
    bool previous; /* the piece before was a match */
    size_t first;  /* pieces from here on are this word's */
};

static enum tlm_status emit(struct splitter *p, size_t start, size_t end, bool match)
{
    bool previous = p->previous, extend = false;
    struct tok_words *out = &p->x->spare;
    match = match != p->invert;
    if (start == end)
        return TLM_OK;
    p->previous = match;
    switch (p->behavior) {
    case PRETOK_REMOVED:
        if (match)
            return TLM_OK;
        break;
    case PRETOK_ISOLATED:
        break;
    case PRETOK_CONTIGUOUS:
        extend = match == previous;
        break;
    case PRETOK_MERGED_WITH_PREVIOUS:
        extend = match && !previous;
        break;
    case PRETOK_MERGED_WITH_NEXT:
        extend = !match && previous;
        break;
    }
    if (extend && out->n > p->first) {
        out->at[out->n - 1].end = (uint32_t)end;
        return TLM_OK;
    }
    return push(p->x, start, end);
}

static enum tlm_status split_pattern(struct splitter *p, const struct tok_pattern *pattern, const char *text,
                                     struct tok_span word)
{
    const char *s = text + word.start;
    size_t n = word.end - word.start, at = 0, done = 0, start = 0, end = 0;
    enum tlm_status status = TLM_OK;
    while (at <= n && status == TLM_OK) {
        bool found;
        status = pattern_next(pattern, p->x->regex, s, n, at, &start, &end, &found, p->x->e);
        if (status != TLM_OK || !found)
            break;
        status = emit(p, word.start + done, word.start + start, false);
        if (status == TLM_OK)
            status = emit(p, word.start + start, word.start + end, true);
        done = end;
        at = end > start ? end : end < n ? end + (size_t)utf8_len(s[end]) : n + 1;
        if (at == n)
            break;
    }
    return status == TLM_OK ? emit(p, word.start + done, word.end, false) : status;
}

static bool char_matches(const struct tok_pretok *t, uint32_t c, const char *s, int len)
{
    switch (t->kind) {
    case PRETOK_DIGITS:
        return unicode_is_numeric(c);
    case PRETOK_PUNCTUATION:
        return unicode_is_punct(c);
    case PRETOK_WHITESPACE_SPLIT:
        return unicode_is_space(c);
    case PRETOK_DELIMITER:
        return len == t->mark_n && !memcmp(s, t->mark, (size_t)len);
    default:
        return false;
    }
}

static enum tlm_status split_chars(struct splitter *p, const struct tok_pretok *t, const char *text,
                                   struct tok_span word)
{
    size_t done = word.start;
    enum tlm_status s = TLM_OK;
    for (size_t i = word.start; i < word.end && s == TLM_OK;) {
        int len;
        uint32_t c = utf8_get(text + i, &len);
        if (char_matches(t, c, text + i, len)) {
            s = emit(p, done, i, false);
            if (s == TLM_OK)
                s = emit(p, i, i + (size_t)len, true);
            done = i + (size_t)len;
        }
        i += (size_t)len;
    }
    return s == TLM_OK ? emit(p, done, word.end, false) : s;
}

/* Runs of one class are pieces; class 0 is dropped, class 3 stands alone. */
static int char_class(enum pretok_kind kind, uint32_t c)
{
    if (unicode_is_space(c))
        return 0;
    if (kind == PRETOK_BERT)
        return unicode_is_punct(c) ? 3 : 1;
    return unicode_is_word(c) ? 1 : 2;
}

static enum tlm_status split_classes(struct encoder *x, enum pretok_kind kind, const char *text, struct tok_span word)
{
    size_t start = word.start;
    int run = 0;
    enum tlm_status s = TLM_OK;
    for (size_t i = word.start; i < word.end && s == TLM_OK;) {
        int len, k = char_class(kind, utf8_get(text + i, &len));
        if (k != run || k == 3) {
            if (run)
                s = push(x, start, i);
            start = i;
            run = k;
        }
        i += (size_t)len;
    }
    return s == TLM_OK && run ? push(x, start, word.end) : s;
}

static enum tlm_status split_fixed(struct encoder *x, uint32_t length, const char *text, struct tok_span word)
{
    enum tlm_status s = TLM_OK;
    for (size_t start = word.start, i = start; start < word.end && s == TLM_OK; start = i) {
        for (uint32_t k = 0; k < length && i < word.end; k++)
            i += (size_t)utf8_len(text[i]);
        s = push(x, start, i);
    }
    return s;
}

/* Runs of decimal digits in threes, the first group being the shorter one.
 * Thousands: a group is a piece of its own, in runs that no word character
 * follows. Threes: only the places before whole groups are cut. */
static enum tlm_status split_threes(struct encoder *x, enum pretok_kind kind, const char *text, struct tok_span word)
{
    size_t done = word.start;
    enum tlm_status s = TLM_OK;
    for (size_t i = word.start; i < word.end && s == TLM_OK;) {
        size_t count = 0, end = i;
        int len = utf8_len(text[i]);
        for (; end < word.end && unicode_is_decimal(utf8_get(text + end, &len)); end += (size_t)len)
            count++;
        if (!count || (kind == PRETOK_THOUSANDS && end < word.end && unicode_is_word(utf8_get(text + end, &len)))) {
            i = count ? end : i + (size_t)len;
            continue;
        }
        for (size_t left = count; left && s == TLM_OK; left--) {
            bool cut = left % 3 == 0 || (kind == PRETOK_THOUSANDS && left == count);
            if (cut && done < i) {
                s = push(x, done, i);
                done = i;
            }
            i += (size_t)utf8_len(text[i]);
        }
        if (kind == PRETOK_THOUSANDS && s == TLM_OK) {
            s = push(x, done, end);
            done = end;
        }
    }
    return s == TLM_OK && done < word.end ? push(x, done, word.end) : s;
}

/* Cuts where the script changes. Characters of any script go with what stands
 * before them; at the start of a word they are dropped, as in the original. */
static enum tlm_status split_scripts(struct encoder *x, const char *text, struct tok_span word)
{
    size_t start = word.end;
    int last = 0;
    enum tlm_status s = TLM_OK;
    for (size_t i = word.start; i < word.end && s == TLM_OK;) {
        int len, script = unicode_script(utf8_get(text + i, &len));
        if (script && script != last) {
            if (last)
                s = push(x, start, i);
            start = i;
            last = script;
        }
        i += (size_t)len;
    }
    return s == TLM_OK && start < word.end ? push(x, start, word.end) : s;
}

static enum tlm_status split_step(struct encoder *x, const struct tok_pretok *t, const char *text)
{
    struct splitter p = {x, t->behavior, t->invert, false, 0};
    enum tlm_status s = TLM_OK;
    if (t->kind == PRETOK_DIGITS)
        p.behavior = t->individual_digits ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS;
    x->spare.n = 0;
    for (size_t i = 0; i < x->words.n && s == TLM_OK; i++) {
        struct tok_span word = x->words.at[i];
        p.previous = false;
        p.first = x->spare.n;
        switch (t->kind) {
        case PRETOK_SPLIT:
        case PRETOK_BYTE_LEVEL:
        case PRETOK_METASPACE:
            s = split_pattern(&p, &t->pattern, text, word);
            break;
        case PRETOK_WHITESPACE:
        case PRETOK_BERT:
            s = split_classes(x, t->kind, text, word);
            break;
        case PRETOK_FIXED_LENGTH:
            s = split_fixed(x, t->length, text, word);
            break;
        case PRETOK_SCRIPTS:
            s = split_scripts(x, text, word);
            break;
        case PRETOK_THOUSANDS:
        case PRETOK_THREES:
            s = split_threes(x, t->kind, text, word);
            break;
        default:
            s = split_chars(&p, t, text, word);
        }
    }
    struct tok_words swap = x->words;
    x->words = x->spare;
    x->spare = swap;
    return s;
}

/* Rewrites every word into out. */
static enum tlm_status rewrite(struct encoder *x, struct buf *out, const char *text,
                               enum tlm_status word_fn(struct buf *, const struct tok_pretok *, const char *, size_t,
                                                       bool),
                               const struct tok_pretok *t, bool first)
{
    buf_clear(out);
    for (size_t i = 0; i < x->words.n; i++) {
        struct tok_span *w = &x->words.at[i];
        size_t start = out->len;
        enum tlm_status s = word_fn(out, t, text + w->start, w->end - w->start, first && i == 0);
        if (s != TLM_OK)
            return buf_check(out, x->e, "the text after pre-tokenizing");
        *w = (struct tok_span){(uint32_t)start, (uint32_t)out->len};
    }
    return TLM_OK;
}

static enum tlm_status prefix_space(struct buf *out, const struct tok_pretok *t, const char *s, size_t n, bool first)
{
    (void)t, (void)first;
    if (n && s[0] != ' ')
        buf_add_char(out, ' ');
    return buf_add(out, s, n);
}

static enum tlm_status to_level(struct buf *out, const struct tok_pretok *t, const char *s, size_t n, bool first)
{
    (void)t, (void)first;
    return byte_level_add(out, s, n);
}

static enum tlm_status to_marks(struct buf *out, const struct tok_pretok *t, const char *s, size_t n, bool first)
{
    size_t mark = (size_t)t->mark_n;
    bool has = n && (s[0] == ' ' || (n >= mark && !memcmp(s, t->mark, mark)));
    if (!has && (t->prepend == PRETOK_PREPEND_ALWAYS || (t->prepend == PRETOK_PREPEND_FIRST && first)))
        buf_add(out, t->mark, mark);
    while (n) {
        const char *space = memchr(s, ' ', n);
        size_t plain = space ? (size_t)(space - s) : n;
        buf_add(out, s, plain);
        if (space)
            buf_add(out, t->mark, mark);
        s += plain + (space != NULL);
        n -= plain + (space != NULL);
    }
    return out->status;
}

enum tlm_status pretok_run(struct encoder *x, const char **text, size_t *n, bool first)
{
    const struct tok_pretoks *l = &x->t->pretoks;
    enum tlm_status s = TLM_OK;
    x->spare.n = 0;
    s = *n ? push(x, 0, *n) : TLM_OK;
    struct tok_words swap = x->words;
    x->words = x->spare;
    x->spare = swap;
    for (uint32_t i = 0; i < l->n && s == TLM_OK; i++) {
        const struct tok_pretok *t = &l->list[i];
        struct buf *out = *text == x->a.data ? &x->b : &x->a;
        bool level = t->kind == PRETOK_BYTE_LEVEL, last = i + 1 == l->n;
        if ((level && t->add_prefix_space) || t->kind == PRETOK_METASPACE) {
            s = rewrite(x, out, *text, level ? prefix_space : to_marks, t, first);
            *text = buf_str(out);
            out = out == &x->a ? &x->b : &x->a;
        }
        bool splits = level ? t->use_regex : t->kind == PRETOK_METASPACE ? t->split : true;
        if (s == TLM_OK && splits)
            s = split_step(x, t, *text);
        if (s == TLM_OK && level && !(last && x->t->level_model)) {
            s = rewrite(x, out, *text, to_level, t, first);
            *text = buf_str(out);
        }
    }
    *n = x->words.n ? x->words.at[x->words.n - 1].end : 0;
    return s;
}
