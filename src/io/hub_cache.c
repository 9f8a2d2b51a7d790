/* The cache's layout. */
#include "io/hub_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "io/hub_id.h"

enum { TREE_MAX = 64 << 20, DEPTH_MAX = 32 };

void hub_folder_name(const char *repo, char *out, size_t n)
{
    const char *slash = strchr(repo, '/');
    snprintf(out, n, "models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
}

enum tlm_status hub_store_init(struct hub_store *st, const char *cache, const char *repo, struct tlm_error *e)
{
    char folder[2 * HUB_REPO_MAX];
    hub_folder_name(repo, folder, sizeof folder);
    *st = (struct hub_store){.cache = hub_pathf(e, "%s", cache),
                             .repo = hub_pathf(e, "%s/%s", cache, folder),
                             .locks = hub_pathf(e, "%s/.locks/%s", cache, folder)};
    if (st->cache && st->repo && st->locks)
        return TLM_OK;
    hub_store_deinit(st);
    return TLM_ENOMEM;
}

void hub_store_deinit(struct hub_store *st)
{
    mem_free(st->cache);
    mem_free(st->repo);
    mem_free(st->locks);
    *st = (struct hub_store){0};
}

enum tlm_status hub_write_error(struct tlm_error *e, const char *path, int code)
{
    if (code == ENOSPC || code == EDQUOT || code == EFBIG)
        return err_set(e, TLM_EIO, "%s: %s; what has arrived is kept, run again after making room", path,
                       code == EFBIG ? "the file would be larger than allowed" : "no space left");
    if (code == EROFS || code == EACCES || code == EPERM)
        return err_set(e, TLM_EIO, "%s: cannot write to the cache: %s; HF_HUB_CACHE chooses another folder", path,
                       strerror(code));
    return err_set(e, TLM_EIO, "%s: %s", path, strerror(code));
}

enum tlm_status hub_make_dirs(const char *path, struct tlm_error *e)
{
    char *p = hub_pathf(e, "%s", path);
    enum tlm_status s = p ? TLM_OK : TLM_ENOMEM;
    for (char *at = p; s == TLM_OK && at;) {
        at = strchr(at + 1, '/');
        if (at)
            *at = 0;
        /* A read-only file system reports itself before what exists. */
        int code = mkdir(p, 0777) == 0 ? 0 : errno;
        if (code != 0 && code != EEXIST && !file_is_dir(p))
            s = hub_write_error(e, p, code);
        else if (!file_is_dir(p))
            s = err_set(e, TLM_EIO, "%s: not a folder", p);
        if (at)
            *at = '/';
    }
    mem_free(p);
    return s;
}

/* The folder that holds path. */
static enum tlm_status make_parent(const char *path, struct tlm_error *e)
{
    char *p = hub_pathf(e, "%s", path);
    if (!p)
        return TLM_ENOMEM;
    *strrchr(p, '/') = 0;
    enum tlm_status s = hub_make_dirs(p, e);
    mem_free(p);
    return s;
}

/* Text into a file that appears complete. */
static enum tlm_status write_whole(const char *path, const char *text, size_t n, struct tlm_error *e)
{
    char *tmp = hub_pathf(e, "%s.%ld.tmp", path, (long)getpid());
    if (!tmp)
        return TLM_ENOMEM;
    enum tlm_status s = make_parent(path, e);
    int fd = s == TLM_OK ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666) : -1;
    if (s == TLM_OK && fd < 0)
        s = hub_write_error(e, tmp, errno);
    for (size_t done = 0; s == TLM_OK && done < n;) {
        ssize_t k = write(fd, text + done, n - done);
        if (k < 0 && errno != EINTR)
            s = hub_write_error(e, tmp, errno);
        else if (k > 0)
            done += (size_t)k;
    }
    if (fd >= 0 && close(fd) != 0 && s == TLM_OK)
        s = hub_write_error(e, tmp, errno);
    if (s == TLM_OK && rename(tmp, path) != 0)
        s = hub_write_error(e, path, errno);
    if (s != TLM_OK && fd >= 0)
        unlink(tmp);
    mem_free(tmp);
    return s;
}

enum tlm_status hub_store_read_ref(const struct hub_store *st, const char *revision, char *commit)
{
    char *path = hub_pathf(NULL, "%s/refs/%s", st->repo, revision), *text = NULL;
    size_t n = 0;
    enum tlm_status s = path ? file_read(path, 256, &text, &n, NULL) : TLM_ENOMEM;
    mem_free(path);
    if (s != TLM_OK)
        return s == TLM_ENOMEM ? s : TLM_ENOTFOUND;
    text[strcspn(text, "\r\n")] = 0;
    bool good = hub_is_commit(text);
    if (good)
        memcpy(commit, text, 41);
    mem_free(text);
    return good ? TLM_OK : TLM_ENOTFOUND;
}

enum tlm_status hub_store_write_ref(const struct hub_store *st, const char *revision, const char *commit,
                                    struct tlm_error *e)
{
    char now[41];
    if (!strcmp(revision, commit))
        return TLM_OK;
    if (hub_store_read_ref(st, revision, now) == TLM_OK && !strcmp(now, commit))
        return TLM_OK;
    char *path = hub_pathf(e, "%s/refs/%s", st->repo, revision);
    if (!path)
        return TLM_ENOMEM;
    enum tlm_status s = write_whole(path, commit, strlen(commit), e);
    mem_free(path);
    return s;
}

enum tlm_status hub_store_read_tree(const struct hub_store *st, const char *commit, struct hub_listing *l,
                                    struct tlm_error *e)
{
    char *path = hub_pathf(e, "%s/trees/%s.json", st->repo, commit), *text = NULL;
    size_t n = 0;
    struct tlm_error why = {0};
    if (!path)
        return TLM_ENOMEM;
    enum tlm_status s = file_read(path, TREE_MAX, &text, &n, &why);
    if (s == TLM_OK)
        s = hub_listing_from_tree(l, text, n, path, &why);
    if (s == TLM_OK)
        memcpy(l->commit, commit, sizeof l->commit);
    else
        hub_listing_deinit(l);
    mem_free(text);
    mem_free(path);
    if (s == TLM_ENOMEM)
        return err_set(e, s, "%s", why.message);
    return s == TLM_OK ? s : TLM_ENOTFOUND;
}

enum tlm_status hub_store_write_tree(const struct hub_store *st, const struct hub_listing *l, struct tlm_error *e)
{
    char *path = hub_pathf(e, "%s/trees/%s.json", st->repo, l->commit), *text = NULL;
    if (!path)
        return TLM_ENOMEM;
    enum tlm_status s = file_exists(path) ? TLM_OK : hub_listing_to_tree(l, &text, e);
    if (s == TLM_OK && text)
        s = write_whole(path, text, strlen(text), e);
    mem_free(text);
    mem_free(path);
    return s;
}

static enum tlm_status walk(const char *dir, size_t root, int depth, struct hub_listing *l, struct tlm_error *e)
{
    DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
    if (!d)
        return depth == 0 ? TLM_ENOTFOUND : err_set(e, TLM_EIO, "%s: cannot list the folder", dir);
    enum tlm_status s = TLM_OK;
    for (struct dirent *row; s == TLM_OK && (row = readdir(d)) != NULL;) {
        struct hub_file *f;
        struct stat st;
        if (!strcmp(row->d_name, ".") || !strcmp(row->d_name, ".."))
            continue;
        char *path = hub_pathf(e, "%s/%s", dir, row->d_name);
        if (!path)
            s = TLM_ENOMEM;
        else if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            s = walk(path, root, depth + 1, l, e);
        else if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
            s = hub_listing_add(l, path + root, dir, &f, e);
        mem_free(path);
    }
    closedir(d);
    return s;
}

enum tlm_status hub_store_read_snapshot(const struct hub_store *st, const char *commit, struct hub_listing *l,
                                        struct tlm_error *e)
{
    char *path = hub_pathf(e, "%s/snapshots/%s", st->repo, commit);
    if (!path)
        return TLM_ENOMEM;
    enum tlm_status s = walk(path, strlen(path) + 1, 0, l, e);
    memcpy(l->commit, commit, sizeof l->commit);
    mem_free(path);
    return s;
}

static bool has(char *path, int64_t size)
{
    struct stat st;
    bool yes = path && stat(path, &st) == 0 && S_ISREG(st.st_mode) && (size < 0 || st.st_size == size);
    mem_free(path);
    return yes;
}

bool hub_store_has_file(const struct hub_store *st, const char *commit, const struct hub_file *f)
{
    return has(hub_pathf(NULL, "%s/snapshots/%s/%s", st->repo, commit, f->name), f->size);
}

bool hub_store_has_blob(const struct hub_store *st, const struct hub_file *f)
{
    return f->etag[0] && has(hub_pathf(NULL, "%s/blobs/%s", st->repo, f->etag), f->size);
}

enum tlm_status hub_store_link(const struct hub_store *st, const char *commit, const struct hub_file *f,
                               struct tlm_error *e)
{
    struct buf target;
    buf_init(&target, 4096);
    buf_add_str(&target, "../../"); /* from snapshots/<commit> to the repository's folder */
    for (const char *p = f->name; *p; p++)
        if (*p == '/')
            buf_add_str(&target, "../");
    buf_printf(&target, "blobs/%s", f->etag);
    char *path = hub_pathf(e, "%s/snapshots/%s/%s", st->repo, commit, f->name);
    char *tmp = path ? hub_pathf(e, "%s.%ld.tmp", path, (long)getpid()) : NULL;
    enum tlm_status s = path && tmp ? buf_check(&target, e, "a link") : TLM_ENOMEM;
    if (s == TLM_OK)
        s = make_parent(path, e);
    if (s == TLM_OK) {
        unlink(tmp);
        if (symlink(buf_str(&target), tmp) != 0) {
            s = hub_write_error(e, tmp, errno);
        } else if (rename(tmp, path) != 0) {
            s = hub_write_error(e, path, errno);
            unlink(tmp);
        }
    }
    mem_free(tmp);
    mem_free(path);
    buf_deinit(&target);
    return s;
}

/* https://bford.info/cachedir/: backup programs leave such a folder out. */
static void tag_cache(const char *cache)
{
    static const char text[] = "Signature: 8a477f597d28d172789f06886806bc55\n";
    char *path = hub_pathf(NULL, "%s/CACHEDIR.TAG", cache);
    /* A courtesy, whose failure changes nothing. */
    if (path && !file_exists(path))
        (void)write_whole(path, text, sizeof text - 1, NULL);
    mem_free(path);
}

enum tlm_status hub_store_prepare(const struct hub_store *st, const char *commit, struct tlm_error *e)
{
    char *blobs = hub_pathf(e, "%s/blobs", st->repo);
    char *snapshot = hub_pathf(e, "%s/snapshots/%s", st->repo, commit);
    enum tlm_status s = blobs && snapshot ? hub_make_dirs(blobs, e) : TLM_ENOMEM;
    if (s == TLM_OK)
        s = hub_make_dirs(snapshot, e);
    if (s == TLM_OK)
        s = hub_make_dirs(st->locks, e);
    if (s == TLM_OK)
        tag_cache(st->cache);
    mem_free(snapshot);
    mem_free(blobs);
    return s;
}

enum tlm_status hub_store_lock(const struct hub_store *st, const char *etag, int *fd, struct tlm_error *e)
{
    char *path = hub_pathf(e, "%s/%s.lock", st->locks, etag);
    if (!path)
        return TLM_ENOMEM;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    enum tlm_status s = *fd < 0 ? hub_write_error(e, path, errno) : TLM_OK;
    if (s == TLM_OK && flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        s = errno == EWOULDBLOCK || errno == EINTR ? TLM_EBUSY : TLM_OK;
        close(*fd);
        *fd = -1;
    }
    mem_free(path);
    return s;
}
