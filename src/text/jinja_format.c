/* String formatting: '%' and str.format. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

enum { WIDTH_MAX = 100000, PRECISION_MAX = 300 };

/* What both syntaxes come down to. */
struct spec {
    char fill[4];
    size_t fill_n;
    char align; /* < > = ^ or 0 */
    char sign;  /* + - space or 0 */
    bool alternate, zero;
    char group;               /* , _ or 0 */
    int64_t width, precision; /* precision -1: none */
    char type;
};

static bool add_padded(struct jinja_run *r, struct buf *b, const char *sign, const char *p, size_t n,
                       const struct spec *s, char align)
{
    int64_t have = (int64_t)(strlen(sign) + text_count(p, n)), pad = s->width > have ? s->width - have : 0;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (pad > WIDTH_MAX) {
        jv_fail(r, TLM_ELIMIT, "a format's width is too large");
        return false;
    }
    if (align == '=')
        buf_add_str(b, sign);
    for (int64_t i = 0; i < left; i++)
        buf_add(b, s->fill, s->fill_n);
    if (align != '=')
        buf_add_str(b, sign);
    buf_add(b, p, n);
    for (int64_t i = left; i < pad; i++)
        buf_add(b, s->fill, s->fill_n);
    return jv_buf_ok(r, b);
}

static unsigned number_base(char type)
{
    return type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
}

/* Digits with separators between groups from the right, and zeros before them
 * so that there are at least `width` characters. */
static void add_grouped(struct buf *out, const char *p, size_t n, char sep, size_t every, size_t width)
{
    size_t digits = n;
    while (digits + (digits - 1) / every < width && digits < WIDTH_MAX)
        digits++;
    for (size_t i = 0; i < digits; i++) {
        if (i && (digits - i) % every == 0)
            buf_add_char(out, sep);
        buf_add_char(out, i < digits - n ? '0' : p[i - (digits - n)]);
    }
}

static bool add_number(struct jinja_run *r, struct buf *b, bool negative, const char *prefix, const char *digits,
                       struct spec *s)
{
    char sign[8];
    snprintf(sign, sizeof sign, "%s%s", negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "", prefix);
    size_t n = strlen(digits);
    if (!s->group || !isdigit((unsigned char)digits[0]))
        return add_padded(r, b, sign, digits, n, s, s->align ? s->align : '>');
    bool decimal = number_base(s->type) == 10;
    size_t whole = strspn(digits, decimal ? "0123456789" : "0123456789abcdefABCDEF"), width = 0;
    /* Zero padding takes part in the grouping. */
    if (s->fill[0] == '0' && s->align == '=' && s->fill_n == 1 && s->width > 0) {
        size_t others = strlen(sign) + n - whole;
        width = (size_t)s->width > others ? (size_t)s->width - others : 0;
    }
    struct buf t;
    jv_buf_init(r, &t);
    add_grouped(&t, digits, whole, s->group, decimal ? 3 : 4, width);
    buf_add(&t, digits + whole, n - whole);
    bool ok = jv_buf_ok(r, &t) && jv_step(r, t.len / 16) &&
              add_padded(r, b, sign, buf_str(&t), t.len, s, s->align ? s->align : '>');
    buf_deinit(&t);
    return ok;
}

static bool add_big(struct jinja_run *r, struct buf *b, struct jv v, struct spec *s)
{
    struct buf t;
    char prefix[4] = "";
    jv_buf_init(r, &t);
    bool ok = jinja_big_digits(r, v, number_base(s->type), &t) && buf_add_char(&t, 0) == TLM_OK;
    for (size_t i = 0; ok && s->type == 'X' && i < t.len; i++)
        t.data[i] = (char)toupper((unsigned char)t.data[i]);
    if (s->alternate && number_base(s->type) != 10)
        snprintf(prefix, sizeof prefix, "0%c", s->type);
    ok = ok && add_number(r, b, v.u.s->p[0] == '-', prefix, t.data, s);
    buf_deinit(&t);
    return ok;
}

static bool add_int(struct jinja_run *r, struct buf *b, struct jv v, struct spec *s)
{
    char t[640], prefix[4] = "";
    bool negative;
    if (v.type == JV_BIG)
        return add_big(r, b, v, s);
    negative = v.u.i < 0;
    uint64_t u = negative ? 0 - (uint64_t)v.u.i : (uint64_t)v.u.i;
    size_t k = sizeof t - 1;
    unsigned base = number_base(s->type);
    t[k] = 0;
    do {
        t[--k] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
        u /= base;
    } while (u);
    if (s->alternate && base != 10)
        snprintf(prefix, sizeof prefix, "0%c", s->type);
    return add_number(r, b, negative, prefix, t + k, s);
}

static void strip_zeros(char *t)
{
    char *e = strpbrk(t, "eE"), tail[16] = "";
    if (!strchr(t, '.'))
        return;
    if (e) {
        snprintf(tail, sizeof tail, "%s", e);
        *e = 0;
    }
    size_t n = strlen(t);
    while (n && t[n - 1] == '0')
        n--;
    if (n && t[n - 1] == '.')
        n--;
    memcpy(t + n, tail, strlen(tail) + 1);
}

static void print_double(char *t, size_t n, char type, bool alternate, int precision, double f)
{
    static const char types[] = "eEfFgG";
    static const char *const plain[] = {"%.*e", "%.*E", "%.*f", "%.*F", "%.*g", "%.*G"};
    static const char *const other[] = {"%#.*e", "%#.*E", "%#.*f", "%#.*F", "%#.*g", "%#.*G"};
    for (int i = 0; i < 6; i++)
        if (types[i] == type)
            snprintf(t, n, alternate ? other[i] : plain[i], precision, f);
}

static bool add_float(struct jinja_run *r, struct buf *b, double f, struct spec *s)
{
    char t[700];
    bool negative = signbit(f) != 0 && !isnan(f), percent = s->type == '%';
    char type = percent ? 'f' : s->type == 'n' ? 'g' : s->type;
    double magnitude = fabs(f) * (percent ? 100 : 1);
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    if (s->precision > PRECISION_MAX) {
        jv_fail(r, TLM_ELIMIT, "a format's precision is too large");
        return false;
    }
    if (!isfinite(f)) {
        snprintf(t, sizeof t, "%s", isnan(f) ? "nan" : "inf");
        if (type && strchr("FEG", type))
            memcpy(t, isnan(f) ? "NAN" : "INF", 3);
    } else if (!type && s->precision < 0) {
        char repr[64];
        jv_float_repr(magnitude, repr);
        snprintf(t, sizeof t, "%s", repr);
    } else {
        if (!type || type == 'g' || type == 'G')
            precision = precision ? precision : 1;
        if (!type) {
            snprintf(t, sizeof t, "%.*e", precision - 1, magnitude);
            /* Like 'g', but with at least one digit after the point. */
            char *e = strchr(t, 'e');
            long exponent = e ? strtol(e + 1, NULL, 10) : 0;
            if (exponent >= -4 && exponent < precision - 1) {
                snprintf(t, sizeof t, "%.*f", (int)(precision - 1 - exponent), magnitude);
                strip_zeros(t);
                if (!strchr(t, '.'))
                    snprintf(t + strlen(t), 3, ".0");
            } else {
                strip_zeros(t);
            }
        } else {
            print_double(t, sizeof t, type, s->alternate, precision, magnitude);
        }
    }
    if (percent)
        snprintf(t + strlen(t), 2, "%%");
    return add_number(r, b, negative, "", t, s);
}

/* Python's ascii(): the escapes of repr for every other character, too. */
static void to_ascii(struct buf *b)
{
    struct buf out;
    size_t len;
    buf_init(&out, b->max);
    for (size_t i = 0; i < b->len && out.status == TLM_OK; i += len) {
        uint32_t c = text_get(b->data + i, b->len - i, &len);
        if (c < 0x80)
            buf_add_char(&out, (char)c);
        else
            buf_printf(&out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    buf_deinit(b);
    *b = out;
}

/* One code point by number. */
static bool add_char(struct jinja_run *r, struct buf *b, int64_t c, struct spec *s)
{
    char u[4];
    if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
        jv_fail(r, TLM_EINVAL, "%%c arg not in range(0x110000)");
        return false;
    }
    return add_padded(r, b, "", u, text_put((uint32_t)c, u), s, s->align ? s->align : '<');
}

static bool add_text(struct jinja_run *r, struct buf *b, struct jv v, struct spec *s, char align)
{
    const struct jv_str *t = v.u.s;
    size_t n = t->n;
    if (s->precision >= 0 && (uint64_t)s->precision < t->chars)
        n = text_offset(t->p, t->n, (size_t)s->precision);
    return add_padded(r, b, "", t->p, n, s, align);
}

/* ---- the % operator ---- */

struct percent {
    struct jinja_run *r;
    const char *p;
    size_t n, at;
    struct jv value;
    size_t used;
    bool tuple, safe; /* safe: the format is a safe string */
};

static bool next_arg(struct percent *x, struct jv *out)
{
    size_t have = x->tuple ? x->value.u.l->n : 1;
    if (x->used >= have) {
        jv_type_error(x->r, "not enough arguments for format string");
        return false;
    }
    *out = x->tuple ? x->value.u.l->v[x->used] : x->value;
    x->used++;
    return true;
}

static bool percent_number(struct percent *x, int64_t *out)
{
    struct jv v;
    if (x->at < x->n && x->p[x->at] == '*') {
        x->at++;
        if (!next_arg(x, &v))
            return false;
        if (!jv_is_int(v)) {
            jv_type_error(x->r, "* wants int");
            return false;
        }
        *out = v.u.i;
        return true;
    }
    for (*out = 0; x->at < x->n && isdigit((unsigned char)x->p[x->at]); x->at++) {
        *out = *out * 10 + (x->p[x->at] - '0');
        if (*out > WIDTH_MAX) {
            jv_fail(x->r, TLM_ELIMIT, "a format's width is too large");
            return false;
        }
    }
    return true;
}

/* %(name) */
static bool percent_key(struct percent *x, struct jv *out, bool *has)
{
    *has = x->at < x->n && x->p[x->at] == '(';
    if (!*has)
        return true;
    size_t start = ++x->at, depth = 1;
    while (x->at < x->n && depth) {
        depth += x->p[x->at] == '(';
        depth -= x->p[x->at] == ')';
        x->at++;
    }
    if (depth) {
        jv_fail(x->r, TLM_EINVAL, "incomplete format key");
        return false;
    }
    if (x->value.type != JV_DICT) {
        jv_type_error(x->r, "format requires a mapping");
        return false;
    }
    struct jv key = jv_str_borrow(x->r, x->p + start, x->at - 1 - start);
    int found = jv_is_error(key) ? -1 : jv_dict_get(x->r, x->value.u.d, key, out);
    if (!found)
        jv_fail(x->r, TLM_EINVAL, "the format's key is missing");
    x->used = 1;
    return found > 0;
}

static bool percent_int(struct percent *x, struct buf *b, struct jv v, struct spec *s, char type)
{
    struct jv n = v;
    if (v.type == JV_FLOAT && strchr("diu", type)) {
        struct jinja_args none = {0};
        if (!isfinite(v.u.f)) {
            jv_fail(x->r, TLM_EINVAL, "cannot convert float to integer");
            return false;
        }
        n = jinja_filter(x->r, -1, "int", v, &none);
    }
    if (!jv_is_int(n) && n.type != JV_BIG) {
        jv_type_error(x->r, "%%%c format: a real number is required, not %s", type, jv_type_name(v));
        return false;
    }
    s->type = strchr("diu", type) ? 'd' : type;
    if (s->precision > 0 && n.type != JV_BIG) { /* at least so many digits */
        struct spec inner = {.fill = "0",
                             .fill_n = 1,
                             .align = '=',
                             .type = s->type,
                             .width = s->precision,
                             .precision = -1,
                             .sign = s->sign,
                             .alternate = s->alternate};
        inner.width += n.u.i < 0 || s->sign;
        inner.width += s->alternate && s->type != 'd' ? 2 : 0;
        struct buf t;
        jv_buf_init(x->r, &t);
        bool ok =
            add_int(x->r, &t, n, &inner) && add_padded(x->r, b, "", buf_str(&t), t.len, s, s->align == '<' ? '<' : '>');
        buf_deinit(&t);
        return ok;
    }
    return add_int(x->r, b, n, s);
}

/* A safe format sees its arguments through int() and float() alone. */
static struct jv number_for_safe(struct percent *x, struct jv v, char type)
{
    struct jinja_args missing = {.v = (struct jv[]){jv_missing}, .n = 0};
    int64_t i;
    double f;
    if (type == 'c' || strchr("xXo", type))
        return jv_type_error(x->r, "%%%c format: an integer is required", type);
    if (v.type != JV_STR)
        return v;
    if (strchr("diu", type) ? text_to_int(v.u.s->p, v.u.s->n, 10, &i) : text_to_double(v.u.s->p, v.u.s->n, &f))
        return jinja_filter(x->r, -1, strchr("diu", type) ? "int" : "float", v, &missing);
    return jv_fail(x->r, TLM_EINVAL, "could not convert string to a number");
}

static bool percent_value(struct percent *x, struct buf *b, struct jv v, struct spec *s, char type)
{
    struct jv t;
    if (x->safe && type && strchr("cdiuxXoeEfFgG", type)) {
        v = number_for_safe(x, v, type);
        if (jv_is_error(v))
            return false;
    }
    switch (type) {
    case 's':
    case 'r':
    case 'a':
        if (type == 's') {
            t = jv_to_str(x->r, v);
        } else {
            struct buf repr;
            jv_buf_init(x->r, &repr);
            jv_add_repr(x->r, &repr, v);
            if (type == 'a')
                to_ascii(&repr);
            t = jv_from_buf(x->r, &repr);
        }
        if (x->safe)
            t = jinja_escape(x->r, type == 's' ? v : t);
        s->fill[0] = ' ';
        return !jv_is_error(t) && add_text(x->r, b, t, s, s->align == '<' ? '<' : '>');
    case 'c':
        s->fill[0] = ' ';
        if (jv_is_int(v))
            return add_char(
                x->r, b, v.u.i,
                &(struct spec){.fill = " ", .fill_n = 1, .width = s->width, .align = s->align == '<' ? '<' : '>'});
        if (v.type == JV_STR && v.u.s->chars == 1)
            return add_padded(x->r, b, "", v.u.s->p, v.u.s->n, s, s->align == '<' ? '<' : '>');
        jv_type_error(x->r, "%%c requires int or char");
        return false;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        return percent_int(x, b, v, s, type);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!jv_is_number(v)) {
            if (v.type == JV_UNDEFINED)
                jv_undefined_error(x->r, v);
            else
                jv_type_error(x->r, "must be real number, not %s", jv_type_name(v));
            return false;
        }
        s->type = type;
        return add_float(x->r, b, jv_to_double(v), s);
    default:
        jv_fail(x->r, TLM_EINVAL, "unsupported format character '%c'", type);
        return false;
    }
}

static bool percent_one(struct percent *x, struct buf *b)
{
    struct spec s = {.fill = " ", .fill_n = 1, .precision = -1};
    struct jv v = jv_none;
    bool keyed, left = false;
    if (x->at < x->n && x->p[x->at] == '%') {
        x->at++;
        return buf_add_char(b, '%') == TLM_OK;
    }
    if (!percent_key(x, &v, &keyed))
        return false;
    for (; x->at < x->n && x->p[x->at] && strchr("-+ #0", x->p[x->at]); x->at++) {
        char c = x->p[x->at];
        left = left || c == '-';
        s.alternate = s.alternate || c == '#';
        s.zero = s.zero || c == '0';
        if (c == '+' || (c == ' ' && s.sign != '+'))
            s.sign = c;
    }
    if (!percent_number(x, &s.width))
        return false;
    if (s.width < 0) {
        left = true;
        s.width = -s.width;
    }
    if (x->at < x->n && x->p[x->at] == '.') {
        x->at++;
        if (!percent_number(x, &s.precision))
            return false;
        if (s.precision < 0)
            s.precision = 0;
    }
    while (x->at < x->n && x->p[x->at] && strchr("hlL", x->p[x->at]))
        x->at++;
    if (x->at >= x->n) {
        jv_fail(x->r, TLM_EINVAL, "incomplete format");
        return false;
    }
    char type = x->p[x->at++];
    s.align = left ? '<' : s.zero ? '=' : '>';
    s.fill[0] = s.zero && !left ? '0' : ' ';
    if (!keyed && !next_arg(x, &v))
        return false;
    return percent_value(x, b, v, &s, type);
}

struct jv jinja_percent(struct jinja_run *r, struct jv format, struct jv value)
{
    struct percent x = {r, format.u.s->p, format.u.s->n, 0, value, 0, value.type == JV_TUPLE, format.u.s->safe};
    struct buf b;
    bool ok = jv_step(r, x.n / 16);
    jv_buf_init(r, &b);
    while (ok && x.at < x.n) {
        const char *mark = memchr(x.p + x.at, '%', x.n - x.at);
        size_t end = mark ? (size_t)(mark - x.p) : x.n;
        buf_add(&b, x.p + x.at, end - x.at);
        x.at = end;
        if (!mark)
            break;
        x.at++;
        ok = percent_one(&x, &b);
    }
    bool mapping = value.type == JV_DICT || value.type == JV_LIST || value.type == JV_UNDEFINED ||
                   value.type == JV_RANGE || value.type == JV_VIEW;
    if (ok && x.used < (x.tuple ? value.u.l->n : 1) && !(mapping && !x.tuple && value.type != JV_VIEW))
        jv_type_error(r, "not all arguments converted during string formatting");
    return jinja_safe_if(r, jv_from_buf(r, &b), x.safe);
}

/* ---- str.format ---- */

static bool parse_spec(struct jinja_run *r, const char *p, size_t n, struct spec *s)
{
    size_t i = 0, len = 0;
    bool filled = false;
    *s = (struct spec){.fill = " ", .fill_n = 1, .precision = -1};
    if (n)
        (void)text_get(p, n, &len);
    if (n > len && p[len] && strchr("<>=^", p[len])) {
        memcpy(s->fill, p, len);
        s->fill_n = len;
        filled = true;
        s->align = p[len];
        i = len + 1;
    } else if (n && p[0] && strchr("<>=^", p[0])) {
        s->align = p[i++];
    }
    if (i < n && p[i] && strchr("+- ", p[i]))
        s->sign = p[i++];
    if (i < n && p[i] == '#')
        s->alternate = ++i > 0;
    if (i < n && p[i] == '0') {
        i++;
        s->zero = true;
        if (!s->align)
            s->align = '=';
        if (!filled) {
            s->fill[0] = '0';
            s->fill_n = 1;
        }
    }
    for (; i < n && isdigit((unsigned char)p[i]) && s->width <= WIDTH_MAX; i++)
        s->width = s->width * 10 + (p[i] - '0');
    if (i < n && (p[i] == ',' || p[i] == '_'))
        s->group = p[i++];
    if (i + 1 < n && p[i] == '.' && isdigit((unsigned char)p[i + 1])) {
        s->precision = 0;
        for (i++; i < n && isdigit((unsigned char)p[i]) && s->precision <= WIDTH_MAX; i++)
            s->precision = s->precision * 10 + (p[i] - '0');
    }
    if (i < n)
        s->type = p[i++];
    if (i == n)
        return true;
    jv_fail(r, TLM_EINVAL, "Invalid format specifier");
    return false;
}

static bool format_value(struct jinja_run *r, struct buf *b, struct jv v, const char *p, size_t n)
{
    struct spec s;
    if (!n)
        return jv_add_str(r, b, v);
    if (!parse_spec(r, p, n, &s))
        return false;
    bool number = jv_is_int(v) || v.type == JV_BIG || v.type == JV_FLOAT;
    if (v.type == JV_STR) {
        if ((s.type && s.type != 's') || s.sign || s.alternate || s.group || (s.align == '=' && !s.zero))
            return jv_type_error(r, "the format does not fit a str").type != JV_ERROR;
        return add_text(r, b, v, &s, s.align == '=' || !s.align ? '<' : s.align);
    }
    if (v.type == JV_BOOL && !s.type && !s.group && s.precision < 0) {
        v.type = JV_INT;
    }
    if (!number)
        return jv_type_error(r, "unsupported format string passed to %s.__format__", jv_type_name(v)).type != JV_ERROR;
    if (s.type && strchr("eEfFgG%", s.type))
        return add_float(r, b, jv_to_double(v), &s);
    if (v.type == JV_FLOAT) {
        if (s.type && s.type != 'n')
            return jv_fail(r, TLM_EINVAL, "Unknown format code '%c' for object of type 'float'", s.type).type !=
                   JV_ERROR;
        return add_float(r, b, v.u.f, &s);
    }
    if (s.precision >= 0 || (s.type && !strchr("bcdoxXn", s.type)))
        return jv_fail(r, TLM_EINVAL, "the format does not fit an int").type != JV_ERROR;
    if (s.type == 'c')
        return v.type != JV_BIG && add_char(r, b, v.u.i, &s);
    return add_int(r, b, v, &s);
}

struct formatter {
    struct jinja_run *r;
    const struct jinja_args *args;
    int64_t automatic; /* next number; -1: numbers are given */
    bool safe;
};

static bool first_field(struct formatter *x, const char *p, size_t n, struct jv *out)
{
    int64_t number;
    bool digits = n > 0;
    for (size_t i = 0; i < n; i++)
        digits = digits && isdigit((unsigned char)p[i]);
    if (!n || digits) {
        if ((!n && x->automatic < 0) || (n && x->automatic > 0)) {
            jv_fail(x->r, TLM_EINVAL, "cannot switch between manual and automatic field numbering");
            return false;
        }
        if (!n)
            number = x->automatic++;
        else if (text_to_int(p, n, 10, &number) != 1)
            number = INT64_MAX;
        if (n)
            x->automatic = -1;
        if ((uint64_t)number >= x->args->n) {
            jv_fail(x->r, TLM_EINVAL, "Replacement index %lld out of range for positional args tuple",
                    (long long)number);
            return false;
        }
        *out = x->args->v[number];
        return true;
    }
    struct jv key = jv_str_borrow(x->r, p, n);
    if (!jv_is_error(key) && x->args->kw && jv_dict_get(x->r, x->args->kw, key, out) > 0)
        return true;
    jv_fail(x->r, TLM_EINVAL, "KeyError: '%.*s'", (int)(n & 127), p);
    return false;
}

/* name.attr[key] */
static bool get_field(struct formatter *x, const char *p, size_t n, struct jv *out)
{
    size_t i = 0;
    while (i < n && p[i] != '.' && p[i] != '[')
        i++;
    if (!first_field(x, p, i, out))
        return false;
    while (i < n) {
        bool item = p[i] == '[';
        size_t start = ++i;
        while (i < n && (item ? p[i] != ']' : p[i] != '.' && p[i] != '['))
            i++;
        if (i == start || (item && i == n)) {
            jv_fail(x->r, TLM_EINVAL, "Empty attribute in format string");
            return false;
        }
        int64_t number;
        struct jv key = jv_str_borrow(x->r, p + start, i - start);
        bool digits = item && strspn(p + start, "0123456789") >= i - start;
        if (digits && text_to_int(p + start, i - start, 10, &number) == 1)
            key = jv_int(number);
        *out = item ? jinja_getitem(x->r, *out, key) : jinja_getattr(x->r, *out, key);
        if (jv_is_error(*out))
            return false;
        i += item;
        if (item && i < n && p[i] != '.' && p[i] != '[') {
            jv_fail(x->r, TLM_EINVAL, "Only '.' or '[' may follow ']' in format field specifier");
            return false;
        }
    }
    return true;
}

static bool expand(struct formatter *x, const char *p, size_t n, struct buf *b, int level);

/* Into a safe string: escaped, unless it is one. */
static bool format_safe(struct formatter *x, struct buf *b, struct jv v, const struct buf *spec)
{
    struct buf t;
    if (v.type == JV_STR && v.u.s->safe && spec->len)
        return jv_fail(x->r, TLM_EINVAL, "Unsupported format specification for Markup.").type != JV_ERROR;
    if (v.type == JV_STR && v.u.s->safe)
        return jv_add_str(x->r, b, v);
    jv_buf_init(x->r, &t);
    format_value(x->r, &t, v, buf_str(spec), spec->len);
    struct jv text = jinja_escape(x->r, jv_from_buf(x->r, &t));
    return !jv_is_error(text) && jv_add_str(x->r, b, text);
}

/* name!conversion:spec without its braces */
static bool replacement(struct formatter *x, const char *p, size_t n, struct buf *b, int level)
{
    size_t name = 0;
    int nested = 0;
    while (name < n && !(!nested && (p[name] == '!' || p[name] == ':'))) {
        nested += p[name] == '[';
        nested -= p[name] == ']' && nested;
        name++;
    }
    struct jv v;
    if (!get_field(x, p, name, &v))
        return false;
    size_t i = name;
    if (i < n && p[i] == '!') {
        char how = i + 1 < n ? p[i + 1] : 0;
        i += 2;
        if ((how != 'r' && how != 's' && how != 'a') || (i < n && p[i] != ':')) {
            jv_fail(x->r, TLM_EINVAL, "Unknown conversion specifier in a format string");
            return false;
        }
        struct buf t;
        jv_buf_init(x->r, &t);
        if (how == 's')
            jv_add_str(x->r, &t, v);
        else
            jv_add_repr(x->r, &t, v);
        if (how == 'a')
            to_ascii(&t);
        v = jv_from_buf(x->r, &t);
        if (jv_is_error(v))
            return false;
    }
    i += i < n;
    struct buf spec;
    jv_buf_init(x->r, &spec);
    bool ok =
        expand(x, p + i, n > i ? n - i : 0, &spec, level + 1) &&
        (x->safe && level == 0 ? format_safe(x, b, v, &spec) : format_value(x->r, b, v, buf_str(&spec), spec.len));
    buf_deinit(&spec);
    return ok && x->r->status == TLM_OK;
}

static bool expand(struct formatter *x, const char *p, size_t n, struct buf *b, int level)
{
    if (level > 2)
        return jv_fail(x->r, TLM_EINVAL, "Max string recursion exceeded").type != JV_ERROR;
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '{' && p[i] != '}') {
            buf_add_char(b, p[i]);
            continue;
        }
        if (i + 1 < n && p[i + 1] == p[i]) {
            buf_add_char(b, p[i++]);
            continue;
        }
        if (p[i] == '}')
            return jv_fail(x->r, TLM_EINVAL, "Single '}' encountered in format string").type != JV_ERROR;
        size_t start = ++i, depth = 1;
        for (; i < n && depth; i++) {
            depth += p[i] == '{';
            depth -= p[i] == '}';
        }
        if (depth)
            return jv_fail(x->r, TLM_EINVAL, "expected '}' before end of string").type != JV_ERROR;
        i--;
        if (!jv_step(x->r, 1) || !replacement(x, p + start, i - start, b, level))
            return false;
    }
    return jv_buf_ok(x->r, b);
}

struct jv jinja_format(struct jinja_run *r, struct jv format, const struct jinja_args *args)
{
    struct formatter x = {r, args, 0, format.u.s->safe};
    struct buf b;
    jv_buf_init(r, &b);
    expand(&x, format.u.s->p, format.u.s->n, &b, 0);
    return jinja_safe_if(r, jv_from_buf(r, &b), format.u.s->safe);
}
