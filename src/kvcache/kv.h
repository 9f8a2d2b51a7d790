/* The cache of keys and values.
 *
 * Memory is blocks of up to KV_BLOCK tokens, counted by reference. Layers that
 * keep the same tokens (all of them, or a window of w) form a group; a block
 * holds its tokens for every layer of its group. A sequence is a list of
 * entries, each some tokens of one block per group:
 *
 *   entry             0        1        2        3
 *   tokens          0..63   64..127  128..149  150..     (a cut block keeps its first 22)
 *   group 0 (full)   b3       b7       b1       b4
 *   group 1 (window)  -       b2       b5       b6        old blocks have been given back
 *
 * A block is exact while it fills. In a cache with encoded formats it is sealed
 * when its 64 tokens are there: encoded into the formats of its layers. A row
 * sees the block it stands in exactly and every earlier one as it is kept,
 * however the prompt was cut into passes; the first blocks may stay exact
 * (sink). Sequences share blocks; who writes into a shared one copies it first.
 * Finished sequences can be left in an index of prefixes, from which later ones
 * start; the index gives blocks back, the least recently used first, when
 * memory runs short.
 *
 * Recurrent layers (state space models, linear attention) have no row per
 * token but one state, which every token overwrites, so it cannot be cut back.
 * The cache keeps it as opaque bytes, one state for all recurrent layers of a
 * sequence, and earlier ones, checkpoints, where somebody will want to go back
 * to: rewinds, forks and prefixes end at those.
 *
 * The engine's thread owns it all; nothing here locks. */
#ifndef KVCACHE_KV_H
#define KVCACHE_KV_H

#include "tensor/ctx.h"
#include "tensor/rope.h"

struct kv_layer_config {
    int64_t window; /* 0: every earlier token; w: the last w, the query's own included */
    struct kv_shape shape;
    struct kv_format key, value; /* of sealed blocks; both exact and of the shape's type: nothing is encoded */
};

struct kv_config {
    const struct kv_layer_config *layers;
    int n_layers;
    size_t limit_bytes; /* of all blocks and states together; 0: no bound */
    size_t keep_bytes;  /* beyond it prefixes are dropped before memory grows; 0: no bound */
    int64_t sink;       /* blocks that begin below this position stay exact */
    int64_t start;      /* sequences shorter than this keep every block exact */
    int64_t max_tokens; /* rows see the first `kept` and the last max_tokens - kept; 0: all */
    int64_t kept;
    size_t state_bytes; /* of a sequence's recurrent layers; 0: there are none */
};

struct kv_cache;
struct kv_seq;

enum tlm_status kv_cache_new(const struct kv_config *c, struct backend *be, struct kv_cache **out, struct tlm_error *e);
void kv_cache_free(struct kv_cache *kv);          /* every sequence must be gone */
size_t kv_cache_bytes(const struct kv_cache *kv); /* allocated for blocks and states */
size_t kv_cache_used(const struct kv_cache *kv);  /* of those that are in use */

struct kv_figures {
    size_t token_bytes; /* per token of context, all layers, in sealed blocks (exact ones where nothing is encoded) */
    size_t exact_bytes; /* per token in exact blocks */
    double bits;        /* per element of a sealed block, everything counted */
    double key_bits, value_bits;
};
void kv_cache_figures(const struct kv_cache *kv, struct kv_figures *out);
/* Blocks in use for a sequence of n tokens, bytes: sink, open block and a pass's
 * states included, checkpoints not. */
size_t kv_cache_needs(const struct kv_cache *kv, int64_t n);

enum tlm_status kv_seq_new(struct kv_cache *kv, struct kv_seq **out, struct tlm_error *e);
void kv_seq_free(struct kv_seq *s);
int64_t kv_seq_length(const struct kv_seq *s);
/* Takes n tokens as read, with zeros for their keys and values; its state stays. */
enum tlm_status kv_seq_assume(struct kv_seq *s, int64_t n, struct tlm_error *e);
/* Rewinds to its first n tokens. False, and nothing changed, when a window has
 * given back what the next row would see, or when recurrent layers have no
 * state there: n is neither 0, nor the length, nor a checkpoint. */
bool kv_seq_trim(struct kv_seq *s, int64_t n);
/* The greatest length of at most n >= 0 that trim can reach. */
int64_t kv_seq_reach(const struct kv_seq *s, int64_t n);
/* A new sequence that shares the first n tokens of s and the checkpoints among
 * them; NULL in *out where trim would be false. */
enum tlm_status kv_seq_fork(const struct kv_seq *s, int64_t n, struct kv_seq **out, struct tlm_error *e);

/* State of the recurrent layers after the last committed row, 64-byte aligned;
 * zeros for an empty sequence. Valid until the next call that changes s. NULL
 * without recurrent layers. */
const void *kv_seq_state(const struct kv_seq *s);
/* Keeps the state of the current length. It stays valid for that position
 * until the sequence is rewound below it or freed. Nothing is copied: a state
 * is never written twice. Does nothing without recurrent layers. */
enum tlm_status kv_seq_checkpoint(struct kv_seq *s, struct tlm_error *e);

/* Leaves the sequence's blocks and checkpoints in the prefix index; s stays as
 * it is. Does nothing when not all its tokens are known. With recurrent layers
 * nothing is left behind the last checkpoint: no match could end there. */
enum tlm_status kv_index_add(struct kv_seq *s, struct tlm_error *e);
/* A new sequence with the longest indexed prefix of ids, at most `most` tokens.
 * whole: nothing is cut out of an encoded block, so that a row computed next
 * is what it would be without the index. With recurrent layers it ends at a
 * checkpoint; whole: at one where an encoded block ends or in an exact block. */
enum tlm_status kv_index_match(struct kv_cache *kv, const int32_t *ids, int64_t most, bool whole, struct kv_seq **out,
                               struct tlm_error *e);
/* Forgets every prefix. */
void kv_index_clear(struct kv_cache *kv);

/* One sequence's share of a packed batch: rows row .. row+rows are its next
 * tokens. */
struct kv_span {
    struct kv_seq *seq;
    int64_t row, rows;
};

/* The most rows that a sequence's next pass may have: where its blocks begin to
 * be sealed (kv_config.start) a pass ends. */
int64_t kv_seq_most_rows(const struct kv_seq *s);

/* A pass over the cache. Begin makes room for every span's rows; the pass
 * attends layer by layer; commit makes the rows part of the sequences, abort
 * leaves them as they were. Lives in the ctx's step memory. */
struct kv_pass;

/* ids [T]: of the rows; NULL: not known, then the sequences cannot go into the
 * index. */
struct kv_pass *kv_pass_begin(struct ctx *c, struct kv_cache *kv, const int32_t *ids, const struct kv_span *spans,
                              int n_spans);
void kv_pass_commit(struct kv_pass *p);
void kv_pass_abort(struct kv_pass *p);

/* Where the pass writes the state after the rows of spans[span], all of it: the
 * memory is not initialised. The state before them stays kv_seq_state's, so a
 * layer reads its part there and writes it here, and abort leaves the sequence
 * as it was. NULL without recurrent layers. */
void *kv_pass_state(struct kv_pass *p, int span);

struct kv_opts {
    float scale;             /* on q.k */
    float softcap;           /* 0: none */
    const float *sinks;      /* [heads], or NULL */
    const struct rope *rope; /* NULL: none */
};

/* Rotates q [T, H*hd] and k [T, Hk*hd], appends k and v [T, Hk*vd] to the
 * spans' sequences in `layer`, and attends: [T, H*vd]. Keys come before rotary
 * because a format may keep them so. */
struct tensor *kv_attend(struct ctx *c, struct kv_pass *p, int layer, const struct tensor *q, const struct tensor *k,
                         const struct tensor *v, const struct kv_opts *o);

#endif
