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
#include "io/whole_file.h"

struct st_writer {
    struct whole_file file;
    cJSON *header, *metadata;
    uint64_t declared, start; /* start: of the data in the file, once it is written to by place */
    _Atomic uint64_t written;
};

static enum tlm_status io_error(const struct st_writer *w, struct tlm_error *e)
{
    return err_set(e, TLM_EIO, "%s: cannot be written: %s", w->file.path, strerror(errno));
}

enum tlm_status st_writer_new(const char *path, struct st_writer **out, struct tlm_error *e)
{
    *out = NULL;
    struct st_writer *w = mem_new(sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w);
    enum tlm_status s = whole_file_init(&w->file, path, e);
    w->header = cJSON_CreateObject();
    w->metadata = w->header ? cJSON_AddObjectToObject(w->header, "__metadata__") : NULL;
    if (s == TLM_OK && !w->metadata)
        s = err_nomem(e, sizeof *w->metadata);
    if (s == TLM_OK)
        *out = w;
    else
        st_writer_free(w);
    return s;
}

void st_writer_free(struct st_writer *w)
{
    if (!w)
        return;
    whole_file_deinit(&w->file);
    cJSON_Delete(w->header);
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

enum tlm_status st_writer_try(const char *path, struct tlm_error *e)
{
    struct whole_file file;
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, TLM_EIO, "%s: cannot be written: it is %s", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    enum tlm_status s = whole_file_init(&file, path, e);
    if (s == TLM_OK)
        s = whole_file_begin(&file, e);
    whole_file_deinit(&file);
    return s;
}

enum tlm_status st_writer_begin(struct st_writer *w, struct tlm_error *e)
{
    char *text = cJSON_PrintUnformatted(w->header);
    if (!text)
        return err_nomem(e, 0);
    size_t n = strlen(text), padded = (n + 7) & ~(size_t)7;
    enum tlm_status s = whole_file_begin(&w->file, e);
    if (s != TLM_OK) {
        cJSON_free(text);
        return s;
    }
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    s = whole_file_put(&w->file, length, 8, e);
    if (s == TLM_OK)
        s = whole_file_put(&w->file, text, n, e);
    if (s == TLM_OK)
        s = whole_file_put(&w->file, "        ", padded - n, e);
    cJSON_free(text);
    return s;
}

enum tlm_status st_writer_put(struct st_writer *w, const void *data, size_t bytes, struct tlm_error *e)
{
    if (bytes > w->declared - w->written)
        return err_set(e, TLM_EINTERNAL, "%s: more data than tensors", w->file.path);
    w->written += bytes;
    return whole_file_put(&w->file, data, bytes, e);
}

uint64_t st_writer_next(const struct st_writer *w)
{
    return w->declared;
}

enum tlm_status st_writer_reserve(struct st_writer *w, struct tlm_error *e)
{
    long at = fflush(w->file.f) == 0 ? ftell(w->file.f) : -1;
    if (at < 0)
        return io_error(w, e);
    w->start = (uint64_t)at;
    off_t size = (off_t)(w->start + w->declared);
    if (fallocate(fileno(w->file.f), 0, 0, size) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return TLM_OK;
    return io_error(w, e);
}

enum tlm_status st_writer_put_at(struct st_writer *w, uint64_t at, const void *data, size_t bytes, struct tlm_error *e)
{
    const char *p = data;
    if (at > w->declared || bytes > w->declared - at)
        return err_set(e, TLM_EINTERNAL, "%s: more data than tensors", w->file.path);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fileno(w->file.f), p + done, bytes - done, (off_t)(w->start + at + done));
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
        return err_set(e, TLM_EINTERNAL, "%s: %llu bytes of data, expected %llu", w->file.path,
                       (unsigned long long)atomic_load(&w->written), (unsigned long long)w->declared);
    return whole_file_commit(&w->file, true, e);
}
