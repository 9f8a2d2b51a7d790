/* Checks of the integer kernels of attention; a part of check_vector.c, which includes it. */
#ifndef TESTS_CHECK_INTS_H
#define TESTS_CHECK_INTS_H

static int16_t *guard_words(int64_t n, int most)
{
    int16_t *x = guard((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (int16_t)(pick(2 * most + 1) - most);
    return x;
}

static int same_words(const int16_t *a, const int16_t *b, int64_t n)
{
    return !memcmp(a, b, (size_t)n * sizeof *a);
}

static void check_pack(const struct vector_kernels *k, const struct vector_kernels *ref, int n)
{
    float *x = guard_random(n, 3), *factor = guard_random(n, 2), *weight = guard_random(n, 1), sum = 0, want_sum = 0;
    int16_t *y = guard_words(n, 1), *want = guard_words(n, 1);
    for (int kind = 0; kind < 4; kind++) {
        const float *f = kind & 1 ? factor : NULL, *w = kind & 2 ? weight : NULL;
        float unit = k->int_pack(y, &sum, x, f, w, n, 5000), other = ref->int_pack(want, &want_sum, x, f, w, n, 5000);
        int ok = unit == other && same_words(y, want, n) && (!w || sum == want_sum);
        double total = 0;
        int most = 0;
        for (int i = 0; i < n; i++) {
            double v = (double)x[i] * (f ? (double)f[i] : 1);
            ok &= fabs(y[i] * (double)unit - v) <= 0.502 * (double)unit;
            most = abs(y[i]) > most ? abs(y[i]) : most;
            total += (double)x[i] * (double)weight[i];
        }
        check(ok && most == 5000 && (!w || fabs(total - (double)sum) < 1e-4), "int_pack", n, kind);
    }
    memset(x, 0, (size_t)n * sizeof *x);
    x[n - 1] = 1e-33f;
    check(k->int_pack(y, &sum, x, NULL, NULL, n, 100) == 0 && y[n - 1] == 0, "int_pack of nothing", n, 0);
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        x[pick(n)] = odd[i];
        check(isnan(k->int_pack(y, &sum, x, NULL, NULL, n, 100)), "int_pack of no number", n, i);
    }
    guard_release();
}

static void check_dot(const struct vector_kernels *k, const struct vector_kernels *ref, int rows, int n, int width)
{
    struct int_dot d = {rows, n, width, n + 2 * pick(3), width + 8 * pick(3), width + pick(9), pick(2), NULL, 0};
    if (pick(2)) {
        d.ahead = guard(500);
        d.ahead_bytes = 500;
    }
    int16_t *a = guard_words((rows - 1) * d.a_stride + n, 2000),
            *tile = guard_words((n - 1) * d.tile_stride + width, 4000);
    int64_t out = (rows - 1) * d.y_stride + width;
    float *y = guard_random(out, 3), *want = guard_f32(out), *scale = guard_random(rows, 1e-4f),
          *base = pick(2) ? guard_random(rows, 1) : NULL;
    memcpy(want, y, (size_t)out * sizeof *y);
    k->int_dot(y, a, tile, scale, base, &d);
    ref->int_dot(want, a, tile, scale, base, &d);
    check(same(y, want, out), "int_dot", rows, n);
    guard_release();
}

static void check_words(const struct vector_kernels *k, const struct vector_kernels *ref, int n)
{
    int16_t *y = guard_words(n, 1), *want = guard_words(n, 1), *factor = guard_words(n, 8000),
            *offset = guard_words(n, 4000), *levels = guard_words(16, 2047);
    uint16_t *at = guard(sizeof *at * (size_t)n / KV_RUN), *channel = guard(sizeof *at * (size_t)n / KV_RUN);
    for (int i = 0; i < n / KV_RUN; i++) {
        at[i] = (uint16_t)(n / KV_RUN - 1 - i);
        channel[i] = (uint16_t)pick(n);
    }
    for (int bits = 1; bits <= 8; bits++) {
        size_t bytes = kv_planes_bytes(n, bits);
        uint8_t *in = guard(bytes), codes[256];
        for (size_t i = 0; i < bytes; i++)
            in[i] = (uint8_t)pick(256);
        kv_planes_unpack(codes, in, n, bits);
        int ok = 1;
        k->kv_words(y, in, bits, n);
        for (int i = 0; i < n; i++)
            ok &= y[i] == codes[i];
        check(ok, "kv_words", bits, n);
        k->kv_channel_words(y, in, bits, at, channel, n / KV_RUN, 14 - bits, factor, offset);
        ref->kv_channel_words(want, in, bits, at, channel, n / KV_RUN, 14 - bits, factor, offset);
        for (int i = 0; i < n; i++) {
            int c = channel[i / KV_RUN], row = at[i / KV_RUN];
            double v = codes[i] * (double)(1 << (14 - bits)) * factor[c] / 32768 + offset[c];
            ok &= fabs(y[row * KV_RUN + i % KV_RUN] - v) <= 0.5;
        }
        check(ok && same_words(y, want, n), "kv_channel_words", bits, n);
        if (bits > 4)
            continue;
        k->kv_level_words(y, in, bits, n, levels);
        for (int i = 0; i < n; i++)
            ok &= y[i] == levels[codes[i]];
        check(ok, "kv_level_words", bits, n);
    }
    guard_release();
}

static void check_channel_units(const struct vector_kernels *k, const struct vector_kernels *ref, int n, int width)
{
    float *scale = guard_random(n, 1), *low = guard_random(n, 5);
    int16_t *factor = guard_words(n, 1), *offset = guard_words(n, 1), *factor2 = guard_words(n, 1),
            *offset2 = guard_words(n, 1);
    float unit = k->kv_channel_units(factor, offset, scale, low, n, width);
    int ok = unit == ref->kv_channel_units(factor2, offset2, scale, low, n, width);
    for (int i = 0; i < n; i++) {
        double u = (double)unit, s = factor[i] * u / (2 << width);
        ok &=
            fabs(offset[i] * u - (double)low[i]) <= 0.501 * u && fabs(s - (double)scale[i]) <= 0.501 * u / (2 << width);
        ok &= fabs((double)low[i]) + fabs((double)scale[i]) * ((1 << width) - 1) <= (KEY_MOST + 0.01) * u;
    }
    check(ok && same_words(factor, factor2, n) && same_words(offset, offset2, n), "kv_channel_units", n, width);
    memset(scale, 0, (size_t)n * sizeof *scale);
    memset(low, 0, (size_t)n * sizeof *low);
    check(k->kv_channel_units(factor, offset, scale, low, n, width) == 0 && factor[0] == 0,
          "kv_channel_units of nothing", n, width);
    guard_release();
}

static void check_word_rows(const struct vector_kernels *k, const struct vector_kernels *ref)
{
    enum { N = KV_BLOCK };
    int16_t *a = guard_words(N, 4095), *b = guard_words(N, 4095), *c = guard_words(N, 32767),
            *s = guard_words(N, 32767);
    int16_t *a2 = guard_words(N, 1), *b2 = guard_words(N, 1), a3[N], b3[N];
    memcpy(a2, a, sizeof a3);
    memcpy(b2, b, sizeof b3);
    memcpy(a3, a, sizeof a3);
    memcpy(b3, b, sizeof b3);
    k->kv_turn_words(a, b, c, s);
    ref->kv_turn_words(a2, b2, c, s);
    int ok = 1;
    for (int t = 0; t < N; t++) {
        ok &= fabs(a[t] - (a3[t] * (double)c[t] - b3[t] * (double)s[t]) / 32768) <= 1;
        ok &= fabs(b[t] - (a3[t] * (double)s[t] + b3[t] * (double)c[t]) / 32768) <= 1;
    }
    check(ok && same_words(a, a2, N) && same_words(b, b2, N), "kv_turn_words", 0, 0);
    for (int half = 1; half <= N / 2; half += 1 + pick(7)) {
        int16_t *x = guard_words(2 * half, 4095), *y = guard_words(2 * half, 1), *y2 = guard_words(2 * half, 1);
        k->int_turn_back(y, x, c, s, half);
        ref->int_turn_back(y2, x, c, s, half);
        for (int i = 0; i < half; i++) {
            ok &= fabs(y[i] - (x[i] * (double)c[i] + x[half + i] * (double)s[i]) / 32768) <= 1;
            ok &= fabs(y[half + i] - (x[half + i] * (double)c[i] - x[i] * (double)s[i]) / 32768) <= 1;
        }
        check(ok && same_words(y, y2, 2 * half), "int_turn_back", half, 0);
    }
    float *y = guard_random(N, 2), *want = guard_f32(N), *x = guard_random(N, 2), *f = guard_random(N, 1),
          *o = guard_random(N, 1);
    memcpy(want, y, N * sizeof *y);
    k->kv_scores_add(y, x, f, o, 0.7f);
    for (int t = 0; t < N; t++)
        want[t] = fmaf(x[t], f[t], fmaf(0.7f, o[t], want[t]));
    check(same(y, want, N), "kv_scores_add", 0, 0);
    guard_release();
}

static void check_ints(const struct vector_kernels *k, const struct vector_kernels *ref)
{
    for (int n = 32; n <= 256; n += 32) {
        check_pack(k, ref, n);
        for (int width = 2; width <= 8; width++)
            check_channel_units(k, ref, n, width);
        for (int rows = 1; rows <= 15; rows += 1 + pick(3))
            check_dot(k, ref, rows, 2 * (1 + pick(n / 2)), n);
    }
    for (int n = KV_RUN; n <= 4 * KV_RUN; n += KV_RUN)
        check_words(k, ref, n);
    for (int i = 0; i < 10; i++)
        check_word_rows(k, ref);
}

#endif
