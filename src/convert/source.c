/* Opening what is converted, and its rows in the checkpoint's conventions. */
#include "convert/source.h"

#include <string.h>

#include "base/mem.h"

struct adding {
    struct source *s;
    size_t room;
    bool pairs; /* q and k hold rotated pairs as neighbours */
    bool norm_is_full;
};

static bool is_q_or_k(const char *name)
{
    return strstr(name, ".self_attn.q_proj") || strstr(name, ".self_attn.k_proj");
}

static enum tlm_status add_weight(void *arg, const struct model_weight *w, struct tlm_error *e)
{
    struct adding *a = arg;
    struct source *s = a->s;
    if (s->n_weights == a->room) {
        size_t room = a->room ? a->room * 2 : 256;
        struct source_weight *more = mem_realloc_array(s->weights, room, sizeof *more);
        if (!more)
            return err_nomem(e, room * sizeof *more);
        s->weights = more;
        a->room = room;
    }
    struct source_weight *n = &s->weights[s->n_weights];
    *n = (struct source_weight){
        .row = w->row, .layer = w->layer, .is_bias = w->is_bias, .is_vector = w->is_bias || w->row->kind == ROW_NORM};
    enum tlm_status st = model_weight_view(&s->model, w, &n->view, &n->map, e);
    if (st != TLM_OK)
        return st;
    if (a->pairs && is_q_or_k(w->name))
        n->turn_head = model_base(&s->model)->cfg.head_dim;
    if (a->norm_is_full && w->row->kind == ROW_NORM)
        n->minus = 1;
    n->name = mem_strdup(w->name);
    if (!n->name)
        return err_nomem(e, strlen(w->name));
    s->n_weights++;
    return TLM_OK;
}

enum tlm_status source_open(const char *path, struct source **out, struct tlm_error *e)
{
    *out = NULL;
    struct source *s = mem_new(sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s);
    enum tlm_status st = checkpoint_open(path, false, &s->model.ck, e);
    if (st == TLM_OK)
        st = model_configure(&s->model, e);
    if (st == TLM_OK && s->model.ck->n_tensors == 0)
        st = err_set(e, TLM_EFORMAT, "%s: the file holds no weights", path);
    if (st == TLM_OK) {
        const struct arch_base *b = model_base(&s->model);
        struct adding a = {
            .s = s, .pairs = s->model.ck->is_gguf && b->cfg.rope_interleaved, .norm_is_full = b->norm_is_full};
        st = model_each_weight(&s->model, add_weight, &a, e);
    }
    if (st != TLM_OK) {
        source_close(s);
        return st;
    }
    *out = s;
    return TLM_OK;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_weights; i++)
        mem_free(s->weights[i].name);
    mem_free(s->weights);
    model_unload(&s->model);
    checkpoint_close(s->model.ck);
    mem_free(s);
}

int64_t source_row(const struct source_weight *w, int64_t r)
{
    if (!w->turn_head || w->is_bias)
        return r;
    int64_t in = r % w->turn_head, half = w->turn_head / 2;
    return r - in + in % half * 2 + in / half;
}

void source_decode(const struct source_weight *w, int64_t r, float *out)
{
    const int64_t n = w->view.cols;
    if (w->turn_head && w->is_bias) {
        int64_t half = w->turn_head / 2;
        for (int64_t i = 0; i < n; i++) {
            int64_t in = i % w->turn_head;
            quant_decode(&w->view, 0, i - in + in % half * 2 + in / half, 1, out + i);
        }
        return;
    }
    quant_decode(&w->view, source_row(w, r), 0, n, out);
    if (w->minus != 0)
        for (int64_t i = 0; i < n; i++)
            out[i] -= w->minus;
}
