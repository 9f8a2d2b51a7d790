/* Heap and page memory. */
#define _GNU_SOURCE
#include "base/mem.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_long allocations, live;
static atomic_long fail_at; /* 0: never */
static atomic_int fail_sticky;

static int must_fail(void)
{
    long n = atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1;
    long at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    if (!at)
        return 0;
    return n == at || (n > at && atomic_load_explicit(&fail_sticky, memory_order_relaxed));
}

void mem_fail_at(long n, int sticky)
{
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_at, n ? atomic_load(&allocations) + n : 0);
}

long mem_count(void)
{
    return atomic_load(&allocations);
}

long mem_live(void)
{
    return atomic_load(&live);
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return p;
}

static void uncount(const void *p)
{
    if (p)
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
}

void *mem_alloc(size_t bytes)
{
    if (must_fail())
        return NULL;
    return counted(malloc(bytes ? bytes : 1));
}

void *mem_alloc_array(size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return mem_alloc(count * size);
}

void *mem_new(size_t bytes)
{
    if (must_fail())
        return NULL;
    return counted(calloc(1, bytes ? bytes : 1));
}

void *mem_new_array(size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return mem_new(count * size);
}

void *mem_realloc_array(void *old, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    if (must_fail())
        return NULL;
    size_t bytes = count * size;
    void *p = realloc(old, bytes ? bytes : 1);
    return old ? p : counted(p);
}

void mem_free(void *p)
{
    uncount(p);
    free(p);
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_alloc(n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void *mem_alloc_pages(size_t bytes)
{
    if (must_fail())
        return NULL;
    if (!bytes)
        bytes = 1;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (bytes >= (size_t)4 << 20)
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* fewer faults and TLB misses; advice only */
    return counted(p);
}

void mem_free_pages(void *p, size_t bytes)
{
    uncount(p);
    if (p)
        munmap(p, bytes ? bytes : 1);
}
