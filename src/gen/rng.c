/* Threefry-2x32 and the stream of keys; see rng.h. */
#include "gen/rng.h"

#include <math.h>

struct pair {
    uint32_t a, b;
};

static uint32_t rotate_left(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

/* Five groups of four rounds; the key schedule is added before the first and
 * after each. */
static struct pair threefry(const uint32_t key[2], uint32_t a, uint32_t b)
{
    static const unsigned char rotation[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
    struct pair x = {a + schedule[0], b + schedule[1]};
    for (uint32_t group = 0; group < 5; group++) {
        for (int round = 0; round < 4; round++) {
            x.a += x.b;
            x.b = rotate_left(x.b, rotation[group % 2][round]) ^ x.a;
        }
        x.a += schedule[(group + 1) % 3];
        x.b += schedule[(group + 2) % 3] + group + 1;
    }
    return x;
}

/* Word i of n. Counter pairs are (i, second + i): the first words of all pairs
 * come first, then the second words; an odd n has a middle word of its own. */
static uint32_t word(const uint32_t key[2], size_t n, size_t i)
{
    size_t half = n / 2, second = half + n % 2;
    if (i < half)
        return threefry(key, (uint32_t)i, (uint32_t)(second + i)).a;
    if (i < second)
        return threefry(key, (uint32_t)half, 0).a;
    return threefry(key, (uint32_t)(i - second), (uint32_t)i).b;
}

void rng_seed(struct rng *r, uint64_t seed)
{
    r->key[0] = (uint32_t)(seed >> 32);
    r->key[1] = (uint32_t)seed;
}

void rng_bits(const uint32_t key[2], size_t n, uint32_t *out)
{
    size_t half = n / 2, second = half + n % 2;
    for (size_t i = 0; i < half; i++) {
        struct pair x = threefry(key, (uint32_t)i, (uint32_t)(second + i));
        out[i] = x.a;
        out[second + i] = x.b;
    }
    if (n % 2)
        out[half] = word(key, n, half);
}

void rng_split(struct rng *r, uint32_t sub[2])
{
    uint32_t bits[4];
    rng_bits(r->key, 4, bits);
    r->key[0] = bits[0];
    r->key[1] = bits[1];
    sub[0] = bits[2];
    sub[1] = bits[3];
}

/* The top rounds to 1 in float32, hence the limit. */
static float unit(uint32_t bits)
{
    float u = (float)bits * 0x1p-32f;
    return u < 1 ? u : 0x1.fffffep-1f;
}

float rng_uniform(struct rng *r)
{
    float u;
    rng_uniform_n(r, 1, &u);
    return u;
}

void rng_uniform_n(struct rng *r, size_t n, float *out)
{
    uint32_t key[2];
    rng_split(r, key);
    for (size_t i = 0; i < n; i++)
        out[i] = unit(word(key, n, i));
}

/* Float32 arithmetic as in the originals; the bounds need not be float32
 * values, so the result is limited to the range. */
void rng_integers(struct rng *r, int64_t lo, int64_t hi, size_t n, int64_t *out)
{
    uint32_t key[2];
    rng_split(r, key);
    const float low = (float)lo, range = (float)hi - low;
    for (size_t i = 0; i < n; i++) {
        float u = unit(word(key, n, i)) * range;
        u = floorf(u + low);
        int64_t v = u >= 0x1p63f ? INT64_MAX : (int64_t)u;
        if (v > hi - 1)
            v = hi - 1;
        out[i] = v < lo ? lo : v;
    }
}
