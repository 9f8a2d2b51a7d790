/* A file that arrives in pieces: <etag>.turbolm.incomplete beside its blob.
 * The bytes stand where they belong; after them comes a record of how far each
 * piece has got, so that any interruption, a kill included, costs at most the
 * last second. huggingface_hub counts the file as an incomplete download and
 * never continues it. */
#ifndef IO_HUB_PART_H
#define IO_HUB_PART_H

#include <stdint.h>

#include "base/err.h"

struct hub_part {
    int fd; /* -1: closed */
    char *path;
    int64_t size, chunk; /* of the file, of a piece */
    size_t n;            /* pieces */
    int64_t *done;       /* bytes of each */
    int dirty;           /* the record on disk is behind */
};

/* Opens what an earlier run left, or begins. path is copied. */
enum tlm_status hub_part_open(struct hub_part *p, const char *path, int64_t size, int64_t chunk, struct tlm_error *e);
/* Writes n bytes of piece i behind what it has. */
enum tlm_status hub_part_write(struct hub_part *p, size_t i, const void *bytes, size_t n, struct tlm_error *e);
int64_t hub_part_chunk_size(const struct hub_part *p, size_t i);
int64_t hub_part_total(const struct hub_part *p);  /* bytes that are there */
int64_t hub_part_prefix(const struct hub_part *p); /* of these, without a gap from the start */
/* Forgets everything; one piece from now on if whole. */
enum tlm_status hub_part_reset(struct hub_part *p, int whole, struct tlm_error *e);
/* Brings the record up to date. */
enum tlm_status hub_part_save(struct hub_part *p, struct tlm_error *e);
/* The file is complete: takes its name. */
enum tlm_status hub_part_finish(struct hub_part *p, const char *path, struct tlm_error *e);
/* Removes the file. */
void hub_part_discard(struct hub_part *p);
void hub_part_close(struct hub_part *p);

#endif
