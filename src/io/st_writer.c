/* Header and data of a safetensors file, through a temporary file. */
#define _GNU_SOURCE
#include "io/st_writer.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { SUFFIX_MAX = 64 };

struct st_writer {
    char *path, *temporary;
    FILE *f; /* NULL before begin and after commit */
    cJSON *header, *metadata;
    uint64_t declared, start; /* start: of the data in the file, once it is written to by place */
    _Atomic uint64_t written;
};

static enum tlm_status io_error(const struct st_writer *w, struct tlm_error *e)
{
    return err_set(e, TLM_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
}

enum tlm_status st_writer_new(const char *path, struct st_writer **out, struct tlm_error *e)
{
    size_t n = strlen(path);
    *out = NULL;
    struct st_writer *w = mem_new(sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w);
    w->path = mem_strdup(path);
    w->temporary = mem_alloc(n + SUFFIX_MAX);
    w->header = cJSON_CreateObject();
    w->metadata = w->header ? cJSON_AddObjectToObject(w->header, "__metadata__") : NULL;
    if (!w->path || !w->temporary || !w->metadata) {
        st_writer_free(w);
        return err_nomem(e, n + SUFFIX_MAX);
    }
    *out = w;
    return TLM_OK;
}

void st_writer_free(struct st_writer *w)
{
    if (!w)
        return;
    if (w->f) {
        fclose(w->f);
        unlink(w->temporary);
    }
    cJSON_Delete(w->header);
    mem_free(w->path);
    mem_free(w->temporary);
    mem_free(w);
}

enum tlm_status st_writer_meta(struct st_writer *w, const char *key, const char *value, struct tlm_error *e)
{
    return cJSON_AddStringToObject(w->metadata, key, value) ? TLM_OK : err_nomem(e, strlen(value));
}

static const char *type_name(enum dtype t)
{
    switch (t) {
    case DT_F32:
        return "F32";
    case DT_F16:
        return "F16";
    case DT_BF16:
        return "BF16";
    case DT_U8:
        return "U8";
    case DT_U32:
        return "U32";
    case DT_I32:
        return "I32";
    case DT_I64:
        return "I64";
    default:
        return NULL;
    }
}

enum tlm_status st_writer_add(struct st_writer *w, const char *name, enum dtype type, int n_dims, const int64_t *shape,
                              struct tlm_error *e)
{
    uint64_t bytes = dtype_size(type);
    if (!type_name(type))
        return err_set(e, TLM_EINTERNAL, "%s: a tensor of type %s is not written", name, dtype_name(type));
    cJSON *row = cJSON_AddObjectToObject(w->header, name);
    cJSON *dims = cJSON_AddStringToObject(row, "dtype", type_name(type)) ? cJSON_AddArrayToObject(row, "shape") : NULL;
    for (int i = 0; i < n_dims && dims; i++) {
        cJSON *number = cJSON_CreateNumber((double)shape[i]);
        if (!cJSON_AddItemToArray(dims, number)) {
            cJSON_Delete(number);
            dims = NULL;
        }
        bytes *= (uint64_t)shape[i];
    }
    const double offsets[] = {(double)w->declared, (double)(w->declared + bytes)};
    cJSON *range = dims ? cJSON_CreateDoubleArray(offsets, 2) : NULL;
    if (!range || !cJSON_AddItemToObject(row, "data_offsets", range)) {
        cJSON_Delete(range);
        return err_nomem(e, strlen(name) + 256);
    }
    w->declared += bytes;
    return TLM_OK;
}

/* A name that is free, in the same folder so that renaming cannot fail for a
 * file system's border. */
static int open_temporary(struct st_writer *w)
{
    int fd = -1;
    for (int i = 0; i < 100 && fd < 0; i++) {
        snprintf(w->temporary, strlen(w->path) + SUFFIX_MAX, "%s.part-%ld-%d", w->path, (long)getpid(), i);
        fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

enum tlm_status st_writer_try(const char *path, struct tlm_error *e)
{
    struct st_writer *w = NULL;
    enum tlm_status s = st_writer_new(path, &w, e);
    if (s != TLM_OK)
        return s;
    struct stat st;
    bool there = stat(path, &st) == 0;
    int fd = there && !S_ISREG(st.st_mode) ? -1 : open_temporary(w);
    if (there && !S_ISREG(st.st_mode))
        s = err_set(e, TLM_EIO, "%s: cannot be written: it is %s", path,
                    S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    else if (fd < 0)
        s = io_error(w, e);
    if (fd >= 0) {
        close(fd);
        unlink(w->temporary);
    }
    st_writer_free(w);
    return s;
}

enum tlm_status st_writer_begin(struct st_writer *w, struct tlm_error *e)
{
    char *text = cJSON_PrintUnformatted(w->header);
    if (!text)
        return err_nomem(e, 0);
    size_t n = strlen(text), padded = (n + 7) & ~(size_t)7;
    int fd = open_temporary(w);
    if (fd >= 0 && !(w->f = fdopen(fd, "wb"))) {
        int error = errno;
        close(fd);
        unlink(w->temporary);
        errno = error;
    }
    if (!w->f) {
        cJSON_free(text);
        return io_error(w, e);
    }
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    bool ok = fwrite(length, 1, 8, w->f) == 8 && fwrite(text, 1, n, w->f) == n &&
              fwrite("        ", 1, padded - n, w->f) == padded - n;
    cJSON_free(text);
    return ok ? TLM_OK : io_error(w, e);
}

enum tlm_status st_writer_put(struct st_writer *w, const void *data, size_t bytes, struct tlm_error *e)
{
    if (bytes > w->declared - w->written)
        return err_set(e, TLM_EINTERNAL, "%s: more data than tensors", w->path);
    w->written += bytes;
    return fwrite(data, 1, bytes, w->f) == bytes ? TLM_OK : io_error(w, e);
}

uint64_t st_writer_next(const struct st_writer *w)
{
    return w->declared;
}

enum tlm_status st_writer_reserve(struct st_writer *w, struct tlm_error *e)
{
    long at = fflush(w->f) == 0 ? ftell(w->f) : -1;
    if (at < 0)
        return io_error(w, e);
    w->start = (uint64_t)at;
    off_t size = (off_t)(w->start + w->declared);
    if (fallocate(fileno(w->f), 0, 0, size) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return TLM_OK;
    return io_error(w, e);
}

enum tlm_status st_writer_put_at(struct st_writer *w, uint64_t at, const void *data, size_t bytes, struct tlm_error *e)
{
    const char *p = data;
    if (at > w->declared || bytes > w->declared - at)
        return err_set(e, TLM_EINTERNAL, "%s: more data than tensors", w->path);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fileno(w->f), p + done, bytes - done, (off_t)(w->start + at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(w, e);
        done += (size_t)n;
    }
    w->written += bytes;
    return TLM_OK;
}

enum tlm_status st_writer_commit(struct st_writer *w, struct tlm_error *e)
{
    if (w->written != w->declared)
        return err_set(e, TLM_EINTERNAL, "%s: %llu bytes of data, expected %llu", w->path,
                       (unsigned long long)atomic_load(&w->written), (unsigned long long)w->declared);
    if (fflush(w->f) != 0 || fsync(fileno(w->f)) != 0)
        return io_error(w, e);
    FILE *f = w->f;
    w->f = NULL;
    if (fclose(f) != 0 || rename(w->temporary, w->path) != 0) {
        enum tlm_status s = io_error(w, e);
        unlink(w->temporary);
        return s;
    }
    return TLM_OK;
}
