/* Views of stored matrices: which family one belongs to, plain ones, GGUF
 * blocks and MLX quantised ones. The rest: view_*.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/view.h"
#include "models/view_turbo.h"
#include "quant/turbo.h"

struct mlx_params {
    int64_t group, bits;
    const char *mode;
    int64_t seed;         /* of mode turbo */
    const char *rotation; /* of mode turbo: "hadamard" */
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
    enum tlm_status s = view_turbo_config(ck, e);
    if (s != TLM_OK)
        return s;
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
    return ck->is_gguf ? TLM_OK : view_check_config(ck, e);
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
    *p = (struct mlx_params){64, 4, "affine", 0, "hadamard"};
    if (ck->turbo) {
        *p = (struct mlx_params){.group = ck->turbo->group, .bits = ck->turbo->bits, .mode = ck->turbo->mode};
        return view_turbo_layer(ck, file_stem, e);
    }
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
    if (s == TLM_OK) /* of the whole model, unless the layer has its own */
        s = json_int(json_get(from, "seed") ? from : q, "seed", 0, INT64_MAX, &p->seed, e);
    if (s == TLM_OK)
        s = json_str(json_get(from, "rotation") ? from : q, "rotation", &p->rotation, e);
    if (s != TLM_OK)
        err_prefix(e, "%s/config.json: quantization", ck->path);
    return s;
}

static enum tlm_status mlx_format(const struct checkpoint *ck, const struct mlx_params *p, const char *stem,
                                  const struct quant **format, struct tlm_error *e)
{
    char name[32];
    bool ok;
    if (!strcmp(p->mode, "affine")) {
        snprintf(name, sizeof name, "affine%lld", (long long)p->bits);
        ok = p->group == 32 || p->group == 64 || p->group == 128;
    } else if (!strcmp(p->mode, "turbo")) {
        snprintf(name, sizeof name, "turbo%lld", (long long)p->bits);
        ok = turbo_group_known(p->group);
        if (strcmp(p->rotation, "hadamard") != 0)
            return err_set(e, TLM_EUNSUPPORTED, "%s/config.json: quantization.rotation: \"%s\", expected \"hadamard\"",
                           ck->path, p->rotation);
    } else if (ck->turbo) {
        snprintf(name, sizeof name, "lut%lld", (long long)p->bits);
        ok = true;
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
    if (w->shape[0] < 1 || w->shape[1] < 1 || scales->shape[1] < 1 || scales->shape[1] > INT32_MAX)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s or %s has no elements, or too many", ck->path, w->file_name,
                       scales->file_name);
    int64_t rows = w->shape[0], cols = w->shape[1] * 32 / p.bits;
    if (w->shape[1] * 32 % p.bits || cols % p.group)
        return view_shape_error(ck, w, rows, scales->shape[1] * p.group * p.bits / 32, e);
    if (scales->shape[0] != rows || scales->shape[1] != cols / p.group)
        return view_shape_error(ck, scales, rows, cols / p.group, e);
    if ((biases != NULL) != f->has_offset)
        return err_set(e, TLM_EFORMAT, "%s: %s.biases: %s, which mode %s does not allow", ck->path, stem,
                       biases ? "present" : "missing", p.mode);
    bool scale_ok = f->scale == QUANT_SCALE_F32
                        ? scales->dtype == DT_F16 || scales->dtype == DT_BF16 || scales->dtype == DT_F32
                        : scales->dtype == DT_U8;
    if (!scale_ok)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s: scales of type %s do not fit mode %s", ck->path,
                       scales->file_name, scales->format_name, p.mode);
    if (biases && (biases->dtype != scales->dtype || biases->bytes != scales->bytes))
        return err_set(e, TLM_EFORMAT, "%s: tensor %s differs from its scales in type or shape", ck->path,
                       biases->file_name);
    const struct quant_input *input = NULL;
    if (ck->turbo)
        s = view_turbo_input(ck, file_stem, cols, &input, e);
    else if (!strcmp(p.mode, "turbo") && turbo_block(cols))
        s = view_rotation(ck, cols, turbo_block(cols), (uint64_t)p.seed, true, &input, e);
    if (s != TLM_OK)
        return s;
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
                             .offsets = biases ? biases->data : NULL,
                             .input = input};
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

bool checkpoint_stem(const char *name, char stem[CKPT_NAME_MAX])
{
    static const char *const suffixes[] = {".weight", ".qweight", ".weight_packed"};
    const size_t len = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const size_t n = strlen(suffixes[i]);
        if (len > n && len < CKPT_NAME_MAX && !strcmp(name + len - n, suffixes[i])) {
            memcpy(stem, name, len - n);
            stem[len - n] = 0;
            return true;
        }
    }
    return false;
}

enum tlm_status checkpoint_view(const struct checkpoint *ck, const char *stem, struct quant_view *v,
                                const struct file_map **map, struct tlm_error *e)
{
    struct ckpt_tensor *w = view_part(ck, stem, "weight"), *other;
    if (!w && (w = view_part(ck, stem, "qweight"))) {
        *map = w->map;
        return view_gptq(ck, stem, w, v, e);
    }
    if (!w && (w = view_part(ck, stem, "weight_packed"))) {
        *map = w->map;
        return view_packed(ck, stem, w, v, e);
    }
    if (!w && !(w = checkpoint_find(ck, stem)))
        return TLM_ENOTFOUND;
    w->used = true;
    *map = w->map;
    if ((other = view_part(ck, stem, "scales")))
        return mlx_view(ck, stem, w, other, view_part(ck, stem, "biases"), v, e);
    if (w->n_dims == 2 && w->dtype == DT_F8_E4M3)
        return view_fp8(ck, stem, w, v, e);
    if (w->n_dims == 2 && w->dtype == DT_I8 && view_method(ck, "compressed-tensors"))
        return view_int8(ck, stem, w, v, e);
    if (w->n_dims == 2 && w->dtype == DT_U8 && view_method(ck, "bitnet"))
        return view_bitnet(ck, stem, w, v, e);
    if (w->n_dims == 2 && w->dtype == DT_U8 && (other = view_part(ck, stem, "weight_scale_2")))
        return view_nvfp4(ck, stem, w, other, false, v, e);
    return plain_view(ck, w, v, e);
}
