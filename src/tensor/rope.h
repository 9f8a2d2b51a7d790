/* Rotary position embeddings: the tables of angles. The rotation itself is
 * op_rope.
 *
 *   angle(p, i) = p * inv_freq[i],  i = 0 .. dims/2
 *
 * and cos, sin are multiplied by `factor` (yarn, longrope). Formulas: RoFormer
 * (arXiv 2104.09864), position interpolation (2306.15595), YaRN (2309.00071),
 * LongRoPE (2402.13753), Llama 3.1. Angles are computed in float32 as the
 * originals compute them. */
#ifndef TENSOR_ROPE_H
#define TENSOR_ROPE_H

#include "base/json.h"
#include "tensor/ctx.h"

struct rope {
    int64_t head_dim, dims;
    bool interleaved;
    float *inv_freq;  /* [dims/2] */
    float factor;     /* on cos and sin */
    float *long_freq; /* longrope: inverse frequencies beyond original_max; else NULL */
    float long_factor;
    int64_t original_max;
    /* dynamic: the base grows with the length of the call */
    bool dynamic;
    float base, scale;
};

struct rope_params {
    int64_t head_dim; /* of the vectors that are rotated */
    int64_t dims;     /* rotated part */
    float theta;      /* base when the settings give none */
    int64_t max_positions;
    bool interleaved;
};

/* settings: a rope_scaling or rope_parameters object, or NULL for plain. An
 * unknown type is an error; `where` names the object in messages. */
enum tlm_status rope_init(struct rope *r, const struct rope_params *p, const cJSON *settings, const char *where,
                          struct tlm_error *e);
void rope_deinit(struct rope *r);

/* Divides each inverse frequency (GGUF's rope_freqs tensor). */
void rope_divide(struct rope *r, const float *factors, int64_t n);

/* Rows row .. row+n of cos, sin [.., dims/2] for positions pos .. pos+n of a
 * sequence. */
void rope_table(const struct rope *r, int64_t pos, int64_t n, float *cos_out, float *sin_out);

#endif
