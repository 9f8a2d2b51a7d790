/* What becomes of each weight: settings of quantisation by mode, recipe and
 * overrides, types, and the names in the output. */
#ifndef CONVERT_PLAN_H
#define CONVERT_PLAN_H

#include "convert/convert_job.h"
#include "quant/quant_encode.h"

enum plan_action {
    PLAN_PLAIN, /* elements of `type` */
    PLAN_KEEP,  /* an MLX format as it is, its scales in `type` */
    PLAN_ENCODE /* elements of `type` into `params` */
};

struct plan_row {
    const struct source_weight *w;
    enum plan_action action;
    struct quant_params params; /* KEEP, ENCODE */
    enum dtype type;
    const struct quant_input *input; /* ENCODE: what rows go through first, or NULL */
    bool is_mlx;                     /* the source has it in one of MLX's formats */
    bool listed;                     /* has an entry of its own in config.json's quantization */
    bool forbidden;                  /* an override says false */
    char *path; /* of the module in the output: "language_model.model.layers.0.mlp.up_proj"; of a bias with ".bias" */
    uint64_t code_bytes, scale_bytes; /* of a whole tensor; plain ones have codes alone */
};

struct plan {
    struct plan_row *rows; /* in the order of the output */
    size_t n;
    enum dtype type;         /* of all floats; DT_NONE: as stored */
    struct quant_params top; /* config.json's settings for what has none of its own */
    bool quantized;          /* some row is */
    uint64_t bytes, parameters;
};

enum tlm_status plan_make(struct plan *p, struct convert_job *j, struct tlm_error *e);
void plan_deinit(struct plan *p);

const char *plan_dtype_name(enum dtype t); /* "bfloat16" */

#endif
