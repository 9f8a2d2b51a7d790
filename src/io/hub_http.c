/* Requests to a hub. */
#include "io/hub_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <turbolm/status.h>

#include "base/mem.h"

enum { BODY_MAX = 64 << 20, URL_MAX = 16384 };

/* Headers ------------------------------------------------------------------ */

enum tlm_status hub_http_init(struct hub_http *h, const struct hub_env *env, const char *repo, struct tlm_error *e)
{
    *h = (struct hub_http){.env = env, .repo = repo};
    static const char *const ca_names[] = {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"};
    for (size_t i = 0; i < sizeof ca_names / sizeof ca_names[0] && !h->ca_file; i++)
        if (getenv(ca_names[i]) && *getenv(ca_names[i]))
            h->ca_file = getenv(ca_names[i]);
    enum tlm_status s = hub_curl_get(&h->c, e);
    if (s != TLM_OK)
        return s;
    char *agent = hub_pathf(e, "User-Agent: turbolm/%s", tlm_version());
    char *bearer = hub_pathf(e, "Authorization: Bearer %s", env->token ? env->token : "");
    h->plain = agent ? h->c->slist_append(NULL, agent) : NULL;
    h->with_token = agent ? h->c->slist_append(NULL, agent) : NULL;
    bool ok = agent && bearer && h->plain && h->with_token;
    /* Sizes and ranges are those of the file, not of a packed form of it. */
    static const char identity[] = "Accept-Encoding: identity";
    ok = ok && h->c->slist_append(h->plain, identity) && h->c->slist_append(h->with_token, identity);
    if (ok && env->token)
        ok = h->c->slist_append(h->with_token, bearer) != NULL;
    if (bearer)
        memset(bearer, 0, strlen(bearer));
    mem_free(bearer);
    mem_free(agent);
    if (ok)
        return TLM_OK;
    hub_http_deinit(h);
    return err_nomem(e, 64);
}

void hub_http_deinit(struct hub_http *h)
{
    if (h->plain)
        h->c->slist_free_all(h->plain);
    if (h->with_token)
        h->c->slist_free_all(h->with_token);
    *h = (struct hub_http){0};
}

static void reply_clear(struct hub_reply *r)
{
    *r = (struct hub_reply){.length = -1, .range_begin = -1, .range_size = -1, .linked_size = -1, .retry_after = -1};
}

/* A decimal number; -1 for anything else. */
static int64_t read_number(const char *s, char **end)
{
    char *stop;
    if (*s < '0' || *s > '9')
        return -1;
    long long n = strtoll(s, &stop, 10);
    if (end)
        *end = stop;
    return n > (1LL << 53) ? -1 : n;
}

/* "W/\"abc\"" is abc. */
static void read_etag(const char *s, char *out, size_t n)
{
    if (s[0] == 'W' && s[1] == '/')
        s += 2;
    s += strspn(s, "\"");
    snprintf(out, n, "%.*s", (int)strcspn(s, "\""), s);
}

static void read_range(const char *s, struct hub_reply *r)
{
    char *end;
    if (strncasecmp(s, "bytes ", 6) != 0)
        return;
    int64_t begin = read_number(s + 6, &end);
    const char *slash = begin >= 0 ? strchr(end, '/') : NULL;
    if (begin < 0 || *end != '-' || !slash)
        return;
    r->range_begin = begin;
    r->range_size = read_number(slash + 1, NULL); /* -1 for a star */
}

static void read_header(struct hub_reply *r, const char *name, const char *value)
{
    if (!strcasecmp(name, "content-length"))
        r->length = read_number(value, NULL);
    else if (!strcasecmp(name, "content-range"))
        read_range(value, r);
    else if (!strcasecmp(name, "retry-after"))
        r->retry_after = read_number(value, NULL);
    else if (!strcasecmp(name, "etag"))
        read_etag(value, r->etag, sizeof r->etag);
    else if (!strcasecmp(name, "x-linked-etag"))
        read_etag(value, r->linked_etag, sizeof r->linked_etag);
    else if (!strcasecmp(name, "x-linked-size"))
        r->linked_size = read_number(value, NULL);
    else if (!strcasecmp(name, "x-repo-commit"))
        snprintf(r->commit, sizeof r->commit, "%s", value);
    else if (!strcasecmp(name, "x-error-code"))
        snprintf(r->error_code, sizeof r->error_code, "%s", value);
    else if (!strcasecmp(name, "x-error-message"))
        snprintf(r->error_message, sizeof r->error_message, "%s", value);
}

static size_t on_header(char *data, size_t one, size_t n, void *user)
{
    char line[512];
    size_t k = n < sizeof line - 1 ? n : sizeof line - 1; /* no header that we read is longer */
    memcpy(line, data, k);
    line[k] = 0;
    line[strcspn(line, "\r\n")] = 0;
    if (!strncmp(line, "HTTP/", 5))
        reply_clear(user); /* an interim answer came before */
    char *colon = strchr(line, ':');
    if (colon) {
        *colon = 0;
        read_header(user, line, colon + 1 + strspn(colon + 1, " \t"));
    }
    return one * n;
}

/* Addresses ---------------------------------------------------------------- */

enum tlm_status hub_http_add_quoted(struct buf *out, const char *s, const char *keep)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
    for (; *s; s++) {
        if (strchr(plain, *s) || strchr(keep, *s))
            buf_add_char(out, *s);
        else
            buf_printf(out, "%%%02X", (unsigned)(unsigned char)*s);
    }
    return out->status;
}

static char *take_url(struct buf *url, struct tlm_error *e)
{
    if (buf_check(url, e, "an address") != TLM_OK) {
        buf_deinit(url);
        return NULL;
    }
    return buf_take(url, NULL);
}

char *hub_http_list_url(const struct hub_http *h, const char *revision, struct tlm_error *e)
{
    struct buf url;
    buf_init(&url, URL_MAX);
    buf_printf(&url, "%s/api/models/%s/revision/", h->env->endpoint, h->repo);
    hub_http_add_quoted(&url, revision, "");
    buf_add_str(&url, "?blobs=true");
    return take_url(&url, e);
}

char *hub_http_file_url(const struct hub_http *h, const char *commit, const char *name, struct tlm_error *e)
{
    struct buf url;
    buf_init(&url, URL_MAX);
    buf_printf(&url, "%s/%s/resolve/%s/", h->env->endpoint, h->repo, commit);
    hub_http_add_quoted(&url, name, "/");
    return take_url(&url, e);
}

/* Scheme, host and port of both are the same. */
static bool same_origin(const struct hub_http *h, const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    const struct hub_curl *c = h->c;
    CURLU *ua = c->url(), *ub = c->url();
    bool same = ua && ub && c->url_set(ua, CURLUPART_URL, a, 0) == CURLUE_OK &&
                c->url_set(ub, CURLUPART_URL, b, 0) == CURLUE_OK;
    for (size_t i = 0; same && i < sizeof parts / sizeof parts[0]; i++) {
        char *pa = NULL, *pb = NULL;
        same = c->url_get(ua, parts[i], &pa, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               c->url_get(ub, parts[i], &pb, CURLU_DEFAULT_PORT) == CURLUE_OK && !strcasecmp(pa, pb);
        c->release(pa);
        c->release(pb);
    }
    if (ua)
        c->url_cleanup(ua);
    if (ub)
        c->url_cleanup(ub);
    return same;
}

enum tlm_status hub_http_prepare(const struct hub_http *h, CURL *easy, const char *url, const char *range,
                                 struct hub_reply *reply, struct tlm_error *e)
{
    const struct hub_curl *c = h->c;
    bool ours = same_origin(h, url, h->env->endpoint);
    reply_clear(reply);
    c->easy_reset(easy);
    /* Every address was seen to be http or https before. HTTP/1.1, for ranges
     * of a file are fetched over connections of their own. */
    bool ok = c->easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_HTTPHEADER, ours ? h->with_token : h->plain) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)h->env->list_timeout) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)h->env->data_timeout) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_HEADERDATA, (void *)reply) == CURLE_OK &&
              c->easy_setopt(easy, CURLOPT_BUFFERSIZE, 262144L) == CURLE_OK;
    if (ok && range)
        ok = c->easy_setopt(easy, CURLOPT_RANGE, range) == CURLE_OK;
    if (ok && h->ca_file)
        ok = c->easy_setopt(easy, CURLOPT_CAINFO, h->ca_file) == CURLE_OK;
    return ok ? TLM_OK : err_set(e, TLM_EIO, "libcurl refuses to ask %.200s", url);
}

enum tlm_status hub_http_redirect(const struct hub_http *h, CURL *easy, const char *from, char **url,
                                  struct tlm_error *e)
{
    char *to = NULL;
    long status = 0;
    *url = NULL;
    h->c->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 301 && status != 302 && status != 303 && status != 307 && status != 308)
        return TLM_OK;
    h->c->easy_getinfo(easy, CURLINFO_REDIRECT_URL, &to);
    if (!to || (strncasecmp(to, "http://", 7) != 0 && strncasecmp(to, "https://", 8) != 0))
        return err_set(e, TLM_EIO, "%s: %.200s redirects to no address that we follow", h->repo, from);
    if (!strncasecmp(from, "https:", 6) && strncasecmp(to, "https:", 6) != 0)
        return err_set(e, TLM_EIO, "%s: %.200s redirects from https to http", h->repo, from);
    *url = mem_strdup(to);
    return *url ? TLM_OK : err_nomem(e, strlen(to));
}

/* Failures ----------------------------------------------------------------- */

bool hub_http_may_retry(CURLcode code, long status)
{
    switch (code) {
    case CURLE_OK:
        return status == 408 || status == 429 || status >= 500;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_WRITE_ERROR:
    case CURLE_ABORTED_BY_CALLBACK:
        return false;
    default:
        return true;
    }
}

double hub_http_delay(int n, const struct hub_reply *reply)
{
    if (reply->retry_after >= 0)
        return (double)reply->retry_after;
    return 0.25 * (double)(1 << (n < 5 ? n : 5));
}

static enum tlm_status no_access(const struct hub_http *h, long status, const struct hub_reply *reply, const char *what,
                                 struct tlm_error *e)
{
    const char *site = h->env->endpoint;
    bool has_token = h->env->token != NULL;
    if (!strcmp(reply->error_code, "GatedRepo"))
        return err_set(e, TLM_EIO, "%s is gated (HTTP %ld): accept its conditions at %s/%s and %s", h->repo, status,
                       site, h->repo, has_token ? "use a token of that account" : "set HF_TOKEN");
    if (!strcmp(reply->error_code, "RevisionNotFound"))
        return err_set(e, TLM_ENOTFOUND, "%s has no such revision at %s (HTTP %ld)", h->repo, site, status);
    if (status == 404 && *what)
        return err_set(e, TLM_ENOTFOUND, "%s has no file %s at %s (HTTP 404)", h->repo, what, site);
    if (status == 404)
        return err_set(e, TLM_ENOTFOUND, "%s: no such file here, and no such model at %s (HTTP 404)", h->repo, site);
    if (status == 401 && has_token && strcmp(reply->error_code, "RepoNotFound") != 0)
        return err_set(e, TLM_EIO, "%s: %s does not accept the token (HTTP 401); check HF_TOKEN", h->repo, site);
    if (status == 401)
        return err_set(e, TLM_ENOTFOUND,
                       "%s: no such file here, and %s has no such model or it is private (HTTP 401)%s", h->repo, site,
                       has_token ? "" : "; private ones need HF_TOKEN");
    return err_set(e, TLM_EIO, "%s: %s refuses access (HTTP %ld)%s%s", h->repo, site, status,
                   reply->error_message[0] ? ": " : "", reply->error_message);
}

enum tlm_status hub_http_error(const struct hub_http *h, CURLcode code, const char *curl_message, long status,
                               const struct hub_reply *reply, const char *what, struct tlm_error *e)
{
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, TLM_ECANCELED, "interrupted");
    const char *reason = *curl_message ? curl_message : h->c->easy_strerror(code);
    if (code != CURLE_OK && status > 0)
        return err_set(e, TLM_EIO, "%s%s%s: the connection broke: %s", h->repo, *what ? "/" : "", what, reason);
    if (code != CURLE_OK)
        return err_set(e, TLM_EIO, "%s%s%s: cannot reach the hub at %s: %s", h->repo, *what ? "/" : "", what,
                       h->env->endpoint, reason);
    if (status == 401 || status == 403 || status == 404)
        return no_access(h, status, reply, what, e);
    if (status == 429 && reply->retry_after > HUB_RETRY_AFTER_MAX)
        return err_set(e, TLM_EIO, "%s: %s answers that there were too many requests (HTTP 429); try in %lld s",
                       h->repo, h->env->endpoint, (long long)reply->retry_after);
    return err_set(e, TLM_EIO, "%s%s%s: %s answers HTTP %ld%s%s", h->repo, *what ? "/" : "", what, h->env->endpoint,
                   status, reply->error_message[0] ? ": " : "", reply->error_message);
}

/* A whole request ----------------------------------------------------------- */

struct get {
    struct buf *body;
    bool (*stop)(void *user);
    void *user;
};

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    struct get *g = user;
    return g->body && buf_add(g->body, data, one * n) != TLM_OK ? 0 : one * n;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct get *g = user;
    (void)a, (void)b, (void)c, (void)d;
    return g->stop && g->stop(g->user);
}

static enum tlm_status ask_once(const struct hub_http *h, CURL *easy, const char *url, struct get *g,
                                struct hub_reply *reply, char *message, CURLcode *code, struct tlm_error *e)
{
    const struct hub_curl *c = h->c;
    enum tlm_status s = hub_http_prepare(h, easy, url, NULL, reply, e);
    if (s != TLM_OK)
        return s;
    message[0] = 0;
    if (g->body)
        buf_clear(g->body);
    c->easy_setopt(easy, CURLOPT_ERRORBUFFER, message);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, (void *)g);
    c->easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    c->easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    c->easy_setopt(easy, CURLOPT_XFERINFODATA, (void *)g);
    c->easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)h->env->list_timeout);
    if (!g->body)
        c->easy_setopt(easy, CURLOPT_NOBODY, 1L);
    *code = c->easy_perform(easy);
    return TLM_OK;
}

/* False when the stop function ended the wait. */
static bool sleep_for(double seconds, const struct get *g)
{
    struct timespec tenth = {0, 100000000};
    for (; seconds > 0; seconds -= 0.1) {
        if (g->stop && g->stop(g->user))
            return false;
        nanosleep(&tenth, NULL);
    }
    return true;
}

static enum tlm_status get_with(const struct hub_http *h, CURL *easy, char **url, const char *what, struct get *g,
                                struct hub_reply *reply, long *status, struct tlm_error *e)
{
    char message[CURL_ERROR_SIZE];
    CURLcode code = CURLE_OK;
    for (int tries = 0, redirects = 0;;) {
        char *next = NULL;
        enum tlm_status s = ask_once(h, easy, *url, g, reply, message, &code, e);
        if (s != TLM_OK)
            return s;
        h->c->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
        if (code == CURLE_OK && *status >= 200 && *status < 300)
            return TLM_OK;
        /* A HEAD on a file that lies elsewhere: the hub's own answer has its name and size. */
        if (code == CURLE_OK && !g->body && reply->linked_etag[0])
            return TLM_OK;
        if (code == CURLE_OK && (s = hub_http_redirect(h, easy, *url, &next, e)) != TLM_OK)
            return s;
        if (next) {
            mem_free(*url);
            *url = next;
            if (++redirects > HUB_REDIRECTS_MAX)
                return err_set(e, TLM_EIO, "%s: more than %d redirects", h->repo, HUB_REDIRECTS_MAX);
            continue;
        }
        /* No connection at all: the cache may have what is wanted, so do not keep it waiting. */
        bool again = hub_http_may_retry(code, *status) && reply->retry_after <= HUB_RETRY_AFTER_MAX &&
                     code != CURLE_COULDNT_RESOLVE_HOST && code != CURLE_COULDNT_RESOLVE_PROXY &&
                     code != CURLE_COULDNT_CONNECT && code != CURLE_OPERATION_TIMEDOUT;
        if (code != CURLE_OK)
            *status = 0;
        if (code == CURLE_WRITE_ERROR && g->body)
            return buf_check(g->body, e, "the hub's answer");
        if (!again || tries >= HUB_RETRIES_MAX)
            return hub_http_error(h, code, message, *status, reply, what, e);
        if (!sleep_for(hub_http_delay(tries++, reply), g))
            return err_set(e, TLM_ECANCELED, "interrupted");
    }
}

enum tlm_status hub_http_get_on(const struct hub_http *h, CURL *easy, const char *url, const char *what,
                                struct buf *body, struct hub_reply *reply, bool (*stop)(void *user), void *user,
                                long *status, struct tlm_error *e)
{
    struct get g = {.body = body, .stop = stop, .user = user};
    char *at = mem_strdup(url);
    *status = 0;
    if (body)
        buf_init(body, BODY_MAX);
    enum tlm_status s = at ? get_with(h, easy, &at, what, &g, reply, status, e) : err_nomem(e, strlen(url));
    mem_free(at);
    return s;
}

enum tlm_status hub_http_get(const struct hub_http *h, const char *url, const char *what, struct buf *body,
                             struct hub_reply *reply, bool (*stop)(void *user), void *user, long *status,
                             struct tlm_error *e)
{
    CURL *easy = h->c->easy_init();
    if (!easy) {
        *status = 0;
        if (body)
            buf_init(body, BODY_MAX);
        return err_nomem(e, 64);
    }
    enum tlm_status s = hub_http_get_on(h, easy, url, what, body, reply, stop, user, status, e);
    h->c->easy_cleanup(easy);
    return s;
}
