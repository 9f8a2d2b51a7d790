/* Blocks of one layer group: equal pieces of large allocations, handed out and
 * taken back. Internal to kvcache/. */
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
    size_t *shared_bytes, limit_bytes; /* all pools of a cache together */
};

void kv_pool_init(struct kv_pool *p, size_t block_bytes, size_t *shared_bytes, size_t limit_bytes);
void kv_pool_deinit(struct kv_pool *p);
/* A block number, its memory undefined. */
enum tlm_status kv_pool_get(struct kv_pool *p, int32_t *block, struct tlm_error *e);
void kv_pool_put(struct kv_pool *p, int32_t block);

static inline char *kv_pool_memory(const struct kv_pool *p, int32_t block)
{
    return (char *)p->slabs[block / p->slab_blocks] + (size_t)(block % p->slab_blocks) * p->block_bytes;
}

#endif
