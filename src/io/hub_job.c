/* Files in work and their transfers. */
#include "io/hub_job.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* A piece takes many round trips' worth of time to arrive, and a file has at
 * most 4,096 of them. */
static int64_t piece_size(int64_t size)
{
    const int64_t least = (int64_t)64 << 20, most = 4096;
    return size / most > least ? size / most + 1 : least;
}

static char *incomplete_path(const struct hub_job *j, const struct hub_store *st, struct tlm_error *e)
{
    /* Without a lock the file must be ours alone. */
    if (j->lock < 0 && j->state != HUB_JOB_WAITING)
        return hub_pathf(e, "%s/blobs/%s.%ld.turbolm.incomplete", st->repo, j->file->etag, (long)getpid());
    return hub_pathf(e, "%s/blobs/%s.turbolm.incomplete", st->repo, j->file->etag);
}

enum tlm_status hub_job_init(struct hub_job *j, const struct hub_file *file, const struct hub_store *st,
                             struct tlm_error *e)
{
    struct stat info;
    *j = (struct hub_job){.file = file, .lock = -1, .part.fd = -1};
    char *path = incomplete_path(j, st, e);
    if (!path)
        return TLM_ENOMEM;
    /* Blocks, for the file has gaps. An estimate until the record is read. */
    if (stat(path, &info) == 0) {
        int64_t bytes = (int64_t)info.st_blocks * 512;
        j->found = bytes < file->size ? bytes : file->size;
    }
    mem_free(path);
    return TLM_OK;
}

void hub_job_forget(const struct hub_job *j, const struct hub_store *st)
{
    char *path = incomplete_path(j, st, NULL);
    if (path)
        unlink(path);
    mem_free(path);
}

static enum tlm_status start_hasher(struct hub_job *j, struct tlm_error *e)
{
    hub_hasher_free(j->hasher);
    j->hasher = NULL;
    return hub_hasher_start(j->part.fd, j->part.size, strlen(j->file->etag) == HUB_ETAG_MAX, &j->hasher, e);
}

enum tlm_status hub_job_open(struct hub_job *j, const struct hub_store *st, struct tlm_error *e)
{
    j->state = HUB_JOB_OPEN;
    j->found = 0;
    j->retry_at = 0;
    char *path = incomplete_path(j, st, e);
    enum tlm_status s = path ? hub_part_open(&j->part, path, j->file->size, piece_size(j->file->size), e) : TLM_ENOMEM;
    mem_free(path);
    if (s != TLM_OK)
        return s;
    j->busy = mem_new_array(j->part.n, sizeof *j->busy);
    return j->busy ? start_hasher(j, e) : err_nomem(e, j->part.n);
}

enum tlm_status hub_job_restart(struct hub_job *j, bool whole, struct tlm_error *e)
{
    hub_hasher_free(j->hasher);
    mem_free(j->location);
    j->hasher = NULL;
    j->location = NULL;
    enum tlm_status s = hub_part_reset(&j->part, whole, e);
    return s == TLM_OK ? start_hasher(j, e) : s;
}

static void release(struct hub_job *j)
{
    mem_free(j->busy);
    mem_free(j->location);
    if (j->lock >= 0)
        close(j->lock);
    j->busy = NULL;
    j->location = NULL;
    j->lock = -1;
}

void hub_job_close(struct hub_job *j)
{
    hub_hasher_free(j->hasher); /* it reads the file */
    j->hasher = NULL;
    if (j->part.fd >= 0 && hub_part_total(&j->part) == 0)
        hub_part_discard(&j->part);
    /* If this fails, the next run starts at the record that is on disk. */
    if (j->part.fd >= 0 && j->part.dirty)
        (void)hub_part_save(&j->part, NULL);
    if (j->part.fd >= 0)
        hub_part_close(&j->part);
    release(j);
}

void hub_job_discard(struct hub_job *j)
{
    hub_hasher_free(j->hasher);
    j->hasher = NULL;
    hub_part_discard(&j->part);
    release(j);
}

int64_t hub_job_bytes(const struct hub_job *j)
{
    if (j->state == HUB_JOB_DONE)
        return j->file->size;
    return j->part.fd >= 0 ? hub_part_total(&j->part) : j->found;
}

bool hub_job_next_piece(const struct hub_job *j, size_t *piece)
{
    for (size_t i = 0; i < j->part.n; i++)
        if (!j->busy[i] && j->part.done[i] < hub_part_chunk_size(&j->part, i)) {
            *piece = i;
            return true;
        }
    return false;
}

/* Transfers ------------------------------------------------------------------ */

void hub_transfer_begin(struct hub_transfer *t, struct hub_job *j, size_t piece)
{
    CURL *easy = t->easy;
    *t = (struct hub_transfer){.easy = easy, .job = j, .piece = piece};
    j->busy[piece] = true;
    j->transfers++;
}

void hub_transfer_end(struct hub_transfer *t)
{
    t->job->busy[t->piece] = false;
    t->job->transfers--;
    mem_free(t->url);
    t->url = NULL;
    t->job = NULL;
}

bool hub_transfer_is_whole(const struct hub_transfer *t)
{
    return t->at == t->end && t->error.status == TLM_OK;
}

/* Before the first byte: is this the range that was asked for? */
static void check_answer(struct hub_transfer *t, long status)
{
    const struct hub_reply *r = &t->reply;
    t->checked = true;
    if (status == 206) {
        if (r->range_begin != t->begin || (r->range_size >= 0 && r->range_size != t->job->file->size))
            err_set(&t->error, TLM_EIO, "the server sends bytes %lld of %lld, expected %lld of %lld",
                    (long long)r->range_begin, (long long)r->range_size, (long long)t->begin,
                    (long long)t->job->file->size);
        return;
    }
    if (r->length >= 0 && r->length != t->job->file->size)
        err_set(&t->error, TLM_EIO, "the server sends %lld bytes, expected %lld", (long long)r->length,
                (long long)t->job->file->size);
    else if (t->ranged)
        t->no_ranges = true;
}

/* libcurl's write function. A short count ends the transfer. */
static size_t on_data(char *data, size_t one, size_t n, void *user)
{
    enum { ENOUGH = 65536 }; /* bytes that count as progress */
    struct hub_transfer *t = user;
    struct hub_job *j = t->job;
    long status = 0;
    t->h->c->easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206)
        return one * n; /* the text of a failure */
    if (!t->checked)
        check_answer(t, status);
    if (t->no_ranges || t->error.status != TLM_OK)
        return 0;
    if ((int64_t)n > t->end - t->at) {
        err_set(&t->error, TLM_EIO, "the server sends more than %lld bytes", (long long)(t->end - t->begin));
        return 0;
    }
    if (hub_part_write(&j->part, t->piece, data, n, &t->disk_error) != TLM_OK)
        return 0;
    t->at += (int64_t)n;
    if (t->at - t->begin >= ENOUGH)
        j->tries = 0;
    return one * n;
}

enum tlm_status hub_transfer_prepare(const struct hub_http *h, struct hub_transfer *t, struct tlm_error *e)
{
    const struct hub_part *p = &t->job->part;
    char range[64];
    t->h = h;
    t->checked = false;
    t->begin = t->at = (int64_t)t->piece * p->chunk + p->done[t->piece];
    t->end = (int64_t)t->piece * p->chunk + hub_part_chunk_size(p, t->piece);
    t->ranged = p->n > 1 || t->begin > 0;
    snprintf(range, sizeof range, "%lld-%lld", (long long)t->begin, (long long)t->end - 1);
    enum tlm_status s = hub_http_prepare(h, t->easy, t->url, t->ranged ? range : NULL, &t->reply, e);
    if (s != TLM_OK)
        return s;
    t->message[0] = 0;
    bool ok = h->c->easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->message) == CURLE_OK &&
              h->c->easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_data) == CURLE_OK &&
              h->c->easy_setopt(t->easy, CURLOPT_WRITEDATA, (void *)t) == CURLE_OK;
    return ok ? TLM_OK : err_set(e, TLM_EIO, "libcurl refuses to fetch %.200s", t->url);
}
