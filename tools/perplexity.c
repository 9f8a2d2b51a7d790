/* turbolm perplexity: how well a model foretells a text, through its cache. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"
#include "run.h"

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
    [SEQUENCE_LENGTH] = {"--sequence-length", NULL, CLI_INT, 0, "512", "2", "1000000000", NULL, "tokens in a row"},
    [NUM_SAMPLES] = {"--num-samples", NULL, CLI_INT, 0, "256", "-1", "1000000000", NULL,
                     "most rows, from the beginning of the text; -1: all"},
    [DATA_PATH] = {"--data-path", NULL, CLI_TEXT, 0, "allenai/tulu-3-sft-mixture", NULL, NULL, NULL,
                   "text file, which is one document, cut into rows in its order"},
    [SEED] = {"--seed", NULL, CLI_NATURAL, CLI_LATER, NULL, NULL, NULL, NULL, "order of a data set's documents"},
    [SCORE_FROM] = {"--score-from", NULL, CLI_INT, CLI_EXTRA, "1", "1", "1000000000", NULL,
                    "first position of a row that counts; half of the row is llama.cpp's figure"},
    [BOS] = {"--bos", NULL, CLI_BOOL, CLI_EXTRA, NULL, NULL, NULL, NULL,
             "the beginning-of-text token in each row's first place, by default where the tokenizer adds it"},
    [KL_REFERENCE] = {"--kl-reference", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
                      "cache format, like f16, whose predictions are the measure"},
    [CSV] = {"--csv", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
             "append a line to this file, below a heading when it is new; - is standard output, and then nothing else "
             "is there"},
};

extern const struct command perplexity_command;

struct job {
    const char *data;
    size_t length, most, from, batch;
    int wants_bos; /* -1: as the tokenizer does */
    const char *reference, *csv;
    int human;
};

static void say(const struct job *j, const char *text)
{
    if (j->human) {
        out_print("%s", text);
        out_flush();
    }
}

static int read_file(const char *path, char **text, size_t *len)
{
    FILE *f = fopen(path, "rb");
    size_t room = 1 << 20, n = 0, got;
    if (f == NULL && errno == ENOENT) {
        out_error("%s: no such file; data sets of a hub are not supported yet", path);
        return 1;
    }
    char *buffer = tool_alloc(room, 1);
    while (f != NULL && (got = fread(buffer + n, 1, room - n, f)) > 0) {
        n += got;
        if (n == room) {
            buffer = tool_grow(buffer, room, 2);
            room *= 2;
        }
    }
    if (f == NULL || ferror(f)) {
        out_error("%s: cannot read: %s", path, strerror(errno));
        if (f != NULL)
            fclose(f);
        tool_free(buffer);
        return 1;
    }
    fclose(f);
    *text = buffer;
    *len = n;
    return 0;
}

/* Whole rows of the document's ids; free with tool_free. */
static int make_rows(const struct tlm_model *m, const struct job *j, int32_t **rows, size_t *n_rows)
{
    const struct tlm_tokenizer *t = tlm_model_tokenizer(m);
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_tokenizer_info info;
    char *text;
    size_t len, n, most;
    int32_t *ids;
    if (t == NULL) {
        out_error("the model has no tokenizer");
        return 1;
    }
    int status = read_file(j->data, &text, &len);
    if (status != 0)
        return status;
    status = tlm_tokenizer_encode(t, text, len, 0, &ids, &n, &e) == TLM_OK ? 0 : out_tlm_error(&e);
    tool_free(text);
    if (status != 0)
        return status;
    tlm_tokenizer_info_get(t, &info);
    int bos = j->wants_bos < 0 ? info.adds_bos && info.bos >= 0 : j->wants_bos;
    size_t step = j->length - (size_t)bos;
    most = n / step;
    *n_rows = most < j->most ? most : j->most;
    *rows = NULL;
    if (bos && info.bos < 0) {
        out_error("--bos: the tokenizer has no beginning-of-text token");
        status = 2;
    } else if (*n_rows == 0) {
        out_error("%s: %zu tokens, less than one row of %zu", j->data, n, j->length);
        status = 1;
    } else {
        *rows = tool_alloc(*n_rows * j->length, sizeof **rows);
        for (size_t i = 0; i < *n_rows; i++) {
            (*rows)[i * j->length] = info.bos;
            memcpy(*rows + i * j->length + bos, ids + i * step, step * sizeof *ids);
        }
    }
    tlm_free(ids);
    return status;
}

static int report(void *user, size_t done, size_t rows)
{
    const struct job *j = *(const struct job **)user;
    char line[80];
    size_t batches = (rows + j->batch - 1) / j->batch, now = (done + j->batch - 1) / j->batch;
    snprintf(line, sizeof line, "\r  Processed %zu/%zu batches...", now, batches);
    say(j, line);
    return interrupted();
}

static int write_csv(const struct job *j, const struct tlm_model_info *m, const struct tlm_perplexity *p,
                     double seconds)
{
    static const char heading[] = "model,kv_format,bits,allocated_bytes,ppl,ppl_se,kl_mean,kl_p99,top1,ppl_ratio,"
                                  "ppl_ratio_se,tokens,seconds,peak_bytes\n";
    char row[1024], kl[160] = ",,,,";
    int to_stdout = strcmp(j->csv, "-") == 0;
    if (j->reference != NULL)
        snprintf(kl, sizeof kl, "%.6g,%.6g,%.6g,%.6g,%.6g", p->kl_mean, p->kl_p99, p->top1, p->ratio, p->ratio_error);
    snprintf(row, sizeof row, "\"%s\",%s,%.4f,%llu,%.6g,%.6g,%s,%zu,%.3f,%llu\n", m->path, m->kv_format, m->kv_bits,
             (unsigned long long)p->cache_bytes, p->perplexity, p->error, kl, p->tokens, seconds,
             (unsigned long long)tlm_peak_memory());
    if (to_stdout) {
        out_print("%s%s", heading, row);
        return 0;
    }
    FILE *f = fopen(j->csv, "ab");
    int bad = f == NULL;
    if (!bad && (fseek(f, 0, SEEK_END) != 0 || ftell(f) == 0))
        bad = fputs(heading, f) < 0;
    bad = bad || fputs(row, f) < 0;
    if (f != NULL && fclose(f) != 0)
        bad = 1;
    if (bad)
        out_error("%s: cannot write: %s", j->csv, strerror(errno));
    return bad;
}

static void print_results(const struct job *j, const struct tlm_model_info *m, const struct tlm_perplexity *p,
                          size_t rows, double seconds)
{
    static const char rule[] = "============================================================";
    char ratio[160];
    if (!j->human)
        return;
    out_print("\n\n%s\nEVALUATION RESULTS\n%s\nModel: %s\n", rule, rule, m->path);
    out_print("Perplexity: %.3f ± %.3f\n", p->perplexity, p->error);
    if (j->reference != NULL) {
        snprintf(ratio, sizeof ratio, "Perplexity ratio: %.4f ± %.4f\n", p->ratio, p->ratio_error);
        out_print("KL divergence: mean %.5f, p99 %.5f\nTop-1 agreement: %.2f%%\n%s", p->kl_mean, p->kl_p99,
                  100 * p->top1, ratio);
    }
    out_print("Key-value cache: %s, %.2f bits per element, %.1f MB allocated\n", m->kv_format, m->kv_bits,
              (double)p->cache_bytes * 1e-6);
    out_print("Evaluation time: %.2f seconds\nPeak memory: %.2f GB\nTokens per second: %.0f\n", seconds,
              (double)tlm_peak_memory() * 1e-9, (double)(rows * j->length) / seconds);
    out_print("\nDataset statistics:\n  Total samples: %zu\n  Total tokens: %zu\n", rows, rows * j->length);
}

static int measure(struct tlm_model *m, const struct job *j)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    struct tlm_perplexity p;
    struct tlm_perplexity_options o = {.row_length = j->length,
                                       .score_from = j->from,
                                       .batch = j->batch,
                                       .reference = j->reference,
                                       .report = report,
                                       .user = &j};
    char line[160];
    int32_t *rows;
    size_t n_rows;
    tlm_model_info_get(m, &info);
    snprintf(line, sizeof line, "Model loaded: %.1fM parameters\n\nLoading dataset...\n  Sequence length: %zu\n",
             (double)info.parameters * 1e-6, j->length);
    say(j, line);
    int status = make_rows(m, j, &rows, &n_rows);
    if (status != 0)
        return status;
    snprintf(line, sizeof line, "  Loaded %zu samples\n\nEvaluating perplexity with batch size %zu...\n", n_rows,
             j->batch);
    say(j, line);
    double start = now_seconds();
    catch_interrupt();
    if (tlm_model_perplexity(m, rows, n_rows, &o, &p, &e) != TLM_OK)
        status = interrupted() ? EXIT_INTERRUPTED : out_tlm_error(&e);
    if (status == 0) {
        double seconds = now_seconds() - start;
        print_results(j, &info, &p, n_rows, seconds);
        if (j->csv != NULL)
            status = write_csv(j, &info, &p, seconds);
    }
    tool_free(rows);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_model *m = NULL;
    const struct run_cache cache = run_cache_of(v + N_OPTIONS + RUN_N);
    struct job j = {.data = v[DATA_PATH].text,
                    .length = (size_t)v[SEQUENCE_LENGTH].integer,
                    .most = v[NUM_SAMPLES].integer < 0 ? SIZE_MAX : (size_t)v[NUM_SAMPLES].integer,
                    .from = (size_t)v[SCORE_FROM].integer,
                    .batch = (size_t)v[BATCH_SIZE].integer,
                    .wants_bos = v[BOS].given ? v[BOS].truth : -1,
                    .reference = v[KL_REFERENCE].text,
                    .csv = v[CSV].text};
    j.human = j.csv == NULL || strcmp(j.csv, "-") != 0;
    if (j.most == 0 || j.from >= j.length)
        return cli_usage_error(
            &perplexity_command, prog, j.most == 0 ? "--num-samples" : "--score-from",
            j.most == 0 ? "must be -1 or at least 1, but is 0" : "must be below --sequence-length, but is %zu", j.from);
    char line[600];
    snprintf(line, sizeof line, "Loading model from %.500s...\n", v[MODEL].text);
    say(&j, line);
    int status = run_open(v[MODEL].text, v + N_OPTIONS, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = measure(m, &j);
    tlm_model_close(m);
    return status;
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_N}, {run_cache_options, RUN_CACHE_N}, {NULL, 0}};

const struct command perplexity_command = {
    "perplexity",
    "measure how well a model foretells a text",
    "Perplexity of a text file, cut into rows, each scored through the key-value cache in its format. With "
    "--kl-reference the same rows go through a second cache, and the difference between the two is measured.",
    tables,
    run,
};
