/* Filters over text. */
#include <ctype.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

#define FILTER(name)                                                                                                   \
    static struct jv name(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)
#define UNUSED_ARGS                                                                                                    \
    do {                                                                                                               \
        (void)a;                                                                                                       \
        (void)args;                                                                                                    \
    } while (0)

static bool flag(struct jv v)
{
    return v.type != JV_MISSING && jv_truth(v);
}

/* A str stays what it is, anything else becomes one. */
static struct jv soft(struct jinja_run *r, struct jv v)
{
    return v.type == JV_STR ? v : jv_to_str(r, v);
}

static struct jv keep_safe(struct jinja_run *r, struct jv was, struct jv now)
{
    return jinja_safe_if(r, now, was.u.s->safe);
}

static struct jv cased(struct jinja_run *r, struct jv v, int how)
{
    v = soft(r, v);
    return jv_is_error(v) ? v : keep_safe(r, v, jinja_case(r, v, how));
}

FILTER(f_upper)
{
    UNUSED_ARGS;
    return cased(r, v, TEXT_UPPER);
}

FILTER(f_lower)
{
    UNUSED_ARGS;
    return cased(r, v, TEXT_LOWER);
}

FILTER(f_capitalize)
{
    UNUSED_ARGS;
    return cased(r, v, TEXT_CAPITALIZE);
}

/* Words begin after white space and -({[<; unlike str.title. */
FILTER(f_title)
{
    UNUSED_ARGS;
    v = soft(r, v);
    if (jv_is_error(v) || !jv_step(r, v.u.s->n / 8))
        return jv_error;
    struct buf b;
    jv_buf_init(r, &b);
    const char *p = v.u.s->p;
    size_t n = v.u.s->n, start = 0, len;
    while (start < n) {
        size_t end = start;
        bool sep = false;
        for (; end < n; end += len) {
            uint32_t c = text_get(p + end, n - end, &len);
            bool is_sep = text_space(c) || (c < 128 && strchr("-({[<", (int)c) && c);
            if (end > start && is_sep != sep)
                break;
            sep = is_sep;
        }
        (void)text_get(p + start, n - start, &len);
        text_add_case(&b, p + start, len, TEXT_UPPER);
        text_add_case(&b, p + start + len, end - start - len, TEXT_LOWER);
        start = end;
    }
    return jv_from_buf(r, &b);
}

FILTER(f_trim)
{
    (void)args;
    v = soft(r, v);
    return jv_is_error(v) ? v : keep_safe(r, v, jinja_strip(r, v, a[0], true, true));
}

FILTER(f_center)
{
    (void)args;
    int64_t width = 80;
    v = soft(r, v);
    if (jv_is_error(v) || (a[0].type != JV_MISSING && !jinja_int_arg(r, a[0], &width)))
        return jv_error;
    return keep_safe(r, v, jinja_pad(r, v, width, jv_missing, 0));
}

FILTER(f_replace)
{
    (void)args;
    int64_t count = -1;
    if (a[2].type != JV_MISSING && a[2].type != JV_NONE && !jinja_int_arg(r, a[2], &count))
        return jv_error;
    bool old_safe = a[0].type == JV_STR && a[0].u.s->safe, new_safe = a[1].type == JV_STR && a[1].u.s->safe;
    if (r->autoescape) {
        struct jv text = old_safe || (new_safe && !(v.type == JV_STR && v.u.s->safe)) ? jinja_escape(r, v) : soft(r, v);
        struct jv with = soft(r, a[1]), what = soft(r, a[0]);
        if (text.type == JV_STR && text.u.s->safe)
            with = jinja_escape(r, with);
        if (jv_is_error(text) || jv_is_error(with) || jv_is_error(what))
            return jv_error;
        return keep_safe(r, text, jinja_replace(r, text, what, with, count < 0 ? -1 : count));
    }
    struct jv s = jv_to_str(r, v), old = jv_to_str(r, a[0]), new = jv_to_str(r, a[1]);
    if (jv_is_error(s) || jv_is_error(old) || jv_is_error(new))
        return jv_error;
    return jinja_replace(r, s, old, new, count < 0 ? -1 : count);
}

FILTER(f_string)
{
    UNUSED_ARGS;
    return soft(r, v);
}

FILTER(f_escape)
{
    UNUSED_ARGS;
    return jinja_escape(r, v);
}

FILTER(f_forceescape)
{
    UNUSED_ARGS;
    return jinja_escape(r, jv_to_str(r, v));
}

FILTER(f_safe)
{
    UNUSED_ARGS;
    return jinja_safe_if(r, jv_to_str(r, v), true);
}

FILTER(f_format)
{
    (void)a;
    v = soft(r, v);
    if (jv_is_error(v))
        return v;
    bool kw = args->kw && args->kw->n;
    if (kw && args->n)
        return jv_fail(r, TLM_EINVAL, "can't handle positional and keyword arguments at the same time");
    if (kw)
        return jinja_percent(r, v, (struct jv){JV_DICT, {.d = args->kw}});
    struct jv t = jv_tuple_new(r, args->n);
    for (size_t i = 0; !jv_is_error(t) && i < args->n; i++)
        t.u.l->v[i] = args->v[i];
    return jinja_percent(r, v, t);
}

FILTER(f_indent)
{
    (void)args;
    struct jv newline = jv_cstr(r, "\n"), width = a[0];
    int64_t n = 4;
    if (v.type == JV_UNDEFINED)
        return jv_undefined_error(r, v);
    if (v.type != JV_STR)
        return jinja_binary(r, '+', v, newline);
    if (width.type != JV_STR) {
        if (width.type != JV_MISSING && !jinja_int_arg(r, width, &n))
            return jv_error;
        struct jv space = jv_cstr(r, " ");
        width = jv_is_error(space) ? space : jinja_binary(r, '*', space, jv_int(n));
    }
    struct jv lines = jv_is_error(width) ? width : jinja_split_lines(r, jinja_concat2(r, v, newline), false);
    if (jv_is_error(lines))
        return lines;
    struct buf b;
    jv_buf_init(r, &b);
    if (flag(a[1]))
        buf_add(&b, width.u.s->p, width.u.s->n);
    for (size_t i = 0; i < lines.u.l->n; i++) {
        const struct jv_str *line = lines.u.l->v[i].u.s;
        if (i)
            buf_add_char(&b, '\n');
        if (i && (line->n || flag(a[2])))
            buf_add(&b, width.u.s->p, width.u.s->n);
        buf_add(&b, line->p, line->n);
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), v.u.s->safe);
}

FILTER(f_truncate)
{
    (void)args;
    int64_t length = 255, integer;
    double leeway = 5;
    if (a[0].type != JV_MISSING && !jinja_int_arg(r, a[0], &length))
        return jv_error;
    if (a[3].type == JV_FLOAT)
        leeway = a[3].u.f;
    else if (a[3].type != JV_MISSING && a[3].type != JV_NONE) {
        if (!jinja_int_arg(r, a[3], &integer))
            return jv_error;
        leeway = (double)integer;
    }
    struct jv end = a[2].type == JV_MISSING ? jv_cstr(r, "...") : a[2];
    if (!jinja_str_arg(r, "truncate", end))
        return jv_error;
    if (length < (int64_t)end.u.s->chars || !(leeway >= 0))
        return jv_fail(r, TLM_EINVAL, "expected length >= %zu and leeway >= 0", end.u.s->chars);
    int64_t n = jv_len(r, v);
    if (n == -2)
        return jv_type_error(r, "object of type '%s' has no len()", jv_type_name(v));
    if (n < 0 || (double)n <= (double)length + leeway)
        return n < 0 ? jv_error : v;
    struct jv part[3] = {jv_none, jv_int(length - (int64_t)end.u.s->chars), jv_none};
    struct jv head = jinja_slice(r, v, part);
    if (jv_is_error(head) || head.type != JV_STR)
        return jinja_binary(r, '+', head, end);
    if (!flag(a[1])) {
        size_t at = text_rfind(head.u.s->p, head.u.s->n, " ", 1);
        if (at != SIZE_MAX)
            head = jv_str_borrow(r, head.u.s->p, at);
    }
    return jv_is_error(head) ? head : jinja_concat2(r, head, end);
}

FILTER(f_wordcount)
{
    UNUSED_ARGS;
    v = soft(r, v);
    if (jv_is_error(v) || !jv_step(r, v.u.s->n / 8))
        return jv_error;
    int64_t words = 0;
    bool inside = false;
    size_t len;
    for (size_t i = 0; i < v.u.s->n; i += len) {
        bool word = text_word(text_get(v.u.s->p + i, v.u.s->n - i, &len));
        words += word && !inside;
        inside = word;
    }
    return jv_int(words);
}

static void quote(struct buf *b, const struct jv_str *s, bool query)
{
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        if (c < 128 && (isalnum(c) || (c && strchr("_.-~", c)) || (c == '/' && !query)))
            buf_add_char(b, (char)c);
        else if (c == ' ' && query)
            buf_add_char(b, '+');
        else
            buf_printf(b, "%%%02X", c);
    }
}

FILTER(f_urlencode)
{
    UNUSED_ARGS;
    struct buf b;
    if (v.type == JV_STR || !jv_iterable(v)) {
        struct jv s = jv_to_str(r, v);
        if (jv_is_error(s))
            return s;
        jv_buf_init(r, &b);
        quote(&b, s.u.s, false);
        return jv_from_buf(r, &b);
    }
    struct jv item, source = v;
    if (v.type == JV_DICT) {
        struct jinja_args none = {0};
        source = jinja_call(r, jinja_getattr(r, v, jv_cstr(r, "items")), &none);
    }
    struct jv_iter *it = jv_iterate(r, source);
    int got = it ? 0 : -1;
    jv_buf_init(r, &b);
    for (size_t i = 0; it && (got = jv_next(r, it, &item)) > 0; i++) {
        struct jv pair = jv_to_list(r, item);
        if (!jv_is_error(pair) && pair.u.l->n != 2)
            pair = jv_fail(r, TLM_EINVAL, "expected pairs to unpack, got %zu values", pair.u.l->n);
        struct jv key = jv_is_error(pair) ? pair : jv_to_str(r, pair.u.l->v[0]);
        struct jv value = jv_is_error(key) ? key : jv_to_str(r, pair.u.l->v[1]);
        if (jv_is_error(value))
            break;
        if (i)
            buf_add_char(&b, '&');
        quote(&b, key.u.s, true);
        buf_add_char(&b, '=');
        quote(&b, value.u.s, true);
    }
    return jv_from_buf(r, &b);
}

FILTER(f_xmlattr)
{
    (void)args;
    if (v.type != JV_DICT)
        return v.type == JV_UNDEFINED ? jv_undefined_error(r, v)
                                      : jv_type_error(r, "'%s' object has no attribute 'items'", jv_type_name(v));
    struct buf b;
    jv_buf_init(r, &b);
    bool space = a[0].type == JV_MISSING || jv_truth(a[0]), any = false;
    for (size_t i = 0; i < v.u.d->n && r->status == TLM_OK; i++) {
        struct jv key = v.u.d->e[i].key, value = v.u.d->e[i].value;
        if (value.type == JV_NONE || value.type == JV_UNDEFINED)
            continue;
        if (!jinja_str_arg(r, "xmlattr", key))
            break;
        for (size_t k = 0; k < key.u.s->n; k++)
            if (strchr(" \t\n\r\f\v/>=", key.u.s->p[k]) && key.u.s->p[k])
                jv_fail(r, TLM_EINVAL, "Invalid character in attribute name");
        key = jinja_escape(r, key);
        value = jinja_escape(r, value);
        if (jv_is_error(key) || jv_is_error(value))
            break;
        if (any || space)
            buf_add_char(&b, ' ');
        any = true;
        buf_add(&b, key.u.s->p, key.u.s->n);
        buf_add_str(&b, "=\"");
        buf_add(&b, value.u.s->p, value.u.s->n);
        buf_add_char(&b, '"');
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), r->autoescape);
}

const struct jinja_filter_def jinja_text_filters[] = {
    {"capitalize", "", f_capitalize},
    {"center", "width?", f_center},
    {"e", "", f_escape},
    {"escape", "", f_escape},
    {"forceescape", "", f_forceescape},
    {"format", NULL, f_format},
    {"indent", "width?,first?,blank?", f_indent},
    {"lower", "", f_lower},
    {"replace", "old,new,count?", f_replace},
    {"safe", "", f_safe},
    {"string", "", f_string},
    {"title", "", f_title},
    {"trim", "chars?", f_trim},
    {"truncate", "length?,killwords?,end?,leeway?", f_truncate},
    {"upper", "", f_upper},
    {"urlencode", "", f_urlencode},
    {"wordcount", "", f_wordcount},
    {"xmlattr", "autospace?", f_xmlattr},
    {NULL, NULL, NULL},
};
