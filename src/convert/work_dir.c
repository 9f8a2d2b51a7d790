/* The directory that is being filled. */
#define _GNU_SOURCE
#include "convert/work_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { SUFFIX_MAX = 64, DEPTH_MAX = 4, COPY_CHUNK = 1 << 20 };

static enum tlm_status io_error(const char *path, struct tlm_error *e)
{
    return err_set(e, TLM_EIO, "%s: cannot be written: %s", path, strerror(errno));
}

/* Links are removed, never followed. */
static void remove_tree(int at, const char *name, int depth)
{
    int fd = depth < DEPTH_MAX ? openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d) {
        for (struct dirent *f; (f = readdir(d)) != NULL;) {
            if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, ".."))
                continue;
            if (unlinkat(fd, f->d_name, 0) != 0)
                remove_tree(fd, f->d_name, depth + 1);
        }
        closedir(d);
    } else if (fd >= 0) {
        close(fd);
    }
    (void)unlinkat(at, name, AT_REMOVEDIR);
}

/* The process of NAME.part-PID-N is gone and its lock with it. */
static bool is_stale(int parent, const char *entry, const char *pid)
{
    long id = strtol(pid, NULL, 10);
    if (id <= 0 || (kill((pid_t)id, 0) == 0 || errno != ESRCH))
        return false;
    int fd = openat(parent, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return free;
}

/* Where a name's last part begins. */
static const char *base_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

static void remove_stale(const char *name)
{
    const char *base = base_of(name);
    char *folder = base == name ? mem_strdup(".") : mem_strndup(name, (size_t)(base - name));
    DIR *d = folder ? opendir(folder) : NULL;
    mem_free(folder);
    if (!d)
        return;
    size_t n = strlen(base);
    for (struct dirent *f; (f = readdir(d)) != NULL;)
        if (!strncmp(f->d_name, base, n) && !strncmp(f->d_name + n, ".part-", 6) &&
            is_stale(dirfd(d), f->d_name, f->d_name + n + 6)) {
            log_warn("%s: removed, left by a conversion that was killed", f->d_name);
            remove_tree(dirfd(d), f->d_name, 0);
        }
    closedir(d);
}

static enum tlm_status make(struct work_dir *d, struct tlm_error *e)
{
    for (int i = 0; i < 100; i++) {
        snprintf(d->path, strlen(d->name) + SUFFIX_MAX, "%s.part-%ld-%d", d->name, (long)getpid(), i);
        if (mkdir(d->path, 0777) == 0) {
            d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (d->fd < 0)
                return io_error(d->path, e);
            (void)flock(d->fd, LOCK_EX | LOCK_NB); /* a file system without locks only loses the cleaning up */
            return TLM_OK;
        }
        if (errno != EEXIST)
            break;
    }
    enum tlm_status s = io_error(d->name, e);
    d->path[0] = 0;
    return s;
}

/* The folders above, as far as they are missing. */
static void make_parents(char *name)
{
    for (char *slash = strchr(name + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(name, 0777); /* a failure shows in what is made inside */
        *slash = '/';
    }
}

enum tlm_status work_dir_open(struct work_dir *d, const char *name, struct tlm_error *e)
{
    size_t n = strlen(name);
    *d = (struct work_dir){.fd = -1};
    while (n > 1 && name[n - 1] == '/')
        n--;
    d->name = mem_strndup(name, n);
    d->path = mem_new(n + SUFFIX_MAX);
    if (!d->name || !d->path)
        return err_nomem(e, n + SUFFIX_MAX);
    make_parents(d->name);
    remove_stale(d->name);
    return make(d, e);
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
static int create(const struct work_dir *d, const char *file, char **path)
{
    *path = path_join(d->path, file);
    if (!*path) {
        errno = ENOMEM;
        return -1;
    }
    char *slash = strchr(*path + strlen(d->path) + 1, '/');
    if (slash) {
        *slash = 0;
        (void)mkdir(*path, 0777);
        *slash = '/';
    }
    return open(*path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/* The message names the file under its final directory. */
static enum tlm_status finish(const struct work_dir *d, const char *file, int fd, enum tlm_status s,
                              struct tlm_error *e)
{
    char *shown = path_join(d->name, file);
    if (fd < 0)
        s = io_error(shown ? shown : file, e);
    else if (close(fd) != 0 && s == TLM_OK)
        s = io_error(shown ? shown : file, e);
    mem_free(shown);
    return s;
}

enum tlm_status work_dir_write(const struct work_dir *d, const char *file, const void *data, size_t size,
                               struct tlm_error *e)
{
    char *path;
    int fd = create(d, file, &path);
    enum tlm_status s = fd >= 0 ? write_all(fd, file, data, size, e) : TLM_OK;
    if (s == TLM_OK && fd >= 0 && fsync(fd) != 0)
        s = io_error(file, e);
    s = finish(d, file, fd, s, e);
    mem_free(path);
    return s;
}

static enum tlm_status copy_bytes(int in, const char *from, int out, const char *file, struct tlm_error *e)
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
        s = write_all(out, file, buffer, (size_t)n, e);
    }
    mem_free(buffer);
    if (s == TLM_OK && fsync(out) != 0)
        s = io_error(file, e);
    return s;
}

enum tlm_status work_dir_copy(const struct work_dir *d, const char *file, const char *from, struct tlm_error *e)
{
    char *path;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return err_set(e, TLM_EIO, "%s: %s", from, strerror(errno));
    int fd = create(d, file, &path);
    enum tlm_status s = fd >= 0 ? copy_bytes(in, from, fd, file, e) : TLM_OK;
    s = finish(d, file, fd, s, e);
    close(in);
    mem_free(path);
    return s;
}

/* Never onto something that came to be meanwhile. */
static int rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (file_exists(to)) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

enum tlm_status work_dir_commit(struct work_dir *d, struct tlm_error *e)
{
    if (fsync(d->fd) != 0 || rename_new(d->path, d->name) != 0)
        return io_error(d->name, e);
    d->path[0] = 0;
    return TLM_OK;
}

void work_dir_close(struct work_dir *d)
{
    if (d->path && d->path[0])
        remove_tree(AT_FDCWD, d->path, 0);
    if (d->fd >= 0)
        close(d->fd);
    mem_free(d->name);
    mem_free(d->path);
    *d = (struct work_dir){.fd = -1};
}
