/* Settings of rotated weights: directories of mlx_turboquant
 * (quantization_config.quant_method "turboquant") and our own mode "turbo". */
#include "models/view_turbo.h"

#include <string.h>

#include "base/mem.h"
#include "models/view.h"
#include "quant/hadamard.h"
#include "quant/pcg64.h"
#include "quant/turbo.h"

enum tlm_status view_rotation(const struct checkpoint *ck, int64_t cols, int64_t block, uint64_t seed, bool signs_first,
                              const struct quant_input **out, struct tlm_error *e)
{
    *out = NULL;
    for (const struct ckpt_input *i = *ck->inputs; i; i = i->next)
        if (i->input.signs && i->cols == cols && i->input.seed == seed && i->input.block == block &&
            i->input.signs_first == signs_first) {
            *out = &i->input;
            return TLM_OK;
        }
    if (block > QUANT_BLOCK_MAX || cols > INT32_MAX)
        return err_set(e, TLM_ELIMIT, "%s: a rotation of %lld inputs, expected at most %d", ck->path, (long long)block,
                       QUANT_BLOCK_MAX);
    void *signs;
    struct ckpt_input *i = view_input_new(cols, sizeof(float), &signs);
    if (!i)
        return err_nomem(e, (size_t)cols * sizeof(float));
    pcg64_signs(seed, cols, signs);
    i->input = (struct quant_input){.block = block, .signs_first = signs_first, .signs = signs, .seed = seed};
    view_input_keep(ck, i);
    *out = &i->input;
    return TLM_OK;
}

static bool one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(s, *list))
            return true;
    return false;
}

static enum tlm_status read_skip(const cJSON *q, struct view_turbo *t, struct tlm_error *e)
{
    t->skip = json_get(q, "skip");
    if (t->skip && !cJSON_IsArray(t->skip))
        return err_set(e, TLM_EFORMAT, "skip: found %s, expected an array", json_type_name(t->skip));
    for (const cJSON *v = t->skip ? t->skip->child : NULL; v; v = v->next)
        if (!cJSON_IsString(v))
            return err_set(e, TLM_EFORMAT, "skip: found %s, expected a string", json_type_name(v));
    return TLM_OK;
}

static enum tlm_status read_settings(const cJSON *q, struct view_turbo *t, struct tlm_error *e)
{
    static const char *const keys[] = {"quant_method",  "bits", "group_size", "mode",
                                       "rot_base_seed", "skip", "rotation",   NULL};
    const char *mode = "affine", *rotation = "randomized_hadamard";
    t->bits = 4;
    t->group = 64;
    for (const cJSON *v = q->child; v; v = v->next)
        if (!one_of(v->string, keys))
            return err_set(e, TLM_EUNSUPPORTED, "%s: not a setting of turboquant that is known", v->string);
    enum tlm_status s = json_int(q, "bits", 1, 8, &t->bits, e);
    if (s == TLM_OK)
        s = json_int(q, "group_size", 1, 1 << 20, &t->group, e);
    if (s == TLM_OK)
        s = json_int(q, "rot_base_seed", INT64_MIN, INT64_MAX, &t->seed, e);
    if (s == TLM_OK)
        s = json_str(q, "mode", &mode, e);
    if (s == TLM_OK)
        s = json_str(q, "rotation", &rotation, e);
    if (s == TLM_OK)
        s = read_skip(q, t, e);
    if (s != TLM_OK)
        return s;
    if (strcmp(rotation, "randomized_hadamard") != 0)
        return err_set(e, TLM_EUNSUPPORTED, "rotation: \"%s\", expected \"randomized_hadamard\"", rotation);
    if (strcmp(mode, "affine") != 0 && strcmp(mode, "lut") != 0)
        return err_set(e, TLM_EUNSUPPORTED, "mode: \"%s\", expected \"affine\" or \"lut\"", mode);
    t->mode = mode;
    return TLM_OK;
}

enum tlm_status view_turbo_config(struct checkpoint *ck, struct tlm_error *e)
{
    const char *method = "";
    const cJSON *q = json_get(ck->config, "quantization_config");
    if (!cJSON_IsObject(q) || json_str(q, "quant_method", &method, NULL) != TLM_OK || strcmp(method, "turboquant") != 0)
        return TLM_OK;
    struct view_turbo *t = mem_new(sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t);
    ck->turbo = t;
    ck->quantization = q;
    enum tlm_status s = read_settings(q, t, e);
    if (s != TLM_OK)
        err_prefix(e, "%s/config.json: quantization_config", ck->path);
    return s;
}

/* The default of mlx_turboquant is to skip lm_head. */
static const char *skipped_by(const struct view_turbo *t, const char *path)
{
    if (!t->skip)
        return strstr(path, "lm_head") ? "lm_head" : NULL;
    for (const cJSON *v = t->skip->child; v; v = v->next)
        if (strstr(path, v->valuestring))
            return v->valuestring;
    return NULL;
}

enum tlm_status view_turbo_layer(const struct checkpoint *ck, const char *path, struct tlm_error *e)
{
    const char *by = skipped_by(ck->turbo, path);
    if (by)
        return err_set(e, TLM_EFORMAT, "%s/config.json: quantization_config.skip has \"%s\", but %s has scales",
                       ck->path, by, path);
    return TLM_OK;
}

enum tlm_status view_turbo_input(const struct checkpoint *ck, const char *path, int64_t cols,
                                 const struct quant_input **out, struct tlm_error *e)
{
    uint64_t seed = turbo_layer_seed(path, (uint64_t)ck->turbo->seed);
    return view_rotation(ck, cols, hadamard_block(cols), seed, false, out, e);
}
