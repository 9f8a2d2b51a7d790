/* A loaded model: files, architecture, parameters, backend, tokenizer. */
#ifndef MODELS_MODEL_H
#define MODELS_MODEL_H

#include <stdatomic.h>

#include <turbolm/model.h>

#include "kvformat/kv_spec.h"
#include "models/arch.h"

/* What a cache for a model is to be. */
struct cache_plan {
    enum kv_type type;       /* of exact blocks */
    struct kv_choice *kv;    /* [layers] formats of sealed blocks */
    struct kv_config config; /* less layers and limits */
    double bits;             /* per element of a sealed block, everything counted */
    uint64_t token_bytes;    /* in sealed blocks */
};

struct tlm_model {
    struct checkpoint *ck;
    const struct arch *arch;
    void *params;            /* starts with struct arch_base */
    struct backend *be;      /* NULL after metadata_only */
    struct weight **weights; /* every weight that was loaded, in the table's order */
    int n_weights;
    struct cache_plan cache;
    struct tlm_tokenizer *tokenizer;
    struct tlm_chat_template *chat_template;
    struct tlm_error template_error; /* why there is none although the files have one */
    int32_t *eos;
    size_t n_eos;
    atomic_int abort; /* the running tlm_model_logits or tlm_model_perplexity must end */
    int engines;      /* at most one uses the backend at a time */
    struct tlm_model_info info;
    char quantization[32], kv_name[1024];
};

static inline const struct arch_base *model_base(const struct tlm_model *m)
{
    return m->params;
}

/* Finds the architecture, names the tensors, reads the config. */
enum tlm_status model_configure(struct tlm_model *m, struct tlm_error *e);

/* A parameter as the weight table has it. A vector is [1, n]. */
struct model_weight {
    const char *name; /* canonical, without ".weight"; of a bias with ".bias" */
    const struct weight_row *row;
    int64_t layer; /* -1 outside the layers */
    int64_t rows, cols;
    bool is_bias;
};
typedef enum tlm_status model_weight_fn(void *arg, const struct model_weight *w, struct tlm_error *e);
/* Calls fn for every parameter in the table's order, then checks that no tensor
 * of the files is left over. fn finds the tensor by model_weight_view. */
enum tlm_status model_each_weight(struct tlm_model *m, model_weight_fn *fn, void *arg, struct tlm_error *e);
enum tlm_status model_weight_view(const struct tlm_model *m, const struct model_weight *w, struct quant_view *v,
                                  const struct file_map **map, struct tlm_error *e);

/* Binds every row of the weight table and loads it into the backend. */
enum tlm_status model_load_weights(struct tlm_model *m, struct tlm_error *e);
void model_unload(struct tlm_model *m);

/* The cache formats of every layer, from the options of the cache in o. */
enum tlm_status model_plan_cache(const struct tlm_model *m, const struct tlm_model_options *o, struct cache_plan *out,
                                 struct tlm_error *e);
/* Bits and bytes of sealed blocks; refuses formats that do not suit the heads. */
enum tlm_status model_plan_figures(const struct tlm_model *m, struct cache_plan *p, struct tlm_error *e);
/* Gives layers whose format is left to the model ("auto") theirs, from the
 * weights, which must be there. (cache_auto.c) */
enum tlm_status model_resolve_cache(const struct tlm_model *m, struct cache_plan *p, struct tlm_error *e);
void model_plan_free(struct cache_plan *p);
/* A cache for this model; keep_bytes: see kv_config. */
enum tlm_status model_cache_new(const struct tlm_model *m, const struct cache_plan *p, size_t keep_bytes,
                                struct kv_cache **out, struct tlm_error *e);

/* One pass: rows of ids belong to the spans; logits [n_out, V] of out_rows, in
 * the ctx's memory until its next pass. On failure the sequences are as before
 * and the error is c->err. */
float *model_forward(const struct tlm_model *m, struct ctx *c, struct kv_cache *kv, const int32_t *ids,
                     const struct kv_span *spans, int n_spans, const int32_t *out_rows, int64_t n_out);

#endif
