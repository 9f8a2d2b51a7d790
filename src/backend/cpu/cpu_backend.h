/* The CPU backend's private parts. Two kernel families, each a struct of
 * function pointers filled by <family>_init_scalar() and then overwritten, slot
 * by slot, by the better instruction sets that the processor reports. Kernels
 * run on one thread; matmul.c, vector.c and attention.c split the work. */
#ifndef CPU_BACKEND_H
#define CPU_BACKEND_H

#include "backend/backend.h"
#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/vector_kernels.h"

struct cpu_backend {
    struct backend base;
    struct matmul_kernels matmul;
    struct vector_kernels vector;
    int threads;
    void *scratch; /* grows between steps only; see cpu_scratch */
    size_t scratch_bytes;
    size_t codec_floats;    /* per thread, for attention over encoded blocks; grows with cpu_kv_prepare */
    struct cpu_slab *slabs; /* packed weights; the newest first */
};

/* Zeroed, 64-byte aligned memory that lives as long as the backend. Small
 * pieces share large mappings, so that huge pages serve them. NULL when out of
 * memory. */
void *cpu_slab_alloc(struct cpu_backend *b, size_t bytes);
void cpu_slabs_free(struct cpu_backend *b);
/* Takes back what the last cpu_slab_alloc gave. */
void cpu_slab_return(struct cpu_backend *b, void *last);

/* At least `bytes`, 64-byte aligned, contents undefined, valid until the next
 * call. NULL when out of memory. Allocates only when a call needs more than
 * any before it. */
void *cpu_scratch(struct cpu_backend *b, size_t bytes);
/* What cpu_attend takes of it; there from the start, so that it cannot fail. */
size_t cpu_attend_scratch(const struct cpu_backend *b);

/* Slots of backend_ops, by file. */
enum tlm_status cpu_weight_load(struct backend *b, struct weight *w, struct tlm_error *e); /* pack.c */
void cpu_weight_unload(struct backend *b, struct weight *w);                               /* pack.c */
void cpu_linear(struct backend *b, struct tensor *const *y, const struct tensor *x, const struct weight *const *w,
                const struct weight *const *bias, int n);                                        /* matmul.c */
void cpu_embed(struct backend *b, struct tensor *y, const int32_t *ids, const struct weight *w); /* vector.c */
void cpu_rms_norm(struct backend *b, struct tensor *y, const struct tensor *x, const struct weight *w, float eps,
                  float add);
void cpu_add(struct backend *b, struct tensor *y, const struct tensor *x1, const struct tensor *x2);
void cpu_scale(struct backend *b, struct tensor *y, const struct tensor *x, float factor);
void cpu_act_mul(struct backend *b, struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act);
void cpu_softcap(struct backend *b, struct tensor *y, const struct tensor *x, float cap);
void cpu_rope(struct backend *b, struct tensor *y, const struct tensor *x, const struct rope_args *r);
void cpu_rows(struct backend *b, struct tensor *y, const struct tensor *x, const int32_t *idx);
void cpu_score(struct backend *b, const float *x, const float *r, const int32_t *t, int64_t n, int64_t vocab,
               struct row_score *out);
enum tlm_status cpu_kv_prepare(struct backend *b, const struct kv_codec *key, const struct kv_codec *value,
                               struct tlm_error *e);
void cpu_kv_write(struct backend *b, const struct attn_args *a, const struct tensor *k,
                  const struct tensor *v); /* kv_write.c */
void cpu_kv_seal(struct backend *b, const struct attn_args *a);
void cpu_attend(struct backend *b, const struct attn_args *a, struct tensor *y, const struct tensor *q);

#endif
