/* A model's files as one list of named tensors and one config.
 *
 * Two kinds of source: a directory (config.json, safetensors, by the index or
 * by pattern) and a GGUF file. Names and config keys are those of the Hugging
 * Face checkpoint of the architecture: for GGUF they come from the
 * architecture's table (gguf_map.h). */
#ifndef MODELS_CHECKPOINT_H
#define MODELS_CHECKPOINT_H

#include "base/json.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "quant/quant.h"

struct ckpt_tensor {
    const char *name;                 /* canonical: after the architecture's renaming */
    const char *file_name;            /* as the file has it */
    enum dtype dtype;                 /* DT_NONE for a GGUF block format */
    const struct quant *block_format; /* GGUF block format, or NULL */
    const char *format_name;
    int n_dims;
    int64_t shape[ST_MAX_DIMS]; /* outermost first */
    const void *data;
    size_t bytes;
    const struct file_map *map;
    bool left_out; /* not part of the language model */
    bool used;     /* bound to a row of the weight table */
};

struct quant_member {
    const cJSON *value;
    size_t at; /* place in the object: of equal names the last one counts */
};

struct view_turbo;
struct ckpt_input;

struct checkpoint {
    char *path;
    bool is_gguf;
    cJSON *config;            /* HF keys; text_config of a wrapper stays inside */
    cJSON *generation_config; /* or NULL */
    struct gguf *gguf;
    struct st_file **shards;
    int n_shards;
    struct ckpt_tensor *tensors;
    int n_tensors;
    int *index; /* hash over canonical names */
    int index_size;
    char *names;               /* owner of renamed names */
    const cJSON *quantization; /* of config.json, or NULL; its members by name: */
    struct quant_member *quant_members;
    size_t n_quant_members;
    const char *quant_method;   /* of those settings, "" when they name none */
    struct view_turbo *turbo;   /* settings of mlx_turboquant, or NULL (view_turbo.h) */
    struct ckpt_input **inputs; /* rotations and orders of inputs: a list that views add to (view.h) */
};

/* metadata_only: a directory without weights is fine. For GGUF the config is
 * still empty: gguf_map_config fills it. */
enum tlm_status checkpoint_open(const char *path, bool metadata_only, struct checkpoint **out, struct tlm_error *e);
void checkpoint_close(struct checkpoint *ck);

/* Gives every tensor its canonical name: rename returns 0 to keep it, 1 when it
 * wrote a new name into out (at most CKPT_NAME_MAX bytes), -1 to leave the
 * tensor out (a vision tower). */
enum { CKPT_NAME_MAX = 512 };
typedef int ckpt_rename_fn(const void *arg, const char *name, char *out);
enum tlm_status checkpoint_rename(struct checkpoint *ck, ckpt_rename_fn *fn, const void *arg, struct tlm_error *e);

/* Finds config.json's settings of quantisation (checkpoint_view.c). */
enum tlm_status checkpoint_sort_quantization(struct checkpoint *ck, struct tlm_error *e);

struct ckpt_tensor *checkpoint_find(const struct checkpoint *ck, const char *name);

/* Whether name is that of a matrix or vector as checkpoint_view knows them, and
 * its stem: without ".weight", ".qweight" or ".weight_packed". */
bool checkpoint_stem(const char *name, char stem[CKPT_NAME_MAX]);

/* The matrix or vector `<stem>.weight` (or one of the suffixes above, or `stem`
 * itself) with its scales, as a view. Marks what it uses. TLM_ENOTFOUND
 * without a message when absent and optional. */
enum tlm_status checkpoint_view(const struct checkpoint *ck, const char *stem, struct quant_view *v,
                                const struct file_map **map, struct tlm_error *e);

#endif
