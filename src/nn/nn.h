/* What many architectures share: the common config keys, rotary settings, and
 * the two blocks that most layers are made of. A model file uses what fits and
 * writes out what does not. */
#ifndef NN_NN_H
#define NN_NN_H

#include "base/json.h"
#include "kvcache/kv.h"
#include "tensor/op.h"

/* Names of sizes, for the weight tables. */
enum nn_dim { NN_HIDDEN, NN_VOCAB, NN_Q, NN_KV, NN_FF, NN_HEAD, NN_DIMS };

/* Hyperparameters under their Hugging Face names. */
struct nn_config {
    int64_t vocab_size, hidden_size, layers, intermediate_size;
    int64_t heads, kv_heads, head_dim;
    int64_t max_positions; /* 0: not said */
    float rms_norm_eps;
    float rope_theta;
    bool rope_interleaved; /* rope_traditional: pairs are neighbours */
    bool tied;             /* the output head is the embedding */
    bool attention_bias, mlp_bias;
    const char *act_key; /* the key that names act; NULL: hidden_act */
    enum act act;
    int64_t sliding_window; /* 0: none */
    bool *is_sliding;       /* [layers], owned */
    const cJSON *rope;      /* rope_scaling or rope_parameters, or NULL; borrowed */
    const char *rope_where; /* its key, for messages */
    int64_t dim[NN_DIMS];
};

/* Reads the common keys; those of `c` that are set before are the defaults.
 * where names the config in messages. */
enum tlm_status nn_config_load(struct nn_config *c, const cJSON *config, struct tlm_error *e);
void nn_config_deinit(struct nn_config *c);
/* layer_types of the config into is_sliding; without the key, pattern > 0
 * makes every pattern-th layer full, 0 leaves all full. */
enum tlm_status nn_config_layers(struct nn_config *c, const cJSON *config, int64_t pattern, struct tlm_error *e);
/* Refuses a true value of a key that would change results. */
enum tlm_status nn_config_refuse(const cJSON *config, const char *key, struct tlm_error *e);

/* The rotary table of all layers, from c->rope and c->rope_theta. */
enum tlm_status nn_rope_init(struct rope *r, const struct nn_config *c, struct tlm_error *e);

struct nn_attention {
    struct linear q, k, v, o;
    struct weight q_norm, k_norm; /* per head, before rotary; absent in most */
};

/* [T, D] -> [T, D]; x is normalised. norm_add: what the head norms add to w. */
struct tensor *nn_attention(struct ctx *c, struct kv_pass *kv, int layer, const struct nn_attention *a,
                            const struct tensor *x, float eps, float norm_add, const struct kv_opts *o);

struct nn_mlp {
    struct linear gate, up, down;
};

/* down(act(gate x) * up x): [T, D] -> [T, D] */
struct tensor *nn_mlp(struct ctx *c, const struct nn_mlp *m, const struct tensor *x, enum act act);

#endif
