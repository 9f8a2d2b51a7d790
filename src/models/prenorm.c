/* The plain pre-norm decoder. */
#include "models/prenorm.h"

#include <math.h>

enum tlm_status prenorm_configure(struct prenorm *p, const cJSON *config, int64_t first_sliding, struct tlm_error *e)
{
    struct nn_config *c = &p->base.cfg;
    c->rms_norm_eps = 1e-6f;
    c->rope_theta = 10000;
    c->act = ACT_SILU;
    enum tlm_status s = nn_config_load(c, config, e);
    if (s == TLM_OK)
        s = nn_config_layers(c, config, 0, e);
    if (s == TLM_OK && first_sliding >= 0 && c->sliding_window > 0 && !json_get(config, "layer_types"))
        for (int64_t i = first_sliding; i < c->layers; i++)
            c->is_sliding[i] = true;
    return s == TLM_OK ? nn_rope_init(&p->rope, c, e) : s;
}

enum tlm_status prenorm_configure_qwen(void *params, const cJSON *config, struct tlm_error *e)
{
    bool slides = false;
    int64_t first_sliding = 28;
    enum tlm_status s = json_bool(config, "use_sliding_window", &slides, e);
    if (s == TLM_OK)
        s = json_int(config, "max_window_layers", 0, INT64_C(1) << 20, &first_sliding, e);
    return s == TLM_OK ? prenorm_configure(params, config, slides ? first_sliding : -1, e) : s;
}

void prenorm_deinit(void *params)
{
    rope_deinit(&((struct prenorm *)params)->rope);
}

int64_t prenorm_window(const void *params, int layer)
{
    const struct prenorm *p = params;
    return p->base.cfg.is_sliding[layer] ? p->base.cfg.sliding_window : 0;
}

static float attention_scale(const struct nn_config *c)
{
    return 1 / sqrtf((float)c->head_dim);
}

struct arch_attention prenorm_attention(const void *params, int layer)
{
    const struct prenorm *p = params;
    const struct prenorm_layer *l = (const struct prenorm_layer *)p->base.layers + layer;
    return (struct arch_attention){&l->attn, &l->attn_norm, 0, attention_scale(&p->base.cfg)};
}

struct tensor *prenorm_forward(struct ctx *c, const void *params, const struct batch *b)
{
    const struct prenorm *p = params;
    const struct nn_config *cfg = &p->base.cfg;
    const struct prenorm_layer *layers = p->base.layers;
    const float eps = cfg->rms_norm_eps;
    const struct kv_opts opts = {.scale = attention_scale(cfg), .rope = &p->rope};

    struct tensor *x = op_embed(c, b->ids, b->n_tokens, &p->base.embed); // [T, D]
    for (int i = 0; i < cfg->layers && ctx_ok(c); i++) {
        const struct prenorm_layer *l = &layers[i];
        ctx_next_layer(c);
        struct tensor *h = op_rms_norm(c, x, &l->attn_norm, eps, 0);             // [T, D]
        h = op_add(c, x, nn_attention(c, b->kv, i, &l->attn, h, eps, 0, &opts)); // [T, D]
        struct tensor *m = op_rms_norm(c, h, &l->mlp_norm, eps, 0);              // [T, D]
        x = op_add(c, h, nn_mlp(c, &l->mlp, m, cfg->act));                       // [T, D]
    }
    x = op_rms_norm(c, op_rows(c, x, b->out_rows, b->n_out), &p->base.norm, eps, 0); // [n, D]
    return arch_head(c, &p->base, x);                                                // [n, V]
}
