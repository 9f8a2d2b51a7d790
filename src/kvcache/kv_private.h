/* Shared by kv.c and kv_pass.c only. */
#ifndef KVCACHE_KV_PRIVATE_H
#define KVCACHE_KV_PRIVATE_H

#include "kvcache/kv.h"
#include "kvcache/kv_pool.h"

struct kv_layer {
    struct kv_shape shape;
    int group;
    size_t offset; /* of this layer's part in a block of its group */
};

struct kv_group {
    int64_t window; /* 0: full */
    size_t block_bytes;
    struct kv_pool pool;
};

struct kv_cache {
    struct kv_layer *layers;
    int n_layers;
    struct kv_group *groups;
    int n_groups;
    size_t bytes;
};

/* Blocks of one sequence in one group, for positions base, base + KV_BLOCK … */
struct kv_table {
    int32_t *blocks;
    int n, cap;
    int64_t base;
};

struct kv_seq {
    struct kv_cache *cache;
    struct kv_table *tables; /* one per group */
    int64_t length;          /* tokens that passes have committed */
};

/* Blocks for positions up to end, exclusive. */
enum tlm_status kv_seq_extend(struct kv_seq *s, int64_t end, struct tlm_error *e);
/* Gives back blocks beyond the committed length. */
void kv_seq_shrink(struct kv_seq *s);
/* Gives back blocks that no later query of a window group can see. */
void kv_seq_release_windows(struct kv_seq *s);

#endif
