/* What is being written has the name NAME.part-PID-N beside NAME until it is
 * whole, and is locked by the process that writes it; what a killed process
 * left is removed by the next one that wants the same name. */
#ifndef IO_UNFINISHED_H
#define IO_UNFINISHED_H

#include <stdbool.h>

enum { UNFINISHED_SUFFIX = 64 }; /* room that such a name needs beside its own */

/* Makes a file, open for writing, or a directory; path: room for strlen(name) +
 * UNFINISHED_SUFFIX. Returns its descriptor, which holds the lock, or -1 with
 * errno set and path "". */
int unfinished_make(const char *name, bool directory, char *path);

/* Gives it its name, unless something came to be there meanwhile. Returns 0, or -1 with errno set. */
int unfinished_rename(const char *path, const char *name);

/* Removes it, a directory with everything in it. */
void unfinished_remove(const char *path);

#endif
