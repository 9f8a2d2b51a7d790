/* Hash index by open addressing: slots[0 .. size-1] hold positions or -1,
 * slots[size] the seed. size is a power of two, at least twice the number of
 * items. */
#include "io/name_index.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"

static const char *name_of(const void *items, size_t stride, size_t i)
{
    const char *name;
    memcpy(&name, (const char *)items + i * stride, sizeof name);
    return name;
}

static uint64_t mix(uint64_t h)
{
    h *= 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
}

uint64_t name_index_hash(const char *s, size_t n, int seed)
{
    uint64_t h = mix((unsigned)seed + n);
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        h = mix(h ^ word);
    }
    uint64_t rest = 0;
    memcpy(&rest, s, n);
    return mix(mix(h ^ rest));
}

/* The slot that holds name, or the free one where it belongs. */
static size_t slot_of(const int *slots, int size, const void *items, size_t stride, const char *name)
{
    size_t mask = (size_t)size - 1, at = name_index_hash(name, strlen(name), slots[size]) & mask;
    while (slots[at] >= 0 && strcmp(name_of(items, stride, (size_t)slots[at]), name) != 0)
        at = (at + 1) & mask;
    return at;
}

enum tlm_status name_index_new(const void *items, size_t stride, size_t n, int **slots, int *size, int *duplicate,
                               struct tlm_error *e)
{
    *slots = NULL;
    *size = 0;
    *duplicate = -1;
    if (n > INT_MAX / 4)
        return err_set(e, TLM_ELIMIT, "%zu names, more than the limit of %d", n, INT_MAX / 4);
    int count = 4;
    while ((size_t)count < 2 * n)
        count *= 2;
    int *table = mem_alloc_array((size_t)count + 1, sizeof *table);
    if (!table)
        return err_nomem(e, ((size_t)count + 1) * sizeof *table);
    for (int i = 0; i < count; i++)
        table[i] = -1;
    table[count] = (int)(mix((uintptr_t)table) & INT_MAX); /* the system places memory at random */
    *slots = table;
    *size = count;
    for (size_t i = 0; i < n; i++) {
        size_t at = slot_of(table, count, items, stride, name_of(items, stride, i));
        if (table[at] >= 0) {
            *duplicate = (int)i;
            return TLM_OK;
        }
        table[at] = (int)i;
    }
    return TLM_OK;
}

int name_index_find(const int *slots, int size, const void *items, size_t stride, const char *name)
{
    return slots ? slots[slot_of(slots, size, items, stride, name)] : -1;
}
