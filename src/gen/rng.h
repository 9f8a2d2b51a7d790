/* Threefry-2x32, 20 rounds, with the key handling of JAX and MLX: one 64-bit
 * key is a stream; each draw splits it and uses the second half.
 * Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). */
#ifndef GEN_RNG_H
#define GEN_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
    uint32_t key[2];
};

void rng_seed(struct rng *r, uint64_t seed);
/* n words from a key, in the order that jax.random.bits and mx.random.bits give. */
void rng_bits(const uint32_t key[2], size_t n, uint32_t *out);
/* Advances the stream; sub is the key of this draw. */
void rng_split(struct rng *r, uint32_t sub[2]);
/* The next draws of the stream. */
float rng_uniform(struct rng *r);                        /* [0, 1) */
void rng_uniform_n(struct rng *r, size_t n, float *out); /* one draw of n values */
/* Integers in [lo, hi): floor of a uniform, one draw of n values. */
void rng_integers(struct rng *r, int64_t lo, int64_t hi, size_t n, int64_t *out);

#endif
