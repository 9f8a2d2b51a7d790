/* Rotations of a checkpoint's weights and the settings that say so. */
#ifndef MODELS_VIEW_TURBO_H
#define MODELS_VIEW_TURBO_H

#include "models/checkpoint.h"

/* quantization_config of mlx_turboquant. */
struct view_turbo {
    int64_t bits, group, seed;
    const char *mode;  /* "affine", "lut" */
    const cJSON *skip; /* array of strings, or NULL: the default */
};

/* Sets ck->turbo, and ck->quantization to what it was read from, where config.json has such settings. */
enum tlm_status view_turbo_config(struct checkpoint *ck, struct tlm_error *e);
/* Refuses a layer that has scales although the settings skip it. path: its name in the file. */
enum tlm_status view_turbo_layer(const struct checkpoint *ck, const char *path, struct tlm_error *e);
enum tlm_status view_turbo_input(const struct checkpoint *ck, const char *path, int64_t cols,
                                 const struct quant_input **out, struct tlm_error *e);

/* A rotation with the signs of a seed, which lives as long as the checkpoint;
 * equal ones are one, so that products can share it. */
enum tlm_status view_rotation(const struct checkpoint *ck, int64_t cols, int64_t block, uint64_t seed, bool signs_first,
                              const struct quant_input **out, struct tlm_error *e);

#endif
