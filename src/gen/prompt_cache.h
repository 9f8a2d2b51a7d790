/* Prompt cache files and the engine. */
#ifndef GEN_PROMPT_CACHE_H
#define GEN_PROMPT_CACHE_H

#include <turbolm/prompt_cache.h>

#include "models/model.h"

/* Refuses a file of another model. */
enum tlm_status prompt_cache_check(const struct tlm_prompt_cache *c, const struct tlm_model *m, struct tlm_error *e);

/* A sequence for a prompt that starts from a file: with its tokens known, what
 * prompt and file have in common, or more of it where the index has more, but at
 * least one token is left to compute; else (*follows) all of the file. */
enum tlm_status prompt_cache_start(const struct tlm_model *m, struct kv_cache *kv, const struct tlm_prompt_cache *c,
                                   const int32_t *prompt, size_t n_prompt, struct kv_seq **out, bool *follows,
                                   struct tlm_error *e);

/* Whether it could be written, before anything is computed. */
enum tlm_status prompt_cache_save_check(const struct tlm_prompt_save *o, struct tlm_error *e);
enum tlm_status prompt_cache_save(const struct tlm_model *m, const struct kv_seq *seq, const struct tlm_prompt_save *o,
                                  struct tlm_error *e);

#endif
