/* Converting models: to MLX directories, to GGUF files, quantised or not. */
#ifndef TURBOLM_CONVERT_H
#define TURBOLM_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes are of the tensors that are written. */
struct tlm_convert_progress {
    const char *name; /* of the tensor that is being written; valid during the call */
    uint64_t done_bytes, total_bytes;
    const char *note; /* else NULL: a line for the user instead, as the original prints it: "[INFO] Quantizing" */
};

/* Called from the thread that converts, several times a second while tensors
 * are written. A result other than 0 stops: TLM_ECANCELED, and nothing is left. */
typedef int tlm_convert_fn(void *user, const struct tlm_convert_progress *p);

/* Zero-initialise: zeros are the defaults. */
struct tlm_convert_options {
    int quantize;       /* the matrices */
    int bits;           /* 0: the mode's default, 4 or 8 */
    int group_size;     /* 0: the mode's default, 64, 32 or 16 */
    const char *mode;   /* NULL or "affine"; "mxfp4", "nvfp4", "mxfp8", "turbo", for turboquant "lut" */
    const char *recipe; /* NULL, "mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6": affine of two widths */
    /* PATTERN=BITS[,GROUP[,MODE]], PATTERN=false: other settings for the modules
     * whose path, or a part of it from one dot to another, the pattern matches
     * ('*', '?', '[...]'). Of several that match the last counts; each must
     * match something. */
    const char *const *overrides;
    size_t n_overrides;
    const char *dtype;      /* "float16", "bfloat16", "float32"; NULL: config.json's, else as stored */
    int dequantize;         /* all matrices become plain ones */
    const char *base_model; /* "org/name" where the source came from, for the model card; or NULL */
    int to_gguf;            /* write a GGUF file instead of an MLX directory */
    const char *gguf_type;  /* "Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"; NULL: of the source's dtype */
    uint64_t seed;          /* of rotations */
    /* A directory of mlx_turboquant instead: linear layers alone, in mode "affine" or "lut",
     * but those whose path holds one of the texts. */
    int turboquant;
    const char *const *skip;
    size_t n_skip;
    int threads; /* 0: one per physical core */
    tlm_convert_fn *progress;
    void *user;
};

/* model: a directory or GGUF file (tlm_hub_resolve gives one for a name); out
 * must not exist. What is written has another name beside it until it is
 * complete, and is removed on failure.
 * Errors: TLM_EINVAL (options that exclude each other or do not exist),
 * TLM_EIO (out exists, reading and writing), TLM_ECANCELED, and others. */
TLM_API enum tlm_status tlm_convert(const char *model, const char *out, const struct tlm_convert_options *o,
                                    struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
