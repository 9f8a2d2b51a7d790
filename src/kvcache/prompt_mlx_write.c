/* Writing a sequence as mlx-lm's cache classes. */
#include <stdio.h>
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "kvcache/prompt_mlx.h"

static bool exact_pair(const struct kv_layer *l)
{
    return kv_format_is_exact(&l->key->f) && kv_format_is_exact(&l->value->f);
}

static bool affine_pair(const struct kv_layer *l)
{
    const struct kv_format *k = &l->key->f, *v = &l->value->f;
    return k->kind == KVF_AFFINE && v->kind == KVF_AFFINE && k->bits == v->bits && k->group == v->group;
}

enum prompt_class prompt_class_of(const struct kv_seq *s, int layer)
{
    const struct kv_layer *l = &s->cache->layers[layer];
    const struct kv_group *g = &s->cache->groups[l->group];
    bool quantized = g->encoded && !exact_pair(l) && s->length >= s->cache->start;
    if (quantized && !affine_pair(l))
        return PROMPT_NONE;
    if (g->window)
        return PROMPT_ROTATING;
    return quantized ? PROMPT_QUANTIZED : PROMPT_KV;
}

bool prompt_class_holds(const struct kv_seq *s, int layer, int entry, const struct prompt_rotary *r)
{
    const struct kv_layer *l = &s->cache->layers[layer];
    enum prompt_class c = prompt_class_of(s, layer);
    if (!s->entries[entry].sealed || !s->cache->groups[l->group].encoded)
        return c == PROMPT_KV;
    if (c == PROMPT_KV)
        return l->key->f.kind == kv_type_kind(l->shape.type) && l->value->f.kind == kv_type_kind(l->shape.type);
    return c == PROMPT_QUANTIZED && prompt_same_groups(&l->key->f, r);
}

/* --- declaring ------------------------------------------------------------ */

struct declaring {
    struct st_writer *w;
    int layer, n_numbers;
    struct tlm_error *e;
};

static enum tlm_status add(struct declaring *d, const char *name, enum dtype t, int n_dims, const int64_t *shape)
{
    char full[32];
    snprintf(full, sizeof full, "%d.%s", d->layer, name);
    return st_writer_add(d->w, full, t, n_dims, shape, d->e);
}

/* A number: a tensor without dimensions, and a note that it is one. */
static enum tlm_status add_number(struct declaring *d, const char *name)
{
    char key[32], full[32];
    int n = ++d->n_numbers;
    enum tlm_status s = add(d, name, DT_I32, 0, NULL);
    snprintf(full, sizeof full, "%d.%s", d->layer, name);
    snprintf(key, sizeof key, "2.%d.0", n);
    if (s == TLM_OK)
        s = st_writer_meta(d->w, key, full, d->e);
    snprintf(key, sizeof key, "2.%d.1", n);
    return s == TLM_OK ? st_writer_meta(d->w, key, "scalar", d->e) : s;
}

static enum dtype element_type(enum kv_type t)
{
    return t == KV_F32 ? DT_F32 : t == KV_F16 ? DT_F16 : DT_BF16;
}

/* Rows of a layer: all tokens, or what a rotating cache holds. mlx-lm wants
 * that full, so the oldest row may be one that nobody sees any more. */
static int64_t row_count(const struct kv_seq *s, int layer)
{
    const struct kv_group *g = &s->cache->groups[s->cache->layers[layer].group];
    int64_t size = g->window + g->keep;
    return g->window && s->length > size ? size : s->length;
}

static enum tlm_status declare_layer(const struct kv_seq *s, struct declaring *d)
{
    static const char *const parts[2][3] = {{"0.0", "0.1", "0.2"}, {"1.0", "1.1", "1.2"}};
    static const char *const names[] = {"KVCache", "QuantizedKVCache", "RotatingKVCache"};
    static const int numbers[] = {1, 3, 4};
    const struct kv_layer *l = &s->cache->layers[d->layer];
    enum prompt_class c = prompt_class_of(s, d->layer);
    int64_t heads = l->shape.n_heads, rows = row_count(s, d->layer);
    enum tlm_status st = TLM_OK;
    char key[32];
    for (int i = 0; i < 2 && st == TLM_OK; i++) {
        int64_t dim = i ? l->shape.v_dim : l->shape.head_dim;
        if (c != PROMPT_QUANTIZED) {
            st = add(d, i ? "1" : "0", element_type(l->shape.type), 4, (int64_t[]){1, heads, rows, dim});
            continue;
        }
        const struct kv_format *f = &l->key->f;
        st = add(d, parts[i][0], DT_U32, 4, (int64_t[]){1, heads, rows, dim * f->bits / 32});
        for (int k = 1; k < 3 && st == TLM_OK; k++)
            st = add(d, parts[i][k], DT_F16, 4, (int64_t[]){1, heads, rows, dim / f->group});
    }
    for (int i = 0; i < numbers[c - PROMPT_KV] && st == TLM_OK; i++) {
        char name[] = {(char)('2' + i), '\0'};
        st = add_number(d, name);
    }
    snprintf(key, sizeof key, "1.%d", d->layer);
    return st == TLM_OK ? st_writer_meta(d->w, key, names[c - PROMPT_KV], d->e) : st;
}

enum tlm_status prompt_layers_declare(const struct kv_seq *s, struct st_writer *w, struct tlm_error *e)
{
    struct declaring d = {w, 0, 0, e};
    enum tlm_status st = TLM_OK;
    for (; d.layer < s->cache->n_layers && st == TLM_OK; d.layer++)
        st = declare_layer(s, &d);
    return st;
}

/* --- data ----------------------------------------------------------------- */

struct writing {
    const struct kv_seq *s;
    const struct prompt_rotary *r;
    struct st_writer *w;
    int layer;
    int64_t rows;
    float *x, *work;
    struct prompt_codes *codes;
    char *block;     /* a sealed head's bytes */
    uint8_t *out[3]; /* whole tensors */
    struct tlm_error *e;
};

/* The row of a position in what is written, or -1. */
static int64_t row_of(const struct writing *w, int64_t position)
{
    const struct kv_group *g = &w->s->cache->groups[w->s->cache->layers[w->layer].group];
    int64_t gone = w->s->length - w->rows;
    if (!gone || position < g->keep)
        return position;
    return position - gone < g->keep ? -1 : position - gone;
}

static void put_exact(const struct writing *w, const float *x, int64_t row, int64_t dim)
{
    enum kv_type t = w->s->cache->layers[w->layer].shape.type;
    for (int64_t d = 0; d < dim; d++) {
        uint8_t *at = w->out[0] + (size_t)(row * dim + d) * kv_elem_bytes(t);
        uint16_t h = t == KV_F16 ? fp_to_f16(x[d]) : fp_to_bf16(x[d]);
        if (t == KV_F32)
            memcpy(at, &x[d], 4);
        else
            memcpy(at, &h, 2);
    }
}

static void put_codes(const struct writing *w, const struct kv_codec *c, int t, int64_t row)
{
    int groups = c->dim / c->f.group;
    size_t words = (size_t)c->dim * c->f.bits / 8;
    prompt_bits_pack(w->codes->codes + t * c->dim, c->dim, c->f.bits, w->out[0] + (size_t)row * words);
    memcpy(w->out[1] + (size_t)row * (size_t)groups * 2, w->codes->scales + t * groups, (size_t)groups * 2);
    memcpy(w->out[2] + (size_t)row * (size_t)groups * 2, w->codes->offsets + t * groups, (size_t)groups * 2);
}

/* One head's part of one entry. */
static void write_part(const struct writing *w, int entry, int which, int head, bool quantized)
{
    const struct kv_seq *s = w->s;
    const struct kv_layer *l = &s->cache->layers[w->layer];
    const struct kv_codec *c = which ? l->value : l->key;
    const struct kv_entry *en = &s->entries[entry];
    int64_t dim = which ? l->shape.v_dim : l->shape.head_dim;
    bool as_is = quantized && en->sealed && (which || prompt_same_groups(&c->f, w->r));
    if (as_is) {
        prompt_codes_get(c, prompt_block_at(s, w->layer, entry, which, head), w->codes);
        for (int t = 0; !which && t < en->count; t++)
            prompt_permute_codes(w->codes->codes + t * dim, dim, w->r, true);
    } else {
        prompt_block_get(s, w->layer, entry, which, head, w->x, w->work);
        /* Places that hold no token are not to spoil what they share a code with. */
        memset(w->x + en->count * dim, 0, (size_t)((KV_BLOCK - en->count) * dim) * sizeof *w->x);
        for (int t = 0; !which && t < en->count; t++)
            prompt_permute(w->x + t * dim, dim, w->r, true);
        if (quantized) {
            kv_codec_encode(c, w->x, NULL, w->block, w->work);
            prompt_codes_get(c, w->block, w->codes);
        }
    }
    for (int t = 0; t < en->count; t++) {
        int64_t row = row_of(w, en->start + t);
        if (row < 0)
            continue;
        row += head * w->rows;
        if (quantized)
            put_codes(w, c, t, row);
        else
            put_exact(w, w->x + t * dim, row, dim);
    }
}

static enum tlm_status write_tensors(struct writing *w, int which)
{
    const struct kv_layer *l = &w->s->cache->layers[w->layer];
    bool quantized = prompt_class_of(w->s, w->layer) == PROMPT_QUANTIZED;
    const struct kv_format *f = &l->key->f;
    size_t dim = (size_t)(which ? l->shape.v_dim : l->shape.head_dim), vectors = (size_t)(l->shape.n_heads * w->rows);
    size_t bytes[3] = {vectors * dim * kv_elem_bytes(l->shape.type)};
    if (quantized) {
        bytes[0] = vectors * dim * f->bits / 8;
        bytes[1] = bytes[2] = vectors * (dim / f->group) * 2;
    }
    int n = quantized ? 3 : 1;
    enum tlm_status st = TLM_OK;
    for (int i = 0; i < n && st == TLM_OK; i++) {
        w->out[i] = mem_new(bytes[i]);
        if (!w->out[i])
            st = err_nomem(w->e, bytes[i]);
    }
    for (int i = 0; i < w->s->n && st == TLM_OK; i++)
        for (int h = 0; h < l->shape.n_heads && kv_entry_ids(w->s, i)[l->group] != KV_NONE; h++)
            write_part(w, i, which, h, quantized);
    for (int i = 0; i < n && st == TLM_OK; i++)
        st = st_writer_put(w->w, w->out[i], bytes[i], w->e);
    for (int i = 0; i < 3; i++) {
        mem_free(w->out[i]);
        w->out[i] = NULL;
    }
    return st;
}

static enum tlm_status write_layer(struct writing *w)
{
    const struct kv_layer *l = &w->s->cache->layers[w->layer];
    const struct kv_group *g = &w->s->cache->groups[l->group];
    enum prompt_class c = prompt_class_of(w->s, w->layer);
    w->rows = row_count(w->s, w->layer);
    int32_t numbers[4] = {(int32_t)w->s->length};
    int n = 1;
    if (c == PROMPT_QUANTIZED) {
        numbers[1] = l->key->f.group;
        numbers[2] = l->key->f.bits;
        n = 3;
    } else if (c == PROMPT_ROTATING) {
        numbers[1] = (int32_t)g->keep;
        numbers[2] = (int32_t)(g->window + g->keep);
        numbers[3] = (int32_t)w->rows;
        n = 4;
    }
    enum tlm_status st = write_tensors(w, 0);
    if (st == TLM_OK)
        st = write_tensors(w, 1);
    return st == TLM_OK ? st_writer_put(w->w, numbers, (size_t)n * sizeof *numbers, w->e) : st;
}

enum tlm_status prompt_layers_write(const struct kv_seq *s, const struct prompt_rotary *r, struct st_writer *to,
                                    struct tlm_error *e)
{
    struct writing w = {.s = s, .r = r, .w = to, .e = e};
    size_t floats = 0, bytes = 0;
    for (int i = 0; i < s->cache->n_codecs; i++) {
        size_t n = kv_codec_work(&s->cache->codecs[i]);
        floats = n > floats ? n : floats;
        bytes = s->cache->codecs[i].bytes > bytes ? s->cache->codecs[i].bytes : bytes;
    }
    w.x = mem_new_array(KV_BLOCK * KV_DIM_MAX, sizeof *w.x);
    w.work = mem_alloc_array(floats, sizeof *w.work);
    w.codes = mem_new(sizeof *w.codes);
    w.block = mem_new(bytes);
    enum tlm_status st = w.x && w.work && w.codes && w.block ? TLM_OK : err_nomem(e, bytes);
    for (; w.layer < s->cache->n_layers && st == TLM_OK; w.layer++)
        st = write_layer(&w);
    mem_free(w.x);
    mem_free(w.work);
    mem_free(w.codes);
    mem_free(w.block);
    return st;
}
