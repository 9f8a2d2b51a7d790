/* A model that is converted: its weights in the table's order, as rows of the
 * Hugging Face checkpoint whatever the file's conventions are. */
#ifndef CONVERT_SOURCE_H
#define CONVERT_SOURCE_H

#include "models/model.h"

struct source_weight {
    char *name; /* canonical, without ".weight"; of a bias with ".bias" */
    const struct weight_row *row;
    int64_t layer;           /* -1 outside the layers */
    bool is_bias, is_vector; /* a norm or a bias: [1, n] */
    struct quant_view view;  /* as the file has it */
    const struct file_map *map;
    int64_t turn_head; /* heads of this many rows hold rotated pairs as neighbours (GGUF's llama); 0: no */
    float minus;       /* what the file's values hold too much (GGUF's Gemma norms: 1) */
};

struct source {
    struct tlm_model model; /* without backend and parameters */
    struct source_weight *weights;
    size_t n_weights;
};

enum tlm_status source_open(const char *path, struct source **out, struct tlm_error *e);
void source_close(struct source *s); /* NULL allowed */

/* The file's row in which row r of the checkpoint is. */
int64_t source_row(const struct source_weight *w, int64_t r);
/* Row r of the checkpoint, as float32. */
void source_decode(const struct source_weight *w, int64_t r, float *out);

#endif
