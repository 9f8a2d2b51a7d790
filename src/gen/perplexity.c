/* Perplexity of rows of text, scored through the cache, and what other cache
 * formats, or another model, make of the same rows.
 *
 * Rows of a batch go forward together in passes of a few positions, so that
 * the logits of one pass fit in memory. In each pass the reference comes first;
 * then the formats are computed one after the other in the same memory and
 * scored against it. Figures are summed row by row in the order of positions,
 * and rows in their order, so how the work is cut changes no bit of them. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <turbolm/eval.h>

#include "base/mem.h"
#include "models/model.h"

/* Logits of one pass, floats; tokens of a pass unless the caller says. */
enum { PASS_LOGITS = 1 << 24, PASS_TOKENS = 2048, PASS_TOKENS_MAX = 1 << 20, LANES = 16 };

/* One cache and the sequences of a batch. */
struct side {
    struct cache_plan plan;
    struct kv_cache *kv;  /* NULL: a format that the reference computes */
    struct kv_seq **seqs; /* [batch] */
    uint64_t cache_bytes;
};

/* Of one row of one format, over its scored positions. */
struct row_sum {
    double loss, loss2, more, more2, r_loss, r_loss2; /* more: than the reference's, r_loss */
    double kl, same, error;
    float distance;
};

struct run {
    struct tlm_model *m, *ref; /* ref: the reference's model, m unless two are compared */
    bool compares;             /* there is a reference, even if o names no format for it */
    size_t vocab, vocab_most;  /* what both models have, the greater one's */
    const struct tlm_perplexity_options *o;
    const int32_t *ids;
    size_t rows, from, batch, pass_tokens, done;
    struct ctx ctx[2]; /* formats, reference */
    struct side *side; /* [n_formats], then the reference */
    size_t n_formats, n_sides;
    int32_t *pass_ids, *out_rows, *targets; /* of a pass */
    struct kv_span *spans;
    struct row_score *scores; /* of a pass */
    struct row_sum *sums;     /* [n_formats, rows] */
    float *kl;                /* [n_formats, rows, scored positions]; NULL without a reference */
};

static bool same_format(const struct kv_format *a, const struct kv_format *b)
{
    return a->kind == b->kind && a->bits == b->bits && a->group == b->group && a->scalar == b->scalar &&
           a->qjl == b->qjl && a->pre == b->pre && a->mix == b->mix && a->centred == b->centred &&
           a->orthogonal == b->orthogonal;
}

static struct tlm_model *side_model(const struct run *r, size_t i)
{
    return i == r->n_formats ? r->ref : r->m;
}

static bool same_plan(const struct run *r, const struct cache_plan *a, const struct cache_plan *b)
{
    bool same = r->m == r->ref && a->type == b->type;
    for (int64_t i = 0; i < model_base(r->m)->cfg.layers && same; i++)
        same = same_format(&a->kv[i].key, &b->kv[i].key) && same_format(&a->kv[i].value, &b->kv[i].value) &&
               a->kv[i].automatic == b->kv[i].automatic;
    return same;
}

/* spec NULL: the model's own cache. */
static enum tlm_status plan(const struct tlm_model *m, const char *spec, struct cache_plan *out, struct tlm_error *e)
{
    struct tlm_model_options o = {.kv_format = spec};
    size_t layers = (size_t)model_base(m)->cfg.layers;
    if (spec) {
        enum tlm_status st = model_plan_cache(m, &o, out, e);
        out->config = m->cache.config;
        return st == TLM_OK ? model_resolve_cache(m, out, e) : st;
    }
    *out = m->cache;
    if (!(out->kv = mem_new_array(layers, sizeof *out->kv)))
        return err_nomem(e, layers * sizeof *out->kv);
    memcpy(out->kv, m->cache.kv, layers * sizeof *out->kv);
    return TLM_OK;
}

static enum tlm_status side_init(struct run *r, size_t i, struct tlm_error *e)
{
    struct side *s = &r->side[i];
    if (r->compares && i < r->n_formats && same_plan(r, &s->plan, &r->side[r->n_formats].plan))
        return TLM_OK;
    enum tlm_status st = model_cache_new(side_model(r, i), &s->plan, 0, &s->kv, e);
    if (st == TLM_OK && !(s->seqs = mem_new_array(r->batch, sizeof *s->seqs)))
        st = err_nomem(e, r->batch * sizeof *s->seqs);
    return st;
}

static enum tlm_status sides_init(struct run *r, struct tlm_error *e)
{
    r->n_formats = r->o->n_formats ? r->o->n_formats : 1;
    r->side = mem_new_array(r->n_formats + 1, sizeof *r->side);
    if (!r->side)
        return err_nomem(e, (r->n_formats + 1) * sizeof *r->side);
    r->n_sides = r->n_formats + r->compares;
    enum tlm_status st = TLM_OK;
    for (size_t i = 0; i < r->n_sides && st == TLM_OK; i++) {
        const char *spec = i == r->n_formats ? r->o->reference : r->o->n_formats ? r->o->formats[i] : NULL;
        st = plan(side_model(r, i), spec, &r->side[i].plan, e);
    }
    for (size_t i = 0; i < r->n_sides && st == TLM_OK; i++)
        st = side_init(r, i, e);
    for (int i = 0; i < 2 && st == TLM_OK; i++) {
        struct tlm_model *m = i ? r->ref : r->m;
        st = ctx_init(&r->ctx[i], m->be, e);
        r->ctx[i].abort = &m->abort;
    }
    return st;
}

static void side_end_batch(struct run *r, struct side *s)
{
    for (size_t i = 0; s->seqs && i < r->batch; i++) {
        kv_seq_free(s->seqs[i]);
        s->seqs[i] = NULL;
    }
}

static void run_deinit(struct run *r)
{
    for (size_t i = 0; i < r->n_sides; i++) {
        struct side *s = &r->side[i];
        side_end_batch(r, s);
        mem_free(s->seqs);
        kv_cache_free(s->kv);
        model_plan_free(&s->plan);
    }
    for (int i = 0; i < 2; i++)
        ctx_deinit(&r->ctx[i]);
    mem_free(r->side);
    mem_free(r->pass_ids);
    mem_free(r->out_rows);
    mem_free(r->targets);
    mem_free(r->spans);
    mem_free(r->scores);
    mem_free(r->sums);
    mem_free(r->kl);
}

static enum tlm_status report(struct run *r, struct tlm_error *e)
{
    if (r->o->report && r->o->report(r->o->user, r->done, r->rows))
        return err_set(e, TLM_ECANCELED, "interrupted");
    return TLM_OK;
}

/* What a pass computes. */
struct place {
    size_t row, n, at, take; /* positions at .. at + take of rows row .. row + n */
};

/* Rows of n logits to rows of their first k. */
static void narrow(float *x, size_t rows, size_t n, size_t k)
{
    for (size_t i = 1; i < rows && k < n; i++)
        memmove(x + i * k, x + i * n, k * sizeof *x);
}

/* A model with weights that are no numbers predicts nothing, and its figures would only look like some. */
static enum tlm_status check_logits(const struct tlm_model *m, const float *x, size_t n, size_t vocab,
                                    struct tlm_error *e)
{
    bool bad = false;
    for (size_t i = 0; i < n; i++)
        bad |= !(x[i] <= FLT_MAX); /* no way out, so that compilers make vectors of it */
    for (size_t i = 0; i < n && bad; i++)
        if (!(x[i] <= FLT_MAX))
            return err_set(e, TLM_EFORMAT, "%s: logit of token %zu is %g; expected a finite number or -inf",
                           m->ck->path, i % vocab, (double)x[i]);
    return TLM_OK;
}

/* One pass of a side: logits [n_out, r->vocab] of the positions that are scored. */
static enum tlm_status forward(struct run *r, size_t side, const struct place *p, size_t n_out, const float **logits,
                               struct tlm_error *e)
{
    struct side *s = &r->side[side];
    struct ctx *c = &r->ctx[side == r->n_formats];
    const struct tlm_model *m = side_model(r, side);
    for (size_t i = 0; i < p->n; i++)
        r->spans[i] = (struct kv_span){s->seqs[i], (int64_t)(i * p->take), (int64_t)p->take};
    float *x = model_forward(m, c, s->kv, r->pass_ids, r->spans, (int)p->n, r->out_rows, (int64_t)n_out);
    if (!x)
        return err_set(e, c->err.status, "%s", c->err.message);
    narrow(x, n_out, (size_t)model_base(m)->cfg.vocab_size, r->vocab);
    *logits = x;
    enum tlm_status st = check_logits(m, x, n_out * r->vocab, r->vocab, e);
    return st == TLM_OK ? report(r, e) : st;
}

/* Mean and greatest |x - y|. */
static void compare_logits(const float *x, const float *y, size_t n, double *mean, float *most)
{
    double sum = 0;
    float far[LANES] = {0};
    for (size_t i = 0; i < n;) {
        float part[LANES] = {0};
        size_t end = n - i > 4096 ? i + 4096 : n;
        for (; i + LANES <= end; i += LANES)
            for (size_t j = 0; j < LANES; j++) {
                float d = fabsf(x[i + j] - y[i + j]);
                part[j] += d;
                far[j] = d > far[j] ? d : far[j];
            }
        for (size_t j = 0; i < end; i++, j++) {
            float d = fabsf(x[i] - y[i]);
            part[j] += d;
            far[j] = d > far[j] ? d : far[j];
        }
        for (size_t j = 0; j < LANES; j++)
            sum += (double)part[j];
    }
    *mean = sum / (double)n;
    *most = 0;
    for (size_t j = 0; j < LANES; j++)
        *most = far[j] > *most ? far[j] : *most;
}

static bool is_scored(const struct run *r, size_t at)
{
    return at + 1 >= r->from && at + 1 < r->o->row_length;
}

/* Adds what the logits x of one format say, those of the reference being y. */
static void add_scores(struct run *r, size_t format, const struct place *p, const float *x, const float *y,
                       size_t n_out)
{
    const size_t vocab = r->vocab, scored = r->o->row_length - r->from;
    r->m->be->ops->score(r->m->be, x, y, r->targets, (int64_t)n_out, (int64_t)vocab, r->scores);
    size_t k = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t row = p->row + i;
        struct row_sum *sum = &r->sums[format * r->rows + row];
        for (size_t at = p->at; at < p->at + p->take; at++) {
            if (!is_scored(r, at))
                continue;
            const struct row_score *s = &r->scores[k];
            sum->loss += s->loss;
            sum->loss2 += s->loss * s->loss;
            if (y) {
                double more = s->loss - s->r_loss, mean;
                float most;
                compare_logits(x + k * vocab, y + k * vocab, vocab, &mean, &most);
                sum->more += more;
                sum->more2 += more * more;
                sum->r_loss += s->r_loss;
                sum->r_loss2 += s->r_loss * s->r_loss;
                sum->kl += s->kl;
                sum->same += s->same;
                sum->error += mean;
                sum->distance = most > sum->distance ? most : sum->distance;
                r->kl[(format * r->rows + row) * scored + (at + 1 - r->from)] = (float)s->kl;
            }
            k++;
        }
    }
}

static enum tlm_status pass(struct run *r, const struct place *p, struct tlm_error *e)
{
    const size_t length = r->o->row_length;
    size_t n_out = 0;
    for (size_t i = 0; i < p->n; i++)
        for (size_t k = 0; k < p->take; k++) {
            const int32_t *ids = r->ids + (p->row + i) * length + p->at;
            r->pass_ids[i * p->take + k] = ids[k];
            if (!is_scored(r, p->at + k))
                continue;
            r->targets[n_out] = ids[k + 1];
            r->out_rows[n_out++] = (int32_t)(i * p->take + k);
        }
    const float *y = NULL;
    enum tlm_status st = TLM_OK;
    if (r->compares)
        st = forward(r, r->n_formats, p, n_out, &y, e);
    for (size_t f = 0; f < r->n_formats && st == TLM_OK; f++) {
        const float *x = y;
        if (r->side[f].kv)
            st = forward(r, f, p, n_out, &x, e);
        if (st == TLM_OK && n_out)
            add_scores(r, f, p, x, y, n_out);
    }
    return st;
}

/* Positions that the next pass may take of each of n rows, from `at` on. */
static size_t most_positions(const struct run *r, size_t n, size_t at)
{
    size_t vocab = r->vocab_most, most = r->pass_tokens;
    bool scored = at + 1 >= r->from;
    if (scored && most > PASS_LOGITS / vocab)
        most = PASS_LOGITS / vocab;
    most = most > n ? most / n : 1;
    if (!scored && most > r->from - 1 - at)
        most = r->from - 1 - at;
    if (most > r->o->row_length - at)
        most = r->o->row_length - at;
    for (size_t s = 0; s < r->n_sides; s++) {
        int64_t rows = r->side[s].kv ? kv_seq_most_rows(r->side[s].seqs[0]) : INT64_MAX;
        most = rows < (int64_t)most ? (size_t)rows : most;
    }
    return most;
}

static enum tlm_status run_batch(struct run *r, size_t row, size_t n, struct tlm_error *e)
{
    enum tlm_status st = TLM_OK;
    for (size_t s = 0; s < r->n_sides; s++)
        for (size_t i = 0; r->side[s].kv && i < n && st == TLM_OK; i++)
            st = kv_seq_new(r->side[s].kv, &r->side[s].seqs[i], e);
    struct place p = {.row = row, .n = n};
    for (; p.at < r->o->row_length && st == TLM_OK; p.at += p.take) {
        p.take = most_positions(r, n, p.at);
        st = pass(r, &p, e);
    }
    for (size_t s = 0; s < r->n_sides; s++) {
        if (r->side[s].kv && st == TLM_OK)
            r->side[s].cache_bytes = kv_cache_used(r->side[s].kv) / n;
        side_end_batch(r, &r->side[s]);
    }
    return st;
}

static enum tlm_status run_all(struct run *r, struct tlm_error *e)
{
    size_t length = r->o->row_length, vocab = r->vocab_most;
    size_t tokens = r->batch * length < r->pass_tokens ? r->batch * length : r->pass_tokens;
    size_t scores = PASS_LOGITS / vocab > r->batch ? PASS_LOGITS / vocab : r->batch;
    scores = scores < tokens ? scores : tokens;
    enum tlm_status st = sides_init(r, e);
    if (st != TLM_OK)
        return st;
    r->pass_ids = mem_alloc_array(tokens, sizeof *r->pass_ids);
    r->out_rows = mem_alloc_array(scores, sizeof *r->out_rows);
    r->targets = mem_alloc_array(scores, sizeof *r->targets);
    r->scores = mem_alloc_array(scores, sizeof *r->scores);
    r->spans = mem_alloc_array(r->batch, sizeof *r->spans);
    r->sums = mem_new_array(r->n_formats * r->rows, sizeof *r->sums);
    size_t n_kl = r->compares ? r->n_formats * r->rows * (length - r->from) : 0;
    if (n_kl)
        r->kl = mem_alloc_array(n_kl, sizeof *r->kl);
    if (!r->pass_ids || !r->out_rows || !r->targets || !r->scores || !r->spans || !r->sums || (n_kl && !r->kl))
        return err_nomem(e, n_kl * sizeof *r->kl + r->n_formats * r->rows * sizeof *r->sums);
    for (size_t row = 0; row < r->rows && st == TLM_OK; row = r->done) {
        size_t n = r->rows - row < r->batch ? r->rows - row : r->batch;
        st = run_batch(r, row, n, e);
        r->done = row + n;
        if (st == TLM_OK)
            st = report(r, e);
    }
    return st;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* exp of the mean of v, and the standard error of that. */
static void geometric(double sum, double squares, double n, double *mean, double *error)
{
    double variance = n > 1 ? (squares - sum * sum / n) / (n - 1) : 0;
    *mean = exp(sum / n);
    *error = *mean * sqrt(variance < 0 ? 0 : variance / n);
}

/* Rounding may leave a divergence of nothing a little below 0. */
static double at_least_0(double x)
{
    return x < 0 ? 0 : x;
}

static struct row_sum sum_rows(const struct run *r, size_t format)
{
    struct row_sum all = {0};
    for (size_t i = 0; i < r->rows; i++) {
        const struct row_sum *sum = &r->sums[format * r->rows + i];
        all.loss += sum->loss;
        all.loss2 += sum->loss2;
        all.more += sum->more;
        all.more2 += sum->more2;
        all.r_loss += sum->r_loss;
        all.r_loss2 += sum->r_loss2;
        all.kl += sum->kl;
        all.same += sum->same;
        all.error += sum->error;
        all.distance = sum->distance > all.distance ? sum->distance : all.distance;
    }
    return all;
}

static void describe(const struct run *r, size_t side, struct tlm_perplexity *out)
{
    const struct side *s = &r->side[side];
    *out = (struct tlm_perplexity){.tokens = r->rows * (r->o->row_length - r->from), .kv_bits = s->plan.bits};
    out->cache_bytes = s->kv ? s->cache_bytes : r->side[r->n_formats].cache_bytes;
    kv_choice_name(&s->plan.kv[0], out->kv_format);
}

static void summarise(struct run *r, size_t format, struct tlm_perplexity *out)
{
    struct row_sum all = sum_rows(r, format);
    describe(r, format, out);
    double n = (double)out->tokens;
    geometric(all.loss, all.loss2, n, &out->perplexity, &out->error);
    if (!r->compares)
        return;
    geometric(all.more, all.more2, n, &out->ratio, &out->ratio_error);
    out->kl_mean = at_least_0(all.kl / n);
    out->top1 = all.same / n;
    out->logit_error = all.error / n;
    out->logit_distance = (double)all.distance;
    float *kl = r->kl + format * out->tokens;
    qsort(kl, out->tokens, sizeof *kl, by_value);
    out->kl_p99 = at_least_0((double)kl[(size_t)(0.99 * (n - 1) + 0.5)]);
}

/* The reference itself: as far from itself as can be. */
static void summarise_reference(struct run *r, struct tlm_perplexity *out)
{
    struct row_sum all = sum_rows(r, 0);
    describe(r, r->n_formats, out);
    geometric(all.r_loss, all.r_loss2, (double)out->tokens, &out->perplexity, &out->error);
    out->ratio = out->top1 = 1;
}

static enum tlm_status check_model(const struct tlm_model *m, struct tlm_error *e)
{
    if (!m->be)
        return err_set(e, TLM_EINVAL, "the model was opened for its description only");
    return m->engines ? err_set(e, TLM_EBUSY, "the model has an engine") : TLM_OK;
}

/* reference: NULL, or the place for the figures of ref. */
static enum tlm_status measure(struct run *r, size_t rows, struct tlm_perplexity *out, struct tlm_perplexity *reference,
                               struct tlm_error *e)
{
    const struct tlm_perplexity_options *o = r->o;
    if (rows == 0 || o->row_length < 2 || rows > SIZE_MAX / 64 / o->row_length)
        return err_set(e, TLM_EINVAL, "%zu rows of %zu tokens: expected at least a row of 2", rows, o->row_length);
    if (o->n_formats > SIZE_MAX / 128 / (rows * o->row_length))
        return err_set(e, TLM_EINVAL, "%zu cache formats are too many", o->n_formats);
    int64_t vocab = model_base(r->m)->cfg.vocab_size, of_ref = model_base(r->ref)->cfg.vocab_size;
    r->vocab = (size_t)(vocab < of_ref ? vocab : of_ref);
    r->vocab_most = (size_t)(vocab < of_ref ? of_ref : vocab);
    for (size_t i = 0; i < rows * o->row_length; i++)
        if (r->ids[i] < 0 || (size_t)r->ids[i] >= r->vocab)
            return err_set(e, TLM_EINVAL, "token %zu: id %d is outside the vocabulary of %zu", i, r->ids[i], r->vocab);
    r->rows = rows;
    r->from = o->score_from ? o->score_from : 1;
    if (r->from >= o->row_length)
        return err_set(e, TLM_EINVAL, "scoring from position %zu: rows have %zu", r->from, o->row_length);
    r->pass_tokens = o->pass_tokens ? o->pass_tokens : PASS_TOKENS;
    r->pass_tokens = r->pass_tokens < PASS_TOKENS_MAX ? r->pass_tokens : PASS_TOKENS_MAX;
    size_t logits = r->vocab_most < PASS_LOGITS ? PASS_LOGITS / r->vocab_most : 1;
    r->batch = o->batch ? o->batch : 8;
    r->batch = r->batch < rows ? r->batch : rows;
    r->batch = r->batch < r->pass_tokens ? r->batch : r->pass_tokens;
    r->batch = r->batch < logits ? r->batch : logits;
    atomic_store(&r->m->abort, 0);
    atomic_store(&r->ref->abort, 0);
    enum tlm_status st = run_all(r, e);
    for (size_t i = 0; i < r->n_formats && st == TLM_OK; i++)
        summarise(r, i, &out[i]);
    if (st == TLM_OK && reference)
        summarise_reference(r, reference);
    run_deinit(r);
    return st;
}

enum tlm_status tlm_model_perplexity(struct tlm_model *m, const int32_t *ids, size_t rows,
                                     const struct tlm_perplexity_options *o, struct tlm_perplexity *out,
                                     struct tlm_error *e)
{
    struct run r = {.m = m, .ref = m, .compares = o->reference != NULL, .o = o, .ids = ids};
    enum tlm_status st = check_model(m, e);
    return st == TLM_OK ? measure(&r, rows, out, NULL, e) : st;
}

enum tlm_status tlm_model_compare(struct tlm_model *a, struct tlm_model *b, const int32_t *ids, size_t rows,
                                  const struct tlm_perplexity_options *o, struct tlm_perplexity *of_a,
                                  struct tlm_perplexity *of_b, struct tlm_error *e)
{
    struct run r = {.m = b, .ref = a, .compares = true, .o = o, .ids = ids};
    enum tlm_status st = check_model(a, e);
    if (st == TLM_OK)
        st = check_model(b, e);
    if (st == TLM_OK && o->n_formats > 1)
        st = err_set(e, TLM_EINVAL, "%zu cache formats of one model: expected at most 1", o->n_formats);
    return st == TLM_OK ? measure(&r, rows, of_b, of_a, e) : st;
}

const char *tlm_kv_preset(size_t i)
{
    static const char *const names[] = {
#define KV_PRESET(name, key, value) name,
#include "kvformat/kv_presets.def"
#undef KV_PRESET
    };
    return i < sizeof names / sizeof names[0] ? names[i] : NULL;
}

enum tlm_status tlm_model_kv_check(const struct tlm_model *m, const char *format, struct tlm_error *e)
{
    struct tlm_model_options o = {.kv_format = format};
    struct cache_plan p;
    enum tlm_status st = model_plan_cache(m, &o, &p, e);
    model_plan_free(&p);
    return st;
}
