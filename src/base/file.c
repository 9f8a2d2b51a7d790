/* Files and paths. */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum tlm_status file_open(const char *path, int *fd, size_t *size, struct tlm_error *e)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return err_set(e, errno == ENOENT ? TLM_ENOTFOUND : TLM_EIO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &st) != 0) {
        enum tlm_status s = err_set(e, TLM_EIO, "%s: %s", path, strerror(errno));
        close(*fd);
        return s;
    }
    if (!S_ISREG(st.st_mode)) {
        close(*fd);
        return err_set(e, TLM_EIO, "%s: not a regular file", path);
    }
    *size = (size_t)st.st_size;
    return TLM_OK;
}

enum tlm_status file_map_open(struct file_map *m, const char *path, struct tlm_error *e)
{
    int fd;
    *m = (struct file_map){0};
    enum tlm_status s = file_open(path, &fd, &m->size, e);
    if (s != TLM_OK)
        return s;
    if (m->size == 0) {
        close(fd);
        return err_set(e, TLM_EFORMAT, "%s: the file is empty", path);
    }
    void *p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, fd, 0);
    int saved = errno;
    close(fd);
    if (p == MAP_FAILED) {
        m->size = 0;
        return err_set(e, TLM_EIO, "%s: cannot map: %s", path, strerror(saved));
    }
    m->data = p;
    return TLM_OK;
}

void file_map_close(struct file_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct file_map){0};
}

void file_map_drop(const struct file_map *m, const void *start, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = (uintptr_t)m->data, hi = lo + m->size;
    uintptr_t a = (uintptr_t)start, b = a + bytes;
    if (a < lo || b > hi)
        return;
    a = (a + page - 1) & ~(page - 1);
    b = b & ~(page - 1);
    if (b > a)
        (void)madvise((void *)a, b - a, MADV_DONTNEED);
}

static enum tlm_status read_all(int fd, const char *path, char *p, size_t size, struct tlm_error *e)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, p + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, TLM_EIO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return err_set(e, TLM_EIO, "%s: the file shrank while it was read", path);
        done += (size_t)n;
    }
    return TLM_OK;
}

enum tlm_status file_read(const char *path, size_t max, char **data, size_t *size, struct tlm_error *e)
{
    int fd;
    size_t n;
    enum tlm_status s = file_open(path, &fd, &n, e);
    if (s != TLM_OK)
        return s;
    char *p = NULL;
    if (n > max)
        s = err_set(e, TLM_ELIMIT, "%s: %zu bytes, more than the limit of %zu", path, n, max);
    else if (!(p = mem_alloc(n + 1)))
        s = err_nomem(e, n + 1);
    else
        s = read_all(fd, path, p, n, e);
    close(fd);
    if (s != TLM_OK) {
        mem_free(p);
        return s;
    }
    p[n] = 0;
    *data = p;
    *size = n;
    return TLM_OK;
}

bool file_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

enum tlm_status file_check(const char *path, struct tlm_error *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(e, errno == ENOENT ? TLM_ENOTFOUND : TLM_EIO, "%s: %s", path, strerror(errno));
    close(fd);
    return TLM_OK;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

void file_make_parents(char *path)
{
    for (char *slash = *path ? strchr(path + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0777); /* a failure shows in what is made inside */
        *slash = '/';
    }
}

char *path_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    char *p = mem_alloc(a + b + 2);
    if (!p)
        return NULL;
    memcpy(p, dir, a);
    p[a] = '/';
    memcpy(p + a + 1, name, b + 1);
    return p;
}
