/* Filters over numbers, JSON, defaults and attributes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

#define FILTER(name)                                                                                                   \
    static struct jv name(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)

static bool flag(struct jv v)
{
    return v.type != JV_MISSING && jv_truth(v);
}

FILTER(f_abs)
{
    (void)a;
    (void)args;
    if (v.type == JV_FLOAT)
        return jv_float(fabs(v.u.f));
    if (jv_is_int(v) && v.u.i >= 0)
        return jv_int(v.u.i);
    if (v.type == JV_UNDEFINED)
        return jv_type_error(r, "bad operand type for abs(): 'Undefined'");
    bool negative = jv_is_int(v) || (v.type == JV_BIG && v.u.s->p[0] == '-');
    if (!jv_is_number(v))
        return jv_type_error(r, "bad operand type for abs(): '%s'", jv_type_name(v));
    return jinja_unary(r, negative ? '-' : '+', v);
}

FILTER(f_default)
{
    (void)args;
    if (v.type != JV_UNDEFINED && !(flag(a[1]) && !jv_truth(v)))
        return v;
    return a[0].type == JV_MISSING ? jv_cstr(r, "") : a[0];
}

FILTER(f_attr)
{
    (void)args;
    struct jv out;
    if (!jinja_str_arg(r, "attr", a[0]))
        return jv_error;
    if (v.type == JV_UNDEFINED)
        return jv_undefined_error(r, v);
    if (!jinja_attribute(r, v, a[0].u.s->p, a[0].u.s->n, &out))
        return r->status == TLM_OK ? jv_undefined_attr(r, v, a[0]) : jv_error;
    return out.type == JV_MISSING ? jinja_getattr(r, v, a[0]) : out;
}

/* int(float): toward zero; 0 and *bad when it does not fit or is no number. */
static struct jv truncated(struct jinja_run *r, double f, struct jv otherwise)
{
    if (isnan(f) || isinf(f))
        return otherwise;
    if (fabs(f) < 9.2e18)
        return jv_int((int64_t)f);
    return jinja_big_from_double(r, f);
}

/* Base 0 is told by the number's own prefix. */
static int number_base(const struct jv_str *s, int base)
{
    size_t i = s->n && (s->p[0] == '-' || s->p[0] == '+');
    char mark = (char)(i + 1 < s->n && s->p[i] == '0' ? s->p[i + 1] | 32 : 0);
    if (base)
        return base;
    return mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
}

FILTER(f_int)
{
    (void)args;
    struct jv otherwise = a[0].type == JV_MISSING ? jv_int(0) : a[0];
    int64_t base = 10, i;
    double f;
    if (v.type == JV_STR) {
        if (a[1].type != JV_MISSING && !jv_is_int(a[1]))
            return text_to_double(v.u.s->p, v.u.s->n, &f) ? truncated(r, f, otherwise) : otherwise;
        if (a[1].type != JV_MISSING)
            base = a[1].u.i;
        int got = base < 0 || base > 36 ? 0 : text_to_int(v.u.s->p, v.u.s->n, (int)base, &i);
        if (got == 1)
            return jv_int(i);
        if (got == 2) {
            struct jv plain = jinja_strip(r, v, jv_missing, true, true);
            return jv_is_error(plain)
                       ? plain
                       : jinja_big_read(r, plain.u.s->p, plain.u.s->n, number_base(plain.u.s, (int)base));
        }
        return text_to_double(v.u.s->p, v.u.s->n, &f) ? truncated(r, f, otherwise) : otherwise;
    }
    if (jv_is_int(v))
        return jv_int(v.u.i);
    if (v.type == JV_BIG)
        return v;
    if (v.type == JV_FLOAT && isinf(v.u.f))
        return jv_fail(r, TLM_EINVAL, "cannot convert float infinity to integer");
    if (v.type == JV_FLOAT)
        return truncated(r, v.u.f, otherwise);
    return v.type == JV_UNDEFINED ? jv_undefined_error(r, v) : otherwise;
}

FILTER(f_float)
{
    (void)args;
    double f;
    if (v.type == JV_BIG && isinf(jv_to_double(v)))
        return jv_fail(r, TLM_EINVAL, "int too large to convert to float");
    if (jv_is_number(v))
        return jv_float(jv_to_double(v));
    if (v.type == JV_STR && text_to_double(v.u.s->p, v.u.s->n, &f))
        return jv_float(f);
    if (v.type == JV_UNDEFINED)
        return jv_undefined_error(r, v);
    return a[0].type == JV_MISSING ? jv_float(0) : a[0];
}

/* Half to even, at 10 ** -digits. */
static struct jv round_int(struct jinja_run *r, struct jv v, int64_t digits)
{
    if (digits >= 0)
        return v.type == JV_BOOL ? jv_int(v.u.i) : v;
    if (digits < -5000)
        return jv_int(0);
    struct jv unit = jinja_binary(r, 'P', jv_int(10), jv_int(-digits)), rest = jinja_binary(r, '%', v, unit);
    struct jv down = jinja_binary(r, '-', v, rest),
              odd = jinja_binary(r, '%', jinja_binary(r, 'F', down, unit), jv_int(2));
    struct jv twice = jinja_binary(r, '*', rest, jv_int(2));
    int above = jv_compare(r, twice, unit, '>'), half = jv_equal(r, twice, unit);
    if (above < 0 || half < 0 || jv_is_error(odd))
        return jv_error;
    return above || (half && jv_truth(odd)) ? jinja_binary(r, '+', down, unit) : down;
}

static double round_half_even(double f)
{
    double whole = floor(f), rest = f - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0))
        whole += 1;
    return copysign(whole, f);
}

static struct jv round_float(double f, int64_t digits)
{
    if (!isfinite(f) || digits > 323)
        return jv_float(f);
    if (digits < -308)
        return jv_float(copysign(0, f));
    if (digits >= 0) {
        char t[700];
        snprintf(t, sizeof t, "%.*f", (int)digits, f);
        return jv_float(strtod(t, NULL));
    }
    double unit = pow(10, (double)-digits);
    return jv_float(round_half_even(f / unit) * unit);
}

FILTER(f_round)
{
    (void)args;
    int64_t digits = 0;
    struct jv precision = a[0].type == JV_MISSING ? jv_int(0) : a[0];
    bool common = a[1].type == JV_MISSING || jv_str_is(a[1], "common");
    if (!common && !jv_str_is(a[1], "ceil") && !jv_str_is(a[1], "floor"))
        return jv_fail(r, TLM_EINVAL, "method must be common, ceil or floor");
    if (v.type == JV_UNDEFINED)
        return common ? jv_type_error(r, "type Undefined doesn't define __round__ method") : jv_undefined_error(r, v);
    if (common) {
        if (!jv_is_number(v))
            return jv_type_error(r, "type %s doesn't define __round__ method", jv_type_name(v));
        if (precision.type == JV_NONE && v.type == JV_FLOAT)
            return isfinite(v.u.f) ? truncated(r, round_half_even(v.u.f), jv_none)
                                   : jv_fail(r, TLM_EINVAL, "cannot convert float to integer");
        if (precision.type != JV_NONE && !jinja_int_arg(r, precision, &digits))
            return jv_error;
        return v.type == JV_FLOAT ? round_float(v.u.f, digits) : round_int(r, v, digits);
    }
    struct jv scale = jinja_binary(r, 'P', jv_int(10), precision), scaled = jinja_binary(r, '*', v, scale);
    if (jv_is_error(scaled))
        return scaled;
    if (!jv_is_number(scaled))
        return jv_type_error(r, "must be real number, not %s", jv_type_name(scaled));
    double f = jv_to_double(scaled);
    if (!isfinite(f))
        return jv_fail(r, TLM_EINVAL, "cannot convert float to integer");
    if (jv_is_int(scaled))
        return jinja_binary(r, '/', scaled, scale);
    return jv_float((jv_str_is(a[1], "ceil") ? ceil(f) : floor(f)) / jv_to_double(scale));
}

FILTER(f_filesizeformat)
{
    static const char *const units[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    struct jv number = f_float(r, v, &jv_none, args);
    if (number.type != JV_FLOAT)
        return jv_is_error(number) ? number : jv_type_error(r, "could not convert to float");
    bool binary = flag(a[0]);
    double n = number.u.f, base = binary ? 1024 : 1000, unit = base;
    char t[400];
    int i = 0;
    if (n == 1)
        return jv_cstr(r, "1 Byte");
    if (n < base) {
        snprintf(t, sizeof t, "%.0f Bytes", trunc(n) + 0.0);
        return jv_str(r, t, strlen(t));
    }
    for (unit = base * base; i < 7 && !(n < unit); i++)
        unit *= base;
    snprintf(t, sizeof t, "%.1f %s", base * n / unit, units[binary][i]);
    return jv_str(r, t, strlen(t));
}

/* The separators argument: (item separator, key separator). */
static bool read_separators(struct jinja_run *r, struct jv v, struct jinja_dump *how)
{
    if (v.type == JV_MISSING || v.type == JV_NONE)
        return true;
    struct jv list = jv_to_list(r, v);
    if (jv_is_error(list))
        return false;
    if (list.u.l->n != 2) {
        jv_fail(r, TLM_EINVAL, "tojson: separators must be two strings");
        return false;
    }
    const char *out[2];
    for (int i = 0; i < 2; i++) {
        const struct jv item = list.u.l->v[i];
        if (!jinja_str_arg(r, "tojson", item))
            return false;
        char *s = jv_alloc(r, item.u.s->n + 1);
        if (!s)
            return false;
        memcpy(s, item.u.s->p, item.u.s->n);
        s[item.u.s->n] = 0;
        out[i] = s;
    }
    how->item_sep = out[0];
    how->key_sep = out[1];
    return true;
}

FILTER(f_tojson)
{
    (void)args;
    struct jinja_dump how = {.ascii = flag(a[0]), .sort_keys = flag(a[3]), .key_sep = ": "};
    struct jv indent = a[1];
    if (indent.type != JV_MISSING && indent.type != JV_NONE) {
        int64_t n = 0;
        struct jv space = jv_cstr(r, " ");
        if (indent.type != JV_STR && !jinja_int_arg(r, indent, &n))
            return jv_error;
        indent = indent.type == JV_STR ? indent : jinja_binary(r, '*', space, jv_int(n));
        if (jv_is_error(indent))
            return indent;
        how.indent = indent.u.s->p ? indent.u.s->p : "";
        how.indent_n = indent.u.s->n;
    }
    how.item_sep = how.indent ? "," : ", ";
    if (!read_separators(r, a[2], &how))
        return jv_error;
    struct buf b;
    jv_buf_init(r, &b);
    if (!jinja_json_write(r, &b, v, &how)) {
        buf_deinit(&b);
        return jv_error;
    }
    return jv_from_buf(r, &b);
}

const struct jinja_filter_def jinja_misc_filters[] = {
    {"abs", "", f_abs},
    {"attr", "name", f_attr},
    {"d", "default_value?,boolean?", f_default},
    {"default", "default_value?,boolean?", f_default},
    {"filesizeformat", "binary?", f_filesizeformat},
    {"float", "default?", f_float},
    {"int", "default?,base?", f_int},
    {"round", "precision?,method?", f_round},
    {"tojson", "ensure_ascii?,indent?,separators?,sort_keys?", f_tojson},
    {NULL, NULL, NULL},
};
