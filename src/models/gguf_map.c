/* GGUF metadata as Hugging Face config keys. */
#include "models/gguf_map.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool key_of(char out[128], const struct arch *a, const char *suffix)
{
    return snprintf(out, 128, "%s.%s", a->gguf_arch, suffix) < 128;
}

const struct arch *gguf_map_arch(const struct gguf *g, struct tlm_error *e)
{
    struct gguf_str name = {0};
    char text[64];
    if (gguf_string(g, "general.architecture", &name, e) != TLM_OK)
        return NULL;
    if (!name.data || name.len >= sizeof text) {
        err_set(e, TLM_EFORMAT, "%s: general.architecture: missing or too long", g->path);
        return NULL;
    }
    memcpy(text, name.data, name.len);
    text[name.len] = 0;
    const struct arch *a = arch_find_gguf(text);
    if (!a)
        err_set(e, TLM_EUNSUPPORTED, "%s: general.architecture: '%s' is not supported", g->path, text);
    return a;
}

static enum tlm_status copy_int(const struct arch *a, const struct gguf *g, const char *suffix, cJSON *config,
                                const char *to, struct tlm_error *e)
{
    char key[128];
    int64_t v = INT64_MIN;
    key_of(key, a, suffix);
    enum tlm_status s = gguf_int(g, key, 0, INT64_C(1) << 40, &v, e);
    if (s == TLM_OK && v != INT64_MIN)
        cJSON_AddNumberToObject(config, to, (double)v);
    return s;
}

static enum tlm_status copy_float(const struct arch *a, const struct gguf *g, const char *suffix, cJSON *config,
                                  const char *to, struct tlm_error *e)
{
    char key[128];
    float v = NAN;
    key_of(key, a, suffix);
    enum tlm_status s = gguf_float(g, key, &v, e);
    if (s == TLM_OK && !isnan(v))
        cJSON_AddNumberToObject(config, to, (double)v);
    return s;
}

static enum tlm_status copy_scaling(const struct arch *a, const struct gguf *g, cJSON *config, struct tlm_error *e)
{
    char key[128], type[32];
    struct gguf_str name = {0};
    key_of(key, a, "rope.scaling.type");
    enum tlm_status s = gguf_string(g, key, &name, e);
    if (s != TLM_OK)
        return s;
    key_of(key, a, "rope.scale_linear"); /* older files */
    const char *factor = gguf_find(g, key) ? "rope.scale_linear" : "rope.scaling.factor";
    if (!name.data && gguf_find(g, key))
        snprintf(type, sizeof type, "linear");
    else if (!name.data)
        return TLM_OK;
    else
        snprintf(type, sizeof type, "%.*s", (int)(name.len < 31 ? name.len : 31), name.data);
    if (!strcmp(type, "none"))
        return TLM_OK;
    if (strcmp(type, "linear") && strcmp(type, "yarn"))
        return err_set(e, TLM_EUNSUPPORTED, "%s: %s.rope.scaling.type: '%s' is not supported", g->path, a->gguf_arch,
                       type);
    cJSON *scaling = cJSON_AddObjectToObject(config, "rope_scaling");
    cJSON_AddStringToObject(scaling, "rope_type", type);
    s = copy_float(a, g, factor, scaling, "factor", e);
    if (s == TLM_OK)
        s = copy_int(a, g, "rope.scaling.original_context_length", scaling, "original_max_position_embeddings", e);
    if (s == TLM_OK)
        s = copy_float(a, g, "rope.scaling.attn_factor", scaling, "attention_factor", e);
    if (s == TLM_OK)
        s = copy_float(a, g, "rope.scaling.yarn_beta_fast", scaling, "beta_fast", e);
    if (s == TLM_OK)
        s = copy_float(a, g, "rope.scaling.yarn_beta_slow", scaling, "beta_slow", e);
    return s;
}

static enum tlm_status refuse(const struct arch *a, const struct gguf *g, struct tlm_error *e)
{
    static const char *const keys[] = {"expert_count",     "attention.clamp_kqv", "attention.max_alibi_bias",
                                       "attention.causal", "residual_scale",      "embedding_scale",
                                       "attention.scale",  "logit_scale"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char key[128];
        key_of(key, a, keys[i]);
        const struct gguf_kv *kv = gguf_find(g, key);
        if (!kv)
            continue;
        bool neutral = kv->type == GGUF_BOOL ? kv->v.u != 0 /* attention.causal = true */
                       : kv->type == GGUF_F32 || kv->type == GGUF_F64
                           ? kv->v.f == 0
                           : kv->type != GGUF_STR && kv->type != GGUF_ARRAY && kv->v.u == 0;
        if (!neutral)
            return err_set(e, TLM_EUNSUPPORTED, "%s: %s is set, which is not supported", g->path, key);
    }
    return TLM_OK;
}

static int64_t vocab_of(const struct arch *a, const struct gguf *g)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    if (t)
        return t->ne[1];
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.tokens");
    if (kv && kv->type == GGUF_ARRAY)
        return (int64_t)kv->v.array.n;
    char key[128];
    int64_t n = 0;
    key_of(key, a, "vocab_size");
    return gguf_int(g, key, 1, INT64_C(1) << 28, &n, NULL) == TLM_OK ? n : 0;
}

enum tlm_status gguf_map_config(const struct arch *a, struct checkpoint *ck, struct tlm_error *e)
{
    static const struct {
        const char *from, *to;
        bool is_float;
    } keys[] = {
        {"block_count", "num_hidden_layers", false},
        {"context_length", "max_position_embeddings", false},
        {"embedding_length", "hidden_size", false},
        {"feed_forward_length", "intermediate_size", false},
        {"attention.head_count", "num_attention_heads", false},
        {"attention.head_count_kv", "num_key_value_heads", false},
        {"attention.key_length", "head_dim", false},
        {"attention.sliding_window", "sliding_window", false},
        {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
        {"rope.freq_base", "rope_theta", true},
        {"rope.freq_base_swa", "rope_local_base_freq", true},
        {"attn_logit_softcapping", "attn_logit_softcapping", true},
        {"final_logit_softcapping", "final_logit_softcapping", true},
    };
    const struct gguf *g = ck->gguf;
    cJSON *config = ck->config;
    cJSON_AddStringToObject(config, "model_type", a->model_type);
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && s == TLM_OK; i++)
        s = keys[i].is_float ? copy_float(a, g, keys[i].from, config, keys[i].to, e)
                             : copy_int(a, g, keys[i].from, config, keys[i].to, e);
    if (s == TLM_OK)
        s = copy_scaling(a, g, config, e);
    if (s == TLM_OK)
        s = refuse(a, g, e);
    cJSON_AddNumberToObject(config, "vocab_size", (double)vocab_of(a, g));
    cJSON_AddBoolToObject(config, "tie_word_embeddings", gguf_tensor_find(g, "output.weight") == NULL);
    if (s == TLM_OK && a->gguf_config)
        s = a->gguf_config(g, config, e);
    return s;
}
