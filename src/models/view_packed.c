/* compressed-tensors: packed integers (weight_packed i32), nvfp4 and mxfp4
 * (weight_packed u8), and int8. fp8: view_fp8.c.
 *
 *     integers   w = (q - zero) s; q unsigned, zero the middle code when there is
 *                no weight_zero_point
 *     nvfp4      w = e2m1(q) s / weight_global_scale, s e4m3 per 16 inputs;
 *                modelopt: times weight_scale_2
 *     mxfp4      w = e2m1(q) s, s = 2^e per 32 inputs
 *
 * Which layers are quantised the tensors say; targets and ignore of the config
 * say the same. What a matrix turns out to be, one of config_groups must be. */
#include <stdio.h>
#include <string.h>

#include "base/fp.h"
#include "models/view.h"

/* Whether q, the "weights" of a group, describes a matrix with so many inputs.
 * group_size 0: a scale per row or tensor. */
static bool describes(const cJSON *q, const char *type, int64_t bits, int64_t group_size, int64_t cols, bool symmetric)
{
    const char *t = "int";
    int64_t b = 8, g = -1;
    bool sym = true;
    if (json_str(q, "type", &t, NULL) != TLM_OK || json_int(q, "num_bits", 0, 64, &b, NULL) != TLM_OK ||
        json_int(q, "group_size", -1, INT32_MAX, &g, NULL) != TLM_OK || json_bool(q, "symmetric", &sym, NULL) != TLM_OK)
        return false;
    return !strcmp(t, type) && b == bits && sym == symmetric && (group_size ? g == group_size : g <= 0 || g == cols);
}

static enum tlm_status need_group(const struct checkpoint *ck, const struct ckpt_tensor *w, const char *type,
                                  int64_t bits, int64_t group_size, int64_t cols, bool symmetric, struct tlm_error *e)
{
    const cJSON *q;
    char size[40];
    for (int i = 0; (q = view_group(ck, i)); i++)
        if (describes(q, type, bits, group_size, cols, symmetric))
            return TLM_OK;
    snprintf(size, sizeof size, group_size ? " in groups of %lld" : " without groups", (long long)group_size);
    return err_set(e, TLM_EFORMAT,
                   "%s/config.json: quantization_config.config_groups: none with %lld-bit %s weights%s, %ssymmetric, "
                   "which tensor %s has",
                   ck->path, (long long)bits, type, size, symmetric ? "" : "a", w->file_name);
}

/* Scales per row, per tensor, or in groups of any size that divides the row. */
static enum tlm_status set_scales(const struct checkpoint *ck, const struct ckpt_tensor *s, struct quant_view *v,
                                  int64_t *group_size, struct tlm_error *e)
{
    enum tlm_status st = view_float_scales(ck, s, e);
    if (st != TLM_OK)
        return st;
    int64_t block[2] = {1, 0};
    if (s->n_dims == 2 && s->shape[1] > 0 && v->cols % s->shape[1] == 0)
        block[1] = v->cols / s->shape[1];
    if (!view_fit_scales(s, block, v))
        return view_shape_error(ck, s, v->rows, 1, e);
    *group_size = v->group < v->cols ? v->group : 0;
    return TLM_OK;
}

/* weight_shape: [rows, cols] of the matrix, int64 or int32. */
static enum tlm_status read_shape(const struct checkpoint *ck, const struct ckpt_tensor *t, int64_t rows, int64_t *cols,
                                  struct tlm_error *e)
{
    enum tlm_status s = view_expect(ck, t, DT_I64, DT_I32, 2, 0, e);
    if (s != TLM_OK)
        return s;
    const uint8_t *p = t->data;
    int64_t found[2];
    for (int i = 0; i < 2; i++)
        found[i] = t->dtype == DT_I64 ? (int64_t)load_u64(p + 8 * i) : (int32_t)load_u32(p + 4 * i);
    if (found[0] != rows || found[1] < 8 || found[1] > INT32_MAX || found[1] % 8)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s holds [%lld, %lld], expected [%lld, a multiple of 8]", ck->path,
                       t->file_name, (long long)found[0], (long long)found[1], (long long)rows);
    *cols = found[1];
    return TLM_OK;
}

static enum tlm_status packed_integers(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w,
                                       struct ckpt_tensor *scales, struct quant_view *v, struct tlm_error *e)
{
    struct ckpt_tensor *shape, *zeros = view_part(ck, stem, "weight_zero_point");
    struct ckpt_tensor *g_idx = view_part(ck, stem, "weight_g_idx");
    int64_t cols = 0, group_size = 0;
    enum tlm_status s = view_expect(ck, w, DT_I32, DT_U32, -1, -1, e);
    if (s == TLM_OK)
        s = view_need(ck, stem, "weight_shape", w, &shape, e);
    if (s == TLM_OK)
        s = read_shape(ck, shape, w->shape[0], &cols, e);
    if (s != TLM_OK)
        return s;
    const int64_t bits = w->shape[1] == (cols + 3) / 4 ? 8 : w->shape[1] == cols / 8 ? 4 : 0;
    if (!bits)
        return err_set(e, TLM_EUNSUPPORTED, "%s: tensor %s: %lld words hold %lld inputs, which is neither 4 nor 8 bits",
                       ck->path, w->file_name, (long long)w->shape[1], (long long)cols);
    *v = (struct quant_view){.rows = w->shape[0], .cols = cols, .data = w->data, .row_bytes = (size_t)w->shape[1] * 4};
    s = set_scales(ck, scales, v, &group_size, e);
    if (s == TLM_OK)
        s = need_group(ck, w, "int", bits, group_size, cols, !zeros, e);
    if (s == TLM_OK && zeros) {
        const int64_t groups = (v->cols - 1) / v->group + 1;
        s = view_expect(ck, zeros, DT_I32, DT_U32, (v->rows * bits + 31) / 32, groups, e);
        v->zeros = zeros->data;
        v->zero_row_bytes = (size_t)groups * 4;
        v->zero_bytes = zeros->bytes;
    }
    v->format = quant_by_name(bits == 4 ? (zeros ? "packed4z" : "packed4") : zeros ? "packed8z" : "packed8");
    if (s == TLM_OK && g_idx)
        s = view_set_order(ck, g_idx, v, e);
    return s;
}

/* Bytes of two e2m1 codes, the first in the low half. */
static enum tlm_status packed_e2m1(const struct checkpoint *ck, const struct ckpt_tensor *w,
                                   const struct ckpt_tensor *scales, const char *format, struct quant_view *v,
                                   struct tlm_error *e)
{
    const struct quant *q = quant_by_name(format);
    enum tlm_status s = view_expect(ck, w, DT_U8, DT_U8, -1, -1, e);
    if (s != TLM_OK)
        return s;
    if (w->shape[1] > INT32_MAX / 2 || w->shape[1] * 2 % q->group)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s: %lld inputs, expected a multiple of %d", ck->path, w->file_name,
                       (long long)(w->shape[1] / 2 * 4), q->group);
    const int64_t groups = w->shape[1] * 2 / q->group;
    s = view_expect(ck, scales, scales->dtype, scales->dtype, w->shape[0], groups, e);
    *v = (struct quant_view){.format = q,
                             .rows = w->shape[0],
                             .cols = w->shape[1] * 2,
                             .group = q->group,
                             .data = w->data,
                             .row_bytes = (size_t)w->shape[1],
                             .scales = scales->data,
                             .scale_dtype = DT_U8,
                             .scale_rows = 1,
                             .scale_row_bytes = (size_t)groups};
    return s;
}

enum tlm_status view_nvfp4(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w,
                           struct ckpt_tensor *global, bool divides, struct quant_view *v, struct tlm_error *e)
{
    struct ckpt_tensor *scales;
    float x = 1;
    enum tlm_status s = view_need(ck, stem, "weight_scale", w, &scales, e);
    if (s == TLM_OK && scales->dtype != DT_F8_E4M3)
        s = err_set(e, TLM_EFORMAT, "%s: tensor %s is of type %s, expected f8_e4m3", ck->path, scales->file_name,
                    scales->format_name);
    if (s == TLM_OK)
        s = view_number(ck, global, &x, e);
    if (s == TLM_OK)
        s = packed_e2m1(ck, w, scales, "nvfp4", v, e);
    v->factor = divides ? 1 / x : x;
    return s;
}

enum tlm_status view_packed(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                            struct tlm_error *e)
{
    struct ckpt_tensor *scales, *global;
    *v = (struct quant_view){0};
    if (!view_method(ck, "compressed-tensors"))
        return err_set(e, TLM_EFORMAT,
                       "%s/config.json: quantization_config.quant_method: found \"%s\", but tensor %s is of "
                       "compressed-tensors",
                       ck->path, ck->quant_method ? ck->quant_method : "", w->file_name);
    enum tlm_status s = view_need(ck, stem, "weight_scale", w, &scales, e);
    if (s != TLM_OK)
        return s;
    if (w->dtype == DT_I32 || w->dtype == DT_U32)
        return packed_integers(ck, stem, w, scales, v, e);
    if (scales->dtype == DT_U8 || scales->dtype == DT_F8_E8M0) {
        s = packed_e2m1(ck, w, scales, "mxfp4", v, e);
        return s == TLM_OK ? need_group(ck, w, "float", 4, 32, v->cols, true, e) : s;
    }
    s = view_need(ck, stem, "weight_global_scale", w, &global, e);
    if (s == TLM_OK)
        s = view_nvfp4(ck, stem, w, global, true, v, e);
    return s == TLM_OK ? need_group(ck, w, "float", 4, 16, v->cols, true, e) : s;
}

enum tlm_status view_int8(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                          struct tlm_error *e)
{
    struct ckpt_tensor *scales, *zeros = view_part(ck, stem, "weight_zero_point");
    int64_t group_size = 0;
    enum tlm_status s = view_need(ck, stem, "weight_scale", w, &scales, e);
    if (s == TLM_OK)
        s = view_expect(ck, w, DT_I8, DT_I8, -1, -1, e);
    if (s != TLM_OK)
        return s;
    if (zeros)
        return err_set(e, TLM_EUNSUPPORTED, "%s: tensor %s: int8 weights with zero points are not supported", ck->path,
                       zeros->file_name);
    s = view_bytes(ck, w, "int8", v, e);
    if (s == TLM_OK)
        s = set_scales(ck, scales, v, &group_size, e);
    return s == TLM_OK ? need_group(ck, w, "int", 8, group_size, v->cols, true, e) : s;
}
