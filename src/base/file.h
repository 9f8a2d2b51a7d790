/* Files: whole mappings and whole reads. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* A read-only mapping of a regular file. A file that shrinks while mapped is
 * outside what can be defended against. */
struct file_map {
    const uint8_t *data;
    size_t size;
};

/* For reading; anything but a regular file is refused, as a pipe would make us
 * wait and a device need not end. */
enum tlm_status file_open(const char *path, int *fd, size_t *size, struct tlm_error *e);

enum tlm_status file_map_open(struct file_map *m, const char *path, struct tlm_error *e);
void file_map_close(struct file_map *m);
/* The range was copied elsewhere: its pages leave our resident set. Whole
 * pages inside the range only. */
void file_map_drop(const struct file_map *m, const void *start, size_t bytes);

/* Contents with a NUL after them; refused above max bytes. Free with
 * mem_free. */
enum tlm_status file_read(const char *path, size_t max, char **data, size_t *size, struct tlm_error *e);

/* A symbolic link that leads nowhere, and what no one lets us see, exist too: opening them gives the reason. */
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/* Can it be opened for reading? The error says why not. */
enum tlm_status file_check(const char *path, struct tlm_error *e);
/* Makes the folders in front of the last part, as far as they are missing; path is as before afterwards. */
void file_make_parents(char *path);
/* dir + "/" + name, to be freed with mem_free; NULL when out of memory. */
char *path_join(const char *dir, const char *name);

#endif
