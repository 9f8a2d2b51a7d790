/* The cache format "auto": bits of keys by what the checkpoint says of them.
 *
 * A key channel's codes span its range over a block. Inputs of a layer are
 * normalised, so the spread of channel d over tokens is about
 *
 *     s_d = |W_k[d] * g|     (g: the weights of the norm before)
 *
 * or, where heads are normalised, the weight of that norm; a range of six
 * spreads in 2^b - 1 steps errs by e_d = 6 s_d / (2^b - 1) / sqrt(12). A query
 * channel has the mean square m_d = |W_q[d] * g|^2 + b_q[d]^2, where Qwen2's
 * biases show. So the logits of a head err by
 *
 *     scale * sqrt(sum over d of m_d e_d^2)
 *
 * and the layer's worst head decides: the fewest bits of 4, 5 and 6 that keep
 * the error below LIMIT, else 8. A bias of the key itself is the channel's
 * offset and costs nothing. Values get the format of the preset. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "models/model.h"

static const double LIMIT = 0.5;

/* Mean squares of a projection's outputs [rows], for inputs of mean square
 * norm^2; spread: without the bias. */
static enum tlm_status mean_squares(const struct linear *l, const float *norm, bool spread, double *out,
                                    struct tlm_error *e)
{
    const struct quant_view *w = &l->w.view;
    float *row = mem_alloc_array((size_t)w->cols, sizeof *row);
    if (!row)
        return err_nomem(e, (size_t)w->cols * sizeof *row);
    for (int64_t r = 0; r < w->rows; r++) {
        double sum = 0;
        quant_decode(w, r, 0, w->cols, row);
        for (int64_t i = 0; i < w->cols; i++)
            sum += (double)row[i] * row[i] * norm[i] * norm[i];
        if (!spread && weight_present(&l->b)) {
            quant_decode(&l->b.view, 0, r, 1, row);
            sum += (double)row[0] * row[0];
        }
        out[r] = sum;
    }
    mem_free(row);
    return TLM_OK;
}

/* The same behind a norm of each head. */
static void head_squares(const struct weight *norm, float add, int64_t rows, int64_t dim, double *out)
{
    for (int64_t r = 0; r < rows; r++) {
        float w;
        quant_decode(&norm->view, 0, r % dim, 1, &w);
        out[r] = (double)(w + add) * (w + add);
    }
}

/* The worst head's error with keys of one bit. */
static double layer_error(const struct nn_config *c, const struct arch_attention *a, const double *q, const double *k)
{
    double worst = 0;
    for (int64_t h = 0; h < c->heads; h++) {
        double sum = 0;
        const double *key = k + h / (c->heads / c->kv_heads) * c->head_dim;
        for (int64_t d = 0; d < c->head_dim; d++)
            sum += q[h * c->head_dim + d] * 3 * key[d]; /* 6^2 / 12 */
        worst = fmax(worst, (double)a->scale * sqrt(sum));
    }
    return worst;
}

static enum tlm_status layer_bits(const struct tlm_model *m, int layer, int *bits, struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    const struct arch_attention a = m->arch->attention(m->params, layer);
    size_t n_q = (size_t)(c->heads * c->head_dim), n_k = (size_t)(c->kv_heads * c->head_dim);
    double *q = mem_alloc_array(n_q + n_k, sizeof *q), *k = q + n_q;
    float *norm = mem_alloc_array((size_t)c->hidden_size, sizeof *norm);
    enum tlm_status s = q && norm ? TLM_OK : err_nomem(e, (n_q + n_k) * sizeof *q);
    if (s == TLM_OK && weight_present(&a.w->k_norm)) {
        head_squares(&a.w->q_norm, a.norm_add, (int64_t)n_q, c->head_dim, q);
        head_squares(&a.w->k_norm, a.norm_add, (int64_t)n_k, c->head_dim, k);
    } else if (s == TLM_OK) {
        quant_decode(&a.norm->view, 0, 0, c->hidden_size, norm);
        for (int64_t i = 0; i < c->hidden_size; i++)
            norm[i] += a.norm_add;
        s = mean_squares(&a.w->q, norm, false, q, e);
        if (s == TLM_OK)
            s = mean_squares(&a.w->k, norm, true, k, e);
    }
    if (s == TLM_OK) {
        double error = layer_error(c, &a, q, k);
        for (*bits = 4; *bits < 7 && error / ((1 << *bits) - 1) > LIMIT;)
            ++*bits;
        *bits = *bits == 7 ? 8 : *bits;
    }
    mem_free(q);
    mem_free(norm);
    return s;
}

enum tlm_status model_resolve_cache(const struct tlm_model *m, struct cache_plan *p, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    bool any = false;
    for (int i = 0; i < model_base(m)->cfg.layers && s == TLM_OK; i++) {
        int bits = 4;
        if (!p->kv[i].automatic)
            continue;
        any = true;
        if (m->arch->attention)
            s = layer_bits(m, i, &bits, e);
        p->kv[i].key.bits = (uint8_t)bits;
        p->kv[i].key.mix = bits < 8;
    }
    return s == TLM_OK && any ? model_plan_figures(m, p, e) : s;
}
