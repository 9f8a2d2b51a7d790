/* Gemma 3: sandwich norms (before and after each block) applied as 1 + w, GELU
 * gates, head norms on q and k, five sliding layers to one full one, each kind
 * with its own rotary base, embeddings scaled by sqrt(hidden). arXiv 2503.19786.
 * arch_gemma3 is the multimodal checkpoint, of which we run the language model. */
#include "models/arch.h"

#include <math.h>

struct gemma3_layer {
    struct weight attn_norm, attn_post_norm, mlp_norm, mlp_post_norm;
    struct nn_attention attn;
    struct nn_mlp mlp;
};

struct gemma3 {
    struct arch_base base;
    struct rope global, local; /* full and sliding layers */
    float query_scalar, attn_softcap, final_softcap;
};

#define M(f) offsetof(struct gemma3, f)
#define L(f) offsetof(struct gemma3_layer, f)
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
    {"model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm", ROW_NORM, L(attn_post_norm), NN_HIDDEN, 0,
     BIAS_NONE},
    {"model.layers.*.pre_feedforward_layernorm", "blk.*.ffn_norm", ROW_NORM, L(mlp_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm", ROW_NORM, L(mlp_post_norm), NN_HIDDEN, 0,
     BIAS_NONE},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate", ROW_LINEAR, L(mlp.gate), NN_FF, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up", ROW_LINEAR, L(mlp.up), NN_FF, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down", ROW_LINEAR, L(mlp.down), NN_HIDDEN, NN_FF, BIAS_NONE},
    {0},
};

static const struct name_rule text_rules[] = {{0}};
static const struct name_rule wrapper_rules[] = {
    {"language_model.", ""},
    {"model.language_model.", "model."},
    {"vision_tower.", NULL},
    {"model.vision_tower.", NULL},
    {"multi_modal_projector.", NULL},
    {"model.multi_modal_projector.", NULL},
    {0},
};

/* rope_parameters holds one object per layer type; before transformers 5
 * rope_scaling belonged to the full layers and the sliding ones had a base of
 * their own. */
static enum tlm_status configure_rope(struct gemma3 *p, const cJSON *config, struct tlm_error *e)
{
    const struct nn_config *c = &p->base.cfg;
    float local_theta = 10000;
    enum tlm_status s = json_float(config, "rope_local_base_freq", &local_theta, e);
    if (s != TLM_OK)
        return s;
    const cJSON *full = json_get(c->rope, "full_attention"), *sliding = json_get(c->rope, "sliding_attention");
    if (!full && !sliding)
        full = c->rope;
    struct rope_params rp = {c->head_dim, c->head_dim, c->rope_theta, c->max_positions, c->rope_interleaved};
    s = rope_init(&p->global, &rp, full, c->rope_where, e);
    rp.theta = local_theta;
    return s == TLM_OK ? rope_init(&p->local, &rp, sliding, c->rope_where, e) : s;
}

static enum tlm_status configure(void *params, const cJSON *config, struct tlm_error *e)
{
    struct gemma3 *p = params;
    struct nn_config *c = &p->base.cfg;
    /* Published configs leave out what equals the defaults. */
    *c = (struct nn_config){.vocab_size = 262208,
                            .hidden_size = 2304,
                            .layers = 26,
                            .intermediate_size = 9216,
                            .heads = 8,
                            .kv_heads = 4,
                            .head_dim = 256,
                            .max_positions = 131072,
                            .rms_norm_eps = 1e-6f,
                            .rope_theta = 1e6f,
                            .act_key = "hidden_activation",
                            .act = ACT_GELU_TANH,
                            .tied = true,
                            .sliding_window = 4096};
    p->query_scalar = 256;
    int64_t pattern = 6;
    enum tlm_status s = nn_config_load(c, config, e);
    if (s == TLM_OK)
        s = json_int(config, "_sliding_window_pattern", 1, 1 << 16, &pattern, e);
    if (s == TLM_OK)
        s = json_int(config, "sliding_window_pattern", 1, 1 << 16, &pattern, e);
    if (s == TLM_OK)
        s = json_float(config, "query_pre_attn_scalar", &p->query_scalar, e);
    if (s == TLM_OK)
        s = json_float(config, "attn_logit_softcapping", &p->attn_softcap, e);
    if (s == TLM_OK)
        s = json_float(config, "final_logit_softcapping", &p->final_softcap, e);
    if (s == TLM_OK)
        s = nn_config_refuse(config, "use_bidirectional_attention", e);
    if (s == TLM_OK)
        s = json_bool(config, "norm_weights_hold_one", &p->base.norm_is_full, e);
    if (s == TLM_OK)
        s = nn_config_layers(c, config, pattern, e);
    return s == TLM_OK ? configure_rope(p, config, e) : s;
}

static void deinit(void *params)
{
    struct gemma3 *p = params;
    rope_deinit(&p->global);
    rope_deinit(&p->local);
}

static int64_t window(const void *params, int layer)
{
    const struct gemma3 *p = params;
    return p->base.cfg.is_sliding[layer] ? p->base.cfg.sliding_window : 0;
}

static struct arch_attention attention(const void *params, int layer)
{
    const struct gemma3 *p = params;
    const struct gemma3_layer *l = (const struct gemma3_layer *)p->base.layers + layer;
    return (struct arch_attention){&l->attn, &l->attn_norm, p->base.norm_is_full ? 0.0f : 1.0f,
                                   1 / sqrtf(p->query_scalar)};
}

static struct tensor *forward(struct ctx *c, const void *params, const struct batch *b)
{
    const struct gemma3 *p = params;
    const struct nn_config *cfg = &p->base.cfg;
    const struct gemma3_layer *layers = p->base.layers;
    float eps = cfg->rms_norm_eps, one = p->base.norm_is_full ? 0 : 1;
    struct kv_opts opts = {.scale = 1 / sqrtf(p->query_scalar), .softcap = p->attn_softcap};

    struct tensor *x = op_embed(c, b->ids, b->n_tokens, &p->base.embed); // [T, D]
    x = op_scale(c, x, sqrtf((float)cfg->hidden_size));                  // [T, D]
    for (int i = 0; i < cfg->layers && ctx_ok(c); i++) {
        const struct gemma3_layer *l = &layers[i];
        ctx_next_layer(c);
        opts.rope = cfg->is_sliding[i] ? &p->local : &p->global;
        struct tensor *h = op_rms_norm(c, x, &l->attn_norm, eps, one);     // [T, D]
        h = nn_attention(c, b->kv, i, &l->attn, h, eps, one, &opts);       // [T, D]
        h = op_add(c, x, op_rms_norm(c, h, &l->attn_post_norm, eps, one)); // [T, D]
        struct tensor *m = op_rms_norm(c, h, &l->mlp_norm, eps, one);      // [T, D]
        m = nn_mlp(c, &l->mlp, m, cfg->act);                               // [T, D]
        x = op_add(c, h, op_rms_norm(c, m, &l->mlp_post_norm, eps, one));  // [T, D]
    }
    x = op_rms_norm(c, op_rows(c, x, b->out_rows, b->n_out), &p->base.norm, eps, one); // [n, D]
    struct tensor *logits = arch_head(c, &p->base, x);                                 // [n, V]
    return p->final_softcap > 0 ? op_softcap(c, logits, p->final_softcap) : logits;    // [n, V]
}

static enum tlm_status gguf_config(const struct gguf *g, cJSON *config, struct tlm_error *e)
{
    int64_t hidden = 0, heads = 1, head_dim = 256, layers = 0, period = 6;
    enum tlm_status s = gguf_int(g, "gemma3.embedding_length", 1, 1 << 28, &hidden, e);
    if (s == TLM_OK)
        s = gguf_int(g, "gemma3.attention.head_count", 1, 1 << 16, &heads, e);
    if (s == TLM_OK)
        s = gguf_int(g, "gemma3.attention.key_length", 1, 1 << 16, &head_dim, e);
    if (s == TLM_OK)
        s = gguf_int(g, "gemma3.block_count", 1, 1 << 16, &layers, e);
    if (s == TLM_OK)
        s = gguf_int(g, "gemma3.attention.sliding_window_pattern", 1, 1 << 16, &period, e);
    if (s != TLM_OK)
        return s;
    /* The file does not hold the query scale; only the 27B model (62 layers)
     * scales by hidden / heads instead of the head size. */
    double scalar = (double)(layers == 62 ? hidden / heads : head_dim);
    if (cJSON_AddNumberToObject(config, "query_pre_attn_scalar", scalar) &&
        cJSON_AddNumberToObject(config, "sliding_window_pattern", (double)period) &&
        cJSON_AddBoolToObject(config, "norm_weights_hold_one", 1))
        return TLM_OK;
    return err_nomem(e, sizeof *config);
}

const struct arch arch_gemma3_text = {
    .model_type = "gemma3_text",
    .head_if_present = true,
    .params_size = sizeof(struct gemma3),
    .layer_size = sizeof(struct gemma3_layer),
    .rows = rows,
    .rules = text_rules,
    .configure = configure,
    .deinit = deinit,
    .window = window,
    .attention = attention,
    .forward = forward,
    .gguf_arch = "gemma3",
    .gguf_config = gguf_config,
};

const struct arch arch_gemma3 = {
    .model_type = "gemma3",
    .wrapper = true,
    .head_if_present = true,
    .params_size = sizeof(struct gemma3),
    .layer_size = sizeof(struct gemma3_layer),
    .rows = rows,
    .rules = wrapper_rules,
    .configure = configure,
    .deinit = deinit,
    .window = window,
    .attention = attention,
    .forward = forward,
};
