/* Parts of the GGUF target: gguf_target.c writes the tensors, gguf_metadata.c the
 * metadata of the model, gguf_vocab.c the tokenizer and the chat template. */
#ifndef CONVERT_GGUF_OUT_H
#define CONVERT_GGUF_OUT_H

#include "convert/convert_job.h"
#include "io/gguf_writer.h"
#include "quant/ggml_encode.h"

/* How the files of an architecture differ from its checkpoints, and what
 * programs that read them can be told. */
struct gguf_traits {
    const char *arch;  /* general.architecture */
    bool pairs;        /* rows of q and k are stored so that rotated pairs are neighbours */
    bool full_norms;   /* norms hold 1 + w */
    bool slides;       /* layers may slide, by a period */
    bool bands;        /* rope_freqs.weight divides the rotary frequencies */
    bool extra_biases; /* biases that the config asks for */
};

/* Of a source's architecture; an error when it has no GGUF form. */
enum tlm_status gguf_traits_find(const struct source *s, const struct gguf_traits **out, struct tlm_error *e);

/* All metadata but the tokenizer. A source that is a GGUF file gives its own,
 * the tokenizer included. */
enum tlm_status gguf_metadata_write(const struct convert_job *j, const struct gguf_traits *t,
                                    const struct ggml_encoder *type, struct gguf_writer *w, struct tlm_error *e);

/* Divisors of the rotary frequencies, [head_dim / 2]; NULL when the model has
 * none. Free with mem_free. */
enum tlm_status gguf_metadata_bands(const struct source *s, const struct gguf_traits *t, float **out,
                                    struct tlm_error *e);

/* What the weights of the queries' norms are multiplied with, as files cannot
 * say the scale of a query. */
enum tlm_status gguf_metadata_query_factor(const struct source *s, const struct gguf_traits *t, float *out,
                                           struct tlm_error *e);

/* Tokenizer and chat template of a model directory. */
enum tlm_status gguf_vocab_write(const struct source *s, struct gguf_writer *w, struct tlm_error *e);

#endif
