/* Angles for keys that are kept before rotary. Internal to kvcache/. */
#ifndef KVCACHE_KV_TURN_H
#define KVCACHE_KV_TURN_H

#include "kvcache/kv_private.h"

/* The tables of a rotary embedding; NULL with the error set. */
struct kv_turns *kv_turns_for(struct kv_cache *kv, const struct rope *rope, struct tlm_error *e);
/* Makes the angles of block starts below `end` that are multiples of KV_BLOCK. */
enum tlm_status kv_turns_reserve(struct kv_turns *t, int64_t end, struct tlm_error *e);
/* cos, then sin [dims / 2] of any position, and these in 2^-15. */
void kv_turn_start(const struct kv_turns *t, int64_t position, float *out, int16_t *words);

#endif
