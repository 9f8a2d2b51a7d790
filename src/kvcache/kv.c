/* Cache, layer groups, sequences and their block tables. */
#include "kvcache/kv_private.h"

#include <string.h>

#include "base/mem.h"

static struct kv_group *group_for(struct kv_cache *kv, int64_t window)
{
    for (int i = 0; i < kv->n_groups; i++)
        if (kv->groups[i].window == window)
            return &kv->groups[i];
    struct kv_group *g = &kv->groups[kv->n_groups++];
    g->window = window;
    return g;
}

enum tlm_status kv_cache_new(const struct kv_layer_config *layers, int n_layers, size_t limit_bytes,
                             struct kv_cache **out, struct tlm_error *e)
{
    *out = NULL;
    struct kv_cache *kv = mem_new(sizeof *kv);
    if (!kv)
        return err_nomem(e, sizeof *kv);
    kv->n_layers = n_layers;
    kv->layers = mem_new_array((size_t)n_layers, sizeof *kv->layers);
    kv->groups = mem_new_array((size_t)n_layers, sizeof *kv->groups); /* at most one each */
    if (!kv->layers || !kv->groups) {
        kv_cache_free(kv);
        return err_nomem(e, (size_t)n_layers * sizeof *kv->groups);
    }
    for (int i = 0; i < n_layers; i++) {
        struct kv_group *g = group_for(kv, layers[i].window);
        kv->layers[i] = (struct kv_layer){layers[i].shape, (int)(g - kv->groups), g->block_bytes};
        g->block_bytes += kv_layer_bytes(&layers[i].shape);
    }
    for (int i = 0; i < kv->n_groups; i++)
        kv_pool_init(&kv->groups[i].pool, kv->groups[i].block_bytes, &kv->bytes, limit_bytes);
    *out = kv;
    return TLM_OK;
}

void kv_cache_free(struct kv_cache *kv)
{
    if (!kv)
        return;
    for (int i = 0; i < kv->n_groups; i++)
        kv_pool_deinit(&kv->groups[i].pool);
    mem_free(kv->groups);
    mem_free(kv->layers);
    mem_free(kv);
}

size_t kv_cache_bytes(const struct kv_cache *kv)
{
    return kv->bytes;
}

size_t kv_cache_token_bytes(const struct kv_cache *kv)
{
    size_t n = 0;
    for (int i = 0; i < kv->n_groups; i++)
        n += kv->groups[i].block_bytes;
    return n / KV_BLOCK;
}

enum tlm_status kv_seq_new(struct kv_cache *kv, struct kv_seq **out, struct tlm_error *e)
{
    *out = NULL;
    struct kv_seq *s = mem_new(sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s);
    s->cache = kv;
    s->tables = mem_new_array((size_t)kv->n_groups, sizeof *s->tables);
    if (!s->tables) {
        kv_seq_free(s);
        return err_nomem(e, (size_t)kv->n_groups * sizeof *s->tables);
    }
    *out = s;
    return TLM_OK;
}

/* Gives back the first n blocks of a table. */
static void drop_front(struct kv_pool *pool, struct kv_table *t, int n)
{
    for (int i = 0; i < n; i++)
        kv_pool_put(pool, t->blocks[i]);
    memmove(t->blocks, t->blocks + n, (size_t)(t->n - n) * sizeof *t->blocks);
    t->n -= n;
    t->base += (int64_t)n * KV_BLOCK;
}

void kv_seq_free(struct kv_seq *s)
{
    if (!s)
        return;
    for (int g = 0; s->tables && g < s->cache->n_groups; g++) {
        drop_front(&s->cache->groups[g].pool, &s->tables[g], s->tables[g].n);
        mem_free(s->tables[g].blocks);
    }
    mem_free(s->tables);
    mem_free(s);
}

int64_t kv_seq_length(const struct kv_seq *s)
{
    return s->length;
}

static enum tlm_status table_reserve(struct kv_table *t, int64_t n, struct tlm_error *e)
{
    if (n <= t->cap)
        return TLM_OK;
    int64_t cap = t->cap ? t->cap : 16;
    while (cap < n)
        cap *= 2;
    if (cap > INT32_MAX)
        return err_set(e, TLM_ELIMIT, "cache: a sequence of more than %lld tokens", (long long)INT32_MAX * KV_BLOCK);
    int32_t *p = mem_realloc_array(t->blocks, (size_t)cap, sizeof *p);
    if (!p)
        return err_nomem(e, (size_t)cap * sizeof *p);
    t->blocks = p;
    t->cap = (int)cap;
    return TLM_OK;
}

static enum tlm_status extend_table(struct kv_group *g, struct kv_table *t, int64_t end, struct tlm_error *e)
{
    int64_t need = (end - t->base + KV_BLOCK - 1) / KV_BLOCK;
    enum tlm_status s = table_reserve(t, need, e);
    while (s == TLM_OK && t->n < need) {
        s = kv_pool_get(&g->pool, &t->blocks[t->n], e);
        if (s == TLM_OK)
            t->n++;
    }
    return s;
}

enum tlm_status kv_seq_extend(struct kv_seq *s, int64_t end, struct tlm_error *e)
{
    enum tlm_status st = TLM_OK;
    for (int g = 0; g < s->cache->n_groups && st == TLM_OK; g++)
        st = extend_table(&s->cache->groups[g], &s->tables[g], end, e);
    return st;
}

void kv_seq_shrink(struct kv_seq *s)
{
    for (int g = 0; g < s->cache->n_groups; g++) {
        struct kv_table *t = &s->tables[g];
        int keep = (int)((s->length - t->base + KV_BLOCK - 1) / KV_BLOCK);
        while (t->n > keep)
            kv_pool_put(&s->cache->groups[g].pool, t->blocks[--t->n]);
    }
}

void kv_seq_release_windows(struct kv_seq *s)
{
    for (int g = 0; g < s->cache->n_groups; g++) {
        const struct kv_group *group = &s->cache->groups[g];
        struct kv_table *t = &s->tables[g];
        /* The next query stands at `length` and sees positions above this. */
        int64_t unseen = group->window ? s->length - group->window + 1 : 0;
        int64_t n = (unseen - t->base) / KV_BLOCK;
        if (n > 0)
            drop_front(&s->cache->groups[g].pool, t, n < t->n ? (int)n : t->n);
    }
}

enum tlm_status kv_seq_assume(struct kv_seq *s, int64_t n, struct tlm_error *e)
{
    int64_t from = s->length;
    enum tlm_status st = TLM_OK;
    /* In steps, so that a window group never holds more than its window. */
    for (int64_t done = 0; done < n && st == TLM_OK; done += KV_BLOCK) {
        int64_t step = n - done < KV_BLOCK ? n - done : KV_BLOCK;
        st = kv_seq_extend(s, s->length + step, e);
        if (st == TLM_OK) {
            s->length += step;
            kv_seq_release_windows(s);
        }
    }
    if (st != TLM_OK) {
        s->length = from;
        kv_seq_shrink(s);
        return st;
    }
    for (int g = 0; g < s->cache->n_groups; g++) {
        const struct kv_table *t = &s->tables[g];
        for (int i = 0; i < t->n; i++)
            if (t->base + (int64_t)i * KV_BLOCK >= from)
                memset(kv_pool_memory(&s->cache->groups[g].pool, t->blocks[i]), 0, s->cache->groups[g].block_bytes);
    }
    return TLM_OK;
}
