/* Cache formats: names, layouts, tables and what encoding does to keys and
 * values. Against numpy, MLX and mlx_turboquant (tests/data/kv, made by
 * tests/oracle/make_kv_goldens.py) and against bounds that follow from the
 * formats' definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fp.h"
#include "base/mem.h"
#include "io/safetensors.h"
#include "kvformat/kv_codec.h"
#include "kvformat/kv_spec.h"
#include "quant/hadamard.h"
#include "quant/pcg64.h"

enum { SEED_KEYS = 0xC0FFEE, DIM_MAX = 256 };

/* --- helpers -------------------------------------------------------------- */

static uint64_t rng_state = 1;

static double uniform(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng_state >> 11) * 0x1p-53;
}

static double gauss(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

static void *golden(const struct st_file *f, enum dtype type, size_t n, const char *format, ...)
{
    char name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const struct st_tensor *t = st_find(f, name);
    if (!t || t->dtype != type || t->bytes != n * dtype_size(type))
        fail_msg("golden %s: missing, or of another type or size", name);
    void *copy = mem_alloc(t->bytes);
    assert_non_null(copy);
    memcpy(copy, t->data, t->bytes);
    return copy;
}

static struct st_file *goldens(void)
{
    struct st_file *f = NULL;
    struct tlm_error e = {0};
    if (st_open(TURBOLM_TEST_DATA "/kv/kv.safetensors", &f, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return f;
}

static struct kv_format format_of(const char *name, bool key)
{
    struct kv_format f;
    struct tlm_error e = {0};
    if (kv_format_parse(name, strlen(name), key, &f, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return f;
}

/* A codec with its memory. */
struct rig {
    struct kv_codec c;
    uint8_t *bytes;
    float *x, *y, *work; /* x, y: [64][dim] */
    size_t n;
};

static void rig_open(struct rig *r, const char *name, int dim, bool key)
{
    struct tlm_error e = {0};
    struct kv_format f = format_of(name, key);
    if (kv_codec_init(&r->c, &f, dim, key, &e) != TLM_OK)
        fail_msg("%s", e.message);
    r->n = (size_t)KV_BLOCK * (size_t)dim;
    r->bytes = mem_alloc(r->c.bytes + 8);
    r->x = mem_new_array(r->n, sizeof *r->x);
    r->y = mem_new_array(r->n, sizeof *r->y);
    r->work = mem_alloc_array(kv_codec_work(&r->c), sizeof *r->work);
    assert_true(r->bytes && r->x && r->y && r->work);
}

static void rig_close(struct rig *r)
{
    kv_codec_deinit(&r->c);
    mem_free(r->bytes);
    mem_free(r->x);
    mem_free(r->y);
    mem_free(r->work);
}

/* x through the format into y; nothing beyond the block is written. */
static void through(struct rig *r)
{
    memset(r->bytes, 0x5a, r->c.bytes + 8);
    memset(r->work, 0xff, kv_codec_work(&r->c) * sizeof *r->work);
    kv_codec_encode(&r->c, r->x, NULL, r->bytes, r->work);
    for (int i = 0; i < 8; i++)
        assert_int_equal(r->bytes[r->c.bytes + (size_t)i], 0x5a);
    memset(r->work, 0xff, kv_codec_work(&r->c) * sizeof *r->work);
    kv_codec_decode(&r->c, r->bytes, NULL, r->y, r->work);
}

static double square_error(const struct rig *r)
{
    double sum = 0;
    for (size_t i = 0; i < r->n; i++)
        sum += ((double)r->x[i] - r->y[i]) * ((double)r->x[i] - r->y[i]);
    return sum;
}

static double energy(const struct rig *r)
{
    double sum = 0;
    for (size_t i = 0; i < r->n; i++)
        sum += (double)r->x[i] * r->x[i];
    return sum;
}

/* --- names ---------------------------------------------------------------- */

static void round_trip(const char *name, const char *canonical, bool key)
{
    char out[KV_FORMAT_NAME_MAX];
    struct kv_format f = format_of(name, key), g;
    kv_format_name(&f, key, out);
    assert_string_equal(out, canonical);
    g = format_of(out, key);
    assert_memory_equal(&f, &g, sizeof f);
    char longer[80];
    struct tlm_error e = {0};
    snprintf(longer, sizeof longer, "%sx", name);
    assert_int_equal(kv_format_parse(longer, strlen(longer), key, &f, &e), TLM_EINVAL);
    assert_int_equal(kv_format_parse(longer, strlen(name), key, &f, &e), TLM_OK); /* the length counts */
}

static void keys_only(const char *name)
{
    struct kv_format f;
    struct tlm_error e = {0};
    assert_int_equal(kv_format_parse(name, strlen(name), false, &f, &e), TLM_EINVAL);
    assert_non_null(strstr(e.message, "for keys only"));
}

/* Every name of the grammar, for keys and for values. */
static void test_names(void **state)
{
    (void)state;
    char a[64], b[64];
    static const char *const whole[] = {"f32", "f16", "bf16", "fp8", "split2.5", "split3.5"};
    for (int i = 0; i < 6; i++)
        for (int key = 0; key < 2; key++)
            round_trip(whole[i], whole[i], key);
    for (const char *bits = "234568"; *bits; bits++) {
        for (int i = 0; i < 4; i++) {
            static const char *const groups[] = {"", "g32", "g64", "g128"};
            snprintf(a, sizeof a, "affine%c%s", *bits, groups[i]);
            snprintf(b, sizeof b, "affine%c%s", *bits, i ? groups[i] : "g64");
            round_trip(a, b, true);
            round_trip(a, b, false);
        }
        for (int i = 0; i < 4; i++) {
            static const char *const parts[] = {"", "+pre", "+mix", "+pre+mix"};
            snprintf(a, sizeof a, "chan%c%s", *bits, parts[i]);
            struct kv_format f;
            struct tlm_error e = {0};
            if (i > 1 && *bits == '8') { /* no wider channel exists */
                assert_int_equal(kv_format_parse(a, strlen(a), true, &f, &e), TLM_EINVAL);
                continue;
            }
            round_trip(a, a, true);
            if (i == 0)
                round_trip(a, a, false);
            else
                keys_only(a);
        }
    }
    for (const char *bits = "2348"; *bits; bits++)
        for (int i = 0; i < 4; i++) {
            snprintf(a, sizeof a, "rot%c%s%s", *bits, i & 1 ? "g64" : "", i & 2 ? "+qjl" : "");
            snprintf(b, sizeof b, "rot%c%s", *bits, i & 2 ? "+qjl" : "");
            round_trip(a, b, true);
            keys_only(a);
        }
    for (const char *bits = "12345"; *bits; bits++)
        for (int i = 0; i < 8; i++) {
            static const char *const rules[] = {"", ".norm", ".matched", ".unbiased"};
            snprintf(a, sizeof a, "tq%c%s%s", *bits, rules[i & 3], i & 4 ? "+c" : "");
            snprintf(b, sizeof b, "tq%c%s%s", *bits, (i & 3) == 3 ? "" : rules[i & 3], i & 4 ? "+c" : "");
            round_trip(a, b, true);
            if (i & 4) {
                keys_only(a);
                continue;
            }
            snprintf(b, sizeof b, "tq%c%s", *bits, (i & 3) == 2 ? "" : rules[i & 3]);
            round_trip(a, b, false);
        }
    for (const char *bits = "234"; *bits; bits++)
        for (int i = 0; i < 2; i++) {
            snprintf(a, sizeof a, "prod%c%s", *bits, i ? ".orth" : "");
            round_trip(a, a, true);
            keys_only(a);
        }
}

static void test_bad_names(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "f",
        "f64",
        "F16",
        "fp",
        "fp16",
        "affine",
        "affine1",
        "affine7",
        "affine9",
        "affine44",
        "affine4g",
        "affine4g16",
        "affine4g256",
        "affine4+pre",
        "chan",
        "chan1",
        "chan7",
        "chan4+mix+pre",
        "chan4+",
        "chan4+pre+pre",
        "rot",
        "rot5",
        "rot6",
        "rot4g32",
        "rot4g128",
        "rot4+qj",
        "rot4+pre",
        "tq",
        "tq0",
        "tq6",
        "tq8",
        "tq4.",
        "tq4.mean",
        "tq4.norm.norm",
        "tq4+c+c",
        "tq4+c.norm",
        "prod",
        "prod1",
        "prod5",
        "prod4.gauss",
        "split",
        "split1.5",
        "split4.5",
        "split2",
        "split2.55",
        "turbo4",
        "auto",
        "f16:f16",
        " f16",
        "f16 ",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int key = 0; key < 2; key++) {
            struct kv_format f;
            struct tlm_error e = {0};
            assert_int_equal(kv_format_parse(bad[i], strlen(bad[i]), key, &f, &e), TLM_EINVAL);
            assert_non_null(strstr(e.message, "expected f32, f16, bf16, fp8, affine"));
            assert_non_null(strstr(e.message, "alone, one of auto, turbo5, turbo4, turbo3, turbo2, safe"));
        }
    struct kv_format f;
    struct tlm_error e = {0};
    assert_int_equal(kv_format_parse("tq\0", 3, true, &f, &e), TLM_EINVAL);
    assert_int_equal(kv_format_parse("tq4\0", 4, true, &f, &e), TLM_EINVAL);
    char *endless = mem_alloc(100000);
    assert_non_null(endless);
    memset(endless, 't', 100000);
    assert_int_equal(kv_format_parse(endless, 100000, false, &f, &e), TLM_EINVAL);
    mem_free(endless);
}

static void test_partners(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"f16", "f16"},
        {"f32", "f32"},
        {"bf16", "bf16"},
        {"fp8", "fp8"},
        {"affine4", "affine4g64"},
        {"affine6g32", "affine6g32"},
        {"chan4+pre+mix", "chan4"},
        {"chan8", "chan8"},
        {"rot4+qjl", "affine4g64"},
        {"rot2", "affine2g64"},
        {"tq4", "tq4"},
        {"tq3.norm+c", "tq3"},
        {"prod3.orth", "tq3.norm"},
        {"split2.5", "split2.5"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char name[KV_FORMAT_NAME_MAX];
        struct kv_format k = format_of(pairs[i][0], true), v = kv_format_partner(&k), again;
        kv_format_name(&v, false, name);
        assert_string_equal(name, pairs[i][1]);
        again = format_of(name, false);
        assert_memory_equal(&v, &again, sizeof v);
    }
}

static void expect_spec(const char *text, int n, const char *const *want)
{
    struct kv_choice c[8];
    struct tlm_error e = {0};
    if (kv_spec_parse(text, n, c, &e) != TLM_OK)
        fail_msg("%s", e.message);
    for (int i = 0; i < n; i++) {
        char name[KV_CHOICE_NAME_MAX];
        kv_choice_name(&c[i], name);
        assert_string_equal(c[i].automatic ? "auto" : name, want[i]);
    }
}

static void test_specs(void **state)
{
    (void)state;
    const char turbo4[] = "chan4+pre+mix:tq4";
    expect_spec("turbo4", 2, (const char *const[]){turbo4, turbo4});
    expect_spec("turbo5", 1, (const char *const[]){"chan5+pre+mix:tq4"});
    expect_spec("turbo3", 1, (const char *const[]){"chan3+pre+mix:tq4"});
    expect_spec("turbo2", 1, (const char *const[]){"chan3+pre+mix:tq2"});
    expect_spec("safe", 1, (const char *const[]){"chan8:tq4"});
    expect_spec("auto", 1, (const char *const[]){"auto"});
    expect_spec("f16", 1, (const char *const[]){"f16"});
    expect_spec("f16:f32", 1, (const char *const[]){"f16:f32"});
    expect_spec("rot4+qjl", 1, (const char *const[]){"rot4+qjl:affine4g64"});
    expect_spec("turbo4;0-1,4=f16:tq4", 5, (const char *const[]){"f16:tq4", "f16:tq4", turbo4, turbo4, "f16:tq4"});
    expect_spec("tq2;0-4=fp8;2=f16;3=auto", 5, (const char *const[]){"fp8:fp8", "fp8:fp8", "f16", "auto", "fp8:fp8"});
    static const char *const bad[] = {
        "",
        ";",
        "turbo4;",
        "turbo4;f16",
        "turbo4;=f16",
        "turbo4;0=",
        "turbo4;1-0=f16",
        "turbo4;-1=f16",
        "turbo4;0,=f16",
        "turbo4;,0=f16",
        "turbo4;0-=f16",
        "turbo4;0 1=f16",
        "turbo4;x=f16",
        "0=f16",
        "turbo4;0=turbo9",
        "f16:",
        ":f16",
        "f16:rot4",
        "f16:f16:f16",
        "turbo4:f16",
        "turbo6",
        "Turbo4",
    };
    struct kv_choice c[8];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tlm_error e = {0};
        assert_int_equal(kv_spec_parse(bad[i], 5, c, &e), TLM_EINVAL);
        assert_true(strstr(e.message, "cache format") != NULL);
    }
    static const char *const beyond[] = {"f16;5=f16", "f16;0-5=f16", "f16;99999999999=f16"};
    for (size_t i = 0; i < 2; i++) {
        struct tlm_error e = {0};
        assert_int_equal(kv_spec_parse(beyond[i], 5, c, &e), TLM_EINVAL);
        assert_non_null(strstr(e.message, "layer 5, but the model has layers 0 to 4"));
    }
    struct tlm_error e = {0};
    assert_int_equal(kv_spec_parse(beyond[2], 5, c, &e), TLM_EINVAL);
    int n = 0;
    while (kv_preset_name(n))
        n++;
    assert_int_equal(n, 6);
}

/* --- sizes ---------------------------------------------------------------- */

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void expect_size(const char *name, int dim, bool key, size_t head, size_t codes)
{
    struct rig r;
    rig_open(&r, name, dim, key);
    size_t want = up(up(head, 8) + codes, 8);
    if (r.c.bytes != want)
        fail_msg("%s, head of %d: %zu bytes, expected %zu", name, dim, r.c.bytes, want);
    assert_true(fabs(kv_codec_bits(&r.c) - (double)want * 8 / (64.0 * dim)) < 1e-12);
    rig_close(&r);
}

/* Bytes beside the codes, and codes, as the page on formats says. */
static void test_sizes(void **state)
{
    (void)state;
    static const int dims[] = {16, 64, 80, 100, 128, 256};
    for (int i = 0; i < 6; i++)
        for (int key = 0; key < 2; key++) {
            const size_t d = (size_t)dims[i], row = key ? d : up(d, 8), set = (d + 7) / 8;
            const int dim = dims[i];
            char name[32];
            expect_size("f32", dim, key, 0, 64 * d * 4);
            expect_size("f16", dim, key, 0, 64 * d * 2);
            expect_size("bf16", dim, key, 0, 64 * d * 2);
            expect_size("fp8", dim, key, 8, 64 * row);
            for (size_t b = 1; b <= 8; b++) {
                snprintf(name, sizeof name, "chan%zu", b);
                if (b != 1 && b != 7)
                    expect_size(name, dim, key, 4 * d, 8 * row * b);
                snprintf(name, sizeof name, "chan%zu+pre+mix", b);
                if (key && b != 1 && b < 7)
                    expect_size(name, dim, key, 4 * d + up(2 * set, 2), 8 * d * b);
                snprintf(name, sizeof name, "tq%zu", b);
                if (b <= 5)
                    expect_size(name, dim, key, 128, 8 * row * b);
                snprintf(name, sizeof name, "tq%zu+c", b);
                if (key && b <= 5)
                    expect_size(name, dim, key, 128 + 2 * d, 8 * d * b);
                snprintf(name, sizeof name, "prod%zu.orth", b);
                if (key && b >= 2 && b <= 4)
                    expect_size(name, dim, key, 256 + 8 * d, 8 * d * (b - 1));
                if (b < 2 || b == 7 || d % 32)
                    continue;
                for (size_t g = 32; g <= 128 && d % g == 0; g *= 2) {
                    snprintf(name, sizeof name, "affine%zug%zu", b, g);
                    expect_size(name, dim, key, 2 * 64 * 2 * (d / g), 8 * d * b);
                }
                snprintf(name, sizeof name, "rot%zu+qjl", b);
                if (key && d % 64 == 0 && (b < 5 || b == 8))
                    expect_size(name, dim, key, 256 * (d / 64) + 128 + 8 * d, 8 * d * b);
            }
            size_t wide = d / 4, narrow = d - wide;
            for (size_t b = 2; b <= 3; b++) {
                snprintf(name, sizeof name, "split%zu.5", b);
                expect_size(name, dim, key, up(set, 2) + 256,
                            key ? 8 * (wide * (b + 1) + narrow * b) : 8 * (up(wide, 8) * (b + 1) + up(narrow, 8) * b));
            }
        }
}

static void test_refused_heads(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int dim;
    } bad[] = {{"affine4", 80},  {"affine4g128", 64}, {"affine4g32", 80}, {"rot4", 96},
               {"split2.5", 15}, {"tq4", 1025},       {"chan4", 1025},    {"affine4", 1088}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kv_codec c;
        struct tlm_error e = {0};
        struct kv_format f = format_of(bad[i].name, true);
        assert_int_not_equal(kv_codec_init(&c, &f, bad[i].dim, true, &e), TLM_OK);
        assert_non_null(strstr(e.message, "head"));
    }
    for (int n = 1; n < 8; n++) { /* each allocation failing in turn */
        struct kv_codec c;
        struct tlm_error e = {0};
        struct kv_format f = format_of("prod3", true);
        mem_fail_at(n, 0);
        enum tlm_status s = kv_codec_init(&c, &f, 64, true, &e);
        mem_fail_at(0, 0);
        if (s == TLM_OK) {
            kv_codec_deinit(&c);
            assert_true(n > 2);
            return;
        }
        assert_int_equal(s, TLM_ENOMEM);
    }
    fail();
}

/* --- planes --------------------------------------------------------------- */

/* Where the header says that bit `bit` of code i is: a byte and a bit in it. */
static void plane_place(int n, int bits, int i, int bit, int *byte, int *at)
{
    int run = i / 64 * 64, r = n - run < 64 ? n - run : 64, base = run / 8 * bits, low = 0;
    i -= run;
    for (int b = 8; b; b /= 2) {
        if (!(bits & b))
            continue;
        if (bit < low + b) {
            *byte = base + i % (r * b / 8);
            *at = i / (r * b / 8) * b + bit - low;
            return;
        }
        base += r * b / 8;
        low += b;
    }
    fail();
}

static void test_planes(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 8; bits++)
        for (int n = 8; n <= 264; n += 8) {
            uint8_t codes[264], back[265], out[265];
            size_t bytes = kv_planes_bytes(n, bits);
            assert_int_equal(bytes, n * bits / 8);
            for (int i = 0; i < n; i++)
                codes[i] = (uint8_t)(uniform() * (1 << bits));
            memset(out, 0xa5, sizeof out);
            memset(back, 0xa5, sizeof back);
            kv_planes_pack(out, codes, n, bits);
            kv_planes_unpack(back, out, n, bits);
            assert_memory_equal(codes, back, (size_t)n);
            assert_int_equal(out[bytes], 0xa5);
            assert_int_equal(back[n], 0xa5);
            for (int i = 0; i < n; i++)
                for (int b = 0; b < bits; b++) {
                    int byte = 0, at = 0;
                    plane_place(n, bits, i, b, &byte, &at);
                    assert_int_equal(out[byte] >> at & 1, codes[i] >> b & 1);
                }
        }
}

/* --- tables --------------------------------------------------------------- */

static void test_pcg64(void **state)
{
    (void)state;
    struct st_file *f = goldens();
    static const uint64_t seeds[] = {SEED_KEYS, 0x51D3, 0, ((uint64_t)1 << 40) + 5};
    for (int i = 0; i < 4; i++) {
        struct pcg64 g;
        uint64_t *want = golden(f, DT_U64, 64, "pcg.%llu", (unsigned long long)seeds[i]);
        pcg64_init(&g, seeds[i]);
        for (int k = 0; k < 64; k++)
            assert_true(pcg64_double(&g) * 0x1p53 == (double)want[k]);
        mem_free(want);
    }
    st_close(f);
}

static void test_hadamard(void **state)
{
    (void)state;
    struct st_file *f = goldens();
    static const int sizes[][2] = {{8, 8},     {12, 12},   {16, 16},   {20, 20},   {24, 24}, {28, 28},  {36, 12},
                                   {40, 40},   {56, 56},   {64, 64},   {80, 80},   {96, 96}, {100, 20}, {112, 112},
                                   {128, 128}, {160, 160}, {192, 192}, {256, 256}, {7, 1},   {33, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int n = sizes[i][0];
        float *x = golden(f, DT_F32, 3 * (size_t)n, "hadamard.%d.x", n), y[DIM_MAX];
        float *want = golden(f, DT_F32, 3 * (size_t)n, "hadamard.%d.y", n);
        struct kv_rotation r[2];
        struct tlm_error e = {0};
        assert_int_equal(hadamard_block(n), sizes[i][1]);
        for (int first = 0; first < 2; first++)
            assert_int_equal(kv_rotation_init(&r[first], n, SEED_KEYS, first, &e), TLM_OK);
        for (int k = 0; k < 3; k++) {
            memcpy(y, x + k * n, (size_t)n * sizeof *y);
            kv_rotate(&r[0], y);
            assert_memory_equal(y, want + k * n, (size_t)n * sizeof *y);
            /* signs first: signs, the transform, no signs after */
            memcpy(y, x + k * n, (size_t)n * sizeof *y);
            for (int d = 0; d < n; d++)
                y[d] *= r[0].signs[d];
            kv_rotate(&r[1], y);
            for (int d = 0; d < n; d++)
                assert_true(y[d] == want[k * n + d] * r[0].signs[d]);
            for (int first = 0; first < 2; first++) { /* and back */
                memcpy(y, x + k * n, (size_t)n * sizeof *y);
                kv_rotate(&r[first], y);
                kv_rotate_back(&r[first], y);
                for (int d = 0; d < n; d++)
                    assert_true(fabsf(y[d] - x[k * n + d]) < 2e-6f);
            }
        }
        kv_rotation_deinit(&r[0]);
        kv_rotation_deinit(&r[1]);
        mem_free(x);
        mem_free(want);
    }
    assert_int_equal(hadamard_block(576), 192);
    assert_int_equal(hadamard_block(320), 320);
    assert_int_equal(hadamard_block(1), 1);
    st_close(f);
}

static double distortion(const struct st_file *f, int dim, int bits)
{
    float *want = golden(f, DT_F32, (size_t)(1 << bits) + 1, "levels.%d.%d", dim, bits);
    double d = want[1 << bits];
    mem_free(want);
    return d;
}

static void test_levels(void **state)
{
    (void)state;
    static const int dims[] = {64, 80, 128, 256};
    static const double paper[] = {0, 0.36, 0.117, 0.03, 0.009};
    struct st_file *f = goldens();
    for (int i = 0; i < 4; i++)
        for (int bits = 1; bits <= 5; bits++) {
            float got[KV_LEVELS_MAX], *want = golden(f, DT_F32, (size_t)(1 << bits) + 1, "levels.%d.%d", dims[i], bits);
            struct tlm_error e = {0};
            assert_int_equal(kv_levels(bits, dims[i], got, &e), TLM_OK);
            for (int k = 0; k < 1 << bits; k++) {
                if (!(fabsf(got[k] - want[k]) < 5e-5f))
                    fail_msg("levels of %d bits in %d dimensions: [%d] %.8g, expected %.8g", bits, dims[i], k,
                             (double)got[k], (double)want[k]);
                assert_true(got[k] == -got[(1 << bits) - 1 - k]);
            }
            if (bits <= 4) /* the paper prints one or two digits, of the limit of many dimensions */
                assert_true(fabs(want[1 << bits] - paper[bits]) < (bits == 3 ? 0.16 : 0.05) * paper[bits]);
            mem_free(want);
        }
    st_close(f);
}

/* --- against MLX ---------------------------------------------------------- */

static int code_of(const struct rig *r, int t, int d, int bits)
{
    uint8_t codes[KV_DIM_MAX];
    size_t row = kv_planes_bytes(r->c.row, bits);
    kv_planes_unpack(codes, r->bytes + r->c.codes + (size_t)(r->c.key ? d : t) * row, r->c.row, bits);
    return codes[r->c.key ? t : d];
}

static uint16_t half_bits(const struct rig *r, size_t part, int i)
{
    return load_u16(r->bytes + part + (size_t)i * 2);
}

/* Halves of a group: of either sign when 0. */
static bool same_half(uint16_t a, uint16_t b)
{
    return a == b || ((a | b) & 0x7fff) == 0;
}

static void test_affine_is_mlx(void **state)
{
    (void)state;
    enum { ROWS = 16, DIM = 128 };
    struct st_file *f = goldens();
    float *x = golden(f, DT_F32, ROWS * DIM, "affine.x");
    for (int bits = 2; bits <= 8; bits++)
        for (int group = 32; group <= 128 && bits != 7; group *= 2)
            for (int key = 0; key < 2; key++) {
                struct rig r;
                char name[32];
                int groups = DIM / group;
                uint8_t *codes = golden(f, DT_U8, ROWS * DIM, "affine.%d.%d.codes", bits, group);
                uint16_t *scales = golden(f, DT_F16, (size_t)(ROWS * groups), "affine.%d.%d.scales", bits, group);
                uint16_t *biases = golden(f, DT_F16, (size_t)(ROWS * groups), "affine.%d.%d.biases", bits, group);
                snprintf(name, sizeof name, "affine%dg%d", bits, group);
                rig_open(&r, name, DIM, key);
                for (int t = 0; t < KV_BLOCK; t++)
                    memcpy(r.x + t * DIM, x + t % ROWS * DIM, DIM * sizeof *x);
                through(&r);
                for (int t = 0; t < KV_BLOCK; t++) {
                    for (int d = 0; d < DIM; d++) {
                        int want = codes[t % ROWS * DIM + d], g = d / group, at = key ? g * 64 + t : t * groups + g;
                        if (code_of(&r, t, d, bits) != want)
                            fail_msg("%s: code [%d, %d] is %d, expected %d", name, t, d, code_of(&r, t, d, bits), want);
                        uint16_t s = scales[t % ROWS * groups + g], b = biases[t % ROWS * groups + g];
                        assert_true(half_bits(&r, r.c.scales, at) == s);
                        assert_true(same_half(half_bits(&r, r.c.offsets, at), b));
                        float y = (float)want * fp_from_f16(s) + fp_from_f16(b);
                        assert_true(r.y[t * DIM + d] == y);
                    }
                }
                rig_close(&r);
                mem_free(codes);
                mem_free(scales);
                mem_free(biases);
            }
    mem_free(x);
    st_close(f);
}

/* Scores of the golden's queries with decoded keys. */
static void check_scores(const struct rig *r, const float *q, const float *want, double tolerance)
{
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < KV_BLOCK; t++) {
            double s = 0;
            for (int d = 0; d < r->c.dim; d++)
                s += (double)q[i * r->c.dim + d] * r->y[t * r->c.dim + d];
            if (!(fabs(s - want[i * 64 + t]) <= tolerance))
                fail_msg("score [%d, %d]: %.8g, expected %.8g", i, t, s, (double)want[i * 64 + t]);
        }
}

static void load_f16s(float *to, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = fp_from_f16(from[i]);
}

/* Equal to mlx_turboquant on float32 with scales in float16. */
static void check_rot(const struct st_file *f, int dim, int bits, bool qjl)
{
    char name[32];
    struct rig r;
    size_t n = (size_t)KV_BLOCK * (size_t)dim;
    int groups = dim / 64;
    uint16_t *k = golden(f, DT_F16, n, "rot.%d.k", dim), *q16 = golden(f, DT_F16, 8 * (size_t)dim, "rot.%d.q", dim);
    uint16_t *scales = golden(f, DT_F16, (size_t)(64 * groups), "rot.%d.%d.scales", dim, bits);
    uint16_t *biases = golden(f, DT_F16, (size_t)(64 * groups), "rot.%d.%d.biases", dim, bits);
    uint16_t *norms = golden(f, DT_F16, 64, "rot.%d.%d.norms", dim, bits);
    uint8_t *codes = golden(f, DT_U8, n, "rot.%d.%d.codes", dim, bits);
    uint8_t *signs = golden(f, DT_U8, n / 8, "rot.%d.%d.signs", dim, bits);
    float *scores = golden(f, DT_F32, 8 * 64, "rot.%d.%d.%s", dim, bits, qjl ? "sketched" : "scores"), q[8 * 128];
    snprintf(name, sizeof name, "rot%d%s", bits, qjl ? "+qjl" : "");
    rig_open(&r, name, dim, true);
    load_f16s(r.x, k, n);
    load_f16s(q, q16, 8 * (size_t)dim);
    through(&r);
    for (int t = 0; t < KV_BLOCK; t++) {
        for (int g = 0; g < groups; g++) {
            assert_int_equal(half_bits(&r, r.c.scales, g * 64 + t), scales[t * groups + g]);
            assert_int_equal(half_bits(&r, r.c.offsets, g * 64 + t), biases[t * groups + g]);
        }
        for (int d = 0; d < dim; d++) {
            assert_int_equal(code_of(&r, t, d, bits), codes[t * dim + d]);
            if (qjl)
                assert_int_equal(r.bytes[r.c.sketch + (size_t)d * 8 + (size_t)t % 8] >> t / 8 & 1,
                                 signs[t * dim / 8 + d / 8] >> d % 8 & 1);
        }
        if (qjl) /* sums of squares go in another order */
            assert_true(abs((int)half_bits(&r, r.c.sketch_scales, t) - (int)norms[t]) <= 1);
    }
    check_scores(&r, q, scores, qjl ? 2e-2 : 1e-4); /* a place of a norm is 2^-11 of it */
    rig_close(&r);
    mem_free(k);
    mem_free(q16);
    mem_free(scales);
    mem_free(biases);
    mem_free(norms);
    mem_free(codes);
    mem_free(signs);
    mem_free(scores);
}

/* Near it in float16, where Metal rounds within the transform. */
static void check_half(const struct st_file *f, int dim, int bits)
{
    char name[32];
    struct rig r;
    size_t n = (size_t)KV_BLOCK * (size_t)dim;
    uint16_t *k = golden(f, DT_F16, n, "rot.%d.k", dim), *q16 = golden(f, DT_F16, 8 * (size_t)dim, "rot.%d.q", dim);
    uint8_t *codes = golden(f, DT_U8, n, "half.%d.%d.codes", dim, bits);
    float *scores = golden(f, DT_F32, 8 * 64, "half.%d.%d.sketched", dim, bits);
    snprintf(name, sizeof name, "rot%d+qjl", bits);
    rig_open(&r, name, dim, true);
    load_f16s(r.x, k, n);
    through(&r);
    int other = 0;
    double error = 0, apart = 0;
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < dim; d++)
            other += code_of(&r, t, d, bits) != codes[t * dim + d];
    for (int i = 0; i < 8; i++)
        for (int t = 0; t < KV_BLOCK; t++) {
            double exact = 0, got = 0;
            for (int d = 0; d < dim; d++) {
                exact += (double)fp_from_f16(q16[i * dim + d]) * r.x[t * dim + d];
                got += (double)fp_from_f16(q16[i * dim + d]) * r.y[t * dim + d];
            }
            error += (got - exact) * (got - exact);
            apart += (got - scores[i * 64 + t]) * (got - scores[i * 64 + t]);
        }
    assert_true(other <= (bits == 8 ? 0.05 : 0.002) * (double)n);
    assert_true(apart < 0.25 * error || bits == 8);
    rig_close(&r);
    mem_free(k);
    mem_free(q16);
    mem_free(codes);
    mem_free(scores);
}

static void test_rot_is_mlx_turboquant(void **state)
{
    (void)state;
    static const int widths[] = {2, 3, 4, 8};
    struct st_file *f = goldens();
    for (int dim = 64; dim <= 128; dim *= 2)
        for (int i = 0; i < 4; i++) {
            check_rot(f, dim, widths[i], false);
            check_rot(f, dim, widths[i], true);
            check_half(f, dim, widths[i]);
        }
    st_close(f);
}

/* --- errors --------------------------------------------------------------- */

enum input { GAUSSIAN, OUTLIERS, CONSTANT, TINY, HUGE_VALUES, ZERO, N_INPUTS };

static void fill(struct rig *r, enum input kind)
{
    int dim = r->c.dim;
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < dim; d++) {
            double v = gauss();
            switch (kind) {
            case OUTLIERS:
                v = d % 16 == 5 ? 20 + 3 * v : d % 16 == 9 ? 10 * v : v;
                break;
            case CONSTANT:
                v = d % 7 - 3.3;
                break;
            case TINY:
                v *= 1e-6;
                break;
            case HUGE_VALUES:
                v = (2 * uniform() - 1) * 6e4;
                break;
            case ZERO:
                v = 0;
                break;
            default:
                break;
            }
            r->x[t * dim + d] = (float)v;
        }
}

/* Steps of half a code and the rounding of scales and offsets to f16 bound each
 * element: of a row of one vector for affine, of a channel for chan. */
static void check_steps(const struct rig *r, int at, int stride, int n, int bits, double most_steps)
{
    double lo = INFINITY, hi = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        lo = fmin(lo, r->x[at + i * stride]);
        hi = fmax(hi, r->x[at + i * stride]);
    }
    double step = (hi - lo) / ((1 << bits) - 1), edge = fmax(fabs(lo), fabs(hi));
    double rounding = (edge + hi - lo) * 0x1p-11 + (1 << bits) * 0x1p-24 + 1e-7;
    for (int i = 0; i < n; i++) {
        double e = fabs((double)r->x[at + i * stride] - r->y[at + i * stride]);
        assert_true(e <= most_steps * step + rounding);
        sum += e * e;
    }
    assert_true(sum / n <= step * step / 12 * (most_steps > 0.5 ? 4 : 1.8) + rounding * rounding * 2);
}

static void check_elements(const struct rig *r)
{
    const struct kv_codec *c = &r->c;
    int dim = c->dim, g = c->f.group;
    switch (c->f.kind) {
    case KVF_AFFINE:
        for (int t = 0; t < KV_BLOCK; t++)
            for (int d = 0; d < dim; d += g)
                check_steps(r, t * dim + d, 1, g, c->f.bits, 1.0);
        break;
    case KVF_CHAN:
        for (int d = 0; d < dim; d++)
            check_steps(r, d, dim, KV_BLOCK, kv_codec_width(c, r->bytes, d), 0.5);
        break;
    case KVF_FP8: {
        double most = 0;
        for (size_t i = 0; i < r->n; i++)
            most = fmax(most, fabs((double)r->x[i]));
        for (size_t i = 0; i < r->n; i++)
            assert_true(fabs((double)r->x[i] - r->y[i]) <= fabs((double)r->x[i]) / 16 * 1.0001 + most / 448 * 0x1p-10);
        break;
    }
    default:
        break;
    }
}

/* The error of rotated formats on any input, relative to the energy of the
 * vectors: what the code's error on Gaussian values is. */
static void check_relative(const struct st_file *f, const struct rig *r, enum input kind)
{
    const struct kv_codec *c = &r->c;
    int like = c->dim <= 64 ? 64 : c->dim <= 80 ? 80 : c->dim <= 128 ? 128 : 256;
    double got = square_error(r) / energy(r), want, slack = 0.3;
    if (c->f.kind == KVF_TQ) {
        want = distortion(f, like, c->f.bits);
        if (c->f.scalar == KV_SCALAR_UNBIASED) /* as 1 / (1 - D), about */
            want /= 1 - want;
        if (c->f.scalar == KV_SCALAR_MATCHED)
            want = 2 - 2 * sqrt(1 - want);
    } else if (c->f.kind == KVF_SPLIT) {
        want = 0.25 * distortion(f, 64, c->f.bits + 1) + 0.75 * distortion(f, 64, c->f.bits);
    } else {
        return;
    }
    if (kind == CONSTANT || kind == OUTLIERS) /* a vector's directions are fewer than its dimensions */
        slack = 1.5;
    if (kind == TINY)
        want += 0.02;
    if (!(got < want * (1 + slack)) || (kind == GAUSSIAN && !(got > want * 0.75)))
        fail_msg("head of %d, %d bits, kind %d, rule %d, input %d: error %.4f, expected %.4f", c->dim, c->f.bits,
                 (int)c->f.kind, (int)c->f.scalar, (int)kind, got, want);
}

static const char *const every_key[] = {
    "fp8",   "affine2", "affine3g32", "affine4",  "affine5g128", "affine6",   "affine8",       "chan2",
    "chan3", "chan4",   "chan5",      "chan6",    "chan8",       "chan2+mix", "chan4+pre+mix", "chan6+mix",
    "rot2",  "rot3",    "rot4",       "rot8",     "rot2+qjl",    "rot4+qjl",  "rot8+qjl",      "tq1",
    "tq2",   "tq3",     "tq4",        "tq5",      "tq1.norm",    "tq2.norm",  "tq4.matched",   "tq3+c",
    "prod2", "prod3",   "prod4.orth", "split2.5", "split3.5",
};
static const char *const every_value[] = {"fp8",   "affine2", "affine3g32", "affine4",  "affine8",
                                          "chan2", "chan4",   "chan8",      "tq1",      "tq2",
                                          "tq3",   "tq4",     "tq5.norm",   "split2.5", "split3.5"};

static bool fits(const char *name, int dim)
{
    const char *g = strstr(name, "g1") ? "g128" : strstr(name, "g32") ? "g32" : "g64";
    bool grouped = !strncmp(name, "affine", 6) || !strncmp(name, "rot", 3);
    return !grouped || dim % (int)strtol(g + 1, NULL, 10) == 0;
}

static void check_inputs(const struct st_file *f, const char *name, int dim, bool key)
{
    struct rig r;
    if (!fits(name, dim))
        return;
    rig_open(&r, name, dim, key);
    for (int kind = 0; kind < N_INPUTS; kind++) {
        fill(&r, (enum input)kind);
        through(&r);
        for (size_t i = 0; i < r.n; i++)
            if (!isfinite(r.y[i]))
                fail_msg("%s, head of %d, input %d: %g", name, dim, kind, (double)r.y[i]);
        if (kind == ZERO) {
            for (size_t i = 0; i < r.n; i++)
                assert_true(fabsf(r.y[i]) < 1e-6f);
            continue;
        }
        check_elements(&r);
        if (!(key && r.c.f.centred))
            check_relative(f, &r, (enum input)kind);
        if (kind == CONSTANT && (r.c.f.kind == KVF_CHAN || r.c.f.centred))
            assert_true(square_error(&r) < 1e-6 * energy(&r));
    }
    rig_close(&r);
}

static void test_errors(void **state)
{
    (void)state;
    struct st_file *f = goldens();
    static const int dims[] = {64, 80, 128, 36};
    for (int i = 0; i < 4; i++) {
        rng_state = (uint64_t)dims[i];
        for (size_t k = 0; k < sizeof every_key / sizeof *every_key; k++)
            check_inputs(f, every_key[k], dims[i], true);
        for (size_t k = 0; k < sizeof every_value / sizeof *every_value; k++)
            check_inputs(f, every_value[k], dims[i], false);
    }
    st_close(f);
}

/* The mean over many vectors is what the paper and the goldens say. */
static void test_distortion(void **state)
{
    (void)state;
    enum { BLOCKS = 60 };
    static const int dims[] = {64, 80, 128, 256};
    struct st_file *f = goldens();
    rng_state = 5;
    for (int i = 0; i < 4; i++)
        for (int bits = 1; bits <= 5; bits++) {
            struct rig r;
            char name[32];
            double error = 0, all = 0;
            snprintf(name, sizeof name, "tq%d.norm", bits);
            rig_open(&r, name, dims[i], bits & 1);
            for (int b = 0; b < BLOCKS; b++) {
                fill(&r, GAUSSIAN);
                through(&r);
                error += square_error(&r);
                all += energy(&r);
            }
            if (fabs(error / all / distortion(f, dims[i], bits) - 1) > 0.03)
                fail_msg("%s, head of %d: error %.5f, expected %.5f", name, dims[i], error / all,
                         distortion(f, dims[i], bits));
            rig_close(&r);
        }
    st_close(f);
}

static void test_exact(void **state)
{
    (void)state;
    static const char *const names[] = {"f32", "f16", "bf16"};
    for (int i = 0; i < 3; i++)
        for (int key = 0; key < 2; key++) {
            struct rig r;
            rig_open(&r, names[i], 36, key);
            fill(&r, OUTLIERS);
            through(&r);
            for (size_t k = 0; k < r.n; k++)
                assert_true(r.y[k] == (i == 0   ? r.x[k]
                                       : i == 1 ? fp_from_f16(fp_to_f16(r.x[k]))
                                                : fp_from_bf16(fp_to_bf16(r.x[k]))));
            /* keys lie across tokens, values along them */
            float first;
            memcpy(&first, r.bytes + 4, 4);
            if (i == 0)
                assert_true(first == r.x[key ? 36 : 1]);
            rig_close(&r);
        }
}

/* The widths that mix chooses cost nothing and help where channels differ. */
static void test_mix(void **state)
{
    (void)state;
    for (int bits = 2; bits <= 6; bits++) {
        struct rig a, b;
        char name[16];
        if (bits == 7)
            continue;
        snprintf(name, sizeof name, "chan%d", bits);
        rig_open(&a, name, 80, true);
        snprintf(name, sizeof name, "chan%d+mix", bits);
        rig_open(&b, name, 80, true);
        for (int input = 0; input < 2; input++) {
            fill(&a, input ? OUTLIERS : GAUSSIAN);
            memcpy(b.x, a.x, a.n * sizeof *a.x);
            through(&a);
            through(&b);
            int wide = 0, narrow = 0;
            for (int d = 0; d < 80; d++) {
                wide += kv_codec_width(&b.c, b.bytes, d) > bits;
                narrow += kv_codec_width(&b.c, b.bytes, d) < bits;
            }
            assert_int_equal(wide, narrow);
            if (input) /* five channels of 80 are ten times as wide */
                assert_true(wide >= 4 && square_error(&b) < 0.7 * square_error(&a));
            else
                assert_true(square_error(&b) < 1.05 * square_error(&a));
        }
        rig_close(&a);
        rig_close(&b);
    }
}

/* Scalars of TurboQuant keep what they promise. */
static void test_scalars(void **state)
{
    (void)state;
    static const char *const rules[] = {"norm", "matched", "unbiased"};
    for (int rule = 0; rule < 3; rule++)
        for (int bits = 1; bits <= 5; bits++) {
            struct rig r;
            char name[32];
            snprintf(name, sizeof name, "tq%d.%s", bits, rules[rule]);
            rig_open(&r, name, 96, true);
            fill(&r, OUTLIERS);
            through(&r);
            for (int t = 0; t < KV_BLOCK; t++) {
                double xx = 0, yy = 0, xy = 0;
                for (int d = 0; d < 96; d++) {
                    xx += (double)r.x[t * 96 + d] * r.x[t * 96 + d];
                    yy += (double)r.y[t * 96 + d] * r.y[t * 96 + d];
                    xy += (double)r.x[t * 96 + d] * r.y[t * 96 + d];
                }
                if (rule == KV_SCALAR_NORM)
                    assert_true(fabs(load_f16(r.bytes + r.c.scales + (size_t)t * 2) - sqrt(xx / 96)) <
                                sqrt(xx / 96) * 0x1p-10);
                if (rule == KV_SCALAR_MATCHED)
                    assert_true(fabs(yy / xx - 1) < 0x1p-9);
                if (rule == KV_SCALAR_UNBIASED)
                    assert_true(fabs(xy / xx - 1) < 0x1p-10);
            }
            rig_close(&r);
        }
}

/* Queries at an angle to their keys: the mean of estimated inner products over
 * that of the true ones, and the spread. */
static void measure(const char *name, int dim, double *ratio, double *spread)
{
    struct rig r;
    double got = 0, want = 0, square = 0;
    rig_open(&r, name, dim, true);
    for (int round = 0; round < 40; round++) {
        fill(&r, GAUSSIAN);
        through(&r);
        for (int t = 0; t < KV_BLOCK; t++) {
            double g = 0, w = 0, kk = 0, qq = 0;
            for (int d = 0; d < dim; d++) {
                double k = r.x[t * dim + d], q = k + gauss();
                g += q * r.y[t * dim + d];
                w += q * k;
                kk += k * k;
                qq += q * q;
            }
            got += g;
            want += w;
            square += (g - w) * (g - w) / (kk * qq) * dim;
        }
    }
    *ratio = got / want;
    *spread = square / (40 * KV_BLOCK);
    rig_close(&r);
}

static void test_unbiased(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double ratio, spread; /* spread: at most; TurboQuant's theorem 2 gives prod's */
    } rows[] = {
        {"tq1", 1, 0.6},          {"tq2", 1, 0.14},       {"tq3", 1, 0.04},        {"tq4", 1, 0.012},
        {"tq2.norm", 0.884, 9},   {"tq3.norm", 0.966, 9}, {"tq1.norm", 0.64, 99},  {"prod2", 1, 0.6},
        {"prod3", 1, 0.2},        {"prod4", 1, 0.055},    {"prod2.orth", 1, 0.24}, {"prod3.orth", 1, 0.08},
        {"prod4.orth", 1, 0.022}, {"rot2+qjl", 1, 0.2},   {"rot3+qjl", 1, 0.05},   {"rot4+qjl", 1, 0.012},
    };
    rng_state = 77;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double ratio, spread;
        measure(rows[i].name, 128, &ratio, &spread);
        if (fabs(ratio - rows[i].ratio) > 0.012 || spread > rows[i].spread)
            fail_msg("%s: mean %.4f of the true one, expected %.3f; spread %.4f, at most %.4f", rows[i].name, ratio,
                     rows[i].ratio, spread, rows[i].spread);
    }
}

/* --- rotary --------------------------------------------------------------- */

static void make_turn(struct kv_turn *t, float *start, float *places, int dims, bool interleaved, int64_t from)
{
    int half = dims / 2;
    for (int i = 0; i < half; i++) {
        double f = pow(10000, -2.0 * i / dims);
        start[i] = (float)cos((double)from * f);
        start[half + i] = (float)sin((double)from * f);
        for (int p = 0; p < KV_BLOCK; p++) {
            places[i * KV_BLOCK + p] = (float)cos(p * f);
            places[(half + i) * KV_BLOCK + p] = (float)sin(p * f);
        }
    }
    *t = (struct kv_turn){.dims = dims, .interleaved = interleaved};
    t->start_cos = start;
    t->start_sin = start + half;
    t->cos = places;
    t->sin = places + half * KV_BLOCK;
}

static void test_turns(void **state)
{
    (void)state;
    enum { DIM = 48 };
    for (int kind = 0; kind < 4; kind++) {
        int dims = kind & 1 ? DIM : 32, half = dims / 2;
        bool pairs = kind & 2;
        int64_t from = 64 * 37 + 5;
        float start[DIM], places[DIM * KV_BLOCK], back[KV_BLOCK * DIM];
        struct kv_turn turn;
        struct rig plain, pre;
        make_turn(&turn, start, places, dims, pairs, from);
        rig_open(&plain, "chan3", DIM, true);
        rig_open(&pre, "chan3+pre", DIM, true);
        for (int t = 0; t < KV_BLOCK; t++) /* before rotary nearly constant, as keys' biases make them */
            for (int d = 0; d < DIM; d++)
                back[t * DIM + d] = (float)(d % 5 - 2 + 0.01 * gauss());
        for (int t = 0; t < KV_BLOCK; t++)
            for (int d = 0; d < DIM; d++) {
                int i = pairs ? d / 2 : d % half, a = pairs ? 2 * i : i, b = pairs ? a + 1 : i + half;
                double angle = (double)(from + t) * pow(10000, -2.0 * i / dims);
                const float *x = back + t * DIM;
                pre.x[t * DIM + d] = d >= dims ? x[d]
                                               : (float)(d == a ? x[a] * cos(angle) - x[b] * sin(angle)
                                                                : x[a] * sin(angle) + x[b] * cos(angle));
            }
        memcpy(pre.y, back, sizeof back);
        kv_turn_forth(&turn, pre.y, DIM);
        for (size_t i = 0; i < pre.n; i++)
            assert_true(fabsf(pre.y[i] - pre.x[i]) < 3e-6f);
        kv_turn_back(&turn, pre.y, DIM);
        for (size_t i = 0; i < pre.n; i++)
            assert_true(fabsf(pre.y[i] - back[i]) < 3e-6f);
        kv_codec_encode(&pre.c, pre.x, &turn, pre.bytes, pre.work);
        kv_codec_decode(&pre.c, pre.bytes, &turn, pre.y, pre.work);
        memcpy(plain.x, pre.x, pre.n * sizeof *pre.x);
        through(&plain);
        assert_true(square_error(&pre) < 1e-5 * energy(&pre));
        assert_true(square_error(&plain) > 1e-3 * energy(&pre));
        rig_close(&plain);
        rig_close(&pre);
    }
}

/* --- what is not a number ------------------------------------------------- */

/* Token 7 is spoiled; in formats that treat each token alone the others keep
 * their bits. */
static void check_spoiled(const char *name, int dim, bool key)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct rig r;
    rig_open(&r, name, dim, key);
    enum kv_kind k = r.c.f.kind;
    bool per_token = k == KVF_AFFINE || k == KVF_ROT || k == KVF_PROD || (k == KVF_TQ && !r.c.f.centred);
    float *want = mem_alloc_array(r.n, sizeof *want);
    assert_non_null(want);
    for (int i = 0; i < 4; i++) {
        fill(&r, GAUSSIAN);
        through(&r);
        memcpy(want, r.y, r.n * sizeof *want);
        for (int d = 0; d < dim; d++)
            if (i == 3 || d == 3)
                r.x[7 * dim + d] = bad[i % 3];
        through(&r);
        for (int t = 0; t < KV_BLOCK && per_token; t++)
            for (int d = 0; d < dim && t != 7; d++)
                assert_true(r.y[t * dim + d] == want[t * dim + d]);
        if (k == KVF_FP8 || k == KVF_CHAN) /* a shared scale is not spoiled by what is no number */
            for (size_t n = 0; n < r.n; n++)
                assert_true(isfinite(r.y[n]));
    }
    for (size_t i = 0; i < r.n; i++)
        r.x[i] = NAN;
    through(&r);
    mem_free(want);
    rig_close(&r);
}

static void test_not_a_number(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof every_key / sizeof *every_key; k++)
        check_spoiled(every_key[k], 128, true);
    for (size_t k = 0; k < sizeof every_value / sizeof *every_value; k++)
        check_spoiled(every_value[k], 128, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_partners),      cmocka_unit_test(test_specs),
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_refused_heads),
        cmocka_unit_test(test_planes),        cmocka_unit_test(test_pcg64),
        cmocka_unit_test(test_hadamard),      cmocka_unit_test(test_levels),
        cmocka_unit_test(test_affine_is_mlx), cmocka_unit_test(test_rot_is_mlx_turboquant),
        cmocka_unit_test(test_errors),        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_distortion),    cmocka_unit_test(test_mix),
        cmocka_unit_test(test_scalars),       cmocka_unit_test(test_unbiased),
        cmocka_unit_test(test_turns),         cmocka_unit_test(test_not_a_number),
    };
    return cmocka_run_group_tests_name("kvformat", tests, NULL, NULL);
}
