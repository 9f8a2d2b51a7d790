/* MT19937. */
#include "base/mt19937.h"

enum { MIDDLE = 397 };

void mt19937_seed(struct mt19937 *r, uint32_t seed)
{
    r->state[0] = seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++) {
        uint32_t last = r->state[i - 1];
        r->state[i] = 1812433253u * (last ^ last >> 30) + i;
    }
    r->next = MT19937_WORDS;
}

static void refill(struct mt19937 *r)
{
    for (int i = 0; i < MT19937_WORDS; i++) {
        uint32_t y = (r->state[i] & 0x80000000u) | (r->state[(i + 1) % MT19937_WORDS] & 0x7fffffffu);
        r->state[i] = r->state[(i + MIDDLE) % MT19937_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->next = 0;
}

uint32_t mt19937_next(struct mt19937 *r)
{
    if (r->next == MT19937_WORDS)
        refill(r);
    uint32_t y = r->state[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint64_t mt19937_below(struct mt19937 *r, uint64_t most)
{
    uint64_t mask = most, value;
    for (int shift = 1; shift < 64; shift *= 2)
        mask |= mask >> shift;
    do {
        value = mt19937_next(r);
        if (most > UINT32_MAX)
            value = value << 32 | mt19937_next(r);
        value &= mask;
    } while (value > most);
    return value;
}

void mt19937_permutation(struct mt19937 *r, size_t n, size_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = i;
    for (size_t i = n; i-- > 1;) {
        size_t j = (size_t)mt19937_below(r, i), was = out[i];
        out[i] = out[j];
        out[j] = was;
    }
}
