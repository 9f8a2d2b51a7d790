/* Where a model keeps its chat template and special tokens.
 *
 * Directory: chat_template.jinja and additional_chat_templates/<name>.jinja,
 * else tokenizer_config.json["chat_template"] (text, a list of {name, template},
 * or {name: template}); chat_template_type names a renderer of our own instead.
 * Tokens: <x>_token of tokenizer_config.json (text or {"content"}), its
 * extra_special_tokens, and special_tokens_map.json, as transformers 5.24 reads
 * them.
 * GGUF: tokenizer.chat_template, tokenizer.chat_template.<name>; tokens by
 * tokenizer.ggml.<x>_token_id. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "text/chat.h"

enum { TEMPLATE_MAX = 4 << 20, CONFIG_MAX = 64 << 20, TEMPLATES_MAX = 64 };

/* "path: field", or with an entry's name "path: field "name"". */
static char *origin_of(const char *path, const char *field, const char *name)
{
    size_t n = strlen(path) + strlen(field) + (name ? strlen(name) : 0) + 8;
    char *out = mem_alloc(n);
    if (out)
        snprintf(out, n, name ? "%s: %s \"%s\"" : "%s: %s", path, field, name);
    return out;
}

bool chat_add_template(struct tlm_chat_template *t, const char *name, const char *source, size_t len, char *origin,
                       struct tlm_error *e)
{
    for (size_t i = 0; i < t->n_named; i++) {
        if (strcmp(t->named[i].name, name))
            continue;
        char *copy = mem_strndup(source, len);
        if (!copy) {
            mem_free(origin);
            err_nomem(e, len);
            return false;
        }
        mem_free(t->named[i].source);
        mem_free(t->named[i].origin);
        t->named[i].source = copy;
        t->named[i].origin = origin;
        return true;
    }
    if (t->n_named == TEMPLATES_MAX) {
        mem_free(origin);
        err_set(e, TLM_ELIMIT, "more than %d chat templates", TEMPLATES_MAX);
        return false;
    }
    struct chat_named *named = mem_realloc_array(t->named, t->n_named + 1, sizeof *named);
    if (!named) {
        mem_free(origin);
        err_nomem(e, sizeof *named);
        return false;
    }
    t->named = named;
    struct chat_named *n = &named[t->n_named++];
    *n = (struct chat_named){.name = mem_strdup(name), .source = mem_strndup(source, len), .origin = origin};
    if (n->name && n->source)
        return true;
    err_nomem(e, len);
    return false;
}

bool chat_add_token(struct tlm_chat_template *t, const char *name, const char *text, size_t len, struct tlm_error *e)
{
    for (size_t i = 0; i < t->n_tokens; i++)
        if (!strcmp(t->tokens[i].name, name))
            return true;
    struct chat_token *tokens = mem_realloc_array(t->tokens, t->n_tokens + 1, sizeof *tokens);
    if (!tokens) {
        err_nomem(e, sizeof *tokens);
        return false;
    }
    t->tokens = tokens;
    struct chat_token *k = &tokens[t->n_tokens++];
    *k = (struct chat_token){.name = mem_strdup(name), .text = mem_strndup(text, len)};
    if (k->name && k->text)
        return true;
    err_nomem(e, len);
    return false;
}

/* All templates, so that a broken one is found when the model is opened. */
static enum tlm_status compile_all(struct tlm_chat_template *t, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; s == TLM_OK && i < t->n_named; i++) {
        struct chat_named *n = &t->named[i];
        s = jinja_compile(n->source, strlen(n->source), n->origin, &n->tpl, e);
    }
    return s;
}

/* Takes origin, which is NULL when memory ran out. */
static enum tlm_status add_template(struct tlm_chat_template *t, const char *name, const char *source, size_t len,
                                    char *origin, struct tlm_error *e)
{
    if (!origin)
        return err_nomem(e, len);
    return chat_add_template(t, name, source, len, origin, e) ? TLM_OK : TLM_ENOMEM;
}

static enum tlm_status add_file(struct tlm_chat_template *t, const char *dir, const char *file, const char *name,
                                struct tlm_error *e)
{
    char *path = path_join(dir, file), *text = NULL;
    size_t len = 0;
    if (!path)
        return err_nomem(e, strlen(dir));
    enum tlm_status s = TLM_OK;
    if (file_exists(path)) {
        s = file_read(path, TEMPLATE_MAX, &text, &len, e);
        if (s == TLM_OK)
            s = add_template(t, name, text, len, mem_strdup(path), e);
        mem_free(text);
    }
    mem_free(path);
    return s;
}

static enum tlm_status add_more_files(struct tlm_chat_template *t, const char *dir, struct tlm_error *e)
{
    char *sub = path_join(dir, "additional_chat_templates");
    if (!sub)
        return err_nomem(e, strlen(dir));
    DIR *d = file_is_dir(sub) ? opendir(sub) : NULL;
    enum tlm_status s = TLM_OK;
    if (!d && file_is_dir(sub))
        s = err_set(e, TLM_EIO, "%s: %s", sub, strerror(errno));
    for (struct dirent *f; d && s == TLM_OK && (f = readdir(d)) != NULL;) {
        size_t n = strlen(f->d_name);
        if (n <= 6 || strcmp(f->d_name + n - 6, ".jinja"))
            continue;
        char *name = mem_strndup(f->d_name, n - 6);
        s = name ? add_file(t, sub, f->d_name, name, e) : err_nomem(e, n);
        mem_free(name);
    }
    if (d)
        closedir(d);
    mem_free(sub);
    return s;
}

/* file: tokenizer_config.json; name: of an entry, or NULL for the one template. */
static enum tlm_status add_text(struct tlm_chat_template *t, const char *file, const char *name, const cJSON *v,
                                struct tlm_error *e)
{
    if (!cJSON_IsString(v))
        return err_set(e, TLM_EFORMAT, "chat_template: \"%.100s\": found %s, expected a string", name,
                       json_type_name(v));
    return add_template(t, name ? name : "default", v->valuestring, strlen(v->valuestring),
                        origin_of(file, "chat_template", name), e);
}

/* A string, a list of {name, template}, or an object from names to templates. */
static enum tlm_status add_from_config(struct tlm_chat_template *t, const char *file, const cJSON *config,
                                       struct tlm_error *e)
{
    const cJSON *v = json_get(config, "chat_template");
    enum tlm_status s = TLM_OK;
    if (!v)
        return TLM_OK;
    if (cJSON_IsString(v))
        return add_text(t, file, NULL, v, e);
    if (!cJSON_IsArray(v) && !cJSON_IsObject(v))
        return err_set(e, TLM_EFORMAT, "chat_template: found %s, expected a string or an array", json_type_name(v));
    for (const cJSON *i = v->child; s == TLM_OK && i; i = i->next) {
        const char *name = i->string;
        const cJSON *text = i;
        if (cJSON_IsArray(v)) {
            s = json_str(i, "name", &name, e);
            text = json_get(i, "template");
        }
        if (s == TLM_OK && (!name || !text))
            s = err_set(e, TLM_EFORMAT, "chat_template: an entry lacks \"name\" or \"template\"");
        if (s == TLM_OK)
            s = add_text(t, file, name, text, e);
    }
    return s;
}

static enum tlm_status add_token(struct tlm_chat_template *t, const cJSON *v, struct tlm_error *e)
{
    const cJSON *text = cJSON_IsObject(v) ? json_get(v, "content") : v;
    if (!text || !cJSON_IsString(text) || !v->string)
        return TLM_OK;
    return chat_add_token(t, v->string, text->valuestring, strlen(text->valuestring), e) ? TLM_OK : TLM_ENOMEM;
}

/* The keys <x>_token, and all of extra_special_tokens where that is an object. */
static enum tlm_status add_tokens(struct tlm_chat_template *t, const cJSON *config, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    for (const cJSON *v = cJSON_IsObject(config) ? config->child : NULL; s == TLM_OK && v; v = v->next) {
        size_t n = v->string ? strlen(v->string) : 0;
        if (n > 6 && !strcmp(v->string + n - 6, "_token"))
            s = add_token(t, v, e);
    }
    const cJSON *extra = json_get(config, "extra_special_tokens");
    for (const cJSON *v = cJSON_IsObject(extra) ? extra->child : NULL; s == TLM_OK && v; v = v->next)
        s = add_token(t, v, e);
    return s;
}

static enum tlm_status read_type(struct tlm_chat_template *t, const cJSON *config, struct tlm_error *e)
{
    const char *type = NULL;
    enum tlm_status s = json_str(config, "chat_template_type", &type, e);
    if (s != TLM_OK || !type)
        return s;
    if (strcmp(type, "deepseek_v32"))
        return err_set(e, TLM_EUNSUPPORTED, "chat_template_type: \"%.100s\" is not supported", type);
    t->builtin = CHAT_DEEPSEEK_V32;
    return TLM_OK;
}

/* NULL with TLM_OK when there is no such file. */
static enum tlm_status load_json(const char *dir, const char *file, cJSON **out, struct tlm_error *e)
{
    char *path = path_join(dir, file);
    *out = NULL;
    if (!path)
        return err_nomem(e, strlen(dir));
    enum tlm_status s = file_exists(path) ? json_load_object(path, CONFIG_MAX, out, e) : TLM_OK;
    mem_free(path);
    return s;
}

/* special_tokens_map.json counts, and first, where tokenizer_config.json has no
 * added_tokens_decoder: such directories are of an older kind. */
static enum tlm_status load_configs(struct tlm_chat_template *t, const char *dir, struct tlm_error *e)
{
    cJSON *config = NULL, *map = NULL;
    char *file = path_join(dir, "tokenizer_config.json");
    enum tlm_status s = file ? load_json(dir, "tokenizer_config.json", &config, e) : err_nomem(e, strlen(dir));
    if (s == TLM_OK && !t->no_templates)
        s = read_type(t, config, e);
    if (s == TLM_OK && !t->no_templates && !t->n_named)
        s = add_from_config(t, file, config, e);
    if (s == TLM_OK && !json_get(config, "added_tokens_decoder"))
        s = load_json(dir, "special_tokens_map.json", &map, e);
    if (s == TLM_OK)
        s = add_tokens(t, map, e);
    if (s == TLM_OK)
        s = add_tokens(t, config, e);
    if (s != TLM_OK && e && !strstr(e->message, dir)) /* reading a file names it */
        err_prefix(e, "%s", file);
    mem_free(file);
    cJSON_Delete(config);
    cJSON_Delete(map);
    return s;
}

enum tlm_status chat_load_dir(struct tlm_chat_template *t, const char *path, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    if (!t->no_templates)
        s = add_file(t, path, "chat_template.jinja", "default", e);
    if (s == TLM_OK && !t->no_templates)
        s = add_more_files(t, path, e);
    if (s == TLM_OK)
        s = load_configs(t, path, e);
    return s == TLM_OK ? compile_all(t, e) : s;
}

static enum tlm_status gguf_template(struct tlm_chat_template *t, const struct gguf *g, const char *key,
                                     const char *name, struct tlm_error *e)
{
    struct gguf_str text = {0};
    enum tlm_status s = gguf_string(g, key, &text, e);
    if (s != TLM_OK || !text.data)
        return s;
    if (text.len > TEMPLATE_MAX)
        return err_set(e, TLM_ELIMIT, "%s: %s is larger than %d bytes", g->path, key, TEMPLATE_MAX);
    return add_template(t, name, text.data, (size_t)text.len, origin_of(g->path, key, NULL), e);
}

/* Every key tokenizer.chat_template.<name>. */
static enum tlm_status gguf_named_templates(struct tlm_chat_template *t, const struct gguf *g, struct tlm_error *e)
{
    static const char prefix[] = "tokenizer.chat_template.";
    enum tlm_status s = TLM_OK;
    for (uint64_t i = 0; s == TLM_OK && i < g->n_kv; i++) {
        const char *key = g->kv[i].key;
        if (!strncmp(key, prefix, sizeof prefix - 1) && key[sizeof prefix - 1])
            s = gguf_template(t, g, key, key + sizeof prefix - 1, e);
    }
    return s;
}

static enum tlm_status gguf_tokens(struct tlm_chat_template *t, const struct gguf *g, struct tlm_error *e)
{
    static const char *const rows[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},       {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"},   {"tokenizer.ggml.padding_token_id", "pad_token"},
        {"tokenizer.ggml.seperator_token_id", "sep_token"}, {"tokenizer.ggml.cls_token_id", "cls_token"},
        {"tokenizer.ggml.mask_token_id", "mask_token"},
    };
    const struct gguf_array *tokens = NULL;
    enum tlm_status s = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &tokens, e);
    for (size_t i = 0; s == TLM_OK && tokens && i < sizeof rows / sizeof rows[0]; i++) {
        int64_t id = -1;
        s = gguf_int(g, rows[i][0], -1, UINT32_MAX, &id, e);
        if (s == TLM_OK && id >= 0 && (uint64_t)id < tokens->n &&
            !chat_add_token(t, rows[i][1], tokens->strings[id].data, (size_t)tokens->strings[id].len, e))
            s = TLM_ENOMEM;
    }
    return s;
}

enum tlm_status chat_load_gguf(struct tlm_chat_template *t, const struct gguf *g, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    if (!t->no_templates)
        s = gguf_template(t, g, "tokenizer.chat_template", "default", e);
    if (s == TLM_OK && !t->no_templates)
        s = gguf_named_templates(t, g, e);
    if (s == TLM_OK)
        s = gguf_tokens(t, g, e);
    return s == TLM_OK ? compile_all(t, e) : s;
}
