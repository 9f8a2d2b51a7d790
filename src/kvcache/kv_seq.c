/* Sequences: their entries, sharing, rewinding, windows. */
#include <string.h>

#include "base/mem.h"
#include "kvcache/kv_private.h"

enum tlm_status kv_seq_new(struct kv_cache *kv, struct kv_seq **out, struct tlm_error *e)
{
    *out = NULL;
    struct kv_seq *s = mem_new(sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s);
    s->cache = kv;
    s->known = true;
    s->state = kv->zero_state;
    if (kv_has_states(kv))
        kv_pool_share(&kv->states, s->state);
    s->live = mem_new_array((size_t)kv->n_groups, sizeof *s->live);
    if (!s->live) {
        kv_seq_free(s);
        return err_nomem(e, (size_t)kv->n_groups * sizeof *s->live);
    }
    *out = s;
    return TLM_OK;
}

static void put_block(struct kv_seq *s, int entry, int group)
{
    int32_t *id = &kv_entry_ids(s, entry)[group];
    if (*id != KV_NONE)
        kv_pool_put(kv_entry_pool(s->cache, group, s->entries[entry].sealed), *id);
    *id = KV_NONE;
}

static void drop_last(struct kv_seq *s)
{
    for (int g = 0; g < s->cache->n_groups; g++)
        put_block(s, s->n - 1, g);
    s->n--;
}

void kv_seq_free(struct kv_seq *s)
{
    if (!s)
        return;
    while (s->n)
        drop_last(s);
    kv_checkpoints_deinit(s->cache, &s->checkpoints);
    if (kv_has_states(s->cache))
        kv_pool_put(&s->cache->states, s->state);
    mem_free(s->entries);
    mem_free(s->ids);
    mem_free(s->live);
    mem_free(s->tokens);
    mem_free(s);
}

int64_t kv_seq_length(const struct kv_seq *s)
{
    return s->length;
}

int64_t kv_seq_most_rows(const struct kv_seq *s)
{
    const struct kv_cache *kv = s->cache;
    return kv->encoded && s->length < kv->start ? kv->start - s->length : INT64_MAX;
}

enum tlm_status kv_seq_add_entry(struct kv_seq *s, int64_t start, struct tlm_error *e)
{
    size_t groups = (size_t)s->cache->n_groups;
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 16;
        if (cap > INT32_MAX / 4)
            return err_set(e, TLM_ELIMIT, "cache: a sequence of more than %lld tokens", (long long)s->cap * KV_BLOCK);
        struct kv_entry *entries = mem_realloc_array(s->entries, (size_t)cap, sizeof *entries);
        if (!entries)
            return err_nomem(e, (size_t)cap * sizeof *entries);
        s->entries = entries;
        int32_t *ids = mem_realloc_array(s->ids, (size_t)cap * groups, sizeof *ids);
        if (!ids)
            return err_nomem(e, (size_t)cap * groups * sizeof *ids);
        s->ids = ids;
        s->cap = cap;
    }
    s->entries[s->n] = (struct kv_entry){.start = start};
    for (size_t g = 0; g < groups; g++)
        s->ids[(size_t)s->n * groups + g] = KV_NONE;
    s->n++;
    return TLM_OK;
}

enum tlm_status kv_seq_reserve_tokens(struct kv_seq *s, int64_t end, struct tlm_error *e)
{
    if (end <= s->cap_tokens)
        return TLM_OK;
    int64_t cap = s->cap_tokens ? s->cap_tokens : 256;
    while (cap < end)
        cap *= 2;
    int32_t *p = mem_realloc_array(s->tokens, (size_t)cap, sizeof *p);
    if (!p)
        return err_nomem(e, (size_t)cap * sizeof *p);
    s->tokens = p;
    s->cap_tokens = cap;
    return TLM_OK;
}

enum tlm_status kv_seq_own_last(struct kv_seq *s, struct tlm_error *e)
{
    struct kv_cache *kv = s->cache;
    for (int g = 0; g < kv->n_groups; g++) {
        struct kv_pool *p = &kv->groups[g].open;
        int32_t *id = &kv_entry_ids(s, s->n - 1)[g], fresh;
        if (*id == KV_NONE || p->refs[*id] == 1)
            continue;
        enum tlm_status st = kv_block_get(kv, p, &fresh, e);
        if (st != TLM_OK)
            return st;
        memcpy(kv_pool_memory(p, fresh), kv_pool_memory(p, *id), p->block_bytes);
        kv_pool_put(p, *id);
        *id = fresh;
    }
    return TLM_OK;
}

void kv_seq_shrink(struct kv_seq *s)
{
    while (s->n && s->entries[s->n - 1].count == 0)
        drop_last(s);
}

int64_t kv_first_seen(const struct kv_group *g, int64_t n)
{
    int64_t window = g->window == 1 ? 2 : g->window;
    return window && n >= window ? n - window + 1 : 0;
}

void kv_seq_release_windows(struct kv_seq *s)
{
    for (int g = 0; g < s->cache->n_groups; g++) {
        const struct kv_group *group = &s->cache->groups[g];
        int64_t seen = kv_first_seen(group, s->length);
        while (s->live[g] < s->n && s->entries[s->live[g]].start + s->entries[s->live[g]].count <= seen) {
            if (s->entries[s->live[g]].start >= group->keep)
                put_block(s, s->live[g], g);
            s->live[g]++;
        }
    }
}

bool kv_seq_reaches(const struct kv_seq *s, int64_t n)
{
    if (kv_has_states(s->cache) && kv_state_at(s, n) == KV_NONE)
        return false;
    for (int g = 0; g < s->cache->n_groups; g++) {
        const struct kv_group *group = &s->cache->groups[g];
        int64_t seen = kv_first_seen(group, n);
        for (int i = 0; i < s->n && s->entries[i].start < n; i++) {
            const struct kv_entry *en = &s->entries[i];
            bool needed = en->start + en->count > seen || en->start < group->keep;
            if (needed && kv_entry_ids(s, i)[g] == KV_NONE)
                return false;
        }
    }
    return true;
}

/* The next lower length that may be reached when n > 0 is not. What a window
 * has given back is nearer to its edge for lower positions in the same entry. */
static int64_t next_lower(const struct kv_seq *s, int64_t n)
{
    int i = s->n - 1;
    if (kv_has_states(s->cache)) {
        i = kv_checkpoints_below(&s->checkpoints, n);
        return i ? s->checkpoints.at[i - 1].position : 0;
    }
    while (s->entries[i].start >= n)
        i--;
    return s->entries[i].start;
}

int64_t kv_seq_reach(const struct kv_seq *s, int64_t n)
{
    n = n < s->length ? n : s->length;
    while (n > 0 && !kv_seq_reaches(s, n))
        n = next_lower(s, n);
    return n;
}

bool kv_seq_trim(struct kv_seq *s, int64_t n)
{
    if (n >= s->length)
        return n == s->length;
    if (n < 0 || !kv_seq_reaches(s, n))
        return false;
    if (kv_has_states(s->cache)) {
        kv_state_set(s, kv_state_at(s, n));
        kv_checkpoints_cut(s->cache, &s->checkpoints, kv_checkpoints_below(&s->checkpoints, n + 1));
    }
    while (s->n && s->entries[s->n - 1].start >= n)
        drop_last(s);
    if (s->n)
        s->entries[s->n - 1].count = (int32_t)(n - s->entries[s->n - 1].start);
    s->length = n;
    for (int g = 0; g < s->cache->n_groups; g++) {
        while (s->live[g] > s->n)
            s->live[g]--;
        while (s->live[g] > 0 && kv_entry_ids(s, s->live[g] - 1)[g] != KV_NONE)
            s->live[g]--;
    }
    return true;
}

enum tlm_status kv_seq_fork(const struct kv_seq *from, int64_t n, struct kv_seq **out, struct tlm_error *e)
{
    struct kv_seq *s;
    *out = NULL;
    if (n > from->length || !kv_seq_reaches(from, n))
        return TLM_OK;
    enum tlm_status st = kv_seq_new(from->cache, &s, e);
    if (st != TLM_OK)
        return st;
    s->known = from->known;
    if (s->known)
        st = kv_seq_reserve_tokens(s, n, e);
    if (st == TLM_OK && kv_has_states(s->cache)) {
        kv_state_set(s, kv_state_at(from, n));
        st = kv_checkpoints_share(s->cache, &s->checkpoints, &from->checkpoints, 0, n, e);
    }
    for (int i = 0; i < from->n && from->entries[i].start < n && st == TLM_OK; i++) {
        const struct kv_entry *en = &from->entries[i];
        st = kv_seq_add_entry(s, en->start, e);
        if (st != TLM_OK)
            break;
        s->entries[i] = *en;
        if (en->start + en->count > n)
            s->entries[i].count = (int32_t)(n - en->start);
        for (int g = 0; g < s->cache->n_groups; g++) {
            int32_t id = kv_entry_ids(from, i)[g];
            kv_entry_ids(s, i)[g] = id;
            if (id != KV_NONE)
                kv_pool_share(kv_entry_pool(s->cache, g, en->sealed), id);
        }
    }
    if (st != TLM_OK) {
        kv_seq_free(s);
        return st;
    }
    if (s->known && n)
        memcpy(s->tokens, from->tokens, (size_t)n * sizeof *s->tokens);
    s->length = n;
    kv_seq_release_windows(s);
    *out = s;
    return TLM_OK;
}

/* Blocks of zeros for the last entry; sealed ones read as such whatever the
 * format makes of them, since nobody looks at their values. */
static enum tlm_status assume_entry(struct kv_seq *s, int count, struct tlm_error *e)
{
    struct kv_cache *kv = s->cache;
    struct kv_entry *en = &s->entries[s->n - 1];
    en->sealed = kv->encoded && count == KV_BLOCK && en->start >= kv->sink && kv->start == 0;
    for (int g = 0; g < kv->n_groups; g++) {
        struct kv_pool *p = kv_entry_pool(kv, g, en->sealed);
        int32_t *id = &kv_entry_ids(s, s->n - 1)[g];
        enum tlm_status st = kv_block_get(kv, p, id, e);
        if (st != TLM_OK)
            return st;
        memset(kv_pool_memory(p, *id), 0, p->block_bytes);
    }
    en->count = count;
    s->length += count;
    kv_seq_release_windows(s);
    return TLM_OK;
}

enum tlm_status kv_seq_assume(struct kv_seq *s, int64_t n, struct tlm_error *e)
{
    int64_t from = s->length;
    enum tlm_status st = TLM_OK;
    s->known = s->known && n == 0;
    for (int64_t left = n; left > 0 && st == TLM_OK; left -= KV_BLOCK) {
        st = kv_seq_add_entry(s, s->length, e);
        if (st == TLM_OK)
            st = assume_entry(s, left < KV_BLOCK ? (int)left : KV_BLOCK, e);
    }
    if (st != TLM_OK) { /* only fresh sequences assume, so nothing before is lost */
        kv_seq_shrink(s);
        while (s->n && s->entries[s->n - 1].start >= from)
            drop_last(s);
        s->length = from;
    }
    return st;
}
