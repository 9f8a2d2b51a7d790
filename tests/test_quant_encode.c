/* MLX's formats as mx.quantize writes them: codes, scales and biases of every
 * mode, type and group size (tests/oracle/make_convert_goldens.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/fp.h"
#include "base/mem.h"
#include "quant/quant_encode.h"

enum { COLUMNS_MAX = 512, CASES = 63 };

static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};

static void load_row(enum dtype type, const uint8_t *p, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        if (type == DT_F32)
            memcpy(out + i, p + 4 * i, 4);
        else
            out[i] = type == DT_F16 ? load_f16(p + 2 * i) : fp_from_bf16(load_u16(p + 2 * i));
}

static void same(const char *what, const int32_t *h, int64_t row, const uint8_t *got, const uint8_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("mode %d bits %d group %d type %d row %lld: %s[%zu] is %d, expected %d", h[0], h[1], h[2], h[3],
                     (long long)row, what, i, got[i], want[i]);
}

static const uint8_t *run_case(const uint8_t *p)
{
    int32_t h[7];
    memcpy(h, p, sizeof h);
    p += sizeof h;
    enum dtype type = types[h[3]];
    int64_t rows = h[4], n = h[5];
    assert_true(n <= COLUMNS_MAX);
    size_t row_bytes = (size_t)n * dtype_size(type), code_bytes = (size_t)(n * h[1] / 8);
    size_t scale_bytes = (size_t)(n / h[2] * h[6]);
    const uint8_t *codes = p + (size_t)rows * row_bytes, *scales = codes + (size_t)rows * code_bytes;
    const uint8_t *biases = scales + (size_t)rows * scale_bytes;
    struct quant_params params;
    assert_int_equal(quant_params_set(&params, quant_mode_name((enum quant_mode)h[0]), h[1], h[2], NULL), TLM_OK);
    assert_int_equal(dtype_size(quant_params_scale_type(&params, type)), h[6]);
    for (int64_t r = 0; r < rows; r++) {
        float w[COLUMNS_MAX];
        uint8_t q[COLUMNS_MAX], s[COLUMNS_MAX], b[COLUMNS_MAX];
        load_row(type, p + (size_t)r * row_bytes, n, w);
        assert_true(quant_encode(&params, type, w, n, q, s, b));
        same("codes", h, r, q, codes + (size_t)r * code_bytes, code_bytes);
        same("scales", h, r, s, scales + (size_t)r * scale_bytes, scale_bytes);
        if (h[0] == QUANT_AFFINE)
            same("biases", h, r, b, biases + (size_t)r * scale_bytes, scale_bytes);
    }
    return biases + (h[0] == QUANT_AFFINE ? (size_t)rows * scale_bytes : 0);
}

static void test_goldens(void **state)
{
    (void)state;
    char *data;
    size_t size;
    assert_int_equal(file_read(TURBOLM_TEST_DATA "/convert/encode.bin", 8 << 20, &data, &size, NULL), TLM_OK);
    const uint8_t *p = (const uint8_t *)data;
    for (int i = 0; i < CASES; i++)
        p = run_case(p);
    assert_memory_equal(p, "mlx ", 4);
    mem_free(data);
}

static void test_not_finite(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000};
    static const char *const modes[] = {"affine", "mxfp4", "nvfp4", "mxfp8"};
    for (size_t m = 0; m < 4; m++)
        for (size_t i = 0; i < 3; i++) {
            struct quant_params params;
            float w[64] = {0};
            uint8_t q[64], s[64], b[64];
            w[40 + i] = fp_from_bits(bad[i]);
            assert_int_equal(quant_params_set(&params, modes[m], 0, 0, NULL), TLM_OK);
            assert_false(quant_encode(&params, DT_F32, w, 64, q, s, b));
        }
}

/* A group whose scale has no e8m0 byte keeps the smallest one. */
static void test_tiny(void **state)
{
    (void)state;
    struct quant_params params;
    float w[32];
    uint8_t q[32], s[1];
    for (int i = 0; i < 32; i++)
        w[i] = 0x1p-130f;
    assert_int_equal(quant_params_set(&params, "mxfp8", 0, 0, NULL), TLM_OK);
    assert_true(quant_encode(&params, DT_F32, w, 32, q, s, NULL));
    assert_int_equal(s[0], 0);
    assert_true(fp_from_e4m3(q[0]) == 0.125f);
}

static void test_refused(void **state)
{
    (void)state;
    struct quant_params p;
    struct tlm_error e = {0};
    assert_int_equal(quant_params_set(&p, "affine", 7, 0, &e), TLM_EINVAL);
    assert_string_equal(e.message, "[quantize] The requested number of bits 7 is not supported. The supported bits are "
                                   "2, 3, 4, 5, 6 and 8.");
    e = (struct tlm_error){0};
    assert_int_equal(quant_params_set(&p, "mxfp4", 0, 64, &e), TLM_EINVAL);
    assert_string_equal(e.message, "[quantize] mxfp4 quantization requires group size 32 but got 64.");
    assert_int_equal(quant_params_set(&p, "affine", 4, 16, NULL), TLM_EINVAL);
    assert_int_equal(quant_params_set(&p, "nvfp4", 8, 0, NULL), TLM_EINVAL);
    assert_int_equal(quant_params_set(&p, "q4", 0, 0, NULL), TLM_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("quant_encode", tests, NULL, NULL);
}
