/* NumPy files; see npy.h. */
#define _XOPEN_SOURCE 700
#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "out.h"

static int fail(const struct npy_writer *w, const char *what)
{
    out_error("%s: %s: %s", w->path, what, strerror(errno));
    return 1;
}

static char *copy_text(const char *s)
{
    size_t n = strlen(s) + 1;
    char *out = tool_alloc(n, 1);
    memcpy(out, s, n);
    return out;
}

int npy_open(struct npy_writer *w, const char *path)
{
    struct stat st;
    int exists = stat(path, &st) == 0;
    char *real = exists ? realpath(path, NULL) : NULL;
    int fd;
    *w = (struct npy_writer){0};
    w->path = copy_text(real != NULL ? real : path);
    free(real);
    if (exists && S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        return fail(w, "cannot write");
    }
    if (exists && !S_ISREG(st.st_mode)) {
        fd = open(w->path, O_WRONLY | O_CLOEXEC);
    } else {
        w->temporary = begin_unfinished(w->path);
        fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, exists ? st.st_mode & 0777 : 0666);
    }
    w->file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (w->file != NULL)
        return 0;
    return fail(w, "cannot write");
}

int npy_shape(struct npy_writer *w, size_t rows, size_t columns)
{
    /* Magic, version, length of the text, the text; 64 bytes alignment. */
    char head[256] = "\x93NUMPY\x01";
    enum { PREFIX = 10 };
    int n = snprintf(head + PREFIX, sizeof head - PREFIX,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, columns);
    size_t total = ((size_t)PREFIX + (size_t)n + 1 + 63) / 64 * 64;
    memset(head + PREFIX + n, ' ', total - PREFIX - (size_t)n - 1);
    head[total - 1] = '\n';
    head[8] = (char)((total - PREFIX) & 0xFF);
    head[9] = (char)((total - PREFIX) >> 8);
    w->rows = rows;
    w->columns = columns;
    return fwrite(head, 1, total, w->file) == total ? 0 : fail(w, "cannot write");
}

int npy_row(struct npy_writer *w, const float *row)
{
    w->written++;
    return fwrite(row, sizeof *row, w->columns, w->file) == w->columns ? 0 : fail(w, "cannot write");
}

int npy_end(struct npy_writer *w, int status)
{
    if (w->file != NULL && fflush(w->file) != 0 && status == 0)
        status = fail(w, "cannot write");
    if (w->file != NULL && fclose(w->file) != 0 && status == 0)
        status = fail(w, "cannot write");
    if (status == 0 && (w->rows == 0 || w->written != w->rows)) {
        out_error("%s: %zu of %zu rows were computed", w->path, w->written, w->rows);
        status = 1;
    }
    if (w->temporary != NULL && status == 0 && rename(w->temporary, w->path) != 0)
        status = fail(w, "cannot rename to");
    if (w->temporary != NULL && status != 0 && w->file != NULL)
        unlink(w->temporary);
    w->file = NULL;
    return status;
}

void npy_free(struct npy_writer *w)
{
    if (w->temporary != NULL)
        end_unfinished();
    tool_free(w->path);
    *w = (struct npy_writer){0};
}
