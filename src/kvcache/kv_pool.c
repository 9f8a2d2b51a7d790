/* Slabs of cache blocks, their free list and their counts. */
#include "kvcache/kv_pool.h"

#include "base/mem.h"

/* A slab of a few megabytes: huge pages serve it, and a short prompt does not
 * pay for a long one. */
enum { SLAB_BYTES = 8 << 20 };

void kv_pool_init(struct kv_pool *p, size_t block_bytes, size_t *shared_bytes, size_t limit_bytes)
{
    *p = (struct kv_pool){.block_bytes = block_bytes, .shared_bytes = shared_bytes, .limit_bytes = limit_bytes};
    size_t n = block_bytes ? SLAB_BYTES / block_bytes : 1;
    p->slab_blocks = n < 1 ? 1 : n > 4096 ? 4096 : (int)n;
}

void kv_pool_deinit(struct kv_pool *p)
{
    for (int i = 0; i < p->n_slabs; i++)
        mem_free_pages(p->slabs[i], p->block_bytes * (size_t)p->slab_blocks);
    mem_free(p->slabs);
    mem_free(p->free_list);
    mem_free(p->refs);
    *p = (struct kv_pool){0};
}

static enum tlm_status grow_tables(struct kv_pool *p, struct tlm_error *e)
{
    if (p->n_slabs < p->cap_slabs)
        return TLM_OK;
    int cap = p->cap_slabs ? p->cap_slabs * 2 : 8;
    if (cap > INT32_MAX / p->slab_blocks)
        return err_set(e, TLM_ELIMIT, "cache: more than %d blocks", INT32_MAX);
    void **slabs = mem_realloc_array(p->slabs, (size_t)cap, sizeof *slabs);
    if (!slabs)
        return err_nomem(e, (size_t)cap * sizeof *slabs);
    p->slabs = slabs;
    int32_t *list = mem_realloc_array(p->free_list, (size_t)cap * (size_t)p->slab_blocks, sizeof *list);
    if (!list)
        return err_nomem(e, (size_t)cap * (size_t)p->slab_blocks * sizeof *list);
    p->free_list = list;
    uint32_t *refs = mem_realloc_array(p->refs, (size_t)cap * (size_t)p->slab_blocks, sizeof *refs);
    if (!refs)
        return err_nomem(e, (size_t)cap * (size_t)p->slab_blocks * sizeof *refs);
    p->refs = refs;
    p->cap_slabs = cap;
    return TLM_OK;
}

static enum tlm_status add_slab(struct kv_pool *p, struct tlm_error *e)
{
    size_t bytes = p->block_bytes * (size_t)p->slab_blocks;
    if (p->limit_bytes && bytes > p->limit_bytes - *p->shared_bytes)
        return err_set(e, TLM_ELIMIT, "cache: the limit of %zu bytes is reached", p->limit_bytes);
    enum tlm_status s = grow_tables(p, e);
    if (s != TLM_OK)
        return s;
    void *slab = mem_alloc_pages(bytes);
    if (!slab)
        return err_nomem(e, bytes);
    *p->shared_bytes += bytes;
    p->slabs[p->n_slabs++] = slab;
    for (int i = p->slab_blocks; i-- > 0;) /* low numbers are taken first */
        p->free_list[p->n_free++] = (p->n_slabs - 1) * p->slab_blocks + i;
    return TLM_OK;
}

enum tlm_status kv_pool_get(struct kv_pool *p, int32_t *block, struct tlm_error *e)
{
    if (p->n_free == 0) {
        enum tlm_status s = add_slab(p, e);
        if (s != TLM_OK)
            return s;
    }
    *block = p->free_list[--p->n_free];
    p->refs[*block] = 1;
    return TLM_OK;
}

void kv_pool_share(struct kv_pool *p, int32_t block)
{
    p->refs[block]++;
}

void kv_pool_put(struct kv_pool *p, int32_t block)
{
    if (--p->refs[block] == 0)
        p->free_list[p->n_free++] = block;
}
