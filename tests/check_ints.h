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

/* x [rows][width] of a tile of this family, read by int_dot with 1 at one place of each row of the other side. */
static void read_tile(const struct vector_kernels *k, float *x, const int16_t *tile, int rows, int width)
{
    const struct int_dot d = {1, rows, width, rows, width, width, false, NULL, 0};
    const float one = 1;
    int16_t at[256] = {0};
    for (int i = 0; i < rows; i++) {
        at[i] = 1;
        k->int_dot(x + i * width, at, tile, &one, NULL, &d);
        at[i] = 0;
    }
}

/* A tile of rows [n][width] for k; width a multiple of KV_RUN. */
static int16_t *tile_of(const struct vector_kernels *k, const int16_t *rows, int n, int width)
{
    int16_t *tile = guard((size_t)(n * width) * sizeof *tile), *to = tile;
    for (int i = 0; i < n; i += 2)
        for (int x = 0; x < width; x += KV_RUN)
            for (int second = 0; second < 2; second++, to += KV_RUN)
                memcpy(to, rows + (i + second) * width + x, KV_RUN * sizeof *to);
    k->kv_pair_words(tile, n * width / (2 * KV_RUN));
    return tile;
}

static void check_dot(const struct vector_kernels *k, const struct vector_kernels *ref, int rows, int n, int width)
{
    int first = 32 * pick(3), columns = (first + width + KV_RUN - 1) / KV_RUN * KV_RUN;
    struct int_dot d = {rows, n, width, n + 2 * pick(3), columns, width + pick(9), pick(2), NULL, 0};
    if (pick(2)) {
        d.ahead = guard(500);
        d.ahead_bytes = 500;
    }
    int16_t *a = guard_words((rows - 1) * d.a_stride + n, 2000), *words = guard_words((int64_t)n * columns, 4000);
    int64_t out = (rows - 1) * d.y_stride + width;
    float *y = guard_random(out, 3), *want = guard_f32(out), *scale = guard_random(rows, 1e-4f),
          *base = pick(2) ? guard_random(rows, 1) : NULL;
    memcpy(want, y, (size_t)out * sizeof *y);
    double sum = 0;
    int r = pick(rows), x = pick(width), ok = 1;
    for (int i = 0; i < n; i++)
        sum += (double)a[r * d.a_stride + i] * words[i * columns + first + x];
    double expected =
        sum * (double)scale[r] + (base ? (double)base[r] : 0) + (d.add ? (double)y[r * d.y_stride + x] : 0);
    k->int_dot(y, a, tile_of(k, words, n, columns) + 2 * first, scale, base, &d);
    ref->int_dot(want, a, tile_of(ref, words, n, columns) + 2 * first, scale, base, &d);
    ok = fabs((double)y[r * d.y_stride + x] - expected) <= 1e-5 * (1 + fabs(expected) + fabs(sum * (double)scale[r]));
    check(ok && same(y, want, out), "int_dot", rows, n);
    guard_release();
}

static void check_words(const struct vector_kernels *k, int rows, int width)
{
    const int n = rows * width;
    int16_t *tile = guard_words(n, 1), *levels = guard_words(16, 2047);
    float *x = guard_f32(n);
    for (int bits = 1; bits <= 8; bits++) {
        size_t bytes = kv_planes_bytes(n, bits);
        uint8_t *in = guard(bytes), *codes = guard((size_t)n);
        for (size_t i = 0; i < bytes; i++)
            in[i] = (uint8_t)pick(256);
        kv_planes_unpack(codes, in, n, bits);
        int ok = 1;
        k->kv_words(tile, in, bits, rows, width);
        read_tile(k, x, tile, rows, width);
        for (int i = 0; i < n; i++)
            ok &= x[i] == codes[i];
        check(ok, "kv_words", bits, n);
        if (bits > 4)
            continue;
        k->kv_level_words(tile, in, bits, rows, width, levels);
        read_tile(k, x, tile, rows, width);
        for (int i = 0; i < n; i++)
            ok &= x[i] == levels[codes[i]];
        check(ok, "kv_level_words", bits, n);
    }
    guard_release();
}

static void check_channel_words(const struct vector_kernels *k, const struct vector_kernels *ref, uint64_t channels)
{
    enum { N = 64 * KV_RUN };
    int16_t *y = guard_words(N, 1), *want = guard_words(N, 1), *factor = guard_words(64, 8000),
            *offset = guard_words(64, 4000);
    uint16_t *at = guard(64 * sizeof *at);
    int runs = __builtin_popcountll(channels);
    for (int c = 0; c < 64; c++)
        at[c] = (uint16_t)(63 - c);
    for (int bits = 1; bits <= 8; bits++) {
        size_t bytes = kv_planes_bytes(runs * KV_RUN, bits);
        uint8_t *in = guard(bytes ? bytes : 1), codes[N];
        for (size_t i = 0; i < bytes; i++)
            in[i] = (uint8_t)pick(256);
        kv_planes_unpack(codes, in, runs * KV_RUN, bits);
        memset(want, 0, N * sizeof *want);
        memset(y, 0, N * sizeof *y);
        int ok = k->kv_channel_words(y, in, bits, channels, at, 14 - bits, factor, offset) == in + bytes;
        ok &= ref->kv_channel_words(want, in, bits, channels, at, 14 - bits, factor, offset) == in + bytes;
        for (int c = 0, i = 0; c < 64; c++)
            for (int t = 0; t < KV_RUN; t++) {
                bool set = channels >> c & 1;
                double v = set ? codes[i++] * (double)(1 << (14 - bits)) * factor[c] / 32768 + offset[c] : 0;
                ok &= fabs(y[at[c] * KV_RUN + t] - v) <= 0.5;
            }
        check(ok && same_words(y, want, N), "kv_channel_words", bits, runs);
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
    enum { PAIRS = 4, ALL = 2 * PAIRS * N };
    int16_t *c = guard_words(PAIRS * N, 32767), *s = guard_words(PAIRS * N, 32767), *rows = guard_words(ALL, 4095),
            *tile = guard_words(ALL, 1), *tile2 = guard_words(ALL, 1);
    float *turned = guard_f32(ALL), *turned2 = guard_f32(ALL);
    memcpy(tile, rows, ALL * sizeof *rows);
    memcpy(tile2, rows, ALL * sizeof *rows);
    k->kv_turn_words(tile, PAIRS, c, s);
    ref->kv_turn_words(tile2, PAIRS, c, s);
    read_tile(k, turned, tile, 2 * PAIRS, N);
    read_tile(ref, turned2, tile2, 2 * PAIRS, N);
    int ok = 1;
    for (int i = 0; i < PAIRS * N; i++) {
        int at = i / N * 2 * N + i % N;
        double a = rows[at], b = rows[at + N], cos = c[i], sin = s[i];
        ok &= fabs((double)turned[at] - (a * cos - b * sin) / 32768) <= 1;
        ok &= fabs((double)turned[at + N] - (a * sin + b * cos) / 32768) <= 1;
    }
    check(ok && same(turned, turned2, ALL), "kv_turn_words", 0, 0);
    for (int half = 1; half <= N / 2; half += 1 + pick(7)) {
        int n = 1 + pick(3), width = 2 * half + pick(3), all = n * width;
        int16_t *x = guard_words(all, 4095), *y = guard_words(all, 1), *y2 = guard_words(all, 1);
        k->int_turn_back(y, x, n, width, c, s, half);
        ref->int_turn_back(y2, x, n, width, c, s, half);
        for (int r = 0; r < all; r += width) {
            for (int i = 0; i < half; i++) {
                double a = x[r + i], b = x[r + half + i], cos = c[i], sin = s[i];
                ok &= fabs(y[r + 2 * i] - (a * cos + b * sin) / 32768) <= 1;
                ok &= fabs(y[r + 2 * i + 1] - (b * cos - a * sin) / 32768) <= 1;
            }
            ok &= same_words(y + r + 2 * half, x + r + 2 * half, width - 2 * half);
        }
        check(ok && same_words(y, y2, all), "int_turn_back", half, 0);
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
            check_dot(k, ref, rows, 8 * (1 + pick(n / 8)), n);
    }
    static const uint64_t some[] = {0, 1, UINT64_C(1) << 63, UINT64_C(0xf0a5123400ff8001), ~UINT64_C(0)};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        check_channel_words(k, ref, some[i]);
    for (int width = KV_RUN; width <= 4 * KV_RUN; width += KV_RUN)
        check_words(k, 8 * (1 + pick(16)), width);
    for (int i = 0; i < 10; i++)
        check_word_rows(k, ref);
}

#endif
