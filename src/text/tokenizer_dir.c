/* A model directory: its vocabulary (tokenizer.json, a tiktoken file, or a
 * SentencePiece tokenizer.model) and the files beside it, with the meaning
 * that transformers gives them:
 *   tokenizer_config.json   added_tokens_decoder, named special tokens, add_bos_token
 *   special_tokens_map.json named special tokens, over those of the first if that has no added_tokens_decoder
 *   added_tokens.json       {"text": id}, where there is no added_tokens_decoder
 * A named special token that is not an added token becomes one; if the
 * vocabulary does not have it either, it gets the next id. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"

#define MAX_SMALL ((size_t)64 << 20)

/* guess: where the token stands if it is there. */
static bool is_added(const struct tlm_tokenizer *t, const char *text, uint32_t guess)
{
    const struct tok_vocab *v = &t->vocab;
    if (guess < v->n && (v->flags[guess] & TOK_ADDED) && !strcmp(vocab_text(v, guess), text))
        return true;
    for (uint32_t i = 0; i < t->added.n; i++)
        if (!strcmp(vocab_text(&t->vocab, t->added.list[i].id), text))
            return true;
    return false;
}

/* The flags of a token that is given as an object. */
static enum tlm_status read_flags(const cJSON *v, struct tok_added *a, struct tlm_error *e)
{
    if (json_bool(v, "single_word", &a->single_word, e) != TLM_OK || json_bool(v, "lstrip", &a->lstrip, e) != TLM_OK ||
        json_bool(v, "rstrip", &a->rstrip, e) != TLM_OK || json_bool(v, "special", &a->special, e) != TLM_OK)
        return TLM_EFORMAT;
    a->normalized = !a->special;
    return json_bool(v, "normalized", &a->normalized, e);
}

/* {"32000": {"content": …}, …} */
static enum tlm_status read_added_decoder(struct tlm_tokenizer *t, const cJSON *list, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    for (const cJSON *v = cJSON_IsObject(list) ? list->child : NULL; v && s == TLM_OK; v = v->next) {
        char *end;
        long id = strtol(v->string, &end, 10);
        const char *text = NULL;
        struct tok_added a = {.id = (uint32_t)id, .normalized = true};
        if (*end || end == v->string || id < 0 || id >= TOK_MAX_ID)
            return err_set(e, TLM_EFORMAT, "added_tokens_decoder: \"%.40s\" is no token id", v->string);
        s = json_str(v, "content", &text, e);
        if (s == TLM_OK)
            s = read_flags(v, &a, e);
        if (s == TLM_OK && text && *text && !is_added(t, text, a.id))
            s = tokenizer_put_added(t, a, text, strlen(text), e);
    }
    return s;
}

/* Is text one of the special tokens that a configuration names? */
static bool is_named(const cJSON *config, const char *text)
{
    for (const cJSON *v = config ? config->child : NULL; v; v = v->next) {
        size_t n = v->string ? strlen(v->string) : 0;
        const cJSON *one = cJSON_IsArray(v) ? v->child : v;
        if (n < 6 || (strcmp(v->string + n - 6, "_token") != 0 && strcmp(v->string + n - 7, "_tokens") != 0))
            continue;
        for (; one; one = cJSON_IsArray(v) ? one->next : NULL) {
            const cJSON *s = cJSON_IsObject(one) ? json_get(one, "content") : one;
            if (cJSON_IsString(s) && !strcmp(s->valuestring, text))
                return true;
        }
    }
    return false;
}

/* {"text": id, …} */
static enum tlm_status read_added_tokens(struct tlm_tokenizer *t, const struct tok_beside *b, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    for (const cJSON *v = cJSON_IsObject(b->added) ? b->added->child : NULL; v && s == TLM_OK; v = v->next) {
        struct tok_added a = {.special = is_named(b->config, v->string) || is_named(b->map, v->string)};
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < TOK_MAX_ID))
            return err_set(e, TLM_EFORMAT, "added_tokens.json: \"%.100s\" has no token id", v->string);
        a.id = (uint32_t)v->valuedouble;
        a.normalized = !a.special;
        if (*v->string && !is_added(t, v->string, a.id))
            s = tokenizer_put_added(t, a, v->string, strlen(v->string), e);
    }
    return s;
}

/* A token given by its text or by an object with its content, made an added
 * one; *out is its id, -1 for null or "". */
static enum tlm_status named_token(struct tlm_tokenizer *t, const cJSON *v, const char *key, int32_t *out,
                                   struct tlm_error *e)
{
    struct tok_added a = {.special = true};
    const char *text = cJSON_IsString(v) ? v->valuestring : NULL;
    *out = -1;
    if (cJSON_IsObject(v)) {
        if (json_str(v, "content", &text, e) != TLM_OK || read_flags(v, &a, e) != TLM_OK)
            return TLM_EFORMAT;
        a.special = true;
        a.normalized = false;
        if (json_bool(v, "normalized", &a.normalized, e) != TLM_OK)
            return TLM_EFORMAT;
    } else if (!text && v && !cJSON_IsNull(v)) {
        return err_set(e, TLM_EFORMAT, "%s: found %s, expected a string", key, json_type_name(v));
    }
    if (!text || !*text)
        return TLM_OK;
    *out = tokenizer_find(t, text, strlen(text));
    if (*out >= 0 && is_added(t, text, (uint32_t)*out))
        return TLM_OK;
    if (*out < 0 && t->vocab.n >= TOK_MAX_ID)
        return err_set(e, TLM_ELIMIT, "%s: no id is left for it", key);
    if (*out < 0)
        *out = (int32_t)t->vocab.n;
    a.id = (uint32_t)*out;
    return tokenizer_put_added(t, a, text, strlen(text), e);
}

static enum tlm_status read_named(struct tlm_tokenizer *t, const struct tok_beside *b, struct tlm_error *e)
{
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    int32_t *ids[] = {&t->bos, &t->eos, &t->unk, NULL, &t->pad, NULL, NULL};
    const cJSON *map = json_get(b->config, "added_tokens_decoder") ? NULL : b->map;
    enum tlm_status s = TLM_OK;
    for (size_t k = 0; k < sizeof keys / sizeof *keys && s == TLM_OK; k++) {
        bool has = map && cJSON_GetObjectItemCaseSensitive(map, keys[k]);
        const cJSON *v = json_get(has ? map : b->config, keys[k]);
        int32_t id;
        s = named_token(t, v, keys[k], &id, e);
        if (v && ids[k])
            *ids[k] = id;
    }
    for (size_t k = 0; k < sizeof lists / sizeof *lists && s == TLM_OK; k++) {
        const cJSON *list = json_get(map, lists[k]);
        list = list ? list : json_get(b->config, lists[k]);
        int32_t id;
        for (const cJSON *v = cJSON_IsArray(list) || cJSON_IsObject(list) ? list->child : NULL; v && s == TLM_OK;
             v = v->next)
            s = named_token(t, v, lists[k], &id, e);
    }
    return s;
}

/* An explicit add_bos_token or add_eos_token replaces the post-processor. */
static enum tlm_status read_ends(struct tlm_tokenizer *t, const cJSON *config, struct tlm_error *e)
{
    bool add_bos = false, add_eos = false;
    if (!json_get(config, "add_bos_token") && !json_get(config, "add_eos_token"))
        return TLM_OK;
    if (json_bool(config, "add_bos_token", &add_bos, e) != TLM_OK ||
        json_bool(config, "add_eos_token", &add_eos, e) != TLM_OK)
        return TLM_EFORMAT;
    return template_set(&t->post, add_bos ? t->bos : -1, add_eos ? t->eos : -1, e);
}

static enum tlm_status load(const char *dir, const char *name, cJSON **out, struct tlm_error *e)
{
    char *path = path_join(dir, name);
    if (!path)
        return err_nomem(e, 0);
    enum tlm_status s = file_exists(path) ? json_load_object(path, MAX_SMALL, out, e) : TLM_OK;
    mem_free(path);
    return s;
}

static enum tlm_status beside_open(struct tok_beside *b, const char *dir, struct tlm_error *e)
{
    *b = (struct tok_beside){0};
    enum tlm_status s = load(dir, "tokenizer_config.json", &b->config, e);
    if (s == TLM_OK)
        s = load(dir, "special_tokens_map.json", &b->map, e);
    if (s == TLM_OK)
        s = load(dir, "added_tokens.json", &b->added, e);
    return s == TLM_OK ? json_str(b->config, "tokenizer_class", &b->class, e) : s;
}

static enum tlm_status read_beside(struct tlm_tokenizer *t, const struct tok_beside *b, struct tlm_error *e)
{
    const cJSON *decoder = json_get(b->config, "added_tokens_decoder");
    enum tlm_status s = decoder ? read_added_decoder(t, decoder, e) : read_added_tokens(t, b, e);
    if (s == TLM_OK)
        s = read_named(t, b, e);
    return s == TLM_OK ? read_ends(t, b->config, e) : s;
}

/* ---- which vocabulary ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcmp(s + n - m, end);
}

/* tokenizer.model is a tiktoken file when it begins like a line of one; the
 * first byte of a SentencePiece model is 0x0a. */
static bool looks_like_tiktoken(const char *path)
{
    struct file_map m;
    struct tlm_error e = {TLM_OK, ""};
    bool line = false;
    if (file_map_open(&m, path, &e) != TLM_OK)
        return false;
    for (size_t i = 0; i < m.size && i < 4096 && !line; i++) {
        uint8_t c = m.data[i];
        line = i && c == ' ';
        if (c != ' ' && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z') && c != '+' && c != '/' &&
            c != '=')
            break;
    }
    file_map_close(&m);
    return line;
}

/* The path of the one tiktoken file of a directory (mem_free), or NULL. */
static char *find_tiktoken(const char *dir)
{
    char *found = path_join(dir, "tiktoken.model");
    if (found && file_exists(found))
        return found;
    mem_free(found);
    found = path_join(dir, "tokenizer.model");
    if (found && file_exists(found) && looks_like_tiktoken(found))
        return found;
    mem_free(found);
    found = NULL;
    DIR *d = opendir(dir);
    for (struct dirent *f = d ? readdir(d) : NULL; f && !found; f = readdir(d))
        if (ends_with(f->d_name, ".tiktoken"))
            found = path_join(dir, f->d_name);
    if (d)
        closedir(d);
    return found;
}

/* ChatGLM 4 opens every text with two tokens. */
static enum tlm_status set_prefix(struct tlm_tokenizer *t, const char *class, struct tlm_error *e)
{
    int32_t ids[2] = {tokenizer_find(t, "[gMASK]", 7), tokenizer_find(t, "<sop>", 5)};
    if (!class || strcmp(class, "ChatGLM4Tokenizer") != 0)
        return TLM_OK;
    if (ids[0] < 0 || ids[1] < 0)
        return err_set(e, TLM_EFORMAT, "tokenizer_config.json: [gMASK] and <sop> are missing");
    template_deinit(&t->post);
    t->post.before = mem_alloc_array(2, sizeof *ids);
    if (!t->post.before)
        return err_nomem(e, sizeof ids);
    memcpy(t->post.before, ids, sizeof ids);
    t->post.n_before = 2;
    t->post.present = true;
    return TLM_OK;
}

/* Ids that the class's code fills with names of its own. */
static enum tlm_status put_reserved(struct tlm_tokenizer *t, uint32_t base, uint32_t limit, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    struct buf name;
    buf_init(&name, 64);
    for (uint32_t id = base; id < limit && s == TLM_OK; id++) {
        if (id < t->vocab.n && (t->vocab.flags[id] & TOK_PRESENT))
            continue;
        buf_clear(&name);
        buf_printf(&name, "<|reserved_token_%u|>", id);
        s = buf_check(&name, e, "token");
        if (s == TLM_OK)
            s = tokenizer_put_added(t, (struct tok_added){.id = id, .special = true}, name.data, name.len, e);
    }
    buf_deinit(&name);
    return s;
}

static enum tlm_status read_tiktoken(struct tlm_tokenizer *t, const char *path, const struct tok_beside *b,
                                     struct tlm_error *e)
{
    uint32_t limit, base = 0;
    const cJSON *decoder = json_get(b->config, "added_tokens_decoder");
    enum tlm_status s = tokenizer_read_tiktoken(t, path, b->class, &limit, e);
    for (uint32_t id = 0; id < t->vocab.n && s == TLM_OK; id++)
        if (t->vocab.flags[id] & TOK_MODEL)
            base = id + 1;
    for (const cJSON *v = cJSON_IsObject(decoder) ? decoder->child : NULL; v && s == TLM_OK; v = v->next) {
        long id = strtol(v->string, NULL, 10);
        if (id >= (long)limit && id < TOK_MAX_ID)
            limit = (uint32_t)id + 1;
    }
    if (s == TLM_OK)
        s = read_added_decoder(t, decoder, e);
    if (s == TLM_OK)
        s = put_reserved(t, base, limit, e);
    if (s == TLM_OK)
        s = read_beside(t, b, e);
    return s == TLM_OK ? set_prefix(t, b->class, e) : s;
}

static enum tlm_status read_spm(struct tlm_tokenizer *t, const char *path, const struct tok_beside *b,
                                struct tlm_error *e)
{
    bool legacy = false, given = json_get(b->config, "legacy") != NULL;
    enum tlm_status s = json_bool(b->config, "legacy", &legacy, e);
    if (s == TLM_OK)
        s = tokenizer_read_spm(t, path, b->class, given ? &legacy : NULL, e);
    return s == TLM_OK ? read_beside(t, b, e) : s;
}

static enum tlm_status no_vocabulary(const char *json, struct tlm_error *e)
{
    return err_set(e, TLM_ENOTFOUND,
                   "%s: not found; a model directory needs a tokenizer.json, a tiktoken file or a tokenizer.model",
                   json);
}

static enum tlm_status read_dir(struct tlm_tokenizer *t, const char *dir, const struct tok_beside *b,
                                struct tlm_error *e)
{
    char *json = path_join(dir, "tokenizer.json"), *tiktoken = NULL, *spm = NULL;
    enum tlm_status s = json ? TLM_OK : err_nomem(e, 0);
    if (s == TLM_OK && file_exists(json)) {
        s = tokenizer_read_json_file(t, json, e);
        if (s != TLM_OK && e && !strstr(e->message, json))
            err_prefix(e, "%s", json);
        if (s == TLM_OK)
            s = read_beside(t, b, e);
    } else if (s == TLM_OK && (tiktoken = find_tiktoken(dir)) != NULL) {
        s = read_tiktoken(t, tiktoken, b, e);
        if (s != TLM_OK && e && !strstr(e->message, dir))
            err_prefix(e, "%s", tiktoken);
    } else if (s == TLM_OK) {
        spm = path_join(dir, "tokenizer.model");
        s = !spm ? err_nomem(e, 0) : file_exists(spm) ? read_spm(t, spm, b, e) : no_vocabulary(json, e);
        if (s != TLM_OK && e && !strstr(e->message, dir))
            err_prefix(e, "%s", spm ? spm : dir);
    }
    mem_free(json);
    mem_free(tiktoken);
    mem_free(spm);
    return s;
}

static enum tlm_status finish(struct tlm_tokenizer *t, enum tlm_status s, const char *path, struct tlm_error *local,
                              struct tlm_tokenizer **out, struct tlm_error *e)
{
    if (s == TLM_OK)
        s = tokenizer_finish(t, local);
    if (s == TLM_OK) {
        *out = t;
        return TLM_OK;
    }
    if (!strstr(local->message, path))
        err_prefix(local, "%s", path);
    tlm_tokenizer_free(t);
    return err_set(e, s, "%s", local->message);
}

enum tlm_status tokenizer_from_json_file(const char *path, struct tlm_tokenizer **out, struct tlm_error *e)
{
    struct tlm_error local = {TLM_OK, ""}; /* so that the prefix goes to our own message */
    struct tlm_tokenizer *t = tokenizer_alloc(e);
    *out = NULL;
    return t ? finish(t, tokenizer_read_json_file(t, path, &local), path, &local, out, e) : TLM_ENOMEM;
}

enum tlm_status tokenizer_from_dir(const char *dir, struct tlm_tokenizer **out, struct tlm_error *e)
{
    struct tlm_error local = {TLM_OK, ""};
    struct tok_beside beside;
    struct tlm_tokenizer *t = tokenizer_alloc(e);
    *out = NULL;
    if (!t)
        return TLM_ENOMEM;
    enum tlm_status s = beside_open(&beside, dir, &local);
    if (s == TLM_OK)
        s = read_dir(t, dir, &beside, &local);
    s = finish(t, s, dir, &local, out, e);
    cJSON_Delete(beside.config);
    cJSON_Delete(beside.map);
    cJSON_Delete(beside.added);
    return s;
}
