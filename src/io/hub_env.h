/* What the environment says about the hub: the names and defaults of
 * huggingface_hub. */
#ifndef IO_HUB_ENV_H
#define IO_HUB_ENV_H

#include <stdbool.h>

#include <turbolm/hub.h>

#include "base/err.h"

struct hub_env {
    char *cache;                    /* folder of models--org--name */
    char *endpoint;                 /* "https://huggingface.co", without a slash at the end */
    char *token;                    /* NULL: none */
    bool offline;                   /* the cache alone */
    const char *offline_name;       /* the variable that says so, or NULL */
    int list_timeout, data_timeout; /* seconds without an answer, without data */
};

enum tlm_status hub_env_init(struct hub_env *v, const struct tlm_hub_options *o, struct tlm_error *e);
void hub_env_deinit(struct hub_env *v);

/* A path from a format, to be freed with mem_free; NULL when out of memory,
 * which is set on e. */
char *hub_pathf(struct tlm_error *e, const char *format, ...) BASE_PRINTF(2, 3);

#endif
