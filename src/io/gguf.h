/* GGUF versions 2 and 3, single file or split (name-00001-of-00003.gguf: give
 * the first). Read-only mapping; everything returned lives until gguf_close.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef IO_GGUF_H
#define IO_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_str {
    const char *data; /* not NUL-terminated: into the mapping */
    uint64_t len;
};

struct gguf_array {
    enum gguf_type type; /* of the elements; nested arrays are refused */
    uint64_t n;
    const void *data;               /* fixed-size elements, unaligned; NULL for strings */
    const struct gguf_str *strings; /* n entries when type is GGUF_STR */
};

struct gguf_kv {
    const char *key; /* NUL-terminated */
    enum gguf_type type;
    union {
        uint64_t u; /* unsigned integers, bool */
        int64_t i;  /* signed integers */
        double f;
        struct gguf_str str;
        struct gguf_array array;
    } v;
};

struct gguf_tensor {
    const char *name; /* NUL-terminated */
    uint32_t type;    /* ggml type number, known to io/ggml_types.def */
    int n_dims;
    int64_t ne[4]; /* ne[0] is the contiguous axis (inputs); unused ones are 1 */
    const void *data;
    size_t bytes;
    int file; /* which part, an index into gguf.maps */
};

struct gguf {
    char *path;
    uint32_t version;
    struct gguf_kv *kv;
    uint64_t n_kv;
    struct gguf_tensor *tensors;
    uint64_t n_tensors;
    struct file_map *maps;
    int n_maps;
    void *owned; /* private */
};

bool gguf_is_file(const char *path); /* looks at the magic */
enum tlm_status gguf_open(const char *path, struct gguf **out, struct tlm_error *e);
void gguf_close(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);

/* Typed getters in the manner of base/json.h: an absent key leaves *out as it
 * is; a wrong type or a value out of range is an error naming file and key.
 * Any integer type is taken for an integer, f32 and f64 for a float. */
enum tlm_status gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                         struct tlm_error *e);
enum tlm_status gguf_float(const struct gguf *g, const char *key, float *out, struct tlm_error *e);
enum tlm_status gguf_bool(const struct gguf *g, const char *key, bool *out, struct tlm_error *e);
enum tlm_status gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct tlm_error *e);
/* *out = NULL when absent. An integer type takes every integer type: read the
 * elements with gguf_array_int. */
enum tlm_status gguf_get_array(const struct gguf *g, const char *key, enum gguf_type type,
                               const struct gguf_array **out, struct tlm_error *e);
/* Element i of an integer array of any width. */
int64_t gguf_array_int(const struct gguf_array *a, uint64_t i);

/* Block geometry of a ggml type; false for an unknown number. */
bool gguf_type_geometry(uint32_t type, int *block, int *bytes);
const char *gguf_type_name(uint32_t type); /* "q4_k", or NULL */

#endif
