/* cpu_linear: matrix products of several weights that share their input, in
 * one parallel loop, and the choice of kernels.
 *
 *     y[i] [T, O_i] = x [T, I] . w[i]^T + bias[i]
 *
 * The rows of all weights are numbered in panels of 16. A task is a run of
 * panels by a block of tokens. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu.h"
#include "base/fp.h"
#include "base/pool.h"

enum {
    SHARE_MAX = 8,            /* weights per loop */
    TOKEN_BLOCK = 96,         /* of a task: whole tiles of every kernel */
    SCRATCH_BYTES = 16 << 20, /* activations of a pass; more tokens take several */
    TASKS_PER_THREAD = 8
};

_Static_assert(TOKEN_BLOCK % MATMUL_TILE_INT == 0 && TOKEN_BLOCK % MATMUL_TILE_MAX == 0 &&
                   TOKEN_BLOCK % MATMUL_DENSE_TOKENS == 0,
               "whole tiles");

enum kind { KIND_INT, KIND_FLOAT, KIND_DENSE, KIND_BF12 };

struct part {
    enum kind kind;
    int64_t rows, panels;
    const struct packed_weight *packed;
    const struct quant_view *view; /* dense */
    const struct bf12_matrix *bf12;
    matmul_int_fn *int_fn;
    matmul_float_fn *float_fn;
    matmul_dense_fn *dense_fn;
    matmul_dense_many_fn *many_fn;
    const float *bias;
    float *y;
};

struct linear_job {
    const struct matmul_kernels *kernels;
    struct part part[SHARE_MAX];
    int parts;
    const float *x;                  /* [tokens, cols]: this pass */
    const struct quant_input *input; /* of all parts */
    const struct vector_kernels *vector;
    float *y; /* [tokens, cols]: x as it meets the codes; NULL without an input */
    int64_t cols, tokens, blocks;
    int64_t convert_tokens; /* per task that prepares activations */
    int64_t token_blocks;
    int64_t panels, panels_per_task;
    struct act_q16 *q16; /* NULL when no part needs it */
    struct act_f32 *f32;
    float *many; /* of dense parts: inputs by MATMUL_DENSE_TOKENS tokens; NULL for few tokens */
    int64_t many_cols;
    int sums; /* of a row, in dense parts */
};

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- activations ---- */

/* Token t's first block in tiles of `tile` tokens; *stride: between its blocks. */
static int64_t tile_offset(const struct linear_job *j, int64_t t, int tile, int *stride)
{
    int64_t start = t / tile * tile;
    *stride = (int)min_i64(tile, j->tokens - start);
    return start * j->blocks + t % tile;
}

void matmul_dense_inputs(int tile_many, int sums, const float *x, int64_t cols, int tokens, int first, int end,
                         float *out)
{
    const int tiles = matmul_dense_tiles(tokens, tile_many);
    for (int i = 0; i < tiles; i++) {
        const int start = matmul_dense_tile_start(tokens, tile_many, i);
        const int n = matmul_dense_tile_start(tokens, tile_many, i + 1) - start;
        for (int t = start < first ? first : start; t < start + n && t < end; t++) {
            const float *from = x + (t - first) * cols;
            for (int64_t c = 0; c < cols; c += MATMUL_DENSE_INPUTS) {
                const int64_t left = min_i64(MATMUL_DENSE_INPUTS, cols - c), steps = div_up(left, sums);
                for (int l = 0; l < sums; l++) {
                    float *to = out + c * tokens + (l * tokens + start) * steps + (t - start);
                    for (int64_t s = 0; s < steps; s++) {
                        int64_t at = s * sums + l;
                        to[s * n] = at < left ? from[c + at] : 0;
                    }
                }
            }
        }
    }
}

/* Tokens of the run that starts at token t, a multiple of MATMUL_DENSE_TOKENS. */
static int many_tokens(const struct linear_job *j, int64_t t)
{
    int64_t n = min_i64(MATMUL_DENSE_TOKENS, j->tokens - t);
    return j->many && n > MATMUL_DENSE_FEW ? (int)n : 0;
}

static void many_inputs(const struct linear_job *j, const float *x, int64_t first, int64_t end)
{
    for (int64_t t = first, next; t < end; t = next) {
        const int64_t start = t / MATMUL_DENSE_TOKENS * MATMUL_DENSE_TOKENS;
        next = min_i64(end, start + MATMUL_DENSE_TOKENS);
        if (many_tokens(j, start))
            matmul_dense_inputs(j->kernels->tile_many, j->sums, x + (t - first) * j->cols, j->cols,
                                many_tokens(j, start), (int)(t - start), (int)(next - start),
                                j->many + start * j->many_cols);
    }
}

static void convert_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct linear_job *j = arg;
    int64_t first = task * j->convert_tokens, end = min_i64(first + j->convert_tokens, j->tokens);
    int stride;
    for (int64_t t = first; t < end; t++) {
        const float *x = j->x + t * j->cols;
        if (j->input) {
            j->vector->input(j->y + t * j->cols, x, j->input, j->cols);
            x = j->y + t * j->cols;
        }
        if (j->q16) {
            struct act_q16 *out = j->q16 + tile_offset(j, t, MATMUL_TILE_INT, &stride);
            j->kernels->act_to_q16(x, j->cols, j->blocks, stride, out);
        }
        if (j->f32) {
            struct act_f32 *out = j->f32 + tile_offset(j, t, j->kernels->tile_float, &stride);
            j->kernels->act_to_f32(x, j->cols, j->blocks, stride, out);
        }
    }
    if (j->many)
        many_inputs(j, (j->input ? j->y : j->x) + first * j->cols, first, end);
}

/* ---- products ---- */

/* y [panels, tokens, 16] of a kernel to its place, with the bias. */
static void store_tile(const struct part *p, int64_t panel, int panels, int64_t token, int tokens, const float *y)
{
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < panels; i++) {
            const int64_t row = (panel + i) * PANEL_ROWS;
            const float *from = y + (i * tokens + t) * PANEL_ROWS, *bias = p->bias ? p->bias + row : NULL;
            float *out = p->y + (token + t) * p->rows + row;
            if (p->rows - row < PANEL_ROWS)
                for (int64_t r = 0; r < p->rows - row; r++)
                    out[r] = bias ? from[r] + bias[r] : from[r];
            else if (bias)
                for (int r = 0; r < PANEL_ROWS; r++)
                    out[r] = from[r] + bias[r];
            else
                memcpy(out, from, PANEL_ROWS * sizeof *out);
        }
}

/* Panels of a part, at most MATMUL_PANELS_INT, by tokens first .. end. */
static void run_int(const struct linear_job *j, const struct part *p, int64_t panel, int panels, int64_t first,
                    int64_t end)
{
    _Alignas(64) float y[MATMUL_PANELS_INT * MATMUL_TILE_INT * PANEL_ROWS];
    const struct panel_layout *l = &p->packed->layout;
    const uint8_t *w = p->packed->panels + (size_t)panel * l->panel_bytes;
    for (int64_t t = first; t < end; t += MATMUL_TILE_INT) {
        int n = (int)min_i64(MATMUL_TILE_INT, end - t);
        p->int_fn(l, w, panels, j->q16 + t * j->blocks, n, y);
        store_tile(p, panel, panels, t, n, y);
    }
}

/* What a panel's codes leave out. */
static void add_rest(const struct bf12_rest *rest, const float *x, int64_t cols, int tokens, float *y)
{
    for (uint32_t i = 0; i < rest->count; i++) {
        const struct bf12_element *el = &rest->element[i];
        const float w = fp_from_bf16(el->bits);
        for (int t = 0; t < tokens; t++)
            y[t * PANEL_ROWS + el->row] += w * x[t * cols + el->col];
    }
}

static void run_bf12(const struct linear_job *j, const struct part *p, int64_t panel, int64_t first, int n, float *y)
{
    const struct bf12_matrix *m = p->bf12;
    const uint8_t *w = m->panel + (size_t)panel * m->panel_bytes;
    const float *x = (j->input ? j->y : j->x) + first * j->cols;
    if (many_tokens(j, first))
        j->kernels->many_bf12(w, j->cols, j->many + first * j->many_cols, n, y);
    else
        j->kernels->bf12(w, j->cols, x, j->cols, n, y);
    add_rest(bf12_rest(m, w), x, j->cols, n, y);
}

/* One panel of a part by tokens first .. end. */
static void run_panel(const struct linear_job *j, const struct part *p, int64_t panel, int64_t first, int64_t end)
{
    _Alignas(64) float y[MATMUL_DENSE_TOKENS * PANEL_ROWS];
    const int64_t row = panel * PANEL_ROWS;
    const int tile = p->kind == KIND_FLOAT ? j->kernels->tile_float : MATMUL_DENSE_TOKENS;
    for (int64_t t = first; t < end; t += tile) {
        int n = (int)min_i64(tile, end - t);
        if (p->kind == KIND_BF12) {
            run_bf12(j, p, panel, t, n, y);
        } else if (p->kind == KIND_DENSE) {
            const uint8_t *w = (const uint8_t *)p->view->data + (size_t)row * p->view->row_bytes;
            const float *x = (j->input ? j->y : j->x) + t * j->cols;
            const int rows = (int)min_i64(PANEL_ROWS, p->rows - row);
            if (many_tokens(j, t))
                p->many_fn(w, p->view->row_bytes, rows, j->cols, j->many + t * j->many_cols, n, y);
            else
                p->dense_fn(w, p->view->row_bytes, rows, j->cols, x, j->cols, n, y);
        } else {
            const struct panel_layout *l = &p->packed->layout;
            p->float_fn(l, p->packed->panels + (size_t)panel * l->panel_bytes, j->f32 + t * j->blocks, n, y);
        }
        store_tile(p, panel, 1, t, n, y);
    }
}

static void linear_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct linear_job *j = arg;
    int64_t panel = task / j->token_blocks * j->panels_per_task, last = min_i64(panel + j->panels_per_task, j->panels);
    int64_t first = task % j->token_blocks * TOKEN_BLOCK, end = min_i64(first + TOKEN_BLOCK, j->tokens);
    const struct part *p = j->part;
    int64_t skipped = 0;
    for (int64_t n; panel < last; panel += n) {
        while (panel - skipped >= p->panels)
            skipped += p++->panels;
        n = p->kind == KIND_INT ? min_i64(MATMUL_PANELS_INT, min_i64(last, skipped + p->panels) - panel) : 1;
        if (p->kind == KIND_INT)
            run_int(j, p, panel - skipped, (int)n, first, end);
        else
            run_panel(j, p, panel - skipped, first, end);
    }
}

/* ---- set-up ---- */

static bool is_dense(const struct part *p)
{
    return p->kind == KIND_DENSE || p->kind == KIND_BF12;
}

static bool is_bf12(const struct weight *w)
{
    return w->view.format->code == QUANT_DENSE && w->device;
}

static void set_part(struct part *p, const struct matmul_kernels *k, bool exact, const struct weight *w,
                     const struct weight *bias, struct tensor *y)
{
    *p = (struct part){.rows = w->view.rows,
                       .panels = div_up(w->view.rows, PANEL_ROWS),
                       .bias = bias ? bias->device : NULL,
                       .y = tensor_f32(y)};
    if (is_bf12(w)) {
        p->kind = KIND_BF12;
        p->bf12 = w->device;
        return;
    }
    if (w->view.format->code == QUANT_DENSE || w->view.format->code == QUANT_REAL) {
        p->kind = KIND_DENSE;
        p->view = w->view.format->code == QUANT_REAL ? w->device : &w->view;
        const bool f32 = p->view->format == quant_dense(DT_F32), f16 = p->view->format == quant_dense(DT_F16);
        p->dense_fn = f32 ? k->dense_f32 : f16 ? k->dense_f16 : k->dense_bf16;
        p->many_fn = f32 ? k->many_f32 : f16 ? k->many_f16 : k->many_bf16;
        return;
    }
    p->packed = w->device;
    const struct panel_layout *l = &p->packed->layout;
    p->int_fn = k->panel_int[l->code][l->scale][l->group > 16];
    p->float_fn = k->panel_float[l->code][l->scale][l->group > 16];
    p->kind = exact || !p->int_fn ? KIND_FLOAT : KIND_INT;
}

/* Points the job at tokens t0 .. t0 + tokens and cuts it into tasks. */
static void run_pass(struct cpu_backend *b, struct linear_job *j, const struct tensor *x, int64_t t0, int64_t tokens)
{
    j->x = tensor_f32(x) + t0 * j->cols;
    j->tokens = tokens;
    j->token_blocks = div_up(tokens, TOKEN_BLOCK);
    j->panels = 0;
    for (int i = 0; i < j->parts; i++)
        j->panels += j->part[i].panels;
    j->panels_per_task = div_up(j->panels * j->token_blocks, (int64_t)pool_threads(b->base.pool) * TASKS_PER_THREAD);
    /* whole calls, or what kernels take side by side */
    const int whole = j->panels_per_task > MATMUL_PANELS_INT ? MATMUL_PANELS_INT : MATMUL_PANELS_SIDE;
    if (j->panels_per_task > whole)
        j->panels_per_task -= j->panels_per_task % whole;
    j->convert_tokens = min_i64(MATMUL_TILE_INT, div_up(tokens, pool_threads(b->base.pool)));
    if (j->q16 || j->f32 || j->input || j->many)
        pool_run(b->base.pool, (int)div_up(tokens, j->convert_tokens), convert_task, j);
    pool_run(b->base.pool, (int)(div_up(j->panels, j->panels_per_task) * j->token_blocks), linear_task, j);
    for (int i = 0; i < j->parts; i++)
        j->part[i].y += tokens * j->part[i].rows;
}

/* The outputs cannot be computed: make that visible. */
static void fill_nan(const struct linear_job *j, int64_t tokens)
{
    for (int i = 0; i < j->parts; i++)
        for (int64_t k = 0; k < tokens * j->part[i].rows; k++)
            j->part[i].y[k] = NAN;
}

static void linear_some(struct cpu_backend *b, struct tensor *const *y, const struct tensor *x,
                        const struct weight *const *w, const struct weight *const *bias, int n)
{
    struct linear_job j = {
        .kernels = &b->matmul, .parts = n, .cols = tensor_cols(x), .input = w[0]->view.input, .vector = &b->vector};
    bool q16 = false, f32 = false, many = false;
    for (int i = 0; i < n; i++) {
        struct part *p = &j.part[i];
        set_part(p, &b->matmul, b->base.exact, w[i], bias ? bias[i] : NULL, y[i]);
        q16 |= p->kind == KIND_INT;
        f32 |= p->kind == KIND_FLOAT;
        many |= p->kind == KIND_BF12 ? b->matmul.many_bf12 != NULL : p->kind == KIND_DENSE && p->many_fn != NULL;
        if (!is_dense(p)) {
            int64_t blocks = p->packed->layout.units * (p->packed->layout.unit / PANEL_BLOCK);
            j.blocks = blocks > j.blocks ? blocks : j.blocks;
        }
    }
    const int64_t total = tensor_rows(x);
    many &= total > MATMUL_DENSE_FEW;
    j.sums = is_bf12(w[0]) ? BF12_SUMS : b->matmul.lanes;
    j.many_cols = many ? matmul_dense_inputs_padded(j.sums, j.cols) : 0;
    const size_t block_bytes = (q16 ? sizeof *j.q16 : 0) + (f32 ? sizeof *j.f32 : 0);
    const size_t token_bytes = (size_t)j.blocks * block_bytes + (j.input ? (size_t)j.cols * sizeof *j.y : 0) +
                               (size_t)j.many_cols * sizeof *j.many;
    int64_t pass = total;
    if (token_bytes) {
        int64_t fit = (int64_t)(SCRATCH_BYTES / token_bytes) / TOKEN_BLOCK * TOKEN_BLOCK;
        pass = min_i64(total, fit < TOKEN_BLOCK ? TOKEN_BLOCK : fit);
        uint8_t *scratch = cpu_scratch(b, token_bytes * (size_t)pass);
        if (!scratch) {
            fill_nan(&j, total);
            return;
        }
        j.q16 = q16 ? (void *)scratch : NULL;
        j.f32 = f32 ? (void *)(scratch + (q16 ? (size_t)(j.blocks * pass) * sizeof *j.q16 : 0)) : NULL;
        scratch += (size_t)(j.blocks * pass) * block_bytes;
        j.many = many ? (void *)scratch : NULL;
        j.y = j.input ? (void *)(scratch + (size_t)(j.many_cols * pass) * sizeof *j.many) : NULL;
    }
    for (int64_t t = 0; t < total; t += pass)
        run_pass(b, &j, x, t, min_i64(pass, total - t));
}

/* Weights that follow one another and want the same done to x share it. */
static bool shares_input(const struct weight *a, const struct weight *b)
{
    return a->view.input == b->view.input && is_bf12(a) == is_bf12(b);
}

void cpu_linear(struct backend *b, struct tensor *const *y, const struct tensor *x, const struct weight *const *w,
                const struct weight *const *bias, int n)
{
    if (tensor_count(x) == 0)
        return;
    for (int i = 0, count; i < n; i += count) {
        for (count = 1; i + count < n && count < SHARE_MAX && shares_input(w[i + count], w[i]);)
            count++;
        linear_some((struct cpu_backend *)b, y + i, x, w + i, bias ? bias + i : NULL, count);
    }
}

void matmul_init(struct matmul_kernels *k, unsigned features)
{
    matmul_init_scalar(k);
#if defined(__x86_64__)
    if (features & 1u << CPU_AVX2)
        matmul_init_avx2(k);
    if (features & 1u << CPU_AVX512)
        matmul_init_avx512(k);
    if (features & 1u << CPU_AVX512_VNNI)
        matmul_init_avx512vnni(k);
#elif defined(__aarch64__)
    if (features & 1u << CPU_NEON)
        matmul_init_neon(k);
    if (features & 1u << CPU_NEON && matmul_has_neon_dot())
        matmul_init_neon_dot(k);
#endif
}
