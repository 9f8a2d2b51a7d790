/* Hash index over an array of structs whose first member is their name,
 * `const char *`. Positions are seeded per index, so that no file can be
 * prepared to make them collide. */
#ifndef IO_NAME_INDEX_H
#define IO_NAME_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Indexes n items. *slots (free with mem_free) and *size are for
 * name_index_find. *duplicate is the second item of a pair with one name, or
 * -1; after a duplicate the index is incomplete. */
enum tlm_status name_index_new(const void *items, size_t stride, size_t n, int **slots, int *size, int *duplicate,
                               struct tlm_error *e);

/* The hash, for a table of another shape. */
uint64_t name_index_hash(const char *s, size_t n, int seed);

/* Position in items, or -1. slots may be NULL. */
int name_index_find(const int *slots, int size, const void *items, size_t stride, const char *name);

#endif
