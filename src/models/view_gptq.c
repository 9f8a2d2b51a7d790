/* GPTQ and AWQ: qweight, qzeros, scales, g_idx (layouts: quant/foreign.c).
 *
 * The shapes say which layout it is: GPTQ's scales are as wide as its qweight;
 * AWQ's (version gemm) are 8 times as wide; version gemv has both by rows. A
 * GPTQ config over AWQ's shapes is what mlx-lm reads, and is read so.
 *
 * Zero points of GPTQ v1 are stored less 1 (modulo 2^bits). Where all are the
 * middle code, as in symmetric checkpoints, the matrix needs no offsets. */
#include <stdio.h>
#include <string.h>

#include "base/fp.h"
#include "models/view.h"

struct gptq {
    const struct checkpoint *ck;
    struct ckpt_tensor *w, *scales, *zeros, *g_idx; /* the last two may be NULL */
    int64_t bits, group;                            /* of the config; group -1: all inputs */
    bool no_zeros;                                  /* the config says that there are none */
};

/* The first key that is there. */
static enum tlm_status int_either(const cJSON *q, const char *key, const char *old, int64_t min, int64_t max,
                                  int64_t *out, struct tlm_error *e)
{
    return json_int(q, json_get(q, key) ? key : old, min, max, out, e);
}

static enum tlm_status read_config(struct gptq *g, struct tlm_error *e)
{
    const cJSON *q = g->ck->quantization;
    const bool awq = view_method(g->ck, "awq");
    bool zero_point = true, sym = false;
    g->bits = 4;
    g->group = 128;
    enum tlm_status s = int_either(q, "bits", "w_bit", 2, 8, &g->bits, e);
    if (s == TLM_OK)
        s = int_either(q, "group_size", "q_group_size", -1, INT32_MAX, &g->group, e);
    if (s == TLM_OK)
        s = json_bool(q, "zero_point", &zero_point, e);
    if (s == TLM_OK)
        s = json_bool(q, "sym", &sym, e);
    if (s == TLM_OK && g->group == 0)
        s = err_set(e, TLM_EFORMAT, "group_size: found 0, expected -1 or more than 0");
    if (s == TLM_OK && (awq ? g->bits != 4 : g->bits != 2 && g->bits != 3 && g->bits != 4 && g->bits != 8))
        s = err_set(e, TLM_EUNSUPPORTED, "bits: found %lld, expected %s", (long long)g->bits,
                    awq ? "4" : "2, 3, 4 or 8");
    if (s != TLM_OK)
        err_prefix(e, "%s/config.json: quantization_config", g->ck->path);
    g->no_zeros = awq ? !zero_point : sym;
    return s;
}

/* Sets rows, cols and group, whose number the scales must agree with. */
static enum tlm_status set_size(const struct gptq *g, struct quant_view *v, int64_t rows, int64_t cols, int64_t groups,
                                struct tlm_error *e)
{
    if (cols > INT32_MAX || cols % 8)
        return err_set(e, TLM_EUNSUPPORTED, "%s: tensor %s: %lld inputs, expected a multiple of 8", g->ck->path,
                       g->w->file_name, (long long)cols);
    int64_t group = g->group < 0 || g->group > cols ? cols : g->group;
    int64_t expected = (cols - 1) / group + 1;
    if (groups != expected)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s has %lld groups, expected %lld of %lld inputs", g->ck->path,
                       g->scales->file_name, (long long)groups, (long long)expected, (long long)group);
    v->rows = rows;
    v->cols = cols;
    v->group = (int)group;
    v->data = g->w->data;
    v->scales = g->scales->data;
    v->scale_dtype = g->scales->dtype;
    v->scale_rows = 1;
    return TLM_OK;
}

/* Tensors [groups, rows] of scales and packed zero points. */
static enum tlm_status set_columns(const struct gptq *g, struct quant_view *v, int bits, struct tlm_error *e)
{
    const size_t size = dtype_size(v->scale_dtype);
    v->scale_row_bytes = size;
    v->scale_group_bytes = (size_t)v->rows * size;
    if (!g->zeros)
        return TLM_OK;
    v->zeros = g->zeros->data;
    v->zero_row_bytes = (size_t)g->zeros->shape[1] * 4;
    v->zero_bytes = g->zeros->bytes;
    return v->rows * bits % 32
               ? view_shape_error(g->ck, g->zeros, g->scales->shape[0], (v->rows * bits + 31) / 32, e)
               : view_expect(g->ck, g->zeros, DT_I32, DT_U32, g->scales->shape[0], v->rows * bits / 32, e);
}

static enum tlm_status awq_columns(const struct gptq *g, struct quant_view *v, struct tlm_error *e)
{
    v->format = quant_by_name("awq4");
    enum tlm_status s = set_size(g, v, g->scales->shape[1], g->w->shape[0], g->scales->shape[0], e);
    v->row_bytes = (size_t)v->cols / 2;
    v->stride = (size_t)g->w->shape[1] * 4;
    return s == TLM_OK ? set_columns(g, v, 4, e) : s;
}

/* Rows of scales and zero points are padded. */
static enum tlm_status awq_rows(const struct gptq *g, struct quant_view *v, struct tlm_error *e)
{
    const int64_t rows = g->w->shape[0], cols = g->w->shape[1] * 8;
    const int64_t group = g->group < 0 || g->group > cols ? cols : g->group, groups = (cols - 1) / group + 1;
    v->format = quant_by_name("awq4v");
    enum tlm_status s = set_size(g, v, rows, cols, groups, e);
    if (s == TLM_OK && g->scales->shape[1] < groups)
        s = view_shape_error(g->ck, g->scales, rows, groups, e);
    if (s == TLM_OK && g->zeros) {
        s = view_expect(g->ck, g->zeros, DT_I32, DT_U32, rows, -1, e);
        if (s == TLM_OK && g->zeros->shape[1] < (groups + 7) / 8)
            s = view_shape_error(g->ck, g->zeros, rows, (groups + 7) / 8, e);
        v->zeros = g->zeros->data;
        v->zero_row_bytes = (size_t)g->zeros->shape[1] * 4;
        v->zero_bytes = g->zeros->bytes;
    }
    v->row_bytes = (size_t)g->w->shape[1] * 4;
    v->scale_row_bytes = (size_t)g->scales->shape[1] * dtype_size(v->scale_dtype);
    return s;
}

/* Whether every zero point, after add, is the middle code. */
static bool zeros_are_middle(const struct ckpt_tensor *zeros, int bits, int add)
{
    uint32_t pattern[8] = {0}; /* 32 codes */
    const uint32_t mask = (1u << bits) - 1, code = ((1u << (bits - 1)) - (uint32_t)add) & mask;
    for (int bit = 0; bit < 32 * bits; bit++)
        pattern[bit / 32] |= (code >> bit % bits & 1) << bit % 32;
    const uint8_t *p = zeros->data;
    for (int64_t r = 0; r < zeros->shape[0]; r++)
        for (int64_t c = 0; c < zeros->shape[1]; c++, p += 4)
            if (load_u32(p) != pattern[c % bits])
                return false;
    return true;
}

static enum tlm_status gptq_columns(const struct gptq *g, struct quant_view *v, struct tlm_error *e)
{
    char name[16];
    const char *format = "gptq";
    const cJSON *q = g->ck->quantization;
    int64_t bits = g->bits, cols = g->w->shape[0] * 32 / bits;
    enum tlm_status s = json_str(q, json_get(q, "checkpoint_format") ? "checkpoint_format" : "format", &format, e);
    if (s == TLM_OK && g->g_idx && json_get(q, "dynamic") && (cols = g->g_idx->shape[0]) > 0) {
        bits = g->w->shape[0] * 32 / cols; /* layers may have bits of their own */
        if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
            return view_shape_error(g->ck, g->g_idx, g->w->shape[0] * 32 / g->bits, 0, e);
    }
    if (s == TLM_OK && (cols % 32 || g->w->shape[0] * 32 != cols * bits))
        return err_set(e, TLM_EFORMAT,
                       "%s: tensor %s has %lld rows of words, which hold no multiple of 32 inputs of "
                       "%lld bits",
                       g->ck->path, g->w->file_name, (long long)g->w->shape[0], (long long)bits);
    if (s == TLM_OK)
        s = set_size(g, v, g->w->shape[1], cols, g->scales->shape[0], e);
    if (s == TLM_OK)
        s = set_columns(g, v, (int)bits, e);
    if (s != TLM_OK)
        return s;
    v->zero_add = strcmp(format, "gptq_v2") ? 1 : 0;
    const bool middle = !g->zeros || zeros_are_middle(g->zeros, (int)bits, v->zero_add);
    if (middle) {
        v->zeros = NULL;
        v->zero_bytes = 0;
    }
    snprintf(name, sizeof name, "gptq%d%s", (int)bits, middle ? "" : "z");
    v->format = quant_by_name(name);
    v->row_bytes = (size_t)(cols * bits / 8);
    v->stride = (size_t)g->w->shape[1] * 4;
    return TLM_OK;
}

enum tlm_status view_gptq(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                          struct tlm_error *e)
{
    struct gptq g = {.ck = ck, .w = w, .zeros = view_part(ck, stem, "qzeros"), .g_idx = view_part(ck, stem, "g_idx")};
    *v = (struct quant_view){0};
    if (!view_method(ck, "gptq") && !view_method(ck, "awq"))
        return err_set(
            e, TLM_EFORMAT,
            "%s/config.json: quantization_config.quant_method: found \"%s\", but tensor %s is GPTQ's or AWQ's",
            ck->path, ck->quant_method ? ck->quant_method : "", w->file_name);
    enum tlm_status s = view_expect(ck, w, DT_I32, DT_U32, -1, -1, e);
    if (s == TLM_OK)
        s = read_config(&g, e);
    if (s == TLM_OK)
        s = view_need(ck, stem, "scales", w, &g.scales, e);
    if (s == TLM_OK && !g.zeros && !g.no_zeros)
        s = view_need(ck, stem, "qzeros", w, &g.zeros, e);
    if (s == TLM_OK)
        s = view_float_scales(ck, g.scales, e);
    if (s == TLM_OK)
        s = view_expect(ck, g.scales, g.scales->dtype, g.scales->dtype, -1, -1, e);
    if (s != TLM_OK)
        return s;
    const bool awq = view_method(ck, "awq"),
               wide = g.bits == 4 && g.scales->shape[1] / 8 == w->shape[1] && g.scales->shape[1] % 8 == 0;
    if (!awq && g.scales->shape[1] == w->shape[1])
        s = gptq_columns(&g, v, e);
    else if (wide)
        s = awq_columns(&g, v, e);
    else if (awq && g.scales->shape[0] == w->shape[0])
        s = awq_rows(&g, v, e);
    else
        s = view_shape_error(ck, g.scales, -1, awq ? w->shape[1] * 8 : w->shape[1], e);
    if (s == TLM_OK && g.g_idx)
        s = view_set_order(ck, g.g_idx, v, e);
    if (s == TLM_OK && v->input && strncmp(v->format->name, "gptq", 4) != 0)
        s = err_set(e, TLM_EUNSUPPORTED, "%s: tensor %s: an order of inputs with AWQ's layout is not supported",
                    ck->path, g.g_idx->file_name);
    return s;
}
