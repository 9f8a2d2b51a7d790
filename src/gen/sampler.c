/* The sampler of one request: settings, history, stream, and the order of
 * steps (turbolm/engine.h). Penalty windows cover the last n tokens of prompt
 * and output together; logit biases of one token add up. */
#include "gen/sampler.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "gen/rng.h"
#include "gen/sampler_parts.h"

struct sampler {
    struct tlm_sampling set;
    size_t vocab_size;
    struct rng rng;
    int keeps_history;
    int32_t *history;
    size_t n_history, cap_history;
    uint8_t *seen; /* one bit per id; all zero between steps */
    uint8_t *keep; /* one bit per id: never removed by XTC */
    float *sum;    /* the memory of sort[0] too */
    uint32_t *sort;
    int32_t *id;
};

void tlm_sampling_default(struct tlm_sampling *s)
{
    *s = (struct tlm_sampling){
        .top_p = 1,
        .min_tokens_to_keep = 1,
        .xtc_threshold = 0.1f,
        .repetition_context = 20,
        .presence_context = 20,
        .frequency_context = 20,
    };
}

static int top_p_on(const struct tlm_sampling *s)
{
    return s->top_p > 0 && s->top_p < 1;
}

static int repetition_on(const struct tlm_sampling *s)
{
    return s->repetition_penalty > 0 && s->repetition_penalty != 1;
}

static enum tlm_status check_filters(const struct tlm_sampling *s, size_t vocab_size, struct tlm_error *e)
{
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return err_set(e, TLM_EINVAL, "`temperature` has to be a non-negative float, but is %g",
                       (double)s->temperature);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return err_set(e, TLM_EINVAL, "`top_p` has to be a float in the [0, 1] interval, but is %g", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return err_set(e, TLM_EINVAL, "`min_p` has to be a float in the [0, 1] interval, but is %g", (double)s->min_p);
    if (s->min_tokens_to_keep < 1)
        return err_set(e, TLM_EINVAL, "`min_tokens_to_keep` has to be a positive integer, but is %d",
                       s->min_tokens_to_keep);
    if (vocab_size && (size_t)s->min_tokens_to_keep > vocab_size)
        return err_set(e, TLM_EINVAL, "`min_tokens_to_keep` has to be at most the vocabulary size %zu, but is %d",
                       vocab_size, s->min_tokens_to_keep);
    if (s->top_k < 0 && !vocab_size)
        return err_set(e, TLM_EINVAL, "`top_k` has to be a non-negative integer, but is %d.", s->top_k);
    if (s->top_k < 0 || (vocab_size && (size_t)s->top_k >= vocab_size))
        return err_set(e, TLM_EINVAL, "`top_k` has to be an integer in the (0, %zu) interval, but is %d.", vocab_size,
                       s->top_k);
    if (!(s->xtc_threshold >= 0 && s->xtc_threshold <= 0.5f))
        return err_set(e, TLM_EINVAL, "`threshold` has to be a float in the [0, 0.5] interval, but is %g",
                       (double)s->xtc_threshold);
    if (!(s->xtc_probability >= 0 && s->xtc_probability <= 1))
        return err_set(e, TLM_EINVAL, "`probability` has to be a float in the [0, 1] interval, but is %g",
                       (double)s->xtc_probability);
    return TLM_OK;
}

static enum tlm_status check_penalties(const struct tlm_sampling *s, struct tlm_error *e)
{
    if (!(s->repetition_penalty >= 0) || !isfinite(s->repetition_penalty))
        return err_set(e, TLM_EINVAL, "penalty must be a non-negative float, got %g", (double)s->repetition_penalty);
    const struct {
        const char *name;
        float penalty;
        int context;
    } kinds[] = {
        {"repetition", s->repetition_penalty, s->repetition_context},
        {"presence", s->presence_penalty, s->presence_context},
        {"frequency", s->frequency_penalty, s->frequency_context},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!isfinite(kinds[i].penalty))
            return err_set(e, TLM_EINVAL, "`%s_penalty` has to be a finite float, but is %g", kinds[i].name,
                           (double)kinds[i].penalty);
        if (kinds[i].context < 0)
            return err_set(e, TLM_EINVAL, "`%s_context_size` has to be a non-negative integer, but is %d",
                           kinds[i].name, kinds[i].context);
    }
    return TLM_OK;
}

enum tlm_status tlm_sampling_check(const struct tlm_sampling *s, size_t vocab_size, struct tlm_error *e)
{
    enum tlm_status st = check_filters(s, vocab_size, e);
    if (st == TLM_OK)
        st = check_penalties(s, e);
    if (st != TLM_OK)
        return st;
    if (s->n_logit_bias && !s->logit_bias)
        return err_set(e, TLM_EINVAL, "`logit_bias` has %zu entries but no array", s->n_logit_bias);
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        const struct tlm_logit_bias *b = &s->logit_bias[i];
        if (b->token < 0 || (vocab_size && (size_t)b->token >= vocab_size))
            return err_set(e, TLM_EINVAL, "`logit_bias` names token %d, which is not in the vocabulary of %zu",
                           b->token, vocab_size);
        if (!(b->bias < INFINITY)) /* -infinity bans a token */
            return err_set(e, TLM_EINVAL, "`logit_bias` of token %d has to be a finite float or -inf, but is %g",
                           b->token, (double)b->bias);
    }
    return TLM_OK;
}

static void warn_inert(const struct tlm_sampling *s)
{
    const struct {
        int on;
        const char *name;
    } filters[] = {{top_p_on(s), "top_p"},
                   {s->min_p > 0, "min_p"},
                   {s->xtc_probability > 0, "xtc_probability"},
                   {s->top_k > 0, "top_k"}};
    char names[64] = "";
    size_t used = 0, n = 0;
    if (s->temperature > 0)
        return;
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (filters[i].on)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", n++ ? ", " : "", filters[i].name);
    if (n)
        log_warn("%s %s no effect at temperature 0", names, n > 1 ? "have" : "has");
}

/* Time and an address: requests of the same instant still differ. */
static uint64_t seed_from_clock(const void *unique)
{
    struct timespec t;
    uint64_t x = (uintptr_t)unique;
    if (clock_gettime(CLOCK_REALTIME, &t) == 0)
        x += (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

static void set_bit(uint8_t *bits, int32_t id)
{
    bits[id >> 3] |= (uint8_t)(1u << (id & 7));
}

static int get_bit(const uint8_t *bits, int32_t id)
{
    return bits[id >> 3] >> (id & 7) & 1;
}

/* One array if `wanted`, else nothing and success. */
static int scratch(void *slot, int wanted, size_t count, size_t size)
{
    void *p = wanted ? mem_new_array(count, size) : NULL;
    memcpy(slot, &p, sizeof p);
    return p || !wanted;
}

static int allocate_scratch(struct sampler *n)
{
    const struct tlm_sampling *s = &n->set;
    const size_t v = n->vocab_size, bytes = v / 8 + 1;
    const int draws = s->temperature > 0, top_p = draws && top_p_on(s), xtc = draws && s->xtc_probability > 0;
    const int filters = top_p || xtc || (draws && (s->min_p > 0 || s->top_k > 0));
    return scratch(&n->seen, repetition_on(s) || s->presence_penalty != 0, bytes, 1) &&
           scratch(&n->keep, xtc, bytes, 1) && scratch(&n->sum, draws, v, sizeof *n->sum) &&
           scratch(&n->sort, top_p, v, sizeof *n->sort) && scratch(&n->id, filters, v, sizeof *n->id);
}

enum tlm_status sampler_new(const struct tlm_sampling *s, const struct sampler_env *env, struct sampler **out,
                            struct tlm_error *e)
{
    *out = NULL;
    if (!env->vocab_size || env->vocab_size > INT32_MAX)
        return err_set(e, TLM_EINVAL, "vocabulary size is %zu; expected 1..%d", env->vocab_size, INT32_MAX);
    enum tlm_status st = tlm_sampling_check(s, env->vocab_size, e);
    if (st != TLM_OK)
        return st;
    struct sampler *n = mem_new(sizeof *n);
    if (!n)
        return err_nomem(e, sizeof *n);
    n->set = *s;
    n->vocab_size = env->vocab_size;
    n->keeps_history = repetition_on(s) || s->presence_penalty != 0 || s->frequency_penalty != 0;
    struct tlm_logit_bias *bias = NULL;
    if (s->n_logit_bias)
        bias = mem_alloc_array(s->n_logit_bias, sizeof *bias);
    n->set.logit_bias = bias;
    if (!allocate_scratch(n) || (s->n_logit_bias && !bias)) {
        sampler_free(n);
        return err_nomem(e, env->vocab_size * sizeof(float));
    }
    if (bias)
        memcpy(bias, s->logit_bias, s->n_logit_bias * sizeof *bias);
    /* A tokenizer may know ids that the model has no logit for. */
    for (size_t i = 0; n->keep && i < env->n_keep; i++)
        if (env->keep[i] >= 0 && (size_t)env->keep[i] < env->vocab_size)
            set_bit(n->keep, env->keep[i]);
    rng_seed(&n->rng, s->has_seed ? s->seed : seed_from_clock(n));
    warn_inert(s);
    *out = n;
    return TLM_OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    union {
        const struct tlm_logit_bias *borrowed;
        void *owned;
    } bias = {.borrowed = s->set.logit_bias};
    mem_free(bias.owned);
    mem_free(s->history);
    mem_free(s->seen);
    mem_free(s->keep);
    mem_free(s->sum);
    mem_free(s->sort);
    mem_free(s->id);
    mem_free(s);
}

enum tlm_status sampler_reserve(struct sampler *s, size_t n_tokens, struct tlm_error *e)
{
    if (!s->keeps_history || n_tokens <= s->cap_history - s->n_history)
        return TLM_OK;
    if (n_tokens > SIZE_MAX / sizeof *s->history - s->n_history)
        return err_set(e, TLM_ELIMIT, "history of %zu tokens is too long", n_tokens);
    size_t cap = s->n_history + n_tokens;
    int32_t *p = mem_realloc_array(s->history, cap, sizeof *p);
    if (!p)
        return err_nomem(e, cap * sizeof *p);
    s->history = p;
    s->cap_history = cap;
    return TLM_OK;
}

enum tlm_status sampler_accept(struct sampler *s, const int32_t *ids, size_t n, struct tlm_error *e)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= s->vocab_size)
            return err_set(e, TLM_EINVAL, "token %d is not in the vocabulary of %zu", ids[i], s->vocab_size);
    if (!s->keeps_history || !n)
        return TLM_OK;
    if (n > s->cap_history - s->n_history) {
        size_t more = s->cap_history / 2 > n ? s->cap_history / 2 : n; /* geometric for callers that do not reserve */
        enum tlm_status st = sampler_reserve(s, more, e);
        if (st != TLM_OK)
            return st;
    }
    memcpy(s->history + s->n_history, ids, n * sizeof *ids);
    s->n_history += n;
    return TLM_OK;
}

static const int32_t *window(const struct sampler *s, int context, const int32_t **end)
{
    size_t n = s->n_history;
    if (context && (size_t)context < n)
        n = (size_t)context;
    *end = s->history ? s->history + s->n_history : NULL;
    return s->history ? *end - n : NULL;
}

static void penalise_repetition(struct sampler *s, float *logits)
{
    const int32_t *end, *begin = window(s, s->set.repetition_context, &end);
    const float p = s->set.repetition_penalty;
    for (const int32_t *t = begin; t < end; t++) {
        if (get_bit(s->seen, *t))
            continue;
        set_bit(s->seen, *t);
        logits[*t] = logits[*t] < 0 ? logits[*t] * p : logits[*t] / p;
    }
    for (const int32_t *t = begin; t < end; t++)
        s->seen[*t >> 3] = 0;
}

static void penalise_presence(struct sampler *s, float *logits)
{
    const int32_t *end, *begin = window(s, s->set.presence_context, &end);
    for (const int32_t *t = begin; t < end; t++) {
        if (get_bit(s->seen, *t))
            continue;
        set_bit(s->seen, *t);
        logits[*t] -= s->set.presence_penalty;
    }
    for (const int32_t *t = begin; t < end; t++)
        s->seen[*t >> 3] = 0;
}

static void adjust_logits(struct sampler *s, float *logits)
{
    const struct tlm_sampling *set = &s->set;
    for (size_t i = 0; i < set->n_logit_bias; i++)
        logits[set->logit_bias[i].token] += set->logit_bias[i].bias;
    if (repetition_on(set))
        penalise_repetition(s, logits);
    if (set->presence_penalty != 0)
        penalise_presence(s, logits);
    if (set->frequency_penalty != 0) {
        const int32_t *end, *begin = window(s, set->frequency_context, &end);
        for (const int32_t *t = begin; t < end; t++)
            logits[*t] -= set->frequency_penalty;
    }
}

static void apply_filters(struct sampler *s, struct sampler_row *r)
{
    const struct tlm_sampling *set = &s->set;
    for (size_t i = 0; i < r->n; i++)
        r->id[i] = (int32_t)i;
    if (top_p_on(set))
        filter_top_p(r, set->top_p);
    if (set->min_p > 0)
        filter_min_p(r, set->min_p, (size_t)set->min_tokens_to_keep);
    /* The stream advances whether or not XTC applies this time. */
    if (set->xtc_probability > 0 && rng_uniform(&s->rng) <= set->xtc_probability)
        filter_xtc(r, set->xtc_threshold, s->keep);
    if (set->top_k > 0)
        filter_top_k(r, (size_t)set->top_k);
}

enum tlm_status sampler_draw(struct sampler *s, float *logits, int32_t *token, float *logprob, struct tlm_error *e)
{
    const size_t v = s->vocab_size;
    adjust_logits(s, logits);
    size_t bad;
    const float max = row_max(logits, v, &bad);
    if (bad < v)
        return err_set(e, TLM_EFORMAT, "logit of token %zu is %g; expected a finite number or -inf", bad,
                       (double)logits[bad]);
    if (!isfinite(max))
        return err_set(e, TLM_EFORMAT, "no token can be sampled: all %zu logits are -inf", v);
    const float lse = row_logsumexp(logits, v, max);
    size_t best = 0;
    if (s->set.temperature == 0) { /* compared after the subtraction, whose rounding can make ties */
        while (logits[best] - lse != max - lse)
            best++;
        *token = (int32_t)best;
        *logprob = max - lse;
        return TLM_OK;
    }
    for (size_t i = 0; i < v; i++)
        logits[i] -= lse;
    struct sampler_row r = {.n = v, .x = logits, .id = s->id, .sum = s->sum};
    if (s->sort) {
        void *shared = s->sum;
        r.sort[0] = shared;
        r.sort[1] = s->sort;
    }
    if (s->id)
        apply_filters(s, &r);
    size_t at = row_draw(&r, (float)(1.0 / (double)s->set.temperature), rng_uniform(&s->rng));
    *token = s->id ? r.id[at] : (int32_t)at;
    *logprob = r.x[at];
    return TLM_OK;
}
