/* The prefix index: a tree of blocks by their tokens.
 *
 * A node is one entry of some finished sequence: its tokens and a reference to
 * its block in each group. A child follows its parent after the first `attach`
 * of the parent's tokens, so that a prefix may end inside a block. Nodes are
 * also in one list by last use; using a node uses its parents after it, so the
 * oldest node is always a leaf. */
#include <string.h>

#include "base/mem.h"
#include "kvcache/kv_private.h"

struct kv_node {
    struct kv_node *parent, *child, *next; /* child: the first; next: of the same parent */
    struct kv_node *newer, *older;
    int attach; /* tokens of the parent before it */
    int count;
    bool sealed;
    int64_t start;
    int32_t tokens[KV_BLOCK];
    int32_t ids[]; /* [groups] */
};

static void unlist(struct kv_cache *kv, struct kv_node *n)
{
    *(n->newer ? &n->newer->older : &kv->newest) = n->older;
    *(n->older ? &n->older->newer : &kv->oldest) = n->newer;
}

static void list_newest(struct kv_cache *kv, struct kv_node *n)
{
    n->newer = NULL;
    n->older = kv->newest;
    *(kv->newest ? &kv->newest->newer : &kv->oldest) = n;
    kv->newest = n;
}

/* n and then its parents become the newest. */
static void touch(struct kv_cache *kv, struct kv_node *n)
{
    for (; n != kv->index; n = n->parent) {
        unlist(kv, n);
        list_newest(kv, n);
    }
}

static void put_blocks(struct kv_cache *kv, struct kv_node *n)
{
    for (int g = 0; g < kv->n_groups; g++) {
        if (n->ids[g] != KV_NONE)
            kv_pool_put(kv_entry_pool(kv, g, n->sealed), n->ids[g]);
        n->ids[g] = KV_NONE;
    }
}

static void remove_leaf(struct kv_cache *kv, struct kv_node *n)
{
    struct kv_node **at = &n->parent->child;
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    unlist(kv, n);
    put_blocks(kv, n);
    mem_free(n);
}

void kv_index_evict(struct kv_cache *kv, const struct kv_pool *p)
{
    while (p->n_free == 0 && kv->oldest)
        remove_leaf(kv, kv->oldest);
}

void kv_index_clear(struct kv_cache *kv)
{
    while (kv->oldest)
        remove_leaf(kv, kv->oldest);
    mem_free(kv->index);
    kv->index = NULL;
}

static int common(const int32_t *a, const int32_t *b, int64_t most)
{
    int n = 0;
    while (n < most && a[n] == b[n])
        n++;
    return n;
}

/* --- adding --------------------------------------------------------------- */

static struct kv_node *new_node(const struct kv_cache *kv, struct tlm_error *e)
{
    size_t bytes = sizeof(struct kv_node) + (size_t)kv->n_groups * sizeof(int32_t);
    struct kv_node *n = mem_new(bytes);
    if (!n) {
        err_nomem(e, bytes);
        return NULL;
    }
    for (int g = 0; g < kv->n_groups; g++)
        n->ids[g] = KV_NONE;
    return n;
}

/* Takes over an entry's tokens and shares its blocks. */
static void fill_node(struct kv_node *n, const struct kv_seq *s, int entry)
{
    const struct kv_entry *en = &s->entries[entry];
    put_blocks(s->cache, n);
    n->start = en->start;
    n->count = en->count;
    n->sealed = en->sealed;
    memcpy(n->tokens, s->tokens + en->start, (size_t)en->count * sizeof *n->tokens);
    for (int g = 0; g < s->cache->n_groups; g++) {
        n->ids[g] = kv_entry_ids(s, entry)[g];
        if (n->ids[g] != KV_NONE)
            kv_pool_share(kv_entry_pool(s->cache, g, n->sealed), n->ids[g]);
    }
}

/* Window blocks that this sequence still has and the node has not. */
static void complete_node(struct kv_node *n, const struct kv_seq *s, int entry)
{
    if (n->sealed != s->entries[entry].sealed)
        return;
    for (int g = 0; g < s->cache->n_groups; g++) {
        int32_t id = kv_entry_ids(s, entry)[g];
        if (n->ids[g] == KV_NONE && id != KV_NONE) {
            n->ids[g] = id;
            kv_pool_share(kv_entry_pool(s->cache, g, n->sealed), id);
        }
    }
}

/* The node for an entry below parent, found or made; NULL with the error set. */
static struct kv_node *place_entry(const struct kv_seq *s, int entry, struct kv_node *parent, int attach,
                                   struct tlm_error *e)
{
    struct kv_cache *kv = s->cache;
    const struct kv_entry *en = &s->entries[entry];
    for (struct kv_node *n = parent->child; n; n = n->next) {
        int least = n->count < en->count ? n->count : en->count;
        if (n->attach != attach || common(n->tokens, s->tokens + en->start, least) < least)
            continue;
        if (n->count < en->count) {
            if (n->child)
                continue;
            fill_node(n, s, entry); /* a block that has grown since */
        } else if (n->count == en->count) {
            complete_node(n, s, entry);
        }
        return n;
    }
    struct kv_node *n = new_node(kv, e);
    if (!n)
        return NULL;
    n->parent = parent;
    n->attach = attach;
    n->next = parent->child;
    parent->child = n;
    fill_node(n, s, entry);
    list_newest(kv, n);
    return n;
}

enum tlm_status kv_index_add(struct kv_seq *s, struct tlm_error *e)
{
    struct kv_cache *kv = s->cache;
    /* Where blocks are exact up to a length, a shared one could be of another length. */
    if (!s->known || s->length == 0 || (kv->encoded && kv->start))
        return TLM_OK;
    if (!kv->index && !(kv->index = new_node(kv, e)))
        return TLM_ENOMEM;
    struct kv_node *at = kv->index;
    int attach = 0;
    for (int i = 0; i < s->n && at; i++) {
        struct kv_node *n = place_entry(s, i, at, attach, e);
        if (!n)
            break;
        at = n;
        attach = s->entries[i].count;
    }
    touch(kv, at);
    return e && e->status != TLM_OK ? e->status : TLM_OK;
}

/* --- matching ------------------------------------------------------------- */

static struct kv_node *best_child(const struct kv_node *parent, int attach, const int32_t *ids, int64_t left, int *len)
{
    struct kv_node *best = NULL;
    *len = 0;
    for (struct kv_node *n = parent->child; n; n = n->next) {
        if (n->attach != attach)
            continue;
        int k = common(n->tokens, ids, left < n->count ? left : n->count);
        if (k > *len || (k && k == *len && k == n->count)) { /* rather one that need not be cut */
            *len = k;
            best = n;
        }
    }
    return best;
}

static enum tlm_status append_node(struct kv_seq *s, const struct kv_node *n, int len, struct tlm_error *e)
{
    enum tlm_status st = kv_seq_add_entry(s, s->length, e);
    if (st != TLM_OK)
        return st;
    s->entries[s->n - 1].count = len;
    s->entries[s->n - 1].sealed = n->sealed;
    for (int g = 0; g < s->cache->n_groups; g++) {
        kv_entry_ids(s, s->n - 1)[g] = n->ids[g];
        if (n->ids[g] != KV_NONE)
            kv_pool_share(kv_entry_pool(s->cache, g, n->sealed), n->ids[g]);
    }
    s->length += len;
    return TLM_OK;
}

/* The longest part of a matched sequence that can be gone on from. */
static void cut_to_use(struct kv_seq *s, bool cut)
{
    int64_t n = s->length;
    if (cut)
        n = s->entries[s->n - 1].start;
    while (n > 0 && !kv_seq_reaches(s, n)) {
        int i = s->n - 1;
        while (s->entries[i].start >= n)
            i--;
        n = s->entries[i].start;
    }
    kv_seq_trim(s, n);
}

enum tlm_status kv_index_match(struct kv_cache *kv, const int32_t *ids, int64_t most, bool whole, struct kv_seq **out,
                               struct tlm_error *e)
{
    enum tlm_status st = kv_seq_new(kv, out, e);
    struct kv_seq *s = *out;
    struct kv_node *at = kv->index;
    bool cut = false;
    int attach = 0, len;
    while (st == TLM_OK && at && s->length < most) {
        struct kv_node *n = best_child(at, attach, ids + s->length, most - s->length, &len);
        if (!n)
            break;
        st = append_node(s, n, len, e);
        cut = whole && n->sealed && len < n->count;
        at = n;
        attach = len;
        if (cut)
            break;
    }
    if (st == TLM_OK)
        st = kv_seq_reserve_tokens(s, s->length, e);
    if (st != TLM_OK) {
        kv_seq_free(s);
        *out = NULL;
        return st;
    }
    if (s->length == 0)
        return TLM_OK;
    touch(kv, at);
    memcpy(s->tokens, ids, (size_t)s->length * sizeof *ids);
    cut_to_use(s, cut);
    kv_seq_release_windows(s);
    return TLM_OK;
}
