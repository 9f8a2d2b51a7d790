/* A scanner with a stack of its own: one bit of state per open bracket. */
#include "base/json_scan.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/utf8_length.h"

/* The tree's maker keeps 63 characters of a number. */
enum { DEPTH_MAX = 512, VALUES_MAX = 2000000, NUMBER_MAX = 60 };

struct scan {
    const char *start, *at, *end, *where;
    size_t values, words;
    int depth;
    char open[DEPTH_MAX];
    struct tlm_error *e;
};

static enum tlm_status fail(const struct scan *s, const char *what)
{
    int line = 1;
    for (const char *p = s->start; p < s->at; p++)
        line += *p == '\n';
    return err_set(s->e, TLM_EFORMAT, "%s: line %d is not valid JSON: %s", s->where, line, what);
}

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static bool digits(struct scan *s)
{
    const char *first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > first;
}

static bool accept(struct scan *s, char c)
{
    bool is = s->at < s->end && *s->at == c;
    s->at += is;
    return is;
}

static enum tlm_status scan_number(struct scan *s)
{
    const char *first = s->at;
    accept(s, '-');
    bool ok = accept(s, '0') || digits(s);
    if (ok && accept(s, '.'))
        ok = digits(s);
    if (ok && (accept(s, 'e') || accept(s, 'E'))) {
        if (!accept(s, '+'))
            accept(s, '-');
        ok = digits(s);
    }
    if (!ok)
        return fail(s, "expected a digit");
    return s->at - first <= NUMBER_MAX ? TLM_OK : fail(s, "a number of too many digits");
}

/* The four hexadecimal digits of \uXXXX at p, or -1. */
static long hex4(const char *p, const char *end)
{
    long v = 0;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        static const char known[] = "0123456789abcdef";
        const char *at = p[i] ? strchr(known, p[i] >= 'A' && p[i] <= 'F' ? p[i] + 32 : p[i]) : NULL;
        if (!at)
            return -1;
        v = v << 4 | (at - known);
    }
    return v;
}

/* At a backslash. Half of a surrogate pair is no text that UTF-8 can hold. */
static bool scan_escape(struct scan *s)
{
    if (s->end - s->at < 2 || !s->at[1] || !strchr("\"\\/bfnrtu", s->at[1]))
        return false;
    long u = 0, low;
    if (s->at[1] != 'u') {
        s->at += 2;
        return true;
    }
    u = hex4(s->at, s->end);
    if (u < 0 || (u >= 0xdc00 && u < 0xe000))
        return false;
    s->at += 6;
    if (u < 0xd800 || u >= 0xe000)
        return true;
    low = hex4(s->at, s->end);
    s->at += 6;
    return low >= 0xdc00 && low < 0xe000;
}

static enum tlm_status scan_string(struct scan *s)
{
    s->at++;
    while (s->at < s->end && *s->at != '"') {
        const char *at = s->at;
        int n = utf8_length((const uint8_t *)at, (const uint8_t *)s->end);
        if (*at == '\\') {
            if (!scan_escape(s)) {
                s->at = at;
                return fail(s, "an escape in a string");
            }
            continue;
        }
        if ((uint8_t)*at < 0x20 || !n)
            return fail(s, n ? "a control character inside a string" : "text that is not UTF-8");
        s->at += n;
    }
    return accept(s, '"') ? TLM_OK : fail(s, "a string without an end");
}

/* The length of one of Python's words at p, or 0. */
static size_t word_length(const char *p, const char *end)
{
    static const char *const known[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i]);
        if ((size_t)(end - p) >= n && !memcmp(p, known[i], n))
            return n;
    }
    return 0;
}

static enum tlm_status scan_word(struct scan *s)
{
    static const char *const known[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i]);
        if ((size_t)(s->end - s->at) >= n && !memcmp(s->at, known[i], n)) {
            s->at += n;
            return TLM_OK;
        }
    }
    return fail(s, s->at < s->end ? "found something that starts no value" : "the text ends inside a value");
}

/* A value without parts, or the opening bracket of one with parts. */
static enum tlm_status scan_value(struct scan *s, bool *opened)
{
    *opened = false;
    skip_space(s);
    if (++s->values > VALUES_MAX)
        return err_set(s->e, TLM_ELIMIT, "%s: more than the limit of %d values", s->where, VALUES_MAX);
    char c = s->at < s->end ? *s->at : 0;
    size_t n = word_length(s->at, s->end);
    if (n) {
        s->words++;
        s->at += n;
        return TLM_OK;
    }
    if (c == '"')
        return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9'))
        return scan_number(s);
    if (c != '{' && c != '[')
        return scan_word(s);
    if (s->depth == DEPTH_MAX)
        return err_set(s->e, TLM_ELIMIT, "%s: brackets are nested more than %d deep", s->where, DEPTH_MAX);
    s->open[s->depth++] = c;
    s->at++;
    *opened = true;
    return TLM_OK;
}

static enum tlm_status scan_key(struct scan *s)
{
    skip_space(s);
    if (s->at == s->end || *s->at != '"')
        return fail(s, "expected a key");
    enum tlm_status status = scan_string(s);
    skip_space(s);
    if (status == TLM_OK && !accept(s, ':'))
        return fail(s, "expected a colon after the key");
    return status;
}

/* Closes what ends here; *more: another element of what is open follows. */
static enum tlm_status scan_after(struct scan *s, bool opened, bool *more)
{
    *more = false;
    while (s->depth > 0) {
        char open = s->open[s->depth - 1];
        skip_space(s);
        if (accept(s, open == '{' ? '}' : ']')) {
            s->depth--;
            opened = false;
            continue;
        }
        if (!opened && !accept(s, ','))
            return fail(s, s->at < s->end ? "expected a comma or a closing bracket" : "the text ends inside a value");
        *more = true;
        return open == '{' ? scan_key(s) : TLM_OK;
    }
    return TLM_OK;
}

enum tlm_status json_scan(const char *text, size_t len, const char *where, size_t *words, struct tlm_error *e)
{
    struct scan s = {.start = text, .at = text, .end = text + len, .where = where, .e = e};
    bool more = true, opened;
    while (more) {
        enum tlm_status status = scan_value(&s, &opened);
        if (status == TLM_OK)
            status = scan_after(&s, opened, &more);
        if (status != TLM_OK)
            return status;
    }
    skip_space(&s);
    *words = s.words;
    return s.at == s.end ? TLM_OK : fail(&s, "text after the end of the value");
}

size_t json_scan_replace(const char *text, size_t len, char *out)
{
    static const char beyond[] = "9e99999";
    const char *end = text + len;
    char *to = out;
    for (const char *p = text; p < end;) {
        size_t n = *p == '"' ? 0 : word_length(p, end);
        if (n) {
            memcpy(to, beyond, sizeof beyond - 1);
            to += sizeof beyond - 1;
            p += n;
            continue;
        }
        const char *from = p++;
        if (*from == '"') { /* the whole string */
            while (*p != '"')
                p += *p == '\\' ? 2 : 1;
            p++;
        }
        memcpy(to, from, (size_t)(p - from));
        to += p - from;
    }
    return (size_t)(to - out);
}
