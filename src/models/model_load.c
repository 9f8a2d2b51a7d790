/* From files to parameters, by the architecture's weight table. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "models/gguf_map.h"
#include "models/model.h"

/* "model.layers.*.q" with layer 3 -> "model.layers.3.q" */
static bool expand(char out[CKPT_NAME_MAX], const char *pattern, int64_t layer)
{
    const char *star = strchr(pattern, '*');
    int n = star
                ? snprintf(out, CKPT_NAME_MAX, "%.*s%lld%s", (int)(star - pattern), pattern, (long long)layer, star + 1)
                : snprintf(out, CKPT_NAME_MAX, "%s", pattern);
    return n > 0 && n < CKPT_NAME_MAX;
}

/* Matches "blk.12.attn_q.weight" with "blk.*.attn_q": the layer, -1 without a
 * star, -2 when it does not match. *rest is what follows (".weight"). */
static int64_t match(const char *pattern, const char *name, const char **rest)
{
    const char *star = strchr(pattern, '*');
    size_t head = star ? (size_t)(star - pattern) : strlen(pattern);
    if (strncmp(pattern, name, head))
        return -2;
    name += head;
    int64_t layer = -1;
    if (star) {
        int digits = 0;
        for (layer = 0; *name >= '0' && *name <= '9' && digits < 6; name++, digits++)
            layer = layer * 10 + (*name - '0');
        size_t tail = strlen(star + 1);
        if (!digits || strncmp(star + 1, name, tail))
            return -2;
        name += tail;
    }
    *rest = name;
    return *name == '.' || !*name ? layer : -2;
}

static int rename_gguf(const void *arg, const char *name, char *out)
{
    const struct arch *a = arg;
    for (const struct weight_row *r = a->rows; r->name; r++) {
        const char *rest;
        int64_t layer = match(r->gguf, name, &rest);
        if (layer == -2 || strlen(rest) > 16)
            continue;
        if (!expand(out, r->name, layer))
            return 0;
        size_t n = strlen(out);
        snprintf(out + n, CKPT_NAME_MAX - n, "%s", rest);
        return 1;
    }
    return 0;
}

static int rename_hf(const void *arg, const char *name, char *out)
{
    const struct arch *a = arg;
    size_t len = strlen(name);
    /* Tables of the rotary angles that old checkpoints carry. */
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    if (len >= sizeof inv_freq && !strcmp(name + len - (sizeof inv_freq - 1), inv_freq))
        return -1;
    for (const struct name_rule *r = a->rules; r->from; r++) {
        size_t n = strlen(r->from);
        if (strncmp(r->from, name, n))
            continue;
        if (!r->to)
            return -1;
        snprintf(out, CKPT_NAME_MAX, "%s%s", r->to, name + n);
        return 1;
    }
    return 0;
}

static enum tlm_status find_arch(struct tlm_model *m, struct tlm_error *e)
{
    struct checkpoint *ck = m->ck;
    if (ck->is_gguf) {
        m->arch = gguf_map_arch(ck->gguf, e);
        return m->arch ? gguf_map_config(m->arch, ck, e) : TLM_EUNSUPPORTED;
    }
    const char *type = NULL;
    enum tlm_status s = json_str(ck->config, "model_type", &type, e);
    if (s == TLM_OK && !type)
        s = err_set(e, TLM_EFORMAT, "model_type: missing");
    if (s == TLM_OK && !(m->arch = arch_find(type)))
        s = err_set(e, TLM_EUNSUPPORTED, "Model type %s not supported.", type);
    return s;
}

enum tlm_status model_configure(struct tlm_model *m, struct tlm_error *e)
{
    struct checkpoint *ck = m->ck;
    enum tlm_status s = find_arch(m, e);
    if (s == TLM_OK) {
        m->params = mem_new(m->arch->params_size);
        if (!m->params)
            s = err_nomem(e, m->arch->params_size);
    }
    const cJSON *config = ck->config;
    if (s == TLM_OK && m->arch->wrapper && !(config = json_get(ck->config, "text_config")))
        s = err_set(e, TLM_EFORMAT, "text_config: missing");
    if (s == TLM_OK)
        s = m->arch->configure(m->params, config, e);
    if (s != TLM_OK) {
        bool named = e && !strncmp(e->message, ck->path, strlen(ck->path));
        if (e && !named && ck->is_gguf && m->arch)
            gguf_map_error(m->arch, e);
        if (e && !named)
            err_prefix(e, "%s%s", ck->path, ck->is_gguf ? "" : "/config.json");
        return s;
    }
    return checkpoint_rename(ck, ck->is_gguf ? rename_gguf : rename_hf, m->arch, e);
}

static bool wants_bias(const struct weight_row *r, const struct nn_config *c)
{
    return r->bias == BIAS_ALWAYS || (r->bias == BIAS_ATTENTION && c->attention_bias) ||
           (r->bias == BIAS_MLP && c->mlp_bias);
}

static enum tlm_status visit_row(struct tlm_model *m, const struct weight_row *r, int64_t layer, model_weight_fn *fn,
                                 void *arg, struct tlm_error *e)
{
    const struct nn_config *c = &model_base(m)->cfg;
    struct model_weight w = {.row = r, .layer = layer, .rows = c->dim[r->out], .cols = c->dim[r->in]};
    char name[CKPT_NAME_MAX];
    if (!expand(name, r->name, layer))
        return err_set(e, TLM_EINTERNAL, "name too long: %s", r->name);
    w.name = name;
    if (r->kind == ROW_HEAD && c->tied) {
        size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, ".weight");
        struct ckpt_tensor *t = checkpoint_find(m->ck, name);
        if (t)
            t->used = true; /* a copy of the embedding */
        return TLM_OK;
    }
    if (r->kind == ROW_NORM) {
        w.cols = w.rows;
        w.rows = 1;
    }
    enum tlm_status s = fn(arg, &w, e);
    if (s == TLM_OK && (r->kind == ROW_LINEAR || r->kind == ROW_HEAD) && wants_bias(r, c)) {
        size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, ".bias");
        w.is_bias = true;
        w.cols = w.rows;
        w.rows = 1;
        s = fn(arg, &w, e);
    }
    return s;
}

static enum tlm_status all_used(const struct tlm_model *m, struct tlm_error *e)
{
    int unused = 0;
    const char *first = NULL;
    for (int i = 0; i < m->ck->n_tensors; i++)
        if (!m->ck->tensors[i].used && !m->ck->tensors[i].left_out) {
            if (!unused++)
                first = m->ck->tensors[i].file_name;
        }
    if (!unused)
        return TLM_OK;
    return err_set(e, TLM_EFORMAT, "%s: tensor %s%s is not part of a %s model", m->ck->path, first,
                   unused > 1 ? " (and others)" : "", m->arch->model_type);
}

enum tlm_status model_each_weight(struct tlm_model *m, model_weight_fn *fn, void *arg, struct tlm_error *e)
{
    struct arch_base *b = m->params;
    if (m->arch->head_if_present && checkpoint_find(m->ck, "lm_head.weight"))
        b->cfg.tied = false;
    enum tlm_status s = TLM_OK;
    for (const struct weight_row *r = m->arch->rows; r->name && s == TLM_OK; r++)
        if (!strchr(r->name, '*'))
            s = visit_row(m, r, -1, fn, arg, e);
    for (int64_t i = 0; i < b->cfg.layers && s == TLM_OK; i++)
        for (const struct weight_row *r = m->arch->rows; r->name && s == TLM_OK; r++)
            if (strchr(r->name, '*'))
                s = visit_row(m, r, i, fn, arg, e);
    if (s == TLM_OK && m->arch->loaded)
        s = m->arch->loaded(m->params, m->ck, e);
    return s == TLM_OK ? all_used(m, e) : s;
}

enum tlm_status model_weight_view(const struct tlm_model *m, const struct model_weight *w, struct quant_view *v,
                                  const struct file_map **map, struct tlm_error *e)
{
    const struct checkpoint *ck = m->ck;
    enum tlm_status s = checkpoint_view(ck, w->name, v, map, e);
    if (s == TLM_ENOTFOUND)
        return err_set(e, TLM_EFORMAT, "%s: tensor %s%s is missing", ck->path, w->name,
                       w->row->kind == ROW_NORM || w->is_bias ? "" : ".weight");
    if (s == TLM_OK && (v->rows != w->rows || v->cols != w->cols))
        s = err_set(e, TLM_EFORMAT, "%s: tensor %s is [%lld, %lld], expected [%lld, %lld]", ck->path, w->name,
                    (long long)v->rows, (long long)v->cols, (long long)w->rows, (long long)w->cols);
    return s;
}

/* Where the parameters keep it. */
static struct weight *field_of(const struct tlm_model *m, const struct model_weight *w)
{
    struct arch_base *b = m->params;
    char *base = w->layer >= 0 ? (char *)b->layers + (size_t)w->layer * m->arch->layer_size : m->params;
    void *field = base + w->row->offset;
    if (w->row->kind == ROW_EMBED || w->row->kind == ROW_NORM)
        return field;
    struct linear *l = field;
    return w->is_bias ? &l->b : &l->w;
}

static enum tlm_status bind(void *arg, const struct model_weight *mw, struct tlm_error *e)
{
    struct tlm_model *m = arg;
    struct weight *w = field_of(m, mw);
    enum tlm_status s = model_weight_view(m, mw, &w->view, &w->map, e);
    if (s != TLM_OK)
        return s;
    if (mw->row->kind == ROW_NORM || mw->is_bias)
        w->uses = WEIGHT_VECTOR;
    else if (mw->row->kind == ROW_EMBED)
        w->uses = WEIGHT_GATHER | (model_base(m)->cfg.tied ? WEIGHT_MATMUL : 0u);
    else
        w->uses = WEIGHT_MATMUL;
    w->name = mem_strdup(mw->name);
    if (!w->name)
        return err_nomem(e, strlen(mw->name));
    m->weights[m->n_weights++] = w;
    return m->be->ops->weight_load(m->be, w, e);
}

enum tlm_status model_load_weights(struct tlm_model *m, struct tlm_error *e)
{
    struct arch_base *b = m->params;
    size_t rows = 0;
    for (const struct weight_row *r = m->arch->rows; r->name; r++)
        rows++;
    b->layers = mem_new_array((size_t)b->cfg.layers, m->arch->layer_size);
    m->weights = mem_new_array((size_t)b->cfg.layers * rows * 2, sizeof *m->weights);
    if (!b->layers || !m->weights)
        return err_nomem(e, (size_t)b->cfg.layers * m->arch->layer_size);
    return model_each_weight(m, bind, m, e);
}

void model_unload(struct tlm_model *m)
{
    for (int i = 0; i < m->n_weights; i++) {
        m->be->ops->weight_unload(m->be, m->weights[i]);
        mem_free((void *)(uintptr_t)m->weights[i]->name);
    }
    mem_free(m->weights);
    if (m->params) {
        struct arch_base *b = m->params;
        if (m->arch->deinit)
            m->arch->deinit(m->params);
        nn_config_deinit(&b->cfg);
        mem_free(b->layers);
        mem_free(m->params);
    }
    m->weights = NULL;
    m->params = NULL;
    m->n_weights = 0;
}

float *model_forward(const struct tlm_model *m, struct ctx *c, struct kv_cache *kv, const int32_t *ids,
                     const struct kv_span *spans, int n_spans, const int32_t *out_rows, int64_t n_out)
{
    struct batch b = {.ids = ids, .out_rows = out_rows, .n_out = n_out};
    for (int i = 0; i < n_spans; i++)
        b.n_tokens += spans[i].rows;
    ctx_begin(c);
    b.kv = kv_pass_begin(c, kv, ids, spans, n_spans);
    if (!b.kv)
        return NULL;
    struct tensor *logits = m->arch->forward(c, m->params, &b);
    if (!logits) {
        kv_pass_abort(b.kv);
        return NULL;
    }
    m->be->ops->sync(m->be);
    kv_pass_commit(b.kv);
    return tensor_f32(logits);
}
