/* Which cache formats a model's layers get. */
#include <string.h>

#include "base/mem.h"
#include "models/model.h"

/* Blocks that fill are 16-bit unless a format is wider. */
static enum kv_type exact_type(const struct tlm_model *m)
{
    bool bf16 = true;
    for (int64_t i = 0; i < model_base(m)->cfg.layers; i++) {
        const struct kv_choice *c = &m->kv[i];
        if (c->key.kind == KVF_F32 || c->value.kind == KVF_F32)
            return KV_F32;
        bf16 = bf16 && c->key.kind == KVF_BF16 && c->value.kind == KVF_BF16;
    }
    return bf16 ? KV_BF16 : KV_F16;
}

/* Bits and bytes of sealed blocks; refuses formats that do not suit the heads. */
static enum tlm_status add_figures(struct tlm_model *m, struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    double bits = 0, bytes = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const struct kv_choice *now = &m->kv[i], *before = i ? &m->kv[i - 1] : NULL;
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
    m->info.kv_bytes_per_token = (uint64_t)bytes;
    m->info.kv_bits = bytes * 8 / (double)(2 * c->layers * c->kv_heads * c->head_dim);
    return TLM_OK;
}

enum tlm_status model_choose_cache(struct tlm_model *m, const struct tlm_model_options *o, struct tlm_error *e)
{
    int n = (int)model_base(m)->cfg.layers;
    const char *spec = o->kv_format ? o->kv_format : o->precision == TLM_PRECISION_EXACT ? "f32" : "f16";
    m->kv = mem_new_array((size_t)n, sizeof *m->kv);
    if (!m->kv)
        return err_nomem(e, (size_t)n * sizeof *m->kv);
    if (o->kv_sink < -1 || o->max_kv_size < 0 || o->quantized_kv_start < 0)
        return err_set(e, TLM_EINVAL, "cache sizes: %lld, %lld, %lld, expected 0 or more", (long long)o->kv_sink,
                       (long long)o->max_kv_size, (long long)o->quantized_kv_start);
    m->kv_config.sink = o->kv_sink < 0 ? 0 : o->kv_sink == 0 ? KV_BLOCK : o->kv_sink;
    m->kv_config.max_tokens = o->max_kv_size;
    m->kv_config.kept = 4; /* as the original keeps of a rotating cache */
    m->kv_config.start = o->quantized_kv_start;
    enum tlm_status s = kv_spec_parse(spec, n, m->kv, e);
    if (s != TLM_OK)
        return s;
    m->kv_type = exact_type(m);
    kv_choice_name(&m->kv[0], m->kv_name);
    return add_figures(m, e);
}

enum tlm_status model_cache_new(const struct tlm_model *m, size_t keep_bytes, struct kv_cache **out,
                                struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    struct kv_layer_config *layers = mem_new_array((size_t)c->layers, sizeof *layers);
    if (!layers)
        return err_nomem(e, (size_t)c->layers * sizeof *layers);
    for (int i = 0; i < c->layers; i++) {
        layers[i].window = m->arch->window ? m->arch->window(m->params, i) : 0;
        layers[i].shape = (struct kv_shape){m->kv_type, (int)c->kv_heads, (int)c->head_dim, (int)c->head_dim};
        layers[i].key = m->kv[i].key;
        layers[i].value = m->kv[i].value;
    }
    struct kv_config config = m->kv_config;
    config.layers = layers;
    config.n_layers = (int)c->layers;
    config.keep_bytes = keep_bytes;
    enum tlm_status s = kv_cache_new(&config, m->be, out, e);
    mem_free(layers);
    return s;
}
