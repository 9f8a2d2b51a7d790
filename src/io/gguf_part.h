/* Parsing of one GGUF file, for gguf.c. */
#ifndef IO_GGUF_PART_H
#define IO_GGUF_PART_H

#include "io/gguf.h"

/* Memory that lives until the file is closed: a list of chunks. */
struct gguf_own;

void *gguf_own_alloc(struct gguf_own **own, size_t count, size_t size); /* NULL when out of memory; not zeroed */
void gguf_own_free(struct gguf_own *own);

struct gguf_part {
    uint32_t version;
    struct gguf_kv *kv;
    uint64_t n_kv;
    int *kv_index; /* io/name_index.h; free with mem_free also after a failure */
    int kv_index_size;
    struct gguf_tensor *tensors;
    uint64_t n_tensors;
};

/* `file` becomes gguf_tensor.file. Names, arrays and tensors belong to *own. */
enum tlm_status gguf_part_read(struct gguf_part *part, const char *path, const struct file_map *map, int file,
                               struct gguf_own **own, struct tlm_error *e);

extern const char *const gguf_kv_type_names[GGUF_TYPE_COUNT];

#endif
