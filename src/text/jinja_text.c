/* Unicode text as Python's str sees it. See jinja_text.h. */
#define _GNU_SOURCE
#include "text/jinja_text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/jinja_case.h"

size_t text_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

bool text_valid(const char *p, size_t n)
{
    const unsigned char *s = (const unsigned char *)p;
    for (size_t i = 0; i < n;) {
        unsigned c = s[i];
        size_t k = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
        if (!k || k > n - i)
            return false;
        for (size_t j = 1; j < k; j++)
            if ((s[i + j] & 0xc0) != 0x80)
                return false;
        if (k == 3 && ((c == 0xe0 && s[i + 1] < 0xa0) || (c == 0xed && s[i + 1] >= 0xa0)))
            return false;
        if (k == 4 && ((c == 0xf0 && s[i + 1] < 0x90) || (c == 0xf4 && s[i + 1] >= 0x90)))
            return false;
        i += k;
    }
    return true;
}

size_t text_count(const char *p, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)p[i] & 0xc0) != 0x80;
    return count;
}

uint32_t text_get(const char *p, size_t n, size_t *len)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t k = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (k > n)
        k = 1;
    *len = k;
    if (k == 1)
        return s[0];
    uint32_t c = s[0] & (0xffu >> (k + 1));
    for (size_t i = 1; i < k; i++)
        c = c << 6 | (s[i] & 63);
    return c;
}

size_t text_offset(const char *p, size_t n, size_t i)
{
    size_t at = 0;
    for (; at < n; at++)
        if (((unsigned char)p[at] & 0xc0) != 0x80 && i-- == 0)
            break;
    return at;
}

static int category(uint32_t c)
{
    return (int)utf8proc_category((utf8proc_int32_t)c);
}

static bool in_ranges(const uint32_t (*range)[2], size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= range[i][0] && c <= range[i][1])
            return true;
    return false;
}

bool text_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool text_printable(uint32_t c)
{
    if (c < 0x80)
        return c >= 32 && c < 127;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

bool text_alpha(uint32_t c)
{
    if (c < 0x80)
        return isalpha((int)c);
    int k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool text_decimal(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : category(c) == UTF8PROC_CATEGORY_ND;
}

bool text_digit(uint32_t c)
{
    static const uint32_t other[][2] = {
        {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
        {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
        {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
        {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
    };
    return text_decimal(c) || (c >= 0x80 && in_ranges(other, sizeof other / sizeof other[0], c));
}

bool text_numeric(uint32_t c)
{
    if (text_digit(c))
        return true;
    int k = c < 0x80 ? 0 : category(c);
    return k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool text_lower(uint32_t c)
{
    static const uint32_t other[][2] = {
        {0xaa, 0xaa},     {0xba, 0xba},     {0x2b0, 0x2b8},   {0x2c0, 0x2c1},   {0x2e0, 0x2e4},
        {0x345, 0x345},   {0x37a, 0x37a},   {0x1d2c, 0x1d6a}, {0x1d78, 0x1d78}, {0x1d9b, 0x1dbf},
        {0x2071, 0x2071}, {0x207f, 0x207f}, {0x2090, 0x209c}, {0x2170, 0x217f}, {0x24d0, 0x24e9},
        {0x2c7c, 0x2c7d}, {0xa69c, 0xa69d}, {0xa770, 0xa770}, {0xa7f8, 0xa7f9}, {0xab5c, 0xab5f},
    };
    if (c < 0x80)
        return c >= 'a' && c <= 'z';
    return category(c) == UTF8PROC_CATEGORY_LL || in_ranges(other, sizeof other / sizeof other[0], c);
}

bool text_upper(uint32_t c)
{
    static const uint32_t other[][2] = {
        {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
    if (c < 0x80)
        return c >= 'A' && c <= 'Z';
    return category(c) == UTF8PROC_CATEGORY_LU || in_ranges(other, sizeof other / sizeof other[0], c);
}

bool text_title(uint32_t c)
{
    return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT;
}

bool text_cased(uint32_t c)
{
    return text_lower(c) || text_upper(c) || text_title(c);
}

bool text_word(uint32_t c)
{
    return c == '_' || text_alpha(c) || text_numeric(c);
}

bool text_name_start(uint32_t c)
{
    return c == '_' || text_alpha(c) || (c >= 0x80 && category(c) == UTF8PROC_CATEGORY_NL);
}

bool text_name_part(uint32_t c)
{
    if (c < 0x80)
        return c == '_' || isalnum((int)c);
    int k = category(c);
    return text_word(c) || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC;
}

static void add_code(struct buf *b, uint32_t c)
{
    char u[4];
    buf_add(b, u, text_put(c, u));
}

/* Characters that case mapping looks through: Case_Ignorable. */
static bool case_ignorable(uint32_t c)
{
    if (c < 0x80)
        return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`';
    if (c == 0xb7 || c == 0x387 || c == 0x55f || c == 0x5f4 || c == 0x2018 || c == 0x2019 || c == 0x2024 ||
        c == 0x2027 || c == 0xfe13 || c == 0xfe52 || c == 0xfe55 || c == 0xff07 || c == 0xff0e || c == 0xff1a)
        return true;
    int k = category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

static bool final_sigma(const char *p, size_t n, size_t at)
{
    size_t len, i = at;
    bool before = false;
    while (i > 0) {
        do
            i--;
        while (i > 0 && ((unsigned char)p[i] & 0xc0) == 0x80);
        uint32_t c = text_get(p + i, n - i, &len);
        if (!case_ignorable(c)) {
            before = text_cased(c);
            break;
        }
    }
    for (i = at + 2; before && i < n; i += len) {
        uint32_t c = text_get(p + i, n - i, &len);
        if (!case_ignorable(c))
            return !text_cased(c);
    }
    return before;
}

static void add_mapped(struct buf *b, uint32_t c, enum case_kind kind)
{
    const struct case_row *row = case_find(c, kind);
    if (row) {
        for (int i = 0; i < 3 && row->to[i]; i++)
            add_code(b, row->to[i]);
        return;
    }
    utf8proc_int32_t u = (utf8proc_int32_t)c;
    add_code(b, (uint32_t)(kind == CASE_LOWER   ? utf8proc_tolower(u)
                           : kind == CASE_UPPER ? utf8proc_toupper(u)
                                                : utf8proc_totitle(u)));
}

static void add_lower(struct buf *b, const char *p, size_t n, size_t at, uint32_t c)
{
    if (c == 0x3a3)
        add_code(b, final_sigma(p, n, at) ? 0x3c2 : 0x3c3);
    else
        add_mapped(b, c, CASE_LOWER);
}

void text_add_case(struct buf *b, const char *p, size_t n, enum text_case how)
{
    bool inside = false; /* TITLE: after a cased character */
    size_t len;
    for (size_t i = 0; i < n && b->status == TLM_OK; i += len) {
        uint32_t c = text_get(p + i, n - i, &len);
        bool upper = how == TEXT_UPPER || (how == TEXT_SWAP && text_lower(c));
        bool title = (how == TEXT_CAPITALIZE && i == 0) || (how == TEXT_TITLE && !inside);
        if (how == TEXT_SWAP && !text_lower(c) && !text_upper(c))
            add_code(b, c);
        else if (title)
            add_mapped(b, c, CASE_TITLE);
        else if (upper)
            add_mapped(b, c, CASE_UPPER);
        else if (how == TEXT_FOLD && c == 0xdf)
            buf_add_str(b, "ss");
        else
            add_lower(b, p, n, i, c);
        inside = text_cased(c);
    }
}

static bool strip_char(uint32_t c, const char *chars, size_t chars_n)
{
    if (!chars)
        return text_space(c);
    size_t len;
    for (size_t i = 0; i < chars_n; i += len)
        if (text_get(chars + i, chars_n - i, &len) == c)
            return true;
    return false;
}

void text_strip(const char *p, size_t *start, size_t *end, const char *chars, size_t chars_n, bool left, bool right)
{
    size_t len;
    while (left && *start < *end) {
        uint32_t c = text_get(p + *start, *end - *start, &len);
        if (!strip_char(c, chars, chars_n))
            break;
        *start += len;
    }
    while (right && *end > *start) {
        size_t at = *end - 1;
        while (at > *start && ((unsigned char)p[at] & 0xc0) == 0x80)
            at--;
        if (!strip_char(text_get(p + at, *end - at, &len), chars, chars_n))
            break;
        *end = at;
    }
}

size_t text_find(const char *p, size_t n, const char *needle, size_t m)
{
    if (m > n)
        return SIZE_MAX;
    if (!m)
        return 0;
    const char *at = memmem(p, n, needle, m);
    return at ? (size_t)(at - p) : SIZE_MAX;
}

/* Linear in practice: the last match found by stepping through all of them. */
size_t text_rfind(const char *p, size_t n, const char *needle, size_t m)
{
    if (m > n)
        return SIZE_MAX;
    if (!m)
        return n;
    size_t i = n - m + 1, budget = 4 * n + 64;
    while (i-- > 0 && budget) {
        size_t k = 0;
        while (k < m && p[i + k] == needle[k])
            k++;
        if (k == m)
            return i;
        budget = budget > k + 1 ? budget - k - 1 : 0;
    }
    if (i == SIZE_MAX)
        return SIZE_MAX;
    size_t last = SIZE_MAX, from = 0, at;
    while ((at = text_find(p + from, n - from, needle, m)) != SIZE_MAX) {
        last = from + at;
        from = last + 1;
    }
    return last;
}

size_t text_line_end(const char *p, size_t n)
{
    size_t len;
    uint32_t c = text_get(p, n, &len);
    if (c == '\r')
        return n > 1 && p[1] == '\n' ? 2 : 1;
    if ((c >= 10 && c <= 12) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029)
        return len;
    return 0;
}

/* Copies digits without the underscores that may stand between two digits. */
static bool clean_number(const char *p, size_t n, char *out, size_t max, size_t *m)
{
    size_t start = 0, end = n, k = 0;
    text_strip(p, &start, &end, NULL, 0, true, true);
    if (start == end)
        return false;
    for (size_t i = start; i < end; i++) {
        if (p[i] == '_') {
            if (i == start || i + 1 >= end || !isalnum((unsigned char)p[i - 1]) || !isalnum((unsigned char)p[i + 1]))
                return false;
            continue;
        }
        if ((unsigned char)p[i] >= 0x80) { /* other scripts' decimal digits */
            size_t len;
            uint32_t c = text_get(p + i, end - i, &len);
            if (!text_decimal(c) || k + 1 >= max)
                return false;
            uint32_t zero = c;
            while (zero > c - 9 && text_decimal(zero - 1))
                zero--;
            out[k++] = (char)('0' + (c - zero) % 10);
            i += len - 1;
            continue;
        }
        if (k + 1 >= max)
            return false;
        out[k++] = p[i];
    }
    out[k] = 0;
    *m = k;
    return true;
}

int text_to_double(const char *p, size_t n, double *out)
{
    char t[4400];
    size_t m;
    if (!clean_number(p, n, t, sizeof t, &m) || strlen(t) != m)
        return 0;
    const char *s = t + (t[0] == '-' || t[0] == '+');
    if (!isdigit((unsigned char)*s) && *s != '.') {
        if (strcasecmp(s, "inf") && strcasecmp(s, "infinity") && strcasecmp(s, "nan"))
            return 0;
    } else if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        return 0;
    }
    char *end;
    *out = strtod(t, &end);
    return end == t + m;
}

int text_to_int(const char *p, size_t n, int base, int64_t *out)
{
    char t[4400];
    size_t m, i = 0;
    if (!clean_number(p, n, t, sizeof t, &m))
        return 0;
    bool negative = t[0] == '-';
    i += t[0] == '-' || t[0] == '+';
    if (base < 0 || base == 1 || base > 36)
        return 0;
    char mark = (char)(i + 1 < m && t[i] == '0' ? tolower((unsigned char)t[i + 1]) : 0);
    int prefix = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    bool zero_base = base == 0;
    if (prefix && (base == prefix || base == 0)) {
        base = prefix;
        i += 2;
        zero_base = false;
    }
    if (base == 0)
        base = 10;
    if (i >= m)
        return 0;
    bool leading_zero = zero_base && t[i] == '0';
    uint64_t v = 0;
    bool big = false;
    for (; i < m; i++) {
        int c = tolower((unsigned char)t[i]), d = isdigit(c) ? c - '0' : isalpha(c) ? c - 'a' + 10 : 99;
        if (d >= base)
            return 0;
        if (v > (UINT64_MAX - (unsigned)d) / (unsigned)base)
            big = true;
        else
            v = v * (unsigned)base + (unsigned)d;
    }
    if (leading_zero && v)
        return 0;
    if (big || v > (uint64_t)INT64_MAX + negative)
        return 2;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}
