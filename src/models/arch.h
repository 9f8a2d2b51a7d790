/* An architecture: a weight table, a config reader and a forward pass.
 *
 * models.def lists them, one line each. Everything that walks the parameters
 * of a model (loading, shape checks, later quantising, adapters, saving,
 * sharding) walks the weight table; no other code knows a tensor's name. */
#ifndef MODELS_ARCH_H
#define MODELS_ARCH_H

#include "models/checkpoint.h"
#include "nn/nn.h"

/* The first member of every architecture's parameter struct. */
struct arch_base {
    struct nn_config cfg;
    struct weight embed, norm; /* token embedding [V, D], final norm [D] */
    struct linear head;        /* [V, D]; absent when tied */
    void *layers;              /* [cfg.layers] of layer_size bytes */
    bool norm_is_full;         /* norm weights already hold the 1 of 1 + w (GGUF) */
};

enum row_kind {
    ROW_EMBED,  /* struct weight: gathered by id, and the head when tied */
    ROW_LINEAR, /* struct linear: matrix and maybe bias */
    ROW_HEAD,   /* struct linear: as ROW_LINEAR, left out when tied */
    ROW_NORM    /* struct weight: vector */
};

enum row_bias { BIAS_NONE, BIAS_ALWAYS, BIAS_ATTENTION, BIAS_MLP }; /* the latter by config */

struct weight_row {
    const char *name; /* without ".weight"; '*' is the layer's number */
    const char *gguf; /* the same in GGUF files */
    enum row_kind kind;
    size_t offset;       /* in the layer's struct when the name has '*', else in the parameters' */
    enum nn_dim out, in; /* NORM: length is out */
    enum row_bias bias;
};

/* Prefixes of the names in checkpoints, tried in order: from -> to, the first
 * that matches. to NULL: tensors that are not ours (vision), left out. */
struct name_rule {
    const char *from, *to;
};

struct batch {
    const int32_t *ids; /* [T] */
    int64_t n_tokens;
    struct kv_pass *kv;
    const int32_t *out_rows; /* rows whose logits are wanted */
    int64_t n_out;
};

/* A layer's attention, for what judges it without knowing the architecture. */
struct arch_attention {
    const struct nn_attention *w;
    const struct weight *norm; /* of its input */
    float norm_add;            /* what that norm and the heads' norms add to their weights */
    float scale;               /* on q.k */
};

struct arch {
    const char *model_type;
    bool wrapper;         /* the language model's config is text_config */
    bool head_if_present; /* a stored lm_head is used whatever the config says of tying */
    size_t params_size, layer_size;
    const struct weight_row *rows; /* ends with a NULL name */
    const struct name_rule *rules; /* ends with a NULL from */
    /* Fills the parameters' config parts, rotary tables included. `config` is
     * text_config for wrappers. */
    enum tlm_status (*configure)(void *params, const cJSON *config, struct tlm_error *e);
    /* What lies beyond arch_base; may be NULL. */
    void (*deinit)(void *params);
    /* After the weights are there; may be NULL. */
    enum tlm_status (*loaded)(void *params, const struct checkpoint *ck, struct tlm_error *e);
    /* Window of a layer's cache, 0 for a full one. */
    int64_t (*window)(const void *params, int layer);
    struct arch_attention (*attention)(const void *params, int layer);
    /* Logits [n_out, V] of the wanted rows. */
    struct tensor *(*forward)(struct ctx *c, const void *params, const struct batch *b);
    /* GGUF: its architecture name and what config keys it needs beyond the common ones. */
    const char *gguf_arch;
    enum tlm_status (*gguf_config)(const struct gguf *g, cJSON *config, struct tlm_error *e);
};

const struct arch *arch_find(const char *model_type); /* aliases resolved; NULL when unknown */
const struct arch *arch_find_gguf(const char *gguf_arch);
const struct arch *arch_at(int i); /* NULL at the end */

/* The head: [n, D] of the wanted rows, normalised, -> [n, V]. */
struct tensor *arch_head(struct ctx *c, const struct arch_base *b, const struct tensor *x);

#endif
