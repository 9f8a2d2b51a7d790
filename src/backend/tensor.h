/* Tensors of a step. Row-major, contiguous, in the step arena. The innermost
 * dimension is last. On the CPU activations are f32. */
#ifndef BACKEND_TENSOR_H
#define BACKEND_TENSOR_H

#include <stdint.h>

#include "base/dtype.h"

enum { TENSOR_MAX_DIMS = 4 };

struct tensor {
    enum dtype dtype;
    int n_dims;
    int64_t dim[TENSOR_MAX_DIMS]; /* unused ones are 1 */
    void *data;                   /* device memory of the backend */
};

static inline int64_t tensor_count(const struct tensor *t)
{
    return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
}

/* All but the last dimension together, and the last one. */
static inline int64_t tensor_cols(const struct tensor *t)
{
    return t->dim[t->n_dims - 1];
}

static inline int64_t tensor_rows(const struct tensor *t)
{
    int64_t cols = tensor_cols(t);
    return cols ? tensor_count(t) / cols : 0;
}

static inline float *tensor_f32(const struct tensor *t)
{
    return t->data;
}

#endif
