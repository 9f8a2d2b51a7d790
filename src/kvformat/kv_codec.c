/* Sizes, layouts and tables of cache formats. */
#include "kvformat/kv_codec.h"

#include <math.h>

#include "base/mem.h"
#include "quant/pcg64.h"

/* mlx_turboquant's seeds; ours share the first. */
enum { SEED_ROTATION = 0xC0FFEE, SEED_SKETCH = 0x51D3 };

/* Lays parts out one after the other, each from a multiple of 2. */
static size_t part(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end += (bytes + 1) & ~(size_t)1;
    return at;
}

static void lay_out(struct kv_codec *c)
{
    const size_t dim = (size_t)c->dim, half = sizeof(uint16_t), tokens = KV_BLOCK;
    const size_t sign_rows = dim * KV_BLOCK / 8, set = (dim + 7) / 8;
    size_t end = 0, rows = c->key ? dim : tokens, groups = c->f.group ? dim / c->f.group : 0;
    size_t code_bytes = rows * kv_planes_bytes(c->row, c->f.bits);
    switch (c->f.kind) {
    case KVF_F32:
        code_bytes = tokens * dim * 4;
        break;
    case KVF_F16:
    case KVF_BF16:
        code_bytes = tokens * dim * 2;
        break;
    case KVF_FP8:
        c->scales = part(&end, 8);
        code_bytes = rows * (size_t)c->row;
        break;
    case KVF_AFFINE:
    case KVF_ROT:
        c->scales = part(&end, groups * tokens * half);
        c->offsets = part(&end, groups * tokens * half);
        if (c->f.qjl) {
            c->sketch_scales = part(&end, tokens * half);
            c->sketch = part(&end, sign_rows);
        }
        break;
    case KVF_CHAN:
        c->scales = part(&end, dim * half);
        c->offsets = part(&end, dim * half);
        if (c->f.mix)
            c->sets = part(&end, 2 * set);
        break;
    case KVF_TQ:
        c->scales = part(&end, tokens * half);
        if (c->f.centred)
            c->centre = part(&end, dim * half);
        break;
    case KVF_PROD:
        c->scales = part(&end, tokens * half);
        c->sketch_scales = part(&end, tokens * half);
        c->sketch = part(&end, sign_rows);
        code_bytes = rows * kv_planes_bytes(c->row, c->f.bits - 1);
        break;
    case KVF_SPLIT:
        c->sets = part(&end, set);
        c->scales = part(&end, tokens * half);
        c->offsets = part(&end, tokens * half);
        code_bytes += (size_t)c->wide * tokens / 8; /* a bit more each */
        if (!c->key) {
            int wide_row = (c->wide + 7) / 8 * 8, narrow_row = (c->dim - c->wide + 7) / 8 * 8;
            code_bytes = tokens * (kv_planes_bytes(wide_row, c->f.bits + 1) + kv_planes_bytes(narrow_row, c->f.bits));
        }
        break;
    default:
        break;
    }
    end = (end + 7) & ~(size_t)7;
    c->codes = end;
    c->bytes = (end + code_bytes + 7) & ~(size_t)7;
}

static enum tlm_status make_gauss(struct kv_codec *c, struct tlm_error *e)
{
    size_t n = (size_t)c->dim * (size_t)c->dim;
    struct pcg64 g;
    c->gauss = mem_alloc_array(n, sizeof *c->gauss);
    if (!c->gauss)
        return err_nomem(e, n * sizeof *c->gauss);
    pcg64_init(&g, SEED_SKETCH);
    for (size_t i = 0; i < n; i++) { /* Box and Muller */
        double u = 1 - pcg64_double(&g), v = pcg64_double(&g);
        c->gauss[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    return TLM_OK;
}

static void make_level_words(struct kv_codec *c)
{
    int n = 1 << c->f.bits;
    c->level_unit = c->levels[n - 1] / KV_LEVEL_WORD;
    for (int i = 0; i < n; i++)
        c->level_words[i] = (int16_t)lrintf(c->levels[i] / c->level_unit);
}

static enum tlm_status make_tables(struct kv_codec *c, struct tlm_error *e)
{
    const float half_pi = 1.57079632679f;
    bool signs_first = c->f.kind != KVF_ROT;
    enum tlm_status s = TLM_OK;
    switch (c->f.kind) {
    case KVF_ROT:
        s = kv_rotation_init(&c->rotation, c->dim, SEED_ROTATION, signs_first, e);
        if (s == TLM_OK && c->f.qjl)
            s = kv_rotation_init(&c->second, c->dim, SEED_SKETCH, signs_first, e);
        c->sketch_factor = sqrtf(half_pi / (float)c->dim);
        break;
    case KVF_TQ:
        s = kv_rotation_init(&c->rotation, c->dim, SEED_ROTATION, signs_first, e);
        if (s == TLM_OK)
            s = kv_levels(c->f.bits, c->dim, c->levels, e);
        if (s == TLM_OK && c->f.bits <= 4)
            make_level_words(c);
        break;
    case KVF_PROD:
        s = kv_rotation_init(&c->rotation, c->dim, SEED_ROTATION, signs_first, e);
        if (s == TLM_OK)
            s = kv_levels(c->f.bits - 1, c->dim, c->levels, e);
        if (s == TLM_OK)
            s = c->f.orthogonal ? kv_rotation_init(&c->second, c->dim, SEED_SKETCH, signs_first, e) : make_gauss(c, e);
        c->sketch_factor = c->f.orthogonal ? sqrtf(half_pi / (float)c->dim) : sqrtf(half_pi) / (float)c->dim;
        break;
    case KVF_SPLIT:
        s = kv_rotation_init(&c->rotation, c->wide, SEED_ROTATION, signs_first, e);
        if (s == TLM_OK)
            s = kv_rotation_init(&c->second, c->dim - c->wide, SEED_ROTATION, signs_first, e);
        if (s == TLM_OK)
            s = kv_levels(c->f.bits + 1, c->wide, c->wide_levels, e);
        if (s == TLM_OK)
            s = kv_levels(c->f.bits, c->dim - c->wide, c->levels, e);
        break;
    default:
        break;
    }
    return s;
}

enum tlm_status kv_codec_init(struct kv_codec *c, const struct kv_format *f, int dim, bool key, struct tlm_error *e)
{
    char name[KV_FORMAT_NAME_MAX];
    *c = (struct kv_codec){.f = *f, .dim = dim, .key = key, .row = key ? KV_BLOCK : (dim + 7) / 8 * 8};
    kv_format_name(f, key, name);
    if (dim > KV_DIM_MAX && !kv_format_is_exact(f))
        return err_set(e, TLM_EUNSUPPORTED, "cache format %s: a head of %d, expected at most %d", name, dim,
                       KV_DIM_MAX);
    if (f->group && dim % f->group)
        return err_set(e, TLM_EINVAL, "cache format %s: groups of %d do not divide a head of %d", name, f->group, dim);
    if (f->kind == KVF_SPLIT && dim < 16)
        return err_set(e, TLM_EINVAL, "cache format %s: a head of %d is too small, expected 16 or more", name, dim);
    c->wide = f->kind == KVF_SPLIT ? dim / 4 : 0;
    lay_out(c);
    enum tlm_status s = make_tables(c, e);
    if (s != TLM_OK)
        kv_codec_deinit(c);
    return s;
}

void kv_codec_deinit(struct kv_codec *c)
{
    kv_rotation_deinit(&c->rotation);
    kv_rotation_deinit(&c->second);
    mem_free(c->gauss);
    c->gauss = NULL;
}

double kv_codec_bits(const struct kv_codec *c)
{
    return (double)c->bytes * 8 / ((double)c->dim * KV_BLOCK);
}

size_t kv_codec_work(const struct kv_codec *c)
{
    return (size_t)KV_BLOCK * (size_t)(c->dim + 8) * 2 + 4 * (size_t)c->dim;
}
