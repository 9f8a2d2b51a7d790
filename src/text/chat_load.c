/* Where a model keeps its chat template and special tokens.
 *
 * Directory: chat_template.jinja and additional_chat_templates/<name>.jinja,
 * else tokenizer_config.json["chat_template"] (text, or a list of {name,
 * template}). Tokens: <x>_token of tokenizer_config.json (text or {"content"}),
 * else of special_tokens_map.json.
 * GGUF: tokenizer.chat_template, tokenizer.chat_template.<name> for the names
 * in tokenizer.chat_templates; tokens by tokenizer.ggml.<x>_token_id. */
#include <dirent.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "text/chat.h"

enum { TEMPLATE_MAX = 4 << 20, CONFIG_MAX = 64 << 20, TEMPLATES_MAX = 64 };

bool chat_add_template(struct tlm_chat_template *t, const char *name, const char *source, size_t len,
                       struct tlm_error *e)
{
    if (t->n_named == TEMPLATES_MAX) {
        err_set(e, TLM_ELIMIT, "more than %d chat templates", TEMPLATES_MAX);
        return false;
    }
    struct chat_named *named = mem_realloc_array(t->named, t->n_named + 1, sizeof *named);
    if (!named) {
        err_nomem(e, sizeof *named);
        return false;
    }
    t->named = named;
    struct chat_named *n = &named[t->n_named++];
    *n = (struct chat_named){.name = mem_strdup(name), .source = mem_strndup(source, len)};
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
static enum tlm_status compile_all(struct tlm_chat_template *t, const char *path, struct tlm_error *e)
{
    for (size_t i = 0; i < t->n_named; i++) {
        struct chat_named *n = &t->named[i];
        enum tlm_status s = jinja_compile(n->source, strlen(n->source), "chat template", &n->tpl, e);
        if (s != TLM_OK) {
            err_prefix(e, "%s: template \"%s\"", path, n->name);
            return s;
        }
    }
    return TLM_OK;
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
        if (s == TLM_OK && !chat_add_template(t, name, text, len, e))
            s = TLM_ENOMEM;
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

static enum tlm_status add_from_config(struct tlm_chat_template *t, const cJSON *config, struct tlm_error *e)
{
    const cJSON *v = json_get(config, "chat_template");
    if (!v)
        return TLM_OK;
    if (cJSON_IsString(v))
        return chat_add_template(t, "default", v->valuestring, strlen(v->valuestring), e) ? TLM_OK : TLM_ENOMEM;
    if (!cJSON_IsArray(v))
        return err_set(e, TLM_EFORMAT, "chat_template: found %s, expected a string or an array", json_type_name(v));
    for (const cJSON *i = v->child; i; i = i->next) {
        const char *name = NULL, *text = NULL;
        enum tlm_status s = json_str(i, "name", &name, e);
        if (s == TLM_OK)
            s = json_str(i, "template", &text, e);
        if (s != TLM_OK)
            return s;
        if (!name || !text)
            return err_set(e, TLM_EFORMAT, "chat_template: an entry lacks \"name\" or \"template\"");
        if (!chat_add_template(t, name, text, strlen(text), e))
            return TLM_ENOMEM;
    }
    return TLM_OK;
}

static enum tlm_status add_tokens(struct tlm_chat_template *t, const cJSON *config, struct tlm_error *e)
{
    for (const cJSON *v = cJSON_IsObject(config) ? config->child : NULL; v; v = v->next) {
        size_t n = v->string ? strlen(v->string) : 0;
        if (n <= 6 || strcmp(v->string + n - 6, "_token"))
            continue;
        const cJSON *text = cJSON_IsObject(v) ? json_get(v, "content") : v;
        if (text && cJSON_IsString(text) &&
            !chat_add_token(t, v->string, text->valuestring, strlen(text->valuestring), e))
            return TLM_ENOMEM;
    }
    return TLM_OK;
}

static enum tlm_status load_config(struct tlm_chat_template *t, const char *dir, const char *file, bool templates,
                                   struct tlm_error *e)
{
    char *path = path_join(dir, file);
    cJSON *config = NULL;
    if (!path)
        return err_nomem(e, strlen(dir));
    enum tlm_status s = file_exists(path) ? json_load(path, CONFIG_MAX, &config, e) : TLM_OK;
    const char *type = NULL;
    if (s == TLM_OK && config)
        s = json_str(config, "chat_template_type", &type, e);
    if (s == TLM_OK && type && templates)
        s = err_set(e, TLM_EUNSUPPORTED, "chat_template_type: \"%.100s\" is not supported", type);
    if (s == TLM_OK && config && templates && !t->n_named)
        s = add_from_config(t, config, e);
    if (s == TLM_OK && config)
        s = add_tokens(t, config, e);
    if (s != TLM_OK)
        err_prefix(e, "%s", path);
    cJSON_Delete(config);
    mem_free(path);
    return s;
}

enum tlm_status chat_load_dir(struct tlm_chat_template *t, const char *path, struct tlm_error *e)
{
    enum tlm_status s = add_file(t, path, "chat_template.jinja", "default", e);
    if (s == TLM_OK)
        s = add_more_files(t, path, e);
    if (s == TLM_OK)
        s = load_config(t, path, "tokenizer_config.json", true, e);
    if (s == TLM_OK)
        s = load_config(t, path, "special_tokens_map.json", false, e);
    return s == TLM_OK ? compile_all(t, path, e) : s;
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
    return chat_add_template(t, name, text.data, (size_t)text.len, e) ? TLM_OK : TLM_ENOMEM;
}

static enum tlm_status gguf_named_templates(struct tlm_chat_template *t, const struct gguf *g, struct tlm_error *e)
{
    const struct gguf_array *names = NULL;
    enum tlm_status s = gguf_get_array(g, "tokenizer.chat_templates", GGUF_STR, &names, e);
    for (uint64_t i = 0; s == TLM_OK && names && i < names->n; i++) {
        struct buf key;
        buf_init(&key, 1024);
        buf_add_str(&key, "tokenizer.chat_template.");
        size_t prefix = key.len;
        buf_add(&key, names->strings[i].data, (size_t)names->strings[i].len);
        s = buf_check(&key, e, "the name of a chat template");
        if (s == TLM_OK)
            s = gguf_template(t, g, key.data, key.data + prefix, e);
        buf_deinit(&key);
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
    enum tlm_status s = gguf_template(t, g, "tokenizer.chat_template", "default", e);
    if (s == TLM_OK)
        s = gguf_named_templates(t, g, e);
    if (s == TLM_OK)
        s = gguf_tokens(t, g, e);
    return s == TLM_OK ? compile_all(t, g->path, e) : s;
}
