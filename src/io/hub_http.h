/* One request to a hub: headers, redirects, answers, and what a failure means.
 *
 * Redirects are followed here, not by libcurl: the token goes to the hub's own
 * scheme, host and port alone, and https never becomes http. */
#ifndef IO_HUB_HTTP_H
#define IO_HUB_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "io/hub_curl.h"
#include "io/hub_env.h"

struct hub_http {
    const struct hub_curl *c;
    const struct hub_env *env;
    const char *repo;                      /* for messages */
    struct curl_slist *plain, *with_token; /* headers */
    const char *ca_file;                   /* of the environment, or NULL */
};

enum tlm_status hub_http_init(struct hub_http *h, const struct hub_env *env, const char *repo, struct tlm_error *e);
void hub_http_deinit(struct hub_http *h);

/* What the headers of an answer say; -1 and "" for what is absent. */
struct hub_reply {
    int64_t length;                             /* Content-Length */
    int64_t range_begin, range_size;            /* Content-Range: bytes BEGIN-…/SIZE */
    int64_t linked_size, retry_after;           /* retry_after: seconds */
    char etag[80], linked_etag[80], commit[48]; /* without quotes */
    char error_code[32], error_message[200];
};

/* Adds s to an address, percent-encoded but for the characters of keep. */
enum tlm_status hub_http_add_quoted(struct buf *out, const char *s, const char *keep);
/* The address of something on the hub, each argument quoted: NULL on error. */
char *hub_http_list_url(const struct hub_http *h, const char *revision, struct tlm_error *e);
char *hub_http_file_url(const struct hub_http *h, const char *commit, const char *name, struct tlm_error *e);

/* Sets up a handle for url; range: "5-9" or NULL. The caller sets the write
 * function. reply is filled while the answer comes. */
enum tlm_status hub_http_prepare(const struct hub_http *h, CURL *easy, const char *url, const char *range,
                                 struct hub_reply *reply, struct tlm_error *e);
/* After an answer of 3xx: where to, to be freed with mem_free. TLM_OK with
 * *url NULL when it is no redirect. from: the address that was asked. */
enum tlm_status hub_http_redirect(const struct hub_http *h, CURL *easy, const char *from, char **url,
                                  struct tlm_error *e);
enum { HUB_REDIRECTS_MAX = 10, HUB_RETRIES_MAX = 5, HUB_RETRY_AFTER_MAX = 120 };

/* Whether trying again may help: a broken connection, 408, 429, 5xx. */
bool hub_http_may_retry(CURLcode code, long status);
/* Seconds before try number n (from 0). */
double hub_http_delay(int n, const struct hub_reply *reply);
/* One line for a failure. what: "" or a file's name. */
enum tlm_status hub_http_error(const struct hub_http *h, CURLcode code, const char *curl_message, long status,
                               const struct hub_reply *reply, const char *what, struct tlm_error *e);

/* GET (or HEAD when body is NULL) with redirects and retries. stop: called now
 * and then, ends the request when it returns true. *status: HTTP's, 0
 * without an answer. */
enum tlm_status hub_http_get(const struct hub_http *h, const char *url, const char *what, struct buf *body,
                             struct hub_reply *reply, bool (*stop)(void *user), void *user, long *status,
                             struct tlm_error *e);
/* The same on a handle of the caller, who asks more than once over one connection. */
enum tlm_status hub_http_get_on(const struct hub_http *h, CURL *easy, const char *url, const char *what,
                                struct buf *body, struct hub_reply *reply, bool (*stop)(void *user), void *user,
                                long *status, struct tlm_error *e);

#endif
