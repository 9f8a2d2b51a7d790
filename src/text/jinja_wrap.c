/* Filters that lay text out: wordwrap as Python's textwrap breaks lines, pprint
 * as its pprint module prints (80 columns, keys sorted). */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_eval.h"
#include "text/jinja_text.h"

/* ---- wordwrap ---- */

/* One line as code points; at[i] is the byte offset of number i. */
struct line {
    const char *p;
    uint32_t *c;
    size_t *at;
    size_t n;
};

struct wrapper {
    struct jinja_run *r;
    int64_t width;
    bool break_words, hyphens, split_hyphens;
    struct jv wrap;
    struct buf *out;
    bool any;
};

static bool line_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13);
}

static bool letter(const struct line *l, size_t i)
{
    return i < l->n && text_word(l->c[i]) && !text_decimal(l->c[i]);
}

static bool word_mark(uint32_t c)
{
    return text_word(c) || (c && c < 128 && strchr("!\"'&.,?", (int)c));
}

/* The end of a dash of two or more hyphens between words at i, or 0. */
static size_t dash_end(const struct line *l, size_t i)
{
    size_t end = i;
    if (i == 0 || !word_mark(l->c[i - 1]))
        return 0;
    while (end < l->n && l->c[end] == '-')
        end++;
    return end - i >= 2 && end < l->n && text_word(l->c[end]) ? end : 0;
}

/* Whether a line may break after the hyphen at i: two letters on either side,
 * hyphens between them aside. */
static bool hyphen_break(const struct line *l, size_t i)
{
    bool before =
        i >= 2 && letter(l, i - 1) && (letter(l, i - 2) || (i >= 3 && l->c[i - 2] == '-' && letter(l, i - 3)));
    if (l->c[i] != '-' || !before || !letter(l, i + 1))
        return false;
    return letter(l, i + 2) || (i + 2 < l->n && l->c[i + 2] == '-' && letter(l, i + 3));
}

/* The end of the piece that starts at i and holds together. */
static size_t piece_end(const struct wrapper *w, const struct line *l, size_t i)
{
    size_t end = i;
    if (line_space(l->c[i])) {
        while (end < l->n && line_space(l->c[end]))
            end++;
        return end;
    }
    if (w->split_hyphens && (end = dash_end(l, i)) != 0)
        return end;
    for (end = i + 1; end < l->n && !line_space(l->c[end]); end++) {
        if (!w->split_hyphens)
            continue;
        if (hyphen_break(l, end))
            return end + 1;
        if (dash_end(l, end))
            return end;
    }
    return end;
}

static bool blank(const struct line *l, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (!text_space(l->c[i]))
            return false;
    return true;
}

static bool emit(struct wrapper *w, const struct line *l, size_t from, size_t to)
{
    if (w->any)
        buf_add(w->out, w->wrap.u.s->p, w->wrap.u.s->n);
    w->any = true;
    buf_add(w->out, l->p + l->at[from], l->at[to] - l->at[from]);
    return jv_buf_ok(w->r, w->out);
}

/* How much of a piece that fits on no line goes onto this one. */
static size_t cut(const struct wrapper *w, const struct line *l, size_t from, size_t to, size_t space)
{
    if (w->hyphens && to - from > space)
        for (size_t h = from + space; h-- > from;) {
            if (l->c[h] != '-')
                continue;
            for (size_t i = from; h > from && i < h; i++)
                if (l->c[i] != '-')
                    return h + 1;
            break;
        }
    return from + space < to ? from + space : to;
}

/* Lines are runs of pieces, so each is one range [start, at). */
static bool wrap_line(struct wrapper *w, const struct line *l)
{
    size_t at = 0, width = (size_t)w->width;
    bool first = true;
    size_t pending = 0; /* end of a piece that was cut, or 0 */
    while (at < l->n) {
        size_t end = pending ? pending : piece_end(w, l, at);
        if (!jv_step(w->r, 1 + l->n / 64))
            return false;
        if (!first && blank(l, at, end)) {
            at = end;
            pending = 0;
            if (at >= l->n)
                break;
            end = piece_end(w, l, at);
        }
        size_t start = at, last = at; /* last: start of the last piece on the line */
        while (at < l->n && end - start <= width) {
            last = at;
            at = end;
            pending = 0;
            end = at < l->n ? piece_end(w, l, at) : at;
        }
        if (at < l->n && end - at > width) {
            if (w->break_words) {
                size_t stop = cut(w, l, at, end, width - (at - start));
                last = at;
                at = stop;
                pending = stop < end ? end : 0;
            } else if (at == start) {
                last = at;
                at = end;
                pending = 0;
            }
        }
        size_t stop = at > last && blank(l, last, at) ? last : at;
        if (stop > start || (stop == start && at == start)) {
            if (stop > start && !emit(w, l, start, stop))
                return false;
            first = first && stop == start;
        }
    }
    return true;
}

static bool read_line(struct jinja_run *r, const struct jv_str *s, struct line *l)
{
    size_t len;
    *l = (struct line){.p = s->p, .c = jv_alloc_array(r, s->chars + 1, sizeof *l->c)};
    l->at = jv_alloc_array(r, s->chars + 1, sizeof *l->at);
    if (!l->c || !l->at)
        return false;
    for (size_t i = 0; i < s->n; i += len) {
        l->at[l->n] = i;
        l->c[l->n++] = text_get(s->p + i, s->n - i, &len);
    }
    l->at[l->n] = s->n;
    return true;
}

static struct jv f_wordwrap(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)
{
    (void)args;
    struct buf b;
    struct wrapper w = {.r = r, .width = 79, .break_words = a[1].type == JV_MISSING || jv_truth(a[1]), .out = &b};
    w.hyphens = a[3].type == JV_MISSING || jv_truth(a[3]);
    w.split_hyphens = a[3].type == JV_MISSING || (a[3].type == JV_BOOL && a[3].u.i);
    w.wrap = a[2].type == JV_MISSING || a[2].type == JV_NONE ? jv_cstr(r, "\n") : a[2];
    if (v.type == JV_UNDEFINED)
        return jv_undefined_error(r, v);
    if (!jinja_str_arg(r, "wordwrap", v) || !jinja_str_arg(r, "wordwrap", w.wrap))
        return jv_error;
    struct jv lines = jinja_split_lines(r, v, false);
    if (jv_is_error(lines))
        return lines;
    bool endless = a[0].type == JV_BIG && a[0].u.s->p[0] != '-';
    if (endless)
        w.width = INT64_MAX;
    else if (lines.u.l->n && a[0].type != JV_MISSING && !jinja_int_arg(r, a[0], &w.width))
        return jv_error;
    if (lines.u.l->n && w.width <= 0)
        return jv_fail(r, TLM_EINVAL, "invalid width %lld (must be > 0)", (long long)w.width);
    jv_buf_init(r, &b);
    for (size_t i = 0; i < lines.u.l->n; i++) {
        struct line l;
        w.any = false;
        if (i)
            buf_add(&b, w.wrap.u.s->p, w.wrap.u.s->n);
        if (!read_line(r, lines.u.l->v[i].u.s, &l) || !wrap_line(&w, &l))
            break;
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), w.wrap.u.s->safe);
}

/* ---- pprint ---- */

enum { PRINT_WIDTH = 80 };

struct printer {
    struct jinja_run *r;
    struct buf *out;
};

static bool print_value(struct printer *p, struct jv v, size_t indent, size_t allowance, bool top);

/* Keys in order where they can be compared, else as they are. */
static bool sorted_keys(struct jinja_run *r, const struct jv_dict *d, size_t **order)
{
    struct jv *keys = jv_alloc_array(r, d->n, sizeof *keys), *numbers = jv_alloc_array(r, d->n, sizeof *numbers);
    *order = jv_alloc_array(r, d->n + 1, sizeof **order);
    if (!keys || !numbers || !*order)
        return false;
    bool comparable = true;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        numbers[i] = jv_int((int64_t)i);
        comparable = comparable &&
                     (keys[i].type == JV_STR ? keys[0].type == JV_STR : jv_is_number(keys[i]) && jv_is_number(keys[0]));
    }
    if (!comparable && d->n > 1) {
        jv_fail(r, TLM_EUNSUPPORTED, "pprint of a dict whose keys have no order is not supported");
        return false;
    }
    if (d->n > 1 && !jinja_sort(r, numbers, keys, d->n, false))
        return false;
    for (size_t i = 0; i < d->n; i++)
        (*order)[i] = (size_t)numbers[i].u.i;
    return true;
}

static bool add_flat(struct jinja_run *r, struct buf *b, struct jv v);

static bool add_flat_dict(struct jinja_run *r, struct buf *b, const struct jv_dict *d)
{
    size_t *order;
    if (!sorted_keys(r, d, &order))
        return false;
    buf_add_char(b, '{');
    for (size_t i = 0; i < d->n; i++) {
        const struct jv_entry *e = &d->e[order[i]];
        if (i)
            buf_add_str(b, ", ");
        if (!add_flat(r, b, e->key) || buf_add_str(b, ": ") != TLM_OK || !add_flat(r, b, e->value))
            return false;
    }
    return buf_add_char(b, '}') == TLM_OK;
}

/* repr on one line, with the keys of dicts sorted. */
static bool add_flat(struct jinja_run *r, struct buf *b, struct jv v)
{
    if (v.type != JV_DICT && (!jv_is_seq(v) || v.u.l->group))
        return jv_add_repr(r, b, v);
    if (!jv_step(r, 1) || !jv_enter(r))
        return false;
    bool ok = true;
    if (v.type == JV_DICT) {
        ok = add_flat_dict(r, b, v.u.d);
    } else {
        buf_add_char(b, v.type == JV_TUPLE ? '(' : '[');
        for (size_t i = 0; ok && i < v.u.l->n; i++) {
            if (i)
                buf_add_str(b, ", ");
            ok = add_flat(r, b, v.u.l->v[i]);
        }
        buf_add_str(b, v.type == JV_LIST ? "]" : v.u.l->n == 1 ? ",)" : ")");
    }
    jv_leave(r);
    return ok && jv_buf_ok(r, b);
}

static void new_line(struct printer *p, size_t indent)
{
    buf_add_char(p->out, '\n');
    for (size_t i = 0; i < indent; i++)
        buf_add_char(p->out, ' ');
}

static bool print_items(struct printer *p, struct jv v, size_t indent, size_t allowance)
{
    const char *end = v.type == JV_LIST ? "]" : v.u.l->n == 1 ? ",)" : ")";
    buf_add_char(p->out, v.type == JV_LIST ? '[' : '(');
    for (size_t i = 0; i < v.u.l->n; i++) {
        bool last = i + 1 == v.u.l->n;
        if (i) {
            buf_add_char(p->out, ',');
            new_line(p, indent + 1);
        }
        if (!print_value(p, v.u.l->v[i], indent + 1, last ? allowance + strlen(end) : 1, false))
            return false;
    }
    return buf_add_str(p->out, end) == TLM_OK;
}

static bool print_dict(struct printer *p, const struct jv_dict *d, size_t indent, size_t allowance)
{
    size_t *order;
    if (!sorted_keys(p->r, d, &order))
        return false;
    buf_add_char(p->out, '{');
    for (size_t i = 0; i < d->n; i++) {
        const struct jv_entry *e = &d->e[order[i]];
        size_t before = p->out->len;
        if (i) {
            buf_add_char(p->out, ',');
            new_line(p, indent + 1);
            before = p->out->len;
        }
        if (!add_flat(p->r, p->out, e->key))
            return false;
        size_t key = text_count(buf_str(p->out) + before, p->out->len - before);
        buf_add_str(p->out, ": ");
        if (!print_value(p, e->value, indent + 1 + key + 2, i + 1 == d->n ? allowance + 1 : 1, false))
            return false;
    }
    return buf_add_char(p->out, '}') == TLM_OK;
}

/* repr of part of a text; the number of its characters. */
static bool quoted(struct printer *p, const char *s, size_t n, struct jv *out)
{
    struct buf b;
    jv_buf_init(p->r, &b);
    struct jv part = jv_str_borrow(p->r, s, n);
    if (!jv_is_error(part))
        jv_add_repr(p->r, &b, part);
    *out = jv_from_buf(p->r, &b);
    return !jv_is_error(*out);
}

/* A line of text in pieces of words with the space after them. */
static bool split_words(struct printer *p, const struct jv_str *line, size_t width, size_t last_width, struct jv chunks)
{
    size_t start = 0, i = 0, len;
    struct jv rep;
    while (i < line->n) {
        size_t end = i;
        while (end < line->n && !text_space(text_get(line->p + end, line->n - end, &len)))
            end += len;
        while (end < line->n && text_space(text_get(line->p + end, line->n - end, &len)))
            end += len;
        if (!quoted(p, line->p + start, end - start, &rep))
            return false;
        if (rep.u.s->chars > (end == line->n ? last_width : width) && i > start) {
            if (!quoted(p, line->p + start, i - start, &rep) || !jv_list_add(p->r, chunks, rep))
                return false;
            start = i;
        }
        i = end;
    }
    return start == line->n || (quoted(p, line->p + start, line->n - start, &rep) && jv_list_add(p->r, chunks, rep));
}

static size_t less(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

static bool print_text(struct printer *p, struct jv v, size_t indent, size_t allowance, bool top)
{
    struct jv lines = jinja_split_lines(p->r, v, true), chunks = jv_list_new(p->r, 4), rep = jv_none;
    if (jv_is_error(lines) || jv_is_error(chunks))
        return false;
    indent += top;
    allowance += top;
    size_t width = less(PRINT_WIDTH, indent);
    for (size_t i = 0; i < lines.u.l->n; i++) {
        const struct jv_str *line = lines.u.l->v[i].u.s;
        size_t room = i + 1 == lines.u.l->n ? less(width, allowance) : width;
        if (!quoted(p, line->p, line->n, &rep))
            return false;
        bool ok = rep.u.s->chars <= room ? jv_list_add(p->r, chunks, rep) : split_words(p, line, width, room, chunks);
        if (!ok)
            return false;
    }
    if (chunks.u.l->n == 1)
        return jv_add_str(p->r, p->out, rep);
    if (top)
        buf_add_char(p->out, '(');
    for (size_t i = 0; i < chunks.u.l->n; i++) {
        if (i)
            new_line(p, indent);
        if (!jv_add_str(p->r, p->out, chunks.u.l->v[i]))
            return false;
    }
    return !top || buf_add_char(p->out, ')') == TLM_OK;
}

static bool print_value(struct printer *p, struct jv v, size_t indent, size_t allowance, bool top)
{
    struct buf flat;
    jv_buf_init(p->r, &flat);
    bool ok = jv_step(p->r, 1) && add_flat(p->r, &flat, v) && jv_enter(p->r);
    if (!ok) {
        buf_deinit(&flat);
        return false;
    }
    bool plain = (v.type == JV_STR && !v.u.s->safe && v.u.s->n) || (v.type == JV_DICT && v.u.d->n) ||
                 (jv_is_seq(v) && v.u.l->n && !v.u.l->group);
    if (!plain || text_count(buf_str(&flat), flat.len) <= less(PRINT_WIDTH, indent + allowance))
        ok = buf_add(p->out, buf_str(&flat), flat.len) == TLM_OK;
    else if (v.type == JV_STR)
        ok = print_text(p, v, indent, allowance, top);
    else
        ok = v.type == JV_DICT ? print_dict(p, v.u.d, indent, allowance) : print_items(p, v, indent, allowance);
    buf_deinit(&flat);
    jv_leave(p->r);
    return ok && jv_buf_ok(p->r, p->out);
}

static struct jv f_pprint(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)
{
    struct buf b;
    struct printer p = {r, &b};
    (void)a;
    (void)args;
    jv_buf_init(r, &b);
    print_value(&p, v, 0, 0, true);
    return jv_from_buf(r, &b);
}

/* ---- striptags ---- */

static bool entity(struct jinja_run *r, const char *p, size_t n, size_t *used, struct buf *b)
{
    static const char *const names[][2] = {{"amp;", "&"},
                                           {"lt;", "<"},
                                           {"gt;", ">"},
                                           {"quot;", "\""},
                                           {"apos;", "'"},
                                           {"nbsp;", "\xc2\xa0"},
                                           {"hellip;", "\xe2\x80\xa6"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t k = strlen(names[i][0]);
        if (k <= n && !memcmp(p, names[i][0], k)) {
            *used = k;
            buf_add_str(b, names[i][1]);
            return true;
        }
    }
    *used = 0;
    bool letters = n && ((p[0] | 32) >= 'a' && (p[0] | 32) <= 'z');
    if (!letters && !(n && p[0] == '#'))
        return buf_add_char(b, '&') == TLM_OK;
    bool hex = n > 1 && p[0] == '#' && (p[1] | 32) == 'x';
    size_t i = hex ? 2 : 1;
    uint32_t c = 0;
    size_t start = i;
    for (; p[0] == '#' && i < n && i - start < 6; i++) {
        int d = p[i] >= '0' && p[i] <= '9'                        ? p[i] - '0'
                : hex && (p[i] | 32) >= 'a' && (p[i] | 32) <= 'f' ? (p[i] | 32) - 87
                                                                  : -1;
        if (d < 0)
            break;
        c = c * (hex ? 16 : 10) + (uint32_t)d;
    }
    char u[4];
    if (i == start || letters || c < 32 || (c >= 127 && c < 160) || (c >= 0xd800 && c < 0xe000) || c > 0x1ffff ||
        i >= n || p[i] != ';') {
        jv_fail(r, TLM_EUNSUPPORTED, "striptags: this character reference is not supported");
        return false;
    }
    *used = i + 1;
    return buf_add(b, u, text_put(c, u)) == TLM_OK;
}

/* Without comments and tags; runs of white space become one space. */
static struct jv f_striptags(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    struct jv s = jv_to_str(r, v), words;
    struct buf b;
    if (jv_is_error(s))
        return s;
    const char *p = s.u.s->p;
    size_t n = s.u.s->n, at = 0;
    jv_buf_init(r, &b);
    while (at < n) {
        size_t open = text_find(p + at, n - at, "<", 1), end = SIZE_MAX;
        if (open == SIZE_MAX)
            break;
        bool comment = n - at - open >= 4 && !memcmp(p + at + open, "<!--", 4);
        size_t skip = open + (comment ? 4 : 1);
        end = text_find(p + at + skip, n - at - skip, comment ? "-->" : ">", comment ? 3 : 1);
        if (end == SIZE_MAX)
            break;
        buf_add(&b, p + at, open);
        at += skip + end + (comment ? 3 : 1);
    }
    buf_add(&b, p + at, n - at);
    s = jv_from_buf(r, &b);
    words = jv_is_error(s) ? s : jinja_split(r, s, jv_none, -1, false);
    if (jv_is_error(words))
        return words;
    jv_buf_init(r, &b);
    for (size_t i = 0; i < words.u.l->n; i++) {
        const struct jv_str *w = words.u.l->v[i].u.s;
        if (i)
            buf_add_char(&b, ' ');
        for (size_t k = 0, used = 0; k < w->n; k += used) {
            used = 1;
            if (w->p[k] != '&')
                buf_add_char(&b, w->p[k]);
            else if (entity(r, w->p + k + 1, w->n - k - 1, &used, &b))
                used++;
            else
                break;
        }
    }
    return jv_from_buf(r, &b);
}

/* jinja2's is random; what has one outcome only is not. */
static struct jv f_random(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)
{
    (void)a;
    (void)args;
    int64_t n = jv_len(r, v);
    if (n == 0)
        return jv_undefined_hint(r, "No random item, sequence was empty.");
    if (n == -2)
        return jv_type_error(r, "object of type '%s' has no len()", jv_type_name(v));
    if (n == 1 && (jv_is_seq(v) || v.type == JV_STR || v.type == JV_RANGE))
        return jinja_getitem(r, v, jv_int(0));
    return n < 0 ? jv_error : jv_fail(r, TLM_EUNSUPPORTED, "the filter random is not supported");
}

static struct jv f_urlize(struct jinja_run *r, struct jv v, const struct jv *a, const struct jinja_args *args)
{
    (void)v;
    (void)a;
    (void)args;
    return jv_fail(r, TLM_EUNSUPPORTED, "the filter urlize is not supported");
}

const struct jinja_filter_def jinja_wrap_filters[] = {
    {"pprint", "", f_pprint},
    {"random", "", f_random},
    {"striptags", "", f_striptags},
    {"urlize", NULL, f_urlize},
    {"wordwrap", "width?,break_long_words?,wrapstring?,break_on_hyphens?", f_wordwrap},
    {NULL, NULL, NULL},
};
