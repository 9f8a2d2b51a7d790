/* Llama and what shares its shape: Llama 1 to 3, SmolLM2, Mistral.
 * Pre-norm blocks, grouped-query attention with rotary positions, SwiGLU;
 * optionally sliding layers. Touvron et al., arXiv 2302.13971; Mistral 7B,
 * arXiv 2310.06825. */
#include "models/arch.h"

#include <math.h>

#include <string.h>

struct llama_layer {
    struct weight attn_norm, mlp_norm;
    struct nn_attention attn;
    struct nn_mlp mlp;
};

struct llama {
    struct arch_base base;
    struct rope rope;
};

#define M(f) offsetof(struct llama, f)
#define L(f) offsetof(struct llama_layer, f)
static const struct weight_row rows[] = {
    {"model.embed_tokens", "token_embd", ROW_EMBED, M(base.embed), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.norm", "output_norm", ROW_NORM, M(base.norm), NN_HIDDEN, 0, BIAS_NONE},
    {"lm_head", "output", ROW_HEAD, M(base.head), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.input_layernorm", "blk.*.attn_norm", ROW_NORM, L(attn_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.self_attn.q_proj", "blk.*.attn_q", ROW_LINEAR, L(attn.q), NN_Q, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.k_proj", "blk.*.attn_k", ROW_LINEAR, L(attn.k), NN_KV, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.v_proj", "blk.*.attn_v", ROW_LINEAR, L(attn.v), NN_KV, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.o_proj", "blk.*.attn_output", ROW_LINEAR, L(attn.o), NN_HIDDEN, NN_Q, BIAS_ATTENTION},
    {"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm", ROW_NORM, L(mlp_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate", ROW_LINEAR, L(mlp.gate), NN_FF, NN_HIDDEN, BIAS_MLP},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up", ROW_LINEAR, L(mlp.up), NN_FF, NN_HIDDEN, BIAS_MLP},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down", ROW_LINEAR, L(mlp.down), NN_HIDDEN, NN_FF, BIAS_MLP},
    {0},
};

static const struct name_rule rules[] = {{0}};

static enum tlm_status configure(void *params, const cJSON *config, struct tlm_error *e)
{
    struct llama *p = params;
    struct nn_config *c = &p->base.cfg;
    c->rms_norm_eps = 1e-6f;
    c->rope_theta = 10000;
    c->act = ACT_SILU;
    enum tlm_status s = nn_config_load(c, config, e);
    /* Mistral slides in every layer; a llama config says which ones do. */
    const char *type = NULL;
    if (s == TLM_OK)
        s = json_str(config, "model_type", &type, e);
    bool mistral = type && !strcmp(type, "mistral") && c->sliding_window > 0;
    if (s == TLM_OK)
        s = nn_config_layers(c, config, 0, e);
    if (mistral && !json_get(config, "layer_types"))
        for (int64_t i = 0; s == TLM_OK && i < c->layers; i++)
            c->is_sliding[i] = true;
    return s == TLM_OK ? nn_rope_init(&p->rope, c, e) : s;
}

static void deinit(void *params)
{
    rope_deinit(&((struct llama *)params)->rope);
}

/* GGUF keeps the frequency bands of Llama 3.1 as a tensor of divisors. */
static enum tlm_status loaded(void *params, const struct checkpoint *ck, struct tlm_error *e)
{
    struct llama *p = params;
    struct ckpt_tensor *t = ck->is_gguf ? checkpoint_find(ck, "rope_freqs.weight") : NULL;
    if (!t)
        return TLM_OK;
    t->used = true;
    if (t->block_format != quant_dense(DT_F32) || t->n_dims != 1 || t->shape[0] != p->rope.dims / 2)
        return err_set(e, TLM_EFORMAT, "%s: tensor rope_freqs.weight: expected f32 [%lld]", ck->path,
                       (long long)p->rope.dims / 2);
    for (int64_t i = 0; i < t->shape[0]; i++) {
        float f;
        memcpy(&f, (const char *)t->data + 4 * i, 4);
        p->rope.inv_freq[i] /= f;
    }
    return TLM_OK;
}

static int64_t window(const void *params, int layer)
{
    const struct llama *p = params;
    return p->base.cfg.is_sliding[layer] ? p->base.cfg.sliding_window : 0;
}

static struct tensor *forward(struct ctx *c, const void *params, const struct batch *b)
{
    const struct llama *p = params;
    const struct nn_config *cfg = &p->base.cfg;
    const struct llama_layer *layers = p->base.layers;
    float eps = cfg->rms_norm_eps;
    struct kv_opts opts = {.scale = 1 / sqrtf((float)cfg->head_dim), .rope = &p->rope};

    struct tensor *x = op_embed(c, b->ids, b->n_tokens, &p->base.embed); // [T, D]
    for (int i = 0; i < cfg->layers && ctx_ok(c); i++) {
        const struct llama_layer *l = &layers[i];
        ctx_next_layer(c);
        struct tensor *h = op_rms_norm(c, x, &l->attn_norm, eps, 0);             // [T, D]
        h = op_add(c, x, nn_attention(c, b->kv, i, &l->attn, h, eps, 0, &opts)); // [T, D]
        struct tensor *m = op_rms_norm(c, h, &l->mlp_norm, eps, 0);              // [T, D]
        x = op_add(c, h, nn_mlp(c, &l->mlp, m, cfg->act));                       // [T, D]
    }
    x = op_rms_norm(c, op_rows(c, x, b->out_rows, b->n_out), &p->base.norm, eps, 0); // [n, D]
    return arch_head(c, &p->base, x);                                                // [n, V]
}

static enum tlm_status gguf_config(const struct gguf *g, cJSON *config, struct tlm_error *e)
{
    (void)e;
    /* Rows of q and k are stored so that rotated pairs are neighbours. */
    cJSON_AddBoolToObject(config, "rope_traditional", 1);
    cJSON_AddBoolToObject(config, "attention_bias", gguf_tensor_find(g, "blk.0.attn_q.bias") != NULL);
    cJSON_AddBoolToObject(config, "mlp_bias", gguf_tensor_find(g, "blk.0.ffn_gate.bias") != NULL);
    return TLM_OK;
}

const struct arch arch_llama = {
    .model_type = "llama",
    .params_size = sizeof(struct llama),
    .layer_size = sizeof(struct llama_layer),
    .rows = rows,
    .rules = rules,
    .configure = configure,
    .deinit = deinit,
    .loaded = loaded,
    .window = window,
    .forward = forward,
    .gguf_arch = "llama",
    .gguf_config = gguf_config,
};
