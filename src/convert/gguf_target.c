/* The GGUF target: every weight of the source under its GGUF name, in the type
 * that is asked for.
 *
 * Matrices get that type; rows that its blocks do not divide become F16. Norms
 * and biases are F32. A matrix that has the type already is copied. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "convert/gguf_out.h"

#define CHUNK_BYTES ((size_t)4 << 20) /* of encoded rows that are held at once */

struct target {
    struct convert_job *j;
    struct gguf_writer *w;
    const struct gguf_traits *traits;
    const struct ggml_encoder *type, *f16, *f32;
    bool turn;     /* q and k rows are put so that rotated pairs are neighbours */
    float *bands;  /* rope_freqs.weight, or NULL */
    float query;   /* factor on the weights of the queries' norms */
    float *rows;   /* scratch, a row for each worker */
    uint8_t *data; /* encoded rows */
};

struct chunk {
    const struct target *t;
    const struct source_weight *w;
    const struct ggml_encoder *type;
    int64_t first, n;
    size_t row_bytes;
    int tasks;
    bool copy;
    atomic_int bad; /* a value that the type cannot hold */
};

static bool turns(const struct target *t, const struct source_weight *w)
{
    return t->turn && (strstr(w->name, ".self_attn.q_proj") || strstr(w->name, ".self_attn.k_proj"));
}

/* The file's row, or element of a bias, that is row r of ours: first to the
 * checkpoint's order, then to the source's. */
static int64_t place(const struct target *t, const struct source_weight *w, int64_t r)
{
    int64_t head = model_base(&t->j->source->model)->cfg.head_dim, half = head / 2, in = r % head;
    if (turns(t, w))
        r = r - in + in % 2 * half + in / 2;
    in = r % head;
    return w->turn_head ? r - in + in % half * 2 + in / half : r;
}

static void encode_task(void *arg, int task, int worker)
{
    struct chunk *c = arg;
    const struct target *t = c->t;
    const struct quant_view *v = &c->w->view;
    int64_t from = c->n * task / c->tasks, to = c->n * (task + 1) / c->tasks;
    float *row = t->rows + (size_t)worker * (size_t)v->cols;
    for (int64_t i = from; i < to; i++) {
        int64_t r = place(t, c->w, c->first + i);
        uint8_t *out = t->data + (size_t)i * c->row_bytes;
        if (c->copy) {
            memcpy(out, (const uint8_t *)v->data + (size_t)r * v->row_bytes, c->row_bytes);
            continue;
        }
        quant_decode(v, r, 0, v->cols, row);
        if (!c->type->row(row, v->cols, out))
            atomic_store(&c->bad, 1);
    }
}

static const struct ggml_encoder *type_of(const struct target *t, const struct source_weight *w)
{
    if (w->is_vector)
        return t->f32;
    return w->view.cols % t->type->block ? t->f16 : t->type;
}

static size_t row_bytes(const struct ggml_encoder *type, int64_t n)
{
    return (size_t)(n / type->block) * (size_t)type->block_bytes;
}

/* Errors on a value name the type and the tensor. */
static enum tlm_status bad_value(const struct target *t, const struct source_weight *w, const struct ggml_encoder *type,
                                 struct tlm_error *e)
{
    return err_set(e, TLM_EFORMAT, "%s: tensor %s: a value is not finite or too large for %s", t->j->model, w->name,
                   type->name);
}

static void drop(const struct source_weight *w, int64_t first, int64_t n)
{
    const struct quant_view *v = &w->view;
    file_map_drop(w->map, (const uint8_t *)v->data + (size_t)first * v->row_bytes, (size_t)n * v->row_bytes);
}

static enum tlm_status write_matrix(struct target *t, const struct source_weight *w, const char *name,
                                    struct tlm_error *e)
{
    const struct ggml_encoder *type = type_of(t, w);
    const struct quant_view *v = &w->view;
    int threads = pool_threads(t->j->pool);
    size_t bytes = row_bytes(type, v->cols);
    int64_t most = (int64_t)(CHUNK_BYTES / bytes) + 1;
    bool copy = quant_by_ggml_type(type->type) == v->format && v->row_bytes == bytes;
    enum tlm_status s = TLM_OK;
    most = most < v->rows ? most : v->rows;
    t->data = mem_alloc((size_t)most * bytes);
    t->rows = mem_alloc_array((size_t)v->cols * (size_t)threads, sizeof *t->rows);
    if (!t->data || !t->rows)
        s = err_nomem(e, (size_t)most * bytes);
    for (int64_t r = 0; r < v->rows && s == TLM_OK; r += most) {
        struct chunk c = {t, w, type, r, v->rows - r < most ? v->rows - r : most, bytes, threads * 4, copy, 0};
        pool_run(t->j->pool, c.tasks, encode_task, &c);
        drop(w, r, c.n);
        s = c.bad ? bad_value(t, w, type, e) : gguf_writer_put(t->w, t->data, (size_t)c.n * bytes, e);
        if (s == TLM_OK)
            s = convert_report(t->j, name, (uint64_t)c.n * bytes, e);
    }
    mem_free(t->data);
    mem_free(t->rows);
    t->data = NULL;
    t->rows = NULL;
    return s;
}

/* Norms, and biases in the order of their rows. */
static enum tlm_status write_vector(struct target *t, const struct source_weight *w, const char *name,
                                    struct tlm_error *e)
{
    int64_t n = w->view.cols;
    bool norm = w->row->kind == ROW_NORM;
    float factor = norm && strstr(w->name, ".self_attn.q_norm") ? t->query : 1.0f;
    float add = (norm && t->traits->full_norms ? 1.0f : 0.0f) - w->minus;
    float *in = mem_alloc_array(2 * (size_t)n, sizeof *in), *out = in + n;
    if (!in)
        return err_nomem(e, 2 * (size_t)n * sizeof *in);
    quant_decode(&w->view, 0, 0, n, in);
    for (int64_t i = 0; i < n; i++) {
        out[i] = in[norm ? i : place(t, w, i)];
        if (add != 0)
            out[i] += add;
        out[i] *= factor;
    }
    bool ok = t->f32->row(out, n, (uint8_t *)in);
    drop(w, 0, 1);
    enum tlm_status s = ok ? gguf_writer_put(t->w, in, (size_t)n * 4, e) : bad_value(t, w, t->f32, e);
    mem_free(in);
    return s == TLM_OK ? convert_report(t->j, name, (uint64_t)n * 4, e) : s;
}

static enum tlm_status name_of(const struct source_weight *w, char out[CKPT_NAME_MAX], struct tlm_error *e)
{
    const char *star = strchr(w->row->gguf, '*'), *end = w->is_bias ? ".bias" : ".weight";
    int n = star ? snprintf(out, CKPT_NAME_MAX, "%.*s%lld%s%s", (int)(star - w->row->gguf), w->row->gguf,
                            (long long)w->layer, star + 1, end)
                 : snprintf(out, CKPT_NAME_MAX, "%s%s", w->row->gguf, end);
    return n > 0 && n < CKPT_NAME_MAX ? TLM_OK : err_set(e, TLM_EINTERNAL, "name too long: %s", w->row->gguf);
}

/* The divisors of a source that is a GGUF file, or those that config.json gives. */
static enum tlm_status find_bands(struct target *t, struct tlm_error *e)
{
    const struct source *s = t->j->source;
    struct ckpt_tensor *own = s->model.ck->is_gguf ? checkpoint_find(s->model.ck, "rope_freqs.weight") : NULL;
    if (!own)
        return gguf_metadata_bands(s, t->traits, &t->bands, e);
    size_t n = (size_t)model_base(&s->model)->cfg.head_dim / 2; /* checked when it was configured */
    t->bands = mem_alloc_array(n, sizeof *t->bands);
    if (!t->bands)
        return err_nomem(e, n * sizeof *t->bands);
    memcpy(t->bands, own->data, n * sizeof *t->bands);
    return TLM_OK;
}

static enum tlm_status list_tensors(struct target *t, struct tlm_error *e)
{
    const struct source *src = t->j->source;
    enum tlm_status s = find_bands(t, e);
    if (s == TLM_OK)
        s = gguf_metadata_query_factor(src, t->traits, &t->query, e);
    const int64_t half = model_base(&src->model)->cfg.head_dim / 2;
    if (s == TLM_OK && t->bands)
        s = gguf_writer_tensor(t->w, "rope_freqs.weight", t->f32->type, 1, &half, e);
    for (size_t i = 0; i < src->n_weights && s == TLM_OK; i++) {
        const struct source_weight *w = &src->weights[i];
        const int64_t ne[] = {w->view.cols, w->view.rows};
        char name[CKPT_NAME_MAX];
        s = name_of(w, name, e);
        if (s == TLM_OK)
            s = gguf_writer_tensor(t->w, name, type_of(t, w)->type, w->is_vector ? 1 : 2, ne, e);
    }
    t->j->total = gguf_writer_bytes(t->w);
    return s;
}

static enum tlm_status write_tensors(struct target *t, struct tlm_error *e)
{
    const struct source *src = t->j->source;
    enum tlm_status s = TLM_OK;
    if (t->bands) {
        size_t bytes = (size_t)model_base(&src->model)->cfg.head_dim / 2 * sizeof *t->bands;
        s = gguf_writer_put(t->w, t->bands, bytes, e);
        if (s == TLM_OK)
            s = convert_report(t->j, "rope_freqs.weight", bytes, e);
    }
    for (size_t i = 0; i < src->n_weights && s == TLM_OK; i++) {
        const struct source_weight *w = &src->weights[i];
        char name[CKPT_NAME_MAX];
        s = name_of(w, name, e);
        if (s == TLM_OK)
            s = w->is_vector ? write_vector(t, w, name, e) : write_matrix(t, w, name, e);
    }
    return s;
}

/* As the source has its matrices; F16 for a quantised one. */
static const char *usual_type(const struct source *s)
{
    for (size_t i = 0; i < s->n_weights; i++)
        if (s->weights[i].row->kind == ROW_EMBED)
            return s->weights[i].view.format == quant_dense(DT_BF16)  ? "BF16"
                   : s->weights[i].view.format == quant_dense(DT_F32) ? "F32"
                                                                      : "F16";
    return "F16";
}

static enum tlm_status check_options(const struct tlm_convert_options *o, struct tlm_error *e)
{
    const struct {
        const char *name;
        bool set;
    } rows[] = {{"quantize", o->quantize != 0},     {"bits", o->bits != 0},
                {"group_size", o->group_size != 0}, {"mode", o->mode && strcmp(o->mode, "affine") != 0},
                {"recipe", o->recipe != NULL},      {"overrides", o->n_overrides != 0},
                {"dtype", o->dtype != NULL},        {"dequantize", o->dequantize != 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].set)
            return err_set(e, TLM_EINVAL, "%s does not go with GGUF files: their type says how matrices are stored",
                           rows[i].name);
    if (o->gguf_type && !ggml_encoder_by_name(o->gguf_type))
        return err_set(e, TLM_EINVAL, "'%s' is no type of matrices; expected Q8_0, Q4_0, Q4_1, F16, BF16 or F32",
                       o->gguf_type);
    return TLM_OK;
}

static enum tlm_status open_file(struct target *t, struct tlm_error *e)
{
    char *path = mem_strdup(t->j->out);
    if (!path)
        return err_nomem(e, strlen(t->j->out));
    file_make_parents(path);
    mem_free(path);
    return gguf_writer_new(t->j->out, &t->w, e);
}

static enum tlm_status run(struct target *t, struct tlm_error *e)
{
    struct convert_job *j = t->j;
    enum tlm_status s = check_options(j->o, e);
    if (s == TLM_OK && j->out[strlen(j->out) - 1] == '/')
        s = err_set(e, TLM_EINVAL, "%s: a folder's name, expected that of a GGUF file", j->out);
    if (s == TLM_OK)
        s = gguf_traits_find(j->source, &t->traits, e);
    if (s != TLM_OK)
        return s;
    const struct nn_config *c = &model_base(&j->source->model)->cfg;
    t->turn = t->traits->pairs && (j->source->model.ck->is_gguf || !c->rope_interleaved);
    t->type = ggml_encoder_by_name(j->o->gguf_type ? j->o->gguf_type : usual_type(j->source));
    t->f16 = ggml_encoder_by_name("F16");
    t->f32 = ggml_encoder_by_name("F32");
    s = open_file(t, e);
    if (s == TLM_OK)
        s = gguf_metadata_write(j, t->traits, t->type, t->w, e);
    if (s == TLM_OK && !j->source->model.ck->is_gguf)
        s = gguf_vocab_write(j->source, t->w, e);
    if (s == TLM_OK)
        s = list_tensors(t, e);
    if (s == TLM_OK)
        s = gguf_writer_begin(t->w, e);
    if (s == TLM_OK)
        s = write_tensors(t, e);
    return s == TLM_OK ? gguf_writer_commit(t->w, e) : s;
}

enum tlm_status convert_to_gguf(struct convert_job *j, struct tlm_error *e)
{
    struct target t = {.j = j};
    enum tlm_status s = run(&t, e);
    gguf_writer_free(t.w);
    mem_free(t.bands);
    return s;
}
