/* Step arena: one reserved range of addresses, a bump pointer, marks.
 * Memory is touched on first use and stays for the next step, so a decode
 * step allocates nothing from the heap. Not thread-safe: one owner. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/err.h"

struct arena {
    char *base;
    size_t used, peak, reserved;
};

enum tlm_status arena_init(struct arena *a, size_t reserve_bytes, struct tlm_error *e);
void arena_deinit(struct arena *a);

/* 64-byte aligned, not zeroed; NULL when the reserve is used up. */
void *arena_alloc(struct arena *a, size_t bytes);

static inline size_t arena_mark(const struct arena *a)
{
    return a->used;
}

static inline void arena_reset(struct arena *a, size_t mark)
{
    a->used = mark;
}

/* Gives pages above the current use back to the system. */
void arena_trim(struct arena *a);

#endif
