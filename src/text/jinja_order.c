/* Values: identity, equality, order, membership. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_text.h"
#include "text/jinja_value.h"

bool jv_truth(struct jv v)
{
    switch (v.type) {
    case JV_ERROR:
    case JV_MISSING:
    case JV_UNDEFINED:
    case JV_NONE:
        return false;
    case JV_BOOL:
    case JV_INT:
        return v.u.i != 0;
    case JV_FLOAT:
        return v.u.f != 0;
    case JV_STR:
        return v.u.s->n != 0;
    case JV_LIST:
    case JV_TUPLE:
        return v.u.l->n != 0;
    case JV_DICT:
        return v.u.d->n != 0;
    case JV_RANGE:
        return v.u.range->n != 0;
    case JV_VIEW:
        return v.u.view->d->n != 0;
    default:
        return true;
    }
}

bool jv_identical(struct jv a, struct jv b)
{
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case JV_NONE:
        return true;
    case JV_BOOL:
    case JV_INT:
        return a.u.i == b.u.i;
    case JV_FLOAT:
        return a.u.f == b.u.f;
    case JV_STR:
        return a.u.s == b.u.s || (a.u.s->n == b.u.s->n && a.u.s->n < 64 && !memcmp(a.u.s->p, b.u.s->p, a.u.s->n));
    default:
        return a.u.it == b.u.it;
    }
}

static int equal_lists(struct jinja_run *r, const struct jv_list *a, const struct jv_list *b)
{
    if (a->n != b->n)
        return 0;
    if (!jv_enter(r))
        return -1;
    int same = 1;
    for (size_t i = 0; same > 0 && i < a->n; i++)
        same = !jv_step(r, 1) ? -1 : jv_identical(a->v[i], b->v[i]) ? 1 : jv_equal(r, a->v[i], b->v[i]);
    jv_leave(r);
    return same;
}

static int equal_dicts(struct jinja_run *r, const struct jv_dict *a, const struct jv_dict *b)
{
    if (a->n != b->n)
        return 0;
    if (!jv_enter(r))
        return -1;
    int same = 1;
    for (size_t i = 0; same > 0 && i < a->n; i++) {
        struct jv other;
        same = jv_step(r, 1) ? jv_dict_get(r, b, a->e[i].key, &other) : -1;
        if (same > 0 && !jv_identical(a->e[i].value, other))
            same = jv_equal(r, a->e[i].value, other);
    }
    jv_leave(r);
    return same;
}

/* An int64 and a double, exactly: -1, 0, 1, or 2 for a NaN. */
static int compare_int_double(int64_t i, double f)
{
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        return -1;
    if (f < -9223372036854775808.0)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static int compare_big(const struct jv_str *a, const struct jv_str *b)
{
    bool na = a->p[0] == '-', nb = b->p[0] == '-';
    if (na != nb)
        return na ? -1 : 1;
    int c = a->n != b->n ? (a->n < b->n ? -1 : 1) : memcmp(a->p, b->p, a->n);
    c = c < 0 ? -1 : c > 0;
    return na ? -c : c;
}

/* A double of that size has no fraction. */
static int compare_big_double(const struct jv_str *a, double f)
{
    char t[400];
    if (isnan(f))
        return 2;
    if (isinf(f))
        return f > 0 ? -1 : 1;
    if (fabs(f) < 9e18)
        return a->p[0] == '-' ? -1 : 1;
    struct jv_str b = {.p = t, .n = (size_t)snprintf(t, sizeof t, "%.0f", f)};
    return compare_big(a, &b);
}

/* Numbers: -1, 0, 1, or 2 when unordered. */
static int compare_numbers(struct jv a, struct jv b)
{
    if (jv_is_int(a) && jv_is_int(b))
        return a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
    if (a.type == JV_BIG && b.type == JV_BIG)
        return compare_big(a.u.s, b.u.s);
    if (a.type == JV_FLOAT && jv_is_int(b)) {
        int c = compare_int_double(b.u.i, a.u.f);
        return c == 2 ? 2 : -c;
    }
    if (jv_is_int(a) && b.type == JV_FLOAT)
        return compare_int_double(a.u.i, b.u.f);
    if (a.type == JV_BIG && jv_is_int(b))
        return a.u.s->p[0] == '-' ? -1 : 1;
    if (b.type == JV_BIG && jv_is_int(a))
        return b.u.s->p[0] == '-' ? 1 : -1;
    if (a.type == JV_FLOAT && b.type == JV_BIG) {
        int c = compare_big_double(b.u.s, a.u.f);
        return c == 2 ? 2 : -c;
    }
    if (a.type == JV_BIG && b.type == JV_FLOAT)
        return compare_big_double(a.u.s, b.u.f);
    double x = jv_to_double(a), y = jv_to_double(b);
    return isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
}

static int64_t range_at(const struct jv_range *g, int64_t i)
{
    return (int64_t)((uint64_t)g->start + (uint64_t)i * (uint64_t)g->step);
}

static int equal_views(struct jinja_run *r, const struct jv_view *a, const struct jv_view *b)
{
    if (a->kind == JV_VALUES || b->kind == JV_VALUES)
        return a == b;
    if (a->d->n != b->d->n)
        return 0;
    for (size_t i = 0; i < a->d->n; i++) {
        struct jv item = a->d->e[i].key, view = {JV_VIEW, {.view = b}};
        if (a->kind == JV_ITEMS)
            item = jv_pair(r, a->d->e[i].key, a->d->e[i].value);
        int in = jv_contains(r, view, item);
        if (in <= 0)
            return in;
    }
    return 1;
}

int jv_equal(struct jinja_run *r, struct jv a, struct jv b)
{
    if (jv_is_number(a) && jv_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.type != b.type)
        return 0;
    switch (a.type) {
    case JV_ERROR:
        return -1;
    case JV_MISSING:
    case JV_UNDEFINED:
    case JV_NONE:
        return 1;
    case JV_STR:
        return a.u.s->n == b.u.s->n && (jv_step(r, a.u.s->n / 256), !memcmp(a.u.s->p, b.u.s->p, a.u.s->n));
    case JV_LIST:
    case JV_TUPLE:
        return equal_lists(r, a.u.l, b.u.l);
    case JV_DICT:
        return equal_dicts(r, a.u.d, b.u.d);
    case JV_RANGE: {
        const struct jv_range *x = a.u.range, *y = b.u.range;
        return x->n == y->n && (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    case JV_VIEW:
        return equal_views(r, a.u.view, b.u.view);
    case JV_FUNC:
        return a.u.fn == b.u.fn || (a.u.fn->kind == b.u.fn->kind && a.u.fn->kind != JV_MACRO &&
                                    a.u.fn->id == b.u.fn->id && jv_identical(a.u.fn->self, b.u.fn->self));
    default:
        return a.u.it == b.u.it;
    }
}

static bool holds(int c, char op)
{
    return op == '<' ? c < 0 : op == '>' ? c > 0 : op == 'l' ? c <= 0 : c >= 0;
}

static int compare_lists(struct jinja_run *r, const struct jv_list *a, const struct jv_list *b, char op)
{
    if (!jv_enter(r))
        return -1;
    int result = -2;
    for (size_t i = 0; result == -2 && i < a->n && i < b->n; i++) {
        int same = !jv_step(r, 1) ? -1 : jv_identical(a->v[i], b->v[i]) ? 1 : jv_equal(r, a->v[i], b->v[i]);
        if (same < 0)
            result = -1;
        else if (!same)
            result = jv_compare(r, a->v[i], b->v[i], op);
    }
    if (result == -2)
        result = holds(a->n < b->n ? -1 : a->n > b->n, op);
    jv_leave(r);
    return result;
}

int jv_compare(struct jinja_run *r, struct jv a, struct jv b, char op)
{
    if (jv_is_error(a) || jv_is_error(b))
        return -1;
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED) {
        jv_undefined_error(r, a.type == JV_UNDEFINED ? a : b);
        return -1;
    }
    if (jv_is_number(a) && jv_is_number(b)) {
        int c = compare_numbers(a, b);
        return c != 2 && holds(c, op);
    }
    if (a.type == b.type) {
        if (a.type == JV_STR) {
            size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
            int c = memcmp(a.u.s->p, b.u.s->p, n);
            if (!c)
                c = a.u.s->n < b.u.s->n ? -1 : a.u.s->n > b.u.s->n;
            return jv_step(r, n / 256) ? holds(c, op) : -1;
        }
        if (jv_is_seq(a))
            return compare_lists(r, a.u.l, b.u.l, op);
    }
    jv_type_error(r, "'%s' not supported between instances of '%s' and '%s'",
                  op == '<'   ? "<"
                  : op == '>' ? ">"
                  : op == 'l' ? "<="
                              : ">=",
                  jv_type_name(a), jv_type_name(b));
    return -1;
}

static int contains_item(struct jinja_run *r, struct jv container, struct jv item)
{
    struct jv_iter *it = jv_iterate(r, container);
    struct jv v;
    int got = it ? 0 : -1;
    while (it && (got = jv_next(r, it, &v)) > 0) {
        int same = jv_identical(v, item) ? 1 : jv_equal(r, v, item);
        if (same)
            return same;
    }
    return got;
}

int jv_contains(struct jinja_run *r, struct jv c, struct jv item)
{
    struct jv v;
    switch (c.type) {
    case JV_STR:
        if (item.type == JV_UNDEFINED) {
            jv_type_error(r, "'in <string>' requires string as left operand, not Undefined");
            return -1;
        }
        if (item.type != JV_STR) {
            jv_type_error(r, "'in <string>' requires string as left operand, not %s", jv_type_name(item));
            return -1;
        }
        if (!jv_step(r, c.u.s->n / 64))
            return -1;
        return text_find(c.u.s->p, c.u.s->n, item.u.s->p, item.u.s->n) != SIZE_MAX;
    case JV_DICT:
        return jv_dict_get(r, c.u.d, item, &v);
    case JV_VIEW:
        if (c.u.view->kind == JV_KEYS)
            return jv_dict_get(r, c.u.view->d, item, &v);
        if (c.u.view->kind == JV_ITEMS) {
            if (item.type != JV_TUPLE || item.u.l->n != 2)
                return 0;
            int found = jv_dict_get(r, c.u.view->d, item.u.l->v[0], &v);
            return found > 0 ? jv_equal(r, v, item.u.l->v[1]) : found;
        }
        return contains_item(r, c, item);
    case JV_RANGE:
        if (jv_is_int(item)) {
            const struct jv_range *g = c.u.range;
            if (g->n == 0)
                return 0;
            int64_t first = g->start, last = range_at(g, g->n - 1), low = first < last ? first : last;
            int64_t high = first < last ? last : first;
            return item.u.i >= low && item.u.i <= high && (item.u.i - first) % g->step == 0;
        }
        return contains_item(r, c, item);
    default:
        if (!jv_iterable(c)) {
            if (!jv_is_error(c))
                jv_type_error(r, "argument of type '%s' is not iterable", jv_type_name(c));
            return -1;
        }
        return contains_item(r, c, item);
    }
}
