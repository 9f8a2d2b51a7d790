/* One forward pass over the cache: room for its rows, block pointers, rotary
 * tables, attention, sealing. */
#include <string.h>

#include "kvcache/kv_private.h"
#include "kvcache/kv_turn.h"
#include "tensor/op.h"

struct pass_rope {
    const struct rope *rope;
    float *cos, *sin; /* [T, dims/2] */
};

/* An entry that rows of the pass stand in, or one that is sealed belatedly. */
struct own {
    int count;       /* tokens when the pass is committed */
    bool seals;      /* then it is full and becomes encoded */
    int32_t *sealed; /* [groups] blocks for that; KV_NONE in groups that are not encoded */
    char *temporary; /* exact memory of one layer, for a block that begins and seals in this pass; or NULL */
};

struct pass_span {
    struct own *own; /* of the entries from first_own up */
    int n_own, first_own;
    int32_t state; /* that becomes the sequence's; KV_NONE: no recurrent layers, or no room yet */
};

struct kv_pass {
    struct kv_cache *kv;
    const struct kv_span *spans;
    int n_spans, n_planned;
    int64_t rows;
    struct pass_span *plans;
    struct attn_span **group_spans;   /* [groups][spans] */
    struct attn_block **group_blocks; /* [groups][blocks of all spans]: data is set per layer */
    struct pass_rope ropes[KV_ROPES];
    int n_ropes;
};

/* --- room ----------------------------------------------------------------- */

static size_t largest_layer(const struct kv_cache *kv)
{
    size_t most = 0;
    for (int i = 0; i < kv->n_layers; i++) {
        size_t n = kv_layer_bytes(&kv->layers[i].shape);
        most = n > most ? n : most;
    }
    return most;
}

static enum tlm_status seal_room(struct ctx *c, struct kv_cache *kv, struct own *o)
{
    enum tlm_status s = TLM_OK;
    o->sealed = ctx_step_alloc(c, (size_t)kv->n_groups, sizeof *o->sealed);
    if (!o->sealed)
        return c->err.status;
    for (int g = 0; g < kv->n_groups; g++)
        o->sealed[g] = KV_NONE;
    for (int g = 0; g < kv->n_groups && s == TLM_OK && o->seals; g++)
        if (kv->groups[g].encoded)
            s = kv_block_get(kv, &kv->groups[g].sealed, &o->sealed[g], &c->err);
    return s;
}

/* Exact blocks for the last entry, except where sealed and temporary memory
 * stand in for one. */
static enum tlm_status open_room(struct kv_seq *s, const struct own *o, struct tlm_error *e)
{
    struct kv_cache *kv = s->cache;
    enum tlm_status st = TLM_OK;
    for (int g = 0; g < kv->n_groups && st == TLM_OK; g++)
        if (!(o->seals && kv->groups[g].encoded))
            st = kv_block_get(kv, &kv->groups[g].open, &kv_entry_ids(s, s->n - 1)[g], e);
    return st;
}

static bool can_fill(const struct kv_seq *s)
{
    return s->n && !s->entries[s->n - 1].sealed && s->entries[s->n - 1].count < KV_BLOCK;
}

/* The next own entry of a span, which has `left` rows to place. */
static enum tlm_status plan_own(struct ctx *c, struct kv_seq *s, struct own *o, int64_t at, int64_t left)
{
    struct kv_cache *kv = s->cache;
    struct tlm_error *e = &c->err;
    bool fresh = !can_fill(s) || s->entries[s->n - 1].start + s->entries[s->n - 1].count != at;
    enum tlm_status st = fresh ? kv_seq_add_entry(s, at, e) : kv_seq_own_last(s, e);
    if (st != TLM_OK)
        return st;
    struct kv_entry *en = &s->entries[s->n - 1];
    o->count = (int)(en->count + left < KV_BLOCK ? en->count + left : KV_BLOCK);
    o->seals = kv->encoded && o->count == KV_BLOCK && en->start >= kv->sink && s->length >= kv->start;
    st = seal_room(c, kv, o);
    if (st == TLM_OK && fresh)
        st = open_room(s, o, e);
    if (st == TLM_OK && fresh && o->seals) {
        o->temporary = ctx_step_alloc(c, 1, largest_layer(kv));
        st = o->temporary ? TLM_OK : e->status;
    }
    return st;
}

/* Full entries at the end that are to be sealed now, because the sequence has
 * become long enough. */
static int late_entries(const struct kv_seq *s)
{
    const struct kv_cache *kv = s->cache;
    int n = 0, last = s->n - can_fill(s);
    if (!kv->encoded || kv->start == 0 || s->length < kv->start)
        return 0;
    while (n < last && !s->entries[last - 1 - n].sealed && s->entries[last - 1 - n].start >= kv->sink)
        n++;
    return n;
}

static enum tlm_status plan_span(struct ctx *c, struct pass_span *p, const struct kv_span *span, const int32_t *ids)
{
    struct kv_seq *s = span->seq;
    s->known = s->known && ids;
    if (s->known) {
        enum tlm_status st = kv_seq_reserve_tokens(s, s->length + span->rows, &c->err);
        if (st != TLM_OK)
            return st;
        memcpy(s->tokens + s->length, ids + span->row, (size_t)span->rows * sizeof *ids);
    }
    if (kv_has_states(s->cache)) {
        enum tlm_status st = kv_block_get(s->cache, &s->cache->states, &p->state, &c->err);
        if (st != TLM_OK)
            return st;
    }
    int late = late_entries(s);
    p->own = ctx_step_alloc(c, (size_t)(span->rows / KV_BLOCK + 2 + late), sizeof *p->own);
    if (!p->own)
        return c->err.status;
    p->first_own = s->n - late - can_fill(s);
    for (int i = 0; i < late; i++) {
        p->own[p->n_own] = (struct own){.count = KV_BLOCK, .seals = true};
        enum tlm_status st = seal_room(c, s->cache, &p->own[p->n_own]);
        p->n_own += p->own[p->n_own].sealed != NULL;
        if (st != TLM_OK)
            return st;
    }
    int64_t at = s->length, end = at + span->rows;
    while (at < end) {
        struct own *o = &p->own[p->n_own];
        *o = (struct own){0};
        enum tlm_status st = plan_own(c, s, o, at, end - at);
        p->n_own += o->sealed != NULL;
        if (st != TLM_OK)
            return st;
        at = s->entries[p->first_own + p->n_own - 1].start + o->count;
    }
    return TLM_OK;
}

/* --- block lists ---------------------------------------------------------- */

static struct attn_block *make_blocks(const struct kv_cache *kv, const struct kv_seq *s, const struct pass_span *p,
                                      int g, struct attn_block *at)
{
    for (int i = 0; i < s->n; i++) {
        const struct kv_entry *en = &s->entries[i];
        const struct own *o = i >= p->first_own ? &p->own[i - p->first_own] : NULL;
        bool seals = o && o->seals && kv->groups[g].encoded;
        if (kv_entry_ids(s, i)[g] == KV_NONE && !(o && o->temporary))
            continue;
        *at++ = (struct attn_block){.start = en->start,
                                    .index = i,
                                    .count = o ? o->count : en->count,
                                    .encoded = seals || (en->sealed && kv->groups[g].encoded)};
    }
    return at;
}

static bool build_group(struct ctx *c, struct kv_pass *p, int g)
{
    size_t total = 0, own = 0;
    for (int i = 0; i < p->n_spans; i++) {
        total += (size_t)p->spans[i].seq->n;
        own += (size_t)p->plans[i].n_own;
    }
    struct attn_span *spans = ctx_step_alloc(c, (size_t)p->n_spans, sizeof *spans);
    struct attn_block *blocks = ctx_step_alloc(c, total + own, sizeof *blocks);
    if (!spans || !blocks)
        return false;
    p->group_spans[g] = spans;
    p->group_blocks[g] = blocks;
    for (int i = 0; i < p->n_spans; i++) {
        const struct kv_span *s = &p->spans[i];
        const struct pass_span *plan = &p->plans[i];
        struct attn_block *end = make_blocks(p->kv, s->seq, plan, g, blocks);
        struct attn_span *to = &spans[i];
        *to = (struct attn_span){.row = s->row, .rows = s->rows, .pos = s->seq->length, .blocks = blocks};
        to->n_blocks = (int)(end - blocks);
        to->own = end;
        for (to->own_first = to->n_blocks; to->own_first; to->own_first--)
            if (blocks[to->own_first - 1].index < plan->first_own)
                break;
        to->n_own = to->n_blocks - to->own_first;
        for (int k = 0; k < to->n_own; k++) {
            end[k] = blocks[to->own_first + k];
            end[k].encoded = false;
        }
        blocks = end + to->n_own;
    }
    return true;
}

struct kv_pass *kv_pass_begin(struct ctx *c, struct kv_cache *kv, const int32_t *ids, const struct kv_span *spans,
                              int n_spans)
{
    struct kv_pass *p = ctx_step_alloc(c, 1, sizeof *p);
    struct pass_span *plans = ctx_step_alloc(c, (size_t)n_spans, sizeof *plans);
    if (!p || !plans)
        return NULL;
    *p = (struct kv_pass){.kv = kv, .spans = spans, .n_spans = n_spans, .plans = plans};
    for (int i = 0; i < n_spans; i++) {
        plans[i] = (struct pass_span){.state = KV_NONE};
        p->n_planned = i + 1;
        if (plan_span(c, &plans[i], &spans[i], ids) != TLM_OK)
            goto fail;
        p->rows += spans[i].rows;
    }
    p->group_spans = ctx_step_alloc(c, (size_t)kv->n_groups, sizeof *p->group_spans);
    p->group_blocks = ctx_step_alloc(c, (size_t)kv->n_groups, sizeof *p->group_blocks);
    if (!p->group_spans || !p->group_blocks)
        goto fail;
    for (int g = 0; g < kv->n_groups; g++)
        if (!build_group(c, p, g))
            goto fail;
    return p;
fail:
    kv_pass_abort(p);
    return NULL;
}

/* --- the end -------------------------------------------------------------- */

static void commit_own(struct kv_seq *s, int entry, const struct own *o)
{
    struct kv_cache *kv = s->cache;
    struct kv_entry *en = &s->entries[entry];
    en->count = o->count;
    if (!o->seals)
        return;
    for (int g = 0; g < kv->n_groups; g++) {
        int32_t *id = &kv_entry_ids(s, entry)[g];
        if (!kv->groups[g].encoded)
            continue;
        if (*id == KV_NONE && !o->temporary) { /* outside the window by now */
            kv_pool_put(&kv->groups[g].sealed, o->sealed[g]);
            continue;
        }
        if (*id != KV_NONE)
            kv_pool_put(&kv->groups[g].open, *id);
        *id = o->sealed[g];
    }
    en->sealed = true;
}

void kv_pass_commit(struct kv_pass *p)
{
    for (int i = 0; i < p->n_spans; i++) {
        struct kv_seq *s = p->spans[i].seq;
        for (int k = 0; k < p->plans[i].n_own; k++)
            commit_own(s, p->plans[i].first_own + k, &p->plans[i].own[k]);
        s->length += p->spans[i].rows;
        if (p->plans[i].state != KV_NONE) {
            kv_pool_put(&p->kv->states, s->state);
            s->state = p->plans[i].state;
        }
        kv_seq_release_windows(s);
    }
}

void kv_pass_abort(struct kv_pass *p)
{
    for (int i = 0; i < p->n_planned; i++) {
        for (int k = 0; k < p->plans[i].n_own; k++)
            for (int g = 0; g < p->kv->n_groups; g++)
                if (p->plans[i].own[k].sealed[g] != KV_NONE)
                    kv_pool_put(&p->kv->groups[g].sealed, p->plans[i].own[k].sealed[g]);
        if (p->plans[i].state != KV_NONE)
            kv_pool_put(&p->kv->states, p->plans[i].state);
        kv_seq_shrink(p->spans[i].seq);
    }
}

void *kv_pass_state(struct kv_pass *p, int span)
{
    return p->plans[span].state == KV_NONE ? NULL : kv_pool_memory(&p->kv->states, p->plans[span].state);
}

/* --- attention ------------------------------------------------------------ */

static const struct pass_rope *tables_for(struct ctx *c, struct kv_pass *p, const struct rope *rope)
{
    for (int i = 0; i < p->n_ropes; i++)
        if (p->ropes[i].rope == rope)
            return &p->ropes[i];
    if (p->n_ropes == KV_ROPES) {
        err_set(&c->err, TLM_EINTERNAL, "more than %d rotary tables", KV_ROPES);
        return NULL;
    }
    size_t half = (size_t)rope->dims / 2;
    struct pass_rope *r = &p->ropes[p->n_ropes];
    r->rope = rope;
    r->cos = ctx_step_alloc(c, (size_t)p->rows * half, sizeof *r->cos);
    r->sin = ctx_step_alloc(c, (size_t)p->rows * half, sizeof *r->sin);
    if (!r->cos || !r->sin)
        return NULL;
    for (int i = 0; i < p->n_spans; i++) {
        const struct kv_span *s = &p->spans[i];
        rope_table(rope, s->seq->length, s->rows, r->cos + (size_t)s->row * half, r->sin + (size_t)s->row * half);
    }
    p->n_ropes++;
    return r;
}

/* Data pointers of this layer in every block list of its group. */
static void point_blocks(const struct kv_pass *p, const struct kv_layer *l)
{
    struct kv_cache *kv = p->kv;
    struct kv_group *g = &kv->groups[l->group];
    for (int i = 0; i < p->n_spans; i++) {
        const struct kv_seq *s = p->spans[i].seq;
        const struct pass_span *plan = &p->plans[i];
        const struct attn_span *span = &p->group_spans[l->group][i];
        struct attn_block *b = p->group_blocks[l->group] + (span->blocks - p->group_blocks[l->group]);
        for (int k = 0; k < span->n_blocks; k++) {
            int entry = (int)b[k].index;
            int32_t id = kv_entry_ids(s, entry)[l->group];
            if (b[k].encoded && k >= span->own_first)
                id = plan->own[entry - plan->first_own].sealed[l->group];
            b[k].data = b[k].encoded ? kv_pool_memory(&g->sealed, id) + l->sealed_offset
                                     : kv_pool_memory(&g->open, id) + l->open_offset;
        }
        struct attn_block *o = b + span->n_blocks;
        for (int k = 0; k < span->n_own; k++) {
            int entry = (int)o[k].index;
            int32_t id = kv_entry_ids(s, entry)[l->group];
            o[k].data = id == KV_NONE ? plan->own[entry - plan->first_own].temporary
                                      : kv_pool_memory(&g->open, id) + l->open_offset;
        }
    }
}

/* Angles of the starts of this layer's blocks; false with the error set. */
static bool turn_blocks(struct ctx *c, const struct kv_pass *p, const struct kv_layer *l, const struct kv_turns *t)
{
    int dims = t->turn.dims;
    for (int i = 0; i < p->n_spans; i++) {
        const struct attn_span *span = &p->group_spans[l->group][i];
        struct attn_block *b = p->group_blocks[l->group] + (span->blocks - p->group_blocks[l->group]);
        for (int k = 0; k < span->n_blocks; k++) {
            if (!b[k].encoded)
                continue;
            if (b[k].start % KV_BLOCK == 0) {
                b[k].turn = t->starts + b[k].start / KV_BLOCK * dims;
                b[k].turn_words = t->start_words + b[k].start / KV_BLOCK * dims;
                continue;
            }
            float *own = ctx_step_alloc(c, (size_t)dims, sizeof *own);
            int16_t *words = ctx_step_alloc(c, (size_t)dims, sizeof *words);
            if (!own || !words)
                return false;
            kv_turn_start(t, b[k].start, own, words);
            b[k].turn = own;
            b[k].turn_words = words;
        }
    }
    return true;
}

static struct kv_turns *turns_of(struct ctx *c, struct kv_pass *p, const struct kv_layer *l, const struct rope *rope)
{
    struct kv_turns *t = kv_turns_for(p->kv, rope, &c->err);
    int64_t end = 0;
    for (int i = 0; t && i < p->n_spans; i++) {
        int64_t n = p->spans[i].seq->length + p->spans[i].rows;
        end = n > end ? n : end;
    }
    if (!t || kv_turns_reserve(t, end, &c->err) != TLM_OK || !turn_blocks(c, p, l, t))
        return NULL;
    return t;
}

struct tensor *kv_attend(struct ctx *c, struct kv_pass *p, int layer, const struct tensor *q, const struct tensor *k,
                         const struct tensor *v, const struct kv_opts *o)
{
    if (!ctx_ok(c) || !q || !k || !v)
        return NULL;
    const struct kv_layer *l = &p->kv->layers[layer];
    const struct kv_shape *s = &l->shape;
    const struct kv_group *g = &p->kv->groups[l->group];
    int64_t heads = tensor_cols(q) / s->head_dim;
    if (tensor_cols(q) != heads * s->head_dim || heads % s->n_heads ||
        tensor_cols(k) != (int64_t)s->n_heads * s->head_dim || tensor_cols(v) != (int64_t)s->n_heads * s->v_dim ||
        tensor_rows(q) != p->rows || tensor_rows(k) != p->rows || tensor_rows(v) != p->rows) {
        err_set(&c->err, TLM_EINTERNAL, "attention of layer %d: shapes do not match the cache", layer);
        return NULL;
    }
    struct kv_turns *turns = NULL;
    if (o->rope) {
        const struct pass_rope *r = tables_for(c, p, o->rope);
        if (!r)
            return NULL;
        struct rope_args ra = {s->head_dim, o->rope->dims, o->rope->interleaved, r->cos, r->sin};
        q = op_rope(c, q, &ra);
        k = op_rope(c, k, &ra);
        if (g->encoded && l->key->f.pre && !(turns = turns_of(c, p, l, o->rope)))
            return NULL;
    }
    struct tensor *y = ctx_tensor2(c, p->rows, heads * s->v_dim);
    if (!q || !k || !y)
        return NULL;
    point_blocks(p, l);
    struct attn_args a = {
        .shape = *s,
        .key = g->encoded ? l->key : NULL,
        .value = g->encoded ? l->value : NULL,
        .turn = turns ? &turns->turn : NULL,
        .n_heads = (int)heads,
        .scale = o->scale,
        .softcap = o->softcap,
        .window = g->window,
        .keep = g->keep,
        .sinks = o->sinks,
        .spans = p->group_spans[l->group],
        .n_spans = p->n_spans,
    };
    c->be->ops->kv_write(c->be, &a, k, v);
    if (g->encoded)
        c->be->ops->kv_seal(c->be, &a);
    c->be->ops->attend(c->be, &a, y, q);
    return y;
}
