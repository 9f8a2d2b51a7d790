/* The quantised cache under random programs: passes over several sequences,
 * committed, aborted or failing, forks, rewinds, the prefix index, limits,
 * windows, kept tokens, sinks, late starts, a format per layer.
 *
 * The test keeps a model of its own: for every sequence which tokens stand in
 * which block, and whether that is sealed. Attention must equal a computation
 * in double over plain arrays, which hold for every position what the row sees:
 * the value rounded to the open type in exact blocks and in the row's own, else
 * what kv_codec_decode says of the encoded block. What the index hands out is
 * looked up by block number and checked against the tokens asked for.
 *
 * The recurrent state of a sequence is here a hash of its tokens, which a pass
 * goes on with from the state that the cache gives it and spreads over all the
 * bytes of the next one. So whatever the cache hands out can be told from the
 * tokens alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/attention.h"
#include "base/fp.h"
#include "base/mem.h"
#include "kvcache/kv_private.h"
#include "kvcache/kv_turn.h"
#include "tensor/op.h"

enum { SEQS = 5, LAYERS = 3, MAX_DIM = 64, MAX_TOKENS = 1400, ENTRIES = MAX_TOKENS / 4, MAX_HEADS = 4, VOCAB = 3 };

/* One block's tokens in the layers of one group; never changed once made. */
struct mblock {
    struct mblock *next; /* of all that the program made */
    int count;
    int64_t start;
    int32_t tokens[KV_BLOCK];
    float *k[LAYERS], *v[LAYERS];                 /* [64][heads * dim], rounded; NULL: another group's */
    float *encoded_k[LAYERS], *encoded_v[LAYERS]; /* as decoded; NULL until wanted */
};

struct mentry {
    int64_t start;
    int count;
    bool sealed;
    struct mblock *block[LAYERS]; /* by group; NULL: given back */
};

struct mseq {
    struct kv_seq *seq;
    int n;
    int64_t length;
    struct mentry e[ENTRIES];
    int32_t tokens[MAX_TOKENS];
    bool checkpoint[MAX_TOKENS + 1];
};

/* A checkpoint that was left in the index. */
struct kept {
    struct kept *next;
    int64_t length;
    bool whole; /* the way there cuts no encoded block */
    int32_t tokens[MAX_TOKENS];
};

/* Blocks by number, as last committed. */
struct by_number {
    struct mblock **block;
    int32_t n;
};

struct program {
    struct backend *be;
    struct ctx *c;
    struct kv_cache *kv;
    struct kv_config config;
    struct kv_layer_config layers[LAYERS];
    struct kv_codec key[LAYERS], value[LAYERS];
    int n_codecs; /* of each kind */
    int heads, kv_heads, dim, v_dim;
    struct rope rope;
    bool has_rope;
    struct kv_cache turns_home; /* only its rotary tables */
    float sinks[MAX_HEADS];
    struct kv_opts opts;
    struct mseq *s;
    int n_seqs;
    int rare; /* one token in so many is not the usual one; 0: none */
    struct mblock *blocks;
    struct by_number numbers[LAYERS][2];
    struct kept *kept;
    bool partly_added; /* the index may also hold what is not in `kept` */
    const char *what;  /* the step in hand, and of which program */
    int number;
    long rows, encoded_rows, matched, found, failures, limits; /* figures that show what ran */
    long restored, exact_matches;
};

static uint64_t rng_state;

static uint32_t rnd(uint32_t n)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % n;
}

static float rnd_float(void)
{
    return (float)rnd(1 << 16) / 32768.0f - 1;
}

/* Few different ones, so that prefixes are found by chance too. */
static int32_t random_token(const struct program *p)
{
    return p->rare && rnd((uint32_t)p->rare) == 0 ? (int32_t)rnd(VOCAB) : 1;
}

/* --- the model ------------------------------------------------------------ */

static int n_groups(const struct program *p)
{
    return p->kv->n_groups;
}

static float *floats(size_t n)
{
    float *x = mem_new_array(n, sizeof *x);
    assert_non_null(x);
    return x;
}

static struct mblock *new_block(struct program *p, int group, int64_t start, const struct mblock *from)
{
    struct mblock *b = mem_new(sizeof *b);
    assert_non_null(b);
    b->next = p->blocks;
    p->blocks = b;
    b->start = start;
    for (int l = 0; l < LAYERS; l++) {
        if (p->kv->layers[l].group != group)
            continue;
        size_t k = (size_t)KV_BLOCK * (size_t)(p->kv_heads * p->dim), v = k / (size_t)p->dim * (size_t)p->v_dim;
        b->k[l] = floats(k);
        b->v[l] = floats(v);
        if (from) {
            memcpy(b->k[l], from->k[l], k * sizeof(float));
            memcpy(b->v[l], from->v[l], v * sizeof(float));
        }
    }
    if (from) {
        b->count = from->count;
        memcpy(b->tokens, from->tokens, sizeof b->tokens);
    }
    return b;
}

static void free_blocks(struct program *p)
{
    for (struct mblock *b = p->blocks, *next; b; b = next) {
        next = b->next;
        for (int l = 0; l < LAYERS; l++) {
            mem_free(b->k[l]);
            mem_free(b->v[l]);
            mem_free(b->encoded_k[l]);
            mem_free(b->encoded_v[l]);
        }
        mem_free(b);
    }
    p->blocks = NULL;
}

/* Keys or values of a block as decoding its encoded form gives them. */
static float *decoded(const struct kv_codec *c, const float *x, int heads, const struct kv_turn *turn)
{
    size_t n = (size_t)KV_BLOCK * (size_t)c->dim;
    float *one = floats(n), *work = floats(kv_codec_work(c)), *out = floats(n * (size_t)heads);
    void *bytes = mem_new(c->bytes);
    assert_non_null(bytes);
    for (int h = 0; h < heads; h++) {
        for (int t = 0; t < KV_BLOCK; t++)
            memcpy(one + t * c->dim, x + (t * heads + h) * c->dim, (size_t)c->dim * sizeof *one);
        kv_codec_encode(c, one, turn, bytes, work);
        kv_codec_decode(c, bytes, turn, one, work);
        for (int t = 0; t < KV_BLOCK; t++)
            memcpy(out + (t * heads + h) * c->dim, one + t * c->dim, (size_t)c->dim * sizeof *one);
    }
    mem_free(one);
    mem_free(work);
    mem_free(bytes);
    return out;
}

static void decode_block(struct program *p, struct mblock *b, int layer)
{
    struct kv_turn turn, *use = NULL;
    float start[MAX_DIM];
    int16_t words[MAX_DIM];
    if (b->encoded_k[layer])
        return;
    assert_int_equal(b->count, KV_BLOCK);
    if (p->has_rope && p->key[layer].f.pre) {
        const struct kv_turns *t = kv_turns_for(&p->turns_home, &p->rope, NULL);
        assert_non_null(t);
        kv_turn_start(t, b->start, start, words);
        turn = t->turn;
        turn.start_cos = start;
        turn.start_sin = start + turn.dims / 2;
        use = &turn;
    }
    b->encoded_k[layer] = decoded(&p->key[layer], b->k[layer], p->kv_heads, use);
    b->encoded_v[layer] = decoded(&p->value[layer], b->v[layer], p->kv_heads, NULL);
}

static bool is_open(const struct mseq *s)
{
    return s->n && !s->e[s->n - 1].sealed && s->e[s->n - 1].count < KV_BLOCK;
}

/* What a row at n needs: its window, and the block that it may be put into. */
static int64_t first_seen(const struct kv_group *g, int64_t n)
{
    int64_t window = g->window == 1 ? 2 : g->window;
    return window && n >= window ? n - window + 1 : 0;
}

static bool model_reaches(const struct program *p, const struct mseq *s, int64_t n)
{
    if (p->config.state_bytes && n && n != s->length && !s->checkpoint[n])
        return false;
    for (int g = 0; g < n_groups(p); g++)
        for (int i = 0; i < s->n && s->e[i].start < n; i++)
            if (!s->e[i].block[g] && (s->e[i].start + s->e[i].count > first_seen(&p->kv->groups[g], n) ||
                                      s->e[i].start < p->kv->groups[g].keep))
                return false;
    return true;
}

/* Whole blocks that no later row needs are given back. */
static void model_release(const struct program *p, struct mseq *s)
{
    for (int g = 0; g < n_groups(p); g++)
        for (int i = 0; i < s->n; i++)
            if (s->e[i].start + s->e[i].count <= first_seen(&p->kv->groups[g], s->length) &&
                s->e[i].start >= p->kv->groups[g].keep)
                s->e[i].block[g] = NULL;
}

static void model_trim(struct mseq *s, int64_t n)
{
    while (s->n && s->e[s->n - 1].start >= n)
        s->n--;
    if (s->n && s->e[s->n - 1].start + s->e[s->n - 1].count > n)
        s->e[s->n - 1].count = (int)(n - s->e[s->n - 1].start);
    memset(s->checkpoint + n + 1, 0, (size_t)(MAX_TOKENS - n) * sizeof *s->checkpoint);
    s->length = n;
}

/* --- states --------------------------------------------------------------- */

static uint64_t hash_on(uint64_t h, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)(ids[i] + 7)) * 0x100000001b3u + 0x9e3779b9u;
    return h;
}

/* The bytes of a state: the hash, then words that all depend on it; zeros for 0. */
static void spread(uint64_t h, size_t bytes, unsigned char *out)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)((h * (i / 8 * 2 + 1)) >> i % 8 * 8);
}

static void check_state(const struct program *p, const void *state, const int32_t *tokens, int64_t n)
{
    static unsigned char want[1 << 20];
    assert_true(p->config.state_bytes <= sizeof want);
    assert_true(state && (uintptr_t)state % 64 == 0);
    spread(hash_on(0, tokens, n), p->config.state_bytes, want);
    if (memcmp(state, want, p->config.state_bytes) != 0)
        fail_msg("program %d, %s: not the state after %d tokens", p->number, p->what, (int)n);
}

/* The sequence's own state and its checkpoints must be the model's. */
static void check_states(const struct program *p, const struct mseq *s)
{
    const struct kv_checkpoints *c = &s->seq->checkpoints;
    int64_t n = 0;
    if (!p->config.state_bytes) {
        assert_null(kv_seq_state(s->seq));
        return;
    }
    check_state(p, kv_seq_state(s->seq), s->tokens, s->length);
    for (int i = 0; i < c->n; i++) {
        assert_true(c->at[i].position > n && c->at[i].position <= s->length);
        n = c->at[i].position;
        assert_true(s->checkpoint[n]);
        check_state(p, kv_pool_memory(&p->kv->states, c->at[i].state), s->tokens, n);
    }
    for (int64_t i = n = 0; i <= s->length; i++)
        n += s->checkpoint[i];
    assert_int_equal(c->n, n);
}

static void write_states(const struct program *p, struct kv_pass *pass, const struct kv_span *spans, int n,
                         const int32_t *ids)
{
    for (int i = 0; i < n && p->config.state_bytes; i++) {
        uint64_t h;
        memcpy(&h, kv_seq_state(spans[i].seq), sizeof h);
        spread(hash_on(h, ids + spans[i].row, spans[i].rows), p->config.state_bytes, kv_pass_state(pass, i));
    }
}

static void forget_kept(struct program *p)
{
    for (struct kept *k = p->kept, *next; k; k = next) {
        next = k->next;
        mem_free(k);
    }
    p->kept = NULL;
    p->partly_added = false;
}

/* Remembers what the index has been given. */
static void keep_checkpoints(struct program *p, const struct mseq *s)
{
    bool whole = true;
    for (int i = 0; i < s->n; i++) {
        const struct mentry *e = &s->e[i];
        for (int64_t n = e->start + 1; n <= e->start + e->count; n++) {
            if (!s->checkpoint[n])
                continue;
            struct kept *k = mem_new(sizeof *k);
            assert_non_null(k);
            *k = (struct kept){.next = p->kept, .length = n};
            k->whole = whole && (!p->kv->encoded || !e->sealed || n == e->start + KV_BLOCK);
            memcpy(k->tokens, s->tokens, (size_t)n * sizeof *k->tokens);
            p->kept = k;
        }
        whole = whole && (!p->kv->encoded || !e->sealed || e->count == KV_BLOCK);
    }
}

static int64_t longest_kept(const struct program *p, const int32_t *ids, int64_t most, bool whole)
{
    int64_t best = 0;
    for (const struct kept *k = p->kept; k; k = k->next)
        if (k->length <= most && k->length > best && (k->whole || !whole) &&
            memcmp(k->tokens, ids, (size_t)k->length * sizeof *ids) == 0)
            best = k->length;
    return best;
}

/* What the index gave must be the longest prefix that ends at a checkpoint. */
static void check_longest(struct program *p, int64_t length, const int32_t *ids, int64_t most, bool whole)
{
    bool loses = p->config.limit_bytes || p->config.keep_bytes;
    for (int g = 0; g < n_groups(p); g++)
        loses = loses || p->kv->groups[g].window;
    if (!p->config.state_bytes)
        return;
    if (!p->partly_added)
        assert_true(length <= longest_kept(p, ids, most, false));
    if (!loses)
        assert_true(length >= longest_kept(p, ids, most, whole));
    p->restored += length > 0;
    p->exact_matches += length > 0 && !loses;
}

/* A sequence's structure must be the model's; block numbers are learned. */
static void check_sequence(struct program *p, const struct mseq *s)
{
    const struct kv_seq *q = s->seq;
    assert_int_equal(kv_seq_length(q), s->length);
    assert_int_equal(q->n, s->n);
    assert_true(q->known);
    if (s->length)
        assert_memory_equal(q->tokens, s->tokens, (size_t)s->length * sizeof *s->tokens);
    check_states(p, s);
    for (int i = 0; i < s->n; i++) {
        assert_int_equal(q->entries[i].start, s->e[i].start);
        assert_int_equal(q->entries[i].count, s->e[i].count);
        if (p->kv->encoded)
            assert_int_equal(q->entries[i].sealed, s->e[i].sealed);
        for (int g = 0; g < n_groups(p); g++) {
            int32_t id = kv_entry_ids(q, i)[g];
            if ((id != KV_NONE) != (s->e[i].block[g] != NULL))
                fail_msg("program %d, %s: entry %d of %d (from %d, %d tokens) of a sequence of %d, group of window %d "
                         "keeping %d: %s",
                         p->number, p->what, i, s->n, (int)s->e[i].start, s->e[i].count, (int)s->length,
                         (int)p->kv->groups[g].window, (int)p->kv->groups[g].keep,
                         id == KV_NONE ? "given back" : "still there");
            if (id == KV_NONE)
                continue;
            struct by_number *b = &p->numbers[g][p->kv->groups[g].encoded && s->e[i].sealed];
            if (id >= b->n) {
                b->block = mem_realloc_array(b->block, (size_t)id + 64, sizeof *b->block);
                assert_non_null(b->block);
                memset(b->block + b->n, 0, (size_t)(id + 64 - b->n) * sizeof *b->block);
                b->n = id + 64;
            }
            b->block[id] = s->e[i].block[g];
        }
    }
}

/* Takes a sequence that the index gave over into the model. */
static void adopt(struct program *p, struct mseq *s, const int32_t *ids)
{
    s->n = s->seq->n;
    s->length = kv_seq_length(s->seq);
    memcpy(s->tokens, ids, (size_t)s->length * sizeof *ids);
    for (int i = 0; i < s->n; i++) {
        const struct kv_entry *en = &s->seq->entries[i];
        s->e[i] = (struct mentry){.start = en->start, .count = en->count, .sealed = en->sealed};
        for (int g = 0; g < n_groups(p); g++) {
            int32_t id = kv_entry_ids(s->seq, i)[g];
            const struct by_number *b = &p->numbers[g][p->kv->groups[g].encoded && en->sealed];
            if (id == KV_NONE)
                continue;
            assert_true(id < b->n && b->block[id]);
            s->e[i].block[g] = b->block[id];
            assert_int_equal(b->block[id]->start, en->start);
            assert_true(b->block[id]->count >= en->count);
            assert_memory_equal(b->block[id]->tokens, ids + en->start, (size_t)en->count * sizeof *ids);
        }
    }
    memset(s->checkpoint, 0, sizeof s->checkpoint);
    for (int i = 0; i < s->seq->checkpoints.n; i++) {
        assert_true(s->seq->checkpoints.at[i].position <= s->length);
        s->checkpoint[s->seq->checkpoints.at[i].position] = true;
    }
    assert_true(!p->config.state_bytes || s->length == 0 || s->checkpoint[s->length]);
    assert_true(model_reaches(p, s, s->length));
    model_release(p, s);
}

/* --- appending in the model ----------------------------------------------- */

static float rounded(enum kv_type t, float x)
{
    return t == KV_F16 ? fp_from_f16(fp_to_f16(x)) : t == KV_BF16 ? fp_from_bf16(fp_to_bf16(x)) : x;
}

/* Makes the entries that `rows` more tokens need; values follow layer by layer. */
static void model_append(struct program *p, struct mseq *s, const int32_t *ids, int rows)
{
    const int64_t before = s->length;
    const bool encodes = p->kv->encoded && before >= p->config.start;
    if (encodes && p->config.start)
        for (int i = s->n - 1 - is_open(s); i >= 0 && !s->e[i].sealed && s->e[i].start >= p->config.sink; i--)
            s->e[i].sealed = true;
    for (int done = 0; done < rows;) {
        bool fresh = !is_open(s);
        if (fresh) {
            assert_true(s->n < ENTRIES);
            s->e[s->n++] = (struct mentry){.start = before + done};
        }
        struct mentry *e = &s->e[s->n - 1];
        int take = KV_BLOCK - e->count < rows - done ? KV_BLOCK - e->count : rows - done;
        for (int g = 0; g < n_groups(p); g++) {
            struct mblock *b = new_block(p, g, e->start, fresh ? NULL : e->block[g]);
            memcpy(b->tokens + e->count, ids + done, (size_t)take * sizeof *ids);
            b->count = e->count + take;
            e->block[g] = b;
        }
        e->count += take;
        e->sealed = encodes && e->count == KV_BLOCK && e->start >= p->config.sink;
        memcpy(s->tokens + before + done, ids + done, (size_t)take * sizeof *ids);
        done += take;
    }
    s->length += rows;
}

static int entry_of(const struct mseq *s, int64_t position)
{
    int i = s->n - 1;
    while (s->e[i].start > position)
        i--;
    return i;
}

/* Rows of k and v, [rows, heads * dim], become the last tokens in a layer. */
static void model_store(const struct program *p, struct mseq *s, int layer, const float *k, const float *v, int rows)
{
    const enum kv_type type = p->layers[layer].shape.type;
    const int nk = p->kv_heads * p->dim, nv = p->kv_heads * p->v_dim;
    for (int r = 0; r < rows; r++) {
        int64_t at = s->length - rows + r;
        const struct mentry *e = &s->e[entry_of(s, at)];
        const struct mblock *b = e->block[p->kv->layers[layer].group];
        int t = (int)(at - e->start);
        for (int d = 0; d < nk; d++)
            b->k[layer][t * nk + d] = rounded(type, k[r * nk + d]);
        for (int d = 0; d < nv; d++)
            b->v[layer][t * nv + d] = rounded(type, v[r * nv + d]);
    }
}

/* --- reference ------------------------------------------------------------ */

static bool sees(const struct kv_group *g, int64_t row, int64_t t)
{
    return t <= row && (g->window == 0 || t > row - g->window || t < g->keep);
}

/* Row `at` of a query head: what every position that it sees contributes. Two
 * passes over them, for the greatest logit and for the sums. */
static double reference(struct program *p, const struct mseq *s, int layer, int64_t at, const float *q, int head,
                        double *out)
{
    const struct kv_group *g = &p->kv->groups[p->kv->layers[layer].group];
    const int gi = p->kv->layers[layer].group, kh = head / (p->heads / p->kv_heads), own = entry_of(s, at);
    const struct kv_opts *o = &p->opts;
    static double logit[MAX_TOKENS];
    static const float *value[MAX_TOKENS];
    double m = o->sinks ? o->sinks[head] : -INFINITY, sum = 0, scale = 1e-3;
    int n = 0;
    for (int i = 0; i <= own; i++) {
        const struct mentry *e = &s->e[i];
        bool encoded = i < own && e->sealed && g->encoded;
        for (int t = 0; t < e->count; t++) {
            if (!sees(g, at, e->start + t))
                continue;
            struct mblock *b = e->block[gi];
            assert_non_null(b);
            if (encoded)
                decode_block(p, b, layer);
            const float *k = (encoded ? b->encoded_k : b->k)[layer] + (t * p->kv_heads + kh) * p->dim;
            double x = 0;
            for (int d = 0; d < p->dim; d++)
                x += (double)q[head * p->dim + d] * k[d];
            x *= o->scale;
            if (o->softcap != 0)
                x = o->softcap * tanh(x / o->softcap);
            m = fmax(m, x);
            logit[n] = x;
            value[n++] = (encoded ? b->encoded_v : b->v)[layer] + (t * p->kv_heads + kh) * p->v_dim;
            p->encoded_rows += encoded;
        }
    }
    if (o->sinks)
        sum = exp(o->sinks[head] - m);
    for (int d = 0; d < p->v_dim; d++)
        out[d] = 0;
    for (int i = 0; i < n; i++) {
        double w = exp(logit[i] - m);
        sum += w;
        for (int d = 0; d < p->v_dim; d++) {
            out[d] += w * value[i][d];
            scale = fmax(scale, fabs(value[i][d]));
        }
    }
    for (int d = 0; d < p->v_dim; d++)
        out[d] /= sum;
    return scale;
}

static void check_row(struct program *p, const struct mseq *s, int layer, int64_t at, const float *q, const float *y)
{
    /* Where products are taken in integers: roundings to some 2^-12 of the greatest. */
    const struct attn_args a = {
        .shape.type = p->kv->layers[layer].shape.type, .key = &p->key[layer], .value = &p->value[layer]};
    double want[MAX_DIM], bound = cpu_int_keys(&a) || cpu_int_values(&a) ? 2e-3 : 5e-5;
    for (int h = 0; h < p->heads; h++) {
        double scale = reference(p, s, layer, at, q, h, want);
        for (int d = 0; d < p->v_dim; d++) {
            double got = y[h * p->v_dim + d];
            if (!(fabs(got - want[d]) <= bound * scale)) {
                char key[KV_FORMAT_NAME_MAX], value[KV_FORMAT_NAME_MAX];
                kv_format_name(&p->key[layer].f, true, key);
                kv_format_name(&p->value[layer].f, false, value);
                fail_msg(
                    "program %d, %s: layer %d (%s:%s, window %d), position %d of %d, head %d [%d]: %.8g, expected %.8g",
                    p->number, p->what, layer, key, value, (int)p->layers[layer].window, (int)at, (int)s->length, h, d,
                    got, want[d]);
            }
        }
    }
    p->rows++;
}

/* --- a pass --------------------------------------------------------------- */

static struct tensor *random_tensor(struct program *p, int rows, int cols, bool key)
{
    struct tensor *t = ctx_tensor2(p->c, rows, cols);
    assert_non_null(t);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < cols; i++) {
            float v = rnd_float();
            if (key && i % 16 == 3) /* channels that stand out */
                v = 4 + v;
            tensor_f32(t)[r * cols + i] = v;
        }
    return t;
}

/* As the cache sees it: after rotary. */
static const struct tensor *turned(struct program *p, const struct tensor *x, const struct kv_span *spans, int n)
{
    int64_t rows = tensor_rows(x), half = p->rope.dims / 2;
    if (!p->has_rope)
        return x;
    float *cos = ctx_step_alloc(p->c, (size_t)(rows * half), sizeof *cos);
    float *sin = ctx_step_alloc(p->c, (size_t)(rows * half), sizeof *sin);
    assert_true(cos && sin);
    for (int i = 0; i < n; i++)
        rope_table(&p->rope, kv_seq_length(spans[i].seq), spans[i].rows, cos + spans[i].row * half,
                   sin + spans[i].row * half);
    struct rope_args a = {p->dim, p->rope.dims, p->rope.interleaved, cos, sin};
    const struct tensor *y = op_rope(p->c, x, &a);
    assert_non_null(y);
    return y;
}

static int pick_rows(const struct program *p, const struct mseq *s)
{
    static const int sizes[] = {1, 1, 1, 2, 17, 63, 64, 65, 100, 130, 200};
    int64_t take = sizes[rnd(11)], most = kv_seq_most_rows(s->seq);
    (void)p;
    if (rnd(3) == 0 && is_open(s)) /* just to the end of the block */
        take = KV_BLOCK - s->e[s->n - 1].count;
    take = take > most ? most : take;
    return s->length + take > MAX_TOKENS ? 0 : (int)take;
}

/* One layer of a pass; false when it failed. */
static bool attend_layer(struct program *p, struct kv_pass *pass, int l, const struct kv_span *spans, int n, int rows,
                         struct mseq *const *next)
{
    ctx_next_layer(p->c);
    struct tensor *q = random_tensor(p, rows, p->heads * p->dim, false),
                  *k = random_tensor(p, rows, p->kv_heads * p->dim, true),
                  *v = random_tensor(p, rows, p->kv_heads * p->v_dim, false);
    struct tensor *y = kv_attend(p->c, pass, l, q, k, v, &p->opts);
    if (!y) {
        assert_int_equal(p->c->err.status, TLM_ENOMEM);
        return false;
    }
    const float *rq = tensor_f32(turned(p, q, spans, n)), *rk = tensor_f32(turned(p, k, spans, n));
    mem_fail_at(0, 0);
    for (int i = 0; i < n; i++) {
        int64_t row = spans[i].row;
        int count = (int)spans[i].rows;
        model_store(p, next[i], l, rk + row * p->kv_heads * p->dim, tensor_f32(v) + row * p->kv_heads * p->v_dim,
                    count);
        for (int k3 = 0; k3 < 3; k3++) {
            int r = k3 == 0 ? count - 1 : (int)rnd((uint32_t)count);
            check_row(p, next[i], l, next[i]->length - count + r, rq + (row + r) * p->heads * p->dim,
                      tensor_f32(y) + (row + r) * p->heads * p->v_dim);
        }
    }
    return true;
}

static void one_pass(struct program *p, long fail)
{
    struct kv_span spans[SEQS];
    struct mseq *of[SEQS], *next[SEQS];
    int32_t ids[SEQS * 256];
    int n = 0, rows = 0;
    for (int i = 0; i < p->n_seqs; i++) {
        int take = pick_rows(p, &p->s[i]);
        if (rnd(3) == 0 || take == 0)
            continue;
        spans[n] = (struct kv_span){p->s[i].seq, rows, take};
        of[n++] = &p->s[i];
        for (int r = 0; r < take; r++)
            ids[rows + r] = random_token(p);
        rows += take;
    }
    if (!n)
        return;
    p->what = "pass";
    ctx_begin(p->c);
    mem_fail_at(fail, (int)rnd(2));
    struct kv_pass *pass = kv_pass_begin(p->c, p->kv, ids, spans, n);
    if (!pass) {
        mem_fail_at(0, 0);
        enum tlm_status st = p->c->err.status;
        assert_true(st == TLM_ENOMEM || st == TLM_ELIMIT);
        assert_true(st == TLM_ELIMIT ? p->config.limit_bytes > 0 : fail > 0);
        p->failures += st == TLM_ENOMEM;
        p->limits += st == TLM_ELIMIT;
    }
    bool commit = pass && rnd(5) != 0, ok = pass != NULL;
    for (int i = 0; pass && i < n; i++) {
        mem_fail_at(0, 0);
        next[i] = mem_alloc(sizeof *next[i]);
        assert_non_null(next[i]);
        *next[i] = *of[i];
        model_append(p, next[i], ids + spans[i].row, (int)spans[i].rows);
    }
    if (pass && fail)
        mem_fail_at(1 + rnd(3), 1);
    for (int l = 0; l < LAYERS && ok; l++)
        ok = attend_layer(p, pass, l, spans, n, rows, next);
    mem_fail_at(0, 0);
    p->failures += pass && !ok;
    if (pass)
        write_states(p, pass, spans, n, ids);
    if (pass && commit && ok)
        kv_pass_commit(pass);
    else if (pass)
        kv_pass_abort(pass);
    for (int i = 0; i < n; i++) {
        if (pass && commit && ok) {
            model_release(p, next[i]);
            *of[i] = *next[i];
        }
        if (pass)
            mem_free(next[i]);
        check_sequence(p, of[i]);
    }
}

/* --- other steps ---------------------------------------------------------- */

static void drop_seq(struct program *p, int i)
{
    kv_seq_free(p->s[i].seq);
    p->n_seqs--;
    if (i < p->n_seqs)
        p->s[i] = p->s[p->n_seqs];
}

/* What reach says must be the model's; with states often used, since few
 * lengths can be reached at all. */
static int64_t near_reach(struct program *p, const struct mseq *s, int64_t n)
{
    int64_t reach = kv_seq_reach(s->seq, n), want = n;
    while (!model_reaches(p, s, want))
        want--;
    assert_int_equal(reach, want);
    assert_int_equal(kv_seq_reach(s->seq, s->length + 5), s->length);
    return p->config.state_bytes && rnd(4) ? reach : n;
}

static void fork_seq(struct program *p, long fail)
{
    struct tlm_error e = {0};
    if (p->n_seqs == SEQS || !p->n_seqs)
        return;
    const struct mseq *from = &p->s[rnd((uint32_t)p->n_seqs)];
    struct mseq *to = &p->s[p->n_seqs];
    int64_t n = rnd(3) ? (int64_t)rnd((uint32_t)from->length + 1) : from->length;
    n = near_reach(p, from, n);
    bool reaches = model_reaches(p, from, n);
    p->what = "fork";
    mem_fail_at(fail, 0);
    enum tlm_status st = kv_seq_fork(from->seq, n, &to->seq, &e);
    mem_fail_at(0, 0);
    if (st != TLM_OK) {
        assert_true(fail && st == TLM_ENOMEM && !to->seq);
        p->failures++;
        return;
    }
    assert_int_equal(to->seq != NULL, reaches);
    if (!to->seq)
        return;
    struct kv_seq *seq = to->seq;
    *to = *from;
    to->seq = seq;
    model_trim(to, n);
    model_release(p, to);
    p->n_seqs++;
    check_sequence(p, to);
}

static void trim_seq(struct program *p)
{
    if (!p->n_seqs)
        return;
    struct mseq *s = &p->s[rnd((uint32_t)p->n_seqs)];
    int64_t back = rnd(2) ? (int64_t)rnd((uint32_t)s->length + 1) : (int64_t)rnd(20), n = s->length - back;
    p->what = "trim";
    n = near_reach(p, s, n < 0 ? 0 : n);
    bool want = model_reaches(p, s, n);
    p->restored += want && p->config.state_bytes && n > 0 && n < s->length;
    assert_int_equal(kv_seq_trim(s->seq, n), want);
    assert_false(kv_seq_trim(s->seq, s->length + 1));
    if (want)
        model_trim(s, n);
    check_sequence(p, s);
}

/* What has just been added is found, up to its last whole block. */
static void check_found(struct program *p, const struct mseq *s)
{
    static struct mseq found;
    struct tlm_error e = {0};
    bool bound =
        p->config.state_bytes || p->config.limit_bytes || p->config.keep_bytes || (p->kv->encoded && p->config.start);
    for (int i = 0; i < s->n; i++)
        bound = bound || s->e[i].start != (int64_t)i * KV_BLOCK;
    for (int g = 0; g < n_groups(p); g++)
        bound = bound || p->kv->groups[g].window;
    if (bound || p->n_seqs == 0)
        return;
    for (int whole = 0; whole < 2; whole++) {
        assert_int_equal(kv_index_match(p->kv, s->tokens, s->length, whole, &found.seq, &e), TLM_OK);
        adopt(p, &found, s->tokens);
        assert_true(found.length >= (whole ? s->length / KV_BLOCK * KV_BLOCK : s->length));
        p->found++;
        kv_seq_free(found.seq);
    }
}

static void add_to_index(struct program *p, long fail)
{
    struct tlm_error e = {0};
    if (!p->n_seqs)
        return;
    int i = (int)rnd((uint32_t)p->n_seqs);
    p->what = "index";
    mem_fail_at(fail, 0);
    enum tlm_status st = kv_index_add(p->s[i].seq, &e);
    mem_fail_at(0, 0);
    assert_true(st == TLM_OK || (fail && st == TLM_ENOMEM));
    p->failures += st != TLM_OK;
    check_sequence(p, &p->s[i]);
    p->partly_added = p->partly_added || st != TLM_OK;
    if (st == TLM_OK && p->config.state_bytes && !(p->kv->encoded && p->config.start))
        keep_checkpoints(p, &p->s[i]);
    if (st == TLM_OK)
        check_found(p, &p->s[i]);
    if (rnd(2))
        drop_seq(p, i);
}

static void match_seq(struct program *p, long fail)
{
    struct tlm_error e = {0};
    int32_t ids[MAX_TOKENS];
    if (p->n_seqs == SEQS)
        drop_seq(p, (int)rnd(SEQS));
    struct mseq *to = &p->s[p->n_seqs];
    int n = 1 + (int)rnd(500);
    for (int i = 0; i < n; i++)
        ids[i] = random_token(p);
    if (p->n_seqs && rnd(3)) { /* what some sequence holds, and a little else */
        const struct mseq *like = &p->s[rnd((uint32_t)p->n_seqs)];
        n = (int)like->length;
        memcpy(ids, like->tokens, (size_t)n * sizeof *ids);
        if (n && rnd(2))
            ids[rnd((uint32_t)n)] ^= 1;
    } else if (p->kept && rnd(4)) { /* what the index holds, and what comes by chance */
        const struct kept *k = p->kept;
        for (int i = (int)rnd(8); i > 0 && k->next; i--)
            k = k->next;
        memcpy(ids, k->tokens, (size_t)k->length * sizeof *ids);
        n = (int)k->length > n ? (int)k->length : n;
    }
    bool whole = rnd(2);
    p->what = "match";
    mem_fail_at(fail, 0);
    enum tlm_status st = kv_index_match(p->kv, ids, n, whole, &to->seq, &e);
    mem_fail_at(0, 0);
    if (st != TLM_OK) {
        assert_true(fail && st == TLM_ENOMEM && !to->seq);
        p->failures++;
        return;
    }
    assert_true(kv_seq_length(to->seq) <= n);
    check_longest(p, kv_seq_length(to->seq), ids, n, whole);
    adopt(p, to, ids);
    for (int i = 0; whole && i < to->n; i++) /* nothing was cut by this match */
        assert_true(!p->kv->encoded || !to->e[i].sealed || to->e[i].count == KV_BLOCK || i + 1 < to->n ||
                    to->length <= n);
    for (int i = 0; whole && p->config.state_bytes && i < to->n; i++) /* nor by an earlier rewind */
        assert_true(!p->kv->encoded || !to->e[i].sealed || to->e[i].count == KV_BLOCK);
    p->matched += to->length > 0;
    p->n_seqs++;
    check_sequence(p, to);
}

static void new_seq(struct program *p)
{
    struct tlm_error e = {0};
    if (p->n_seqs == SEQS)
        return;
    struct mseq *s = &p->s[p->n_seqs++];
    s->n = 0;
    s->length = 0;
    memset(s->checkpoint, 0, sizeof s->checkpoint);
    assert_int_equal(kv_seq_new(p->kv, &s->seq, &e), TLM_OK);
}

static void checkpoint_seq(struct program *p, long fail)
{
    struct tlm_error e = {0};
    struct mseq *s = &p->s[rnd((uint32_t)p->n_seqs)];
    p->what = "checkpoint";
    mem_fail_at(fail, 0);
    enum tlm_status st = kv_seq_checkpoint(s->seq, &e);
    mem_fail_at(0, 0);
    assert_true(st == TLM_OK || (fail && st == TLM_ENOMEM));
    p->failures += st != TLM_OK;
    if (st == TLM_OK && s->length)
        s->checkpoint[s->length] = true;
    check_sequence(p, s);
}

static void step(struct program *p)
{
    long fail = rnd(8) ? 0 : 1 + (long)rnd(6);
    if (p->config.state_bytes && rnd(3))
        checkpoint_seq(p, fail);
    if (p->config.state_bytes && rnd(3) == 0)
        add_to_index(p, fail);
    if (p->config.state_bytes && rnd(3) == 0)
        match_seq(p, fail);
    if (!p->n_seqs)
        new_seq(p);
    switch (rnd(16)) {
    case 0:
        new_seq(p);
        break;
    case 1:
    case 2:
        fork_seq(p, fail);
        break;
    case 3:
    case 4:
        trim_seq(p);
        break;
    case 5:
    case 6:
        add_to_index(p, fail);
        break;
    case 7:
    case 8:
        match_seq(p, fail);
        break;
    case 9:
        if (p->n_seqs && rnd(3) == 0)
            drop_seq(p, (int)rnd((uint32_t)p->n_seqs));
        else if (rnd(6) == 0) {
            kv_index_clear(p->kv);
            forget_kept(p);
        }
        break;
    default:
        one_pass(p, fail);
    }
    if (!p->n_seqs)
        new_seq(p);
}

/* --- configurations ------------------------------------------------------- */

static const char *const keys[] = {
    "f32",       "f16",           "bf16",          "fp8",        "affine2g32",    "affine3",
    "affine4",   "affine5g32",    "affine6",       "affine8g32", "chan2",         "chan3+mix",
    "chan4+pre", "chan4+pre+mix", "chan3+pre+mix", "chan2+mix",  "chan5+pre+mix", "chan6",
    "chan8+pre", "rot2",          "rot3+qjl",      "rot4",       "rot4+qjl",      "rot8+qjl",
    "tq1",       "tq2+c",         "tq3.norm",      "tq4",        "tq4.matched+c", "tq5",
    "prod2",     "prod3.orth",    "prod4",         "prod4.orth", "split2.5",      "split3.5",
};
static const char *const values[] = {
    "f32",     "f16",     "bf16",     "fp8",   "affine2g32",   "affine3", "affine4",  "affine5g32",
    "affine6", "affine8", "chan2",    "chan3", "chan4",        "chan5",   "chan6",    "chan8",
    "tq1",     "tq2",     "tq3.norm", "tq4",   "tq4.unbiased", "tq5",     "split2.5", "split3.5",
};

static void pick_codec(const char *const *names, int n, int dim, bool key, struct kv_format *f, struct kv_codec *c)
{
    struct tlm_error e;
    do {
        const char *name = names[rnd((uint32_t)n)];
        e = (struct tlm_error){0};
        assert_int_equal(kv_format_parse(name, strlen(name), key, f, &e), TLM_OK);
    } while (kv_codec_init(c, f, dim, key, &e) != TLM_OK);
}

static void configure(struct program *p, bool limited, bool states)
{
    static const int dims[] = {24, 32, 64, 64};
    static const int64_t windows[] = {0, 0, 0, 70, 5, 1, 64, 200}, sinks[] = {0, 0, 64, 128, 70};
    static const int64_t starts[] = {0, 0, 0, 1, 64, 100, 300};
    static const struct {
        int64_t max, kept;
    } most[] = {{0, 0}, {0, 0}, {0, 0}, {100, 4}, {150, 70}, {5, 4}, {300, 0}};
    const struct kv_format exact[KV_TYPE_COUNT] = {{.kind = KVF_F32}, {.kind = KVF_F16}, {.kind = KVF_BF16}};
    p->kv_heads = limited ? 2 : 1 + (int)rnd(2);
    p->heads = p->kv_heads * (1 + (int)rnd(2));
    p->dim = limited ? 64 : dims[rnd(4)];
    p->v_dim = limited ? 64 : rnd(2) ? p->dim : dims[rnd(4)];
    static const int rare[] = {0, 100, 12};
    p->rare = limited ? 12 : rare[rnd(3)];
    bool plain = rnd(8) == 0, one_kind = rnd(2);
    int m = (int)rnd(7);
    struct tlm_error e = {0};
    enum kv_type type = limited ? KV_F32 : (enum kv_type)rnd(KV_TYPE_COUNT);
    for (int l = 0; l < LAYERS; l++) {
        struct kv_layer_config *c = &p->layers[l];
        *c = (struct kv_layer_config){.window = one_kind ? 0 : windows[rnd(8)]};
        c->shape = (struct kv_shape){type, p->kv_heads, p->dim, p->v_dim};
        c->key = c->value = exact[type];
        if (plain || (l == 1 && rnd(3) == 0)) {
            assert_int_equal(kv_codec_init(&p->key[l], &c->key, p->dim, true, &e), TLM_OK);
            assert_int_equal(kv_codec_init(&p->value[l], &c->value, p->v_dim, false, &e), TLM_OK);
        } else {
            pick_codec(keys, (int)(sizeof keys / sizeof *keys), p->dim, true, &c->key, &p->key[l]);
            pick_codec(values, (int)(sizeof values / sizeof *values), p->v_dim, false, &c->value, &p->value[l]);
        }
    }
    p->config = (struct kv_config){.layers = p->layers, .n_layers = LAYERS, .sink = sinks[rnd(5)]};
    p->config.start = rnd(3) ? 0 : starts[rnd(7)];
    p->config.max_tokens = most[m].max;
    p->config.kept = most[m].kept;
    if (limited && rnd(2))
        p->config.keep_bytes = (size_t)20 << 20;
    else if (limited)
        p->config.limit_bytes = (size_t)(24 + 8 * rnd(4)) << 20;
    if (rnd(4)) {
        struct rope_params r = {p->dim, rnd(2) ? p->dim : p->dim / 2, 10000, 4096, rnd(2)};
        assert_int_equal(rope_init(&p->rope, &r, NULL, "rope", &e), TLM_OK);
        p->has_rope = true;
        if (rnd(3) == 0)
            p->rope.factor = 1.25f;
    }
    static const size_t state_bytes[] = {8, 64, 1000, 4160};
    if (states)
        p->config.state_bytes = limited ? 300000 : state_bytes[rnd(4)];
    if (states && rnd(2)) { /* nothing but states decides how far a match goes */
        for (int l = 0; l < LAYERS; l++)
            p->layers[l].window = 0;
        p->config.start = p->config.max_tokens = 0;
    }
    for (int h = 0; h < MAX_HEADS; h++)
        p->sinks[h] = rnd_float();
    p->opts = (struct kv_opts){.scale = 1 / sqrtf((float)p->dim), .softcap = rnd(4) ? 0 : 5};
    p->opts.sinks = rnd(3) ? NULL : p->sinks;
    p->opts.rope = p->has_rope ? &p->rope : NULL;
}

static void check_free(const struct kv_pool *p, int used)
{
    assert_int_equal(p->n_free, p->n_slabs * p->slab_blocks - used);
}

static void run_program(struct program *p, int steps, bool limited, bool states)
{
    struct tlm_error e = {0};
    configure(p, limited, states);
    assert_int_equal(kv_cache_new(&p->config, p->be, &p->kv, &e), TLM_OK);
    for (int i = 0; i < 1 + (int)rnd(3); i++)
        new_seq(p);
    new_seq(p);
    for (int i = 0; i < steps; i++)
        step(p);
    while (p->n_seqs)
        drop_seq(p, 0);
    kv_index_clear(p->kv);
    forget_kept(p);
    for (int g = 0; g < p->kv->n_groups; g++) {
        check_free(&p->kv->groups[g].open, 0);
        if (p->kv->groups[g].encoded)
            check_free(&p->kv->groups[g].sealed, 0);
    }
    check_free(&p->kv->states, states); /* the empty sequence's */
    if (p->config.limit_bytes)
        assert_true(kv_cache_bytes(p->kv) <= p->config.limit_bytes);
    kv_cache_free(p->kv);
    free_blocks(p);
    for (int g = 0; g < LAYERS; g++)
        for (int i = 0; i < 2; i++) {
            mem_free(p->numbers[g][i].block);
            p->numbers[g][i] = (struct by_number){0};
        }
    for (int l = 0; l < LAYERS; l++) {
        kv_codec_deinit(&p->key[l]);
        kv_codec_deinit(&p->value[l]);
    }
    for (int i = 0; i < p->turns_home.n_turns; i++) {
        mem_free(p->turns_home.turns[i].cos);
        mem_free(p->turns_home.turns[i].sin);
    }
    p->turns_home.n_turns = 0;
    if (p->has_rope)
        rope_deinit(&p->rope);
    p->has_rope = false;
}

static void run_programs(int first, int n, int steps, bool limited, bool states, struct program *figures)
{
    struct tlm_error e = {0};
    struct program p = {0};
    struct ctx c;
    assert_int_equal(backend_cpu_new(2, true, &p.be, &e), TLM_OK);
    assert_int_equal(ctx_init(&c, p.be, &e), TLM_OK);
    p.c = &c;
    p.s = mem_new_array(SEQS, sizeof *p.s);
    assert_non_null(p.s);
    for (int i = first; i < first + n; i++) {
        rng_state = (uint64_t)i * 0x9e3779b97f4a7c15u + 12345;
        for (int k = 0; k < 5; k++)
            rnd(2);
        p.number = i;
        run_program(&p, steps, limited, states);
    }
    *figures = p;
    mem_free(p.s);
    ctx_deinit(&c);
    p.be->ops->free(p.be);
}

/* More programs for a longer search: TURBOLM_TEST_TIMES=20. */
static int times(void)
{
    const char *s = getenv("TURBOLM_TEST_TIMES");
    int n = s ? (int)strtol(s, NULL, 10) : 1;
    return n > 0 ? n : 1;
}

static void test_programs(void **state)
{
    (void)state;
    struct program f;
    run_programs(0, 200 * times(), 30, false, false, &f);
    print_message("# rows %ld, positions seen encoded %ld, prefixes matched %ld, found again %ld, failures %ld\n",
                  f.rows, f.encoded_rows, f.matched, f.found, f.failures);
    assert_true(f.rows > 10000 && f.encoded_rows > 100000 && f.matched > 100 && f.found > 50 && f.failures > 50);
}

static void test_limited_programs(void **state)
{
    (void)state;
    struct program f;
    run_programs(1000000, 10 * times(), 100, true, false, &f);
    print_message("# rows %ld, limits met %ld\n", f.rows, f.limits);
    assert_true(f.rows > 1000 && f.encoded_rows > 10000 && f.limits > 0);
}

static void test_state_programs(void **state)
{
    (void)state;
    struct program f;
    run_programs(2000000, 60 * times(), 60, false, true, &f);
    print_message("# rows %ld, states gone back to %ld, longest prefixes %ld, failures %ld\n", f.rows, f.restored,
                  f.exact_matches, f.failures);
    assert_true(f.rows > 5000 && f.restored > 200 && f.exact_matches > 50 && f.failures > 50);
}

static void test_limited_state_programs(void **state)
{
    (void)state;
    struct program f;
    run_programs(3000000, 6 * times(), 100, true, true, &f);
    print_message("# rows %ld, states gone back to %ld, limits met %ld\n", f.rows, f.restored, f.limits);
    assert_true(f.rows > 500 && f.restored > 20 && f.limits > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs), cmocka_unit_test(test_limited_programs),
                                       cmocka_unit_test(test_state_programs),
                                       cmocka_unit_test(test_limited_state_programs)};
    return cmocka_run_group_tests_name("kv_programs", tests, NULL, NULL);
}
