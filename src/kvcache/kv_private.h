/* Shared by the files of kvcache/ only. */
#ifndef KVCACHE_KV_PRIVATE_H
#define KVCACHE_KV_PRIVATE_H

#include "kvcache/kv.h"
#include "kvcache/kv_pool.h"

struct kv_layer {
    struct kv_shape shape;
    int group;
    size_t open_offset, sealed_offset; /* of this layer's part in a block of its group */
    const struct kv_codec *key, *value;
};

struct kv_group {
    int64_t window, keep; /* 0: full */
    bool encoded;         /* some layer's sealed blocks are not exact ones */
    struct kv_pool open;
    struct kv_pool sealed; /* unused unless encoded */
};

/* Angles of block starts and of places in a block, of one rotary table. */
struct kv_turns {
    const struct rope *rope;
    struct kv_turn turn; /* start_cos, start_sin: NULL */
    float *cos, *sin;    /* [dims / 2][KV_BLOCK] */
    int16_t *words;      /* the same as integers, cosines first */
    uint16_t rows[KV_DIM_MAX];
    float *starts; /* of positions 0, 64, ...: cos, then sin [dims / 2] */
    int16_t *start_words;
    int64_t n_starts, cap_starts;
};

enum { KV_ROPES = 8 }; /* distinct rotary tables of one model */

struct kv_node;

/* States to which a sequence or a prefix can go back, by rising position. */
struct kv_checkpoint {
    int64_t position; /* tokens before it */
    int32_t state;    /* block of kv_cache.states */
};

struct kv_checkpoints {
    struct kv_checkpoint *at;
    int n, cap;
};

struct kv_cache {
    struct backend *be;
    struct kv_layer *layers;
    int n_layers;
    struct kv_group *groups;
    int n_groups;
    struct kv_codec *codecs; /* distinct ones */
    int n_codecs;
    bool encoded; /* some group is */
    int64_t sink, start;
    size_t bytes, keep_bytes;
    struct kv_pool states; /* of recurrent layers; blocks of 0 bytes: there are none */
    int32_t zero_state;    /* an empty sequence's */
    struct kv_turns turns[KV_ROPES];
    int n_turns;
    struct kv_node *index; /* the root, or NULL */
    struct kv_node *newest, *oldest;
};

/* Some tokens: the first `count` of a block in each group. */
struct kv_entry {
    int64_t start;
    int32_t count; /* committed */
    bool sealed;   /* in encoded groups the block is of the sealed pool */
};

enum { KV_NONE = -1 }; /* no block */

struct kv_seq {
    struct kv_cache *cache;
    struct kv_entry *entries;
    int32_t *ids; /* [entries][groups]: blocks, or KV_NONE */
    int n, cap;
    int64_t length;  /* tokens that passes have committed */
    int *live;       /* [groups] entries below it have given their block back, kept ones excepted */
    int32_t *tokens; /* [length] when known */
    int64_t cap_tokens;
    bool known;
    int32_t state; /* after `length` tokens; unused without recurrent layers */
    struct kv_checkpoints checkpoints;
};

static inline struct kv_pool *kv_entry_pool(const struct kv_cache *kv, int group, bool sealed)
{
    struct kv_group *g = &kv->groups[group];
    return g->encoded && sealed ? &g->sealed : &g->open;
}

static inline int32_t *kv_entry_ids(const struct kv_seq *s, int entry)
{
    return s->ids + (size_t)entry * (size_t)s->cache->n_groups;
}

static inline bool kv_has_states(const struct kv_cache *kv)
{
    return kv->states.block_bytes != 0;
}

/* A block of a pool; drops prefixes where the cache would grow too large. */
enum tlm_status kv_block_get(struct kv_cache *kv, struct kv_pool *p, int32_t *block, struct tlm_error *e);

/* One more entry, without blocks and tokens, starting where the last one ends. */
enum tlm_status kv_seq_add_entry(struct kv_seq *s, int64_t start, struct tlm_error *e);
/* Room for tokens up to `end`. */
enum tlm_status kv_seq_reserve_tokens(struct kv_seq *s, int64_t end, struct tlm_error *e);
/* Makes the last entry's blocks the sequence's own. */
enum tlm_status kv_seq_own_last(struct kv_seq *s, struct tlm_error *e);
/* Gives back the last entries that hold no token. */
void kv_seq_shrink(struct kv_seq *s);
/* Gives back blocks that no later row of a window group can see. */
void kv_seq_release_windows(struct kv_seq *s);
/* The first position that a row at n sees in a window group; at least the one
 * before n, because its block may still be filling. */
int64_t kv_first_seen(const struct kv_group *g, int64_t n);
/* Can the sequence be gone on from position n: do the window groups still have
 * what a row there sees, and is its state there? */
bool kv_seq_reaches(const struct kv_seq *s, int64_t n);

/* The pool of states and the empty sequence's, for a config that has any. */
enum tlm_status kv_state_init(struct kv_cache *kv, const struct kv_config *c, struct tlm_error *e);
/* The state after n tokens, KV_NONE when there is no checkpoint. */
int32_t kv_state_at(const struct kv_seq *s, int64_t n);
/* Takes a reference to a state in place of the one that s has. */
void kv_state_set(struct kv_seq *s, int32_t state);

enum tlm_status kv_checkpoints_reserve(struct kv_checkpoints *c, int more, struct tlm_error *e);
/* How many have a position below n. */
int kv_checkpoints_below(const struct kv_checkpoints *c, int64_t n);
/* Gives back all but the first `keep`. */
void kv_checkpoints_cut(struct kv_cache *kv, struct kv_checkpoints *c, int keep);
void kv_checkpoints_deinit(struct kv_cache *kv, struct kv_checkpoints *c);
/* Shares those of `from` with after < position <= end, where `to` has none. On
 * failure `to` is as it was. */
enum tlm_status kv_checkpoints_share(struct kv_cache *kv, struct kv_checkpoints *to, const struct kv_checkpoints *from,
                                     int64_t after, int64_t end, struct tlm_error *e);

/* Gives back least recently used prefixes until p has a free block or none is left. */
void kv_index_evict(struct kv_cache *kv, const struct kv_pool *p);

#endif
