/* config.json of a GGUF file: the keys under which it is read, with what the
 * file's conventions added taken away, and the special tokens' ids. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/json_out.h"
#include "convert/mlx_dir.h"

static const struct {
    const char *type, *name, *act_key, *act;
} classes[] = {
    {"llama", "LlamaForCausalLM", "hidden_act", "silu"},
    {"qwen2", "Qwen2ForCausalLM", "hidden_act", "silu"},
    {"qwen3", "Qwen3ForCausalLM", "hidden_act", "silu"},
    {"gemma3_text", "Gemma3ForCausalLM", "hidden_activation", "gelu_pytorch_tanh"},
};

/* A float32's own digits: 1e-05 instead of 9.999999747378752e-06. */
static double shortest(double v)
{
    char text[40];
    for (int p = 0; p < 9; p++) {
        snprintf(text, sizeof text, "%.*e", p, v);
        if ((float)strtod(text, NULL) == (float)v)
            return strtod(text, NULL);
    }
    return v;
}

/* Numbers that are floats to Python, also whole ones. */
static enum tlm_status spell_floats(cJSON *object, struct tlm_error *e)
{
    static const char *const keys[] = {"rms_norm_eps",           "rope_theta",      "rope_local_base_freq",
                                       "attn_logit_softcapping", "factor",          "final_logit_softcapping",
                                       "attention_factor",       "beta_fast",       "beta_slow",
                                       "low_freq_factor",        "high_freq_factor"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char text[JSON_OUT_NUMBER];
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, keys[i]);
        if (!cJSON_IsNumber(v))
            continue;
        json_out_double(shortest(v->valuedouble), text);
        if (json_out_set(object, keys[i], cJSON_CreateRaw(text), e) != TLM_OK)
            return TLM_ENOMEM;
    }
    return TLM_OK;
}

/* Divisors of the angles as Llama 3.1 makes them from four numbers. */
static double llama3_divisor(double inv_freq, double factor, double original)
{
    const double low = 1, high = 4, pi = 3.14159265358979323846;
    double wave = 2 * pi / inv_freq;
    if (wave < original / high)
        return 1;
    if (wave > original / low)
        return factor;
    double smooth = (original / wave - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

static enum tlm_status add_llama3(const struct source *s, cJSON *config, struct tlm_error *e)
{
    const struct nn_config *c = &model_base(&s->model)->cfg;
    const struct ckpt_tensor *t = checkpoint_find(s->model.ck, "rope_freqs.weight");
    const double original = 8192;
    float factor = 0;
    if (!t)
        return TLM_OK;
    memcpy(&factor, (const char *)t->data + 4 * (t->shape[0] - 1), 4);
    for (int64_t i = 0; i < t->shape[0]; i++) {
        float f;
        memcpy(&f, (const char *)t->data + 4 * i, 4);
        double inv = pow((double)c->rope_theta, -2.0 * (double)i / (double)c->head_dim);
        if (!(fabs((double)f - llama3_divisor(inv, (double)factor, original)) <= 1e-3 * fabs((double)f)))
            return err_set(e, TLM_EUNSUPPORTED,
                           "%s: tensor rope_freqs.weight: divisors of the angles that config.json cannot express",
                           s->model.ck->path);
    }
    cJSON *r = cJSON_AddObjectToObject(config, "rope_scaling");
    if (r && cJSON_AddNumberToObject(r, "factor", (double)factor) &&
        cJSON_AddNumberToObject(r, "high_freq_factor", 4) && cJSON_AddNumberToObject(r, "low_freq_factor", 1) &&
        cJSON_AddNumberToObject(r, "original_max_position_embeddings", original) &&
        cJSON_AddStringToObject(r, "rope_type", "llama3"))
        return TLM_OK;
    return err_nomem(e, sizeof *r);
}

static enum tlm_status add_ids(const struct gguf *g, cJSON *config, struct tlm_error *e)
{
    static const struct {
        const char *key, *to;
    } ids[] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
               {"tokenizer.ggml.eos_token_id", "eos_token_id"},
               {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    for (size_t i = 0; i < 3; i++) {
        int64_t id = -1;
        enum tlm_status s = gguf_int(g, ids[i].key, 0, INT32_MAX, &id, e);
        if (s == TLM_OK && id >= 0 && !cJSON_AddNumberToObject(config, ids[i].to, (double)id))
            s = err_nomem(e, sizeof *config);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

static enum tlm_status add_class(const struct source *s, const struct plan *p, cJSON *config, struct tlm_error *e)
{
    cJSON *list = cJSON_AddArrayToObject(config, "architectures");
    if (!list)
        return err_nomem(e, sizeof *list);
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (strcmp(classes[i].type, s->model.arch->model_type))
            continue;
        cJSON *name = cJSON_CreateString(classes[i].name);
        if (!cJSON_AddItemToArray(list, name)) {
            cJSON_Delete(name);
            return err_nomem(e, sizeof *name);
        }
        if (!cJSON_AddStringToObject(config, classes[i].act_key, classes[i].act))
            return err_nomem(e, sizeof *name);
    }
    return cJSON_AddStringToObject(config, "torch_dtype", plan_dtype_name(p->type)) ? TLM_OK
                                                                                    : err_nomem(e, sizeof *list);
}

enum tlm_status mlx_config_of_gguf(const struct source *s, const struct plan *p, cJSON **out, struct tlm_error *e)
{
    cJSON *config = cJSON_Duplicate(s->model.ck->config, 1);
    enum tlm_status st = config ? TLM_OK : err_nomem(e, sizeof *config);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "rope_traditional");
    cJSON_DeleteItemFromObjectCaseSensitive(config, "norm_weights_hold_one");
    if (st == TLM_OK)
        st = add_class(s, p, config, e);
    if (st == TLM_OK)
        st = add_ids(s->model.ck->gguf, config, e);
    if (st == TLM_OK)
        st = add_llama3(s, config, e);
    if (st == TLM_OK)
        st = spell_floats(config, e);
    cJSON *scaling = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    if (st == TLM_OK && scaling)
        st = spell_floats(scaling, e);
    if (st != TLM_OK) {
        cJSON_Delete(config);
        return st;
    }
    *out = config;
    return TLM_OK;
}
