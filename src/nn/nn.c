/* Shared config keys, attention block, gated MLP. */
#include "nn/nn.h"

#include <string.h>

#include "base/mem.h"

static enum tlm_status need(const cJSON *config, const char *key, int64_t max, int64_t *out, struct tlm_error *e)
{
    enum tlm_status s = json_int(config, key, 1, max, out, e);
    if (s == TLM_OK && *out == 0)
        s = err_set(e, TLM_EFORMAT, "%s: missing", key);
    return s;
}

static enum tlm_status load_sizes(struct nn_config *c, const cJSON *config, struct tlm_error *e)
{
    enum { SIZE_LIMIT = 1 << 28, LAYER_LIMIT = 1 << 16 };
    enum tlm_status s = need(config, "vocab_size", SIZE_LIMIT, &c->vocab_size, e);
    if (s == TLM_OK)
        s = need(config, "hidden_size", SIZE_LIMIT, &c->hidden_size, e);
    if (s == TLM_OK)
        s = need(config, "num_hidden_layers", LAYER_LIMIT, &c->layers, e);
    if (s == TLM_OK)
        s = need(config, "intermediate_size", SIZE_LIMIT, &c->intermediate_size, e);
    if (s == TLM_OK)
        s = need(config, "num_attention_heads", LAYER_LIMIT, &c->heads, e);
    if (!c->kv_heads)
        c->kv_heads = c->heads;
    if (s == TLM_OK)
        s = json_int(config, "num_key_value_heads", 1, LAYER_LIMIT, &c->kv_heads, e);
    if (s != TLM_OK)
        return s;
    if (!c->head_dim)
        c->head_dim = c->hidden_size / c->heads;
    s = json_int(config, "head_dim", 1, LAYER_LIMIT, &c->head_dim, e);
    if (s == TLM_OK && c->heads % c->kv_heads)
        s = err_set(e, TLM_EFORMAT, "num_key_value_heads: %lld does not divide num_attention_heads %lld",
                    (long long)c->kv_heads, (long long)c->heads);
    return s;
}

static enum tlm_status load_act(struct nn_config *c, const cJSON *config, struct tlm_error *e)
{
    static const struct {
        const char *name;
        enum act act;
    } acts[] = {{"silu", ACT_SILU},          {"swish", ACT_SILU},    {"gelu_pytorch_tanh", ACT_GELU_TANH},
                {"gelu_new", ACT_GELU_TANH}, {"gelu", ACT_GELU_ERF}, {"relu", ACT_RELU},
                {"relu2", ACT_RELU2}};
    const char *key = c->act_key ? c->act_key : "hidden_act", *name = NULL;
    enum tlm_status s = json_str(config, key, &name, e);
    if (s != TLM_OK || !name)
        return s;
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (!strcmp(acts[i].name, name)) {
            c->act = acts[i].act;
            return TLM_OK;
        }
    return err_set(e, TLM_EUNSUPPORTED, "%s: activation '%s' is not supported", key, name);
}

/* transformers 5 writes rope_parameters, earlier versions rope_theta and
 * rope_scaling. Both together must not be read as one. */
static void find_rope(struct nn_config *c, const cJSON *config)
{
    c->rope_where = "rope_parameters";
    c->rope = json_get(config, "rope_parameters");
    if (!c->rope) {
        c->rope_where = "rope_scaling";
        c->rope = json_get(config, "rope_scaling");
    }
}

enum tlm_status nn_config_load(struct nn_config *c, const cJSON *config, struct tlm_error *e)
{
    enum tlm_status s = load_sizes(c, config, e);
    if (s == TLM_OK)
        s = load_act(c, config, e);
    if (s == TLM_OK)
        s = json_int(config, "max_position_embeddings", 1, INT64_C(1) << 40, &c->max_positions, e);
    if (s == TLM_OK)
        s = json_float(config, "rms_norm_eps", &c->rms_norm_eps, e);
    if (s == TLM_OK)
        s = json_float(config, "rope_theta", &c->rope_theta, e);
    if (s == TLM_OK)
        s = json_bool(config, "rope_traditional", &c->rope_interleaved, e);
    if (s == TLM_OK)
        s = json_bool(config, "tie_word_embeddings", &c->tied, e);
    if (s == TLM_OK)
        s = json_bool(config, "attention_bias", &c->attention_bias, e);
    if (s == TLM_OK)
        s = json_bool(config, "mlp_bias", &c->mlp_bias, e);
    if (s == TLM_OK)
        s = json_int(config, "sliding_window", 0, INT64_C(1) << 40, &c->sliding_window, e);
    if (s != TLM_OK)
        return s;
    find_rope(c, config);
    c->dim[NN_HIDDEN] = c->hidden_size;
    c->dim[NN_VOCAB] = c->vocab_size;
    c->dim[NN_Q] = c->heads * c->head_dim;
    c->dim[NN_KV] = c->kv_heads * c->head_dim;
    c->dim[NN_FF] = c->intermediate_size;
    c->dim[NN_HEAD] = c->head_dim;
    c->is_sliding = mem_new_array((size_t)c->layers, sizeof *c->is_sliding);
    return c->is_sliding ? TLM_OK : err_nomem(e, (size_t)c->layers);
}

void nn_config_deinit(struct nn_config *c)
{
    mem_free(c->is_sliding);
    c->is_sliding = NULL;
}

enum tlm_status nn_config_layers(struct nn_config *c, const cJSON *config, int64_t pattern, struct tlm_error *e)
{
    const cJSON *types = json_get(config, "layer_types");
    if (!types) {
        for (int64_t i = 0; i < c->layers; i++)
            c->is_sliding[i] = pattern > 0 && (i + 1) % pattern != 0;
    } else {
        if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->layers)
            return err_set(e, TLM_EFORMAT, "layer_types: found %s of %d, expected an array of %lld",
                           json_type_name(types), cJSON_GetArraySize(types), (long long)c->layers);
        int64_t i = 0;
        for (const cJSON *t = types->child; t; t = t->next, i++) {
            const char *name = cJSON_IsString(t) ? t->valuestring : "?";
            c->is_sliding[i] = !strcmp(name, "sliding_attention");
            if (!c->is_sliding[i] && strcmp(name, "full_attention"))
                return err_set(e, TLM_EUNSUPPORTED, "layer_types[%lld]: '%s' is not supported", (long long)i, name);
        }
    }
    for (int64_t i = 0; i < c->layers; i++)
        if (c->is_sliding[i] && c->sliding_window == 0)
            return err_set(e, TLM_EFORMAT, "sliding_window: missing, but layer %lld slides", (long long)i);
    return TLM_OK;
}

enum tlm_status nn_config_refuse(const cJSON *config, const char *key, struct tlm_error *e)
{
    const cJSON *v = json_get(config, key);
    if (!v || cJSON_IsFalse(v) || (cJSON_IsNumber(v) && v->valuedouble == 0))
        return TLM_OK;
    return err_set(e, TLM_EUNSUPPORTED, "%s: found %s, which is not supported", key, json_type_name(v));
}

enum tlm_status nn_rope_init(struct rope *r, const struct nn_config *c, struct tlm_error *e)
{
    struct rope_params p = {c->head_dim, c->head_dim, c->rope_theta, c->max_positions, c->rope_interleaved};
    return rope_init(r, &p, c->rope, c->rope_where, e);
}

struct tensor *nn_attention(struct ctx *c, struct kv_pass *kv, int layer, const struct nn_attention *a,
                            const struct tensor *x, float eps, float norm_add, const struct kv_opts *o)
{
    const struct linear *const l[3] = {&a->q, &a->k, &a->v};
    struct tensor *y[3];
    op_linears(c, x, 3, l, y); // [T, H*hd], [T, Hk*hd], [T, Hk*hd]
    struct tensor *q = y[0], *k = y[1];
    if (weight_present(&a->q_norm)) {
        q = op_rms_norm(c, q, &a->q_norm, eps, norm_add); // per head
        k = op_rms_norm(c, k, &a->k_norm, eps, norm_add);
    }
    struct tensor *z = kv_attend(c, kv, layer, q, k, y[2], o); // [T, H*hd]
    return op_linear(c, z, &a->o);                             // [T, D]
}

struct tensor *nn_mlp(struct ctx *c, const struct nn_mlp *m, const struct tensor *x, enum act act)
{
    const struct linear *const l[2] = {&m->gate, &m->up};
    struct tensor *y[2];
    op_linears(c, x, 2, l, y);                                     // 2 x [T, F]
    return op_linear(c, op_act_mul(c, y[0], y[1], act), &m->down); // [T, D]
}
