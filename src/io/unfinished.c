/* Making, renaming and cleaning up of what is not whole yet. */
#define _GNU_SOURCE
#include "io/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

enum { TRIES = 100, DEPTH_MAX = 4 };

/* Links are removed, never followed. */
static void remove_tree(int at, const char *name, int depth)
{
    if (unlinkat(at, name, 0) == 0)
        return;
    int fd = depth < DEPTH_MAX ? openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d) {
        for (struct dirent *f; (f = readdir(d)) != NULL;)
            if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
                remove_tree(fd, f->d_name, depth + 1);
        closedir(d);
    } else if (fd >= 0) {
        close(fd);
    }
    (void)unlinkat(at, name, AT_REMOVEDIR);
}

void unfinished_remove(const char *path)
{
    remove_tree(AT_FDCWD, path, 0);
}

/* suffix: "PID-N". The process is gone, and its lock with it. */
static bool is_stale(int parent, const char *entry, const char *suffix)
{
    static const char digits[] = "0123456789";
    size_t n = strspn(suffix, digits), m = suffix[n] == '-' ? strspn(suffix + n + 1, digits) : 0;
    long id = strtol(suffix, NULL, 10);
    if (!n || !m || suffix[n + 1 + m] || id < 1 || id > INT32_MAX || kill((pid_t)id, 0) == 0 || errno != ESRCH)
        return false;
    struct stat st;
    int fd = openat(parent, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool ours = fd >= 0 && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
                flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return ours;
}

static void remove_stale(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    char *folder = slash ? mem_strndup(name, (size_t)(base - name)) : mem_strdup(".");
    DIR *d = folder ? opendir(folder) : NULL;
    mem_free(folder);
    if (!d)
        return;
    size_t n = strlen(base);
    for (struct dirent *f; (f = readdir(d)) != NULL;)
        if (!strncmp(f->d_name, base, n) && !strncmp(f->d_name + n, ".part-", 6) &&
            is_stale(dirfd(d), f->d_name, f->d_name + n + 6)) {
            log_warn("%s: removed, left by a process that was killed", f->d_name);
            remove_tree(dirfd(d), f->d_name, 0);
        }
    closedir(d);
}

static int make(const char *path, bool directory)
{
    if (!directory)
        return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (mkdir(path, 0777) != 0)
        return -1;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        (void)rmdir(path);
        errno = error;
    }
    return fd;
}

int unfinished_make(const char *name, bool directory, char *path)
{
    int fd = -1;
    remove_stale(name);
    for (int i = 0; i < TRIES && fd < 0; i++) {
        snprintf(path, strlen(name) + UNFINISHED_SUFFIX, "%s.part-%ld-%d", name, (long)getpid(), i);
        fd = make(path, directory);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    if (fd >= 0)
        (void)flock(fd, LOCK_EX | LOCK_NB); /* a file system without locks only loses the cleaning up */
    else
        path[0] = 0;
    return fd;
}

int unfinished_rename(const char *path, const char *name)
{
    if (renameat2(AT_FDCWD, path, AT_FDCWD, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (file_exists(name)) {
        errno = EEXIST;
        return -1;
    }
    return rename(path, name);
}
