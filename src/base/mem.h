/* Heap memory. The only place that calls malloc, so that tests can fail the
 * n-th allocation and sizes are checked for overflow once. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

/* NULL when out of memory or when count * size overflows. Zero bytes give a
 * valid pointer. mem_new zeroes. Free with mem_free (NULL allowed). */
void *mem_alloc(size_t bytes);
void *mem_alloc_array(size_t count, size_t size);
void *mem_new(size_t bytes);
void *mem_new_array(size_t count, size_t size);
/* On failure the old block stays valid. */
void *mem_realloc_array(void *old, size_t count, size_t size);
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n); /* always NUL-terminated */

/* 64-byte aligned, zeroed, huge pages where large; free with mem_free_pages. */
void *mem_alloc_pages(size_t bytes);
void mem_free_pages(void *p, size_t bytes);

/* Tests: the n-th allocation from now fails (1 = the next), and all after it
 * if sticky; 0 turns it off. mem_count() is the number made so far. */
void mem_fail_at(long n, int sticky);
long mem_count(void);
/* Tests: blocks that were allocated and not freed yet. */
long mem_live(void);

#endif
