/* Layout of one layer's part of a cache block of KV_BLOCK tokens.
 *
 * Exact blocks, which are being filled or stay as they are:
 *
 *   keys    [n_heads][head_dim][KV_BLOCK]    transposed: lanes run over tokens
 *   values  [n_heads][KV_BLOCK][v_dim]
 *
 * Encoded blocks: the keys' heads, then the values' heads, each as its codec
 * lays it out (kvformat/kv_codec.h).
 *
 * Keys lie across tokens so that a score loop adds q[d] * K[d][0..63] with no
 * sum across lanes, in the order of d, and so that a scale per channel is one
 * number per row. */
#ifndef BACKEND_KV_BLOCK_H
#define BACKEND_KV_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "kvformat/kv_codec.h"

/* Element types of exact blocks. */
enum kv_type { KV_F32, KV_F16, KV_BF16, KV_TYPE_COUNT };

struct kv_shape {
    enum kv_type type;
    int n_heads; /* key and value heads */
    int head_dim, v_dim;
};

static inline size_t kv_elem_bytes(enum kv_type t)
{
    return t == KV_F32 ? 4 : 2;
}

static inline size_t kv_keys_bytes(const struct kv_shape *s)
{
    return (size_t)s->n_heads * (size_t)s->head_dim * KV_BLOCK * kv_elem_bytes(s->type);
}

static inline size_t kv_layer_bytes(const struct kv_shape *s)
{
    return kv_keys_bytes(s) + (size_t)s->n_heads * (size_t)s->v_dim * KV_BLOCK * kv_elem_bytes(s->type);
}

/* The format whose bytes exact blocks of a type hold. */
static inline enum kv_kind kv_type_kind(enum kv_type t)
{
    return t == KV_F32 ? KVF_F32 : t == KV_F16 ? KVF_F16 : KVF_BF16;
}

#endif
