/* Rows of token ids from a text, for commands that measure a model. */
#ifndef TOOLS_TEXT_ROWS_H
#define TOOLS_TEXT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include <turbolm/turbolm.h>

struct text_rows {
    const char *path;  /* of a text file; "-": standard input */
    const char *inner; /* not NULL: the text itself; path is its name for messages */
    char *text;        /* what text_rows_open read */
    size_t len;
    size_t length; /* of a row */
    size_t most;   /* rows, at least 1 */
    int bos;       /* the beginning-of-text token first in each row; -1: where the tokenizer adds it */
};

/* Reads the text, before a model is loaded in vain. Returns 0, or the exit
 * status after a message. Close in any case. */
int text_rows_open(struct text_rows *t);
void text_rows_close(struct text_rows *t);

/* The whole text is one document, encoded without special tokens and cut into
 * whole rows from its beginning. rows [n_rows, length]: free with tool_free.
 * Returns 0, or the exit status after a message; warns of rows that are longer
 * than the model's context. */
int text_rows_read(const struct tlm_model *m, const struct text_rows *t, int32_t **rows, size_t *n_rows);

#endif
