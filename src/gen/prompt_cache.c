/* Prompt cache files: what they are of, and requests that start from them. */
#include "gen/prompt_cache.h"

#include <math.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/st_writer.h"
#include "kvcache/prompt_file.h"
#include "text/chat.h"

struct tlm_prompt_cache {
    struct prompt_file *file;
    struct tlm_prompt_cache_info info;
    char *kv_format; /* of a quantised file of mlx-lm */
};

/* --- fingerprints --------------------------------------------------------- */

struct fingerprint {
    char kin[TLM_SHA256_TEXT];     /* architecture, sizes, final norm: the same in every weight format */
    char weights[TLM_SHA256_TEXT]; /* formats and samples of every weight */
};

static void hash_text(SHA2_CTX *c, const char *s)
{
    SHA256Update(c, (const uint8_t *)s, strlen(s) + 1);
}

static void hash_int(SHA2_CTX *c, int64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)((uint64_t)v >> (8 * i));
    SHA256Update(c, b, sizeof b);
}

/* Beginning, middle and end of a weight's data. */
static void hash_weight(SHA2_CTX *c, const struct weight *w)
{
    enum { SAMPLE = 4096 };
    const struct quant_view *v = &w->view;
    char format[32];
    quant_view_name(v, format);
    hash_text(c, w->name);
    hash_text(c, format);
    hash_int(c, v->rows);
    hash_int(c, v->cols);
    size_t bytes = v->row_bytes * (size_t)v->rows, n = bytes < SAMPLE ? bytes : SAMPLE;
    const uint8_t *data = v->data;
    SHA256Update(c, data, n);
    SHA256Update(c, data + (bytes - n) / 2, n);
    SHA256Update(c, data + (bytes - n), n);
}

/* The final norm in steps that the roundings of conversions do not touch. */
static enum tlm_status hash_norm(SHA2_CTX *c, const struct arch_base *b, struct tlm_error *e)
{
    int64_t n = b->norm.view.cols;
    float *x = mem_alloc_array((size_t)n, sizeof *x);
    if (!x)
        return err_nomem(e, (size_t)n * sizeof *x);
    quant_decode(&b->norm.view, 0, 0, n, x);
    for (int64_t i = 0; i < n; i++) {
        float w = (b->norm_is_full ? x[i] - 1 : x[i]) * 65536;
        hash_int(c, fabsf(w) < 1e9f ? lrintf(w) : 0);
    }
    mem_free(x);
    return TLM_OK;
}

static enum tlm_status fingerprint(const struct tlm_model *m, struct fingerprint *out, struct tlm_error *e)
{
    const struct arch_base *b = model_base(m);
    const struct nn_config *cfg = &b->cfg;
    SHA2_CTX c;
    SHA256Init(&c);
    hash_text(&c, m->arch->model_type);
    const int64_t sizes[] = {cfg->layers, cfg->hidden_size, cfg->heads, cfg->kv_heads, cfg->head_dim};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        hash_int(&c, sizes[i]);
    enum tlm_status s = hash_norm(&c, b, e);
    SHA256End(&c, out->kin);
    SHA256Init(&c);
    for (int i = 0; i < m->n_weights; i++)
        hash_weight(&c, m->weights[i]);
    SHA256End(&c, out->weights);
    return s;
}

/* Of what the tokens are in the vocabulary: the same whatever file it is read from. */
static void hash_tokens(const struct tlm_model *m, const int32_t *ids, size_t n, char out[TLM_SHA256_TEXT])
{
    SHA2_CTX c;
    SHA256Init(&c);
    for (size_t i = 0; i < n; i++) {
        const char *text = m->tokenizer ? tlm_tokenizer_token_text(m->tokenizer, ids[i]) : NULL;
        hash_int(&c, ids[i]);
        hash_text(&c, text ? text : "");
    }
    SHA256End(&c, out);
}

void tlm_model_template_hash(const struct tlm_model *m, char out[TLM_SHA256_TEXT])
{
    SHA2_CTX c;
    out[0] = '\0';
    if (!m->chat_template)
        return;
    const char *text = tlm_chat_template_source(m->chat_template);
    SHA256Init(&c);
    SHA256Update(&c, (const uint8_t *)text, strlen(text));
    SHA256End(&c, out);
}

/* --- files ---------------------------------------------------------------- */

static bool has_suffix(const char *path)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(path), k = sizeof suffix - 1;
    return n >= k && !strcmp(path + n - k, suffix);
}

/* path, or path.safetensors; free with mem_free. */
static char *with_suffix(const char *path, struct tlm_error *e)
{
    size_t n = strlen(path) + sizeof ".safetensors";
    char *out = mem_alloc(n);
    if (out)
        snprintf(out, n, "%s%s", path, has_suffix(path) ? "" : ".safetensors");
    else
        err_nomem(e, n);
    return out;
}

static enum tlm_status describe_own(struct tlm_prompt_cache *c, struct tlm_error *e)
{
    struct tlm_prompt_cache_info *i = &c->info;
    const cJSON *x = c->file->extension;
    const struct {
        const char *name;
        int64_t *to;
    } numbers[] = {{"kv_sink", &i->kv_sink},
                   {"quantized_kv_start", &i->quantized_kv_start},
                   {"max_kv_size", &i->max_kv_size},
                   {"max_kv_keep", &i->max_kv_keep}};
    enum tlm_status s = json_str(x, "text", &i->text, e);
    if (s == TLM_OK)
        s = json_str(x, "kv_format", &i->kv_format, e);
    if (s == TLM_OK)
        s = json_str(x, "chat_template", &i->chat_template, e);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers && s == TLM_OK; k++) {
        *numbers[k].to = -1;
        s = json_int(x, numbers[k].name, 0, INT64_C(1) << 40, numbers[k].to, e);
        if (s == TLM_OK && *numbers[k].to < 0)
            s = err_set(e, TLM_EFORMAT, "%s: %s is missing", c->file->st->path, numbers[k].name);
    }
    if (s == TLM_OK && i->kv_format)
        sscanf(i->kv_format, "affine%1dg%d", &i->kv_bits, &i->kv_group_size);
    return s;
}

static enum tlm_status describe_mlx(struct tlm_prompt_cache *c, struct tlm_error *e)
{
    struct tlm_prompt_cache_info *i = &c->info;
    struct prompt_kind k = prompt_file_kind(c->file);
    i->kv_bits = k.bits;
    i->kv_group_size = k.group;
    if (k.bits) {
        i->kv_format = c->kv_format = prompt_file_spec(c->file);
        if (!c->kv_format)
            return err_nomem(e, 0);
        i->quantized_kv_start = 0;
    }
    i->max_kv_size = k.size;
    i->max_kv_keep = k.keep;
    return TLM_OK;
}

enum tlm_status tlm_prompt_cache_open(const char *path, struct tlm_prompt_cache **out, struct tlm_error *e)
{
    *out = NULL;
    struct tlm_prompt_cache *c = mem_new(sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c);
    char *name = file_exists(path) ? mem_strdup(path) : with_suffix(path, e);
    enum tlm_status s = name ? TLM_OK : err_nomem(e, strlen(path));
    if (s == TLM_OK)
        s = prompt_file_open(file_exists(name) ? name : path, &c->file, e);
    mem_free(name);
    if (s == TLM_OK) {
        struct prompt_file *f = c->file;
        c->info = (struct tlm_prompt_cache_info){.path = f->st->path,
                                                 .model = f->model,
                                                 .tokenizer_config = f->tokenizer_config,
                                                 .n_tokens = (size_t)f->length,
                                                 .tokens = f->tokens,
                                                 .kv_sink = -1,
                                                 .quantized_kv_start = -1,
                                                 .max_kv_size = -1};
        s = f->extension ? describe_own(c, e) : describe_mlx(c, e);
        if (s != TLM_OK)
            err_prefix(e, "%s", path);
    }
    if (s != TLM_OK) {
        tlm_prompt_cache_close(c);
        return s;
    }
    *out = c;
    return TLM_OK;
}

void tlm_prompt_cache_close(struct tlm_prompt_cache *c)
{
    if (!c)
        return;
    prompt_file_close(c->file);
    mem_free(c->kv_format);
    mem_free(c);
}

void tlm_prompt_cache_info_get(const struct tlm_prompt_cache *c, struct tlm_prompt_cache_info *out)
{
    *out = c->info;
}

/* --- checks --------------------------------------------------------------- */

static const char *source_of(const struct tlm_model *m)
{
    return m->ck->is_gguf ? "gguf" : "directory";
}

/* By name, or because both lead to one file. */
static bool is_same_model(const char *a, const char *b)
{
    struct stat x, y;
    return !strcmp(a, b) || (!stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

enum tlm_status prompt_cache_check(const struct tlm_prompt_cache *c, const struct tlm_model *m, struct tlm_error *e)
{
    const struct prompt_file *f = c->file;
    const char *kin = "", *weights = "", *source = "", *quantization = "", *tokens = "", *adapter = "";
    const char *name = f->model ? f->model : "a model without a name", *path = m->ck->path;
    char hash[TLM_SHA256_TEXT];
    struct fingerprint mine;
    if (!f->extension)
        return TLM_OK;
    enum tlm_status s = json_str(f->extension, "model.kin", &kin, e);
    if (s == TLM_OK)
        s = json_str(f->extension, "model.weights", &weights, e);
    if (s == TLM_OK)
        s = json_str(f->extension, "model.source", &source, e);
    if (s == TLM_OK)
        s = json_str(f->extension, "model.quantization", &quantization, e);
    if (s == TLM_OK)
        s = json_str(f->extension, "tokens", &tokens, e);
    if (s == TLM_OK)
        s = json_str(f->extension, "adapter", &adapter, e);
    if (s == TLM_OK)
        s = fingerprint(m, &mine, e);
    if (s != TLM_OK)
        return s;
    bool same_name = is_same_model(path, name);
    bool other_form = strcmp(source, source_of(m)) || strcmp(quantization, m->quantization);
    bool other = strcmp(kin, mine.kin) || (strcmp(weights, mine.weights) && !other_form);
    if (other && same_name)
        return err_set(e, TLM_EFORMAT,
                       "%s: %s now has another %s than when the prompt cache was made, or the file is "
                       "damaged",
                       f->st->path, path,
                       strcmp(kin, mine.kin) ? "architecture, size or final norm" : "content of its weights");
    if (other)
        return err_set(e, TLM_EINVAL,
                       "Providing a different model (%s) than that used to create the prompt cache (%s) is an error.",
                       path, name);
    if (*adapter)
        return err_set(e, TLM_EINVAL, "%s: the prompt cache was made with the adapter %s, but none is given",
                       f->st->path, adapter);
    for (int64_t i = 0; i < f->length; i++)
        if (f->tokens[i] < 0 || f->tokens[i] >= model_base(m)->cfg.vocab_size)
            return err_set(e, TLM_EFORMAT, "%s: token %lld: id %d is outside the vocabulary of %lld", f->st->path,
                           (long long)i, f->tokens[i], (long long)model_base(m)->cfg.vocab_size);
    hash_tokens(m, f->tokens, (size_t)f->length, hash);
    if (strcmp(tokens, hash) && same_name)
        return err_set(e, TLM_EFORMAT,
                       "%s: %s now has another tokenizer than when the prompt cache was made, or the "
                       "file is damaged",
                       f->st->path, path);
    if (strcmp(tokens, hash))
        return err_set(e, TLM_EINVAL, "%s: the tokenizer of %s is not that of %s, which the prompt cache was made with",
                       f->st->path, path, name);
    if (strcmp(weights, mine.weights))
        log_warn("%s: the prompt cache was made with other weights of this model, %s (%s); these are %s", f->st->path,
                 name, quantization, m->quantization);
    return TLM_OK;
}

/* --- requests ------------------------------------------------------------- */

static struct prompt_rotary rotary_of(const struct tlm_model *m)
{
    const struct nn_config *c = &model_base(m)->cfg;
    return (struct prompt_rotary){m->ck->is_gguf && c->rope_interleaved, c->head_dim};
}

enum tlm_status prompt_cache_start(const struct tlm_model *m, struct kv_cache *kv, const struct tlm_prompt_cache *c,
                                   const int32_t *prompt, size_t n_prompt, struct kv_seq **out, bool *follows,
                                   struct tlm_error *e)
{
    const struct prompt_file *f = c->file;
    const struct prompt_rotary r = rotary_of(m);
    int64_t most = (int64_t)n_prompt - 1, n = 0;
    *follows = !f->tokens;
    if (*follows)
        return prompt_file_load(f, kv, &r, out, e);
    while (n < most && n < f->length && prompt[n] == f->tokens[n])
        n++;
    enum tlm_status s = kv_index_match(kv, prompt, most, true, out, e);
    if (s != TLM_OK || kv_seq_length(*out) >= n)
        return s;
    struct kv_seq *indexed = *out;
    s = prompt_file_load(f, kv, &r, out, e);
    if (s == TLM_OK)
        prompt_cut(*out, n);
    if (s == TLM_OK && kv_seq_length(*out) < kv_seq_length(indexed)) {
        struct kv_seq *shorter = *out;
        *out = indexed;
        indexed = shorter;
    }
    kv_seq_free(indexed);
    return s;
}

static cJSON *record(const struct tlm_model *m, const struct kv_seq *seq, const struct tlm_prompt_save *o,
                     struct tlm_error *e)
{
    struct fingerprint mine;
    char tokens[TLM_SHA256_TEXT], chat[TLM_SHA256_TEXT];
    if (!kv_seq_tokens(seq)) {
        err_set(e, TLM_EINVAL, "%s: a sequence that began with a file of mlx-lm cannot be saved", o->path);
        return NULL;
    }
    if (fingerprint(m, &mine, e) != TLM_OK)
        return NULL;
    hash_tokens(m, kv_seq_tokens(seq), (size_t)kv_seq_length(seq), tokens);
    tlm_model_template_hash(m, chat);
    cJSON *x = cJSON_CreateObject(), *model = x ? cJSON_AddObjectToObject(x, "model") : NULL;
    bool ok = model && cJSON_AddStringToObject(model, "architecture", m->arch->model_type) &&
              cJSON_AddStringToObject(model, "source", source_of(m)) &&
              cJSON_AddStringToObject(model, "quantization", m->quantization) &&
              cJSON_AddStringToObject(model, "kin", mine.kin) &&
              cJSON_AddStringToObject(model, "weights", mine.weights) && cJSON_AddStringToObject(x, "adapter", "") &&
              cJSON_AddStringToObject(x, "tokens", tokens) && cJSON_AddStringToObject(x, "chat_template", chat) &&
              cJSON_AddNumberToObject(x, "max_kv_size", (double)m->cache.config.max_tokens) &&
              cJSON_AddNumberToObject(x, "max_kv_keep", (double)m->cache.config.kept) &&
              (!o->text || cJSON_AddStringToObject(x, "text", o->text));
    if (ok)
        return x;
    cJSON_Delete(x);
    err_nomem(e, 0);
    return NULL;
}

enum tlm_status prompt_cache_save_check(const struct tlm_prompt_save *o, struct tlm_error *e)
{
    if (!o->path || !*o->path)
        return err_set(e, TLM_EINVAL, "the name of the prompt cache file is empty");
    /* Of a folder or a device the name with a suffix is hardly what was meant. */
    enum tlm_status s = file_exists(o->path) ? st_writer_try(o->path, e) : TLM_OK;
    char *path = s == TLM_OK ? with_suffix(o->path, e) : NULL;
    if (s == TLM_OK)
        s = path ? st_writer_try(path, e) : TLM_ENOMEM;
    mem_free(path);
    return s;
}

enum tlm_status prompt_cache_save(const struct tlm_model *m, const struct kv_seq *seq, const struct tlm_prompt_save *o,
                                  struct tlm_error *e)
{
    const struct prompt_rotary r = rotary_of(m);
    char *path = with_suffix(o->path, e);
    cJSON *x = path ? record(m, seq, o, e) : NULL;
    enum tlm_status s = x ? TLM_OK : e && e->status != TLM_OK ? e->status : TLM_ENOMEM;
    struct prompt_record what = {o->model ? o->model : m->ck->path, o->tokenizer_config, x};
    if (x)
        s = prompt_file_save(seq, &r, &what, path, e);
    cJSON_Delete(x);
    mem_free(path);
    return s;
}
