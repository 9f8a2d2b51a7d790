/* The sampler against token sequences of mlx-lm (data/sampler/cases.inc and its
 * maker), and properties that hold for any settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gen/sampler.h"
#include "gen/sampler_parts.h"

enum { MAX_DRAWS = 24, MAX_IDS = 64 };

struct sampler_case {
    const char *name;
    size_t vocab;
    double scale, grid;
    size_t prompt, draws;
    uint64_t seed;
    float temp, top_p, min_p;
    int min_keep, top_k;
    float xtc_p, xtc_t;
    size_t keep, bias;
    float rep, pres, freq;
    int rep_n, pres_n, freq_n;
    struct {
        int32_t token;
        float logprob;
    } out[MAX_DRAWS];
};

static const struct sampler_case cases[] = {
#include "data/sampler/cases.inc"
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

static uint64_t hash_name(const char *name, const char *part)
{
    uint64_t h = 0xCBF29CE484222325;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001B3;
    for (; *part; part++)
        h = (h ^ (unsigned char)*part) * 0x100000001B3;
    return h;
}

static uint64_t hash_at(uint64_t seed, size_t i)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (z ^ z >> 31) >> 40;
}

static double hash_unit(uint64_t seed, size_t i)
{
    return (double)hash_at(seed, i) * 0x1p-23 - 1;
}

static void fill_row(const struct sampler_case *c, size_t step, float *x)
{
    char part[16];
    snprintf(part, sizeof part, ".%zu", step);
    const uint64_t seed = hash_name(c->name, part);
    for (size_t i = 0; i < c->vocab; i++) {
        double v = c->scale * hash_unit(seed, i);
        x[i] = (float)(c->grid > 0 ? floor(v / c->grid) * c->grid : v);
    }
}

static struct sampler *new_sampler(const struct tlm_sampling *s, size_t vocab)
{
    struct tlm_error e = {0};
    struct sampler *p;
    struct sampler_env env = {.vocab_size = vocab};
    if (sampler_new(s, &env, &p, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return p;
}

static struct sampler *sampler_of_case(const struct sampler_case *c)
{
    struct tlm_logit_bias bias[MAX_IDS];
    int32_t keep[MAX_IDS], prompt[MAX_IDS];
    const size_t bias_at = hash_at(hash_name(c->name, ".bias"), 0), keep_at = hash_at(hash_name(c->name, ".keep"), 0);
    for (size_t i = 0; i < c->bias; i++) {
        bias[i].token = (int32_t)((bias_at % c->vocab + 3 * i) % c->vocab);
        bias[i].bias = (float)(4 * hash_unit(hash_name(c->name, ".value"), i));
    }
    for (size_t i = 0; i < c->keep; i++)
        keep[i] = (int32_t)((keep_at % c->vocab + 3 * i) % c->vocab);
    for (size_t i = 0; i < c->prompt; i++)
        prompt[i] = (int32_t)(hash_at(hash_name(c->name, ".prompt"), i) % c->vocab);
    const struct tlm_sampling s = {
        .temperature = c->temp,
        .top_p = c->top_p,
        .min_p = c->min_p,
        .min_tokens_to_keep = c->min_keep,
        .top_k = c->top_k,
        .xtc_probability = c->xtc_p,
        .xtc_threshold = c->xtc_t,
        .repetition_penalty = c->rep,
        .presence_penalty = c->pres,
        .frequency_penalty = c->freq,
        .repetition_context = c->rep_n,
        .presence_context = c->pres_n,
        .frequency_context = c->freq_n,
        .logit_bias = bias,
        .n_logit_bias = c->bias,
        .has_seed = 1,
        .seed = c->seed,
    };
    const struct sampler_env env = {.vocab_size = c->vocab, .keep = keep, .n_keep = c->keep};
    struct tlm_error e = {0};
    struct sampler *p;
    if (sampler_new(&s, &env, &p, &e) != TLM_OK)
        fail_msg("%s: %s", c->name, e.message);
    assert_int_equal(sampler_accept(p, prompt, c->prompt, &e), TLM_OK);
    return p;
}

static void check_step(const struct sampler_case *c, struct sampler *p, size_t step, float *row)
{
    struct tlm_error e = {0};
    int32_t token;
    float logprob;
    fill_row(c, step, row);
    if (sampler_draw(p, row, &token, &logprob, &e) != TLM_OK)
        fail_msg("%s: %s", c->name, e.message);
    if (token != c->out[step].token)
        fail_msg("%s, step %zu: token %d, expected %d", c->name, step, token, c->out[step].token);
    if (fabsf(logprob - c->out[step].logprob) > 4e-6f)
        fail_msg("%s, step %zu: %.9g, expected %.9g", c->name, step, (double)logprob, (double)c->out[step].logprob);
    assert_int_equal(sampler_accept(p, &token, 1, &e), TLM_OK);
}

static void sequences_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        float *row = mem_alloc_array(cases[i].vocab, sizeof *row);
        assert_non_null(row);
        struct sampler *p = sampler_of_case(&cases[i]);
        for (size_t step = 0; step < cases[i].draws; step++)
            check_step(&cases[i], p, step, row);
        sampler_free(p);
        mem_free(row);
    }
}

/* All the small cases at once, step by step in turn: no sampler sees another. */
static void company_changes_nothing(void **state)
{
    (void)state;
    static struct sampler *p[N_CASES];
    float row[300];
    for (size_t i = 0; i < N_CASES; i++)
        p[i] = cases[i].vocab <= 300 ? sampler_of_case(&cases[i]) : NULL;
    for (size_t step = 0; step < MAX_DRAWS; step++)
        for (size_t i = N_CASES; i-- > 0;)
            if (p[i] && step < cases[i].draws)
                check_step(&cases[i], p[i], step, row);
    for (size_t i = 0; i < N_CASES; i++)
        sampler_free(p[i]);
}

static void exp_is_close(void **state)
{
    (void)state;
    enum { N = 1000 };
    float x[N], e[N];
    for (int i = 0; i < N; i++)
        x[i] = -0.0876f * (float)i;
    x[1] = -1e-8f;
    row_exp(x, N, 1, 0, e);
    assert_true(e[0] == 1);
    for (int i = 0; i < N; i++) /* the argument is scaled in float32, hence the second term */
        assert_true(fabs((double)e[i] / exp((double)x[i]) - 1) < 3e-7 + 1e-7 * fabs((double)x[i]));
    const float low[3] = {-88.1f, -1000, -INFINITY};
    row_exp(low, 3, 1, 0, e);
    for (int i = 0; i < 3; i++)
        assert_true(e[i] == 0);
    assert_true(row_key(-0.0f) == row_key(0.0f) && row_key(-INFINITY) < row_key(-1) && row_key(-1) < row_key(-0.5f) &&
                row_key(-1e-40f) < row_key(0) && row_key(0) < row_key(1e-40f) && row_key(1) < row_key(INFINITY));
}

/* Counts of many draws against the distribution; its log probabilities sum to 1. */
static void frequencies_match(void **state)
{
    (void)state;
    enum { V = 16, N = 40000 };
    static const float logits[V] = {1, -2, 0.5f, 3, -INFINITY, 2.5f, 0, -1, 3, 1.5f, -4, 0.25f, 2, -0.5f, 1, -3};
    struct tlm_sampling s;
    tlm_sampling_default(&s);
    s.temperature = 1.5f;
    s.has_seed = 1;
    struct sampler *p = new_sampler(&s, V);
    int count[V] = {0};
    float logprob[V];
    for (int i = 0; i < N; i++) {
        float row[V], lp;
        int32_t t;
        memcpy(row, logits, sizeof row);
        assert_int_equal(sampler_draw(p, row, &t, &lp, NULL), TLM_OK);
        count[t]++;
        logprob[t] = lp;
    }
    sampler_free(p);
    double sum = 0, total = 0, chi = 0;
    for (int i = 0; i < V; i++)
        total += exp((double)logits[i] / 1.5);
    for (int i = 0; i < V; i++) {
        if (i == 4) {
            assert_int_equal(count[i], 0);
            continue;
        }
        assert_true(count[i] > 0);
        double want = N * exp((double)logits[i] / 1.5) / total;
        chi += (count[i] - want) * (count[i] - want) / want;
        sum += exp((double)logprob[i]);
    }
    assert_true(chi < 36.1); /* 14 degrees of freedom, 0.1% */
    assert_float_equal(sum, 1, 1e-5);
}

/* The ends of the inverse CDF: a token without weight is skipped at 0, and the
 * largest uniform stays inside. */
static void ends_of_the_distribution(void **state)
{
    (void)state;
    float x[5] = {-INFINITY, -1, -2, -1, -INFINITY}, sum[5];
    struct sampler_row r = {.n = 5, .x = x, .sum = sum};
    assert_int_equal(row_draw(&r, 1, 0), 1);
    assert_int_equal(row_draw(&r, 1, 0x1.fffffep-1f), 3);
}

/* Greedy compares log probabilities: here two logits differ and those do not. */
static void greedy_takes_first_of_ties(void **state)
{
    (void)state;
    enum { V = 3000 };
    struct tlm_sampling s;
    tlm_sampling_default(&s);
    struct sampler *p = new_sampler(&s, V);
    float row[V] = {0}, lp;
    int32_t t;
    row[7] = 1;
    row[9] = nextafterf(1, 2);
    assert_int_equal(sampler_draw(p, row, &t, &lp, NULL), TLM_OK);
    assert_int_equal(t, 7);
    sampler_free(p);
}

/* Which tokens come up in many draws from one row. */
static unsigned drawn(const struct tlm_sampling *s, const float *logits, size_t n, const int32_t *keep, size_t n_keep)
{
    struct sampler_env env = {.vocab_size = n, .keep = keep, .n_keep = n_keep};
    struct tlm_error e = {0};
    struct sampler *p;
    unsigned set = 0;
    if (sampler_new(s, &env, &p, &e) != TLM_OK)
        fail_msg("%s", e.message);
    for (int i = 0; i < 3000; i++) {
        float row[32], lp;
        int32_t t;
        memcpy(row, logits, n * sizeof *row);
        assert_int_equal(sampler_draw(p, row, &t, &lp, &e), TLM_OK);
        set |= 1u << t;
    }
    sampler_free(p);
    return set;
}

static void filters_keep_what_they_should(void **state)
{
    (void)state;
    /* probabilities of about .35 .35 .129 .129 .017 .017 .006 .001 */
    static const float x[8] = {3, 3, 2, 2, 0, 0, -1, -3};
    struct tlm_sampling base, s;
    tlm_sampling_default(&base);
    base.temperature = 2;
    base.has_seed = 1;
    assert_int_equal(drawn(&base, x, 8, NULL, 0), 0xff);
    s = base;
    s.top_k = 3; /* ties: the lower id */
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x07);
    s = base;
    s.top_p = 0.75f; /* ties: the higher id */
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x0b);
    s.top_p = 1e-9f;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x02);
    s = base;
    s.min_p = 0.3f;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x0f);
    s.min_tokens_to_keep = 5;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x1f);
    s.min_p = 1;
    s.min_tokens_to_keep = 1;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x03);
    s = base;
    s.xtc_probability = 1;
    s.xtc_threshold = 0.1f;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0xfc);
    const int32_t keep[4] = {0, 7, -1, 900};
    assert_int_equal(drawn(&s, x, 8, keep, 4), 0xfd);
    s.xtc_probability = 0.5f;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0xff);
    s.xtc_probability = 1;
    s.xtc_threshold = 0.4f; /* nothing is above it */
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0xff);
    s = base;
    s.temperature = 1e-42f; /* 1 / temperature overflows */
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x03);
    s.top_k = 1;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x01);
    s = base;
    s.temperature = 0;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x01);
    const struct tlm_logit_bias ban[3] = {{0, -INFINITY}, {2, 1.5f}, {2, 1.5f}}; /* of one token: both */
    s.logit_bias = ban;
    s.n_logit_bias = 3;
    assert_int_equal(drawn(&s, x, 8, NULL, 0), 0x04);
}

/* Selection by pieces of a long row equals a plain sort. */
static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void top_k_of_long_rows(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float x[N], sorted[N], kept[N], sum[N];
    static int32_t id[N];
    for (size_t round = 0; round < 60; round++) {
        const double grid = round % 3 ? 0x1p-3 : 0x1p-20;
        for (size_t i = 0; i < N; i++) {
            x[i] = (float)(floor(4 * hash_unit(round, i) / grid) * grid);
            kept[i] = sorted[i] = round % 4 == 3 && i % 5 ? -INFINITY : x[i];
            id[i] = (int32_t)i;
        }
        memcpy(x, kept, sizeof x);
        qsort(sorted, N, sizeof *sorted, descending);
        const size_t k = 1 + hash_at(99, round) % (round % 2 ? 30 : 3000);
        struct sampler_row r = {.n = N, .x = kept, .id = id, .sum = sum};
        filter_top_k(&r, k);
        assert_int_equal(r.n, k);
        size_t ties = k, at = 0;
        while (ties && sorted[k - ties] > sorted[k - 1])
            ties--;
        for (size_t i = 0; i < N; i++) {
            if (x[i] < sorted[k - 1] || (x[i] == sorted[k - 1] && !ties))
                continue;
            ties -= x[i] == sorted[k - 1];
            assert_true(at < k && id[at] == (int32_t)i && kept[at] == x[i]);
            at++;
        }
    }
}

static void banned_tokens_never_come(void **state)
{
    (void)state;
    enum { V = 200 };
    for (size_t round = 0; round < 400; round++) {
        const uint64_t h = hash_at(7, round);
        struct tlm_sampling s;
        tlm_sampling_default(&s);
        s.has_seed = 1;
        s.seed = round;
        s.temperature = h & 1 ? 3.0f : 0.5f;
        s.top_p = h & 2 ? 0.97f : 1;
        s.min_p = h & 4 ? 0.01f : 0;
        s.min_tokens_to_keep = h & 8 ? 60 : 1;
        s.xtc_probability = h & 16 ? 1 : 0;
        s.xtc_threshold = h & 32 ? 0 : 0.05f;
        s.top_k = h & 64 ? 150 : 0;
        s.repetition_penalty = h & 128 ? 1.3f : 0;
        struct sampler *p = new_sampler(&s, V);
        for (size_t step = 0; step < 10; step++) {
            float row[V], copy[V], lp;
            int32_t t;
            for (size_t i = 0; i < V; i++) {
                row[i] = hash_at(round * 100 + step, i) % 10 ? -INFINITY : 6 * (float)hash_unit(round, i);
                copy[i] = row[i];
            }
            row[step] = copy[step] = 1;
            assert_int_equal(sampler_draw(p, row, &t, &lp, NULL), TLM_OK);
            assert_true(isfinite(copy[t]) && isfinite(lp) && lp <= 1e-5f);
            assert_int_equal(sampler_accept(p, &t, 1, NULL), TLM_OK);
        }
        sampler_free(p);
    }
}

static void broken_rows_are_errors(void **state)
{
    (void)state;
    static const struct {
        float x[3];
        const char *message;
    } rows[] = {
        {{-INFINITY, -INFINITY, -INFINITY}, "no token can be sampled: all 3 logits are -inf"},
        {{1, NAN, 2}, "logit of token 1 is nan; expected a finite number or -inf"},
        {{1, 0, INFINITY}, "logit of token 2 is inf; expected a finite number or -inf"},
    };
    for (int greedy = 0; greedy < 2; greedy++) {
        struct tlm_sampling s;
        tlm_sampling_default(&s);
        s.temperature = greedy ? 0 : 1;
        struct sampler *p = new_sampler(&s, 3);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            struct tlm_error e = {0};
            float row[3], lp;
            int32_t t;
            memcpy(row, rows[i].x, sizeof row);
            assert_int_equal(sampler_draw(p, row, &t, &lp, &e), TLM_EFORMAT);
            assert_string_equal(e.message, rows[i].message);
        }
        struct tlm_error e = {0};
        const int32_t ids[2] = {2, 3};
        assert_int_equal(sampler_accept(p, ids, 2, &e), TLM_EINVAL);
        assert_string_equal(e.message, "token 3 is not in the vocabulary of 3");
        sampler_free(p);
    }
}

static void settings_are_checked(void **state)
{
    (void)state;
    static const struct tlm_logit_bias bias[2] = {{4, NAN}, {10, 0}};
    struct tlm_sampling d;
    tlm_sampling_default(&d);
    assert_int_equal(tlm_sampling_check(&d, 0, NULL), TLM_OK);
    struct {
        struct tlm_sampling s;
        size_t vocab;
        const char *message;
    } bad[24];
    size_t n = 0;
#define BAD(field, value, v, text)                                                                                     \
    (bad[n].s = d, bad[n].s.field = (value), bad[n].vocab = (v), bad[n++].message = (text))
    BAD(temperature, -0.5f, 10, "`temperature` has to be a non-negative float, but is -0.5");
    BAD(temperature, INFINITY, 10, "`temperature` has to be a non-negative float, but is inf");
    BAD(top_p, 1.5f, 10, "`top_p` has to be a float in the [0, 1] interval, but is 1.5");
    BAD(top_p, -1, 10, "`top_p` has to be a float in the [0, 1] interval, but is -1");
    BAD(min_p, 2, 10, "`min_p` has to be a float in the [0, 1] interval, but is 2");
    BAD(min_p, NAN, 10, "`min_p` has to be a float in the [0, 1] interval, but is nan");
    BAD(min_tokens_to_keep, 0, 10, "`min_tokens_to_keep` has to be a positive integer, but is 0");
    BAD(min_tokens_to_keep, 11, 10, "`min_tokens_to_keep` has to be at most the vocabulary size 10, but is 11");
    BAD(top_k, 10, 10, "`top_k` has to be an integer in the (0, 10) interval, but is 10.");
    BAD(top_k, -1, 10, "`top_k` has to be an integer in the (0, 10) interval, but is -1.");
    BAD(top_k, -1, 0, "`top_k` has to be a non-negative integer, but is -1.");
    BAD(xtc_threshold, 0.75f, 10, "`threshold` has to be a float in the [0, 0.5] interval, but is 0.75");
    BAD(xtc_probability, -0.25f, 10, "`probability` has to be a float in the [0, 1] interval, but is -0.25");
    BAD(repetition_penalty, -2, 10, "penalty must be a non-negative float, got -2");
    BAD(presence_penalty, INFINITY, 10, "`presence_penalty` has to be a finite float, but is inf");
    BAD(frequency_context, -1, 10, "`frequency_context_size` has to be a non-negative integer, but is -1");
    BAD(n_logit_bias, 1, 10, "`logit_bias` has 1 entries but no array");
    BAD(logit_bias, bias, 10, "`logit_bias` of token 4 has to be a finite float or -inf, but is nan");
    bad[n - 1].s.n_logit_bias = 1;
    BAD(logit_bias, bias + 1, 10, "`logit_bias` names token 10, which is not in the vocabulary of 10");
    bad[n - 1].s.n_logit_bias = 1;
#undef BAD
    for (size_t i = 0; i < n; i++) {
        struct tlm_error e = {0}, e2 = {0};
        assert_int_equal(tlm_sampling_check(&bad[i].s, bad[i].vocab, &e), TLM_EINVAL);
        assert_string_equal(e.message, bad[i].message);
        struct sampler_env env = {.vocab_size = bad[i].vocab};
        struct sampler *p;
        assert_int_equal(sampler_new(&bad[i].s, &env, &p, &e2), TLM_EINVAL);
        assert_null(p);
    }
}

static char warned[512];

static void on_log(enum tlm_log_level level, const char *message, void *user)
{
    (void)user;
    assert_int_equal(level, TLM_LOG_WARNING);
    size_t used = strlen(warned);
    snprintf(warned + used, sizeof warned - used, "%s\n", message);
}

static void inert_filters_are_reported(void **state)
{
    (void)state;
    struct tlm_sampling s;
    tlm_sampling_default(&s);
    tlm_log_set(on_log, NULL);
    sampler_free(new_sampler(&s, 100));
    assert_string_equal(warned, "");
    s.top_p = 0.9f;
    s.min_p = 0.1f;
    s.xtc_probability = 0.5f;
    s.top_k = 4;
    struct sampler *p = new_sampler(&s, 100);
    for (int i = 0; i < 3; i++) {
        float row[100] = {0}, lp;
        int32_t t;
        assert_int_equal(sampler_draw(p, row, &t, &lp, NULL), TLM_OK);
    }
    sampler_free(p);
    assert_string_equal(warned, "top_p, min_p, xtc_probability, top_k have no effect at temperature 0\n");
    warned[0] = 0;
    s.temperature = 1;
    sampler_free(new_sampler(&s, 100));
    assert_string_equal(warned, "");
    tlm_log_set(NULL, NULL);
}

static void unseeded_streams_differ(void **state)
{
    (void)state;
    struct tlm_sampling s;
    tlm_sampling_default(&s);
    s.temperature = 1;
    struct sampler *a = new_sampler(&s, 1000), *b = new_sampler(&s, 1000);
    int same = 0;
    for (int i = 0; i < 16; i++) {
        float row[2][1000] = {{0}}, lp;
        int32_t t, u;
        assert_int_equal(sampler_draw(a, row[0], &t, &lp, NULL), TLM_OK);
        assert_int_equal(sampler_draw(b, row[1], &u, &lp, NULL), TLM_OK);
        same += t == u;
    }
    assert_true(same < 8);
    sampler_free(a);
    sampler_free(b);
}

static void memory_is_bounded(void **state)
{
    (void)state;
    const struct tlm_logit_bias bias = {1, 1};
    struct tlm_sampling s;
    tlm_sampling_default(&s);
    s.temperature = 1;
    s.top_p = 0.9f;
    s.xtc_probability = 0.5f;
    s.presence_penalty = 1;
    s.logit_bias = &bias;
    s.n_logit_bias = 1;
    struct sampler_env env = {.vocab_size = 50};
    struct sampler *p = NULL;
    long n = 0;
    for (enum tlm_status st = TLM_ENOMEM; st != TLM_OK;) {
        struct tlm_error e = {0};
        mem_fail_at(++n, 0);
        st = sampler_new(&s, &env, &p, &e);
        assert_true(st == TLM_OK ? p != NULL : st == TLM_ENOMEM && !p && e.status == TLM_ENOMEM);
    }
    mem_fail_at(1, 0);
    assert_int_equal(sampler_reserve(p, 20, NULL), TLM_ENOMEM);
    mem_fail_at(0, 0);
    assert_true(n > 6);
    assert_int_equal(sampler_reserve(p, SIZE_MAX / 2, NULL), TLM_ELIMIT);
    assert_int_equal(sampler_reserve(p, 20, NULL), TLM_OK);
    const long before = mem_count();
    for (int32_t i = 0; i < 20; i++) {
        float row[50] = {0}, lp;
        int32_t t;
        assert_int_equal(sampler_draw(p, row, &t, &lp, NULL), TLM_OK);
        assert_int_equal(sampler_accept(p, &t, 1, NULL), TLM_OK);
    }
    assert_int_equal(mem_count(), before);
    const int32_t one = 3;
    assert_int_equal(sampler_accept(p, &one, 1, NULL), TLM_OK); /* grows by itself */
    sampler_free(p);
    sampler_free(NULL);
    struct tlm_error e = {0};
    env.vocab_size = 0;
    assert_int_equal(sampler_new(&s, &env, &p, &e), TLM_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_match),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(exp_is_close),
        cmocka_unit_test(frequencies_match),
        cmocka_unit_test(ends_of_the_distribution),
        cmocka_unit_test(greedy_takes_first_of_ties),
        cmocka_unit_test(filters_keep_what_they_should),
        cmocka_unit_test(top_k_of_long_rows),
        cmocka_unit_test(banned_tokens_never_come),
        cmocka_unit_test(broken_rows_are_errors),
        cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(inert_filters_are_reported),
        cmocka_unit_test(unseeded_streams_differ),
        cmocka_unit_test(memory_is_bounded),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
