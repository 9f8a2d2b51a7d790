/* Byte pair encoding: from the symbols of a word, the best pair is merged
 * until none is left. Two sources of what is best:
 *   BPE: a list of merges; the earlier one first, then the leftmost.
 *   SPM: any two neighbours whose joined text is a piece; the higher score
 *        first, then the longer left part, then the leftmost. That is the order
 *        of the merge lists which are derived from SentencePiece models.
 * Short words are scanned, long ones use a heap: O(n log n). */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum { SCAN_MAX = 32 };

static inline uint32_t pair_hash(uint32_t l, uint32_t r)
{
    uint64_t h = ((uint64_t)l << 32 | r) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(((h ^ h >> 32) * 0xd6e8feb86659fd93u) >> 32);
}

/* Most pairs that encoding asks for are none: the slot's hash says so. */
static inline const struct bpe_pair *pair_find(const struct tok_model *m, uint32_t l, uint32_t r)
{
    uint32_t hash = pair_hash(l, r);
    for (uint32_t k = hash & m->pair_mask; m->pair_slots[k].id_plus_1; k = (k + 1) & m->pair_mask) {
        const struct bpe_pair *p = &m->pairs[m->pair_slots[k].id_plus_1 - 1];
        if (m->pair_slots[k].hash == hash && p->left == l && p->right == r)
            return p;
    }
    return NULL;
}

enum tlm_status bpe_reserve(struct tlm_tokenizer *t, size_t merges, struct tlm_error *e)
{
    struct tok_model *m = &t->model;
    size_t old = m->pair_slots ? (size_t)m->pair_mask + 1 : 0, size = old ? old : 64;
    if (merges > (size_t)TOK_MAX_ID * 8)
        return err_set(e, TLM_ELIMIT, "%zu merges, at most %d are taken", merges, TOK_MAX_ID * 8);
    while (size < merges * 3 / 2)
        size *= 2;
    enum tlm_status s = tok_grow(&m->pairs, &m->cap_pairs, merges, sizeof *m->pairs, e);
    if (s != TLM_OK || size == old)
        return s;
    struct tok_slot *slots = mem_alloc_pages(size * sizeof *slots);
    if (!slots)
        return err_nomem(e, size * sizeof *slots);
    uint32_t mask = (uint32_t)(size - 1);
    for (size_t i = 0; i < old; i++)
        if (m->pair_slots[i].id_plus_1) {
            uint32_t k = m->pair_slots[i].hash & mask;
            while (slots[k].id_plus_1)
                k = (k + 1) & mask;
            slots[k] = m->pair_slots[i];
        }
    mem_free_pages(m->pair_slots, old * sizeof *slots);
    m->pair_slots = slots;
    m->pair_mask = mask;
    return TLM_OK;
}

/* The result of a merge. Results mostly follow each other in the vocabulary,
 * so the id after the last one is tried before the table. */
static int32_t find_result(struct tlm_tokenizer *t, const char *l, size_t ln, const char *r, size_t rn)
{
    const struct tok_vocab *v = &t->vocab;
    struct tok_model *m = &t->model;
    char text[512];
    for (uint32_t id = m->guess; !v->repeats && id < v->n && id < m->guess + 2; id++)
        if (v->piece[id].len == ln + rn && (v->flags[id] & TOK_MODEL) && !memcmp(vocab_text(v, id), l, ln) &&
            !memcmp(vocab_text(v, id) + ln, r, rn)) {
            m->guess = id;
            return (int32_t)id;
        }
    if (ln + rn > sizeof text)
        return -1;
    memcpy(text, l, ln);
    memcpy(text + ln, r, rn);
    int32_t id = vocab_find(v, text, ln + rn);
    m->guess = id < 0 ? 0 : (uint32_t)id;
    return id;
}

void bpe_batch_init(struct bpe_batch *b)
{
    b->n = 0;
    buf_init(&b->text, TOK_MAX_TEXT);
}

void bpe_batch_deinit(struct bpe_batch *b)
{
    buf_deinit(&b->text);
}

enum tlm_status bpe_batch_add(struct tlm_tokenizer *t, struct bpe_batch *b, const char *part, size_t n,
                              struct tlm_error *e)
{
    if (n > UINT32_MAX)
        return err_set(e, TLM_ELIMIT, "merge %u: a part of %zu bytes", t->model.n_pairs, n);
    if (buf_add(&b->text, part, n) != TLM_OK)
        return buf_check(&b->text, e, "merges");
    b->len[b->n++] = (uint32_t)n;
    return b->n == 2 * BPE_BATCH ? bpe_batch_flush(t, b, e) : TLM_OK;
}

static enum tlm_status merge_fails(const struct tok_model *m, const char *l, uint32_t ln, uint32_t rn, const char *what,
                                   struct tlm_error *e)
{
    return err_set(e, TLM_EFORMAT, "merge %u (\"%.*s\" + \"%.*s\"): %s is not in the vocabulary", m->n_pairs,
                   ln > 200 ? 200 : (int)ln, l, rn > 200 ? 200 : (int)rn, l + ln, what);
}

static void add_pair(struct tok_model *m, struct bpe_pair pair, uint32_t hash)
{
    uint32_t k = hash & m->pair_mask;
    for (; m->pair_slots[k].id_plus_1; k = (k + 1) & m->pair_mask) {
        const struct bpe_pair *p = &m->pairs[m->pair_slots[k].id_plus_1 - 1];
        if (m->pair_slots[k].hash == hash && p->left == pair.left && p->right == pair.right)
            break;
    }
    /* Of a repeated merge the last rank counts, as in the original. */
    m->pairs[m->n_pairs++] = pair;
    m->pair_slots[k] = (struct tok_slot){hash, m->n_pairs};
}

enum tlm_status bpe_batch_flush(struct tlm_tokenizer *t, struct bpe_batch *b, struct tlm_error *e)
{
    struct tok_model *m = &t->model;
    struct bpe_pair pair[BPE_BATCH];
    uint32_t hash[BPE_BATCH], n = b->n / 2, skip = (uint32_t)m->prefix_n;
    int32_t ids[2 * BPE_BATCH];
    bool taken[BPE_BATCH];
    const char *l = buf_str(&b->text);
    vocab_find_many(&t->vocab, l, b->len, b->n, ids);
    enum tlm_status s = bpe_reserve(t, (size_t)m->n_pairs + n, e);
    for (uint32_t i = 0; i < n && s == TLM_OK; i++) {
        uint32_t ln = b->len[2 * i], rn = b->len[2 * i + 1];
        /* the right part's mark of a continued piece goes */
        int32_t id = rn >= skip ? find_result(t, l, ln, l + ln + skip, rn - skip) : -1;
        if (ids[2 * i] < 0 || ids[2 * i + 1] < 0 || id < 0) {
            m->n_pairs += i;
            s = merge_fails(m, l, ln, rn,
                            ids[2 * i] < 0       ? "the left part"
                            : ids[2 * i + 1] < 0 ? "the right part"
                                                 : "the result",
                            e);
            m->n_pairs -= i;
        }
        pair[i] = (struct bpe_pair){(uint32_t)ids[2 * i], (uint32_t)ids[2 * i + 1], (uint32_t)id};
        hash[i] = pair_hash(pair[i].left, pair[i].right);
        l += ln + rn;
    }
    if (s != TLM_OK)
        return s;
    for (uint32_t i = 0; i < n; i++) /* the misses, all at once */
        taken[i] = m->pair_slots[hash[i] & m->pair_mask].id_plus_1;
    for (uint32_t i = 0; i < n; i++) {
        struct tok_slot *to = &m->pair_slots[hash[i] & m->pair_mask];
        if (taken[i] || to->id_plus_1) {
            add_pair(m, pair[i], hash[i]);
        } else {
            m->pairs[m->n_pairs++] = pair[i];
            *to = (struct tok_slot){hash[i], m->n_pairs};
        }
    }
    b->n = 0;
    buf_clear(&b->text);
    return TLM_OK;
}

/* Notes the bytes after which some piece has U+2581 inside. */
static void find_cuts(struct tlm_tokenizer *t)
{
    struct tok_model *m = &t->model;
    const struct tok_vocab *v = &t->vocab;
    static const char mark[] = "\xe2\x96\x81";
    if (t->level_model || m->ignore_merges || m->prefix_n || m->suffix_n || vocab_find(v, mark, 3) < 0)
        return;
    m->cut_at_mark = true;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *s = vocab_text(v, id);
        size_t n = v->piece[id].len;
        if (!(v->flags[id] & TOK_MODEL))
            continue;
        for (size_t i = 1; i + 3 <= n; i++) {
            const char *at = memchr(s + i, mark[0], n - i);
            if (!at)
                break;
            i = (size_t)(at - s);
            if (i + 3 <= n && !memcmp(at, mark, 3) && !(i >= 3 && !memcmp(at - 3, mark, 3)))
                m->no_cut_after[(uint8_t)at[-1]] = 1;
        }
    }
}

enum tlm_status bpe_finish(struct tlm_tokenizer *t, struct tlm_error *e)
{
    struct tok_model *m = &t->model;
    for (int b = 0; b < 256; b++) {
        static const char hex[] = "0123456789ABCDEF";
        char code[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'}, c[4];
        m->byte_piece[b] = vocab_find(&t->vocab, code, 6);
        m->level_piece[b] = vocab_find(&t->vocab, c, (size_t)utf8_put(c, byte_level_char[b]));
    }
    if (m->kind == MODEL_BPE || m->kind == MODEL_SPM)
        find_cuts(t);
    return m->kind == MODEL_BPE ? bpe_reserve(t, 1, e) : TLM_OK;
}

/* The merge of two neighbours, or false. */
static inline bool candidate(const struct encoder *x, const char *s, const struct tok_symbol *l,
                             const struct tok_symbol *r, struct tok_candidate *out)
{
    const struct tok_model *m = &x->t->model;
    if (m->kind == MODEL_BPE) {
        const struct bpe_pair *p = pair_find(m, l->id, r->id);
        if (!p)
            return false;
        out->key = (uint64_t)(p - m->pairs) << 32 | p->id;
        out->tie = 0;
    } else {
        size_t n = (size_t)l->len + r->len;
        if (n > m->max_piece || m->order[l->id] == UINT32_MAX || m->order[r->id] == UINT32_MAX)
            return false;
        int32_t id = vocab_find(&x->t->vocab, s + l->off, n);
        if (id < 0 || m->order[id] == UINT32_MAX)
            return false;
        out->key = (uint64_t)m->order[id] << 32 | (uint32_t)id;
        out->tie = m->leftmost ? 0 : m->shorter_left ? l->len : UINT32_MAX - l->len;
    }
    out->len = l->len + r->len;
    return true;
}

static inline bool before(const struct tok_candidate *a, const struct tok_candidate *b)
{
    if (a->key != b->key)
        return a->key < b->key;
    return a->tie != b->tie ? a->tie < b->tie : a->pos < b->pos;
}

static enum tlm_status heap_push(struct encoder *x, struct tok_candidate c)
{
    if (x->n_heap == x->cap_heap) {
        enum tlm_status s = tok_grow(&x->heap, &x->cap_heap, x->n_heap + 1, sizeof *x->heap, x->e);
        if (s != TLM_OK)
            return s;
    }
    size_t i = x->n_heap++;
    while (i && before(&c, &x->heap[(i - 1) / 2])) {
        x->heap[i] = x->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    x->heap[i] = c;
    return TLM_OK;
}

static struct tok_candidate heap_pop(struct encoder *x)
{
    struct tok_candidate top = x->heap[0], last = x->heap[--x->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= x->n_heap)
            break;
        if (k + 1 < x->n_heap && before(&x->heap[k + 1], &x->heap[k]))
            k++;
        if (!before(&x->heap[k], &last))
            break;
        x->heap[i] = x->heap[k];
        i = k;
    }
    if (x->n_heap)
        x->heap[i] = last;
    return top;
}

static enum tlm_status push_pair(struct encoder *x, const char *s, int32_t left)
{
    const struct tok_symbol *l = &x->symbols[left];
    struct tok_candidate c;
    if (l->next < 0 || !candidate(x, s, l, &x->symbols[l->next], &c))
        return TLM_OK;
    c.pos = (uint32_t)left;
    return heap_push(x, c);
}

static enum tlm_status merge_long(struct encoder *x, const char *s, size_t n)
{
    struct tok_symbol *y = x->symbols;
    enum tlm_status status = TLM_OK;
    x->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        y[i].prev = (int32_t)i - 1;
        y[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n && status == TLM_OK; i++)
        status = push_pair(x, s, (int32_t)i);
    while (x->n_heap && status == TLM_OK) {
        struct tok_candidate c = heap_pop(x);
        struct tok_symbol *l = &y[c.pos];
        /* Symbols only grow, so equal length means the same two. */
        if (!l->len || l->next < 0 || l->len + y[l->next].len != c.len)
            continue;
        struct tok_symbol *r = &y[l->next];
        l->id = (uint32_t)c.key;
        l->len = c.len;
        r->len = 0;
        l->next = r->next;
        if (r->next >= 0)
            y[r->next].prev = (int32_t)c.pos;
        if (l->prev >= 0)
            status = push_pair(x, s, l->prev);
        if (status == TLM_OK)
            status = push_pair(x, s, (int32_t)c.pos);
    }
    for (size_t i = 0; i < n && status == TLM_OK; i++)
        if (y[i].len)
            status = encoder_push(x, (int32_t)y[i].id);
    return status;
}

static enum tlm_status merge_short(struct encoder *x, const char *s, size_t n)
{
    struct tok_symbol *y = x->symbols;
    struct tok_candidate c[SCAN_MAX]; /* c[i]: of y[i] and y[i + 1] */
    const struct tok_candidate none = {UINT64_MAX, 0, 0, 0};
    for (size_t i = 0; i + 1 < n; i++)
        if (!candidate(x, s, &y[i], &y[i + 1], &c[i]))
            c[i] = none;
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (c[i].key < c[best].key || (c[i].key == c[best].key && c[i].tie < c[best].tie))
                best = i;
        if (n < 2 || c[best].key == UINT64_MAX)
            break;
        y[best].id = (uint32_t)c[best].key;
        y[best].len = c[best].len;
        n--;
        memmove(&y[best + 1], &y[best + 2], (n - best - 1) * sizeof *y);
        memmove(&c[best], &c[best + 1], (n - best - 1) * sizeof *c);
        if (best + 1 < n && !candidate(x, s, &y[best], &y[best + 1], &c[best]))
            c[best] = none;
        if (best && !candidate(x, s, &y[best - 1], &y[best], &c[best - 1]))
            c[best - 1] = none;
    }
    enum tlm_status status = TLM_OK;
    for (size_t i = 0; i < n && status == TLM_OK; i++)
        status = encoder_push(x, (int32_t)y[i].id);
    return status;
}

static inline void add_symbol(struct encoder *x, size_t *n, uint32_t id, size_t off, size_t len)
{
    x->symbols[(*n)++] = (struct tok_symbol){id, (uint32_t)len, (uint32_t)off, -1, -1};
}

/* A character with the marks of continued and last pieces around it. */
static int32_t find_marked(struct encoder *x, const char *s, size_t n, bool first, bool last)
{
    const struct tok_model *m = &x->t->model;
    if ((first || !m->prefix_n) && (!last || !m->suffix_n))
        return vocab_find(&x->t->vocab, s, n);
    if (x->c.status != TLM_OK)
        return -1;
    buf_clear(&x->c);
    if (!first)
        buf_add(&x->c, m->prefix, m->prefix_n);
    buf_add(&x->c, s, n);
    if (last)
        buf_add(&x->c, m->suffix, m->suffix_n);
    return x->c.status == TLM_OK ? vocab_find(&x->t->vocab, x->c.data, x->c.len) : -1;
}

/* The first symbols of a word that is text. An unknown character becomes its
 * bytes, or unk, or nothing; a pending unk is written before the next known
 * character, as the original does it. */
static size_t split_symbols(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    size_t count = 0, unk_off = 0, unk_len = 0;
    for (size_t i = 0; i < n;) {
        size_t len = (size_t)utf8_len(s[i]);
        int32_t id = find_marked(x, s + i, len, i == 0, i + len == n);
        size_t known = 0;
        if (id >= 0) {
            if (unk_len)
                add_symbol(x, &count, (uint32_t)m->unk, unk_off, unk_len);
            unk_len = 0;
            add_symbol(x, &count, (uint32_t)id, i, len);
            i += len;
            continue;
        }
        while (m->byte_fallback && known < len && m->byte_piece[(uint8_t)s[i + known]] >= 0)
            known++;
        if (known == len) {
            for (size_t k = 0; k < len; k++)
                add_symbol(x, &count, (uint32_t)m->byte_piece[(uint8_t)s[i + k]], i + k, 1);
        } else if (m->unk >= 0) {
            if (unk_len && !m->fuse_unk) {
                add_symbol(x, &count, (uint32_t)m->unk, unk_off, unk_len);
                unk_len = 0;
            }
            if (!unk_len)
                unk_off = i;
            unk_len += len;
        }
        i += len;
    }
    if (unk_len)
        add_symbol(x, &count, (uint32_t)m->unk, unk_off, unk_len);
    return count;
}

/* Bytes of a byte-level word: the same with one symbol a byte. */
static size_t split_bytes(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = m->level_piece[(uint8_t)s[i]];
        if (id < 0)
            return SIZE_MAX;
        add_symbol(x, &count, (uint32_t)id, i, 1);
    }
    return count;
}

enum tlm_status bpe_word(struct encoder *x, const char *s, size_t n, bool level)
{
    const struct tok_model *m = &x->t->model;
    if (n > INT32_MAX / 4)
        return err_set(x->e, TLM_ELIMIT, "a word of %zu bytes, at most %d are taken", n, INT32_MAX / 4);
    enum tlm_status status = tok_grow(&x->symbols, &x->cap_symbols, n * (level ? 2 : 1), sizeof *x->symbols, x->e);
    if (status != TLM_OK)
        return status;
    size_t count = SIZE_MAX;
    if (level && !m->ignore_merges && !m->prefix_n && !m->suffix_n)
        count = split_bytes(x, s, n);
    if (count == SIZE_MAX) { /* rare vocabularies: go through the characters */
        if (level) {
            buf_clear(&x->key);
            if (byte_level_add(&x->key, s, n) != TLM_OK)
                return buf_check(&x->key, x->e, "a word");
            s = x->key.data;
            n = x->key.len;
        }
        int32_t whole = m->ignore_merges ? vocab_find(&x->t->vocab, s, n) : -1;
        if (whole >= 0)
            return encoder_push(x, whole);
        count = split_symbols(x, s, n);
        if (x->c.status != TLM_OK)
            return buf_check(&x->c, x->e, "a word");
    }
    return count <= SCAN_MAX ? merge_short(x, s, count) : merge_long(x, s, count);
}
