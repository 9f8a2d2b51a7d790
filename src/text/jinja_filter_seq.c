/* Filters over sequences. Those that are generators in jinja2 are lazy here,
 * too: an error in an item that nobody asks for is not met. */
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

FILTER(f_length)
{
    UNUSED_ARGS;
    int64_t n = jv_len(r, v);
    if (n == -2)
        return jv_type_error(r, "object of type '%s' has no len()", jv_type_name(v));
    return n < 0 ? jv_error : jv_int(n);
}

FILTER(f_list)
{
    UNUSED_ARGS;
    return jv_to_list(r, v);
}

FILTER(f_first)
{
    UNUSED_ARGS;
    struct jv_iter *it = jv_iterate(r, v);
    struct jv item;
    int got = it ? jv_next(r, it, &item) : -1;
    return got < 0 ? jv_error : got ? item : jv_undefined_hint(r, "No first item, sequence was empty.");
}

/* reversed() takes what has an order and a length. */
static struct jv reversed(struct jinja_run *r, struct jv v)
{
    bool can = v.type == JV_STR || jv_is_seq(v) || v.type == JV_DICT || v.type == JV_VIEW || v.type == JV_RANGE;
    struct jv list = can || v.type == JV_UNDEFINED ? jv_to_list(r, v) : jv_error;
    if (!can && v.type != JV_UNDEFINED)
        return jv_type_error(r, "'%s' object is not reversible", jv_type_name(v));
    for (size_t i = 0; !jv_is_error(list) && i < list.u.l->n / 2; i++) {
        struct jv t = list.u.l->v[i];
        list.u.l->v[i] = list.u.l->v[list.u.l->n - 1 - i];
        list.u.l->v[list.u.l->n - 1 - i] = t;
    }
    return list;
}

FILTER(f_last)
{
    UNUSED_ARGS;
    struct jv list = reversed(r, v);
    if (jv_is_error(list))
        return list;
    return list.u.l->n ? list.u.l->v[0] : jv_undefined_hint(r, "No last item, sequence was empty.");
}

static int next_of_list(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    (void)r;
    if (it->i >= it->src.u.l->n)
        return 0;
    *out = it->src.u.l->v[it->i++];
    return 1;
}

FILTER(f_reverse)
{
    UNUSED_ARGS;
    if (v.type == JV_STR) {
        struct jv part[3] = {jv_none, jv_none, jv_int(-1)};
        return jinja_slice(r, v, part);
    }
    if (v.type == JV_ITER || v.type == JV_LOOP) {
        struct jv list = jv_to_list(r, v);
        return jv_is_error(list) ? list : reversed(r, list);
    }
    if (!jv_iterable(v))
        return jv_is_error(v) ? v : jv_fail(r, TLM_EINVAL, "argument must be iterable");
    struct jv list = reversed(r, v);
    return jv_is_error(list) ? list : jv_iter_new(r, next_of_list, "list_reverseiterator", list);
}

/* With autoescape on: escapes as soon as one part or the separator is safe. */
static struct jv join_escaped(struct jinja_run *r, struct jv list, struct jv sep)
{
    bool safe = sep.type == JV_STR && sep.u.s->safe;
    for (size_t i = 0; i < list.u.l->n; i++)
        safe = safe || (list.u.l->v[i].type == JV_STR && list.u.l->v[i].u.s->safe);
    struct buf b;
    jv_buf_init(r, &b);
    for (size_t i = 0; i < list.u.l->n; i++) {
        struct jv part = list.u.l->v[i], between = i ? sep : jv_none;
        if (safe) {
            part = jinja_escape(r, part);
            between = i ? jinja_escape(r, between) : between;
        }
        if (jv_is_error(part) || (i && !jv_add_str(r, &b, between)) || !jv_add_str(r, &b, part))
            break;
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), safe);
}

FILTER(f_join)
{
    (void)args;
    struct jv sep = a[0].type == JV_MISSING ? jv_cstr(r, "") : r->autoescape ? a[0] : jv_to_str(r, a[0]), item;
    struct jv list = jv_list_new(r, 4);
    struct jv_iter *it = jv_is_error(sep) || jv_is_error(list) ? NULL : jv_iterate(r, v);
    int got = it ? 0 : -1;
    while (it && (got = jv_next(r, it, &item)) > 0) {
        item = jinja_attr_path(r, item, a[1], jv_missing);
        if (!r->autoescape)
            item = jv_to_str(r, item);
        if (!jv_list_add(r, list, item))
            return jv_error;
    }
    if (got < 0)
        return jv_error;
    if (r->autoescape)
        return join_escaped(r, list, sep);
    struct buf b;
    jv_buf_init(r, &b);
    for (size_t i = 0; i < list.u.l->n; i++) {
        if (i)
            buf_add(&b, sep.u.s->p, sep.u.s->n);
        buf_add(&b, list.u.l->v[i].u.s->p, list.u.l->v[i].u.s->n);
    }
    return jv_from_buf(r, &b);
}

/* ---- generators ---- */

static struct jv generator(struct jinja_run *r, int (*next)(struct jinja_run *, struct jv_iter *, struct jv *),
                           struct jv src, const struct jinja_args *args)
{
    struct jv it = jv_iter_new(r, next, "generator", src);
    if (!jv_is_error(it)) {
        struct jinja_args *copy = jv_alloc(r, sizeof *copy);
        if (!copy)
            return jv_error;
        *copy = *args;
        it.u.it->args = copy;
    }
    return it;
}

/* The source's iterator, made at the first step. */
static bool open_source(struct jinja_run *r, struct jv_iter *it)
{
    if (!it->inner)
        it->inner = jv_iterate(r, it->src);
    return it->inner != NULL;
}

static const struct jv *keyword(const struct jinja_args *args, const char *name)
{
    return args->kw ? jv_dict_find(args->kw, name) : NULL;
}

static int next_map(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    const struct jinja_args *args = it->args;
    if (!it->inner && !jv_truth(it->src))
        return 0;
    const struct jv *attribute = args->n ? NULL : keyword(args, "attribute"), *fallback = keyword(args, "default");
    if (!it->inner && attribute && args->kw->n > 1 + (size_t)(fallback != NULL)) {
        jv_fail(r, TLM_EINVAL, "Unexpected keyword argument");
        return -1;
    }
    if (!attribute && !args->n) {
        jv_fail(r, TLM_EINVAL, "map requires a filter argument");
        return -1;
    }
    if (!open_source(r, it))
        return -1;
    int got = jv_next(r, it->inner, out);
    if (got <= 0)
        return got;
    if (attribute) {
        *out = jinja_attr_path(r, *out, *attribute, fallback ? *fallback : jv_missing);
    } else {
        char name[64];
        if (args->v[0].type != JV_STR || args->v[0].u.s->n >= sizeof name) {
            jv_fail(r, TLM_EINVAL, "No filter of the name given to map.");
            return -1;
        }
        memcpy(name, args->v[0].u.s->p, args->v[0].u.s->n);
        name[args->v[0].u.s->n] = 0;
        struct jinja_args rest = {args->v + 1, args->n - 1, args->kw};
        *out = jinja_filter(r, -1, name, *out, &rest);
    }
    return jv_is_error(*out) ? -1 : 1;
}

FILTER(f_map)
{
    (void)a;
    return generator(r, next_map, v, args);
}

/* a: whether rejecting, b: whether an attribute is looked at. */
static int next_select(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    const struct jinja_args *args = it->args;
    bool reject = it->a.u.i, by_attribute = it->b.u.i;
    if (!it->inner && !jv_truth(it->src))
        return 0;
    if (by_attribute && !args->n) {
        jv_fail(r, TLM_EINVAL, "Missing parameter for attribute name");
        return -1;
    }
    if (!open_source(r, it))
        return -1;
    size_t off = by_attribute;
    int got;
    while ((got = jv_next(r, it->inner, out)) > 0) {
        struct jv item = by_attribute ? jinja_attr_path(r, *out, args->v[0], jv_missing) : *out;
        int holds = jv_is_error(item) ? -1 : jv_truth(item);
        if (holds >= 0 && args->n > off) {
            char name[64];
            struct jv test = args->v[off];
            if (test.type != JV_STR || test.u.s->n >= sizeof name) {
                jv_fail(r, TLM_EINVAL, "No test of the name given.");
                return -1;
            }
            memcpy(name, test.u.s->p, test.u.s->n);
            name[test.u.s->n] = 0;
            struct jinja_args rest = {args->v + off + 1, args->n - off - 1, args->kw};
            holds = jinja_test(r, -1, name, item, &rest);
        }
        if (holds < 0)
            return -1;
        if ((holds != 0) != reject)
            break;
    }
    return got;
}

static struct jv select_items(struct jinja_run *r, struct jv v, const struct jinja_args *args, bool reject, bool attr)
{
    struct jv it = generator(r, next_select, v, args);
    if (!jv_is_error(it)) {
        it.u.it->a = jv_int(reject);
        it.u.it->b = jv_int(attr);
    }
    return it;
}

FILTER(f_select)
{
    (void)a;
    return select_items(r, v, args, false, false);
}

FILTER(f_reject)
{
    (void)a;
    return select_items(r, v, args, true, false);
}

FILTER(f_selectattr)
{
    (void)a;
    return select_items(r, v, args, false, true);
}

FILTER(f_rejectattr)
{
    (void)a;
    return select_items(r, v, args, true, true);
}

static int next_items(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    if (it->src.type == JV_UNDEFINED)
        return 0;
    if (it->src.type != JV_DICT) {
        jv_type_error(r, "Can only get item pairs from a mapping.");
        return -1;
    }
    const struct jv_dict *d = it->src.u.d;
    if (it->i >= d->n)
        return 0;
    *out = jv_pair(r, d->e[it->i].key, d->e[it->i].value);
    it->i++;
    return jv_is_error(*out) ? -1 : 1;
}

FILTER(f_items)
{
    (void)a;
    return generator(r, next_items, v, args);
}

static int next_batch(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    struct jv item;
    int64_t count;
    int got = 0;
    if (!open_source(r, it))
        return -1;
    *out = jv_list_new(r, 4);
    if (jv_is_error(*out))
        return -1;
    if (it->i && !jv_list_add(r, *out, it->src)) /* one item was read ahead */
        return -1;
    for (;;) {
        got = jv_next(r, it->inner, &item);
        if (got <= 0)
            break;
        int full = jv_equal(r, jv_int((int64_t)out->u.l->n), it->a);
        if (full < 0)
            return -1;
        if (full) {
            it->src = item;
            it->i = 1;
            return 1;
        }
        if (!jv_list_add(r, *out, item))
            return -1;
    }
    it->i = 0;
    if (got < 0 || !out->u.l->n)
        return got;
    it->done = true;
    if (it->b.type == JV_NONE || it->b.type == JV_MISSING)
        return 1;
    int less = jv_compare(r, jv_int((int64_t)out->u.l->n), it->a, '<');
    if (less < 0 || (less && !jinja_int_arg(r, it->a, &count)))
        return -1;
    while (less && (int64_t)out->u.l->n < count)
        if (!jv_step(r, 1) || !jv_list_add(r, *out, it->b))
            return -1;
    return 1;
}

FILTER(f_batch)
{
    struct jv it = generator(r, next_batch, v, args);
    if (!jv_is_error(it)) {
        it.u.it->a = a[0];
        it.u.it->b = a[1];
    }
    return it;
}

static int next_slice(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    int64_t slices, number = (int64_t)it->i;
    if (it->src.type != JV_LIST || !it->busy) {
        it->src = jv_to_list(r, it->src);
        it->busy = true;
    }
    if (jv_is_error(it->src) || !jinja_int_arg(r, it->a, &slices))
        return -1;
    if (!slices) {
        jv_fail(r, TLM_EINVAL, "integer division or modulo by zero");
        return -1;
    }
    if (number >= slices)
        return 0;
    int64_t n = (int64_t)it->src.u.l->n, per = n / slices, extra = n % slices;
    int64_t start = number * per + (number < extra ? number : extra);
    int64_t end = start + per + (number < extra);
    *out = jv_list_new(r, (size_t)(end - start) + 1);
    for (int64_t i = start; i < end; i++)
        if (!jv_list_add(r, *out, it->src.u.l->v[i]))
            return -1;
    if (it->b.type != JV_NONE && it->b.type != JV_MISSING && number >= extra && !jv_list_add(r, *out, it->b))
        return -1;
    it->i++;
    return jv_is_error(*out) ? -1 : 1;
}

FILTER(f_slice)
{
    struct jv it = generator(r, next_slice, v, args);
    if (!jv_is_error(it)) {
        it.u.it->a = a[0];
        it.u.it->b = a[1];
    }
    return it;
}

/* a: case sensitive, b: the attribute, c: the keys seen. */
static int next_unique(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    struct jv old;
    if (it->c.type != JV_DICT)
        it->c = jv_dict_new(r);
    if (jv_is_error(it->c))
        return -1;
    if (!open_source(r, it))
        return -1;
    int got;
    while ((got = jv_next(r, it->inner, out)) > 0) {
        struct jv key = jinja_attr_path(r, *out, it->b, jv_missing);
        if (!flag(it->a))
            key = jinja_ignore_case(r, key);
        int found = jv_is_error(key) ? -1 : jv_dict_get(r, it->c.u.d, key, &old);
        if (found < 0)
            return -1;
        if (!found)
            return jv_dict_set(r, it->c.u.d, key, jv_none) ? 1 : -1;
    }
    return got;
}

FILTER(f_unique)
{
    struct jv it = generator(r, next_unique, v, args);
    if (!jv_is_error(it)) {
        it.u.it->a = a[0];
        it.u.it->b = a[1];
    }
    return it;
}

/* ---- sorting and reducing ---- */

/* "a,b.c": a list of the attributes' values. */
static struct jv sort_key(struct jinja_run *r, struct jv item, struct jv path, bool case_sensitive)
{
    struct jv key = jv_list_new(r, 1);
    size_t start = 0, n = path.type == JV_STR ? path.u.s->n : 0;
    for (size_t i = 0; i <= n && !jv_is_error(key); i++) {
        if (i < n && path.u.s->p[i] != ',')
            continue;
        struct jv part = path.type == JV_STR ? jv_str_borrow(r, path.u.s->p + start, i - start) : path;
        struct jv value = jinja_attr_path(r, item, part, jv_missing);
        if (!jv_list_add(r, key, case_sensitive ? value : jinja_ignore_case(r, value)))
            return jv_error;
        start = i + 1;
    }
    return key;
}

/* sorted()'s reverse: an integer. */
static bool reverse_arg(struct jinja_run *r, struct jv v, bool *out)
{
    int64_t i = 0;
    if (v.type != JV_MISSING && !jinja_int_arg(r, v, &i))
        return false;
    *out = i != 0;
    return true;
}

FILTER(f_sort)
{
    bool reverse;
    (void)args;
    struct jv list = jv_to_list(r, v);
    if (jv_is_error(list))
        return list;
    struct jv *keys = jv_alloc_array(r, list.u.l->n, sizeof *keys);
    for (size_t i = 0; keys && i < list.u.l->n; i++) {
        keys[i] = sort_key(r, list.u.l->v[i], a[2], flag(a[1]));
        if (jv_is_error(keys[i]))
            return jv_error;
    }
    if (!keys || !reverse_arg(r, a[0], &reverse))
        return jv_error;
    return jinja_sort(r, list.u.l->v, keys, list.u.l->n, reverse) ? list : jv_error;
}

FILTER(f_dictsort)
{
    (void)args;
    if (a[1].type != JV_MISSING && !jv_str_is(a[1], "key") && !jv_str_is(a[1], "value"))
        return jv_fail(r, TLM_EINVAL, "You can only sort by either \"key\" or \"value\"");
    bool reverse, by_value = a[1].type != JV_MISSING && jv_str_is(a[1], "value");
    if (v.type == JV_UNDEFINED)
        return jv_undefined_error(r, v);
    if (v.type != JV_DICT)
        return jv_type_error(r, "'%s' object has no attribute 'items'", jv_type_name(v));
    size_t n = v.u.d->n;
    struct jv list = jv_list_new(r, n), *keys = jv_alloc_array(r, n, sizeof *keys);
    if (jv_is_error(list) || !keys)
        return jv_error;
    for (size_t i = 0; i < n; i++) {
        const struct jv_entry *e = &v.u.d->e[i];
        struct jv key = by_value ? e->value : e->key;
        keys[i] = flag(a[0]) ? key : jinja_ignore_case(r, key);
        if (jv_is_error(keys[i]) || !jv_list_add(r, list, jv_pair(r, e->key, e->value)))
            return jv_error;
    }
    return reverse_arg(r, a[2], &reverse) && jinja_sort(r, list.u.l->v, keys, n, reverse) ? list : jv_error;
}

static struct jv extreme(struct jinja_run *r, struct jv v, const struct jv *a, char op)
{
    struct jv_iter *it = jv_iterate(r, v);
    struct jv best = jv_missing, best_key = jv_missing, item;
    int got = it ? 0 : -1;
    while (it && (got = jv_next(r, it, &item)) > 0) {
        struct jv key = jinja_attr_path(r, item, a[1], jv_missing);
        if (!flag(a[0]))
            key = jinja_ignore_case(r, key);
        int better = jv_is_error(key) ? -1 : best.type == JV_MISSING ? 1 : jv_compare(r, key, best_key, op);
        if (better < 0)
            return jv_error;
        if (better) {
            best = item;
            best_key = key;
        }
    }
    if (got < 0)
        return jv_error;
    return best.type == JV_MISSING ? jv_undefined_hint(r, "No aggregated item, sequence was empty.") : best;
}

FILTER(f_min)
{
    (void)args;
    return extreme(r, v, a, '<');
}

FILTER(f_max)
{
    (void)args;
    return extreme(r, v, a, '>');
}

FILTER(f_sum)
{
    (void)args;
    struct jv total = a[1].type == JV_MISSING ? jv_int(0) : a[1], item;
    if (total.type == JV_STR)
        return jv_type_error(r, "sum() can't sum strings [use ''.join(seq) instead]");
    struct jv_iter *it = jv_iterate(r, v);
    int got = it ? 0 : -1;
    while (it && (got = jv_next(r, it, &item)) > 0) {
        total = jinja_binary(r, '+', total, jinja_attr_path(r, item, a[0], jv_missing));
        if (jv_is_error(total))
            return total;
    }
    return got < 0 ? jv_error : total;
}

FILTER(f_groupby)
{
    (void)args;
    struct jv list = jv_to_list(r, v), groups = jv_list_new(r, 4);
    if (jv_is_error(list) || jv_is_error(groups))
        return jv_error;
    size_t n = list.u.l->n;
    struct jv *keys = jv_alloc_array(r, n, sizeof *keys);
    for (size_t i = 0; keys && i < n; i++) {
        struct jv key = jinja_attr_path(r, list.u.l->v[i], a[0], a[1]);
        keys[i] = flag(a[2]) ? key : jinja_ignore_case(r, key);
        if (jv_is_error(keys[i]))
            return jv_error;
    }
    if (!keys || !jinja_sort(r, list.u.l->v, keys, n, false))
        return jv_error;
    for (size_t i = 0; i < n; i++) {
        int same = i ? jv_equal(r, keys[i - 1], keys[i]) : 0;
        if (same < 0)
            return jv_error;
        if (!same) {
            struct jv grouper = flag(a[2]) ? keys[i] : jinja_attr_path(r, list.u.l->v[i], a[0], a[1]);
            struct jv t = jv_pair(r, grouper, jv_list_new(r, 4));
            if (jv_is_error(grouper) || jv_is_error(t) || jv_is_error(t.u.l->v[1]))
                return jv_error;
            t.u.l->group = true;
            if (!jv_list_add(r, groups, t))
                return jv_error;
        }
        if (!jv_list_add(r, groups.u.l->v[groups.u.l->n - 1].u.l->v[1], list.u.l->v[i]))
            return jv_error;
    }
    return groups;
}

const struct jinja_filter_def jinja_seq_filters[] = {
    {"batch", "linecount,fill_with?", f_batch},
    {"count", "", f_length},
    {"dictsort", "case_sensitive?,by?,reverse?", f_dictsort},
    {"first", "", f_first},
    {"groupby", "attribute,default?,case_sensitive?", f_groupby},
    {"items", "", f_items},
    {"join", "d?,attribute?", f_join},
    {"last", "", f_last},
    {"length", "", f_length},
    {"list", "", f_list},
    {"map", NULL, f_map},
    {"max", "case_sensitive?,attribute?", f_max},
    {"min", "case_sensitive?,attribute?", f_min},
    {"reject", NULL, f_reject},
    {"rejectattr", NULL, f_rejectattr},
    {"reverse", "", f_reverse},
    {"select", NULL, f_select},
    {"selectattr", NULL, f_selectattr},
    {"slice", "slices,fill_with?", f_slice},
    {"sort", "reverse?,case_sensitive?,attribute?", f_sort},
    {"sum", "attribute?,start?", f_sum},
    {"unique", "case_sensitive?,attribute?", f_unique},
    {NULL, NULL, NULL},
};
