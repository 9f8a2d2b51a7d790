/* Calls: argument binding, global functions, callables of all kinds. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja_eval.h"

enum { RANGE_MAX_ITEMS = 100000, FORMAT_MAX = 400 };

enum global_id { G_RANGE, G_DICT, G_NAMESPACE, G_CYCLER, G_JOINER, G_RAISE, G_STRFTIME, G_LIPSUM, G_COUNT };

static const char *const global_names[G_COUNT] = {"range",           "dict",         "namespace", "cycler", "joiner",
                                                  "raise_exception", "strftime_now", "lipsum"};

static bool has_keyword(const struct jinja_args *args, const char *name, size_t n, struct jv *out)
{
    for (size_t i = 0; args->kw && i < args->kw->n; i++) {
        const struct jv_str *s = args->kw->e[i].key.u.s;
        if (s->n == n && !memcmp(s->p, name, n)) {
            *out = args->kw->e[i].value;
            return true;
        }
    }
    return false;
}

bool jinja_bind(struct jinja_run *r, const char *function, const char *spec, const struct jinja_args *args,
                struct jv *out)
{
    bool keywords = *spec != '/';
    size_t used = 0, i = 0;
    const char *p = keywords ? spec : spec + 1;
    for (; *p; i++) {
        size_t n = strcspn(p, ",?");
        bool optional = p[n] == '?';
        out[i] = i < args->n ? args->v[i] : jv_missing;
        struct jv kw;
        if (keywords && has_keyword(args, p, n, &kw)) {
            if (i < args->n) {
                jv_type_error(r, "%s() got multiple values for argument '%.*s'", function, (int)n, p);
                return false;
            }
            out[i] = kw;
            used++;
        }
        if (out[i].type == JV_MISSING && !optional) {
            jv_type_error(r, "%s() missing required argument '%.*s'", function, (int)n, p);
            return false;
        }
        p += n + optional;
        p += *p == ',';
    }
    if (args->n > i || (args->kw && args->kw->n > used)) {
        jv_type_error(r,
                      args->n > i ? "%s() takes %zu arguments but %zu were given"
                                  : "%s() got an unexpected keyword argument (of %zu known; %zu positional)",
                      function, i, args->n);
        return false;
    }
    return r->status == TLM_OK;
}

bool jinja_int_arg(struct jinja_run *r, struct jv v, int64_t *out)
{
    if (jv_is_int(v)) {
        *out = v.u.i;
        return true;
    }
    if (v.type == JV_BIG)
        jv_fail(r, TLM_EINVAL, "an integer is too large");
    else if (v.type == JV_UNDEFINED)
        jv_undefined_error(r, v);
    else if (!jv_is_error(v))
        jv_type_error(r, "'%s' object cannot be interpreted as an integer", jv_type_name(v));
    return false;
}

bool jinja_str_arg(struct jinja_run *r, const char *function, struct jv v)
{
    if (v.type == JV_STR)
        return true;
    if (!jv_is_error(v))
        jv_type_error(r, "%s() argument must be str, not %s", function, jv_type_name(v));
    return false;
}

static bool add_pairs(struct jinja_run *r, struct jv_dict *d, struct jv source)
{
    struct jv item;
    if (source.type == JV_DICT) {
        for (size_t i = 0; i < source.u.d->n; i++)
            if (!jv_dict_set(r, d, source.u.d->e[i].key, source.u.d->e[i].value))
                return false;
        return true;
    }
    struct jv_iter *it = jv_iterate(r, source);
    int got = it ? 0 : -1;
    while (it && (got = jv_next(r, it, &item)) > 0) {
        struct jv pair = jv_to_list(r, item);
        if (jv_is_error(pair))
            return false;
        if (pair.u.l->n != 2) {
            jv_fail(r, TLM_EINVAL, "dictionary update sequence element has length %zu; 2 is required", pair.u.l->n);
            return false;
        }
        if (!jv_dict_set(r, d, pair.u.l->v[0], pair.u.l->v[1]))
            return false;
    }
    return got == 0;
}

struct jv jinja_dict_from(struct jinja_run *r, const struct jinja_args *args)
{
    struct jv d = jv_dict_new(r);
    if (args->n > 1)
        return jv_type_error(r, "dict expected at most 1 argument, got %zu", args->n);
    if (jv_is_error(d) || (args->n && !add_pairs(r, d.u.d, args->v[0])))
        return jv_error;
    for (size_t i = 0; args->kw && i < args->kw->n; i++)
        if (!jv_dict_set(r, d.u.d, args->kw->e[i].key, args->kw->e[i].value))
            return jv_error;
    return d;
}

static struct jv make_namespace(struct jinja_run *r, const struct jinja_args *args)
{
    struct jv d = jinja_dict_from(r, args);
    for (size_t i = 0; !jv_is_error(d) && i < d.u.d->n; i++) {
        struct jv key = d.u.d->e[i].key;
        if (key.type == JV_STR && key.u.s->n && key.u.s->p[0] == '_')
            return jv_fail(r, TLM_EINVAL,
                           "Chat templates cannot store underscore-prefixed attributes on a namespace, "
                           "but got '%.*s'.",
                           (int)(key.u.s->n & 127), key.u.s->p);
    }
    if (!jv_is_error(d))
        d.type = JV_NAMESPACE;
    return d;
}

static struct jv make_range(struct jinja_run *r, const struct jinja_args *args)
{
    int64_t v[3] = {0, 0, 1};
    if (args->kw && args->kw->n)
        return jv_type_error(r, "range() takes no keyword arguments");
    if (args->n < 1 || args->n > 3)
        return jv_type_error(r, "range expected 1 to 3 arguments, got %zu", args->n);
    for (size_t i = 0; i < args->n; i++)
        if (!jinja_int_arg(r, args->v[i], &v[args->n == 1 ? 1 : i]))
            return jv_error;
    if (!v[2])
        return jv_fail(r, TLM_EINVAL, "range() arg 3 must not be zero");
    struct jv range = jv_range(r, v[0], v[1], v[2]);
    if (!jv_is_error(range) && range.u.range->n > RANGE_MAX_ITEMS)
        return jv_fail(r, TLM_ELIMIT, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                       RANGE_MAX_ITEMS);
    return range;
}

static struct jv make_cycler(struct jinja_run *r, enum jv_type type, const struct jinja_args *args)
{
    struct jv_cycler *c = jv_alloc(r, sizeof *c);
    struct jv sep;
    if (!c)
        return jv_error;
    if (type == JV_JOINER) {
        if (!jinja_bind(r, "joiner", "sep?", args, &sep))
            return jv_error;
        if (sep.type == JV_MISSING)
            sep = jv_cstr(r, ", ");
        struct jv list = jv_tuple_new(r, 1);
        if (jv_is_error(list))
            return jv_error;
        list.u.l->v[0] = sep;
        *c = (struct jv_cycler){list.u.l->v, 1, 0};
    } else {
        if (args->kw && args->kw->n)
            return jv_type_error(r, "cycler() takes no keyword arguments");
        if (!args->n)
            return jv_fail(r, TLM_EINVAL, "at least one item has to be provided");
        *c = (struct jv_cycler){args->v, args->n, 0};
    }
    return (struct jv){type, {.cycler = c}};
}

static struct jv raise_exception(struct jinja_run *r, const struct jinja_args *args)
{
    struct jv message;
    if (!jinja_bind(r, "raise_exception", "message", args, &message))
        return jv_error;
    message = jv_to_str(r, message);
    if (jv_is_error(message))
        return message;
    /* The template's own words, without our prefix. */
    r->status = TLM_EINVAL;
    int n = message.u.s->n < 900 ? (int)message.u.s->n : 900;
    err_set(r->e, TLM_EINVAL, "%.*s", n, message.u.s->p);
    return jv_error;
}

/* Python's part of strftime for a time without a zone: %f, and no %z and %Z. */
static void expand_format(const struct jv_str *s, long microseconds, char *out)
{
    size_t k = 0;
    out[k++] = 'x'; /* so that an empty result differs from no room; in front, for the last % may lack its letter */
    for (size_t i = 0; i < s->n; i++) {
        char next = s->p[i] == '%' && i + 1 < s->n ? s->p[i + 1] : 0;
        if (next == 'f') {
            for (long unit = 100000; unit; unit /= 10)
                out[k++] = (char)('0' + microseconds / unit % 10);
            i++;
        } else if (next == 'z' || next == 'Z') {
            i++;
        } else {
            out[k++] = s->p[i];
            if (next)
                out[k++] = s->p[++i];
        }
    }
    out[k] = 0;
}

static struct jv strftime_now(struct jinja_run *r, const struct jinja_args *args)
{
    struct jv format;
    if (!jinja_bind(r, "strftime_now", "format", args, &format) || !jinja_str_arg(r, "strftime_now", format))
        return jv_error;
    if (format.u.s->n > FORMAT_MAX || memchr(format.u.s->p, 0, format.u.s->n))
        return jv_fail(r, TLM_EINVAL, "the format of strftime_now is too long or holds a NUL");
    struct timespec now = {.tv_sec = (time_t)r->now};
    struct tm tm;
    char f[FORMAT_MAX * 3 + 2], out[4096];
    if ((r->now < 0 && clock_gettime(CLOCK_REALTIME, &now)) || !localtime_r(&now.tv_sec, &tm))
        return jv_fail(r, TLM_EINVAL, "strftime_now: the time is out of range");
    expand_format(format.u.s, now.tv_nsec / 1000, f);
    size_t n = strftime(out, sizeof out, f, &tm);
    if (!n)
        return jv_fail(r, TLM_ELIMIT, "strftime_now: the result is too long");
    return jv_str(r, out + 1, n - 1);
}

static struct jv call_global(struct jinja_run *r, int id, const struct jinja_args *args)
{
    switch (id) {
    case G_RANGE:
        return make_range(r, args);
    case G_DICT:
        return jinja_dict_from(r, args);
    case G_NAMESPACE:
        return make_namespace(r, args);
    case G_CYCLER:
    case G_JOINER:
        return make_cycler(r, id == G_CYCLER ? JV_CYCLER : JV_JOINER, args);
    case G_RAISE:
        return raise_exception(r, args);
    case G_LIPSUM:
        return jv_fail(r, TLM_EUNSUPPORTED, "the function lipsum is not supported");
    default:
        return strftime_now(r, args);
    }
}

struct jv jinja_global(struct jinja_run *r, const char *name)
{
    for (int i = 0; i < G_COUNT; i++) {
        if (strcmp(name, global_names[i]))
            continue;
        if (r->builtins[i].type == JV_FUNC)
            return r->builtins[i];
        struct jv_func *fn = jv_alloc(r, sizeof *fn);
        if (!fn)
            return jv_error;
        *fn = (struct jv_func){.kind = JV_GLOBAL, .id = i, .self = jv_none};
        return r->builtins[i] = (struct jv){JV_FUNC, {.fn = fn}};
    }
    return jv_missing;
}

struct jv jinja_call(struct jinja_run *r, struct jv callee, const struct jinja_args *args)
{
    if (!jv_step(r, 1))
        return jv_error;
    switch (callee.type) {
    case JV_ERROR:
        return jv_error;
    case JV_UNDEFINED:
        return jv_undefined_error(r, callee);
    case JV_LOOP:
        return jinja_call_loop(r, callee.u.loop, args);
    case JV_JOINER:
        if (args->n || (args->kw && args->kw->n))
            return jv_type_error(r, "joiner takes no arguments");
        if (callee.u.cycler->pos++)
            return callee.u.cycler->v[0];
        return jv_cstr(r, "");
    case JV_FUNC:
        break;
    default:
        return jv_type_error(r, "'%s' object is not callable", jv_type_name(callee));
    }
    const struct jv_func *fn = callee.u.fn;
    if (fn->kind == JV_MACRO)
        return jinja_call_macro(r, fn, args);
    if (fn->kind == JV_BLOCK)
        return jinja_call_block(r, fn, args);
    return fn->kind == JV_METHOD ? jinja_call_method(r, fn, args) : call_global(r, fn->id, args);
}
