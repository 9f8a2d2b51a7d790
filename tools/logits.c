/* turbolm logits: the logits of every position of a text as a NumPy file. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "npy.h"
#include "out.h"
#include "run.h"

enum { MODEL, IDS, PROMPT, OUT, DECODE_FROM, N_OPTIONS };

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [IDS] = {"--ids", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL, "token ids, like \"1 2 3\"; needs no tokenizer"},
    [PROMPT] = {"--prompt", "-p", CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                "text, with the special tokens that its tokenizer adds and no chat template"},
    [OUT] = {"--out", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
             "NumPy file to write: float32 [tokens, vocabulary]"},
    [DECODE_FROM] = {"--decode-from", NULL, CLI_INT, 0, NULL, "0", NULL, NULL,
                     "feed the rows from this one on one by one, by default none"},
};

extern const struct command logits_command;

struct sink {
    struct npy_writer npy;
    size_t rows;
    int status; /* of writing, after a message */
};

static enum tlm_status take_row(void *user, size_t row, const float *logits, size_t vocab_size)
{
    struct sink *s = user;
    if (interrupted())
        return TLM_ECANCELED;
    if (row == 0)
        s->status = npy_shape(&s->npy, s->rows, vocab_size);
    if (s->status == 0)
        s->status = npy_row(&s->npy, logits);
    return s->status == 0 ? TLM_OK : TLM_EIO;
}

/* For the handler of Ctrl-C. */
static struct tlm_model *computing;

static void cancel(void)
{
    tlm_model_cancel(computing);
}

static int compute(struct tlm_model *m, const struct cli_value *v, const int32_t *ids, size_t n)
{
    struct tlm_error e = {TLM_OK, ""};
    struct sink sink = {.rows = n};
    size_t decode_from = v[DECODE_FROM].given ? (size_t)v[DECODE_FROM].integer : n;
    size_t step = (size_t)v[N_OPTIONS + RUN_PREFILL_STEP_SIZE].integer;
    if (decode_from > n) {
        out_error("--decode-from %zu is beyond the %zu tokens", decode_from, n);
        return 2;
    }
    computing = m;
    set_signal_hooks(cancel, NULL);
    catch_interrupt();
    int status = npy_open(&sink.npy, v[OUT].text);
    if (status == 0) {
        enum tlm_status s = tlm_model_logits(m, ids, n, decode_from, step, take_row, &sink, &e);
        if (interrupted())
            status = EXIT_INTERRUPTED;
        else if (sink.status != 0)
            status = sink.status;
        else if (s != TLM_OK)
            status = out_tlm_error(&e);
    }
    set_signal_hooks(NULL, NULL); /* the model will be closed */
    status = npy_end(&sink.npy, status);
    npy_free(&sink.npy);
    return status;
}

/* 0, or the exit status after a message. *by_library: free with tlm_free. */
static int read_ids(const struct tlm_model *m, const char *prog, const struct cli_value *v, int32_t **ids, size_t *n,
                    int *by_library)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    char message[128];
    tlm_model_info_get(m, &info);
    *by_library = v[PROMPT].given;
    if (v[IDS].given) {
        *ids = run_parse_ids(v[IDS].text, info.vocab_size, n, message, sizeof message);
        return *ids != NULL ? 0 : cli_usage_error(&logits_command, prog, "--ids", "%s", message);
    }
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer; --ids works without", info.path);
        return 1;
    }
    if (tlm_tokenizer_encode(tlm_model_tokenizer(m), v[PROMPT].text, strlen(v[PROMPT].text), TLM_ENCODE_SPECIAL, ids, n,
                             &e) != TLM_OK)
        return out_tlm_error(&e);
    if (*n > 0)
        return run_check_ids(m, *ids, *n);
    out_error("the prompt is empty");
    return 2;
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_model *m = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int by_library = 0;
    const struct run_cache cache = run_cache_of(v + N_OPTIONS + RUN_N);
    if (v[IDS].given && v[PROMPT].given)
        return cli_usage_error(&logits_command, prog, "--prompt", "not allowed with argument --ids");
    if (!v[IDS].given && !v[PROMPT].given)
        return cli_usage_error(&logits_command, prog, NULL, "one of the arguments --ids --prompt/-p is required");
    if (*v[OUT].text == '\0')
        return cli_usage_error(&logits_command, prog, "--out", "the name is empty");
    int status = run_check_utf8("the prompt", v[PROMPT].text);
    if (status == 0)
        status = run_open(v[MODEL].text, v + N_OPTIONS, &cache, TLM_PRECISION_EXACT, &m);
    if (status == 0)
        status = read_ids(m, prog, v, &ids, &n, &by_library);
    if (status == 0)
        status = compute(m, v, ids, n);
    if (by_library)
        tlm_free(ids);
    else
        tool_free(ids);
    tlm_model_close(m);
    return status;
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_N}, {run_cache_options, RUN_CACHE_N}, {NULL, 0}};

const struct command logits_command = {"logits", "Write the logits of every position of a text to a NumPy file.",
                                       "Exact mode by default.", tables, run};
