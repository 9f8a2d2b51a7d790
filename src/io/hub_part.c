/* Files that arrive in pieces. The record: 4 numbers of 64 bits (magic, size,
 * piece, pieces) and one for each piece. */
#include "io/hub_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/hub_cache.h"

enum { HEAD = 4 };
static const int64_t magic = 0x31747261706d6c74; /* "tlmpart1" */

static enum tlm_status write_at(struct hub_part *p, const void *bytes, size_t n, int64_t at, struct tlm_error *e)
{
    const char *from = bytes;
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(p->fd, from + done, n - done, (off_t)(at + (int64_t)done));
        if (k < 0 && errno != EINTR)
            return hub_write_error(e, p->path, errno);
        if (k > 0)
            done += (size_t)k;
    }
    return TLM_OK;
}

static size_t record_bytes(size_t n)
{
    return (HEAD + n) * sizeof(int64_t);
}

static void set_chunks(struct hub_part *p, int64_t chunk)
{
    p->chunk = chunk;
    p->n = p->size > 0 ? (size_t)((p->size + chunk - 1) / chunk) : 1;
}

int64_t hub_part_chunk_size(const struct hub_part *p, size_t i)
{
    int64_t begin = (int64_t)i * p->chunk;
    return p->size - begin < p->chunk ? p->size - begin : p->chunk;
}

int64_t hub_part_total(const struct hub_part *p)
{
    int64_t total = 0;
    for (size_t i = 0; i < p->n; i++)
        total += p->done[i];
    return total;
}

int64_t hub_part_prefix(const struct hub_part *p)
{
    int64_t prefix = 0;
    for (size_t i = 0; i < p->n; i++) {
        prefix += p->done[i];
        if (p->done[i] < hub_part_chunk_size(p, i))
            break;
    }
    return prefix;
}

/* What is on disk, into done; 0 when it is not ours, or of another shape. */
static int load_record(struct hub_part *p, int64_t length)
{
    size_t bytes = record_bytes(p->n), got = 0;
    if (length != p->size + (int64_t)bytes)
        return 0;
    int64_t *record = mem_alloc(bytes);
    while (record && got < bytes) {
        ssize_t k = pread(p->fd, (char *)record + got, bytes - got, (off_t)(p->size + (int64_t)got));
        if (k <= 0 && !(k < 0 && errno == EINTR))
            break;
        if (k > 0)
            got += (size_t)k;
    }
    int good = record && got == bytes && record[0] == magic && record[1] == p->size && record[2] == p->chunk &&
               record[3] == (int64_t)p->n;
    for (size_t i = 0; good && i < p->n; i++)
        good = record[HEAD + i] >= 0 && record[HEAD + i] <= hub_part_chunk_size(p, i);
    if (good)
        memcpy(p->done, record + HEAD, p->n * sizeof *p->done);
    mem_free(record);
    return good;
}

enum tlm_status hub_part_save(struct hub_part *p, struct tlm_error *e)
{
    size_t bytes = record_bytes(p->n);
    int64_t *record = mem_alloc(bytes);
    if (!record)
        return err_nomem(e, bytes);
    record[0] = magic;
    record[1] = p->size;
    record[2] = p->chunk;
    record[3] = (int64_t)p->n;
    memcpy(record + HEAD, p->done, p->n * sizeof *p->done);
    enum tlm_status s = write_at(p, record, bytes, p->size, e);
    mem_free(record);
    if (s == TLM_OK)
        p->dirty = 0;
    return s;
}

static enum tlm_status begin(struct hub_part *p, struct tlm_error *e)
{
    memset(p->done, 0, p->n * sizeof *p->done);
    if (ftruncate(p->fd, 0) != 0)
        return hub_write_error(e, p->path, errno);
    return hub_part_save(p, e);
}

enum tlm_status hub_part_open(struct hub_part *p, const char *path, int64_t size, int64_t chunk, struct tlm_error *e)
{
    struct stat st;
    *p = (struct hub_part){.fd = -1, .size = size, .path = mem_strdup(path)};
    set_chunks(p, chunk);
    p->done = mem_new_array(p->n, sizeof *p->done);
    if (!p->path || !p->done) {
        hub_part_close(p);
        return err_nomem(e, p->n * sizeof *p->done);
    }
    p->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    enum tlm_status s = TLM_OK;
    if (p->fd < 0 || fstat(p->fd, &st) != 0)
        s = hub_write_error(e, path, errno);
    else if (!S_ISREG(st.st_mode))
        s = err_set(e, TLM_EIO, "%s: not a regular file", path);
    else if (!load_record(p, st.st_size))
        s = begin(p, e);
    if (s != TLM_OK)
        hub_part_close(p);
    return s;
}

enum tlm_status hub_part_write(struct hub_part *p, size_t i, const void *bytes, size_t n, struct tlm_error *e)
{
    enum tlm_status s = write_at(p, bytes, n, (int64_t)i * p->chunk + p->done[i], e);
    if (s != TLM_OK)
        return s;
    p->done[i] += (int64_t)n;
    p->dirty = 1;
    return TLM_OK;
}

enum tlm_status hub_part_reset(struct hub_part *p, int whole, struct tlm_error *e)
{
    if (whole && p->size > 0)
        set_chunks(p, p->size);
    return begin(p, e);
}

enum tlm_status hub_part_finish(struct hub_part *p, const char *path, struct tlm_error *e)
{
    if (ftruncate(p->fd, (off_t)p->size) != 0)
        return hub_write_error(e, p->path, errno);
    if (rename(p->path, path) != 0)
        return hub_write_error(e, path, errno);
    hub_part_close(p);
    return TLM_OK;
}

void hub_part_discard(struct hub_part *p)
{
    if (p->fd >= 0)
        unlink(p->path);
    hub_part_close(p);
}

void hub_part_close(struct hub_part *p)
{
    if (p->fd >= 0)
        close(p->fd);
    mem_free(p->path);
    mem_free(p->done);
    *p = (struct hub_part){.fd = -1};
}
