/* Normalizers: each turns valid UTF-8 into valid UTF-8. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include "text/utf8.h"

enum { MAX_PARTS = 256 };

struct tok_norm *norm_push(struct tok_norms *l)
{
    struct tok_norm *p = mem_realloc_array(l->list, (size_t)l->n + 1, sizeof *p);
    if (!p)
        return NULL;
    l->list = p;
    p[l->n] = (struct tok_norm){0};
    return &p[l->n++];
}

void norm_deinit(struct tok_norms *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        pattern_deinit(&l->list[i].pattern);
        mem_free(l->list[i].content);
        charsmap_free(l->list[i].map);
    }
    mem_free(l->list);
    *l = (struct tok_norms){NULL, 0};
}

static enum tlm_status get_content(const cJSON *v, const char *key, struct tok_norm *p, struct tlm_error *e)
{
    const char *s = NULL;
    if (json_str(v, key, &s, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!s)
        return err_set(e, TLM_EFORMAT, "%s: missing, expected a string", key);
    p->content = mem_strdup(s);
    p->content_n = strlen(s);
    return p->content ? TLM_OK : err_nomem(e, p->content_n + 1);
}

static enum tlm_status parse_one(const cJSON *v, const char *type, struct tok_norm *p, struct tlm_error *e)
{
    static const struct {
        const char *name;
        enum norm_kind kind;
    } known[] = {
        {"NFC", NORM_NFC},
        {"NFD", NORM_NFD},
        {"NFKC", NORM_NFKC},
        {"NFKD", NORM_NFKD},
        {"Lowercase", NORM_LOWERCASE},
        {"Replace", NORM_REPLACE},
        {"Prepend", NORM_PREPEND},
        {"Strip", NORM_STRIP},
        {"StripAccents", NORM_STRIP_ACCENTS},
        {"Nmt", NORM_NMT},
        {"BertNormalizer", NORM_BERT},
        {"ByteLevel", NORM_BYTE_LEVEL},
        {"Precompiled", NORM_PRECOMPILED},
    };
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(type, known[k].name))
        k++;
    if (k == sizeof known / sizeof *known)
        return err_set(e, TLM_EUNSUPPORTED, "normalizer: unknown type \"%s\"", type);
    p->kind = known[k].kind;
    enum tlm_status s = TLM_OK;
    switch (p->kind) {
    case NORM_REPLACE:
        s = pattern_parse(json_get(v, "pattern"), &p->pattern, e);
        return s == TLM_OK ? get_content(v, "content", p, e) : s;
    case NORM_PREPEND:
        return get_content(v, "prepend", p, e);
    case NORM_STRIP:
        p->left = p->right = true;
        s = json_bool(v, "strip_left", &p->left, e);
        return s == TLM_OK ? json_bool(v, "strip_right", &p->right, e) : s;
    case NORM_BERT:
        p->clean = p->han = p->lower = true;
        s = json_bool(v, "clean_text", &p->clean, e);
        if (s == TLM_OK)
            s = json_bool(v, "handle_chinese_chars", &p->han, e);
        if (s == TLM_OK)
            s = json_bool(v, "lowercase", &p->lower, e);
        p->accents = p->lower; /* null: as lowercase */
        return s == TLM_OK ? json_bool(v, "strip_accents", &p->accents, e) : s;
    case NORM_PRECOMPILED: {
        const char *map = NULL;
        if (json_str(v, "precompiled_charsmap", &map, e) != TLM_OK)
            return TLM_EFORMAT;
        return charsmap_new(map ? map : "", &p->map, e);
    }
    default:
        return TLM_OK;
    }
}

static enum tlm_status add_part(const cJSON *v, const char *type, void *list, struct tlm_error *e)
{
    struct tok_norms *out = list;
    if (out->n >= MAX_PARTS)
        return err_set(e, TLM_ELIMIT, "normalizer: more than %d parts", MAX_PARTS);
    struct tok_norm *p = norm_push(out);
    return p ? parse_one(v, type, p, e) : err_nomem(e, sizeof *p);
}

enum tlm_status norm_parse(const cJSON *v, struct tok_norms *out, struct tlm_error *e)
{
    return tok_parse_parts(v, "normalizer", "normalizers", add_part, out, 0, e);
}

static enum tlm_status replace(const struct tok_norm *p, struct tok_regex_work *w, struct buf *out, const char *s,
                               size_t n, struct tlm_error *e)
{
    size_t done = 0, at = 0, start = 0, end = 0;
    bool found;
    while (at <= n) {
        enum tlm_status status = pattern_next(&p->pattern, w, s, n, at, &start, &end, &found, e);
        if (status != TLM_OK)
            return status;
        if (!found)
            break;
        buf_add(out, s + done, start - done);
        if (buf_add(out, p->content, p->content_n) != TLM_OK)
            return out->status;
        done = end;
        at = end > start ? end : end < n ? end + (size_t)utf8_len(s[end]) : n + 1;
    }
    return buf_add(out, s + done, n - done);
}

static enum tlm_status strip(const struct tok_norm *p, struct buf *out, const char *s, size_t n)
{
    int len;
    size_t from = 0;
    while (p->left && from < n && unicode_is_space(utf8_get(s + from, &len)))
        from += (size_t)len;
    while (p->right && n > from) {
        const char *last = utf8_prev(s + from, s + n);
        if (!unicode_is_space(utf8_get(last, &len)))
            break;
        n = (size_t)(last - s);
    }
    return buf_add(out, s + from, n - from);
}

static enum tlm_status drop_marks(struct buf *out, const char *s, size_t n, bool any)
{
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = utf8_get(s + i, &len);
        if (!(any ? unicode_is_any_mark(c) : unicode_is_mark(c)) && buf_add(out, s + i, (size_t)len) != TLM_OK)
            return out->status;
        i += (size_t)len;
    }
    return TLM_OK;
}

/* Characters that the NMT normalizer drops, and those it makes a space. */
static bool nmt_dropped(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
}

static bool nmt_space(uint32_t c)
{
    return c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

static enum tlm_status nmt(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = utf8_get(s + i, &len);
        if (nmt_space(c))
            buf_add_char(out, ' ');
        else if (!nmt_dropped(c))
            buf_add(out, s + i, (size_t)len);
        i += (size_t)len;
    }
    return out->status;
}

static enum tlm_status bert_clean(const struct tok_norm *p, struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = utf8_get(s + i, &len);
        bool blank = c == '\t' || c == '\n' || c == '\r';
        if (p->clean && (c == 0 || c == 0xfffd || (unicode_is_other(c) && !blank))) {
            i += (size_t)len;
            continue;
        }
        if (p->clean && (blank || unicode_is_space(c))) {
            buf_add_char(out, ' ');
        } else if (p->han && unicode_is_han(c)) {
            buf_add_char(out, ' ');
            buf_add(out, s + i, (size_t)len);
            buf_add_char(out, ' ');
        } else {
            buf_add(out, s + i, (size_t)len);
        }
        i += (size_t)len;
    }
    return out->status;
}

static enum tlm_status bert(const struct tok_norm *p, struct buf *out, const char *s, size_t n)
{
    struct buf a, b;
    buf_init(&a, TOK_MAX_TEXT);
    buf_init(&b, TOK_MAX_TEXT);
    enum tlm_status status = bert_clean(p, &a, s, n);
    if (status == TLM_OK && p->accents) {
        status = unicode_normalize(&b, buf_str(&a), a.len, UNICODE_NFD);
        buf_clear(&a);
        if (status == TLM_OK)
            status = drop_marks(&a, buf_str(&b), b.len, false);
    }
    if (status == TLM_OK)
        status = p->lower ? unicode_add_lower(out, buf_str(&a), a.len) : buf_add(out, buf_str(&a), a.len);
    buf_deinit(&a);
    buf_deinit(&b);
    return status;
}

static enum tlm_status run_one(const struct tok_norm *p, struct tok_regex_work *w, struct buf *out, const char *s,
                               size_t n, struct tlm_error *e)
{
    switch (p->kind) {
    case NORM_NFC:
        return unicode_normalize(out, s, n, UNICODE_NFC);
    case NORM_NFD:
        return unicode_normalize(out, s, n, UNICODE_NFD);
    case NORM_NFKC:
        return unicode_normalize(out, s, n, UNICODE_NFKC);
    case NORM_NFKD:
        return unicode_normalize(out, s, n, UNICODE_NFKD);
    case NORM_LOWERCASE:
        return unicode_add_lower(out, s, n);
    case NORM_REPLACE:
        return replace(p, w, out, s, n, e);
    case NORM_PREPEND:
        if (n)
            buf_add(out, p->content, p->content_n);
        return buf_add(out, s, n);
    case NORM_STRIP:
        return strip(p, out, s, n);
    case NORM_STRIP_ACCENTS:
        return drop_marks(out, s, n, true);
    case NORM_NMT:
        return nmt(out, s, n);
    case NORM_BERT:
        return bert(p, out, s, n);
    case NORM_BYTE_LEVEL:
        return byte_level_add(out, s, n);
    case NORM_PRECOMPILED:
        return charsmap_add(p->map, out, s, n);
    }
    return TLM_EINTERNAL;
}

/* NFC of text whose every character lies below U+0300 is that text. */
static bool unchanged(const struct tok_norm *p, const char *s, size_t n)
{
    if (p->kind == NORM_REPLACE && !p->pattern.regex && p->pattern.n == 1)
        return !memchr(s, p->pattern.text[0], n);
    if (p->kind != NORM_NFC)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] >= 0xcc)
            return false;
    return true;
}

enum tlm_status norm_run(const struct tok_norms *l, struct tok_regex_work *w, const char **text, size_t *n,
                         struct buf *a, struct buf *b, struct tlm_error *e)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (!*n)
            return TLM_OK; /* nothing comes out of nothing */
        if (unchanged(&l->list[i], *text, *n))
            continue;
        struct buf *out = *text == a->data ? b : a;
        buf_clear(out);
        enum tlm_status s = run_one(&l->list[i], w, out, *text, *n, e);
        if (s != TLM_OK)
            return err_set(e, s, "normalizing a text of %zu bytes: %s", *n, tlm_status_name(s));
        *text = buf_str(out);
        *n = out->len;
    }
    return TLM_OK;
}
