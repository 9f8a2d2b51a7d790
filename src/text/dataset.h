/* A data set: where its rows come from (dataset_rows.c) and what becomes of
 * them (dataset.c). Public part: turbolm/dataset.h. */
#ifndef TEXT_DATASET_H
#define TEXT_DATASET_H

#include <turbolm/dataset.h>

#include "base/file.h"
#include "io/hub_rows.h"
#include "text/json_stream.h"

struct dataset_file {
    char *path;
    struct file_map map;
};

/* A line of a file. */
struct dataset_line {
    size_t file, at, len;
};

/* Rows first .. first + n that the hub sent: spans of body. */
struct dataset_page {
    struct buf body;
    char where[256]; /* for messages */
    size_t first, n;
    struct json_text rows[HUB_ROWS_PAGE];
    bool cut[HUB_ROWS_PAGE]; /* the server left out a part of the row */
};

enum dataset_format { DATASET_TEXT, DATASET_CHAT, DATASET_COMPLETIONS };

struct tlm_dataset {
    char *name;
    enum dataset_format format;
    size_t n_rows;
    struct dataset_file *files;
    size_t n_files;
    struct dataset_line *lines; /* [n_rows] */
    bool remote;
    struct hub_rows hub;
    struct dataset_page page;
};

enum tlm_status dataset_rows_open(struct tlm_dataset *d, const char *path, const char *split, struct tlm_error *e);
void dataset_rows_close(struct tlm_dataset *d);
/* A reader at the beginning of row i, to be used before the next call. */
enum tlm_status dataset_rows_find(struct tlm_dataset *d, size_t i, struct json_stream *j, struct tlm_error *e);

#endif
