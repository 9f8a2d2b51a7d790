/* Angles for keys before rotary: those of a block's start and those of a
 * token's place in it, from the model's own tables. An attention factor in
 * them is taken out, so that both are plain rotations. */
#include "kvcache/kv_turn.h"

#include <math.h>

#include "base/mem.h"

static void unit(float *cos, float *sin)
{
    float r = hypotf(*cos, *sin);
    if (r > 0) {
        *cos /= r;
        *sin /= r;
    }
}

static int16_t word(float x)
{
    float w = rintf(x * 32768);
    return (int16_t)(w > INT16_MAX ? INT16_MAX : w < -INT16_MAX ? -INT16_MAX : w);
}

void kv_turn_start(const struct kv_turns *t, int64_t position, float *out, int16_t *words)
{
    int half = t->turn.dims / 2;
    rope_table(t->rope, position, 1, out, out + half);
    for (int i = 0; i < half; i++)
        unit(&out[i], &out[half + i]);
    for (int i = 0; i < 2 * half; i++)
        words[i] = word(out[i]);
}

enum tlm_status kv_turns_reserve(struct kv_turns *t, int64_t end, struct tlm_error *e)
{
    int64_t n = (end + KV_BLOCK - 1) / KV_BLOCK, dims = t->turn.dims;
    if (n > t->cap_starts) {
        int64_t cap = t->cap_starts ? t->cap_starts : 64;
        while (cap < n)
            cap *= 2;
        float *p = mem_realloc_array(t->starts, (size_t)(cap * dims), sizeof *p);
        if (!p)
            return err_nomem(e, (size_t)(cap * dims) * sizeof *p);
        t->starts = p;
        int16_t *w = mem_realloc_array(t->start_words, (size_t)(cap * dims), sizeof *w);
        if (!w)
            return err_nomem(e, (size_t)(cap * dims) * sizeof *w);
        t->start_words = w;
        t->cap_starts = cap;
    }
    for (; t->n_starts < n; t->n_starts++)
        kv_turn_start(t, t->n_starts * KV_BLOCK, t->starts + t->n_starts * dims, t->start_words + t->n_starts * dims);
    return TLM_OK;
}

struct kv_turns *kv_turns_for(struct kv_cache *kv, const struct rope *rope, struct tlm_error *e)
{
    for (int i = 0; i < kv->n_turns; i++)
        if (kv->turns[i].rope == rope)
            return &kv->turns[i];
    if (kv->n_turns == KV_ROPES) {
        err_set(e, TLM_EINTERNAL, "more than %d rotary tables", KV_ROPES);
        return NULL;
    }
    struct kv_turns *t = &kv->turns[kv->n_turns];
    int half = (int)rope->dims / 2;
    size_t n = (size_t)half * KV_BLOCK;
    *t = (struct kv_turns){.rope = rope, .turn = {.dims = (int)rope->dims, .interleaved = rope->interleaved}};
    t->cos = mem_alloc_array(n, sizeof *t->cos);
    t->sin = mem_alloc_array(n, sizeof *t->sin);
    t->words = mem_alloc_array(2 * n, sizeof *t->words);
    float *row = mem_alloc_array((size_t)rope->dims, sizeof *row);
    int16_t *row_words = mem_alloc_array((size_t)rope->dims, sizeof *row_words);
    if (!t->cos || !t->sin || !t->words || !row || !row_words) {
        err_nomem(e, n * sizeof *row);
        mem_free(t->cos);
        mem_free(t->sin);
        mem_free(t->words);
        mem_free(row);
        mem_free(row_words);
        return NULL;
    }
    for (int p = 0; p < KV_BLOCK; p++) {
        kv_turn_start(t, p, row, row_words);
        for (int i = 0; i < half; i++) {
            int at = i * KV_BLOCK + p;
            t->cos[at] = row[i];
            t->sin[at] = row[half + i];
            t->words[at] = row_words[i];
            t->words[(int)n + at] = row_words[half + i];
        }
    }
    mem_free(row);
    mem_free(row_words);
    kv_turn_rows(t->rows, t->turn.dims, t->turn.interleaved);
    t->turn.rows = t->rows;
    t->turn.cos = t->cos;
    t->turn.sin = t->sin;
    t->turn.cos_words = t->words;
    t->turn.sin_words = t->words + n;
    kv->n_turns++;
    return t;
}
