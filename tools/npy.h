/* Writing a float32 matrix as a NumPy file, format version 1.0
 * (numpy.lib.format), row by row. A regular file appears under its name only
 * when it is complete. */
#ifndef TOOLS_NPY_H
#define TOOLS_NPY_H

#include <stddef.h>
#include <stdio.h>

struct npy_writer {
    FILE *file;
    char *path;            /* the final name, symbolic links followed */
    const char *temporary; /* NULL: written in place, because path is no regular file */
    size_t rows, columns, written;
};

/* All return 0, or the exit status after a message. */
int npy_open(struct npy_writer *w, const char *path);
/* The first call, before any row. */
int npy_shape(struct npy_writer *w, size_t rows, size_t columns);
int npy_row(struct npy_writer *w, const float *row);
/* Gives the file its name when status is 0 and all rows were written, else
 * removes it. Returns status, or that of a failure. */
int npy_end(struct npy_writer *w, int status);
void npy_free(struct npy_writer *w);

#endif
