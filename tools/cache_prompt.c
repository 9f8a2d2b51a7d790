/* turbolm cache_prompt: computes a prompt and saves its keys and values. */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"
#include "prompt.h"
#include "run.h"

enum {
    MODEL,
    ADAPTER_PATH,
    TRUST_REMOTE_CODE,
    EOS_TOKEN,
    MAX_KV_SIZE,
    PROMPT_CACHE_FILE,
    PROMPT,
    KV_BITS,
    KV_GROUP_SIZE,
    QUANTIZED_KV_START,
    N_OPTIONS
};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [ADAPTER_PATH] = RUN_ADAPTER_PATH_ROW,
    [TRUST_REMOTE_CODE] = RUN_TRUST_REMOTE_CODE_ROW,
    [EOS_TOKEN] = {"--eos-token", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                   "further token that ends texts which go on with this prompt"},
    [MAX_KV_SIZE] = RUN_MAX_KV_SIZE_ROW(0),
    [PROMPT_CACHE_FILE] = {"--prompt-cache-file", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                           "file to write, .safetensors is added where it is missing; replaced when it exists"},
    [PROMPT] = {"--prompt", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                "the user's message, taken as it is; - reads standard input"},
    [KV_BITS] = RUN_KV_BITS_ROW(0),
    [KV_GROUP_SIZE] = RUN_KV_GROUP_SIZE_ROW(0),
    [QUANTIZED_KV_START] = RUN_QUANTIZED_KV_START_ROW(0),
};

enum { POLL_MS = 50 };

extern const struct command cache_prompt_command;

struct progress {
    double start;
    int longest; /* line so far */
};

static void show(struct progress *p, size_t processed)
{
    char line[96];
    int n = snprintf(line, sizeof line, "\rProcessed %6zu tokens (%6.2f tok/s)", processed,
                     run_rate(processed, now_seconds() - p->start));
    p->longest = n > p->longest ? n : p->longest;
    out_print("%s%*s", line, p->longest - n, "");
    out_flush();
}

/* Until the request is done, whose last act is the file. */
static int follow(struct tlm_engine *engine, uint64_t id)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_event ev;
    struct progress p = {now_seconds(), 0};
    int cancelled = 0;
    do {
        if (tlm_engine_next(engine, POLL_MS, &ev, &e) != TLM_OK)
            return out_tlm_error(&e);
        if (ev.type == TLM_EVENT_PROGRESS)
            show(&p, ev.processed);
        if (ev.type == TLM_EVENT_PROGRESS && ev.processed == ev.total) {
            out_print("\nPeak memory: %.3f GB\nSaving...\n", (double)tlm_peak_memory() / 1e9);
            out_flush();
        }
        if (!cancelled && ev.type != TLM_EVENT_DONE && (interrupted() || terminated() || out_failed())) {
            tlm_engine_cancel(engine, id);
            cancelled = 1;
        }
    } while (ev.type != TLM_EVENT_DONE);
    if (ev.finish == TLM_FINISH_ERROR) {
        out_error("%s", ev.message != NULL ? ev.message : tlm_status_name(ev.status));
        return ev.status == TLM_OK ? 1 : tlm_status_exit(ev.status);
    }
    if (ev.finish != TLM_FINISH_CANCELLED)
        return 0;
    out_print("\n");
    return interrupted() ? EXIT_INTERRUPTED : 1;
}

/* What the original records of its tokenizer; free with cJSON_free. */
static char *tokenizer_config(const char *eos)
{
    cJSON *config = cJSON_CreateObject();
    char *text = NULL;
    if (cJSON_AddFalseToObject(config, "trust_remote_code") != NULL &&
        (eos == NULL || cJSON_AddStringToObject(config, "eos_token", eos) != NULL))
        text = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    if (text == NULL)
        out_error("out of memory");
    return text;
}

static int save(struct tlm_model *m, const struct cli_value *v, const char *text, const int32_t *ids, size_t n)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_engine_options o = {.prefill_step_size = (int)v[N_OPTIONS + RUN_PREFILL_STEP_SIZE].integer};
    char *config = tokenizer_config(v[EOS_TOKEN].text);
    struct tlm_prompt_save what = {v[PROMPT_CACHE_FILE].text, v[MODEL].text, config, text};
    struct tlm_request request = {.prompt = ids, .n_prompt = n, .save = &what};
    struct tlm_engine *engine = NULL;
    uint64_t id;
    tlm_sampling_default(&request.sampling);
    int status = config != NULL ? 0 : 1;
    if (status == 0 && tlm_engine_new(m, &o, &engine, &e) != TLM_OK)
        status = out_tlm_error(&e);
    catch_interrupt();
    catch_terminations(); /* the file in the making is the library's */
    if (status == 0 && tlm_engine_submit(engine, &request, &id, &e) != TLM_OK)
        status = out_tlm_error(&e);
    else if (status == 0)
        status = follow(engine, id);
    tlm_engine_free(engine);
    cJSON_free(config);
    end_if_terminated();
    return status;
}

static int cache_prompt(struct tlm_model *m, const struct cli_value *v, const char *text)
{
    struct prompt p = {.text = text, .is_whole = 1};
    struct tlm_model_info info;
    int32_t *ids = NULL;
    size_t n = 0;
    tlm_model_info_get(m, &info);
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    if (v[EOS_TOKEN].text != NULL && tlm_tokenizer_token_id(tlm_model_tokenizer(m), v[EOS_TOKEN].text) < 0) {
        out_error("'%s' is not a token for this tokenizer", v[EOS_TOKEN].text);
        return 2;
    }
    int status = prompt_encode(m, &p, &ids, &n);
    if (status == 0)
        status = save(m, v, text, ids, n);
    tlm_free(ids);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    const struct run_cache cache = {&v[MAX_KV_SIZE], &v[KV_BITS], &v[KV_GROUP_SIZE], &v[QUANTIZED_KV_START], NULL};
    struct tlm_model *m = NULL;
    const char *text = v[PROMPT].text;
    char *input = NULL;
    size_t len;
    int status = 0;
    if (*v[PROMPT_CACHE_FILE].text == '\0')
        return cli_usage_error(&cache_prompt_command, prog, "--prompt-cache-file", "the name is empty");
    if (strcmp(text, "-") == 0) {
        status = run_read_stdin(&input, &len);
        text = input;
    }
    if (status == 0)
        status = run_check_utf8("the prompt", text);
    if (status == 0)
        status = run_open(v[MODEL].text, v + N_OPTIONS, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = cache_prompt(m, v, text);
    tlm_model_close(m);
    tool_free(input);
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {run_options, RUN_N}, {NULL, 0}};

const struct command cache_prompt_command = {
    "cache_prompt", "Compute a prompt and save its key-value cache.",
    "generate --prompt-cache-file then goes on from there: its prompt is more text of the same message. The file is "
    "mlx-lm's, as far as mlx-lm has the cache's format, with what turbolm needs to tell whether it fits a model and "
    "a prompt. Of files that mlx-lm wrote only the model's name can be checked, and the prompt of generate is what "
    "follows in the message, whatever the cached text was.",
    tables, run};
