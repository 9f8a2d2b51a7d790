/* Measuring a model on text. */
#ifndef TURBOLM_EVAL_H
#define TURBOLM_EVAL_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After each batch of rows; not 0 ends the measurement with TLM_ECANCELED. */
typedef int tlm_perplexity_fn(void *user, size_t rows_done, size_t rows);

struct tlm_perplexity_options {
    size_t row_length;         /* tokens in a row, at least 2 */
    size_t score_from;         /* positions from here on count, 1 .. row_length - 1; 0: 1 */
    size_t batch;              /* rows at once; 0: 8 */
    const char *reference;     /* cache format to compare with, like "f16"; NULL: none */
    tlm_perplexity_fn *report; /* may be NULL */
    void *user;
};

struct tlm_perplexity {
    double perplexity, error; /* exp(mean loss); its standard error */
    size_t tokens;            /* scored */
    uint64_t cache_bytes;     /* that the caches of one batch took, sink and open blocks included */
    /* With a reference r, over the scored positions: */
    double kl_mean, kl_p99;    /* of KL(r || this), in nats */
    double top1;               /* share of positions where both like the same token best */
    double ratio, ratio_error; /* perplexity over that of r; its standard error */
};

/* Rows of ids [rows, row_length], each from an empty cache; every token is
 * scored through the cache, as it would be generated: a row sees the block it
 * stands in exactly and earlier ones in the cache's format. */
TLM_API enum tlm_status tlm_model_perplexity(struct tlm_model *m, const int32_t *ids, size_t rows,
                                             const struct tlm_perplexity_options *o, struct tlm_perplexity *out,
                                             struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
