/* Results as lines of a CSV file (RFC 4180), appended below one heading. */
#ifndef TOOLS_CSV_H
#define TOOLS_CSV_H

#include <stdio.h>

#include "out.h"

struct csv {
    const char *path, *heading;
    FILE *file; /* NULL: standard output */
    int fresh;  /* the heading is still to be written */
    int bad;
};

/* path "-": standard output. Opened before the work, so that a file that cannot
 * take the results is refused before they are computed: one that ends in the
 * middle of a line, or begins with another heading. heading ends with a
 * newline. Returns 0, or the exit status after a message. */
int csv_open(struct csv *c, const char *path, const char *heading);
/* A field, in quotes where it needs them. */
void csv_text(struct csv *c, const char *text);
/* Anything else: numbers, commas, newlines; less than 500 bytes. */
void csv_print(struct csv *c, const char *fmt, ...) TOOLS_PRINTF(2, 3);
/* Returns status, or 1 after a message when a write failed. */
int csv_close(struct csv *c, int status);

#endif
