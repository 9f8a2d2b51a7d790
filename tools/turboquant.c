/* turbolm turboquant: the commands of mlx_turboquant. */
#include "turboquant.h"

static const struct command *const parts[] = {&turboquant_eval_command, &turboquant_generate_command, NULL};
static const char *const later[] = {"convert", "serve", NULL};

extern const struct command_group turboquant_group;

const struct command_group turboquant_group = {
    .name = "turboquant",
    .summary = "generate with quantised key-value caches and measure them",
    .parts = parts,
    .later = later,
};
