/* Integers beyond 64 bits. A value of type JV_BIG holds its decimal digits;
 * arithmetic unpacks them into limbs of nine digits, the lowest first. Results
 * have at most BIG_DIGITS digits, the length at which Python stops to print. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

enum { LIMB = 1000000000, LIMB_DIGITS = 9, BIG_DIGITS = 4300 };

struct big {
    bool negative; /* never for zero */
    size_t n;      /* no zero limb at the top; zero has none */
    uint32_t *d;
};

static bool big_new(struct jinja_run *r, struct big *b, size_t n)
{
    *b = (struct big){.n = n, .d = jv_alloc_array(r, n ? n : 1, sizeof *b->d)};
    if (b->d)
        memset(b->d, 0, n * sizeof *b->d);
    return b->d && jv_step(r, n / 16);
}

static void trim(struct big *b)
{
    while (b->n && !b->d[b->n - 1])
        b->n--;
    b->negative = b->negative && b->n;
}

static bool unpack(struct jinja_run *r, struct jv v, struct big *b)
{
    char t[32];
    const char *p = t;
    size_t n;
    if (v.type == JV_BIG) {
        p = v.u.s->p;
        n = v.u.s->n;
    } else {
        n = (size_t)snprintf(t, sizeof t, "%lld", (long long)v.u.i);
    }
    bool negative = p[0] == '-';
    p += negative;
    n -= negative;
    if (!big_new(r, b, (n + LIMB_DIGITS - 1) / LIMB_DIGITS))
        return false;
    for (size_t i = 0; i < n; i++) {
        uint32_t *limb = &b->d[(n - 1 - i) / LIMB_DIGITS];
        *limb = *limb * 10 + (uint32_t)(p[i] - '0');
    }
    b->negative = negative;
    trim(b);
    return true;
}

static struct jv pack(struct jinja_run *r, const struct big *b)
{
    if (b->n * LIMB_DIGITS > BIG_DIGITS + LIMB_DIGITS)
        return jv_fail(r, TLM_ELIMIT, "an integer has more than the limit of %d digits", BIG_DIGITS);
    size_t room = b->n * LIMB_DIGITS + 3, k = 0;
    char *t = jv_alloc(r, room);
    int64_t small;
    if (!t)
        return jv_error;
    if (b->negative)
        t[k++] = '-';
    for (size_t i = b->n; i-- > 0;)
        k += (size_t)snprintf(t + k, room - k, i + 1 == b->n ? "%u" : "%09u", (unsigned)b->d[i]);
    if (!b->n)
        t[k++] = '0';
    t[k] = 0;
    if (b->n <= 3 && text_to_int(t, k, 10, &small) == 1)
        return jv_int(small);
    struct jv v = jv_str_borrow(r, t, k);
    if (!jv_is_error(v))
        v.type = JV_BIG;
    return v;
}

static int compare_magnitude(const struct big *a, const struct big *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (size_t i = a->n; i-- > 0;)
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    return 0;
}

/* |a| + |b|, or |a| - |b| where |a| >= |b|. */
static bool add_magnitude(struct jinja_run *r, const struct big *a, const struct big *b, bool subtract, struct big *out)
{
    size_t n = (a->n > b->n ? a->n : b->n) + 1;
    if (!big_new(r, out, n))
        return false;
    int64_t carry = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t x = i < a->n ? a->d[i] : 0, y = i < b->n ? b->d[i] : 0;
        int64_t sum = x + (subtract ? -y : y) + carry;
        carry = sum < 0 ? -1 : sum / LIMB;
        out->d[i] = (uint32_t)(sum - carry * LIMB);
    }
    trim(out);
    return true;
}

static bool add(struct jinja_run *r, const struct big *a, const struct big *b, bool subtract, struct big *out)
{
    bool b_negative = b->n && b->negative != subtract;
    bool ok, negative;
    if (a->negative == b_negative || !b->n || !a->n) {
        negative = a->n ? a->negative : b_negative;
        ok = add_magnitude(r, a, b, false, out);
    } else {
        bool larger = compare_magnitude(a, b) >= 0;
        negative = larger ? a->negative : b_negative;
        ok = larger ? add_magnitude(r, a, b, true, out) : add_magnitude(r, b, a, true, out);
    }
    out->negative = ok && negative && out->n;
    return ok;
}

static bool multiply(struct jinja_run *r, const struct big *a, const struct big *b, struct big *out)
{
    if ((a->n + b->n) * LIMB_DIGITS > 4 * BIG_DIGITS) {
        jv_fail(r, TLM_ELIMIT, "an integer has more than the limit of %d digits", BIG_DIGITS);
        return false;
    }
    if (!big_new(r, out, a->n + b->n) || !jv_step(r, a->n * b->n / 16))
        return false;
    for (size_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < b->n || carry; j++) {
            uint64_t v = out->d[i + j] + carry + (j < b->n ? (uint64_t)a->d[i] * b->d[j] : 0);
            out->d[i + j] = (uint32_t)(v % LIMB);
            carry = v / LIMB;
        }
    }
    out->negative = a->negative != b->negative;
    trim(out);
    return true;
}

/* b in place: quotient by a small number; the remainder. */
static uint32_t divide_small(struct big *b, uint32_t by)
{
    uint64_t rest = 0;
    for (size_t i = b->n; i-- > 0;) {
        rest = rest * LIMB + b->d[i];
        b->d[i] = (uint32_t)(rest / by);
        rest %= by;
    }
    while (b->n && !b->d[b->n - 1])
        b->n--;
    return (uint32_t)rest;
}

/* b in place: b * by + plus; there is room for one more limb. */
static void multiply_small(struct big *b, uint32_t by, uint32_t plus)
{
    uint64_t carry = plus;
    for (size_t i = 0; i < b->n; i++) {
        carry += (uint64_t)b->d[i] * by;
        b->d[i] = (uint32_t)(carry % LIMB);
        carry /= LIMB;
    }
    if (carry)
        b->d[b->n++] = (uint32_t)carry;
}

/* |a| = q |b| + rest with schoolbook division: the divisor is scaled so that
 * its top limb is large, then each quotient limb is guessed from two limbs and
 * lowered until it fits. */
static bool divide_magnitude(struct jinja_run *r, const struct big *a, const struct big *b, struct big *q,
                             struct big *rest)
{
    struct big u, v;
    if (compare_magnitude(a, b) < 0) {
        *rest = *a;
        return big_new(r, q, 0);
    }
    if (!big_new(r, &u, a->n + 2) || !big_new(r, &v, b->n + 1) || !big_new(r, q, a->n + 1) ||
        !jv_step(r, a->n * b->n / 16))
        return false;
    memcpy(u.d, a->d, a->n * sizeof *u.d);
    memcpy(v.d, b->d, b->n * sizeof *v.d);
    u.n = a->n;
    v.n = b->n;
    if (b->n == 1) {
        uint32_t small = divide_small(&u, b->d[0]);
        *q = u;
        if (!big_new(r, rest, 1))
            return false;
        rest->d[0] = small;
        trim(rest);
        return true;
    }
    uint32_t scale = (uint32_t)(LIMB / (b->d[b->n - 1] + 1));
    multiply_small(&u, scale, 0);
    multiply_small(&v, scale, 0);
    size_t n = v.n;
    for (size_t j = a->n >= n ? a->n - n + 1 : 0; j-- > 0;) {
        uint64_t top = (uint64_t)u.d[j + n] * LIMB + u.d[j + n - 1];
        uint64_t guess = top / v.d[n - 1], left = top % v.d[n - 1];
        while (guess >= LIMB || guess * v.d[n - 2] > left * LIMB + u.d[j + n - 2]) {
            guess--;
            left += v.d[n - 1];
            if (left >= LIMB)
                break;
        }
        int64_t borrow = 0;
        for (size_t i = 0; i <= n; i++) {
            int64_t take = (int64_t)u.d[j + i] + borrow - (i < n ? (int64_t)(guess * v.d[i]) : 0);
            borrow = take >= 0 ? 0 : -((-take + LIMB - 1) / LIMB);
            u.d[j + i] = (uint32_t)(take - borrow * LIMB);
        }
        if (borrow < 0) {
            guess--;
            uint64_t carry = 0;
            for (size_t i = 0; i <= n; i++) {
                carry += (uint64_t)u.d[j + i] + (i < n ? v.d[i] : 0);
                u.d[j + i] = (uint32_t)(carry % LIMB);
                carry /= LIMB;
            }
        }
        q->d[j] = (uint32_t)guess;
    }
    trim(q);
    u.n = n;
    while (u.n && !u.d[u.n - 1])
        u.n--;
    (void)divide_small(&u, scale);
    *rest = u;
    return true;
}

/* Floor division as Python's: the remainder has the divisor's sign. */
static bool divide(struct jinja_run *r, const struct big *a, const struct big *b, struct big *q, struct big *rest)
{
    struct big one, was;
    if (!divide_magnitude(r, a, b, q, rest))
        return false;
    q->negative = a->negative != b->negative && q->n;
    rest->negative = a->negative && rest->n;
    if (!rest->n || a->negative == b->negative)
        return true;
    was = *q;
    return unpack(r, jv_int(1), &one) && add(r, &was, &one, true, q) && (was = *rest, add(r, &was, b, false, rest));
}

/* a / b to the nearest double: so many digits of the quotient that none of the
 * halfway points between doubles can lie between it and the rest cut off. */
static struct jv true_divide(struct jinja_run *r, const struct big *a, const struct big *b)
{
    enum { EXTRA = 90 }; /* limbs: 810 digits */
    struct big scaled, q, rest;
    size_t shift = b->n > a->n ? b->n - a->n + EXTRA : EXTRA;
    if (!big_new(r, &scaled, a->n + shift))
        return jv_error;
    memcpy(scaled.d + shift, a->d, a->n * sizeof *a->d);
    trim(&scaled);
    if (!divide_magnitude(r, &scaled, b, &q, &rest))
        return jv_error;
    struct buf t;
    jv_buf_init(r, &t);
    for (size_t i = q.n; i-- > 0;)
        buf_printf(&t, i + 1 == q.n ? "%u" : "%09u", (unsigned)q.d[i]);
    buf_printf(&t, "%de-%zu", rest.n ? 1 : 0, shift * LIMB_DIGITS + 1);
    double f = jv_buf_ok(r, &t) ? strtod(buf_str(&t), NULL) : 0;
    buf_deinit(&t);
    if (isinf(f))
        return jv_fail(r, TLM_EINVAL, "integer division result too large for a float");
    return jv_float(a->negative != b->negative ? -f : f);
}

static struct jv power(struct jinja_run *r, const struct big *base, struct jv exponent)
{
    struct big result, square = *base, next;
    if (exponent.type != JV_INT && exponent.type != JV_BOOL) {
        /* Only 0, 1 and -1 survive such exponents. */
        bool unit = base->n <= 1 && (!base->n || base->d[0] == 1);
        if (!unit || exponent.u.s->p[0] == '-')
            return jv_fail(r, TLM_ELIMIT, "an integer has more than the limit of %d digits", BIG_DIGITS);
        exponent = jv_int((exponent.u.s->p[exponent.u.s->n - 1] - '0') % 2 ? 3 : 2);
    }
    if (!unpack(r, jv_int(1), &result))
        return jv_error;
    for (uint64_t e = (uint64_t)exponent.u.i; e; e >>= 1) {
        if (e & 1) {
            if (!multiply(r, &result, &square, &next))
                return jv_error;
            result = next;
        }
        if (e > 1) {
            if (!multiply(r, &square, &square, &next))
                return jv_error;
            square = next;
        }
    }
    return pack(r, &result);
}

struct jv jinja_big_binary(struct jinja_run *r, char op, struct jv a, struct jv b)
{
    struct big x, y, out, rest;
    if (!unpack(r, a, &x) || !unpack(r, b, &y))
        return jv_error;
    if ((op == '/' || op == 'F' || op == '%') && !y.n)
        return jv_fail(r, TLM_EINVAL, op == '/' ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case '+':
    case '-':
        return add(r, &x, &y, op == '-', &out) ? pack(r, &out) : jv_error;
    case '*':
        return multiply(r, &x, &y, &out) ? pack(r, &out) : jv_error;
    case '/':
        return true_divide(r, &x, &y);
    case 'F':
    case '%':
        return divide(r, &x, &y, &out, &rest) ? pack(r, op == '%' ? &rest : &out) : jv_error;
    default:
        if (!y.negative)
            return power(r, &x, b);
        if (!x.n)
            return jv_fail(r, TLM_EINVAL, "0.0 cannot be raised to a negative power");
        if (isinf(jv_to_double(a)) || isinf(jv_to_double(b)))
            return jv_fail(r, TLM_EINVAL, "int too large to convert to float");
        return jv_float(pow(jv_to_double(a), jv_to_double(b)));
    }
}

struct jv jinja_big_read(struct jinja_run *r, const char *p, size_t n, int base)
{
    struct big b;
    bool negative = n && p[0] == '-';
    size_t i = n && (p[0] == '-' || p[0] == '+');
    if (n > BIG_DIGITS * 4)
        return jv_fail(r, TLM_ELIMIT, "an integer has more than the limit of %d digits", BIG_DIGITS);
    if (n - i > 2 && p[i] == '0' && strchr("xXoObB", p[i + 1]))
        i += 2;
    if (!big_new(r, &b, n / 5 + 2) || !jv_step(r, n * n / 200))
        return jv_error;
    for (b.n = 0; i < n; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'z' ? c - 'a' + 10
                : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                       : 99;
        if (d < base)
            multiply_small(&b, (uint32_t)base, (uint32_t)d);
    }
    b.negative = negative;
    trim(&b);
    return pack(r, &b);
}

bool jinja_big_digits(struct jinja_run *r, struct jv v, unsigned base, struct buf *out)
{
    struct big b;
    struct buf t;
    if (!unpack(r, v, &b) || !jv_step(r, b.n * b.n))
        return false;
    jv_buf_init(r, &t);
    while (b.n)
        buf_add_char(&t, "0123456789abcdef"[divide_small(&b, base)]);
    for (size_t i = t.len; i-- > 0;)
        buf_add_char(out, t.data[i]);
    bool ok = jv_buf_ok(r, &t) && jv_buf_ok(r, out);
    buf_deinit(&t);
    return ok;
}

struct jv jinja_big_from_double(struct jinja_run *r, double f)
{
    char t[400];
    if (f >= -0x1p63 && f < 0x1p63)
        return jv_int((int64_t)f);
    int n = snprintf(t, sizeof t, "%.0f", f);
    struct jv v = jv_str(r, t, (size_t)n);
    if (!jv_is_error(v))
        v.type = JV_BIG;
    return v;
}
