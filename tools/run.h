/* What every command that runs a model shares: its options, opening, input. */
#ifndef TOOLS_RUN_H
#define TOOLS_RUN_H

#include <stdio.h>

#include <turbolm/turbolm.h>

#include "cli.h"

/* Rows of the table that such a command adds to its own, in this order. */
enum run_option { RUN_THREADS, RUN_DEVICE, RUN_PRECISION, RUN_PREFILL_STEP_SIZE, RUN_KV_FORMAT, RUN_N };
extern const struct cli_option run_options[RUN_N];

/* The row of --model. */
#define RUN_MODEL_ROW                                                                                                  \
    {                                                                                                                  \
        "--model", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,                                               \
            "model directory (Hugging Face or MLX) or GGUF file"                                                       \
    }

/* Opens the model; run: the values of run_options; precision: what holds when
 * the flag is not given. Returns 0, or the exit status after a message. */
int run_open(const char *path, const struct cli_value *run, enum tlm_precision precision, struct tlm_model **out);
/* Refuses names of models that would have to be fetched; 0, or the status. */
int run_check_path(const char *path);

/* The whole of stdin as text without NUL bytes; free with tool_free. Returns
 * 0, or the exit status after a message. */
int run_read_stdin(char **text, size_t *len);
/* 0, or the exit status after a message: text must be valid UTF-8. */
int run_check_utf8(const char *what, const char *text);

/* Ids of the model's vocabulary from text like "1 2 3" or "1,2,3"; free with
 * tool_free. Returns NULL and fills message (n bytes) when there are none. */
int32_t *run_parse_ids(const char *text, int64_t vocab_size, size_t *n_ids, char *message, size_t n);

#endif
