/* Names of cache formats.
 *
 *   f32 f16 bf16 fp8
 *   affine{2,3,4,5,6,8}[g32|g64|g128]      codes along the head, as mlx-lm's QuantizedKVCache
 *   chan{2,3,4,5,6}[+pre][+mix], chan8[+pre]  codes along the block's tokens, a scale per channel
 *   rot{2,3,4,8}[g64][+qjl]                keys of mlx_turboquant: rotated, then affine
 *   tq{1,2,3,4,5}[.norm|.matched|.unbiased][+c]  TurboQuant: rotated, Lloyd-Max levels
 *   prod{2,3,4}[.orth]                     TurboQuant's inner-product mode (Gaussian sketch; .orth: orthogonal)
 *   split2.5 split3.5                      TurboQuant with a quarter of the channels one bit wider
 *
 * Keys and values have a format each. Sources: TurboQuant (arXiv 2504.19874);
 * the unbiased scalar is EDEN's (arXiv 2604.18555). */
#ifndef KVFORMAT_KV_FORMAT_H
#define KVFORMAT_KV_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum kv_kind {
#define KV_FORMAT(kind, name, bits, key, value) KVF_##kind,
#include "kvformat/kv.def"
#undef KV_FORMAT
    KVF_COUNT
};

/* What TurboQuant stores beside a vector's codes. x: rotated vector, c: its
 * levels. */
enum kv_scalar {
    KV_SCALAR_NORM,     /* |x| / sqrt(dim) */
    KV_SCALAR_MATCHED,  /* |x| / |c|: the decoded vector has the right length */
    KV_SCALAR_UNBIASED, /* |x|^2 / <x, c>: inner products are right in the mean */
    KV_SCALAR_COUNT
};

struct kv_format {
    enum kv_kind kind;
    uint8_t bits;  /* per code; SPLIT: of the narrow channels */
    uint8_t group; /* AFFINE, ROT: elements per scale */
    enum kv_scalar scalar;
    bool qjl;        /* ROT: a sketch of what the codes leave */
    bool pre;        /* CHAN: rotary undone before encoding */
    bool mix;        /* CHAN: bits by channel */
    bool centred;    /* TQ: the block's mean is kept apart */
    bool orthogonal; /* PROD: the sketch's matrix */
};

enum { KV_FORMAT_NAME_MAX = 32 };

static inline bool kv_format_is_exact(const struct kv_format *f)
{
    return f->kind == KVF_F32 || f->kind == KVF_F16 || f->kind == KVF_BF16;
}

/* text [len]; key: for keys. An unknown name lists the known ones. */
enum tlm_status kv_format_parse(const char *text, size_t len, bool key, struct kv_format *out, struct tlm_error *e);
/* The values' format that goes with keys in k when none is named. */
struct kv_format kv_format_partner(const struct kv_format *k);
void kv_format_name(const struct kv_format *f, bool key, char out[KV_FORMAT_NAME_MAX]);

#endif
