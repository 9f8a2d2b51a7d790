/* Prompt cache files: the keys and values of a prompt, computed before.
 *
 * The format is mlx-lm's with an extension (docs/internals/kvcache.md). Files of
 * turbolm hold the tokens: a request takes over what its prompt begins with.
 * Files of mlx-lm do not: a request's prompt is what follows. */
#ifndef TURBOLM_PROMPT_CACHE_H
#define TURBOLM_PROMPT_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tlm_prompt_cache;

/* Reads and checks a file; the data stay mapped. A name without .safetensors is
 * tried with it, too. */
TLM_API enum tlm_status tlm_prompt_cache_open(const char *path, struct tlm_prompt_cache **out, struct tlm_error *e);
/* Requests that use it must be done. NULL allowed. */
TLM_API void tlm_prompt_cache_close(struct tlm_prompt_cache *c);

struct tlm_prompt_cache_info {
    const char *model;            /* as its maker was given it, or NULL */
    const char *tokenizer_config; /* JSON, or NULL */
    size_t n_tokens;
    const int32_t *tokens; /* NULL: mlx-lm made the file */
    const char *text;      /* of the user's message in the cached prompt, or NULL: not known */
    const char *kv_format; /* what tlm_model_options.kv_format must be; NULL: any exact one */
    int kv_bits, kv_group_size;
    int64_t kv_sink, quantized_kv_start; /* -1: not said */
    int64_t max_kv_size;                 /* 0: none; -1: not said */
    int64_t max_kv_keep;                 /* first tokens that stay in sight with it */
    const char *chat_template;           /* SHA-256 of its text, "" without one, NULL: not known */
    const char *path;                    /* of the file */
};
/* Strings live as long as the cache. */
TLM_API void tlm_prompt_cache_info_get(const struct tlm_prompt_cache *c, struct tlm_prompt_cache_info *out);

/* SHA-256 of a model's chat template; "" without one. */
enum { TLM_SHA256_TEXT = 65 };
TLM_API void tlm_model_template_hash(const struct tlm_model *m, char out[TLM_SHA256_TEXT]);

/* A request with a prompt cache of another model is refused; one of the same
 * model in another weight format (GGUF, quantised) is used with a warning. Files
 * of mlx-lm say nothing of weights: only shapes are compared.
 *
 * How a request is saved. Strings must live until it is done. */
struct tlm_prompt_save {
    const char *path;             /* .safetensors is added where it is missing; replaced when it exists. A submit
                                     fails when it cannot be written */
    const char *model;            /* recorded as it is given */
    const char *tokenizer_config; /* JSON, or NULL */
    const char *text;             /* see tlm_prompt_cache_info, or NULL */
};

#ifdef __cplusplus
}
#endif
#endif
