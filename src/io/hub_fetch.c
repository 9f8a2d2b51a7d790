/* Fetching files: which file and which piece next, and what becomes of a
 * finished transfer. One thread runs all transfers; checksums have their own. */
#include "io/hub_fetch.h"

#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/hub_hash.h"
#include "io/hub_job.h"

enum {
    TRANSFERS = 8, /* connections */
    OPEN_JOBS = 8, /* files in work */
    TICK_MS = 100
};

struct fetch {
    const struct hub_http *h;
    const struct hub_store *st;
    const struct hub_listing *l;
    struct hub_watch *watch;
    struct hub_job *jobs;
    size_t n, open, done;
    uint64_t total; /* bytes of all jobs */
    CURLM *multi;
    struct hub_transfer transfers[TRANSFERS];
    double now, saved;
    bool told_wait;
};

bool hub_watch_tell(struct hub_watch *w, const struct tlm_hub_progress *p)
{
    if (w->fn && w->fn(p, w->user) != 0)
        w->stopped = true;
    return w->stopped;
}

static double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void tell(struct fetch *f, enum tlm_hub_event event, const char *name, uint64_t bytes)
{
    struct tlm_hub_progress p = {.event = event,
                                 .name = name,
                                 .name_bytes = bytes,
                                 .total_bytes = f->total,
                                 .files_done = f->done,
                                 .files = f->n};
    for (size_t i = 0; i < f->n; i++)
        p.done_bytes += (uint64_t)hub_job_bytes(&f->jobs[i]);
    hub_watch_tell(f->watch, &p);
}

/* Opening and ending files -------------------------------------------------- */

/* The blob is there: link it. */
static enum tlm_status settle(struct fetch *f, struct hub_job *j, struct tlm_error *e)
{
    enum tlm_status s = hub_store_link(f->st, f->l->commit, j->file, e);
    if (s != TLM_OK)
        return s;
    hub_job_close(j);
    j->state = HUB_JOB_DONE;
    f->done++;
    tell(f, TLM_HUB_FILE, j->file->name, (uint64_t)j->file->size);
    return TLM_OK;
}

/* Two names of one content: the second takes the blob that the first makes. */
static bool has_twin_in_work(const struct fetch *f, const struct hub_job *j)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->jobs[i].state == HUB_JOB_OPEN && !strcmp(f->jobs[i].file->etag, j->file->etag))
            return true;
    return false;
}

static enum tlm_status try_open(struct fetch *f, struct hub_job *j, struct tlm_error *e)
{
    if (has_twin_in_work(f, j)) {
        j->retry_at = f->now + 0.1;
        return TLM_OK;
    }
    enum tlm_status s = hub_store_lock(f->st, j->file->etag, &j->lock, e);
    if (s == TLM_EBUSY) {
        j->retry_at = f->now + 0.2;
        if (!f->told_wait)
            tell(f, TLM_HUB_NOTE, "waiting for another process that fetches the same file", 0);
        f->told_wait = true;
        return TLM_OK;
    }
    if (s != TLM_OK)
        return s;
    if (hub_store_has_blob(f->st, j->file)) { /* by another process meanwhile, or of another file's name */
        hub_job_forget(j, f->st);
        return settle(f, j, e);
    }
    s = hub_job_open(j, f->st, e);
    f->open += s == TLM_OK;
    return s;
}

/* All bytes are there and read: compare, name, link. */
static enum tlm_status complete(struct fetch *f, struct hub_job *j, struct tlm_error *e)
{
    char hex[72];
    int io_error = 0;
    if (!hub_hasher_done(j->hasher, hex, &io_error))
        return TLM_OK;
    if (io_error)
        return hub_write_error(e, j->part.path, io_error);
    if (strcmp(hex, j->file->etag) != 0) {
        bool first = j->mismatches++ == 0;
        if (first)
            return hub_job_restart(j, false, e);
        hub_job_discard(j);
        return err_set(e, TLM_EIO, "%s/%s: the %s of what arrived is %s, expected %s; tried twice", f->h->repo,
                       j->file->name, strlen(j->file->etag) == HUB_ETAG_MAX ? "sha256" : "git sha1", hex,
                       j->file->etag);
    }
    char *path = hub_pathf(e, "%s/blobs/%s", f->st->repo, j->file->etag);
    enum tlm_status s = path ? hub_part_finish(&j->part, path, e) : TLM_ENOMEM;
    mem_free(path);
    f->open--;
    return s == TLM_OK ? settle(f, j, e) : s;
}

/* Transfers ------------------------------------------------------------------ */

static void stop_transfer(struct fetch *f, struct hub_transfer *t)
{
    if (!t->job)
        return;
    f->h->c->multi_remove_handle(f->multi, t->easy);
    hub_transfer_end(t);
}

static void stop_job(struct fetch *f, const struct hub_job *j)
{
    for (int i = 0; i < TRANSFERS; i++)
        if (f->transfers[i].job == j)
            stop_transfer(f, &f->transfers[i]);
}

static enum tlm_status run_transfer(struct fetch *f, struct hub_transfer *t, struct tlm_error *e)
{
    enum tlm_status s = hub_transfer_prepare(f->h, t, e);
    if (s == TLM_OK && f->h->c->multi_add_handle(f->multi, t->easy) != CURLM_OK)
        s = err_set(e, TLM_EIO, "libcurl refuses a transfer");
    if (s != TLM_OK)
        hub_transfer_end(t);
    return s;
}

/* The open file with the fewest connections that has a piece to fetch. */
static struct hub_job *next_job(struct fetch *f, size_t *piece)
{
    struct hub_job *best = NULL;
    for (size_t i = 0; i < f->n; i++) {
        struct hub_job *j = &f->jobs[i];
        size_t k;
        if (j->state != HUB_JOB_OPEN || j->retry_at > f->now || (best && j->transfers >= best->transfers))
            continue;
        if (!hub_job_next_piece(j, &k))
            continue;
        best = j;
        *piece = k;
    }
    return best;
}

static enum tlm_status start_transfers(struct fetch *f, struct tlm_error *e)
{
    for (int i = 0; i < TRANSFERS; i++) {
        struct hub_transfer *t = &f->transfers[i];
        size_t piece;
        struct hub_job *j = t->job ? NULL : next_job(f, &piece);
        if (t->job)
            continue;
        if (!j)
            return TLM_OK;
        hub_transfer_begin(t, j, piece);
        char *url = j->location ? mem_strdup(j->location) : hub_http_file_url(f->h, f->l->commit, j->file->name, e);
        t->url = url;
        t->at_location = j->location != NULL;
        enum tlm_status s = url ? run_transfer(f, t, e) : err_nomem(e, 64);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

/* Once more, after a pause that grows while nothing arrives. */
static enum tlm_status retry_later(struct fetch *f, struct hub_transfer *t, CURLcode code, long status,
                                   struct tlm_error *e)
{
    struct hub_job *j = t->job;
    struct hub_reply reply = t->reply;
    char message[sizeof t->message];
    memcpy(message, t->message, sizeof message);
    struct tlm_error own = t->error;
    hub_transfer_end(t);
    if (j->retry_at > f->now)
        return TLM_OK; /* other connections of this file broke with it */
    bool patient = reply.retry_after <= HUB_RETRY_AFTER_MAX;
    int most = own.status != TLM_OK ? 2 : HUB_RETRIES_MAX; /* an answer that is wrong tends to stay wrong */
    if (patient && j->tries < most && j->failures < 1000) {
        j->retry_at = f->now + hub_http_delay(j->tries, &reply);
        j->tries++;
        j->failures++;
        return TLM_OK;
    }
    if (own.status != TLM_OK)
        return err_set(e, own.status, "%s/%s: %s", f->h->repo, j->file->name, own.message);
    return hub_http_error(f->h, code, message, status, &reply, j->file->name, e);
}

/* The hub's own answer names the file's checksum and commit: they must be
 * those of the listing. */
static enum tlm_status check_identity(struct fetch *f, const struct hub_transfer *t, struct tlm_error *e)
{
    const struct hub_reply *r = &t->reply;
    const struct hub_file *file = t->job->file;
    if (r->commit[0] && strcmp(r->commit, f->l->commit) != 0)
        return err_set(e, TLM_EIO, "%s/%s: the hub sends commit %s, expected %s", f->h->repo, file->name, r->commit,
                       f->l->commit);
    if (r->linked_etag[0] && strcmp(r->linked_etag, file->etag) != 0)
        return err_set(e, TLM_EIO, "%s/%s: the hub sends the file %s, expected %s", f->h->repo, file->name,
                       r->linked_etag, file->etag);
    if (r->linked_size >= 0 && r->linked_size != file->size)
        return err_set(e, TLM_EIO, "%s/%s: the hub sends a file of %lld bytes, expected %lld", f->h->repo, file->name,
                       (long long)r->linked_size, (long long)file->size);
    return TLM_OK;
}

static enum tlm_status follow(struct fetch *f, struct hub_transfer *t, char *url, struct tlm_error *e)
{
    mem_free(t->url);
    t->url = url;
    if (++t->redirects > HUB_REDIRECTS_MAX) {
        hub_transfer_end(t);
        return err_set(e, TLM_EIO, "%s: more than %d redirects", f->h->repo, HUB_REDIRECTS_MAX);
    }
    return run_transfer(f, t, e);
}

/* The server sends whole files only, or has no such range: what is there is of
 * no use, and all connections of the file end. */
static enum tlm_status start_over(struct fetch *f, struct hub_job *j, bool whole, struct tlm_error *e)
{
    stop_job(f, j);
    if (++j->restarts > HUB_RETRIES_MAX)
        return err_set(e, TLM_EIO, "%s/%s: the connection breaks and the server cannot continue a file", f->h->repo,
                       j->file->name);
    return hub_job_restart(j, whole, e);
}

static enum tlm_status end_transfer(struct fetch *f, struct hub_transfer *t, CURLcode code, struct tlm_error *e)
{
    struct hub_job *j = t->job;
    char *next = NULL;
    long status = 0;
    f->h->c->easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    enum tlm_status s = check_identity(f, t, e);
    if (s == TLM_OK && t->disk_error.status != TLM_OK)
        s = err_set(e, t->disk_error.status, "%s", t->disk_error.message);
    if (s == TLM_OK && code == CURLE_OK)
        s = hub_http_redirect(f->h, t->easy, t->url, &next, e);
    if (s != TLM_OK) {
        hub_transfer_end(t);
        return s;
    }
    if (next)
        return follow(f, t, next, e);
    if (t->no_ranges || (code == CURLE_OK && status == 416))
        return start_over(f, j, t->no_ranges || j->part.n == 1, e);
    if (code == CURLE_OK && (status == 200 || status == 206) && hub_transfer_is_whole(t)) {
        if (!j->location && t->redirects > 0 && j->part.n > 1) {
            j->location = t->url;
            t->url = NULL;
        }
        hub_transfer_end(t);
        return TLM_OK;
    }
    if (code == CURLE_OK && (status == 200 || status == 206) && t->error.status == TLM_OK)
        err_set(&t->error, TLM_EIO, "the connection ended early, again and again");
    /* Addresses that the hub sends us to are good for a while only: ask it anew. */
    bool stale = (t->at_location || t->redirects > 0) && code == CURLE_OK && status >= 400 && status < 500;
    if (t->at_location) {
        mem_free(j->location);
        j->location = NULL;
    }
    if (stale || t->error.status != TLM_OK || hub_http_may_retry(code, status))
        return retry_later(f, t, code, status, e);
    s = hub_http_error(f->h, code, t->message, status, &t->reply, j->file->name, e);
    hub_transfer_end(t);
    return s;
}

static enum tlm_status end_transfers(struct fetch *f, struct tlm_error *e)
{
    int left;
    for (CURLMsg *m; (m = f->h->c->multi_info_read(f->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result;
        for (int i = 0; i < TRANSFERS; i++) {
            struct hub_transfer *t = &f->transfers[i];
            if (!t->job || t->easy != m->easy_handle)
                continue;
            f->h->c->multi_remove_handle(f->multi, t->easy);
            enum tlm_status s = end_transfer(f, t, code, e);
            if (s != TLM_OK)
                return s;
            break;
        }
    }
    return TLM_OK;
}

/* The loop ------------------------------------------------------------------- */

static enum tlm_status tend_jobs(struct fetch *f, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    bool save = f->now - f->saved >= 1;
    if (save)
        f->saved = f->now;
    for (size_t i = 0; i < f->n && s == TLM_OK; i++) {
        struct hub_job *j = &f->jobs[i];
        if (j->state == HUB_JOB_WAITING && f->open < OPEN_JOBS && j->retry_at <= f->now)
            s = try_open(f, j, e);
        if (s == TLM_OK && j->state == HUB_JOB_OPEN && save && j->part.dirty)
            s = hub_part_save(&j->part, e);
        if (s == TLM_OK && j->state == HUB_JOB_OPEN) {
            hub_hasher_advance(j->hasher, hub_part_prefix(&j->part));
            if (j->transfers == 0 && hub_part_total(&j->part) == j->part.size)
                s = complete(f, j, e);
        }
    }
    return s;
}

static enum tlm_status loop(struct fetch *f, struct tlm_error *e)
{
    double told = 0;
    while (f->done < f->n) {
        int running = 0;
        f->now = clock_seconds();
        enum tlm_status s = tend_jobs(f, e);
        if (s == TLM_OK)
            s = start_transfers(f, e);
        if (s == TLM_OK && f->h->c->multi_perform(f->multi, &running) != CURLM_OK)
            s = err_set(e, TLM_EIO, "libcurl cannot run the transfers");
        if (s == TLM_OK)
            s = end_transfers(f, e);
        if (s != TLM_OK)
            return s;
        if (f->now - told >= TICK_MS * 1e-3) {
            tell(f, TLM_HUB_BYTES, "", 0);
            told = f->now;
        }
        if (f->watch->stopped)
            return err_set(e, TLM_ECANCELED, "interrupted; what has arrived is kept, run again to continue");
        /* Short while only checksums are waited for. */
        if (f->done < f->n)
            f->h->c->multi_poll(f->multi, NULL, 0, running ? TICK_MS : 10, NULL);
    }
    return TLM_OK;
}

static enum tlm_status check_room(const struct fetch *f, struct tlm_error *e)
{
    struct statvfs fs;
    uint64_t need = 0;
    for (size_t i = 0; i < f->n; i++)
        need += (uint64_t)(f->jobs[i].file->size - hub_job_bytes(&f->jobs[i]));
    if (statvfs(f->st->repo, &fs) != 0 || fs.f_blocks == 0)
        return TLM_OK; /* some network file systems do not say */
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need <= room)
        return TLM_OK;
    return err_set(e, TLM_EIO,
                   "%s: %.1f MB are missing, but %s has room for %.1f MB; HF_HUB_CACHE chooses another folder",
                   f->h->repo, (double)need / 1e6, f->st->cache, (double)room / 1e6);
}

static enum tlm_status make_jobs(struct fetch *f, struct tlm_error *e)
{
    const struct hub_listing *l = f->l;
    f->jobs = mem_new_array(l->n + 1, sizeof *f->jobs);
    if (!f->jobs)
        return err_nomem(e, l->n * sizeof *f->jobs);
    for (size_t i = 0; i < l->n; i++) {
        if (!l->files[i].wanted || hub_store_has_file(f->st, l->commit, &l->files[i]))
            continue;
        enum tlm_status s = hub_job_init(&f->jobs[f->n++], &l->files[i], f->st, e);
        if (s != TLM_OK)
            return s;
        f->total += (uint64_t)l->files[i].size;
    }
    return f->n > 0 ? check_room(f, e) : TLM_OK;
}

static enum tlm_status start(struct fetch *f, struct tlm_error *e)
{
    f->multi = f->h->c->multi_init();
    bool ok = f->multi != NULL;
    for (int i = 0; i < TRANSFERS && ok; i++)
        ok = (f->transfers[i].easy = f->h->c->easy_init()) != NULL;
    return ok ? TLM_OK : err_nomem(e, 64);
}

enum tlm_status hub_fetch(const struct hub_http *h, const struct hub_store *st, const struct hub_listing *l,
                          struct hub_watch *watch, struct tlm_error *e)
{
    struct fetch f = {.h = h, .st = st, .l = l, .watch = watch};
    enum tlm_status s = hub_store_prepare(st, l->commit, e);
    if (s == TLM_OK)
        s = make_jobs(&f, e);
    if (s == TLM_OK && f.n > 0) {
        tell(&f, TLM_HUB_START, "", 0);
        s = start(&f, e);
        f.saved = clock_seconds();
        if (s == TLM_OK)
            s = loop(&f, e);
    }
    for (int i = 0; i < TRANSFERS; i++) {
        if (f.transfers[i].easy && f.transfers[i].job)
            stop_transfer(&f, &f.transfers[i]);
        if (f.transfers[i].easy)
            h->c->easy_cleanup(f.transfers[i].easy);
    }
    if (f.multi)
        h->c->multi_cleanup(f.multi);
    for (size_t i = 0; i < f.n; i++)
        hub_job_close(&f.jobs[i]);
    mem_free(f.jobs);
    return s;
}
