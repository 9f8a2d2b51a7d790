/* A directory that appears under its name when it is complete (io/unfinished.h). */
#ifndef CONVERT_WORK_DIR_H
#define CONVERT_WORK_DIR_H

#include <stddef.h>

#include "base/err.h"

struct work_dir {
    char *name, *path; /* final and temporary */
    int fd;            /* of the temporary one; -1: none */
};

enum tlm_status work_dir_open(struct work_dir *d, const char *name, struct tlm_error *e);
/* Writes a file of it. */
enum tlm_status work_dir_write(const struct work_dir *d, const char *file, const void *data, size_t size,
                               struct tlm_error *e);
enum tlm_status work_dir_copy(const struct work_dir *d, const char *file, const char *from, struct tlm_error *e);
/* Gives it its name, which must not exist. */
enum tlm_status work_dir_commit(struct work_dir *d, struct tlm_error *e);
/* Messages name files where they were to be, not where they are until then. */
void work_dir_name_error(const struct work_dir *d, struct tlm_error *e);
/* Removes it with everything in it unless it was committed. */
void work_dir_close(struct work_dir *d);

#endif
