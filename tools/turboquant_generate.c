/* turbolm turboquant generate: generate with mlx_turboquant's cache, whose keys
 * are rotated, by its names of options. */
#include <stdio.h>
#include <string.h>

#include "run.h"
#include "turboquant.h"

enum { MODEL, PROMPT, MAX_TOKENS, KV_BITS, KV_GROUP_SIZE, N_OPTIONS };

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [PROMPT] = {"--prompt", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                "the user's message, in which \\n and \\t are a newline and a tab; - reads standard input"},
    [MAX_TOKENS] = {"--max-tokens", NULL, CLI_INT, 0, "256", "-1", NULL, NULL,
                    "most tokens to generate; -1: until the text or the context ends"},
    [KV_BITS] = {"--kv-bits", NULL, CLI_INT, 0, NULL, "2", "8", NULL,
                 "bits of a key-value cache with rotated keys: 2, 3, 4 or 8; by default the cache is not quantised"},
    [KV_GROUP_SIZE] = {"--kv-group-size", NULL, CLI_INT, 0, "64", NULL, NULL, NULL,
                       "elements that share a scale with --kv-bits: 64"},
};

extern const struct command generate_command;

enum { OWN = N_OPTIONS + RUN_PREFILL_STEP_SIZE + 1, ARGS_MAX = OWN + 1 };

static char *argument(const char *name, const char *value)
{
    size_t n = strlen(name) + strlen(value) + 2;
    char *out = tool_alloc(n, 1);
    snprintf(out, n, "%s=%s", name, value);
    return out;
}

static int run(const char *prog, const struct cli_value *v)
{
    static const char *const formats[] = {[2] = "rot2", [3] = "rot3", [4] = "rot4", [8] = "rot8"};
    const char *format = v[KV_BITS].given ? formats[v[KV_BITS].integer] : NULL;
    struct cli_value values[CLI_MAX_OPTIONS];
    char *args[ARGS_MAX];
    int n = 0;
    if (v[KV_BITS].given && format == NULL)
        return cli_usage_error(&turboquant_generate_command, prog, "--kv-bits", "must be 2, 3, 4 or 8, but is %s",
                               v[KV_BITS].text);
    if (v[KV_GROUP_SIZE].given && format == NULL)
        return cli_usage_error(&turboquant_generate_command, prog, "--kv-group-size", "needs --kv-bits");
    if (v[KV_GROUP_SIZE].integer != 64)
        return cli_usage_error(&turboquant_generate_command, prog, "--kv-group-size", "must be 64, but is %s",
                               v[KV_GROUP_SIZE].text);
    for (int i = 0; i < OWN; i++)
        if (i != KV_BITS && i != KV_GROUP_SIZE && (v[i].given || i == MAX_TOKENS))
            args[n++] = argument(cli_row(&turboquant_generate_command, (size_t)i)->name, v[i].text);
    if (format != NULL)
        args[n++] = argument("--kv-format", format);
    int status = cli_parse(&generate_command, prog, n, args, values);
    if (status < 0)
        status = generate_command.run(prog, values);
    while (n > 0)
        tool_free(args[--n]);
    return status;
}

/* Of run_options: THREADS to PREFILL_STEP_SIZE. */
static const struct cli_table tables[] = {{options, N_OPTIONS}, {run_options, RUN_PREFILL_STEP_SIZE + 1}, {NULL, 0}};

const struct command turboquant_generate_command = {
    .name = "generate",
    .summary = "generate text with a rotated, quantised key-value cache",
    .about = "What generate does with --kv-format rotB, B being --kv-bits; always the best token.",
    .tables = tables,
    .run = run,
};
