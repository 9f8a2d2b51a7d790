/* The random generator against published Threefry vectors, JAX's split of a
 * key, and draws of MLX (data/sampler/rng.inc and its maker). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gen/rng.h"

/* Random123's known answers with the words of the counter as MLX and JAX lay
 * them out, and MLX's own test vectors for key 0. */
static void bits_match_published(void **state)
{
    (void)state;
    const uint32_t zero[2] = {0, 0};
    uint32_t out[4];
    rng_bits(zero, 1, out);
    assert_int_equal(out[0], 0x6b200159); /* counter (0, 0) */
    rng_bits(zero, 4, out);
    const uint32_t want[4] = {4146024105u, 967050713u, 2718843009u, 1272950319u};
    for (int i = 0; i < 4; i++)
        assert_int_equal(out[i], want[i]);
    rng_bits(zero, 0, NULL);
}

static void split_matches(void **state)
{
    (void)state;
    static const uint32_t want[3][2] = {
        {2718843009u, 1272950319u}, {1278412471u, 2182328957u}, {4104543539u, 3483300570u}};
    struct rng r;
    rng_seed(&r, 0);
    for (int i = 0; i < 3; i++) {
        uint32_t sub[2];
        rng_split(&r, sub);
        assert_int_equal(sub[0], want[i][0]);
        assert_int_equal(sub[1], want[i][1]);
    }
}

static void seed_fills_the_key(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 0x123456789ABCDEF0u);
    assert_int_equal(r.key[0], 0x12345678);
    assert_int_equal(r.key[1], 0x9ABCDEF0);
}

static void uniform_stream_matches(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed;
        float u[3];
    } want[] = {
        {0, {.10536904f, .27871919f, .68668771f}},
        {42, {.91457367f, .42094746f, .01077296f}},
        {123, {.04368956f, .86703515f, .23886414f}},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct rng r;
        rng_seed(&r, want[i].seed);
        for (int j = 0; j < 3; j++)
            assert_float_equal(rng_uniform(&r), want[i].u[j], 6e-9);
    }
}

static const struct {
    uint64_t seed;
    size_t n, n_picks;
    struct {
        size_t at;
        float u;
        int64_t k;
    } pick[4];
} draws[] = {
#include "data/sampler/rng.inc"
};

static void draws_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof draws / sizeof draws[0]; i++) {
        struct rng a, b;
        float u[33];
        int64_t k[33];
        rng_seed(&a, draws[i].seed);
        rng_seed(&b, draws[i].seed);
        rng_uniform_n(&a, draws[i].n, u);
        rng_integers(&b, -1000, 50000, draws[i].n, k);
        assert_memory_equal(&a, &b, sizeof a);
        for (size_t j = 0; j < draws[i].n_picks; j++) {
            size_t at = draws[i].pick[j].at;
            assert_true(u[at] == draws[i].pick[j].u);
            assert_int_equal(k[at], draws[i].pick[j].k);
        }
    }
}

/* Words of every count, one by one through uniform and together through bits. */
static void uniform_is_scaled_bits(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 33; n++) {
        struct rng a, b;
        uint32_t sub[2], bits[33];
        float u[33];
        rng_seed(&a, n * 77);
        b = a;
        rng_uniform_n(&a, n, u);
        rng_split(&b, sub);
        rng_bits(sub, n, bits);
        for (size_t i = 0; i < n; i++) {
            float scaled = (float)bits[i] / 4294967296.0f;
            assert_true(u[i] == (scaled < 1 ? scaled : 0x1.fffffep-1f));
        }
    }
}

static void values_stay_in_range(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 5);
    for (int i = 0; i < 20000; i++) {
        float u = rng_uniform(&r);
        assert_true(u >= 0 && u < 1);
    }
    static const int64_t range[][2] = {
        {0, 1}, {-3, 4}, {7, 8}, {16777217, 16777219}, {INT64_MAX - 2, INT64_MAX}, {INT64_MIN, INT64_MIN + 1}};
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
        int64_t k[500];
        rng_integers(&r, range[i][0], range[i][1], 500, k);
        for (int j = 0; j < 500; j++)
            assert_true(k[j] >= range[i][0] && k[j] < range[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_match_published), cmocka_unit_test(split_matches),
        cmocka_unit_test(seed_fills_the_key),   cmocka_unit_test(uniform_stream_matches),
        cmocka_unit_test(draws_match),          cmocka_unit_test(uniform_is_scaled_bits),
        cmocka_unit_test(values_stay_in_range),
    };
    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
