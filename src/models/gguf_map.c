/* GGUF metadata as Hugging Face config keys. */
#include "models/gguf_map.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct key_row {
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

/* Under rope_scaling. */
static const struct key_row scaling_keys[] = {
    {"rope.scaling.type", "rope_type", false},
    {"rope.scaling.factor", "factor", true},
    {"rope.scaling.original_context_length", "original_max_position_embeddings", false},
    {"rope.scaling.attn_factor", "attention_factor", true},
    {"rope.scaling.yarn_beta_fast", "beta_fast", true},
    {"rope.scaling.yarn_beta_slow", "beta_slow", true},
};

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

static enum tlm_status add_number(cJSON *config, const char *key, double v, struct tlm_error *e)
{
    return cJSON_AddNumberToObject(config, key, v) ? TLM_OK : err_nomem(e, sizeof *config);
}

static enum tlm_status copy_int(const struct arch *a, const struct gguf *g, const char *suffix, cJSON *config,
                                const char *to, struct tlm_error *e)
{
    char key[128];
    int64_t v = INT64_MIN;
    key_of(key, a, suffix);
    enum tlm_status s = gguf_int(g, key, 0, INT64_C(1) << 40, &v, e);
    return s == TLM_OK && v != INT64_MIN ? add_number(config, to, (double)v, e) : s;
}

static enum tlm_status copy_float(const struct arch *a, const struct gguf *g, const char *suffix, cJSON *config,
                                  const char *to, struct tlm_error *e)
{
    char key[128];
    float v = NAN;
    key_of(key, a, suffix);
    enum tlm_status s = gguf_float(g, key, &v, e);
    return s == TLM_OK && !isnan(v) ? add_number(config, to, (double)v, e) : s;
}

static enum tlm_status copy_key(const struct arch *a, const struct gguf *g, const struct key_row *k, cJSON *config,
                                struct tlm_error *e)
{
    return k->is_float ? copy_float(a, g, k->from, config, k->to, e) : copy_int(a, g, k->from, config, k->to, e);
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
    if (!scaling || !cJSON_AddStringToObject(scaling, "rope_type", type))
        return err_nomem(e, sizeof *scaling);
    s = copy_float(a, g, factor, scaling, "factor", e);
    for (size_t i = 2; i < sizeof scaling_keys / sizeof scaling_keys[0] && s == TLM_OK; i++)
        s = copy_key(a, g, &scaling_keys[i], scaling, e);
    return s;
}

static enum tlm_status refuse(const struct arch *a, const struct gguf *g, struct tlm_error *e)
{
    static const char *const refused[] = {"expert_count",     "attention.clamp_kqv", "attention.max_alibi_bias",
                                          "attention.causal", "residual_scale",      "embedding_scale",
                                          "attention.scale",  "logit_scale"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char key[128];
        key_of(key, a, refused[i]);
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
    const struct gguf *g = ck->gguf;
    cJSON *config = ck->config;
    bool ok = cJSON_AddStringToObject(config, "model_type", a->model_type) != NULL;
    enum tlm_status s = ok ? TLM_OK : err_nomem(e, sizeof *config);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && s == TLM_OK; i++)
        s = copy_key(a, g, &keys[i], config, e);
    if (s == TLM_OK)
        s = copy_scaling(a, g, config, e);
    if (s == TLM_OK)
        s = refuse(a, g, e);
    int64_t vocab = vocab_of(a, g);
    if (s == TLM_OK && vocab <= 0)
        s = err_set(e, TLM_EFORMAT, "%s: found none of token_embd.weight, tokenizer.ggml.tokens and %s.vocab_size",
                    g->path, a->gguf_arch);
    if (s == TLM_OK)
        s = add_number(config, "vocab_size", (double)vocab, e);
    if (s == TLM_OK &&
        !cJSON_AddBoolToObject(config, "tie_word_embeddings", gguf_tensor_find(g, "output.weight") == NULL))
        s = err_nomem(e, sizeof *config);
    if (s == TLM_OK && a->gguf_config)
        s = a->gguf_config(g, config, e);
    return s;
}

static const char *file_key(const char *word, size_t n)
{
    static const char scaling[] = "rope_scaling";
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strlen(keys[i].to) == n && !memcmp(keys[i].to, word, n))
            return keys[i].from;
    size_t prefix = n > sizeof scaling && !memcmp(word, scaling, sizeof scaling - 1) ? sizeof scaling : 0;
    for (size_t i = 0; i < sizeof scaling_keys / sizeof scaling_keys[0]; i++)
        if (strlen(scaling_keys[i].to) == n - prefix && !memcmp(scaling_keys[i].to, word + prefix, n - prefix))
            return scaling_keys[i].from;
    if (n == sizeof scaling - 1 && !memcmp(word, scaling, n))
        return "rope.scaling";
    return n == 10 && !memcmp(word, "vocab_size", n) ? "vocab_size" : NULL;
}

void gguf_map_error(const struct arch *a, struct tlm_error *e)
{
    static const char word_chars[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";
    char out[TLM_ERROR_MAX];
    size_t used = 0;
    for (const char *p = e->message; *p && used < sizeof out - 1;) {
        size_t n = strspn(p, word_chars);
        const char *key = n ? file_key(p, n) : NULL;
        size_t room = sizeof out - used;
        n += n == 0;
        int wrote = key ? snprintf(out + used, room, "%s.%s", a->gguf_arch, key)
                        : snprintf(out + used, room, "%.*s", (int)n, p);
        used += wrote < (int)room ? (size_t)wrote : room - 1;
        p += n;
    }
    out[used] = 0;
    memcpy(e->message, out, used + 1);
}
