/* The plain decoder that many architectures are: pre-norm blocks of attention
 * and a gated MLP, one rotary table, sliding layers where the config says so.
 * An architecture of this shape is a weight table and a config reader; what
 * differs writes its own forward pass. */
#ifndef MODELS_PRENORM_H
#define MODELS_PRENORM_H

#include "models/arch.h"

struct prenorm_layer {
    struct weight attn_norm, mlp_norm;
    struct nn_attention attn;
    struct nn_mlp mlp;
};

struct prenorm {
    struct arch_base base;
    struct rope rope;
};

/* Offsets for the weight table. */
#define DEC(f) offsetof(struct prenorm, f)
#define LAYER(f) offsetof(struct prenorm_layer, f)

/* The usual settings, common keys and the rotary table. Keys that are absent
 * keep what `cfg` has. Layers slide as layer_types says; without it those from
 * first_sliding on (-1: none) when the config has a window. */
enum tlm_status prenorm_configure(struct prenorm *p, const cJSON *config, int64_t first_sliding, struct tlm_error *e);
/* The same with the keys of Qwen: use_sliding_window, max_window_layers. Fits
 * the configure slot of an architecture. */
enum tlm_status prenorm_configure_qwen(void *params, const cJSON *config, struct tlm_error *e);
void prenorm_deinit(void *params);
int64_t prenorm_window(const void *params, int layer);
struct arch_attention prenorm_attention(const void *params, int layer);
struct tensor *prenorm_forward(struct ctx *c, const void *params, const struct batch *b);

#endif
