/* Patterns of pre-tokenizers. Tokenizer files are written for Oniguruma; here
 * they run on PCRE2. The two differ in what some escapes mean, so these are
 * spelled out: \s is the property White_Space, \w Alphabetic, marks, Nd and
 * Pc, \d Nd, \h a hexadecimal digit. ^ and $ always match at line ends. */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"

#define SPACE_CLASS "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE_CLASS                                                                                                \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"                \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}"
/* The engine also takes the superscripts and fractions of Latin-1, and symbols
 * with the property Alphabetic. */
#define WORD_CLASS                                                                                                     \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}"                                   \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

static const struct {
    const char *property, *ranges;
} later[] = {
#define LATER(property, ranges) {property, ranges},
#include "text/pretok_later.def"
#undef LATER
};

static const char *find_later(const char *property, size_t n)
{
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strlen(later[i].property) == n && !memcmp(later[i].property, property, n))
            return later[i].ranges;
    return "";
}

enum { MAX_PATTERN = 1 << 16 };

struct tok_regex {
    pcre2_code *code;
};

struct tok_regex_work {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static void *hook_alloc(PCRE2_SIZE n, void *unused)
{
    (void)unused;
    return mem_alloc(n);
}

static void hook_free(void *p, void *unused)
{
    (void)unused;
    mem_free(p);
}

static void add_word(struct buf *out)
{
    buf_add_str(out, WORD_CLASS);
    buf_add_str(out, find_later("L", 1));
    buf_add_str(out, find_later("M", 1));
    buf_add_str(out, find_later("Nd", 2));
}

/* \p{…} or \P{…} with what newer versions of Unicode added. */
static size_t translate_property(struct buf *out, const char *s, size_t n, bool in_class)
{
    const char *close = n > 1 && s[1] == '{' ? memchr(s, '}', n) : NULL;
    if (!close)
        return 0;
    size_t used = (size_t)(close - s) + 1;
    bool caret = s[2] == '^', negated = (s[0] == 'P') != caret;
    const char *name = s + 2 + caret, *ranges = find_later(name, (size_t)(close - name));
    if (in_class && negated && *ranges) /* without the additions: there is no way to write it */
        ranges = "";
    if (!in_class)
        buf_add_str(out, negated ? "[^" : "[");
    buf_add_str(out, in_class && negated ? "\\P{" : "\\p{");
    buf_add(out, name, (size_t)(close - name) + 1);
    buf_add_str(out, ranges);
    if (!in_class)
        buf_add_char(out, ']');
    return used;
}

/* One escape outside or inside a class, its letter at s[0]; returns the bytes
 * used, 0 if it has no equivalent. */
static size_t translate_escape(struct buf *out, const char *s, size_t n, bool in_class)
{
    switch (s[0]) {
    case 's':
        buf_add_str(out, in_class ? SPACE_CLASS : "[" SPACE_CLASS "]");
        return 1;
    case 'S':
        buf_add_str(out, in_class ? NOT_SPACE_CLASS : "[^" SPACE_CLASS "]");
        return 1;
    case 'w':
    case 'W':
        if (in_class && s[0] == 'W')
            return 0;
        if (!in_class)
            buf_add_str(out, s[0] == 'W' ? "[^" : "[");
        add_word(out);
        if (!in_class)
            buf_add_char(out, ']');
        return 1;
    case 'd':
        translate_property(out, "p{Nd}", 5, in_class);
        return 1;
    case 'D':
        translate_property(out, "P{Nd}", 5, in_class);
        return 1;
    case 'p':
    case 'P':
        return translate_property(out, s, n, in_class);
    case 'h':
        buf_add_str(out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
        return 1;
    case 'H':
        if (in_class)
            return 0;
        buf_add_str(out, "[^0-9a-fA-F]");
        return 1;
    case 'u': /* \uHHHH */
        if (n < 5)
            return 0;
        buf_add_str(out, "\\x{");
        buf_add(out, s + 1, 4);
        buf_add_char(out, '}');
        return 5;
    case 'Z':
    case 'O':
    case 'M':
    case 'C':
    case 'Q':
    case 'E':
    case 'y':
    case 'Y':
        return 0;
    default: { /* the same in both, a multi-byte character included */
        size_t k = 1;
        while (k < n && ((uint8_t)s[k] & 0xc0) == 0x80)
            k++;
        buf_add_char(out, '\\');
        buf_add(out, s, k);
        return k;
    }
    }
}

/* Translates the pattern; NULL, or what cannot be translated. */
static const char *translate(struct buf *out, const char *s, size_t n)
{
    int in_class = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '\\') {
            if (i + 1 == n)
                return "a lone backslash at the end";
            size_t used = translate_escape(out, s + i + 1, n - i - 1, in_class > 0);
            if (!used)
                return "an escape without an equivalent";
            i += used;
            continue;
        }
        if (in_class && c == '&' && i + 1 < n && s[i + 1] == '&')
            return "an intersection of classes";
        if (c == '[') {
            if (in_class && i + 1 < n && s[i + 1] == ':') { /* [:alpha:] */
                const char *end = NULL;
                for (size_t k = i + 2; k + 1 < n && !end; k++)
                    if (s[k] == ':' && s[k + 1] == ']')
                        end = s + k + 2;
                if (!end)
                    return "an open [: in a class";
                buf_add(out, s + i, (size_t)(end - s) - i);
                i = (size_t)(end - s) - 1;
                continue;
            }
            if (in_class)
                return "a class inside a class";
            in_class = 1;
            buf_add_char(out, c);
            if (i + 1 < n && s[i + 1] == '^')
                buf_add_char(out, s[++i]);
            if (i + 1 < n && s[i + 1] == ']') { /* a first ] is itself */
                buf_add_str(out, "\\]");
                i++;
            }
            continue;
        }
        if (c == ']' && in_class)
            in_class = 0;
        buf_add_char(out, c);
    }
    return NULL;
}

enum tlm_status regex_new(const char *pattern, size_t n, struct tok_regex **out, struct tlm_error *e)
{
    struct buf text;
    enum tlm_status status = TLM_OK;
    pcre2_general_context *general = NULL;
    pcre2_compile_context *context = NULL;
    int code = 0;
    PCRE2_SIZE at = 0;
    *out = NULL;
    if (n > MAX_PATTERN)
        return err_set(e, TLM_ELIMIT, "a regex of %zu bytes, at most %d are taken", n, MAX_PATTERN);
    struct tok_regex *r = mem_new(sizeof *r);
    if (!r)
        return err_nomem(e, sizeof *r);
    buf_init(&text, 64 * (size_t)MAX_PATTERN);
    const char *reason = translate(&text, pattern, n);
    if (reason) {
        status = err_set(e, TLM_EUNSUPPORTED, "regex \"%.*s\": %s is not supported", n > 400 ? 400 : (int)n, pattern,
                         reason);
        goto out;
    }
    if (buf_check(&text, e, "regex") != TLM_OK) {
        status = text.status;
        goto out;
    }
    general = pcre2_general_context_create(hook_alloc, hook_free, NULL);
    context = general ? pcre2_compile_context_create(general) : NULL;
    if (!context) {
        status = err_nomem(e, 0);
        goto out;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 50);
    r->code = pcre2_compile((PCRE2_SPTR)buf_str(&text), text.len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at,
                            context);
    if (!r->code && code == PCRE2_ERROR_HEAP_FAILED) {
        status = err_nomem(e, text.len);
        goto out;
    }
    if (!r->code) {
        char message[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        status = err_set(e, TLM_EFORMAT, "regex \"%.*s\": %s", n > 400 ? 400 : (int)n, pattern, message);
        goto out;
    }
    /* Without JIT (a processor that it does not know) matching still works. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
out:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    buf_deinit(&text);
    if (status != TLM_OK)
        regex_free(r);
    else
        *out = r;
    return status;
}

void regex_free(struct tok_regex *r)
{
    if (r)
        pcre2_code_free(r->code);
    mem_free(r);
}

struct tok_regex_work *regex_work_new(void)
{
    struct tok_regex_work *w = mem_new(sizeof *w);
    pcre2_general_context *general = w ? pcre2_general_context_create(hook_alloc, hook_free, NULL) : NULL;
    if (general) {
        w->data = pcre2_match_data_create(1, general);
        w->context = pcre2_match_context_create(general);
        w->stack = pcre2_jit_stack_create(32 * 1024, (size_t)32 << 20, general);
    }
    pcre2_general_context_free(general);
    if (w && (!w->data || !w->context)) {
        regex_work_free(w);
        return NULL;
    }
    if (w && w->stack)
        pcre2_jit_stack_assign(w->context, NULL, w->stack);
    if (w)
        pcre2_set_heap_limit(w->context, 256 * 1024); /* KiB */
    return w;
}

void regex_work_free(struct tok_regex_work *w)
{
    if (!w)
        return;
    pcre2_jit_stack_free(w->stack);
    pcre2_match_context_free(w->context);
    pcre2_match_data_free(w->data);
    mem_free(w);
}

enum tlm_status regex_next(const struct tok_regex *r, struct tok_regex_work *w, const char *s, size_t n, size_t from,
                           size_t *start, size_t *end, bool *found, struct tlm_error *e)
{
    *found = false;
    int rc = pcre2_match(r->code, (PCRE2_SPTR)(n ? s : ""), n, from, PCRE2_NO_UTF_CHECK, w->data, w->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return TLM_OK;
    if (rc < 0) {
        char message[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
        return err_set(e, rc == PCRE2_ERROR_NOMEMORY ? TLM_ENOMEM : TLM_ELIMIT,
                       "the tokenizer's regex failed on this text: %s", message);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(w->data);
    if (o[0] > o[1] || o[1] > n || o[0] < from) /* \K in a lookaround */
        return err_set(e, TLM_EFORMAT, "the tokenizer's regex gives a match outside its range");
    *start = o[0];
    *end = o[1];
    *found = true;
    return TLM_OK;
}

enum tlm_status pattern_parse(const cJSON *v, struct tok_pattern *out, struct tlm_error *e)
{
    const char *exact = NULL, *regex = NULL;
    *out = (struct tok_pattern){NULL, 0, NULL};
    if (cJSON_IsString(v)) {
        exact = v->valuestring;
    } else if (cJSON_IsObject(v)) {
        if (json_str(v, "String", &exact, e) != TLM_OK || json_str(v, "Regex", &regex, e) != TLM_OK)
            return TLM_EFORMAT;
    }
    if (!exact == !regex)
        return err_set(e, TLM_EFORMAT, "pattern: found %s, expected {\"String\": …} or {\"Regex\": …}",
                       json_type_name(v));
    const char *text = exact ? exact : regex;
    out->n = strlen(text);
    out->text = mem_strdup(text);
    if (!out->text)
        return err_nomem(e, out->n + 1);
    return regex ? regex_new(text, out->n, &out->regex, e) : TLM_OK;
}

void pattern_deinit(struct tok_pattern *p)
{
    regex_free(p->regex);
    mem_free(p->text);
    *p = (struct tok_pattern){NULL, 0, NULL};
}

enum tlm_status pattern_next(const struct tok_pattern *p, struct tok_regex_work *w, const char *s, size_t n,
                             size_t from, size_t *start, size_t *end, bool *found, struct tlm_error *e)
{
    if (p->regex)
        return regex_next(p->regex, w, s, n, from, start, end, found, e);
    *found = false;
    if (!p->n)
        return TLM_OK;
    while (n - from >= p->n) {
        const char *at = memchr(s + from, p->text[0], n - from - p->n + 1);
        if (!at)
            return TLM_OK;
        from = (size_t)(at - s);
        if (!memcmp(at, p->text, p->n)) {
            *start = from;
            *end = from + p->n;
            *found = true;
            return TLM_OK;
        }
        from++;
    }
    return TLM_OK;
}
