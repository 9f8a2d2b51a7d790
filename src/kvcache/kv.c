/* The cache: layer groups, codecs, sizes. */
#include <string.h>

#include "base/mem.h"
#include "kvcache/kv_private.h"

static struct kv_group *group_for(struct kv_cache *kv, int64_t window, int64_t keep)
{
    for (int i = 0; i < kv->n_groups; i++)
        if (kv->groups[i].window == window && kv->groups[i].keep == keep)
            return &kv->groups[i];
    struct kv_group *g = &kv->groups[kv->n_groups++];
    g->window = window;
    g->keep = keep;
    return g;
}

static bool same_format(const struct kv_format *a, const struct kv_format *b)
{
    return a->kind == b->kind && a->bits == b->bits && a->group == b->group && a->scalar == b->scalar &&
           a->qjl == b->qjl && a->pre == b->pre && a->mix == b->mix && a->centred == b->centred &&
           a->orthogonal == b->orthogonal;
}

static enum tlm_status codec_for(struct kv_cache *kv, const struct kv_format *f, int dim, bool key,
                                 const struct kv_codec **out, struct tlm_error *e)
{
    for (int i = 0; i < kv->n_codecs; i++) {
        const struct kv_codec *c = &kv->codecs[i];
        if (same_format(&c->f, f) && c->dim == dim && c->key == key) {
            *out = c;
            return TLM_OK;
        }
    }
    enum tlm_status s = kv_codec_init(&kv->codecs[kv->n_codecs], f, dim, key, e);
    if (s == TLM_OK)
        *out = &kv->codecs[kv->n_codecs++];
    return s;
}

static bool is_encoded(const struct kv_layer_config *l)
{
    enum kv_kind exact = kv_type_kind(l->shape.type);
    return l->key.kind != exact || l->value.kind != exact;
}

/* max_tokens makes a window of every group; the first tokens are kept where
 * there was none. */
static void effective_window(const struct kv_config *c, int64_t window, int64_t *w, int64_t *keep)
{
    *w = window;
    *keep = 0;
    if (!c->max_tokens)
        return;
    if (window == 0) {
        *keep = c->kept < c->max_tokens ? c->kept : 0;
        *w = c->max_tokens - *keep;
    } else if (window > c->max_tokens) {
        *w = c->max_tokens;
    }
}

static enum tlm_status add_layer(struct kv_cache *kv, const struct kv_config *c, int i, struct tlm_error *e)
{
    const struct kv_layer_config *l = &c->layers[i];
    int64_t window, keep;
    effective_window(c, l->window, &window, &keep);
    struct kv_group *g = group_for(kv, window, keep);
    struct kv_layer *to = &kv->layers[i];
    *to = (struct kv_layer){.shape = l->shape, .group = (int)(g - kv->groups)};
    g->encoded = g->encoded || is_encoded(l);
    enum tlm_status s = codec_for(kv, &l->key, l->shape.head_dim, true, &to->key, e);
    return s == TLM_OK ? codec_for(kv, &l->value, l->shape.v_dim, false, &to->value, e) : s;
}

static size_t sealed_bytes(const struct kv_layer *l)
{
    return (size_t)l->shape.n_heads * (l->key->bytes + l->value->bytes);
}

static enum tlm_status build(struct kv_cache *kv, const struct kv_config *c, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    for (int i = 0; i < c->n_layers && s == TLM_OK; i++)
        s = add_layer(kv, c, i, e);
    size_t *open = mem_new_array(2 * (size_t)kv->n_groups, sizeof *open);
    size_t *sealed = open ? open + kv->n_groups : NULL;
    if (s == TLM_OK && !open)
        s = err_nomem(e, 2 * (size_t)kv->n_groups * sizeof *open);
    for (int i = 0; i < c->n_layers && s == TLM_OK; i++) {
        struct kv_layer *l = &kv->layers[i];
        l->open_offset = open[l->group];
        l->sealed_offset = sealed[l->group];
        open[l->group] += kv_layer_bytes(&l->shape);
        sealed[l->group] += sealed_bytes(l);
        if (kv->groups[l->group].encoded)
            s = kv->be->ops->kv_prepare(kv->be, l->key, l->value, e);
    }
    for (int g = 0; g < kv->n_groups && s == TLM_OK; g++) {
        kv_pool_init(&kv->groups[g].open, open[g], &kv->bytes, c->limit_bytes);
        kv_pool_init(&kv->groups[g].sealed, sealed[g], &kv->bytes, c->limit_bytes);
        kv->encoded = kv->encoded || kv->groups[g].encoded;
    }
    if (s == TLM_OK)
        s = kv_state_init(kv, c, e);
    mem_free(open);
    return s;
}

enum tlm_status kv_cache_new(const struct kv_config *c, struct backend *be, struct kv_cache **out, struct tlm_error *e)
{
    *out = NULL;
    struct kv_cache *kv = mem_new(sizeof *kv);
    if (!kv)
        return err_nomem(e, sizeof *kv);
    size_t n = (size_t)c->n_layers;
    kv->be = be;
    kv->n_layers = c->n_layers;
    kv->sink = c->sink;
    kv->start = c->start;
    kv->keep_bytes = c->keep_bytes;
    kv->layers = mem_new_array(n, sizeof *kv->layers);
    kv->groups = mem_new_array(n, sizeof *kv->groups); /* at most one each */
    kv->codecs = mem_new_array(2 * n, sizeof *kv->codecs);
    enum tlm_status s = TLM_OK;
    if (!kv->layers || !kv->groups || !kv->codecs)
        s = err_nomem(e, 2 * n * sizeof *kv->codecs);
    if (s == TLM_OK)
        s = build(kv, c, e);
    if (s != TLM_OK) {
        kv_cache_free(kv);
        return s;
    }
    *out = kv;
    return TLM_OK;
}

void kv_cache_free(struct kv_cache *kv)
{
    if (!kv)
        return;
    kv_index_clear(kv);
    for (int i = 0; i < kv->n_groups; i++) {
        kv_pool_deinit(&kv->groups[i].open);
        kv_pool_deinit(&kv->groups[i].sealed);
    }
    kv_pool_deinit(&kv->states);
    for (int i = 0; i < kv->n_codecs; i++)
        kv_codec_deinit(&kv->codecs[i]);
    for (int i = 0; i < kv->n_turns; i++) {
        mem_free(kv->turns[i].cos);
        mem_free(kv->turns[i].sin);
        mem_free(kv->turns[i].words);
        mem_free(kv->turns[i].starts);
        mem_free(kv->turns[i].start_words);
    }
    mem_free(kv->codecs);
    mem_free(kv->groups);
    mem_free(kv->layers);
    mem_free(kv);
}

size_t kv_cache_bytes(const struct kv_cache *kv)
{
    return kv->bytes;
}

size_t kv_cache_used(const struct kv_cache *kv)
{
    size_t n = kv_pool_used(&kv->states);
    for (int i = 0; i < kv->n_groups; i++)
        n += kv_pool_used(&kv->groups[i].open) + kv_pool_used(&kv->groups[i].sealed);
    return n;
}

void kv_cache_figures(const struct kv_cache *kv, struct kv_figures *out)
{
    *out = (struct kv_figures){0};
    double elements[2] = {0}, bits[2] = {0};
    for (int i = 0; i < kv->n_layers; i++) {
        const struct kv_layer *l = &kv->layers[i];
        double k = (double)l->shape.n_heads * l->shape.head_dim, v = (double)l->shape.n_heads * l->shape.v_dim;
        elements[0] += k;
        elements[1] += v;
        bits[0] += k * kv_codec_bits(l->key);
        bits[1] += v * kv_codec_bits(l->value);
        out->exact_bytes += kv_layer_bytes(&l->shape);
        out->token_bytes += sealed_bytes(l);
    }
    out->exact_bytes /= KV_BLOCK;
    out->token_bytes /= KV_BLOCK;
    out->key_bits = elements[0] ? bits[0] / elements[0] : 0;
    out->value_bits = elements[1] ? bits[1] / elements[1] : 0;
    out->bits = elements[0] ? (bits[0] + bits[1]) / (elements[0] + elements[1]) : 0;
}

size_t kv_cache_needs(const struct kv_cache *kv, int64_t n)
{
    size_t bytes = 2 * kv->states.block_bytes; /* a pass has the one before and the one after */
    for (int i = 0; i < kv->n_groups; i++) {
        const struct kv_group *g = &kv->groups[i];
        int64_t seen = g->window && g->window < n ? g->window + g->keep + KV_BLOCK : n;
        int64_t blocks = (seen + KV_BLOCK - 1) / KV_BLOCK, exact = blocks;
        if (g->encoded) {
            int64_t sink = (kv->sink + KV_BLOCK - 1) / KV_BLOCK;
            exact = sink < blocks - 1 ? sink + 1 : blocks;
        }
        bytes += (size_t)exact * g->open.block_bytes + (size_t)(blocks - exact) * g->sealed.block_bytes;
    }
    return bytes;
}

enum tlm_status kv_block_get(struct kv_cache *kv, struct kv_pool *p, int32_t *block, struct tlm_error *e)
{
    size_t slab = p->block_bytes * (size_t)p->slab_blocks, most = kv->keep_bytes;
    if (p->limit_bytes && (!most || p->limit_bytes < most))
        most = p->limit_bytes;
    if (p->n_free == 0 && most && kv->bytes + slab > most)
        kv_index_evict(kv, p);
    return kv_pool_get(p, block, e);
}
