/* Lloyd-Max levels for coordinates of random unit vectors.
 *
 * A coordinate x of a uniform random point of the sphere in d dimensions has
 * density proportional to (1 - x^2)^((d-3)/2), close to N(0, 1/d). Levels are
 * given times sqrt(d), so that they hardly depend on d. */
#ifndef KVFORMAT_KV_LEVELS_H
#define KVFORMAT_KV_LEVELS_H

#include "base/err.h"

enum { KV_LEVELS_MAX = 32 };

/* levels [2^bits], rising and odd-symmetric; bits 1 to 5, dim at least 2. */
enum tlm_status kv_levels(int bits, int dim, float *levels, struct tlm_error *e);

#endif
