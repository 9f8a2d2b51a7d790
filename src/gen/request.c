/* Making and freeing requests. */
#include "gen/request.h"

#include <string.h>

#include "base/mem.h"

static enum tlm_status copy_ids(const int32_t *ids, size_t n, int32_t **out, struct tlm_error *e)
{
    *out = mem_alloc_array(n, sizeof **out);
    if (!*out)
        return err_nomem(e, n * sizeof **out);
    if (n)
        memcpy(*out, ids, n * sizeof **out);
    return TLM_OK;
}

static enum tlm_status fill(struct request *q, const struct tlm_request *r, const struct tlm_tokenizer *tok,
                            const struct sampler_env *env, const int32_t *eos, size_t n_eos, struct tlm_error *e)
{
    q->max_tokens = r->max_tokens;
    q->assumed_depth = r->assumed_depth;
    q->n_prompt = r->n_prompt;
    q->prompt_cache = r->prompt_cache;
    q->save = r->save;
    q->n_eos = r->eos ? r->n_eos : n_eos;
    buf_init(&q->text, (size_t)1 << 22);
    enum tlm_status s = copy_ids(r->prompt, r->n_prompt, &q->prompt, e);
    if (s == TLM_OK)
        s = copy_ids(r->eos ? r->eos : eos, q->n_eos, &q->eos, e);
    if (s == TLM_OK)
        s = stop_init(&q->stop, r->stop, r->n_stop, e);
    if (s == TLM_OK)
        s = sampler_new(&r->sampling, env, &q->sampler, e);
    if (s == TLM_OK)
        s = sampler_reserve(q->sampler, r->n_prompt + 4096, e);
    if (s == TLM_OK)
        s = sampler_accept(q->sampler, r->prompt, r->n_prompt, e);
    if (s == TLM_OK && tok)
        s = tlm_detokenizer_new(tok, TLM_DECODE_SKIP_SPECIAL, &q->detok, e);
    if (s == TLM_OK && r->n_stop && !tok)
        s = err_set(e, TLM_EINVAL, "stop texts need a tokenizer, which this model has not");
    return s;
}

enum tlm_status request_new(const struct tlm_request *r, const struct tlm_tokenizer *tok, const struct sampler_env *env,
                            const int32_t *eos, size_t n_eos, struct request **out, struct tlm_error *e)
{
    *out = NULL;
    struct request *q = mem_new(sizeof *q);
    if (!q)
        return err_nomem(e, sizeof *q);
    enum tlm_status s = fill(q, r, tok, env, eos, n_eos, e);
    if (s != TLM_OK) {
        request_free(q);
        return s;
    }
    *out = q;
    return TLM_OK;
}

void request_free(struct request *q)
{
    if (!q)
        return;
    kv_seq_free(q->seq);
    sampler_free(q->sampler);
    tlm_detokenizer_free(q->detok);
    stop_deinit(&q->stop);
    buf_deinit(&q->text);
    mem_free(q->prompt);
    mem_free(q->eos);
    mem_free(q);
}

bool request_is_eos(const struct request *q, int32_t token)
{
    for (size_t i = 0; i < q->n_eos; i++)
        if (q->eos[i] == token)
            return true;
    return false;
}
