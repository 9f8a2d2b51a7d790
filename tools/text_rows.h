/* Rows of token ids from a text or a data set, for commands that measure a model. */
#ifndef TOOLS_TEXT_ROWS_H
#define TOOLS_TEXT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include <turbolm/turbolm.h>

#include "cli.h"

/* Options of the text that such commands share; help of their own where it differs. */
#define TEXT_ROWS_SEQUENCE_LENGTH_ROW(flags)                                                                           \
    {                                                                                                                  \
        "--sequence-length", NULL, CLI_INT, flags, "512", "2", "1000000000", NULL, "tokens in a row"                   \
    }
#define TEXT_ROWS_NUM_SAMPLES_ROW(flags)                                                                               \
    {                                                                                                                  \
        "--num-samples", NULL, CLI_INT, flags, "256", "-1", "1000000000", NULL,                                        \
            "most rows, from the beginning of the text; -1: all"                                                       \
    }
#define TEXT_ROWS_DATA_PATH_ROW(flags)                                                                                 \
    {                                                                                                                  \
        "--data-path", NULL, CLI_TEXT, flags, "allenai/tulu-3-sft-mixture", NULL, NULL, NULL,                          \
            "text file, or - for standard input: one document, cut into whole rows in its order; or a data set in "    \
            "mlx-lm's forms, whose documents are joined in a random order: .jsonl file, folder of such, or "           \
            "org/name[:CONFIGURATION] on a hub, of which only the rows that are needed are fetched"                    \
    }
#define TEXT_ROWS_SEED_ROW(flags)                                                                                      \
    {                                                                                                                  \
        "--seed", NULL, CLI_INT, flags, "123", "0", "4294967295", NULL,                                                \
            "of the order of a data set's documents, which is numpy's"                                                 \
    }
#define TEXT_ROWS_SCORE_FROM_ROW                                                                                       \
    {                                                                                                                  \
        "--score-from", NULL, CLI_INT, CLI_EXTRA, "1", "1", "1000000000", NULL,                                        \
            "first position of a row that counts; half of the row plus 1 is llama.cpp's figure"                        \
    }
#define TEXT_ROWS_BOS_ROW                                                                                              \
    {                                                                                                                  \
        "--bos", NULL, CLI_BOOL, CLI_EXTRA, NULL, NULL, NULL, NULL,                                                    \
            "the beginning-of-text token in each row's first place, before the text and then in place of a token of "  \
            "it, as in llama.cpp; by default where the tokenizer adds it, but not for data sets"                       \
    }

struct text_rows {
    const char *path;  /* of a text file; "-": standard input; of a data set */
    const char *inner; /* not NULL: the text itself; path is its name for messages */
    char *text;        /* what text_rows_open read, or */
    struct tlm_dataset *data;
    size_t len;
    size_t length; /* of a row */
    size_t most;   /* rows, at least 1 */
    int bos;       /* each row's first token is the beginning-of-text token; -1: where the tokenizer adds it */
    uint32_t seed; /* of the order of documents */
    int seed_given;
};

/* Reads the text, or finds the data set, before a model is loaded in vain.
 * Returns 0, or the exit status after a message. Close in any case. */
int text_rows_open(struct text_rows *t);
void text_rows_close(struct text_rows *t);
/* Rows of the data set are on a hub. */
int text_rows_are_remote(const struct text_rows *t);

/* The whole text is one document, encoded without special tokens; a data set's
 * documents are joined as mlx_lm.perplexity joins them. Cut into whole rows
 * from the beginning. rows [n_rows, length]: free with tool_free. Returns 0, or
 * the exit status after a message; warns of rows that are longer than the
 * model's context. */
int text_rows_read(const struct tlm_model *m, const struct text_rows *t, int32_t **rows, size_t *n_rows);

#endif
