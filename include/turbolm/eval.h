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

/* During the work, again and again with the rows that are finished; not 0 ends
 * the measurement with TLM_ECANCELED. */
typedef int tlm_perplexity_fn(void *user, size_t rows_done, size_t rows);

/* Zero-initialise: zeros are the defaults. What is computed at once changes no
 * bit of the results. */
struct tlm_perplexity_options {
    size_t row_length;          /* tokens in a row, at least 2 */
    size_t score_from;          /* positions from here on count, 1 .. row_length - 1; 0: 1 */
    size_t batch;               /* most rows at once; 0: 8 */
    size_t pass_tokens;         /* most tokens of one pass; 0: 2048 */
    const char *reference;      /* cache format to compare with, like "f16"; NULL: none */
    const char *const *formats; /* [n_formats] cache formats to measure; none: the model's own */
    size_t n_formats;
    tlm_perplexity_fn *report; /* may be NULL */
    void *user;
};

enum { TLM_KV_NAME_MAX = 64 };

struct tlm_perplexity {
    char kv_format[TLM_KV_NAME_MAX]; /* keys:values of the first layer: "f16", "chan4+pre+mix:tq4" */
    double kv_bits;                  /* per element of a sealed block, everything counted */
    uint64_t cache_bytes;            /* of the blocks of one row's cache at its end, sink and open ones included */
    double perplexity, error;        /* exp(mean loss); its standard error */
    size_t tokens;                   /* scored */
    /* With a reference r, over the scored positions: */
    double kl_mean, kl_p99;             /* of KL(r || this), in nats */
    double top1;                        /* share of positions where both like the same token best */
    double ratio, ratio_error;          /* perplexity over that of r; its standard error */
    double logit_error, logit_distance; /* mean and greatest |logit - r's logit|, over the whole vocabulary */
};

/* Rows of ids [rows, row_length], each from an empty cache; every token is
 * scored through the cache, as it would be generated: a row sees the block it
 * stands in exactly and earlier ones in the cache's format. out [n_formats, or
 * 1 without formats]. Formats share the sink and the other settings of the
 * model's cache. All caches go forward in lockstep, so that the reference is
 * computed once; memory grows with the number of formats by the caches of one
 * batch and 4 bytes for each scored token. */
TLM_API enum tlm_status tlm_model_perplexity(struct tlm_model *m, const int32_t *ids, size_t rows,
                                             const struct tlm_perplexity_options *o, struct tlm_perplexity *out,
                                             struct tlm_error *e);

/* Model b against a on the same rows, the two in lockstep as the formats above.
 * o->reference is the cache format of a (NULL: its own), o->formats at most one
 * of b. Ids must be of both vocabularies; of logits those that only the larger
 * one has are left out, of its softmax, too. of_b: with the figures relative to
 * a. a and b may be one model. */
TLM_API enum tlm_status tlm_model_compare(struct tlm_model *a, struct tlm_model *b, const int32_t *ids, size_t rows,
                                          const struct tlm_perplexity_options *o, struct tlm_perplexity *of_a,
                                          struct tlm_perplexity *of_b, struct tlm_error *e);

/* Name i of the presets of cache formats, like "turbo4"; NULL past the last. */
TLM_API const char *tlm_kv_preset(size_t i);

/* TLM_OK when the format is one that the model's cache can have. */
TLM_API enum tlm_status tlm_model_kv_check(const struct tlm_model *m, const char *format, struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
