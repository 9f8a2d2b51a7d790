/* Rotations of head vectors: Hadamard transforms with random signs, as MLX and
 * mlx_turboquant have them, so that their cached keys can be read.
 *
 * A vector of n is cut into blocks of h(n) (quant/hadamard.h). Signs come from
 * PCG64 (numpy's default_rng) and stand either after the transform
 * (mlx_turboquant) or before it, which is what spreads a single large channel
 * over random directions. */
#ifndef KVFORMAT_KV_ROTATE_H
#define KVFORMAT_KV_ROTATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct kv_rotation {
    int dim, block;
    bool signs_first;
    float *signs; /* [dim] */
};

enum tlm_status kv_rotation_init(struct kv_rotation *r, int dim, uint64_t seed, bool signs_first, struct tlm_error *e);
void kv_rotation_deinit(struct kv_rotation *r);
/* In place, x [dim]. Back is the inverse. */
void kv_rotate(const struct kv_rotation *r, float *x);
void kv_rotate_back(const struct kv_rotation *r, float *x);

#endif
