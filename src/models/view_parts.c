/* Finding and checking the tensors of a quantised matrix. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "models/view.h"

struct ckpt_tensor *view_part(const struct checkpoint *ck, const char *stem, const char *suffix)
{
    char name[CKPT_NAME_MAX];
    int n = snprintf(name, sizeof name, "%s.%s", stem, suffix);
    struct ckpt_tensor *t = n > 0 && n < (int)sizeof name ? checkpoint_find(ck, name) : NULL;
    if (t)
        t->used = true;
    return t;
}

enum tlm_status view_need(const struct checkpoint *ck, const char *stem, const char *suffix,
                          const struct ckpt_tensor *of, struct ckpt_tensor **out, struct tlm_error *e)
{
    *out = view_part(ck, stem, suffix);
    if (!*out)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s.%s is missing, which %s needs", ck->path, stem, suffix,
                       of->file_name);
    return TLM_OK;
}

bool view_method(const struct checkpoint *ck, const char *name)
{
    return ck->quant_method && !strcmp(ck->quant_method, name);
}

/* "[3, 4]"; -1 is "any". */
static void shape_text(char out[64], const int64_t *shape, int n)
{
    size_t used = 0;
    for (int d = 0; d < n && used < 40; d++) {
        char number[24];
        if (shape[d] < 0)
            snprintf(number, sizeof number, "any");
        else
            snprintf(number, sizeof number, "%lld", (long long)shape[d]);
        used += (size_t)snprintf(out + used, 64 - used, "%s%s", d ? ", " : "[", number);
    }
    snprintf(out + used, 64 - used, n ? "]" : "one number");
}

enum tlm_status view_shape_error(const struct checkpoint *ck, const struct ckpt_tensor *t, int64_t rows, int64_t cols,
                                 struct tlm_error *e)
{
    char found[64], wanted[64];
    const int64_t shape[2] = {rows, cols};
    shape_text(found, t->shape, t->n_dims);
    shape_text(wanted, shape, cols ? 2 : 1);
    return err_set(e, TLM_EFORMAT, "%s: tensor %s is %s %s, expected %s", ck->path, t->file_name, t->format_name, found,
                   wanted);
}

enum tlm_status view_expect(const struct checkpoint *ck, const struct ckpt_tensor *t, enum dtype a, enum dtype b,
                            int64_t rows, int64_t cols, struct tlm_error *e)
{
    if (t->dtype != a && t->dtype != b)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s is of type %s, expected %s", ck->path, t->file_name,
                       t->format_name, dtype_name(a));
    bool ok = t->n_dims == (cols ? 2 : 1) && t->shape[0] > 0 && (rows < 0 || t->shape[0] == rows) &&
              (cols == 0 || (t->shape[1] > 0 && (cols < 0 || t->shape[1] == cols)));
    return ok ? TLM_OK : view_shape_error(ck, t, rows, cols, e);
}

enum tlm_status view_float_scales(const struct checkpoint *ck, const struct ckpt_tensor *s, struct tlm_error *e)
{
    if (s->dtype == DT_F32 || s->dtype == DT_BF16 || s->dtype == DT_F16)
        return TLM_OK;
    return err_set(e, TLM_EFORMAT, "%s: tensor %s: scales of type %s", ck->path, s->file_name, s->format_name);
}

enum tlm_status view_number(const struct checkpoint *ck, const struct ckpt_tensor *t, float *out, struct tlm_error *e)
{
    const size_t size = dtype_size(t->dtype);
    enum tlm_status st = view_float_scales(ck, t, e);
    if (st != TLM_OK)
        return st;
    if (t->bytes != size)
        return view_shape_error(ck, t, 1, 0, e);
    *out = t->dtype == DT_F32    ? fp_from_bits(load_u32(t->data))
           : t->dtype == DT_BF16 ? fp_from_bf16(load_u16(t->data))
                                 : load_f16(t->data);
    if (!isfinite(*out) || *out <= 0 || !isfinite(1 / *out))
        return err_set(e, TLM_EFORMAT, "%s: tensor %s is %g, expected a positive number", ck->path, t->file_name,
                       (double)*out);
    return TLM_OK;
}

bool view_fit_scales(const struct ckpt_tensor *s, const int64_t *blocks, struct quant_view *v)
{
    int64_t rows = 1, cols = 1;
    if (s->n_dims > 2)
        return false;
    if (s->n_dims > 0)
        rows = s->shape[0];
    if (s->n_dims == 2)
        cols = s->shape[1];
    if (rows == 1 && cols == 1) {
        v->scale_rows = v->rows;
        v->group = (int)v->cols;
    } else if (rows == v->rows && cols == 1) {
        v->scale_rows = 1;
        v->group = (int)v->cols;
    } else if (blocks && blocks[0] > 0 && blocks[1] > 0 && rows == (v->rows - 1) / blocks[0] + 1 &&
               cols == (v->cols - 1) / blocks[1] + 1) {
        v->scale_rows = blocks[0];
        v->group = (int)(blocks[1] < v->cols ? blocks[1] : v->cols);
    } else {
        return false;
    }
    v->scales = s->data;
    v->scale_dtype = s->dtype;
    v->scale_row_bytes = (size_t)cols * dtype_size(s->dtype);
    return true;
}

static int32_t group_of(const struct ckpt_tensor *g_idx, int64_t i)
{
    return (int32_t)load_u32((const uint8_t *)g_idx->data + 4 * i);
}

/* Every group must have v->group inputs, the last one the rest. */
static enum tlm_status check_groups(const struct checkpoint *ck, const struct ckpt_tensor *g_idx,
                                    const struct quant_view *v, bool *in_place, bool *unset, struct tlm_error *e)
{
    enum tlm_status s = view_expect(ck, g_idx, DT_I32, DT_I32, v->cols, 0, e);
    if (s != TLM_OK)
        return s;
    const int64_t groups = (v->cols - 1) / v->group + 1;
    *in_place = *unset = true;
    for (int64_t i = 0; i < v->cols; i++) {
        *in_place = *in_place && group_of(g_idx, i) == i / v->group;
        *unset = *unset && group_of(g_idx, i) == -1;
    }
    for (int64_t i = 0; i < v->cols && !*unset; i++)
        if (group_of(g_idx, i) < 0 || group_of(g_idx, i) >= groups)
            return err_set(e, TLM_EFORMAT, "%s: tensor %s: input %lld is of group %d, expected 0 to %lld", ck->path,
                           g_idx->file_name, (long long)i, (int)group_of(g_idx, i), (long long)groups - 1);
    return TLM_OK;
}

/* Inputs by group, those of a group in their own order. */
static enum tlm_status sort_inputs(const struct checkpoint *ck, const struct ckpt_tensor *g_idx,
                                   const struct quant_view *v, int32_t *order, struct tlm_error *e)
{
    const int64_t groups = (v->cols - 1) / v->group + 1;
    int64_t *filled = mem_new_array((size_t)groups, sizeof *filled);
    if (!filled)
        return err_nomem(e, (size_t)groups * sizeof *filled);
    for (int64_t i = 0; i < v->cols; i++) {
        const int64_t g = group_of(g_idx, i), at = g * v->group + filled[g]++;
        if (filled[g] <= v->group && at < v->cols)
            order[at] = (int32_t)i;
    }
    enum tlm_status s = TLM_OK;
    for (int64_t g = 0; g < groups && s == TLM_OK; g++) {
        int64_t size = g < groups - 1 ? v->group : v->cols - g * v->group;
        if (filled[g] != size)
            s = err_set(e, TLM_EFORMAT, "%s: tensor %s: group %lld has %lld inputs, expected %lld", ck->path,
                        g_idx->file_name, (long long)g, (long long)filled[g], (long long)size);
    }
    mem_free(filled);
    return s;
}

struct ckpt_input *view_input_new(int64_t cols, size_t size, void **data)
{
    struct ckpt_input *i = (size_t)cols > SIZE_MAX / 2 / size ? NULL : mem_new(sizeof *i + (size_t)cols * size);
    if (!i)
        return NULL;
    i->cols = cols;
    *data = i + 1;
    return i;
}

void view_input_keep(const struct checkpoint *ck, struct ckpt_input *i)
{
    i->next = *ck->inputs;
    *ck->inputs = i;
}

void view_inputs_free(struct ckpt_input *list)
{
    while (list) {
        struct ckpt_input *next = list->next;
        mem_free(list);
        list = next;
    }
}

/* Matrices that share their inputs mostly have the same order; products then
 * apply it once. */
static const struct quant_input *same_order(const struct checkpoint *ck, const int32_t *order, int64_t cols)
{
    for (const struct ckpt_input *i = *ck->inputs; i; i = i->next)
        if (i->input.order && i->cols == cols && !memcmp(i->input.order, order, (size_t)cols * sizeof *order))
            return &i->input;
    return NULL;
}

enum tlm_status view_set_order(const struct checkpoint *ck, const struct ckpt_tensor *g_idx, struct quant_view *v,
                               struct tlm_error *e)
{
    bool in_place, unset;
    enum tlm_status s = check_groups(ck, g_idx, v, &in_place, &unset, e);
    if (s != TLM_OK || in_place || unset)
        return s;
    void *order;
    struct ckpt_input *i = view_input_new(v->cols, sizeof(int32_t), &order);
    if (!i)
        return err_nomem(e, (size_t)v->cols * sizeof(int32_t));
    s = sort_inputs(ck, g_idx, v, order, e);
    v->input = s == TLM_OK ? same_order(ck, order, v->cols) : NULL;
    if (s != TLM_OK || v->input) {
        mem_free(i);
        return s;
    }
    i->input.order = order;
    view_input_keep(ck, i);
    v->input = &i->input;
    return TLM_OK;
}

enum tlm_status view_bytes(const struct checkpoint *ck, const struct ckpt_tensor *w, const char *format,
                           struct quant_view *v, struct tlm_error *e)
{
    if (w->shape[1] > INT32_MAX)
        return view_shape_error(ck, w, w->shape[0], INT32_MAX, e);
    *v = (struct quant_view){.format = quant_by_name(format),
                             .rows = w->shape[0],
                             .cols = w->shape[1],
                             .data = w->data,
                             .row_bytes = (size_t)w->shape[1]};
    return TLM_OK;
}
