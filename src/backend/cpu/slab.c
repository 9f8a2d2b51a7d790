/* Memory of packed weights: a few large mappings instead of one per matrix, so
 * that a model of many small matrices starts without thousands of page faults. */
#include "backend/cpu/cpu_backend.h"

#include <string.h>

#include "base/mem.h"

enum { SLAB_BYTES = 32 << 20, HEAD = 64 };

struct cpu_slab {
    struct cpu_slab *next;
    size_t bytes, used;
};

void *cpu_slab_alloc(struct cpu_backend *b, size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * HEAD)
        return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    struct cpu_slab *s = b->slabs;
    if (!s || bytes > s->bytes - s->used) {
        size_t size = bytes + HEAD > SLAB_BYTES ? bytes + HEAD : SLAB_BYTES;
        struct cpu_slab *fresh = mem_alloc_pages(size);
        if (!fresh)
            return NULL;
        *fresh = (struct cpu_slab){s, size, HEAD};
        b->slabs = s = fresh;
    }
    void *p = (char *)s + s->used;
    s->used += bytes;
    return p;
}

void cpu_slab_return(struct cpu_backend *b, void *last)
{
    struct cpu_slab *s = b->slabs;
    const size_t at = (size_t)((char *)last - (char *)s);
    if (at == HEAD) {
        b->slabs = s->next;
        mem_free_pages(s, s->bytes);
    } else {
        memset(last, 0, s->used - at);
        s->used = at;
    }
}

void cpu_slabs_free(struct cpu_backend *b)
{
    while (b->slabs) {
        struct cpu_slab *s = b->slabs;
        b->slabs = s->next;
        mem_free_pages(s, s->bytes);
    }
}
