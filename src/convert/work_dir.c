/* The directory that is being filled. */
#include "convert/work_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "io/unfinished.h"

enum { COPY_CHUNK = 1 << 20 };

static enum tlm_status io_error(const char *path, struct tlm_error *e)
{
    return err_set(e, TLM_EIO, "%s: cannot be written: %s", path, strerror(errno));
}

enum tlm_status work_dir_open(struct work_dir *d, const char *name, struct tlm_error *e)
{
    size_t n = strlen(name);
    *d = (struct work_dir){.fd = -1};
    while (n > 1 && name[n - 1] == '/')
        n--;
    d->name = mem_strndup(name, n);
    d->path = mem_new(n + UNFINISHED_SUFFIX);
    if (!d->name || !d->path)
        return err_nomem(e, n + UNFINISHED_SUFFIX);
    file_make_parents(d->name);
    d->fd = unfinished_make(d->name, true, d->path);
    return d->fd >= 0 ? TLM_OK : io_error(d->name, e);
}

static enum tlm_status write_all(int fd, const char *path, const char *p, size_t n, struct tlm_error *e)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return io_error(path, e);
        p += k;
        n -= (size_t)k;
    }
    return TLM_OK;
}

/* Creates a file, and the folder that its name has in front; *path is the caller's to free. */
static enum tlm_status create(const struct work_dir *d, const char *file, char **path, int *fd, struct tlm_error *e)
{
    *path = path_join(d->path, file);
    if (!*path)
        return err_nomem(e, strlen(d->path) + strlen(file));
    char *slash = strchr(*path + strlen(d->path) + 1, '/');
    if (slash) {
        *slash = 0;
        (void)mkdir(*path, 0777);
        *slash = '/';
    }
    *fd = open(*path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd >= 0)
        return TLM_OK;
    enum tlm_status s = io_error(*path, e);
    mem_free(*path);
    return s;
}

/* Messages name the temporary directory: work_dir_name_error. */
static enum tlm_status finish(int fd, char *path, enum tlm_status s, struct tlm_error *e)
{
    if (s == TLM_OK && fsync(fd) != 0)
        s = io_error(path, e);
    if (close(fd) != 0 && s == TLM_OK)
        s = io_error(path, e);
    mem_free(path);
    return s;
}

enum tlm_status work_dir_write(const struct work_dir *d, const char *file, const void *data, size_t size,
                               struct tlm_error *e)
{
    char *path;
    int fd;
    enum tlm_status s = create(d, file, &path, &fd, e);
    return s == TLM_OK ? finish(fd, path, write_all(fd, path, data, size, e), e) : s;
}

static enum tlm_status copy_bytes(int in, const char *from, int out, const char *to, struct tlm_error *e)
{
    char *buffer = mem_alloc(COPY_CHUNK);
    enum tlm_status s = buffer ? TLM_OK : err_nomem(e, COPY_CHUNK);
    while (s == TLM_OK) {
        ssize_t n = read(in, buffer, COPY_CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            s = err_set(e, TLM_EIO, "%s: %s", from, strerror(errno));
        if (n <= 0)
            break;
        s = write_all(out, to, buffer, (size_t)n, e);
    }
    mem_free(buffer);
    return s;
}

enum tlm_status work_dir_copy(const struct work_dir *d, const char *file, const char *from, struct tlm_error *e)
{
    char *path;
    int in, fd;
    size_t size;
    enum tlm_status s = file_open(from, &in, &size, e);
    if (s != TLM_OK)
        return s;
    s = create(d, file, &path, &fd, e);
    if (s == TLM_OK)
        s = finish(fd, path, copy_bytes(in, from, fd, path, e), e);
    close(in);
    return s;
}

enum tlm_status work_dir_commit(struct work_dir *d, struct tlm_error *e)
{
    if (fsync(d->fd) != 0 || unfinished_rename(d->path, d->name) != 0)
        return io_error(d->name, e);
    d->path[0] = 0;
    return TLM_OK;
}

void work_dir_name_error(const struct work_dir *d, struct tlm_error *e)
{
    char *at = e && d->path && d->path[0] ? strstr(e->message, d->path) : NULL;
    if (!at)
        return;
    size_t was = strlen(d->path), is = strlen(d->name);
    memcpy(at, d->name, is);
    memmove(at + is, at + was, strlen(at + was) + 1);
}

void work_dir_close(struct work_dir *d)
{
    if (d->path && d->path[0])
        unfinished_remove(d->path);
    if (d->fd >= 0)
        close(d->fd);
    mem_free(d->name);
    mem_free(d->path);
    *d = (struct work_dir){.fd = -1};
}
