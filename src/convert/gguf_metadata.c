/* Metadata of a GGUF file from a model's config: the inverse of
 * models/gguf_map.c and of the architectures' own keys. What llama.cpp would
 * read differently from what the config means is refused.
 * Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "convert/gguf_out.h"

enum { QUANTIZATION_VERSION = 2, SLIDING_PERIOD = 6 };

static const struct gguf_traits known[] = {
    {.arch = "llama", .pairs = true, .bands = true, .extra_biases = true},
    {.arch = "qwen2"},
    {.arch = "qwen3"},
    {.arch = "gemma3", .full_norms = true, .slides = true},
};

enum tlm_status gguf_traits_find(const struct source *s, const struct gguf_traits **out, struct tlm_error *e)
{
    const struct arch *a = s->model.arch;
    const char *name = a->gguf_arch;
    for (int i = 0; !name && arch_at(i); i++) /* a wrapper is written as its language model */
        if (arch_at(i)->rows == a->rows)
            name = arch_at(i)->gguf_arch;
    for (size_t i = 0; name && i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i].arch, name)) {
            *out = &known[i];
            return TLM_OK;
        }
    return err_set(e, TLM_EUNSUPPORTED, "%s: model type %s has no GGUF form here", s->model.ck->path, a->model_type);
}

/* ---- keys under the architecture's name ---- */

struct keys {
    const struct source *s;
    const struct gguf_traits *t;
    struct gguf_writer *w;
    const cJSON *config; /* of the language model */
    const struct nn_config *c;
    struct tlm_error *e;
};

static const char *key_of(const struct keys *k, const char *suffix, char out[128])
{
    snprintf(out, 128, "%s.%s", k->t->arch, suffix);
    return out;
}

static enum tlm_status put_int(const struct keys *k, const char *suffix, int64_t v)
{
    char key[128];
    if (v < 0 || v > UINT32_MAX)
        return err_set(k->e, TLM_ELIMIT, "%s: %s: %lld, at most %u fits", k->s->model.ck->path, key_of(k, suffix, key),
                       (long long)v, UINT32_MAX);
    return gguf_writer_u32(k->w, key_of(k, suffix, key), (uint32_t)v, k->e);
}

static enum tlm_status put_float(const struct keys *k, const char *suffix, float v)
{
    char key[128];
    return gguf_writer_f32(k->w, key_of(k, suffix, key), v, k->e);
}

static enum tlm_status put_text(const struct keys *k, const char *suffix, const char *v)
{
    char key[128];
    return gguf_writer_string(k->w, key_of(k, suffix, key), v, strlen(v), k->e);
}

static enum tlm_status refuse(const struct keys *k, const char *what)
{
    return err_set(k->e, TLM_EUNSUPPORTED, "%s/config.json: %s, which GGUF files of architecture %s cannot say",
                   k->s->model.ck->path, what, k->t->arch);
}

static enum tlm_status put_sizes(const struct keys *k)
{
    const struct nn_config *c = k->c;
    const struct {
        const char *suffix;
        int64_t v;
    } rows[] = {{"vocab_size", c->vocab_size},
                {"context_length", c->max_positions},
                {"embedding_length", c->hidden_size},
                {"block_count", c->layers},
                {"feed_forward_length", c->intermediate_size},
                {"attention.head_count", c->heads},
                {"attention.head_count_kv", c->kv_heads},
                {"attention.key_length", c->head_dim},
                {"attention.value_length", c->head_dim},
                {"rope.dimension_count", c->head_dim}};
    enum tlm_status s = TLM_OK;
    if (c->max_positions <= 0)
        return err_set(k->e, TLM_EFORMAT, "%s/config.json: max_position_embeddings: missing", k->s->model.ck->path);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && s == TLM_OK; i++)
        s = put_int(k, rows[i].suffix, rows[i].v);
    return s == TLM_OK ? put_float(k, "attention.layer_norm_rms_epsilon", c->rms_norm_eps) : s;
}

/* ---- rotary settings ---- */

static const char *rope_type(const cJSON *rope, struct tlm_error *e)
{
    const char *type = NULL;
    if (json_str(rope, "type", &type, e) != TLM_OK || (!type && json_str(rope, "rope_type", &type, e) != TLM_OK))
        return NULL;
    return type ? type : "default";
}

/* Settings that the reader replaces by a rule of its own. */
static enum tlm_status put_yarn(const struct keys *k, const cJSON *rope)
{
    static const char *const rules[] = {"mscale", "mscale_all_dim", "attention_factor", "truncate"};
    float fast = NAN, slow = NAN;
    int64_t orig = k->c->max_positions;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (json_get(rope, rules[i]) && !cJSON_IsTrue(json_get(rope, rules[i])))
            return refuse(k, rules[i]);
    enum tlm_status s = json_float(rope, "beta_fast", &fast, k->e);
    if (s == TLM_OK)
        s = json_float(rope, "beta_slow", &slow, k->e);
    if (s == TLM_OK)
        s = json_int(rope, "original_max_position_embeddings", 1, UINT32_MAX, &orig, k->e);
    if (s == TLM_OK)
        s = put_int(k, "rope.scaling.original_context_length", orig);
    if (s == TLM_OK && !isnan(fast))
        s = put_float(k, "rope.scaling.yarn_beta_fast", fast);
    return s == TLM_OK && !isnan(slow) ? put_float(k, "rope.scaling.yarn_beta_slow", slow) : s;
}

static enum tlm_status put_scaling(const struct keys *k, const cJSON *rope)
{
    const char *type = rope_type(rope, k->e);
    float factor = 0;
    if (!type)
        return TLM_EFORMAT;
    if (!strcmp(type, "default") || (!strcmp(type, "llama3") && k->t->bands))
        return TLM_OK;
    if (strcmp(type, "linear") && strcmp(type, "yarn")) {
        char what[64];
        snprintf(what, sizeof what, "rope type '%.40s'", type);
        return refuse(k, what);
    }
    enum tlm_status s = json_float(rope, "factor", &factor, k->e);
    if (s == TLM_OK)
        s = put_text(k, "rope.scaling.type", type);
    if (s == TLM_OK)
        s = put_float(k, "rope.scaling.factor", factor);
    return s == TLM_OK && !strcmp(type, "yarn") ? put_yarn(k, rope) : s;
}

/* The settings of all layers, or of those that do not slide. */
static const cJSON *full_rope(const struct nn_config *c)
{
    const cJSON *full = json_get(c->rope, "full_attention");
    return full || json_get(c->rope, "sliding_attention") ? full : c->rope;
}

static enum tlm_status put_rope(const struct keys *k)
{
    const cJSON *full = full_rope(k->c), *sliding = json_get(k->c->rope, "sliding_attention");
    float theta = k->c->rope_theta, local = 10000;
    enum tlm_status s = json_float(full, "rope_theta", &theta, k->e);
    if (s == TLM_OK)
        s = put_float(k, "rope.freq_base", theta);
    if (s == TLM_OK && full)
        s = put_scaling(k, full);
    if (s != TLM_OK || !k->t->slides)
        return s;
    s = json_float(k->config, "rope_local_base_freq", &local, k->e);
    if (s == TLM_OK)
        s = json_float(sliding, "rope_theta", &local, k->e);
    const char *type = s == TLM_OK ? rope_type(sliding, k->e) : NULL;
    if (!type)
        return TLM_EFORMAT;
    if (strcmp(type, "default"))
        return refuse(k, "a rope type of sliding layers");
    return local != 10000 ? put_float(k, "rope.freq_base_swa", local) : TLM_OK;
}

/* ---- layers ---- */

/* The period p when layers slide but every p-th; 0 when none slides, -1 for
 * anything else. */
static int64_t sliding_period(const struct nn_config *c)
{
    int64_t full = 0;
    while (full < c->layers && c->is_sliding[full])
        full++;
    for (int64_t i = 0; i < c->layers; i++)
        if (c->is_sliding[i] != ((i + 1) % (full + 1) != 0))
            return -1;
    return full ? full + 1 : 0;
}

static enum tlm_status put_sliding(const struct keys *k)
{
    const struct nn_config *c = k->c;
    int64_t period = sliding_period(c);
    if (!k->t->slides) {
        if (period != 0)
            log_warn("%s: llama.cpp has no sliding layers for architecture %s: its results are the same up to %lld "
                     "tokens",
                     k->s->model.ck->path, k->t->arch, (long long)c->sliding_window);
        return TLM_OK;
    }
    if (period <= 0)
        return refuse(k, "the order of sliding layers");
    enum tlm_status s = put_int(k, "attention.sliding_window", c->sliding_window);
    /* With fewer layers than a period none is full, as it should be. */
    bool usual = period == SLIDING_PERIOD || (period == c->layers + 1 && c->layers < SLIDING_PERIOD);
    return s == TLM_OK && !usual ? put_int(k, "attention.sliding_window_pattern", period) : s;
}

static enum tlm_status put_softcaps(const struct keys *k)
{
    float attention = 0, final = 0;
    enum tlm_status s = json_float(k->config, "attn_logit_softcapping", &attention, k->e);
    if (s == TLM_OK)
        s = json_float(k->config, "final_logit_softcapping", &final, k->e);
    if (s == TLM_OK && attention != 0)
        return refuse(k, "attn_logit_softcapping");
    return s == TLM_OK && final != 0 ? put_float(k, "final_logit_softcapping", final) : s;
}

static enum tlm_status check_layers(const struct keys *k)
{
    const struct nn_config *c = k->c;
    enum act act = k->t->slides ? ACT_GELU_TANH : ACT_SILU;
    if (c->act != act)
        return refuse(k, "another activation");
    if (!k->t->pairs && c->rope_interleaved)
        return refuse(k, "rope_traditional");
    for (size_t i = 0; i < k->s->n_weights && !k->t->extra_biases; i++)
        if (k->s->weights[i].is_bias && k->s->weights[i].row->bias != BIAS_ALWAYS)
            return refuse(k, "biases");
    return TLM_OK;
}

/* ---- general keys ---- */

/* Name of the model: of its repository, or of its folder. The folder of a
 * hub's cache is models--org--name/snapshots/commit. */
static void name_of(const struct convert_job *j, char out[256])
{
    const char *path = j->o->base_model ? j->o->base_model : j->model, *end = path + strlen(path);
    for (int up = 0; up < 3; up++) {
        while (end > path && end[-1] == '/')
            end--;
        const char *start = end;
        while (start > path && start[-1] != '/')
            start--;
        bool snapshot = !up && start > path + 9 && !strncmp(start - 10, "snapshots/", 10);
        if (snapshot || (up == 1 && end - start == 9 && !strncmp(start, "snapshots", 9))) {
            end = start;
            continue;
        }
        for (const char *p = start; up == 2 && p + 1 < end; p++)
            if (p[0] == '-' && p[1] == '-')
                start = p + 2;
        snprintf(out, 256, "%.*s", end - start > 255 ? 255 : (int)(end - start), start);
        return;
    }
    out[0] = 0;
}

static enum tlm_status put_general(const struct convert_job *j, const struct gguf_traits *t, struct gguf_writer *w,
                                   struct tlm_error *e)
{
    char name[256];
    name_of(j, name);
    enum tlm_status s = gguf_writer_string(w, "general.architecture", t->arch, strlen(t->arch), e);
    if (s == TLM_OK)
        s = gguf_writer_string(w, "general.type", "model", 5, e);
    return s == TLM_OK && name[0] ? gguf_writer_string(w, "general.name", name, strlen(name), e) : s;
}

static enum tlm_status put_type(const struct ggml_encoder *type, struct gguf_writer *w, struct tlm_error *e)
{
    enum tlm_status s = gguf_writer_u32(w, "general.quantization_version", QUANTIZATION_VERSION, e);
    return s == TLM_OK ? gguf_writer_u32(w, "general.file_type", type->file_type, e) : s;
}

/* What speaks of the file itself and not of the model. */
static bool of_the_file(const char *key)
{
    static const char *const prefixes[] = {"general.file_type", "general.quantization_version", "general.alignment",
                                           "split.", "quantize.imatrix."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (!strncmp(key, prefixes[i], strlen(prefixes[i])))
            return true;
    return false;
}

static enum tlm_status carry(const struct gguf *g, const struct ggml_encoder *type, struct gguf_writer *w,
                             struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    for (uint64_t i = 0; i < g->n_kv && s == TLM_OK; i++)
        if (!of_the_file(g->kv[i].key))
            s = gguf_writer_copy(w, &g->kv[i], e);
    return s == TLM_OK ? put_type(type, w, e) : s;
}

enum tlm_status gguf_metadata_write(const struct convert_job *j, const struct gguf_traits *t,
                                    const struct ggml_encoder *type, struct gguf_writer *w, struct tlm_error *e)
{
    const struct source *src = j->source;
    const struct checkpoint *ck = src->model.ck;
    if (ck->is_gguf)
        return carry(ck->gguf, type, w, e);
    const cJSON *config = src->model.arch->wrapper ? json_get(ck->config, "text_config") : ck->config;
    const struct keys k = {src, t, w, config, &model_base(&src->model)->cfg, e};
    enum tlm_status s = put_general(j, t, w, e);
    if (s == TLM_OK)
        s = check_layers(&k);
    if (s == TLM_OK)
        s = put_sizes(&k);
    if (s == TLM_OK)
        s = put_rope(&k);
    if (s == TLM_OK)
        s = put_sliding(&k);
    if (s == TLM_OK && t->slides)
        s = put_softcaps(&k);
    if (s != TLM_OK && e && strncmp(e->message, ck->path, strlen(ck->path)))
        err_prefix(e, "%s/config.json", ck->path);
    return s == TLM_OK ? put_type(type, w, e) : s;
}

/* Llama 3.1's bands: long waves are slowed by factor, short ones are not, those
 * between by what lies between. */
enum tlm_status gguf_metadata_bands(const struct source *s, const struct gguf_traits *t, float **out,
                                    struct tlm_error *e)
{
    const struct nn_config *c = &model_base(&s->model)->cfg;
    const cJSON *rope = full_rope(c);
    float factor = 8, low = 1, high = 4, theta = c->rope_theta;
    int64_t orig = 8192, half = c->head_dim / 2;
    *out = NULL;
    const char *type = rope_type(rope, e);
    if (!type)
        return TLM_EFORMAT;
    if (s->model.ck->is_gguf || !t->bands || strcmp(type, "llama3"))
        return TLM_OK;
    enum tlm_status st = json_float(rope, "factor", &factor, e);
    if (st == TLM_OK)
        st = json_float(rope, "low_freq_factor", &low, e);
    if (st == TLM_OK)
        st = json_float(rope, "high_freq_factor", &high, e);
    if (st == TLM_OK)
        st = json_float(rope, "rope_theta", &theta, e);
    if (st == TLM_OK)
        st = json_int(rope, "original_max_position_embeddings", 1, INT64_MAX / 2, &orig, e);
    if (st != TLM_OK)
        return st;
    *out = mem_alloc_array((size_t)half, sizeof **out);
    if (!*out)
        return err_nomem(e, (size_t)half * sizeof **out);
    for (int64_t i = 0; i < half; i++) {
        float frequency = 1.0f / powf(theta, (float)(2 * i) / (float)c->head_dim);
        double wave = 2 * acos(-1) / (double)frequency, smooth;
        smooth = ((double)orig / wave - (double)low) / (double)(high - low);
        if (wave < (double)orig / (double)high)
            (*out)[i] = 1;
        else if (wave > (double)orig / (double)low)
            (*out)[i] = factor;
        else
            (*out)[i] = (float)(1 / ((1 - smooth) / (double)factor + smooth));
    }
    return TLM_OK;
}

/* Readers scale a query by the head size; the largest Gemma, of 62 layers, by
 * hidden / heads. What the config has instead goes into the norm of queries. */
enum tlm_status gguf_metadata_query_factor(const struct source *s, const struct gguf_traits *t, float *out,
                                           struct tlm_error *e)
{
    const struct nn_config *c = &model_base(&s->model)->cfg;
    const struct checkpoint *ck = s->model.ck;
    float scalar = 256, usual = (float)(c->layers == 62 ? c->hidden_size / c->heads : c->head_dim);
    *out = 1;
    if (ck->is_gguf || !t->full_norms)
        return TLM_OK;
    enum tlm_status st = json_float(s->model.arch->wrapper ? json_get(ck->config, "text_config") : ck->config,
                                    "query_pre_attn_scalar", &scalar, e);
    if (st == TLM_OK && scalar > 0)
        *out = sqrtf(usual / scalar);
    return st;
}
