/* Writing safetensors files: first the list of tensors, then their data in the
 * same order. The file appears under its name when it is whole; until then
 * there is a temporary one beside it, which goes away when writing fails. */
#ifndef IO_ST_WRITER_H
#define IO_ST_WRITER_H

#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct st_writer;

enum tlm_status st_writer_new(const char *path, struct st_writer **out, struct tlm_error *e);
/* Removes the temporary file unless it was committed. NULL allowed. */
void st_writer_free(struct st_writer *w);

/* Whether a file could be written there, which is tried. */
enum tlm_status st_writer_try(const char *path, struct tlm_error *e);

enum tlm_status st_writer_meta(struct st_writer *w, const char *key, const char *value, struct tlm_error *e);
enum tlm_status st_writer_add(struct st_writer *w, const char *name, enum dtype type, int n_dims, const int64_t *shape,
                              struct tlm_error *e);
/* The header; nothing can be added after it. */
enum tlm_status st_writer_begin(struct st_writer *w, struct tlm_error *e);
/* The next bytes of data. */
enum tlm_status st_writer_put(struct st_writer *w, const void *data, size_t bytes, struct tlm_error *e);
/* Where the next tensor's data will begin, while tensors are added. */
uint64_t st_writer_next(const struct st_writer *w);
/* Data in any order, instead of st_writer_put; at is a place in the data of all
 * tensors. Several threads may write at once, each with an error of its own.
 * Room for all of it is asked for at the first call of st_writer_reserve, so
 * that a full disk shows at once. */
enum tlm_status st_writer_reserve(struct st_writer *w, struct tlm_error *e);
enum tlm_status st_writer_put_at(struct st_writer *w, uint64_t at, const void *data, size_t bytes, struct tlm_error *e);
/* Brings the file to the disk and gives it its name; replaces one that is there. */
enum tlm_status st_writer_commit(struct st_writer *w, struct tlm_error *e);

#endif
