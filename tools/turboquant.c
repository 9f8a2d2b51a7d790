/* turbolm turboquant: the commands of mlx_turboquant. */
#include "turboquant.h"

static const struct command *const parts[] = {&turboquant_eval_command, NULL};
static const char *const later[] = {"convert", "generate", "serve", NULL};

extern const struct command_group turboquant_group;

const struct command_group turboquant_group = {
    .name = "turboquant",
    .summary = "measure quantised key-value caches",
    .parts = parts,
    .later = later,
};
