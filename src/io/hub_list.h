/* What a repository holds at a commit, and which of it a model needs.
 * A listing comes from the hub's answer, from the cache's copy of one
 * (trees/<commit>.json) or from a snapshot folder. */
#ifndef IO_HUB_LIST_H
#define IO_HUB_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { HUB_ETAG_MAX = 64, HUB_FILES_MAX = 100000 };

struct hub_file {
    char *name;
    int64_t size; /* -1: not known */
    /* Name of its blob and checksum in one: sha256 (64 digits) of large files,
     * git's sha1 (40 digits) of the others; "": not known. */
    char etag[HUB_ETAG_MAX + 1];
    char git_id[41]; /* git's object, of large files the pointer's; "": not known */
    bool wanted;
};

struct hub_listing {
    char commit[41];
    struct hub_file *files;
    size_t n, room;
};

void hub_listing_deinit(struct hub_listing *l);
/* Refuses unsafe names; where: for the message. */
enum tlm_status hub_listing_add(struct hub_listing *l, const char *name, const char *where, struct hub_file **out,
                                struct tlm_error *e);

/* The body of GET /api/models/<repo>/revision/<revision>?blobs=true. */
enum tlm_status hub_listing_from_api(struct hub_listing *l, const char *json, size_t len, const char *where,
                                     struct tlm_error *e);
/* trees/<commit>.json, format 1: {"files": {name: {size, blob_id, lfs_sha256, lfs_size}}}. */
enum tlm_status hub_listing_from_tree(struct hub_listing *l, const char *json, size_t len, const char *where,
                                      struct tlm_error *e);
/* Text for such a file; free with mem_free. NULL without an error when the
 * listing does not say enough. */
enum tlm_status hub_listing_to_tree(const struct hub_listing *l, char **out, struct tlm_error *e);

/* Marks what is wanted of repository `repo`. pick: "" for a directory of
 * safetensors, or for the only GGUF file; else a GGUF file or its format.
 * *main: the GGUF file to open (the first of a split one), or NULL. */
enum tlm_status hub_listing_choose(struct hub_listing *l, const char *repo, const char *pick, const char **main,
                                   struct tlm_error *e);

#endif
