/* What the files of attention share: a tile of queries, a worker's memory, and
 * what a block adds to a tile (attention_block.c). */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "backend/cpu/cpu_backend.h"

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Query rows of one span times query heads of one key head. */
struct tile {
    const struct attn_span *span;
    int64_t row, rows; /* of the span */
    int kv_head;
    int head, heads; /* query heads */
    int own;         /* with encoded blocks: which of span->own the rows stand in; else -1 */
    int from, to;    /* blocks of the span: [from, to) */
    float *part;     /* [queries * (2 + v_dim)] states, then sums of one chunk; NULL: finished in the task */
    int parts;       /* of a merge */
};

/* A worker's memory for one tile. The second column is there with encoded
 * blocks only. */
struct area {
    float *q, *s;                     /* [queries, head_dim], [queries, KV_BLOCK] */
    float *acc, *total;               /* [queries, v_dim] */
    struct attn_state *st, *total_st; /* [queries] */
    float *rotated, *sketch, *turned; /* q in the frames of the key codec, [queries, head_dim] */
    float *s2;                        /* [queries, KV_BLOCK] */
    float *acc_rotated;               /* [queries, v_dim], in the frame of the value codec */
    bool has_rotated;                 /* acc_rotated holds something */
    float *codec;                     /* [cpu_codec_floats] */
    /* With a codec whose products are taken in integers: */
    int16_t *words; /* queries, [queries, head_dim], or probabilities, [queries, KV_BLOCK] */
    int16_t *value_words;
    float *units, *query_sums;       /* of the queries' words, sums of queries: [key groups, queries] */
    float *value_units, *value_sums; /* [queries] */
    int64_t queries;
};

struct attend {
    struct cpu_backend *b;
    const struct attn_args *a;
    float *y;
    const float *q;
    char *areas;
    size_t area_bytes;
    struct tile *tasks, *merges; /* a split tile is one task per chunk and one merge */
    int n_tasks, n_merges;
    float *parts;
    int64_t part_floats;
    int64_t split; /* cost above which a tile is split */
    int64_t work;  /* multiply-adds of the call, about */
};

/* Brings states and sums of w up to date with one block. */
void cpu_attend_block(const struct attend *x, const struct tile *t, struct area *w, int block);

/* Whether scores, or sums of values, over encoded blocks are taken in integers (attention_int.c). */
bool cpu_int_keys(const struct attn_args *a);
bool cpu_int_values(const struct attn_args *a);
/* The words of all queries, q in the frame of the codes. */
void cpu_int_queries(const struct attend *x, const struct area *w, const float *q);
/* Scores of n queries from the first on with one block's keys `in`, and their probabilities times its values
 * added to sums. ahead: as below. */
void cpu_int_scores(const struct attend *x, const struct area *w, int64_t first, int n, const struct attn_block *block,
                    const void *in, const void *ahead);
void cpu_int_sums(const struct attend *x, const struct area *w, int64_t first, int n, const void *in, const void *ahead,
                  float *sums);

/* Floats of work memory for blocks of this codec: a decoded tile, vectors of
 * scales, and what kv_codec_decode and kv_codec_encode take. */
size_t cpu_codec_floats(const struct kv_codec *c);
/* One head's keys as [dim][KV_BLOCK] in the frame of the codes (SPLIT: in the
 * plain one), less factors of tokens and the centre. turn: of the block. ahead:
 * the head of the next block, brought into the cache meanwhile, or NULL. */
float *cpu_key_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *in, const void *ahead,
                    const struct kv_turn *turn, float *work);
/* The same in integers, which times the unit returned are the elements: where the codec has factors of tokens or
 * offsets, less these. With a turn, channels of a rotary pair are rows turn->dims / 2 apart. */
int16_t *cpu_key_words(const struct cpu_backend *b, const struct kv_codec *c, const void *in,
                       const struct kv_turn *turn, float *work, float *unit);
int16_t *cpu_value_words(const struct cpu_backend *b, const struct kv_codec *c, const void *in, float *work,
                         float *unit);
/* The signs of its sketch, [dim][KV_BLOCK] of 1 and -1. */
float *cpu_sketch_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *in, float *work);
/* One head's values as [KV_BLOCK][dim], likewise. */
float *cpu_value_tile(const struct cpu_backend *b, const struct kv_codec *c, const void *in, const void *ahead,
                      float *work);

#endif
