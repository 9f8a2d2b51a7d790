/* Writing through a temporary file. */
#include "io/whole_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/unfinished.h"

static enum tlm_status io_error(const struct whole_file *w, struct tlm_error *e)
{
    return err_set(e, TLM_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
}

enum tlm_status whole_file_init(struct whole_file *w, const char *path, struct tlm_error *e)
{
    size_t n = strlen(path) + UNFINISHED_SUFFIX;
    *w = (struct whole_file){mem_strdup(path), mem_alloc(n), NULL};
    return w->path && w->temporary ? TLM_OK : err_nomem(e, n);
}

void whole_file_deinit(struct whole_file *w)
{
    if (w->f) {
        fclose(w->f);
        unlink(w->temporary);
    }
    mem_free(w->path);
    mem_free(w->temporary);
    *w = (struct whole_file){0};
}

/* In the same folder, so that renaming cannot fail for a file system's border. */
enum tlm_status whole_file_begin(struct whole_file *w, struct tlm_error *e)
{
    int fd = unfinished_make(w->path, false, w->temporary);
    if (fd >= 0 && !(w->f = fdopen(fd, "wb"))) {
        int error = errno;
        close(fd);
        unlink(w->temporary);
        errno = error;
    }
    return w->f ? TLM_OK : io_error(w, e);
}

enum tlm_status whole_file_put(struct whole_file *w, const void *data, size_t bytes, struct tlm_error *e)
{
    return !bytes || fwrite(data, 1, bytes, w->f) == bytes ? TLM_OK : io_error(w, e);
}

enum tlm_status whole_file_commit(struct whole_file *w, bool replace, struct tlm_error *e)
{
    if (fflush(w->f) != 0 || fsync(fileno(w->f)) != 0)
        return io_error(w, e);
    FILE *f = w->f;
    w->f = NULL;
    if (fclose(f) != 0 || (replace ? rename(w->temporary, w->path) : unfinished_rename(w->temporary, w->path)) != 0) {
        enum tlm_status s = io_error(w, e);
        unlink(w->temporary);
        return s;
    }
    return TLM_OK;
}
