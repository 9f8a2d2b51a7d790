/* One forward pass over the cache: block pointers, rotary tables, attention. */
#include <string.h>

#include "kvcache/kv_private.h"
#include "tensor/op.h"

enum { PASS_ROPES = 8 }; /* distinct rotary tables of one model */

struct pass_rope {
    const struct rope *rope;
    float *cos, *sin; /* [T, dims/2] */
};

struct kv_pass {
    struct kv_cache *kv;
    const struct kv_span *spans;
    int n_spans;
    int64_t rows;
    struct attn_span **group_spans; /* [groups][spans]; blocks point into group_blocks */
    void ***group_blocks;           /* [groups][all blocks of all spans]: set per layer */
    struct pass_rope ropes[PASS_ROPES];
    int n_ropes;
};

static bool build_group(struct ctx *c, struct kv_pass *p, int g)
{
    size_t total = 0;
    for (int i = 0; i < p->n_spans; i++)
        total += (size_t)p->spans[i].seq->tables[g].n;
    struct attn_span *spans = ctx_step_alloc(c, (size_t)p->n_spans, sizeof *spans);
    void **blocks = ctx_step_alloc(c, total, sizeof *blocks);
    if (!spans || !blocks)
        return false;
    p->group_spans[g] = spans;
    p->group_blocks[g] = blocks;
    for (int i = 0; i < p->n_spans; i++) {
        const struct kv_span *s = &p->spans[i];
        const struct kv_table *t = &s->seq->tables[g];
        spans[i] = (struct attn_span){s->row, s->rows, s->seq->length, t->base, blocks, t->n};
        blocks += t->n;
    }
    return true;
}

struct kv_pass *kv_pass_begin(struct ctx *c, struct kv_cache *kv, const struct kv_span *spans, int n_spans)
{
    struct kv_pass *p = ctx_step_alloc(c, 1, sizeof *p);
    if (!p)
        return NULL;
    *p = (struct kv_pass){.kv = kv, .spans = spans, .n_spans = n_spans};
    for (int i = 0; i < n_spans; i++) {
        if (kv_seq_extend(spans[i].seq, spans[i].seq->length + spans[i].rows, &c->err) != TLM_OK)
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

void kv_pass_commit(struct kv_pass *p)
{
    for (int i = 0; i < p->n_spans; i++) {
        p->spans[i].seq->length += p->spans[i].rows;
        kv_seq_release_windows(p->spans[i].seq);
    }
}

void kv_pass_abort(struct kv_pass *p)
{
    for (int i = 0; i < p->n_spans; i++)
        kv_seq_shrink(p->spans[i].seq);
}

static const struct pass_rope *tables_for(struct ctx *c, struct kv_pass *p, const struct rope *rope)
{
    for (int i = 0; i < p->n_ropes; i++)
        if (p->ropes[i].rope == rope)
            return &p->ropes[i];
    if (p->n_ropes == PASS_ROPES) {
        err_set(&c->err, TLM_EINTERNAL, "more than %d rotary tables", PASS_ROPES);
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

static void point_blocks(const struct kv_pass *p, const struct kv_layer *l)
{
    const struct kv_pool *pool = &p->kv->groups[l->group].pool;
    void **at = p->group_blocks[l->group];
    for (int i = 0; i < p->n_spans; i++) {
        const struct kv_table *t = &p->spans[i].seq->tables[l->group];
        for (int b = 0; b < t->n; b++)
            *at++ = kv_pool_memory(pool, t->blocks[b]) + l->offset;
    }
}

struct tensor *kv_attend(struct ctx *c, struct kv_pass *p, int layer, const struct tensor *q, const struct tensor *k,
                         const struct tensor *v, const struct kv_opts *o)
{
    if (!ctx_ok(c) || !q || !k || !v)
        return NULL;
    const struct kv_layer *l = &p->kv->layers[layer];
    const struct kv_shape *s = &l->shape;
    int64_t heads = tensor_cols(q) / s->head_dim;
    if (tensor_cols(q) != heads * s->head_dim || heads % s->n_heads ||
        tensor_cols(k) != (int64_t)s->n_heads * s->head_dim || tensor_cols(v) != (int64_t)s->n_heads * s->v_dim ||
        tensor_rows(q) != p->rows || tensor_rows(k) != p->rows || tensor_rows(v) != p->rows) {
        err_set(&c->err, TLM_EINTERNAL, "attention of layer %d: shapes do not match the cache", layer);
        return NULL;
    }
    if (o->rope) {
        const struct pass_rope *r = tables_for(c, p, o->rope);
        if (!r)
            return NULL;
        struct rope_args ra = {s->head_dim, o->rope->dims, o->rope->interleaved, r->cos, r->sin};
        q = op_rope(c, q, &ra);
        k = op_rope(c, k, &ra);
    }
    struct tensor *y = ctx_tensor2(c, p->rows, heads * s->v_dim);
    if (!q || !k || !y)
        return NULL;
    point_blocks(p, l);
    struct attn_args a = {
        .shape = *s,
        .n_heads = (int)heads,
        .scale = o->scale,
        .softcap = o->softcap,
        .window = p->kv->groups[l->group].window,
        .sinks = o->sinks,
        .spans = p->group_spans[l->group],
        .n_spans = p->n_spans,
    };
    c->be->ops->kv_write(c->be, &a, k, v);
    c->be->ops->attend(c->be, &a, y, q);
    return y;
}
