/* turbolm turboquant convert: the directory that mlx_turboquant would write. */
#include <string.h>
#include <unistd.h>

#include <turbolm/turbolm.h>

#include "convert_run.h"
#include "out.h"
#include "run.h"
#include "turboquant.h"

enum { MODEL, OUT, BITS, GROUP_SIZE, SEED, MODE, DTYPE, SKIP, UPLOAD_REPO, THREADS, N_OPTIONS };

static const char *const modes[] = {"auto", "lut", "affine", NULL};
static const char *const dtypes[] = {"float16", "bfloat16", "float32", NULL};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [OUT] = {"--out", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL, "directory to write; must not exist"},
    [BITS] = {"--bits", NULL, CLI_INT, 0, "4", "1", "64", NULL, "bits of a code; mode lut: 2, 4 or 8"},
    [GROUP_SIZE] = {"--group-size", NULL, CLI_INT, 0, "64", "1", "1048576", NULL, "inputs that share a scale"},
    [SEED] = {"--seed", NULL, CLI_NATURAL, 0, "0", NULL, "9007199254740992", NULL, "of the signs of all rotations"},
    [MODE] = {"--mode", NULL, CLI_CHOICE, 0, "auto", NULL, NULL, modes,
              "affine: evenly spaced levels between each group's ends; lut: levels for normal numbers; auto: affine"},
    [DTYPE] = {"--dtype", NULL, CLI_CHOICE, 0, NULL, NULL, NULL, dtypes,
               "type of what is not quantised, and of scales; by default what config.json says, else as stored"},
    [SKIP] = {"--skip", NULL, CLI_TEXTS, CLI_NONE, NULL, NULL, NULL, NULL,
              "layers whose path holds one of these stay as they are; by default lm_head"},
    [UPLOAD_REPO] = {"--upload-repo", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL, "repository to upload to"},
    [THREADS] = {"--threads", NULL, CLI_INT, CLI_EXTRA, NULL, "1", "1024", NULL,
                 "threads; by default one per physical core"},
};

static int run(const char *prog, const struct cli_value *v)
{
    static const char *const skip[] = {"lm_head"};
    const char *out = v[OUT].text, *mode = strcmp(v[MODE].text, "auto") == 0 ? "affine" : v[MODE].text;
    struct tlm_convert_options o = {.quantize = 1,
                                    .turboquant = 1,
                                    .bits = (int)v[BITS].integer,
                                    .group_size = (int)v[GROUP_SIZE].integer,
                                    .mode = mode,
                                    .dtype = v[DTYPE].text,
                                    .seed = v[SEED].natural,
                                    .skip = v[SKIP].given ? v[SKIP].items : skip,
                                    .n_skip = v[SKIP].given ? v[SKIP].n_items : 1,
                                    .threads = (int)v[THREADS].integer};
    struct convert_run r = {.options = &o, .model = v[MODEL].text, .out = out, .quiet = 1};
    (void)prog;
    if (access(out, F_OK) == 0) {
        out_error("%s already exists; pick a new --out path.", out);
        return 1;
    }
    out_print("[turboquant] loading %s\n", v[MODEL].text);
    out_print("[turboquant] rotating + quantizing to %d-bit (group_size=%d, quantizer=%s)\n", o.bits, o.group_size,
              mode);
    out_print("[turboquant] saving to %s\n", out);
    out_flush();
    int status = convert_run(&r);
    if (status == 0)
        out_print("[turboquant] done\n");
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {NULL, 0}};

const struct command turboquant_convert_command = {
    "convert",
    "rotate and quantise the linear layers of a model, as mlx_turboquant does",
    "Writes the directory that mlx_turboquant would on the CPU: the rows of linear layers go through Hadamard "
    "transforms with random signs and become codes. Embeddings, norms and lm_head keep their type. Our own rotated "
    "format, smaller at the same quality, is convert --q-mode turbo.",
    tables,
    run,
};
