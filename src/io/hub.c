/* From a model's name to a path: the cache where that is enough, else the hub. */
#include <turbolm/hub.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "io/hub_cache.h"
#include "io/hub_fetch.h"
#include "io/hub_http.h"
#include "io/hub_id.h"

struct resolve {
    struct hub_id id;
    struct hub_env env;
    struct hub_store store;
    struct hub_watch watch;
    struct hub_http http;
    struct hub_listing listing;
    const char *main; /* the GGUF file to open, of listing; or NULL */
};

static char *model_path(const struct resolve *r, struct tlm_error *e)
{
    const char *commit = r->listing.commit;
    return r->main ? hub_pathf(e, "%s/snapshots/%s/%s", r->store.repo, commit, r->main)
                   : hub_pathf(e, "%s/snapshots/%s", r->store.repo, commit);
}

static size_t count_missing(const struct resolve *r, const char **first)
{
    const struct hub_listing *l = &r->listing;
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->files[i].wanted && !hub_store_has_file(&r->store, l->commit, &l->files[i]) && n++ == 0)
            *first = l->files[i].name;
    return n;
}

/* The cache -------------------------------------------------------------------- */

static enum tlm_status find_in_cache(struct resolve *r, struct tlm_error *e)
{
    const char *missing = "";
    char commit[41];
    hub_listing_deinit(&r->listing);
    enum tlm_status s = TLM_OK;
    if (hub_is_commit(r->id.revision))
        memcpy(commit, r->id.revision, sizeof commit);
    else
        s = hub_store_read_ref(&r->store, r->id.revision, commit);
    if (s == TLM_OK)
        s = hub_store_read_tree(&r->store, commit, &r->listing, e);
    if (s == TLM_ENOTFOUND && hub_is_commit(commit))
        s = hub_store_read_snapshot(&r->store, commit, &r->listing, e);
    if (s == TLM_ENOTFOUND)
        return err_set(e, s, "%s is not in the cache (%s)", r->id.repo, r->env.cache);
    if (s == TLM_OK)
        s = hub_listing_choose(&r->listing, r->id.repo, r->id.pick, &r->main, e);
    if (s != TLM_OK)
        return s;
    size_t n = count_missing(r, &missing);
    if (n > 0)
        return err_set(e, TLM_ENOTFOUND, "the copy of %s in the cache (%s) is not complete: it lacks %s%s", r->id.repo,
                       r->env.cache, missing, n > 1 ? " and others" : "");
    return TLM_OK;
}

static enum tlm_status resolve_offline(struct resolve *r, struct tlm_error *e)
{
    struct tlm_error why = {0};
    enum tlm_status s = find_in_cache(r, &why);
    if (s == TLM_ENOTFOUND)
        return err_set(e, s, "%s, and %s forbids to fetch it", why.message,
                       r->env.offline_name ? r->env.offline_name : "offline mode");
    return s == TLM_OK ? s : err_set(e, s, "%s", why.message);
}

/* The hub ---------------------------------------------------------------------- */

static bool wants_to_stop(void *user)
{
    struct resolve *r = user;
    struct tlm_hub_progress p = {.event = TLM_HUB_BYTES, .name = ""};
    return hub_watch_tell(&r->watch, &p);
}

static enum tlm_status ask_listing(struct resolve *r, struct hub_reply *reply, long *status, struct tlm_error *e)
{
    struct buf body;
    buf_init(&body, 1);
    hub_listing_deinit(&r->listing);
    char *url = hub_http_list_url(&r->http, r->id.revision, e);
    if (!url)
        return TLM_ENOMEM;
    enum tlm_status s = hub_http_get(&r->http, url, "", &body, reply, wants_to_stop, r, status, e);
    if (s == TLM_OK)
        s = hub_listing_from_api(&r->listing, buf_str(&body), body.len, url, e);
    if (s == TLM_OK && hub_is_commit(r->id.revision) && strcmp(r->id.revision, r->listing.commit) != 0)
        s = err_set(e, TLM_EFORMAT, "%s: the hub answers commit %s, expected %s", r->id.repo, r->listing.commit,
                    r->id.revision);
    mem_free(url);
    buf_deinit(&body);
    return s;
}

/* Checksum and size of files whose row in the listing does not say them. */
static enum tlm_status ask_identities(struct resolve *r, struct tlm_error *e)
{
    struct hub_listing *l = &r->listing;
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; i < l->n && s == TLM_OK; i++) {
        struct hub_file *f = &l->files[i];
        struct hub_reply reply;
        long status;
        if (!f->wanted || (f->size >= 0 && f->etag[0]) || hub_store_has_file(&r->store, l->commit, f))
            continue;
        char *url = hub_http_file_url(&r->http, l->commit, f->name, e);
        if (!url)
            return TLM_ENOMEM;
        s = hub_http_get(&r->http, url, f->name, NULL, &reply, wants_to_stop, r, &status, e);
        mem_free(url);
        if (s != TLM_OK)
            break;
        const char *etag = reply.linked_etag[0] ? reply.linked_etag : reply.etag;
        f->size = reply.linked_size >= 0 ? reply.linked_size : reply.length;
        if (f->size < 0 || (!hub_is_hex(etag, 40) && !hub_is_hex(etag, HUB_ETAG_MAX)))
            s = err_set(e, TLM_EFORMAT, "%s/%s: the hub tells no size and checksum", r->id.repo, f->name);
        else if (reply.commit[0] && strcmp(reply.commit, l->commit) != 0)
            s = err_set(e, TLM_EIO, "%s/%s: the hub has commit %s, expected %s", r->id.repo, f->name, reply.commit,
                        l->commit);
        else
            memcpy(f->etag, etag, strlen(etag) + 1);
    }
    return s;
}

/* Files first, then the listing, then the ref: what a ref leads to is complete. */
static enum tlm_status fetch_and_note(struct resolve *r, struct tlm_error *e)
{
    const char *missing;
    size_t n = count_missing(r, &missing);
    enum tlm_status s = n > 0 ? ask_identities(r, e) : TLM_OK;
    if (s == TLM_OK && n > 0)
        s = hub_fetch(&r->http, &r->store, &r->listing, &r->watch, e);
    if (s != TLM_OK)
        return s;
    struct tlm_error why = {0};
    s = hub_store_write_tree(&r->store, &r->listing, &why);
    if (s == TLM_OK)
        s = hub_store_write_ref(&r->store, r->id.revision, r->listing.commit, &why);
    /* A cache that is complete may be read-only. */
    return s == TLM_OK || n == 0 ? TLM_OK : err_set(e, s, "%s", why.message);
}

/* The hub gave no listing: an earlier copy will do, unless the hub said that
 * there is no such revision, or its answer was nonsense. */
static enum tlm_status fall_back(struct resolve *r, enum tlm_status status, const char *code,
                                 const struct tlm_error *why, struct tlm_error *e)
{
    struct tlm_error cache = {0};
    bool may = status == TLM_EIO || status == TLM_ENOTFOUND || status == TLM_EUNSUPPORTED;
    if (!may || !strcmp(code, "RevisionNotFound"))
        return err_set(e, status, "%s", why->message);
    enum tlm_status s = find_in_cache(r, &cache);
    if (s == TLM_OK) {
        log_warn("%s; using the copy in the cache", why->message);
        return TLM_OK;
    }
    if (s != TLM_ENOTFOUND)
        return err_set(e, s, "%s", cache.message);
    if (status == TLM_ENOTFOUND)
        return err_set(e, status, "%s", why->message);
    return err_set(e, status, "%s; %s: check the network, or give a path", why->message, cache.message);
}

static enum tlm_status resolve_online(struct resolve *r, struct tlm_error *e)
{
    struct tlm_error why = {0};
    struct hub_reply reply = {.error_code = ""};
    long status = 0;
    /* A commit never changes: with its listing there is nothing to ask. */
    if (hub_is_commit(r->id.revision) && hub_store_read_tree(&r->store, r->id.revision, &r->listing, NULL) == TLM_OK &&
        find_in_cache(r, NULL) == TLM_OK)
        return TLM_OK;
    enum tlm_status s = hub_http_init(&r->http, &r->env, r->id.repo, &why);
    if (s == TLM_OK)
        s = ask_listing(r, &reply, &status, &why);
    if (s != TLM_OK)
        return fall_back(r, s, reply.error_code, &why, e);
    s = hub_listing_choose(&r->listing, r->id.repo, r->id.pick, &r->main, e);
    return s == TLM_OK ? fetch_and_note(r, e) : s;
}

enum tlm_status tlm_hub_resolve(const char *model, const struct tlm_hub_options *o, char **path, struct tlm_error *e)
{
    static const struct tlm_hub_options defaults;
    struct resolve r = {.watch = {0}};
    struct stat st;
    *path = NULL;
    if (!model || !*model)
        return err_set(e, TLM_EINVAL, "model: no path or name given");
    if (stat(model, &st) == 0 || (errno != ENOENT && errno != ENOTDIR)) {
        *path = mem_strdup(model);
        return *path ? TLM_OK : err_nomem(e, strlen(model) + 1);
    }
    if (!hub_id_parse(model, &r.id))
        return err_set(e, TLM_ENOTFOUND, "%s: no such file or directory", model);
    if (!o)
        o = &defaults;
    r.watch.fn = o->progress;
    r.watch.user = o->user;
    enum tlm_status s = hub_env_init(&r.env, o, e);
    if (s == TLM_OK)
        s = hub_store_init(&r.store, r.env.cache, r.id.repo, e);
    if (s == TLM_OK)
        s = r.env.offline ? resolve_offline(&r, e) : resolve_online(&r, e);
    if (s == TLM_OK) {
        *path = model_path(&r, e);
        s = *path ? TLM_OK : TLM_ENOMEM;
    }
    hub_listing_deinit(&r.listing);
    hub_http_deinit(&r.http);
    hub_store_deinit(&r.store);
    hub_env_deinit(&r.env);
    return s;
}

void tlm_hub_path_free(char *path)
{
    mem_free(path);
}
