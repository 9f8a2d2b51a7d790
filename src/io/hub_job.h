/* A file that is being fetched, and a transfer of one piece of it. */
#ifndef IO_HUB_JOB_H
#define IO_HUB_JOB_H

#include "io/hub_cache.h"
#include "io/hub_hash.h"
#include "io/hub_http.h"
#include "io/hub_part.h"

enum hub_job_state { HUB_JOB_WAITING, HUB_JOB_OPEN, HUB_JOB_DONE };

struct hub_job {
    const struct hub_file *file;
    enum hub_job_state state;
    struct hub_part part;               /* while open */
    struct hub_hasher *hasher;          /* while open */
    bool *busy;                         /* pieces that a transfer has */
    char *location;                     /* where redirects led, for the next piece; or NULL */
    int lock;                           /* descriptor or -1 */
    int64_t found;                      /* bytes of an earlier run, until it is open */
    int transfers;                      /* in flight */
    int tries;                          /* in a row without progress */
    int failures, mismatches, restarts; /* at all */
    double retry_at;
};

enum tlm_status hub_job_init(struct hub_job *j, const struct hub_file *file, const struct hub_store *st,
                             struct tlm_error *e);
/* The lock is held: opens the incomplete file and starts the checksum. */
enum tlm_status hub_job_open(struct hub_job *j, const struct hub_store *st, struct tlm_error *e);
/* The blob is there: what an earlier run left of it is of no use. */
void hub_job_forget(const struct hub_job *j, const struct hub_store *st);
/* From nothing; whole: as one piece. No transfer may be in flight. */
enum tlm_status hub_job_restart(struct hub_job *j, bool whole, struct tlm_error *e);
/* Keeps the incomplete file, or removes it. */
void hub_job_close(struct hub_job *j);
void hub_job_discard(struct hub_job *j);
int64_t hub_job_bytes(const struct hub_job *j); /* that are there */
/* A piece that is not complete and that no transfer has. */
bool hub_job_next_piece(const struct hub_job *j, size_t *piece);

struct hub_transfer {
    CURL *easy;
    struct hub_job *job; /* NULL: free */
    const struct hub_http *h;
    size_t piece;
    int64_t begin, end, at; /* bytes of the file: first, behind the last, next */
    bool ranged;            /* a range was asked for */
    bool at_location, no_ranges, checked;
    int redirects;
    char *url;
    struct hub_reply reply;
    struct tlm_error error, disk_error; /* of the answer; of our disk */
    char message[CURL_ERROR_SIZE];
};

void hub_transfer_begin(struct hub_transfer *t, struct hub_job *j, size_t piece);
/* Sets up the handle for t->url, for what the piece lacks. */
enum tlm_status hub_transfer_prepare(const struct hub_http *h, struct hub_transfer *t, struct tlm_error *e);
bool hub_transfer_is_whole(const struct hub_transfer *t);
void hub_transfer_end(struct hub_transfer *t);

#endif
