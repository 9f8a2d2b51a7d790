/* Views of stored matrices: plain, GGUF blocks, MLX quantised, block fp8. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/checkpoint.h"

struct mlx_params {
    int64_t group, bits;
    const char *mode;
};

static const cJSON *quant_object(const struct checkpoint *ck)
{
    static const char *const places[] = {"quantization", "quantization_config", "text_config.quantization",
                                         "text_config.quantization_config"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const cJSON *q = json_get(ck->config, places[i]);
        if (q)
            return q;
    }
    return NULL;
}

static int member_compare(const void *a, const void *b)
{
    const struct quant_member *x = a, *y = b;
    int c = strcmp(x->value->string, y->value->string);
    return c ? c : x->at < y->at ? -1 : x->at > y->at;
}

enum tlm_status checkpoint_sort_quantization(struct checkpoint *ck, struct tlm_error *e)
{
    ck->quantization = quant_object(ck);
    size_t n = 0;
    const cJSON *first = cJSON_IsObject(ck->quantization) ? ck->quantization->child : NULL;
    for (const cJSON *v = first; v; v = v->next)
        n++;
    ck->quant_members = mem_alloc_array(n, sizeof *ck->quant_members);
    if (!ck->quant_members)
        return err_nomem(e, n * sizeof *ck->quant_members);
    for (const cJSON *v = first; v; v = v->next, ck->n_quant_members++)
        ck->quant_members[ck->n_quant_members] = (struct quant_member){v, ck->n_quant_members};
    if (n)
        qsort(ck->quant_members, n, sizeof *ck->quant_members, member_compare);
    return TLM_OK;
}

static const cJSON *member(const struct checkpoint *ck, const char *key)
{
    size_t low = 0, high = ck->n_quant_members; /* all below low are at most key, all from high on greater */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(ck->quant_members[middle].value->string, key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    const cJSON *v = low ? ck->quant_members[low - 1].value : NULL;
    return v && !strcmp(v->string, key) ? v : NULL;
}

/* An entry under the layer's own path, canonical or the file's, comes first. */
static enum tlm_status mlx_params_for(const struct checkpoint *ck, const char *stem, const char *file_stem,
                                      struct mlx_params *p, struct tlm_error *e)
{
    const cJSON *q = ck->quantization, *own = member(ck, stem);
    *p = (struct mlx_params){64, 4, "affine"};
    if (!own)
        own = member(ck, file_stem);
    if (own && cJSON_IsFalse(own))
        return err_set(e, TLM_EFORMAT, "%s/config.json: quantization.%s is false, but the tensor has scales", ck->path,
                       stem);
    const cJSON *from = cJSON_IsObject(own) ? own : q;
    enum tlm_status s = json_int(from, "group_size", 1, 1 << 20, &p->group, e);
    if (s == TLM_OK)
        s = json_int(from, "bits", 1, 32, &p->bits, e);
    if (s == TLM_OK)
        s = json_str(from, "mode", &p->mode, e);
    if (s != TLM_OK)
        err_prefix(e, "%s/config.json: quantization", ck->path);
    return s;
}

static enum tlm_status shape_error(const struct checkpoint *ck, const struct ckpt_tensor *t, int64_t rows, int64_t cols,
                                   struct tlm_error *e)
{
    return err_set(e, TLM_EFORMAT, "%s: tensor %s is %s [%lld, %lld], expected [%lld, %lld]", ck->path, t->file_name,
                   t->format_name, (long long)t->shape[0], (long long)t->shape[1], (long long)rows, (long long)cols);
}

static enum tlm_status mlx_format(const struct checkpoint *ck, const struct mlx_params *p, const char *stem,
                                  const struct quant **format, struct tlm_error *e)
{
    char name[32];
    bool ok;
    if (!strcmp(p->mode, "affine")) {
        snprintf(name, sizeof name, "affine%lld", (long long)p->bits);
        ok = p->group == 32 || p->group == 64 || p->group == 128;
    } else {
        snprintf(name, sizeof name, "%s", p->mode);
        ok = (!strcmp(name, "mxfp4") && p->group == 32 && p->bits == 4) ||
             (!strcmp(name, "nvfp4") && p->group == 16 && p->bits == 4) ||
             (!strcmp(name, "mxfp8") && p->group == 32 && p->bits == 8);
    }
    *format = ok ? quant_by_name(name) : NULL;
    if (!*format)
        return err_set(e, TLM_EUNSUPPORTED, "%s: %s: quantization mode %s with %lld bits in groups of %lld", ck->path,
                       stem, p->mode, (long long)p->bits, (long long)p->group);
    return TLM_OK;
}

static enum tlm_status mlx_view(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w,
                                struct ckpt_tensor *scales, struct ckpt_tensor *biases, struct quant_view *v,
                                struct tlm_error *e)
{
    struct mlx_params p;
    const struct quant *f;
    char file_stem[CKPT_NAME_MAX];
    snprintf(file_stem, sizeof file_stem, "%.*s", (int)(strlen(w->file_name) - strlen(".weight")), w->file_name);
    enum tlm_status s = mlx_params_for(ck, stem, file_stem, &p, e);
    if (s == TLM_OK)
        s = mlx_format(ck, &p, stem, &f, e);
    if (s != TLM_OK)
        return s;
    if (w->dtype != DT_U32 || w->n_dims != 2 || scales->n_dims != 2)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s: found %s of %d dimensions, expected u32 of 2", ck->path,
                       w->file_name, w->format_name, w->n_dims);
    int64_t rows = w->shape[0], cols = w->shape[1] * 32 / p.bits;
    if (w->shape[1] * 32 % p.bits || cols % p.group)
        return shape_error(ck, w, rows, scales->shape[1] * p.group * p.bits / 32, e);
    if (scales->shape[0] != rows || scales->shape[1] != cols / p.group)
        return shape_error(ck, scales, rows, cols / p.group, e);
    if ((biases != NULL) != f->has_offset)
        return err_set(e, TLM_EFORMAT, "%s: %s.biases: %s, which mode %s does not allow", ck->path, stem,
                       biases ? "present" : "missing", p.mode);
    bool scale_ok = f->has_offset ? scales->dtype == DT_F16 || scales->dtype == DT_BF16 || scales->dtype == DT_F32
                                  : scales->dtype == DT_U8;
    if (!scale_ok)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s: scales of type %s do not fit mode %s", ck->path,
                       scales->file_name, scales->format_name, p.mode);
    if (biases && (biases->dtype != scales->dtype || biases->bytes != scales->bytes))
        return err_set(e, TLM_EFORMAT, "%s: tensor %s differs from its scales in type or shape", ck->path,
                       biases->file_name);
    size_t srow = (size_t)(cols / p.group) * dtype_size(scales->dtype);
    *v = (struct quant_view){.format = f,
                             .rows = rows,
                             .cols = cols,
                             .group = (int)p.group,
                             .data = w->data,
                             .row_bytes = (size_t)w->shape[1] * 4,
                             .scales = scales->data,
                             .scale_dtype = scales->dtype,
                             .scale_rows = 1,
                             .scale_row_bytes = srow,
                             .offsets = biases ? biases->data : NULL};
    return TLM_OK;
}

/* F8_E4M3 with weight_scale_inv (blocks) or weight_scale (tensor, rows). */
static enum tlm_status fp8_view(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w,
                                struct quant_view *v, struct tlm_error *e)
{
    char name[CKPT_NAME_MAX];
    snprintf(name, sizeof name, "%s.weight_scale_inv", stem);
    struct ckpt_tensor *s = checkpoint_find(ck, name);
    if (!s) {
        snprintf(name, sizeof name, "%s.weight_scale", stem);
        s = checkpoint_find(ck, name);
    }
    if (!s)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s is f8_e4m3 without weight_scale_inv or weight_scale", ck->path,
                       w->file_name);
    s->used = true;
    int64_t rows = w->shape[0], cols = w->shape[1], block_rows = 1, group = cols, srows = 1, scols = 1;
    if (s->n_dims == 2)
        srows = s->shape[0], scols = s->shape[1];
    else if (s->n_dims == 1)
        srows = s->shape[0];
    int64_t block[2] = {128, 128};
    int n = 2;
    enum tlm_status st = json_ints(ck->quantization, "weight_block_size", block, 2, &n, e);
    if (st != TLM_OK) {
        err_prefix(e, "%s/config.json: quantization", ck->path);
        return st;
    }
    if (srows == 1 && scols == 1)
        block_rows = rows;
    else if (srows == rows && scols == 1)
        block_rows = 1;
    else if (n == 2 && block[0] > 0 && block[1] > 0 && block[1] % 32 == 0 &&
             srows == (rows + block[0] - 1) / block[0] && scols == (cols + block[1] - 1) / block[1])
        block_rows = block[0], group = block[1];
    else
        return shape_error(ck, s, rows, 1, e);
    if (s->dtype != DT_F32 && s->dtype != DT_BF16 && s->dtype != DT_F16)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s: scales of type %s", ck->path, s->file_name, s->format_name);
    *v = (struct quant_view){.format = quant_by_name("fp8"),
                             .rows = rows,
                             .cols = cols,
                             .group = (int)group,
                             .data = w->data,
                             .row_bytes = (size_t)cols,
                             .scales = s->data,
                             .scale_dtype = s->dtype,
                             .scale_rows = block_rows,
                             .scale_row_bytes = (size_t)scols * dtype_size(s->dtype)};
    return TLM_OK;
}

static enum tlm_status plain_view(const struct checkpoint *ck, const struct ckpt_tensor *w, struct quant_view *v,
                                  struct tlm_error *e)
{
    const struct quant *f = w->block_format ? w->block_format : quant_dense(w->dtype);
    if (!f)
        return err_set(e, TLM_EUNSUPPORTED, "%s: tensor %s: format %s is not supported", ck->path, w->file_name,
                       w->format_name ? w->format_name : "unknown");
    int64_t rows = w->n_dims == 2 ? w->shape[0] : 1;
    int64_t cols = w->n_dims == 2 ? w->shape[1] : w->n_dims == 1 ? w->shape[0] : 0;
    if (rows <= 0 || cols <= 0)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s has %d dimensions or is empty", ck->path, w->file_name,
                       w->n_dims);
    *v = (struct quant_view){.format = f,
                             .rows = rows,
                             .cols = cols,
                             .group = f->group,
                             .data = w->data,
                             .row_bytes = w->bytes / (size_t)rows,
                             .scale_rows = 1};
    return TLM_OK;
}

enum tlm_status checkpoint_view(const struct checkpoint *ck, const char *stem, struct quant_view *v,
                                const struct file_map **map, struct tlm_error *e)
{
    char name[CKPT_NAME_MAX];
    snprintf(name, sizeof name, "%s.weight", stem);
    struct ckpt_tensor *w = checkpoint_find(ck, name);
    if (!w)
        w = checkpoint_find(ck, stem);
    if (!w)
        return TLM_ENOTFOUND;
    w->used = true;
    *map = w->map;
    snprintf(name, sizeof name, "%s.scales", stem);
    struct ckpt_tensor *scales = checkpoint_find(ck, name);
    if (scales) {
        scales->used = true;
        snprintf(name, sizeof name, "%s.biases", stem);
        struct ckpt_tensor *biases = checkpoint_find(ck, name);
        if (biases)
            biases->used = true;
        return mlx_view(ck, stem, w, scales, biases, v, e);
    }
    if (w->dtype == DT_F8_E4M3 && w->n_dims == 2)
        return fp8_view(ck, stem, w, v, e);
    return plain_view(ck, w, v, e);
}
