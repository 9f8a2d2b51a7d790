/* turbolm benchmark: speed of prompt and generation with random tokens.
 *
 * One sequence: prompt tokens by the time to the first token, generated tokens
 * by the time from the first to the last. Several: totals; the prompt phase
 * ends when the last sequence has its first token, and the tokens after that
 * moment are the generation's. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "csv.h"
#include "out.h"
#include "run.h"

enum {
    MODEL,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    BATCH_SIZE,
    NUM_TRIALS,
    PIPELINE,
    QUANTIZE_ACTIVATIONS,
    DELAY,
    TRUST_REMOTE_CODE,
    DEPTH,
    CSV,
    N_OPTIONS
};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [PROMPT_TOKENS] = {"--prompt-tokens", "-p", CLI_INT, 0, "512", "1", "1000000000", NULL, "length of the prompt"},
    [GENERATION_TOKENS] = {"--generation-tokens", "-g", CLI_INT, 0, "1024", "1", "1000000000", NULL,
                           "tokens to generate"},
    [BATCH_SIZE] = {"--batch-size", "-b", CLI_INT, 0, "1", "1", "4096", NULL,
                    "sequences at once; above 1 the rates are totals"},
    [NUM_TRIALS] = {"--num-trials", "-n", CLI_INT, 0, "5", "1", "1000000", NULL,
                    "timed runs, after one that is not timed"},
    [PIPELINE] = {"--pipeline", NULL, CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL,
                  "split the model by layers over machines"},
    [QUANTIZE_ACTIVATIONS] = {"--quantize-activations", "-qa", CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL,
                              "quantise activations in the model's format"},
    [DELAY] = {"--delay", NULL, CLI_INT, 0, "0", "0", "1000000", NULL, "seconds of rest before each timed run"},
    [TRUST_REMOTE_CODE] = {"--trust-remote-code", NULL, CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL,
                           "run code that comes with a model"},
    [DEPTH] = {"--depth", NULL, CLI_INT, CLI_EXTRA, "0", "0", "1000000000", NULL,
               "take the cache as filled with this many tokens before the prompt"},
    [CSV] = {"--csv", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
             "append a line for each timed run to this file, below a heading when it is new; - is standard output, and "
             "then nothing else is there"},
};

enum { POLL_MS = 50 };

struct bench {
    struct tlm_engine *engine;
    size_t n_prompt, n_generate, batch, depth;
    int32_t *ids;      /* [batch, n_prompt] */
    uint64_t *request; /* [batch] */
    uint64_t random, vocab_size;
    struct csv *csv; /* or NULL */
    int human;       /* stdout has the lines for people, not the table */
};

struct trial {
    double prompt_tps, generation_tps, seconds;
    uint64_t peak;
};

static void say(const struct bench *b, const char *fmt, ...) TOOLS_PRINTF(2, 3);
static void say(const struct bench *b, const char *fmt, ...)
{
    char line[320];
    va_list ap;
    if (!b->human)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    out_print("%s", line);
    out_flush();
}

/* New prompts for each run, so that none can be found in a cache: uniform ids
 * from the SplitMix64 sequence of seed 0 (Steele et al., 2014). */
static void random_ids(struct bench *b)
{
    for (size_t i = 0; i < b->batch * b->n_prompt; i++) {
        uint64_t z = b->random += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        b->ids[i] = (int32_t)(((z >> 32) * b->vocab_size) >> 32);
    }
}

static int submit_all(struct bench *b)
{
    static const int32_t no_eos[1] = {0};
    struct tlm_error e = {TLM_OK, ""};
    for (size_t i = 0; i < b->batch; i++) {
        struct tlm_request r = {.prompt = b->ids + i * b->n_prompt,
                                .n_prompt = b->n_prompt,
                                .max_tokens = (int64_t)b->n_generate,
                                .eos = no_eos,
                                .assumed_depth = (int64_t)b->depth};
        tlm_sampling_default(&r.sampling);
        if (tlm_engine_submit(b->engine, &r, &b->request[i], &e) != TLM_OK)
            return out_tlm_error(&e);
    }
    return 0;
}

/* What a request's last event says; 0, or the exit status after a message. */
static int check_done(const struct bench *b, const struct tlm_event *ev)
{
    if (ev->finish == TLM_FINISH_ERROR) {
        out_error("%s", ev->message != NULL ? ev->message : tlm_status_name(ev->status));
        return ev->status == TLM_OK ? 1 : tlm_status_exit(ev->status);
    }
    if (ev->stats.generated_tokens != b->n_generate) {
        out_error("only %zu of %zu tokens were generated: the context is full", ev->stats.generated_tokens,
                  b->n_generate);
        return 1;
    }
    return 0;
}

static size_t request_index(const struct bench *b, uint64_t id)
{
    size_t i = 0;
    while (i < b->batch && b->request[i] != id)
        i++;
    return i;
}

/* One run of the whole batch. Returns 0, or the exit status. */
static int run_once(struct bench *b, struct trial *t)
{
    random_ids(b);
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_event ev;
    struct tlm_stats stats = {0};
    size_t started = 0, done = 0, late_tokens = 0;
    double begin = now_seconds(), first = begin, last = begin;
    char *seen = tool_alloc(b->batch, 1);
    int status = submit_all(b);
    while (status == 0 && done < b->batch) {
        if (tlm_engine_next(b->engine, POLL_MS, &ev, &e) != TLM_OK) {
            status = out_tlm_error(&e);
        } else if (interrupted() || out_failed()) {
            status = interrupted() ? EXIT_INTERRUPTED : 1;
        } else if (ev.type == TLM_EVENT_TOKEN) {
            size_t i = request_index(b, ev.id);
            last = now_seconds();
            if (started == b->batch)
                late_tokens++;
            if (i < b->batch && !seen[i]) {
                seen[i] = 1;
                started++;
                first = last;
            }
        } else if (ev.type == TLM_EVENT_DONE) {
            status = check_done(b, &ev);
            stats = ev.stats;
            done++;
        }
    }
    tool_free(seen);
    if (status != 0)
        return status;
    double prompt_seconds = b->batch == 1 ? stats.prompt_seconds : first - begin;
    double seconds = b->batch == 1 ? stats.generation_seconds : last - first;
    size_t tokens = b->batch == 1 ? b->n_generate : late_tokens;
    t->prompt_tps = prompt_seconds > 0 ? (double)(b->batch * b->n_prompt) / prompt_seconds : 0;
    t->generation_tps = seconds > 0 ? (double)tokens / seconds : 0;
    t->seconds = now_seconds() - begin;
    t->peak = tlm_peak_memory();
    return 0;
}

/* Returns 0, or 1 after a message; of standard output out_finish says it. */
static int write_row(struct bench *b, size_t trial, const struct trial *t)
{
    if (b->csv == NULL)
        return 0;
    csv_print(b->csv, "%zu,%zu,%zu,%zu,%zu,%.3f,%.3f,%llu,%.6f\n", trial, b->n_prompt, b->n_generate, b->batch,
              b->depth, t->prompt_tps, t->generation_tps, (unsigned long long)t->peak, t->seconds);
    return csv_failed(b->csv) || out_failed();
}

static int run_trials(struct bench *b, size_t n_trials, long delay)
{
    struct trial t, sum = {0};
    double peaks = 0;
    say(b, "Running warmup..\n");
    int status = run_once(b, &t);
    if (status != 0)
        return status;
    say(b, "Timing with prompt_tokens=%zu, generation_tokens=%zu, batch_size=%zu.\n", b->n_prompt, b->n_generate,
        b->batch);
    for (size_t i = 1; i <= n_trials; i++) {
        struct timespec rest = {delay, 0};
        if (delay > 0)
            nanosleep(&rest, NULL); /* ended early only by Ctrl-C */
        status = interrupted() ? EXIT_INTERRUPTED : run_once(b, &t);
        if (status != 0)
            return status;
        say(b, "Trial %zu:  prompt_tps=%.3f, generation_tps=%.3f, peak_memory=%.3f, total_time=%.3f\n", i, t.prompt_tps,
            t.generation_tps, (double)t.peak / 1e9, t.seconds);
        status = write_row(b, i, &t);
        if (status != 0)
            return status;
        sum.prompt_tps += t.prompt_tps;
        sum.generation_tps += t.generation_tps;
        peaks += (double)t.peak / 1e9;
    }
    double n = (double)n_trials;
    say(b, "Averages: prompt_tps=%.3f, generation_tps=%.3f, peak_memory=%.3f\n", sum.prompt_tps / n,
        sum.generation_tps / n, peaks / n);
    return 0;
}

static int benchmark(struct tlm_model *m, const struct cli_value *v, struct bench *b)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    struct tlm_engine_options o = {.prefix_cache_bytes = -1,
                                   .prefill_step_size = (int)v[N_OPTIONS + RUN_PREFILL_STEP_SIZE].integer,
                                   .max_sequences = (int)v[BATCH_SIZE].integer,
                                   .max_queue = (int)v[BATCH_SIZE].integer};
    tlm_model_info_get(m, &info);
    b->vocab_size = (uint64_t)info.vocab_size;
    size_t n_tokens = b->depth + b->n_prompt + b->n_generate;
    if (info.context_length > 0 && n_tokens > (size_t)info.context_length)
        out_warning("the sequences have %zu tokens, the model's context %lld", n_tokens,
                    (long long)info.context_length);
    catch_interrupt();
    int status = 0;
    if (tlm_engine_new(m, &o, &b->engine, &e) != TLM_OK)
        status = out_tlm_error(&e);
    if (status == 0 &&
        tlm_engine_check_size(b->engine, (int64_t)(b->depth + b->n_prompt), (int64_t)b->batch, &e) != TLM_OK)
        status = out_tlm_error(&e);
    if (status == 0) {
        b->ids = tool_alloc(b->batch * b->n_prompt, sizeof *b->ids);
        b->request = tool_alloc(b->batch, sizeof *b->request);
    }
    if (status == 0)
        status = run_trials(b, (size_t)v[NUM_TRIALS].integer, (long)v[DELAY].integer);
    tlm_engine_free(b->engine);
    tool_free(b->ids);
    tool_free(b->request);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    static const char heading[] =
        "trial,prompt_tokens,generation_tokens,batch,depth,prompt_tps,generation_tps,peak_bytes,seconds\n";
    struct tlm_model *m = NULL;
    struct bench b = {.n_prompt = (size_t)v[PROMPT_TOKENS].integer,
                      .n_generate = (size_t)v[GENERATION_TOKENS].integer,
                      .batch = (size_t)v[BATCH_SIZE].integer,
                      .depth = (size_t)v[DEPTH].integer,
                      .human = 1};
    const struct run_cache cache = run_cache_of(v + N_OPTIONS + RUN_N);
    struct csv csv = {0};
    int status = 0;
    (void)prog;
    if (v[CSV].given) {
        b.csv = &csv;
        b.human = strcmp(v[CSV].text, "-") != 0;
        status = csv_open(&csv, v[CSV].text, heading);
    }
    if (status == 0)
        status = run_open(v[MODEL].text, v + N_OPTIONS, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = benchmark(m, v, &b);
    tlm_model_close(m);
    return csv_close(&csv, status);
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_N}, {run_cache_options, RUN_CACHE_N}, {NULL, 0}};

const struct command benchmark_command = {
    "benchmark", "Measure the speed of prompts and generation.",
    "Runs random tokens. The table of --csv has the columns trial, prompt_tokens, generation_tokens, batch, depth, "
    "prompt_tps, generation_tps, peak_bytes, seconds.",
    tables, run};
