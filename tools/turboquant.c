/* turbolm turboquant: the commands of mlx_turboquant. */
#include "turboquant.h"

static const struct command *const parts[] = {&turboquant_eval_command, &turboquant_generate_command,
                                              &turboquant_convert_command, NULL};
static const char *const later[] = {"serve", NULL};

extern const struct command_group turboquant_group;

const struct command_group turboquant_group = {
    .name = "turboquant",
    .summary = "rotated weights, and quantised key-value caches: generating, measuring",
    .parts = parts,
    .later = later,
};
