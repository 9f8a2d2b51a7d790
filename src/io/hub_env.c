/* Environment of the hub. */
#include "io/hub_env.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"

char *hub_pathf(struct tlm_error *e, const char *format, ...)
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, format, ap);
    char *p = n < 0 ? NULL : mem_alloc((size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, format, again);
    else
        err_nomem(e, n < 0 ? 1 : (size_t)n + 1);
    va_end(again);
    va_end(ap);
    return p;
}

/* A variable; NULL when it is unset or empty. */
static const char *get(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool is_true(const char *v)
{
    return v && (!strcmp(v, "1") || !strcasecmp(v, "on") || !strcasecmp(v, "yes") || !strcasecmp(v, "true"));
}

/* ~ and ~/… are the home folder. */
static char *expand(const char *path, struct tlm_error *e)
{
    const char *home = get("HOME");
    if (path[0] == '~' && (path[1] == '/' || !path[1]) && home)
        return hub_pathf(e, "%s%s", home, path + 1);
    return hub_pathf(e, "%s", path);
}

/* $HF_HOME or what stands for it, then /name. */
static char *in_home(const char *name, struct tlm_error *e)
{
    const char *home = get("HF_HOME"), *xdg = get("XDG_CACHE_HOME");
    char *base = home  ? hub_pathf(e, "%s", home)
                 : xdg ? hub_pathf(e, "%s/huggingface", xdg)
                       : hub_pathf(e, "~/.cache/huggingface");
    char *joined = base ? hub_pathf(e, "%s/%s", base, name) : NULL;
    char *path = joined ? expand(joined, e) : NULL;
    mem_free(joined);
    mem_free(base);
    return path;
}

static enum tlm_status find_cache(struct hub_env *v, const struct tlm_hub_options *o, struct tlm_error *e)
{
    const char *dir = o->cache_dir;
    if (!dir)
        dir = get("HF_HUB_CACHE");
    if (!dir)
        dir = get("HUGGINGFACE_HUB_CACHE");
    v->cache = dir ? expand(dir, e) : in_home("hub", e);
    if (!v->cache)
        return TLM_ENOMEM;
    for (size_t n = strlen(v->cache); n > 1 && v->cache[n - 1] == '/';)
        v->cache[--n] = 0;
    return TLM_OK;
}

static enum tlm_status find_endpoint(struct hub_env *v, const struct tlm_hub_options *o, struct tlm_error *e)
{
    const char *url = o->endpoint ? o->endpoint : get("HF_ENDPOINT");
    v->endpoint = hub_pathf(e, "%s", url ? url : "https://huggingface.co");
    if (!v->endpoint)
        return TLM_ENOMEM;
    for (size_t n = strlen(v->endpoint); n > 0 && v->endpoint[n - 1] == '/';)
        v->endpoint[--n] = 0;
    bool is_http = !strncasecmp(v->endpoint, "http://", 7) || !strncasecmp(v->endpoint, "https://", 8);
    for (const char *p = v->endpoint; *p; p++)
        is_http = is_http && (unsigned char)*p > 0x20 && (unsigned char)*p < 0x7f;
    if (!is_http)
        return err_set(e, TLM_EINVAL, "HF_ENDPOINT: found '%s', expected an http or https address", v->endpoint);
    return TLM_OK;
}

/* Without the white space around it; what cannot stand in a header is refused. */
static enum tlm_status take_token(struct hub_env *v, const char *text, const char *from, struct tlm_error *e)
{
    text += strspn(text, " \t\r\n");
    size_t n = strcspn(text, " \t\r\n");
    if (text[n + strspn(text + n, " \t\r\n")])
        return err_set(e, TLM_EINVAL, "%s: the token has spaces in it", from);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x21 || (unsigned char)text[i] > 0x7e)
            return err_set(e, TLM_EINVAL, "%s: the token has a character that is not ASCII", from);
    if (n == 0)
        return TLM_OK;
    v->token = mem_strndup(text, n);
    return v->token ? TLM_OK : err_nomem(e, n);
}

static enum tlm_status find_token(struct hub_env *v, const struct tlm_hub_options *o, struct tlm_error *e)
{
    enum { TOKEN_FILE_MAX = 65536 };
    char *text = NULL;
    size_t n;
    if (o->token)
        return take_token(v, o->token, "token", e);
    if (is_true(get("HF_HUB_DISABLE_IMPLICIT_TOKEN")))
        return TLM_OK;
    if (get("HF_TOKEN"))
        return take_token(v, get("HF_TOKEN"), "HF_TOKEN", e);
    if (get("HUGGING_FACE_HUB_TOKEN"))
        return take_token(v, get("HUGGING_FACE_HUB_TOKEN"), "HUGGING_FACE_HUB_TOKEN", e);
    char *path = get("HF_TOKEN_PATH") ? expand(get("HF_TOKEN_PATH"), e) : in_home("token", e);
    if (!path)
        return TLM_ENOMEM;
    struct tlm_error why = {0};
    enum tlm_status s = file_read(path, TOKEN_FILE_MAX, &text, &n, &why);
    if (s == TLM_OK)
        s = take_token(v, text, path, e);
    else if (s == TLM_ENOTFOUND)
        s = TLM_OK;
    else
        s = err_set(e, s, "cannot read the hub's token: %s", why.message);
    mem_free(text);
    mem_free(path);
    return s;
}

static enum tlm_status find_timeout(const char *name, int *out, struct tlm_error *e)
{
    const char *text = get(name);
    char *end;
    *out = 10;
    if (!text)
        return TLM_OK;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > 86400)
        return err_set(e, TLM_EINVAL, "%s: found '%s', expected seconds from 1 to 86400", name, text);
    *out = (int)n;
    return TLM_OK;
}

enum tlm_status hub_env_init(struct hub_env *v, const struct tlm_hub_options *o, struct tlm_error *e)
{
    *v = (struct hub_env){.offline = o->offline != 0};
    const char *names[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    /* The second counts only where the first is not set. */
    for (int i = 0; i < 2; i++)
        if (get(names[i])) {
            if (is_true(get(names[i]))) {
                v->offline = true;
                v->offline_name = names[i];
            }
            break;
        }
    enum tlm_status s = find_cache(v, o, e);
    if (s == TLM_OK && !v->offline && get("MLXLM_USE_MODELSCOPE") && !strcasecmp(get("MLXLM_USE_MODELSCOPE"), "true"))
        s = err_set(e, TLM_EUNSUPPORTED, "MLXLM_USE_MODELSCOPE: fetching from ModelScope is not supported");
    if (s == TLM_OK)
        s = find_endpoint(v, o, e);
    if (s == TLM_OK && !v->offline)
        s = find_token(v, o, e);
    if (s == TLM_OK)
        s = find_timeout("HF_HUB_ETAG_TIMEOUT", &v->list_timeout, e);
    if (s == TLM_OK)
        s = find_timeout("HF_HUB_DOWNLOAD_TIMEOUT", &v->data_timeout, e);
    if (s != TLM_OK)
        hub_env_deinit(v);
    return s;
}

void hub_env_deinit(struct hub_env *v)
{
    if (v->token)
        memset(v->token, 0, strlen(v->token));
    mem_free(v->cache);
    mem_free(v->endpoint);
    mem_free(v->token);
    *v = (struct hub_env){0};
}
