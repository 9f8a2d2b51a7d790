/* Checksums on a thread (libmd). */
#include "io/hub_hash.h"

#include <errno.h>
#include <pthread.h>
#include <sha1.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

enum { STEP = 1 << 20 };

struct hub_hasher {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t ready; /* under lock, as stop and done */
    bool stop, done;
    int io_error;
    int fd;
    int64_t size;
    bool sha256;
    SHA2_CTX sha2;
    SHA1_CTX sha1;
    char hex[SHA256_DIGEST_STRING_LENGTH];
    uint8_t bytes[STEP];
};

/* How far may be read, above at; -1: stop. */
static int64_t wait_ready(struct hub_hasher *h, int64_t at)
{
    pthread_mutex_lock(&h->lock);
    while (!h->stop && h->ready <= at && at < h->size)
        pthread_cond_wait(&h->changed, &h->lock);
    int64_t ready = h->stop ? -1 : h->ready;
    pthread_mutex_unlock(&h->lock);
    return ready;
}

static int read_through(struct hub_hasher *h)
{
    for (int64_t at = 0; at < h->size;) {
        int64_t ready = wait_ready(h, at);
        if (ready < 0)
            return 0;
        size_t n = ready - at < STEP ? (size_t)(ready - at) : STEP;
        ssize_t got = pread(h->fd, h->bytes, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : EIO;
        if (h->sha256)
            SHA256Update(&h->sha2, h->bytes, (size_t)got);
        else
            SHA1Update(&h->sha1, h->bytes, (size_t)got);
        at += got;
    }
    return fdatasync(h->fd) == 0 || errno == EINVAL || errno == ENOSYS ? 0 : errno;
}

static void *hasher_main(void *arg)
{
    struct hub_hasher *h = arg;
    int error = read_through(h);
    if (h->sha256)
        SHA256End(&h->sha2, h->hex);
    else
        SHA1End(&h->sha1, h->hex);
    pthread_mutex_lock(&h->lock);
    h->io_error = error;
    h->done = true;
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

enum tlm_status hub_hasher_start(int fd, int64_t size, bool sha256, struct hub_hasher **out, struct tlm_error *e)
{
    struct hub_hasher *h = mem_new(sizeof *h);
    *out = NULL;
    if (!h)
        return err_nomem(e, sizeof *h);
    h->fd = fd;
    h->size = size;
    h->sha256 = sha256;
    SHA256Init(&h->sha2);
    SHA1Init(&h->sha1);
    if (!sha256) {
        char head[32];
        int n = snprintf(head, sizeof head, "blob %lld", (long long)size);
        SHA1Update(&h->sha1, (const uint8_t *)head, (size_t)n + 1);
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    int code = pthread_create(&h->thread, NULL, hasher_main, h);
    if (code != 0) {
        pthread_cond_destroy(&h->changed);
        pthread_mutex_destroy(&h->lock);
        mem_free(h);
        return err_set(e, TLM_EIO, "cannot start a thread: %s", strerror(code));
    }
    *out = h;
    return TLM_OK;
}

void hub_hasher_advance(struct hub_hasher *h, int64_t ready)
{
    pthread_mutex_lock(&h->lock);
    if (ready > h->ready) {
        h->ready = ready;
        pthread_cond_signal(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
}

bool hub_hasher_done(struct hub_hasher *h, char *hex, int *io_error)
{
    pthread_mutex_lock(&h->lock);
    bool done = h->done;
    if (done) {
        memcpy(hex, h->hex, sizeof h->hex);
        *io_error = h->io_error;
    }
    pthread_mutex_unlock(&h->lock);
    return done;
}

void hub_hasher_free(struct hub_hasher *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}
