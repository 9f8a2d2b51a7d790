/* Writing GGUF version 3: metadata, then the list of tensors, then their data
 * in the same order, streamed. The file appears under its name, which
 * must not exist, when it is whole. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef IO_GGUF_WRITER_H
#define IO_GGUF_WRITER_H

#include "io/gguf.h"

struct gguf_writer;

enum tlm_status gguf_writer_new(const char *path, struct gguf_writer **out, struct tlm_error *e);
/* Removes the temporary file unless it was committed. NULL allowed. */
void gguf_writer_free(struct gguf_writer *w);

/* Metadata, before any tensor data; the caller gives each key once. */
enum tlm_status gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v, struct tlm_error *e);
enum tlm_status gguf_writer_f32(struct gguf_writer *w, const char *key, float v, struct tlm_error *e);
enum tlm_status gguf_writer_bool(struct gguf_writer *w, const char *key, bool v, struct tlm_error *e);
enum tlm_status gguf_writer_string(struct gguf_writer *w, const char *key, const char *s, size_t n,
                                   struct tlm_error *e);
/* n little-endian elements of a type of fixed size. */
enum tlm_status gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n,
                                  const void *data, struct tlm_error *e);
/* An array of n texts, which follow with n calls of gguf_writer_item. */
enum tlm_status gguf_writer_list(struct gguf_writer *w, const char *key, uint64_t n, struct tlm_error *e);
enum tlm_status gguf_writer_item(struct gguf_writer *w, const char *s, size_t n, struct tlm_error *e);
/* An entry of another file, of any type, as it is. */
enum tlm_status gguf_writer_copy(struct gguf_writer *w, const struct gguf_kv *kv, struct tlm_error *e);

/* ne[0] is the contiguous axis and must be a multiple of the type's block. */
enum tlm_status gguf_writer_tensor(struct gguf_writer *w, const char *name, uint32_t type, int n_dims,
                                   const int64_t *ne, struct tlm_error *e);
/* Opens the file and writes all of that; nothing can be added after it. */
enum tlm_status gguf_writer_begin(struct gguf_writer *w, struct tlm_error *e);
/* Bytes of data of all tensors, without padding; what put will be given. */
uint64_t gguf_writer_bytes(const struct gguf_writer *w);
/* The next bytes of data; tensors need not be told apart. */
enum tlm_status gguf_writer_put(struct gguf_writer *w, const void *data, size_t bytes, struct tlm_error *e);
/* Brings the file to the disk and gives it its name; replaces one that is there. */
enum tlm_status gguf_writer_commit(struct gguf_writer *w, struct tlm_error *e);

#endif
