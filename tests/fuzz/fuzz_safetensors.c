/* Any bytes as a safetensors file: refused, or every tensor lies inside it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "io/safetensors.h"

static void check(const struct st_file *f)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const struct st_tensor *t = &f->tensors[i];
        const uint8_t *p = t->data;
        if (p < f->map.data || p + t->bytes > f->map.data + f->map.size || st_find(f, t->name) != t)
            abort();
    }
    for (int i = 0; i < f->n_metadata; i++)
        if (st_metadata(f, f->metadata[i].key) != f->metadata[i].value)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct st_file *f;
    struct tlm_error e = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd >= 0 && write(fd, data, size) == (ssize_t)size && st_open(path, &f, &e) == TLM_OK) {
        check(f);
        st_close(f);
    }
    close(fd);
    return 0;
}
