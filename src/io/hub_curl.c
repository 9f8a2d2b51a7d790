/* Loading libcurl. */
#include "io/hub_curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static struct hub_curl table;
static struct tlm_error failure;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Any of Debian's builds does; they differ in the TLS library behind them. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {"curl_easy_init", offsetof(struct hub_curl, easy_init)},
    {"curl_easy_cleanup", offsetof(struct hub_curl, easy_cleanup)},
    {"curl_easy_reset", offsetof(struct hub_curl, easy_reset)},
    {"curl_easy_setopt", offsetof(struct hub_curl, easy_setopt)},
    {"curl_easy_getinfo", offsetof(struct hub_curl, easy_getinfo)},
    {"curl_easy_perform", offsetof(struct hub_curl, easy_perform)},
    {"curl_easy_strerror", offsetof(struct hub_curl, easy_strerror)},
    {"curl_multi_init", offsetof(struct hub_curl, multi_init)},
    {"curl_multi_cleanup", offsetof(struct hub_curl, multi_cleanup)},
    {"curl_multi_add_handle", offsetof(struct hub_curl, multi_add_handle)},
    {"curl_multi_remove_handle", offsetof(struct hub_curl, multi_remove_handle)},
    {"curl_multi_perform", offsetof(struct hub_curl, multi_perform)},
    {"curl_multi_poll", offsetof(struct hub_curl, multi_poll)},
    {"curl_multi_info_read", offsetof(struct hub_curl, multi_info_read)},
    {"curl_slist_append", offsetof(struct hub_curl, slist_append)},
    {"curl_slist_free_all", offsetof(struct hub_curl, slist_free_all)},
    {"curl_url", offsetof(struct hub_curl, url)},
    {"curl_url_cleanup", offsetof(struct hub_curl, url_cleanup)},
    {"curl_url_set", offsetof(struct hub_curl, url_set)},
    {"curl_url_get", offsetof(struct hub_curl, url_get)},
    {"curl_free", offsetof(struct hub_curl, release)},
};

static void load(void)
{
    void *lib = NULL, *init;
    for (size_t i = 0; !lib && i < sizeof names / sizeof names[0]; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        err_set(&failure, TLM_EUNSUPPORTED, "fetching models needs libcurl, which is not there: install libcurl4 (%s)",
                dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *p = dlsym(lib, symbols[i].name);
        if (!p)
            err_set(&failure, TLM_EUNSUPPORTED, "libcurl is older than 7.66: it has no %s", symbols[i].name);
        *(void **)((char *)&table + symbols[i].offset) = p; /* POSIX: a function's address fits */
    }
    init = dlsym(lib, "curl_global_init");
    CURLcode (*global_init)(long) = NULL;
    *(void **)&global_init = init;
    if (!global_init || global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        err_set(&failure, TLM_EIO, "libcurl cannot start");
}

enum tlm_status hub_curl_get(const struct hub_curl **out, struct tlm_error *e)
{
    pthread_once(&once, load);
    *out = &table;
    return failure.status == TLM_OK ? TLM_OK : err_set(e, failure.status, "%s", failure.message);
}
