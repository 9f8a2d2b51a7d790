/* Packs bf16 matrices into bf12 (bf12.h), on all threads. */
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/bf12_pack.h"
#include "base/fp.h"
#include "base/pool.h"

enum {
    CHUNK = 512, /* inputs at a time */
    GROUPS = 4,  /* of rows that share a table */
    GROUP_ROWS = PANEL_ROWS / GROUPS,
    RANGE = 7,       /* upper bytes in a table, without the sign */
    UPPER = 128,     /* of those there are */
    MOST_LEAST = 16, /* room for elements that are elsewhere: at least, and one for so many inputs */
    MOST_EVERY = 32
};
_Static_assert(CHUNK % PANEL_BLOCK == 0, "whole blocks");

struct bf12_job {
    const struct matmul_kernels *kernels;
    const struct weight *w;
    const struct bf12_matrix *to;
    uint8_t *panel;
    int64_t panels_per_task;
    atomic_bool failed;
};

static const uint8_t *row_at(const struct quant_view *v, int64_t row)
{
    return (const uint8_t *)v->data + (size_t)row * v->row_bytes;
}

/* The table's upper bytes are those above `below` and up to below + RANGE: here, up to the greatest of the rows. */
static int below_greatest(const struct quant_view *v, int64_t row, int64_t end)
{
    uint16_t most = 0;
    for (; row < end; row++) {
        const uint8_t *p = row_at(v, row);
        for (int64_t k = 0; k < v->cols; k++) {
            uint16_t bits = load_u16(p + 2 * k) & 0x7fff;
            most = bits > most ? bits : most;
        }
    }
    return most >> 8 > RANGE ? (most >> 8) - RANGE : 0;
}

/* And here those that most elements have. */
static int below_most(const struct quant_view *v, int64_t row, int64_t end)
{
    int64_t count[UPPER + 1] = {0};
    for (; row < end; row++)
        for (int64_t k = 0; k < v->cols; k++)
            count[row_at(v, row)[2 * k + 1] & 0x7f]++;
    int64_t sum = 0, best = -1;
    int below = 0;
    for (int i = 1; i < UPPER; i++) {
        sum += count[i] - (i > RANGE ? count[i - RANGE] : 0);
        if (i >= RANGE && sum > best) {
            best = sum;
            below = i - RANGE;
        }
    }
    return below;
}

static void write_table(uint8_t *table, int below)
{
    for (int i = 0; i < 16; i++)
        table[i] = (uint8_t)((i % 8 ? below + i % 8 : 0) | (i & 8) << 4);
}

/* Lower bytes and codes of n elements; whether some of them are elsewhere. */
static bool split(const uint8_t *p, int64_t n, int below, uint8_t *low, uint8_t *codes)
{
    uint8_t elsewhere = 0;
    for (int64_t k = 0; k < n; k++) {
        uint16_t bits = load_u16(p + 2 * k);
        uint8_t upper = bits >> 8 & 0x7f, at = (uint8_t)(upper - below);
        uint8_t is_zero = upper == 0, fits = (uint8_t)(at - 1) < RANGE;
        uint8_t keep = (uint8_t) - (is_zero | fits);
        low[k] = (uint8_t)bits & keep;
        codes[k] = (uint8_t)((fits ? at : 0) | (bits >> 12 & 8)) & keep;
        elsewhere |= (uint8_t)~keep;
    }
    return elsewhere != 0;
}

/* Whether there is room for all. */
static bool list_elsewhere(const struct bf12_matrix *m, const uint8_t *p, int64_t col, int64_t n, int row, int below,
                           struct bf12_rest *rest)
{
    for (int64_t k = 0; k < n; k++) {
        uint16_t bits = load_u16(p + 2 * k);
        int upper = bits >> 8 & 0x7f;
        if (upper == 0 || (upper > below && upper <= below + RANGE))
            continue;
        if (rest->count == (uint32_t)m->most)
            return false;
        rest->element[rest->count++] = (struct bf12_element){(uint32_t)(col + k), (uint16_t)row, bits};
    }
    return true;
}

/* False: too many elements are elsewhere. */
static bool pack_panel(const struct bf12_job *j, int64_t panel, const int below[GROUPS])
{
    const struct bf12_matrix *m = j->to;
    const struct quant_view *v = &j->w->view;
    const int64_t row = panel * PANEL_ROWS;
    uint8_t *to = j->panel + (size_t)panel * m->panel_bytes;
    uint8_t low[PANEL_ROWS][CHUNK], codes[PANEL_ROWS][CHUNK];
    struct bf12_rest *rest = (void *)(to + bf12_rest_at(m));
    rest->count = 0;
    for (int g = 0; g < GROUPS; g++)
        write_table(to + 16 * g, below[g]);
    to += BF12_TABLES;
    memset(low, 0, sizeof low);
    memset(codes, 0, sizeof codes);
    for (int64_t k = 0; k < v->cols; k += CHUNK) {
        const int64_t n = v->cols - k < CHUNK ? v->cols - k : CHUNK;
        for (int r = 0; r < PANEL_ROWS && row + r < v->rows; r++) {
            const uint8_t *p = row_at(v, row + r) + 2 * k;
            if (split(p, n, below[r / GROUP_ROWS], low[r], codes[r]) &&
                !list_elsewhere(m, p, k, n, r, below[r / GROUP_ROWS], rest))
                return false;
            memset(low[r] + n, 0, (size_t)(CHUNK - n));
            memset(codes[r] + n, 0, (size_t)(CHUNK - n));
        }
        for (int64_t b = 0; b < n; b += PANEL_BLOCK, to += BF12_BLOCK) {
            j->kernels->pack_block(PANEL_S8, low[0] + b, CHUNK, to);
            j->kernels->pack_block(PANEL_U4, codes[0] + b, CHUNK, to + BF12_CODES);
            j->kernels->turn_quads(to, BF12_BLOCK / (4 * PANEL_ROWS));
        }
    }
    return true;
}

static bool pack_somehow(const struct bf12_job *j, int64_t panel)
{
    static int (*const choose[])(const struct quant_view *, int64_t, int64_t) = {below_greatest, below_most};
    const struct quant_view *v = &j->w->view;
    for (int c = 0; c < 2; c++) {
        int below[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            int64_t row = panel * PANEL_ROWS + g * GROUP_ROWS, end = row + GROUP_ROWS;
            below[g] = choose[c](v, row, end < v->rows ? end : v->rows);
        }
        if (pack_panel(j, panel, below))
            return true;
    }
    return false;
}

static void pack_task(void *arg, int task, int worker)
{
    (void)worker;
    struct bf12_job *j = arg;
    int64_t first = task * j->panels_per_task, end = first + j->panels_per_task;
    if (end > j->to->panels)
        end = j->to->panels;
    for (int64_t p = first; p < end && !atomic_load(&j->failed); p++)
        if (!pack_somehow(j, p))
            atomic_store(&j->failed, true);
    if (!atomic_load(&j->failed))
        weight_drop_rows(j->w, first * PANEL_ROWS, end * PANEL_ROWS);
}

bool bf12_layout(const struct weight *w, struct bf12_matrix *m, size_t *bytes)
{
    const struct quant_view *v = &w->view;
    if (v->format != quant_dense(DT_BF16) || v->rows < PANEL_ROWS || v->cols < PANEL_BLOCK || v->cols > UINT32_MAX)
        return false;
    *m = (struct bf12_matrix){.rows = v->rows, .cols = v->cols};
    m->panels = (v->rows + PANEL_ROWS - 1) / PANEL_ROWS;
    m->blocks = (v->cols + PANEL_BLOCK - 1) / PANEL_BLOCK;
    m->most = v->cols / MOST_EVERY > MOST_LEAST ? (int)(v->cols / MOST_EVERY) : MOST_LEAST;
    const size_t rest = sizeof(struct bf12_rest) + (size_t)m->most * sizeof(struct bf12_element);
    m->panel_bytes = bf12_rest_at(m) + (rest + 63) / 64 * 64;
    if ((size_t)m->panels > SIZE_MAX / 2 / m->panel_bytes)
        return false;
    *bytes = (size_t)m->panels * m->panel_bytes;
    return true;
}

bool bf12_pack(struct cpu_backend *b, const struct weight *w, const struct bf12_matrix *m, uint8_t *panels)
{
    int64_t tasks = (int64_t)pool_threads(b->base.pool) * 16;
    if (tasks > m->panels)
        tasks = m->panels;
    struct bf12_job job = {
        .kernels = &b->matmul, .w = w, .to = m, .panel = panels, .panels_per_task = (m->panels + tasks - 1) / tasks};
    pool_run(b->base.pool, (int)((m->panels + job.panels_per_task - 1) / job.panels_per_task), pack_task, &job);
    return !atomic_load(&job.failed);
}
