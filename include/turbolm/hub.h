/* Models by name: a Hugging Face hub and the cache that its Python library
 * (huggingface_hub) keeps, which is shared with it file for file.
 *
 * Environment, as that library reads it: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME,
 * HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE,
 * HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT. */
#ifndef TURBOLM_HUB_H
#define TURBOLM_HUB_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum tlm_hub_event {
    TLM_HUB_START, /* before the first byte: files, total_bytes and done_bytes are known */
    TLM_HUB_BYTES, /* now and then, also when nothing arrives */
    TLM_HUB_FILE,  /* the file `name` of name_bytes bytes is complete */
    TLM_HUB_NOTE   /* `name` is a sentence: what is waited for */
};

struct tlm_hub_progress {
    enum tlm_hub_event event;
    const char *name;                 /* valid during the call */
    uint64_t name_bytes;              /* size of the file */
    uint64_t done_bytes, total_bytes; /* of all files to fetch; what an earlier run left counts as done */
    uint64_t files_done, files;
};

/* Called from the thread that resolves, about ten times a second while files
 * arrive and once while the first answer is waited for. A result other than 0 stops: TLM_ECANCELED, and what
 * has arrived is kept for the next run. */
typedef int tlm_hub_progress_fn(const struct tlm_hub_progress *p, void *user);

/* Zero-initialise; NULL takes what the environment says. */
struct tlm_hub_options {
    const char *cache_dir, *endpoint, *token;
    int offline; /* use the cache alone, as HF_HUB_OFFLINE=1 does */
    tlm_hub_progress_fn *progress;
    void *user;
};

/* Path of a model to open. model: an existing path, which is returned as it
 * is, or "org/name", "org/name@revision", for repositories of GGUF files
 * "org/name:FILE.gguf" or "org/name:Q4_K_M". Fetches what the cache lacks.
 * *path: free with tlm_hub_path_free.
 * Errors: TLM_ENOTFOUND (no such model, nothing in the cache), TLM_EIO
 * (network, disk, no access), TLM_EINVAL (which file?), TLM_ECANCELED. */
TLM_API enum tlm_status tlm_hub_resolve(const char *model, const struct tlm_hub_options *o, char **path,
                                        struct tlm_error *e);
TLM_API void tlm_hub_path_free(char *path);

/* What is in the cache. Figures are those of huggingface_hub's scan. */
struct tlm_hub_repo {
    const char *id;                  /* "org/name" */
    const char *path;                /* of its folder */
    uint64_t bytes, files;           /* of all revisions, a file they share counted once */
    double last_access, last_change; /* seconds since 1970 */
};

struct tlm_hub_cache;

/* Models only, by path. A folder that is not as it should be is left out with
 * a warning. TLM_ENOTFOUND: there is no cache. cache_dir NULL: by environment. */
TLM_API enum tlm_status tlm_hub_cache_open(const char *cache_dir, struct tlm_hub_cache **out, struct tlm_error *e);
TLM_API void tlm_hub_cache_close(struct tlm_hub_cache *c);
TLM_API size_t tlm_hub_cache_count(const struct tlm_hub_cache *c);
/* 0 past the last; strings live as long as the cache. */
TLM_API int tlm_hub_cache_repo(const struct tlm_hub_cache *c, size_t i, struct tlm_hub_repo *out);
/* Removes the repository's folder with everything in it, and its locks. Links
 * are removed, never followed. Figures of repositories stay as they were. */
TLM_API enum tlm_status tlm_hub_cache_delete(struct tlm_hub_cache *c, size_t i, struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
