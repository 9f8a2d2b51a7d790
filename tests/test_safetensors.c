/* Safetensors reading: files of other writers, and every kind of damage. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fp.h"
#include "base/mem.h"
#include "io/safetensors.h"

static int file; /* in memory, rewritten for each case */
static char file_path[64];

static int setup(void **state)
{
    (void)state;
    file = memfd_create("safetensors", MFD_CLOEXEC);
    snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file);
    return file < 0;
}

static int teardown(void **state)
{
    (void)state;
    return close(file);
}

static enum tlm_status open_bytes(const void *bytes, size_t n, struct st_file **out, struct tlm_error *e)
{
    *e = (struct tlm_error){0};
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(pwrite(file, bytes, n, 0), (ssize_t)n);
    return st_open(file_path, out, e);
}

/* Length, header, then n bytes of data: 0, 1, 2, ... */
static enum tlm_status open_header(const char *header, size_t n, struct st_file **out, struct tlm_error *e)
{
    char bytes[8192];
    uint64_t len = strlen(header);
    assert_true(8 + len + n <= sizeof bytes);
    memcpy(bytes, &len, 8);
    memcpy(bytes + 8, header, len);
    for (size_t i = 0; i < n; i++)
        bytes[8 + len + i] = (char)i;
    return open_bytes(bytes, 8 + len + n, out, e);
}

/* What a reader relies on after TLM_OK. */
static void check_sane(const struct st_file *f)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const struct st_tensor *t = &f->tensors[i];
        uint64_t n = dtype_size(t->dtype);
        for (int d = 0; d < t->n_dims; d++)
            n *= (uint64_t)t->shape[d];
        assert_int_equal(t->bytes, n);
        const uint8_t *p = t->data;
        assert_true(p >= f->map.data && p + t->bytes <= f->map.data + f->map.size);
        assert_ptr_equal(st_find(f, t->name), t);
    }
}

#define ONE "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static void test_good(void **state)
{
    (void)state;
    static const char header[] = "{ \"__metadata__\" : {\"format\":\"mlx\",\"k\\u00e9\\n\":\"\\ud83d\\ude00\"},\n"
                                 "\"b.weight\":{\"data_offsets\":[4,10],\"dtype\":\"BF16\",\"shape\":[3,1]},"
                                 "\"a\":{\"dtype\":\"U32\",\"shape\":[],\"data_offsets\":[0,4]},"
                                 "\"empty\":{\"dtype\":\"F64\",\"shape\":[4,0],\"data_offsets\":[10,10]},"
                                 "\"\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[10,11]}}   ";
    struct st_file *f;
    struct tlm_error e;
    if (open_header(header, 11, &f, &e) != TLM_OK)
        fail_msg("%s", e.message);
    check_sane(f);
    assert_int_equal(f->n_tensors, 4);
    assert_int_equal(f->n_metadata, 2);
    assert_string_equal(f->tensors[0].name, "b.weight");
    assert_string_equal(st_metadata(f, "format"), "mlx");
    assert_string_equal(st_metadata(f, "k\xc3\xa9\n"), "\xf0\x9f\x98\x80");
    assert_null(st_metadata(f, "absent"));
    const struct st_tensor *a = st_find(f, "a"), *b = st_find(f, "b.weight"), *none = st_find(f, "empty");
    assert_int_equal(a->n_dims, 0);
    assert_int_equal(a->bytes, 4);
    assert_int_equal(load_u32(a->data), 0x03020100);
    assert_int_equal(b->dtype, DT_BF16);
    assert_true(b->n_dims == 2 && b->shape[0] == 3 && b->shape[1] == 1);
    assert_int_equal(load_u16(b->data), 0x0504);
    assert_int_equal(none->bytes, 0);
    assert_null(st_find(f, "b"));
    st_close(f);
    assert_int_equal(open_header("{}", 0, &f, &e), TLM_OK);
    assert_int_equal(f->n_tensors, 0);
    assert_null(st_find(f, "a"));
    st_close(f);
}

static void test_every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtype dtype;
    } rows[] = {{"F32", DT_F32},         {"F16", DT_F16},         {"BF16", DT_BF16},       {"F64", DT_F64},
                {"F8_E4M3", DT_F8_E4M3}, {"F8_E5M2", DT_F8_E5M2}, {"F8_E8M0", DT_F8_E8M0}, {"U8", DT_U8},
                {"I8", DT_I8},           {"U16", DT_U16},         {"I16", DT_I16},         {"U32", DT_U32},
                {"I32", DT_I32},         {"U64", DT_U64},         {"I64", DT_I64},         {"BOOL", DT_BOOL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char header[256];
        struct st_file *f;
        struct tlm_error e;
        size_t bytes = 3 * dtype_size(rows[i].dtype);
        snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
                 rows[i].name, bytes);
        assert_int_equal(open_header(header, bytes, &f, &e), TLM_OK);
        assert_int_equal(f->tensors[0].dtype, rows[i].dtype);
        st_close(f);
    }
}

/* As the mlx writer makes them: null metadata, sorted keys. */
static void test_mlx_files(void **state)
{
    (void)state;
    struct st_file *f;
    struct tlm_error e = {0};
    if (st_open(TURBOLM_TEST_DATA "/quant/mlx_null_metadata.safetensors", &f, &e) != TLM_OK)
        fail_msg("%s", e.message);
    assert_int_equal(f->n_metadata, 0);
    const struct st_tensor *t = st_find(f, "a.b");
    assert_true(t && t->n_dims == 1 && t->shape[0] == 2 && load_u32((const uint8_t *)t->data + 4) == 0x40000000);
    st_close(f);
    if (st_open(TURBOLM_TEST_DATA "/quant/mlx.safetensors", &f, &e) != TLM_OK)
        fail_msg("%s", e.message);
    check_sane(f);
    assert_non_null(st_metadata(f, "mlx"));
    st_close(f);
}

static const struct {
    const char *header;
    size_t data;
    const char *message; /* part of it */
} bad[] = {
    {"", 0, "expected '{'"},
    {" {}", 0, "expected '{'"},
    {"[]", 0, "expected '{'"},
    {"{} x", 0, "expected the end of the header"},
    {"{}", 1, "1 bytes after the last tensor"},
    {"{,}", 0, "expected a string"},
    {ONE ",}", 8, "expected a string"},
    {ONE, 8, "expected ',' or '}'"},
    {"{\"a\"}", 0, "expected ':'"},
    {"{\"a\":1}", 0, "expected an object"},
    {"{\"a\":null}", 0, "expected an object"},
    {"{\"a\":{}}", 0, "tensor a: dtype, shape or data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "tensor a: dtype, shape or data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "tensor a: a member other than"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "a member that occurs twice"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor a: element type \"F4\""},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor a: element type \"f32\""},
    {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "expected a string"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "expected an array as shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "expected a whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]}}", 8, "expected a whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "expected ',' or ']'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2e0],\"data_offsets\":[0,8]}}", 8, "expected ',' or ']'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]}}", 8, "expected a whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]}}", 8, "expected a whole number"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]}}", 8, "a number below 2^63"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551618],\"data_offsets\":[0,8]}}", 8, "a number below 2^63"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,0]}}", 0,
     "tensor a: the product"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4, "tensor a: the product"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "more than 8 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
     "tensor a: data_offsets 0 to 8, but its shape needs 12"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "tensor a: data_offsets 8 to 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "expected ','"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "two data_offsets"},
    {ONE "}", 7, "tensor a: its data lie outside the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9223372036854775799,9223372036854775807]}}", 8,
     "outside the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "tensor a: there is a hole in front"},
    {ONE ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[7,9]}}", 9, "tensor b: its data overlap"},
    {ONE ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "its data overlap"},
    {ONE ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[9,11]}}", 11, "tensor b: there is a hole"},
    {ONE ",\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, "tensor a: the name occurs twice"},
    {ONE ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, "tensor a: the name occurs twice"},
    {"{\"__metadata__\":[]}", 0, "an object or null as __metadata__"},
    {"{\"__metadata__\":nul}", 0, "an object or null as __metadata__"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "__metadata__: key a occurs twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "one __metadata__, not two"},
    {"{\"__metadata__\":null,\"__metadata__\":null}", 0, "one __metadata__, not two"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "without NUL"},
    {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "an escape sequence"},
    {"{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0, "four hexadecimal digits"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, "second half of a surrogate pair"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\\u0041\"}}", 0, "second half of a surrogate pair"},
    {"{\"__metadata__\":{\"a\":\"\\udc00\"}}", 0, "first half of a surrogate pair"},
    {"{\"__metadata__\":{\"a\":\"\x01\"}}", 0, "the end of a string"},
    {"{\"__metadata__\":{\"a\":\"\xff\"}}", 0, "expected UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xc0\x80\"}}", 0, "expected UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}}", 0, "expected UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xf4\x90\x80\x80\"}}", 0, "expected UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xe2\x82\"}}", 0, "expected UTF-8"},
};

static void test_bad_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct st_file *f;
        struct tlm_error e;
        enum tlm_status s = open_header(bad[i].header, bad[i].data, &f, &e);
        if (s != TLM_EFORMAT && s != TLM_EUNSUPPORTED)
            fail_msg("%s: status %d", bad[i].header, s);
        assert_int_equal(e.status, s);
        assert_null(f);
        if (!strstr(e.message, bad[i].message) || !strstr(e.message, file_path))
            fail_msg("%s: message \"%s\", expected \"%s\"", bad[i].header, e.message, bad[i].message);
    }
}

static void test_bad_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 100000000, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    struct st_file *f;
    struct tlm_error e;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char bytes[10] = {0};
        memcpy(bytes, &lengths[i], 8);
        memcpy(bytes + 8, "{}", 2);
        assert_int_equal(open_bytes(bytes, 10, &f, &e), TLM_EFORMAT);
        assert_non_null(strstr(e.message, lengths[i] > 100000000 ? "more than the limit" : "in a file of 10"));
    }
    assert_int_equal(open_bytes("", 0, &f, &e), TLM_EFORMAT);
    assert_int_equal(open_bytes("1234567", 7, &f, &e), TLM_EFORMAT);
    e = (struct tlm_error){0};
    assert_int_equal(st_open("/nonexistent/x.safetensors", &f, &e), TLM_ENOTFOUND);
    st_close(NULL);
}

static const char two[] = ONE ",\"b\":{\"dtype\":\"I16\",\"shape\":[1,3],\"data_offsets\":[8,14]},"
                              "\"__metadata__\":{\"x\":\"\\u00e9y\"}}";

/* A file cut anywhere is refused; one with any byte changed is refused or
 * consistent. */
static void test_damage(void **state)
{
    (void)state;
    static const uint8_t others[] = {0, ' ', '"', '\\', '{', '}', '[', ']', ',', ':', '0', '9', 'n', 0x7f, 0x80, 0xff};
    uint8_t bytes[512];
    uint64_t len = strlen(two);
    size_t size = 8 + len + 14;
    struct st_file *f;
    struct tlm_error e;
    memcpy(bytes, &len, 8);
    memcpy(bytes + 8, two, len);
    memset(bytes + 8 + len, 0, 14);
    assert_int_equal(open_bytes(bytes, size, &f, &e), TLM_OK);
    st_close(f);
    for (size_t n = 0; n < size; n++)
        assert_int_equal(open_bytes(bytes, n, &f, &e), TLM_EFORMAT);
    for (size_t n = 0; n < len; n++) { /* a shorter header in a whole file */
        memcpy(bytes, &n, 8);
        assert_int_not_equal(open_bytes(bytes, size, &f, &e), TLM_OK);
    }
    memcpy(bytes, &len, 8);
    for (size_t at = 0; at < 8 + len; at++) {
        uint8_t was = bytes[at];
        for (size_t i = 0; i < sizeof others; i++) {
            bytes[at] = others[i];
            if (open_bytes(bytes, size, &f, &e) == TLM_OK) {
                check_sane(f);
                st_close(f);
            } else {
                assert_true(e.message[0] && e.status != TLM_OK);
            }
        }
        bytes[at] = was;
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    struct st_file *f;
    struct tlm_error e;
    int refused = 0;
    for (long n = 1; n < 50; n++) {
        mem_fail_at(n, 0);
        enum tlm_status s = open_header(two, 14, &f, &e);
        mem_fail_at(0, 0);
        if (s == TLM_OK) {
            st_close(f);
            break;
        }
        assert_int_equal(s, TLM_ENOMEM);
        assert_null(f);
        refused++;
    }
    assert_true(refused >= 6);
}

static void test_many(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct buf b;
    struct st_file *f;
    struct tlm_error e;
    char name[32];
    uint64_t len = 0;
    buf_init(&b, 1 << 24);
    buf_add(&b, &len, 8);
    for (int i = 0; i < N; i++)
        buf_printf(&b, "%c\"model.layers.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? ',' : '{',
                   i, N - 1 - i, N - i);
    buf_add_char(&b, '}');
    len = b.len - 8;
    memcpy(b.data, &len, 8);
    for (int i = 0; i < N; i++)
        buf_add_char(&b, (char)i);
    assert_int_equal(b.status, TLM_OK);
    assert_int_equal(open_bytes(b.data, b.len, &f, &e), TLM_OK);
    buf_deinit(&b);
    assert_int_equal(f->n_tensors, N);
    check_sane(f);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "model.layers.%d", i);
        const struct st_tensor *t = st_find(f, name);
        assert_non_null(t);
        assert_int_equal(*(const uint8_t *)t->data, (N - 1 - i) & 255);
    }
    assert_null(st_find(f, "model.layers.20000"));
    st_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_every_dtype), cmocka_unit_test(test_mlx_files),
        cmocka_unit_test(test_bad_headers), cmocka_unit_test(test_bad_length),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests_name("safetensors", tests, setup, teardown);
}
