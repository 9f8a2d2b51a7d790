/* Rows of data sets of a hub. */
#include "io/hub_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "io/hub_id.h"

enum { URL_MAX = 4096, NAMES_MAX = 300 };

/* "https://host" becomes "https://datasets-server.host". */
static enum tlm_status find_server(struct hub_env *v, struct tlm_error *e)
{
    const char *given = getenv("TURBOLM_DATASETS_SERVER");
    char *host = strstr(v->endpoint, "://") + 3, *url;
    if (given && *given) {
        struct tlm_hub_options o = {.endpoint = given};
        struct hub_env other;
        enum tlm_status s = hub_env_init(&other, &o, NULL);
        if (s != TLM_OK)
            return err_set(e, TLM_EINVAL, "TURBOLM_DATASETS_SERVER: found '%s', expected an http or https address",
                           given);
        url = other.endpoint;
        other.endpoint = NULL;
        hub_env_deinit(&other);
    } else {
        url = hub_pathf(e, "%.*sdatasets-server.%s", (int)(host - v->endpoint), v->endpoint, host);
    }
    if (!url)
        return TLM_ENOMEM;
    mem_free(v->endpoint);
    v->endpoint = url;
    return TLM_OK;
}

/* What the server says in words is added to the failure. */
static enum tlm_status refused(const struct hub_rows *r, long status, const struct buf *body, struct tlm_error *e)
{
    const char *words = NULL, *site = r->env.endpoint;
    cJSON *root = NULL;
    if (json_parse(buf_str(body), body->len, "", &root, NULL) == TLM_OK && cJSON_IsObject(root))
        json_str(root, "error", &words, NULL);
    const char *colon = words ? ": " : "";
    enum tlm_status s;
    words = words ? words : "";
    if (status == 404 || status == 401 || status == 403)
        s = err_set(e, TLM_ENOTFOUND,
                    "%s: no such file here, and %s has no such data set or it is not public (HTTP %ld%s%.200s)%s",
                    r->repo, site, status, colon, words, r->env.token ? "" : "; private ones need HF_TOKEN");
    else
        s = err_set(e, TLM_EIO, "%s: %s answers HTTP %ld%s%.200s", r->repo, site, status, colon, words);
    cJSON_Delete(root);
    return s;
}

static enum tlm_status ask(struct hub_rows *r, const char *url, struct buf *body, struct tlm_error *e)
{
    struct hub_reply reply;
    struct tlm_error why = {0};
    long status = 0;
    enum tlm_status s = hub_http_get_on(&r->http, r->easy, url, "", body, &reply, NULL, NULL, &status, &why);
    if (s == TLM_OK)
        return s;
    if (status >= 400 && status != 429)
        return refused(r, status, body, e);
    return err_set(e, s, "%s", why.message);
}

static void add_part(struct buf *url, const char *name, const char *value)
{
    buf_add_str(url, name);
    hub_http_add_quoted(url, value, "");
}

static bool has_split(const cJSON *row, const char *config, const char *split, const char **its_config)
{
    const char *its_split = NULL;
    *its_config = NULL;
    return cJSON_IsObject(row) && json_str(row, "config", its_config, NULL) == TLM_OK && *its_config &&
           json_str(row, "split", &its_split, NULL) == TLM_OK && its_split && !strcmp(its_split, split) &&
           (!*config || !strcmp(*its_config, config));
}

/* config: as the user named it, or "". */
static enum tlm_status choose_config(struct hub_rows *r, const cJSON *root, const char *config, struct tlm_error *e)
{
    const cJSON *list = json_get(root, "splits"), *row;
    const char *name, *chosen = NULL;
    struct buf names;
    size_t n = 0;
    if (!cJSON_IsArray(list))
        return err_set(e, TLM_EFORMAT, "%s: %s/splits: splits: found %s, expected an array", r->repo, r->env.endpoint,
                       json_type_name(list));
    buf_init(&names, NAMES_MAX);
    cJSON_ArrayForEach(row, list)
    {
        if (!has_split(row, config, r->split, &name))
            continue;
        if (names.len + strlen(name) + 8 < NAMES_MAX)
            buf_printf(&names, "%s%s", n ? ", " : "", name);
        n++;
        if (!chosen || !strcmp(name, "default"))
            chosen = name;
    }
    enum tlm_status s = TLM_OK;
    if (n == 0)
        s = err_set(e, TLM_ENOTFOUND, "%s has no split '%s'%s%s", r->repo, r->split,
                    *config ? " in a configuration " : "", config);
    else if (n > 1 && strcmp(chosen, "default") != 0)
        s = err_set(e, TLM_EINVAL, "%s has %zu configurations (%s): choose one, as in %s:%s", r->repo, n,
                    buf_str(&names), r->repo, chosen);
    else if (!(r->config = mem_strdup(chosen)))
        s = err_nomem(e, strlen(chosen));
    buf_deinit(&names);
    return s;
}

static enum tlm_status find_config(struct hub_rows *r, const char *config, struct tlm_error *e)
{
    struct buf url, body;
    cJSON *root = NULL;
    buf_init(&url, URL_MAX);
    buf_init(&body, 1);
    buf_printf(&url, "%s/splits", r->env.endpoint);
    add_part(&url, "?dataset=", r->repo);
    enum tlm_status s = buf_check(&url, e, "an address");
    if (s == TLM_OK)
        s = ask(r, buf_str(&url), &body, e);
    if (s == TLM_OK)
        s = json_parse(buf_str(&body), body.len, buf_str(&url), &root, e);
    if (s == TLM_OK)
        s = choose_config(r, root, config, e);
    cJSON_Delete(root);
    buf_deinit(&body);
    buf_deinit(&url);
    return s;
}

enum tlm_status hub_rows_open(struct hub_rows *r, const char *name, const char *split, struct tlm_error *e)
{
    static const struct tlm_hub_options defaults;
    struct hub_id id;
    *r = (struct hub_rows){0};
    if (!hub_id_parse(name, &id) || strcmp(id.revision, "main") != 0 || strchr(name, '@'))
        return err_set(e, TLM_ENOTFOUND, "%s: no such file, and no name of a data set like org/name", name);
    enum tlm_status s = hub_env_init(&r->env, &defaults, e);
    if (s == TLM_OK && r->env.offline)
        s = err_set(e, TLM_ENOTFOUND, "%s: no such file here, and %s forbids to fetch a data set", name,
                    r->env.offline_name ? r->env.offline_name : "offline mode");
    if (s == TLM_OK)
        s = find_server(&r->env, e);
    if (s == TLM_OK && (!(r->repo = mem_strdup(id.repo)) || !(r->split = mem_strdup(split))))
        s = err_nomem(e, sizeof id);
    if (s == TLM_OK)
        s = hub_http_init(&r->http, &r->env, r->repo, e);
    if (s == TLM_OK && !(r->easy = r->http.c->easy_init()))
        s = err_nomem(e, 64);
    return s == TLM_OK ? find_config(r, id.pick, e) : s;
}

void hub_rows_close(struct hub_rows *r)
{
    if (r->easy)
        r->http.c->easy_cleanup(r->easy);
    hub_http_deinit(&r->http);
    hub_env_deinit(&r->env);
    mem_free(r->repo);
    mem_free(r->config);
    mem_free(r->split);
    *r = (struct hub_rows){0};
}

enum tlm_status hub_rows_get(struct hub_rows *r, uint64_t first, int n, struct buf *body, struct tlm_error *e)
{
    struct buf url;
    buf_init(&url, URL_MAX);
    buf_init(body, 1);
    buf_printf(&url, "%s/rows", r->env.endpoint);
    add_part(&url, "?dataset=", r->repo);
    add_part(&url, "&config=", r->config);
    add_part(&url, "&split=", r->split);
    buf_printf(&url, "&offset=%llu&length=%d", (unsigned long long)first, n);
    enum tlm_status s = buf_check(&url, e, "an address");
    if (s == TLM_OK)
        s = ask(r, buf_str(&url), body, e);
    buf_deinit(&url);
    return s;
}
