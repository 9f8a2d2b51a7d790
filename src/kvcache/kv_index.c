/* The prefix index: a tree of blocks by their tokens.
 *
 * A node is one entry of some finished sequence: its tokens, a reference to its
 * block in each group, and the checkpoints that lie in its tokens. A child
 * follows its parent after the first `attach` of the parent's tokens, so that a
 * prefix may end inside a block. Nodes are also in one list by last use; using a
 * node uses its parents after it, so the oldest node is always a leaf. */
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
    struct kv_checkpoints checkpoints; /* start < position <= start + count */
    int matched;                       /* while looking: tokens in common with what is looked for, */
    struct kv_node *then;              /* and the next node on the way to what was found */
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
    kv_checkpoints_deinit(kv, &n->checkpoints);
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

/* May a node stand for an entry of the same tokens? A checkpoint within a block
 * is of use as long as there is the exact one, so that stays beside a sealed
 * one. */
static bool may_hold(const struct kv_node *n, const struct kv_seq *s, int entry)
{
    const struct kv_entry *en = &s->entries[entry];
    const struct kv_checkpoints *c = &s->checkpoints;
    if (n->count < en->count)
        return !n->child && (n->sealed || !en->sealed || n->checkpoints.n == 0);
    return !n->sealed || en->sealed ||
           kv_checkpoints_below(c, en->start + 1) == kv_checkpoints_below(c, en->start + en->count + 1);
}

/* The entry's checkpoints become the node's too. */
static enum tlm_status share_checkpoints(struct kv_node *n, const struct kv_seq *s, int entry, struct tlm_error *e)
{
    const struct kv_entry *en = &s->entries[entry];
    return kv_checkpoints_share(s->cache, &n->checkpoints, &s->checkpoints, en->start, en->start + en->count, e);
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
        if (!may_hold(n, s, entry))
            continue;
        if (share_checkpoints(n, s, entry, e) != TLM_OK)
            return NULL;
        if (n->count < en->count)
            fill_node(n, s, entry); /* a block that has grown since */
        else if (n->count == en->count)
            complete_node(n, s, entry);
        return n;
    }
    struct kv_node *n = new_node(kv, e);
    if (!n || share_checkpoints(n, s, entry, e) != TLM_OK) {
        mem_free(n);
        return NULL;
    }
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
    int attach = 0, last = s->checkpoints.n - 1;
    int64_t end = !kv_has_states(kv) ? s->length : last < 0 ? 0 : s->checkpoints.at[last].position;
    for (int i = 0; i < s->n && s->entries[i].start < end; i++) {
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

/* Follows the longest block at every step; *usable: the tokens up to which
 * nothing encoded was cut, where that matters. */
static enum tlm_status match_tokens(struct kv_seq *s, const int32_t *ids, int64_t most, bool whole, int64_t *usable,
                                    struct kv_node **last, struct tlm_error *e)
{
    struct kv_node *at = s->cache->index;
    enum tlm_status st = TLM_OK;
    bool cut = false;
    int attach = 0, len;
    while (st == TLM_OK && at && !cut && s->length < most) {
        struct kv_node *n = best_child(at, attach, ids + s->length, most - s->length, &len);
        if (!n)
            break;
        cut = whole && n->sealed && len < n->count;
        *usable = cut ? s->length : s->length + len;
        st = append_node(s, n, len, e);
        at = n;
        attach = len;
    }
    *last = at;
    return st;
}

/* Are the blocks that a row at n sees there, in n's node and its parents? */
static bool path_reaches(const struct kv_cache *kv, const struct kv_node *node, int64_t n)
{
    for (int g = 0; g < kv->n_groups; g++) {
        int64_t seen = kv_first_seen(&kv->groups[g], n), end = n;
        for (const struct kv_node *at = node; at != kv->index; at = at->parent) {
            if (at->ids[g] == KV_NONE && (end > seen || at->start < kv->groups[g].keep))
                return false;
            end = at->start;
        }
    }
    return true;
}

/* The last checkpoint of a node that a match may end at, beyond `least`; else
 * `least`. */
static int64_t best_checkpoint(const struct kv_cache *kv, const struct kv_node *n, bool whole, int64_t least)
{
    const struct kv_checkpoints *c = &n->checkpoints;
    for (int i = kv_checkpoints_below(c, n->start + n->matched + 1); i-- > 0 && c->at[i].position > least;) {
        bool cuts = whole && n->sealed && c->at[i].position < n->start + KV_BLOCK;
        if (!cuts && path_reaches(kv, n, c->at[i].position))
            return c->at[i].position;
    }
    return least;
}

/* The next node in the order of the tree, n's children left out unless `deeper`. */
static struct kv_node *next_node(const struct kv_cache *kv, struct kv_node *n, bool deeper)
{
    if (deeper && n->child)
        return n->child;
    while (n != kv->index && !n->next)
        n = n->parent;
    return n == kv->index ? NULL : n->next;
}

/* The node with the last checkpoint in any path that ids follow, and that
 * checkpoint's position; NULL when there is none. A longer path can have the
 * shorter prefix, so all of them are walked. */
static struct kv_node *last_checkpoint(struct kv_cache *kv, const int32_t *ids, int64_t most, bool whole,
                                       int64_t *position)
{
    struct kv_node *best = NULL, *root = kv->index;
    *position = 0;
    for (struct kv_node *n = root ? next_node(kv, root, true) : NULL, *next; n; n = next) {
        const struct kv_node *up = n->parent;
        bool follows = up == root || (n->attach <= up->matched && !(whole && up->sealed && n->attach < KV_BLOCK));
        n->matched = 0;
        if (follows && n->start < most)
            n->matched = common(n->tokens, ids + n->start, most - n->start < n->count ? most - n->start : n->count);
        int64_t p = best_checkpoint(kv, n, whole, *position);
        if (p > *position) {
            *position = p;
            best = n;
        }
        next = next_node(kv, n, n->matched > 0);
    }
    return best;
}

/* Appends the path of nodes that ends at a checkpoint in `last`. */
static enum tlm_status match_checkpoint(struct kv_seq *s, struct kv_node *last, int64_t position, struct tlm_error *e)
{
    struct kv_cache *kv = s->cache;
    struct kv_node *first = last;
    enum tlm_status st = TLM_OK;
    int64_t end;
    last->then = NULL;
    for (; first->parent != kv->index; first = first->parent)
        first->parent->then = first;
    for (const struct kv_node *n = first; n && st == TLM_OK; n = n->then) {
        end = n->then ? n->start + n->then->attach : position;
        st = append_node(s, n, (int)(end - n->start), e);
        if (st == TLM_OK)
            st = kv_checkpoints_share(kv, &s->checkpoints, &n->checkpoints, n->start, end, e);
    }
    if (st == TLM_OK)
        kv_state_set(s, s->checkpoints.at[s->checkpoints.n - 1].state);
    return st;
}

enum tlm_status kv_index_match(struct kv_cache *kv, const int32_t *ids, int64_t most, bool whole, struct kv_seq **out,
                               struct tlm_error *e)
{
    enum tlm_status st = kv_seq_new(kv, out, e);
    struct kv_seq *s = *out;
    if (st != TLM_OK)
        return st;
    struct kv_node *last = NULL;
    int64_t usable = 0;
    if (!kv_has_states(kv))
        st = match_tokens(s, ids, most, whole, &usable, &last, e);
    else if ((last = last_checkpoint(kv, ids, most, whole, &usable)) != NULL)
        st = match_checkpoint(s, last, usable, e);
    if (st == TLM_OK)
        st = kv_seq_reserve_tokens(s, s->length, e);
    if (st != TLM_OK) {
        kv_seq_free(s);
        *out = NULL;
        return st;
    }
    if (s->length == 0)
        return TLM_OK;
    touch(kv, last);
    memcpy(s->tokens, ids, (size_t)s->length * sizeof *ids);
    kv_seq_trim(s, kv_seq_reach(s, usable));
    kv_seq_release_windows(s);
    return TLM_OK;
}
