/* Weight formats against what their own libraries decode the same bytes to
 * (tests/oracle/make_quant_goldens.py), and the rules between the callbacks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "quant/quant.h"

enum { COLS_MAX = 512 };

static struct st_file *golden_open(const char *file)
{
    char path[4096];
    struct tlm_error e = {0};
    struct st_file *f = NULL;
    snprintf(path, sizeof path, "%s/quant/%s", TURBOLM_TEST_DATA, file);
    if (st_open(path, &f, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return f;
}

static const struct st_tensor *golden(const struct st_file *f, const char *name, const char *suffix)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s", name, suffix);
    const struct st_tensor *t = st_find(f, full);
    if (!t)
        fail_msg("no %s in %s", full, f->path);
    return t;
}

static uint32_t bits_at(const struct st_tensor *t, int64_t i)
{
    return load_u32((const uint8_t *)t->data + 4 * i);
}

/* Bit for bit, but any NaN is NaN and -0 may be 0: an integer code has no -0
 * of its own. */
static int same(float got, uint32_t want)
{
    float w = fp_from_bits(want);
    return got == w || (isnan(got) && isnan(w));
}

static void check_row(const struct quant_view *v, const char *name, int64_t r, const struct st_tensor *want,
                      int64_t want_row)
{
    float out[COLS_MAX];
    assert_true(v->cols <= COLS_MAX);
    quant_decode(v, r, 0, v->cols, out);
    for (int64_t k = 0; k < v->cols; k++)
        if (!same(out[k], bits_at(want, want_row * v->cols + k)))
            fail_msg("%s [%d, %d]: %.9g, expected %.9g", name, (int)r, (int)k, (double)out[k],
                     (double)fp_from_bits(bits_at(want, want_row * v->cols + k)));
}

/* Any part of a row is the same part of the whole row. */
static void check_parts(const struct quant_view *v, const char *name)
{
    float whole[COLS_MAX], part[COLS_MAX + 1];
    uint32_t seed = 1;
    for (int i = 0; i < 200; i++) {
        seed = seed * 1664525 + 1013904223;
        int64_t r = (seed >> 8) % v->rows, k0 = (seed >> 16) % v->cols;
        seed = seed * 1664525 + 1013904223;
        int64_t n = (seed >> 12) % (v->cols - k0 + 1);
        part[n] = 12345.0f;
        quant_decode(v, r, 0, v->cols, whole);
        quant_decode(v, r, k0, n, part);
        if (n && memcmp(part, whole + k0, (size_t)n * 4) != 0)
            fail_msg("%s: row %d from %d for %d differs from the whole row", name, (int)r, (int)k0, (int)n);
        assert_true(part[n] == 12345.0f);
    }
}

static double value_of(const struct quant *q, uint8_t code)
{
    switch (q->code) {
    case QUANT_INT8:
        return (int8_t)code;
    case QUANT_TABLE:
        return q->table[code];
    case QUANT_E4M3:
        return (double)fp_from_e4m3(code);
    default:
        return code;
    }
}

static int is_exact(enum quant_scale kind, float x)
{
    if (kind == QUANT_SCALE_F16)
        return fp_from_f16(fp_to_f16(x)) == x;
    return kind == QUANT_SCALE_BF16 ? fp_from_bf16(fp_to_bf16(x)) == x : 1;
}

/* What a packer sees, put together by the formula in quant.h, is the decoded
 * value; and a scale is what quant_view_scale says it is. */
static void check_formula(const struct quant_view *v, const char *name)
{
    const struct quant *q = v->format;
    enum quant_scale kind = quant_view_scale(v);
    int64_t groups = (v->cols + v->group - 1) / v->group;
    uint8_t code[COLS_MAX];
    float scale[COLS_MAX], offset[COLS_MAX], out[COLS_MAX];
    for (int64_t r = 0; r < v->rows; r++) {
        q->codes(v, r, 0, v->cols, code);
        quant_decode(v, r, 0, v->cols, out);
        if (kind == QUANT_SCALE_LEVELS) {
            for (int64_t g = 0; g < groups; g++) {
                struct quant_levels l;
                int64_t per = 256 / v->group, j = g % per;
                q->levels(v, r, g / per, &l);
                scale[g] = fp_from_f16(l.d) * (float)l.sc[j];
                offset[g] = q->has_offset ? -fp_from_f16(l.dmin) * (float)l.mn[j] : (float)-q->zero * scale[g];
                assert_true(!q->has_offset || (l.sc[j] >= 0 && l.sc[j] < 64 && l.mn[j] < 64));
            }
        } else {
            q->scales(v, r, 0, groups, scale, offset);
            for (int64_t g = 0; g < groups; g++)
                assert_true(is_exact(kind, scale[g]) && (!q->has_offset || is_exact(kind, offset[g])));
        }
        for (int64_t k = 0; k < v->cols; k++) {
            double s = (double)scale[k / v->group], o = (double)offset[k / v->group], w = value_of(q, code[k]) * s + o;
            assert_true(code[k] >> q->bits == 0);
            if (isfinite(out[k]) && fabs(w - (double)out[k]) > 1e-6 * (fabs(o) + fabs(w)) + 1e-44)
                fail_msg("%s [%d, %d]: %.9g by the formula, %.9g decoded", name, (int)r, (int)k, w, (double)out[k]);
        }
    }
}

static void test_ggml(void **state)
{
    (void)state;
    struct st_file *f = golden_open("ggml.safetensors");
    int checked = 0;
    for (int i = 0; quant_at(i); i++) {
        const struct quant *q = quant_at(i);
        char name[32];
        snprintf(name, sizeof name, "%s", strcmp(q->name, "mxfp4_gguf") ? q->name : "mxfp4");
        if (!q->codes || !q->group || !strcmp(q->name, "mxfp4") || !strcmp(q->name, "nvfp4") ||
            !strcmp(q->name, "mxfp8"))
            continue;
        const struct st_tensor *raw = golden(f, name, "raw"), *want = golden(f, name, "f32");
        struct quant_view v = {.format = q,
                               .rows = want->shape[0],
                               .cols = want->shape[1],
                               .group = q->group,
                               .data = raw->data,
                               .row_bytes = (size_t)raw->shape[1]};
        for (int64_t r = 0; r < v.rows; r++)
            check_row(&v, q->name, r, want, r);
        check_parts(&v, q->name);
        check_formula(&v, q->name);
        assert_int_equal(quant_view_bytes(&v), raw->bytes);
        checked++;
    }
    assert_int_equal(checked * 2, f->n_tensors);
    st_close(f);
}

/* "affine4g64.bf16" and "mxfp4". */
static void check_mlx(const struct st_file *f, const char *name)
{
    char format[32];
    int group = 0;
    snprintf(format, sizeof format, "%.*s", (int)strcspn(name, "g."), name);
    const char *g = strchr(name, 'g');
    if (g)
        group = (int)strtol(g + 1, NULL, 10);
    const struct quant *q = quant_by_name(format);
    assert_non_null(q);
    const struct st_tensor *w = golden(f, name, "w"), *s = golden(f, name, "scales"), *want = golden(f, name, "f32");
    struct quant_view v = {.format = q,
                           .rows = want->shape[0],
                           .cols = want->shape[1],
                           .group = q->group ? q->group : group,
                           .data = w->data,
                           .row_bytes = (size_t)w->shape[1] * 4,
                           .scales = s->data,
                           .scale_dtype = s->dtype,
                           .scale_rows = 1,
                           .scale_row_bytes = (size_t)s->shape[1] * dtype_size(s->dtype)};
    if (q->has_offset)
        v.offsets = golden(f, name, "biases")->data;
    char shown[32];
    quant_view_name(&v, shown);
    char expected[32];
    snprintf(expected, sizeof expected, "%.*s", (int)strcspn(name, "."), name);
    assert_string_equal(shown, expected);
    assert_int_equal(quant_view_bytes(&v), w->bytes + s->bytes * (q->has_offset ? 2 : 1));
    for (int64_t r = 0; r < v.rows; r++)
        check_row(&v, name, r, want, r);
    check_parts(&v, name);
    check_formula(&v, name);
}

static void test_mlx(void **state)
{
    (void)state;
    struct st_file *f = golden_open("mlx.safetensors");
    int checked = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        char name[64];
        size_t len = strlen(f->tensors[i].name);
        if (len > 2 && !strcmp(f->tensors[i].name + len - 2, ".w")) {
            snprintf(name, sizeof name, "%.*s", (int)(len - 2), f->tensors[i].name);
            check_mlx(f, name);
            checked++;
        }
    }
    assert_int_equal(checked, 6 * 5 + 3);
    st_close(f);
}

static void check_fp8(const struct st_file *f, const char *name, int64_t scale_rows, int group, const char *shown)
{
    char buffer[32];
    const struct st_tensor *w = golden(f, "fp8", "w"), *s = golden(f, name, "scales"), *want = golden(f, name, "f32");
    const struct st_tensor *rows = st_find(f, "rows");
    struct quant_view v = {.format = quant_by_name("fp8"),
                           .rows = w->shape[0],
                           .cols = w->shape[1],
                           .group = group ? group : (int)w->shape[1],
                           .data = w->data,
                           .row_bytes = (size_t)w->shape[1],
                           .scales = s->data,
                           .scale_dtype = s->dtype,
                           .scale_rows = scale_rows,
                           .scale_row_bytes = (size_t)s->shape[1] * dtype_size(s->dtype)};
    for (int64_t i = 0; i < rows->shape[0]; i++)
        check_row(&v, name, bits_at(rows, i), want, i);
    check_parts(&v, name);
    check_formula(&v, name);
    quant_view_name(&v, buffer);
    assert_string_equal(buffer, shown);
    assert_int_equal(quant_view_scale(&v), s->dtype == DT_F32 ? QUANT_SCALE_F32 : QUANT_SCALE_BF16);
    assert_int_equal(quant_view_bytes(&v), w->bytes + s->bytes);
}

static void test_fp8(void **state)
{
    (void)state;
    struct st_file *f = golden_open("fp8.safetensors");
    check_fp8(f, "fp8.tensor.f32", 130, 0, "fp8");
    check_fp8(f, "fp8.tensor.bf16", 130, 0, "fp8");
    check_fp8(f, "fp8.row.f32", 1, 0, "fp8");
    check_fp8(f, "fp8.row.bf16", 1, 0, "fp8");
    check_fp8(f, "fp8.block.f32", 128, 128, "fp8g128");
    check_fp8(f, "fp8.block.bf16", 128, 128, "fp8g128");
    st_close(f);
}

/* A per-tensor scale over a row that no int16 could count. */
static void test_fp8_long_row(void **state)
{
    (void)state;
    enum { COLS = 70000 };
    uint8_t *data = mem_alloc(COLS);
    float *out = mem_alloc_array(COLS, sizeof *out), scale = 0.25f;
    assert_true(data && out);
    memset(data, 0x38, COLS); /* 1.0 */
    struct quant_view v = {.format = quant_by_name("fp8"),
                           .rows = 1,
                           .cols = COLS,
                           .group = COLS,
                           .data = data,
                           .row_bytes = COLS,
                           .scales = &scale,
                           .scale_dtype = DT_F32,
                           .scale_rows = 1,
                           .scale_row_bytes = 4};
    quant_decode(&v, 0, 0, COLS, out);
    for (int i = 0; i < COLS; i++)
        assert_true(out[i] == 0.25f);
    mem_free(data);
    mem_free(out);
}

static void test_dense(void **state)
{
    (void)state;
    static const float values[6] = {0, -1.5f, 3.140625f, 65504, -0.0009765625f, 1};
    uint16_t f16[7], bf16[7];
    float out[4];
    for (int i = 0; i < 6; i++) {
        f16[i] = fp_to_f16(values[i]);
        bf16[i] = fp_to_bf16(values[i]);
    }
    const void *data[3] = {values, f16, bf16};
    const enum dtype types[3] = {DT_F32, DT_F16, DT_BF16};
    for (int t = 0; t < 3; t++) {
        struct quant_view v = {.format = quant_dense(types[t]),
                               .rows = 2,
                               .cols = 3,
                               .data = data[t],
                               .row_bytes = 3 * dtype_size(types[t])};
        char name[32];
        assert_non_null(v.format);
        quant_view_name(&v, name);
        assert_string_equal(name, dtype_name(types[t]));
        assert_int_equal(quant_view_bytes(&v), 6 * dtype_size(types[t]));
        assert_int_equal(quant_view_scale(&v), QUANT_SCALE_NONE);
        quant_decode(&v, 1, 1, 2, out);
        for (int i = 0; i < 2; i++)
            assert_true(out[i] == (types[t] == DT_BF16 ? fp_from_bf16(bf16[4 + i]) : values[4 + i]));
    }
    assert_null(quant_dense(DT_F64));
    assert_null(quant_dense(DT_U8));
}

static void test_table(void **state)
{
    (void)state;
    int n = 0;
    for (const struct quant *q; (q = quant_at(n)); n++) {
        assert_ptr_equal(quant_by_name(q->name), q);
        assert_true((q->code == QUANT_TABLE) == (q->table != NULL));
        assert_true(q->block > 0 && 256 % q->block == 0 &&
                    (!q->group || q->block % q->group == 0 || q->group % q->block == 0));
        if (q->code == QUANT_DENSE)
            assert_true(!q->codes && !q->scales && !q->levels && q->scale == QUANT_SCALE_NONE);
        else
            assert_true(q->codes &&
                        (q->scale == QUANT_SCALE_LEVELS ? q->levels && !q->scales : q->scales && !q->levels));
        assert_true(!q->has_offset || !q->zero);
    }
    assert_int_equal(n, 3 + 7 + 6 + 6 + 4 + 9 + 16);
    assert_null(quant_at(-1));
    assert_null(quant_by_name("q4"));
    assert_null(quant_by_name(""));
    assert_string_equal(quant_by_ggml_type(39)->name, "mxfp4_gguf");
    for (uint32_t type = 0; type < 100; type++) {
        const struct quant *q = quant_by_ggml_type(type);
        int block, bytes;
        if (!q)
            continue;
        assert_true(gguf_type_geometry(type, &block, &bytes));
        assert_true(block == q->block && bytes == q->block_bytes);
        if (type != 39)
            assert_string_equal(gguf_type_name(type), q->name);
    }
    assert_null(quant_by_ggml_type(9)); /* q8_1: known to ggml, never in a file */
    assert_null(quant_by_ggml_type(UINT32_MAX));
}

/* Rows of real files: TURBOLM_TEST_MODELS names the directory. */
static void test_real_rows(void **state)
{
    (void)state;
    const char *models = getenv("TURBOLM_TEST_MODELS");
    if (!models || !*models)
        skip();
    struct st_file *f = golden_open("rows.safetensors");
    int checked = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        char path[4096], name[256], file[256];
        struct tlm_error e = {0};
        struct gguf *g;
        int row;
        assert_int_equal(sscanf(f->tensors[i].name, "%255[^:]:%255[^:]:%d", file, name, &row), 3);
        snprintf(path, sizeof path, "%s/%s", models, file);
        if (!gguf_is_file(path))
            continue;
        if (gguf_open(path, &g, &e) != TLM_OK)
            fail_msg("%s", e.message);
        const struct gguf_tensor *t = gguf_tensor_find(g, name);
        assert_non_null(t);
        const struct quant *q = quant_by_ggml_type(t->type);
        assert_non_null(q);
        struct quant_view v = {.format = q,
                               .rows = t->ne[1],
                               .cols = t->ne[0],
                               .group = q->group,
                               .data = t->data,
                               .row_bytes = (size_t)(t->ne[0] / q->block * q->block_bytes)};
        float *out = mem_alloc_array((size_t)v.cols, sizeof *out);
        assert_non_null(out);
        assert_int_equal(f->tensors[i].shape[0], v.cols);
        quant_decode(&v, row, 0, v.cols, out);
        for (int64_t k = 0; k < v.cols; k++)
            if (!same(out[k], bits_at(&f->tensors[i], k)))
                fail_msg("%s [%d, %d]", name, row, (int)k);
        mem_free(out);
        gguf_close(g);
        checked++;
    }
    st_close(f);
    if (!checked)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),     cmocka_unit_test(test_dense), cmocka_unit_test(test_ggml),
        cmocka_unit_test(test_mlx),       cmocka_unit_test(test_fp8),   cmocka_unit_test(test_fp8_long_row),
        cmocka_unit_test(test_real_rows),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
