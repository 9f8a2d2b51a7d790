/* Reading and writing names of cache formats. */
#include "kvformat/kv_format.h"

#include <stdio.h>
#include <string.h>

struct row {
    const char *name, *bits;
    bool key, value;
};

static const struct row rows[KVF_COUNT] = {
#define KV_FORMAT(kind, name, bits, key, value) [KVF_##kind] = {name, bits, key, value},
#include "kvformat/kv.def"
#undef KV_FORMAT
};

static const char *const scalar_names[KV_SCALAR_COUNT] = {".norm", ".matched", ".unbiased"};

/* What is left of a name. */
struct rest {
    const char *p;
    size_t n;
};

static bool take(struct rest *r, const char *word)
{
    size_t n = strlen(word);
    if (r->n < n || memcmp(r->p, word, n))
        return false;
    r->p += n;
    r->n -= n;
    return true;
}

static bool take_bits(struct rest *r, const char *choices, uint8_t *bits)
{
    if (r->n == 0 || r->p[0] == '\0' || !strchr(choices, r->p[0]))
        return false;
    *bits = (uint8_t)(r->p[0] - '0');
    r->p++;
    r->n--;
    return true;
}

/* Further parts; what cannot be taken stays. */
static void take_parts(struct rest *r, bool key, struct kv_format *f)
{
    switch (f->kind) {
    case KVF_AFFINE:
        f->group = take(r, "g32") ? 32 : take(r, "g128") ? 128 : 64;
        if (f->group == 64)
            take(r, "g64");
        break;
    case KVF_ROT:
        f->group = 64;
        take(r, "g64");
        f->qjl = take(r, "+qjl");
        break;
    case KVF_CHAN:
        f->pre = key && take(r, "+pre");
        f->mix = key && f->bits < 8 && take(r, "+mix");
        break;
    case KVF_TQ:
        f->scalar = key ? KV_SCALAR_UNBIASED : KV_SCALAR_MATCHED;
        for (int i = 0; i < KV_SCALAR_COUNT; i++)
            if (take(r, scalar_names[i])) {
                f->scalar = (enum kv_scalar)i;
                break;
            }
        f->centred = key && take(r, "+c");
        break;
    case KVF_PROD:
        f->orthogonal = take(r, ".orth");
        break;
    case KVF_SPLIT:
        f->scalar = KV_SCALAR_NORM;
        if (!take(r, ".5"))
            f->bits = 0;
        break;
    default:
        break;
    }
}

static const char presets[] = "auto"
#define KV_PRESET(name, keys, values) ", " name
#include "kvformat/kv_presets.def"
#undef KV_PRESET
    ;

enum tlm_status kv_format_parse(const char *text, size_t len, bool key, struct kv_format *out, struct tlm_error *e)
{
    for (int i = 0; i < KVF_COUNT; i++) {
        struct rest r = {text, len};
        struct kv_format f = {.kind = (enum kv_kind)i};
        if (!take(&r, rows[i].name) || (rows[i].bits[0] && !take_bits(&r, rows[i].bits, &f.bits)))
            continue;
        take_parts(&r, key, &f);
        if (r.n || (i == KVF_SPLIT && f.bits == 0))
            continue;
        if (!(key ? rows[i].key : rows[i].value))
            return err_set(e, TLM_EINVAL, "cache format '%.*s' is for keys only", (int)len, text);
        *out = f;
        return TLM_OK;
    }
    struct kv_format f;
    if (!key && len < 64 && kv_format_parse(text, len, true, &f, NULL) == TLM_OK)
        return err_set(e, TLM_EINVAL, "cache format '%.*s' is for keys only", (int)len, text);
    return err_set(e, TLM_EINVAL,
                   "cache format '%.*s': expected f32, f16, bf16, fp8, affine{2,3,4,5,6,8}[g32|g64|g128], "
                   "chan{2,3,4,5,6}[+pre][+mix], chan8[+pre], rot{2,3,4,8}[g64][+qjl], "
                   "tq{1,2,3,4,5}[.norm|.matched|.unbiased][+c], prod{2,3,4}[.orth], split2.5 or split3.5; "
                   "or for both, alone, one of %s",
                   len > 64 ? 64 : (int)len, text, presets);
}

struct kv_format kv_format_partner(const struct kv_format *k)
{
    struct kv_format v = *k;
    switch (k->kind) {
    case KVF_ROT: /* as mlx_turboquant keeps values */
        v = (struct kv_format){.kind = KVF_AFFINE, .bits = k->bits, .group = k->group};
        break;
    case KVF_TQ:
        v.scalar = KV_SCALAR_MATCHED;
        v.centred = false;
        break;
    case KVF_PROD:
        v = (struct kv_format){.kind = KVF_TQ, .bits = k->bits, .scalar = KV_SCALAR_NORM};
        break;
    case KVF_CHAN:
        v.pre = v.mix = false;
        break;
    default:
        break;
    }
    return v;
}

void kv_format_name(const struct kv_format *f, bool key, char out[KV_FORMAT_NAME_MAX])
{
    enum kv_scalar usual = key ? KV_SCALAR_UNBIASED : KV_SCALAR_MATCHED;
    const char *name = rows[f->kind].name;
    switch (f->kind) {
    case KVF_AFFINE:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s%dg%d", name, f->bits, f->group);
        break;
    case KVF_ROT:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s%d%s", name, f->bits, f->qjl ? "+qjl" : "");
        break;
    case KVF_CHAN:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s%d%s%s", name, f->bits, f->pre ? "+pre" : "", f->mix ? "+mix" : "");
        break;
    case KVF_TQ:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s%d%s%s", name, f->bits, f->scalar == usual ? "" : scalar_names[f->scalar],
                 f->centred ? "+c" : "");
        break;
    case KVF_PROD:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s%d%s", name, f->bits, f->orthogonal ? ".orth" : "");
        break;
    case KVF_SPLIT:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s%d.5", name, f->bits);
        break;
    default:
        snprintf(out, KV_FORMAT_NAME_MAX, "%s", name);
    }
}
