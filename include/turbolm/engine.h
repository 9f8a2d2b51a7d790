/* The engine: one thread owns a model and serves requests in packed batches.
 *
 * Callers submit requests and read one stream of events. A request's tokens
 * depend on nothing but itself: not on its company, not on chunk sizes. */
#ifndef TURBOLM_ENGINE_H
#define TURBOLM_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tlm_engine;
struct tlm_prompt_cache; /* prompt_cache.h */
struct tlm_prompt_save;

/* Sampling. tlm_sampling_default() gives greedy decoding. Order per token:
 * logit bias, repetition, presence, frequency penalties, log-softmax, then for
 * temperature 0 the best token, else top-p, min-p, XTC, top-k and a draw from
 * softmax(x / temperature). Generator: Threefry-2x32 as in JAX and MLX. */
struct tlm_logit_bias {
    int32_t token;
    float bias;
};

struct tlm_sampling {
    float temperature;                                           /* >= 0; 0: greedy */
    float top_p;                                                 /* 0..1; 0 and 1: off */
    float min_p;                                                 /* 0..1; 0: off */
    int min_tokens_to_keep;                                      /* >= 1, for min_p */
    int top_k;                                                   /* 0: off; below the vocabulary size */
    float xtc_probability;                                       /* 0..1; 0: off */
    float xtc_threshold;                                         /* 0..0.5 */
    float repetition_penalty;                                    /* >= 0; 0 and 1: off */
    float presence_penalty, frequency_penalty;                   /* 0: off */
    int repetition_context, presence_context, frequency_context; /* last n tokens, prompt included; 0: all */
    const struct tlm_logit_bias *logit_bias;
    size_t n_logit_bias;
    int has_seed;
    uint64_t seed; /* stream of this request; without has_seed the clock */
};
TLM_API void tlm_sampling_default(struct tlm_sampling *s);
/* Range checks with one-line messages. vocab_size 0: not checked against. */
TLM_API enum tlm_status tlm_sampling_check(const struct tlm_sampling *s, size_t vocab_size, struct tlm_error *e);

struct tlm_engine_options {
    int prefill_step_size; /* rows of prompt per step; 0: 2048 */
    int max_sequences;     /* running at once; 0: 64 */
    int max_queue;         /* waiting; 0: 1024; a submit beyond it gives TLM_EBUSY */
    /* Prefixes of finished requests are kept for later ones while the whole
     * cache is below this; 0: an eighth of the machine's memory; -1: none are kept. */
    int64_t prefix_cache_bytes;
};

/* Starts the engine's thread. The model must outlive it. One engine per model. */
TLM_API enum tlm_status tlm_engine_new(struct tlm_model *m, const struct tlm_engine_options *o, struct tlm_engine **out,
                                       struct tlm_error *e);
/* Cancels what runs, joins the thread. */
TLM_API void tlm_engine_free(struct tlm_engine *g);

/* TLM_ELIMIT when caches of so many tokens in each of so many sequences do not
 * fit in this machine's memory. A submit is checked the same way, together with
 * the requests that wait or run: when only the sum is too large, TLM_EBUSY. */
TLM_API enum tlm_status tlm_engine_check_size(const struct tlm_engine *g, int64_t tokens, int64_t sequences,
                                              struct tlm_error *e);

struct tlm_request {
    const int32_t *prompt; /* n_prompt ids, at least 1; copied */
    size_t n_prompt;
    int64_t max_tokens;           /* -1: until EOS or the context is full; 0: none */
    struct tlm_sampling sampling; /* arrays copied */
    const int32_t *eos;           /* ids that end it; NULL: the model's; n_eos 0 with a non-NULL pointer: none */
    size_t n_eos;
    const char *const *stop; /* texts that end it; matched across tokens, not emitted */
    size_t n_stop;
    int64_t assumed_depth; /* the cache is taken as holding this many tokens already (benchmarks) */
    const struct tlm_prompt_cache *prompt_cache; /* to start from, or NULL; must live until the request is done */
    const struct tlm_prompt_save *save;          /* what is written when it ends well, or NULL; with max_tokens 0 the
                                                    prompt is computed nevertheless */
};

/* *id: never 0. */
TLM_API enum tlm_status tlm_engine_submit(struct tlm_engine *g, const struct tlm_request *r, uint64_t *id,
                                          struct tlm_error *e);
/* The request ends soon with TLM_FINISH_CANCELLED. Not for signal handlers. */
TLM_API void tlm_engine_cancel(struct tlm_engine *g, uint64_t id);

enum tlm_event_type {
    TLM_EVENT_NONE,     /* nothing within the timeout */
    TLM_EVENT_PROGRESS, /* prompt: `processed` of `total` tokens */
    TLM_EVENT_TOKEN,    /* a sampled token; its text may be empty (held back) */
    TLM_EVENT_DONE      /* the last event of a request; may carry text that was held back */
};

enum tlm_finish {
    TLM_FINISH_NONE,
    TLM_FINISH_STOP,   /* EOS or a stop text */
    TLM_FINISH_LENGTH, /* max_tokens; when that is -1, the context is full */
    TLM_FINISH_CANCELLED,
    TLM_FINISH_ERROR /* see status and message */
};

struct tlm_stats {
    /* Tokens of the prompt, those of them that were not computed, and generated ones, EOS counted. */
    size_t prompt_tokens, cached_tokens, generated_tokens;
    double prompt_seconds;     /* from start of work to the first token */
    double generation_seconds; /* from the first token to the last */
};

struct tlm_event {
    enum tlm_event_type type;
    uint64_t id;
    int32_t token;    /* TOKEN */
    float logprob;    /* TOKEN: natural log, before filters and temperature */
    const char *text; /* TOKEN, DONE: len bytes of UTF-8, then NUL; NULL without a tokenizer */
    size_t text_len;
    size_t processed, total; /* PROGRESS */
    enum tlm_finish finish;  /* DONE */
    enum tlm_status status;  /* DONE */
    const char *message;     /* DONE with an error */
    struct tlm_stats stats;  /* DONE */
};

/* Waits up to timeout_ms (-1: for ever) for the next event of any request.
 * Pointers in *ev are valid until the next call. One reader at a time. */
TLM_API enum tlm_status tlm_engine_next(struct tlm_engine *g, int timeout_ms, struct tlm_event *ev,
                                        struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
