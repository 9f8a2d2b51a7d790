/* Weights of an MLX directory: safetensors files of at most 5 GiB and their
 * index, written row by row.
 *
 * A task is some rows of one tensor: decoded, encoded and written at its place
 * by whichever thread takes it, so memory is one task per thread, and pages of
 * the source are dropped as soon as they were read. */
#include "convert/mlx_dir.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "convert/json_out.h"
#include "io/st_writer.h"
#include "quant/turbo.h"

enum { TASK_ELEMENTS = 1 << 18, NAME_ROOM = CKPT_NAME_MAX + 64 };
static const uint64_t SHARD_MAX = UINT64_C(5) << 30;

struct worker {
    float *row;     /* decoded */
    uint8_t *codes; /* of the rows of a task, or elements */
    uint8_t *scales, *biases;
    size_t row_room, code_room, scale_room, bias_room;
    struct tlm_error error;
};

struct writing {
    struct convert_job *j;
    const struct plan *p;
    const struct work_dir *dir;
    struct st_writer *w;
    struct worker *workers;
    int n_workers;
    /* of the tensor that is written */
    const struct plan_row *row;
    uint64_t codes_at, scales_at, biases_at;
    int64_t rows_per_task;
    _Atomic uint64_t unreported;
    atomic_int failed;
};

static const char *kind_name(const struct plan_row *r)
{
    return r->w->is_bias ? "" : ".weight";
}

static uint64_t row_bytes(const struct plan_row *r)
{
    return r->code_bytes + r->scale_bytes * (r->action != PLAN_PLAIN && r->params.mode == QUANT_AFFINE ? 2u : 1u);
}

/* Rows ---------------------------------------------------------------------- */

/* mlx multiplies and adds in the scales' type. */
static void decode_affine(const struct plan_row *r, int64_t row, float *out)
{
    enum { CHUNK = 256 };
    const struct quant_view *v = &r->w->view;
    uint8_t code[CHUNK];
    for (int64_t k = 0; k < v->cols; k += CHUNK) {
        int64_t n = v->cols - k < CHUNK ? v->cols - k : CHUNK;
        v->format->codes(v, row, k, n, code);
        for (int64_t i = 0; i < n; i += v->group) {
            float s, b;
            int64_t end = i + v->group < n ? i + v->group : n;
            v->format->scales(v, row, (k + i) / v->group, 1, &s, &b);
            s = quant_round(r->type, s);
            b = quant_round(r->type, b);
            for (int64_t c = i; c < end; c++)
                out[k + c] = quant_round(r->type, quant_round(r->type, (float)code[c] * s) + b);
        }
    }
}

static void decode_row(const struct writing *w, int64_t row, float *out)
{
    const struct plan_row *r = w->row;
    if (r->is_mlx && r->w->view.format->has_offset)
        decode_affine(r, row, out);
    else
        source_decode(r->w, row, out);
}

static bool is_dense_of(const struct plan_row *r, enum dtype t)
{
    return r->w->view.format == quant_dense(t);
}

/* Rows whose bytes are those of the file. */
static bool is_copy(const struct plan_row *r)
{
    return r->action == PLAN_KEEP ||
           (r->action == PLAN_PLAIN && is_dense_of(r, r->type) && !r->w->turn_head && r->w->minus == 0);
}

static bool encode_row(const struct plan_row *r, float *row, uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    const struct quant_params *p = &r->params;
    const int64_t n = r->w->view.cols;
    if (p->mode == QUANT_TURBO)
        return turbo_encode(p->bits, p->group, r->input, row, n, codes, scales);
    if (r->input)
        turbo_rotate_rounded(r->input, r->type, row, n);
    if (p->mode == QUANT_LUT)
        return turbo_encode_lut(p->bits, p->group, r->type, row, n, codes, scales);
    return quant_encode(p, r->type, row, n, codes, scales, biases);
}

/* A row of the source as elements of the type; what is quantised can have no
 * infinite elements but those that the type brought in. */
static bool take_row(const struct writing *w, int64_t row, float *out)
{
    const struct plan_row *r = w->row;
    const int64_t cols = r->w->view.cols;
    decode_row(w, row, out);
    if (r->type == DT_F32 || is_dense_of(r, r->type))
        return true;
    if (!quant_holds(r->type, out, cols, r->w->view.format->code != QUANT_DENSE))
        return false;
    for (int64_t c = 0; r->action == PLAN_ENCODE && c < cols; c++)
        out[c] = quant_round(r->type, out[c]);
    return true;
}

static enum tlm_status bad_row(const struct writing *w, int64_t row, const char *problem, struct tlm_error *e)
{
    return err_set(e, TLM_EFORMAT, "%s: tensor %s%s, row %lld: holds a value that %s", w->j->model, w->row->w->name,
                   kind_name(w->row), (long long)row, problem);
}

static enum tlm_status encode_rows(const struct writing *w, struct worker *k, int64_t from, int64_t n)
{
    const struct plan_row *r = w->row;
    const int64_t rows = r->w->view.rows, cols = r->w->view.cols;
    size_t code_row = (size_t)(r->code_bytes / (uint64_t)rows), scale_row = (size_t)(r->scale_bytes / (uint64_t)rows);
    for (int64_t i = 0; i < n; i++) {
        if (!take_row(w, from + i, k->row)) {
            char problem[64];
            snprintf(problem, sizeof problem, "%s cannot hold", plan_dtype_name(r->type));
            return bad_row(w, from + i, problem, &k->error);
        }
        uint8_t *codes = k->codes + (size_t)i * code_row;
        if (r->action == PLAN_PLAIN)
            quant_store(r->type, k->row, cols, codes);
        else if (!encode_row(r, k->row, codes, k->scales + (size_t)i * scale_row, k->biases + (size_t)i * scale_row))
            return bad_row(w, from + i, "is not finite or too large, and cannot be quantised", &k->error);
    }
    enum tlm_status s =
        st_writer_put_at(w->w, w->codes_at + (uint64_t)from * code_row, k->codes, (size_t)n * code_row, &k->error);
    if (s == TLM_OK && scale_row)
        s = st_writer_put_at(w->w, w->scales_at + (uint64_t)from * scale_row, k->scales, (size_t)n * scale_row,
                             &k->error);
    if (s == TLM_OK && scale_row && r->params.mode == QUANT_AFFINE)
        s = st_writer_put_at(w->w, w->biases_at + (uint64_t)from * scale_row, k->biases, (size_t)n * scale_row,
                             &k->error);
    return s;
}

static void run_task(void *arg, int task, int worker)
{
    struct writing *w = arg;
    struct worker *k = &w->workers[worker];
    const struct quant_view *v = &w->row->w->view;
    if (atomic_load(&w->failed))
        return;
    int64_t from = task * w->rows_per_task, n = v->rows - from < w->rows_per_task ? v->rows - from : w->rows_per_task;
    const uint8_t *data = (const uint8_t *)v->data + (size_t)from * v->row_bytes;
    enum tlm_status s = is_copy(w->row) ? st_writer_put_at(w->w, w->codes_at + (uint64_t)from * v->row_bytes, data,
                                                           (size_t)n * v->row_bytes, &k->error)
                                        : encode_rows(w, k, from, n);
    file_map_drop(w->row->w->map, data, (size_t)n * v->row_bytes);
    w->unreported += (uint64_t)n * (row_bytes(w->row) / (uint64_t)v->rows);
    if (s == TLM_OK && worker == 0)
        s = convert_report(w->j, w->row->path, atomic_exchange(&w->unreported, 0), &k->error);
    if (s != TLM_OK)
        atomic_store(&w->failed, 1);
}

/* Tensors ------------------------------------------------------------------- */

/* p with room for want bytes, its content lost; NULL when there is no memory. */
static void *grow(void *p, size_t *have, size_t want)
{
    if (*have >= want && p)
        return p;
    mem_free(p);
    p = mem_alloc(want);
    *have = p ? want : 0;
    return p;
}

static enum tlm_status prepare_workers(struct writing *w, struct tlm_error *e)
{
    const struct plan_row *r = w->row;
    const int64_t rows = r->w->view.rows, cols = r->w->view.cols;
    w->rows_per_task = cols < TASK_ELEMENTS ? TASK_ELEMENTS / cols : 1;
    if (w->rows_per_task > rows)
        w->rows_per_task = rows;
    if (is_copy(r))
        return TLM_OK;
    size_t n = (size_t)w->rows_per_task, code = (size_t)(r->code_bytes / (uint64_t)rows) * n;
    size_t scale = (size_t)(r->scale_bytes / (uint64_t)rows) * n;
    for (int i = 0; i < w->n_workers; i++) {
        struct worker *k = &w->workers[i];
        k->row = grow(k->row, &k->row_room, (size_t)cols * sizeof(float));
        k->codes = grow(k->codes, &k->code_room, code);
        k->scales = grow(k->scales, &k->scale_room, scale);
        k->biases = grow(k->biases, &k->bias_room, scale);
        if (!k->row || !k->codes || !k->scales || !k->biases)
            return err_nomem(e, (size_t)cols * sizeof(float) + code + 2 * scale);
    }
    return TLM_OK;
}

/* A tensor of scales or biases as it is, or in another type. */
static enum tlm_status put_scales(const struct writing *w, const void *data, uint64_t at, struct tlm_error *e)
{
    enum { CHUNK = 4096 };
    const struct plan_row *r = w->row;
    const struct quant_view *v = &r->w->view;
    if (r->params.mode != QUANT_AFFINE || v->scale_dtype == r->type)
        return st_writer_put_at(w->w, at, data, (size_t)r->scale_bytes, e);
    size_t from_size = dtype_size(v->scale_dtype), to_size = dtype_size(r->type);
    struct quant_view flat = {.format = quant_dense(v->scale_dtype), .rows = 1, .data = data};
    int64_t n = (int64_t)((size_t)r->scale_bytes / to_size);
    float x[CHUNK];
    uint8_t out[CHUNK * 4];
    enum tlm_status s = TLM_OK;
    flat.cols = n;
    flat.row_bytes = (size_t)n * from_size;
    for (int64_t i = 0; i < n && s == TLM_OK; i += CHUNK) {
        int64_t k = n - i < CHUNK ? n - i : CHUNK;
        quant_decode(&flat, 0, i, k, x);
        if (!quant_holds(r->type, x, k, false))
            return err_set(e, TLM_EFORMAT, "%s: tensor %s: has a scale or bias that %s cannot hold", w->j->model,
                           r->w->name, plan_dtype_name(r->type));
        quant_store(r->type, x, k, out);
        s = st_writer_put_at(w->w, at + (uint64_t)i * to_size, out, (size_t)k * to_size, e);
    }
    return s;
}

static enum tlm_status write_tensor(struct writing *w, struct tlm_error *e)
{
    const struct plan_row *r = w->row;
    const struct quant_view *v = &r->w->view;
    enum tlm_status s = prepare_workers(w, e);
    if (s != TLM_OK)
        return s;
    int64_t tasks = (v->rows + w->rows_per_task - 1) / w->rows_per_task;
    if (tasks > INT32_MAX)
        return err_set(e, TLM_ELIMIT, "%s: tensor %s has %lld rows", w->j->model, r->w->name, (long long)v->rows);
    pool_run(w->j->pool, (int)tasks, run_task, w);
    for (int i = 0; i < w->n_workers; i++)
        if (w->workers[i].error.status != TLM_OK)
            return err_set(e, w->workers[i].error.status, "%s", w->workers[i].error.message);
    if (r->action == PLAN_KEEP) {
        s = put_scales(w, v->scales, w->scales_at, e);
        if (s == TLM_OK && r->params.mode == QUANT_AFFINE)
            s = put_scales(w, v->offsets, w->biases_at, e);
    }
    size_t scales = v->scales ? (size_t)v->rows * v->scale_row_bytes : 0;
    if (scales)
        file_map_drop(w->row->w->map, v->scales, scales);
    if (scales && v->offsets)
        file_map_drop(w->row->w->map, v->offsets, scales);
    return s == TLM_OK ? convert_report(w->j, r->path, atomic_exchange(&w->unreported, 0), e) : s;
}

/* Files --------------------------------------------------------------------- */

static enum tlm_status add_one(struct writing *w, const struct plan_row *r, const char *suffix, enum dtype type,
                               int64_t cols, const char *file, cJSON *map, struct tlm_error *e)
{
    char name[NAME_ROOM];
    const int64_t shape[2] = {r->w->view.rows, cols};
    snprintf(name, sizeof name, "%s%s", r->path, suffix);
    if (!cJSON_AddStringToObject(map, name, file))
        return err_nomem(e, strlen(name));
    return st_writer_add(w->w, name, type, r->w->is_vector ? 1 : 2, r->w->is_vector ? shape + 1 : shape, e);
}

/* Declares the tensors of a row; *at: where its data begins. */
static enum tlm_status add_row(struct writing *w, const struct plan_row *r, const char *file, cJSON *map,
                               struct tlm_error *e)
{
    const int64_t cols = r->w->view.cols;
    if (r->action == PLAN_PLAIN)
        return add_one(w, r, kind_name(r), r->type, cols, file, map, e);
    bool affine = r->params.mode == QUANT_AFFINE;
    enum dtype scale = quant_params_scale_type(&r->params, r->type);
    enum tlm_status s = add_one(w, r, ".weight", DT_U32, cols * r->params.bits / 32, file, map, e);
    if (s == TLM_OK)
        s = add_one(w, r, ".scales", scale, cols / r->params.group, file, map, e);
    if (s == TLM_OK && affine)
        s = add_one(w, r, ".biases", scale, cols / r->params.group, file, map, e);
    return s;
}

/* Rows from .. to of the plan. */
static enum tlm_status write_shard(struct writing *w, size_t from, size_t to, const char *file, cJSON *map,
                                   struct tlm_error *e)
{
    char *path = path_join(w->dir->path, file);
    enum tlm_status s = path ? st_writer_new(path, &w->w, e) : err_nomem(e, strlen(file));
    mem_free(path);
    if (s == TLM_OK)
        s = st_writer_meta(w->w, "format", "mlx", e);
    for (size_t i = from; i < to && s == TLM_OK; i++)
        s = add_row(w, &w->p->rows[i], file, map, e);
    if (s == TLM_OK)
        s = st_writer_begin(w->w, e);
    if (s == TLM_OK)
        s = st_writer_reserve(w->w, e);
    uint64_t at = 0;
    for (size_t i = from; i < to && s == TLM_OK; i++) {
        w->row = &w->p->rows[i];
        w->codes_at = at;
        w->scales_at = at + w->row->code_bytes;
        w->biases_at = w->scales_at + w->row->scale_bytes;
        s = write_tensor(w, e);
        at += row_bytes(w->row);
    }
    if (s == TLM_OK)
        s = st_writer_commit(w->w, e);
    st_writer_free(w->w);
    w->w = NULL;
    return s;
}

/* The last row that fits into a file with row i, plus one. */
static size_t shard_end(const struct plan *p, size_t i)
{
    uint64_t bytes = row_bytes(&p->rows[i++]);
    while (i < p->n && bytes + row_bytes(&p->rows[i]) <= SHARD_MAX)
        bytes += row_bytes(&p->rows[i++]);
    return i;
}

static enum tlm_status write_shards(struct writing *w, cJSON *map, struct tlm_error *e)
{
    int n = 0, number = 0;
    enum tlm_status s = TLM_OK;
    for (size_t i = 0; i < w->p->n; i = shard_end(w->p, i))
        n++;
    for (size_t i = 0; i < w->p->n && s == TLM_OK;) {
        char file[64];
        size_t end = shard_end(w->p, i);
        if (n > 1)
            snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", ++number, n);
        else
            snprintf(file, sizeof file, "model.safetensors");
        s = write_shard(w, i, end, file, map, e);
        i = end;
    }
    return s;
}

static enum tlm_status write_index(const struct writing *w, cJSON *index, cJSON *map, struct tlm_error *e)
{
    struct buf text;
    buf_init(&text, (size_t)1 << 30);
    enum tlm_status s = json_out_sort(map, e);
    if (s == TLM_OK)
        s = json_out_write(&text, index, e);
    if (s == TLM_OK)
        s = work_dir_write(w->dir, "model.safetensors.index.json", buf_str(&text), text.len, e);
    buf_deinit(&text);
    return s;
}

static enum tlm_status write_weights(struct writing *w, struct tlm_error *e)
{
    cJSON *index = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(index, "metadata");
    cJSON *map = cJSON_AddObjectToObject(index, "weight_map");
    enum tlm_status s = TLM_OK;
    if (!meta || !map || !cJSON_AddNumberToObject(meta, "total_size", (double)w->p->bytes) ||
        !cJSON_AddNumberToObject(meta, "total_parameters", (double)w->p->parameters))
        s = err_nomem(e, sizeof *index);
    w->n_workers = pool_threads(w->j->pool);
    w->workers = mem_new_array((size_t)w->n_workers, sizeof *w->workers);
    if (s == TLM_OK && !w->workers)
        s = err_nomem(e, sizeof *w->workers);
    if (s == TLM_OK)
        s = write_shards(w, map, e);
    if (s == TLM_OK)
        s = write_index(w, index, map, e);
    for (int i = 0; w->workers && i < w->n_workers; i++) {
        mem_free(w->workers[i].row);
        mem_free(w->workers[i].codes);
        mem_free(w->workers[i].scales);
        mem_free(w->workers[i].biases);
    }
    mem_free(w->workers);
    cJSON_Delete(index);
    return s;
}

static enum tlm_status announce(struct convert_job *j, const struct plan *p, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    j->total = p->bytes;
    if (j->o->dequantize)
        s = convert_note(j, e, "[INFO] Dequantizing");
    if (s == TLM_OK && j->o->quantize)
        s = convert_note(j, e, "[INFO] Quantizing");
    if (s == TLM_OK && j->o->quantize)
        s = convert_note(j, e, "[INFO] Quantized model with %.3f bits per weight.",
                         (double)p->bytes * 8 / (double)p->parameters);
    return s;
}

enum tlm_status convert_to_mlx(struct convert_job *j, struct tlm_error *e)
{
    struct plan p;
    struct work_dir d = {.fd = -1};
    struct writing w = {.j = j, .p = &p, .dir = &d};
    enum tlm_status s = plan_make(&p, j, e);
    if (s == TLM_OK)
        s = announce(j, &p, e);
    if (s == TLM_OK)
        s = work_dir_open(&d, j->out, e);
    if (s == TLM_OK)
        s = mlx_write_files(j, &p, &d, e);
    if (s == TLM_OK)
        s = write_weights(&w, e);
    if (s == TLM_OK)
        s = work_dir_commit(&d, e);
    if (s != TLM_OK)
        work_dir_name_error(&d, e);
    work_dir_close(&d);
    plan_deinit(&p);
    return s;
}
