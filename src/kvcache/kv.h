/* The cache of keys and values.
 *
 * Memory is blocks of KV_BLOCK tokens. Layers that keep the same tokens (all
 * of them, or a window of w) form a group; a block holds its tokens for every
 * layer of its group. A sequence has one table of blocks per group:
 *
 *   group 0 (full)    | b3 | b7 | b1 |        positions 0 ..
 *   group 1 (window)       | b2 | b5 |        old blocks have been given back
 *
 * The engine's thread owns it all; nothing here locks. */
#ifndef KVCACHE_KV_H
#define KVCACHE_KV_H

#include "tensor/ctx.h"
#include "tensor/rope.h"

struct kv_layer_config {
    int64_t window; /* 0: every earlier token; w: the last w, the query's own included */
    struct kv_shape shape;
};

struct kv_cache;
struct kv_seq;

/* limit_bytes bounds all blocks together; 0: no bound. */
enum tlm_status kv_cache_new(const struct kv_layer_config *layers, int n_layers, size_t limit_bytes,
                             struct kv_cache **out, struct tlm_error *e);
void kv_cache_free(struct kv_cache *kv);                /* every sequence must be gone */
size_t kv_cache_bytes(const struct kv_cache *kv);       /* allocated for blocks */
size_t kv_cache_token_bytes(const struct kv_cache *kv); /* per token of context, all layers */

enum tlm_status kv_seq_new(struct kv_cache *kv, struct kv_seq **out, struct tlm_error *e);
void kv_seq_free(struct kv_seq *s);
int64_t kv_seq_length(const struct kv_seq *s);
/* Takes n tokens as read, with zeros for their keys and values. */
enum tlm_status kv_seq_assume(struct kv_seq *s, int64_t n, struct tlm_error *e);

/* One sequence's share of a packed batch: rows row .. row+rows are its next
 * tokens. */
struct kv_span {
    struct kv_seq *seq;
    int64_t row, rows;
};

/* A pass over the cache. Begin makes room for every span's rows; the pass
 * attends layer by layer; commit makes the rows part of the sequences, abort
 * leaves them as they were. Lives in the ctx's step memory. */
struct kv_pass;

struct kv_pass *kv_pass_begin(struct ctx *c, struct kv_cache *kv, const struct kv_span *spans, int n_spans);
void kv_pass_commit(struct kv_pass *p);
void kv_pass_abort(struct kv_pass *p);

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
