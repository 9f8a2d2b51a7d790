/* numpy.random.default_rng(seed).random(). */
#ifndef QUANT_PCG64_H
#define QUANT_PCG64_H

#include <stdint.h>

struct pcg64 {
    uint64_t hi, lo, inc_hi, inc_lo;
};

void pcg64_init(struct pcg64 *g, uint64_t seed);
double pcg64_double(struct pcg64 *g);
/* n signs of the stream: -1 where it is below 0.5, else 1. */
void pcg64_signs(uint64_t seed, int64_t n, float *out);

#endif
