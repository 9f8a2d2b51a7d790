/* See json_stream.h. */
#include "text/json_stream.h"

#include <math.h>
#include <string.h>

#include "text/utf8.h"

void json_stream_init(struct json_stream *j, const char *text, size_t n, const char *where, struct tlm_error *e)
{
    *j = (struct json_stream){.start = text, .p = text, .end = text + n, .where = where, .e = e};
    buf_init(&j->text, n);
}

void json_stream_deinit(struct json_stream *j)
{
    buf_deinit(&j->text);
}

enum tlm_status json_fail(struct json_stream *j, const char *what)
{
    if (j->status != TLM_OK)
        return j->status;
    long line = 1;
    for (const char *p = j->start; p < j->p; p++)
        line += *p == '\n';
    j->status = TLM_EFORMAT;
    return err_set(j->e, TLM_EFORMAT, "%s: line %ld, byte %zu: %s", j->where, line, (size_t)(j->p - j->start), what);
}

static void skip_space(struct json_stream *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r'))
        j->p++;
}

char json_peek(struct json_stream *j)
{
    if (j->status != TLM_OK)
        return 0;
    skip_space(j);
    if (j->p == j->end) {
        json_fail(j, "the text ends inside a value");
        return 0;
    }
    char c = *j->p;
    switch (c) {
    case '"':
    case '[':
    case '{':
    case 't':
    case 'f':
    case 'n':
        return c;
    default:
        if (c == '-' || (c >= '0' && c <= '9'))
            return '0';
        json_fail(j, "found something that starts no JSON value");
        return 0;
    }
}

bool json_enter(struct json_stream *j, char open)
{
    if (json_peek(j) != open) {
        json_fail(j, open == '{' ? "expected an object" : "expected an array");
        return false;
    }
    if (j->depth == JSON_STREAM_DEPTH) {
        json_fail(j, "nested too deeply");
        return false;
    }
    j->close[j->depth] = open == '{' ? '}' : ']';
    j->first[j->depth++] = true;
    j->p++;
    return true;
}

bool json_next(struct json_stream *j)
{
    if (j->status != TLM_OK || !j->depth)
        return false;
    skip_space(j);
    if (j->p == j->end) {
        json_fail(j, "the text ends inside an array or object");
        return false;
    }
    bool first = j->first[j->depth - 1];
    j->first[j->depth - 1] = false;
    if (*j->p == j->close[j->depth - 1]) {
        j->p++;
        j->depth--;
        return false;
    }
    if (first)
        return true;
    if (*j->p != ',') {
        json_fail(j, "expected a comma or the end of the array or object");
        return false;
    }
    j->p++;
    skip_space(j);
    return true;
}

bool json_next_key(struct json_stream *j, struct json_text *key)
{
    if (!json_next(j) || !json_text_get(j, key))
        return false;
    skip_space(j);
    if (j->p == j->end || *j->p != ':') {
        json_fail(j, "expected a colon after the key");
        return false;
    }
    j->p++;
    return true;
}

/* Four hexadecimal digits at p, or -1. */
static long hex4(const char *p, const char *end)
{
    long v = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* The escape at j->p (after the backslash) into out; its length, or 0. */
static int unescape(struct json_stream *j, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (j->p == j->end)
        return 0;
    char c = *j->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        out[0] = to[at - from];
        return 1;
    }
    if (c != 'u')
        return 0;
    long u = hex4(j->p, j->end);
    if (u < 0)
        return 0;
    j->p += 4;
    if (u >= 0xd800 && u < 0xdc00) {
        if (j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u')
            return 0;
        long low = hex4(j->p + 2, j->end);
        if (low < 0xdc00 || low > 0xdfff)
            return 0;
        j->p += 6;
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    } else if (u >= 0xdc00 && u < 0xe000) {
        return 0;
    }
    return utf8_put(out, (uint32_t)u);
}

/* End of the stretch without quote, backslash or control character; *high
 * gathers whether any byte is not ASCII. */
static const char *plain_end(const char *p, const char *end, bool *high)
{
    uint8_t seen = 0;
    while (p < end && *p != '"' && *p != '\\' && (uint8_t)*p >= 0x20)
        seen |= (uint8_t)*p++;
    *high = *high || seen >= 0x80;
    return p;
}

bool json_text_get(struct json_stream *j, struct json_text *out)
{
    if (json_peek(j) != '"') {
        json_fail(j, "expected a string");
        return false;
    }
    bool high = false, escaped = false;
    const char *s = ++j->p;
    size_t n;
    for (;;) {
        const char *stop = plain_end(j->p, j->end, &high);
        char bytes[4];
        if (stop == j->end || (uint8_t)*stop < 0x20) {
            j->p = stop;
            json_fail(j, stop == j->end ? "the text ends inside a string" : "a control character inside a string");
            return false;
        }
        if (*stop == '"' && !escaped) {
            n = (size_t)(stop - s);
            j->p = stop + 1;
            break;
        }
        if (!escaped)
            buf_clear(&j->text);
        escaped = true;
        buf_add(&j->text, j->p, (size_t)(stop - j->p));
        j->p = stop + 1;
        if (*stop == '\\') {
            int len = unescape(j, bytes);
            if (!len) {
                json_fail(j, "an invalid escape in a string");
                return false;
            }
            buf_add(&j->text, bytes, (size_t)len);
        }
        if (j->text.status != TLM_OK) {
            j->status = buf_check(&j->text, j->e, j->where);
            return false;
        }
        if (*stop == '"') {
            s = buf_str(&j->text);
            n = j->text.len;
            break;
        }
    }
    if (high && !utf8_valid(s, n)) {
        json_fail(j, "a string that is not valid UTF-8");
        return false;
    }
    *out = (struct json_text){s, n};
    return true;
}

static bool skip_text(struct json_stream *j)
{
    bool high = false;
    for (j->p++;; j->p += 2) {
        j->p = plain_end(j->p, j->end, &high);
        if (j->p < j->end && *j->p == '"') {
            j->p++;
            return true;
        }
        if (j->end - j->p < 2 || *j->p != '\\') {
            json_fail(j, "a string without an end or with a control character");
            return false;
        }
    }
}

static bool word(struct json_stream *j, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(j->end - j->p) >= n && !memcmp(j->p, w, n)) {
        j->p += n;
        return true;
    }
    json_fail(j, "an unknown word");
    return false;
}

bool json_bool_get(struct json_stream *j, bool *out)
{
    char c = json_peek(j);
    if (c != 't' && c != 'f') {
        json_fail(j, "expected true or false");
        return false;
    }
    *out = c == 't';
    return word(j, c == 't' ? "true" : "false");
}

bool json_int_get(struct json_stream *j, int64_t *out)
{
    if (json_peek(j) != '0') {
        json_fail(j, "expected an integer");
        return false;
    }
    bool negative = *j->p == '-';
    const char *digits = j->p += negative;
    int64_t v = 0;
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9' && j->p - digits < 18)
        v = v * 10 + (*j->p++ - '0');
    if (j->p == digits || (j->p < j->end && ((*j->p >= '0' && *j->p <= '9') || strchr(".eE", *j->p)))) {
        json_fail(j, "expected an integer of at most 18 digits");
        return false;
    }
    *out = negative ? -v : v;
    return true;
}

/* As the Rust library that HF tokenizers reads with: the digits as an integer
 * times a power of ten, rounded twice. Scores compare equal or not as there. */
bool json_double_get(struct json_stream *j, double *out)
{
    uint64_t digits = 0;
    int64_t scale = 0, exponent = 0;
    bool negative, negative_exponent, point = false;
    if (json_peek(j) != '0') {
        json_fail(j, "expected a number");
        return false;
    }
    negative = *j->p == '-';
    const char *first = j->p += negative;
    for (; j->p < j->end && ((*j->p >= '0' && *j->p <= '9') || (*j->p == '.' && !point && j->p > first)); j->p++) {
        if (*j->p == '.') {
            point = true;
        } else if (digits > (UINT64_MAX - 9) / 10) { /* further digits no longer count */
            scale += !point;
        } else {
            digits = digits * 10 + (uint64_t)(*j->p - '0');
            scale -= point;
        }
    }
    if (j->p == first || j->p[-1] == '.') {
        json_fail(j, "a number without digits");
        return false;
    }
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        j->p++;
        negative_exponent = j->p < j->end && *j->p == '-';
        j->p += j->p < j->end && (*j->p == '-' || *j->p == '+');
        first = j->p;
        for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
            if (exponent < 100000)
                exponent = exponent * 10 + (*j->p - '0');
        if (j->p == first) {
            json_fail(j, "a number without digits");
            return false;
        }
        scale += negative_exponent ? -exponent : exponent;
    }
    double v = (double)digits;
    for (; v != 0 && scale < -308; scale += 308)
        v /= 1e308;
    v = scale < 0 ? v / pow(10, (double)-scale) : v * pow(10, (double)(scale > 400 ? 400 : scale));
    if (!isfinite(v) && digits) {
        json_fail(j, "a number out of range");
        return false;
    }
    *out = digits ? (negative ? -v : v) : 0;
    return true;
}

bool json_skip(struct json_stream *j, struct json_text *span)
{
    struct json_text key;
    double number;
    bool flag;
    int base = j->depth;
    char c = json_peek(j);
    const char *from = j->p;
    do { /* depth first; an object's or array's next value until all are closed */
        switch (c) {
        case '{':
        case '[':
            json_enter(j, c);
            break;
        case '"':
            skip_text(j);
            break;
        case '0':
            json_double_get(j, &number);
            break;
        case 'n':
            word(j, "null");
            break;
        case 't':
        case 'f':
            json_bool_get(j, &flag);
            break;
        default:
            return false;
        }
        while (j->status == TLM_OK && j->depth > base) {
            bool object = j->close[j->depth - 1] == '}';
            if (object ? json_next_key(j, &key) : json_next(j)) {
                c = json_peek(j);
                break;
            }
        }
    } while (j->status == TLM_OK && j->depth > base);
    if (span && j->status == TLM_OK)
        *span = (struct json_text){from, (size_t)(j->p - from)};
    return j->status == TLM_OK;
}

bool json_at_end(struct json_stream *j)
{
    if (j->status != TLM_OK)
        return false;
    skip_space(j);
    if (j->p < j->end)
        json_fail(j, "text after the end of the JSON value");
    return j->status == TLM_OK;
}

bool json_text_is(struct json_text t, const char *s)
{
    return strlen(s) == t.n && !memcmp(s, t.s, t.n);
}
