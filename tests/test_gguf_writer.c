/* GGUF files: what the writer writes the reader finds again, and encoded rows
 * are those of the gguf package (tests/oracle/make_gguf_goldens.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/gguf_writer.h"
#include "io/safetensors.h"
#include "quant/ggml_encode.h"

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/gguf-writer-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    return 0;
}

static int files(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d)) != NULL;)
        n += f->d_name[0] != '.';
    closedir(d);
    return n;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails when something was left there */
}

static struct gguf_writer *writer(void)
{
    struct gguf_writer *w;
    assert_int_equal(gguf_writer_new(path, &w, NULL), TLM_OK);
    return w;
}

static void put_all(struct gguf_writer *w)
{
    const int64_t ne[] = {32, 3}, one[] = {5};
    static const float numbers[] = {1.5f, -2};
    assert_int_equal(gguf_writer_u32(w, "a.u32", 4000000000u, NULL), TLM_OK);
    assert_int_equal(gguf_writer_f32(w, "a.f32", 0.1f, NULL), TLM_OK);
    assert_int_equal(gguf_writer_bool(w, "a.bool", true, NULL), TLM_OK);
    assert_int_equal(gguf_writer_string(w, "a.string", "x\0y", 3, NULL), TLM_OK);
    assert_int_equal(gguf_writer_array(w, "a.floats", GGUF_F32, 2, numbers, NULL), TLM_OK);
    assert_int_equal(gguf_writer_array(w, "a.none", GGUF_I64, 0, NULL, NULL), TLM_OK);
    assert_int_equal(gguf_writer_list(w, "a.texts", 2, NULL), TLM_OK);
    assert_int_equal(gguf_writer_item(w, "one", 3, NULL), TLM_OK);
    assert_int_equal(gguf_writer_item(w, "", 0, NULL), TLM_OK);
    assert_int_equal(gguf_writer_tensor(w, "matrix", 8, 2, ne, NULL), TLM_OK);
    assert_int_equal(gguf_writer_tensor(w, "vector", 0, 1, one, NULL), TLM_OK);
    assert_int_equal(gguf_writer_tensor(w, "last", 1, 1, one, NULL), TLM_OK);
    assert_int_equal(gguf_writer_bytes(w), 3 * 34 + 20 + 10);
}

static struct gguf *written(void)
{
    struct gguf *g;
    struct tlm_error e = {TLM_OK, ""};
    if (gguf_open(path, &g, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return g;
}

static void test_all_kinds(void **state)
{
    (void)state;
    uint8_t data[132];
    struct gguf_writer *w = writer();
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i + 1);
    put_all(w);
    assert_int_equal(gguf_writer_begin(w, NULL), TLM_OK);
    assert_int_equal(gguf_writer_put(w, data, 50, NULL), TLM_OK); /* pieces need not end where tensors do */
    assert_int_equal(gguf_writer_put(w, data + 50, 82, NULL), TLM_OK);
    assert_int_not_equal(gguf_writer_put(w, data, 1, NULL), TLM_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(gguf_writer_commit(w, NULL), TLM_OK);
    gguf_writer_free(w);
    assert_int_equal(files(), 1);

    struct gguf *g = written();
    assert_int_equal(g->n_kv, 7);
    assert_int_equal(gguf_find(g, "a.u32")->v.u, 4000000000u);
    assert_true((float)gguf_find(g, "a.f32")->v.f == 0.1f);
    assert_int_equal(gguf_find(g, "a.bool")->v.u, 1);
    assert_int_equal(gguf_find(g, "a.string")->v.str.len, 3);
    assert_memory_equal(gguf_find(g, "a.string")->v.str.data, "x\0y", 3);
    const struct gguf_array *texts = &gguf_find(g, "a.texts")->v.array, *none = &gguf_find(g, "a.none")->v.array;
    assert_true(texts->n == 2 && texts->strings[0].len == 3 && texts->strings[1].len == 0);
    assert_true(none->n == 0 && none->type == GGUF_I64);
    const char *const names[] = {"matrix", "vector", "last"};
    const size_t at[] = {0, 102, 122}, bytes[] = {102, 20, 10};
    for (int i = 0; i < 3; i++) {
        const struct gguf_tensor *t = gguf_tensor_find(g, names[i]);
        assert_non_null(t);
        assert_int_equal(t->bytes, bytes[i]);
        assert_int_equal(((const char *)t->data - (const char *)g->maps[0].data) % 32, 0);
        assert_memory_equal(t->data, data + at[i], bytes[i]);
    }
    assert_int_equal(gguf_tensor_find(g, "matrix")->ne[1], 3);
    assert_int_equal(g->maps[0].size % 32, 0);
    gguf_close(g);
}

/* Every entry of a file, of every type, arrives in its copy. */
static void test_copies(void **state)
{
    (void)state;
    static const struct {
        enum gguf_type type;
        int size;
    } kinds[] = {{GGUF_U8, 1},  {GGUF_I8, 1},  {GGUF_U16, 2}, {GGUF_I16, 2}, {GGUF_U32, 4}, {GGUF_I32, 4},
                 {GGUF_F32, 4}, {GGUF_U64, 8}, {GGUF_I64, 8}, {GGUF_F64, 8}, {GGUF_BOOL, 1}};
    static const char ones[16] = {1, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    struct gguf_writer *w = writer();
    char key[32];
    for (int i = 0; i < KINDS; i++) {
        struct gguf_kv one = {key, kinds[i].type, {.i = kinds[i].type == GGUF_BOOL ? 1 : -3}};
        snprintf(key, sizeof key, "one.%d", i);
        if (one.type == GGUF_F32 || one.type == GGUF_F64)
            one.v.f = -0.25;
        assert_int_equal(gguf_writer_copy(w, &one, NULL), TLM_OK);
        snprintf(key, sizeof key, "many.%d", i);
        assert_int_equal(gguf_writer_array(w, key, kinds[i].type, (uint64_t)(16 / kinds[i].size), ones, NULL), TLM_OK);
    }
    assert_int_equal(gguf_writer_begin(w, NULL), TLM_OK);
    assert_int_equal(gguf_writer_commit(w, NULL), TLM_OK);
    gguf_writer_free(w);

    struct gguf *from = written();
    assert_int_equal(from->n_kv, 2 * KINDS);
    assert_int_equal(gguf_find(from, "one.1")->v.i, -3);
    assert_int_equal(gguf_find(from, "one.2")->v.u, 65533);
    assert_int_equal(gguf_find(from, "one.8")->v.i, -3);
    assert_true(gguf_find(from, "one.9")->v.f == -0.25);
    w = writer();
    for (uint64_t i = 0; i < from->n_kv; i++)
        assert_int_equal(gguf_writer_copy(w, &from->kv[i], NULL), TLM_OK);
    assert_int_equal(gguf_writer_begin(w, NULL), TLM_OK);
    unlink(path); /* it stays mapped */
    assert_int_equal(gguf_writer_commit(w, NULL), TLM_OK);
    gguf_writer_free(w);
    w = writer();
    assert_int_equal(gguf_writer_begin(w, NULL), TLM_OK);
    assert_int_equal(gguf_writer_commit(w, NULL), TLM_EIO); /* never in place of another */
    gguf_writer_free(w);
    struct gguf *to = written();
    assert_int_equal(to->maps[0].size, from->maps[0].size);
    assert_memory_equal(to->maps[0].data, from->maps[0].data, from->maps[0].size);
    gguf_close(from);
    gguf_close(to);
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    struct tlm_error e = {TLM_OK, ""};
    struct gguf_writer *w = writer();
    put_all(w);
    assert_int_equal(gguf_writer_begin(w, NULL), TLM_OK);
    assert_int_equal(files(), 1);
    assert_int_equal(gguf_writer_put(w, "12345", 5, NULL), TLM_OK);
    assert_int_equal(gguf_writer_commit(w, &e), TLM_EINTERNAL); /* data is missing */
    gguf_writer_free(w);
    assert_int_equal(files(), 0);
    w = writer();
    assert_int_equal(gguf_writer_list(w, "texts", 1, NULL), TLM_OK);
    assert_int_not_equal(gguf_writer_u32(w, "x", 1, NULL), TLM_OK);
    assert_int_not_equal(gguf_writer_begin(w, NULL), TLM_OK);
    gguf_writer_free(w);
    assert_int_equal(files(), 0);
}

static void test_refused(void **state)
{
    (void)state;
    const int64_t odd[] = {33, 2};
    char name[65];
    struct gguf_writer *w = writer();
    memset(name, 'n', 64);
    name[64] = 0;
    assert_int_equal(gguf_writer_tensor(w, "x", 8, 2, odd, NULL), TLM_EINTERNAL);
    assert_int_equal(gguf_writer_tensor(w, name, 0, 2, odd, NULL), TLM_ELIMIT); /* ggml's names have 63 bytes */
    assert_int_equal(gguf_writer_tensor(w, name + 1, 0, 2, odd, NULL), TLM_OK);
    assert_int_not_equal(gguf_writer_u32(w, "", 0, NULL), TLM_OK);
    gguf_writer_free(w);
    struct tlm_error e = {TLM_OK, ""};
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/none/x.gguf", folder);
    assert_int_equal(gguf_writer_new(nowhere, &w, NULL), TLM_OK);
    assert_int_equal(gguf_writer_begin(w, &e), TLM_EIO);
    assert_non_null(strstr(e.message, nowhere));
    gguf_writer_free(w);
}

/* ---- encoders ---- */

static void test_encoders(void **state)
{
    (void)state;
    struct st_file *f;
    assert_int_equal(st_open(TURBOLM_TEST_DATA "/quant/ggml_encode.safetensors", &f, NULL), TLM_OK);
    const struct st_tensor *x = st_find(f, "x");
    const char *const names[] = {"q8_0", "q4_0", "q4_1", "f16", "bf16"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const struct ggml_encoder *c = ggml_encoder_by_name(names[k]);
        const struct st_tensor *want = st_find(f, names[k]);
        assert_true(c && want);
        int64_t n = x->shape[1];
        size_t bytes = (size_t)(n / c->block * c->block_bytes);
        assert_int_equal(want->shape[1], bytes);
        for (int64_t r = 0; r < x->shape[0]; r++) {
            float row[64];
            uint8_t out[256];
            memcpy(row, (const char *)x->data + (size_t)(r * n) * 4, (size_t)n * 4);
            assert_true(c->row(row, n, out));
            const uint8_t *w = (const uint8_t *)want->data + (size_t)r * bytes;
            for (size_t i = 0; i < bytes; i++)
                if (out[i] != w[i])
                    fail_msg("%s row %lld: byte %zu is %d, expected %d", names[k], (long long)r, i, out[i], w[i]);
        }
    }
    st_close(f);
}

/* Values that no code can stand for, and scales below what f16 holds. */
static void test_ends(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    uint8_t out[128];
    const struct ggml_encoder *c;
    assert_null(ggml_encoder_by_name("Q4_00"));
    assert_null(ggml_encoder_by_name(""));
    for (int k = 0; (c = ggml_encoder_at(k)) != NULL; k++) {
        float x[32] = {1, -2, 0.5f};
        assert_ptr_equal(ggml_encoder_by_name(c->name), c);
        for (int i = 0; i < 3; i++) {
            x[31] = bad[i];
            assert_false(c->row(x, 32, out));
        }
        x[31] = 3e38f;
        assert_int_equal(c->row(x, 32, out), c->type == 30 || c->type == 0);
        x[31] = -1e-45f;
        assert_true(c->row(x, 32, out));
        for (int i = 0; i < 32; i++)
            x[i] = i % 2 ? 1e-42f : -1e-40f;
        assert_true(c->row(x, 32, out));
        if (c->block == 32) {
            assert_int_equal(out[0] | out[1], 0); /* scale 0: all values are */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_kinds, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_copies, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_nothing_is_left, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_refused, make_folder, remove_folder),
        cmocka_unit_test(test_encoders),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
