/* What every command that runs a model shares: its options, opening, input. */
#ifndef TOOLS_RUN_H
#define TOOLS_RUN_H

#include <stdio.h>

#include <turbolm/turbolm.h>

#include "cli.h"

/* Rows of the table that such a command adds to its own, in this order. */
enum run_option {
    RUN_THREADS,
    RUN_DEVICE,
    RUN_PRECISION,
    RUN_PREFILL_STEP_SIZE,
    RUN_KV_FORMAT,
    RUN_KV_SINK,
    RUN_QJL,
    RUN_N
};
extern const struct cli_option run_options[RUN_N];

/* The row of --model. */
#define RUN_MODEL_ROW                                                                                                  \
    {                                                                                                                  \
        "--model", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,                                               \
            "model directory (Hugging Face or MLX), GGUF file, or name on a hub: org/name[@revision], "                \
            "for GGUF org/name:FILE or org/name:Q4_K_M"                                                                \
    }

#define RUN_TRUST_REMOTE_CODE_ROW                                                                                      \
    {                                                                                                                  \
        "--trust-remote-code", NULL, CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL, "run code that comes with a model"   \
    }
#define RUN_ADAPTER_PATH_ROW                                                                                           \
    {                                                                                                                  \
        "--adapter-path", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL, "directory of adapter weights"            \
    }
#define RUN_SYSTEM_PROMPT_ROW                                                                                          \
    {                                                                                                                  \
        "--system-prompt", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL, "system message for the chat template"           \
    }
/* mlx-lm's options of the cache; flags: 0 where a command of its has them, else CLI_EXTRA. */
#define RUN_MAX_KV_SIZE_ROW(flags)                                                                                     \
    {                                                                                                                  \
        "--max-kv-size", NULL, CLI_INT, flags, NULL, "1", NULL, NULL,                                                  \
            "most tokens in the key-value cache: the first 4 and the newest"                                           \
    }
#define RUN_KV_BITS_ROW(flags)                                                                                         \
    {                                                                                                                  \
        "--kv-bits", NULL, CLI_INT, flags, NULL, "2", "8", NULL,                                                       \
            "bits of a key-value cache quantised along the head: 2, 3, 4, 5, 6 or 8"                                   \
    }
#define RUN_KV_GROUP_SIZE_ROW(flags)                                                                                   \
    {                                                                                                                  \
        "--kv-group-size", NULL, CLI_INT, flags, "64", "32", "128", NULL,                                              \
            "elements that share a scale with --kv-bits: 32, 64 or 128"                                                \
    }
#define RUN_QUANTIZED_KV_START_ROW(flags)                                                                              \
    {                                                                                                                  \
        "--quantized-kv-start", NULL, CLI_INT, flags, "5000", "0", NULL, NULL,                                         \
            "tokens from which the cache is quantised; with --kv-format 0 by default"                                  \
    }

/* Where a command's own table has none of them, or only the first. */
enum run_cache_option { RUN_MAX_KV_SIZE, RUN_KV_BITS, RUN_KV_GROUP_SIZE, RUN_QUANTIZED_KV_START, RUN_CACHE_N };
extern const struct cli_option run_cache_options[RUN_CACHE_N];

/* Their values. */
struct run_cache {
    const struct cli_value *max_size, *bits, *group_size, *start;
    const struct tlm_prompt_cache_info *file; /* what the cache must be, or NULL */
};
/* v: those of run_cache_options. */
struct run_cache run_cache_of(const struct cli_value *v);

#define RUN_MAX_TOKENS_ROW(number)                                                                                     \
    {                                                                                                                  \
        "--max-tokens", "-m", CLI_INT, 0, number, "-1", NULL, NULL,                                                    \
            "most tokens to generate; -1: until the text or the context ends"                                          \
    }
#define RUN_CHAT_TEMPLATE_CONFIG_ROW(flags)                                                                            \
    {                                                                                                                  \
        "--chat-template-config", NULL, CLI_OBJECT, flags, NULL, NULL, NULL, NULL,                                     \
            "JSON object of further variables for the chat template"                                                   \
    }

/* The rows of sampling, in this order, where a command's own table has them:
 * at is the first one's index, flags are those of the rows that only
 * mlx_lm.generate has. */
enum run_sampling {
    RUN_TEMP,
    RUN_TOP_P,
    RUN_MIN_P,
    RUN_TOP_K,
    RUN_XTC_PROBABILITY,
    RUN_XTC_THRESHOLD,
    RUN_MIN_TOKENS_TO_KEEP,
    RUN_SAMPLING_N
};
/* clang-format off */
#define RUN_SAMPLING_ROWS(at, flags)                                                                                   \
    [(at) + RUN_TEMP] = {"--temp", NULL, CLI_FLOAT, 0, "0.0", "0", NULL, NULL,                                         \
                         "temperature; 0 always takes the best token"},                                                \
    [(at) + RUN_TOP_P] = {"--top-p", NULL, CLI_FLOAT, 0, "1.0", "0", "1", NULL,                                        \
                          "draw from the best tokens that have this probability together; 0 and 1: from all"},         \
    [(at) + RUN_MIN_P] = {"--min-p", NULL, CLI_FLOAT, flags, "0.0", "0", "1", NULL,                                    \
                          "drop tokens below this share of the best one's probability; 0: none"},                      \
    [(at) + RUN_TOP_K] = {"--top-k", NULL, CLI_INT, flags, "0", "0", "2147483647", NULL,                               \
                          "draw from this many of the best tokens; 0: from all"},                                      \
    [(at) + RUN_XTC_PROBABILITY] = {"--xtc-probability", NULL, CLI_FLOAT, 0, "0.0", "0", "1", NULL,                    \
                                    "how often XTC drops the top choices"},                                            \
    [(at) + RUN_XTC_THRESHOLD] = {"--xtc-threshold", NULL, CLI_FLOAT, 0, "0.1", "0", "0.5", NULL,                      \
                                  "probability from which on a token is a top choice of XTC"},                         \
    [(at) + RUN_MIN_TOKENS_TO_KEEP] = {"--min-tokens-to-keep", NULL, CLI_INT, flags, "1", "1", "2147483647", NULL,     \
                                       "tokens that --min-p never drops"}
/* clang-format on */
/* Their values, the first one's at v, and warnings of those without effect;
 * the seed is not among them. */
void run_sampling(const struct cli_value *v, struct tlm_sampling *s);

/* Opens the model; run: the values of run_options; precision: what holds when
 * the flag is not given. Returns 0, or the exit status after a message. */
int run_open(const char *model, const struct cli_value *run, const struct run_cache *cache,
             enum tlm_precision precision, struct tlm_model **out);
/* The cache's settings from the options, into o; format: room for the name that
 * o->kv_format then points to. Returns 0, or 2 after a message. (kv_options.c) */
enum { RUN_KV_FORMAT_MAX = 64 };
int run_kv_options(const struct cli_value *run, const struct run_cache *cache, struct tlm_model_options *o,
                   char format[RUN_KV_FORMAT_MAX]);
/* The same of what the options leave open, from a prompt cache file; an option that contradicts it is an error. */
int run_kv_of_file(const struct cli_value *run, const struct run_cache *cache, struct tlm_model_options *o);
/* Tokens from which a sequence's cache is quantised. */
int64_t run_kv_start(const struct run_cache *cache);
/* Says on stderr what the cache is, where the options chose it. */
void run_kv_report(const struct cli_value *run, const struct run_cache *cache, const struct tlm_model *m);

/* The path of a model: what exists as it is, else from the cache or the hub,
 * with progress on stderr. Free with tlm_hub_path_free. Returns 0, or the exit
 * status after a message. */
int run_resolve(const char *model, char **path);

/* The whole of stdin as text without NUL bytes; free with tool_free. Returns
 * 0, or the exit status after a message. */
int run_read_stdin(char **text, size_t *len);
/* The same of a file, or of stdin for "-"; every failure is 1. */
int run_read_text(const char *path, char **text, size_t *len);
/* 0, or the exit status after a message: text must be valid UTF-8. */
int run_check_utf8(const char *what, const char *text);

/* n per second, 0 in no time. */
double run_rate(size_t n, double seconds);
/* Warns of what the statistics of a finished request do not say: an early end,
 * or text that the model was not made for. */
void run_warn_of_context(const struct tlm_request *r, const struct tlm_stats *s, enum tlm_finish finish,
                         int64_t context);

/* Ids that the model's tokenizer gave: 0, or the exit status after a message,
 * when one is outside the model's vocabulary. */
int run_check_ids(const struct tlm_model *m, const int32_t *ids, size_t n);
/* Ids of the model's vocabulary from text like "1 2 3" or "1,2,3"; free with
 * tool_free. Returns NULL and fills message (n bytes) when there are none. */
int32_t *run_parse_ids(const char *text, int64_t vocab_size, size_t *n_ids, char *message, size_t n);

#endif
