/* The parts of the sampler: arithmetic on a row, and filters on the tokens that
 * are still candidates. Everything is float32 and sums run in order of index,
 * so that a seed gives the same tokens on every machine and compiler. */
#ifndef GEN_SAMPLER_PARTS_H
#define GEN_SAMPLER_PARTS_H

#include <stddef.h>
#include <stdint.h>

/* The candidates in ascending order of id. */
struct sampler_row {
    size_t n;
    float *x;          /* log probabilities */
    int32_t *id;       /* NULL while no filter is on: then id = index */
    float *sum;        /* scratch of n values; shares its memory with sort[0] */
    uint32_t *sort[2]; /* scratch of n values each; only with top-p */
};

/* out[i] = exp(x[i] * scale - shift), where no argument is far above 0. out is not x. */
void row_exp(const float *x, size_t n, float scale, float shift, float *restrict out);
/* Log of the sum of exp(x); max is the largest x and finite. */
float row_logsumexp(const float *x, size_t n, float max);
/* Largest value; *bad: index of the first NaN or +infinity, n if there is none. */
float row_max(const float *x, size_t n, size_t *bad);
/* An unsigned order of floats: a < b gives key(a) < key(b); both zeros are one. */
uint32_t row_key(float x);

void filter_top_p(struct sampler_row *r, float p);
void filter_min_p(struct sampler_row *r, float p, size_t min_keep);
void filter_top_k(struct sampler_row *r, size_t k);
/* keep: one bit per id, ids that stay whatever their probability. */
void filter_xtc(struct sampler_row *r, float threshold, const uint8_t *keep);

/* Inverse CDF of softmax(x * scale) at u in [0, 1): an index into the row. */
size_t row_draw(struct sampler_row *r, float scale, float u);

#endif
