/* One request inside the engine: what was asked, how far it is. */
#ifndef GEN_REQUEST_H
#define GEN_REQUEST_H

#include <stdbool.h>
#include <turbolm/engine.h>
#include <turbolm/prompt_cache.h>

#include "gen/sampler.h"
#include "gen/stop.h"
#include "kvcache/kv.h"

struct request {
    uint64_t id;
    int32_t *prompt;
    size_t n_prompt, done; /* prompt tokens that are in the cache */
    size_t n_cached;       /* those that were there before */
    size_t n_before;       /* in front of the prompt, of a prompt cache without tokens */
    int64_t max_tokens, assumed_depth;
    size_t cache_bytes; /* promised to it */
    int32_t *eos;
    size_t n_eos;
    struct sampler *sampler;
    struct tlm_detokenizer *detok; /* NULL without a tokenizer */
    struct stop stop;
    struct kv_seq *seq;
    const struct tlm_prompt_cache *prompt_cache; /* or NULL */
    const struct tlm_prompt_save *save;          /* or NULL */
    int32_t next;                                /* the token that the next step feeds */
    size_t generated;
    bool cancelled;
    double started, first_token, last_token; /* seconds, monotonic */
    struct buf text;                         /* of the event being made */
    struct request *link;                    /* waiting queue */
};

/* Copies all of r. `eos` are the model's ids, used when r gives none. */
enum tlm_status request_new(const struct tlm_request *r, const struct tlm_tokenizer *tok, const struct sampler_env *env,
                            const int32_t *eos, size_t n_eos, struct request **out, struct tlm_error *e);
void request_free(struct request *q);
bool request_is_eos(const struct request *q, int32_t token);

#endif
