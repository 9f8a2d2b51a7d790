/* What the targets of a conversion share. */
#ifndef CONVERT_CONVERT_JOB_H
#define CONVERT_CONVERT_JOB_H

#include <turbolm/convert.h>

#include "base/pool.h"
#include "convert/source.h"

struct convert_job {
    const char *model, *out; /* as they were given; out does not exist */
    const struct tlm_convert_options *o;
    struct source *source;
    struct pool *pool;
    uint64_t done, total; /* bytes of tensors */
};

/* Tells the caller that bytes more are written; TLM_ECANCELED when it wants no
 * more. Only from the thread that converts (worker 0 of the pool). */
enum tlm_status convert_report(struct convert_job *j, const char *name, uint64_t bytes, struct tlm_error *e);
/* A line for the user. */
enum tlm_status convert_note(struct convert_job *j, struct tlm_error *e, const char *format, ...) BASE_PRINTF(3, 4);

/* The targets. Nothing is left under j->out or beside it after a failure. */
enum tlm_status convert_to_mlx(struct convert_job *j, struct tlm_error *e);
enum tlm_status convert_to_gguf(struct convert_job *j, struct tlm_error *e); /* gguf_target.c */

#endif
