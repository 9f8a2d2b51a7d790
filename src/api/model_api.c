/* Opening and describing models. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "models/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* Ids of a config key: one or a list. */
static enum tlm_status add_eos_json(struct tlm_model *m, const cJSON *config, const char *where, int64_t vocab,
                                    struct tlm_error *e);

static enum tlm_status add_eos(struct tlm_model *m, int64_t id, struct tlm_error *e)
{
    for (size_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == id)
            return TLM_OK;
    int32_t *p = mem_realloc_array(m->eos, m->n_eos + 1, sizeof *p);
    if (!p)
        return err_nomem(e, (m->n_eos + 1) * sizeof *p);
    m->eos = p;
    m->eos[m->n_eos++] = (int32_t)id;
    return TLM_OK;
}

static enum tlm_status add_eos_json(struct tlm_model *m, const cJSON *config, const char *where, int64_t vocab,
                                    struct tlm_error *e)
{
    enum { EOS_MAX = 256 };
    int64_t ids[EOS_MAX];
    int n = 0;
    enum tlm_status s = json_ints(config, "eos_token_id", ids, EOS_MAX, &n, e);
    for (int i = 0; i < n && s == TLM_OK; i++)
        s = ids[i] < 0 || ids[i] >= vocab ? err_set(e, TLM_EFORMAT, "eos_token_id: found %lld, expected 0 to %lld",
                                                    (long long)ids[i], (long long)vocab - 1)
                                          : add_eos(m, ids[i], e);
    if (s != TLM_OK)
        err_prefix(e, "%s/%s", m->ck->path, where);
    return s;
}

/* The ends of a turn and of a message, which GGUF files have beside eos. */
static enum tlm_status add_eos_gguf(struct tlm_model *m, int64_t vocab, struct tlm_error *e)
{
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && s == TLM_OK && m->ck->is_gguf; i++) {
        int64_t id = -1;
        s = gguf_int(m->ck->gguf, keys[i], -1, UINT32_MAX, &id, e);
        if (s == TLM_OK && id >= 0 && id < vocab)
            s = add_eos(m, id, e);
    }
    return s;
}

static enum tlm_status collect_eos(struct tlm_model *m, struct tlm_error *e)
{
    int64_t vocab = model_base(m)->cfg.vocab_size;
    enum tlm_status s = add_eos_json(m, m->ck->config, "config.json", vocab, e);
    if (s == TLM_OK && m->arch->wrapper)
        s = add_eos_json(m, json_get(m->ck->config, "text_config"), "config.json", vocab, e);
    if (s == TLM_OK)
        s = add_eos_json(m, m->ck->generation_config, "generation_config.json", vocab, e);
    if (s == TLM_OK && m->tokenizer) {
        struct tlm_tokenizer_info t;
        tlm_tokenizer_info_get(m->tokenizer, &t);
        if (t.eos >= 0 && t.eos < vocab) /* the model cannot say another */
            s = add_eos(m, t.eos, e);
        if (s == TLM_OK)
            s = add_eos_gguf(m, vocab, e);
    }
    return s;
}

/* Without tokenizer.json there is no tokenizer, which is no error here. */
static enum tlm_status open_dir_tokenizer(struct tlm_model *m, struct tlm_error *e)
{
    char *path = path_join(m->ck->path, "tokenizer.json");
    if (!path)
        return err_nomem(e, strlen(m->ck->path));
    bool there = file_exists(path);
    mem_free(path);
    return there ? tokenizer_from_dir(m->ck->path, &m->tokenizer, e) : TLM_OK;
}

/* Without one, or with one of the name no_vocab, there is no tokenizer. */
static enum tlm_status open_gguf_tokenizer(struct tlm_model *m, struct tlm_error *e)
{
    struct tlm_error why = {TLM_OK, ""};
    if (!gguf_find(m->ck->gguf, "tokenizer.ggml.model"))
        return TLM_OK;
    enum tlm_status s = tokenizer_from_gguf(m->ck->gguf, &m->tokenizer, &why);
    return s == TLM_OK || s == TLM_ENOTFOUND ? TLM_OK : err_set(e, s, "%s", why.message);
}

static enum tlm_status open_text(struct tlm_model *m, struct tlm_error *e)
{
    struct checkpoint *ck = m->ck;
    enum tlm_status s = TLM_OK;
    if (ck->is_gguf) {
        s = open_gguf_tokenizer(m, e);
    } else {
        s = open_dir_tokenizer(m, e);
    }
    if (s != TLM_OK)
        return s;
    /* A template that cannot be used stands in the way of what needs one only, which asks for the error. */
    struct tlm_error *te = &m->template_error;
    s = ck->is_gguf ? chat_template_from_gguf(ck->gguf, &m->chat_template, te)
                    : tlm_chat_template_open(ck->path, &m->chat_template, te);
    return s == TLM_ENOMEM ? err_set(e, s, "%s", te->message) : TLM_OK;
}

struct format_counts {
    char names[64][32];
    int64_t counts[64];
    int n;
};

/* Of matrix elements. */
static void count_format(struct format_counts *c, const char *format, int64_t elements)
{
    int k = 0;
    while (k < c->n && strcmp(c->names[k], format))
        k++;
    if (k == c->n && c->n < 64)
        snprintf(c->names[c->n++], sizeof c->names[0], "%s", format);
    if (k < c->n)
        c->counts[k] += elements;
}

/* Elements, and the format that most matrix elements are in. Matrices come
 * first: their views mark tensors of scales, zero points and the like as used. */
static void count_formats(struct tlm_model *m)
{
    struct checkpoint *ck = m->ck;
    struct format_counts c = {.n = 0};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < ck->n_tensors; i++) {
            const struct ckpt_tensor *t = &ck->tensors[i];
            struct quant_view v;
            const struct file_map *map;
            char stem[CKPT_NAME_MAX], format[32];
            bool matrix = ck->index && !t->left_out && checkpoint_stem(t->name, stem);
            if (matrix != (pass == 0) || (!matrix && t->used))
                continue;
            int64_t count = 1;
            for (int d = 0; d < t->n_dims; d++)
                count *= t->shape[d];
            snprintf(format, sizeof format, "%s", t->format_name ? t->format_name : "unknown");
            if (matrix && checkpoint_view(ck, stem, &v, &map, NULL) == TLM_OK) {
                count = v.rows * v.cols;
                quant_view_name(&v, format);
            }
            m->info.parameters += count;
            if (t->n_dims >= 2)
                count_format(&c, format, count);
        }
    for (int i = 0; i < ck->n_tensors; i++)
        m->info.bytes += ck->tensors[i].bytes;
    int64_t best = -1;
    for (int k = 0; k < c.n; k++)
        if (c.counts[k] > best) {
            best = c.counts[k];
            memcpy(m->quantization, c.names[k], sizeof m->quantization);
        }
}

static void fill_cache_info(struct tlm_model *m)
{
    struct tlm_model_info *i = &m->info;
    kv_choices_name(m->cache.kv, (int)model_base(m)->cfg.layers, m->kv_name, sizeof m->kv_name);
    i->kv_format = m->kv_name;
    i->kv_bits = m->cache.bits;
    i->kv_bytes_per_token = m->cache.token_bytes;
}

static void fill_info(struct tlm_model *m, bool exact, int threads)
{
    const struct nn_config *c = &model_base(m)->cfg;
    struct tlm_model_info *i = &m->info;
    count_formats(m);
    i->path = m->ck->path;
    i->architecture = m->arch->model_type;
    i->quantization = m->quantization[0] ? m->quantization : NULL;
    i->precision = exact ? "exact" : "fast";
    i->context_length = c->max_positions;
    i->vocab_size = c->vocab_size;
    i->layers = c->layers;
    i->hidden_size = c->hidden_size;
    i->heads = c->heads;
    i->kv_heads = c->kv_heads;
    i->head_dim = c->head_dim;
    i->threads = threads;
}

/* Text is read on a thread of its own while the weights are packed. */
struct text_job {
    struct tlm_model *m;
    struct tlm_error err;
    enum tlm_status status;
};

static void *text_main(void *arg)
{
    struct text_job *j = arg;
    j->status = open_text(j->m, &j->err);
    return NULL;
}

static enum tlm_status load_weights(struct tlm_model *m, int threads, bool exact, struct tlm_error *e)
{
    if (m->ck->n_tensors == 0)
        return err_set(e, TLM_EFORMAT, "%s: the file holds no weights", m->ck->path);
    enum tlm_status s = backend_cpu_new(threads, exact, &m->be, e);
    return s == TLM_OK ? model_load_weights(m, e) : s;
}

static enum tlm_status open_steps(struct tlm_model *m, const char *path, const struct tlm_model_options *o,
                                  struct tlm_error *e)
{
    bool exact = o->precision == TLM_PRECISION_EXACT;
    int threads = o->threads > 0 ? o->threads : cpu_physical_cores();
    enum tlm_status s = TLM_OK;
    if (o->threads < 0)
        s = err_set(e, TLM_EINVAL, "threads: %d, expected 0 or more", o->threads);
    if (s == TLM_OK && o->device && strcmp(o->device, "cpu"))
        s = err_set(e, TLM_EUNSUPPORTED, "device '%s' is not supported; only cpu is built in", o->device);
    if (s == TLM_OK)
        s = checkpoint_open(path, o->metadata_only, &m->ck, e);
    if (s == TLM_OK)
        s = model_configure(m, e);
    if (s == TLM_OK)
        s = model_plan_cache(m, o, &m->cache, e);
    if (s != TLM_OK)
        return s;
    fill_info(m, exact, threads);
    for (int i = 0; i < m->ck->n_tensors; i++)
        m->ck->tensors[i].used = false; /* describing marked them */
    struct text_job job = {.m = m};
    pthread_t thread;
    bool apart = !o->metadata_only && threads > 1 && pthread_create(&thread, NULL, text_main, &job) == 0;
    if (!apart)
        text_main(&job);
    if (!o->metadata_only)
        s = load_weights(m, threads, exact, e);
    if (s == TLM_OK && !o->metadata_only)
        s = model_resolve_cache(m, &m->cache, e);
    if (apart)
        pthread_join(thread, NULL);
    if (s == TLM_OK && job.status != TLM_OK)
        s = err_set(e, job.status, "%s", job.err.message);
    fill_cache_info(m);
    return s == TLM_OK ? collect_eos(m, e) : s;
}

enum tlm_status tlm_model_open(const char *path, const struct tlm_model_options *o, struct tlm_model **out,
                               struct tlm_error *e)
{
    static const struct tlm_model_options defaults;
    *out = NULL;
    if (!path || !*path)
        return err_set(e, TLM_EINVAL, "model: no path given");
    struct tlm_model *m = mem_new(sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m);
    enum tlm_status s = open_steps(m, path, o ? o : &defaults, e);
    if (s != TLM_OK) {
        tlm_model_close(m);
        return s;
    }
    *out = m;
    return TLM_OK;
}

void tlm_model_close(struct tlm_model *m)
{
    if (!m)
        return;
    model_unload(m);
    tlm_tokenizer_free(m->tokenizer);
    tlm_chat_template_free(m->chat_template);
    if (m->be)
        m->be->ops->free(m->be);
    checkpoint_close(m->ck);
    mem_free(m->eos);
    model_plan_free(&m->cache);
    mem_free(m);
}

void tlm_model_info_get(const struct tlm_model *m, struct tlm_model_info *out)
{
    *out = m->info;
}

int tlm_model_tensor(const struct tlm_model *m, size_t i, struct tlm_tensor_info *out)
{
    if (i >= (size_t)m->ck->n_tensors)
        return 0;
    const struct ckpt_tensor *t = &m->ck->tensors[i];
    *out = (struct tlm_tensor_info){.name = t->file_name,
                                    .format = t->format_name ? t->format_name : "unknown",
                                    .n_dims = t->n_dims,
                                    .bytes = t->bytes};
    for (int d = 0; d < t->n_dims; d++)
        out->shape[d] = t->shape[d];
    return 1;
}

const struct tlm_tokenizer *tlm_model_tokenizer(const struct tlm_model *m)
{
    return m->tokenizer;
}

enum tlm_status tlm_model_check_ids(const struct tlm_model *m, const int32_t *ids, size_t n, struct tlm_error *e)
{
    int64_t vocab = model_base(m)->cfg.vocab_size;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < vocab)
            continue;
        const char *text = m->tokenizer ? tlm_tokenizer_token_text(m->tokenizer, ids[i]) : NULL;
        return err_set(e, TLM_EFORMAT, "%s%s: the token '%.64s' has id %d, but the model's vocabulary has %lld",
                       m->ck->path, m->ck->is_gguf ? "" : "/tokenizer.json", text ? text : "", ids[i],
                       (long long)vocab);
    }
    return TLM_OK;
}

const struct tlm_chat_template *tlm_model_chat_template(const struct tlm_model *m)
{
    return m->chat_template;
}

const char *tlm_model_chat_template_error(const struct tlm_model *m)
{
    return m->template_error.status != TLM_OK ? m->template_error.message : NULL;
}

const int32_t *tlm_model_eos(const struct tlm_model *m, size_t *n)
{
    *n = m->n_eos;
    return m->eos;
}
