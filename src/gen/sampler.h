/* One request's sampler: its settings, its stream of random numbers, its
 * history. Works on one row of logits at a time. See turbolm/engine.h for the
 * order of steps and docs of each setting. */
#ifndef GEN_SAMPLER_H
#define GEN_SAMPLER_H

#include <turbolm/engine.h>

#include "base/err.h"

struct sampler;

struct sampler_env {
    size_t vocab_size;
    const int32_t *keep; /* ids that XTC never removes: newline tokens and EOS */
    size_t n_keep;
};

/* Copies everything it needs. Warns once (log_warn) about each filter that has
 * no effect at temperature 0. */
enum tlm_status sampler_new(const struct tlm_sampling *s, const struct sampler_env *env, struct sampler **out,
                            struct tlm_error *e);
void sampler_free(struct sampler *s);

/* Adds tokens to the history that penalties look at (the prompt, then each
 * sampled token by the caller). No allocation after sampler_reserve. */
enum tlm_status sampler_reserve(struct sampler *s, size_t n_tokens, struct tlm_error *e);
enum tlm_status sampler_accept(struct sampler *s, const int32_t *ids, size_t n, struct tlm_error *e);

/* Draws the next token from logits [vocab_size], which are overwritten.
 * *logprob: natural log of its probability after bias and penalties, before
 * the filters. A row without a finite logit is an error. */
enum tlm_status sampler_draw(struct sampler *s, float *logits, int32_t *token, float *logprob, struct tlm_error *e);

#endif
