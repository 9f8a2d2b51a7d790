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
    struct tok_slot *slots = mem_new_array(size, sizeof *slots);
    if (!slots)
        return err_nomem(e, size * sizeof *slots);
    for (size_t i = 0; i < old; i++)
        if (v->slots[i].id_plus_1) {
            size_t k = v->slots[i].hash & (size - 1);
            while (slots[k].id_plus_1)
                k = (k + 1) & (size - 1);
            slots[k] = v->slots[i];
        }
    mem_free(v->slots);
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

enum tlm_status vocab_put(struct tok_vocab *v, uint32_t id, const char *s, size_t n, uint8_t flags, struct tlm_error *e)
{
    if (n >= TOK_MAX_TEXT || v->blob_len + n + 1 > TOK_MAX_TEXT)
        return err_set(e, TLM_ELIMIT, "the vocabulary's texts exceed %zu bytes", TOK_MAX_TEXT);
    enum tlm_status status = reserve_ids(v, (size_t)id + 1, e);
    if (status == TLM_OK)
        status = tok_grow(&v->blob, &v->blob_cap, v->blob_len + n + 1, 1, e);
    if (status == TLM_OK && (flags & TOK_MODEL))
        status = reserve_slots(v, (size_t)v->used + 1, e);
    if (status != TLM_OK)
        return status;
    memcpy(v->blob + v->blob_len, s, n);
    v->blob[v->blob_len + n] = 0;
    v->piece[id] = (struct tok_piece){(uint32_t)v->blob_len, (uint32_t)n};
    v->blob_len += n + 1;
    v->flags[id] |= flags | TOK_PRESENT;
    if (id >= v->n)
        v->n = id + 1;
    if (!(flags & TOK_MODEL))
        return TLM_OK;
    uint32_t hash = (uint32_t)tok_hash(s, n), k = hash & v->mask;
    for (; v->slots[k].id_plus_1; k = (k + 1) & v->mask) {
        if (v->slots[k].hash != hash)
            continue;
        const struct tok_piece *p = &v->piece[v->slots[k].id_plus_1 - 1];
        if (p->len == n && !memcmp(v->blob + p->off, s, n))
            break;
    }
    v->used += !v->slots[k].id_plus_1;
    v->repeats = v->repeats || v->slots[k].id_plus_1;
    v->slots[k] = (struct tok_slot){hash, id + 1};
    return TLM_OK;
}

int32_t vocab_find(const struct tok_vocab *v, const char *s, size_t n)
{
    if (!v->slots)
        return -1;
    uint32_t hash = (uint32_t)tok_hash(s, n);
    for (uint32_t k = hash & v->mask; v->slots[k].id_plus_1; k = (k + 1) & v->mask) {
        if (v->slots[k].hash != hash)
            continue;
        uint32_t id = v->slots[k].id_plus_1 - 1;
        if (v->piece[id].len == n && !memcmp(v->blob + v->piece[id].off, s, n))
            return (int32_t)id;
    }
    return -1;
}

void vocab_deinit(struct tok_vocab *v)
{
    mem_free(v->blob);
    mem_free(v->piece);
    mem_free(v->flags);
    mem_free(v->slots);
    *v = (struct tok_vocab){0};
}
