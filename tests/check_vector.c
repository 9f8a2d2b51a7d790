/* Checks the vector and attention kernels: every slot of every instruction set
 * against the scalar one, at odd sizes and up against unmapped pages; attention
 * against a plain computation in double, and bit by bit against itself in other
 * company. Prints what failed and, last, "N passed, N failed".
 *
 * usage: check_vector [--bench] */
#define _GNU_SOURCE
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/cpu_backend.h"
#include "base/cpu.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/pool.h"

static int passed, failed;
static const char *isa_now = "";

static void check(int ok, const char *what, long a, long b)
{
    if (ok) {
        passed++;
        return;
    }
    failed++;
    if (failed <= 50)
        printf("FAILED %s: %s (%ld, %ld)\n", isa_now, what, a, b);
}

struct isa {
    const char *name;
    void (*init)(struct vector_kernels *k);
    int rounds;  /* of the random attention checks: fewer where slow or emulated, */
    int longest; /* and with shorter contexts */
    bool small;  /* and fewer dimensions */
};

/* The sets that can run here, those that another build covers left out. */
static int isas(struct isa *out)
{
    int n = 0;
#ifdef TLM_SIMDE
    out[n++] = (struct isa){"avx512", vector_init_avx512, 6, 1500, true};
#else
    out[n++] = (struct isa){"scalar", vector_init_scalar, 2, 300, true};
#if defined(__x86_64__)
    if (cpu_features() & 1u << CPU_AVX2)
        out[n++] = (struct isa){"avx2", vector_init_avx2, 40, 2300, false};
    if (cpu_features() & 1u << CPU_AVX512)
        out[n++] = (struct isa){"avx512", vector_init_avx512, 40, 2300, false};
#elif defined(__aarch64__)
    out[n++] = (struct isa){"neon", vector_init_neon, 4, 1500, true};
#endif
#endif
    return n;
}

/* Random numbers */

static uint64_t rng_state = 88172645463325252u;

static uint32_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}

static int pick(int n)
{
    return (int)(rng() % (uint32_t)n);
}

static float uniform(float lo, float hi)
{
    return lo + (hi - lo) * ((float)(rng() >> 8) * 0x1p-24f);
}

static void fill(float *x, int64_t n, float range)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = uniform(-range, range);
}

/* Memory that ends at an unmapped page; freed all together. Filled with bits
 * that are NaN in every float type. */

static struct {
    void *base;
    size_t bytes;
} guarded[8192];
static int n_guarded;

static void *guard(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), full = (bytes + page - 1) / page * page + page;
    char *p = mmap(NULL, full, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || n_guarded == (int)(sizeof guarded / sizeof *guarded)) {
        printf("out of memory\n");
        exit(1);
    }
    mprotect(p + full - page, page, PROT_NONE);
    memset(p, 0xff, full - page);
    guarded[n_guarded].base = p;
    guarded[n_guarded++].bytes = full;
    return p + full - page - bytes;
}

static float *guard_f32(int64_t n)
{
    return guard((size_t)n * sizeof(float));
}

static float *guard_random(int64_t n, float range)
{
    float *x = guard_f32(n);
    fill(x, n, range);
    return x;
}

static void guard_release(void)
{
    while (n_guarded) {
        n_guarded--;
        munmap(guarded[n_guarded].base, guarded[n_guarded].bytes);
    }
}

static int same(const void *a, const void *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof(float)) == 0;
}

/* Equal as numbers (0 == -0, NaN == NaN) within the given distance. */
static int close_to(const float *a, const float *b, int64_t n, float absolute, float relative)
{
    for (int64_t i = 0; i < n; i++) {
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
            continue;
        if (!(fabsf(a[i] - b[i]) <= absolute + relative * fabsf(b[i])))
            return 0;
    }
    return 1;
}

/* One-thread kernels against scalar */

static const int64_t sizes[] = {1,  2,  3,  4,  5,  7,  8,  9,   12,  15,  16,  17,  23,   24,   31,
                                32, 33, 47, 48, 63, 64, 65, 100, 127, 128, 129, 576, 1000, 4096, 4099};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void check_elementwise(const struct vector_kernels *k, const struct vector_kernels *ref, int64_t n)
{
    float *x = guard_random(n, 8), *g = guard_random(n, 8), *y = guard_f32(n), *want = guard_f32(n);
    for (int64_t i = 0; i < n; i++)
        if (pick(20) == 0)
            x[i] = uniform(-200, 200);
    k->add(y, x, g, n);
    ref->add(want, x, g, n);
    check(same(y, want, n), "add", n, 0);
    k->scale(y, x, 1.7f, n);
    ref->scale(want, x, 1.7f, n);
    check(same(y, want, n), "scale", n, 0);
    for (int a = 0; a < ACT_COUNT; a++) {
        k->act_mul[a](y, x, g, n);
        ref->act_mul[a](want, x, g, n);
        check(close_to(y, want, n, 4e-6f, 1e-6f), "act_mul", a, n);
    }
    k->softcap(y, x, 30.0f, n);
    ref->softcap(want, x, 30.0f, n);
    check(close_to(y, want, n, 0, 4e-7f), "softcap", n, 0);

    /* in two parts, and over the input itself */
    int64_t cut = pick((int)n + 1);
    for (int a = 0; a < ACT_COUNT; a++) {
        k->act_mul[a](y, x, g, n);
        k->act_mul[a](want, x, g, cut);
        k->act_mul[a](want + cut, x + cut, g + cut, n - cut);
        check(same(y, want, n), "act_mul in two parts", a, n);
        memcpy(want, x, (size_t)n * 4);
        k->act_mul[a](want, want, g, n);
        check(same(y, want, n), "act_mul in place", a, n);
    }
    k->softcap(y, x, 5.0f, n);
    k->softcap(want, x, 5.0f, cut);
    k->softcap(want + cut, x + cut, 5.0f, n - cut);
    check(same(y, want, n), "softcap in two parts", n, cut);
}

static void check_rows(const struct vector_kernels *k, const struct vector_kernels *ref, int64_t n)
{
    float *x = guard_random(n, 3), *w = guard_random(n, 2), *y = guard_f32(n), *want = guard_f32(n);
    k->rms_norm(y, x, w, n, 1e-6f, 1.0f);
    ref->rms_norm(want, x, w, n, 1e-6f, 1.0f);
    check(same(y, want, n), "rms_norm", n, 0);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n; i++)
        want[i] = (float)((double)x[i] / sqrt(sum / (double)n + 1e-6) * (1.0 + (double)w[i]));
    check(close_to(y, want, n, 1e-7f, 1e-6f), "rms_norm in double", n, 0);
    k->rms_norm(y, x, NULL, n, 1e-5f, 0);
    ref->rms_norm(want, x, NULL, n, 1e-5f, 0);
    check(same(y, want, n), "rms_norm without weight", n, 0);

    float a = k->log_sum_exp(x, n), b = ref->log_sum_exp(x, n);
    check(close_to(&a, &b, 1, 1e-6f, 2e-7f), "log_sum_exp", n, 0);
    x[pick((int)n)] = NAN;
    if (n > 2) {
        int at = pick((int)n - 1);
        x[at] = x[at + 1] = 77;
    }
    check(k->argmax(x, n) == ref->argmax(x, n), "argmax", (long)k->argmax(x, n), (long)ref->argmax(x, n));
    a = k->max(x, n);
    b = ref->max(x, n);
    check(same(&a, &b, 1), "max", n, 0);
    int nan = 0;
    for (int64_t i = 0; i < n; i++)
        nan |= isnan(x[i]);
    check(isnan(k->log_sum_exp(x, n)) == nan, "log_sum_exp of NaN", n, 0);
    for (int64_t i = 0; i < n; i++)
        x[i] = -INFINITY;
    check(k->argmax(x, n) == 0 && k->log_sum_exp(x, n) == -INFINITY, "rows of -infinity", n, 0);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
    check(k->argmax(x, n) == -1, "argmax of NaN", n, 0);
}

/* Against a plain sum in double: the terms may cancel, so the distance is
 * measured by the sum of their sizes. */
static void check_relative(const struct vector_kernels *k, int64_t n)
{
    float *x = guard_random(n, 9), *y = guard_f32(n);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] + uniform(-1, 1);
    float lse = k->log_sum_exp(x, n);
    double want = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double term = exp((double)x[i] - (double)lse) * ((double)x[i] - (double)y[i]);
        want += term;
        size += fabs(term);
    }
    double got = k->relative(x, y, n, lse);
    check(fabs(got - want) <= 2e-6 * size, "relative", n, (long)((got - want) / size * 1e9));
    check(k->relative(x, x, n, lse) == 0, "relative to itself", n, 0);
    y[pick((int)n)] = NAN;
    check(isnan(k->relative(x, y, n, lse)), "relative of NaN", n, 0);
}

static void check_rope(const struct vector_kernels *k, const struct vector_kernels *ref, int64_t half)
{
    int64_t n = 2 * half;
    float *x = guard_random(n, 3), *cos = guard_random(half, 1), *sin = guard_random(half, 1);
    float *y = guard_f32(n), *want = guard_f32(n);
    for (int i = 0; i < 2; i++) {
        k->rope[i](y, x, cos, sin, n);
        ref->rope[i](want, x, cos, sin, n);
        check(same(y, want, n), "rope", i, n);
        memcpy(y, x, (size_t)n * 4);
        k->rope[i](y, y, cos, sin, n);
        check(same(y, want, n), "rope in place", i, n);
    }
}

static void check_convert(const struct vector_kernels *k, const struct vector_kernels *ref, int64_t n)
{
    float *x = guard_f32(n), *y = guard_f32(n), *want = guard_f32(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = pick(2) ? uniform(-70000, 70000) : uniform(-1e-4f, 1e-4f);
    const float special[] = {0,       -0.0f,     INFINITY,  -INFINITY, NAN,        65504,        65519.99f,
                             65520,   1e-8f,     0x1p-25f,  0x1p-24f,  0x1.8p-24f, 0x1.ffcp-15f, 0x1.fffp-15f,
                             1.0005f, 0x1.fep0f, 0x1.01p0f, 3.4e38f,   0x1.002p0f, 0x1.006p0f};
    for (int64_t i = 0; i < n && n > 40; i++)
        x[i] = i < (int64_t)(sizeof special / sizeof *special) ? special[i] : x[i];
    for (int t = 0; t < KV_TYPE_COUNT; t++) {
        size_t elem = kv_elem_bytes((enum kv_type)t);
        void *a = guard((size_t)n * elem), *b = guard((size_t)n * elem);
        k->store[t](a, x, n);
        ref->store[t](b, x, n);
        k->load[t](y, a, n);
        ref->load[t](want, b, n);
        int ok = 1;
        for (int64_t i = 0; i < n; i++)
            ok &= isnan(x[i]) ? isnan(y[i]) && isnan(want[i]) : fp_bits(y[i]) == fp_bits(want[i]);
        check(ok, "store and load", t, n);
    }
}

static void check_attention_kernels(const struct vector_kernels *k, const struct vector_kernels *ref, int nq, int dim)
{
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        size_t elem = kv_elem_bytes((enum kv_type)type);
        int64_t n = (int64_t)dim * KV_BLOCK;
        float *kv = guard_random(n, 2), *q = guard_random((int64_t)nq * dim, 2);
        void *block = guard((size_t)n * elem);
        ref->store[type](block, kv, n);
        float *s = guard_f32((int64_t)nq * KV_BLOCK), *want = guard_f32((int64_t)nq * KV_BLOCK);
        k->attn_qk[type](s, q, block, nq, dim, nq % 2 ? block : NULL);
        ref->attn_qk[type](want, q, block, nq, dim, NULL);
        check(same(s, want, (int64_t)nq * KV_BLOCK), "attn_qk", nq, dim);

        /* values: [lo, hi) is real, the rest NaN; the block ends at the page */
        int lo = pick(KV_BLOCK), hi = lo + 1 + pick(KV_BLOCK - lo);
        void *part = guard((size_t)hi * (size_t)dim * elem);
        memcpy((char *)part + (size_t)lo * (size_t)dim * elem, (char *)block + (size_t)lo * (size_t)dim * elem,
               (size_t)(hi - lo) * (size_t)dim * elem);
        float *acc = guard_random((int64_t)nq * dim, 1), *want_acc = guard_f32((int64_t)nq * dim);
        memcpy(want_acc, acc, (size_t)nq * (size_t)dim * 4);
        k->attn_pv[type](acc, s, part, nq, lo, hi, dim, nq % 2 ? part : NULL);
        ref->attn_pv[type](want_acc, s, part, nq, lo, hi, dim, NULL);
        check(same(acc, want_acc, (int64_t)nq * dim), "attn_pv", nq, dim);
    }
    guard_release();
}

static void check_softmax(const struct vector_kernels *k, const struct vector_kernels *ref)
{
    for (int i = 0; i < 300; i++) {
        float *s = guard_random(KV_BLOCK, 20), *want = guard_f32(KV_BLOCK);
        int lo = pick(3) ? 0 : pick(KV_BLOCK), hi = pick(3) ? KV_BLOCK : pick(KV_BLOCK + 1);
        for (int t = 0; t < KV_BLOCK; t++)
            if (t < lo || t >= hi)
                s[t] = NAN;
        memcpy(want, s, KV_BLOCK * 4);
        struct attn_state a = {-INFINITY, 0}, b;
        if (pick(2))
            a = (struct attn_state){uniform(-20, 20), uniform(1, 50)};
        b = a;
        struct attn_state before = a;
        float cap = pick(2) ? 0 : 10;
        float f, g;
        k->attn_softmax(s, &f, 1, lo, hi, 0.7f, cap, &a);
        ref->attn_softmax(want, &g, 1, lo, hi, 0.7f, cap, &b);
        check(close_to(s, want, KV_BLOCK, 1e-37f, 4e-6f), "attn_softmax", lo, hi);
        check(close_to(&f, &g, 1, 1e-37f, 2e-6f) && close_to(&a.m, &b.m, 1, 0, 4e-7f) &&
                  close_to(&a.l, &b.l, 1, 0, 4e-6f),
              "attn_softmax state", lo, hi);
        int zero = 1;
        for (int t = 0; t < KV_BLOCK; t++)
            zero &= (t >= lo && t < hi) || s[t] == 0;
        check(zero, "attn_softmax mask", lo, hi);
        if (lo >= hi)
            check(f == 1 && same(&a, &before, 2), "attn_softmax of nothing", lo, hi);

        int64_t n = 1 + pick(70);
        float *acc = guard_random(n, 1), *part = guard_random(n, 1), *acc2 = guard_f32(n), *y = guard_f32(n);
        float *y2 = guard_f32(n), sink = uniform(-3, 3);
        memcpy(acc2, acc, (size_t)n * 4);
        struct attn_state c = {uniform(-5, 5), 2}, d = c, p = {uniform(-5, 5), 3};
        k->attn_merge(&c, acc, &p, part, n);
        ref->attn_merge(&d, acc2, &p, part, n);
        check(close_to(acc, acc2, n, 1e-6f, 1e-6f) && close_to(&c.l, &d.l, 1, 0, 1e-6f), "attn_merge", n, 0);
        k->attn_finish(y, acc, &c, pick(2) ? &sink : NULL, n);
        check(!isnan(y[0]), "attn_finish", n, 0);
        k->attn_finish(y, acc, &c, &sink, n);
        ref->attn_finish(y2, acc2, &d, &sink, n);
        check(close_to(y, y2, n, 1e-6f, 2e-6f), "attn_finish with a sink", n, 0);
        guard_release();
    }
    float s[KV_BLOCK] = {0};
    struct attn_state st = {-INFINITY, 0};
    for (int t = 0; t < KV_BLOCK; t++)
        s[t] = -INFINITY;
    float f = 0;
    k->attn_softmax(s, &f, 1, 0, KV_BLOCK, 1, 0, &st);
    check(f == 1 && st.l == 0 && st.m == -INFINITY && s[0] == 0, "attn_softmax of -infinity", 0, 0);
    for (int t = 0; t < KV_BLOCK; t++)
        s[t] = NAN;
    k->attn_softmax(s, &f, 1, 0, KV_BLOCK, 1, 0, &st);
    check(isnan(st.l) && st.m != -INFINITY, "attn_softmax keeps NaN", 0, 0);
}

/* Rows together are what each is alone. */
static void check_softmax_rows(const struct vector_kernels *k)
{
    for (int i = 0; i < 100; i++) {
        int rows = 1 + pick(SOFTMAX_ROWS), lo = pick(2) ? 0 : pick(KV_BLOCK),
            hi = pick(2) ? KV_BLOCK : pick(KV_BLOCK + 1);
        float *s = guard_random(rows * KV_BLOCK, 20), *alone = guard_f32(rows * KV_BLOCK), cap = pick(2) ? 0 : 10;
        float factor[SOFTMAX_ROWS], f;
        struct attn_state st[SOFTMAX_ROWS], one[SOFTMAX_ROWS];
        if (pick(4) == 0)
            s[pick(rows * KV_BLOCK)] = pick(2) ? NAN : INFINITY;
        memcpy(alone, s, (size_t)rows * KV_BLOCK * 4);
        int good = 1;
        for (int r = 0; r < rows; r++) {
            one[r] = st[r] =
                pick(2) ? (struct attn_state){uniform(-20, 20), uniform(1, 50)} : (struct attn_state){-INFINITY, 0};
        }
        k->attn_softmax(s, factor, rows, lo, hi, 0.7f, cap, st);
        for (int r = 0; r < rows; r++) {
            k->attn_softmax(alone + r * KV_BLOCK, &f, 1, lo, hi, 0.7f, cap, &one[r]);
            good &= memcmp(&f, &factor[r], sizeof f) == 0;
        }
        check(good && memcmp(s, alone, (size_t)rows * KV_BLOCK * 4) == 0 &&
                  memcmp(st, one, (size_t)rows * sizeof *st) == 0,
              "attn_softmax of rows", rows, lo);
        guard_release();
    }
}

/* Distance in units of the last place of float32 at `want`. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

/* exp through the softmax of one block, tanh through softcap. */
static void check_math(const struct isa *isa, const struct vector_kernels *k)
{
    int tail_ok = 1;
    double worst_exp = 0, worst_tanh = 0, worst_erf = 0, worst_silu = 0;
    for (int i = 0; i < (isa->small ? 3000 : 20000); i++) {
        float s[KV_BLOCK], x[KV_BLOCK], g[KV_BLOCK], y[KV_BLOCK], one[KV_BLOCK], factor;
        struct attn_state st = {-INFINITY, 0};
        for (int t = 0; t < KV_BLOCK; t++) {
            x[t] = s[t] = t ? uniform(i % 4 ? -20 : -110, 0) : 0;
            g[t] = i % 2 ? uniform(-12, 12) : ldexpf(uniform(-1, 1), -pick(30));
            one[t] = 1;
        }
        k->attn_softmax(s, &factor, 1, 0, KV_BLOCK, 1, 0, &st);
        for (int t = 0; t < KV_BLOCK; t++)
            if (x[t] > -87) /* smaller probabilities may become 0 */
                worst_exp = fmax(worst_exp, ulps(s[t], exp((double)x[t])));
            else
                tail_ok &= s[t] >= 0 && s[t] < 1.7e-38f;
        k->softcap(y, g, 1, KV_BLOCK);
        for (int t = 0; t < KV_BLOCK; t++)
            worst_tanh = fmax(worst_tanh, ulps(y[t], tanh((double)g[t])));
        k->act_mul[ACT_GELU_ERF](y, g, one, KV_BLOCK);
        for (int t = 0; t < KV_BLOCK; t++) {
            double h = (double)g[t] / 2;
            worst_erf = fmax(worst_erf, fabs((double)y[t] - h * (1 + erf((double)g[t] * M_SQRT1_2))) / fabs(h));
        }
        k->act_mul[ACT_SILU](y, g, one, KV_BLOCK);
        for (int t = 0; t < KV_BLOCK; t++)
            worst_silu = fmax(worst_silu, ulps(y[t], (double)g[t] / (1 + exp(-(double)g[t]))));
    }
    printf("%s: exp %.2f ulp, tanh %.2f ulp, silu %.2f ulp, 1 + erf %.1e\n", isa_now, worst_exp, worst_tanh, worst_silu,
           worst_erf);
    check(tail_ok, "exp of less than -87", 0, 0);
    check(worst_exp <= 2, "exp within 2 ulp", (long)worst_exp, 0);
    check(worst_tanh <= 2.5, "tanh within 2.5 ulp", (long)worst_tanh, 0);
    check(worst_silu <= 4, "silu within 4 ulp", (long)worst_silu, 0);
    check(worst_erf <= 3e-7, "1 + erf within 3e-7", 0, 0);
    float big[4] = {1000, -1000, INFINITY, NAN}, up[4] = {1, 1, 1, 1}, y[4];
    k->softcap(y, big, 2, 4);
    check(y[0] == 2 && y[1] == -2 && y[2] == 2 && isnan(y[3]), "tanh of extremes", 0, 0);
    k->act_mul[ACT_SILU](y, big, up, 4);
    check(y[0] == 1000 && y[1] == 0 && y[2] == INFINITY && isnan(y[3]), "silu of extremes", 0, 0);
    k->act_mul[ACT_GELU_TANH](y, big, up, 4);
    check(y[0] == 1000 && y[1] == 0 && isnan(y[3]), "gelu of extremes", 0, 0);
}

/* Kernels that read codes: against scalar and against one value at a time, codes and results up against unmapped
 * pages. */
static void check_codes(const struct vector_kernels *k, const struct vector_kernels *ref, int n)
{
    float levels[32], *scale = guard_random(n, 2), *offset = guard_random(n, 2), *y = guard_f32(n),
                      *want = guard_f32(n);
    fill(levels, 32, 3);
    for (int bits = 1; bits <= 8; bits++) {
        size_t bytes = kv_planes_bytes(n, bits);
        uint8_t *in = guard(bytes), codes[256];
        for (size_t i = 0; i < bytes; i++)
            in[i] = (uint8_t)pick(256);
        kv_planes_unpack(codes, in, n, bits);
        int ok = 1;
        k->kv_affine(y, in, bits, n, 0.37f, -1.9f);
        ref->kv_affine(want, in, bits, n, 0.37f, -1.9f);
        for (int i = 0; i < n; i++)
            ok &= y[i] == fmaf(codes[i], 0.37f, -1.9f);
        check(ok && same(y, want, n), "kv_affine", bits, n);
        if (n % KV_RUN == 0) {
            uint16_t *at = guard(sizeof *at * (size_t)n / KV_RUN);
            for (int i = 0; i < n / KV_RUN; i++)
                at[i] = (uint16_t)(n / KV_RUN - 1 - i);
            k->kv_affine_runs(y, in, bits, at, n / KV_RUN, scale, offset);
            ref->kv_affine_runs(want, in, bits, at, n / KV_RUN, scale, offset);
            for (int i = 0; i < n; i++)
                ok &= y[at[i / KV_RUN] * KV_RUN + i % KV_RUN] ==
                      fmaf(codes[i], scale[at[i / KV_RUN]], offset[at[i / KV_RUN]]);
            check(ok && same(y, want, n), "kv_affine_runs", bits, n);
        }
        k->kv_affine_columns(y, in, bits, n, scale, offset);
        ref->kv_affine_columns(want, in, bits, n, scale, offset);
        for (int i = 0; i < n; i++)
            ok &= y[i] == fmaf(codes[i], scale[i], offset[i]);
        check(ok && same(y, want, n), "kv_affine_columns", bits, n);
        if (bits <= 5) {
            float *table = guard_f32(KV_LEVELS_MAX);
            memcpy(table, levels, sizeof *table << bits);
            k->kv_levels(y, in, bits, n, table);
            ref->kv_levels(want, in, bits, n, table);
            for (int i = 0; i < n; i++)
                ok &= y[i] == levels[codes[i]];
            check(ok && same(y, want, n), "kv_levels", bits, n);
        }
        if (bits == 8) {
            for (int i = 0; i < n; i++)
                in[i] = (in[i] & 0x7f) == 0x7f ? 0 : in[i];
            k->kv_e4m3(y, in, n, 0.013f);
            ref->kv_e4m3(want, in, n, 0.013f);
            for (int i = 0; i < n; i++)
                ok &= y[i] == fp_from_e4m3(in[i]) * 0.013f;
            check(ok && same(y, want, n), "kv_e4m3", n, 0);
        }
    }
    guard_release();
}

static void check_block_rows(const struct vector_kernels *k, const struct vector_kernels *ref)
{
    enum { N = KV_BLOCK };
    float *a = guard_random(N, 2), *b = guard_random(N, 2), *c = guard_random(N, 1), *s = guard_random(N, 1);
    float *a2 = guard_f32(N), *b2 = guard_f32(N), *a3 = guard_f32(N), *b3 = guard_f32(N);
    memcpy(a2, a, N * 4);
    memcpy(b2, b, N * 4);
    memcpy(a3, a, N * 4);
    memcpy(b3, b, N * 4);
    k->kv_turn(a, b, c, s);
    ref->kv_turn(a2, b2, c, s);
    int ok = 1;
    for (int t = 0; t < N; t++) {
        double x = (double)a3[t], y = (double)b3[t];
        ok &= fabs((double)a[t] - (x * (double)c[t] - y * (double)s[t])) < 1e-6;
        ok &= fabs((double)b[t] - (x * (double)s[t] + y * (double)c[t])) < 1e-6;
    }
    check(ok && same(a, a2, N) && same(b, b2, N), "kv_turn", 0, 0);
    k->kv_scores(a, c, 0.4f);
    ref->kv_scores(a2, c, 0.4f);
    k->kv_scores(b, s, 0);
    for (int t = 0; t < N; t++)
        ok &= b[t] == b2[t] * s[t];
    check(ok && same(a, a2, N), "kv_scores", 0, 0);
    guard_release();
}

#include "check_input.h"
#include "check_ints.h"

static void check_kernels(const struct isa *isa, const struct vector_kernels *ref)
{
    struct vector_kernels k;
    isa_now = isa->name;
    vector_init_scalar(&k);
    isa->init(&k);
    for (int i = 0; i < N_SIZES; i++) {
        check_elementwise(&k, ref, sizes[i]);
        check_rows(&k, ref, sizes[i]);
        check_relative(&k, sizes[i]);
        check_rope(&k, ref, sizes[i]);
        check_convert(&k, ref, sizes[i]);
        guard_release();
    }
    check_input(&k, ref);
    for (int nq = 1; nq <= 25; nq++)
        check_attention_kernels(&k, ref, nq, (int)sizes[pick(N_SIZES - 4)]);
    for (int i = 0; i < N_SIZES - 4; i++)
        check_attention_kernels(&k, ref, 1 + pick(8), (int)sizes[i]);
    for (int n = 8; n <= 200; n += 8)
        check_codes(&k, ref, n);
    for (int i = 0; i < 20; i++)
        check_block_rows(&k, ref);
    check_ints(&k, ref);
    check_softmax(&k, ref);
    check_softmax_rows(&k);
    check_math(isa, &k);
}

/* Attention as a whole */

static struct cpu_backend *backend_with(const struct isa *isa, int threads)
{
    struct cpu_backend *b = mem_new(sizeof *b);
    struct tlm_error e = {0};
    if (!b || pool_new(threads, &b->base.pool, &e) != TLM_OK)
        exit(1);
    b->threads = threads;
    vector_init_scalar(&b->vector);
    isa->init(&b->vector);
    if (!cpu_scratch(b, cpu_attend_scratch(b)))
        exit(1);
    return b;
}

static void backend_free(struct cpu_backend *b)
{
    pool_free(b->base.pool);
    mem_free_pages(b->scratch, b->scratch_bytes);
    mem_free(b);
}

static struct tensor matrix(float *data, int64_t rows, int64_t cols)
{
    return (struct tensor){DT_F32, 2, {rows, cols, 1, 1}, data};
}

enum { MAX_LENGTH = 6000, MAX_BLOCKS = MAX_LENGTH / KV_BLOCK + 1 };

/* A sequence: all queries, keys and values of positions 0 .. length, and a
 * cache that holds the first of them. */
struct seq {
    int64_t length, pos, base;
    float *q, *k, *v; /* [length, heads * dim] */
    struct attn_block blocks[MAX_BLOCKS];
};

/* The first n of blocks hold positions from 0 up to `end`. */
static void count_blocks(struct attn_block *blocks, int n, int64_t end)
{
    for (int b = 0; b < n; b++) {
        int64_t left = end - (int64_t)b * KV_BLOCK;
        blocks[b].start = (int64_t)b * KV_BLOCK;
        blocks[b].index = b;
        blocks[b].count = left < 0 ? 0 : left < KV_BLOCK ? (int)left : KV_BLOCK;
    }
}

/* Blocks first .. of a sequence, all exact, for rows at pos up. */
static struct attn_span exact_span(int64_t row, int64_t rows, int64_t pos, const struct attn_block *blocks, int first)
{
    int n = (int)((pos + rows + KV_BLOCK - 1) / KV_BLOCK), own = (int)(pos / KV_BLOCK);
    return (struct attn_span){row, rows, pos, blocks + first, n - first, blocks + own, n - own, own - first};
}

static void seq_make(struct seq *s, const struct attn_args *a, int64_t length)
{
    const struct kv_shape *h = &a->shape;
    *s = (struct seq){.length = length};
    s->q = guard_random(length * a->n_heads * h->head_dim, 2);
    s->k = guard_random(length * h->n_heads * h->head_dim, 2);
    s->v = guard_random(length * h->n_heads * h->v_dim, 2);
    for (int64_t b = 0; b * KV_BLOCK < length; b++)
        s->blocks[b].data = guard(kv_layer_bytes(h));
}

/* Lets go of blocks that no row from `pos` on sees; nothing may read them. */
static void seq_drop(struct seq *s, const struct attn_args *a)
{
    if (a->window && s->pos >= a->window)
        s->base = (s->pos - a->window + 1) / KV_BLOCK * KV_BLOCK;
}

/* The next rows[i] positions of each sequence in one call, their results put
 * into out[i] + first row. */
static void step(struct cpu_backend *b, const struct attn_args *args, struct seq *const *seqs, const int64_t *rows,
                 float *const *out, int n)
{
    struct attn_args a = *args;
    struct attn_span spans[64];
    int64_t total = 0, qn = a.n_heads * a.shape.head_dim, kn = (int64_t)a.shape.n_heads * a.shape.head_dim;
    int64_t vn = (int64_t)a.shape.n_heads * a.shape.v_dim, yn = (int64_t)a.n_heads * a.shape.v_dim;
    for (int i = 0; i < n; i++)
        total += rows[i];
    float *q = mem_alloc_array((size_t)(total * (qn + kn + vn + yn)), 4);
    float *k = q + total * qn, *v = k + total * kn, *y = v + total * vn;
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        struct seq *s = seqs[i];
        seq_drop(s, &a);
        count_blocks(s->blocks, MAX_BLOCKS, s->pos + rows[i]);
        spans[i] = exact_span(at, rows[i], s->pos, s->blocks, (int)(s->base / KV_BLOCK));
        memcpy(q + at * qn, s->q + s->pos * qn, (size_t)(rows[i] * qn) * 4);
        memcpy(k + at * kn, s->k + s->pos * kn, (size_t)(rows[i] * kn) * 4);
        memcpy(v + at * vn, s->v + s->pos * vn, (size_t)(rows[i] * vn) * 4);
        at += rows[i];
    }
    a.spans = spans;
    a.n_spans = n;
    struct tensor tq = matrix(q, total, qn), tk = matrix(k, total, kn), tv = matrix(v, total, vn),
                  ty = matrix(y, total, yn);
    cpu_kv_write(&b->base, &a, &tk, &tv);
    cpu_attend(&b->base, &a, &ty, &tq);
    for (int i = 0; i < n; i++) {
        memcpy(out[i] + seqs[i]->pos * yn, y + spans[i].row * yn, (size_t)(rows[i] * yn) * 4);
        seqs[i]->pos += rows[i];
    }
    mem_free(q);
}

static float rounded(enum kv_type t, float x)
{
    return t == KV_F16 ? fp_from_f16(fp_to_f16(x)) : t == KV_BF16 ? fp_from_bf16(fp_to_bf16(x)) : x;
}

/* Row p of head h in double. */
static void reference(const struct attn_args *a, const struct seq *s, int64_t p, int h, double *y)
{
    const struct kv_shape *k = &a->shape;
    int g = h / (a->n_heads / k->n_heads);
    static double logit[MAX_LENGTH];
    double m = a->sinks ? (double)a->sinks[h] : -INFINITY, l = 0;
    int64_t from = a->window && p + 1 > a->window ? p + 1 - a->window : 0;
    for (int64_t t = from; t <= p; t++) {
        double x = 0;
        for (int d = 0; d < k->head_dim; d++)
            x += (double)s->q[(p * a->n_heads + h) * k->head_dim + d] *
                 (double)rounded(k->type, s->k[(t * k->n_heads + g) * k->head_dim + d]);
        x *= (double)a->scale;
        if (a->softcap != 0)
            x = (double)a->softcap * tanh(x / (double)a->softcap);
        logit[t] = x;
        m = fmax(m, x);
    }
    if (a->sinks)
        l = exp((double)a->sinks[h] - m);
    for (int j = 0; j < k->v_dim; j++)
        y[j] = 0;
    for (int64_t t = from; t <= p; t++) {
        double e = exp(logit[t] - m);
        l += e;
        for (int j = 0; j < k->v_dim; j++)
            y[j] += e * (double)rounded(k->type, s->v[(t * k->n_heads + g) * k->v_dim + j]);
    }
    for (int j = 0; j < k->v_dim; j++)
        y[j] /= l;
}

static float sinks_store[64];

static struct attn_args random_args(bool small)
{
    static const int dims[] = {16, 7, 24, 36, 64, 80, 96, 128, 256}, groups[] = {1, 2, 3, 7, 4, 8, 27};
    static const int64_t windows[] = {0, 0, 0, 1, 5, 64, 100, 512, 1000, 1500};
    struct attn_args a = {0};
    a.shape.type = (enum kv_type)pick(KV_TYPE_COUNT);
    a.shape.n_heads = 1 + pick(2);
    a.shape.head_dim = dims[pick(small ? 4 : 9)];
    a.shape.v_dim = pick(2) ? a.shape.head_dim : dims[pick(small ? 4 : 9)];
    a.n_heads = a.shape.n_heads * groups[pick(small ? 4 : 7)];
    a.scale = 1 / sqrtf((float)a.shape.head_dim);
    a.softcap = pick(3) ? 0 : 3;
    a.window = windows[pick(10)];
    fill(sinks_store, 64, 3);
    a.sinks = pick(3) ? NULL : sinks_store;
    return a;
}

static void check_against_double(const struct isa *isa, struct cpu_backend *b)
{
    for (int i = 0; i < isa->rounds; i++) {
        struct attn_args a = random_args(isa->small);
        struct seq seq[2], *seqs[2] = {&seq[0], &seq[1]};
        float *out[2];
        int64_t yn = (int64_t)a.n_heads * a.shape.v_dim, rows[2];
        for (int j = 0; j < 2; j++) {
            int64_t before = pick(3) ? pick(300) : pick(isa->longest);
            rows[j] = 1 + (pick(2) ? pick(4) : pick(90));
            seq_make(&seq[j], &a, before + rows[j]);
            out[j] = guard_f32((before + rows[j]) * yn);
            if (before) /* only the cache matters */
                step(b, &a, &seqs[j], &before, &out[j], 1);
        }
        step(b, &a, seqs, rows, out, 2);
        double worst = 0, y[256];
        for (int j = 0; j < 2; j++)
            for (int n = 0; n < 12; n++) {
                int64_t p = seq[j].length - 1 - (n ? pick((int)rows[j]) : 0);
                int h = pick(a.n_heads);
                reference(&a, &seq[j], p, h, y);
                const float *got = out[j] + p * yn + (int64_t)h * a.shape.v_dim;
                for (int d = 0; d < a.shape.v_dim; d++)
                    worst = isnan(got[d]) ? INFINITY : fmax(worst, fabs((double)got[d] - y[d]));
            }
        check(worst < 4e-6, "attend against double", i, (long)(worst * 1e9));
        guard_release();
    }
}

/* Every row's bits must be those of the row alone: whole spans, small steps,
 * other sequences alongside, any number of threads. */
static void check_invariance(const struct isa *isa)
{
    struct cpu_backend *b[3];
    for (int t = 0; t < 3; t++)
        b[t] = backend_with(isa, t + 1);
    for (int i = 0; i < (isa->rounds + 2) / 3; i++) {
        struct attn_args a = random_args(isa->small);
        int64_t before = pick(isa->longest * 3 / 2), n = before + 150, yn = (int64_t)a.n_heads * a.shape.v_dim;
        struct seq s, other[3], *all[4] = {&other[0], &s, &other[1], &other[2]};
        seq_make(&s, &a, n);
        s.v[(n - 1) * a.shape.n_heads * a.shape.v_dim] = INFINITY; /* rows before must not touch it */
        float *want = guard_f32(n * yn), *got = guard_f32(n * yn), *aside[3];
        for (int j = 0; j < 3; j++) {
            seq_make(&other[j], &a, 400);
            aside[j] = guard_f32(400 * yn);
        }
        struct seq *one = &s;
        int64_t rest = 150;
        if (before)
            step(b[i % 3], &a, &one, &before, &want, 1);
        step(b[0], &a, &one, &rest, &want, 1);
        for (int t = 0; t < 3; t++)
            for (int mode = 0; mode < 3; mode++) {
                s.pos = before;
                s.base = 0;
                for (int64_t left = 150; left;) {
                    int64_t rows = mode == 0 ? 150 : mode == 1 ? (left > 7 ? 7 : left) : 1 + pick((int)left);
                    if (mode == 1 && left < 30)
                        rows = 1;
                    if (mode == 2) {
                        int64_t many[4] = {1 + pick(3), rows, 1 + pick(2), 1};
                        float *out[4] = {aside[0], got, aside[1], aside[2]};
                        for (int j = 0; j < 3; j++)
                            if (other[j].pos > 380)
                                other[j].pos = other[j].base = 0;
                        step(b[t], &a, all, many, out, 4);
                    } else {
                        step(b[t], &a, &one, &rows, &got, 1);
                    }
                    left -= rows;
                }
                check(same(got + before * yn, want + before * yn, 150 * yn), "attend in other company", i,
                      t * 10 + mode);
            }
        guard_release();
    }
    for (int t = 0; t < 3; t++)
        backend_free(b[t]);
}

/* More tiles than one round holds, and no allocation once it runs. */
static void check_many(const struct isa *isa)
{
    enum { SPANS = 900, HEADS = 6, DIM = 8 };
    struct cpu_backend *b = backend_with(isa, 2);
    struct attn_args a = {.shape = {KV_F16, HEADS, DIM, DIM}, .n_heads = HEADS, .scale = 0.3f};
    struct seq s, *one = &s;
    seq_make(&s, &a, 70);
    float *out = guard_f32(70 * HEADS * DIM), *q = guard_f32(SPANS * HEADS * DIM), *y = guard_f32(SPANS * HEADS * DIM);
    int64_t rows = 70;
    step(b, &a, &one, &rows, &out, 1);
    static struct attn_span spans[SPANS];
    for (int i = 0; i < SPANS; i++) {
        spans[i] = exact_span(i, 1, i % 70, s.blocks, 0);
        memcpy(q + i * HEADS * DIM, s.q + (i % 70) * HEADS * DIM, HEADS * DIM * 4);
    }
    a.spans = spans;
    a.n_spans = SPANS;
    struct tensor tq = matrix(q, SPANS, HEADS * DIM), ty = matrix(y, SPANS, HEADS * DIM);
    long before = mem_count();
    cpu_attend(&b->base, &a, &ty, &tq);
    check(mem_count() == before, "attend allocates nothing", mem_count() - before, 0);
    for (int i = 0; i < SPANS; i++)
        check(same(y + i * HEADS * DIM, out + (i % 70) * HEADS * DIM, HEADS * DIM), "many spans", i, 0);
    guard_release();
    backend_free(b);
}

/* More partial results than one round holds: as by one thread. */
static void check_rounds(const struct isa *isa)
{
    enum { SPANS = 60, HEADS = 24, DIM = 8, V_DIM = 256, BLOCKS = 140, THREADS = 24 };
    struct attn_args a = {.shape = {KV_F16, 1, DIM, V_DIM}, .n_heads = HEADS, .scale = 0.3f};
    static struct attn_block blocks[BLOCKS];
    static struct attn_span spans[SPANS];
    int64_t n = (int64_t)kv_layer_bytes(&a.shape) / 2;
    float *x = guard_random(n, 2), *q = guard_random(SPANS * HEADS * DIM, 2);
    struct vector_kernels k;
    vector_init_scalar(&k);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i].data = guard((size_t)n * 2);
        k.store[KV_F16](blocks[i].data, x, n);
        x[pick((int)n)] = uniform(-5, 5);
    }
    count_blocks(blocks, BLOCKS, BLOCKS * KV_BLOCK);
    for (int i = 0; i < SPANS; i++)
        spans[i] = exact_span(i, 1, BLOCKS * KV_BLOCK - SPANS + i, blocks, 0);
    a.spans = spans;
    a.n_spans = SPANS;
    float *y[2];
    for (int t = 0; t < 2; t++) {
        struct cpu_backend *b = backend_with(isa, t ? THREADS : 1);
        y[t] = guard_f32(SPANS * HEADS * V_DIM);
        struct tensor tq = matrix(q, SPANS, HEADS * DIM), ty = matrix(y[t], SPANS, HEADS * V_DIM);
        cpu_attend(&b->base, &a, &ty, &tq);
        backend_free(b);
    }
    check(same(y[0], y[1], SPANS * HEADS * V_DIM), "attend in several rounds", 0, 0);
    guard_release();
}

/* Attention over encoded blocks */

struct encoded_seq {
    int64_t length, pos;
    float *q, *k, *v; /* [length, heads * dim] */
    int n;
    void *open[MAX_BLOCKS], *sealed[MAX_BLOCKS];
    float *turn[MAX_BLOCKS];
    const int16_t *turn_words[MAX_BLOCKS];
    float *decoded; /* keys, then values of one block; see encoded_reference */
};

/* A cache of one layer, with its formats and rotary tables. */
struct encoded_cache {
    struct attn_args a;
    struct kv_codec key, value;
    struct kv_turn turn;
    char name[2 * KV_FORMAT_NAME_MAX];
};

static const char *const key_formats[] = {
    "fp8",           "affine2",   "affine3g32", "affine4g128", "affine5", "affine8",  "chan2",      "chan3+mix",
    "chan4+pre+mix", "chan5+pre", "chan6",      "chan8+pre",   "rot2",    "rot3+qjl", "rot4+qjl",   "rot8",
    "tq1",           "tq2+c",     "tq3",        "tq4.norm",    "tq5+c",   "prod2",    "prod3.orth", "prod4",
    "split2.5",      "split3.5",  "f16",        "f32",         "bf16"};
static const char *const value_formats[] = {"fp8",   "affine2",  "affine3g32", "affine4g128",  "affine6",  "affine8g32",
                                            "chan2", "chan3",    "chan4",      "chan5",        "chan8",    "tq1",
                                            "tq2",   "tq3.norm", "tq4",        "tq5.unbiased", "split2.5", "split3.5",
                                            "f16",   "f32",      "bf16"};

static const char *pick_codec(struct kv_codec *c, const char *const *names, int n, int dim, bool key)
{
    for (;;) {
        struct kv_format f;
        struct tlm_error e = {0};
        const char *p = names[pick(n)];
        if (kv_format_parse(p, strlen(p), key, &f, &e) == TLM_OK && kv_codec_init(c, &f, dim, key, &e) == TLM_OK) {
            return p;
        }
    }
}

/* cos, then sin [dims / 2] of the angles of a position. */
static void angles(float *to, int dims, int64_t position)
{
    for (int i = 0; i < dims / 2; i++) {
        double a = (double)position * pow(10000, -2.0 * i / dims);
        to[i] = (float)cos(a);
        to[dims / 2 + i] = (float)sin(a);
    }
}

static const int16_t *angle_words(const float *x, int n)
{
    int16_t *words = guard((size_t)n * sizeof *words);
    for (int i = 0; i < n; i++)
        words[i] = (int16_t)fmaxf(-32767, fminf(32767, rintf(x[i] * 32768)));
    return words;
}

static void cache_make(struct encoded_cache *c, bool small)
{
    static const int64_t keeps[] = {0, 0, 10, 100, 64};
    memset(c, 0, sizeof *c);
    do
        c->a = random_args(small);
    while (c->a.shape.head_dim < 16 || c->a.shape.v_dim < 16);
    if (pick(3) == 0) /* what every format takes */
        c->a.shape.head_dim = c->a.shape.v_dim = small ? 64 : 128;
    int dim = c->a.shape.head_dim;
    const char *key = pick_codec(&c->key, key_formats, (int)(sizeof key_formats / sizeof *key_formats), dim, true);
    snprintf(c->name, sizeof c->name, "%s:%s", key,
             pick_codec(&c->value, value_formats, (int)(sizeof value_formats / sizeof *value_formats), c->a.shape.v_dim,
                        false));
    c->a.key = &c->key;
    c->a.value = &c->value;
    c->a.keep = c->a.window ? keeps[pick(5)] : 0;
    c->a.scale = 1 / sqrtf((float)dim);
    if (!c->key.f.pre)
        return;
    int dims = pick(2) ? dim : dim / 4 * 2, half = dims / 2;
    float *places = guard_f32((int64_t)dims * KV_BLOCK), row[256];
    for (int p = 0; p < KV_BLOCK; p++) {
        angles(row, dims, p);
        for (int i = 0; i < dims; i++)
            places[i * KV_BLOCK + p] = row[i];
    }
    c->turn = (struct kv_turn){.dims = dims, .interleaved = pick(2)};
    c->turn.cos = places;
    c->turn.sin = places + half * KV_BLOCK;
    const int16_t *words = angle_words(places, dims * KV_BLOCK);
    c->turn.cos_words = words;
    c->turn.sin_words = words + half * KV_BLOCK;
    uint16_t *rows = guard(KV_DIM_MAX * sizeof *rows);
    kv_turn_rows(rows, dims, c->turn.interleaved);
    c->turn.rows = rows;
    c->a.turn = &c->turn;
}

static void encoded_make(struct encoded_seq *s, const struct encoded_cache *c, int64_t length)
{
    const struct kv_shape *h = &c->a.shape;
    *s = (struct encoded_seq){.length = length, .n = (int)((length + KV_BLOCK - 1) / KV_BLOCK)};
    s->q = guard_random(length * c->a.n_heads * h->head_dim, 2);
    s->k = guard_random(length * h->n_heads * h->head_dim, 2);
    s->v = guard_random(length * h->n_heads * h->v_dim, 2);
    s->decoded = guard_f32((int64_t)KV_BLOCK * (h->head_dim + h->v_dim));
    for (int b = 0; b < s->n; b++) {
        s->open[b] = guard(kv_layer_bytes(h));
        s->sealed[b] = guard((size_t)h->n_heads * (c->key.bytes + c->value.bytes));
        if (c->a.turn) {
            s->turn[b] = guard_f32(c->turn.dims);
            angles(s->turn[b], c->turn.dims, (int64_t)b * KV_BLOCK);
            s->turn_words[b] = angle_words(s->turn[b], c->turn.dims);
        }
    }
}

/* Its blocks when it holds `end` tokens; the exact ones that rows from `pos` up stand in follow in `own`. */
static struct attn_span encoded_span(const struct encoded_seq *s, int64_t row, int64_t rows, struct attn_block *blocks)
{
    int64_t end = s->pos + rows;
    int n = (int)((end + KV_BLOCK - 1) / KV_BLOCK), own = (int)(s->pos / KV_BLOCK);
    count_blocks(blocks, n, end);
    for (int b = 0; b < n; b++) {
        blocks[b].encoded = blocks[b].count == KV_BLOCK;
        blocks[b].data = blocks[b].encoded ? s->sealed[b] : s->open[b];
        blocks[b].turn = s->turn[b];
        blocks[b].turn_words = s->turn_words[b];
    }
    for (int b = own; b < n; b++) {
        blocks[n + b - own] = blocks[b];
        blocks[n + b - own].encoded = false;
        blocks[n + b - own].data = s->open[b];
    }
    return (struct attn_span){row, rows, s->pos, blocks, n, blocks + n, n - own, own};
}

static void encoded_step(struct cpu_backend *b, const struct encoded_cache *c, struct encoded_seq *const *seqs,
                         const int64_t *rows, float *const *out, int n)
{
    struct attn_args a = c->a;
    struct attn_span spans[4];
    static struct attn_block blocks[4][2 * MAX_BLOCKS];
    int64_t total = 0, at = 0, qn = a.n_heads * a.shape.head_dim, kn = (int64_t)a.shape.n_heads * a.shape.head_dim;
    int64_t vn = (int64_t)a.shape.n_heads * a.shape.v_dim, yn = (int64_t)a.n_heads * a.shape.v_dim;
    for (int i = 0; i < n; i++)
        total += rows[i];
    float *q = mem_alloc_array((size_t)(total * (qn + kn + vn + yn)), 4);
    float *k = q + total * qn, *v = k + total * kn, *y = v + total * vn;
    for (int i = 0; i < n; i++) {
        struct encoded_seq *s = seqs[i];
        spans[i] = encoded_span(s, at, rows[i], blocks[i]);
        memcpy(q + at * qn, s->q + s->pos * qn, (size_t)(rows[i] * qn) * 4);
        memcpy(k + at * kn, s->k + s->pos * kn, (size_t)(rows[i] * kn) * 4);
        memcpy(v + at * vn, s->v + s->pos * vn, (size_t)(rows[i] * vn) * 4);
        at += rows[i];
    }
    a.spans = spans;
    a.n_spans = n;
    struct tensor tq = matrix(q, total, qn), tk = matrix(k, total, kn), tv = matrix(v, total, vn),
                  ty = matrix(y, total, yn);
    cpu_kv_write(&b->base, &a, &tk, &tv);
    long before = mem_count();
    cpu_kv_seal(&b->base, &a);
    cpu_attend(&b->base, &a, &ty, &tq);
    check(mem_count() == before, "encoded attend allocates nothing", mem_count() - before, 0);
    for (int i = 0; i < n; i++) {
        memcpy(out[i] + seqs[i]->pos * yn, y + spans[i].row * yn, (size_t)(rows[i] * yn) * 4);
        seqs[i]->pos += rows[i];
    }
    mem_free(q);
}

/* One head's keys and values of a block as row p sees it. */
static void seen_block(const struct encoded_cache *c, struct encoded_seq *s, int block, int head, bool exact)
{
    const struct kv_shape *h = &c->a.shape;
    float *k = s->decoded, *v = k + KV_BLOCK * h->head_dim;
    static float work[512 * 1024], *x;
    static uint8_t bytes[KV_BLOCK * 256 * 4 + 4096];
    for (int part = 0; part < 2; part++) {
        const struct kv_codec *codec = part ? &c->value : &c->key;
        struct kv_turn turn = c->turn;
        x = part ? v : k;
        for (int t = 0; t < KV_BLOCK; t++)
            for (int d = 0; d < codec->dim; d++) {
                int64_t at = (int64_t)block * KV_BLOCK + t;
                x[t * codec->dim + d] =
                    at < s->length ? rounded(h->type, (part ? s->v : s->k)[(at * h->n_heads + head) * codec->dim + d])
                                   : 0;
            }
        if (exact)
            continue;
        turn.start_cos = s->turn[block];
        turn.start_sin = s->turn[block] ? s->turn[block] + turn.dims / 2 : NULL;
        struct kv_turn *use = !part && c->a.turn ? &turn : NULL;
        kv_codec_encode(codec, x, use, bytes, work);
        const uint8_t *in = (const uint8_t *)s->sealed[block] + (size_t)head * codec->bytes;
        if (part)
            in += (size_t)h->n_heads * c->key.bytes;
        check(!memcmp(bytes, in, codec->bytes), "kv_seal", block, head);
        kv_codec_decode(codec, in, use, x, work);
    }
}

/* Row p of query head h in double, and the scale of the values it sees. */
static double encoded_reference(const struct encoded_cache *c, struct encoded_seq *s, int64_t p, int h, double *y)
{
    const struct attn_args *a = &c->a;
    const struct kv_shape *shape = &a->shape;
    int head = h / (a->n_heads / shape->n_heads);
    double m = a->sinks ? (double)a->sinks[h] : -INFINITY, l = a->sinks ? 1 : 0, scale = 1;
    memset(y, 0, (size_t)shape->v_dim * sizeof *y);
    for (int b = 0; b <= p / KV_BLOCK; b++) {
        seen_block(c, s, b, head, b == p / KV_BLOCK);
        const float *k = s->decoded, *v = k + KV_BLOCK * shape->head_dim;
        for (int t = 0; t < KV_BLOCK; t++) {
            int64_t at = (int64_t)b * KV_BLOCK + t;
            if (at > p || (a->window && at <= p - a->window && at >= a->keep))
                continue;
            double x = 0;
            for (int d = 0; d < shape->head_dim; d++)
                x += (double)s->q[(p * a->n_heads + h) * shape->head_dim + d] * (double)k[t * shape->head_dim + d];
            x *= (double)a->scale;
            if (a->softcap != 0)
                x = (double)a->softcap * tanh(x / (double)a->softcap);
            double top = fmax(m, x), f = exp(m - top), e = exp(x - top);
            m = top;
            l = l * f + e;
            for (int j = 0; j < shape->v_dim; j++) {
                y[j] = y[j] * f + e * (double)v[t * shape->v_dim + j];
                scale = fmax(scale, fabs((double)v[t * shape->v_dim + j]));
            }
        }
    }
    for (int j = 0; j < shape->v_dim; j++)
        y[j] /= l;
    return scale;
}

static void check_encoded(const struct isa *isa, struct cpu_backend *b)
{
    for (int i = 0; i < (isa->small ? 5 : 14); i++) {
        struct encoded_cache c;
        static struct encoded_seq seq[2];
        struct encoded_seq *seqs[2] = {&seq[0], &seq[1]};
        struct tlm_error e = {0};
        float *out[2];
        int64_t rows[2];
        cache_make(&c, isa->small);
        check(cpu_kv_prepare(&b->base, &c.key, &c.value, &e) == TLM_OK, "kv_prepare", i, 0);
        int64_t yn = (int64_t)c.a.n_heads * c.a.shape.v_dim;
        for (int j = 0; j < 2; j++) {
            int64_t before = pick(isa->small ? 200 : pick(6) ? 400 : 1300);
            rows[j] = 1 + (pick(2) ? pick(4) : pick(150));
            encoded_make(&seq[j], &c, before + rows[j]);
            out[j] = guard_f32((before + rows[j]) * yn);
            if (before)
                encoded_step(b, &c, &seqs[j], &before, &out[j], 1);
        }
        encoded_step(b, &c, seqs, rows, out, 2);
        double worst = 0, y[256];
        for (int j = 0; j < 2; j++)
            for (int n = 0; n < 4; n++) {
                int64_t p = seq[j].length - 1 - (n ? pick((int)rows[j]) : 0);
                int h = pick(c.a.n_heads);
                double scale = encoded_reference(&c, &seq[j], p, h, y);
                const float *got = out[j] + p * yn + (int64_t)h * c.a.shape.v_dim;
                for (int d = 0; d < c.a.shape.v_dim; d++)
                    worst = isnan(got[d]) ? INFINITY : fmax(worst, fabs((double)got[d] - y[d]) / scale);
            }
        /* Integers: scores are sums of roundings to some 2^-12 of the greatest, of either sign. */
        check(worst < (cpu_int_keys(&c.a) || cpu_int_values(&c.a) ? 2e-3 : 2e-5), c.name, i, (long)(worst * 1e9));
        kv_codec_deinit(&c.key);
        kv_codec_deinit(&c.value);
        guard_release();
    }
}

/* As check_invariance, over encoded blocks. */
static void check_encoded_invariance(const struct isa *isa)
{
    struct cpu_backend *b[3];
    for (int t = 0; t < 3; t++)
        b[t] = backend_with(isa, t + 1);
    for (int i = 0; i < (isa->small ? 2 : 6); i++) {
        enum { REST = 150 };
        static struct encoded_seq s, other[2];
        struct encoded_cache c;
        struct tlm_error e = {0};
        cache_make(&c, isa->small);
        for (int t = 0; t < 3; t++)
            check(cpu_kv_prepare(&b[t]->base, &c.key, &c.value, &e) == TLM_OK, "kv_prepare", i, t);
        int64_t before = pick(isa->small ? 150
                              : pick(3)  ? 300
                                         : 1200),
                n = before + REST, yn = (int64_t)c.a.n_heads * c.a.shape.v_dim;
        struct encoded_seq *one = &s, *all[3] = {&other[0], &s, &other[1]};
        float *want = guard_f32(n * yn), *got = guard_f32(n * yn), *aside[2];
        encoded_make(&s, &c, n);
        for (int j = 0; j < 2; j++) {
            encoded_make(&other[j], &c, 300);
            aside[j] = guard_f32(300 * yn);
        }
        int64_t rest = REST;
        if (before)
            encoded_step(b[i % 3], &c, &one, &before, &want, 1);
        encoded_step(b[0], &c, &one, &rest, &want, 1);
        for (int t = 0; t < 3; t++)
            for (int mode = 0; mode < 3; mode++) {
                s.pos = before;
                for (int64_t left = REST, rows; left; left -= rows) {
                    rows = mode == 0 ? left : mode == 1 ? (left < 30 ? 1 : 7) : 1 + pick((int)left);
                    int64_t many[3] = {1 + pick(70), rows, 1};
                    float *out[3] = {aside[0], got, aside[1]};
                    for (int j = 0; j < 2; j++)
                        if (other[j].pos > 229)
                            other[j].pos = 0;
                    if (mode == 2)
                        encoded_step(b[t], &c, all, many, out, 3);
                    else
                        encoded_step(b[t], &c, &one, &rows, &got, 1);
                }
                check(same(got + before * yn, want + before * yn, REST * yn), c.name, i, t * 10 + mode);
            }
        kv_codec_deinit(&c.key);
        kv_codec_deinit(&c.value);
        guard_release();
    }
    for (int t = 0; t < 3; t++)
        backend_free(b[t]);
}

/* Slots that split rows over threads */

static void check_slots(const struct isa *isa, int threads)
{
    struct cpu_backend *b = backend_with(isa, threads);
    struct backend *base = &b->base;
    const struct vector_kernels *k = &b->vector;
    int64_t rows = 61, cols = 1023, n = rows * cols;
    float *x = guard_random(n, 4), *g = guard_random(n, 4), *y = guard_f32(n), *want = guard_f32(n);
    struct tensor tx = matrix(x, rows, cols), tg = matrix(g, rows, cols), ty = matrix(y, rows, cols);
    cpu_add(base, &ty, &tx, &tg);
    k->add(want, x, g, n);
    check(same(y, want, n), "cpu_add", threads, 0);
    cpu_scale(base, &ty, &tx, 0.3f);
    k->scale(want, x, 0.3f, n);
    check(same(y, want, n), "cpu_scale", threads, 0);
    cpu_act_mul(base, &ty, &tx, &tg, ACT_SILU);
    k->act_mul[ACT_SILU](want, x, g, n);
    check(same(y, want, n), "cpu_act_mul", threads, 0);
    cpu_softcap(base, &ty, &tx, 3);
    k->softcap(want, x, 3, n);
    check(same(y, want, n), "cpu_softcap", threads, 0);

    float *w = guard_random(341, 1); /* three rows per token */
    struct weight weight = {
        .view = {.format = quant_dense(DT_F32), .rows = 1, .cols = 341, .data = w, .row_bytes = 341 * 4}};
    cpu_rms_norm(base, &ty, &tx, &weight, 1e-5f, 0);
    for (int64_t r = 0; r < 3 * rows; r++)
        k->rms_norm(want + r * 341, x + r * 341, w, 341, 1e-5f, 0);
    check(same(y, want, n), "cpu_rms_norm", threads, 0);

    int32_t ids[61];
    for (int i = 0; i < 61; i++)
        ids[i] = pick(61);
    cpu_rows(base, &ty, &tx, ids);
    weight.view = (struct quant_view){
        .format = quant_dense(DT_F32), .rows = rows, .cols = cols, .data = x, .row_bytes = (size_t)cols * 4};
    int ok = 1;
    for (int64_t r = 0; r < rows; r++)
        ok &= same(y + r * cols, x + ids[r] * cols, cols);
    check(ok, "cpu_rows", threads, 0);
    memset(y, 0, (size_t)n * 4);
    cpu_embed(base, &ty, ids, &weight);
    for (int64_t r = 0; r < rows; r++)
        ok &= same(y + r * cols, x + ids[r] * cols, cols);
    check(ok, "cpu_embed", threads, 0);

    for (int pairs = 0; pairs < 2; pairs++) { /* 11 heads of 93, 50 of them rotated */
        struct rope_args r = {.head_dim = 93, .dims = 50, .interleaved = pairs};
        r.cos = guard_random(rows * 25, 1);
        r.sin = guard_random(rows * 25, 1);
        cpu_rope(base, &ty, &tx, &r);
        memcpy(want, x, (size_t)n * 4);
        for (int64_t i = 0; i < rows * 11; i++)
            k->rope[pairs](want + i * 93, x + i * 93, r.cos + i / 11 * 25, r.sin + i / 11 * 25, 50);
        check(same(y, want, n), "cpu_rope", threads, pairs);
    }
    guard_release();
    backend_free(b);
}

/* Losses, divergence and agreement of rows of logits against double; the same
 * bits with any number of threads, and with a row alone. */
static void check_score(const struct isa *isa)
{
    enum { ROWS = 19 };
    static const int64_t vocabs[] = {1, 2, 31, 33, 260, 1023, 5000};
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        int64_t vocab = vocabs[v];
        float *x = guard_random(ROWS * vocab, 12), *r = guard_f32(ROWS * vocab);
        int32_t t[ROWS];
        struct row_score first[ROWS], got[ROWS], plain[ROWS], one;
        for (int64_t i = 0; i < ROWS * vocab; i++)
            r[i] = x[i] + uniform(-1, 1);
        memcpy(r, x, (size_t)vocab * 4);
        for (int i = 0; i < ROWS; i++)
            t[i] = pick((int)vocab);
        for (int threads = 1; threads <= 3; threads++) {
            struct cpu_backend *b = backend_with(isa, threads);
            cpu_score(&b->base, x, r, t, ROWS, vocab, got);
            cpu_score(&b->base, x, NULL, t, ROWS, vocab, plain);
            for (int i = 0; i < ROWS; i++) {
                cpu_score(&b->base, x + i * vocab, r + i * vocab, t + i, 1, vocab, &one);
                if (threads == 1)
                    first[i] = got[i];
                check(one.loss == got[i].loss && one.kl == got[i].kl && got[i].loss == first[i].loss &&
                          got[i].r_loss == first[i].r_loss && got[i].kl == first[i].kl && got[i].same == first[i].same,
                      "cpu_score in other company", vocab, i);
                check(plain[i].loss == got[i].loss && plain[i].kl == 0, "cpu_score without a reference", vocab, i);
            }
            backend_free(b);
        }
        for (int i = 0; i < ROWS; i++) {
            const float *a = x + i * vocab, *c = r + i * vocab;
            double sum[2] = {0}, kl = 0;
            int64_t best[2] = {0};
            for (int64_t j = 0; j < vocab; j++) {
                sum[0] += exp((double)a[j]);
                sum[1] += exp((double)c[j]);
                best[0] = a[j] > a[best[0]] ? j : best[0];
                best[1] = c[j] > c[best[1]] ? j : best[1];
            }
            double lse[2] = {log(sum[0]), log(sum[1])};
            for (int64_t j = 0; j < vocab; j++)
                kl += exp((double)c[j] - lse[1]) * ((double)c[j] - lse[1] - (double)a[j] + lse[0]);
            check(fabs(first[i].loss - (lse[0] - (double)a[t[i]])) < 3e-6, "cpu_score: loss", vocab, i);
            check(fabs(first[i].r_loss - (lse[1] - (double)c[t[i]])) < 3e-6, "cpu_score: reference's loss", vocab, i);
            check(fabs(first[i].kl - kl) < 5e-6, "cpu_score: divergence", vocab, (long)((first[i].kl - kl) * 1e9));
            check(first[i].same == (best[0] == best[1]), "cpu_score: same best", vocab, i);
        }
        check(first[0].kl == 0 && first[0].same && first[0].loss == first[0].r_loss, "cpu_score of the same", vocab, 0);
        guard_release();
    }
}

static void check_backend(void)
{
    struct backend *b;
    struct tlm_error e = {0};
    check(backend_cpu_new(0, false, &b, &e) == TLM_EINVAL && !b, "no threads", 0, 0);
    memset(&e, 0, sizeof e);
    check(backend_cpu_new(2, false, &b, &e) == TLM_OK, "backend_cpu_new", 0, 0);
    b->ops->sync(b);
    b->ops->free(b);
    for (int n = 1;; n++) { /* each allocation failing in turn */
        mem_fail_at(n, 0);
        memset(&e, 0, sizeof e);
        enum tlm_status status = backend_cpu_new(2, false, &b, &e);
        mem_fail_at(0, 0);
        if (status == TLM_OK) {
            b->ops->free(b);
            check(n > 3, "allocations of backend_cpu_new", n, 0);
            break;
        }
        check(status == TLM_ENOMEM && !b, "backend_cpu_new without memory", n, 0);
    }
    check(strncmp(backend_cpu_isa_list(), "scalar", 6) == 0 && strchr(backend_cpu_isa_list(), '*'), "isa list", 0, 0);
}

#include "bench_vector.h"

int main(int argc, char **argv)
{
    struct isa list[4];
    struct vector_kernels ref;
    int n = isas(list);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && !strcmp(argv[1], "--bench"))
        return bench(list, n);
    vector_init_scalar(&ref);
    for (int i = 0; i < n; i++) {
        check_kernels(&list[i], &ref);
        for (int threads = 1; threads <= 3; threads++) {
            struct cpu_backend *b = backend_with(&list[i], threads);
            check_against_double(&list[i], b);
            check_encoded(&list[i], b);
            backend_free(b);
            check_slots(&list[i], threads);
        }
        check_score(&list[i]);
        check_invariance(&list[i]);
        check_encoded_invariance(&list[i]);
        check_many(&list[i]);
        if (!list[i].small)
            check_rounds(&list[i]);
    }
    isa_now = "";
    check_backend();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
