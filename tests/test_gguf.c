/* GGUF reading: small files made here, damaged in every way, and real ones. */
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
#include "io/gguf.h"

static int file; /* in memory, rewritten for each case */
static char file_path[64];

static int setup(void **state)
{
    (void)state;
    file = memfd_create("gguf", MFD_CLOEXEC);
    snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file);
    return file < 0;
}

static int teardown(void **state)
{
    (void)state;
    return close(file);
}

static enum tlm_status open_bytes(const void *bytes, size_t n, struct gguf **out, struct tlm_error *e)
{
    *e = (struct tlm_error){0};
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(pwrite(file, bytes, n, 0), (ssize_t)n);
    return gguf_open(file_path, out, e);
}

/* ---- writing ---- */

static void add_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, 4);
}

static void add_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, 8);
}

static void add_str(struct buf *b, const char *s)
{
    add_u64(b, strlen(s));
    buf_add_str(b, s);
}

static void add_header(struct buf *b, uint32_t version, uint64_t tensors, uint64_t kv)
{
    buf_init(b, 1 << 24);
    buf_add_str(b, "GGUF");
    add_u32(b, version);
    add_u64(b, tensors);
    add_u64(b, kv);
}

static void add_kv(struct buf *b, const char *key, uint32_t type, const void *value, size_t n)
{
    add_str(b, key);
    add_u32(b, type);
    buf_add(b, value, n);
}

static void add_kv_str(struct buf *b, const char *key, const char *value)
{
    add_kv(b, key, GGUF_STR, NULL, 0);
    add_str(b, value);
}

static void add_kv_u32(struct buf *b, const char *key, uint32_t value)
{
    add_kv(b, key, GGUF_U32, &value, 4);
}

static void add_array(struct buf *b, const char *key, uint32_t type, uint64_t n)
{
    add_kv(b, key, GGUF_ARRAY, NULL, 0);
    add_u32(b, type);
    add_u64(b, n);
}

static void add_tensor(struct buf *b, const char *name, uint32_t type, int n_dims, const uint64_t *ne, uint64_t offset)
{
    add_str(b, name);
    add_u32(b, (uint32_t)n_dims);
    for (int d = 0; d < n_dims; d++)
        add_u64(b, ne[d]);
    add_u32(b, type);
    add_u64(b, offset);
}

static void add_padding(struct buf *b, size_t alignment)
{
    while (b->len % alignment)
        buf_add_char(b, 0);
}

static enum tlm_status open_buf(struct buf *b, struct gguf **out, struct tlm_error *e)
{
    assert_int_equal(b->status, TLM_OK);
    enum tlm_status s = open_bytes(b->data, b->len, out, e);
    buf_deinit(b);
    return s;
}

/* ---- reading ---- */

static volatile uint64_t sink;

static void check_sane(const struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        const struct file_map *m = &g->maps[t->file];
        int block, bytes;
        assert_true(gguf_type_geometry(t->type, &block, &bytes));
        assert_int_equal(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] / block * bytes, t->bytes);
        const uint8_t *p = t->data;
        assert_true(p >= m->data && p + t->bytes <= m->data + m->size);
        assert_ptr_equal(gguf_tensor_find(g, t->name), t);
    }
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        assert_ptr_equal(gguf_find(g, kv->key), kv);
        uint64_t sum = 0; /* touches everything that is promised */
        if (kv->type == GGUF_STR)
            for (uint64_t j = 0; j < kv->v.str.len; j++)
                sum += (uint8_t)kv->v.str.data[j];
        if (kv->type == GGUF_ARRAY && kv->v.array.type == GGUF_STR)
            for (uint64_t j = 0; j < kv->v.array.n; j++)
                sum += kv->v.array.strings[j].len ? (uint8_t)*kv->v.array.strings[j].data : 0;
        else if (kv->type == GGUF_ARRAY)
            for (uint64_t j = 0; j < kv->v.array.n; j++)
                sum += (uint64_t)gguf_array_int(&kv->v.array, j);
        sink = sum;
    }
}

static void add_all_types(struct buf *b)
{
    static const int8_t i8 = -5;
    static const int16_t i16 = -300, numbers[3] = {1, -2, 3};
    static const int32_t i32 = -70000;
    static const int64_t i64 = -5000000000;
    static const uint8_t u8 = 200, yes = 1;
    static const uint16_t u16 = 60000;
    static const uint32_t u32 = 4000000000;
    static const uint64_t u64 = 18000000000000000000u;
    static const float f32 = 1e-5f;
    static const double f64 = 1e300;
    add_kv(b, "i8", GGUF_I8, &i8, 1);
    add_kv(b, "i16", GGUF_I16, &i16, 2);
    add_kv(b, "i32", GGUF_I32, &i32, 4);
    add_kv(b, "i64", GGUF_I64, &i64, 8);
    add_kv(b, "u8", GGUF_U8, &u8, 1);
    add_kv(b, "u16", GGUF_U16, &u16, 2);
    add_kv(b, "u32", GGUF_U32, &u32, 4);
    add_kv(b, "u64", GGUF_U64, &u64, 8);
    add_kv(b, "f32", GGUF_F32, &f32, 4);
    add_kv(b, "f64", GGUF_F64, &f64, 8);
    add_kv(b, "yes", GGUF_BOOL, &yes, 1);
    add_kv_str(b, "str", "text");
    add_array(b, "numbers", GGUF_I16, 3);
    buf_add(b, numbers, sizeof numbers);
    add_array(b, "words", GGUF_STR, 2);
    add_str(b, "");
    add_str(b, "b c");
    add_array(b, "none", GGUF_STR, 0);
}

enum { ALL_TYPES = 15 };

static int64_t int_of(const struct gguf *g, const char *key)
{
    struct tlm_error e = {0};
    int64_t v = 0;
    if (gguf_int(g, key, INT64_MIN, INT64_MAX, &v, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return v;
}

static void test_metadata(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct buf b;
        struct gguf *g;
        struct tlm_error e;
        float f = 0;
        bool yes = false;
        struct gguf_str str = {0};
        const struct gguf_array *a;
        add_header(&b, version, 0, ALL_TYPES);
        add_all_types(&b);
        if (open_buf(&b, &g, &e) != TLM_OK)
            fail_msg("%s", e.message);
        check_sane(g);
        assert_int_equal(g->version, version);
        assert_int_equal(g->n_kv, ALL_TYPES);
        assert_true(int_of(g, "i8") == -5 && int_of(g, "i16") == -300 && int_of(g, "i32") == -70000);
        assert_true(int_of(g, "i64") == -5000000000 && int_of(g, "u8") == 200 && int_of(g, "u16") == 60000);
        assert_true(int_of(g, "u32") == 4000000000 && gguf_find(g, "u64")->v.u == 18000000000000000000u);
        assert_int_equal(gguf_float(g, "f32", &f, &e), TLM_OK);
        assert_true(f == 1e-5f && gguf_find(g, "f64")->v.f == 1e300);
        assert_true(gguf_bool(g, "yes", &yes, &e) == TLM_OK && yes);
        assert_int_equal(gguf_string(g, "str", &str, &e), TLM_OK);
        assert_true(str.len == 4 && !memcmp(str.data, "text", 4));
        assert_int_equal(gguf_get_array(g, "numbers", GGUF_I32, &a, &e), TLM_OK);
        assert_true(a->n == 3 && gguf_array_int(a, 0) == 1 && gguf_array_int(a, 1) == -2);
        assert_int_equal(gguf_get_array(g, "words", GGUF_STR, &a, &e), TLM_OK);
        assert_true(a->n == 2 && a->strings[0].len == 0 && !memcmp(a->strings[1].data, "b c", 3));
        assert_int_equal(gguf_get_array(g, "none", GGUF_STR, &a, &e), TLM_OK);
        assert_int_equal(a->n, 0);
        gguf_close(g);
    }
}

#define GETTER_FAILS(call, text)                                                                                       \
    do {                                                                                                               \
        e = (struct tlm_error){0};                                                                                     \
        assert_int_equal(call, TLM_EFORMAT);                                                                           \
        if (!strstr(e.message, text) || !strstr(e.message, file_path))                                                 \
            fail_msg("%s: message \"%s\", expected \"%s\"", #call, e.message, text);                                   \
    } while (0)

static void test_getters(void **state)
{
    (void)state;
    struct buf b;
    struct gguf *g;
    struct tlm_error e;
    int64_t i = 77;
    float f = 77;
    bool yes = true;
    struct gguf_str str = {.len = 77};
    const struct gguf_array *a;
    add_header(&b, 3, 0, ALL_TYPES);
    add_all_types(&b);
    assert_int_equal(open_buf(&b, &g, &e), TLM_OK);
    assert_int_equal(gguf_int(g, "absent", 0, 1, &i, &e), TLM_OK);
    assert_int_equal(gguf_float(g, "absent", &f, &e), TLM_OK);
    assert_int_equal(gguf_bool(g, "absent", &yes, &e), TLM_OK);
    assert_int_equal(gguf_string(g, "absent", &str, &e), TLM_OK);
    assert_int_equal(gguf_get_array(g, "absent", GGUF_STR, &a, &e), TLM_OK);
    assert_true(i == 77 && f == 77 && yes && str.len == 77 && !a);
    GETTER_FAILS(gguf_int(g, "f32", 0, 1, &i, &e), "f32: found f32, expected an integer");
    GETTER_FAILS(gguf_int(g, "yes", 0, 1, &i, &e), "yes: found bool, expected an integer");
    GETTER_FAILS(gguf_int(g, "i8", 0, 100, &i, &e), "i8: found -5, expected 0 to 100");
    GETTER_FAILS(gguf_int(g, "u8", 0, 100, &i, &e), "u8: found 200, expected 0 to 100");
    GETTER_FAILS(gguf_int(g, "u64", 0, INT64_MAX, &i, &e), "u64: found 18000000000000000000");
    GETTER_FAILS(gguf_float(g, "u8", &f, &e), "u8: found u8, expected a float");
    GETTER_FAILS(gguf_float(g, "f64", &f, &e), "f64: found 1e+300, expected a finite float");
    GETTER_FAILS(gguf_bool(g, "u8", &yes, &e), "u8: found u8, expected a bool");
    GETTER_FAILS(gguf_string(g, "words", &str, &e), "words: found array, expected a string");
    GETTER_FAILS(gguf_get_array(g, "str", GGUF_STR, &a, &e), "str: found string, expected an array");
    GETTER_FAILS(gguf_get_array(g, "numbers", GGUF_STR, &a, &e), "numbers: found an array of i16");
    GETTER_FAILS(gguf_get_array(g, "words", GGUF_F32, &a, &e), "words: found an array of string");
    GETTER_FAILS(gguf_get_array(g, "numbers", GGUF_F32, &a, &e), "expected one of f32");
    assert_true(i == 77 && f == 77 && yes && str.len == 77 && !a);
    gguf_close(g);
}

/* Two tensors: f32 [3] and q4_0 [64, 2]. */
static void add_two_tensors(struct buf *b, size_t alignment)
{
    static const uint64_t three = 3, matrix[2] = {64, 2};
    add_tensor(b, "norm.weight", 0, 1, &three, 0);
    add_tensor(b, "q.weight", 2, 2, matrix, (12 + alignment - 1) / alignment * alignment);
    add_padding(b, alignment);
    for (int i = 0; i < 12; i++)
        buf_add_char(b, (char)i);
    add_padding(b, alignment);
    for (int i = 0; i < 72; i++)
        buf_add_char(b, (char)(100 + i)); /* no padding at the end: some writers leave it out */
}

static void test_tensors(void **state)
{
    (void)state;
    for (uint32_t alignment = 4; alignment <= 64; alignment *= 2) {
        struct buf b;
        struct gguf *g;
        struct tlm_error e;
        add_header(&b, 3, 2, alignment == 32 ? 1 : 2); /* 32 is the default */
        add_kv_str(&b, "general.architecture", "llama");
        if (alignment != 32)
            add_kv_u32(&b, "general.alignment", alignment);
        add_two_tensors(&b, alignment);
        enum tlm_status s = open_buf(&b, &g, &e);
        if (s != TLM_OK)
            fail_msg("%s", e.message);
        check_sane(g);
        const struct gguf_tensor *n = gguf_tensor_find(g, "norm.weight"), *q = gguf_tensor_find(g, "q.weight");
        assert_true(n && n->type == 0 && n->n_dims == 1 && n->ne[0] == 3 && n->ne[1] == 1 && n->bytes == 12);
        assert_true(q && q->type == 2 && q->n_dims == 2 && q->ne[0] == 64 && q->ne[1] == 2 && q->bytes == 72);
        assert_int_equal(load_u32(n->data), 0x03020100);
        assert_int_equal(*(const uint8_t *)q->data, 100);
        assert_null(gguf_tensor_find(g, "k.weight"));
        gguf_close(g);
    }
}

/* ---- damage ---- */

static void expect_refusal(struct buf *b, enum tlm_status status, const char *message)
{
    struct gguf *g;
    struct tlm_error e;
    enum tlm_status s = open_buf(b, &g, &e);
    if (s != status || g || !strstr(e.message, message) || !strstr(e.message, file_path))
        fail_msg("status %d, message \"%s\", expected \"%s\"", s, e.message, message);
}

static void test_bad_header(void **state)
{
    (void)state;
    struct buf b;
    add_header(&b, 1, 0, 0);
    expect_refusal(&b, TLM_EUNSUPPORTED, "GGUF version 1, expected 2 or 3");
    add_header(&b, 4, 0, 0);
    expect_refusal(&b, TLM_EUNSUPPORTED, "GGUF version 4");
    add_header(&b, 0x03000000, 0, 0);
    expect_refusal(&b, TLM_EUNSUPPORTED, "big-endian");
    add_header(&b, 3, 0, 0);
    b.data[0] = 'g';
    expect_refusal(&b, TLM_EFORMAT, "does not begin with \"GGUF\"");
    add_header(&b, 3, 0, 1);
    expect_refusal(&b, TLM_EFORMAT, "1 metadata keys in 0 bytes");
    add_header(&b, 3, 0, UINT64_MAX);
    add_kv_u32(&b, "a", 1);
    expect_refusal(&b, TLM_EFORMAT, "18446744073709551615 metadata keys in 17 bytes");
    add_header(&b, 3, (uint64_t)1 << 60, 1);
    add_kv_u32(&b, "a", 1);
    expect_refusal(&b, TLM_EFORMAT, "1152921504606846976 tensors in 17 bytes");
    struct tlm_error e = {0};
    struct gguf *g;
    assert_int_equal(gguf_open("/nonexistent/x.gguf", &g, &e), TLM_ENOTFOUND);
    assert_false(gguf_is_file("/nonexistent/x.gguf"));
    assert_false(gguf_is_file("/"));
    gguf_close(NULL);
}

static void test_bad_metadata(void **state)
{
    (void)state;
    static const char zeros[64];
    struct buf b;
    add_header(&b, 3, 0, 2);
    add_kv_u32(&b, "same", 1);
    add_kv_u32(&b, "same", 2);
    expect_refusal(&b, TLM_EFORMAT, "same: the key occurs twice");
    add_header(&b, 3, 0, 1);
    add_kv_u32(&b, "", 1);
    buf_add(&b, zeros, 8);
    expect_refusal(&b, TLM_EFORMAT, "a metadata name must have 1 to");
    add_header(&b, 3, 0, 1);
    add_u64(&b, 3);
    buf_add(&b, "a\0b", 3);
    buf_add(&b, zeros, 16);
    expect_refusal(&b, TLM_EFORMAT, "a metadata name must have 1 to");
    add_header(&b, 3, 0, 1);
    add_u64(&b, UINT64_MAX - 3);
    buf_add(&b, zeros, 16);
    expect_refusal(&b, TLM_EFORMAT, "the file ends inside metadata name");
    add_header(&b, 3, 0, 1);
    add_kv(&b, "a", 13, zeros, 16);
    expect_refusal(&b, TLM_EFORMAT, "a: a value of unknown type 13");
    add_header(&b, 3, 0, 1);
    add_kv(&b, "a", GGUF_BOOL, "\2", 1);
    expect_refusal(&b, TLM_EFORMAT, "a: a bool of value 2");
    add_header(&b, 3, 0, 1);
    add_array(&b, "a", GGUF_BOOL, 3);
    buf_add(&b, "\0\1\2", 3);
    expect_refusal(&b, TLM_EFORMAT, "a: a bool of value 2");
    add_header(&b, 3, 0, 1);
    add_array(&b, "a", GGUF_ARRAY, 0);
    expect_refusal(&b, TLM_EUNSUPPORTED, "a: arrays of arrays");
    add_header(&b, 3, 0, 1);
    add_array(&b, "a", 99, 0);
    expect_refusal(&b, TLM_EFORMAT, "a: array elements of unknown type 99");
    add_header(&b, 3, 0, 1);
    add_array(&b, "a", GGUF_STR, 9);
    buf_add(&b, zeros, 64);
    expect_refusal(&b, TLM_EFORMAT, "a: 9 strings in 64 bytes");
    add_header(&b, 3, 0, 1);
    add_array(&b, "a", GGUF_U32, (uint64_t)1 << 62); /* 2^64 bytes */
    buf_add(&b, zeros, 64);
    expect_refusal(&b, TLM_EFORMAT, "a: an array of 4611686018427387904 elements");
    add_header(&b, 3, 0, 1);
    add_array(&b, "a", GGUF_U32, ((uint64_t)1 << 62) - 1);
    buf_add(&b, zeros, 64);
    expect_refusal(&b, TLM_EFORMAT, "the file ends inside the array a");
    static const uint32_t alignments[] = {0, 3, 48};
    for (int i = 0; i < 3; i++) {
        add_header(&b, 3, 0, 1);
        add_kv_u32(&b, "general.alignment", alignments[i]);
        expect_refusal(&b, TLM_EFORMAT, "expected a power of two");
    }
    add_header(&b, 3, 0, 1);
    add_kv(&b, "general.alignment", GGUF_U64, zeros, 8);
    expect_refusal(&b, TLM_EFORMAT, "general.alignment: found u64, expected u32");
}

static void test_bad_tensors(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        int n_dims;
        uint64_t ne[5], offset;
        enum tlm_status status;
        const char *message;
    } rows[] = {
        {0, 1, {8}, 0, TLM_OK, ""},
        {0, 0, {0}, 0, TLM_OK, ""},
        {0, 1, {0}, 0, TLM_OK, ""},
        {2, 1, {32}, 0, TLM_OK, ""},
        {0, 5, {1, 1, 1, 1, 1}, 0, TLM_EFORMAT, "tensor x: 5 dimensions"},
        {0, 1, {9}, 0, TLM_EFORMAT, "tensor x: 36 bytes of data at offset 0 end after the file"},
        {0, 1, {(uint64_t)1 << 63}, 0, TLM_EFORMAT, "tensor x: a dimension of 9223372036854775808"},
        {0, 1, {UINT64_MAX}, 0, TLM_EFORMAT, "tensor x: a dimension of"},
        {0, 1, {(uint64_t)1 << 62}, 0, TLM_EFORMAT, "tensor x: the product of its dimensions"},
        {0, 2, {(uint64_t)1 << 32, (uint64_t)1 << 32}, 0, TLM_EFORMAT, "tensor x: the product of its dimensions"},
        {0, 4, {65536, 65536, 65536, 65536}, 0, TLM_EFORMAT, "tensor x: the product of its dimensions"},
        {2, 1, {33}, 0, TLM_EFORMAT, "tensor x: rows of 33 elements, but q4_0 has blocks of 32"},
        {12, 2, {32, 8}, 0, TLM_EFORMAT, "but q4_k has blocks of 256"},
        {4, 1, {32}, 0, TLM_EUNSUPPORTED, "tensor x: ggml type 4 is not known"},
        {UINT32_MAX, 1, {32}, 0, TLM_EUNSUPPORTED, "tensor x: ggml type 4294967295 is not known"},
        {0, 1, {1}, 4, TLM_EFORMAT, "tensor x: data at offset 4, expected 0"},
        {0, 1, {1}, 32, TLM_EFORMAT, "tensor x: data at offset 32, expected 0"},
        {0, 1, {1}, UINT64_MAX - 31, TLM_EFORMAT, "tensor x: data at offset"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;
        add_header(&b, 3, 1, 0);
        add_tensor(&b, "x", rows[i].type, rows[i].n_dims, rows[i].ne, rows[i].offset);
        add_padding(&b, 32);
        for (int j = 0; j < 32; j++)
            buf_add_char(&b, 0);
        if (rows[i].status == TLM_OK) {
            struct gguf *g;
            struct tlm_error e;
            if (open_buf(&b, &g, &e) != TLM_OK)
                fail_msg("row %zu: %s", i, e.message);
            check_sane(g);
            gguf_close(g);
        } else {
            expect_refusal(&b, rows[i].status, rows[i].message);
        }
    }
    struct buf none; /* an empty tensor at the end of a file without padding */
    struct gguf *empty;
    struct tlm_error error;
    add_header(&none, 3, 1, 0);
    add_tensor(&none, "x", 0, 1, &(uint64_t){0}, 0);
    assert_int_equal(open_buf(&none, &empty, &error), TLM_OK);
    check_sane(empty);
    gguf_close(empty);
    static const uint64_t eight = 8;
    static const struct {
        const char *name;
        uint64_t offset;
        const char *message;
    } second[] = {{"x", 32, "tensor x: the name occurs twice"},
                  {"y", 0, "tensor y: data at offset 0, expected 32"},
                  {"y", 16, "tensor y: data at offset 16, expected 32"},
                  {"y", 64, "tensor y: data at offset 64, expected 32"},
                  {"", 32, "a tensor name must have 1 to"}};
    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        struct buf b;
        add_header(&b, 3, 2, 0);
        add_tensor(&b, "x", 0, 1, &eight, 0);
        add_tensor(&b, second[i].name, 0, 1, &eight, second[i].offset);
        add_padding(&b, 32);
        for (int j = 0; j < 128; j++)
            buf_add_char(&b, 0);
        expect_refusal(&b, TLM_EFORMAT, second[i].message);
    }
}

/* Cut anywhere a file is refused; with any byte changed it is refused or
 * consistent. */
static void test_damage(void **state)
{
    (void)state;
    static const uint8_t others[] = {0, 1, 2, 8, 9, 12, 13, 31, 0x40, 0x7f, 0x80, 0xff};
    struct buf b;
    struct gguf *g;
    struct tlm_error e;
    add_header(&b, 3, 2, ALL_TYPES + 1);
    add_all_types(&b);
    add_kv_u32(&b, "general.alignment", 16);
    size_t described = b.len;
    add_two_tensors(&b, 16);
    assert_int_equal(open_bytes(b.data, b.len, &g, &e), TLM_OK);
    gguf_close(g);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(open_bytes(b.data, n, &g, &e), TLM_EFORMAT);
        assert_null(g);
    }
    for (size_t at = 0; at < described + 100; at++) {
        char was = b.data[at];
        for (size_t i = 0; i < sizeof others; i++) {
            b.data[at] = (char)others[i];
            if (open_bytes(b.data, b.len, &g, &e) == TLM_OK) {
                check_sane(g);
                gguf_close(g);
            } else {
                assert_true(e.status != TLM_OK && e.message[0] && !g);
            }
        }
        b.data[at] = was;
    }
    buf_deinit(&b);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct buf b;
    struct gguf *g;
    struct tlm_error e;
    int refused = 0;
    add_header(&b, 3, 2, ALL_TYPES);
    add_all_types(&b);
    add_two_tensors(&b, 32);
    for (long n = 1; n < 50; n++) {
        mem_fail_at(n, 0);
        enum tlm_status s = open_bytes(b.data, b.len, &g, &e);
        mem_fail_at(0, 0);
        if (s == TLM_OK) {
            gguf_close(g);
            break;
        }
        assert_int_equal(s, TLM_ENOMEM);
        refused++;
    }
    assert_true(refused >= 6);
    buf_deinit(&b);
}

static void test_many(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const uint64_t one = 1;
    struct buf b;
    struct gguf *g;
    struct tlm_error e;
    char name[32];
    add_header(&b, 3, 100, 1);
    add_array(&b, "tokens", GGUF_STR, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "token %d", i);
        add_str(&b, name);
    }
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        add_tensor(&b, name, 0, 1, &one, (uint64_t)i * 32);
    }
    add_padding(&b, 32);
    for (int i = 0; i < 100 * 32; i++)
        buf_add_char(&b, (char)(i / 32));
    assert_int_equal(open_buf(&b, &g, &e), TLM_OK);
    check_sane(g);
    const struct gguf_array *a = &gguf_find(g, "tokens")->v.array;
    assert_true(a->n == N && a->strings[N - 1].len == 11 && !memcmp(a->strings[N - 1].data, "token 99999", 11));
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i);
        assert_int_equal(*(const uint8_t *)gguf_tensor_find(g, name)->data, i);
    }
    gguf_close(g);
}

/* ---- split files ---- */

struct part {
    int no, count, total; /* -1: the key is absent */
    int tensors;          /* named t<no>.<i>, or "same" when negative */
};

static void write_part(const char *dir, const char *name, const struct part *p)
{
    static const uint64_t eight = 8;
    struct buf b;
    char path[512];
    int n = abs(p->tensors), keys = (p->no >= 0) + (p->count >= 0) + (p->total >= 0);
    uint16_t no = (uint16_t)p->no, count = (uint16_t)p->count;
    int32_t total = p->total;
    add_header(&b, 3, (uint64_t)n, (uint64_t)keys);
    if (p->no >= 0)
        add_kv(&b, "split.no", GGUF_U16, &no, 2);
    if (p->count >= 0)
        add_kv(&b, "split.count", GGUF_U16, &count, 2);
    if (p->total >= 0)
        add_kv(&b, "split.tensors.count", GGUF_I32, &total, 4);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, p->tensors < 0 ? "same" : "t%d.%d", p->no, i);
        add_tensor(&b, path, 0, 1, &eight, (uint64_t)i * 32);
    }
    add_padding(&b, 32);
    for (int i = 0; i < n * 32; i++)
        buf_add_char(&b, (char)(10 * p->no + i / 32));
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
    assert_int_equal(fclose(f), 0);
    buf_deinit(&b);
}

static void test_split(void **state)
{
    (void)state;
    static const struct {
        struct part parts[3]; /* count 0: the file is not there */
        const char *first;
        enum tlm_status status;
        const char *message;
    } rows[] = {
        {{{0, 3, 4, 1}, {1, 3, 4, 2}, {2, 3, 4, 1}}, "m-00001-of-00003.gguf", TLM_OK, ""},
        {{{0, 3, 4, 0}, {1, 3, 4, 2}, {2, 3, 4, 2}}, "m-00001-of-00003.gguf", TLM_OK, ""},
        {{{0, 3, -1, 1}, {1, 3, -1, 1}, {2, 3, -1, 1}}, "m-00001-of-00003.gguf", TLM_OK, ""},
        {{{0, 3, 4, 1}, {1, 3, 4, 2}, {0, 0, 0, 0}}, "m-00001-of-00003.gguf", TLM_ENOTFOUND, "m-00003-of-00003.gguf"},
        {{{0, 3, 5, 1}, {1, 3, 5, 2}, {2, 3, 5, 1}}, "m-00001-of-00003.gguf", TLM_EFORMAT, "is 5, but 4 tensors"},
        {{{0, 3, 4, 1}, {2, 3, 4, 2}, {2, 3, 4, 1}},
         "m-00001-of-00003.gguf",
         TLM_EFORMAT,
         "00002-of-00003.gguf: split.no 2"},
        {{{0, 3, 4, 1}, {1, 4, 4, 2}, {2, 3, 4, 1}},
         "m-00001-of-00003.gguf",
         TLM_EFORMAT,
         "split.count 4, expected 1 of 3"},
        {{{0, 3, 4, 1}, {-1, -1, 4, 2}, {2, 3, 4, 1}}, "m-00001-of-00003.gguf", TLM_EFORMAT, "split.no -1"},
        {{{0, 3, 4, 1}, {1, 3, 4, 2}, {2, 3, 4, 1}}, "m-00002-of-00003.gguf", TLM_EINVAL, "part 2 of 3"},
        {{{0, 3, 3, -1}, {1, 3, 3, -1}, {2, 3, 3, 1}},
         "m-00001-of-00003.gguf",
         TLM_EFORMAT,
         "tensor same: the name occurs twice"},
        {{{0, 2, 3, 1}, {1, 2, 3, 2}, {2, 3, 4, 1}},
         "m-00001-of-00003.gguf",
         TLM_EFORMAT,
         "must end in -00001-of-00002.gguf"},
        {{{0, 1, 1, 1}, {0, 0, 0, 0}, {0, 0, 0, 0}}, "m-00001-of-00003.gguf", TLM_OK, ""},
    };
    char dir[] = "/tmp/turbolm-gguf-XXXXXX", path[512];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gguf *g;
        struct tlm_error e = {0};
        uint64_t expected = 0;
        for (int p = 0; p < 3; p++) {
            char name[64];
            snprintf(name, sizeof name, "m-0000%d-of-00003.gguf", p + 1);
            if (rows[i].parts[p].count)
                write_part(dir, name, &rows[i].parts[p]);
            expected += (uint64_t)abs(rows[i].parts[p].tensors);
        }
        snprintf(path, sizeof path, "%s/%s", dir, rows[i].first);
        enum tlm_status s = gguf_open(path, &g, &e);
        if (s != rows[i].status || !strstr(e.message, rows[i].message))
            fail_msg("row %zu: status %d, message \"%s\"", i, s, e.message);
        if (s == TLM_OK) {
            assert_int_equal(g->n_tensors, expected);
            check_sane(g);
            for (uint64_t t = 0; t < g->n_tensors; t++) {
                int no, at;
                assert_int_equal(sscanf(g->tensors[t].name, "t%d.%d", &no, &at), 2);
                assert_int_equal(g->tensors[t].file, no);
                assert_int_equal(*(const uint8_t *)g->tensors[t].data, 10 * no + at);
            }
            gguf_close(g);
        }
        for (int p = 1; p <= 3; p++) {
            snprintf(path, sizeof path, "%s/m-0000%d-of-00003.gguf", dir, p);
            unlink(path);
        }
    }
    for (long n = 1; n < 60; n++) { /* no memory at any place */
        struct gguf *g;
        struct tlm_error e = {0};
        write_part(dir, "m-00001-of-00002.gguf", &(struct part){0, 2, 3, 1});
        write_part(dir, "m-00002-of-00002.gguf", &(struct part){1, 2, 3, 2});
        snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", dir);
        mem_fail_at(n, 0);
        enum tlm_status s = gguf_open(path, &g, &e);
        mem_fail_at(0, 0);
        assert_true(s == TLM_OK || s == TLM_ENOMEM);
        gguf_close(g);
    }
    unlink(path);
    snprintf(path, sizeof path, "%s/m-00002-of-00002.gguf", dir);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

static void test_types(void **state)
{
    (void)state;
    int block = 0, bytes = 0, known = 0;
    for (uint32_t t = 0; t < 100; t++) {
        assert_int_equal(gguf_type_geometry(t, &block, &bytes), gguf_type_name(t) != NULL);
        known += gguf_type_name(t) != NULL;
    }
    assert_int_equal(known, 40);
    assert_string_equal(gguf_type_name(12), "q4_k");
    assert_true(gguf_type_geometry(12, &block, &bytes) && block == 256 && bytes == 144);
    assert_null(gguf_type_name(5));
}

/* TURBOLM_TEST_MODELS names the directory; what decoded rows hold is in
 * test_quant.c. */
static void test_real(void **state)
{
    (void)state;
    static const struct {
        const char *name, *architecture;
        uint64_t kv, tensors, tokens;
    } rows[] = {{"smollm2-135m-instruct.Q4_1.gguf", "llama", 33, 272, 49152},
                {"gemma-3-270m.Q4_K_M.gguf", "gemma3", 33, 236, 262144},
                {"qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "qwen2", 26, 291, 151936}};
    const char *models = getenv("TURBOLM_TEST_MODELS");
    int found = 0;
    for (size_t i = 0; models && i < sizeof rows / sizeof *rows; i++) {
        char path[4096];
        struct gguf *g;
        struct tlm_error e = {0};
        struct gguf_str architecture = {0};
        const struct gguf_array *tokens;
        snprintf(path, sizeof path, "%s/%s", models, rows[i].name);
        if (!gguf_is_file(path))
            continue;
        found++;
        if (gguf_open(path, &g, &e) != TLM_OK)
            fail_msg("%s", e.message);
        check_sane(g);
        assert_int_equal(g->n_kv, rows[i].kv);
        assert_int_equal(g->n_tensors, rows[i].tensors);
        assert_int_equal(gguf_string(g, "general.architecture", &architecture, &e), TLM_OK);
        assert_int_equal(architecture.len, strlen(rows[i].architecture));
        assert_memory_equal(architecture.data, rows[i].architecture, architecture.len);
        assert_int_equal(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &tokens, &e), TLM_OK);
        assert_int_equal(tokens->n, rows[i].tokens);
        gguf_close(g);
    }
    if (!found)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metadata),   cmocka_unit_test(test_getters),      cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_bad_header), cmocka_unit_test(test_bad_metadata), cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_damage),     cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_many),
        cmocka_unit_test(test_split),      cmocka_unit_test(test_types),        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests_name("gguf", tests, setup, teardown);
}
