/* Which cache formats a model's layers get. */
#include <string.h>

#include "base/mem.h"
#include "models/model.h"

enum { KEPT = 4 }; /* as the original keeps of a rotating cache */

/* Blocks that fill are 16-bit unless a format is wider. */
static enum kv_type exact_type(const struct kv_choice *kv, int64_t layers)
{
    bool bf16 = true;
    for (int64_t i = 0; i < layers; i++) {
        if (kv[i].key.kind == KVF_F32 || kv[i].value.kind == KVF_F32)
            return KV_F32;
        bf16 = bf16 && kv[i].key.kind == KVF_BF16 && kv[i].value.kind == KVF_BF16;
    }
    return bf16 ? KV_BF16 : KV_F16;
}

enum tlm_status model_plan_figures(const struct tlm_model *m, struct cache_plan *p, struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    double bits = 0, bytes = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const struct kv_choice *now = &p->kv[i], *before = i ? &p->kv[i - 1] : NULL;
        if (!before || memcmp(now, before, sizeof *now)) {
            struct kv_codec key, value;
            enum tlm_status s = kv_codec_init(&key, &now->key, (int)c->head_dim, true, e);
            if (s != TLM_OK)
                return s;
            s = kv_codec_init(&value, &now->value, (int)c->head_dim, false, e);
            bits = (kv_codec_bits(&key) + kv_codec_bits(&value)) / 2;
            kv_codec_deinit(&key);
            if (s != TLM_OK)
                return s;
            kv_codec_deinit(&value);
        }
        bytes += bits / 8 * (double)(2 * c->kv_heads * c->head_dim);
    }
    p->token_bytes = (uint64_t)bytes;
    p->bits = bytes * 8 / (double)(2 * c->layers * c->kv_heads * c->head_dim);
    return TLM_OK;
}

enum tlm_status model_plan_cache(const struct tlm_model *m, const struct tlm_model_options *o, struct cache_plan *p,
                                 struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    const char *spec = o->kv_format ? o->kv_format : o->precision == TLM_PRECISION_EXACT ? "f32" : "f16";
    *p = (struct cache_plan){0};
    if (o->kv_sink < -1 || o->max_kv_size < 0 || o->max_kv_keep < -1 || o->quantized_kv_start < 0)
        return err_set(e, TLM_EINVAL, "cache: sink %lld, size %lld, keep %lld, start %lld, expected 0 or more",
                       (long long)o->kv_sink, (long long)o->max_kv_size, (long long)o->max_kv_keep,
                       (long long)o->quantized_kv_start);
    p->kv = mem_new_array((size_t)c->layers, sizeof *p->kv);
    if (!p->kv)
        return err_nomem(e, (size_t)c->layers * sizeof *p->kv);
    p->config.sink = o->kv_sink < 0 ? 0 : o->kv_sink == 0 ? KV_BLOCK : o->kv_sink;
    p->config.max_tokens = o->max_kv_size;
    p->config.kept = o->max_kv_keep < 0 ? 0 : o->max_kv_keep == 0 ? KEPT : o->max_kv_keep;
    p->config.start = o->quantized_kv_start;
    enum tlm_status s = kv_spec_parse(spec, (int)c->layers, p->kv, e);
    if (s != TLM_OK)
        return s;
    p->type = exact_type(p->kv, c->layers);
    return model_plan_figures(m, p, e);
}

void model_plan_free(struct cache_plan *p)
{
    mem_free(p->kv);
    p->kv = NULL;
}

enum tlm_status model_cache_new(const struct tlm_model *m, const struct cache_plan *p, size_t keep_bytes,
                                struct kv_cache **out, struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    struct kv_layer_config *layers = mem_new_array((size_t)c->layers, sizeof *layers);
    if (!layers)
        return err_nomem(e, (size_t)c->layers * sizeof *layers);
    for (int i = 0; i < c->layers; i++) {
        layers[i].window = m->arch->window ? m->arch->window(m->params, i) : 0;
        layers[i].shape = (struct kv_shape){p->type, (int)c->kv_heads, (int)c->head_dim, (int)c->head_dim};
        layers[i].key = p->kv[i].key;
        layers[i].value = p->kv[i].value;
    }
    struct kv_config config = p->config;
    config.layers = layers;
    config.n_layers = (int)c->layers;
    config.keep_bytes = keep_bytes;
    enum tlm_status s = kv_cache_new(&config, m->be, out, e);
    mem_free(layers);
    return s;
}
