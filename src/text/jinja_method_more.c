/* Methods of str that templates hardly use, and those of numbers. */
#include <math.h>
#include <string.h>

#include <utf8proc.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

struct jv jinja_casefold(struct jinja_run *r, struct jv s)
{
    struct buf b;
    size_t len;
    jv_buf_init(r, &b);
    for (size_t i = 0; i < s.u.s->n && jv_step(r, 1); i += len) {
        utf8proc_int32_t to[8];
        int last = 0;
        uint32_t c = text_get(s.u.s->p + i, s.u.s->n - i, &len);
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, to, 8, UTF8PROC_CASEFOLD, &last);
        for (utf8proc_ssize_t k = 0; k < n && k < 8; k++) {
            char u[4];
            buf_add(&b, u, text_put((uint32_t)to[k], u));
        }
    }
    return jv_from_buf(r, &b);
}

struct jv jinja_expand_tabs(struct jinja_run *r, struct jv s, int64_t size)
{
    struct buf b;
    int64_t column = 0;
    jv_buf_init(r, &b);
    for (size_t i = 0; i < s.u.s->n && b.status == TLM_OK; i++) {
        char c = s.u.s->p[i];
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            if (!jv_step(r, (uint64_t)n))
                break;
            for (int64_t k = 0; k < n && b.status == TLM_OK; k++)
                buf_add_char(&b, ' ');
            column += n;
            continue;
        }
        buf_add_char(&b, c);
        column = c == '\n' || c == '\r' ? 0 : column + (((unsigned char)c & 0xc0) != 0x80);
    }
    return jv_from_buf(r, &b);
}

bool jinja_is_identifier(const struct jv_str *s)
{
    size_t len;
    for (size_t i = 0; i < s->n; i += len) {
        uint32_t c = text_get(s->p + i, s->n - i, &len);
        if (i ? !text_name_part(c) : !text_name_start(c))
            return false;
    }
    return s->n > 0;
}

/* table[c]: 1 found, 0 not, -1 error. */
static int look_up(struct jinja_run *r, struct jv table, uint32_t c, struct jv *out)
{
    if (table.type == JV_DICT)
        return jv_dict_get(r, table.u.d, jv_int(c), out);
    if (table.type == JV_UNDEFINED) {
        jv_undefined_error(r, table);
        return -1;
    }
    if (!jv_is_seq(table) && table.type != JV_STR && table.type != JV_RANGE) {
        jv_type_error(r, "'%s' object is not subscriptable", jv_type_name(table));
        return -1;
    }
    *out = jinja_getitem(r, table, jv_int(c));
    return jv_is_error(*out) ? -1 : out->type != JV_UNDEFINED;
}

struct jv jinja_translate(struct jinja_run *r, struct jv s, struct jv table)
{
    struct buf b;
    size_t len;
    char u[4];
    jv_buf_init(r, &b);
    for (size_t i = 0; i < s.u.s->n && jv_step(r, 1); i += len) {
        struct jv to = jv_none;
        int found = look_up(r, table, text_get(s.u.s->p + i, s.u.s->n - i, &len), &to);
        if (found < 0)
            break;
        if (!found)
            buf_add(&b, s.u.s->p + i, len);
        else if (to.type == JV_STR)
            buf_add(&b, to.u.s->p, to.u.s->n);
        else if (jv_is_int(to) && to.u.i >= 0 && to.u.i < 0x110000 && !(to.u.i >= 0xd800 && to.u.i < 0xe000))
            buf_add(&b, u, text_put((uint32_t)to.u.i, u));
        else if (to.type != JV_NONE)
            jv_type_error(r, "character mapping must return integer, None or str");
    }
    return jv_from_buf(r, &b);
}

static struct jv table_key(struct jinja_run *r, struct jv key)
{
    size_t len;
    if (jv_is_int(key))
        return key;
    if (key.type != JV_STR)
        return jv_type_error(r, "keys in translate table must be strings or integers");
    if (key.u.s->chars != 1)
        return jv_fail(r, TLM_EINVAL, "string keys in translate table must be of length 1");
    return jv_int(text_get(key.u.s->p, key.u.s->n, &len));
}

struct jv jinja_make_trans(struct jinja_run *r, const struct jv *a)
{
    struct jv d = jv_dict_new(r);
    size_t len, len2, k = 0;
    if (jv_is_error(d))
        return d;
    if (a[1].type == JV_MISSING) {
        if (a[0].type != JV_DICT)
            return jv_type_error(r, "if you give only one argument to maketrans it must be a dict");
        for (size_t i = 0; i < a[0].u.d->n; i++)
            if (!jv_dict_set(r, d.u.d, table_key(r, a[0].u.d->e[i].key), a[0].u.d->e[i].value))
                return jv_error;
        return d;
    }
    for (int i = 0; i < 3; i++)
        if (a[i].type != JV_MISSING && !jinja_str_arg(r, "maketrans", a[i]))
            return jv_error;
    const struct jv_str *from = a[0].u.s, *to = a[1].u.s, *gone = a[2].type == JV_STR ? a[2].u.s : NULL;
    if (from->chars != to->chars)
        return jv_fail(r, TLM_EINVAL, "the first two maketrans arguments must have equal length");
    for (size_t i = 0; i < from->n; i += len, k += len2) {
        struct jv key = jv_int(text_get(from->p + i, from->n - i, &len));
        if (!jv_dict_set(r, d.u.d, key, jv_int(text_get(to->p + k, to->n - k, &len2))))
            return jv_error;
    }
    for (size_t i = 0; gone && i < gone->n; i += len)
        if (!jv_dict_set(r, d.u.d, jv_int(text_get(gone->p + i, gone->n - i, &len)), jv_none))
            return jv_error;
    return d;
}

/* bit_length and bit_count of an integer of any size. */
struct jv jinja_bits(struct jinja_run *r, struct jv v, bool count)
{
    struct buf b;
    int64_t n = 0;
    jv_buf_init(r, &b);
    if (!jinja_big_digits(r, v, 2, &b)) {
        buf_deinit(&b);
        return jv_error;
    }
    for (size_t i = 0; i < b.len; i++)
        n += !count || b.data[i] == '1';
    buf_deinit(&b);
    return jv_int(n);
}
