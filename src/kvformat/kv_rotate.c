/* Hadamard rotations and numpy's PCG64. */
#include "kvformat/kv_rotate.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* --- PCG64 XSL-RR, seeded by SeedSequence --------------------------------- */

static void mul64(uint64_t a, uint64_t b, uint64_t *hi, uint64_t *lo)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
    uint64_t mid = (p00 >> 32) + (uint32_t)p01 + (uint32_t)p10;
    *lo = mid << 32 | (uint32_t)p00;
    *hi = p11 + (p01 >> 32) + (p10 >> 32) + (mid >> 32);
}

static void pcg64_step(struct kv_pcg64 *g)
{
    const uint64_t mul_hi = 0x2360ed051fc65da4, mul_lo = 0x4385df649fccf645;
    uint64_t hi, lo;
    mul64(g->lo, mul_lo, &hi, &lo);
    hi += g->hi * mul_lo + g->lo * mul_hi;
    g->lo = lo + g->inc_lo;
    g->hi = hi + g->inc_hi + (g->lo < lo);
}

static uint32_t seed_hash(uint32_t value, uint32_t *constant, uint32_t factor)
{
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

void kv_pcg64_init(struct kv_pcg64 *g, uint64_t seed)
{
    enum { POOL = 4 };
    uint32_t pool[POOL], a = 0x43b0d7e5, b = 0x8b51f9dd, words[8];
    for (int i = 0; i < POOL; i++)
        pool[i] = seed_hash(i == 0 ? (uint32_t)seed : i == 1 ? (uint32_t)(seed >> 32) : 0, &a, 0x931e8875);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to) {
                uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * seed_hash(pool[from], &a, 0x931e8875);
                pool[to] = mixed ^ mixed >> 16;
            }
    for (int i = 0; i < 8; i++)
        words[i] = seed_hash(pool[i % POOL], &b, 0x58f38ded);
    uint64_t s[4];
    for (int i = 0; i < 4; i++)
        s[i] = (uint64_t)words[2 * i + 1] << 32 | words[2 * i];
    *g = (struct kv_pcg64){.inc_hi = s[2] << 1 | s[3] >> 63, .inc_lo = s[3] << 1 | 1};
    pcg64_step(g);
    uint64_t lo = g->lo;
    g->lo += s[1];
    g->hi += s[0] + (g->lo < lo);
    pcg64_step(g);
}

double kv_pcg64_double(struct kv_pcg64 *g)
{
    pcg64_step(g);
    uint64_t x = g->hi ^ g->lo;
    int rotation = (int)(g->hi >> 58);
    x = x >> rotation | x << (-rotation & 63);
    return (double)(x >> 11) * 0x1p-53;
}

/* --- Hadamard ------------------------------------------------------------- */

/* y[j] = sum over i of M[i][j] x[i]. Sloane's had.12, had.20.hall.n, had.28.will1
 * in the orientation that MLX applies them. */
static const char m12[12][13] = {"+-++++++++++", "--+-+-+-+-+-", "+++-++----++", "+---+--+-++-",
                                 "+++++-++----", "+-+---+--+-+", "++--+++-++--", "+--++---+--+",
                                 "++----+++-++", "+--+-++---+-", "++++----+++-", "+-+--+-++---"};
static const char m20[20][21] = {
    "+-----++++--++--+--+", "-+---+-+++---+++-+--", "--+--++-+++---+-+-+-", "---+-+++-+++-----+-+",
    "----+++++--++--+--+-", "+----+----+-++---++-", "-+----+----+-++---++", "--+----+--+-+-++---+",
    "---+----+-++-+-++---", "----+----+-++-+-++--", "++--+-+--++----+----", "+++--+-+---+----+---",
    "-+++--+-+---+----+--", "--+++--+-+---+----+-", "+--+++--+-----+----+", "+-++-++--+-+++++----",
    "-+-+++++--+-+++-+---", "+-+-+-+++-++-++--+--", "++-+---++++++-+---+-", "-++-++--++++++-----+"};
static const char m28[28][29] = {
    "+--------++++--+-++-+-++--++", "-+--------+++++-+-++-+-++--+", "--+----+---+++-+-+-++++-++--",
    "---+---++---+++-+-+-+-++-++-", "----+--+++---+++-+-+---++-++", "-----+-++++----++-+-++--++-+",
    "------+-++++--+-++-+-++--++-", "++----++------+--++---+-++-+", "+++-----+------+--++-+-+-++-",
    "-+++-----+------+--++-+-+-++", "--+++-----+---+--+--++-+-+-+", "---+++-----+--++--+--++-+-+-",
    "----+++-----+--++--+--++-+-+", "+----++------+--++--++-++-+-", "+-+--+--++--+++------++----+",
    "-+-+--++-++--+-+-----+++----", "+-+-+--++-++----+-----+++---", "-+-+-+--++-++----+-----+++--",
    "--+-+-+--++-++----+-----+++-", "+--+-+-+--++-+-----+-----+++", "-+--+-+++--++-------++----++",
    "+--++--+-+--+---++++-+------", "-+--++--+-+--+---++++-+-----", "--+--+++-+-+--+---+++--+----",
    "+--+--+-+-+-+-++---++---+---", "++--+----+-+-++++---+----+--", "-++--+-+--+-+-++++--------+-",
    "--++--+-+--+-+-++++--------+"};

static float matrix_sign(int m, int i, int j)
{
    char c = m == 12 ? m12[i][j] : m == 20 ? m20[i][j] : m28[i][j];
    return c == '+' ? 1.0f : -1.0f;
}

/* The m of h = m * 2^k. */
static int odd_part(int h)
{
    static const int ms[] = {28, 20, 12};
    for (int i = 0; i < 3; i++)
        if (h % ms[i] == 0) {
            int rest = h / ms[i];
            if ((rest & (rest - 1)) == 0)
                return ms[i];
        }
    return 1;
}

int kv_hadamard_block(int n)
{
    static const int ms[] = {1, 12, 20, 28};
    int best = 1;
    for (int i = 0; i < 4; i++)
        for (int h = ms[i]; h <= n; h *= 2)
            if (n % h == 0 && h > best)
                best = h;
    return best;
}

static void butterflies(float *x, int n)
{
    for (int len = 1; len < n; len *= 2)
        for (int i = 0; i < n; i += 2 * len)
            for (int j = i; j < i + len; j++) {
                float a = x[j], b = x[j + len];
                x[j] = a + b;
                x[j + len] = a - b;
            }
}

/* back: the transposed matrix; the butterflies are symmetric. */
static void hadamard(float *x, int h, bool back)
{
    int m = odd_part(h), n = h / m;
    for (int i = 0; i < m; i++)
        butterflies(x + i * n, n);
    for (int c = 0; m > 1 && c < n; c++) {
        float y[28] = {0};
        for (int j = 0; j < m; j++)
            for (int i = 0; i < m; i++)
                y[j] += (back ? matrix_sign(m, j, i) : matrix_sign(m, i, j)) * x[i * n + c];
        for (int j = 0; j < m; j++)
            x[j * n + c] = y[j];
    }
    float scale = (float)(1 / sqrt((double)h)); /* as MLX rounds it */
    for (int i = 0; i < h; i++)
        x[i] *= scale;
}

enum tlm_status kv_rotation_init(struct kv_rotation *r, int dim, uint64_t seed, bool signs_first, struct tlm_error *e)
{
    struct kv_pcg64 g;
    *r = (struct kv_rotation){.dim = dim, .block = kv_hadamard_block(dim), .signs_first = signs_first};
    r->signs = mem_alloc_array((size_t)dim, sizeof *r->signs);
    if (!r->signs)
        return err_nomem(e, (size_t)dim * sizeof *r->signs);
    kv_pcg64_init(&g, seed);
    for (int i = 0; i < dim; i++)
        r->signs[i] = kv_pcg64_double(&g) < 0.5 ? -1.0f : 1.0f;
    return TLM_OK;
}

void kv_rotation_deinit(struct kv_rotation *r)
{
    mem_free(r->signs);
    r->signs = NULL;
}

static void flip(const struct kv_rotation *r, float *x)
{
    for (int i = 0; i < r->dim; i++)
        x[i] *= r->signs[i];
}

static void transform(const struct kv_rotation *r, float *x, bool back)
{
    for (int i = 0; i < r->dim; i += r->block)
        hadamard(x + i, r->block, back);
}

void kv_rotate(const struct kv_rotation *r, float *x)
{
    if (r->signs_first)
        flip(r, x);
    transform(r, x, false);
    if (!r->signs_first)
        flip(r, x);
}

void kv_rotate_back(const struct kv_rotation *r, float *x)
{
    if (!r->signs_first)
        flip(r, x);
    transform(r, x, true);
    if (r->signs_first)
        flip(r, x);
}
