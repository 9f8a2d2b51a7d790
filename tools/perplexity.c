/* turbolm perplexity: how well a model foretells a text, through its cache. */
#include <stdint.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "csv.h"
#include "out.h"
#include "run.h"
#include "text_rows.h"

enum {
    MODEL,
    TRUST_REMOTE_CODE,
    BATCH_SIZE,
    SEQUENCE_LENGTH,
    NUM_SAMPLES,
    DATA_PATH,
    SEED,
    SCORE_FROM,
    BOS,
    KL_REFERENCE,
    CSV,
    N_OPTIONS
};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [TRUST_REMOTE_CODE] = RUN_TRUST_REMOTE_CODE_ROW,
    [BATCH_SIZE] = {"--batch-size", NULL, CLI_INT, 0, "8", "1", "4096", NULL, "rows computed at once"},
    [SEQUENCE_LENGTH] = TEXT_ROWS_SEQUENCE_LENGTH_ROW(0),
    [NUM_SAMPLES] = TEXT_ROWS_NUM_SAMPLES_ROW(0),
    [DATA_PATH] = TEXT_ROWS_DATA_PATH_ROW(0),
    [SEED] = TEXT_ROWS_SEED_ROW(0),
    [SCORE_FROM] = TEXT_ROWS_SCORE_FROM_ROW,
    [BOS] = TEXT_ROWS_BOS_ROW,
    [KL_REFERENCE] = {"--kl-reference", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
                      "cache format, like f16, whose predictions are the measure"},
    [CSV] = {"--csv", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
             "append a line to this file, below a heading when it is new; - is standard output, and then nothing else "
             "is there"},
};

extern const struct command perplexity_command;

struct job {
    const char *model, *kv_format; /* as they were given */
    struct text_rows text;
    size_t from, batch, pass_tokens, batches_done;
    const char *reference, *csv;
    int human, shows_cache;
};

static int report(void *user, size_t done, size_t rows)
{
    struct job *j = user;
    size_t batches = (rows + j->batch - 1) / j->batch, now = done == rows ? batches : done / j->batch;
    if (j->human && now > j->batches_done) {
        out_print("\r  Processed %zu/%zu batches...", now, batches);
        out_flush();
    }
    j->batches_done = now;
    return interrupted();
}

static void write_csv(const struct job *j, struct csv *c, const struct tlm_perplexity *p, double seconds)
{
    csv_text(c, j->model);
    csv_print(c, ",");
    csv_text(c, j->kv_format != NULL ? j->kv_format : p->kv_format);
    csv_print(c, ",%.4f,%llu,%.9g,%.9g,", p->kv_bits, (unsigned long long)p->cache_bytes, p->perplexity, p->error);
    if (j->reference != NULL)
        csv_print(c, "%.9g,%.9g,%.9g,%.9g,%.9g", p->kl_mean, p->kl_p99, p->top1, p->ratio, p->ratio_error);
    else
        csv_print(c, ",,,,");
    csv_print(c, ",%zu,%.3f,%llu\n", p->tokens, seconds, (unsigned long long)tlm_peak_memory());
}

static void print_results(const struct job *j, const struct tlm_perplexity *p, size_t rows, double seconds)
{
    static const char rule[] = "============================================================";
    if (!j->human)
        return;
    out_print("\n\n%s\nEVALUATION RESULTS\n%s\nModel: %s\n", rule, rule, j->model);
    out_print("Perplexity: %.3f ± %.3f\n", p->perplexity, p->error);
    if (j->reference != NULL) {
        out_print("KL divergence: mean %.5f, p99 %.5f\n", p->kl_mean, p->kl_p99);
        out_print("Top-1 agreement: %.2f%%\n", 100 * p->top1);
        out_print("Perplexity ratio: %.4f ± %.4f\n", p->ratio, p->ratio_error);
    }
    if (j->shows_cache)
        out_print("Key-value cache: %s, %.2f bits per element, %llu bytes for a row\n", p->kv_format, p->kv_bits,
                  (unsigned long long)p->cache_bytes);
    out_print("Evaluation time: %.2f seconds\nPeak memory: %.2f GB\nTokens per second: %.0f\n", seconds,
              (double)tlm_peak_memory() * 1e-9, run_rate(rows * (j->text.length - 1), seconds));
    out_print("\nDataset statistics:\n  Total samples: %zu\n  Total tokens: %zu\n", rows, rows * j->text.length);
}

static struct tlm_model *computing; /* for the handler of Ctrl-C */

static void cancel(void)
{
    tlm_model_cancel(computing);
}

static void warn_of_short_rows(const struct tlm_model *m, const struct job *j, int64_t start)
{
    struct tlm_model_info info;
    tlm_model_info_get(m, &info);
    if (info.kv_bits < 16 && start > (int64_t)j->text.length)
        out_warning("rows of %zu tokens are shorter than --quantized-kv-start (%lld): nothing is quantised",
                    j->text.length, (long long)start);
}

static int measure(struct tlm_model *m, struct job *j, struct csv *csv)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    struct tlm_perplexity p;
    struct tlm_perplexity_options o = {.row_length = j->text.length,
                                       .score_from = j->from,
                                       .batch = j->batch,
                                       .pass_tokens = j->pass_tokens,
                                       .reference = j->reference,
                                       .report = report,
                                       .user = j};
    int32_t *rows;
    size_t n_rows;
    tlm_model_info_get(m, &info);
    if (j->reference != NULL && tlm_model_kv_check(m, j->reference, &e) != TLM_OK)
        return out_tlm_error(&e);
    if (j->human) {
        out_print("Model loaded: %.1fM parameters\n\nLoading dataset...\n  Sequence length: %zu\n",
                  (double)info.parameters * 1e-6, j->text.length);
        out_flush();
    }
    if (j->human && text_rows_are_remote(&j->text)) {
        out_print("Loading Hugging Face dataset %s.\n", j->text.path);
        out_flush();
    }
    int status = text_rows_read(m, &j->text, &rows, &n_rows);
    if (status != 0)
        return status;
    if (j->human) {
        out_print("  Loaded %zu samples\n\nEvaluating perplexity with batch size %zu...\n", n_rows, j->batch);
        out_flush();
    }
    double start = now_seconds();
    computing = m;
    set_signal_hooks(cancel, NULL);
    catch_interrupt();
    if (tlm_model_perplexity(m, rows, n_rows, &o, &p, &e) != TLM_OK)
        status = interrupted() ? EXIT_INTERRUPTED : out_tlm_error(&e);
    set_signal_hooks(NULL, NULL); /* the model will be closed */
    release_interrupt();
    tool_free(rows);
    if (status != 0)
        return status;
    double seconds = now_seconds() - start;
    print_results(j, &p, n_rows, seconds);
    if (j->csv != NULL)
        write_csv(j, csv, &p, seconds);
    return 0;
}

static int run(const char *prog, const struct cli_value *v)
{
    static const char heading[] = "model,kv_format,bits,allocated_bytes,ppl,ppl_se,kl_mean,kl_p99,top1,ppl_ratio,"
                                  "ppl_ratio_se,tokens,seconds,peak_bytes\n";
    struct tlm_model *m = NULL;
    struct csv csv = {0};
    const struct cli_value *shared = v + N_OPTIONS;
    const struct run_cache cache = run_cache_of(shared + RUN_N);
    struct job j = {.model = v[MODEL].text,
                    .kv_format = shared[RUN_KV_FORMAT].text,
                    .text = {.path = v[DATA_PATH].text,
                             .length = (size_t)v[SEQUENCE_LENGTH].integer,
                             .most = v[NUM_SAMPLES].integer < 0 ? SIZE_MAX : (size_t)v[NUM_SAMPLES].integer,
                             .bos = v[BOS].given ? v[BOS].truth : -1,
                             .seed = (uint32_t)v[SEED].integer,
                             .seed_given = v[SEED].given},
                    .from = (size_t)v[SCORE_FROM].integer,
                    .batch = (size_t)v[BATCH_SIZE].integer,
                    .pass_tokens = (size_t)shared[RUN_PREFILL_STEP_SIZE].integer,
                    .reference = v[KL_REFERENCE].text,
                    .csv = v[CSV].text};
    j.human = j.csv == NULL || strcmp(j.csv, "-") != 0;
    j.shows_cache = j.reference != NULL || j.kv_format != NULL || cache.bits->given;
    if (j.text.most == 0)
        return cli_usage_error(&perplexity_command, prog, "--num-samples", "must be -1 or at least 1, but is 0");
    if (j.from >= j.text.length)
        return cli_usage_error(&perplexity_command, prog, "--score-from", "must be below --sequence-length, but is %zu",
                               j.from);
    int status = text_rows_open(&j.text);
    if (status == 0 && j.csv != NULL)
        status = csv_open(&csv, j.csv, heading);
    if (status != 0) {
        text_rows_close(&j.text);
        return status;
    }
    if (j.human) {
        out_print("Loading model from %s...\n", j.model);
        out_flush();
    }
    status = run_open(j.model, shared, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0) {
        warn_of_short_rows(m, &j, run_kv_start(&cache));
        status = measure(m, &j, &csv);
    }
    tlm_model_close(m);
    text_rows_close(&j.text);
    return csv_close(&csv, status);
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_N}, {run_cache_options, RUN_CACHE_N}, {NULL, 0}};

const struct command perplexity_command = {
    "perplexity",
    "measure how well a model foretells a text",
    "Perplexity of a text or data set, cut into rows, each scored through the key-value cache in its format. With "
    "--kl-reference the same rows go through a second cache, and the difference between the two is measured.",
    tables,
    run,
};
