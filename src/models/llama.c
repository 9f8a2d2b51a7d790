/* Llama and what shares its shape: Llama 1 to 3, SmolLM2, Mistral.
 * Pre-norm blocks, grouped-query attention with rotary positions, SwiGLU;
 * optionally sliding layers. Touvron et al., arXiv 2302.13971; Mistral 7B,
 * arXiv 2310.06825. */
#include "models/prenorm.h"

#include <string.h>

static const struct weight_row rows[] = {
    {"model.embed_tokens", "token_embd", ROW_EMBED, DEC(base.embed), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.norm", "output_norm", ROW_NORM, DEC(base.norm), NN_HIDDEN, 0, BIAS_NONE},
    {"lm_head", "output", ROW_HEAD, DEC(base.head), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.input_layernorm", "blk.*.attn_norm", ROW_NORM, LAYER(attn_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.self_attn.q_proj", "blk.*.attn_q", ROW_LINEAR, LAYER(attn.q), NN_Q, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.k_proj", "blk.*.attn_k", ROW_LINEAR, LAYER(attn.k), NN_KV, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.v_proj", "blk.*.attn_v", ROW_LINEAR, LAYER(attn.v), NN_KV, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.o_proj", "blk.*.attn_output", ROW_LINEAR, LAYER(attn.o), NN_HIDDEN, NN_Q,
     BIAS_ATTENTION},
    {"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm", ROW_NORM, LAYER(mlp_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate", ROW_LINEAR, LAYER(mlp.gate), NN_FF, NN_HIDDEN, BIAS_MLP},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up", ROW_LINEAR, LAYER(mlp.up), NN_FF, NN_HIDDEN, BIAS_MLP},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down", ROW_LINEAR, LAYER(mlp.down), NN_HIDDEN, NN_FF, BIAS_MLP},
    {0},
};

static const struct name_rule rules[] = {{0}};

static enum tlm_status configure(void *params, const cJSON *config, struct tlm_error *e)
{
    /* Mistral slides in every layer; a llama config says which ones do. */
    const char *type = NULL;
    enum tlm_status s = json_str(config, "model_type", &type, e);
    bool mistral = type && !strcmp(type, "mistral");
    return s == TLM_OK ? prenorm_configure(params, config, mistral ? 0 : -1, e) : s;
}

/* GGUF keeps the frequency bands of Llama 3.1 as a tensor of divisors. */
static enum tlm_status loaded(void *params, const struct checkpoint *ck, struct tlm_error *e)
{
    struct prenorm *p = params;
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

static enum tlm_status gguf_config(const struct gguf *g, cJSON *config, struct tlm_error *e)
{
    /* Rows of q and k are stored so that rotated pairs are neighbours. */
    if (cJSON_AddBoolToObject(config, "rope_traditional", 1) &&
        cJSON_AddBoolToObject(config, "attention_bias", gguf_tensor_find(g, "blk.0.attn_q.bias") != NULL) &&
        cJSON_AddBoolToObject(config, "mlp_bias", gguf_tensor_find(g, "blk.0.ffn_gate.bias") != NULL))
        return TLM_OK;
    return err_nomem(e, sizeof *config);
}

const struct arch arch_llama = {
    .model_type = "llama",
    .params_size = sizeof(struct prenorm),
    .layer_size = sizeof(struct prenorm_layer),
    .rows = rows,
    .rules = rules,
    .configure = configure,
    .deinit = prenorm_deinit,
    .loaded = loaded,
    .window = prenorm_window,
    .attention = prenorm_attention,
    .forward = prenorm_forward,
    .gguf_arch = "llama",
    .gguf_config = gguf_config,
};
