/* Values: iteration, lengths, lists made of iterables, str() and repr(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"
#include "text/jinja_value.h"

int64_t jv_len(struct jinja_run *r, struct jv v)
{
    switch (v.type) {
    case JV_ERROR:
        return -1;
    case JV_UNDEFINED:
        return 0;
    case JV_STR:
        return (int64_t)v.u.s->chars;
    case JV_LIST:
    case JV_TUPLE:
        return (int64_t)v.u.l->n;
    case JV_DICT:
        return (int64_t)v.u.d->n;
    case JV_VIEW:
        return (int64_t)v.u.view->d->n;
    case JV_RANGE:
        return v.u.range->n;
    case JV_LOOP:
        return jinja_loop_length(r, v.u.loop);
    default:
        return -2;
    }
}

struct jv jv_range(struct jinja_run *r, int64_t start, int64_t stop, int64_t step)
{
    struct jv_range *g = jv_alloc(r, sizeof *g);
    if (!g)
        return jv_error;
    uint64_t span = 0, stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? start < stop : start > stop)
        span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t n = span / stride + (span % stride != 0);
    *g = (struct jv_range){start, stop, step, n > INT64_MAX ? INT64_MAX : (int64_t)n};
    return (struct jv){JV_RANGE, {.range = g}};
}

bool jv_iterable(struct jv v)
{
    switch (v.type) {
    case JV_UNDEFINED:
    case JV_STR:
    case JV_LIST:
    case JV_TUPLE:
    case JV_DICT:
    case JV_VIEW:
    case JV_RANGE:
    case JV_ITER:
    case JV_LOOP:
        return true;
    default:
        return false;
    }
}

struct jv jv_iter_new(struct jinja_run *r, int (*next)(struct jinja_run *, struct jv_iter *, struct jv *),
                      const char *name, struct jv src)
{
    struct jv_iter *it = jv_alloc(r, sizeof *it);
    if (!it)
        return jv_error;
    *it = (struct jv_iter){.next = next, .name = name, .src = src};
    return (struct jv){JV_ITER, {.it = it}};
}

static int next_list(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    (void)r;
    if (it->i >= it->src.u.l->n)
        return 0;
    *out = it->src.u.l->v[it->i++];
    return 1;
}

static int next_str(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    const struct jv_str *s = it->src.u.s;
    size_t len;
    if (it->i >= s->n)
        return 0;
    (void)text_get(s->p + it->i, s->n - it->i, &len);
    *out = jv_str_borrow(r, s->p + it->i, len);
    it->i += len;
    return jv_is_error(*out) ? -1 : 1;
}

static int next_entry(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    const struct jv_dict *d = it->src.type == JV_DICT ? it->src.u.d : it->src.u.view->d;
    if (it->i >= d->n)
        return 0;
    const struct jv_entry *e = &d->e[it->i++];
    enum jv_view_kind kind = it->src.type == JV_DICT ? JV_KEYS : it->src.u.view->kind;
    *out = kind == JV_KEYS ? e->key : kind == JV_VALUES ? e->value : jv_pair(r, e->key, e->value);
    return jv_is_error(*out) ? -1 : 1;
}

static int next_range(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    (void)r;
    const struct jv_range *g = it->src.u.range;
    if ((int64_t)it->i >= g->n)
        return 0;
    *out = jv_int((int64_t)((uint64_t)g->start + (uint64_t)it->i++ * (uint64_t)g->step));
    return 1;
}

static int next_nothing(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    (void)r;
    (void)it;
    *out = jv_none;
    return 0;
}

struct jv_iter *jv_iterate(struct jinja_run *r, struct jv v)
{
    struct jv it = jv_error;
    switch (v.type) {
    case JV_ERROR:
        return NULL;
    case JV_ITER:
        return v.u.it;
    case JV_LOOP:
        it = jv_iter_new(r, jinja_loop_next, "LoopContext", v);
        break;
    case JV_UNDEFINED:
        it = jv_iter_new(r, next_nothing, "generator", v);
        break;
    case JV_STR:
        it = jv_iter_new(r, next_str, "str_iterator", v);
        break;
    case JV_LIST:
    case JV_TUPLE:
        it = jv_iter_new(r, next_list, "list_iterator", v);
        break;
    case JV_DICT:
    case JV_VIEW:
        it = jv_iter_new(r, next_entry, "dict_keyiterator", v);
        break;
    case JV_RANGE:
        it = jv_iter_new(r, next_range, "range_iterator", v);
        break;
    default:
        jv_type_error(r, "'%s' object is not iterable", jv_type_name(v));
        break;
    }
    return jv_is_error(it) ? NULL : it.u.it;
}

int jv_next(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    if (it->done)
        return 0;
    if (!jv_step(r, 1) || !jv_enter(r))
        return -1;
    int got = it->next(r, it, out);
    jv_leave(r);
    if (got <= 0)
        it->done = true;
    return r->status != TLM_OK ? -1 : got;
}

struct jv jv_to_list(struct jinja_run *r, struct jv v)
{
    struct jv_iter *it = jv_iterate(r, v);
    int64_t n = v.type == JV_ITER || v.type == JV_LOOP ? 4 : jv_len(r, v);
    if (!it || n < 0)
        return jv_error;
    struct jv list = jv_list_new(r, (size_t)n), item;
    if (jv_is_error(list))
        return list;
    int got;
    while ((got = jv_next(r, it, &item)) > 0)
        if (!jv_list_add(r, list, item))
            return jv_error;
    return got < 0 ? jv_error : list;
}

struct jv jv_to_tuple(struct jinja_run *r, struct jv v)
{
    struct jv list = jv_to_list(r, v);
    if (!jv_is_error(list))
        list.type = JV_TUPLE;
    return list;
}

/* "1.23e+05" to "1.24e+05"; not for all nines. */
static void increment(char *t)
{
    char *p = strchr(t, 'e');
    while (p && --p >= t) {
        if (*p == '9')
            *p = '0';
        else if (*p >= '0') {
            ++*p;
            return;
        }
    }
}

/* Python's repr(float): the fewest digits that read back as the same value;
 * an exponent below 1e-4 and from 1e16 on. */
void jv_float_repr(double f, char out[64])
{
    if (isnan(f) || isinf(f)) {
        snprintf(out, 64, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char t[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(t, sizeof t, "%.*e", digits - 1, f);
        if (strtod(t, NULL) == f)
            break;
        /* Below a power of two doubles are closer than above it, so that the
         * decimal after the nearest one may be the one that reads back. */
        int e2;
        if (fabs(frexp(f, &e2)) == 0.5) {
            increment(t);
            if (strtod(t, NULL) == f)
                break;
        }
    }
    char *e = strchr(t, 'e');
    int exponent = e ? (int)strtol(e + 1, NULL, 10) : 0;
    char mantissa[32];
    size_t n = 0;
    bool negative = t[0] == '-';
    for (const char *p = t; e && p < e; p++)
        if (*p >= '0' && *p <= '9' && n + 1 < sizeof mantissa)
            mantissa[n++] = *p;
    mantissa[n] = 0;
    size_t at = 0;
    if (negative)
        out[at++] = '-';
    if (exponent < -4 || exponent >= 16) {
        snprintf(out + at, 64 - at, "%c%s%se%c%02d", mantissa[0], n > 1 ? "." : "", mantissa + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        snprintf(out + at, 64 - at, "0.%.*s%s", -exponent - 1, "0000", mantissa);
    } else if ((int)n <= exponent + 1) {
        snprintf(out + at, 64 - at, "%s%.*s.0", mantissa, exponent + 1 - (int)n, "0000000000000000");
    } else {
        snprintf(out + at, 64 - at, "%.*s.%s", exponent + 1, mantissa, mantissa + exponent + 1);
    }
}

static void add_str_repr(struct buf *b, const struct jv_str *s)
{
    bool single = memchr(s->p, '\'', s->n) != NULL, twice = memchr(s->p, '"', s->n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    size_t len;
    buf_add_char(b, quote);
    for (size_t i = 0; i < s->n && b->status == TLM_OK; i += len) {
        uint32_t c = text_get(s->p + i, s->n - i, &len);
        if (c == (unsigned char)quote || c == '\\')
            buf_printf(b, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            buf_printf(b, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (text_printable(c))
            buf_add(b, s->p + i, len);
        else
            buf_printf(b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    buf_add_char(b, quote);
}

static bool add_list_repr(struct jinja_run *r, struct buf *b, struct jv v)
{
    const struct jv_list *l = v.u.l;
    bool tuple = v.type == JV_TUPLE;
    buf_add_char(b, tuple ? '(' : '[');
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            buf_add_str(b, ", ");
        if (!jv_add_repr(r, b, l->v[i]))
            return false;
    }
    buf_add_str(b, tuple ? (l->n == 1 ? ",)" : ")") : "]");
    return true;
}

static bool add_dict_repr(struct jinja_run *r, struct buf *b, const struct jv_dict *d)
{
    buf_add_char(b, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            buf_add_str(b, ", ");
        if (!jv_add_repr(r, b, d->e[i].key))
            return false;
        buf_add_str(b, ": ");
        if (!jv_add_repr(r, b, d->e[i].value))
            return false;
    }
    buf_add_char(b, '}');
    return true;
}

static bool add_view_repr(struct jinja_run *r, struct buf *b, struct jv v)
{
    struct jv list = jv_to_list(r, v);
    if (jv_is_error(list))
        return false;
    buf_printf(b, "%s(", jv_type_name(v));
    bool ok = add_list_repr(r, b, list);
    buf_add_char(b, ')');
    return ok;
}

static bool add_number(struct buf *b, struct jv v)
{
    char t[64];
    if (v.type == JV_BOOL)
        buf_add_str(b, v.u.i ? "True" : "False");
    else if (v.type == JV_INT)
        buf_printf(b, "%lld", (long long)v.u.i);
    else if (v.type == JV_BIG)
        buf_add(b, v.u.s->p, v.u.s->n);
    else {
        jv_float_repr(v.u.f, t);
        buf_add_str(b, t);
    }
    return true;
}

static bool add_repr(struct jinja_run *r, struct buf *b, struct jv v)
{
    switch (v.type) {
    case JV_ERROR:
        return false;
    case JV_UNDEFINED:
    case JV_MISSING:
        buf_add_str(b, "Undefined");
        return true;
    case JV_NONE:
        buf_add_str(b, "None");
        return true;
    case JV_BOOL:
    case JV_INT:
    case JV_BIG:
    case JV_FLOAT:
        return add_number(b, v);
    case JV_STR:
        if (v.u.s->safe)
            buf_add_str(b, "Markup(");
        add_str_repr(b, v.u.s);
        if (v.u.s->safe)
            buf_add_char(b, ')');
        return true;
    case JV_LIST:
    case JV_TUPLE:
        return add_list_repr(r, b, v);
    case JV_DICT:
        return add_dict_repr(r, b, v.u.d);
    case JV_NAMESPACE:
        buf_add_str(b, "<Namespace ");
        if (!add_dict_repr(r, b, v.u.d))
            return false;
        buf_add_char(b, '>');
        return true;
    case JV_VIEW:
        return add_view_repr(r, b, v);
    case JV_RANGE:
        buf_printf(b, "range(%lld, %lld", (long long)v.u.range->start, (long long)v.u.range->stop);
        if (v.u.range->step != 1)
            buf_printf(b, ", %lld", (long long)v.u.range->step);
        buf_add_char(b, ')');
        return true;
    case JV_LOOP:
        return jinja_loop_repr(r, b, v.u.loop);
    case JV_TEMPLATE:
        buf_add_str(b, "<TemplateReference None>");
        return true;
    case JV_FUNC:
        if (v.u.fn->kind == JV_MACRO) {
            const struct jinja_node *m = v.u.fn->node;
            buf_printf(b, m->s ? "<Macro '%s'>" : "<Macro anonymous>", m->s);
            return true;
        }
        buf_add_str(b, "<function object>");
        return true;
    default:
        buf_printf(b, "<%s object>", jv_type_name(v));
        return true;
    }
}

bool jv_add_repr(struct jinja_run *r, struct buf *b, struct jv v)
{
    if (!jv_step(r, 1) || !jv_enter(r))
        return false;
    bool ok = add_repr(r, b, v);
    jv_leave(r);
    return ok && jv_buf_ok(r, b);
}

bool jv_add_str(struct jinja_run *r, struct buf *b, struct jv v)
{
    if (v.type == JV_UNDEFINED)
        return r->status == TLM_OK;
    if (v.type != JV_STR)
        return jv_add_repr(r, b, v);
    buf_add(b, v.u.s->p, v.u.s->n);
    return jv_step(r, v.u.s->n / 64) && jv_buf_ok(r, b);
}

struct jv jv_to_str(struct jinja_run *r, struct jv v)
{
    if (jv_is_error(v) || (v.type == JV_STR && !v.u.s->safe))
        return v;
    struct buf b;
    jv_buf_init(r, &b);
    jv_add_str(r, &b, v);
    return jv_from_buf(r, &b);
}
