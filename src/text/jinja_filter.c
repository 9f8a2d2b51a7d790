/* Tables of filters and tests, the tests themselves, sorting and attribute
 * paths that filters share. */
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

static const struct jinja_filter_def *const tables[] = {jinja_text_filters, jinja_seq_filters, jinja_misc_filters,
                                                        jinja_wrap_filters};

enum { TABLES = sizeof tables / sizeof tables[0], ROW_STRIDE = 1000 };

int jinja_filter_row(const char *name)
{
    for (int t = 0; t < TABLES; t++)
        for (int i = 0; tables[t][i].name; i++)
            if (!strcmp(tables[t][i].name, name))
                return t * ROW_STRIDE + i;
    return -1;
}

struct jv jinja_filter(struct jinja_run *r, int row, const char *name, struct jv value, const struct jinja_args *args)
{
    struct jv a[6];
    if (jv_is_error(value) || !jv_step(r, 1))
        return jv_error;
    if (row < 0)
        row = jinja_filter_row(name);
    if (row < 0)
        return jv_fail(r, TLM_EINVAL, "No filter named '%s'.", name);
    const struct jinja_filter_def *f = &tables[row / ROW_STRIDE][row % ROW_STRIDE];
    for (int i = 0; i < 6; i++)
        a[i] = jv_missing;
    if (f->spec && !jinja_bind(r, f->name, f->spec, args, a))
        return jv_error;
    return f->fn(r, value, a, args);
}

struct jv jinja_ignore_case(struct jinja_run *r, struct jv v)
{
    return v.type == JV_STR ? jinja_case(r, v, TEXT_LOWER) : v;
}

static bool all_digits(const char *p, size_t n)
{
    size_t len;
    for (size_t i = 0; i < n; i += len)
        if (!text_digit(text_get(p + i, n - i, &len)))
            return false;
    return n > 0;
}

struct jv jinja_attr_path(struct jinja_run *r, struct jv item, struct jv path, struct jv fallback)
{
    if (path.type == JV_NONE || path.type == JV_MISSING)
        return item;
    bool replace = fallback.type != JV_MISSING && fallback.type != JV_NONE;
    if (path.type != JV_STR) {
        item = jinja_getitem(r, item, path);
        return replace && item.type == JV_UNDEFINED ? fallback : item;
    }
    const char *p = path.u.s->p;
    size_t n = path.u.s->n, start = 0;
    for (size_t i = 0; i <= n && !jv_is_error(item); i++) {
        if (i < n && p[i] != '.')
            continue;
        int64_t number;
        struct jv key;
        if (all_digits(p + start, i - start)) {
            if (text_to_int(p + start, i - start, 10, &number) != 1)
                return jv_fail(r, TLM_EINVAL, "an attribute's index is out of range");
            key = jv_int(number);
        } else {
            key = jv_str_borrow(r, p + start, i - start);
        }
        item = jinja_getitem(r, item, key);
        if (replace && item.type == JV_UNDEFINED)
            item = fallback;
        start = i + 1;
    }
    return item;
}

/* Stable merge sort of items by their keys. */
static bool merge_sort(struct jinja_run *r, struct jv *item, struct jv *key, struct jv *item2, struct jv *key2,
                       size_t n, bool reverse)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t i = start, mid = start + width < n ? start + width : n;
            size_t j = mid, end = mid + width < n ? mid + width : n;
            for (size_t k = start; k < end; k++) {
                int second = i == mid;
                if (i < mid && j < end) {
                    if (!jv_step(r, 1))
                        return false;
                    second = reverse ? jv_compare(r, key[i], key[j], '<') : jv_compare(r, key[j], key[i], '<');
                    if (second < 0)
                        return false;
                }
                size_t from = second ? j++ : i++;
                item2[k] = item[from];
                key2[k] = key[from];
            }
        }
        memcpy(item, item2, n * sizeof *item);
        memcpy(key, key2, n * sizeof *key);
    }
    return true;
}

bool jinja_sort(struct jinja_run *r, struct jv *items, struct jv *keys, size_t n, bool reverse)
{
    struct jv *space = jv_alloc_array(r, n, 2 * sizeof *space);
    if (!space)
        return false;
    return merge_sort(r, items, keys, space, space + n, n, reverse);
}

/* ---- tests ---- */

enum test_id {
    IS_ODD,
    IS_EVEN,
    IS_DIVISIBLE,
    IS_DEFINED,
    IS_UNDEFINED,
    IS_FILTER,
    IS_TEST,
    IS_NONE,
    IS_BOOLEAN,
    IS_FALSE,
    IS_TRUE,
    IS_INTEGER,
    IS_FLOAT,
    IS_LOWER,
    IS_UPPER,
    IS_STRING,
    IS_MAPPING,
    IS_NUMBER,
    IS_SEQUENCE,
    IS_ITERABLE,
    IS_CALLABLE,
    IS_SAME,
    IS_ESCAPED,
    IS_IN,
    IS_EQ,
    IS_NE,
    IS_GT,
    IS_GE,
    IS_LT,
    IS_LE
};

static const struct {
    const char *name;
    enum test_id id;
    bool argument;
} tests[] = {
    {"odd", IS_ODD, false},
    {"even", IS_EVEN, false},
    {"divisibleby", IS_DIVISIBLE, true},
    {"defined", IS_DEFINED, false},
    {"undefined", IS_UNDEFINED, false},
    {"filter", IS_FILTER, false},
    {"test", IS_TEST, false},
    {"none", IS_NONE, false},
    {"boolean", IS_BOOLEAN, false},
    {"false", IS_FALSE, false},
    {"true", IS_TRUE, false},
    {"integer", IS_INTEGER, false},
    {"float", IS_FLOAT, false},
    {"lower", IS_LOWER, false},
    {"upper", IS_UPPER, false},
    {"string", IS_STRING, false},
    {"mapping", IS_MAPPING, false},
    {"number", IS_NUMBER, false},
    {"sequence", IS_SEQUENCE, false},
    {"iterable", IS_ITERABLE, false},
    {"callable", IS_CALLABLE, false},
    {"sameas", IS_SAME, true},
    {"escaped", IS_ESCAPED, false},
    {"in", IS_IN, true},
    {"==", IS_EQ, true},
    {"eq", IS_EQ, true},
    {"equalto", IS_EQ, true},
    {"!=", IS_NE, true},
    {"ne", IS_NE, true},
    {">", IS_GT, true},
    {"gt", IS_GT, true},
    {"greaterthan", IS_GT, true},
    {"ge", IS_GE, true},
    {">=", IS_GE, true},
    {"<", IS_LT, true},
    {"lt", IS_LT, true},
    {"lessthan", IS_LT, true},
    {"<=", IS_LE, true},
    {"le", IS_LE, true},
};

int jinja_test_row(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (!strcmp(tests[i].name, name))
            return (int)i;
    return -1;
}

static int remainder_is(struct jinja_run *r, struct jv v, struct jv by, int64_t want)
{
    struct jv m = jinja_binary(r, '%', v, by);
    return jv_is_error(m) ? -1 : jv_equal(r, m, jv_int(want));
}

static bool named(struct jv v, int (*row)(const char *))
{
    char name[64];
    if (v.type != JV_STR || v.u.s->n >= sizeof name)
        return false;
    memcpy(name, v.u.s->p, v.u.s->n);
    name[v.u.s->n] = 0;
    return row(name) >= 0;
}

static int case_test(struct jinja_run *r, struct jv v, bool upper)
{
    struct jv s = jv_to_str(r, v), name = jv_cstr(r, upper ? "isupper" : "islower");
    if (jv_is_error(s) || jv_is_error(name))
        return -1;
    struct jinja_args none = {0};
    struct jv got = jinja_call(r, jinja_getattr(r, s, name), &none);
    return jv_is_error(got) ? -1 : jv_truth(got);
}

static bool is_sequence(struct jv v)
{
    return v.type == JV_UNDEFINED || v.type == JV_STR || jv_is_seq(v) || v.type == JV_DICT || v.type == JV_RANGE;
}

static bool is_callable(struct jv v)
{
    return v.type == JV_FUNC || v.type == JV_LOOP || v.type == JV_JOINER || v.type == JV_UNDEFINED;
}

static int type_test(enum test_id id, struct jv v)
{
    switch (id) {
    case IS_DEFINED:
        return v.type != JV_UNDEFINED;
    case IS_UNDEFINED:
        return v.type == JV_UNDEFINED;
    case IS_FILTER:
        return named(v, jinja_filter_row);
    case IS_TEST:
        return named(v, jinja_test_row);
    case IS_NONE:
        return v.type == JV_NONE;
    case IS_BOOLEAN:
        return v.type == JV_BOOL;
    case IS_FALSE:
        return v.type == JV_BOOL && !v.u.i;
    case IS_TRUE:
        return v.type == JV_BOOL && v.u.i;
    case IS_INTEGER:
        return v.type == JV_INT || v.type == JV_BIG;
    case IS_FLOAT:
        return v.type == JV_FLOAT;
    case IS_STRING:
        return v.type == JV_STR;
    case IS_MAPPING:
        return v.type == JV_DICT;
    case IS_NUMBER:
        return jv_is_number(v);
    case IS_SEQUENCE:
        return is_sequence(v);
    case IS_ITERABLE:
        return jv_iterable(v);
    case IS_CALLABLE:
        return is_callable(v);
    default:
        return v.type == JV_STR && v.u.s->safe;
    }
}

int jinja_test(struct jinja_run *r, int row, const char *name, struct jv v, const struct jinja_args *args)
{
    struct jv a = jv_missing;
    if (row < 0)
        row = jinja_test_row(name);
    if (row < 0) {
        jv_fail(r, TLM_EINVAL, "No test named '%s'.", name);
        return -1;
    }
    enum test_id id = tests[row].id;
    const char *spec = id == IS_DIVISIBLE ? "num" : id == IS_SAME ? "other" : id == IS_IN ? "seq" : "/other";
    if (!jinja_bind(r, name, tests[row].argument ? spec : "", args, &a))
        return -1;
    int same;
    if ((id == IS_FILTER || id == IS_TEST) &&
        (v.type == JV_LIST || v.type == JV_DICT || (v.type == JV_VIEW && v.u.view->kind != JV_VALUES))) {
        jv_type_error(r, "unhashable type: '%s'", jv_type_name(v));
        return -1;
    }
    switch (tests[row].id) {
    case IS_ODD:
        return remainder_is(r, v, jv_int(2), 1);
    case IS_EVEN:
        return remainder_is(r, v, jv_int(2), 0);
    case IS_DIVISIBLE:
        return remainder_is(r, v, a, 0);
    case IS_LOWER:
    case IS_UPPER:
        return case_test(r, v, tests[row].id == IS_UPPER);
    case IS_SAME:
        return jv_identical(v, a) && v.type != JV_FLOAT;
    case IS_IN:
        return jv_contains(r, a, v);
    case IS_EQ:
        return jv_equal(r, v, a);
    case IS_NE:
        same = jv_equal(r, v, a);
        return same < 0 ? same : !same;
    case IS_GT:
        return jv_compare(r, v, a, '>');
    case IS_GE:
        return jv_compare(r, v, a, 'g');
    case IS_LT:
        return jv_compare(r, v, a, '<');
    case IS_LE:
        return jv_compare(r, v, a, 'l');
    default:
        return type_test(tests[row].id, v);
    }
}
