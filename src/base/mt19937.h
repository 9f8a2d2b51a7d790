/* The Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998) as numpy's
 * legacy generator uses it: np.random.seed, np.random.permutation. */
#ifndef BASE_MT19937_H
#define BASE_MT19937_H

#include <stddef.h>
#include <stdint.h>

enum { MT19937_WORDS = 624 };

struct mt19937 {
    uint32_t state[MT19937_WORDS];
    int next;
};

void mt19937_seed(struct mt19937 *r, uint32_t seed);
uint32_t mt19937_next(struct mt19937 *r);
/* A uniform integer in [0, most]: the first draw under the mask of most's bits
 * that is not above most; draws have 32 bits where most has, else 64. */
uint64_t mt19937_below(struct mt19937 *r, uint64_t most);
/* out = a permutation of 0 .. n - 1. */
void mt19937_permutation(struct mt19937 *r, size_t n, size_t *out);

#endif
