/* Filters: each removes candidates from a row. Definitions as in mlx-lm 0.31.3;
 * what it leaves open is settled here:
 * - ties of top-k and of min-p's minimum: the lower id stays;
 * - ties of top-p: the higher id stays, as its ascending stable sort has it;
 * - a top-p so small that rounding would remove everything keeps the best token. */
#include "gen/sampler_parts.h"

#include <math.h>

#include "base/fp.h"

enum { RADIX_BITS = 11, RADIX = 1 << RADIX_BITS, PASSES = 3 };

static unsigned digit(uint32_t key, int pass)
{
    return key >> (pass * RADIX_BITS) & (RADIX - 1);
}

static float key_value(uint32_t key)
{
    return fp_from_bits(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

/* Keeps what is above t, and of those equal to t all but the first `skip` and
 * the ones after `take`. */
static void keep_above(struct sampler_row *r, float t, size_t skip, size_t take)
{
    size_t m = 0, equal = 0;
    for (size_t i = 0; i < r->n; i++) {
        const float x = r->x[i];
        if (x < t)
            continue;
        if (x == t) {
            size_t nth = equal++;
            if (nth < skip || nth - skip >= take)
                continue;
        }
        r->x[m] = x;
        r->id[m++] = r->id[i];
    }
    r->n = m;
}

static void scatter(const uint32_t *from, uint32_t *to, size_t n, int pass, uint32_t *count)
{
    uint32_t start = 0;
    for (int d = 0; d < RADIX; d++) {
        uint32_t c = count[d];
        count[d] = start;
        start += c;
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = from[i];
        to[count[digit(key, pass)]++] = key;
    }
}

/* The keys of the row in ascending order, least significant digit first.
 * Below -88 the probability is 0: such a token adds nothing and is never kept. */
static const uint32_t *sort_row(const struct sampler_row *r, size_t *n_keys)
{
    uint32_t count[PASSES][RADIX] = {0};
    uint32_t *a = r->sort[0], *b = r->sort[1];
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->x[i] < -88.0f)
            continue;
        uint32_t key = row_key(r->x[i]);
        a[n++] = key;
        count[0][digit(key, 0)]++;
        count[1][digit(key, 1)]++;
        count[2][digit(key, 2)]++;
    }
    scatter(a, b, n, 0, count[0]);
    scatter(b, a, n, 1, count[1]);
    scatter(a, b, n, 2, count[2]);
    *n_keys = n;
    return b;
}

/* Found digit by digit from counts, without a sort. *ties: how many values equal
 * to it are among the k largest. */
static float kth_largest(const struct sampler_row *r, size_t k, size_t *ties)
{
    uint32_t prefix = 0;
    size_t left = k; /* how many of those that share the prefix are among the k largest */
    for (int pass = PASSES - 1; pass >= 0; pass--) {
        uint32_t count[RADIX] = {0};
        const int shift = (pass + 1) * RADIX_BITS;
        for (size_t i = 0; i < r->n; i++) {
            uint32_t key = row_key(r->x[i]);
            if ((uint64_t)key >> shift == (uint64_t)prefix >> shift)
                count[digit(key, pass)]++;
        }
        int d = RADIX - 1;
        while (count[d] < left)
            left -= count[d--];
        prefix |= (uint32_t)d << (pass * RADIX_BITS);
    }
    *ties = left;
    return key_value(prefix);
}

/* In ascending order of probability, keep from where the cumulative sum exceeds
 * 1 - p. The sum's rounding depends on every smaller term, so the whole row is
 * sorted; values alone, as ties are told apart by counting. */
void filter_top_p(struct sampler_row *r, float p)
{
    enum { CHUNK = 64 };
    const float limit = (float)(1.0 - (double)p);
    size_t n;
    const uint32_t *key = sort_row(r, &n);
    float sum = 0, x[CHUNK], e[CHUNK];
    size_t first = n - 1;
    for (size_t i = 0; i < n && first == n - 1; i += CHUNK) {
        size_t m = n - i < CHUNK ? n - i : CHUNK;
        for (size_t j = 0; j < m; j++)
            x[j] = key_value(key[i + j]);
        row_exp(x, m, 1, 0, e);
        for (size_t j = 0; j < m; j++) {
            sum += e[j];
            if (sum > limit) {
                first = i + j;
                break;
            }
        }
    }
    size_t skip = 0;
    while (first - skip && key[first - skip - 1] == key[first])
        skip++;
    keep_above(r, key_value(key[first]), skip, r->n);
}

void filter_min_p(struct sampler_row *r, float p, size_t min_keep)
{
    size_t bad, above = 0;
    const float max = row_max(r->x, r->n, &bad);
    const float limit = max + (float)log((double)p);
    for (size_t i = 0; i < r->n; i++)
        above += r->x[i] >= limit;
    if (above < min_keep) {
        filter_top_k(r, min_keep);
        return;
    }
    size_t m = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->x[i] < limit)
            continue;
        r->x[m] = r->x[i];
        r->id[m++] = r->id[i];
    }
    r->n = m;
}

/* A value that at least k of the row reach: the k-th largest of the maxima of
 * pieces of the row. Most rows are left with few candidates by it. */
static float lower_bound(const struct sampler_row *r, size_t k)
{
    enum { PIECE = 64 };
    struct sampler_row maxima = {.n = r->n / PIECE, .x = r->sum};
    if (maxima.n < 2 * k)
        return -INFINITY;
    for (size_t i = 0; i < maxima.n; i++) {
        size_t bad;
        maxima.x[i] = row_max(r->x + i * PIECE, PIECE, &bad);
    }
    size_t ties;
    return kth_largest(&maxima, k, &ties);
}

void filter_top_k(struct sampler_row *r, size_t k)
{
    if (r->n <= k)
        return;
    const float bound = lower_bound(r, k);
    if (bound > -INFINITY)
        keep_above(r, bound, 0, r->n);
    size_t ties;
    const float t = kth_largest(r, k, &ties);
    keep_above(r, t, 0, ties);
}

/* Of the tokens above the threshold all but the least likely go. */
void filter_xtc(struct sampler_row *r, float threshold, const uint8_t *keep)
{
    size_t bad, m = 0;
    const float max = row_max(r->x, r->n, &bad);
    row_exp(r->x, r->n, 1, max, r->sum);
    float sum = 0, least = INFINITY;
    for (size_t i = 0; i < r->n; i++)
        sum += r->sum[i];
    const float scale = 1 / sum;
    for (size_t i = 0; i < r->n; i++) {
        r->sum[i] *= scale;
        if (r->sum[i] > threshold && r->sum[i] < least)
            least = r->sum[i];
    }
    for (size_t i = 0; i < r->n; i++) {
        int32_t id = r->id[i];
        if (r->sum[i] > least && !(keep[id >> 3] >> (id & 7) & 1))
            continue;
        r->x[m] = r->x[i];
        r->id[m++] = id;
    }
    r->n = m;
}
