/* Models: opening, describing, plain forward passes.
 *
 * Sources: a Hugging Face or MLX directory, or a GGUF file (the first of a
 * split one). Weights stay mapped where their layout can be used as it is. */
#ifndef TURBOLM_MODEL_H
#define TURBOLM_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "chat.h"
#include "status.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tlm_model;

enum tlm_precision {
    TLM_PRECISION_DEFAULT, /* fast where it holds the bound of docs/ARCHITECTURE.md, else exact */
    TLM_PRECISION_EXACT,   /* f32 activations in every matmul, f32 cache blocks */
    TLM_PRECISION_FAST     /* int8 activations with quantised weights, f16 cache blocks */
};

/* Zero-initialise: zeros are the defaults. */
struct tlm_model_options {
    int threads;        /* 0: one per physical core */
    const char *device; /* NULL or "cpu" */
    enum tlm_precision precision;
    /* Of the key-value cache: NULL: f16, with TLM_PRECISION_EXACT f32; else
     * SPEC[;LAYERS=SPEC...] as docs/kv-cache.md says, like "turbo4" or "chan5+pre:tq4;0-1=f16". */
    const char *kv_format;
    int64_t kv_sink;            /* first tokens that stay exact, in whole blocks of 64; 0: 64; -1: none */
    int64_t max_kv_size;        /* rows see the first few and the last tokens, so many together; 0: all */
    int64_t max_kv_keep;        /* how many first ones, where the model has no window itself; 0: 4; -1: none */
    int64_t quantized_kv_start; /* sequences shorter than this stay exact */
    int metadata_only;          /* only describe: no weights and no tokenizer are needed */
};

TLM_API enum tlm_status tlm_model_open(const char *path, const struct tlm_model_options *o, struct tlm_model **out,
                                       struct tlm_error *e);
/* Every engine on it must be gone. NULL allowed. */
TLM_API void tlm_model_close(struct tlm_model *m);

struct tlm_model_info {
    const char *path;
    const char *architecture; /* the model_type of config.json, aliases resolved: "llama" */
    const char *quantization; /* most used format of the matrices: "q4_1", "affine4g64", "bf16"; NULL: no matrices */
    const char *kv_format;    /* of cache blocks, keys:values of the first layer: "f16", "chan4+pre+mix:tq4" */
    double kv_bits;           /* per element of a sealed cache block, everything counted, all layers */
    const char *precision;    /* "exact" or "fast" */
    int64_t parameters;       /* elements of all tensors, codes counted as elements */
    uint64_t bytes;           /* of all tensors, scales included */
    int64_t context_length;   /* 0: not said */
    int64_t vocab_size, layers, hidden_size, heads, kv_heads, head_dim;
    uint64_t kv_bytes_per_token; /* in sealed blocks, all layers */
    int threads;
};
/* Strings live as long as the model. */
TLM_API void tlm_model_info_get(const struct tlm_model *m, struct tlm_model_info *out);

struct tlm_tensor_info {
    const char *name;   /* as the file has it */
    const char *format; /* "q4_1", "f32", "u32", "affine4g64" … */
    int n_dims;
    int64_t shape[8]; /* outermost first */
    uint64_t bytes;
};
/* Returns 0 past the last. */
TLM_API int tlm_model_tensor(const struct tlm_model *m, size_t i, struct tlm_tensor_info *out);

/* NULL when the source has none (also after metadata_only where it is absent). */
TLM_API const struct tlm_tokenizer *tlm_model_tokenizer(const struct tlm_model *m);
/* Ids that this tokenizer gave: TLM_EFORMAT, which names its file, when one is
 * outside the model's vocabulary. */
TLM_API enum tlm_status tlm_model_check_ids(const struct tlm_model *m, const int32_t *ids, size_t n,
                                            struct tlm_error *e);
TLM_API const struct tlm_chat_template *tlm_model_chat_template(const struct tlm_model *m);
/* What is wrong with the template that the source has but tlm_model_chat_template() cannot give; NULL: nothing. */
TLM_API const char *tlm_model_chat_template_error(const struct tlm_model *m);
/* Ids that end a generation: tokenizer, config and generation_config together. */
TLM_API const int32_t *tlm_model_eos(const struct tlm_model *m, size_t *n);

/* Receives the logits of one row, float32 [vocab_size], in the order of rows.
 * Not TLM_OK stops the pass with that status. */
typedef enum tlm_status tlm_logits_fn(void *user, size_t row, const float *logits, size_t vocab_size);

/* Logits of every position of ids. Rows before decode_from go in chunks of
 * prefill_step (0: 2048), the others one by one; decode_from >= n: all in
 * chunks. */
TLM_API enum tlm_status tlm_model_logits(struct tlm_model *m, const int32_t *ids, size_t n, size_t decode_from,
                                         size_t prefill_step, tlm_logits_fn *fn, void *user, struct tlm_error *e);

/* Ends the tlm_model_logits or tlm_model_perplexity that runs now, from another
 * thread or a signal handler: it stops inside its pass with TLM_ECANCELED. */
TLM_API void tlm_model_cancel(struct tlm_model *m);

/* Largest resident set of this process so far, bytes (getrusage). */
TLM_API uint64_t tlm_peak_memory(void);

#ifdef __cplusplus
}
#endif
#endif
