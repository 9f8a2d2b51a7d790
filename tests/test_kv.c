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
#include "kvcache/prompt_file.h"

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

static struct kv_cache *new_cache(struct backend *be, size_t limit, size_t state_bytes)
{
    static const struct kv_format f32 = {.kind = KVF_F32};
    struct tlm_error e = {0};
    struct kv_layer_config layers[LAYERS];
    struct kv_cache *kv;
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (struct kv_layer_config){windows[l], {KV_F32, KV_HEADS, DIM, DIM}, f32, f32};
    struct kv_config config = {.layers = layers, .n_layers = LAYERS, .limit_bytes = limit, .state_bytes = state_bytes};
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
    struct kv_cache *kv = new_cache(be, 0, 0);
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
    struct kv_cache *kv = new_cache(NULL, (size_t)30 << 20, 0);
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

/* Takes n tokens with a state that counts them and no attention. */
static void count_tokens(struct ctx *c, struct kv_cache *kv, struct kv_seq *s, const int32_t *ids, int n, bool commit)
{
    const struct kv_span span = {s, 0, n};
    ctx_begin(c);
    struct kv_pass *p = kv_pass_begin(c, kv, ids, &span, 1);
    assert_non_null(p);
    *(int64_t *)kv_pass_state(p, 0) = *(const int64_t *)kv_seq_state(s) + n;
    if (commit)
        kv_pass_commit(p);
    else
        kv_pass_abort(p);
}

static int64_t counted(const struct kv_seq *s)
{
    return *(const int64_t *)kv_seq_state(s);
}

/* States alone, and states within a limit. */
static void test_states(void **state)
{
    (void)state;
    enum { BYTES = 3 << 20, LIMIT = 6 * BYTES }; /* two states are one allocation */
    struct tlm_error e = {0};
    struct backend *be;
    struct ctx c;
    struct kv_cache *kv;
    struct kv_seq *s, *other;
    const struct kv_config config = {.state_bytes = BYTES, .limit_bytes = LIMIT};
    const int32_t ids[] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(backend_cpu_new(1, true, &be, &e), TLM_OK);
    assert_int_equal(ctx_init(&c, be, &e), TLM_OK);
    assert_int_equal(kv_cache_new(&config, be, &kv, &e), TLM_OK);
    assert_int_equal(kv_cache_used(kv), BYTES);
    assert_int_equal(kv_seq_new(kv, &s, &e), TLM_OK);
    assert_int_equal(counted(s), 0);
    for (int i = 0; i < 4; i++) {
        count_tokens(&c, kv, s, &ids[i], 1, false);
        count_tokens(&c, kv, s, &ids[i], 1, true);
        assert_int_equal(counted(s), i + 1);
        if (i == 1)
            assert_int_equal(kv_seq_checkpoint(s, &e), TLM_OK);
    }
    assert_int_equal(kv_cache_used(kv), 3 * BYTES); /* zeros, the checkpoint, its own */
    assert_int_equal(kv_seq_reach(s, 4), 4);
    assert_int_equal(kv_seq_reach(s, 3), 2);
    assert_int_equal(kv_seq_reach(s, 1), 0);
    assert_false(kv_seq_trim(s, 3));
    assert_int_equal(kv_seq_fork(s, 3, &other, &e), TLM_OK);
    assert_null(other);
    assert_int_equal(kv_seq_fork(s, 2, &other, &e), TLM_OK);
    assert_int_equal(counted(other), 2);
    kv_seq_free(other);
    assert_int_equal(prompt_file_save(s, NULL, NULL, "never-written", &e), TLM_EUNSUPPORTED);
    assert_non_null(strstr(e.message, "recurrent"));
    e = (struct tlm_error){0};
    assert_int_equal(kv_index_add(s, &e), TLM_OK);
    kv_seq_free(s);
    assert_int_equal(kv_index_match(kv, ids, 1, true, &s, &e), TLM_OK);
    assert_int_equal(kv_seq_length(s), 0);
    kv_seq_free(s);
    assert_int_equal(kv_index_match(kv, ids, 6, true, &s, &e), TLM_OK);
    assert_int_equal(kv_seq_length(s), 2);
    assert_int_equal(counted(s), 2);
    for (int i = 2; i < 5; i++) { /* three more checkpoints are beside the index's */
        count_tokens(&c, kv, s, &ids[i], 1, true);
        assert_int_equal(kv_seq_checkpoint(s, &e), TLM_OK);
    }
    assert_int_equal(kv_cache_bytes(kv), LIMIT);
    count_tokens(&c, kv, s, &ids[5], 1, true);
    const struct kv_span span = {s, 0, 1};
    ctx_begin(&c);
    assert_null(kv_pass_begin(&c, kv, ids, &span, 1));
    assert_int_equal(c.err.status, TLM_ELIMIT);
    assert_int_equal(counted(s), 6);
    assert_true(kv_seq_trim(s, 3)); /* gives two back */
    count_tokens(&c, kv, s, &(int32_t){9}, 1, true);
    assert_int_equal(counted(s), 4);
    kv_seq_free(s);
    kv_cache_free(kv);
    ctx_deinit(&c);
    be->ops->free(be);
}

/* Two prefixes end at the same checkpoint; the one that is seen first has lost
 * the window's blocks before it. */
static void test_states_and_windows(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    struct backend *be;
    struct ctx c;
    struct kv_seq *s;
    int32_t ids[1000] = {0};
    assert_int_equal(backend_cpu_new(1, true, &be, &e), TLM_OK);
    assert_int_equal(ctx_init(&c, be, &e), TLM_OK);
    struct kv_cache *kv = new_cache(be, 0, sizeof(int64_t));
    for (int n = 20; n <= 900; n += 880) {
        ids[100] = n;
        assert_int_equal(kv_seq_new(kv, &s, &e), TLM_OK);
        count_tokens(&c, kv, s, ids, 100, true);
        assert_int_equal(kv_seq_checkpoint(s, &e), TLM_OK);
        count_tokens(&c, kv, s, ids + 100, n, true);
        assert_int_equal(kv_seq_reach(s, 110), n == 20 ? 100 : 0);
        assert_int_equal(kv_index_add(s, &e), TLM_OK);
        kv_seq_free(s);
    }
    assert_int_equal(kv_index_match(kv, ids, 1000, true, &s, &e), TLM_OK);
    assert_int_equal(kv_seq_length(s), 100);
    assert_int_equal(counted(s), 100);
    kv_seq_free(s);
    kv_cache_free(kv);
    ctx_deinit(&c);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_programs), cmocka_unit_test(test_limit),
                                       cmocka_unit_test(test_states), cmocka_unit_test(test_states_and_windows)};
    return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
