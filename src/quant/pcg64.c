/* PCG64 XSL-RR, seeded by SeedSequence, as numpy has it. */
#include "quant/pcg64.h"

static void mul64(uint64_t a, uint64_t b, uint64_t *hi, uint64_t *lo)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
    uint64_t mid = (p00 >> 32) + (uint32_t)p01 + (uint32_t)p10;
    *lo = mid << 32 | (uint32_t)p00;
    *hi = p11 + (p01 >> 32) + (p10 >> 32) + (mid >> 32);
}

static void pcg64_step(struct pcg64 *g)
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

void pcg64_init(struct pcg64 *g, uint64_t seed)
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
    *g = (struct pcg64){.inc_hi = s[2] << 1 | s[3] >> 63, .inc_lo = s[3] << 1 | 1};
    pcg64_step(g);
    uint64_t lo = g->lo;
    g->lo += s[1];
    g->hi += s[0] + (g->lo < lo);
    pcg64_step(g);
}

double pcg64_double(struct pcg64 *g)
{
    pcg64_step(g);
    uint64_t x = g->hi ^ g->lo;
    int rotation = (int)(g->hi >> 58);
    x = x >> rotation | x << (-rotation & 63);
    return (double)(x >> 11) * 0x1p-53;
}

void pcg64_signs(uint64_t seed, int64_t n, float *out)
{
    struct pcg64 g;
    pcg64_init(&g, seed);
    for (int64_t i = 0; i < n; i++)
        out[i] = pcg64_double(&g) < 0.5 ? -1.0f : 1.0f;
}
