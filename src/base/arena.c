/* Step arena. */
#define _GNU_SOURCE
#include "base/arena.h"

#include <sys/mman.h>

#include "base/mem.h"

enum { ARENA_ALIGN = 64 };

enum tlm_status arena_init(struct arena *a, size_t reserve_bytes, struct tlm_error *e)
{
    *a = (struct arena){0};
    a->base = mem_alloc_pages(reserve_bytes);
    if (!a->base)
        return err_nomem(e, reserve_bytes);
    a->reserved = reserve_bytes;
    return TLM_OK;
}

void arena_deinit(struct arena *a)
{
    mem_free_pages(a->base, a->reserved);
    *a = (struct arena){0};
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > a->reserved - a->used)
        return NULL;
    size_t start = a->used;
    size_t rounded = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (rounded > a->reserved - start)
        return NULL;
    a->used = start + rounded;
    if (a->used > a->peak)
        a->peak = a->used;
    return a->base + start;
}

void arena_trim(struct arena *a)
{
    size_t page = 4096;
    size_t from = (a->used + page - 1) & ~(page - 1);
    if (a->peak > from)
        (void)madvise(a->base + from, a->peak - from, MADV_DONTNEED);
    a->peak = a->used;
}
