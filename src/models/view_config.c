/* quantization_config of checkpoints that other quantisers made: what we cannot
 * honour is refused here, by key and value. Only weights are followed: settings
 * and tensors for the rounding of activations and of the cache are left out. */
#include <stdio.h>
#include <string.h>

#include "models/view.h"

static bool one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(s, *list))
            return true;
    return false;
}

/* A string under key that must be one of list; absent is fine. */
static enum tlm_status check_word(const cJSON *q, const char *key, const char *const *list, struct tlm_error *e)
{
    const char *s = NULL;
    enum tlm_status st = json_str(q, key, &s, e);
    if (st == TLM_OK && s && !one_of(s, list))
        return err_set(e, TLM_EUNSUPPORTED, "%s: \"%s\" is not supported", key, s);
    return st;
}

static enum tlm_status check_false(const cJSON *q, const char *key, struct tlm_error *e)
{
    bool on = false;
    enum tlm_status s = json_bool(q, key, &on, e);
    return s == TLM_OK && on ? err_set(e, TLM_EUNSUPPORTED, "%s: true is not supported", key) : s;
}

static enum tlm_status check_awq(const cJSON *q, struct tlm_error *e)
{
    static const char *const layouts[] = {"gemm", "GEMM", "gemv", "GEMV", NULL};
    enum tlm_status s = check_word(q, "version", layouts, e);
    if (s == TLM_OK)
        s = check_word(q, "format", layouts, e);
    return s == TLM_OK ? check_word(q, "checkpoint_format", layouts, e) : s;
}

static enum tlm_status check_gptq(const cJSON *q, struct tlm_error *e)
{
    static const char *const formats[] = {"gptq", "gptq_v2", NULL}, *const words[] = {"int32", NULL};
    enum tlm_status s = check_word(q, "checkpoint_format", formats, e);
    if (s == TLM_OK)
        s = check_word(q, "format", formats, e);
    if (s == TLM_OK)
        s = check_word(q, "pack_dtype", words, e);
    return s == TLM_OK ? check_false(q, "is_marlin_format", e) : s;
}

static enum tlm_status check_bitnet(const cJSON *q, struct tlm_error *e)
{
    static const char *const modes[] = {"offline", NULL}, *const classes[] = {"bitlinear", "autobitlinear", NULL};
    enum tlm_status s = check_word(q, "quantization_mode", modes, e);
    if (s == TLM_OK)
        s = check_word(q, "linear_class", classes, e);
    return s == TLM_OK ? check_false(q, "use_rms_norm", e) : s;
}

static enum tlm_status check_fp8(const cJSON *q, struct tlm_error *e)
{
    static const char *const types[] = {"e4m3", "float8_e4m3fn", NULL};
    return check_word(q, "fmt", types, e);
}

static enum tlm_status check_modelopt(const cJSON *q, struct tlm_error *e)
{
    static const char *const algorithms[] = {"FP8",         "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4",
                                             "W4A16_NVFP4", "MIXED_PRECISION",           NULL};
    return check_word(q, "quant_algo", algorithms, e);
}

const cJSON *view_group(const struct checkpoint *ck, int i)
{
    const cJSON *groups = json_get(ck->quantization, "config_groups");
    for (const cJSON *g = cJSON_IsObject(groups) ? groups->child : NULL; g; g = g->next)
        if (i-- == 0)
            return json_get(g, "weights");
    return NULL;
}

/* One of config_groups; its keys are named below "config_groups.NAME". */
static enum tlm_status check_group(const cJSON *g, struct tlm_error *e)
{
    static const char *const types[] = {"int", "float", NULL};
    static const char *const strategies[] = {"tensor", "channel", "group", "block", "tensor_group", NULL};
    const cJSON *w = json_get(g, "weights");
    int64_t bits = 8, size = -1, block[2];
    int n = 2;
    bool symmetric = true;
    if (!cJSON_IsObject(w))
        return err_set(e, TLM_EFORMAT, "weights: found %s, expected an object", json_type_name(w));
    enum tlm_status s = check_word(w, "type", types, e);
    if (s == TLM_OK)
        s = check_word(w, "strategy", strategies, e);
    if (s == TLM_OK)
        s = json_bool(w, "symmetric", &symmetric, e);
    if (s == TLM_OK)
        s = json_int(w, "group_size", -1, INT32_MAX, &size, e);
    if (s == TLM_OK)
        s = json_ints(w, "block_structure", block, 2, &n, e);
    if (s == TLM_OK)
        s = json_int(w, "num_bits", 1, 64, &bits, e);
    if (s == TLM_OK && bits != 4 && bits != 8)
        s = err_set(e, TLM_EUNSUPPORTED, "num_bits: %lld is not supported", (long long)bits);
    if (s != TLM_OK)
        err_prefix(e, "weights");
    return s;
}

static enum tlm_status check_compressed(const cJSON *q, struct tlm_error *e)
{
    static const char *const formats[] = {"pack-quantized",  "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                          "int-quantized",   "float-quantized",      "naive-quantized",
                                          "mxfp8-quantized", "mixed-precision",      NULL};
    static const char *const dense[] = {"dense", NULL};
    enum tlm_status s = check_word(q, "format", formats, e);
    if (s == TLM_OK)
        s = check_word(q, "sparsity_config.format", dense, e);
    const cJSON *groups = json_get(q, "transform_config.config_groups");
    if (s == TLM_OK && cJSON_IsObject(groups) && groups->child)
        s = err_set(e, TLM_EUNSUPPORTED, "transform_config.config_groups.%s: transforms are not supported",
                    groups->child->string);
    groups = json_get(q, "config_groups");
    if (s == TLM_OK && !cJSON_IsObject(groups))
        s = err_set(e, TLM_EFORMAT, "config_groups: found %s, expected an object", json_type_name(groups));
    for (const cJSON *g = groups ? groups->child : NULL; g && s == TLM_OK; g = g->next) {
        s = cJSON_IsObject(g) ? check_word(g, "format", formats, e)
                              : err_set(e, TLM_EUNSUPPORTED, "found %s, expected an object", json_type_name(g));
        if (s == TLM_OK)
            s = check_group(g, e);
        if (s != TLM_OK)
            err_prefix(e, "config_groups.%s", g->string);
    }
    return s;
}

static enum tlm_status check_nothing(const cJSON *q, struct tlm_error *e)
{
    (void)q;
    (void)e;
    return TLM_OK;
}

static const struct {
    const char *name;
    enum tlm_status (*check)(const cJSON *q, struct tlm_error *e);
} methods[] = {
    {"awq", check_awq},
    {"gptq", check_gptq},
    {"bitnet", check_bitnet},
    {"compressed-tensors", check_compressed},
    {"fp8", check_fp8},
    {"fbgemm_fp8", check_nothing},
    {"modelopt", check_modelopt},
    {"mxfp4", check_nothing},
    {"turboquant", check_nothing}, /* view_turbo.c */
};

/* Tensors for the rounding of activations and of the cache. */
static void leave_out(struct checkpoint *ck)
{
    static const char *const names[] = {"input_scale",      "input_zero_point", "input_global_scale",
                                        "activation_scale", "input_scale_ub",   "output_scale",
                                        "k_scale",          "v_scale",          "q_scale",
                                        "k_zero_point",     "v_zero_point",     "k_global_scale",
                                        "v_global_scale",   "q_global_scale",   NULL};
    for (int i = 0; i < ck->n_tensors; i++) {
        const char *dot = strrchr(ck->tensors[i].name, '.');
        if (dot && one_of(dot + 1, names))
            ck->tensors[i].left_out = true;
    }
}

enum tlm_status view_check_config(struct checkpoint *ck, struct tlm_error *e)
{
    ck->quant_method = "";
    enum tlm_status s = json_str(ck->quantization, "quant_method", &ck->quant_method, e);
    bool known = !*ck->quant_method;
    for (size_t i = 0; i < sizeof methods / sizeof *methods && s == TLM_OK && !known; i++)
        if (!strcmp(methods[i].name, ck->quant_method)) {
            known = true;
            leave_out(ck);
            s = methods[i].check(ck->quantization, e);
        }
    if (s == TLM_OK && !known)
        s = err_set(e, TLM_EUNSUPPORTED, "quant_method: \"%s\" is not supported", ck->quant_method);
    if (s != TLM_OK)
        err_prefix(e, "%s/config.json: quantization_config", ck->path);
    return s;
}
