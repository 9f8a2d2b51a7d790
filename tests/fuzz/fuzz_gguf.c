/* Any bytes as a GGUF file: refused, or everything it promises lies inside it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "io/gguf.h"

static void check_range(const struct gguf *g, int file, const void *start, uint64_t bytes)
{
    const struct file_map *m = &g->maps[file];
    const uint8_t *p = start;
    if (p < m->data || bytes > m->size || p > m->data + (m->size - bytes))
        abort();
}

static void check_array(const struct gguf *g, const struct gguf_array *a)
{
    for (uint64_t i = 0; i < a->n; i++) {
        if (a->type == GGUF_STR)
            check_range(g, 0, a->strings[i].data, a->strings[i].len);
        else
            (void)gguf_array_int(a, i);
    }
}

static void check(const struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        check_range(g, t->file, t->data, t->bytes);
        if (gguf_tensor_find(g, t->name) != t)
            abort();
    }
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        if (gguf_find(g, kv->key) != kv)
            abort();
        if (kv->type == GGUF_STR)
            check_range(g, 0, kv->v.str.data, kv->v.str.len);
        if (kv->type == GGUF_ARRAY)
            check_array(g, &kv->v.array);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct gguf *g;
    struct tlm_error e = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd >= 0 && write(fd, data, size) == (ssize_t)size && gguf_open(path, &g, &e) == TLM_OK) {
        check(g);
        gguf_close(g);
    }
    close(fd);
    return 0;
}
