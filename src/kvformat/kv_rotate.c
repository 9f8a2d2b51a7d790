/* Hadamard rotations of head vectors. */
#include "kvformat/kv_rotate.h"

#include "base/mem.h"
#include "quant/hadamard.h"
#include "quant/pcg64.h"

enum tlm_status kv_rotation_init(struct kv_rotation *r, int dim, uint64_t seed, bool signs_first, struct tlm_error *e)
{
    *r = (struct kv_rotation){.dim = dim, .block = (int)hadamard_block(dim), .signs_first = signs_first};
    r->signs = mem_alloc_array((size_t)dim, sizeof *r->signs);
    if (!r->signs)
        return err_nomem(e, (size_t)dim * sizeof *r->signs);
    pcg64_signs(seed, dim, r->signs);
    return TLM_OK;
}

void kv_rotation_deinit(struct kv_rotation *r)
{
    mem_free(r->signs);
    r->signs = NULL;
}

static struct quant_input input_of(const struct kv_rotation *r)
{
    return (struct quant_input){.block = r->block, .signs_first = r->signs_first, .signs = r->signs};
}

void kv_rotate(const struct kv_rotation *r, float *x)
{
    struct quant_input in = input_of(r);
    quant_input_rotate(&in, x, r->dim);
}

void kv_rotate_back(const struct kv_rotation *r, float *x)
{
    struct quant_input in = input_of(r);
    quant_input_rotate_back(&in, 0, x, r->dim);
}
