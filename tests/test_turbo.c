/* Rotated and reordered weights: what quant_decode gives back, what matrix
 * products make of it, and that neither depends on company. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/fp.h"
#include "base/mem.h"
#include "io/safetensors.h"
#include "quant/hadamard.h"
#include "quant/pcg64.h"
#include "quant/turbo.h"

static uint64_t state = 0x9e3779b97f4a7c15;

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static float uniform(float range)
{
    return range * ((float)(next() >> 8) * 0x1p-23f - 1);
}

static float *random_floats(int64_t n, float range)
{
    float *x = mem_alloc_array((size_t)n, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = uniform(range);
    return x;
}

/* A made-up matrix of a stream format with what an input wants around it. */
struct matrix {
    struct quant_view view;
    struct quant_input input;
    uint8_t *codes;
    uint16_t *scales, *offsets;
    int32_t *order;
    float *signs;
};

static void matrix_make(struct matrix *m, const char *format, int64_t rows, int64_t cols, int group, bool order,
                        int64_t block, bool signs_first)
{
    const struct quant *q = quant_by_name(format);
    assert_non_null(q);
    size_t row_bytes = (size_t)(cols * q->bits / 8), groups = (size_t)(cols / group);
    m->codes = mem_alloc((size_t)rows * row_bytes);
    m->scales = mem_alloc_array((size_t)rows * groups, 2);
    m->offsets = q->has_offset ? mem_alloc_array((size_t)rows * groups, 2) : NULL;
    m->order = order ? mem_alloc_array((size_t)cols, sizeof *m->order) : NULL;
    m->signs = mem_alloc_array((size_t)cols, sizeof *m->signs);
    for (size_t i = 0; i < (size_t)rows * row_bytes; i++)
        m->codes[i] = (uint8_t)next();
    for (size_t i = 0; i < (size_t)rows * groups; i++) {
        m->scales[i] = (uint16_t)(0x2000 + (next() & 0x7ff));
        if (m->offsets)
            m->offsets[i] = (uint16_t)(0xa400 + (next() & 0x7ff));
    }
    pcg64_signs(7, cols, m->signs);
    for (int64_t i = 0; order && i < cols; i++) {
        int64_t j = next() % (uint32_t)(i + 1);
        m->order[i] = m->order[j];
        m->order[j] = (int32_t)i;
    }
    m->input = (struct quant_input){m->order, block, signs_first, m->signs, 7};
    m->view = (struct quant_view){.format = q,
                                  .rows = rows,
                                  .cols = cols,
                                  .group = group,
                                  .data = m->codes,
                                  .row_bytes = row_bytes,
                                  .scales = m->scales,
                                  .scale_dtype = DT_F16,
                                  .scale_rows = 1,
                                  .scale_row_bytes = groups * 2,
                                  .offsets = m->offsets,
                                  .input = &m->input};
}

static void matrix_free(struct matrix *m)
{
    mem_free(m->codes);
    mem_free(m->scales);
    mem_free(m->offsets);
    mem_free(m->order);
    mem_free(m->signs);
}

/* The dense matrix [cols, cols] in double of an input's map, by unit vectors
 * through a plain sum: H of m * 2^k is the product of its two parts. */
static double entry(const struct quant_input *in, int64_t k, int64_t j)
{
    if (in->block == 0)
        return k == j;
    if (k / in->block != j / in->block)
        return 0;
    int m = hadamard_odd(in->block);
    int64_t n = in->block / m, a = k % in->block, b = j % in->block;
    float odd[HADAMARD_M_MAX * HADAMARD_M_MAX];
    hadamard_signs(m, false, odd);
    double h = (double)odd[a / n * m + b / n];
    for (int64_t common = (a % n) & (b % n); common; common &= common - 1)
        h = -h;
    h /= sqrt((double)in->block);
    return h * (double)in->signs[in->signs_first ? j : k];
}

static const struct {
    const char *format;
    int64_t rows, cols, block;
    int group;
    bool order, signs_first;
} cases[] = {
    {"affine4", 37, 128, 128, 64, false, true}, {"affine4", 20, 192, 192, 64, false, false},
    {"affine2", 16, 320, 64, 32, false, true},  {"affine8", 5, 64, 0, 32, true, false},
    {"affine3", 33, 256, 0, 128, true, false},  {"affine6", 18, 224, 224, 32, true, true},
    {"affine5", 40, 160, 160, 32, false, true},
};
enum { CASES = sizeof cases / sizeof *cases };

static void make_case(struct matrix *m, int i)
{
    matrix_make(m, cases[i].format, cases[i].rows, cases[i].cols, cases[i].group, cases[i].order, cases[i].block,
                cases[i].signs_first);
}

/* Rows of the decoded matrix are those of the codes, rotated back. */
static void test_decode(void **unused)
{
    (void)unused;
    for (int i = 0; i < CASES; i++) {
        struct matrix m;
        make_case(&m, i);
        struct quant_view plain = m.view;
        plain.input = NULL;
        int64_t n = m.view.cols;
        float *y = random_floats(n, 1), *w = random_floats(n, 1), *part = random_floats(n, 1);
        for (int64_t r = 0; r < m.view.rows; r++) {
            quant_decode(&plain, r, 0, n, y);
            quant_decode(&m.view, r, 0, n, w);
            for (int64_t j = 0; j < n; j++) {
                double want = 0;
                for (int64_t k = 0; k < n; k++)
                    want += (double)y[k] * entry(&m.input, k, j);
                int64_t at = m.order ? m.order[j] : j;
                assert_true(fabs((double)w[at] - want) < 1e-5);
            }
            int64_t k0 = next() % (uint32_t)n, count = next() % (uint32_t)(n - k0 + 1);
            quant_decode(&m.view, r, k0, count, part);
            assert_memory_equal(part, w + k0, (size_t)count * sizeof *part);
        }
        mem_free(y);
        mem_free(w);
        mem_free(part);
        matrix_free(&m);
    }
}

static void linear(struct backend *be, const struct weight *const *w, int n, const float *x, int64_t tokens, float *out)
{
    struct tensor in = {DT_F32, 2, {tokens, w[0]->view.cols, 1, 1}, (void *)(uintptr_t)x}, y[4], *py[4];
    for (int i = 0; i < n; i++) {
        y[i] = (struct tensor){DT_F32, 2, {tokens, w[i]->view.rows, 1, 1}, out};
        py[i] = &y[i];
        out += tokens * w[i]->view.rows;
    }
    be->ops->linear(be, py, &in, w, NULL, n);
}

/* Products with rotated weights against sums over what they decode to; a row
 * alone has the bits it has among others; weights with and without a rotation
 * share a call. */
static void test_linear(void **unused)
{
    (void)unused;
    enum { TOKENS = 29 };
    struct tlm_error e = {0};
    for (int exact = 0; exact < 2; exact++) {
        struct backend *be;
        assert_int_equal(backend_cpu_new(2, exact, &be, &e), TLM_OK);
        for (int i = 0; i < CASES; i++) {
            struct matrix m[3];
            struct weight w[3];
            const struct weight *pw[3] = {&w[0], &w[1], &w[2]};
            int64_t rows = cases[i].rows, n = cases[i].cols;
            for (int k = 0; k < 3; k++) {
                make_case(&m[k], i);
                w[k] = (struct weight){.name = "w", .view = m[k].view, .uses = WEIGHT_MATMUL};
            }
            w[1].view.input = w[0].view.input;
            w[2].view.input = NULL;
            for (int k = 0; k < 3; k++)
                assert_int_equal(be->ops->weight_load(be, &w[k], &e), TLM_OK);
            float *x = random_floats(TOKENS * n, 2), *y = random_floats(3 * TOKENS * rows, 1);
            float *alone = random_floats(3 * rows, 1), *dense = random_floats(n, 1);
            linear(be, pw, 3, x, TOKENS, y);
            for (int k = 0; k < 3; k++)
                for (int64_t r = 0; r < rows; r++) {
                    quant_decode(&w[k].view, r, 0, n, dense);
                    for (int t = 0; t < TOKENS; t++) {
                        double want = 0, size = 0;
                        for (int64_t j = 0; j < n; j++) {
                            want += (double)x[t * n + j] * (double)dense[j];
                            size += fabs((double)x[t * n + j] * (double)dense[j]);
                        }
                        double got = (double)y[(k * TOKENS + t) * rows + r];
                        assert_true(fabs(got - want) < (exact ? 2e-5 : 3e-4) * size);
                    }
                }
            for (int t = 0; t < TOKENS; t += 7) {
                linear(be, pw, 3, x + t * n, 1, alone);
                for (int k = 0; k < 3; k++)
                    assert_memory_equal(alone + k * rows, y + (k * TOKENS + t) * rows, (size_t)rows * sizeof *y);
            }
            mem_free(x);
            mem_free(y);
            mem_free(alone);
            mem_free(dense);
            for (int k = 0; k < 3; k++)
                matrix_free(&m[k]);
        }
        be->ops->free(be);
    }
}

/* The transform keeps lengths and is undone by its transpose. */
static void test_orthonormal(void **unused)
{
    (void)unused;
    static const int64_t sizes[] = {1, 2, 12, 20, 28, 48, 64, 320, 896, 1536, 14336};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i];
        assert_int_equal(hadamard_block(n), n);
        float *x = random_floats(n, 1), *y = random_floats(n, 1);
        double before = 0, after = 0;
        memcpy(y, x, (size_t)n * sizeof *y);
        hadamard(y, n, false);
        for (int64_t k = 0; k < n; k++) {
            before += (double)x[k] * (double)x[k];
            after += (double)y[k] * (double)y[k];
        }
        assert_true(fabs(before - after) < 1e-5 * before);
        hadamard(y, n, true);
        for (int64_t k = 0; k < n; k++)
            assert_true(fabsf(x[k] - y[k]) < 1e-5f);
        mem_free(x);
        mem_free(y);
    }
    assert_int_equal(hadamard_block(4608), 1536);
    assert_int_equal(hadamard_block(18944), 512);
    assert_int_equal(hadamard_block(35), 1);
}

/* ---- the encoder against its restatement in numpy (tests/oracle/turbo.py) ---- */

static const struct st_tensor *golden(const struct st_file *f, const char *format, ...)
{
    char name[64];
    va_list ap;
    va_start(ap, format);
    vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    return st_find(f, name);
}

static struct quant_view view_of(int bits, int group, int64_t rows, int64_t n, const void *codes, const void *scales,
                                 const struct quant_input *in)
{
    char name[16];
    snprintf(name, sizeof name, "turbo%d", bits);
    return (struct quant_view){.format = quant_by_name(name),
                               .rows = rows,
                               .cols = n,
                               .group = group,
                               .data = codes,
                               .row_bytes = (size_t)(n * bits / 8),
                               .scales = scales,
                               .scale_dtype = DT_BF16,
                               .scale_rows = 1,
                               .scale_row_bytes = (size_t)(n / group) * 2,
                               .input = in};
}

/* Error of a row over its length, of what the codes decode to. */
static double row_error(const struct quant_view *v, int64_t r, const float *w)
{
    float *got = random_floats(v->cols, 1);
    double error = 0, size = 0;
    quant_decode(v, r, 0, v->cols, got);
    for (int64_t k = 0; k < v->cols; k++) {
        error += ((double)got[k] - (double)w[k]) * ((double)got[k] - (double)w[k]);
        size += (double)w[k] * (double)w[k];
    }
    mem_free(got);
    return size > 0 ? error / size : error;
}

static void check_encoded(const struct st_file *f, int64_t n, int bits, int group, const struct quant_input *in)
{
    static const double most[9] = {[2] = 0.2, [3] = 0.05, [4] = 0.012, [5] = 0.004, [6] = 1e-3, [8] = 7e-5};
    const struct st_tensor *w = golden(f, "%d.w", (int)n), *codes = golden(f, "%d.%d.%d.codes", (int)n, bits, group),
                           *scales = golden(f, "%d.%d.%d.scales", (int)n, bits, group);
    assert_non_null(codes);
    int64_t rows = w->shape[0];
    size_t row_bytes = (size_t)(n * bits / 8), scale_bytes = (size_t)(n / group) * 2;
    uint8_t *got = mem_alloc(row_bytes), *got_scales = mem_alloc(scale_bytes);
    struct quant_view v = view_of(bits, group, rows, n, codes->data, scales->data, in);
    for (int64_t r = 0; r < rows; r++) {
        float *x = random_floats(n, 1);
        memcpy(x, (const uint8_t *)w->data + (size_t)(r * n) * 4, (size_t)n * 4);
        if (row_error(&v, r, x) > most[bits])
            fail_msg("%d bits, groups of %d: error %g in row %d of %d", bits, group, row_error(&v, r, x), (int)r,
                     (int)n);
        assert_true(turbo_encode(bits, group, in, x, n, got, got_scales));
        assert_memory_equal(got, (const uint8_t *)codes->data + (size_t)r * row_bytes, row_bytes);
        assert_memory_equal(got_scales, (const uint8_t *)scales->data + (size_t)r * scale_bytes, scale_bytes);
        mem_free(x);
    }
    mem_free(got);
    mem_free(got_scales);
}

static void test_encode(void **unused)
{
    (void)unused;
    static const int64_t sizes[] = {32, 96, 128, 352, 640};
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    struct tlm_error e = {0};
    struct st_file *f;
    assert_int_equal(st_open(TURBOLM_TEST_DATA "/turbo/encode.safetensors", &f, &e), TLM_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i];
        const struct st_tensor *w = golden(f, "%d.w", (int)n), *y = golden(f, "%d.y", (int)n);
        float *x = random_floats(n, 1), *signs = random_floats(n, 1);
        pcg64_signs(3, n, signs);
        struct quant_input in = {.block = turbo_block(n), .signs_first = true, .signs = signs};
        assert_true(in.block >= 16);
        for (int64_t r = 0; r < w->shape[0]; r++) {
            memcpy(x, (const uint8_t *)w->data + (size_t)(r * n) * 4, (size_t)n * 4);
            quant_input_rotate(&in, x, n);
            assert_memory_equal(x, (const uint8_t *)y->data + (size_t)(r * n) * 4, (size_t)n * 4);
        }
        for (size_t b = 0; b < 6; b++)
            for (int group = 32; group <= 128; group *= 2)
                if (n % group == 0)
                    check_encoded(f, n, widths[b], group, &in);
        mem_free(x);
        mem_free(signs);
    }
    st_close(f);
}

/* What cannot be encoded is refused; tiny and huge numbers are not. */
static void test_extremes(void **unused)
{
    (void)unused;
    uint8_t codes[32], scales[2];
    static const float sizes[] = {1e-38f, 1e-20f, 1e12f};
    for (int bits = 2; bits <= 8; bits += 2)
        for (int i = 0; i < 3; i++) {
            float x[32], w[32];
            for (int k = 0; k < 32; k++)
                w[k] = x[k] = sizes[i] * (float)(k - 13);
            assert_true(turbo_encode(bits, 32, NULL, x, 32, codes, scales));
            struct quant_view v = view_of(bits, 32, 1, 32, codes, scales, NULL);
            assert_true(row_error(&v, 0, w) < (i ? 0.15 : 1.01));
        }
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e15f};
    for (int i = 0; i < 4; i++) {
        float x[32] = {1, 2, 3, bad[i]};
        assert_false(turbo_encode(4, 32, NULL, x, 32, codes, scales));
        assert_true(i == 3 || !turbo_encode_lut(4, 32, DT_F32, x, 32, codes, scales));
    }
    assert_int_equal(turbo_block(35), 0);
    assert_int_equal(turbo_block(17 * 8), 0);
    assert_int_equal(turbo_block(48), 48);
    assert_int_equal(turbo_block((int64_t)7 << 20), 7 << 13);
}

/* Seeds of layers and the signs they give (mlx_turboquant, numpy). */
static void test_seeds(void **unused)
{
    (void)unused;
    float signs[16];
    static const char want[] = "-++-++-+-+-+++++";
    assert_int_equal(turbo_layer_seed("model.layers.0.self_attn.q_proj", 0), 1726638765);
    assert_int_equal(turbo_layer_seed("model.layers.3.mlp.down_proj", 0), 1487152689);
    assert_int_equal(turbo_layer_seed("model.layers.3.mlp.down_proj", (uint64_t)1 << 32), 1487152689);
    pcg64_signs(1726638765, 16, signs);
    for (int i = 0; i < 16; i++)
        assert_true(signs[i] == (want[i] == '+' ? 1.0f : -1.0f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orthonormal), cmocka_unit_test(test_decode),   cmocka_unit_test(test_linear),
        cmocka_unit_test(test_encode),      cmocka_unit_test(test_extremes), cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
