/* What the files that make views share: checkpoint_view.c chooses a family,
 * view_*.c know its tensors. A family takes its matrix w and fills *v; stem is
 * the name without ".weight". Sizes come from tensors and are checked against
 * config.json, never the other way round. */
#ifndef MODELS_VIEW_H
#define MODELS_VIEW_H

#include "models/checkpoint.h"

/* What happens to the inputs of some matrices; lives as long as the checkpoint. */
struct ckpt_input {
    struct quant_input input;
    struct ckpt_input *next;
    int64_t cols;
};

/* One with room for `size` bytes per column behind it, which *data points to.
 * Not in the checkpoint's list yet; free with mem_free, or put it there. */
struct ckpt_input *view_input_new(int64_t cols, size_t size, void **data);
void view_input_keep(const struct checkpoint *ck, struct ckpt_input *i);
void view_inputs_free(struct ckpt_input *list);

/* <stem>.<suffix>, marked as used, or NULL. */
struct ckpt_tensor *view_part(const struct checkpoint *ck, const char *stem, const char *suffix);
/* The same, whose absence is an error that says what it is needed for. */
enum tlm_status view_need(const struct checkpoint *ck, const char *stem, const char *suffix,
                          const struct ckpt_tensor *of, struct ckpt_tensor **out, struct tlm_error *e);
bool view_method(const struct checkpoint *ck, const char *name);

/* t must be of type a or b and [rows, cols]; -1 is any, cols 0 a vector. */
enum tlm_status view_expect(const struct checkpoint *ck, const struct ckpt_tensor *t, enum dtype a, enum dtype b,
                            int64_t rows, int64_t cols, struct tlm_error *e);
/* A matrix of a byte for each weight, row after row, in the format of that name; scales are the caller's. */
enum tlm_status view_bytes(const struct checkpoint *ck, const struct ckpt_tensor *w, const char *format,
                           struct quant_view *v, struct tlm_error *e);
enum tlm_status view_shape_error(const struct checkpoint *ck, const struct ckpt_tensor *t, int64_t rows, int64_t cols,
                                 struct tlm_error *e);
/* f32, f16 or bf16. */
enum tlm_status view_float_scales(const struct checkpoint *ck, const struct ckpt_tensor *s, struct tlm_error *e);
/* The number of a tensor that holds one, which must be finite and above 0. */
enum tlm_status view_number(const struct checkpoint *ck, const struct ckpt_tensor *t, float *out, struct tlm_error *e);

/* Fits scales s of a matrix v (rows and cols set) to one number, one per row,
 * or blocks[0] x blocks[1] elements each; sets group, scale_rows and the
 * pointers. blocks may be NULL. */
bool view_fit_scales(const struct ckpt_tensor *s, const int64_t *blocks, struct quant_view *v);

/* Group of each input (all -1: not set). Where that is not input / group, the
 * view's columns are put in the order of the groups. */
enum tlm_status view_set_order(const struct checkpoint *ck, const struct ckpt_tensor *g_idx, struct quant_view *v,
                               struct tlm_error *e);

/* Refuses settings of quantisation that we cannot honour. (view_config.c) */
enum tlm_status view_check_config(struct checkpoint *ck, struct tlm_error *e);

/* The "weights" of group i of compressed-tensors' config_groups, NULL at the end. */
const cJSON *view_group(const struct checkpoint *ck, int i);

enum tlm_status view_gptq(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                          struct tlm_error *e);
enum tlm_status view_packed(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                            struct tlm_error *e);
enum tlm_status view_int8(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                          struct tlm_error *e);
/* global: the number on all scales, a divisor of them when `divides`. */
enum tlm_status view_nvfp4(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w,
                           struct ckpt_tensor *global, bool divides, struct quant_view *v, struct tlm_error *e);
enum tlm_status view_fp8(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                         struct tlm_error *e);
enum tlm_status view_bitnet(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                            struct tlm_error *e);

#endif
