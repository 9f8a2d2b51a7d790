/* The list of architectures, from models.def. */
#include "models/arch.h"

#include <string.h>

#define ARCH(a) extern const struct arch a;
#define ALIAS(from, to)
#include "models/models.def"
#undef ARCH
#undef ALIAS

static const struct arch *const archs[] = {
#define ARCH(a) &a,
#define ALIAS(from, to)
#include "models/models.def"
#undef ARCH
#undef ALIAS
    NULL};

static const struct {
    const char *from, *to;
} aliases[] = {
#define ARCH(a)
#define ALIAS(from, to) {from, to},
#include "models/models.def"
#undef ARCH
#undef ALIAS
};

const struct arch *arch_at(int i)
{
    return archs[i];
}

const struct arch *arch_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (!strcmp(aliases[i].from, model_type))
            model_type = aliases[i].to;
    for (int i = 0; archs[i]; i++)
        if (!strcmp(archs[i]->model_type, model_type))
            return archs[i];
    return NULL;
}

const struct arch *arch_find_gguf(const char *gguf_arch)
{
    for (int i = 0; archs[i]; i++)
        if (archs[i]->gguf_arch && !strcmp(archs[i]->gguf_arch, gguf_arch))
            return archs[i];
    return NULL;
}

struct tensor *arch_head(struct ctx *c, const struct arch_base *b, const struct tensor *x)
{
    if (b->cfg.tied)
        return op_matmul(c, x, &b->embed); // [n, V]
    return op_linear(c, x, &b->head);      // [n, V]
}
