/* Vocabulary: the texts of all tokens in one block, by id, and an open
 * addressing table from text to id for those of the model. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"

static inline uint64_t load64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 32;
}

/* Most texts are shorter than 16 bytes. Lengths below 8 avoid reading past
 * the end by overlapping reads. */
uint64_t tok_hash(const char *s, size_t n)
{
    uint64_t h = n * 0xff51afd7ed558ccdu;
    while (n > 8) {
        h = mix(h, load64(s));
        s += 8;
        n -= 8;
    }
    uint64_t last = 0;
    if (n == 8) {
        last = load64(s);
    } else if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        last = (uint64_t)hi << 32 | lo;
    } else if (n) {
        last = (uint64_t)(uint8_t)s[0] | (uint64_t)(uint8_t)s[n / 2] << 8 | (uint64_t)(uint8_t)s[n - 1] << 16;
    }
    h = mix(h, last) * 0xd6e8feb86659fd93u; /* twice, so that the last bytes reach the low bits */
    return h ^ h >> 32;
}

enum tlm_status tok_grow(void *array, size_t *cap, size_t n, size_t size, struct tlm_error *e)
{
    if (n <= *cap)
        return TLM_OK;
    size_t want = *cap + *cap / 2 < n ? n : *cap + *cap / 2;
    if (want < 64)
        want = 64;
    void *old, *p;
    memcpy(&old, array, sizeof old);
    p = mem_realloc_array(old, want, size);
    if (!p)
        return err_nomem(e, want * size);
    memcpy(array, &p, sizeof p);
    *cap = want;
    return TLM_OK;
}

static enum tlm_status reserve_slots(struct tok_vocab *v, size_t n, struct tlm_error *e)
{
    size_t old = v->slots ? (size_t)v->mask + 1 : 0, size = old ? old : 64;
    while (size < n * 2)
        size *= 2;
    if (size == old)
        return TLM_OK;
    struct tok_slot *slots = mem_alloc_pages(size * sizeof *slots);
    if (!slots)
        return err_nomem(e, size * sizeof *slots);
    for (size_t i = 0; i < old; i++)
        if (v->slots[i].id_plus_1) {
            size_t k = v->slots[i].hash & (size - 1);
            while (slots[k].id_plus_1)
                k = (k + 1) & (size - 1);
            slots[k] = v->slots[i];
        }
    mem_free_pages(v->slots, old * sizeof *slots);
    v->slots = slots;
    v->mask = (uint32_t)(size - 1);
    return TLM_OK;
}

static enum tlm_status reserve_ids(struct tok_vocab *v, size_t ids, struct tlm_error *e)
{
    if (ids > TOK_MAX_ID)
        return err_set(e, TLM_ELIMIT, "a token id above %d", TOK_MAX_ID - 1);
    if (ids <= v->cap)
        return TLM_OK;
    size_t cap = v->cap + v->cap / 2;
    if (cap < ids)
        cap = ids;
    struct tok_piece *piece = mem_realloc_array(v->piece, cap, sizeof *piece);
    if (!piece)
        return err_nomem(e, cap * sizeof *piece);
    v->piece = piece;
    uint8_t *flags = mem_realloc_array(v->flags, cap, 1);
    if (!flags)
        return err_nomem(e, cap);
    v->flags = flags;
    memset(v->flags + v->cap, 0, cap - v->cap);
    memset(v->piece + v->cap, 0, (cap - v->cap) * sizeof *piece);
    v->cap = (uint32_t)cap;
    return TLM_OK;
}

enum tlm_status vocab_reserve(struct tok_vocab *v, size_t ids, size_t bytes, struct tlm_error *e)
{
    enum tlm_status s = reserve_ids(v, ids, e);
    if (s == TLM_OK)
        s = reserve_slots(v, ids, e);
    if (s != TLM_OK)
        return s;
    if (bytes > TOK_MAX_TEXT || v->blob_len + bytes > TOK_MAX_TEXT)
        return err_set(e, TLM_ELIMIT, "the vocabulary's texts exceed %zu bytes", TOK_MAX_TEXT);
    return tok_grow(&v->blob, &v->blob_cap, v->blob_len + bytes, 1, e);
}

/* Into the table; a text that is there already then means the new id. */
static void insert(struct tok_vocab *v, uint32_t id, uint32_t hash)
{
    struct tok_piece new = v->piece[id];
    uint32_t k = hash & v->mask;
    for (; v->slots[k].id_plus_1; k = (k + 1) & v->mask) {
        if (v->slots[k].hash != hash)
            continue;
        const struct tok_piece *p = &v->piece[v->slots[k].id_plus_1 - 1];
        if (p->len == new.len && !memcmp(v->blob + p->off, v->blob + new.off, new.len))
            break;
    }
    v->used += !v->slots[k].id_plus_1;
    v->repeats = v->repeats || v->slots[k].id_plus_1;
    v->slots[k] = (struct tok_slot){hash, id + 1};
}

void vocab_flush(struct tok_vocab *v)
{
    bool empty[VOCAB_LATER];
    for (uint32_t i = 0; i < v->n_later; i++) /* the misses, all at once */
        empty[i] = !v->slots[v->later[i].hash & v->mask].id_plus_1;
    for (uint32_t i = 0; i < v->n_later; i++) {
        struct tok_slot *to = &v->slots[v->later[i].hash & v->mask];
        if (empty[i] && !to->id_plus_1) { /* and not taken by this group */
            *to = v->later[i];
            v->used++;
        } else {
            insert(v, v->later[i].id_plus_1 - 1, v->later[i].hash);
        }
    }
    v->n_later = 0;
}

enum tlm_status vocab_put_later(struct tok_vocab *v, uint32_t id, const char *s, size_t n, uint8_t flags,
                                struct tlm_error *e)
{
    if (n >= TOK_MAX_TEXT || v->blob_len + n + 1 > TOK_MAX_TEXT)
        return err_set(e, TLM_ELIMIT, "the vocabulary's texts exceed %zu bytes", TOK_MAX_TEXT);
    enum tlm_status status = reserve_ids(v, (size_t)id + 1, e);
    if (status == TLM_OK)
        status = tok_grow(&v->blob, &v->blob_cap, v->blob_len + n + 1, 1, e);
    if (status == TLM_OK && (flags & TOK_MODEL))
        status = reserve_slots(v, (size_t)v->used + VOCAB_LATER, e);
    if (status != TLM_OK)
        return status;
    /* An id that waits for the table must keep its text until then. */
    if (v->n_later && (v->n_later == VOCAB_LATER || (v->flags[id] & TOK_PRESENT)))
        vocab_flush(v);
    memcpy(v->blob + v->blob_len, s, n);
    v->blob[v->blob_len + n] = 0;
    v->piece[id] = (struct tok_piece){(uint32_t)v->blob_len, (uint32_t)n};
    v->blob_len += n + 1;
    v->flags[id] |= flags | TOK_PRESENT;
    if (id >= v->n)
        v->n = id + 1;
    if (flags & TOK_MODEL)
        v->later[v->n_later++] = (struct tok_slot){(uint32_t)tok_hash(s, n), id + 1};
    return TLM_OK;
}

enum tlm_status vocab_put(struct tok_vocab *v, uint32_t id, const char *s, size_t n, uint8_t flags, struct tlm_error *e)
{
    enum tlm_status status = vocab_put_later(v, id, s, n, flags, e);
    vocab_flush(v);
    return status;
}

static int32_t find_hashed(const struct tok_vocab *v, const char *s, size_t n, uint32_t hash)
{
    for (uint32_t k = hash & v->mask; v->slots[k].id_plus_1; k = (k + 1) & v->mask) {
        if (v->slots[k].hash != hash)
            continue;
        uint32_t id = v->slots[k].id_plus_1 - 1;
        if (v->piece[id].len == n && !memcmp(v->blob + v->piece[id].off, s, n))
            return (int32_t)id;
    }
    return -1;
}

int32_t vocab_find(const struct tok_vocab *v, const char *s, size_t n)
{
    return v->slots ? find_hashed(v, s, n, (uint32_t)tok_hash(s, n)) : -1;
}

void vocab_find_many(const struct tok_vocab *v, const char *s, const uint32_t *len, uint32_t n, int32_t *ids)
{
    enum { GROUP = 32 };
    for (uint32_t from = 0; from < n; from += GROUP) {
        uint32_t hash[GROUP], off[GROUP], count = n - from < GROUP ? n - from : GROUP;
        struct tok_slot slot[GROUP];
        struct tok_piece piece[GROUP];
        char first[GROUP];
        const char *text = s;
        for (uint32_t i = 0; i < count; text += len[from + i++]) {
            off[i] = (uint32_t)(text - s);
            hash[i] = (uint32_t)tok_hash(text, len[from + i]);
        }
        /* Each loop has one miss an entry, which do not wait for each other. */
        for (uint32_t i = 0; i < count; i++)
            slot[i] = v->slots ? v->slots[hash[i] & v->mask] : (struct tok_slot){0, 0};
        for (uint32_t i = 0; i < count; i++)
            piece[i] = slot[i].id_plus_1 ? v->piece[slot[i].id_plus_1 - 1] : (struct tok_piece){0, 0};
        for (uint32_t i = 0; i < count; i++)
            first[i] = slot[i].id_plus_1 ? v->blob[piece[i].off] : 0;
        for (uint32_t i = 0; i < count; i++) {
            const char *at = s + off[i];
            uint32_t m = len[from + i];
            bool same = slot[i].id_plus_1 && slot[i].hash == hash[i] && piece[i].len == m && m && first[i] == at[0] &&
                        !memcmp(v->blob + piece[i].off, at, m);
            ids[from + i] = same ? (int32_t)slot[i].id_plus_1 - 1 : v->slots ? find_hashed(v, at, m, hash[i]) : -1;
        }
        s = text;
    }
}

void vocab_deinit(struct tok_vocab *v)
{
    mem_free(v->blob);
    mem_free(v->piece);
    mem_free(v->flags);
    mem_free_pages(v->slots, v->slots ? ((size_t)v->mask + 1) * sizeof *v->slots : 0);
    *v = (struct tok_vocab){0};
}
