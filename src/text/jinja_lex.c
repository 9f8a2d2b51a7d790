/* Template text to tokens, by jinja2's rules with trim_blocks and
 * lstrip_blocks on: the newline after a block or comment goes, white space
 * before one goes when it begins the line, '-' strips all white space on its
 * side, '+' keeps it. One newline at the end of the template is dropped. */
#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_ast.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"

struct lexer {
    struct jinja_template *t;
    struct jinja_run *r;
    const char *s;
    size_t n, at, cap;
    int line;
    size_t line_at; /* lines are counted up to here */
    bool line_starting;
    char balance[256];
    int depth;
};

const char *jinja_intern(struct jinja_template *t, const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    if (t->n_names * 2 >= t->names_slots) {
        size_t slots = t->names_slots ? t->names_slots * 2 : 256;
        const char **names = jv_alloc_array(&t->run, slots, sizeof *names);
        if (!names)
            return NULL;
        for (size_t i = 0; i < slots; i++)
            names[i] = NULL;
        const char **old = t->names;
        size_t old_slots = t->names_slots;
        t->names = names;
        t->names_slots = slots;
        t->n_names = 0;
        for (size_t i = 0; i < old_slots; i++) {
            if (!old[i])
                continue;
            uint64_t g = 0xcbf29ce484222325u;
            for (const char *c = old[i]; *c; c++)
                g = (g ^ (unsigned char)*c) * 0x100000001b3u;
            size_t k = g & (slots - 1);
            while (names[k])
                k = (k + 1) & (slots - 1);
            names[k] = old[i];
            t->n_names++;
        }
    }
    size_t k = h & (t->names_slots - 1);
    for (; t->names[k]; k = (k + 1) & (t->names_slots - 1))
        if (!strncmp(t->names[k], p, n) && !t->names[k][n])
            return t->names[k];
    char *copy = jv_alloc(&t->run, n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, p, n);
    copy[n] = 0;
    t->names[k] = copy;
    t->n_names++;
    return copy;
}

static int line_of(struct lexer *x, size_t at)
{
    for (; x->line_at < at; x->line_at++)
        x->line += x->s[x->line_at] == '\n';
    return x->line;
}

static bool fail(struct lexer *x, size_t at, const char *message)
{
    x->r->line = line_of(x, at);
    jv_fail(x->r, TLM_EFORMAT, "%s", message);
    return false;
}

static struct jinja_token *add(struct lexer *x, enum jinja_token_kind kind, size_t at)
{
    struct jinja_template *t = x->t;
    if (t->n_tokens == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct jinja_token *grown = jv_grow(x->r, t->tokens, t->n_tokens * sizeof *grown, cap * sizeof *grown);
        if (!grown)
            return NULL;
        t->tokens = grown;
        x->cap = cap;
    }
    struct jinja_token *k = &t->tokens[t->n_tokens++];
    *k = (struct jinja_token){.kind = kind, .line = line_of(x, at), .value = jv_none};
    return k;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    size_t len;
    while (at < x->n && text_space(text_get(x->s + at, x->n - at, &len)))
        at += len;
    return at;
}

static bool starts(const struct lexer *x, size_t at, const char *what)
{
    size_t m = strlen(what);
    return x->n - at >= m && !memcmp(x->s + at, what, m);
}

/* Where a block or comment that ends at `end` with its closing mark stops. */
static size_t after_block(const struct lexer *x, size_t end, char sign)
{
    if (sign == '-')
        return skip_space(x, end);
    return sign != '+' && end < x->n && x->s[end] == '\n' ? end + 1 : end;
}

static bool add_data(struct lexer *x, size_t start, size_t end, char sign, bool variable)
{
    size_t from = start;
    if (sign == '-') {
        text_strip(x->s, &from, &end, NULL, 0, false, true);
    } else if (sign != '+' && !variable) {
        size_t bol = end;
        while (bol > start && x->s[bol - 1] != '\n')
            bol--;
        if ((bol > start || x->line_starting) && bol < end) {
            size_t space = bol, stop = end;
            text_strip(x->s, &space, &stop, NULL, 0, true, false);
            if (space == stop)
                end = bol;
        }
    }
    if (end <= start)
        return true;
    struct jinja_token *k = add(x, T_DATA, start);
    struct jv v = jv_str_borrow(x->r, x->s + start, end - start);
    if (!k || jv_is_error(v))
        return false;
    k->value = v;
    return true;
}

/* {% raw %} at `at`: the offset after it, 0 if it is none. */
static size_t match_raw(const struct lexer *x, size_t at, const char *word)
{
    size_t i = at + 2;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+'))
        i++;
    i = skip_space(x, i);
    if (!starts(x, i, word))
        return 0;
    i = skip_space(x, i + strlen(word));
    bool end = word[0] == 'e';
    if (starts(x, i, "-%}"))
        return skip_space(x, i + 3);
    if (end && starts(x, i, "+%}"))
        return i + 3;
    if (starts(x, i, "%}"))
        return end ? after_block(x, i + 2, 0) : i + 2;
    return 0;
}

static char sign_at(const struct lexer *x, size_t at)
{
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : 0;
}

static bool lex_raw(struct lexer *x)
{
    size_t start = x->at;
    x->line_starting = start > 0 && x->s[start - 1] == '\n';
    for (size_t i = start; i + 1 < x->n; i++) {
        if (x->s[i] != '{' || x->s[i + 1] != '%')
            continue;
        size_t end = match_raw(x, i, "endraw");
        if (!end)
            continue;
        if (!add_data(x, start, i, sign_at(x, i + 2), false))
            return false;
        x->at = end;
        x->line_starting = x->s[end - 1] == '\n';
        return true;
    }
    return fail(x, start, "Missing end of raw directive");
}

static bool lex_comment(struct lexer *x)
{
    size_t start = x->at;
    for (size_t i = start; i + 1 < x->n; i++) {
        if (x->s[i] != '#' || x->s[i + 1] != '}')
            continue;
        char sign = i > start && (x->s[i - 1] == '-' || x->s[i - 1] == '+') ? x->s[i - 1] : 0;
        x->at = after_block(x, i + 2, sign);
        x->line_starting = x->s[x->at - 1] == '\n';
        return true;
    }
    return fail(x, start, "Missing end of comment tag");
}

static size_t digits(const struct lexer *x, size_t at)
{
    size_t i = at;
    while (i < x->n && (isdigit((unsigned char)x->s[i]) || (x->s[i] == '_' && i > at && x->s[i - 1] != '_' &&
                                                            i + 1 < x->n && isdigit((unsigned char)x->s[i + 1]))))
        i++;
    return i;
}

/* The end of a float that starts at x->at, 0 if none does. */
static size_t match_float(const struct lexer *x)
{
    if (x->at > 0 && x->s[x->at - 1] == '.')
        return 0;
    size_t i = digits(x, x->at), whole = i;
    if (i == x->at)
        return 0;
    if (i < x->n && x->s[i] == '.') {
        size_t f = digits(x, i + 1);
        if (f > i + 1)
            i = f;
    }
    if (i < x->n && (x->s[i] == 'e' || x->s[i] == 'E')) {
        size_t e = i + 1;
        if (e < x->n && (x->s[e] == '+' || x->s[e] == '-'))
            e++;
        size_t f = digits(x, e);
        if (f > e)
            i = f;
    }
    return i > whole ? i : 0;
}

static size_t match_integer(const struct lexer *x, int *base)
{
    size_t i = x->at;
    char c = x->s[i];
    *base = 10;
    if (c == '0' && i + 2 < x->n) {
        char m = (char)tolower((unsigned char)x->s[i + 1]);
        *base = m == 'b' ? 2 : m == 'o' ? 8 : m == 'x' ? 16 : 10;
        size_t k = i + 2;
        while (*base != 10 && k < x->n) {
            size_t d = x->s[k] == '_' ? k + 1 : k;
            int v = d < x->n && isxdigit((unsigned char)x->s[d]) ? x->s[d] : 0;
            v = !v ? 99 : isdigit(v) ? v - '0' : tolower(v) - 'a' + 10;
            if (v >= *base)
                break;
            k = d + 1;
        }
        if (*base != 10 && k > i + 2)
            return k;
        *base = 10;
    }
    if (!isdigit((unsigned char)c))
        return 0;
    size_t k = i + 1;
    while (k < x->n) {
        size_t d = x->s[k] == '_' ? k + 1 : k;
        if (d >= x->n || !isdigit((unsigned char)x->s[d]) || (c == '0' && x->s[d] != '0'))
            break;
        k = d + 1;
    }
    return k;
}

static bool lex_number(struct lexer *x, size_t end, bool is_float, int base)
{
    char t[400];
    size_t m = 0;
    for (size_t i = x->at; i < end; i++) {
        if (m + 1 >= sizeof t)
            return fail(x, x->at, "a number is too long");
        if (x->s[i] != '_')
            t[m++] = x->s[i];
    }
    struct jv v;
    if (is_float) {
        double f = 0;
        text_to_double(t, m, &f);
        v = jv_float(f);
    } else {
        int64_t i = 0;
        int got = text_to_int(t, m, base, &i);
        x->r->line = line_of(x, x->at);
        v = got == 2 ? jinja_big_read(x->r, t, m, base) : jv_int(i);
    }
    struct jinja_token *k = add(x, T_NUMBER, x->at);
    if (!k || jv_is_error(v))
        return false;
    k->value = v;
    x->at = end;
    return true;
}

static int hex_value(const char *p, size_t n, size_t count, uint32_t *out)
{
    uint32_t v = 0;
    if (n < count)
        return 0;
    for (size_t i = 0; i < count; i++) {
        if (!isxdigit((unsigned char)p[i]))
            return 0;
        v = v << 4 | (uint32_t)(isdigit((unsigned char)p[i]) ? p[i] - '0' : tolower((unsigned char)p[i]) - 'a' + 10);
    }
    *out = v;
    return 1;
}

/* One escape after its backslash; the number of bytes used, 0 after an error. */
static size_t unescape(struct lexer *x, const char *p, size_t n, struct buf *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = *p ? strchr(from, *p) : NULL;
    char u[4];
    if (simple) {
        buf_add_char(b, to[simple - from]);
        return 1;
    }
    if (*p == '\n')
        return 1;
    uint32_t c = 0;
    if (*p >= '0' && *p <= '7') {
        size_t k = 0;
        for (; k < 3 && k < n && p[k] >= '0' && p[k] <= '7'; k++)
            c = c * 8 + (uint32_t)(p[k] - '0');
        buf_add(b, u, text_put(c, u));
        return k;
    }
    if (*p == 'x' || *p == 'u' || *p == 'U') {
        size_t count = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
        if (!hex_value(p + 1, n - 1, count, &c))
            return (size_t)fail(x, x->at, "truncated \\x or \\u escape in a string");
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return (size_t)fail(x, x->at, "illegal Unicode character in a string");
        buf_add(b, u, text_put(c, u));
        return count + 1;
    }
    if (*p == 'N')
        return (size_t)fail(x, x->at, "\\N{name} escapes are not supported");
    buf_add_char(b, '\\');
    size_t len;
    c = text_get(p, n, &len);
    /* jinja2 turns other characters into escapes first, so that a backslash
     * before one meets the escape's own backslash. */
    if (c >= 0x80)
        buf_printf(b, c < 0x100 ? "x%02x" : c < 0x10000 ? "u%04x" : "U%08x", c);
    else
        buf_add_char(b, *p);
    return len;
}

static bool lex_string(struct lexer *x)
{
    char quote = x->s[x->at];
    size_t end = x->at + 1;
    while (end < x->n && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) {
        char message[64] = "unexpected char '\"'";
        message[17] = quote;
        return fail(x, x->at, message);
    }
    struct buf b;
    jv_buf_init(x->r, &b);
    bool ok = true;
    for (size_t i = x->at + 1; ok && i < end;) {
        const char *slash = memchr(x->s + i, '\\', end - i);
        size_t stop = slash ? (size_t)(slash - x->s) : end;
        buf_add(&b, x->s + i, stop - i);
        i = stop;
        if (slash) {
            size_t used = unescape(x, x->s + i + 1, end - i - 1, &b);
            ok = used > 0;
            i += 1 + used;
        }
    }
    struct jv v = jv_from_buf(x->r, &b);
    struct jinja_token *k = ok ? add(x, T_STRING, x->at) : NULL;
    if (!k || jv_is_error(v))
        return false;
    k->value = v;
    x->at = end + 1;
    return true;
}

static bool lex_name(struct lexer *x, uint32_t first)
{
    size_t end = x->at, len;
    if (!text_name_start(first))
        return fail(x, x->at, "Invalid character in identifier");
    while (end < x->n && text_name_part(text_get(x->s + end, x->n - end, &len)))
        end += len;
    struct jinja_token *k = add(x, T_NAME, x->at);
    const char *name = jinja_intern(x->t, x->s + x->at, end - x->at);
    if (!k || !name)
        return false;
    k->name = name;
    x->at = end;
    return true;
}

static bool lex_operator(struct lexer *x)
{
    static const char two[][3] = {"//", "**", "==", "!=", ">=", "<="}, code[] = "FPENGL";
    char op = x->s[x->at];
    size_t len = 1;
    for (int i = 0; i < 6; i++)
        if (starts(x, x->at, two[i])) {
            op = code[i];
            len = 2;
        }
    if (len == 1 && (!op || !strchr("+-*/%~[](){}<>=.:|,;", op))) {
        char message[96];
        size_t n = 0;
        uint32_t c = text_get(x->s + x->at, x->n - x->at, &n);
        memcpy(message, "unexpected char '", 17);
        memcpy(message + 17, x->s + x->at, c < 32 ? 0 : n);
        memcpy(message + 17 + (c < 32 ? 0 : n), "'", 2);
        return fail(x, x->at, message);
    }
    if (strchr("{[(", op)) {
        if (x->depth == (int)sizeof x->balance)
            return fail(x, x->at, "too many nested brackets");
        x->balance[x->depth++] = op == '{' ? '}' : op == '[' ? ']' : ')';
    } else if (strchr("}])", op)) {
        if (!x->depth || x->balance[--x->depth] != op)
            return fail(x, x->at, op == '}' ? "unexpected '}'" : op == ']' ? "unexpected ']'" : "unexpected ')'");
    }
    struct jinja_token *k = add(x, T_OP, x->at);
    if (!k)
        return false;
    k->op = op;
    x->at += len;
    return true;
}

/* The end of the tag at x->at, 0 if it does not end here. */
static size_t match_tag_end(const struct lexer *x, bool variable)
{
    if (x->depth)
        return 0;
    if (variable)
        return starts(x, x->at, "-}}") ? skip_space(x, x->at + 3) : starts(x, x->at, "}}") ? x->at + 2 : 0;
    if (starts(x, x->at, "-%}"))
        return skip_space(x, x->at + 3);
    if (starts(x, x->at, "+%}"))
        return x->at + 3;
    return starts(x, x->at, "%}") ? after_block(x, x->at + 2, 0) : 0;
}

static bool lex_tag(struct lexer *x, bool variable)
{
    x->depth = 0;
    while (x->at < x->n) {
        size_t end = match_tag_end(x, variable), len;
        int base;
        if (end) {
            if (!add(x, variable ? T_VAR_END : T_BLOCK_END, x->at))
                return false;
            x->at = end;
            x->line_starting = x->s[end - 1] == '\n';
            return true;
        }
        uint32_t c = text_get(x->s + x->at, x->n - x->at, &len);
        if (text_space(c)) {
            x->at += len;
            continue;
        }
        bool ok;
        if ((end = match_float(x)) != 0)
            ok = lex_number(x, end, true, 10);
        else if ((end = match_integer(x, &base)) != 0)
            ok = lex_number(x, end, false, base);
        else if (text_name_part(c))
            ok = lex_name(x, c);
        else if (c == '\'' || c == '"')
            ok = lex_string(x);
        else
            ok = lex_operator(x);
        if (!ok)
            return false;
    }
    return true;
}

static bool lex_root(struct lexer *x)
{
    size_t start = x->at, i = start;
    for (; i + 1 < x->n; i++)
        if (x->s[i] == '{' && (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#'))
            break;
    if (i + 1 >= x->n) {
        x->at = x->n;
        return add_data(x, start, x->n, '+', true);
    }
    char kind = x->s[i + 1], sign = sign_at(x, i + 2);
    if (!add_data(x, start, i, sign, kind == '{'))
        return false;
    size_t raw = kind == '%' ? match_raw(x, i, "raw") : 0;
    if (raw) {
        x->at = raw;
        return lex_raw(x);
    }
    x->at = i + 2 + (sign != 0);
    if (kind == '#')
        return lex_comment(x);
    return add(x, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, i) && lex_tag(x, kind == '{');
}

bool jinja_lex(struct jinja_template *t, const char *source, size_t len)
{
    if (!text_valid(source, len)) {
        jv_fail(&t->run, TLM_EFORMAT, "the template is not valid UTF-8");
        return false;
    }
    char *s = jv_alloc(&t->run, len + 1);
    if (!s)
        return false;
    struct lexer x = {.t = t, .r = &t->run, .s = s, .line = 1, .line_starting = true};
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        s[x.n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (x.n && s[x.n - 1] == '\n')
        x.n--;
    while (x.at < x.n)
        if (!lex_root(&x))
            return false;
    return add(&x, T_EOF, x.n) != NULL;
}
