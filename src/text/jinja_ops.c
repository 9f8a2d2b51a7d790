/* Operators, subscripts and attributes with Python's results. */
#include <math.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

static bool add_overflows(int64_t a, int64_t b, int64_t *out)
{
    *out = (int64_t)((uint64_t)a + (uint64_t)b);
    return b >= 0 ? *out < a : *out > a;
}

static bool mul_overflows(int64_t a, int64_t b, int64_t *out)
{
    if (a == 0 || b == 0) {
        *out = 0;
        return false;
    }
    if ((a == -1 && b == INT64_MIN) || (b == -1 && a == INT64_MIN))
        return true;
    *out = (int64_t)((uint64_t)a * (uint64_t)b);
    return *out / b != a;
}

static int64_t floor_mod(int64_t a, int64_t b)
{
    if (b == -1)
        return 0;
    int64_t m = a % b;
    return m && (m < 0) != (b < 0) ? m + b : m;
}

static struct jv int_power(struct jinja_run *r, int64_t base, int64_t exponent)
{
    int64_t result = 1, square = base;
    if (exponent < 0)
        return jinja_big_binary(r, 'P', jv_int(base), jv_int(exponent));
    for (int64_t e = exponent; e; e >>= 1) {
        if ((e & 1 && mul_overflows(result, square, &result)) || (e > 1 && mul_overflows(square, square, &square)))
            return jinja_big_binary(r, 'P', jv_int(base), jv_int(exponent));
    }
    return jv_int(result);
}

/* Whether doubles hold the integer exactly. */
static bool exact(int64_t v)
{
    return v >= -((int64_t)1 << 53) && v <= (int64_t)1 << 53;
}

static struct jv int_op(struct jinja_run *r, char op, int64_t a, int64_t b)
{
    int64_t v;
    bool big = false;
    if ((op == '/' || op == 'F' || op == '%') && !b)
        return jv_fail(r, TLM_EINVAL, op == '/' ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case '+':
        big = add_overflows(a, b, &v);
        break;
    case '-':
        big = b == INT64_MIN || add_overflows(a, -b, &v);
        break;
    case '*':
        big = mul_overflows(a, b, &v);
        break;
    case '/':
        if (exact(a) && exact(b))
            return jv_float((double)a / (double)b);
        big = true;
        break;
    case 'F':
        big = b == -1 && a == INT64_MIN;
        if (!big)
            v = b == -1 ? -a : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case '%':
        v = floor_mod(a, b);
        break;
    default:
        return int_power(r, a, b);
    }
    return big ? jinja_big_binary(r, op, jv_int(a), jv_int(b)) : jv_int(v);
}

static struct jv float_divmod(struct jinja_run *r, char op, double a, double b)
{
    if (b == 0)
        return jv_fail(r, TLM_EINVAL, op == '%' ? "float modulo" : "float floor division by zero");
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            div -= 1;
        }
    } else {
        mod = copysign(0, b);
    }
    if (op == '%')
        return jv_float(mod);
    if (div == 0)
        return jv_float(copysign(0, a / b));
    double whole = floor(div);
    return jv_float(div - whole > 0.5 ? whole + 1 : whole);
}

static struct jv float_op(struct jinja_run *r, char op, double a, double b)
{
    double v;
    switch (op) {
    case '+':
        return jv_float(a + b);
    case '-':
        return jv_float(a - b);
    case '*':
        return jv_float(a * b);
    case '/':
        return b == 0 ? jv_fail(r, TLM_EINVAL, "float division by zero") : jv_float(a / b);
    case 'F':
    case '%':
        return float_divmod(r, op, a, b);
    default:
        if (a == 0 && b < 0)
            return jv_fail(r, TLM_EINVAL, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            return jv_fail(r, TLM_EINVAL, "complex numbers are not supported");
        v = pow(a, b);
        if (isinf(v) && isfinite(a) && isfinite(b))
            return jv_fail(r, TLM_EINVAL, "Numerical result out of range");
        return jv_float(v);
    }
}

static const char *op_name(char op)
{
    static const char single[] = "+-*/%";
    static const char *const names[] = {"+", "-", "*", "/", "%"};
    const char *p = strchr(single, op);
    return p && *p ? names[p - single] : op == 'F' ? "//" : "** or pow()";
}

static struct jv bad_operands(struct jinja_run *r, char op, struct jv a, struct jv b)
{
    if (op == '+' && (a.type == JV_STR || jv_is_seq(a)))
        return jv_type_error(r, "can only concatenate %s (not \"%s\") to %s", jv_type_name(a), jv_type_name(b),
                             jv_type_name(a));
    return jv_type_error(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op), jv_type_name(a),
                         jv_type_name(b));
}

struct jv jinja_safe_if(struct jinja_run *r, struct jv v, bool safe)
{
    if (!safe || v.type != JV_STR || v.u.s->safe)
        return v;
    struct jv_str *s = jv_alloc(r, sizeof *s);
    if (!s)
        return jv_error;
    *s = *v.u.s;
    s->safe = true;
    v.u.s = s;
    return v;
}

struct jv jinja_escape(struct jinja_run *r, struct jv v)
{
    if (jv_is_error(v) || (v.type == JV_STR && v.u.s->safe))
        return v;
    struct jv s = jv_to_str(r, v);
    if (jv_is_error(s))
        return s;
    struct buf b;
    jv_buf_init(r, &b);
    for (size_t i = 0; i < s.u.s->n; i++) {
        char c = s.u.s->p[i];
        static const char special[] = "&<>'\"";
        static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
        const char *at = c ? strchr(special, c) : NULL;
        if (at)
            buf_add_str(&b, entity[at - special]);
        else
            buf_add_char(&b, c);
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), true);
}

struct jv jinja_concat2(struct jinja_run *r, struct jv a, struct jv b)
{
    bool safe = a.u.s->safe || b.u.s->safe;
    if (safe) {
        a = jinja_escape(r, a);
        b = jinja_escape(r, b);
        if (jv_is_error(a) || jv_is_error(b))
            return jv_error;
    }
    size_t n = a.u.s->n + b.u.s->n;
    char *p = jv_alloc(r, n);
    struct jv_str *s = jv_alloc(r, sizeof *s);
    if (!p || !s || !jv_step(r, n / 64))
        return jv_error;
    memcpy(p, a.u.s->p, a.u.s->n);
    memcpy(p + a.u.s->n, b.u.s->p, b.u.s->n);
    *s = (struct jv_str){p, n, a.u.s->chars + b.u.s->chars, safe};
    return (struct jv){JV_STR, {.s = s}};
}

static struct jv concat_lists(struct jinja_run *r, struct jv a, struct jv b)
{
    struct jv v = jv_list_new(r, a.u.l->n + b.u.l->n);
    if (jv_is_error(v) || !jv_step(r, a.u.l->n + b.u.l->n))
        return jv_error;
    for (size_t i = 0; i < a.u.l->n; i++)
        v.u.l->v[v.u.l->n++] = a.u.l->v[i];
    for (size_t i = 0; i < b.u.l->n; i++)
        v.u.l->v[v.u.l->n++] = b.u.l->v[i];
    v.type = a.type;
    return v;
}

static struct jv repeat(struct jinja_run *r, struct jv a, int64_t count)
{
    size_t n = a.type == JV_STR ? a.u.s->n : a.u.l->n, times = count > 0 ? (size_t)count : 0;
    size_t size = a.type == JV_STR ? 1 : sizeof(struct jv);
    if (n && times > r->max.memory / size / n)
        return jv_fail(r, TLM_ELIMIT, "a repeated value is larger than the memory limit");
    if (!jv_step(r, n * times / (a.type == JV_STR ? 64 : 1)))
        return jv_error;
    if (a.type == JV_STR) {
        char *p = jv_alloc(r, n * times);
        if (!p)
            return jv_error;
        for (size_t i = 0; n && i < times; i++)
            memcpy(p + i * n, a.u.s->p, n);
        return jinja_safe_if(r, jv_str_borrow(r, p, n * times), a.u.s->safe);
    }
    struct jv v = jv_list_new(r, n * times);
    for (size_t i = 0; !jv_is_error(v) && i < n * times; i++)
        v.u.l->v[v.u.l->n++] = a.u.l->v[i % n];
    if (!jv_is_error(v))
        v.type = a.type;
    return v;
}

struct jv jinja_binary(struct jinja_run *r, char op, struct jv a, struct jv b)
{
    if (jv_is_error(a) || jv_is_error(b))
        return jv_error;
    if (op == '%' && a.type == JV_STR)
        return jinja_percent(r, a, b);
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED)
        return jv_undefined_error(r, a.type == JV_UNDEFINED ? a : b);
    if (jv_is_int(a) && jv_is_int(b))
        return int_op(r, op, a.u.i, b.u.i);
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.type != JV_FLOAT && b.type != JV_FLOAT)
            return jinja_big_binary(r, op, a, b);
        double x = jv_to_double(a), y = jv_to_double(b);
        if ((a.type == JV_BIG && isinf(x)) || (b.type == JV_BIG && isinf(y)))
            return jv_fail(r, TLM_EINVAL, "int too large to convert to float");
        return float_op(r, op, x, y);
    }
    if (op == '+' && a.type == b.type) {
        if (a.type == JV_STR)
            return jinja_concat2(r, a, b);
        if (jv_is_seq(a))
            return concat_lists(r, a, b);
    }
    if (op == '*') {
        if ((a.type == JV_STR || jv_is_seq(a)) && jv_is_int(b))
            return repeat(r, a, b.u.i);
        if ((b.type == JV_STR || jv_is_seq(b)) && jv_is_int(a))
            return repeat(r, b, a.u.i);
    }
    return bad_operands(r, op, a, b);
}

struct jv jinja_unary(struct jinja_run *r, char op, struct jv a)
{
    if (jv_is_error(a))
        return a;
    if (a.type == JV_UNDEFINED)
        return jv_undefined_error(r, a);
    if (a.type == JV_FLOAT)
        return jv_float(op == '-' ? -a.u.f : a.u.f);
    if (jv_is_int(a)) {
        if (op == '-' && a.u.i == INT64_MIN)
            return jinja_big_binary(r, '-', jv_int(0), a);
        return jv_int(op == '-' ? -a.u.i : a.u.i);
    }
    if (a.type == JV_BIG && op == '+')
        return a;
    if (a.type == JV_BIG) {
        const struct jv_str *s = a.u.s;
        if (s->n == 19 && !memcmp(s->p, "9223372036854775808", 19))
            return jv_int(INT64_MIN);
        char *p = jv_alloc(r, s->n + 1);
        if (!p)
            return jv_error;
        p[0] = '-';
        bool negative = s->p[0] == '-';
        memcpy(p + !negative, s->p + negative, s->n - negative);
        struct jv v = jv_str_borrow(r, p, negative ? s->n - 1 : s->n + 1);
        if (!jv_is_error(v))
            v.type = JV_BIG;
        return v;
    }
    return jv_type_error(r, "bad operand type for unary %c: '%s'", op, jv_type_name(a));
}

/* obj[key]: 1 found, 0 Python raises TypeError or LookupError, -1 another error. */
static int subscript(struct jinja_run *r, struct jv obj, struct jv key, struct jv *out)
{
    if (obj.type == JV_DICT) {
        if (key.type == JV_LIST || key.type == JV_DICT || key.type == JV_VIEW)
            return 0;
        return jv_dict_get(r, obj.u.d, key, out);
    }
    if (obj.type == JV_TEMPLATE) {
        *out = jinja_find_block(r, key);
        return jv_is_error(*out) ? -1 : out->type != JV_MISSING;
    }
    if (!jv_is_int(key))
        return 0;
    if (obj.type != JV_STR && !jv_is_seq(obj) && obj.type != JV_RANGE)
        return 0;
    int64_t n = jv_len(r, obj), i = key.u.i < 0 ? key.u.i + n : key.u.i;
    if (i < 0 || i >= n)
        return 0;
    if (jv_is_seq(obj)) {
        *out = obj.u.l->v[i];
    } else if (obj.type == JV_RANGE) {
        *out = jv_int(obj.u.range->start + i * obj.u.range->step);
    } else {
        const struct jv_str *s = obj.u.s;
        size_t len, at = s->n == s->chars ? (size_t)i : text_offset(s->p, s->n, (size_t)i);
        if (s->n != s->chars && !jv_step(r, (uint64_t)i / 64))
            return -1;
        (void)text_get(s->p + at, s->n - at, &len);
        *out = jinja_safe_if(r, jv_str_borrow(r, s->p + at, len), s->safe);
    }
    return jv_is_error(*out) ? -1 : 1;
}

static struct jv unsafe(struct jinja_run *r, struct jv obj, struct jv name)
{
    char *hint = jv_alloc(r, 300);
    if (!hint)
        return jv_error;
    struct buf b;
    buf_init(&b, 299);
    buf_printf(&b, "access to attribute '%.*s' of '%s' object is unsafe.", (int)(name.u.s->n < 100 ? name.u.s->n : 100),
               name.u.s->p, jv_type_name(obj));
    memcpy(hint, buf_str(&b), b.len);
    hint[b.len] = 0;
    buf_deinit(&b);
    return jv_undefined_hint(r, hint);
}

/* 1 found, 0 no such attribute, -1 error. */
static int attribute(struct jinja_run *r, struct jv obj, struct jv name, struct jv *out)
{
    if (!jinja_attribute(r, obj, name.u.s->p, name.u.s->n, out))
        return r->status == TLM_OK ? 0 : -1;
    if (out->type == JV_MISSING)
        *out = unsafe(r, obj, name);
    return jv_is_error(*out) ? -1 : 1;
}

struct jv jinja_getattr(struct jinja_run *r, struct jv obj, struct jv name)
{
    struct jv v = jv_error;
    if (jv_is_error(obj))
        return obj;
    if (obj.type == JV_UNDEFINED)
        return jv_undefined_error(r, obj);
    int got = attribute(r, obj, name, &v);
    if (!got)
        got = subscript(r, obj, name, &v);
    return got > 0 ? v : got < 0 ? jv_error : jv_undefined_attr(r, obj, name);
}

struct jv jinja_getitem(struct jinja_run *r, struct jv obj, struct jv key)
{
    struct jv v = jv_error;
    if (jv_is_error(obj) || jv_is_error(key))
        return jv_error;
    if (obj.type == JV_UNDEFINED)
        return jv_undefined_error(r, obj);
    int got = subscript(r, obj, key, &v);
    if (!got && key.type == JV_STR)
        got = attribute(r, obj, key, &v);
    return got > 0 ? v : got < 0 ? jv_error : jv_undefined_attr(r, obj, key);
}

static bool slice_index(struct jinja_run *r, struct jv v, int64_t *out)
{
    if (jv_is_int(v)) {
        *out = v.u.i;
        return true;
    }
    if (v.type == JV_BIG) {
        *out = v.u.s->p[0] == '-' ? INT64_MIN : INT64_MAX;
        return true;
    }
    if (!jv_is_error(v))
        jv_type_error(r, "slice indices must be integers or None or have an __index__ method");
    return false;
}

struct jv jinja_slice(struct jinja_run *r, struct jv obj, const struct jv part[3])
{
    if (jv_is_error(obj))
        return obj;
    if (obj.type == JV_UNDEFINED)
        return jv_undefined_error(r, obj);
    if (obj.type != JV_STR && !jv_is_seq(obj) && obj.type != JV_RANGE)
        return jv_type_error(r, obj.type == JV_DICT ? "unhashable type: 'slice'" : "'%s' object is not subscriptable",
                             jv_type_name(obj));
    if (obj.type == JV_RANGE && part[2].type == JV_BIG) /* its step would be one, too */
        return jv_fail(r, TLM_EUNSUPPORTED, "a range with an integer beyond 64 bits is not supported");
    int64_t n = jv_len(r, obj), bound[2], step = 1;
    if (part[2].type != JV_NONE && !slice_index(r, part[2], &step))
        return jv_error;
    if (!step)
        return jv_fail(r, TLM_EINVAL, "slice step cannot be zero");
    if (step == INT64_MIN)
        step = -INT64_MAX;
    for (int i = 0; i < 2; i++) {
        int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
        bound[i] = (i == 0) == (step < 0) ? high : low;
        if (part[i].type == JV_NONE)
            continue;
        if (!slice_index(r, part[i], &bound[i]))
            return jv_error;
        if (bound[i] < 0)
            bound[i] = bound[i] < -n ? low : bound[i] + n;
        if (bound[i] > high)
            bound[i] = high;
        if (bound[i] < low)
            bound[i] = low;
    }
    struct jv range = jv_range(r, bound[0], bound[1], step);
    if (jv_is_error(range))
        return range;
    int64_t count = range.u.range->n, start = bound[0];
    if (!jv_step(r, (uint64_t)count / 8 + (uint64_t)n / 64))
        return jv_error;
    if (obj.type == JV_RANGE) {
        const struct jv_range *g = obj.u.range;
        return jv_range(r, g->start + start * g->step, g->start + bound[1] * g->step, g->step * step);
    }
    if (jv_is_seq(obj)) {
        struct jv v = jv_list_new(r, (size_t)count);
        for (int64_t i = 0; !jv_is_error(v) && i < count; i++)
            v.u.l->v[v.u.l->n++] = obj.u.l->v[start + i * step];
        if (!jv_is_error(v))
            v.type = obj.type;
        return v;
    }
    const struct jv_str *s = obj.u.s;
    bool ascii = s->n == s->chars;
    if (step == 1) {
        size_t from = ascii ? (size_t)start : text_offset(s->p, s->n, (size_t)start);
        size_t len = ascii ? (size_t)count : text_offset(s->p + from, s->n - from, (size_t)count);
        return jinja_safe_if(r, jv_str_borrow(r, s->p + from, len), s->safe);
    }
    size_t *at = ascii ? NULL : jv_alloc_array(r, s->chars + 1, sizeof *at), k = 0;
    if (!ascii && !at)
        return jv_error;
    for (size_t i = 0; at && i < s->n; i++)
        if (((unsigned char)s->p[i] & 0xc0) != 0x80)
            at[k++] = i;
    struct buf b;
    jv_buf_init(r, &b);
    for (int64_t i = 0; i < count; i++) {
        size_t c = (size_t)(start + i * step), from = at ? at[c] : c, len = 1;
        if (at)
            (void)text_get(s->p + from, s->n - from, &len);
        buf_add(&b, s->p + from, len);
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), s->safe);
}
