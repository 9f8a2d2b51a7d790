/* turbolm turboquant eval: what formats of the key-value cache cost and save,
 * as a table, a CSV file and a plot. All formats are measured against one pass
 * with a float16 cache. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <turbolm/turbolm.h>

#include "csv.h"
#include "out.h"
#include "run.h"
#include "text_rows.h"
#include "turboquant.h"

enum { MODEL, DATA_PATH, SEQUENCE_LENGTH, NUM_SAMPLES, SCORE_FROM, BATCH_SIZE, FORMATS, CSV, PLOT, N_OPTIONS };

static const char reference[] = "f16";
/* Measured beside f16 and the presets where no formats are named: mlx-lm's and mlx_turboquant's. */
static const char *const others[] = {"affine8", "affine4", "rot8", "rot4", "rot4+qjl", "rot3", "rot3+qjl"};
enum { N_OTHERS = sizeof others / sizeof others[0] };

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [DATA_PATH] =
        {"--data-path", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
         "text file, or - for standard input: one document, cut into whole rows in its order; or a data set as "
         "perplexity takes it with its default seed; by default a story of about 1,200 tokens that is part of the "
         "program"},
    [SEQUENCE_LENGTH] = {"--sequence-length", NULL, CLI_INT, CLI_EXTRA, "512", "2", "1000000000", NULL,
                         "tokens in a row"},
    [NUM_SAMPLES] = {"--num-samples", NULL, CLI_INT, CLI_EXTRA, "16", "-1", "1000000000", NULL,
                     "most rows, from the beginning of the text; -1: all"},
    [SCORE_FROM] = {"--score-from", NULL, CLI_INT, CLI_EXTRA, "1", "1", "1000000000", NULL,
                    "first position of a row that counts"},
    [BATCH_SIZE] = {"--batch-size", NULL, CLI_INT, CLI_EXTRA, "1", "1", "4096", NULL,
                    "rows computed at once; each has a cache in every format"},
    [FORMATS] = {"--formats", NULL, CLI_TEXTS, CLI_EXTRA, NULL, NULL, NULL, NULL,
                 "formats as --kv-format of other commands has them; by default f16, every preset, affine8, affine4 "
                 "and mlx_turboquant's rot8, rot4 and rot3, the last two also with +qjl, as far as the model's heads "
                 "allow them"},
    [CSV] = {"--csv", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
             "append a line for each format to this file, below a heading when it is new; - is standard output, and "
             "then nothing else is there"},
    [PLOT] = {"--plot", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
              "PNG file of KL divergence over bits per element; needs gnuplot"},
};

/* Of run_options: THREADS to PREFILL_STEP_SIZE, then KV_SINK. */
enum { RUN_FIRST = RUN_PREFILL_STEP_SIZE + 1 };

struct job {
    const char *model, *csv, *plot;
    struct text_rows text;
    size_t from, batch, pass_tokens, done;
    const char **formats;
    size_t n_formats;
    int all_formats; /* nobody named them */
    int64_t sink;
};

/* The formats that the model can have; one that was named must be one. */
static int choose_formats(const struct tlm_model *m, struct job *j)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n_formats; i++) {
        struct tlm_error e = {TLM_OK, ""};
        if (tlm_model_kv_check(m, j->formats[i], &e) == TLM_OK)
            j->formats[n++] = j->formats[i];
        else if (!j->all_formats)
            return out_tlm_error(&e);
        else
            out_warning("%s is left out: %s", j->formats[i], e.message);
    }
    j->n_formats = n;
    return 0;
}

static void name_formats(struct job *j, const struct cli_value *v)
{
    size_t presets = 0, n = 0;
    while (tlm_kv_preset(presets) != NULL)
        presets++;
    j->all_formats = !v->given;
    j->n_formats = v->given ? v->n_items : 1 + presets + N_OTHERS;
    j->formats = tool_alloc(j->n_formats, sizeof *j->formats);
    if (v->given) {
        memcpy(j->formats, v->items, v->n_items * sizeof *j->formats);
        return;
    }
    j->formats[n++] = reference;
    for (size_t i = 0; i < presets; i++)
        j->formats[n++] = tlm_kv_preset(i);
    for (size_t i = 0; i < N_OTHERS; i++)
        j->formats[n++] = others[i];
}

static int report(void *user, size_t done, size_t rows)
{
    struct job *j = user;
    if (isatty(2) && (done > j->done || done == 0))
        fprintf(stderr, "\r%zu of %zu rows%s", done, rows, done == rows ? "\r\033[K" : "");
    j->done = done;
    return interrupted();
}

static void print_table(const struct job *j, const struct tlm_perplexity *p, size_t rows)
{
    size_t width = strlen("format");
    if (j->csv != NULL && strcmp(j->csv, "-") == 0)
        return;
    for (size_t i = 0; i < j->n_formats; i++)
        width = strlen(j->formats[i]) > width ? strlen(j->formats[i]) : width;
    out_print("Model: %s\nText: %s, %zu rows of %zu tokens, %zu scored\n", j->model,
              j->text.inner != NULL ? "the program's own" : j->text.path, rows, j->text.length, p->tokens);
    out_print("Reference: %s; sink of the others: %lld tokens\n\n", reference, (long long)(j->sink + 63) / 64 * 64);
    out_print("%-*s  %9s  %15s  %18s  %10s  %10s  %7s  %11s  %9s\n", (int)width, "format", "bits/elem",
              "allocated bytes", "perplexity", "KL mean", "KL p99", "top-1", "logit error", "ppl ratio");
    for (size_t i = 0; i < j->n_formats; i++) {
        char ppl[64];
        snprintf(ppl, sizeof ppl, "%.3f +- %.3f", p[i].perplexity, p[i].error);
        out_print("%-*s  %9.3f  %15llu  %18s  %10.6f  %10.6f  %6.2f%%  %11.5f  %9.4f\n", (int)width, j->formats[i],
                  p[i].kv_bits, (unsigned long long)p[i].cache_bytes, ppl, p[i].kl_mean, p[i].kl_p99, 100 * p[i].top1,
                  p[i].logit_error, p[i].ratio);
    }
    out_print(
        "\nbits/elem: of a block that is encoded, scales and all; allocated bytes: all blocks of one row's cache, "
        "exact\nones included; KL: of the reference to the format, nats; logit error: mean difference from the "
        "reference's.\n");
    out_flush();
}

static void write_csv(const struct job *j, struct csv *c, const struct tlm_perplexity *p, size_t rows)
{
    for (size_t i = 0; i < j->n_formats; i++) {
        csv_text(c, j->model);
        csv_print(c, ",");
        csv_text(c, j->formats[i]);
        csv_print(c, ",%s,%.6f,%llu,%.9g,%.9g,%.9g,%.9g,%.9g,", p[i].kv_format, p[i].kv_bits,
                  (unsigned long long)p[i].cache_bytes, p[i].perplexity, p[i].error, p[i].kl_mean, p[i].kl_p99,
                  p[i].top1);
        csv_print(c, "%.9g,%.9g,%.9g,%.9g,%zu,%zu,%zu\n", p[i].ratio, p[i].ratio_error, p[i].logit_error,
                  p[i].logit_distance, rows, j->text.length, p[i].tokens);
    }
}

static int plot(const struct job *j, const struct tlm_perplexity *p)
{
    struct plot_point *points = tool_alloc(j->n_formats, sizeof *points);
    const char *slash = strrchr(j->model, '/');
    char title[200];
    for (size_t i = 0; i < j->n_formats; i++)
        points[i] = (struct plot_point){j->formats[i], p[i].kv_bits, p[i].kl_mean};
    snprintf(title, sizeof title, "%.100s: cache formats against %s", slash != NULL && slash[1] ? slash + 1 : j->model,
             reference);
    int status = plot_write(j->plot, title, "bits per element of an encoded block", "mean KL divergence, nats", points,
                            j->n_formats);
    tool_free(points);
    return status;
}

static struct tlm_model *computing; /* for the handler of Ctrl-C */

static void cancel(void)
{
    tlm_model_cancel(computing);
}

static int measure(struct tlm_model *m, struct job *j, struct csv *csv)
{
    struct tlm_error e = {TLM_OK, ""};
    int32_t *rows;
    size_t n_rows;
    int status = choose_formats(m, j);
    if (status == 0)
        status = text_rows_read(m, &j->text, &rows, &n_rows);
    if (status != 0)
        return status;
    struct tlm_perplexity *p = tool_alloc(j->n_formats, sizeof *p);
    struct tlm_perplexity_options o = {.row_length = j->text.length,
                                       .score_from = j->from,
                                       .batch = j->batch,
                                       .pass_tokens = j->pass_tokens,
                                       .reference = reference,
                                       .formats = j->formats,
                                       .n_formats = j->n_formats,
                                       .report = report,
                                       .user = j};
    computing = m;
    set_signal_hooks(cancel, NULL);
    catch_interrupt();
    if (tlm_model_perplexity(m, rows, n_rows, &o, p, &e) != TLM_OK)
        status = interrupted() ? EXIT_INTERRUPTED : out_tlm_error(&e);
    set_signal_hooks(NULL, NULL); /* the model will be closed */
    release_interrupt();
    if (status == 0) {
        print_table(j, p, n_rows);
        if (j->csv != NULL)
            write_csv(j, csv, p, n_rows);
        if (j->plot != NULL)
            status = plot(j, p);
    }
    tool_free(p);
    tool_free(rows);
    return status;
}

static char *own_text(void)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < turboquant_text_parts; i++)
        n += strlen(turboquant_text[i]);
    char *text = tool_alloc(n + 1, 1);
    for (size_t i = 0; i < turboquant_text_parts; i++) {
        size_t len = strlen(turboquant_text[i]);
        memcpy(text + at, turboquant_text[i], len);
        at += len;
    }
    return text;
}

static int run_with(struct job *j, const struct cli_value *shared, struct csv *csv)
{
    static const struct cli_value no_cache[RUN_CACHE_N];
    const struct run_cache cache = run_cache_of(no_cache);
    struct cli_value of_run[RUN_N] = {{0}};
    struct tlm_model *m = NULL;
    for (int i = 0; i < RUN_FIRST; i++)
        of_run[i] = shared[i];
    of_run[RUN_KV_SINK] = shared[RUN_FIRST];
    of_run[RUN_KV_SINK].given = 0; /* of the formats that are measured, not of the model's own cache */
    int status = run_open(j->model, of_run, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = measure(m, j, csv);
    tlm_model_close(m);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    static const char heading[] =
        "model,format,kv_format,bits,allocated_bytes,ppl,ppl_se,kl_mean,kl_p99,top1,ppl_ratio,"
        "ppl_ratio_se,logit_error,logit_max,rows,row_length,tokens\n";
    const struct cli_value *shared = v + N_OPTIONS;
    struct csv csv = {0};
    char *inner = v[DATA_PATH].given ? NULL : own_text();
    struct job j = {.model = v[MODEL].text,
                    .csv = v[CSV].text,
                    .plot = v[PLOT].text,
                    .text = {.path = inner != NULL ? "the program's own text" : v[DATA_PATH].text,
                             .inner = inner,
                             .length = (size_t)v[SEQUENCE_LENGTH].integer,
                             .most = v[NUM_SAMPLES].integer < 0 ? SIZE_MAX : (size_t)v[NUM_SAMPLES].integer,
                             .bos = -1,
                             .seed = 123},
                    .from = (size_t)v[SCORE_FROM].integer,
                    .batch = (size_t)v[BATCH_SIZE].integer,
                    .pass_tokens = (size_t)shared[RUN_PREFILL_STEP_SIZE].integer,
                    .sink = shared[RUN_FIRST].integer};
    int status = 0;
    if (j.text.most == 0)
        status = cli_usage_error(&turboquant_eval_command, prog, "--num-samples", "must be -1 or at least 1, but is 0");
    else if (j.from >= j.text.length)
        status = cli_usage_error(&turboquant_eval_command, prog, "--score-from",
                                 "must be below --sequence-length, but is %zu", j.from);
    if (status == 0 && j.plot != NULL)
        status = plot_check(j.plot);
    if (status == 0)
        status = text_rows_open(&j.text);
    if (status == 0 && j.csv != NULL)
        status = csv_open(&csv, j.csv, heading);
    if (status == 0) {
        name_formats(&j, &v[FORMATS]);
        status = csv_close(&csv, run_with(&j, shared, &csv));
    }
    text_rows_close(&j.text);
    tool_free(j.formats);
    tool_free(inner);
    return status;
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_FIRST}, {run_options + RUN_KV_SINK, 1}, {NULL, 0}};

const struct command turboquant_eval_command = {
    .name = "eval",
    .summary = "measure formats of the key-value cache against float16",
    .about = "Perplexity of a text through the cache in each format, and the difference from a cache in float16: KL "
             "divergence, agreement on the best token, error of the logits. Beside them stand the bits per element of "
             "an encoded block and the bytes of a row's whole cache, whose first and newest tokens are exact. The "
             "caches of all formats are in memory together.",
    .tables = tables,
    .run = run,
};
