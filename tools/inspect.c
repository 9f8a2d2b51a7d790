/* turbolm inspect: what a model is made of, without reading its weights. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"
#include "run.h"

enum { MODEL, JSON, N_OPTIONS };

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = {"MODEL", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
               "model directory, GGUF file, or name on a hub"},
    [JSON] = {"--json", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL, "print one JSON object"},
};

/* JSON --------------------------------------------------------------------- */

/* Takes item; a NULL item is the end of memory. */
static void add(cJSON *object, const char *key, cJSON *item)
{
    if (item == NULL || !cJSON_AddItemToObject(object, key, item)) {
        out_error("out of memory");
        exit(1);
    }
}

static cJSON *integer(int64_t n)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)n);
    return cJSON_CreateRaw(text);
}

/* null for NULL; text from files need not be UTF-8, JSON must be. */
static cJSON *string(const char *s)
{
    char *clean = tool_clean_text(s, 0);
    cJSON *item = clean != NULL ? cJSON_CreateString(clean) : cJSON_CreateNull();
    tool_free(clean);
    return item;
}

static cJSON *ids_json(const int32_t *ids, size_t n)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; list != NULL && i < n; i++)
        cJSON_AddItemToArray(list, integer(ids[i]));
    return list;
}

static cJSON *tensors_json(const struct tlm_model *m)
{
    struct tlm_tensor_info t;
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; list != NULL && tlm_model_tensor(m, i, &t); i++) {
        cJSON *tensor = cJSON_CreateObject(), *shape = cJSON_CreateArray();
        for (int d = 0; d < t.n_dims; d++)
            cJSON_AddItemToArray(shape, integer(t.shape[d]));
        add(tensor, "name", string(t.name));
        add(tensor, "shape", shape);
        add(tensor, "format", string(t.format));
        add(tensor, "bytes", integer((int64_t)t.bytes));
        cJSON_AddItemToArray(list, tensor);
    }
    return list;
}

static cJSON *tokenizer_json(const struct tlm_model *m)
{
    const struct tlm_tokenizer *t = tlm_model_tokenizer(m);
    struct tlm_tokenizer_info info;
    size_t n_eos = 0;
    const int32_t *eos = tlm_model_eos(m, &n_eos);
    if (t == NULL)
        return cJSON_CreateNull();
    tlm_tokenizer_info_get(t, &info);
    cJSON *object = cJSON_CreateObject();
    add(object, "kind", string(info.kind));
    add(object, "vocab_size", integer(info.vocab_size));
    add(object, "bos", info.bos >= 0 ? integer(info.bos) : cJSON_CreateNull());
    add(object, "eos", ids_json(eos, n_eos));
    return object;
}

static void print_json(const struct tlm_model *m, const struct tlm_model_info *info)
{
    const struct tlm_chat_template *t = tlm_model_chat_template(m);
    cJSON *object = cJSON_CreateObject();
    add(object, "architecture", string(info->architecture));
    add(object, "parameters", integer(info->parameters));
    add(object, "bytes", integer((int64_t)info->bytes));
    add(object, "context_length", info->context_length > 0 ? integer(info->context_length) : cJSON_CreateNull());
    add(object, "tensors", tensors_json(m));
    add(object, "tokenizer", tokenizer_json(m));
    add(object, "chat_template", t != NULL ? string(tlm_chat_template_source(t)) : cJSON_CreateNull());
    add(object, "quantization", string(info->quantization));
    char *text = cJSON_Print(object);
    if (text == NULL) {
        out_error("out of memory");
        exit(1);
    }
    out_print("%s\n", text);
    cJSON_free(text);
    cJSON_Delete(object);
}

/* Text --------------------------------------------------------------------- */

/* Text from a file, safe for a terminal. */
static void print_clean(const char *label, const char *s)
{
    char *clean = tool_clean_text(s != NULL ? s : "none", 1);
    out_print("%-16s%s\n", label, clean);
    tool_free(clean);
}

static void print_size(const char *label, double bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    size_t u = 0;
    while (bytes >= 1000 && u + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1000;
        u++;
    }
    out_print("%-16s%.*f %s\n", label, u == 0 ? 0 : 1, bytes, units[u]);
}

static void print_token(const struct tlm_tokenizer *t, const char *label, int32_t id)
{
    char *clean;
    if (id < 0)
        return;
    clean = tool_clean_text(tlm_tokenizer_token_text(t, id), 1);
    out_print("%-16s%d %s\n", label, (int)id, clean != NULL ? clean : "");
    tool_free(clean);
}

static void print_tokenizer(const struct tlm_model *m)
{
    const struct tlm_tokenizer *t = tlm_model_tokenizer(m);
    struct tlm_tokenizer_info info;
    size_t n_eos = 0;
    const int32_t *eos = tlm_model_eos(m, &n_eos);
    if (t == NULL) {
        out_print("%-16snone\n", "tokenizer");
        return;
    }
    tlm_tokenizer_info_get(t, &info);
    print_clean("tokenizer", info.kind);
    out_print("%-16s%d\n", "  vocabulary", (int)info.vocab_size);
    print_token(t, "  bos", info.bos);
    for (size_t i = 0; i < n_eos; i++)
        print_token(t, "  eos", eos[i]);
    print_token(t, "  unknown", info.unk);
    print_token(t, "  padding", info.pad);
}

/* Bytes that programs can get without swapping, or 0 where that is unknown. */
static uint64_t available_memory(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    }
    fclose(f);
    return (uint64_t)kib * 1024;
}

static void print_memory(const struct tlm_model_info *info)
{
    uint64_t available = available_memory();
    out_print("memory\n");
    print_size("  weights", (double)info->bytes);
    out_print("%-16s%llu bytes per token (%s)\n", "  cache", (unsigned long long)info->kv_bytes_per_token,
              info->kv_format != NULL ? info->kv_format : "unknown format");
    if (available == 0)
        return;
    print_size("  available", (double)available);
    if (available < info->bytes) {
        out_print("%-16snothing: the weights are larger than the available memory\n", "  fits");
        return;
    }
    if (info->kv_bytes_per_token == 0)
        return;
    uint64_t tokens = (available - info->bytes) / info->kv_bytes_per_token;
    out_print("%-16sa cache of %llu tokens", "  fits", (unsigned long long)tokens);
    if (info->context_length > 0)
        out_print(" (%.1f times the context)", (double)tokens / (double)info->context_length);
    out_print("\n");
}

static void print_tensors(const struct tlm_model *m)
{
    struct tlm_tensor_info t;
    size_t n = 0;
    while (tlm_model_tensor(m, n, &t))
        n++;
    out_print("%-16s%zu\n", "tensors", n);
    for (size_t i = 0; tlm_model_tensor(m, i, &t); i++) {
        char *name = tool_clean_text(t.name, 1);
        out_print("  %-48s %-12s [", name, t.format);
        for (int d = 0; d < t.n_dims; d++)
            out_print("%s%lld", d > 0 ? ", " : "", (long long)t.shape[d]);
        out_print("] %llu bytes\n", (unsigned long long)t.bytes);
        tool_free(name);
    }
}

static void print_text(const struct tlm_model *m, const struct tlm_model_info *info)
{
    const struct tlm_chat_template *t = tlm_model_chat_template(m);
    print_clean("model", info->path);
    print_clean("architecture", info->architecture);
    out_print("%-16s%lld\n", "parameters", (long long)info->parameters);
    print_size("size", (double)info->bytes);
    print_clean("quantization", info->quantization);
    if (info->context_length > 0)
        out_print("%-16s%lld tokens\n", "context", (long long)info->context_length);
    else
        out_print("%-16sunknown\n", "context");
    out_print("%-16s%lld, hidden size %lld, %lld heads of %lld (%lld for keys and values)\n", "layers",
              (long long)info->layers, (long long)info->hidden_size, (long long)info->heads, (long long)info->head_dim,
              (long long)info->kv_heads);
    print_tokenizer(m);
    if (t != NULL)
        out_print("%-16s%zu bytes\n", "chat template", strlen(tlm_chat_template_source(t)));
    else if (tlm_model_chat_template_error(m) != NULL)
        print_clean("chat template", "cannot be used");
    else
        out_print("%-16snone\n", "chat template");
    print_memory(info);
    print_tensors(m);
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_options o = {.metadata_only = 1};
    struct tlm_model *m = NULL;
    struct tlm_model_info info;
    (void)prog;
    char *path;
    int status = run_resolve(v[MODEL].text, &path);
    if (status != 0)
        return status;
    status = tlm_model_open(path, &o, &m, &e) == TLM_OK ? 0 : out_tlm_error(&e);
    tlm_hub_path_free(path);
    if (status != 0)
        return status;
    tlm_model_info_get(m, &info);
    if (tlm_model_chat_template_error(m) != NULL)
        out_warning("the chat template cannot be used: %s", tlm_model_chat_template_error(m));
    if (v[JSON].truth)
        print_json(m, &info);
    else
        print_text(m, &info);
    tlm_model_close(m);
    return 0;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {NULL, 0}};

const struct command inspect_command = {
    "inspect", "Show what a model is made of and what fits in memory.",
    "Needs neither the weights nor the tokenizer: what is absent is shown as absent.", tables, run};
