/* States of recurrent layers. A state is one block of a pool of its own, of
 * kv_config.state_bytes, and is never written again once a pass has committed
 * it: a pass writes the next one into a fresh block. So a checkpoint is only a
 * position and one more reference, and forks, the index and aborted passes copy
 * nothing. An empty sequence refers to a block of zeros that the cache keeps. */
#include <string.h>

#include "base/mem.h"
#include "kvcache/kv_private.h"

enum { ALIGNMENT = 64 };

enum tlm_status kv_state_init(struct kv_cache *kv, const struct kv_config *c, struct tlm_error *e)
{
    if (c->state_bytes == 0)
        return TLM_OK;
    if (c->state_bytes > PTRDIFF_MAX - ALIGNMENT)
        return err_set(e, TLM_ELIMIT, "cache: a recurrent state of %zu bytes", c->state_bytes);
    size_t bytes = (c->state_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    kv_pool_init(&kv->states, bytes, &kv->bytes, c->limit_bytes);
    enum tlm_status s = kv_block_get(kv, &kv->states, &kv->zero_state, e);
    if (s == TLM_OK)
        memset(kv_pool_memory(&kv->states, kv->zero_state), 0, bytes);
    return s;
}

/* --- checkpoints ---------------------------------------------------------- */

enum tlm_status kv_checkpoints_reserve(struct kv_checkpoints *c, int more, struct tlm_error *e)
{
    if (more <= c->cap - c->n)
        return TLM_OK;
    if (more > INT32_MAX / 4 - c->n)
        return err_set(e, TLM_ELIMIT, "cache: more than %d checkpoints", INT32_MAX / 4);
    int cap = c->n + more > 2 * c->n ? c->n + more : 2 * c->n;
    struct kv_checkpoint *p = mem_realloc_array(c->at, (size_t)cap, sizeof *p);
    if (!p)
        return err_nomem(e, (size_t)cap * sizeof *p);
    c->at = p;
    c->cap = cap;
    return TLM_OK;
}

int kv_checkpoints_below(const struct kv_checkpoints *c, int64_t n)
{
    int lo = 0, hi = c->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (c->at[mid].position < n)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void kv_checkpoints_cut(struct kv_cache *kv, struct kv_checkpoints *c, int keep)
{
    while (c->n > keep)
        kv_pool_put(&kv->states, c->at[--c->n].state);
}

void kv_checkpoints_deinit(struct kv_cache *kv, struct kv_checkpoints *c)
{
    kv_checkpoints_cut(kv, c, 0);
    mem_free(c->at);
    *c = (struct kv_checkpoints){0};
}

enum tlm_status kv_checkpoints_share(struct kv_cache *kv, struct kv_checkpoints *to, const struct kv_checkpoints *from,
                                     int64_t after, int64_t end, struct tlm_error *e)
{
    int first = kv_checkpoints_below(from, after + 1), past = kv_checkpoints_below(from, end + 1);
    if (first == past)
        return TLM_OK;
    enum tlm_status s = kv_checkpoints_reserve(to, past - first, e);
    for (int i = first; i < past && s == TLM_OK; i++) {
        int at = kv_checkpoints_below(to, from->at[i].position);
        if (at < to->n && to->at[at].position == from->at[i].position)
            continue;
        memmove(to->at + at + 1, to->at + at, (size_t)(to->n - at) * sizeof *to->at);
        to->at[at] = from->at[i];
        to->n++;
        kv_pool_share(&kv->states, from->at[i].state);
    }
    return s;
}

/* --- sequences ------------------------------------------------------------ */

const void *kv_seq_state(const struct kv_seq *s)
{
    return kv_has_states(s->cache) ? kv_pool_memory(&s->cache->states, s->state) : NULL;
}

enum tlm_status kv_seq_checkpoint(struct kv_seq *s, struct tlm_error *e)
{
    struct kv_checkpoints *c = &s->checkpoints;
    if (!kv_has_states(s->cache) || s->length == 0 || (c->n && c->at[c->n - 1].position == s->length))
        return TLM_OK;
    enum tlm_status st = kv_checkpoints_reserve(c, 1, e);
    if (st != TLM_OK)
        return st;
    c->at[c->n++] = (struct kv_checkpoint){s->length, s->state};
    kv_pool_share(&s->cache->states, s->state);
    return TLM_OK;
}

int32_t kv_state_at(const struct kv_seq *s, int64_t n)
{
    if (n == 0)
        return s->cache->zero_state;
    if (n == s->length)
        return s->state;
    int i = kv_checkpoints_below(&s->checkpoints, n);
    return i < s->checkpoints.n && s->checkpoints.at[i].position == n ? s->checkpoints.at[i].state : KV_NONE;
}

void kv_state_set(struct kv_seq *s, int32_t state)
{
    kv_pool_share(&s->cache->states, state);
    kv_pool_put(&s->cache->states, s->state);
    s->state = state;
}
