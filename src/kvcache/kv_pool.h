/* Blocks of one size, counted: equal pieces of large allocations, handed out,
 * shared and taken back. Internal to kvcache/. */
#ifndef KVCACHE_KV_POOL_H
#define KVCACHE_KV_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct kv_pool {
    size_t block_bytes;
    int slab_blocks; /* blocks per allocation */
    void **slabs;
    int n_slabs, cap_slabs;
    int32_t *free_list; /* room for every block that exists */
    int n_free;
    uint32_t *refs;                    /* of every block that exists */
    size_t *shared_bytes, limit_bytes; /* all pools of a cache together */
};

void kv_pool_init(struct kv_pool *p, size_t block_bytes, size_t *shared_bytes, size_t limit_bytes);
void kv_pool_deinit(struct kv_pool *p);
/* A block number with one reference, its memory undefined. */
enum tlm_status kv_pool_get(struct kv_pool *p, int32_t *block, struct tlm_error *e);
/* Another reference. */
void kv_pool_share(struct kv_pool *p, int32_t block);
/* One reference less. */
void kv_pool_put(struct kv_pool *p, int32_t block);

static inline char *kv_pool_memory(const struct kv_pool *p, int32_t block)
{
    return (char *)p->slabs[block / p->slab_blocks] + (size_t)(block % p->slab_blocks) * p->block_bytes;
}

static inline size_t kv_pool_used(const struct kv_pool *p)
{
    return ((size_t)p->n_slabs * (size_t)p->slab_blocks - (size_t)p->n_free) * p->block_bytes;
}

#endif
