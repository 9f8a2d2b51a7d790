/* BitNet: ternary weights, four output rows to a byte row (quant/foreign.c),
 * and one number for all: a divisor, or a factor with linear_class autobitlinear.
 * The original rounds activations to 8 bits per token; we do not imitate that. */
#include <string.h>

#include "models/view.h"

enum tlm_status view_bitnet(const struct checkpoint *ck, const char *stem, struct ckpt_tensor *w, struct quant_view *v,
                            struct tlm_error *e)
{
    struct ckpt_tensor *s;
    const char *class = "bitlinear";
    float scale = 1;
    enum tlm_status st = view_expect(ck, w, DT_U8, DT_U8, -1, -1, e);
    if (st == TLM_OK)
        st = view_need(ck, stem, "weight_scale", w, &s, e);
    if (st == TLM_OK)
        st = view_number(ck, s, &scale, e);
    if (st == TLM_OK && (st = json_str(ck->quantization, "linear_class", &class, e)) != TLM_OK)
        err_prefix(e, "%s/config.json: quantization_config", ck->path);
    if (st != TLM_OK)
        return st;
    if (w->shape[1] % 4 || w->shape[1] > INT32_MAX || w->shape[0] > INT64_MAX / 4)
        return err_set(e, TLM_EUNSUPPORTED, "%s: tensor %s: %lld inputs, expected a multiple of 4", ck->path,
                       w->file_name, (long long)w->shape[1]);
    *v = (struct quant_view){.format = quant_by_name("bitnet"),
                             .rows = w->shape[0] * 4,
                             .cols = w->shape[1],
                             .group = (int)w->shape[1],
                             .data = w->data,
                             .row_bytes = (size_t)w->shape[1] / 4,
                             .scale_rows = 1,
                             .stride = (size_t)w->shape[1],
                             .factor = strcmp(class, "autobitlinear") ? 1 / scale : scale};
    return TLM_OK;
}
