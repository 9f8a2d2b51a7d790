/* The CPU backend: its table of slots, its threads and its scratch memory. */
#include "backend/cpu/cpu_backend.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"

static void cpu_free(struct backend *base)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    if (!b)
        return;
    pool_free(base->pool);
    mem_free_pages(b->scratch, b->scratch_bytes);
    cpu_slabs_free(b);
    mem_free(b);
}

/* Slots run to completion. */
static void cpu_sync(struct backend *b)
{
    (void)b;
}

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .free = cpu_free,
    .sync = cpu_sync,
    .weight_load = cpu_weight_load,
    .weight_unload = cpu_weight_unload,
    .embed = cpu_embed,
    .linear = cpu_linear,
    .rms_norm = cpu_rms_norm,
    .add = cpu_add,
    .scale = cpu_scale,
    .act_mul = cpu_act_mul,
    .softcap = cpu_softcap,
    .rope = cpu_rope,
    .score = cpu_score,
    .rows = cpu_rows,
    .kv_prepare = cpu_kv_prepare,
    .kv_write = cpu_kv_write,
    .kv_seal = cpu_kv_seal,
    .attend = cpu_attend,
};

void *cpu_scratch(struct cpu_backend *b, size_t bytes)
{
    if (bytes <= b->scratch_bytes)
        return b->scratch;
    void *p = mem_alloc_pages(bytes);
    if (!p)
        return NULL;
    mem_free_pages(b->scratch, b->scratch_bytes);
    b->scratch = p;
    b->scratch_bytes = bytes;
    return p;
}

enum tlm_status backend_cpu_new(int threads, bool exact, struct backend **out, struct tlm_error *e)
{
    *out = NULL;
    enum tlm_status status = cpu_check(e);
    if (status != TLM_OK)
        return status;
    struct cpu_backend *b = mem_new(sizeof *b);
    if (!b)
        return err_nomem(e, sizeof *b);
    b->base.ops = &cpu_ops;
    b->base.exact = exact;
    status = pool_new(threads, &b->base.pool, e);
    if (status != TLM_OK) {
        mem_free(b);
        return status;
    }
    b->threads = pool_threads(b->base.pool);
    matmul_init(&b->matmul, cpu_features());
    vector_init(&b->vector, cpu_features());
    size_t bytes = cpu_attend_scratch(b);
    if (!cpu_scratch(b, bytes)) {
        cpu_free(&b->base);
        return err_nomem(e, bytes);
    }
    *out = &b->base;
    return TLM_OK;
}

static const enum cpu_isa built[] = {
    CPU_SCALAR,
#if defined(__x86_64__)
    CPU_AVX2,
    CPU_AVX512,
    CPU_AVX512_VNNI,
#elif defined(__aarch64__)
    CPU_NEON,
#endif
};

static char isa_list[128];
static pthread_once_t isa_list_once = PTHREAD_ONCE_INIT;

/* Scalar kernels count as used only where nothing overwrites them. */
static void make_isa_list(void)
{
    size_t used = 0;
    unsigned features = cpu_features();
    for (size_t i = 0; i < sizeof built / sizeof *built; i++) {
        bool star = built[i] == CPU_SCALAR ? features == 1u << CPU_SCALAR : (features >> built[i] & 1) != 0;
        int n = snprintf(isa_list + used, sizeof isa_list - used, "%s%s%s", i ? " " : "", cpu_isa_name(built[i]),
                         star ? "*" : "");
        used += n > 0 ? (size_t)n : 0;
    }
}

const char *backend_cpu_isa_list(void)
{
    pthread_once(&isa_list_once, make_isa_list);
    return isa_list;
}
