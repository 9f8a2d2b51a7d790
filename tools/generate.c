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
    TEMP,
    TOP_P,
    MIN_P,
    TOP_K,
    XTC_PROBABILITY,
    XTC_THRESHOLD,
    MIN_TOKENS_TO_KEEP,
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
    [MODEL] = RUN_MODEL_ROW,
    [TRUST_REMOTE_CODE] = {"--trust-remote-code", NULL, CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL,
                           "run code that comes with a model"},
    [ADAPTER_PATH] = {"--adapter-path", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL,
                      "directory of adapter weights"},
    [EXTRA_EOS_TOKEN] = {"--extra-eos-token", NULL, CLI_TEXTS, 0, NULL, NULL, NULL, NULL,
                         "further tokens, or their ids, that end the text"},
    [SYSTEM_PROMPT] = {"--system-prompt", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                       "system message for the chat template"},
    [PROMPT] = {"--prompt", "-p", CLI_TEXT, 0, "hello", NULL, NULL, NULL,
                "the user's message, in which \\n and \\t are a newline and a tab; - reads standard input"},
    [PREFILL_RESPONSE] = {"--prefill-response", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                          "start of the answer, which the model goes on with"},
    [MAX_TOKENS] = {"--max-tokens", "-m", CLI_INT, 0, "100", "-1", NULL, NULL,
                    "most tokens to generate; -1: until the text or the context ends"},
    [TEMP] = {"--temp", NULL, CLI_FLOAT, 0, "0.0", "0", NULL, NULL, "temperature; 0 always takes the best token"},
    [TOP_P] = {"--top-p", NULL, CLI_FLOAT, 0, "1.0", "0", "1", NULL,
               "draw from the best tokens that have this probability together; 0 and 1: from all"},
    [MIN_P] = {"--min-p", NULL, CLI_FLOAT, 0, "0.0", "0", "1", NULL,
               "drop tokens below this share of the best one's probability; 0: none"},
    [TOP_K] = {"--top-k", NULL, CLI_INT, 0, "0", "0", "2147483647", NULL,
               "draw from this many of the best tokens; 0: from all"},
    [XTC_PROBABILITY] = {"--xtc-probability", NULL, CLI_FLOAT, 0, "0.0", "0", "1", NULL,
                         "how often XTC drops the top choices"},
    [XTC_THRESHOLD] = {"--xtc-threshold", NULL, CLI_FLOAT, 0, "0.1", "0", "0.5", NULL,
                       "probability from which on a token is a top choice of XTC"},
    [MIN_TOKENS_TO_KEEP] = {"--min-tokens-to-keep", NULL, CLI_INT, 0, "1", "1", "2147483647", NULL,
                            "tokens that --min-p never drops"},
    [SEED] = {"--seed", NULL, CLI_NATURAL, 0, NULL, NULL, NULL, NULL,
              "seed of the random numbers, by default the time"},
    [IGNORE_CHAT_TEMPLATE] = {"--ignore-chat-template", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL,
                              "give the prompt to the model as it is"},
    [USE_DEFAULT_CHAT_TEMPLATE] = {"--use-default-chat-template", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL,
                                   "fail when the model has no chat template"},
    [CHAT_TEMPLATE_CONFIG] = {"--chat-template-config", NULL, CLI_OBJECT, 0, NULL, NULL, NULL, NULL,
                              "JSON object of further variables for the chat template"},
    [VERBOSE] = {"--verbose", NULL, CLI_BOOL, 0, "True", NULL, NULL, NULL,
                 "false prints the text alone, without statistics"},
    [MAX_KV_SIZE] = {"--max-kv-size", NULL, CLI_INT, CLI_LATER, NULL, NULL, NULL, NULL,
                     "most tokens in the key-value cache"},
    [PROMPT_CACHE_FILE] = {"--prompt-cache-file", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL,
                           "file of a prompt that was computed before"},
    [QUANTIZE_ACTIVATIONS] = {"--quantize-activations", "-qa", CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL,
                              "quantise activations in the model's format"},
    [KV_BITS] = {"--kv-bits", NULL, CLI_INT, CLI_LATER, NULL, NULL, NULL, NULL, "bits of a quantised key-value cache"},
    [KV_GROUP_SIZE] = {"--kv-group-size", NULL, CLI_INT, CLI_LATER, NULL, NULL, NULL, NULL,
                       "group size of a quantised key-value cache"},
    [QUANTIZED_KV_START] = {"--quantized-kv-start", NULL, CLI_INT, CLI_LATER, NULL, NULL, NULL, NULL,
                            "token from which on the cache is quantised"},
    [DRAFT_MODEL] = {"--draft-model", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL,
                     "small model for speculative decoding"},
    [NUM_DRAFT_TOKENS] = {"--num-draft-tokens", NULL, CLI_INT, CLI_LATER, NULL, NULL, NULL, NULL,
                          "tokens that the draft model proposes at a time"},
};

enum { POLL_MS = 50 };

static void sampling_from(const struct cli_value *v, struct tlm_sampling *s)
{
    tlm_sampling_default(s);
    s->temperature = (float)v[TEMP].number;
    s->top_p = (float)v[TOP_P].number;
    s->min_p = (float)v[MIN_P].number;
    s->min_tokens_to_keep = (int)v[MIN_TOKENS_TO_KEEP].integer;
    s->top_k = (int)v[TOP_K].integer;
    s->xtc_probability = (float)v[XTC_PROBABILITY].number;
    s->xtc_threshold = (float)v[XTC_THRESHOLD].number;
    s->has_seed = v[SEED].given;
    s->seed = v[SEED].natural;
    if (v[XTC_THRESHOLD].given && s->xtc_probability <= 0)
        out_warning("--xtc-threshold has no effect without --xtc-probability");
    if (v[MIN_TOKENS_TO_KEEP].given && s->min_p <= 0)
        out_warning("--min-tokens-to-keep has no effect without --min-p");
}

/* The model's ends of text and the user's; *out has n ids, free with tool_free.
 * Returns 0, or the exit status after a message. */
static int eos_from(const struct tlm_model *m, const struct cli_value *extra, int32_t **out, size_t *n)
{
    struct tlm_model_info info;
    size_t n_model = 0;
    const int32_t *model = tlm_model_eos(m, &n_model);
    tlm_model_info_get(m, &info);
    *out = tool_alloc(n_model + extra->n_items + 1, sizeof **out);
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
    return 0;
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

static double rate(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

static void print_statistics(const struct outcome *r)
{
    const struct tlm_stats *s = &r->stats;
    out_print("==========\n");
    if (!r->any_text) {
        out_print("No text generated for this prompt\n");
        return;
    }
    out_print("Prompt: %zu tokens, %.3f tokens-per-sec\n", s->prompt_tokens, rate(s->prompt_tokens, s->prompt_seconds));
    out_print("Generation: %zu tokens, %.3f tokens-per-sec\n", s->generated_tokens,
              rate(s->generated_tokens, s->generation_seconds));
    out_print("Peak memory: %.3f GB\n", (double)tlm_peak_memory() / 1e9);
}

/* Says what the statistics do not: an early end, or text that the model was
 * not made for. */
static void warn_of_context(const struct outcome *r, const struct tlm_request *request, int64_t context)
{
    int64_t generated = (int64_t)r->stats.generated_tokens, prompt = (int64_t)request->n_prompt;
    if (r->finish == TLM_FINISH_LENGTH && generated != request->max_tokens)
        out_warning("the text ends after %lld tokens because the context is full", (long long)generated);
    else if (context > 0 && prompt + generated > context)
        out_warning("prompt and text have %lld tokens, the model's context %lld", (long long)(prompt + generated),
                    (long long)context);
}

static int submit_and_stream(struct tlm_engine *engine, const struct tlm_request *request, int verbose, int64_t context)
{
    struct tlm_error e = {TLM_OK, ""};
    struct outcome r = {.status = 0};
    uint64_t id;
    catch_interrupt();
    if (tlm_engine_submit(engine, request, &id, &e) != TLM_OK)
        return out_tlm_error(&e);
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
    warn_of_context(&r, request, context);
    return r.status;
}

static int generate(struct tlm_model *m, const struct cli_value *v, const struct prompt *p)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    struct tlm_request request = {.max_tokens = v[MAX_TOKENS].integer};
    struct tlm_engine_options engine_options = {0};
    struct tlm_engine *engine = NULL;
    int32_t *ids = NULL, *eos = NULL;
    int status;
    tlm_model_info_get(m, &info);
    engine_options.prefill_step_size = (int)v[N_OPTIONS + RUN_PREFILL_STEP_SIZE].integer;
    sampling_from(v, &request.sampling);
    if (tlm_sampling_check(&request.sampling, (size_t)info.vocab_size, &e) != TLM_OK)
        return out_tlm_error(&e);
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    status = eos_from(m, &v[EXTRA_EOS_TOKEN], &eos, &request.n_eos);
    if (status == 0)
        status = prompt_encode(m, p, &ids, &request.n_prompt);
    request.prompt = ids;
    request.eos = eos;
    if (status == 0 && tlm_engine_new(m, &engine_options, &engine, &e) != TLM_OK)
        status = out_tlm_error(&e);
    if (status == 0)
        status = submit_and_stream(engine, &request, v[VERBOSE].truth, info.context_length);
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
                         v[USE_DEFAULT_CHAT_TEMPLATE].truth};
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
    struct prompt p;
    char *text = NULL;
    int status;
    (void)prog;
    if (v[IGNORE_CHAT_TEMPLATE].truth && v[USE_DEFAULT_CHAT_TEMPLATE].truth) {
        out_error("--ignore-chat-template and --use-default-chat-template exclude each other");
        return 2;
    }
    status = read_prompt(v, &p, &text);
    if (status == 0)
        status = run_open(v[MODEL].text, v + N_OPTIONS, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = generate(m, v, &p);
    tlm_model_close(m);
    tool_free(text);
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {run_options, RUN_N}, {NULL, 0}};

const struct command generate_command = {
    "generate", "Generate text from a prompt.",
    "The prompt goes through the model's chat template, where it has one. The text is printed as it comes; Ctrl-C "
    "ends it with the statistics of what there is. Options that are not supported yet are refused.",
    tables, run};
