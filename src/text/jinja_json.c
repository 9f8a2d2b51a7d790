/* JSON into values and back, as Python's json module: integers of any size,
 * 1 and 1.0 stay different, NaN and Infinity are read and written, the last of
 * equal keys wins in the first one's place. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

struct reader {
    struct jinja_run *r;
    const char *s;
    size_t n, at;
};

static struct jv read_value(struct reader *x);

static struct jv bad(struct reader *x, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < x->at && i < x->n; i++)
        line += x->s[i] == '\n';
    return jv_fail(x->r, TLM_EINVAL, "JSON line %d: %s", line, what);
}

static void skip(struct reader *x)
{
    while (x->at < x->n && memchr(" \t\r\n", x->s[x->at], 4))
        x->at++;
}

static bool literal(struct reader *x, const char *word)
{
    size_t n = strlen(word);
    if (x->n - x->at < n || memcmp(x->s + x->at, word, n))
        return false;
    x->at += n;
    return true;
}

static bool read_hex4(struct reader *x, uint32_t *out)
{
    uint32_t v = 0;
    if (x->n - x->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int c = (unsigned char)x->s[x->at++];
        if (!isxdigit(c))
            return false;
        v = v << 4 | (uint32_t)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    }
    *out = v;
    return true;
}

static bool read_escape(struct reader *x, struct buf *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = x->at < x->n ? x->s[x->at++] : 0, u[4];
    const char *p = c ? strchr(from, c) : NULL;
    if (p)
        return buf_add_char(b, to[p - from]) == TLM_OK;
    uint32_t v, low;
    if (c != 'u' || !read_hex4(x, &v))
        return false;
    if (v >= 0xd800 && v < 0xdc00) {
        if (!literal(x, "\\u") || !read_hex4(x, &low) || low < 0xdc00 || low >= 0xe000)
            return false;
        v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    } else if (v >= 0xdc00 && v < 0xe000) {
        return false;
    }
    return buf_add(b, u, text_put(v, u)) == TLM_OK;
}

static struct jv read_string(struct reader *x)
{
    struct buf b;
    jv_buf_init(x->r, &b);
    x->at++;
    for (;;) {
        size_t start = x->at;
        while (x->at < x->n && x->s[x->at] != '"' && x->s[x->at] != '\\' && (unsigned char)x->s[x->at] >= 32)
            x->at++;
        buf_add(&b, x->s + start, x->at - start);
        if (x->at >= x->n || (unsigned char)x->s[x->at] < 32) {
            buf_deinit(&b);
            return bad(x, "an unterminated string or a control character in one");
        }
        if (x->s[x->at++] == '"')
            return jv_from_buf(x->r, &b);
        if (!read_escape(x, &b)) {
            if (b.status != TLM_OK)
                return jv_from_buf(x->r, &b);
            buf_deinit(&b);
            return bad(x, "an invalid escape or a lone surrogate in a string");
        }
    }
}

static struct jv read_number(struct reader *x)
{
    size_t start = x->at, digits;
    bool is_float = false;
    if (literal(x, "-Infinity"))
        return jv_float(-INFINITY);
    x->at += x->s[x->at] == '-';
    digits = x->at;
    while (x->at < x->n && isdigit((unsigned char)x->s[x->at]))
        x->at++;
    if (x->at == digits || (x->s[digits] == '0' && x->at > digits + 1))
        return bad(x, "an invalid value");
    if (x->at + 1 < x->n && x->s[x->at] == '.' && isdigit((unsigned char)x->s[x->at + 1])) {
        is_float = true;
        for (x->at++; x->at < x->n && isdigit((unsigned char)x->s[x->at]);)
            x->at++;
    }
    if (x->at < x->n && (x->s[x->at] == 'e' || x->s[x->at] == 'E')) {
        size_t e = x->at + 1;
        e += e < x->n && (x->s[e] == '+' || x->s[e] == '-');
        if (e < x->n && isdigit((unsigned char)x->s[e])) {
            is_float = true;
            for (x->at = e; x->at < x->n && isdigit((unsigned char)x->s[x->at]);)
                x->at++;
        }
    }
    double f;
    int64_t i;
    if (is_float)
        return text_to_double(x->s + start, x->at - start, &f) ? jv_float(f) : bad(x, "a number is too long");
    if (x->at - start > 4300)
        return bad(x, "a number is too long");
    return text_to_int(x->s + start, x->at - start, 10, &i) == 1
               ? jv_int(i)
               : jinja_big_read(x->r, x->s + start, x->at - start, 10);
}

static struct jv read_array(struct reader *x)
{
    struct jv list = jv_list_new(x->r, 0);
    x->at++;
    skip(x);
    if (literal(x, "]"))
        return list;
    while (!jv_is_error(list)) {
        if (!jv_list_add(x->r, list, read_value(x)))
            return jv_error;
        if (literal(x, "]"))
            return list;
        if (!literal(x, ","))
            return bad(x, "expected ',' or ']'");
    }
    return list;
}

static struct jv read_object(struct reader *x)
{
    struct jv d = jv_dict_new(x->r);
    x->at++;
    skip(x);
    if (literal(x, "}"))
        return d;
    while (!jv_is_error(d)) {
        skip(x);
        if (x->at >= x->n || x->s[x->at] != '"')
            return bad(x, "expected a key in quotes");
        struct jv key = read_string(x);
        skip(x);
        if (!jv_is_error(key) && !literal(x, ":"))
            return bad(x, "expected ':'");
        if (jv_is_error(key) || !jv_dict_set(x->r, d.u.d, key, read_value(x)))
            return jv_error;
        if (literal(x, "}"))
            return d;
        if (!literal(x, ","))
            return bad(x, "expected ',' or '}'");
    }
    return d;
}

static struct jv read_plain(struct reader *x)
{
    skip(x);
    if (x->at >= x->n)
        return bad(x, "a value is missing");
    char c = x->s[x->at];
    if (c == '"')
        return read_string(x);
    if (c == '[')
        return read_array(x);
    if (c == '{')
        return read_object(x);
    if (c == '-' || isdigit((unsigned char)c))
        return read_number(x);
    if (literal(x, "true"))
        return jv_true;
    if (literal(x, "false"))
        return jv_false;
    if (literal(x, "null"))
        return jv_none;
    if (literal(x, "NaN"))
        return jv_float(NAN);
    return literal(x, "Infinity") ? jv_float(INFINITY) : bad(x, "an invalid value");
}

static struct jv read_value(struct reader *x)
{
    if (!jv_step(x->r, 1) || !jv_enter(x->r))
        return jv_error;
    struct jv v = read_plain(x);
    jv_leave(x->r);
    skip(x);
    return v;
}

struct jv jinja_json_read(struct jinja_run *r, const char *text, size_t len)
{
    struct reader x = {r, text, len, 0};
    if (!text_valid(text, len))
        return bad(&x, "not valid UTF-8");
    struct jv v = read_value(&x);
    if (!jv_is_error(v) && x.at < len)
        return bad(&x, "text after the end of the value");
    return v;
}

static void write_string(struct buf *b, const struct jv_str *s, bool ascii)
{
    buf_add_char(b, '"');
    size_t len;
    for (size_t i = 0; i < s->n && b->status == TLM_OK; i += len) {
        uint32_t c = text_get(s->p + i, s->n - i, &len);
        static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
        const char *p = c && c < 128 ? strchr(from, (int)c) : NULL;
        if (p) {
            buf_add_char(b, '\\');
            buf_add_char(b, to[p - from]);
        } else if (c < 32 || (ascii && c >= 127 && c < 0x10000 && c != 127)) {
            buf_printf(b, "\\u%04x", c);
        } else if (ascii && c >= 0x10000) {
            buf_printf(b, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
        } else {
            buf_add(b, s->p + i, len);
        }
    }
    buf_add_char(b, '"');
}

static bool write_value(struct jinja_run *r, struct buf *b, struct jv v, const struct jinja_dump *how, int level);

static void new_line(struct buf *b, const struct jinja_dump *how, int level)
{
    if (!how->indent)
        return;
    buf_add_char(b, '\n');
    for (int i = 0; i < level; i++)
        buf_add(b, how->indent, how->indent_n);
}

static void write_float(struct buf *b, double f)
{
    char t[64];
    if (isnan(f))
        buf_add_str(b, "NaN");
    else if (isinf(f))
        buf_add_str(b, f < 0 ? "-Infinity" : "Infinity");
    else {
        jv_float_repr(f, t);
        buf_add_str(b, t);
    }
}

static bool write_key(struct jinja_run *r, struct buf *b, struct jv key, const struct jinja_dump *how)
{
    if (key.type == JV_STR) {
        write_string(b, key.u.s, how->ascii);
        return true;
    }
    if (key.type != JV_NONE && !jv_is_number(key)) {
        jv_type_error(r, "keys must be str, int, float, bool or None, not %s", jv_type_name(key));
        return false;
    }
    buf_add_char(b, '"');
    bool ok = write_value(r, b, key, how, 0);
    buf_add_char(b, '"');
    return ok;
}

static bool write_object(struct jinja_run *r, struct buf *b, const struct jv_dict *d, const struct jinja_dump *how,
                         int level)
{
    size_t n = d->n;
    struct jv *keys = jv_alloc_array(r, n, sizeof *keys), *order = jv_alloc_array(r, n, sizeof *order);
    if (!n)
        return buf_add_str(b, "{}") == TLM_OK;
    if (!keys || !order)
        return false;
    for (size_t i = 0; i < n; i++) {
        keys[i] = d->e[i].key;
        order[i] = jv_int((int64_t)i);
    }
    if (how->sort_keys && !jinja_sort(r, order, keys, n, false))
        return false;
    buf_add_char(b, '{');
    for (size_t i = 0; i < n; i++) {
        const struct jv_entry *e = &d->e[order[i].u.i];
        if (i)
            buf_add_str(b, how->item_sep);
        new_line(b, how, level + 1);
        if (!write_key(r, b, e->key, how))
            return false;
        buf_add_str(b, how->key_sep);
        if (!write_value(r, b, e->value, how, level + 1))
            return false;
    }
    new_line(b, how, level);
    buf_add_char(b, '}');
    return true;
}

static bool write_array(struct jinja_run *r, struct buf *b, const struct jv_list *l, const struct jinja_dump *how,
                        int level)
{
    if (!l->n)
        return buf_add_str(b, "[]") == TLM_OK;
    buf_add_char(b, '[');
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            buf_add_str(b, how->item_sep);
        new_line(b, how, level + 1);
        if (!write_value(r, b, l->v[i], how, level + 1))
            return false;
    }
    new_line(b, how, level);
    buf_add_char(b, ']');
    return true;
}

static bool write_value(struct jinja_run *r, struct buf *b, struct jv v, const struct jinja_dump *how, int level)
{
    if (!jv_step(r, 1) || !jv_enter(r) || !jv_buf_ok(r, b))
        return false;
    bool ok = true;
    switch (v.type) {
    case JV_NONE:
        buf_add_str(b, "null");
        break;
    case JV_BOOL:
        buf_add_str(b, v.u.i ? "true" : "false");
        break;
    case JV_INT:
    case JV_BIG:
        ok = jv_add_repr(r, b, v);
        break;
    case JV_FLOAT:
        write_float(b, v.u.f);
        break;
    case JV_STR:
        write_string(b, v.u.s, how->ascii);
        break;
    case JV_LIST:
    case JV_TUPLE:
        ok = write_array(r, b, v.u.l, how, level);
        break;
    case JV_DICT:
        ok = write_object(r, b, v.u.d, how, level);
        break;
    default:
        jv_type_error(r, "Object of type %s is not JSON serializable", jv_type_name(v));
        ok = false;
    }
    jv_leave(r);
    return ok;
}

bool jinja_json_write(struct jinja_run *r, struct buf *b, struct jv v, const struct jinja_dump *how)
{
    return write_value(r, b, v, how, 0) && jv_buf_ok(r, b);
}
