/* turbolm generate: one prompt, its continuation as it comes, statistics. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"
#include "prompt.h"
#include "run.h"

enum {
    MODEL,
    TRUST_REMOTE_CODE,
    ADAPTER_PATH,
    EXTRA_EOS_TOKEN,
    SYSTEM_PROMPT,
    PROMPT,
    PREFILL_RESPONSE,
    MAX_TOKENS,
    SAMPLING,
    SAMPLING_LAST = SAMPLING + RUN_SAMPLING_N - 1,
    SEED,
    IGNORE_CHAT_TEMPLATE,
    USE_DEFAULT_CHAT_TEMPLATE,
    CHAT_TEMPLATE_CONFIG,
    VERBOSE,
    MAX_KV_SIZE,
    PROMPT_CACHE_FILE,
    QUANTIZE_ACTIVATIONS,
    KV_BITS,
    KV_GROUP_SIZE,
    QUANTIZED_KV_START,
    DRAFT_MODEL,
    NUM_DRAFT_TOKENS,
    N_OPTIONS
};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = {"--model", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
               "model directory (Hugging Face or MLX), GGUF file, or name on a hub: org/name[@revision], for GGUF "
               "org/name:FILE or org/name:Q4_K_M; required unless a prompt cache file names it"},
    [TRUST_REMOTE_CODE] = RUN_TRUST_REMOTE_CODE_ROW,
    [ADAPTER_PATH] = RUN_ADAPTER_PATH_ROW,
    [EXTRA_EOS_TOKEN] = {"--extra-eos-token", NULL, CLI_TEXTS, 0, NULL, NULL, NULL, NULL,
                         "further tokens, or their ids, that end the text"},
    [SYSTEM_PROMPT] = RUN_SYSTEM_PROMPT_ROW,
    [PROMPT] = {"--prompt", "-p", CLI_TEXT, 0, "hello", NULL, NULL, NULL,
                "the user's message, in which \\n and \\t are a newline and a tab; - reads standard input"},
    [PREFILL_RESPONSE] = {"--prefill-response", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                          "start of the answer, which the model goes on with"},
    [MAX_TOKENS] = RUN_MAX_TOKENS_ROW("100"),
    RUN_SAMPLING_ROWS(SAMPLING, 0),
    [SEED] = {"--seed", NULL, CLI_NATURAL, 0, NULL, NULL, NULL, NULL,
              "seed of the random numbers, by default the time"},
    [IGNORE_CHAT_TEMPLATE] = {"--ignore-chat-template", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL,
                              "give the prompt to the model as it is"},
    [USE_DEFAULT_CHAT_TEMPLATE] = {"--use-default-chat-template", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL,
                                   "fail when the model has no chat template"},
    [CHAT_TEMPLATE_CONFIG] = RUN_CHAT_TEMPLATE_CONFIG_ROW(0),
    [VERBOSE] = {"--verbose", NULL, CLI_BOOL, 0, "True", NULL, NULL, NULL,
                 "false prints the text alone, without statistics"},
    [MAX_KV_SIZE] = RUN_MAX_KV_SIZE_ROW(0),
    [PROMPT_CACHE_FILE] = {"--prompt-cache-file", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                           "file of cache_prompt: the prompt goes on with the one in it"},
    [QUANTIZE_ACTIVATIONS] = {"--quantize-activations", "-qa", CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL,
                              "quantise activations in the model's format"},
    [KV_BITS] = RUN_KV_BITS_ROW(0),
    [KV_GROUP_SIZE] = RUN_KV_GROUP_SIZE_ROW(0),
    [QUANTIZED_KV_START] = RUN_QUANTIZED_KV_START_ROW(0),
    [DRAFT_MODEL] = {"--draft-model", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL,
                     "small model for speculative decoding"},
    [NUM_DRAFT_TOKENS] = {"--num-draft-tokens", NULL, CLI_INT, CLI_LATER, NULL, NULL, NULL, NULL,
                          "tokens that the draft model proposes at a time"},
};

extern const struct command generate_command;

enum { POLL_MS = 50 };

/* The model's ends of text and the user's; *out has n ids, free with tool_free.
 * Returns 0, or the exit status after a message. */
static int eos_from(const struct tlm_model *m, const struct cli_value *extra, const struct tlm_prompt_cache *cache,
                    int32_t **out, size_t *n)
{
    struct tlm_model_info info;
    size_t n_model = 0;
    const int32_t *model = tlm_model_eos(m, &n_model);
    tlm_model_info_get(m, &info);
    *out = tool_alloc(n_model + extra->n_items + 2, sizeof **out);
    if (n_model > 0)
        memcpy(*out, model, n_model * sizeof **out);
    *n = n_model;
    for (size_t i = 0; i < extra->n_items; i++) {
        const char *text = extra->items[i];
        int negative, overflow;
        uint64_t number;
        int64_t id = tlm_tokenizer_token_id(tlm_model_tokenizer(m), text);
        if (cli_read_integer(text, &negative, &number, &overflow)) {
            int inside = !overflow && (!negative || number == 0) && number < (uint64_t)info.vocab_size;
            id = inside ? (int64_t)number : -1;
        }
        if (id < 0) {
            out_error("'%s' is not a token for this tokenizer", text);
            return 2;
        }
        (*out)[(*n)++] = (int32_t)id;
    }
    int32_t recorded;
    int status = prompt_cache_eos(m, cache, &recorded);
    if (recorded >= 0)
        (*out)[(*n)++] = recorded;
    return status;
}

struct outcome {
    struct tlm_stats stats;
    enum tlm_finish finish;
    int any_text;
    int status; /* exit status, after a message */
};

/* Prints text as it comes until the request is done. */
static void stream(struct tlm_engine *engine, uint64_t id, struct outcome *r)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_event ev;
    int cancelled = 0;
    do {
        if (tlm_engine_next(engine, POLL_MS, &ev, &e) != TLM_OK) {
            r->status = out_tlm_error(&e);
            return;
        }
        if (ev.text != NULL && ev.text_len > 0 && (ev.type == TLM_EVENT_TOKEN || ev.type == TLM_EVENT_DONE)) {
            r->any_text = 1;
            out_write(ev.text, ev.text_len);
            out_flush();
        }
        if (!cancelled && ev.type != TLM_EVENT_DONE && (interrupted() || out_failed())) {
            tlm_engine_cancel(engine, id);
            cancelled = 1;
        }
    } while (ev.type != TLM_EVENT_DONE);
    r->stats = ev.stats;
    r->finish = ev.finish;
    if (ev.finish == TLM_FINISH_ERROR) {
        out_print("\n");
        out_error("%s", ev.message != NULL ? ev.message : tlm_status_name(ev.status));
        r->status = ev.status == TLM_OK ? 1 : tlm_status_exit(ev.status);
    } else if (interrupted()) {
        r->status = EXIT_INTERRUPTED;
    }
}

static void print_statistics(const struct outcome *r)
{
    const struct tlm_stats *s = &r->stats;
    out_print("==========\n");
    if (!r->any_text) {
        out_print("No text generated for this prompt\n");
        return;
    }
    size_t computed = s->prompt_tokens - s->cached_tokens;
    out_print("Prompt: %zu tokens, %.3f tokens-per-sec\n", computed, run_rate(computed, s->prompt_seconds));
    out_print("Generation: %zu tokens, %.3f tokens-per-sec\n", s->generated_tokens,
              run_rate(s->generated_tokens, s->generation_seconds));
    out_print("Peak memory: %.3f GB\n", (double)tlm_peak_memory() / 1e9);
}

/* A word when the prompt does not go on with the one in the file. */
static void warn_of_little_use(const struct tlm_model *m, const struct tlm_request *request)
{
    enum { JOINT = 16 }; /* tokens at the end of the file that text after them may change */
    struct tlm_prompt_cache_info f;
    char hash[TLM_SHA256_TEXT];
    size_t k = 0;
    if (request->prompt_cache == NULL)
        return;
    tlm_prompt_cache_info_get(request->prompt_cache, &f);
    while (f.tokens != NULL && k < request->n_prompt && k < f.n_tokens && request->prompt[k] == f.tokens[k])
        k++;
    if (f.tokens == NULL || k + JOINT >= f.n_tokens)
        return;
    tlm_model_template_hash(m, hash);
    out_warning("the prompt has only the first %zu of the %zu tokens in --prompt-cache-file%s", k, f.n_tokens,
                f.chat_template != NULL && strcmp(f.chat_template, hash) != 0
                    ? ", which was made with another chat template"
                    : "");
}

static int submit_and_stream(const struct tlm_model *m, struct tlm_engine *engine, const struct tlm_request *request,
                             int verbose, int64_t context)
{
    struct tlm_error e = {TLM_OK, ""};
    struct outcome r = {.status = 0};
    uint64_t id;
    catch_interrupt();
    if (tlm_engine_submit(engine, request, &id, &e) != TLM_OK)
        return out_tlm_error(&e);
    warn_of_little_use(m, request); /* of a file that is taken */
    if (verbose) {
        out_print("==========\n");
        out_flush();
    }
    stream(engine, id, &r);
    if (r.finish == TLM_FINISH_ERROR || r.finish == TLM_FINISH_NONE)
        return r.status;
    out_print("\n");
    if (verbose)
        print_statistics(&r);
    else if (!r.any_text)
        out_warning("no text generated for this prompt%s", request->max_tokens == 0 ? ": --max-tokens is 0" : "");
    run_warn_of_context(request, &r.stats, r.finish, context);
    return r.status;
}

static int generate(struct tlm_model *m, const struct cli_value *v, const struct prompt *p,
                    const struct tlm_prompt_cache *cache)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    struct tlm_request request = {.max_tokens = v[MAX_TOKENS].integer, .prompt_cache = cache};
    struct tlm_engine_options engine_options = {.prefix_cache_bytes = -1};
    struct tlm_engine *engine = NULL;
    int32_t *ids = NULL, *eos = NULL;
    int status;
    tlm_model_info_get(m, &info);
    engine_options.prefill_step_size = (int)v[N_OPTIONS + RUN_PREFILL_STEP_SIZE].integer;
    run_sampling(v + SAMPLING, &request.sampling);
    request.sampling.has_seed = v[SEED].given;
    request.sampling.seed = v[SEED].natural;
    if (tlm_sampling_check(&request.sampling, (size_t)info.vocab_size, &e) != TLM_OK)
        return out_tlm_error(&e);
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    status = eos_from(m, &v[EXTRA_EOS_TOKEN], cache, &eos, &request.n_eos);
    if (status == 0)
        status = prompt_encode(m, p, &ids, &request.n_prompt);
    request.prompt = ids;
    request.eos = eos;
    if (status == 0 && tlm_engine_new(m, &engine_options, &engine, &e) != TLM_OK)
        status = out_tlm_error(&e);
    if (status == 0)
        status = submit_and_stream(m, engine, &request, v[VERBOSE].truth, info.context_length);
    tlm_engine_free(engine);
    tlm_free(ids);
    tool_free(eos);
    return status;
}

/* The prompt's text: the flag's with its escapes read, or standard input. */
static int read_prompt(const struct cli_value *v, struct prompt *p, char **text)
{
    size_t len;
    int status = 0;
    *text = prompt_expand(v[PROMPT].text);
    if (strcmp(*text, "-") == 0) {
        tool_free(*text);
        *text = NULL;
        status = run_read_stdin(text, &len);
    }
    *p = (struct prompt){*text,
                         v[SYSTEM_PROMPT].text,
                         v[PREFILL_RESPONSE].text,
                         v[CHAT_TEMPLATE_CONFIG].text,
                         v[IGNORE_CHAT_TEMPLATE].truth,
                         v[USE_DEFAULT_CHAT_TEMPLATE].truth,
                         0,
                         0};
    if (status == 0)
        status = run_check_utf8("the prompt", p->text);
    if (status == 0)
        status = run_check_utf8("--system-prompt", p->system);
    if (status == 0)
        status = run_check_utf8("--prefill-response", p->prefill);
    if (status == 0)
        status = run_check_utf8("--chat-template-config", p->kwargs);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_model *m = NULL;
    struct tlm_prompt_cache *file = NULL;
    struct tlm_prompt_cache_info info;
    struct prompt p;
    char *text = NULL;
    const char *model = v[MODEL].text;
    struct run_cache cache = {&v[MAX_KV_SIZE], &v[KV_BITS], &v[KV_GROUP_SIZE], &v[QUANTIZED_KV_START], NULL};
    int status;
    if (v[IGNORE_CHAT_TEMPLATE].truth && v[USE_DEFAULT_CHAT_TEMPLATE].truth) {
        out_error("--ignore-chat-template and --use-default-chat-template exclude each other");
        return 2;
    }
    if (model == NULL && v[PROMPT_CACHE_FILE].text == NULL)
        return cli_usage_error(&generate_command, prog, NULL, "the following arguments are required: --model");
    status = read_prompt(v, &p, &text);
    if (status == 0 && v[PROMPT_CACHE_FILE].text != NULL) {
        status = prompt_cache_use(v[PROMPT_CACHE_FILE].text, &file, &model, &p, &text);
        if (status == 0)
            tlm_prompt_cache_info_get(file, &info);
        cache.file = &info;
    }
    if (status == 0)
        status = run_open(model, v + N_OPTIONS, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = generate(m, v, &p, file);
    tlm_model_close(m);
    tlm_prompt_cache_close(file);
    tool_free(text);
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {run_options, RUN_N}, {NULL, 0}};

const struct command generate_command = {
    "generate", "Generate text from a prompt.",
    "The prompt goes through the model's chat template, where it has one. The text is printed as it comes; Ctrl-C "
    "ends it with the statistics of what there is. Options that are not supported yet are refused.",
    tables, run};
