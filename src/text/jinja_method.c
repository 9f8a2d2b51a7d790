/* Methods and attributes of the built-in types. The lists name every
 * attribute that Python's types have, because an attribute hides a dict's key
 * of the same name; those that change a value are forbidden as in jinja2's
 * immutable sandbox. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

enum {
    BIT_DICT = 1,
    BIT_LIST = 2,
    BIT_TUPLE = 4,
    BIT_STR = 8,
    BIT_RANGE = 16,
    BIT_LOOP = 32,
    BIT_CYCLER = 64,
    BIT_INT = 128,
    BIT_FLOAT = 256
};

typedef struct jv method_fn(struct jinja_run *r, struct jv self, const struct jv *a, const struct jinja_args *args);

struct method {
    const char *name;
    int types;
    const char *spec; /* NULL: the function reads args itself */
    method_fn *fn;    /* NULL: not supported */
};

static struct jv need_str(struct jinja_run *r, struct jv v)
{
    return jinja_str_arg(r, "str method", v) ? v : jv_error;
}

struct jv jinja_case(struct jinja_run *r, struct jv s, int how)
{
    struct buf b;
    jv_buf_init(r, &b);
    text_add_case(&b, s.u.s->p, s.u.s->n, (enum text_case)how);
    return jv_step(r, s.u.s->n / 8) ? jv_from_buf(r, &b) : (buf_deinit(&b), jv_error);
}

struct jv jinja_strip(struct jinja_run *r, struct jv s, struct jv chars, bool left, bool right)
{
    size_t start = 0, end = s.u.s->n;
    if (chars.type != JV_MISSING && chars.type != JV_NONE && chars.type != JV_STR)
        return jv_type_error(r, "strip arg must be None or str");
    const struct jv_str *c = chars.type == JV_STR ? chars.u.s : NULL;
    if (!jv_step(r, s.u.s->n / 64 * (c ? c->n + 1 : 1)))
        return jv_error;
    text_strip(s.u.s->p, &start, &end, c ? c->p ? c->p : "" : NULL, c ? c->n : 0, left, right);
    return start == 0 && end == s.u.s->n ? s : jv_str_borrow(r, s.u.s->p + start, end - start);
}

static struct jv m_strip(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return jinja_strip(r, s, a[0], true, true);
}

static struct jv m_lstrip(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return jinja_strip(r, s, a[0], true, false);
}

static struct jv m_rstrip(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return jinja_strip(r, s, a[0], false, true);
}

#define CASE_METHOD(name, how)                                                                                         \
    static struct jv name(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)         \
    {                                                                                                                  \
        (void)a;                                                                                                       \
        (void)args;                                                                                                    \
        return jinja_case(r, s, how);                                                                                  \
    }
CASE_METHOD(m_lower, TEXT_LOWER)
CASE_METHOD(m_upper, TEXT_UPPER)
CASE_METHOD(m_title, TEXT_TITLE)
CASE_METHOD(m_capitalize, TEXT_CAPITALIZE)
CASE_METHOD(m_swapcase, TEXT_SWAP)

static bool add_part(struct jinja_run *r, struct jv list, const char *p, size_t n)
{
    return jv_list_add(r, list, jv_str_borrow(r, p, n));
}

static void reverse(struct jv_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jv t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

/* By white space: runs separate, none at the ends. */
static struct jv split_space(struct jinja_run *r, const char *p, size_t n, int64_t max, bool right)
{
    struct jv list = jv_list_new(r, 4);
    size_t start = 0, end = n, len;
    while (!jv_is_error(list)) {
        text_strip(p, &start, &end, NULL, 0, true, true);
        if (start == end)
            break;
        if (max >= 0 && (int64_t)list.u.l->n >= max) {
            /* The rest keeps the white space at its far end. */
            size_t from = start, to = end;
            if (right)
                from = 0;
            else
                to = n;
            if (!add_part(r, list, p + from, to - from))
                return jv_error;
            break;
        }
        size_t from = start, to = end;
        if (right) {
            from = end;
            while (from > start) {
                size_t at = from - 1;
                while (at > start && ((unsigned char)p[at] & 0xc0) == 0x80)
                    at--;
                if (text_space(text_get(p + at, end - at, &len)))
                    break;
                from = at;
            }
            end = from;
        } else {
            to = start;
            while (to < end && !text_space(text_get(p + to, end - to, &len)))
                to += len;
            start = to;
        }
        if (!add_part(r, list, p + from, to - from))
            return jv_error;
    }
    if (right && !jv_is_error(list))
        reverse(list.u.l);
    return list;
}

struct jv jinja_split(struct jinja_run *r, struct jv s, struct jv sep, int64_t max, bool right)
{
    const char *p = s.u.s->p;
    size_t n = s.u.s->n, start = 0, end = n;
    if (!jv_step(r, n / 16))
        return jv_error;
    if (sep.type == JV_MISSING || sep.type == JV_NONE)
        return split_space(r, p, n, max, right);
    if (sep.type != JV_STR)
        return jv_type_error(r, "must be str or None, not %s", jv_type_name(sep));
    const struct jv_str *k = sep.u.s;
    if (!k->n)
        return jv_fail(r, TLM_EINVAL, "empty separator");
    struct jv list = jv_list_new(r, 4);
    while (!jv_is_error(list) && (max < 0 || (int64_t)list.u.l->n < max)) {
        size_t at =
            right ? text_rfind(p + start, end - start, k->p, k->n) : text_find(p + start, end - start, k->p, k->n);
        if (at == SIZE_MAX)
            break;
        at += start;
        bool ok = right ? add_part(r, list, p + at + k->n, end - at - k->n) : add_part(r, list, p + start, at - start);
        if (!ok || !jv_step(r, right ? (end - at) / 64 : 1))
            return jv_error;
        if (right)
            end = at;
        else
            start = at + k->n;
    }
    if (!add_part(r, list, p + start, end - start))
        return jv_error;
    if (right)
        reverse(list.u.l);
    return list;
}

static struct jv split_args(struct jinja_run *r, struct jv s, const struct jv *a, bool right)
{
    int64_t max = -1;
    if (a[1].type != JV_MISSING && !jinja_int_arg(r, a[1], &max))
        return jv_error;
    return jinja_split(r, s, a[0], max, right);
}

static struct jv m_split(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return split_args(r, s, a, false);
}

static struct jv m_rsplit(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return split_args(r, s, a, true);
}

struct jv jinja_split_lines(struct jinja_run *r, struct jv s, bool keep)
{
    struct jv list = jv_list_new(r, 4);
    const char *p = s.u.s->p;
    size_t n = s.u.s->n, start = 0, i = 0, len;
    if (!jv_step(r, n / 16))
        return jv_error;
    while (i < n) {
        size_t end = text_line_end(p + i, n - i);
        if (!end) {
            (void)text_get(p + i, n - i, &len);
            i += len;
            continue;
        }
        if (!add_part(r, list, p + start, i - start + (keep ? end : 0)))
            return jv_error;
        start = i += end;
    }
    if (start < n && !add_part(r, list, p + start, n - start))
        return jv_error;
    return list;
}

static struct jv m_splitlines(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return jinja_split_lines(r, s, a[0].type != JV_MISSING && jv_truth(a[0]));
}

static struct jv m_join(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    struct jv_iter *it = jv_iterate(r, a[0]);
    struct jv item;
    struct buf b;
    int got = it ? 0 : -1;
    jv_buf_init(r, &b);
    for (size_t i = 0; it && (got = jv_next(r, it, &item)) > 0; i++) {
        if (item.type != JV_STR) {
            jv_type_error(r, "sequence item %zu: expected str instance, %s found", i, jv_type_name(item));
            break;
        }
        if (i)
            buf_add(&b, s.u.s->p, s.u.s->n);
        buf_add(&b, item.u.s->p, item.u.s->n);
    }
    return jv_from_buf(r, &b);
}

/* s[start:end] as byte offsets; false when start lies behind the end. */
static bool window(struct jinja_run *r, const struct jv_str *s, const struct jv *a, size_t *from, size_t *to)
{
    int64_t n = (int64_t)s->chars, v[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (a[i].type == JV_MISSING || a[i].type == JV_NONE)
            continue;
        if (a[i].type == JV_BIG)
            v[i] = a[i].u.s->p[0] == '-' ? INT64_MIN : INT64_MAX;
        else if (!jinja_int_arg(r, a[i], &v[i]))
            return false;
        if (v[i] < 0)
            v[i] = v[i] < -n ? 0 : v[i] + n;
    }
    if (v[1] > n)
        v[1] = n;
    if (v[0] > v[1])
        return false;
    *from = text_offset(s->p, s->n, (size_t)v[0]);
    *to = text_offset(s->p, s->n, (size_t)v[1]);
    return true;
}

static struct jv affix(struct jinja_run *r, struct jv s, const struct jv *a, bool start)
{
    size_t from, to;
    bool tuple = a[0].type == JV_TUPLE;
    if (a[0].type != JV_STR && !tuple)
        return jv_type_error(r, "%s first arg must be str or a tuple of str, not %s", start ? "startswith" : "endswith",
                             jv_type_name(a[0]));
    bool inside = window(r, s.u.s, a + 1, &from, &to);
    for (size_t i = 0; i < (tuple ? a[0].u.l->n : 1); i++) {
        struct jv k = tuple ? a[0].u.l->v[i] : a[0];
        if (k.type != JV_STR)
            return jv_type_error(r, "tuple for %s must only contain str, not %s", start ? "startswith" : "endswith",
                                 jv_type_name(k));
        size_t n = k.u.s->n;
        if (inside && n <= to - from && !memcmp(s.u.s->p + (start ? from : to - n), k.u.s->p, n))
            return jv_true;
    }
    return r->status == TLM_OK ? jv_false : jv_error;
}

static struct jv m_startswith(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return affix(r, s, a, true);
}

static struct jv m_endswith(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return affix(r, s, a, false);
}

static struct jv find_in(struct jinja_run *r, struct jv s, const struct jv *a, bool last, bool must)
{
    size_t from = 0, to = 0;
    if (jv_is_error(need_str(r, a[0])))
        return jv_error;
    bool inside = window(r, s.u.s, a + 1, &from, &to);
    if (r->status != TLM_OK || !jv_step(r, s.u.s->n / 64))
        return jv_error;
    size_t at = SIZE_MAX;
    if (inside)
        at = last ? text_rfind(s.u.s->p + from, to - from, a[0].u.s->p, a[0].u.s->n)
                  : text_find(s.u.s->p + from, to - from, a[0].u.s->p, a[0].u.s->n);
    if (at == SIZE_MAX)
        return must ? jv_fail(r, TLM_EINVAL, "substring not found") : jv_int(-1);
    return jv_int((int64_t)text_count(s.u.s->p, from + at));
}

static struct jv m_find(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return find_in(r, s, a, false, false);
}

static struct jv m_rfind(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return find_in(r, s, a, true, false);
}

static struct jv m_index(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    if (s.type == JV_STR)
        return find_in(r, s, a, false, true);
    int64_t n = jv_len(r, s), from = 0, to = n;
    if ((a[1].type != JV_MISSING && !jinja_int_arg(r, a[1], &from)) ||
        (a[2].type != JV_MISSING && !jinja_int_arg(r, a[2], &to)))
        return jv_error;
    from = from < 0 ? (from < -n ? 0 : from + n) : from;
    to = to < 0 ? (to < -n ? 0 : to + n) : to;
    struct jv_iter *it = jv_iterate(r, s);
    struct jv item;
    int got = it ? 0 : -1;
    for (int64_t i = 0; it && (got = jv_next(r, it, &item)) > 0; i++) {
        int same = i < from || i >= to ? 0 : jv_identical(item, a[0]) ? 1 : jv_equal(r, item, a[0]);
        if (same)
            return same < 0 ? jv_error : jv_int(i);
    }
    return got < 0 ? jv_error : jv_fail(r, TLM_EINVAL, "the value is not in %s", jv_type_name(s));
}

static struct jv m_rindex(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return find_in(r, s, a, true, true);
}

static struct jv m_count(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    int64_t n = 0;
    if (s.type == JV_STR) {
        size_t from = 0, to = 0, at;
        if (jv_is_error(need_str(r, a[0])))
            return jv_error;
        bool inside = window(r, s.u.s, a + 1, &from, &to);
        if (r->status != TLM_OK || !inside || !jv_step(r, s.u.s->n / 16))
            return r->status == TLM_OK ? jv_int(0) : jv_error;
        if (!a[0].u.s->n)
            return jv_int((int64_t)text_count(s.u.s->p + from, to - from) + 1);
        for (; (at = text_find(s.u.s->p + from, to - from, a[0].u.s->p, a[0].u.s->n)) != SIZE_MAX; n++)
            from += at + a[0].u.s->n;
        return jv_int(n);
    }
    if (a[1].type != JV_MISSING)
        return jv_type_error(r, "count() takes exactly one argument");
    struct jv_iter *it = jv_iterate(r, s);
    struct jv item;
    int got = it ? 0 : -1;
    while (it && (got = jv_next(r, it, &item)) > 0) {
        int same = jv_identical(item, a[0]) ? 1 : jv_equal(r, item, a[0]);
        if (same < 0)
            return jv_error;
        n += same;
    }
    return got < 0 ? jv_error : jv_int(n);
}

struct jv jinja_replace(struct jinja_run *r, struct jv s, struct jv old, struct jv new, int64_t count)
{
    if (!jinja_str_arg(r, "replace", old) || !jinja_str_arg(r, "replace", new) || !jv_step(r, s.u.s->n / 16))
        return jv_error;
    const char *p = s.u.s->p;
    size_t n = s.u.s->n, from = 0, at, len;
    struct buf b;
    jv_buf_init(r, &b);
    if (!old.u.s->n) { /* between all characters and at both ends */
        for (int64_t i = 0; i != count && from <= n && b.status == TLM_OK; i++) {
            buf_add(&b, new.u.s->p, new.u.s->n);
            if (from == n)
                break;
            (void)text_get(p + from, n - from, &len);
            buf_add(&b, p + from, len);
            from += len;
        }
    }
    for (int64_t i = 0; old.u.s->n && i != count && b.status == TLM_OK; i++) {
        at = text_find(p + from, n - from, old.u.s->p, old.u.s->n);
        if (at == SIZE_MAX)
            break;
        buf_add(&b, p + from, at);
        buf_add(&b, new.u.s->p, new.u.s->n);
        from += at + old.u.s->n;
    }
    buf_add(&b, p + from, n - from);
    return jv_from_buf(r, &b);
}

static struct jv m_replace(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    int64_t count = -1;
    if (a[2].type != JV_MISSING && !jinja_int_arg(r, a[2], &count))
        return jv_error;
    return jinja_replace(r, s, a[0], a[1], count < 0 ? -1 : count);
}

struct jv jinja_pad(struct jinja_run *r, struct jv s, int64_t width, struct jv fill, int side)
{
    const char *f = " ";
    size_t f_n = 1;
    if (fill.type != JV_MISSING) {
        if (!jinja_str_arg(r, "center", fill))
            return jv_error;
        if (fill.u.s->chars != 1)
            return jv_type_error(r, "The fill character must be exactly one character long");
        f = fill.u.s->p;
        f_n = fill.u.s->n;
    }
    int64_t n = (int64_t)s.u.s->chars;
    if (width <= n)
        return s;
    int64_t pad = width - n, left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
    if ((uint64_t)pad > r->max.memory / f_n || !jv_step(r, (uint64_t)pad))
        return jv_fail(r, TLM_ELIMIT, "a text is larger than the limit");
    struct buf b;
    jv_buf_init(r, &b);
    for (int64_t i = 0; i < left; i++)
        buf_add(&b, f, f_n);
    buf_add(&b, s.u.s->p, s.u.s->n);
    for (int64_t i = left; i < pad; i++)
        buf_add(&b, f, f_n);
    return jv_from_buf(r, &b);
}

static struct jv pad_args(struct jinja_run *r, struct jv s, const struct jv *a, int side)
{
    int64_t width;
    return jinja_int_arg(r, a[0], &width) ? jinja_pad(r, s, width, a[1], side) : jv_error;
}

static struct jv m_center(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return pad_args(r, s, a, 0);
}

static struct jv m_ljust(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return pad_args(r, s, a, -1);
}

static struct jv m_rjust(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return pad_args(r, s, a, 1);
}

static struct jv m_zfill(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    int64_t width;
    struct jv zero = jv_cstr(r, "0");
    if (!jinja_int_arg(r, a[0], &width) || jv_is_error(zero))
        return jv_error;
    bool sign = s.u.s->n && (s.u.s->p[0] == '-' || s.u.s->p[0] == '+');
    if (!sign)
        return jinja_pad(r, s, width, zero, 1);
    struct jv head = jv_str_borrow(r, s.u.s->p, 1), tail = jv_str_borrow(r, s.u.s->p + 1, s.u.s->n - 1);
    if (jv_is_error(head) || jv_is_error(tail))
        return jv_error;
    tail = jinja_pad(r, tail, width - 1, zero, 1);
    return jv_is_error(tail) ? tail : jinja_concat2(r, head, tail);
}

static struct jv m_removeprefix(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    if (jv_is_error(need_str(r, a[0])))
        return jv_error;
    size_t n = a[0].u.s->n;
    bool has = n <= s.u.s->n && !memcmp(s.u.s->p, a[0].u.s->p, n);
    return has ? jv_str_borrow(r, s.u.s->p + n, s.u.s->n - n) : s;
}

static struct jv m_removesuffix(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    if (jv_is_error(need_str(r, a[0])))
        return jv_error;
    size_t n = a[0].u.s->n;
    bool has = n <= s.u.s->n && !memcmp(s.u.s->p + s.u.s->n - n, a[0].u.s->p, n);
    return has ? jv_str_borrow(r, s.u.s->p, s.u.s->n - n) : s;
}

static struct jv partition(struct jinja_run *r, struct jv s, struct jv sep, bool last)
{
    if (jv_is_error(need_str(r, sep)))
        return jv_error;
    if (!sep.u.s->n)
        return jv_fail(r, TLM_EINVAL, "empty separator");
    const char *p = s.u.s->p;
    size_t n = s.u.s->n, k = sep.u.s->n;
    size_t at = last ? text_rfind(p, n, sep.u.s->p, k) : text_find(p, n, sep.u.s->p, k);
    struct jv t = jv_tuple_new(r, 3), none = jv_cstr(r, "");
    if (jv_is_error(t) || jv_is_error(none))
        return jv_error;
    bool found = at != SIZE_MAX;
    t.u.l->v[0] = found ? jv_str_borrow(r, p, at) : last ? none : s;
    t.u.l->v[1] = found ? sep : none;
    t.u.l->v[2] = found ? jv_str_borrow(r, p + at + k, n - at - k) : last ? s : none;
    return t;
}

static struct jv m_partition(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return partition(r, s, a[0], false);
}

static struct jv m_rpartition(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return partition(r, s, a[0], true);
}

static bool is_alnum(uint32_t c)
{
    return text_alpha(c) || text_numeric(c);
}

static bool is_ascii(uint32_t c)
{
    return c < 0x80;
}

static struct jv all_of(const struct jv_str *s, bool (*is)(uint32_t), bool empty)
{
    size_t len;
    for (size_t i = 0; i < s->n; i += len)
        if (!is(text_get(s->p + i, s->n - i, &len)))
            return jv_false;
    return jv_bool(s->n ? true : empty);
}

#define CLASS_METHOD(name, is, empty)                                                                                  \
    static struct jv name(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)         \
    {                                                                                                                  \
        (void)r;                                                                                                       \
        (void)a;                                                                                                       \
        (void)args;                                                                                                    \
        return all_of(s.u.s, is, empty);                                                                               \
    }
CLASS_METHOD(m_isdigit, text_digit, false)
CLASS_METHOD(m_isdecimal, text_decimal, false)
CLASS_METHOD(m_isnumeric, text_numeric, false)
CLASS_METHOD(m_isalpha, text_alpha, false)
CLASS_METHOD(m_isalnum, is_alnum, false)
CLASS_METHOD(m_isspace, text_space, false)
CLASS_METHOD(m_isprintable, text_printable, true)
CLASS_METHOD(m_isascii, is_ascii, true)

/* At least one cased character and none of the other case. */
static struct jv case_class(const struct jv_str *s, bool upper)
{
    bool any = false;
    size_t len;
    for (size_t i = 0; i < s->n; i += len) {
        uint32_t c = text_get(s->p + i, s->n - i, &len);
        if (upper ? text_lower(c) || text_title(c) : text_upper(c) || text_title(c))
            return jv_false;
        any = any || text_cased(c);
    }
    return jv_bool(any);
}

static struct jv m_isupper(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    return case_class(s.u.s, true);
}

static struct jv m_islower(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    return case_class(s.u.s, false);
}

static struct jv m_istitle(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    bool any = false, cased = false;
    size_t len;
    for (size_t i = 0; i < s.u.s->n; i += len) {
        uint32_t c = text_get(s.u.s->p + i, s.u.s->n - i, &len);
        bool head = text_upper(c) || text_title(c), small = text_lower(c);
        if ((head && cased) || (small && !cased))
            return jv_false;
        cased = head || small;
        any = any || cased;
    }
    return jv_bool(any);
}

static struct jv m_format(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    return jinja_format(r, s, args);
}

static struct jv m_format_map(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    struct jinja_args kw = {.kw = a[0].type == JV_DICT ? a[0].u.d : NULL};
    if (a[0].type != JV_DICT && memchr(s.u.s->p, '{', s.u.s->n))
        return jv_type_error(r, "format_map() argument must be a mapping, not %s", jv_type_name(a[0]));
    return jinja_format(r, s, &kw);
}

static struct jv m_casefold(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    return jinja_casefold(r, s);
}

static struct jv m_expandtabs(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    int64_t size = 8;
    if (a[0].type != JV_MISSING && !jinja_int_arg(r, a[0], &size))
        return jv_error;
    return size > INT32_MAX || size < INT32_MIN ? jv_fail(r, TLM_EINVAL, "a tab size is too large")
                                                : jinja_expand_tabs(r, s, size);
}

static struct jv m_translate(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    return jinja_translate(r, s, a[0]);
}

static struct jv m_maketrans(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)s;
    (void)args;
    return jinja_make_trans(r, a);
}

static struct jv m_isidentifier(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    return jv_bool(jinja_is_identifier(s.u.s));
}

static struct jv m_bit_length(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    return jinja_bits(r, s, false);
}

static struct jv m_bit_count(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    return jinja_bits(r, s, true);
}

static struct jv m_conjugate(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    return s.type == JV_BOOL ? jv_int(s.u.i) : s;
}

static struct jv m_is_integer(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    return jv_bool(isfinite(s.u.f) && floor(s.u.f) == s.u.f);
}

static struct jv view(struct jinja_run *r, struct jv self, enum jv_view_kind kind)
{
    struct jv_view *v = jv_alloc(r, sizeof *v);
    if (!v)
        return jv_error;
    *v = (struct jv_view){kind, self.u.d};
    return (struct jv){JV_VIEW, {.view = v}};
}

static struct jv m_items(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    return view(r, s, JV_ITEMS);
}

static struct jv m_keys(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    return view(r, s, JV_KEYS);
}

static struct jv m_values(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    return view(r, s, JV_VALUES);
}

static struct jv m_get(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    struct jv v;
    int found = jv_dict_get(r, s.u.d, a[0], &v);
    return found < 0 ? jv_error : found ? v : a[1].type == JV_MISSING ? jv_none : a[1];
}

/* Values never change, so a copy need not be one. */
static struct jv m_copy(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    return s;
}

static struct jv m_fromkeys(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)s;
    (void)args;
    struct jv d = jv_dict_new(r), item;
    struct jv_iter *it = jv_iterate(r, a[0]);
    int got = it && !jv_is_error(d) ? 0 : -1;
    while (it && (got = jv_next(r, it, &item)) > 0)
        if (!jv_dict_set(r, d.u.d, item, a[1].type == JV_MISSING ? jv_none : a[1]))
            return jv_error;
    return got < 0 ? jv_error : d;
}

static struct jv m_cycle(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    if (args->kw && args->kw->n)
        return jv_type_error(r, "cycle() takes no keyword arguments");
    if (!args->n)
        return jv_type_error(r, "no items for cycling given");
    return args->v[(size_t)s.u.loop->index0 % args->n];
}

static struct jv m_changed(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    struct jv now = jv_tuple_new(r, args->n);
    if (jv_is_error(now) || (args->kw && args->kw->n))
        return jv_type_error(r, "changed() takes no keyword arguments");
    for (size_t i = 0; i < args->n; i++)
        now.u.l->v[i] = args->v[i];
    int same = s.u.loop->changed.type == JV_TUPLE ? jv_equal(r, s.u.loop->changed, now) : 0;
    if (!same)
        s.u.loop->changed = now;
    return same < 0 ? jv_error : jv_bool(!same);
}

static struct jv m_next(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    struct jv_cycler *c = s.u.cycler;
    struct jv v = c->v[c->pos];
    c->pos = (c->pos + 1) % c->n;
    return v;
}

static struct jv m_reset(struct jinja_run *r, struct jv s, const struct jv *a, const struct jinja_args *args)
{
    (void)r;
    (void)a;
    (void)args;
    s.u.cycler->pos = 0;
    return jv_none;
}

static const struct method methods[] = {
    {"strip", BIT_STR, "/chars?", m_strip},
    {"lstrip", BIT_STR, "/chars?", m_lstrip},
    {"rstrip", BIT_STR, "/chars?", m_rstrip},
    {"lower", BIT_STR, "", m_lower},
    {"casefold", BIT_STR, "", m_casefold},
    {"upper", BIT_STR, "", m_upper},
    {"title", BIT_STR, "", m_title},
    {"capitalize", BIT_STR, "", m_capitalize},
    {"swapcase", BIT_STR, "", m_swapcase},
    {"split", BIT_STR, "sep?,maxsplit?", m_split},
    {"rsplit", BIT_STR, "sep?,maxsplit?", m_rsplit},
    {"splitlines", BIT_STR, "keepends?", m_splitlines},
    {"join", BIT_STR, "/iterable", m_join},
    {"startswith", BIT_STR, "/prefix,start?,end?", m_startswith},
    {"endswith", BIT_STR, "/suffix,start?,end?", m_endswith},
    {"find", BIT_STR, "/sub,start?,end?", m_find},
    {"rfind", BIT_STR, "/sub,start?,end?", m_rfind},
    {"index", BIT_STR | BIT_LIST | BIT_TUPLE | BIT_RANGE, "/value,start?,end?", m_index},
    {"rindex", BIT_STR, "/sub,start?,end?", m_rindex},
    {"count", BIT_STR | BIT_LIST | BIT_TUPLE | BIT_RANGE, "/value,start?,end?", m_count},
    {"replace", BIT_STR, "/old,new,count?", m_replace},
    {"center", BIT_STR, "/width,fill?", m_center},
    {"ljust", BIT_STR, "/width,fill?", m_ljust},
    {"rjust", BIT_STR, "/width,fill?", m_rjust},
    {"zfill", BIT_STR, "/width", m_zfill},
    {"removeprefix", BIT_STR, "/prefix", m_removeprefix},
    {"removesuffix", BIT_STR, "/suffix", m_removesuffix},
    {"partition", BIT_STR, "/sep", m_partition},
    {"rpartition", BIT_STR, "/sep", m_rpartition},
    {"isdigit", BIT_STR, "", m_isdigit},
    {"isdecimal", BIT_STR, "", m_isdecimal},
    {"isnumeric", BIT_STR, "", m_isnumeric},
    {"isalpha", BIT_STR, "", m_isalpha},
    {"isalnum", BIT_STR, "", m_isalnum},
    {"isspace", BIT_STR, "", m_isspace},
    {"isprintable", BIT_STR, "", m_isprintable},
    {"isascii", BIT_STR, "", m_isascii},
    {"isupper", BIT_STR, "", m_isupper},
    {"islower", BIT_STR, "", m_islower},
    {"istitle", BIT_STR, "", m_istitle},
    {"format", BIT_STR, NULL, m_format},
    {"format_map", BIT_STR, "/mapping", m_format_map},
    {"isidentifier", BIT_STR, "", m_isidentifier},
    {"encode", BIT_STR, "", NULL},
    {"expandtabs", BIT_STR, "tabsize?", m_expandtabs},
    {"translate", BIT_STR, "/table", m_translate},
    {"maketrans", BIT_STR, "/x,y?,z?", m_maketrans},
    {"items", BIT_DICT, "", m_items},
    {"keys", BIT_DICT, "", m_keys},
    {"values", BIT_DICT, "", m_values},
    {"get", BIT_DICT, "/key,default?", m_get},
    {"copy", BIT_DICT | BIT_LIST, "", m_copy},
    {"fromkeys", BIT_DICT, "/keys,value?", m_fromkeys},
    {"bit_length", BIT_INT, "", m_bit_length},
    {"bit_count", BIT_INT, "", m_bit_count},
    {"conjugate", BIT_INT | BIT_FLOAT, "", m_conjugate},
    {"is_integer", BIT_FLOAT, "", m_is_integer},
    {"as_integer_ratio", BIT_INT | BIT_FLOAT, "", NULL},
    {"to_bytes", BIT_INT, "", NULL},
    {"from_bytes", BIT_INT, "", NULL},
    {"hex", BIT_FLOAT, "", NULL},
    {"fromhex", BIT_FLOAT, "", NULL},
    {"cycle", BIT_LOOP, NULL, m_cycle},
    {"changed", BIT_LOOP, NULL, m_changed},
    {"next", BIT_CYCLER, "", m_next},
    {"reset", BIT_CYCLER, "", m_reset},
};

static const struct {
    const char *name;
    int types;
} forbidden[] = {
    {"clear", BIT_DICT | BIT_LIST}, {"pop", BIT_DICT | BIT_LIST}, {"popitem", BIT_DICT},
    {"setdefault", BIT_DICT},       {"update", BIT_DICT},         {"append", BIT_LIST},
    {"reverse", BIT_LIST},          {"insert", BIT_LIST},         {"sort", BIT_LIST},
    {"extend", BIT_LIST},           {"remove", BIT_LIST},
};

static int type_bit(struct jv v)
{
    switch (v.type) {
    case JV_DICT:
        return BIT_DICT;
    case JV_LIST:
        return BIT_LIST;
    case JV_TUPLE:
        return BIT_TUPLE;
    case JV_STR:
        return BIT_STR;
    case JV_RANGE:
        return BIT_RANGE;
    case JV_LOOP:
        return BIT_LOOP;
    case JV_CYCLER:
        return BIT_CYCLER;
    case JV_BOOL:
    case JV_INT:
    case JV_BIG:
        return BIT_INT;
    case JV_FLOAT:
        return BIT_FLOAT;
    default:
        return 0;
    }
}

static bool is(const char *name, size_t n, const char *what)
{
    return strlen(what) == n && !memcmp(name, what, n);
}

static struct jv numeric_attribute(struct jinja_run *r, struct jv v, const char *name, size_t n)
{
    if (is(name, n, "real"))
        return v.type == JV_BOOL ? jv_int(v.u.i) : v;
    if (is(name, n, "imag"))
        return v.type == JV_FLOAT ? jv_float(0) : jv_int(0);
    if (v.type != JV_FLOAT && is(name, n, "numerator"))
        return v.type == JV_BOOL ? jv_int(v.u.i) : v;
    if (v.type != JV_FLOAT && is(name, n, "denominator"))
        return jv_int(1);
    (void)r;
    return jv_missing;
}

/* Attributes that are values, not methods; JV_MISSING: none of that name. */
static struct jv value_attribute(struct jinja_run *r, struct jv obj, const char *name, size_t n)
{
    struct jv key;
    switch (obj.type) {
    case JV_LOOP: {
        char t[16];
        if (n >= sizeof t)
            return jv_missing;
        memcpy(t, name, n);
        t[n] = 0;
        return jinja_loop_attr(r, obj.u.loop, t);
    }
    case JV_NAMESPACE:
        key = jv_str_borrow(r, name, n);
        if (jv_is_error(key))
            return key;
        return jv_dict_get(r, obj.u.d, key, &key) > 0 ? key : jv_missing;
    case JV_CYCLER:
        if (is(name, n, "current"))
            return obj.u.cycler->v[obj.u.cycler->pos];
        return is(name, n, "pos") ? jv_int((int64_t)obj.u.cycler->pos) : jv_missing;
    case JV_JOINER:
        if (is(name, n, "sep"))
            return obj.u.cycler->v[0];
        return is(name, n, "used") ? jv_bool(obj.u.cycler->pos != 0) : jv_missing;
    case JV_TUPLE:
        if (obj.u.l->group && (is(name, n, "grouper") || is(name, n, "list")))
            return obj.u.l->v[name[0] == 'l'];
        return jv_missing;
    case JV_RANGE:
        if (is(name, n, "start") || is(name, n, "stop") || is(name, n, "step"))
            return jv_int(name[2] == 'a' ? obj.u.range->start : name[2] == 'o' ? obj.u.range->stop : obj.u.range->step);
        return jv_missing;
    case JV_BOOL:
    case JV_INT:
    case JV_BIG:
    case JV_FLOAT:
        return numeric_attribute(r, obj, name, n);
    case JV_FUNC:
        if (obj.u.fn->kind == JV_MACRO && is(name, n, "name")) {
            const struct jinja_node *m = obj.u.fn->node;
            return m->s ? jv_cstr(r, m->s) : jv_none;
        }
        return jv_missing;
    default:
        return jv_missing;
    }
}

bool jinja_attribute(struct jinja_run *r, struct jv obj, const char *name, size_t n, struct jv *out)
{
    int bit = type_bit(obj);
    *out = jv_missing;
    if (obj.type != JV_NAMESPACE && n > 4 && !memcmp(name, "__", 2) && !memcmp(name + n - 2, "__", 2))
        return true;
    for (size_t i = 0; bit && i < sizeof methods / sizeof methods[0]; i++) {
        if (!(methods[i].types & bit) || !is(name, n, methods[i].name))
            continue;
        struct jv_func *fn = jv_alloc(r, sizeof *fn);
        if (!fn)
            return false;
        *fn = (struct jv_func){.kind = JV_METHOD, .id = (int)i, .self = obj};
        *out = (struct jv){JV_FUNC, {.fn = fn}};
        return true;
    }
    for (size_t i = 0; bit && i < sizeof forbidden / sizeof forbidden[0]; i++)
        if (forbidden[i].types & bit && is(name, n, forbidden[i].name))
            return true;
    *out = value_attribute(r, obj, name, n);
    return out->type != JV_MISSING;
}

/* A safe string's methods give safe strings; text that comes in is escaped. */
static struct jv call_safe(struct jinja_run *r, const struct method *m, struct jv self, struct jv *a,
                           const struct jinja_args *args)
{
    bool pads = m->fn == m_center || m->fn == m_ljust || m->fn == m_rjust;
    if ((pads || m->fn == m_replace) && a[1].type == JV_STR)
        a[1] = jinja_escape(r, a[1]);
    if (m->fn == m_join) {
        struct jv list = jv_to_list(r, a[0]);
        for (size_t i = 0; !jv_is_error(list) && i < list.u.l->n; i++)
            if (jv_is_error(list.u.l->v[i] = jinja_escape(r, list.u.l->v[i])))
                return jv_error;
        a[0] = list;
    }
    struct jv v = jv_is_error(a[0]) || jv_is_error(a[1]) ? jv_error : m->fn(r, self, a, args);
    if (jv_is_seq(v))
        for (size_t i = 0; i < v.u.l->n; i++)
            if (jv_is_error(v.u.l->v[i] = jinja_safe_if(r, v.u.l->v[i], true)))
                return jv_error;
    return jinja_safe_if(r, v, true);
}

struct jv jinja_call_method(struct jinja_run *r, const struct jv_func *fn, const struct jinja_args *args)
{
    const struct method *m = &methods[fn->id];
    struct jv a[4] = {jv_missing, jv_missing, jv_missing, jv_missing};
    if (!m->fn)
        return jv_fail(r, TLM_EUNSUPPORTED, "the method %s.%s is not supported", jv_type_name(fn->self), m->name);
    if (m->spec && !jinja_bind(r, m->name, m->spec, args, a))
        return jv_error;
    return fn->self.type == JV_STR && fn->self.u.s->safe ? call_safe(r, m, fn->self, a, args)
                                                         : m->fn(r, fn->self, a, args);
}
