/* Logits of every position of a text: chunks, then single rows. */
#include "base/mem.h"
#include "models/model.h"

/* Logits of one pass are kept below this many floats. */
enum { LOGITS_FLOATS = 1 << 26 };

struct run {
    struct tlm_model *m;
    struct ctx ctx;
    struct kv_cache *kv;
    struct kv_seq *seq;
    int32_t *rows;
    tlm_logits_fn *fn;
    void *user;
};

static enum tlm_status pass(struct run *r, const int32_t *ids, size_t at, size_t n, struct tlm_error *e)
{
    size_t vocab = (size_t)model_base(r->m)->cfg.vocab_size;
    struct kv_span span = {r->seq, 0, (int64_t)n};
    const float *logits = model_forward(r->m, &r->ctx, r->kv, ids + at, &span, 1, r->rows, (int64_t)n);
    if (!logits)
        return err_set(e, r->ctx.err.status, "%s", r->ctx.err.message);
    for (size_t i = 0; i < n; i++) {
        enum tlm_status s = r->fn(r->user, at + i, logits + i * vocab, vocab);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

static enum tlm_status run_all(struct run *r, const int32_t *ids, size_t n, size_t decode_from, size_t step,
                               struct tlm_error *e)
{
    enum tlm_status s = ctx_init(&r->ctx, r->m->be, e);
    r->ctx.abort = &r->m->abort;
    if (s == TLM_OK)
        s = model_cache_new(r->m, &r->m->cache, 0, &r->kv, e);
    if (s == TLM_OK)
        s = kv_seq_new(r->kv, &r->seq, e);
    if (s == TLM_OK && !(r->rows = mem_alloc_array(step, sizeof *r->rows)))
        s = err_nomem(e, step * sizeof *r->rows);
    for (size_t i = 0; i < step && s == TLM_OK; i++)
        r->rows[i] = (int32_t)i;
    size_t at = 0;
    while (at < n && s == TLM_OK) {
        size_t left = at < decode_from ? (decode_from < n ? decode_from : n) - at : 1;
        size_t take = left < step ? left : step;
        int64_t most = kv_seq_most_rows(r->seq);
        if (take > (size_t)most)
            take = (size_t)most;
        s = pass(r, ids, at, take, e);
        at += take;
    }
    return s;
}

enum tlm_status tlm_model_logits(struct tlm_model *m, const int32_t *ids, size_t n, size_t decode_from,
                                 size_t prefill_step, tlm_logits_fn *fn, void *user, struct tlm_error *e)
{
    if (!m->be)
        return err_set(e, TLM_EINVAL, "the model was opened for its description only");
    if (m->engines)
        return err_set(e, TLM_EBUSY, "the model has an engine");
    if (n == 0)
        return err_set(e, TLM_EINVAL, "no tokens");
    struct run r = {.m = m, .fn = fn, .user = user};
    atomic_store(&m->abort, 0);
    size_t vocab = (size_t)model_base(m)->cfg.vocab_size;
    size_t step = prefill_step ? prefill_step : 2048, most = LOGITS_FLOATS / vocab;
    if (most < 1)
        most = 1;
    enum tlm_status s = run_all(&r, ids, n, decode_from, step < most ? step : most, e);
    kv_seq_free(r.seq);
    kv_cache_free(r.kv);
    ctx_deinit(&r.ctx);
    mem_free(r.rows);
    return s;
}

void tlm_model_cancel(struct tlm_model *m)
{
    atomic_store(&m->abort, 1);
}
