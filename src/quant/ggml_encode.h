/* Encoding rows of weights in the formats of GGUF files, byte for byte as
 * ggml's reference does (quantize_row_*_ref). */
#ifndef QUANT_GGML_ENCODE_H
#define QUANT_GGML_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_encoder {
    const char *name;   /* "Q8_0" */
    uint32_t type;      /* number of the ggml type */
    uint32_t file_type; /* general.file_type of a file that is mostly of this */
    int block, block_bytes;
    /* n is a multiple of block. False when a value is not finite or, for F16
     * and scales in it, too large. */
    bool (*row)(const float *x, int64_t n, uint8_t *out);
};

/* Upper or lower case; NULL when unknown. */
const struct ggml_encoder *ggml_encoder_by_name(const char *name);
const struct ggml_encoder *ggml_encoder_at(int i); /* NULL at the end */

#endif
