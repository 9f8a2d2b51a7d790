/* Rows of a data set, as the hub's rows server gives them in JSON
 * (https://huggingface.co/docs/dataset-viewer): GET /splits, GET /rows. */
#ifndef IO_HUB_ROWS_H
#define IO_HUB_ROWS_H

#include <stdint.h>

#include "base/buf.h"
#include "io/hub_http.h"

enum { HUB_ROWS_PAGE = 100 }; /* most rows of one answer */

struct hub_rows {
    struct hub_env env; /* its endpoint is the rows server */
    struct hub_http http;
    CURL *easy; /* one connection for all requests */
    char *repo, *config, *split;
};

/* name: "org/name[:configuration]". Finds the configuration: the one that is
 * named, else "default", else the only one that has the split. The server is
 * TURBOLM_DATASETS_SERVER, else HF_ENDPOINT with "datasets-server." before its
 * host. Close in any case. */
enum tlm_status hub_rows_open(struct hub_rows *r, const char *name, const char *split, struct tlm_error *e);
void hub_rows_close(struct hub_rows *r);

/* body: the JSON text of rows first .. first + n, fewer at the end; deinit it in any case. */
enum tlm_status hub_rows_get(struct hub_rows *r, uint64_t first, int n, struct buf *body, struct tlm_error *e);

#endif
