/* turbolm compare: how far the predictions of one model are from another's, on
 * the same text, in lockstep. A is the measure. */
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "csv.h"
#include "out.h"
#include "run.h"
#include "text_rows.h"

enum {
    MODEL_A,
    MODEL_B,
    PRECISION_A,
    PRECISION_B,
    KV_FORMAT_A,
    KV_FORMAT_B,
    DATA_PATH,
    SEQUENCE_LENGTH,
    NUM_SAMPLES,
    SEED,
    BATCH_SIZE,
    SCORE_FROM,
    BOS,
    CSV,
    N_OPTIONS
};

static const char *const precisions[] = {"exact", "fast", NULL};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL_A] = {"A", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                 "the model whose predictions are the measure: a directory, GGUF file or name on a hub"},
    [MODEL_B] = {"B", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                 "the model that is measured; may be the same one, with another precision or cache format"},
    [PRECISION_A] = {"--precision-a", NULL, CLI_CHOICE, 0, NULL, NULL, NULL, precisions, "--precision of A alone"},
    [PRECISION_B] = {"--precision-b", NULL, CLI_CHOICE, 0, NULL, NULL, NULL, precisions, "--precision of B alone"},
    [KV_FORMAT_A] = {"--kv-format-a", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL, "--kv-format of A alone"},
    [KV_FORMAT_B] = {"--kv-format-b", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL, "--kv-format of B alone"},
    [DATA_PATH] = TEXT_ROWS_DATA_PATH_ROW(0),
    [SEQUENCE_LENGTH] = TEXT_ROWS_SEQUENCE_LENGTH_ROW(0),
    [NUM_SAMPLES] = TEXT_ROWS_NUM_SAMPLES_ROW(0),
    [SEED] = TEXT_ROWS_SEED_ROW(0),
    [BATCH_SIZE] = {"--batch-size", NULL, CLI_INT, 0, "8", "1", "4096", NULL,
                    "rows computed at once; each has a cache in both models"},
    [SCORE_FROM] = TEXT_ROWS_SCORE_FROM_ROW,
    [BOS] = TEXT_ROWS_BOS_ROW,
    [CSV] = {"--csv", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
             "append a line to this file, below a heading when it is new; - is standard output, and then nothing else "
             "is there"},
};

extern const struct command compare_command;

struct pair {
    const char *path[2];
    struct tlm_model *model[2]; /* twice the same where one will do */
    const char *kv_format[2];   /* beside the models' own caches; NULL: their own */
    struct text_rows text;
    size_t from, batch, pass_tokens, batches_done;
    int human;
};

/* What two models make of the same tokens must be comparable. ------------------ */

/* 0, or 1 after a message: the ids of the rows are the same tokens in both. */
static int check_tokens(const struct pair *p, const int32_t *ids, size_t n)
{
    const struct tlm_tokenizer *a = tlm_model_tokenizer(p->model[0]), *b = tlm_model_tokenizer(p->model[1]);
    for (size_t i = 0; i < n; i++) {
        const char *x = tlm_tokenizer_token_text(a, ids[i]), *y = tlm_tokenizer_token_text(b, ids[i]);
        if (x != NULL && y != NULL && strcmp(x, y) == 0)
            continue;
        out_error("the tokenizers differ: id %d is '%s' in %s, but '%s' in %s", ids[i], x != NULL ? x : "", p->path[0],
                  y != NULL ? y : "", p->path[1]);
        return 1;
    }
    return 0;
}

/* The same of the text of a row, encoded anew. */
static int check_encoding(const struct pair *p, const int32_t *ids, size_t n)
{
    struct tlm_error e = {TLM_OK, ""};
    int32_t *made[2] = {NULL, NULL};
    size_t n_made[2] = {0, 0}, len, at = 0;
    char *text;
    if (tlm_tokenizer_decode(tlm_model_tokenizer(p->model[0]), ids, n, 0, &text, &len, &e) != TLM_OK)
        return out_tlm_error(&e);
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++)
        if (tlm_tokenizer_encode(tlm_model_tokenizer(p->model[i]), text, len, 0, &made[i], &n_made[i], &e) != TLM_OK)
            status = out_tlm_error(&e);
    while (status == 0 && at < n_made[0] && at < n_made[1] && made[0][at] == made[1][at])
        at++;
    if (status == 0 && (at < n_made[0] || at < n_made[1])) {
        out_error("the tokenizers differ: token %zu of the same text is %d in %s, but %d in %s", at,
                  at < n_made[0] ? made[0][at] : -1, p->path[0], at < n_made[1] ? made[1][at] : -1, p->path[1]);
        status = 1;
    }
    tlm_free(made[0]);
    tlm_free(made[1]);
    tlm_free(text);
    return status;
}

/* Tokens that the text does not have, but the models predict. */
static void warn_of_vocabularies(const struct pair *p)
{
    const struct tlm_tokenizer *a = tlm_model_tokenizer(p->model[0]), *b = tlm_model_tokenizer(p->model[1]);
    struct tlm_model_info of_a, of_b;
    int64_t differ = 0;
    tlm_model_info_get(p->model[0], &of_a);
    tlm_model_info_get(p->model[1], &of_b);
    int64_t common = of_a.vocab_size < of_b.vocab_size ? of_a.vocab_size : of_b.vocab_size;
    if (of_a.vocab_size != of_b.vocab_size)
        out_warning("A predicts %lld tokens, B %lld: the first %lld are compared", (long long)of_a.vocab_size,
                    (long long)of_b.vocab_size, (long long)common);
    for (int32_t id = 0; id < common; id++) {
        const char *x = tlm_tokenizer_token_text(a, id), *y = tlm_tokenizer_token_text(b, id);
        differ += x != NULL && y != NULL && strcmp(x, y) != 0;
    }
    if (differ > 0)
        out_warning("%lld tokens that the text does not have differ between A and B", (long long)differ);
}

static int check_pair(const struct pair *p, const int32_t *rows, size_t n_rows)
{
    struct tlm_model_info info;
    size_t length = p->text.length;
    if (p->model[0] == p->model[1])
        return 0;
    tlm_model_info_get(p->model[1], &info);
    if (tlm_model_tokenizer(p->model[1]) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    int status = check_tokens(p, rows, n_rows * length);
    for (size_t i = 0; i < n_rows && status == 0; i++)
        status = check_encoding(p, rows + i * length, length);
    if (status == 0)
        status = run_check_ids(p->model[1], rows, n_rows * length);
    if (status == 0)
        warn_of_vocabularies(p);
    return status;
}

/* The work ------------------------------------------------------------------- */

static int report(void *user, size_t done, size_t rows)
{
    struct pair *p = user;
    size_t batches = (rows + p->batch - 1) / p->batch, now = done == rows ? batches : done / p->batch;
    if (p->human && now > p->batches_done) {
        out_print("\r  Processed %zu/%zu batches...", now, batches);
        out_flush();
    }
    p->batches_done = now;
    return interrupted();
}

static struct tlm_model *computing[2]; /* for the handler of Ctrl-C */

static void cancel(void)
{
    tlm_model_cancel(computing[0]);
    tlm_model_cancel(computing[1]);
}

static void print_model(const struct pair *p, int i, const struct tlm_perplexity *of)
{
    struct tlm_model_info info;
    tlm_model_info_get(p->model[i], &info);
    out_print("Model %c: %s (%s, %s, cache %s)\n", 'A' + i, p->path[i],
              info.quantization != NULL ? info.quantization : "no matrices", info.precision, of->kv_format);
}

static void print_results(const struct pair *p, const struct tlm_perplexity of[2], size_t rows, double seconds)
{
    static const char rule[] = "============================================================";
    if (!p->human)
        return;
    out_print("\n\n%s\nCOMPARISON RESULTS\n%s\n", rule, rule);
    print_model(p, 0, &of[0]);
    print_model(p, 1, &of[1]);
    out_print("Perplexity A: %.3f ± %.3f\nPerplexity B: %.3f ± %.3f\n", of[0].perplexity, of[0].error, of[1].perplexity,
              of[1].error);
    out_print("KL divergence: mean %.5f, p99 %.5f\n", of[1].kl_mean, of[1].kl_p99);
    out_print("Top-1 agreement: %.2f%%\n", 100 * of[1].top1);
    out_print("Perplexity ratio: %.4f ± %.4f\n", of[1].ratio, of[1].ratio_error);
    out_print("Evaluation time: %.2f seconds\nPeak memory: %.2f GB\nTokens per second: %.0f\n", seconds,
              (double)tlm_peak_memory() * 1e-9, run_rate(rows * (p->text.length - 1), seconds));
    out_print("\nDataset statistics:\n  Total samples: %zu\n  Total tokens: %zu\n", rows, rows * p->text.length);
}

static int compute(struct pair *p, const int32_t *rows, size_t n_rows, struct csv *csv)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_perplexity of[2];
    struct tlm_perplexity_options o = {.row_length = p->text.length,
                                       .score_from = p->from,
                                       .batch = p->batch,
                                       .pass_tokens = p->pass_tokens,
                                       .reference = p->kv_format[0],
                                       .formats = &p->kv_format[1],
                                       .n_formats = p->kv_format[1] != NULL,
                                       .report = report,
                                       .user = p};
    int status = 0;
    if (p->human) {
        out_print("  Loaded %zu samples\n\nComparing with batch size %zu...\n", n_rows, p->batch);
        out_flush();
    }
    double start = now_seconds();
    computing[0] = p->model[0];
    computing[1] = p->model[1];
    set_signal_hooks(cancel, NULL);
    catch_interrupt();
    if (tlm_model_compare(p->model[0], p->model[1], rows, n_rows, &o, &of[0], &of[1], &e) != TLM_OK)
        status = interrupted() ? EXIT_INTERRUPTED : out_tlm_error(&e);
    set_signal_hooks(NULL, NULL); /* the models will be closed */
    release_interrupt();
    if (status != 0)
        return status;
    print_results(p, of, n_rows, now_seconds() - start);
    if (csv->path != NULL)
        csv_print(csv, "%.9g,%.9g,%.9g,%.9g,%.9g,%zu\n", of[1].kl_mean, of[1].kl_p99, of[1].top1, of[0].perplexity,
                  of[1].perplexity, of[1].tokens);
    return 0;
}

static int measure(struct pair *p, struct csv *csv)
{
    struct tlm_model_info info[2];
    int32_t *rows;
    size_t n_rows;
    tlm_model_info_get(p->model[0], &info[0]);
    tlm_model_info_get(p->model[1], &info[1]);
    if (p->human) {
        out_print("Models loaded: %.1fM and %.1fM parameters\n\nLoading dataset...\n  Sequence length: %zu\n",
                  (double)info[0].parameters * 1e-6, (double)info[1].parameters * 1e-6, p->text.length);
        out_flush();
    }
    int status = text_rows_read(p->model[0], &p->text, &rows, &n_rows);
    if (status != 0)
        return status;
    status = check_pair(p, rows, n_rows);
    if (status == 0)
        status = compute(p, rows, n_rows, csv);
    tool_free(rows);
    return status;
}

/* Models --------------------------------------------------------------------- */

static int same_file(const char *a, const char *b)
{
    struct stat x, y;
    return strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

static int open_one(struct pair *p, int i, const struct cli_value *run, const struct run_cache *cache)
{
    if (p->human) {
        out_print("Loading model from %s...\n", p->path[i]);
        out_flush();
    }
    return run_open(p->path[i], run, cache, TLM_PRECISION_DEFAULT, &p->model[i]);
}

static int same_choice(const struct cli_value *a, const struct cli_value *b)
{
    return a->given == b->given && (!a->given || strcmp(a->text, b->text) == 0);
}

/* One model with two caches where nothing else differs, else two models. */
static int open_pair(struct pair *p, struct cli_value run[2][RUN_N], const struct run_cache *cache)
{
    const struct cli_value *format[2] = {&run[0][RUN_KV_FORMAT], &run[1][RUN_KV_FORMAT]};
    int one = same_file(p->path[0], p->path[1]) && same_choice(&run[0][RUN_PRECISION], &run[1][RUN_PRECISION]);
    if (one && !same_choice(format[0], format[1])) {
        const struct cli_value *precision = &run[0][RUN_PRECISION];
        const char *own = precision->given && strcmp(precision->text, "exact") == 0 ? "f32" : "f16";
        p->kv_format[0] = format[0]->given ? format[0]->text : own;
        p->kv_format[1] = format[1]->given ? format[1]->text : own;
    }
    int status = open_one(p, 0, run[0], cache);
    if (status == 0 && one)
        p->model[1] = p->model[0];
    else if (status == 0)
        status = open_one(p, 1, run[1], cache);
    return status;
}

static void choose(struct cli_value run[RUN_N], const struct cli_value *shared, const struct cli_value *precision,
                   const struct cli_value *format)
{
    memcpy(run, shared, RUN_N * sizeof *run);
    if (precision->given)
        run[RUN_PRECISION] = *precision;
    if (format->given)
        run[RUN_KV_FORMAT] = *format;
}

static int run_with(struct pair *p, const struct cli_value *v, struct csv *csv)
{
    struct cli_value of[2][RUN_N];
    const struct cli_value *shared = v + N_OPTIONS;
    const struct run_cache cache = run_cache_of(shared + RUN_N);
    choose(of[0], shared, &v[PRECISION_A], &v[KV_FORMAT_A]);
    choose(of[1], shared, &v[PRECISION_B], &v[KV_FORMAT_B]);
    if (v[KV_FORMAT_A].given || v[KV_FORMAT_B].given)
        of[0][RUN_KV_SINK].given = of[1][RUN_KV_SINK].given = 0; /* has its effect on one of them */
    int status = open_pair(p, of, &cache);
    if (status == 0)
        status = measure(p, csv);
    if (p->model[1] != p->model[0])
        tlm_model_close(p->model[1]);
    tlm_model_close(p->model[0]);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    const struct cli_value *shared = v + N_OPTIONS;
    struct csv csv = {0};
    struct pair p = {.path = {v[MODEL_A].text, v[MODEL_B].text},
                     .text = {.path = v[DATA_PATH].text,
                              .length = (size_t)v[SEQUENCE_LENGTH].integer,
                              .most = v[NUM_SAMPLES].integer < 0 ? SIZE_MAX : (size_t)v[NUM_SAMPLES].integer,
                              .bos = v[BOS].given ? v[BOS].truth : -1,
                              .seed = (uint32_t)v[SEED].integer,
                              .seed_given = v[SEED].given},
                     .from = (size_t)v[SCORE_FROM].integer,
                     .batch = (size_t)v[BATCH_SIZE].integer,
                     .pass_tokens = (size_t)shared[RUN_PREFILL_STEP_SIZE].integer,
                     .human = v[CSV].text == NULL || strcmp(v[CSV].text, "-") != 0};
    if (p.text.most == 0)
        return cli_usage_error(&compare_command, prog, "--num-samples", "must be -1 or at least 1, but is 0");
    if (p.from >= p.text.length)
        return cli_usage_error(&compare_command, prog, "--score-from", "must be below --sequence-length, but is %zu",
                               p.from);
    for (int i = KV_FORMAT_A; i <= KV_FORMAT_B; i++)
        if (v[i].given && shared[RUN_N + RUN_KV_BITS].given)
            return cli_usage_error(&compare_command, prog, options[i].name, "not allowed with argument --kv-bits");
    int status = text_rows_open(&p.text);
    if (status == 0 && v[CSV].text != NULL)
        status = csv_open(&csv, v[CSV].text, "kl_mean,kl_p99,top1,ppl_a,ppl_b,tokens\n");
    if (status == 0)
        status = run_with(&p, v, &csv);
    text_rows_close(&p.text);
    return csv_close(&csv, status);
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_N}, {run_cache_options, RUN_CACHE_N}, {NULL, 0}};

const struct command compare_command = {
    "compare",
    "measure how far one model's predictions are from another's",
    "Both models read the same rows of a text or data set, each through its key-value cache: KL divergence of A to B "
    "in "
    "nats, how often both like the same token best, and the perplexities. The way to judge a conversion, a precision "
    "or "
    "a cache format. The tokenizers must agree on the text; predictions of tokens that only one model has are left "
    "out. Both models are in memory together, unless they are one file in one precision.",
    tables,
    run,
};
