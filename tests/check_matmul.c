/* Checks and times the matmul kernels: every slot of every instruction set that
 * this machine (or emulation) has, against the scalar ones, and those against
 * double precision over quant_decode. Buffers end at unreadable pages.
 *
 *     check_matmul [-v]        one line per instruction set and format; -v per shape
 *     check_matmul --bench     GB/s for one token, GMAC/s for many; of some instruction sets, formats or
 *                              modes only: avx2 q4_0 q8_0 fast
 *
 * Bounds are relative to sum |w| |x| of an output. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/pool.h"

static long passed, failed;
static int verbose;

static void report(int ok, const char *what, const char *isa, const char *detail)
{
    if (ok)
        passed++;
    else
        failed++;
    if (!ok || verbose)
        printf("%s %-10s %s%s%s\n", ok ? "ok  " : "FAIL", isa, what, *detail ? ": " : "", detail);
}

/* ---- random numbers and guarded memory ---- */

static uint64_t seed = 1;

static uint32_t random_u32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static float random_float(void) /* -1 .. 1 */
{
    return (float)((int)(random_u32() % 20001) - 10000) / 10000;
}

struct guarded {
    uint8_t *map, *p; /* p + bytes is the first byte that must not be touched */
    size_t mapped;
};

static struct guarded guarded_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    struct guarded g = {.mapped = body + 2 * page};
    g.map = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map, page, PROT_NONE) != 0 ||
        mprotect(g.map + page + body, page, PROT_NONE) != 0) {
        perror("mmap");
        exit(2);
    }
    g.p = g.map + page + body - bytes;
    return g;
}

static void guarded_free(struct guarded *g)
{
    munmap(g->map, g->mapped);
}

/* ---- instruction sets ---- */

struct isa {
    const char *name;
    struct matmul_kernels k;
};

enum { ISA_MAX = 8 };
static struct isa isas[ISA_MAX];
static int isa_count;

static void add_isa(const char *name, void (*const *init)(struct matmul_kernels *), int n)
{
    struct isa *s = &isas[isa_count++];
    s->name = name;
    for (int i = 0; i < n; i++)
        init[i](&s->k);
}

static void list_isas(void)
{
    unsigned f = cpu_features();
#if defined(__x86_64__)
    static void (*const chain[])(struct matmul_kernels *) = {matmul_init_scalar, matmul_init_avx2, matmul_init_avx512,
                                                             matmul_init_avx512vnni};
    static const char *const names[] = {"scalar", "avx2", "avx512", "avx512vnni"};
    static const enum cpu_isa need[] = {CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512_VNNI};
    for (int i = 0; i < 4; i++) {
#ifdef TLM_SIMDE /* these two are emulated */
        if (i < 2 && !(f & 1u << need[i]))
            continue;
#else
        if (!(f & 1u << need[i]))
            continue;
#endif
        add_isa(names[i], chain, i + 1);
    }
#else
    static void (*const chain[])(struct matmul_kernels *) = {matmul_init_scalar, matmul_init_neon,
                                                             matmul_init_neon_dot};
    add_isa("scalar", chain, 1);
    if (f & 1u << CPU_NEON)
        add_isa("neon", chain, 2);
    if (f & 1u << CPU_NEON && matmul_has_neon_dot())
        add_isa("neon_dot", chain, 3);
#endif
}

/* ---- random weights ---- */

/* Where a block of a format holds f16 numbers; -1: none. */
struct fields {
    const char *name;
    int f16[2];
    int e8m0;
};

static const struct fields block_fields[] = {
    {"q4_0", {0, -1}, -1},   {"q4_1", {0, 2}, -1},    {"q5_0", {0, -1}, -1},       {"q5_1", {0, 2}, -1},
    {"q8_0", {0, -1}, -1},   {"iq4_nl", {0, -1}, -1}, {"mxfp4_gguf", {-1, -1}, 0}, {"q2_k", {80, 82}, -1},
    {"q3_k", {108, -1}, -1}, {"q4_k", {0, 2}, -1},    {"q5_k", {0, 2}, -1},        {"q6_k", {208, -1}, -1},
    {"iq4_xs", {0, -1}, -1},
};

struct matrix {
    struct weight w;
    uint8_t *data, *scales, *offsets, *zeros;
};

static void put_float(uint8_t *p, enum dtype t, float x)
{
    uint16_t h = t == DT_F16 ? fp_to_f16(x) : fp_to_bf16(x);
    if (t == DT_F32)
        memcpy(p, &x, 4);
    else
        memcpy(p, &h, 2);
}

/* A tensor of scales or offsets. */
static uint8_t *random_scales(const struct quant_view *v, int is_offset)
{
    size_t size = dtype_size(v->scale_dtype), n = quant_view_scale_bytes(v) / size;
    uint8_t *p = mem_alloc(n * size);
    for (size_t i = 0; i < n; i++) {
        if (v->scale_dtype == DT_U8 && !strcmp(v->format->name, "nvfp4"))
            p[i] = (uint8_t)(random_u32() % 0x7f);
        else if (v->scale_dtype == DT_U8)
            p[i] = (uint8_t)(120 + random_u32() % 8);
        else
            put_float(p + i * size, v->scale_dtype, random_float() * (is_offset ? 0.5f : 0.1f));
    }
    return p;
}

static int has_nibble_scales(const struct quant *q)
{
    return !strcmp(q->name, "mxfp4") || !strcmp(q->name, "mxfp8") || !strcmp(q->name, "nvfp4");
}

/* Layouts of other quantisers (quant/foreign.c); v->scales are there for their size. */
static void set_foreign(struct quant_view *v)
{
    const char *name = v->format->name;
    const size_t bits = v->format->bits, size = dtype_size(v->scale_dtype);
    const size_t rows = (size_t)v->rows, groups = (size_t)((v->cols + v->group - 1) / v->group);
    size_t zero_rows = 0;
    if (!strncmp(name, "gptq", 4) || !strcmp(name, "awq4")) {
        v->stride = name[0] == 'g' ? rows * 4 : (rows + 7) / 8 * 4;
        v->scale_row_bytes = size;
        v->scale_group_bytes = rows * size;
        zero_rows = groups;
        v->zero_row_bytes = (rows * bits + 31) / 32 * 4;
        v->zero_add = name[0] == 'g';
    } else if (!strcmp(name, "awq4v")) {
        zero_rows = rows;
        v->zero_row_bytes = (groups + 7) / 8 * 4;
    } else if (!strncmp(name, "packed", 6)) {
        zero_rows = (rows * bits + 31) / 32;
        v->zero_row_bytes = groups * 4;
    } else if (!strcmp(name, "bitnet")) {
        v->stride = (size_t)v->cols;
        v->factor = 0.05f;
    }
    if (v->format->has_offset)
        v->zero_bytes = zero_rows * v->zero_row_bytes;
}

static int is_foreign(const struct quant *q)
{
    return !strncmp(q->name, "gptq", 4) || !strncmp(q->name, "awq4", 4) || !strncmp(q->name, "packed", 6) ||
           !strcmp(q->name, "bitnet");
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *p = mem_alloc(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)random_u32();
    return p;
}

/* Returns 0 when the format is not known here. */
static int matrix_new(struct matrix *m, const struct quant *q, int64_t rows, int64_t cols, int group, enum dtype st)
{
    *m = (struct matrix){.w = {.name = q->name, .uses = WEIGHT_MATMUL}};
    struct quant_view *v = &m->w.view;
    const struct fields *f = NULL;
    for (size_t i = 0; i < sizeof block_fields / sizeof *block_fields; i++)
        if (!strcmp(block_fields[i].name, q->name))
            f = &block_fields[i];
    *v = (struct quant_view){.format = q, .rows = rows, .cols = cols, .group = group, .scale_rows = 1};
    v->row_bytes = (size_t)(cols / q->block) * (size_t)q->block_bytes;
    v->scale_dtype = has_nibble_scales(q) ? DT_U8 : st;
    v->scale_rows = q->code == QUANT_E4M3 && group == 128 ? 128 : 1;
    v->scale_row_bytes = (size_t)((cols + group - 1) / group) * dtype_size(v->scale_dtype);
    if (is_foreign(q))
        set_foreign(v);
    /* rows of outputs that fill no word are padded */
    size_t bytes = !strcmp(q->name, "awq4") ? (size_t)cols * v->stride : (size_t)rows * v->row_bytes;
    m->data = random_bytes(bytes + 1);
    v->data = m->data + 1; /* unaligned, as in files */
    uint8_t *data = m->data + 1;
    if (q->code == QUANT_DENSE) {
        size_t size = q->bits / 8;
        enum dtype t = q == quant_dense(DT_F32) ? DT_F32 : q == quant_dense(DT_F16) ? DT_F16 : DT_BF16;
        for (size_t i = 0; i < bytes; i += size)
            put_float(data + i, t, random_float());
        return 1;
    }
    if (f) {
        for (size_t i = 0; i < bytes; i += (size_t)q->block_bytes) {
            for (int j = 0; j < 2; j++)
                if (f->f16[j] >= 0)
                    put_float(data + i + f->f16[j], DT_F16, random_float() * 0.1f);
            if (f->e8m0 >= 0)
                data[i + (size_t)f->e8m0] = (uint8_t)(120 + random_u32() % 8);
        }
        return 1;
    }
    if (q->code == QUANT_E4M3)
        for (size_t i = 0; i < bytes; i++)
            if ((data[i] & 0x7f) == 0x7f)
                data[i] ^= 1;
    if (q->scale == QUANT_SCALE_LEVELS || (q->scale != QUANT_SCALE_F32 && !has_nibble_scales(q)))
        return 0;
    if (!v->factor) {
        v->scales = m->data; /* so that they have a size */
        v->scales = m->scales = random_scales(v, 0);
    }
    if (v->zero_bytes)
        v->zeros = m->zeros = random_bytes(v->zero_bytes);
    else if (q->has_offset)
        v->offsets = m->offsets = random_scales(v, 1);
    return 1;
}

static void matrix_free(struct matrix *m)
{
    mem_free(m->data);
    mem_free(m->scales);
    mem_free(m->offsets);
    mem_free(m->zeros);
}

/* Of the shapes, as many as an emulator does in a minute or two. */
#if defined(TLM_SIMDE) || defined(__aarch64__)
enum { EVERY = 5 };
#else
enum { EVERY = 1 };
#endif

/* ---- panels ---- */

enum { TOKENS = MATMUL_TILE_INT + 1 };

struct panel_case {
    struct matrix m;
    const struct packed_weight *packed;
    struct guarded panels, q16[TOKENS + 1], f32[TOKENS + 1]; /* tiles of 1 .. TOKENS - 1; [0] unused */
    float *x;                                                /* [TOKENS, cols] */
    double *ref_int, *ref_float, *bound;                     /* [TOKENS, padded rows] */
    int64_t blocks, padded;
    char what[128];
};

static void reference(struct panel_case *c)
{
    const struct quant_view *v = &c->m.w.view;
    float *w = mem_alloc((size_t)v->cols * sizeof *w);
    for (int64_t r = 0; r < v->rows; r++) {
        quant_decode(v, r, 0, v->cols, w);
        for (int t = 0; t < TOKENS - 1; t++) {
            double f = 0, q = 0, bound = 0;
            const struct act_q16 *a = (const void *)c->q16[TOKENS - 1].p;
            for (int64_t k = 0; k < v->cols; k++) {
                const struct act_q16 *b = a + k / 32 * (TOKENS - 1) + t;
                double x = c->x[t * v->cols + k];
                f += w[k] * x;
                q += w[k] * ((double)b->scale * (256 * b->hi[k % 32] + b->lo[k % 32]));
                bound += fabs(w[k] * x);
            }
            int64_t i = t * c->padded + r;
            c->ref_float[i] = f;
            c->ref_int[i] = q;
            c->bound[i] = bound;
        }
    }
    mem_free(w);
}

/* Largest error of y against ref, in units of the bound. Padding rows must be 0. */
static double worst(const struct panel_case *c, const float *y, const double *ref)
{
    double max = 0;
    for (int t = 0; t < TOKENS - 1; t++)
        for (int64_t r = 0; r < c->padded; r++) {
            int64_t i = t * c->padded + r;
            double err = fabs(y[i] - (r < c->m.w.view.rows ? ref[i] : 0));
            err = r < c->m.w.view.rows ? err / (c->bound[i] + 1e-30) : err ? 1 : 0;
            max = err > max || isnan(err) ? err : max;
        }
    return max;
}

/* y [TOKENS - 1, padded] over tiles of `tile` tokens, for integer kernels in calls of `most` panels. */
static void run_tiles(const struct panel_case *c, const struct matmul_kernels *k, int integer, int tile, int most,
                      float *y)
{
    const struct panel_layout *l = &c->packed->layout;
    int g = l->group > 16;
    most = !integer ? 1 : most < MATMUL_PANELS_INT ? most : MATMUL_PANELS_INT;
    for (int64_t p = 0; p < l->panels; p += most) {
        const uint8_t *panel = c->panels.p + (size_t)p * l->panel_bytes;
        float out[MATMUL_PANELS_INT * 16 * TOKENS];
        int n = l->panels - p < most ? (int)(l->panels - p) : most;
        if (integer)
            k->panel_int[l->code][l->scale][g](l, panel, n, (const void *)c->q16[tile].p, tile, out);
        else
            k->panel_float[l->code][l->scale][g](l, panel, (const void *)c->f32[tile].p, tile, out);
        for (int i = 0; i < n * tile; i++)
            memcpy(y + i % tile * c->padded + (p + i / tile) * PANEL_ROWS, out + 16 * i, 16 * sizeof *y);
    }
}

static void check_panel_isa(struct panel_case *c, const struct isa *s, int integer, const float *scalar)
{
    const int n = TOKENS - 1, most = integer ? MATMUL_TILE_INT : s->k.tile_float;
    const size_t bytes = (size_t)(n * c->padded) * sizeof(float);
    float *y = mem_new(bytes), *y1 = mem_new(bytes);
    char detail[160] = "", what[192];
    int same = 1;
    run_tiles(c, &s->k, integer, most, most, y);
    run_tiles(c, &s->k, integer, 1, MATMUL_PANELS_INT, y1); /* some kernels read panels side by side */
    same &= !memcmp(y, y1, (size_t)c->padded * sizeof *y);
    for (int tile = 1, next; tile <= most; tile = next) {
        run_tiles(c, &s->k, integer, tile, tile, y1);
        same &= !memcmp(y, y1, (size_t)(tile * c->padded) * sizeof *y);
        next = tile + (tile < MATMUL_TILE_MAX ? 1 : 13); /* with all remainders of 4 */
        if (next > most && tile < most)
            next = most;
    }
    if (most < n) { /* a tile of n exists only for kernels that take it */
        memcpy(y + most * c->padded, scalar + most * c->padded, bytes - (size_t)(most * c->padded) * sizeof *y);
    }
    double err = worst(c, y, integer ? c->ref_int : c->ref_float), diff = 0;
    for (int64_t i = 0; i < n * c->padded; i++) {
        double d = fabs((double)y[i] - scalar[i]) / (c->bound[i] + 1e-30);
        diff = d > diff || isnan(d) ? d : diff;
    }
    int ok = err <= 3e-6 && diff <= 1e-6 && same;
    snprintf(detail, sizeof detail, "error %.1e, from scalar %.1e%s", err, diff, same ? "" : ", depends on the batch");
    snprintf(what, sizeof what, "%s %s", integer ? "int" : "float", c->what);
    report(ok, what, s->name, detail);
    mem_free(y);
    mem_free(y1);
}

static void panel_case_acts(struct panel_case *c)
{
    const struct matmul_kernels *k = &isas[0].k;
    for (int n = 1; n < TOKENS; n++) {
        c->q16[n] = guarded_new((size_t)(c->blocks * n) * sizeof(struct act_q16));
        c->f32[n] = guarded_new((size_t)(c->blocks * n) * sizeof(struct act_f32));
        for (int t = 0; t < n; t++) {
            const float *x = c->x + t * c->m.w.view.cols;
            k->act_to_q16(x, c->m.w.view.cols, c->blocks, n, (struct act_q16 *)(void *)c->q16[n].p + t);
            k->act_to_f32(x, c->m.w.view.cols, c->blocks, n, (struct act_f32 *)(void *)c->f32[n].p + t);
        }
    }
}

/* Every instruction set packs to the same bytes. */
static void check_pack(struct panel_case *c, struct cpu_backend *b)
{
    for (int i = 1; i < isa_count; i++) {
        struct weight w = c->m.w;
        struct tlm_error e = {0};
        w.device = NULL;
        b->matmul = isas[i].k;
        int ok = cpu_weight_load(&b->base, &w, &e) == TLM_OK && w.device_bytes == c->m.w.device_bytes;
        const struct packed_weight *p = w.device;
        const struct panel_layout *l = &c->packed->layout;
        ok = ok && !memcmp(p->panels, c->packed->panels, (size_t)l->panels * l->panel_bytes);
        char what[160];
        snprintf(what, sizeof what, "pack %s", c->what);
        report(ok, what, isas[i].name, e.message);
        cpu_weight_unload(&b->base, &w);
    }
}

static void check_panel_shape(struct cpu_backend *b, const struct quant *q, int64_t rows, int64_t cols, int group,
                              enum dtype st)
{
    struct panel_case c = {0};
    struct tlm_error e = {0};
    snprintf(c.what, sizeof c.what, "%s group %d %s %lldx%lld", q->name, group, dtype_name(st), (long long)rows,
             (long long)cols);
    if (!matrix_new(&c.m, q, rows, cols, group, st)) {
        report(0, c.what, "", "no generator for this format");
        matrix_free(&c.m);
        return;
    }
    b->matmul = isas[0].k;
    if (cpu_weight_load(&b->base, &c.m.w, &e) != TLM_OK) {
        report(0, c.what, "", e.message);
        matrix_free(&c.m);
        return;
    }
    c.packed = c.m.w.device;
    const struct panel_layout *l = &c.packed->layout;
    c.panels = guarded_new((size_t)l->panels * l->panel_bytes);
    memcpy(c.panels.p, c.packed->panels, (size_t)l->panels * l->panel_bytes);
    c.padded = l->panels * PANEL_ROWS;
    c.blocks = l->units * (l->unit / PANEL_BLOCK);
    c.x = mem_alloc((size_t)(TOKENS * cols) * sizeof *c.x);
    for (int64_t i = 0; i < TOKENS * cols; i++)
        c.x[i] = random_float() * (i % 37 == 5 ? 8 : 1);
    panel_case_acts(&c);
    size_t n = (size_t)(TOKENS * c.padded);
    c.ref_int = mem_new(n * sizeof(double));
    c.ref_float = mem_new(n * sizeof(double));
    c.bound = mem_new(n * sizeof(double));
    float *scalar = mem_new(n * sizeof(float));
    reference(&c);
    check_pack(&c, b);
    for (int integer = 0; integer < 2; integer++) {
        if (integer && l->code == PANEL_E8)
            continue;
        run_tiles(&c, &isas[0].k, integer, TOKENS - 1, MATMUL_PANELS_INT, scalar);
        for (int i = 0; i < isa_count; i++) {
            int g = l->group > 16;
            int own = integer
                          ? isas[i].k.panel_int[l->code][l->scale][g] != isas[0].k.panel_int[l->code][l->scale][g]
                          : isas[i].k.panel_float[l->code][l->scale][g] != isas[0].k.panel_float[l->code][l->scale][g];
            if (i == 0 || own)
                check_panel_isa(&c, &isas[i], integer, scalar);
            else
                report(0, c.what, isas[i].name, "uses the scalar kernel");
        }
    }
    for (int t = 1; t < TOKENS; t++) {
        guarded_free(&c.q16[t]);
        guarded_free(&c.f32[t]);
    }
    guarded_free(&c.panels);
    cpu_weight_unload(&b->base, &c.m.w);
    cpu_slabs_free(b);
    matrix_free(&c.m);
    mem_free(c.x);
    mem_free(c.ref_int);
    mem_free(c.ref_float);
    mem_free(c.bound);
    mem_free(scalar);
}

static void check_panels(struct cpu_backend *b)
{
    static const int64_t rows[] = {1, 16, 37}, cols[] = {32, 64, 160, 256, 576, 2048};
    static const int groups[] = {16, 32, 64, 128};
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32};
    for (int i = 0; quant_at(i); i++) {
        const struct quant *q = quant_at(i);
        if (q->code == QUANT_DENSE || q->code == QUANT_REAL) /* the latter become dense rows (test_turbo.c) */
            continue;
        long before = failed;
        for (int g = 0; g < 4; g++)
            for (int t = 0; t < 3; t++)
                for (size_t r = 0; r < 3; r++)
                    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
                        int group = q->group ? q->group : groups[g];
                        if (!strcmp(q->name, "bitnet") && rows[r] % 4)
                            continue;
                        if ((q->group && (g || t)) || cols[c] % q->block || (cols[c] % group && q->code != QUANT_E4M3))
                            continue;
                        if ((i + g + t + (int)r + (int)c) % EVERY)
                            continue;
                        check_panel_shape(b, q, rows[r], cols[c], group, types[t]);
                    }
        check_panel_shape(b, q, 104, 512, q->group ? q->group : 32, DT_F16); /* seven panels */
        if (!q->group && strcmp(q->name, "bitnet")) {                        /* one scale per row */
            check_panel_shape(b, q, 18, 160, 160, DT_F32);
            check_panel_shape(b, q, 18, 768, 256, DT_F32);
        }
        printf("%s panels of %s\n", failed == before ? "ok  " : "FAIL", q->name);
    }
}

/* ---- dense ---- */

enum { DENSE_MOST = 9 };

/* A kernel for many tokens and what it multiplies. */
struct many {
    matmul_dense_many_fn *fn;
    matmul_bf12_many_fn *bf12; /* instead */
    const uint8_t *w;
    size_t row_bytes;
    int n, sums;
    int64_t cols;
};

/* Whether as many tokens at once as there may be, each one of the DENSE_MOST rows of x in turn, give the bits of y
 * [DENSE_MOST, 16], however they are split. */
static int many_are_same(const struct matmul_kernels *k, const struct many *m, const float *x, const float *y)
{
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 25, MATMUL_DENSE_TOKENS - 1, MATMUL_DENSE_TOKENS};
    int same = 1;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const int tokens = counts[c];
        struct guarded in = guarded_new((size_t)(tokens * matmul_dense_inputs_padded(m->sums, m->cols)) * 4);
        const float *inputs = (const float *)(const void *)in.p;
        float out[MATMUL_DENSE_TOKENS * PANEL_ROWS];
        for (int t = 0, next; t < tokens; t = next) {
            next = t / DENSE_MOST * DENSE_MOST + DENSE_MOST;
            next = next < tokens ? next : tokens;
            matmul_dense_inputs(k->tile_many, m->sums, x, m->cols, tokens, t, next, (float *)(void *)in.p);
        }
        if (m->bf12)
            m->bf12(m->w, m->cols, inputs, tokens, out);
        else
            m->fn(m->w, m->row_bytes, m->n, m->cols, inputs, tokens, out);
        for (int t = 0; t < tokens; t++)
            same &= !memcmp(out + t * PANEL_ROWS, y + t % DENSE_MOST * PANEL_ROWS, (size_t)m->n * sizeof *y);
        guarded_free(&in);
    }
    return same;
}

static void check_dense_shape(enum dtype type, int n, int64_t cols)
{
    enum { MOST = DENSE_MOST };
    const size_t size = dtype_size(type), row_bytes = (size_t)cols * size;
    struct guarded w = guarded_new((size_t)n * row_bytes + 1), x = guarded_new((size_t)(MOST * cols) * 4);
    uint8_t *data = w.p + 1;
    float *xs = (float *)(void *)x.p;
    for (size_t i = 0; i < (size_t)(n * cols); i++)
        put_float(data + i * size, type, random_float());
    for (int64_t i = 0; i < MOST * cols; i++)
        xs[i] = random_float();
    for (int i = 0; i < isa_count; i++) {
        const struct matmul_kernels *k = &isas[i].k;
        matmul_dense_fn *fn = type == DT_F32 ? k->dense_f32 : type == DT_F16 ? k->dense_f16 : k->dense_bf16;
        float y[MOST * PANEL_ROWS], y1[MOST * PANEL_ROWS];
        char what[64], detail[96];
        double max = 0;
        int same = 1;
        fn(data, row_bytes, n, cols, xs, cols, MOST, y);
        for (int tokens = 1; tokens <= MOST; tokens++) /* the last tokens, so that reads past x show */
            for (int t = MOST - tokens; t >= 0; t -= MOST) {
                fn(data, row_bytes, n, cols, xs + t * cols, cols, tokens, y1);
                for (int s = 0; s < tokens; s++)
                    same &= !memcmp(y + (t + s) * PANEL_ROWS, y1 + s * PANEL_ROWS, (size_t)n * sizeof *y);
            }
        for (int t = 0; t < MOST; t++)
            for (int r = 0; r < n; r++) {
                double sum = 0, bound = 1e-30;
                for (int64_t c = 0; c < cols; c++) {
                    const uint8_t *p = data + (size_t)(r * cols + c) * size;
                    double v = type == DT_F32   ? (double)fp_from_bits(load_u32(p))
                               : type == DT_F16 ? (double)load_f16(p)
                                                : (double)fp_from_bf16(load_u16(p));
                    sum += v * xs[t * cols + c];
                    bound += fabs(v * xs[t * cols + c]);
                }
                double err = fabs(y[t * PANEL_ROWS + r] - sum) / bound;
                max = err > max || isnan(err) ? err : max;
            }
        const struct many many = {type == DT_F32 ? k->many_f32 : type == DT_F16 ? k->many_f16 : k->many_bf16,
                                  NULL,
                                  data,
                                  row_bytes,
                                  n,
                                  k->lanes,
                                  cols};
        if (many.fn)
            same &= many_are_same(k, &many, xs, y);
        snprintf(what, sizeof what, "dense %s %dx%lld", dtype_name(type), n, (long long)cols);
        snprintf(detail, sizeof detail, "error %.1e%s", max, same ? "" : ", depends on the batch");
        report(max <= 2e-6 && same, what, isas[i].name, detail);
    }
    guarded_free(&w);
    guarded_free(&x);
}

static void check_dense(void)
{
    static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};
    for (int t = 0; t < 3; t++) {
        long before = failed;
        for (int64_t cols = 1; cols <= 67; cols++)
            check_dense_shape(types[t], 1 + (int)(cols % 16), cols);
        for (int n = 1; n <= 16; n++)
            check_dense_shape(types[t], n, n % 2 ? 576 : 1029);
        printf("%s dense %s\n", failed == before ? "ok  " : "FAIL", dtype_name(types[t]));
    }
}

/* ---- bf16 in 12 bits ---- */

/* What bf12.h says of element (r, k) of a panel's codes. */
static uint16_t bf12_coded(const uint8_t *panel, int r, int64_t k)
{
    const uint8_t *block = panel + BF12_TABLES + k / 32 * BF12_BLOCK;
    const int quad = (int)(k % 32) / 4, at = r / 4 * 16 + (int)(k % 4) * 4 + r % 4;
    const int code = block[BF12_CODES + quad / 2 * 64 + at] >> quad % 2 * 4 & 15;
    return (uint16_t)(panel[r / 4 * 16 + code] << 8 | block[quad * 64 + at]);
}

/* And of the panel. */
static uint16_t bf12_element(const struct bf12_matrix *m, const uint8_t *panel, int r, int64_t k)
{
    const struct bf12_rest *rest = bf12_rest(m, panel);
    for (uint32_t i = 0; i < rest->count; i++)
        if (rest->element[i].row == r && rest->element[i].col == k)
            return rest->element[i].bits;
    return bf12_coded(panel, r, k);
}

/* Numbers of all sorts, `far` in a thousand of them far from the others: zeros of both signs, denormals, large ones. */
static uint16_t random_bf16(int far)
{
    const uint32_t kind = random_u32() % 1000;
    if ((int)kind < far)
        return (uint16_t)(random_u32() % 0x7f80 | random_u32() % 2 << 15);
    if (kind >= 990)
        return (uint16_t)(random_u32() % 2 << 15 | (kind >= 995 ? random_u32() % 3 : 0));
    return (uint16_t)((random_u32() % (14 << 7) + (112 << 7)) | random_u32() % 2 << 15);
}

/* The panels of w, in memory that ends with them. */
static void check_bf12_kernels(const struct bf12_matrix *m, const struct quant_view *v)
{
    struct guarded w = guarded_new((size_t)m->panels * m->panel_bytes);
    struct guarded x = guarded_new((size_t)(DENSE_MOST * v->cols) * 4);
    float *xs = (float *)(void *)x.p;
    memcpy(w.p, m->panel, (size_t)m->panels * m->panel_bytes);
    for (int64_t i = 0; i < DENSE_MOST * v->cols; i++)
        xs[i] = random_float();
    for (int i = 0; i < isa_count; i++) {
        const struct matmul_kernels *k = &isas[i].k;
        double max = 0;
        int same = k->bf12 && (i == 0 || (k->bf12 != isas[0].k.bf12 && k->many_bf12));
        for (int64_t p = 0; p < m->panels && same; p++) {
            const uint8_t *panel = w.p + (size_t)p * m->panel_bytes;
            float y[DENSE_MOST * PANEL_ROWS], y1[DENSE_MOST * PANEL_ROWS];
            k->bf12(panel, v->cols, xs, v->cols, DENSE_MOST, y);
            for (int t = DENSE_MOST - 1; t >= 0; t--) {
                k->bf12(panel, v->cols, xs + t * v->cols, v->cols, DENSE_MOST - t, y1);
                same &= !memcmp(y + t * PANEL_ROWS, y1, (size_t)(DENSE_MOST - t) * PANEL_ROWS * sizeof *y);
            }
            const struct many many = {NULL, k->many_bf12, panel, 0, PANEL_ROWS, BF12_SUMS, v->cols};
            if (k->many_bf12)
                same &= many_are_same(k, &many, xs, y);
            for (int t = 0; t < DENSE_MOST; t++)
                for (int r = 0; r < PANEL_ROWS; r++) {
                    double sum = 0, bound = 1e-30;
                    for (int64_t c = 0; c < v->cols; c++) {
                        double e = (double)fp_from_bf16(bf12_coded(panel, r, c));
                        sum += e * xs[t * v->cols + c];
                        bound += fabs(e * xs[t * v->cols + c]);
                    }
                    double err = fabs(y[t * PANEL_ROWS + r] - sum) / bound;
                    max = err > max || isnan(err) ? err : max;
                }
        }
        char what[64], detail[96];
        snprintf(what, sizeof what, "bf12 %lldx%lld", (long long)v->rows, (long long)v->cols);
        snprintf(detail, sizeof detail, "error %.1e%s", max, same ? "" : ", depends on the batch");
        report(max <= 2e-6 && same, what, isas[i].name, detail);
    }
    guarded_free(&w);
    guarded_free(&x);
}

/* far: see random_bf16; packed: whether they are few enough. */
static void check_bf12_shape(struct cpu_backend *b, int64_t rows, int64_t cols, int far, int packed)
{
    struct matrix m;
    struct bf12_matrix first = {0};
    char what[64];
    matrix_new(&m, quant_dense(DT_BF16), rows, cols, 1, DT_F16);
    for (int64_t i = 0; i < rows * cols; i++) {
        uint16_t bits = random_bf16(far);
        memcpy(m.data + 1 + 2 * i, &bits, 2);
    }
    snprintf(what, sizeof what, "bf12 %lldx%lld, %d of 1000 far", (long long)rows, (long long)cols, far);
    for (int i = 0; i < isa_count; i++) {
        struct weight w = m.w;
        struct tlm_error e = {0};
        b->matmul = isas[i].k;
        int ok = cpu_weight_load(&b->base, &w, &e) == TLM_OK && !!w.device == packed;
        report(ok, what, isas[i].name, e.message);
        if (!ok || !packed)
            continue;
        const struct bf12_matrix *to = w.device;
        for (int64_t r = 0; r < to->panels * PANEL_ROWS; r++)
            for (int64_t k = 0; k < to->blocks * 32; k++) {
                const uint16_t want = r < rows && k < cols ? load_u16(m.data + 1 + 2 * (r * cols + k)) : 0;
                ok &= bf12_element(to, to->panel + (size_t)(r / 16) * to->panel_bytes, (int)(r % 16), k) == want;
            }
        report(ok, "bf12 holds every bit", isas[i].name, what);
        if (i == 0)
            first = *to;
        else
            report(!memcmp(first.panel, to->panel, (size_t)to->panels * to->panel_bytes), "bf12 packs alike",
                   isas[i].name, what);
        if (i == 0)
            check_bf12_kernels(to, &m.w.view);
    }
    cpu_slabs_free(b);
    matrix_free(&m);
}

static void check_bf12(struct cpu_backend *b)
{
    long before = failed;
    for (int64_t cols = 32; cols <= 99; cols += EVERY)
        check_bf12_shape(b, 16 + cols % 23, cols, (int)(cols % 3), 1);
    check_bf12_shape(b, 49, 576, 1, 1);
    check_bf12_shape(b, 33, 1029, 0, 1);
    check_bf12_shape(b, 64, 2080, 1, 1);
    check_bf12_shape(b, 64, 2080, 100, 0);
    check_bf12_shape(b, 15, 2080, 0, 0); /* less than a panel */
    check_bf12_shape(b, 64, 31, 0, 0);   /* less than a block */
    printf("%s bf16 in 12 bits\n", failed == before ? "ok  " : "FAIL");
}

/* ---- activations ---- */

static void check_acts(void)
{
    long before = failed;
    for (int64_t cols = 1; cols <= 100; cols++) {
        struct guarded x = guarded_new((size_t)cols * 4);
        float *xs = (float *)(void *)x.p;
        for (int kind = 0; kind < 6; kind++) {
            static const float scale[] = {1, 1e-20f, 1e-38f, 1e30f, 0, 1};
            for (int64_t i = 0; i < cols; i++)
                xs[i] = random_float() * scale[kind];
            if (kind == 5)
                xs[cols / 2] = cols % 2 ? NAN : -INFINITY;
            enum { BLOCKS = 5 };
            struct act_q16 want[BLOCKS * 2], got[BLOCKS * 2];
            memset(want, 1, sizeof want);
            isas[0].k.act_to_q16(xs, cols, BLOCKS, 2, want);
            int ok = 1;
            for (int b = 0; b < BLOCKS; b++) {
                const struct act_q16 *a = &want[2 * b];
                int bad = kind == 5 && cols / 2 / 32 == b;
                ok &= bad == !!isnan(a->scale) && bad == !!isnan(a->sum32);
                for (int i = 0; i < 32 && !bad; i++) {
                    float v = b * 32 + i < cols ? xs[b * 32 + i] : 0;
                    ok &= fabsf(a->scale * (float)(256 * a->hi[i] + a->lo[i]) - v) <= a->scale * 1.01f + 1e-29f;
                }
            }
            report(ok, "act_to_q16", "scalar", "");
            for (int i = 1; i < isa_count; i++) {
                memset(got, 1, sizeof got);
                isas[i].k.act_to_q16(xs, cols, BLOCKS, 2, got);
                ok = 1;
                for (int b = 0; b < 2 * BLOCKS; b++)
                    ok &= !memcmp(&want[b], &got[b], sizeof *want) || (isnan(want[b].scale) && isnan(got[b].scale));
                report(ok, "act_to_q16", isas[i].name, "");
            }
        }
        guarded_free(&x);
    }
    printf("%s activations\n", failed == before ? "ok  " : "FAIL");
}

/* ---- cpu_linear ---- */

static struct tensor matrix_tensor(float *data, int64_t rows, int64_t cols)
{
    return (struct tensor){.dtype = DT_F32, .n_dims = 2, .dim = {rows, cols, 1, 1}, .data = data};
}

/* Mixed formats, biases, many token counts: the same bits as one token at a
 * time, and near the double-precision result. */
static void check_linear_cols(struct cpu_backend *b, const struct isa *s, int64_t cols)
{
    enum { N = 7, TOKENS_MAX = 101 };
    static const char *const names[N] = {"q4_k", "bf16", "q6_k", "fp8", "affine4", "bf16", "f16"};
    static const int64_t rows[N] = {40, 33, 16, 50, 7, 9, 20}; /* bf16 of less than a panel is not packed */
    static const int tokens[] = {2, 3, 8, 9, 23, TOKENS_MAX};
    struct matrix m[N];
    struct weight bias = {.uses = WEIGHT_VECTOR};
    struct tensor y[N], one[N], *yp[N], *op[N];
    const struct weight *w[N], *biases[N] = {0};
    float bias_data[33], *x = mem_alloc((size_t)(TOKENS_MAX * cols) * sizeof *x);
    struct tlm_error e = {0};
    b->matmul = s->k;
    for (int64_t i = 0; i < TOKENS_MAX * cols; i++)
        x[i] = random_float();
    for (int i = 0; i < 33; i++)
        bias_data[i] = random_float();
    bias.view = (struct quant_view){
        .format = quant_dense(DT_F32), .rows = 1, .cols = 33, .data = bias_data, .row_bytes = sizeof bias_data};
    int ok = cpu_weight_load(&b->base, &bias, &e) == TLM_OK;
    biases[1] = &bias;
    for (int i = 0; i < N; i++) {
        const struct quant *q = quant_by_name(names[i]);
        matrix_new(&m[i], q, rows[i], cols, q->group ? q->group : 128, DT_BF16);
        ok &= cpu_weight_load(&b->base, &m[i].w, &e) == TLM_OK;
        w[i] = &m[i].w;
        y[i] = matrix_tensor(mem_new((size_t)(TOKENS_MAX * rows[i]) * 4), TOKENS_MAX, rows[i]);
        one[i] = matrix_tensor(mem_new((size_t)rows[i] * 4), 1, rows[i]);
        yp[i] = &y[i];
        op[i] = &one[i];
    }
    report(ok, "linear: load", s->name, e.message);
    for (int exact = 0; exact < 2; exact++)
        for (size_t c = 0; c < sizeof tokens / sizeof *tokens; c++) {
            struct tensor xt = matrix_tensor(x, tokens[c], cols);
            b->base.exact = exact;
            cpu_linear(&b->base, yp, &xt, w, biases, N);
            int same = 1;
            double max = 0;
            for (int t = 0; t < tokens[c]; t++) {
                struct tensor x1 = matrix_tensor(x + t * cols, 1, cols);
                cpu_linear(&b->base, op, &x1, w, biases, N);
                for (int i = 0; i < N; i++)
                    same &= !memcmp(tensor_f32(&y[i]) + t * rows[i], one[i].data, (size_t)rows[i] * 4);
            }
            float row[4096];
            for (int i = 0; i < N && exact; i++)
                for (int64_t r = 0; r < rows[i]; r++) {
                    quant_decode(&m[i].w.view, r, 0, cols, row);
                    for (int t = 0; t < tokens[c]; t++) {
                        double sum = i == 1 ? (double)bias_data[r] : 0, bound = fabs(sum) + 1e-30;
                        for (int64_t k = 0; k < cols; k++) {
                            sum += (double)row[k] * x[t * cols + k];
                            bound += fabs((double)row[k] * x[t * cols + k]);
                        }
                        double err = fabs(tensor_f32(&y[i])[t * rows[i] + r] - sum) / bound;
                        max = err > max || isnan(err) ? err : max;
                    }
                }
            char what[64], detail[96];
            snprintf(what, sizeof what, "linear %s %d tokens, %lld inputs, %d threads", exact ? "exact" : "fast",
                     tokens[c], (long long)cols, pool_threads(b->base.pool));
            snprintf(detail, sizeof detail, "error %.1e%s", max, same ? "" : ", depends on the batch");
            report(same && max <= 3e-6, what, s->name, detail);
        }
    for (int i = 0; i < N; i++) {
        cpu_weight_unload(&b->base, &m[i].w);
        matrix_free(&m[i]);
        mem_free(y[i].data);
        mem_free(one[i].data);
    }
    cpu_weight_unload(&b->base, &bias);
    cpu_slabs_free(b);
    mem_free(x);
}

/* A NaN among e4m3 codes and among inputs must reach the output. */
static void check_nan(struct cpu_backend *b, const struct isa *s)
{
    struct matrix m;
    struct tlm_error e = {0};
    float x[256], out[20];
    b->matmul = s->k;
    for (int i = 0; i < 256; i++)
        x[i] = random_float();
    struct tensor xt = matrix_tensor(x, 1, 256), y = matrix_tensor(out, 1, 20), *yp = &y;
    const struct weight *w = &m.w;
    matrix_new(&m, quant_by_name("fp8"), 20, 256, 128, DT_F32);
    m.data[1 + 3 * 256 + 200] = 0xff;
    int ok = cpu_weight_load(&b->base, &m.w, &e) == TLM_OK;
    cpu_linear(&b->base, &yp, &xt, &w, NULL, 1);
    for (int i = 0; i < 20; i++)
        ok &= !!isnan(out[i]) == (i == 3);
    cpu_weight_unload(&b->base, &m.w);
    matrix_free(&m);
    matrix_new(&m, quant_by_name("bf16"), 20, 256, 1, DT_F16);
    m.data[1 + (3 * 256 + 200) * 2 + 1] = 0xff;
    m.data[1 + (3 * 256 + 200) * 2] = 0xc0;
    ok &= cpu_weight_load(&b->base, &m.w, &e) == TLM_OK && m.w.device;
    cpu_linear(&b->base, &yp, &xt, &w, NULL, 1);
    for (int i = 0; i < 20; i++)
        ok &= !!isnan(out[i]) == (i == 3);
    cpu_weight_unload(&b->base, &m.w);
    matrix_free(&m);
    matrix_new(&m, quant_by_name("q4_k"), 20, 256, 32, DT_F16);
    ok &= cpu_weight_load(&b->base, &m.w, &e) == TLM_OK;
    x[77] = NAN;
    for (int exact = 0; exact < 2; exact++) {
        b->base.exact = exact;
        cpu_linear(&b->base, &yp, &xt, &w, NULL, 1);
        for (int i = 0; i < 20; i++)
            ok &= !!isnan(out[i]);
    }
    cpu_weight_unload(&b->base, &m.w);
    matrix_free(&m);
    report(ok, "NaN stays NaN", s->name, e.message);
}

static void check_linear(struct cpu_backend *b)
{
    long before = failed;
    for (int i = 0; i < isa_count; i++) {
        check_linear_cols(b, &isas[i], 256);
        check_linear_cols(b, &isas[i], 1280);
        check_nan(b, &isas[i]);
    }
    printf("%s linear with %d threads\n", failed == before ? "ok  " : "FAIL", pool_threads(b->base.pool));
}

/* ---- bench ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct read_job {
    const uint64_t *p;
    size_t words, per_task;
    uint64_t sum[64];
};

static void read_task(void *arg, int task, int worker)
{
    struct read_job *j = arg;
    uint64_t s[8] = {0};
    const uint64_t *p = j->p + (size_t)task * j->per_task;
    for (size_t i = 0; i + 8 <= j->per_task; i += 8) {
        __builtin_prefetch(p + i + 512); /* the kernels do so too */
        for (int l = 0; l < 8; l++)
            s[l] ^= p[i + (size_t)l];
    }
    for (int l = 0; l < 8; l++)
        j->sum[worker & 63] ^= s[l];
}

static double read_bandwidth(struct pool *pool)
{
    size_t bytes = (size_t)256 << 20;
    uint8_t *p = mem_alloc_pages(bytes);
    memset(p, 1, bytes);
    struct read_job j = {(const void *)p, bytes / 8, bytes / 8 / 64, {0}};
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        double t = now();
        pool_run(pool, 64, read_task, &j);
        t = now() - t;
        best = t < best ? t : best;
    }
    mem_free_pages(p, bytes);
    return (double)bytes / best * 1e-9;
}

static double time_linear(struct cpu_backend *b, const struct weight *w, int tokens)
{
    float *x = mem_new((size_t)(tokens * w->view.cols) * 4), *out = mem_new((size_t)(tokens * w->view.rows) * 4);
    for (int64_t i = 0; i < tokens * w->view.cols; i++)
        x[i] = random_float();
    struct tensor xt = matrix_tensor(x, tokens, w->view.cols), y = matrix_tensor(out, tokens, w->view.rows), *yp = &y;
    double best = 1e9, start = now();
    for (int i = 0; i < 200 && (i < 3 || now() - start < 0.5); i++) {
        double t = now();
        cpu_linear(&b->base, &yp, &xt, &w, NULL, 1);
        t = now() - t;
        best = t < best ? t : best;
    }
    mem_free(x);
    mem_free(out);
    return best;
}

/* Decode reads 150 MB and more, so that no cache helps. */
static void bench_format(struct cpu_backend *b, const struct isa *s, const char *name, int group, int exact)
{
    const struct quant *q = quant_by_name(name);
    const int64_t cols = 2048;
    struct matrix m;
    struct tlm_error e = {0};
    double decode, prefill, pack;
    int64_t rows = (int64_t)150e6 * 8 / (cols * q->bits) / 16 * 16;
    b->matmul = s->k;
    b->base.exact = exact;
    matrix_new(&m, q, rows, cols, q->group ? q->group : group, DT_BF16);
    double t = now();
    if (cpu_weight_load(&b->base, &m.w, &e) != TLM_OK) {
        printf("%s\n", e.message);
        return;
    }
    pack = now() - t;
    size_t bytes = m.w.device_bytes ? m.w.device_bytes : quant_view_bytes(&m.w.view);
    decode = time_linear(b, &m.w, 1);
    m.w.view.rows = 1024;
    if (m.w.device && q->code == QUANT_DENSE) {
        ((struct bf12_matrix *)m.w.device)->panels = 64;
    } else if (m.w.device) {
        struct packed_weight *p = m.w.device;
        p->layout.rows = 1024;
        p->layout.panels = 64;
    }
    prefill = time_linear(b, &m.w, 64);
    printf("%-10s %-5s %-10s %d threads: 1 token %6.1f GB/s, 64 tokens %7.1f GMAC/s, packing %5.0f ps/weight\n",
           s->name, exact ? "exact" : "fast", name, pool_threads(b->base.pool), (double)bytes / decode * 1e-9,
           1024.0 * (double)cols * 64 / prefill * 1e-9, pack / (double)(rows * cols) * 1e12);
    fflush(stdout);
    cpu_weight_unload(&b->base, &m.w);
    matrix_free(&m);
}

static int is_one_of(const char *word, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(word, list[i]) == 0)
            return 1;
    return 0;
}

/* Whether the arguments name `name`, or none of its kind. */
static int is_wanted(const char *name, const char *const *kind, int n, int argc, char **argv)
{
    int named = 0;
    for (int a = 0; a < argc; a++) {
        if (strcmp(argv[a], name) == 0)
            return 1;
        named |= is_one_of(argv[a], kind, n);
    }
    return !named;
}

static void bench(struct cpu_backend *b, int argc, char **argv)
{
    static const char *const names[] = {"q4_0",    "q4_1",  "q8_0",   "q2_k",  "q3_k",    "q4_k",
                                        "q5_k",    "q6_k",  "iq4_nl", "mxfp4", "affine3", "affine4",
                                        "affine8", "mxfp8", "f32",    "f16",   "bf16"};
    static const char *const modes[] = {"fast", "exact"};
    const int n_names = (int)(sizeof names / sizeof *names);
    const char *sets[sizeof isas / sizeof *isas];
    for (int i = 0; i < isa_count; i++)
        sets[i] = isas[i].name;
    for (int a = 0; a < argc; a++)
        if (!is_one_of(argv[a], sets, isa_count) && !is_one_of(argv[a], names, n_names) &&
            !is_one_of(argv[a], modes, 2)) {
            fprintf(stderr, "%s: no instruction set, format or mode that is timed\n", argv[a]);
            exit(2);
        }
    printf("read, %d threads: %.1f GB/s\n", pool_threads(b->base.pool), read_bandwidth(b->base.pool));
    for (int i = isa_count > 1; i < isa_count; i++)
        for (int n = 0; n < n_names; n++)
            for (int exact = 0; exact < 2; exact++)
                if (is_wanted(sets[i], sets, isa_count, argc, argv) &&
                    is_wanted(names[n], names, n_names, argc, argv) && is_wanted(modes[exact], modes, 2, argc, argv))
                    bench_format(b, &isas[i], names[n], 64, exact);
}

int main(int argc, char **argv)
{
    struct tlm_error e = {0};
    struct cpu_backend b = {0};
    verbose = argc > 1 && !strcmp(argv[1], "-v");
    list_isas();
    int benching = argc > 1 && !strcmp(argv[1], "--bench");
    for (int threads = 1; threads <= 2; threads++) {
        if (pool_new(threads, &b.base.pool, &e) != TLM_OK) {
            fprintf(stderr, "%s\n", e.message);
            return 2;
        }
        b.threads = threads;
        if (benching) {
            bench(&b, argc - 2, argv + 2);
        } else {
            if (threads == 1) {
                check_acts();
                check_dense();
                check_bf12(&b);
                check_panels(&b);
            }
            check_linear(&b);
        }
        pool_free(b.base.pool);
    }
    mem_free_pages(b.scratch, b.scratch_bytes);
    cpu_slabs_free(&b);
    if (benching)
        return 0;
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
