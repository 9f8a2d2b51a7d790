/* Fetching the files of a listing into the cache: several at once, large ones
 * in several pieces at once, continued where an earlier run ended, checked. */
#ifndef IO_HUB_FETCH_H
#define IO_HUB_FETCH_H

#include "io/hub_cache.h"
#include "io/hub_http.h"

struct hub_watch {
    tlm_hub_progress_fn *fn; /* NULL: nobody */
    void *user;
    bool stopped; /* it has asked to stop */
};

/* Reports; true once somebody wants to stop. */
bool hub_watch_tell(struct hub_watch *w, const struct tlm_hub_progress *p);

/* Every wanted file of l that the snapshot lacks. TLM_OK: all are there. */
enum tlm_status hub_fetch(const struct hub_http *h, const struct hub_store *st, const struct hub_listing *l,
                          struct hub_watch *watch, struct tlm_error *e);

#endif
