/* One safetensors file: 8-byte length, JSON header, data. Read-only mapping;
 * names, metadata and data pointers live until st_close.
 * Format: https://github.com/huggingface/safetensors */
#ifndef IO_SAFETENSORS_H
#define IO_SAFETENSORS_H

#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/file.h"

enum { ST_MAX_DIMS = 8 };

struct st_tensor {
    const char *name;
    enum dtype dtype;
    int n_dims; /* 0 for a scalar */
    int64_t shape[ST_MAX_DIMS];
    const void *data; /* may be unaligned */
    size_t bytes;     /* product of shape x element size, checked */
};

struct st_file {
    struct file_map map;
    char *path;
    struct st_tensor *tensors; /* in the order of the header */
    int n_tensors;
    struct st_meta {
        const char *key, *value;
    } * metadata; /* __metadata__; absent and null are the same as empty */
    int n_metadata;
    char *strings; /* owner of names and metadata */
    int *index;    /* hash index over the names */
    int index_size;
};

/* Refuses headers over 100,000,000 bytes, overlapping or lying offsets, shapes
 * whose product overflows or disagrees, duplicate names, unknown types. */
enum tlm_status st_open(const char *path, struct st_file **out, struct tlm_error *e);
void st_close(struct st_file *f);
const struct st_tensor *st_find(const struct st_file *f, const char *name);
const char *st_metadata(const struct st_file *f, const char *key); /* NULL when absent */

#endif
