/* A file that appears under its name when it is whole; until then there is a
 * temporary one beside it, which goes away when writing fails. */
#ifndef IO_WHOLE_FILE_H
#define IO_WHOLE_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

struct whole_file {
    char *path, *temporary;
    FILE *f; /* NULL before begin and after commit */
};

enum tlm_status whole_file_init(struct whole_file *w, const char *path, struct tlm_error *e);
/* Removes the temporary file unless it was committed. */
void whole_file_deinit(struct whole_file *w);
/* Opens the temporary file. */
enum tlm_status whole_file_begin(struct whole_file *w, struct tlm_error *e);
enum tlm_status whole_file_put(struct whole_file *w, const void *data, size_t bytes, struct tlm_error *e);
/* Brings the file to the disk and gives it its name; replace: also where there is one already. */
enum tlm_status whole_file_commit(struct whole_file *w, bool replace, struct tlm_error *e);

#endif
