/* What the cache holds, counted as huggingface_hub's scan_cache_dir counts, and
 * removal of a model from it. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <turbolm/hub.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "io/hub_env.h"
#include "io/hub_id.h"

enum { DEPTH_MAX = 64 };

struct entry {
    char *folder, *id, *path;
    struct tlm_hub_repo repo;
};

struct tlm_hub_cache {
    char *dir;
    struct entry *rows;
    size_t n, room;
};

/* Blobs of a repository, each once. */
struct blobs {
    char **paths;
    size_t n, room;
};

static bool is_ignored(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, ".DS_Store") || !strcmp(name, "Thumbs.db") ||
           !strcmp(name, "desktop.ini");
}

/* dir/name without "." and ".." components, as text alone. */
static char *join_plainly(const char *dir, const char *name, struct tlm_error *e)
{
    char *p = name[0] == '/' ? hub_pathf(e, "%s", name) : hub_pathf(e, "%s/%s", dir, name);
    if (!p)
        return NULL;
    char *out = p;
    for (char *in = p; *in;) {
        size_t n = strcspn(in, "/");
        if (n == 2 && in[0] == '.' && in[1] == '.') {
            while (out > p && *--out != '/')
                ;
        } else if (n > 0 && !(n == 1 && in[0] == '.')) {
            *out++ = '/';
            memmove(out, in, n);
            out += n;
        }
        in += n + (in[n] == '/');
    }
    *out = 0;
    return p;
}

static enum tlm_status add_blob(struct blobs *b, char *path, struct tlm_error *e)
{
    if (!path)
        return TLM_ENOMEM;
    if (b->n == b->room) {
        size_t room = b->room ? 2 * b->room : 64;
        char **p = mem_realloc_array(b->paths, room, sizeof *p);
        if (!p) {
            mem_free(path);
            return err_nomem(e, room * sizeof *p);
        }
        b->paths = p;
        b->room = room;
    }
    b->paths[b->n++] = path;
    return TLM_OK;
}

static enum tlm_status add_file(struct blobs *b, const char *dir, const char *path, const struct stat *st,
                                struct tlm_error *e)
{
    char target[PATH_MAX];
    if (!S_ISLNK(st->st_mode))
        return add_blob(b, hub_pathf(e, "%s", path), e);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return err_set(e, TLM_EIO, "%s: %s", path, strerror(errno));
    target[n] = 0;
    return add_blob(b, join_plainly(dir, target, e), e);
}

/* All files below dir. Links to folders are not followed. */
static enum tlm_status collect(struct blobs *b, const char *dir, int depth, struct tlm_error *e)
{
    DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
    if (!d)
        return err_set(e, TLM_EIO, "%s: cannot list the folder", dir);
    enum tlm_status s = TLM_OK;
    for (struct dirent *row; s == TLM_OK && (row = readdir(d)) != NULL;) {
        struct stat st;
        if (!strcmp(row->d_name, ".") || !strcmp(row->d_name, ".."))
            continue;
        char *path = hub_pathf(e, "%s/%s", dir, row->d_name);
        if (!path)
            s = TLM_ENOMEM;
        else if (lstat(path, &st) != 0)
            s = err_set(e, TLM_EIO, "%s: %s", path, strerror(errno));
        else if (S_ISDIR(st.st_mode))
            s = collect(b, path, depth + 1, e);
        else if (!file_is_dir(path))
            s = add_file(b, dir, path, &st, e);
        mem_free(path);
    }
    closedir(d);
    return s;
}

/* Every ref must lead to a snapshot. */
static enum tlm_status check_refs(const char *refs, const char *snapshots, int depth, struct tlm_error *e)
{
    DIR *d = depth < DEPTH_MAX ? opendir(refs) : NULL;
    if (!d)
        return depth == 0 && errno == ENOENT ? TLM_OK : err_set(e, TLM_EFORMAT, "%s: not a folder", refs);
    enum tlm_status s = TLM_OK;
    for (struct dirent *row; s == TLM_OK && (row = readdir(d)) != NULL;) {
        char *path = is_ignored(row->d_name) ? NULL : hub_pathf(e, "%s/%s", refs, row->d_name), *text = NULL;
        size_t n;
        if (!path) {
            s = is_ignored(row->d_name) ? TLM_OK : TLM_ENOMEM;
        } else if (file_is_dir(path)) {
            s = check_refs(path, snapshots, depth + 1, e);
        } else if ((s = file_read(path, 4096, &text, &n, e)) == TLM_OK) {
            char *target = hub_pathf(e, "%s/%s", snapshots, text);
            if (!target)
                s = TLM_ENOMEM;
            else if (!hub_is_commit(text) || !file_exists(target))
                s = err_set(e, TLM_EFORMAT, "%s: leads to no snapshot", path);
            mem_free(target);
        }
        mem_free(text);
        mem_free(path);
    }
    closedir(d);
    return s;
}

static enum tlm_status collect_snapshots(struct blobs *b, const char *snapshots, struct tlm_error *e)
{
    DIR *d = opendir(snapshots);
    if (!d)
        return err_set(e, TLM_EFORMAT, "%s: no such folder", snapshots);
    enum tlm_status s = TLM_OK;
    for (struct dirent *row; s == TLM_OK && (row = readdir(d)) != NULL;) {
        if (is_ignored(row->d_name))
            continue;
        char *path = hub_pathf(e, "%s/%s", snapshots, row->d_name);
        if (!path)
            s = TLM_ENOMEM;
        else if (!file_is_dir(path))
            s = err_set(e, TLM_EFORMAT, "%s: not a folder", path);
        else
            s = collect(b, path, 0, e);
        mem_free(path);
    }
    closedir(d);
    return s;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static double seconds(struct timespec t)
{
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add_times(struct tlm_hub_repo *r, const struct stat *st)
{
    double access = seconds(st->st_atim), change = seconds(st->st_mtim);
    r->last_access = access > r->last_access ? access : r->last_access;
    r->last_change = change > r->last_change ? change : r->last_change;
}

static enum tlm_status count_blobs(struct blobs *b, const char *path, struct tlm_hub_repo *r, struct tlm_error *e)
{
    struct stat st;
    if (b->n > 1)
        qsort(b->paths, b->n, sizeof *b->paths, by_text);
    for (size_t i = 0; i < b->n; i++) {
        if (i > 0 && !strcmp(b->paths[i], b->paths[i - 1]))
            continue;
        if (stat(b->paths[i], &st) != 0)
            return err_set(e, TLM_EFORMAT, "%s: %s", b->paths[i], strerror(errno));
        r->files++;
        r->bytes += (uint64_t)st.st_size;
        add_times(r, &st);
    }
    if (b->n == 0 && stat(path, &st) == 0)
        add_times(r, &st);
    return TLM_OK;
}

static enum tlm_status scan_repo(const char *path, struct tlm_hub_repo *r, struct tlm_error *e)
{
    struct blobs b = {0};
    char *snapshots = hub_pathf(e, "%s/snapshots", path), *refs = hub_pathf(e, "%s/refs", path);
    enum tlm_status s = snapshots && refs ? TLM_OK : TLM_ENOMEM;
    if (s == TLM_OK)
        s = collect_snapshots(&b, snapshots, e);
    if (s == TLM_OK)
        s = check_refs(refs, snapshots, 0, e);
    if (s == TLM_OK)
        s = count_blobs(&b, path, r, e);
    for (size_t i = 0; i < b.n; i++)
        mem_free(b.paths[i]);
    mem_free(b.paths);
    mem_free(refs);
    mem_free(snapshots);
    return s;
}

static char *id_of_folder(const char *folder, struct tlm_error *e)
{
    char *id = hub_pathf(e, "%s", folder + strlen("models--"));
    char *out = id;
    for (const char *in = id; in && *in;) {
        bool slash = in[0] == '-' && in[1] == '-';
        *out++ = slash ? '/' : *in;
        in += slash ? 2 : 1;
    }
    if (id)
        *out = 0;
    return id;
}

static void entry_free(struct entry *row)
{
    mem_free(row->folder);
    mem_free(row->id);
    mem_free(row->path);
}

static enum tlm_status add_repo(struct tlm_hub_cache *c, const char *folder, struct tlm_error *e)
{
    struct tlm_error why = {0};
    if (c->n == c->room) {
        size_t room = c->room ? 2 * c->room : 32;
        struct entry *p = mem_realloc_array(c->rows, room, sizeof *p);
        if (!p)
            return err_nomem(e, room * sizeof *p);
        c->rows = p;
        c->room = room;
    }
    struct entry row = {.folder = hub_pathf(e, "%s", folder),
                        .id = id_of_folder(folder, e),
                        .path = hub_pathf(e, "%s%s%s", c->dir, strcmp(c->dir, "/") ? "/" : "", folder)};
    enum tlm_status s = row.folder && row.id && row.path ? scan_repo(row.path, &row.repo, &why) : TLM_ENOMEM;
    if (s == TLM_OK) {
        row.repo.id = row.id;
        row.repo.path = row.path;
        c->rows[c->n++] = row;
        return TLM_OK;
    }
    entry_free(&row);
    if (s == TLM_ENOMEM)
        return err_nomem(e, 64);
    log_warn("%s is left out: %s", folder, why.message);
    return TLM_OK;
}

static int by_folder(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->folder, ((const struct entry *)b)->folder);
}

static enum tlm_status scan(struct tlm_hub_cache *c, const char *dir, struct tlm_error *e)
{
    char real[PATH_MAX];
    DIR *d = realpath(dir, real) ? opendir(real) : NULL;
    if (!d)
        return err_set(e, errno == ENOENT ? TLM_ENOTFOUND : TLM_EIO, "the cache %s cannot be read: %s", dir,
                       strerror(errno));
    c->dir = hub_pathf(e, "%s", real);
    enum tlm_status s = c->dir ? TLM_OK : TLM_ENOMEM;
    for (struct dirent *row; s == TLM_OK && (row = readdir(d)) != NULL;)
        if (!strncmp(row->d_name, "models--", 8))
            s = add_repo(c, row->d_name, e);
    closedir(d);
    if (s == TLM_OK && c->n > 1)
        qsort(c->rows, c->n, sizeof *c->rows, by_folder);
    return s;
}

enum tlm_status tlm_hub_cache_open(const char *cache_dir, struct tlm_hub_cache **out, struct tlm_error *e)
{
    struct tlm_hub_options o = {.cache_dir = cache_dir, .offline = 1};
    struct hub_env env;
    *out = NULL;
    struct tlm_hub_cache *c = mem_new(sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c);
    enum tlm_status s = hub_env_init(&env, &o, e);
    if (s == TLM_OK) {
        s = scan(c, env.cache, e);
        hub_env_deinit(&env);
    }
    if (s != TLM_OK) {
        tlm_hub_cache_close(c);
        return s;
    }
    *out = c;
    return TLM_OK;
}

void tlm_hub_cache_close(struct tlm_hub_cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++)
        entry_free(&c->rows[i]);
    mem_free(c->rows);
    mem_free(c->dir);
    mem_free(c);
}

size_t tlm_hub_cache_count(const struct tlm_hub_cache *c)
{
    return c->n;
}

int tlm_hub_cache_repo(const struct tlm_hub_cache *c, size_t i, struct tlm_hub_repo *out)
{
    if (i >= c->n)
        return 0;
    *out = c->rows[i].repo;
    return 1;
}

/* Removal ----------------------------------------------------------------------- */

static enum tlm_status remove_at(int dir, const char *name, int depth, struct tlm_error *e);

static enum tlm_status empty_at(int dir, const char *name, int depth, struct tlm_error *e)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 && depth < DEPTH_MAX ? fdopendir(fd) : NULL;
    if (!d) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return err_set(e, TLM_EIO, "%s: %s", name, fd >= 0 ? "too many folders inside each other" : strerror(code));
    }
    enum tlm_status s = TLM_OK;
    for (struct dirent *row; s == TLM_OK && (row = readdir(d)) != NULL;)
        if (strcmp(row->d_name, ".") != 0 && strcmp(row->d_name, "..") != 0)
            s = remove_at(dirfd(d), row->d_name, depth + 1, e);
    closedir(d);
    return s;
}

/* A name that is gone already is fine. */
static enum tlm_status remove_at(int dir, const char *name, int depth, struct tlm_error *e)
{
    struct stat st;
    enum tlm_status s = TLM_OK;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? TLM_OK : err_set(e, TLM_EIO, "%s: %s", name, strerror(errno));
    bool is_dir = S_ISDIR(st.st_mode);
    if (is_dir)
        s = empty_at(dir, name, depth, e);
    if (s == TLM_OK && unlinkat(dir, name, is_dir ? AT_REMOVEDIR : 0) != 0 && errno != ENOENT)
        s = err_set(e, TLM_EIO, "%s: %s", name, strerror(errno));
    return s;
}

enum tlm_status tlm_hub_cache_delete(struct tlm_hub_cache *c, size_t i, struct tlm_error *e)
{
    /* Refs and snapshots first: what is left after a failure is no model. */
    static const char *const first[] = {"refs", "snapshots"};
    if (i >= c->n)
        return err_set(e, TLM_EINVAL, "the cache has no model %zu", i);
    const struct entry *row = &c->rows[i];
    int dir = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int repo = dir >= 0 ? openat(dir, row->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    int code = errno;
    int locks = dir >= 0 ? openat(dir, ".locks", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    enum tlm_status s = TLM_OK;
    if (repo < 0) {
        struct stat st;
        bool is_link = lstat(row->path, &st) == 0 && S_ISLNK(st.st_mode);
        s = err_set(e, TLM_EIO, "%s: %s", row->path,
                    is_link ? "is a link, which is not followed; remove it by hand" : strerror(code));
    }
    for (size_t k = 0; s == TLM_OK && k < sizeof first / sizeof first[0]; k++)
        s = remove_at(repo, first[k], 0, e);
    if (s == TLM_OK)
        s = remove_at(dir, row->folder, 0, e);
    if (s == TLM_OK && locks >= 0)
        s = remove_at(locks, row->folder, 0, e);
    if (s != TLM_OK && repo >= 0)
        err_prefix(e, "cannot delete %s", row->id);
    if (locks >= 0)
        close(locks);
    if (repo >= 0)
        close(repo);
    if (dir >= 0)
        close(dir);
    return s;
}
