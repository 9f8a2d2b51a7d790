/* Blocks of a prompt file's sequence: one head at a time as floats or codes. */
#include <string.h>

#include "base/fp.h"
#include "kvcache/prompt_mlx.h"

static const struct kv_codec *codec_of(const struct kv_layer *l, int which)
{
    return which ? l->value : l->key;
}

static bool is_sealed(const struct kv_seq *s, int layer, int entry)
{
    return s->entries[entry].sealed && s->cache->groups[s->cache->layers[layer].group].encoded;
}

char *prompt_block_at(const struct kv_seq *s, int layer, int entry, int which, int head)
{
    const struct kv_layer *l = &s->cache->layers[layer];
    char *block =
        kv_pool_memory(kv_entry_pool(s->cache, l->group, s->entries[entry].sealed), kv_entry_ids(s, entry)[l->group]);
    size_t h = (size_t)head;
    if (is_sealed(s, layer, entry)) {
        block += l->sealed_offset + (which ? (size_t)l->shape.n_heads * l->key->bytes : 0);
        return block + h * codec_of(l, which)->bytes;
    }
    size_t elem = kv_elem_bytes(l->shape.type), dim = (size_t)(which ? l->shape.v_dim : l->shape.head_dim);
    return block + l->open_offset + (which ? kv_keys_bytes(&l->shape) : 0) + h * dim * KV_BLOCK * elem;
}

static float load(const char *p, enum kv_type t)
{
    return t == KV_F32 ? fp_from_bits(load_u32(p)) : t == KV_F16 ? fp_from_f16(load_u16(p)) : fp_from_bf16(load_u16(p));
}

static void store(char *p, enum kv_type t, float x)
{
    uint16_t h = t == KV_F16 ? fp_to_f16(x) : fp_to_bf16(x);
    if (t == KV_F32)
        memcpy(p, &x, 4);
    else
        memcpy(p, &h, 2);
}

void prompt_block_get(const struct kv_seq *s, int layer, int entry, int which, int head, float *x, float *work)
{
    const struct kv_layer *l = &s->cache->layers[layer];
    const char *at = prompt_block_at(s, layer, entry, which, head);
    size_t elem = kv_elem_bytes(l->shape.type), dim = (size_t)(which ? l->shape.v_dim : l->shape.head_dim);
    if (is_sealed(s, layer, entry)) {
        kv_codec_decode(codec_of(l, which), at, NULL, x, work);
        return;
    }
    for (size_t t = 0; t < KV_BLOCK; t++)
        for (size_t d = 0; d < dim; d++)
            x[t * dim + d] = load(at + (which ? t * dim + d : d * KV_BLOCK + t) * elem, l->shape.type);
}

void prompt_block_put(const struct kv_seq *s, int layer, int entry, int which, int head, const float *x, float *work)
{
    const struct kv_layer *l = &s->cache->layers[layer];
    char *at = prompt_block_at(s, layer, entry, which, head);
    size_t elem = kv_elem_bytes(l->shape.type), dim = (size_t)(which ? l->shape.v_dim : l->shape.head_dim);
    if (is_sealed(s, layer, entry)) {
        kv_codec_encode(codec_of(l, which), x, NULL, at, work);
        return;
    }
    for (size_t t = 0; t < KV_BLOCK; t++)
        for (size_t d = 0; d < dim; d++)
            store(at + (which ? t * dim + d : d * KV_BLOCK + t) * elem, l->shape.type, x[t * dim + d]);
}

void prompt_codes_get(const struct kv_codec *c, const void *block, struct prompt_codes *out)
{
    const uint8_t *in = block;
    int groups = c->dim / c->f.group, rows = c->key ? c->dim : KV_BLOCK;
    uint8_t row[KV_DIM_MAX];
    for (int r = 0; r < rows; r++) {
        kv_planes_unpack(row, in + c->codes + (size_t)r * kv_planes_bytes(c->row, c->f.bits), c->row, c->f.bits);
        if (!c->key)
            memcpy(out->codes + r * c->dim, row, (size_t)c->dim);
        for (int t = 0; c->key && t < KV_BLOCK; t++)
            out->codes[t * c->dim + r] = row[t];
    }
    for (int t = 0; t < KV_BLOCK; t++)
        for (int j = 0; j < groups; j++) {
            size_t at = 2 * (size_t)(c->key ? j * KV_BLOCK + t : t * groups + j);
            out->scales[t * groups + j] = load_u16(in + c->scales + at);
            out->offsets[t * groups + j] = load_u16(in + c->offsets + at);
        }
}

void prompt_codes_put(const struct kv_codec *c, const struct prompt_codes *in, void *block)
{
    uint8_t *out = block;
    int groups = c->dim / c->f.group, rows = c->key ? c->dim : KV_BLOCK;
    uint8_t row[KV_DIM_MAX] = {0};
    for (int r = 0; r < rows; r++) {
        if (!c->key)
            memcpy(row, in->codes + r * c->dim, (size_t)c->dim);
        for (int t = 0; c->key && t < KV_BLOCK; t++)
            row[t] = in->codes[t * c->dim + r];
        kv_planes_pack(out + c->codes + (size_t)r * kv_planes_bytes(c->row, c->f.bits), row, c->row, c->f.bits);
    }
    for (int t = 0; t < KV_BLOCK; t++)
        for (int j = 0; j < groups; j++) {
            size_t at = 2 * (size_t)(c->key ? j * KV_BLOCK + t : t * groups + j);
            memcpy(out + c->scales + at, &in->scales[t * groups + j], 2);
            memcpy(out + c->offsets + at, &in->offsets[t * groups + j], 2);
        }
}

void prompt_bits_pack(const uint8_t *codes, int n, int bits, uint8_t *row)
{
    uint32_t held = 0;
    int have = 0;
    for (int i = 0; i < n; i++) {
        held |= (uint32_t)codes[i] << have;
        for (have += bits; have >= 8; have -= 8) {
            *row++ = (uint8_t)held;
            held >>= 8;
        }
    }
}

void prompt_bits_unpack(const uint8_t *row, int n, int bits, uint8_t *codes)
{
    uint32_t held = 0;
    int have = 0;
    for (int i = 0; i < n; i++) {
        if (have < bits) {
            held |= (uint32_t)*row++ << have;
            have += 8;
        }
        codes[i] = (uint8_t)(held & ((1u << bits) - 1));
        held >>= bits;
        have -= bits;
    }
}

bool prompt_same_groups(const struct kv_format *f, const struct prompt_rotary *r)
{
    return !r->permuted || f->group >= r->dims;
}

/* Where this model has mlx-lm's channel i. */
static int64_t place(int64_t i, const struct prompt_rotary *r)
{
    int64_t half = r->dims / 2;
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

void prompt_permute(float *x, int64_t dim, const struct prompt_rotary *r, bool back)
{
    float y[KV_DIM_MAX];
    if (!r->permuted)
        return;
    memcpy(y, x, (size_t)dim * sizeof *y);
    for (int64_t i = 0; i < r->dims; i++)
        x[back ? i : place(i, r)] = y[back ? place(i, r) : i];
}

void prompt_permute_codes(uint8_t *codes, int64_t dim, const struct prompt_rotary *r, bool back)
{
    uint8_t y[KV_DIM_MAX];
    if (!r->permuted)
        return;
    memcpy(y, codes, (size_t)dim);
    for (int64_t i = 0; i < r->dims; i++)
        codes[back ? i : place(i, r)] = y[back ? place(i, r) : i];
}
