/* config.json, model card, and the files that are copied. */
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "convert/json_out.h"
#include "convert/mlx_dir.h"

enum { CONFIG_MAX = 64 << 20, CARD_MAX = 16 << 20 };

/* config.json --------------------------------------------------------------- */

static cJSON *params_object(const struct quant_params *p)
{
    cJSON *o = cJSON_CreateObject();
    if (cJSON_AddNumberToObject(o, "group_size", p->group) && cJSON_AddNumberToObject(o, "bits", p->bits) &&
        cJSON_AddStringToObject(o, "mode", quant_mode_name(p->mode)) &&
        (p->mode != QUANT_TURBO ||
         (cJSON_AddStringToObject(o, "rotation", "hadamard") && cJSON_AddNumberToObject(o, "seed", (double)p->seed))))
        return o;
    cJSON_Delete(o);
    return NULL;
}

/* As mlx_turboquant has it, and no "quantization", which would be read as MLX's own. */
static enum tlm_status add_turboquant(cJSON *config, const struct plan *p, const struct tlm_convert_options *o,
                                      struct tlm_error *e)
{
    cJSON *q = cJSON_CreateObject(), *skip = NULL;
    bool ok = cJSON_AddStringToObject(q, "quant_method", "turboquant") &&
              cJSON_AddNumberToObject(q, "bits", p->top.bits) &&
              cJSON_AddNumberToObject(q, "group_size", p->top.group) &&
              cJSON_AddStringToObject(q, "mode", quant_mode_name(p->top.mode)) &&
              cJSON_AddNumberToObject(q, "rot_base_seed", (double)p->top.seed) &&
              (skip = cJSON_AddArrayToObject(q, "skip")) != NULL &&
              cJSON_AddStringToObject(q, "rotation", "randomized_hadamard");
    for (size_t i = 0; ok && i < o->n_skip; i++)
        ok = cJSON_AddItemToArray(skip, cJSON_CreateString(o->skip[i]));
    if (ok)
        return json_out_set(config, "quantization_config", q, e);
    cJSON_Delete(q);
    return err_nomem(e, sizeof *q);
}

static enum tlm_status add_quantization(cJSON *config, const struct plan *p, struct tlm_error *e)
{
    cJSON *q = params_object(&p->top);
    if (!q)
        return err_nomem(e, sizeof *q);
    for (size_t i = 0; i < p->n; i++) {
        const struct plan_row *r = &p->rows[i];
        if (!r->listed)
            continue;
        cJSON *own = r->forbidden ? cJSON_CreateFalse() : params_object(&r->params);
        if (!own || !cJSON_AddItemToObject(q, r->path, own)) {
            cJSON_Delete(own);
            cJSON_Delete(q);
            return err_nomem(e, sizeof *q);
        }
    }
    enum tlm_status s = json_out_set(config, "quantization_config", cJSON_Duplicate(q, 1), e);
    if (s == TLM_OK)
        return json_out_set(config, "quantization", q, e);
    cJSON_Delete(q);
    return s;
}

/* Python's truth of a value of generation_config.json. */
static bool is_true(const cJSON *v)
{
    if (!v || cJSON_IsNull(v) || cJSON_IsFalse(v))
        return false;
    if (cJSON_IsArray(v) || cJSON_IsObject(v))
        return v->child != NULL;
    if (cJSON_IsString(v))
        return *v->valuestring;
    return !cJSON_IsRaw(v) || strspn(v->valuestring, "-0.e+") != strlen(v->valuestring);
}

static enum tlm_status merge_eos(cJSON *config, const char *dir, struct tlm_error *e)
{
    cJSON *generation = NULL;
    char *path = path_join(dir, "generation_config.json");
    if (!path)
        return err_nomem(e, strlen(dir));
    enum tlm_status s = file_exists(path) ? json_out_load(path, CONFIG_MAX, &generation, e) : TLM_OK;
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(generation, "eos_token_id");
    if (s == TLM_OK && is_true(eos))
        s = json_out_set(config, "eos_token_id", cJSON_Duplicate(eos, 1), e);
    cJSON_Delete(generation);
    mem_free(path);
    return s;
}

static enum tlm_status set_dtype(cJSON *config, enum dtype t, struct tlm_error *e)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    cJSON *places[] = {config, cJSON_GetObjectItemCaseSensitive(config, "text_config")};
    for (size_t i = 0; t != DT_NONE && i < 4; i++) {
        cJSON *in = places[i / 2];
        if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(in, keys[i % 2])) &&
            json_out_set(in, keys[i % 2], cJSON_CreateString(plan_dtype_name(t)), e) != TLM_OK)
            return TLM_ENOMEM;
    }
    return TLM_OK;
}

static enum tlm_status copy_key(cJSON *to, const char *name, const cJSON *from, struct tlm_error *e)
{
    if (!from || cJSON_IsNull(from) || json_get(to, name))
        return TLM_OK;
    return json_out_set(to, name, cJSON_Duplicate(from, 1), e);
}

/* Most models of mlx-lm do not read rope_parameters of transformers 5 and would
 * run with other angles; beside it go the keys that it stands for. */
static enum tlm_status add_rope_keys(cJSON *config, struct tlm_error *e)
{
    const cJSON *rope = json_get(config, "rope_parameters");
    const cJSON *sliding = json_get(rope, "sliding_attention"), *full = json_get(rope, "full_attention");
    if (!cJSON_IsObject(rope))
        return TLM_OK;
    if (!full && !sliding)
        full = rope;
    enum tlm_status s = copy_key(config, "rope_theta", json_get(full, "rope_theta"), e);
    if (s == TLM_OK)
        s = copy_key(config, "rope_local_base_freq", json_get(sliding, "rope_theta"), e);
    const cJSON *type = json_get(full, "rope_type");
    if (s == TLM_OK && cJSON_IsString(type) && strcmp(type->valuestring, "default") != 0)
        s = copy_key(config, "rope_scaling", full, e);
    return s;
}

/* What mlx-lm takes for granted differs between its models. */
static enum tlm_status add_tied(cJSON *config, const struct source *s, struct tlm_error *e)
{
    if (s->model.arch->head_if_present || json_get(config, "tie_word_embeddings"))
        return TLM_OK;
    return json_out_set(config, "tie_word_embeddings", cJSON_CreateBool(model_base(&s->model)->cfg.tied), e);
}

static enum tlm_status write_config(const struct convert_job *j, const struct plan *p, const struct work_dir *d,
                                    struct tlm_error *e)
{
    static const char *const dropped[] = {"_name_or_path", "vision_config", "quantization", "quantization_config"};
    const struct checkpoint *ck = j->source->model.ck;
    cJSON *config = NULL;
    struct buf text;
    char *path = path_join(ck->path, "config.json");
    enum tlm_status s = path ? TLM_OK : err_nomem(e, strlen(ck->path));
    buf_init(&text, 2 * (size_t)CONFIG_MAX);
    if (s == TLM_OK)
        s = ck->is_gguf ? mlx_config_of_gguf(j->source, p, &config, e) : json_out_load(path, CONFIG_MAX, &config, e);
    if (s == TLM_OK && !ck->is_gguf)
        s = merge_eos(config, ck->path, e);
    for (size_t i = 0; s == TLM_OK && i < 4; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, dropped[i]);
        if (i >= 2)
            cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(config, "text_config"),
                                                    dropped[i]);
    }
    if (s == TLM_OK)
        s = set_dtype(config, p->type, e);
    if (s == TLM_OK)
        s = add_rope_keys(
            j->source->model.arch->wrapper ? cJSON_GetObjectItemCaseSensitive(config, "text_config") : config, e);
    if (s == TLM_OK)
        s = add_tied(config, j->source, e);
    if (s == TLM_OK && p->quantized)
        s = j->o->turboquant ? add_turboquant(config, p, j->o, e) : add_quantization(config, p, e);
    if (s == TLM_OK)
        s = json_out_sort(config, e);
    if (s == TLM_OK)
        s = json_out_write(&text, config, e);
    if (s == TLM_OK)
        s = work_dir_write(d, "config.json", buf_str(&text), text.len, e);
    buf_deinit(&text);
    cJSON_Delete(config);
    mem_free(path);
    return s;
}

/* Files that are copied ------------------------------------------------------ */

static bool is_copied(const char *name)
{
    static const char *const patterns[] = {"tokenizer*.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "vocab.txt",
                                           "merges.txt",
                                           "*.model",
                                           "*.tiktoken",
                                           "*.jinja",
                                           "chat_template.json",
                                           "generation_config.json",
                                           "*.py"};
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (fnmatch(patterns[i], name, FNM_PERIOD) == 0)
            return true;
    return false;
}

/* Files of a folder of the source; under: "" or "additional_chat_templates/". */
static enum tlm_status copy_files(const char *dir, const char *under, const struct work_dir *d, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    char *folder = path_join(dir, under);
    DIR *list = folder ? opendir(folder) : NULL;
    if (!list) { /* the second folder is absent mostly */
        s = folder && *under ? TLM_OK : err_set(e, TLM_EIO, "%s: cannot be listed", dir);
        mem_free(folder);
        return s;
    }
    for (struct dirent *f; s == TLM_OK && (f = readdir(list)) != NULL;) {
        char name[512];
        if (*under ? fnmatch("*.jinja", f->d_name, FNM_PERIOD) != 0 : !is_copied(f->d_name))
            continue;
        snprintf(name, sizeof name, "%s%s", under, f->d_name);
        char *from = path_join(dir, name);
        s = !from ? err_nomem(e, sizeof name) : file_is_dir(from) ? TLM_OK : work_dir_copy(d, name, from, e);
        mem_free(from);
    }
    closedir(list);
    mem_free(folder);
    return s;
}

/* Model card ----------------------------------------------------------------- */

/* Length of the entry of a front matter that begins at p: its line and the indented or listed ones below. */
static size_t entry_length(const char *p, const char *end)
{
    const char *q = p;
    do {
        const char *line = memchr(q, '\n', (size_t)(end - q));
        q = line ? line + 1 : end;
    } while (q < end && (*q == ' ' || *q == '\t' || *q == '-' || *q == '\n'));
    return (size_t)(q - p);
}

static bool entry_is(const char *p, size_t n, const char *key)
{
    size_t k = strlen(key);
    return n > k && !memcmp(p, key, k) && p[k] == ':';
}

/* The tags of an entry, one a line, with mlx among them. */
static void add_tags(struct buf *b, const char *p, size_t n)
{
    static const char separators[] = "[], \t\n\"'";
    bool found = false;
    const char *end = p + n;
    buf_add_str(b, "tags:\n");
    p += strlen("tags:");
    bool listed = memchr(p, '[', (size_t)(end - p)) == NULL;
    while (p < end) {
        while (p < end && (strchr(separators, *p) || (*p == '-' && p + 1 < end && p[1] == ' ')))
            p++;
        const char *from = p;
        while (p < end && *p != '\n' && (listed || (*p != ',' && *p != ']')))
            p++;
        size_t len = (size_t)(p - from);
        while (len && strchr(separators, from[len - 1]))
            len--;
        if (len) {
            buf_printf(b, "- %.*s\n", (int)len, from);
            found = found || (len == 3 && !memcmp(from, "mlx", 3));
        }
    }
    if (!found)
        buf_add_str(b, "- mlx\n");
}

/* Front matter of the original's card, with what the conversion says. */
static void merge_card(struct buf *b, const char *card, size_t len, const char *base_model)
{
    static const char *const ours[] = {"base_model", "library_name", "pipeline_tag"};
    const char *end = NULL, *p = card + 4;
    bool tags = false;
    if (len > 4 && !memcmp(card, "---\n", 4))
        end = strstr(card + 3, "\n---");
    buf_printf(b, "---\nbase_model: %s\nlibrary_name: mlx\npipeline_tag: text-generation\n", base_model);
    for (size_t n; end && p < end + 1; p += n) {
        bool own = false;
        n = entry_length(p, end + 1);
        for (size_t i = 0; i < 3; i++)
            own = own || entry_is(p, n, ours[i]);
        if (entry_is(p, n, "tags")) {
            tags = true;
            add_tags(b, p, n);
        } else if (!own) {
            buf_add(b, p, n);
        }
    }
    buf_add_str(b, tags ? "---\n" : "tags:\n- mlx\n---\n");
}

static enum tlm_status write_card(const struct convert_job *j, const struct work_dir *d, struct tlm_error *e)
{
    static const char plain[] = "---\nlanguage: en\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n"
                                "---\n";
    const struct checkpoint *ck = j->source->model.ck;
    if (!j->o->base_model)
        return work_dir_write(d, "README.md", plain, sizeof plain - 1, e);
    char *path = path_join(ck->path, "README.md"), *card = NULL;
    size_t len = 0;
    struct buf b;
    enum tlm_status s = path ? TLM_OK : err_nomem(e, strlen(ck->path));
    buf_init(&b, 4 * (size_t)CARD_MAX);
    if (s == TLM_OK && !ck->is_gguf && file_exists(path))
        s = file_read(path, CARD_MAX, &card, &len, e);
    if (s == TLM_OK) {
        merge_card(&b, card ? card : "", len, j->o->base_model);
        s = buf_check(&b, e, "README.md");
    }
    if (s == TLM_OK)
        s = work_dir_write(d, "README.md", buf_str(&b), b.len, e);
    buf_deinit(&b);
    mem_free(card);
    mem_free(path);
    return s;
}

enum tlm_status mlx_write_files(const struct convert_job *j, const struct plan *p, const struct work_dir *d,
                                struct tlm_error *e)
{
    const struct checkpoint *ck = j->source->model.ck;
    enum tlm_status s = write_config(j, p, d, e);
    if (s == TLM_OK && ck->is_gguf)
        s = mlx_write_gguf_tokenizer(ck->gguf, d, e);
    if (s == TLM_OK && !ck->is_gguf)
        s = copy_files(ck->path, "", d, e);
    if (s == TLM_OK && !ck->is_gguf)
        s = copy_files(ck->path, "additional_chat_templates/", d, e);
    return s == TLM_OK ? write_card(j, d, e) : s;
}
