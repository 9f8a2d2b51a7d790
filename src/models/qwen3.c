/* Qwen3: llama's block with an RMS norm on each head of q and k before rotary,
 * no biases. arXiv 2505.09388. */
#include "models/arch.h"

#include <math.h>

struct qwen3_layer {
    struct weight attn_norm, mlp_norm;
    struct nn_attention attn;
    struct nn_mlp mlp;
};

struct qwen3 {
    struct arch_base base;
    struct rope rope;
};

#define M(f) offsetof(struct qwen3, f)
#define L(f) offsetof(struct qwen3_layer, f)
static const struct weight_row rows[] = {
    {"model.embed_tokens", "token_embd", ROW_EMBED, M(base.embed), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.norm", "output_norm", ROW_NORM, M(base.norm), NN_HIDDEN, 0, BIAS_NONE},
    {"lm_head", "output", ROW_HEAD, M(base.head), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.input_layernorm", "blk.*.attn_norm", ROW_NORM, L(attn_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.self_attn.q_proj", "blk.*.attn_q", ROW_LINEAR, L(attn.q), NN_Q, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.k_proj", "blk.*.attn_k", ROW_LINEAR, L(attn.k), NN_KV, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.v_proj", "blk.*.attn_v", ROW_LINEAR, L(attn.v), NN_KV, NN_HIDDEN, BIAS_ATTENTION},
    {"model.layers.*.self_attn.o_proj", "blk.*.attn_output", ROW_LINEAR, L(attn.o), NN_HIDDEN, NN_Q, BIAS_ATTENTION},
    {"model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm", ROW_NORM, L(attn.q_norm), NN_HEAD, 0, BIAS_NONE},
    {"model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm", ROW_NORM, L(attn.k_norm), NN_HEAD, 0, BIAS_NONE},
    {"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm", ROW_NORM, L(mlp_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate", ROW_LINEAR, L(mlp.gate), NN_FF, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up", ROW_LINEAR, L(mlp.up), NN_FF, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down", ROW_LINEAR, L(mlp.down), NN_HIDDEN, NN_FF, BIAS_NONE},
    {0},
};

static const struct name_rule rules[] = {{0}};

static enum tlm_status configure(void *params, const cJSON *config, struct tlm_error *e)
{
    struct qwen3 *p = params;
    struct nn_config *c = &p->base.cfg;
    c->rms_norm_eps = 1e-6f;
    c->rope_theta = 10000;
    c->act = ACT_SILU;
    c->head_dim = 128;
    bool slides = false;
    int64_t first_sliding = 28;
    enum tlm_status s = nn_config_load(c, config, e);
    if (s == TLM_OK)
        s = json_bool(config, "use_sliding_window", &slides, e);
    if (s == TLM_OK)
        s = json_int(config, "max_window_layers", 0, INT64_C(1) << 20, &first_sliding, e);
    if (s == TLM_OK)
        s = nn_config_layers(c, config, 0, e);
    if (s == TLM_OK && slides && c->sliding_window > 0 && !json_get(config, "layer_types"))
        for (int64_t i = first_sliding; i < c->layers; i++)
            c->is_sliding[i] = true;
    return s == TLM_OK ? nn_rope_init(&p->rope, c, e) : s;
}

static void deinit(void *params)
{
    rope_deinit(&((struct qwen3 *)params)->rope);
}

static int64_t window(const void *params, int layer)
{
    const struct qwen3 *p = params;
    return p->base.cfg.is_sliding[layer] ? p->base.cfg.sliding_window : 0;
}

static struct tensor *forward(struct ctx *c, const void *params, const struct batch *b)
{
    const struct qwen3 *p = params;
    const struct nn_config *cfg = &p->base.cfg;
    const struct qwen3_layer *layers = p->base.layers;
    float eps = cfg->rms_norm_eps;
    struct kv_opts opts = {.scale = 1 / sqrtf((float)cfg->head_dim), .rope = &p->rope};

    struct tensor *x = op_embed(c, b->ids, b->n_tokens, &p->base.embed); // [T, D]
    for (int i = 0; i < cfg->layers && ctx_ok(c); i++) {
        const struct qwen3_layer *l = &layers[i];
        ctx_next_layer(c);
        struct tensor *h = op_rms_norm(c, x, &l->attn_norm, eps, 0);             // [T, D]
        h = op_add(c, x, nn_attention(c, b->kv, i, &l->attn, h, eps, 0, &opts)); // [T, D]
        struct tensor *m = op_rms_norm(c, h, &l->mlp_norm, eps, 0);              // [T, D]
        x = op_add(c, h, nn_mlp(c, &l->mlp, m, cfg->act));                       // [T, D]
    }
    x = op_rms_norm(c, op_rows(c, x, b->out_rows, b->n_out), &p->base.norm, eps, 0); // [n, D]
    return arch_head(c, &p->base, x);                                                // [n, V]
}

const struct arch arch_qwen3 = {
    .model_type = "qwen3",
    .params_size = sizeof(struct qwen3),
    .layer_size = sizeof(struct qwen3_layer),
    .rows = rows,
    .rules = rules,
    .configure = configure,
    .deinit = deinit,
    .window = window,
    .forward = forward,
    .gguf_arch = "qwen3",
};
