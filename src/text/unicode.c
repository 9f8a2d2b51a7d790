/* See unicode.h. */
#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/utf8.h"

enum char_class { CLASS_MARK, CLASS_ANY_MARK, CLASS_OTHER, CLASS_PUNCT, CLASS_NUMERIC, CLASS_WORD };

/* Where the library's tables are older or newer than utf8proc's; sorted. */
static const struct fix {
    uint8_t class, value;
    uint32_t first, last;
} fixes[] = {
#define FIX(class, first, last, value) {CLASS_##class, value, first, last},
#define LOWER(from, to)
#include "text/unicode_fix.def"
#undef FIX
#undef LOWER
};

static const struct {
    uint32_t from, to;
} lowers[] = {
#define FIX(class, first, last, value)
#define LOWER(from, to) {from, to},
#include "text/unicode_fix.def"
#undef FIX
#undef LOWER
};

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

/* The value of a character whose class is known better, or -1. */
static int fixed_class(enum char_class class, uint32_t c)
{
    size_t lo = 0, hi = sizeof fixes / sizeof *fixes;
    if (c < 0x600)
        return -1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct fix *f = &fixes[mid];
        if (f->class < class || (f->class == class && f->last < c))
            lo = mid + 1;
        else if (f->class > class || f->first > c)
            hi = mid;
        else
            return f->value;
    }
    return -1;
}

bool unicode_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_decimal(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    /* Since Unicode 15, which utf8proc 2.8 has. */
    static const uint32_t later[][2] = {
        {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139},
        {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa},
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (c >= later[i][0] && c <= later[i][1])
            return true;
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool unicode_is_numeric(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    int known = fixed_class(CLASS_NUMERIC, c);
    utf8proc_category_t k = category(c);
    return known >= 0 ? known : k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool unicode_is_punct(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    int known = fixed_class(CLASS_PUNCT, c);
    utf8proc_category_t k = category(c);
    return known >= 0 ? known : k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool unicode_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    int known = fixed_class(CLASS_WORD, c);
    if (known >= 0)
        return known;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* join controls; symbols with the property Alphabetic */
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}

bool unicode_is_mark(uint32_t c)
{
    if (c < 0x300)
        return false;
    int known = fixed_class(CLASS_MARK, c);
    return known >= 0 ? known : category(c) == UTF8PROC_CATEGORY_MN;
}

bool unicode_is_any_mark(uint32_t c)
{
    if (c < 0x300)
        return false;
    int known = fixed_class(CLASS_ANY_MARK, c);
    utf8proc_category_t k = category(c);
    return known >= 0 ? known : k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

bool unicode_is_other(uint32_t c)
{
    int known = fixed_class(CLASS_OTHER, c);
    utf8proc_category_t k = category(c);
    return known >= 0 ? known : k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool unicode_is_han(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

int unicode_script(uint32_t c)
{
    static const struct {
        uint32_t first, last;
        int class;
    } rows[] = {
#define SCRIPT(first, last, class) {first, last, class},
#include "text/unicode_scripts.def"
#undef SCRIPT
    };
    size_t lo = 0, hi = sizeof rows / sizeof *rows;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (rows[mid].last < c)
            lo = mid + 1;
        else if (rows[mid].first > c)
            hi = mid;
        else
            return rows[mid].class;
    }
    return 0;
}

static uint32_t lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    for (size_t i = 0; c >= 0x1c89 && i < sizeof lowers / sizeof *lowers; i++)
        if (lowers[i].from == c)
            return lowers[i].to;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

enum tlm_status unicode_add_lower(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len;
        char bytes[4];
        uint32_t c = utf8_get(s + i, &len);
        if (c == 0x130) { /* the one lower-case mapping to two characters */
            if (buf_add(out, "i\xcc\x87", 3) != TLM_OK)
                return out->status;
        } else {
            if (buf_add(out, bytes, (size_t)utf8_put(bytes, lower(c))) != TLM_OK)
                return out->status;
        }
        i += (size_t)len;
    }
    return TLM_OK;
}

/* Characters that the HF tokenizers library (0.23) does not normalize or order,
 * as its tables are older than ours: they stay, and nothing moves or composes
 * across them. U+11A7, which precedes the trailing Hangul consonants and is
 * none, is here because utf8proc 2.8 takes it for one. Found by comparing all
 * characters; tests/oracle/compare_normal_forms.py does it again. */
static const uint32_t fixed[][2] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},   {0x1715, 0x1715},   {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},
    {0x10781, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac},
    {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
    {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9},
};

static bool is_fixed(uint32_t c)
{
    size_t lo = 0, hi = sizeof fixed / sizeof *fixed;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (fixed[mid][1] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof fixed / sizeof *fixed && c >= fixed[lo][0];
}

struct normal_run {
    utf8proc_int32_t *chars, *spare;
    size_t n, cap;
};

/* Stable sort by combining class of one run of marks: counting sort, so that a
 * long hostile run stays linear. Few distinct classes, short runs: insertion. */
static void order_marks(struct normal_run *r, size_t from, size_t to)
{
    utf8proc_int32_t *c = r->chars;
    size_t n = to - from, count[257] = {0};
    if (n <= 16) {
        for (size_t i = from + 1; i < to; i++) {
            utf8proc_int32_t x = c[i];
            int k = utf8proc_get_property(x)->combining_class;
            size_t j = i;
            for (; j > from && utf8proc_get_property(c[j - 1])->combining_class > k; j--)
                c[j] = c[j - 1];
            c[j] = x;
        }
        return;
    }
    for (size_t i = from; i < to; i++)
        count[(utf8proc_get_property(c[i])->combining_class & 255) + 1]++;
    for (int k = 0; k < 256; k++)
        count[k + 1] += count[k];
    for (size_t i = from; i < to; i++)
        r->spare[count[utf8proc_get_property(c[i])->combining_class & 255]++] = c[i];
    memcpy(c + from, r->spare, n * sizeof *c);
}

static enum tlm_status run_reserve(struct normal_run *r, size_t extra)
{
    if (r->n + extra <= r->cap)
        return TLM_OK;
    size_t cap = (r->n + extra) * 2;
    utf8proc_int32_t *a = mem_realloc_array(r->chars, cap, sizeof *a);
    if (a)
        r->chars = a;
    utf8proc_int32_t *b = a ? mem_realloc_array(r->spare, cap, sizeof *b) : NULL;
    if (b)
        r->spare = b;
    if (!a || !b)
        return TLM_ENOMEM;
    r->cap = cap;
    return TLM_OK;
}

/* One run: decompose each character, order the marks, compose. */
static enum tlm_status normalize_run(struct normal_run *r, struct buf *out, const char *s, size_t n, int options)
{
    r->n = 0;
    for (size_t i = 0; i < n;) {
        int len, last = 0;
        uint32_t c = utf8_get(s + i, &len);
        if (run_reserve(r, 32) != TLM_OK)
            return TLM_ENOMEM;
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)c, r->chars + r->n, 32, (utf8proc_option_t)options, &last);
        if (got < 0 || got > 32)
            return TLM_EINTERNAL;
        r->n += (size_t)got;
        i += (size_t)len;
    }
    for (size_t i = 0; i < r->n;) {
        size_t j = i;
        while (j < r->n && utf8proc_get_property(r->chars[j])->combining_class)
            j++;
        if (j - i > 1)
            order_marks(r, i, j);
        i = j + (j == i);
    }
    /* Writes the UTF-8 over the array, which needs one byte more. */
    if (run_reserve(r, 1) != TLM_OK)
        return TLM_ENOMEM;
    utf8proc_ssize_t bytes = utf8proc_reencode(r->chars, (utf8proc_ssize_t)r->n, (utf8proc_option_t)options);
    if (bytes < 0)
        return TLM_EINTERNAL;
    return buf_add(out, r->chars, (size_t)bytes);
}

/* Below these first characters nothing changes and nothing composes with what
 * stands before it: U+0300 for NFC, U+00C0 for NFD, U+00A0 for the compatible
 * forms. So simple stretches are copied, and a run starts one character early. */
enum tlm_status unicode_normalize(struct buf *out, const char *s, size_t n, enum unicode_form form)
{
    static const int option[] = {
        [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    const uint8_t first = form == UNICODE_NFC ? 0xcc : form == UNICODE_NFD ? 0xc3 : 0xc2;
    struct normal_run r = {NULL, NULL, 0, 0};
    enum tlm_status status = TLM_OK;
    size_t done = 0, i = 0, prev = 0; /* prev: start of the character before i */
    while (i < n && status == TLM_OK) {
        if ((uint8_t)s[i] < first) {
            prev = i;
            i += (size_t)utf8_len(s[i]);
            continue;
        }
        size_t end = i;
        int len = 0;
        while (end < n && (uint8_t)s[end] >= first && !is_fixed(utf8_get(s + end, &len)))
            end += (size_t)len;
        status = buf_add(out, s + done, prev - done);
        if (status == TLM_OK)
            status = normalize_run(&r, out, s + prev, end - prev, option[form]);
        done = end;
        if (end < n && (uint8_t)s[end] >= first) /* a fixed one, copied later */
            end += (size_t)len;
        prev = i = end;
    }
    if (status == TLM_OK)
        status = buf_add(out, s + done, n - done);
    mem_free(r.chars);
    mem_free(r.spare);
    return status;
}
