/* Perplexity of rows of text, scored through the cache, and what another cache
 * format makes of the same rows.
 *
 * Rows of a batch go forward together in passes of a few positions, so that
 * the logits of one pass fit in memory; the reference's pass comes first. How
 * the rows are cut does not change a bit of the result. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <turbolm/eval.h>

#include "base/mem.h"
#include "models/model.h"

/* Logits of one pass, floats; rows of a pass that wants none. */
enum { PASS_LOGITS = 1 << 24, PASS_ROWS = 2048 };

/* One of the two caches and its sequences. */
struct side {
    struct ctx ctx;
    struct cache_plan plan;
    const struct cache_plan *use;
    struct kv_cache *kv;
    struct kv_seq **seqs; /* [batch] */
};

struct run {
    struct tlm_model *m;
    const struct tlm_perplexity_options *o;
    const int32_t *ids;
    size_t rows, from, batch;
    struct side side[2]; /* this, reference */
    int n_sides;
    int32_t *pass_ids, *out_rows, *targets; /* of a pass */
    struct kv_span *spans;
    struct row_score *scores; /* [rows * (row_length - from)] */
    size_t n_scores;
    uint64_t cache_bytes;
};

static enum tlm_status side_init(struct run *r, struct side *s, struct tlm_error *e)
{
    enum tlm_status st = ctx_init(&s->ctx, r->m->be, e);
    s->use = &r->m->cache;
    if (st == TLM_OK && s == &r->side[1]) {
        struct tlm_model_options o = {.kv_format = r->o->reference};
        st = model_plan_cache(r->m, &o, &s->plan, e);
        s->plan.config.max_tokens = r->m->cache.config.max_tokens;
        s->use = &s->plan;
    }
    if (st == TLM_OK)
        st = model_cache_new(r->m, s->use, 0, &s->kv, e);
    if (st == TLM_OK && !(s->seqs = mem_new_array(r->batch, sizeof *s->seqs)))
        st = err_nomem(e, r->batch * sizeof *s->seqs);
    return st;
}

static void side_deinit(struct run *r, struct side *s)
{
    for (size_t i = 0; s->seqs && i < r->batch; i++)
        kv_seq_free(s->seqs[i]);
    mem_free(s->seqs);
    kv_cache_free(s->kv);
    model_plan_free(&s->plan);
    ctx_deinit(&s->ctx);
}

/* One pass of a side: logits of the rows that are scored, or NULL. */
static const float *forward(struct run *r, struct side *s, size_t n_seqs, size_t take, size_t n_out)
{
    for (size_t i = 0; i < n_seqs; i++)
        r->spans[i] = (struct kv_span){s->seqs[i], (int64_t)(i * take), (int64_t)take};
    return model_forward(r->m, &s->ctx, s->kv, r->pass_ids, r->spans, (int)n_seqs, r->out_rows, (int64_t)n_out);
}

/* Positions at .. at + take of rows row .. row + n. */
static enum tlm_status pass(struct run *r, size_t row, size_t n, size_t at, size_t take, struct tlm_error *e)
{
    const size_t length = r->o->row_length, vocab = (size_t)model_base(r->m)->cfg.vocab_size;
    const float *logits[2] = {NULL, NULL};
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < take; k++) {
            const int32_t *ids = r->ids + (row + i) * length;
            r->pass_ids[i * take + k] = ids[at + k];
            if (at + k + 1 < r->from || at + k + 1 >= length)
                continue;
            r->targets[n_out] = ids[at + k + 1];
            r->out_rows[n_out++] = (int32_t)(i * take + k);
        }
    for (int s = r->n_sides; s-- > 0;) {
        struct ctx *c = &r->side[s].ctx;
        logits[s] = forward(r, &r->side[s], n, take, n_out);
        if (!logits[s])
            return err_set(e, c->err.status, "%s", c->err.message);
    }
    if (n_out)
        r->m->be->ops->score(r->m->be, logits[0], logits[1], r->targets, (int64_t)n_out, (int64_t)vocab,
                             r->scores + r->n_scores);
    r->n_scores += n_out;
    return TLM_OK;
}

static size_t most_rows(const struct run *r, size_t n, size_t at)
{
    size_t vocab = (size_t)model_base(r->m)->cfg.vocab_size, most = PASS_LOGITS / vocab;
    bool scored = at + 1 >= r->from;
    most = (scored ? (most ? most : 1) : PASS_ROWS) / n;
    most = most ? most : 1;
    if (!scored && most > r->from - 1 - at)
        most = r->from - 1 - at;
    for (int s = 0; s < r->n_sides; s++) {
        int64_t rows = kv_seq_most_rows(r->side[s].seqs[0]);
        most = rows < (int64_t)most ? (size_t)rows : most;
    }
    return most;
}

static enum tlm_status run_batch(struct run *r, size_t row, size_t n, struct tlm_error *e)
{
    enum tlm_status st = TLM_OK;
    for (int s = 0; s < r->n_sides; s++)
        for (size_t i = 0; i < n && st == TLM_OK; i++)
            st = kv_seq_new(r->side[s].kv, &r->side[s].seqs[i], e);
    for (size_t at = 0, take; at < r->o->row_length && st == TLM_OK; at += take) {
        size_t left = r->o->row_length - at;
        take = most_rows(r, n, at);
        take = take < left ? take : left;
        st = pass(r, row, n, at, take, e);
    }
    if (st == TLM_OK && r->cache_bytes == 0)
        r->cache_bytes = kv_cache_used(r->side[0].kv);
    for (int s = 0; s < r->n_sides; s++)
        for (size_t i = 0; i < n; i++) {
            kv_seq_free(r->side[s].seqs[i]);
            r->side[s].seqs[i] = NULL;
        }
    return st;
}

static int by_kl(const void *a, const void *b)
{
    double x = ((const struct row_score *)a)->kl, y = ((const struct row_score *)b)->kl;
    return x < y ? -1 : x > y;
}

/* exp of the mean of v, and the standard error of that. */
static void geometric(double sum, double squares, double n, double *mean, double *error)
{
    double variance = n > 1 ? fmax(0, (squares - sum * sum / n) / (n - 1)) : 0;
    *mean = exp(sum / n);
    *error = *mean * sqrt(variance / n);
}

static void summarise(struct run *r, struct tlm_perplexity *out)
{
    double sum[2] = {0}, squares[2] = {0}, kl = 0, same = 0, n = (double)r->n_scores;
    for (size_t i = 0; i < r->n_scores; i++) {
        const struct row_score *s = &r->scores[i];
        double more = s->loss - s->r_loss;
        sum[0] += s->loss;
        squares[0] += s->loss * s->loss;
        sum[1] += more;
        squares[1] += more * more;
        kl += s->kl;
        same += s->same;
    }
    *out = (struct tlm_perplexity){.tokens = r->n_scores, .cache_bytes = r->cache_bytes};
    geometric(sum[0], squares[0], n, &out->perplexity, &out->error);
    if (r->n_sides < 2)
        return;
    geometric(sum[1], squares[1], n, &out->ratio, &out->ratio_error);
    out->kl_mean = kl / n;
    out->top1 = same / n;
    qsort(r->scores, r->n_scores, sizeof *r->scores, by_kl);
    out->kl_p99 = r->scores[(size_t)(0.99 * (n - 1) + 0.5)].kl;
}

static enum tlm_status run_all(struct run *r, struct tlm_error *e)
{
    size_t rows_most = r->batch * r->o->row_length, scored = r->rows * (r->o->row_length - r->from);
    enum tlm_status st = TLM_OK;
    r->pass_ids = mem_alloc_array(rows_most, sizeof *r->pass_ids);
    r->out_rows = mem_alloc_array(rows_most, sizeof *r->out_rows);
    r->targets = mem_alloc_array(rows_most, sizeof *r->targets);
    r->spans = mem_alloc_array(r->batch, sizeof *r->spans);
    r->scores = mem_alloc_array(scored, sizeof *r->scores);
    if (!r->pass_ids || !r->out_rows || !r->targets || !r->spans || !r->scores)
        st = err_nomem(e, scored * sizeof *r->scores);
    r->n_sides = r->o->reference ? 2 : 1;
    for (int s = 0; s < r->n_sides && st == TLM_OK; s++)
        st = side_init(r, &r->side[s], e);
    for (size_t row = 0; row < r->rows && st == TLM_OK; row += r->batch) {
        size_t n = r->rows - row < r->batch ? r->rows - row : r->batch;
        st = run_batch(r, row, n, e);
        if (st == TLM_OK && r->o->report && r->o->report(r->o->user, row + n, r->rows))
            st = err_set(e, TLM_ECANCELED, "interrupted");
    }
    return st;
}

enum tlm_status tlm_model_perplexity(struct tlm_model *m, const int32_t *ids, size_t rows,
                                     const struct tlm_perplexity_options *o, struct tlm_perplexity *out,
                                     struct tlm_error *e)
{
    if (!m->be)
        return err_set(e, TLM_EINVAL, "the model was opened for its description only");
    if (m->engines)
        return err_set(e, TLM_EBUSY, "the model has an engine");
    if (rows == 0 || o->row_length < 2 || rows > SIZE_MAX / 64 / o->row_length)
        return err_set(e, TLM_EINVAL, "%zu rows of %zu tokens: expected at least a row of 2", rows, o->row_length);
    int64_t vocab = model_base(m)->cfg.vocab_size;
    for (size_t i = 0; i < rows * o->row_length; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return err_set(e, TLM_EINVAL, "token %zu: id %d is outside the vocabulary of %lld", i, ids[i],
                           (long long)vocab);
    struct run r = {.m = m, .o = o, .ids = ids, .rows = rows};
    r.from = o->score_from ? o->score_from : 1;
    r.batch = o->batch ? o->batch : 8;
    r.batch = r.batch < rows ? r.batch : rows;
    if (r.from >= o->row_length)
        return err_set(e, TLM_EINVAL, "scoring from position %zu: rows have %zu", r.from, o->row_length);
    enum tlm_status st = run_all(&r, e);
    if (st == TLM_OK)
        summarise(&r, out);
    for (int s = 0; s < r.n_sides; s++)
        side_deinit(&r, &r.side[s]);
    mem_free(r.pass_ids);
    mem_free(r.out_rows);
    mem_free(r.targets);
    mem_free(r.spans);
    mem_free(r.scores);
    return st;
}
