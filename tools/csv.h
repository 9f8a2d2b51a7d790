/* Results as lines of a CSV file (RFC 4180), appended below one heading. */
#ifndef TOOLS_CSV_H
#define TOOLS_CSV_H

#include <stdio.h>

#include "out.h"

struct csv {
    const char *path, *heading;
    FILE *file;  /* NULL: standard output, or a new file before its first row */
    int to_file; /* not standard output */
    int bad;     /* a write failed, which was said */
    int begun;   /* the heading is there */
};

/* path "-": standard output. Opened before the work, so that a file that cannot
 * take the results is refused before they are computed: one that ends in the
 * middle of a line, or begins with another heading. A file that is new is made
 * with its first row, so that none is left when there is no row. heading ends
 * with a newline. Returns 0, or the exit status after a message. */
int csv_open(struct csv *c, const char *path, const char *heading);
/* A field, in quotes where it needs them. */
void csv_text(struct csv *c, const char *text);
/* Anything else: numbers, commas, newlines; less than 500 bytes. A newline at
 * its end ends the row, which is written out then. */
void csv_print(struct csv *c, const char *fmt, ...) TOOLS_PRINTF(2, 3);
/* 1 when a row could not be written, which goes with a message. */
int csv_failed(const struct csv *c);
/* Returns status, or 1 when a write failed. */
int csv_close(struct csv *c, int status);

#endif
