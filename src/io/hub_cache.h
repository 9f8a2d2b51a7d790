/* The cache of huggingface_hub on disk:
 *
 *   <cache>/models--org--name/refs/<revision>           a commit, 40 digits
 *                            /snapshots/<commit>/<file>  -> ../../blobs/<etag>
 *                            /blobs/<etag>
 *                            /trees/<commit>.json        what the commit holds
 *   <cache>/.locks/models--org--name/<etag>.lock         flock while a blob is fetched
 *
 * Everything appears by rename, so a reader never sees a half of it. */
#ifndef IO_HUB_CACHE_H
#define IO_HUB_CACHE_H

#include "io/hub_env.h"
#include "io/hub_list.h"

struct hub_store {
    char *cache, *repo; /* <cache>; <cache>/models--org--name */
    char *locks;        /* <cache>/.locks/models--org--name */
};

enum tlm_status hub_store_init(struct hub_store *st, const char *cache, const char *repo, struct tlm_error *e);
void hub_store_deinit(struct hub_store *st);
/* "models--org--name" from "org/name"; room for 2 * HUB_REPO_MAX. */
void hub_folder_name(const char *repo, char *out, size_t n);

/* The commit a revision stands for here; TLM_ENOTFOUND without a message. */
enum tlm_status hub_store_read_ref(const struct hub_store *st, const char *revision, char *commit);
/* Leaves a ref alone that is right. */
enum tlm_status hub_store_write_ref(const struct hub_store *st, const char *revision, const char *commit,
                                    struct tlm_error *e);

/* Into l, which is empty; TLM_ENOTFOUND without a message when there is none
 * that can be used. From trees/, or what lies in snapshots/. */
enum tlm_status hub_store_read_tree(const struct hub_store *st, const char *commit, struct hub_listing *l,
                                    struct tlm_error *e);
enum tlm_status hub_store_read_snapshot(const struct hub_store *st, const char *commit, struct hub_listing *l,
                                        struct tlm_error *e);
/* Does nothing where the listing is there or does not say enough. */
enum tlm_status hub_store_write_tree(const struct hub_store *st, const struct hub_listing *l, struct tlm_error *e);

/* The snapshot has the file, in its size where that is known. */
bool hub_store_has_file(const struct hub_store *st, const char *commit, const struct hub_file *f);
bool hub_store_has_blob(const struct hub_store *st, const struct hub_file *f);
/* Link from the snapshot to the blob. */
enum tlm_status hub_store_link(const struct hub_store *st, const char *commit, const struct hub_file *f,
                               struct tlm_error *e);
/* blobs/, snapshots/<commit> and .locks/…, for writing. */
enum tlm_status hub_store_prepare(const struct hub_store *st, const char *commit, struct tlm_error *e);
/* TLM_EBUSY without a message: somebody else has it. *fd -1: this file system
 * has no locks. Free with close. */
enum tlm_status hub_store_lock(const struct hub_store *st, const char *etag, int *fd, struct tlm_error *e);

/* Every folder of path; a message says how to choose another cache. */
enum tlm_status hub_make_dirs(const char *path, struct tlm_error *e);
/* The message for errno `code` of a write below the cache. */
enum tlm_status hub_write_error(struct tlm_error *e, const char *path, int code);

#endif
