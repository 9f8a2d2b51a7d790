/* A parameter of a model: where the file has it, and the backend's own form. */
#ifndef BACKEND_WEIGHT_H
#define BACKEND_WEIGHT_H

#include "base/file.h"
#include "quant/quant.h"

struct weight {
    const char *name;           /* canonical name, for messages and adapters */
    struct quant_view view;     /* a vector is [1, n] */
    const struct file_map *map; /* whose pages hold the view, or NULL */
    void *device;               /* backend-private form, or NULL: the view is used as it is */
    size_t device_bytes;
    unsigned uses; /* enum weight_use bits, known before weight_load */
};

enum weight_use {
    WEIGHT_MATMUL = 1, /* linear, tied output head */
    WEIGHT_GATHER = 2, /* embedding rows */
    WEIGHT_VECTOR = 4  /* norms, biases: small, becomes f32 */
};

#endif
