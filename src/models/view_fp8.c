/* fp8 (e4m3) elements with scales: one number, one per row, or one per block,
 * of f32, bf16, f16 or powers of two (e8m0, also stored as u8).
 *
 *     DeepSeek, finegrained fp8   weight_scale_inv, weight_block_size
 *     compressed-tensors          weight_scale; strategy and block_structure
 *     fbgemm, modelopt            weight_scale
 *
 * "inv" notwithstanding, w = element * scale in all of them. */
#include "models/view.h"

/* Blocks as the config describes them, until one fits. */
static enum tlm_status fit(const struct checkpoint *ck, const struct ckpt_tensor *s, struct quant_view *v, bool *ok,
                           struct tlm_error *e)
{
    enum tlm_status st = TLM_OK;
    const cJSON *group;
    *ok = view_fit_scales(s, NULL, v);
    for (int i = 0; !*ok && st == TLM_OK && (group = view_group(ck, i)); i++) {
        int64_t block[2] = {1, 0};
        int n = 2;
        st = json_int(group, "group_size", -1, INT32_MAX, &block[1], e);
        if (st == TLM_OK)
            st = json_ints(group, "block_structure", block, 2, &n, e);
        if (st == TLM_OK && n == 2)
            *ok = view_fit_scales(s, block, v);
    }
    if (!*ok && st == TLM_OK && !view_method(ck, "compressed-tensors")) {
        int64_t block[2] = {128, 128};
        int n = 2;
        st = json_ints(ck->quantization, "weight_block_size", block, 2, &n, e);
        if (st == TLM_OK)
            *ok = n == 2 && view_fit_scales(s, block, v);
    }
    if (st != TLM_OK)
        err_prefix(e, "%s/config.json: quantization_config", ck->path);
    return st;
}

enum tlm_status view_fp8(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                         struct tlm_error *e)
{
    struct ckpt_tensor *s = view_part(ck, stem, "weight_scale_inv");
    if (!s)
        s = view_part(ck, stem, "weight_scale");
    if (!s)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s is f8_e4m3 without weight_scale_inv or weight_scale", ck->path,
                       w->file_name);
    enum tlm_status st = view_expect(ck, w, w->dtype, w->dtype, -1, -1, e);
    const bool power = s->dtype == DT_U8 || s->dtype == DT_F8_E8M0;
    if (st == TLM_OK && !power)
        st = view_float_scales(ck, s, e);
    if (st == TLM_OK)
        st = view_bytes(ck, w, "fp8", v, e);
    if (st != TLM_OK)
        return st;
    bool ok;
    st = fit(ck, s, v, &ok, e);
    if (st == TLM_OK && !ok)
        return view_shape_error(ck, s, w->shape[0], 1, e);
    if (power)
        v->scale_dtype = DT_F8_E8M0;
    return st;
}
