/* Qwen2 and Qwen2.5: llama's block with biases on q, k and v. Sliding layers
 * only where use_sliding_window says so. arXiv 2407.10671, 2412.15115. */
#include "models/prenorm.h"

static const struct weight_row rows[] = {
    {"model.embed_tokens", "token_embd", ROW_EMBED, DEC(base.embed), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.norm", "output_norm", ROW_NORM, DEC(base.norm), NN_HIDDEN, 0, BIAS_NONE},
    {"lm_head", "output", ROW_HEAD, DEC(base.head), NN_VOCAB, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.input_layernorm", "blk.*.attn_norm", ROW_NORM, LAYER(attn_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.self_attn.q_proj", "blk.*.attn_q", ROW_LINEAR, LAYER(attn.q), NN_Q, NN_HIDDEN, BIAS_ALWAYS},
    {"model.layers.*.self_attn.k_proj", "blk.*.attn_k", ROW_LINEAR, LAYER(attn.k), NN_KV, NN_HIDDEN, BIAS_ALWAYS},
    {"model.layers.*.self_attn.v_proj", "blk.*.attn_v", ROW_LINEAR, LAYER(attn.v), NN_KV, NN_HIDDEN, BIAS_ALWAYS},
    {"model.layers.*.self_attn.o_proj", "blk.*.attn_output", ROW_LINEAR, LAYER(attn.o), NN_HIDDEN, NN_Q, BIAS_NONE},
    {"model.layers.*.post_attention_layernorm", "blk.*.ffn_norm", ROW_NORM, LAYER(mlp_norm), NN_HIDDEN, 0, BIAS_NONE},
    {"model.layers.*.mlp.gate_proj", "blk.*.ffn_gate", ROW_LINEAR, LAYER(mlp.gate), NN_FF, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.mlp.up_proj", "blk.*.ffn_up", ROW_LINEAR, LAYER(mlp.up), NN_FF, NN_HIDDEN, BIAS_NONE},
    {"model.layers.*.mlp.down_proj", "blk.*.ffn_down", ROW_LINEAR, LAYER(mlp.down), NN_HIDDEN, NN_FF, BIAS_NONE},
    {0},
};

static const struct name_rule rules[] = {{0}};

const struct arch arch_qwen2 = {
    .model_type = "qwen2",
    .params_size = sizeof(struct prenorm),
    .layer_size = sizeof(struct prenorm_layer),
    .rows = rows,
    .rules = rules,
    .configure = prenorm_configure_qwen,
    .deinit = prenorm_deinit,
    .window = prenorm_window,
    .attention = prenorm_attention,
    .forward = prenorm_forward,
    .gguf_arch = "qwen2",
};
