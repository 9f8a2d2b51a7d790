/* Added tokens: found in the text as they stand, the leftmost first and there
 * the longest, before the model sees anything. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include "text/utf8.h"

enum tlm_status added_put(struct tok_added_list *a, struct tok_added token, struct tlm_error *e)
{
    size_t cap = a->cap;
    enum tlm_status s = tok_grow(&a->list, &cap, (size_t)a->n + 1, sizeof *a->list, e);
    a->cap = (uint32_t)cap;
    if (s == TLM_OK)
        a->list[a->n++] = token;
    return s;
}

static int compare_keys(const void *pa, const void *pb)
{
    const struct tok_match_key *a = pa, *b = pb;
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->s, b->s, n) : 0;
    if (c)
        return c;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->added < b->added ? -1 : a->added > b->added;
}

void matcher_index(struct tok_matcher *m)
{
    if (m->n)
        qsort(m->keys, m->n, sizeof *m->keys, compare_keys);
    uint32_t k = 0;
    for (int b = 0; b <= 256; b++) {
        while (k < m->n && (uint8_t)m->keys[k].s[0] < b)
            k++;
        m->first[b] = k;
    }
}

static enum tlm_status build_normalized(struct tlm_tokenizer *t, struct tok_matcher *m, struct tlm_error *e)
{
    struct buf a, b;
    buf_init(&a, TOK_MAX_TEXT);
    buf_init(&b, TOK_MAX_TEXT);
    buf_init(&m->texts, TOK_MAX_TEXT);
    enum tlm_status s = TLM_OK;
    struct tok_regex_work *w = regex_work_new();
    if (!w)
        s = err_nomem(e, 0);
    size_t *offsets = mem_new_array((size_t)m->n + 1, sizeof *offsets);
    if (!offsets)
        s = err_nomem(e, (size_t)m->n * sizeof *offsets);
    for (uint32_t i = 0; i < m->n && s == TLM_OK; i++) {
        const char *text = m->keys[i].s;
        size_t n = m->keys[i].n;
        s = norm_run(&t->norms, w, &text, &n, &a, &b, e);
        if (s != TLM_OK)
            break;
        offsets[i] = m->texts.len;
        if (n > UINT32_MAX)
            s = err_set(e, TLM_ELIMIT, "added_tokens: too long after normalization");
        else if (buf_add(&m->texts, text, n) != TLM_OK)
            s = buf_check(&m->texts, e, "added_tokens after normalization");
        m->keys[i].n = (uint32_t)n;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->n && s == TLM_OK; i++) {
        if (!m->keys[i].n)
            continue; /* normalized to nothing: never matches */
        m->keys[kept] = m->keys[i];
        m->keys[kept++].s = m->texts.data + offsets[i];
    }
    m->n = kept;
    mem_free(offsets);
    regex_work_free(w);
    buf_deinit(&a);
    buf_deinit(&b);
    return s;
}

enum tlm_status added_build(struct tlm_tokenizer *t, struct tlm_error *e)
{
    struct tok_added_list *l = &t->added;
    struct tok_matcher *m[2] = {&l->raw, &l->normalized};
    for (int k = 0; k < 2; k++) {
        m[k]->keys = mem_new_array(l->n, sizeof *m[k]->keys);
        if (!m[k]->keys)
            return err_nomem(e, l->n * sizeof *m[k]->keys);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct tok_matcher *to = m[l->list[i].normalized];
        struct tok_piece p = t->vocab.piece[l->list[i].id];
        if (p.len)
            to->keys[to->n++] = (struct tok_match_key){t->vocab.blob + p.off, p.len, i};
    }
    enum tlm_status s = build_normalized(t, &l->normalized, e);
    matcher_index(&l->raw);
    if (s == TLM_OK)
        matcher_index(&l->normalized);
    return s;
}

void matcher_deinit(struct tok_matcher *m)
{
    mem_free(m->keys);
    buf_deinit(&m->texts);
    *m = (struct tok_matcher){0};
}

void added_deinit(struct tok_added_list *a)
{
    matcher_deinit(&a->raw);
    matcher_deinit(&a->normalized);
    mem_free(a->list);
    *a = (struct tok_added_list){0};
}

/* First index in [lo, hi) whose byte at depth is >= b (a text that has ended
 * sorts before all). */
static uint32_t lower(const struct tok_matcher *m, uint32_t lo, uint32_t hi, uint32_t depth, int b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int have = m->keys[mid].n > depth ? (uint8_t)m->keys[mid].s[depth] : -1;
        if (have < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct tok_match_key *matcher_next(const struct tok_matcher *m, struct tok_match_place *p, const char *s,
                                         size_t n)
{
    if (!p->depth && n) {
        p->lo = m->first[(uint8_t)s[0]];
        p->hi = m->first[(uint8_t)s[0] + 1];
        p->depth = 1;
    }
    while (p->lo < p->hi) {
        if (m->keys[p->lo].n == p->depth) {
            const struct tok_match_key *key = &m->keys[p->lo];
            while (p->lo < p->hi && m->keys[p->lo].n == p->depth) /* equal texts: the first one counts */
                p->lo++;
            return key;
        }
        if (p->depth >= n)
            return NULL;
        int b = (uint8_t)s[p->depth];
        p->lo = lower(m, p->lo, p->hi, p->depth, b);
        p->hi = lower(m, p->lo, p->hi, p->depth, b + 1);
        p->depth++;
    }
    return NULL;
}

const struct tok_match_key *matcher_longest(const struct tok_matcher *m, const char *s, size_t n)
{
    struct tok_match_place place = {0};
    const struct tok_match_key *best = NULL, *key;
    while ((key = matcher_next(m, &place, s, n)) != NULL)
        best = key;
    return best;
}

static bool word_before(const char *s, size_t at)
{
    int len;
    return at && unicode_is_word(utf8_get(utf8_prev(s, s + at), &len));
}

static bool word_after(const char *s, size_t at, size_t n)
{
    int len;
    return at < n && unicode_is_word(utf8_get(s + at, &len));
}

static size_t spaces_before(const char *s, size_t floor, size_t at)
{
    while (at > floor) {
        int len;
        const char *p = utf8_prev(s, s + at);
        if (!unicode_is_space(utf8_get(p, &len)))
            break;
        at = (size_t)(p - s);
    }
    return at < floor ? floor : at;
}

static size_t spaces_after(const char *s, size_t at, size_t n)
{
    int len;
    while (at < n && unicode_is_space(utf8_get(s + at, &len)))
        at += (size_t)len;
    return at;
}

static enum tlm_status cut_add(struct tok_cuts *c, size_t start, size_t end, int32_t id, struct tlm_error *e)
{
    enum tlm_status s = tok_grow(&c->at, &c->cap, c->n + 1, sizeof *c->at, e);
    if (s == TLM_OK)
        c->at[c->n++] = (struct tok_cut){start, end, id};
    return s;
}

enum tlm_status added_cut(const struct tlm_tokenizer *t, const struct tok_matcher *m, const char *s, size_t n,
                          bool plain_special, struct tok_cuts *out, struct tlm_error *e)
{
    size_t done = 0;
    enum tlm_status status = TLM_OK;
    out->n = 0;
    for (size_t i = 0; m->n && i < n && status == TLM_OK;) {
        if (m->first[(uint8_t)s[i]] == m->first[(uint8_t)s[i] + 1]) {
            i++;
            continue;
        }
        const struct tok_match_key *key = matcher_longest(m, s + i, n - i);
        if (!key) {
            i++;
            continue;
        }
        const struct tok_added *a = &t->added.list[key->added];
        size_t start = i, stop = i + key->n;
        i = stop;
        if (plain_special && a->special)
            continue;
        if (a->single_word && (word_before(s, start) || word_after(s, stop, n)))
            continue;
        if (a->lstrip)
            start = spaces_before(s, done, start);
        if (a->rstrip)
            stop = spaces_after(s, stop, n);
        if (done < start)
            status = cut_add(out, done, start, -1, e);
        if (status == TLM_OK)
            status = cut_add(out, start, stop, (int32_t)a->id, e);
        done = stop;
    }
    if (status == TLM_OK && done < n)
        status = cut_add(out, done, n, -1, e);
    return status;
}
