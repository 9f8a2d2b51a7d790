/* Weights as the CPU wants them. Vectors (norms, biases) become f32. Quantised
 * matrices become panels (panel.h), packed in parallel; the pages of the file
 * are dropped behind. bf16 matrices become bf12; other dense ones stay where they are. */
#include <math.h>
#include <string.h>

#include "backend/cpu/bf12_pack.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/pool.h"

enum {
    HEAD_BYTES = 256,   /* struct packed_weight, in front of the panels */
    CHUNK_INPUTS = 512, /* decoded at a time, per row */
    GROUPS_MAX = CHUNK_INPUTS / 16,
    DROP_BYTES = 4 << 20 /* of source: dropping less at a time costs more than it saves */
};
_Static_assert(sizeof(struct packed_weight) <= HEAD_BYTES, "grow HEAD_BYTES");
_Static_assert(sizeof(struct quant_view) <= HEAD_BYTES, "grow HEAD_BYTES");
_Static_assert(sizeof(struct bf12_matrix) <= HEAD_BYTES, "grow HEAD_BYTES");

/* ---- layout ---- */

static enum tlm_status choose_code(const struct weight *w, struct panel_layout *l, struct tlm_error *e)
{
    static const enum panel_code of_bits[9] = {
        [2] = PANEL_U2, [3] = PANEL_U3, [4] = PANEL_U4, [5] = PANEL_U5, [6] = PANEL_U6, [8] = PANEL_S8};
    const struct quant *q = w->view.format;
    l->bias = q->has_offset ? 0 : -q->zero;
    switch (q->code) {
    case QUANT_UINT:
        l->code = q->bits <= 8 ? of_bits[q->bits] : PANEL_U2;
        if (q->bits > 8 || (l->code == PANEL_U2 && q->bits != 2))
            break;
        if (q->bits == 8)
            l->bias += 128; /* stored as code - 128 */
        if (l->code != PANEL_S8 || q->has_offset || l->bias == 0)
            return TLM_OK;
        break;
    case QUANT_INT8:
        l->code = PANEL_S8;
        if (!q->has_offset && l->bias == 0)
            return TLM_OK;
        break;
    case QUANT_TABLE:
        l->code = PANEL_T4S;
        memcpy(l->table, q->table, sizeof l->table);
        for (int i = 0; i < 16; i++)
            if (q->table[i] < -16 || q->table[i] > 16)
                l->code = PANEL_T4;
        if (!q->has_offset && l->bias == 0)
            return TLM_OK;
        break;
    case QUANT_E4M3:
        l->code = PANEL_E8;
        if (!q->has_offset && l->bias == 0)
            return TLM_OK;
        break;
    default:
        break;
    }
    return err_set(e, TLM_EINTERNAL, "%s: the CPU has no panel for format %s", w->name, q->name);
}

static enum tlm_status choose_scale(const struct weight *w, struct panel_layout *l, struct tlm_error *e)
{
    const struct quant_view *v = &w->view;
    l->scale = v->format->has_offset ? PANEL_OFFSET : PANEL_PLAIN;
    switch (quant_view_scale(v)) {
    case QUANT_SCALE_F16:
        l->scale_type = DT_F16;
        break;
    case QUANT_SCALE_BF16:
        l->scale_type = DT_BF16;
        break;
    case QUANT_SCALE_F32:
        l->scale_type = DT_F32;
        break;
    case QUANT_SCALE_LEVELS:
        l->scale = v->format->has_offset ? PANEL_LEVELS_MIN : PANEL_LEVELS_ONLY;
        l->scale_type = DT_F16;
        if (v->format->block != PANEL_LEVELS || (v->group != 16 && v->group != 32))
            return err_set(e, TLM_EINTERNAL, "%s: two-level scales of group %d and block %d", w->name, v->group,
                           v->format->block);
        if (v->format->has_offset && v->group == 16 && v->format->bits != 2) /* packed as nibbles */
            return err_set(e, TLM_EINTERNAL, "%s: scales and minima of %s in groups of 16", w->name, v->format->name);
        break;
    default:
        return err_set(e, TLM_EINTERNAL, "%s: format %s has no scales", w->name, v->format->name);
    }
    if (v->group < 1)
        return err_set(e, TLM_EINTERNAL, "%s: group of %d inputs", w->name, v->group);
    if (v->group >= v->cols) { /* one scale per row, or several rows */
        l->group = 128;
        return TLM_OK;
    }
    for (l->group = 128; l->group >= 16; l->group /= 2)
        if (v->group % l->group == 0)
            return TLM_OK;
    return err_set(e, TLM_EUNSUPPORTED, "%s: group of %d inputs, expected a multiple of 16", w->name, v->group);
}

static enum tlm_status choose_layout(const struct weight *w, struct panel_layout *l, size_t *bytes, struct tlm_error *e)
{
    const struct quant_view *v = &w->view;
    *l = (struct panel_layout){.rows = v->rows, .cols = v->cols};
    enum tlm_status s = choose_code(w, l, e);
    if (s == TLM_OK)
        s = choose_scale(w, l, e);
    if (s != TLM_OK)
        return s;
    const int levels = l->scale == PANEL_LEVELS_ONLY || l->scale == PANEL_LEVELS_MIN;
    l->unit = levels ? PANEL_LEVELS : l->group < PANEL_BLOCK ? PANEL_BLOCK : l->group;
    l->block_bytes = panel_bits(l->code) * PANEL_BLOCK * PANEL_ROWS / 8;
    const int groups = l->unit / l->group;
    if (l->scale == PANEL_LEVELS_ONLY)
        l->header_bytes = 32 + groups * PANEL_ROWS;
    else if (l->scale == PANEL_LEVELS_MIN)
        l->header_bytes = 64 + groups * PANEL_ROWS * (l->group == 16 ? 1 : 2);
    else
        l->header_bytes = groups * PANEL_ROWS * (int)dtype_size(l->scale_type) * (l->scale == PANEL_OFFSET ? 2 : 1);
    l->unit_bytes = (size_t)l->header_bytes + (size_t)(l->unit / PANEL_BLOCK) * (size_t)l->block_bytes;
    l->panels = (v->rows + PANEL_ROWS - 1) / PANEL_ROWS;
    l->units = (v->cols + l->unit - 1) / l->unit;
    size_t panels = (size_t)l->panels, units = (size_t)l->units;
    if (units > SIZE_MAX / l->unit_bytes || (units && panels > (SIZE_MAX - HEAD_BYTES) / (units * l->unit_bytes)))
        return err_set(e, TLM_ELIMIT, "%s: %lld by %lld is too large", w->name, (long long)v->rows, (long long)v->cols);
    l->panel_bytes = units * l->unit_bytes;
    *bytes = HEAD_BYTES + panels * l->panel_bytes;
    return TLM_OK;
}

/* ---- packing ---- */

struct pack_job {
    const struct matmul_kernels *kernels;
    const struct weight *w;
    const struct panel_layout *layout;
    uint8_t *panels;
    int64_t panels_per_task;
};

/* Codes of up to CHUNK_INPUTS inputs of a panel's rows; absent ones are 0. */
static void decode_codes(const struct pack_job *j, int64_t row, int64_t k0, int64_t inputs,
                         uint8_t out[PANEL_ROWS][CHUNK_INPUTS])
{
    const struct quant_view *v = &j->w->view;
    int64_t n = v->cols - k0 < inputs ? v->cols - k0 : inputs;
    for (int r = 0; r < PANEL_ROWS; r++) {
        if (row + r >= v->rows) {
            memset(out[r], 0, (size_t)inputs);
            continue;
        }
        v->format->codes(v, row + r, k0, n, out[r]);
        memset(out[r] + n, 0, (size_t)(inputs - n));
        if (v->format->code == QUANT_UINT && v->format->bits == 8)
            for (int64_t k = 0; k < inputs; k++)
                out[r][k] ^= 0x80;
    }
}

/* Scales and offsets of a panel for one chunk, as they will lie in its units:
 * collected here so that the panel is written once, forwards. */
union scale_planes {
    uint16_t half[2][GROUPS_MAX][PANEL_ROWS];
    float full[2][GROUPS_MAX][PANEL_ROWS];
};

/* The n numbers of one row, one per group. */
static void put_scales(const struct pack_job *j, const float *x, int64_t n, int which, int64_t r,
                       union scale_planes *out)
{
    uint16_t half[GROUPS_MAX];
    enum dtype t = j->layout->scale_type;
    if (t == DT_F32) {
        for (int64_t i = 0; i < n; i++)
            out->full[which][i][r] = x[i];
        return;
    }
    if (t == DT_F16)
        j->kernels->pack_f16(x, n, half);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = fp_to_bf16(x[i]);
    for (int64_t i = 0; i < n; i++)
        out->half[which][i][r] = half[i];
}

/* Header of the unit whose first group is g. */
static void write_scales(const struct panel_layout *l, const union scale_planes *s, int64_t g, uint8_t *unit)
{
    const size_t groups = (size_t)(l->unit / l->group);
    for (int which = 0; which < (l->scale == PANEL_OFFSET ? 2 : 1); which++)
        if (l->scale_type == DT_F32) {
            memcpy(unit, s->full[which][g], groups * sizeof s->full[0][0]);
            unit += groups * sizeof s->full[0][0];
        } else {
            memcpy(unit, s->half[which][g], groups * sizeof s->half[0][0]);
            unit += groups * sizeof s->half[0][0];
        }
}

/* A code that is not a number makes its whole row so, as multiplying would;
 * kernels then need not look for it. */
static void spoil_scales(const struct panel_layout *l, const uint8_t *codes, int64_t n, float *scale)
{
    for (int64_t k = 0; k < n; k++)
        if ((codes[k] & 0x7f) == 0x7f)
            scale[k / l->group] = NAN;
}

/* Scales and offsets of one row from input k0 on. The view's groups may be
 * longer than the panel's. */
static void row_scales(const struct pack_job *j, int64_t row, int64_t k0, int64_t inputs, const uint8_t *codes,
                       union scale_planes *out)
{
    const struct panel_layout *l = j->layout;
    const struct quant_view *v = &j->w->view;
    const int64_t group = v->group < v->cols ? v->group : l->cols + l->unit; /* none begins inside the row */
    int64_t n = v->cols - k0 < inputs ? v->cols - k0 : inputs;
    int64_t first = k0 / group, count = (k0 + n - 1) / group - first + 1;
    float from[2][GROUPS_MAX + 1], to[2][GROUPS_MAX + 1];
    if (group == l->group && n == inputs) {
        v->format->scales(v, row, first, count, to[0], to[1]);
    } else {
        memset(to, 0, sizeof to);
        v->format->scales(v, row, first, count, from[0], from[1]);
        for (int64_t k = 0; k < n; k += l->group) {
            int64_t g = (k0 + k) / group - first;
            to[0][k / l->group] = from[0][g];
            to[1][k / l->group] = from[1][g];
        }
    }
    if (l->code == PANEL_E8)
        spoil_scales(l, codes, n, to[0]);
    put_scales(j, to[0], inputs / l->group, 0, row % PANEL_ROWS, out);
    if (l->scale == PANEL_OFFSET)
        put_scales(j, to[1], inputs / l->group, 1, row % PANEL_ROWS, out);
}

static void pack_row_levels(const struct pack_job *j, int64_t row, int64_t k0, int64_t inputs, uint8_t *unit)
{
    const struct panel_layout *l = j->layout;
    const struct quant_view *v = &j->w->view;
    const int64_t r = row % PANEL_ROWS;
    const int groups = l->unit / l->group;
    for (int64_t u = 0; u < inputs / l->unit; u++, unit += l->unit_bytes) {
        struct quant_levels lv;
        v->format->levels(v, row, k0 / l->unit + u, &lv);
        memcpy(unit + 2 * r, &lv.d, 2);
        uint8_t *sc = unit + 32 + r;
        if (l->scale == PANEL_LEVELS_MIN) {
            uint16_t negative = lv.dmin ^ 0x8000;
            memcpy(unit + 32 + 2 * r, &negative, 2);
            sc += 32;
        }
        for (int g = 0; g < groups; g++) {
            uint8_t s = (uint8_t)lv.sc[g];
            if (l->scale == PANEL_LEVELS_MIN && l->group == 16)
                s = (uint8_t)((s & 15) | lv.mn[g] << 4);
            sc[g * PANEL_ROWS] = s;
            if (l->scale == PANEL_LEVELS_MIN && l->group == 32)
                sc[(groups + g) * PANEL_ROWS] = lv.mn[g];
        }
    }
}

static void pack_panel(const struct pack_job *j, int64_t panel)
{
    const struct panel_layout *l = j->layout;
    const bool levels = l->scale == PANEL_LEVELS_ONLY || l->scale == PANEL_LEVELS_MIN;
    const int64_t row = panel * PANEL_ROWS, width = l->units * l->unit;
    uint8_t codes[PANEL_ROWS][CHUNK_INPUTS];
    union scale_planes scales;
    memset(&scales, 0, sizeof scales); /* absent rows; the panel itself is zeroed memory */
    uint8_t *unit = j->panels + (size_t)panel * l->panel_bytes;
    for (int64_t k0 = 0; k0 < width; k0 += CHUNK_INPUTS) {
        int64_t inputs = width - k0 < CHUNK_INPUTS ? width - k0 : CHUNK_INPUTS;
        decode_codes(j, row, k0, inputs, codes);
        for (int r = 0; r < PANEL_ROWS && row + r < l->rows; r++) {
            if (levels)
                pack_row_levels(j, row + r, k0, inputs, unit);
            else
                row_scales(j, row + r, k0, inputs, codes[r], &scales);
        }
        for (int64_t k = 0; k < inputs; k += l->unit, unit += l->unit_bytes) {
            uint8_t *p = unit + l->header_bytes;
            if (!levels)
                write_scales(l, &scales, k / l->group, unit);
            for (int b = 0; b < l->unit; b += PANEL_BLOCK, p += l->block_bytes)
                j->kernels->pack_block(l->code, codes[0] + k + b, CHUNK_INPUTS, p);
        }
    }
}

void weight_drop_rows(const struct weight *w, int64_t first, int64_t end)
{
    const struct quant_view *v = &w->view;
    if (end > v->rows)
        end = v->rows;
    if (w->map && !v->stride && (size_t)(end - first) * v->row_bytes >= DROP_BYTES)
        file_map_drop(w->map, (const uint8_t *)v->data + (size_t)first * v->row_bytes,
                      (size_t)(end - first) * v->row_bytes);
}

static void pack_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct pack_job *j = arg;
    int64_t first = task * j->panels_per_task, end = first + j->panels_per_task;
    if (end > j->layout->panels)
        end = j->layout->panels;
    for (int64_t p = first; p < end; p++)
        pack_panel(j, p);
    weight_drop_rows(j->w, first * PANEL_ROWS, end * PANEL_ROWS);
}

/* What tasks left: pages that two of them shared, scales, offsets. */
static void drop_rest(const struct weight *w)
{
    const struct quant_view *v = &w->view;
    if (!w->map)
        return;
    file_map_drop(w->map, v->data, (size_t)v->rows * v->row_bytes);
    if (v->scales)
        file_map_drop(w->map, v->scales, quant_view_scale_bytes(v));
    if (v->offsets)
        file_map_drop(w->map, v->offsets, quant_view_scale_bytes(v));
    if (v->zeros)
        file_map_drop(w->map, v->zeros, v->zero_bytes);
}

static enum tlm_status pack_matrix(struct cpu_backend *b, struct weight *w, struct tlm_error *e)
{
    struct panel_layout layout;
    size_t bytes = 0;
    enum tlm_status s = choose_layout(w, &layout, &bytes, e);
    if (s != TLM_OK)
        return s;
    uint8_t *block = cpu_slab_alloc(b, bytes);
    if (!block)
        return err_nomem(e, bytes);
    struct packed_weight *packed = (void *)block;
    *packed = (struct packed_weight){.layout = layout, .panels = block + HEAD_BYTES};
    int64_t tasks = (int64_t)pool_threads(b->base.pool) * 16;
    if (tasks > layout.panels)
        tasks = layout.panels;
    int64_t per_task = tasks ? (layout.panels + tasks - 1) / tasks : 1;
    struct pack_job job = {&b->matmul, w, &packed->layout, block + HEAD_BYTES, per_task};
    pool_run(b->base.pool, (int)((layout.panels + per_task - 1) / per_task), pack_task, &job);
    drop_rest(w);
    w->device = packed;
    w->device_bytes = bytes;
    return TLM_OK;
}

/* bf16 in 12 bits where that loses nothing; otherwise it stays as it is. */
static enum tlm_status pack_bf16(struct cpu_backend *b, struct weight *w, struct tlm_error *e)
{
    struct bf12_matrix m;
    size_t bytes = 0;
    if (!bf12_layout(w, &m, &bytes))
        return TLM_OK;
    uint8_t *block = cpu_slab_alloc(b, HEAD_BYTES + bytes);
    if (!block)
        return err_nomem(e, HEAD_BYTES + bytes);
    m.panel = block + HEAD_BYTES;
    if (!bf12_pack(b, w, &m, block + HEAD_BYTES)) {
        cpu_slab_return(b, block);
        return TLM_OK;
    }
    *(struct bf12_matrix *)(void *)block = m;
    drop_rest(w);
    w->device = block;
    w->device_bytes = HEAD_BYTES + bytes;
    return TLM_OK;
}

/* Formats without a kernel of their own become f32 rows, behind a view of them. */
struct expand_job {
    struct quant_view from;
    float *to;
    int64_t rows_per_task;
};

static void expand_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct expand_job *j = arg;
    int64_t first = task * j->rows_per_task, end = first + j->rows_per_task;
    for (int64_t r = first; r < end && r < j->from.rows; r++)
        quant_decode(&j->from, r, 0, j->from.cols, j->to + r * j->from.cols);
}

static enum tlm_status expand_matrix(struct cpu_backend *b, struct weight *w, struct tlm_error *e)
{
    const struct quant_view *v = &w->view;
    size_t row_bytes = (size_t)v->cols * sizeof(float);
    if (v->rows && row_bytes > (SIZE_MAX - HEAD_BYTES) / (size_t)v->rows)
        return err_set(e, TLM_ELIMIT, "%s: %lld by %lld is too large", w->name, (long long)v->rows, (long long)v->cols);
    size_t bytes = HEAD_BYTES + (size_t)v->rows * row_bytes;
    uint8_t *block = cpu_slab_alloc(b, bytes);
    if (!block)
        return err_nomem(e, bytes);
    struct expand_job job = {.from = *v, .to = (float *)(void *)(block + HEAD_BYTES)};
    job.from.input = NULL;
    job.rows_per_task = v->rows / (16 * (int64_t)pool_threads(b->base.pool)) + 1;
    pool_run(b->base.pool, (int)((v->rows + job.rows_per_task - 1) / job.rows_per_task), expand_task, &job);
    *(struct quant_view *)(void *)block = (struct quant_view){.format = quant_dense(DT_F32),
                                                              .rows = v->rows,
                                                              .cols = v->cols,
                                                              .group = 1,
                                                              .data = job.to,
                                                              .row_bytes = row_bytes,
                                                              .scale_rows = 1,
                                                              .input = v->input};
    drop_rest(w);
    w->device = block;
    w->device_bytes = bytes;
    return TLM_OK;
}

static enum tlm_status load_vector(struct weight *w, struct tlm_error *e)
{
    const struct quant_view *v = &w->view;
    float *x = mem_alloc_array((size_t)(v->rows * v->cols), sizeof *x);
    if (!x)
        return err_nomem(e, (size_t)(v->rows * v->cols) * sizeof *x);
    for (int64_t r = 0; r < v->rows; r++)
        quant_decode(v, r, 0, v->cols, x + r * v->cols);
    w->device = x;
    w->device_bytes = (size_t)(v->rows * v->cols) * sizeof *x;
    return TLM_OK;
}

enum tlm_status cpu_weight_load(struct backend *b, struct weight *w, struct tlm_error *e)
{
    if (w->uses & WEIGHT_VECTOR)
        return load_vector(w, e);
    if ((w->uses & WEIGHT_MATMUL) && w->view.format->code == QUANT_REAL)
        return expand_matrix((struct cpu_backend *)b, w, e);
    if ((w->uses & WEIGHT_MATMUL) && w->view.format->code != QUANT_DENSE)
        return pack_matrix((struct cpu_backend *)b, w, e);
    if (w->uses & WEIGHT_MATMUL)
        return pack_bf16((struct cpu_backend *)b, w, e);
    return TLM_OK;
}

void cpu_weight_unload(struct backend *b, struct weight *w)
{
    (void)b;
    if (w->uses & WEIGHT_VECTOR)
        mem_free(w->device); /* matrices are in slabs, which go with the backend */
    w->device = NULL;
    w->device_bytes = 0;
}
