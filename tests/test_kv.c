/* The cache against plain arrays: random programs of passes over several
 * sequences, committed or aborted, with full and window layers, must give the
 * attention that a double-precision loop over everything ever appended gives. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kvcache/kv.h"

enum { SEQS = 4, LAYERS = 3, HEADS = 4, KV_HEADS = 2, DIM = 8, MAX_TOKENS = 700, PROGRAMS = 12, STEPS = 25 };

static const int64_t windows[LAYERS] = {0, 70, 5};

struct plain {
    struct kv_seq *seq;
    int n;
    float k[LAYERS][MAX_TOKENS][KV_HEADS * DIM], v[LAYERS][MAX_TOKENS][KV_HEADS * DIM];
};

static uint64_t rng_state;

static uint32_t rnd(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static float rnd_float(void)
{
    return (float)(rnd() & 0xffff) / 32768.0f - 1;
}

static struct tensor *random_tensor(struct ctx *c, int rows, int cols)
{
    struct tensor *t = ctx_tensor2(c, rows, cols);
    assert_non_null(t);
    for (int i = 0; i < rows * cols; i++)
        tensor_f32(t)[i] = rnd_float();
    return t;
}

static void naive(const struct plain *p, int layer, int pos, const float *q, double *out)
{
    for (int h = 0; h < HEADS; h++) {
        const int kh = h / (HEADS / KV_HEADS);
        double m = -INFINITY, sum = 0, s[MAX_TOKENS];
        int64_t lo = windows[layer] ? pos - windows[layer] + 1 : 0;
        if (lo < 0)
            lo = 0;
        for (int64_t t = lo; t <= pos; t++) {
            s[t] = 0;
            for (int d = 0; d < DIM; d++)
                s[t] += (double)q[h * DIM + d] * (double)p->k[layer][t][kh * DIM + d];
            s[t] *= 0.5;
            m = fmax(m, s[t]);
        }
        for (int d = 0; d < DIM; d++)
            out[h * DIM + d] = 0;
        for (int64_t t = lo; t <= pos; t++) {
            double w = exp(s[t] - m);
            sum += w;
            for (int d = 0; d < DIM; d++)
                out[h * DIM + d] += w * (double)p->v[layer][t][kh * DIM + d];
        }
        for (int d = 0; d < DIM; d++)
            out[h * DIM + d] /= sum;
    }
}

static void check_rows(const struct plain *p, int layer, int rows, const float *q, const float *got)
{
    double want[HEADS * DIM];
    for (int r = 0; r < rows; r++) {
        naive(p, layer, p->n + r, q + r * HEADS * DIM, want);
        for (int i = 0; i < HEADS * DIM; i++)
            assert_true(fabs(want[i] - (double)got[r * HEADS * DIM + i]) < 2e-5);
    }
}

static void one_pass(struct ctx *c, struct kv_cache *kv, struct plain *p)
{
    struct kv_span spans[SEQS];
    int of[SEQS], n = 0, rows = 0;
    for (int i = 0; i < SEQS; i++) {
        static const int sizes[] = {1, 1, 1, 3, 17, 64, 65, 100};
        int take = sizes[rnd() % 8];
        if (rnd() % 3 == 0 || p[i].n + take > MAX_TOKENS)
            continue;
        spans[n] = (struct kv_span){p[i].seq, rows, take};
        of[n++] = i;
        rows += take;
    }
    if (!n)
        return;
    bool commit = rnd() % 4 != 0;
    ctx_begin(c);
    struct kv_pass *pass = kv_pass_begin(c, kv, NULL, spans, n);
    assert_non_null(pass);
    struct kv_opts o = {.scale = 0.5f};
    for (int l = 0; l < LAYERS; l++) {
        struct tensor *q = random_tensor(c, rows, HEADS * DIM), *k = random_tensor(c, rows, KV_HEADS * DIM),
                      *v = random_tensor(c, rows, KV_HEADS * DIM);
        for (int i = 0; i < n; i++) {
            size_t bytes = (size_t)spans[i].rows * KV_HEADS * DIM * sizeof(float);
            memcpy(p[of[i]].k[l][p[of[i]].n], tensor_f32(k) + spans[i].row * KV_HEADS * DIM, bytes);
            memcpy(p[of[i]].v[l][p[of[i]].n], tensor_f32(v) + spans[i].row * KV_HEADS * DIM, bytes);
        }
        struct tensor *y = kv_attend(c, pass, l, q, k, v, &o);
        assert_non_null(y);
        for (int i = 0; i < n; i++)
            check_rows(&p[of[i]], l, (int)spans[i].rows, tensor_f32(q) + spans[i].row * HEADS * DIM,
                       tensor_f32(y) + spans[i].row * HEADS * DIM);
    }
    if (!commit) {
        kv_pass_abort(pass);
        return;
    }
    kv_pass_commit(pass);
    for (int i = 0; i < n; i++) {
        p[of[i]].n += (int)spans[i].rows;
        assert_int_equal(kv_seq_length(p[of[i]].seq), p[of[i]].n);
    }
}

static struct kv_cache *new_cache(struct backend *be, size_t limit)
{
    static const struct kv_format f32 = {.kind = KVF_F32};
    struct tlm_error e = {0};
    struct kv_layer_config layers[LAYERS];
    struct kv_cache *kv;
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (struct kv_layer_config){windows[l], {KV_F32, KV_HEADS, DIM, DIM}, f32, f32};
    struct kv_config config = {.layers = layers, .n_layers = LAYERS, .limit_bytes = limit};
    assert_int_equal(kv_cache_new(&config, be, &kv, &e), TLM_OK);
    return kv;
}

static void test_random_programs(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    struct backend *be;
    struct ctx c;
    assert_int_equal(backend_cpu_new(2, true, &be, &e), TLM_OK);
    assert_int_equal(ctx_init(&c, be, &e), TLM_OK);
    struct kv_cache *kv = new_cache(be, 0);
    struct plain *p = mem_new_array(SEQS, sizeof *p);
    assert_non_null(p);
    size_t bytes = 0;
    for (int program = 0; program < PROGRAMS; program++) {
        rng_state = (uint64_t)program * 977 + 1;
        for (int i = 0; i < SEQS; i++) {
            p[i].n = 0;
            assert_int_equal(kv_seq_new(kv, &p[i].seq, &e), TLM_OK);
        }
        for (int s = 0; s < STEPS; s++)
            one_pass(&c, kv, p);
        for (int i = 0; i < SEQS; i++)
            kv_seq_free(p[i].seq);
        if (program == PROGRAMS / 2)
            bytes = kv_cache_bytes(kv);
    }
    assert_int_equal(kv_cache_bytes(kv), bytes); /* blocks of gone sequences are used again */
    mem_free(p);
    kv_cache_free(kv);
    ctx_deinit(&c);
    be->ops->free(be);
}

static void test_limit(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    struct kv_cache *kv = new_cache(NULL, (size_t)30 << 20);
    struct kv_seq *s;
    assert_int_equal(kv_seq_new(kv, &s, &e), TLM_OK);
    assert_int_equal(kv_seq_assume(s, 1000, &e), TLM_OK);
    assert_int_equal(kv_seq_assume(s, 1 << 24, &e), TLM_ELIMIT);
    assert_non_null(strstr(e.message, "limit"));
    assert_int_equal(kv_seq_length(s), 1000);
    assert_true(kv_cache_bytes(kv) <= (size_t)30 << 20);
    kv_seq_free(s);
    kv_cache_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_programs), cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
