/* turbolm convert: a model to an MLX directory or a GGUF file, quantised or not. */
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "convert_run.h"
#include "out.h"
#include "run.h"

enum {
    HF_PATH,
    MLX_PATH,
    QUANTIZE,
    Q_GROUP_SIZE,
    Q_BITS,
    Q_MODE,
    QUANT_PREDICATE,
    DTYPE,
    UPLOAD_REPO,
    DEQUANTIZE,
    TRUST_REMOTE_CODE,
    Q_OVERRIDE,
    SEED,
    TO,
    GGUF_TYPE,
    THREADS,
    N_OPTIONS
};

static const char *const modes[] = {"affine", "mxfp4", "nvfp4", "mxfp8", "turbo", NULL};
static const char *const recipes[] = {"mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6", NULL};
static const char *const dtypes[] = {"float16", "bfloat16", "float32", NULL};
static const char *const targets[] = {"mlx", "gguf", NULL};
static const char *const gguf_types[] = {"Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32", NULL};

static const struct cli_option options[N_OPTIONS] = {
    [HF_PATH] = {"--hf-path", "--model", CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                 "model directory (Hugging Face or MLX), GGUF file, or name on a hub, as for generate"},
    [MLX_PATH] = {"--mlx-path", "--out", CLI_TEXT, 0, "mlx_model", NULL, NULL, NULL, "what to write; must not exist"},
    [QUANTIZE] = {"--quantize", "-q", CLI_FLAG, 0, NULL, NULL, NULL, NULL, "quantise the matrices"},
    [Q_GROUP_SIZE] = {"--q-group-size", NULL, CLI_INT, 0, NULL, "1", "1048576", NULL,
                      "inputs that share a scale; by default 64, mxfp4, mxfp8 and turbo 32, nvfp4 16"},
    [Q_BITS] = {"--q-bits", NULL, CLI_INT, 0, NULL, "1", "64", NULL, "bits of a code; by default 4, mxfp8 8"},
    [Q_MODE] = {"--q-mode", NULL, CLI_CHOICE, 0, "affine", NULL, NULL, modes, "how matrices are quantised"},
    [QUANT_PREDICATE] = {"--quant-predicate", NULL, CLI_CHOICE, 0, NULL, NULL, NULL, recipes,
                         "two widths: more bits for the head and for v_proj and down_proj of some layers"},
    [DTYPE] = {"--dtype", NULL, CLI_CHOICE, 0, NULL, NULL, NULL, dtypes,
               "type of what is not quantised, and of scales; by default what config.json says, else as stored"},
    [UPLOAD_REPO] = {"--upload-repo", NULL, CLI_TEXT, CLI_LATER, NULL, NULL, NULL, NULL, "repository to upload to"},
    [DEQUANTIZE] = {"--dequantize", "-d", CLI_FLAG, 0, NULL, NULL, NULL, NULL, "make quantised matrices plain ones"},
    [TRUST_REMOTE_CODE] = RUN_TRUST_REMOTE_CODE_ROW,
    [Q_OVERRIDE] = {"--q-override", NULL, CLI_TEXT, CLI_EXTRA | CLI_REPEAT, NULL, NULL, NULL, NULL,
                    "PATTERN=BITS[,GROUP[,MODE]] or PATTERN=false: other settings for modules whose path, or a part "
                    "of it between dots, matches, like 'layers.*.mlp.down_proj=6,32'; may be given several times, the "
                    "last that matches counts"},
    [SEED] = {"--seed", NULL, CLI_NATURAL, CLI_EXTRA, "0", NULL, "9007199254740992", NULL,
              "of the signs of rotations, for the mode turbo"},
    [TO] = {"--to", NULL, CLI_CHOICE, CLI_EXTRA, "mlx", NULL, NULL, targets,
            "an MLX directory, or a GGUF file for llama.cpp and others, named by --mlx-path"},
    [GGUF_TYPE] = {"--gguf-type", NULL, CLI_CHOICE, CLI_EXTRA, NULL, NULL, NULL, gguf_types,
                   "type of the GGUF file's matrices; by default that of the source, F16 for a quantised one"},
    [THREADS] = {"--threads", NULL, CLI_INT, CLI_EXTRA, NULL, "1", "1024", NULL,
                 "threads; by default one per physical core"},
};

extern const struct command convert_command;

/* What goes with only one target. */
static int check_target(const char *prog, const struct cli_value *v)
{
    static const int mlx_only[] = {QUANTIZE, Q_GROUP_SIZE, Q_BITS,     Q_MODE, QUANT_PREDICATE,
                                   DTYPE,    DEQUANTIZE,   Q_OVERRIDE, SEED};
    if (strcmp(v[TO].text, "gguf") != 0)
        return !v[GGUF_TYPE].given ? 0 : cli_usage_error(&convert_command, prog, "--gguf-type", "needs --to gguf");
    for (size_t i = 0; i < sizeof mlx_only / sizeof mlx_only[0]; i++)
        if (v[mlx_only[i]].given)
            return cli_usage_error(&convert_command, prog, options[mlx_only[i]].name, "not allowed with --to gguf");
    return v[MLX_PATH].given ? 0 : cli_usage_error(&convert_command, prog, "--to", "gguf needs --mlx-path FILE.gguf");
}

/* Refused as what names matrices to quantise is no mere setting. */
static int check_quantize(const char *prog, const struct cli_value *v)
{
    static const int needing[] = {QUANT_PREDICATE, Q_OVERRIDE};
    for (size_t i = 0; i < sizeof needing / sizeof needing[0]; i++)
        if (v[needing[i]].given && !v[QUANTIZE].truth)
            return cli_usage_error(&convert_command, prog, options[needing[i]].name, "needs --quantize");
    return 0;
}

static void warn_of_unused(const struct cli_value *v)
{
    static const int settings[] = {Q_GROUP_SIZE, Q_BITS, Q_MODE};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (v[settings[i]].given && !v[QUANTIZE].truth)
            out_warning("%s has no effect without -q", options[settings[i]].name);
    }
    if (v[Q_BITS].given && v[QUANT_PREDICATE].given)
        out_warning("--q-bits has no effect with --quant-predicate, which sets the bits of every matrix");
    if (v[SEED].given && (!v[QUANTIZE].truth || strcmp(v[Q_MODE].text, "turbo") != 0))
        out_warning("--seed has no effect without -q --q-mode turbo");
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_convert_options o = {.quantize = v[QUANTIZE].truth,
                                    .bits = (int)v[Q_BITS].integer,
                                    .group_size = (int)v[Q_GROUP_SIZE].integer,
                                    .mode = v[Q_MODE].text,
                                    .recipe = v[QUANT_PREDICATE].text,
                                    .overrides = v[Q_OVERRIDE].items,
                                    .n_overrides = v[Q_OVERRIDE].n_items,
                                    .dtype = v[DTYPE].text,
                                    .dequantize = v[DEQUANTIZE].truth,
                                    .seed = v[SEED].natural,
                                    .to_gguf = !strcmp(v[TO].text, "gguf"),
                                    .gguf_type = v[GGUF_TYPE].text,
                                    .threads = (int)v[THREADS].integer};
    struct convert_run r = {.options = &o, .model = v[HF_PATH].text, .out = v[MLX_PATH].text};
    int status = check_target(prog, v);
    if (status == 0)
        status = check_quantize(prog, v);
    if (status != 0)
        return status;
    warn_of_unused(v);
    return convert_run(&r);
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {NULL, 0}};

const struct command convert_command = {
    "convert",
    "convert a model to an MLX directory, quantised or not, or to a GGUF file",
    "Reads a model directory or a GGUF file and writes the directory that mlx_lm.convert would, with codes and scales "
    "as the CPU build of mlx rounds them; with --to gguf a GGUF file that llama.cpp loads, tokenizer and chat template "
    "included. Tensors pass through in pieces, so that memory stays small. The output appears under its name when it "
    "is complete.",
    tables,
    run,
};
