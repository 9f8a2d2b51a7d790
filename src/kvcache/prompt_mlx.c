/* Reading mlx-lm's cache classes. */
#include "kvcache/prompt_mlx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"

struct reader {
    const struct prompt_file *f;
    struct prompt_layer *l;
    int layer;
    bool new_form;
    struct tlm_error *e;
};

enum { PART_NAME_MAX = 64, LAYERS_MAX = 4096 };

static const struct st_tensor *part(const struct reader *r, const char *name)
{
    char full[PART_NAME_MAX];
    snprintf(full, sizeof full, "%d.%s", r->layer, name);
    return st_find(r->f->st, full);
}

static enum tlm_status bad(const struct reader *r, const char *what, const char *expected)
{
    return err_set(r->e, TLM_EFORMAT, "%s: layer %d (%s): %s: expected %s", r->f->st->path, r->layer, r->l->class_name,
                   what, expected);
}

static enum tlm_status need(const struct reader *r, const char *name, const struct st_tensor **out)
{
    *out = part(r, name);
    return *out ? TLM_OK : bad(r, name, "a tensor of this name");
}

/* A whole number: a tensor of one element, or in the older form the layer's
 * metadata number `old`. */
static enum tlm_status number(const struct reader *r, const char *name, int old, int64_t min, int64_t max, int64_t *out)
{
    char key[PART_NAME_MAX];
    char expected[96];
    bool ok = false;
    if (r->new_form) {
        const struct st_tensor *t = part(r, name);
        if (t && t->bytes == dtype_size(t->dtype)) {
            ok = true;
            if (t->dtype == DT_I32 || t->dtype == DT_U32)
                *out = t->dtype == DT_I32 ? (int32_t)load_u32(t->data) : (int64_t)load_u32(t->data);
            else if (t->dtype == DT_I64)
                *out = (int64_t)load_u64(t->data);
            else if (t->dtype == DT_BOOL)
                *out = *(const uint8_t *)t->data != 0;
            else
                ok = false;
        }
    } else if (old >= 0) {
        char *end;
        snprintf(key, sizeof key, "0.%d.%d", r->layer, old);
        const char *text = st_metadata(r->f->st, key);
        ok = text && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
        if (ok) {
            *out = strtoll(text, &end, 10);
            ok = *end == '\0';
        }
    }
    if (ok && *out >= min && *out <= max)
        return TLM_OK;
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)min, (long long)max);
    return bad(r, name, expected);
}

static bool is_float(const struct st_tensor *t)
{
    return t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16;
}

/* Keys and values of plain classes. */
static enum tlm_status read_plain(const struct reader *r)
{
    struct prompt_layer *l = r->l;
    static const char *const names[] = {"0", "1"};
    for (int i = 0; i < 2; i++) {
        const struct st_tensor *t;
        enum tlm_status s = need(r, names[i], &t);
        if (s != TLM_OK)
            return s;
        if (t->n_dims != 4 || !is_float(t))
            return bad(r, i ? "values" : "keys", "f32, f16 or bf16 [sequences, heads, tokens, dim]");
        if (t->shape[0] != 1)
            return bad(r, "sequences", "1 in the file");
        if (i && (t->shape[1] != l->heads || t->shape[2] != l->rows))
            return bad(r, "values", "as many heads and tokens as keys");
        l->heads = t->shape[1];
        l->rows = t->shape[2];
        l->dim[i] = t->shape[3];
        l->part[i] = t;
    }
    return TLM_OK;
}

static void one_run(struct prompt_layer *l, int64_t row, int64_t count)
{
    l->runs[0] = (struct prompt_run){row, count};
    l->n_rows = count;
}

static enum tlm_status read_kv(const struct reader *r, bool has_offset)
{
    struct prompt_layer *l = r->l;
    enum tlm_status s = read_plain(r);
    l->length = l->rows;
    if (s == TLM_OK && has_offset && r->new_form)
        s = number(r, "2", -1, 0, l->rows, &l->length);
    one_run(l, 0, l->length);
    return s;
}

static enum tlm_status read_quantized(const struct reader *r)
{
    struct prompt_layer *l = r->l;
    static const char *const names[2][3] = {{"0.0", "0.1", "0.2"}, {"1.0", "1.1", "1.2"}};
    int64_t bits = 0, group = 0;
    enum tlm_status s = number(r, "3", 1, 32, 128, &group);
    if (s == TLM_OK)
        s = number(r, "4", 2, 2, 8, &bits);
    if (s == TLM_OK && ((group != 32 && group != 64 && group != 128) || bits == 7))
        s = bad(r, "bits and group size", "2, 3, 4, 5, 6 or 8 and 32, 64 or 128");
    for (int i = 0; i < 2 && s == TLM_OK; i++) {
        const struct st_tensor *t[3];
        for (int k = 0; k < 3 && s == TLM_OK; k++)
            s = need(r, names[i][k], &t[k]);
        if (s != TLM_OK)
            break;
        if (t[0]->n_dims != 4 || t[0]->dtype != DT_U32 || t[0]->shape[0] != 1)
            return bad(r, names[i][0], "u32 [1, heads, tokens, words]");
        if (t[0]->shape[3] > KV_DIM_MAX * bits / 32 || t[0]->shape[3] * 32 % bits)
            return bad(r, names[i][0], "whole vectors of at most 1024 codes");
        if (i && (t[0]->shape[1] != l->heads || t[0]->shape[2] != l->rows))
            return bad(r, "values", "as many heads and tokens as keys");
        l->heads = t[0]->shape[1];
        l->rows = t[0]->shape[2];
        l->dim[i] = t[0]->shape[3] * 32 / bits;
        if (l->dim[i] % group)
            return bad(r, names[i][0], "a multiple of the group size");
        for (int k = 1; k < 3; k++)
            if (t[k]->n_dims != 4 || !is_float(t[k]) || t[k]->shape[0] != 1 || t[k]->shape[1] != l->heads ||
                t[k]->shape[2] != l->rows || t[k]->shape[3] != l->dim[i] / group)
                return bad(r, names[i][k], "a float for each group of codes");
        l->part[i] = t[0];
        l->scales[i] = t[1];
        l->offsets[i] = t[2];
    }
    l->bits = (int)bits;
    l->group = (int)group;
    if (s == TLM_OK)
        s = number(r, "2", 0, 0, l->rows, &l->length);
    one_run(l, 0, l->length);
    return s;
}

/* Rows in a ring behind `keep`: mlx-lm's order of time. */
static enum tlm_status read_rotating(const struct reader *r)
{
    struct prompt_layer *l = r->l;
    int64_t idx = 0;
    enum tlm_status s = read_plain(r);
    if (s == TLM_OK)
        s = number(r, "4", 1, 1, PROMPT_LENGTH_MAX, &l->size);
    if (s == TLM_OK)
        s = number(r, "3", 0, 0, l->size - 1, &l->keep);
    if (s == TLM_OK)
        s = number(r, "2", 2, 0, PROMPT_LENGTH_MAX, &l->length);
    if (s == TLM_OK)
        s = number(r, "5", 3, 0, l->rows, &idx);
    if (s != TLM_OK)
        return s;
    if (idx == l->rows || idx >= l->length) {
        one_run(l, 0, idx);
    } else {
        if (idx < l->keep || l->keep > l->rows)
            return bad(r, "index", "no less than the kept tokens");
        l->runs[0] = (struct prompt_run){0, l->keep};
        l->runs[1] = (struct prompt_run){idx, l->rows - idx};
        l->runs[2] = (struct prompt_run){l->keep, idx - l->keep};
        l->n_rows = l->rows;
    }
    if (l->n_rows > l->length || (l->n_rows < l->length && l->n_rows < l->keep))
        return bad(r, "offset", "no less than the rows");
    return TLM_OK;
}

static enum tlm_status read_batch(const struct reader *r, bool rotating)
{
    struct prompt_layer *l = r->l;
    int64_t padding = 0, idx = 0, rotated = 0;
    enum tlm_status s = read_plain(r);
    if (s == TLM_OK && !r->new_form)
        s = bad(r, "form", "that of mlx-lm 0.32.2");
    if (s == TLM_OK)
        s = number(r, "2", -1, 0, PROMPT_LENGTH_MAX, &l->length);
    if (s == TLM_OK)
        s = number(r, "3", -1, -(int64_t)PROMPT_LENGTH_MAX, l->rows, &padding);
    if (s == TLM_OK && rotating)
        s = number(r, "4", -1, 1, PROMPT_LENGTH_MAX, &l->size);
    if (s == TLM_OK)
        s = number(r, rotating ? "6" : "4", -1, 0, l->rows, &idx);
    if (s == TLM_OK && rotating)
        s = number(r, "7", -1, 0, 1, &rotated);
    if (s != TLM_OK)
        return s;
    padding = padding < 0 ? 0 : padding;
    if (rotated) {
        l->runs[0] = (struct prompt_run){idx, l->rows - idx};
        l->runs[1] = (struct prompt_run){0, idx};
        l->n_rows = l->rows;
    } else {
        one_run(l, 0, idx);
    }
    for (int i = 0; i < 2 && padding > 0; i++) {
        int64_t n = padding < l->runs[i].count ? padding : l->runs[i].count;
        l->runs[i].row += n;
        l->runs[i].count -= n;
        l->n_rows -= n;
        padding -= n;
    }
    if (l->n_rows > l->length || (!rotating && l->n_rows != l->length))
        return bad(r, "offset", "the number of rows that are no padding");
    return TLM_OK;
}

static enum tlm_status refuse(const struct reader *r, const char *needs)
{
    return err_set(r->e, TLM_EUNSUPPORTED,
                   "%s: layer %d is a %s of mlx-lm, which is for models with %s; no such model "
                   "is supported yet",
                   r->f->st->path, r->layer, r->l->class_name, needs);
}

static enum tlm_status read_layer(const struct reader *r)
{
    const char *c = r->l->class_name;
    if (!strcmp(c, "KVCache"))
        return read_kv(r, true);
    if (!strcmp(c, "ConcatenateKVCache"))
        return read_kv(r, false);
    if (!strcmp(c, "QuantizedKVCache"))
        return read_quantized(r);
    if (!strcmp(c, "RotatingKVCache"))
        return read_rotating(r);
    if (!strcmp(c, "BatchKVCache"))
        return read_batch(r, false);
    if (!strcmp(c, "BatchRotatingKVCache"))
        return read_batch(r, true);
    if (!strcmp(c, "ArraysCache") || !strcmp(c, "MambaCache"))
        return refuse(r, "recurrent state (state space, linear attention or convolution layers)");
    if (!strcmp(c, "ChunkedKVCache"))
        return refuse(r, "chunked attention");
    if (!strcmp(c, "CacheList"))
        return refuse(r, "several caches in one layer");
    return err_set(r->e, TLM_EFORMAT, "%s: layer %d has the cache class '%s', which mlx-lm 0.32.2 does not have",
                   r->f->st->path, r->layer, c);
}

enum tlm_status prompt_layers_read(struct prompt_file *f, bool new_form, struct tlm_error *e)
{
    char key[PART_NAME_MAX];
    int n = 0;
    for (; n <= LAYERS_MAX; n++) {
        snprintf(key, sizeof key, "%d.%d", new_form ? 1 : 2, n);
        if (!st_metadata(f->st, key))
            break;
    }
    if (n == 0 || n > LAYERS_MAX)
        return err_set(e, TLM_EFORMAT, "%s: no prompt cache: it names %s cache classes", f->st->path,
                       n ? "too many" : "no");
    f->layers = mem_new_array((size_t)n, sizeof *f->layers);
    if (!f->layers)
        return err_nomem(e, (size_t)n * sizeof *f->layers);
    f->n_layers = n;
    for (int i = 0; i < n; i++) {
        struct prompt_layer *l = &f->layers[i];
        struct reader r = {f, l, i, new_form, e};
        snprintf(key, sizeof key, "%d.%d", new_form ? 1 : 2, i);
        l->class_name = st_metadata(f->st, key);
        enum tlm_status s = read_layer(&r);
        if (s != TLM_OK)
            return s;
        if (l->length != f->layers[0].length)
            return err_set(e, TLM_EFORMAT, "%s: layer %d has %lld tokens, layer 0 %lld", f->st->path, i,
                           (long long)l->length, (long long)f->layers[0].length);
    }
    f->length = f->layers[0].length;
    if (f->length < 1 || f->length > PROMPT_LENGTH_MAX)
        return err_set(e, TLM_EFORMAT, "%s: %lld tokens, expected 1 to %d", f->st->path, (long long)f->length,
                       PROMPT_LENGTH_MAX);
    return TLM_OK;
}

int64_t prompt_layer_row(const struct prompt_layer *l, int64_t position)
{
    int64_t gone = l->length - l->n_rows, i = position;
    if (gone && position >= l->keep)
        i = position - gone < l->keep ? -1 : position - gone;
    if (i < 0 || position >= l->length)
        return -1;
    for (int k = 0; k < 3; k++) {
        if (i < l->runs[k].count)
            return l->runs[k].row + i;
        i -= l->runs[k].count;
    }
    return -1;
}

static float element(const struct st_tensor *t, int64_t i)
{
    const char *p = (const char *)t->data + (size_t)i * dtype_size(t->dtype);
    return t->dtype == DT_F32   ? fp_from_bits(load_u32(p))
           : t->dtype == DT_F16 ? fp_from_f16(load_u16(p))
                                : fp_from_bf16(load_u16(p));
}

void prompt_layer_codes(const struct prompt_layer *l, int which, int64_t head, int64_t row, uint8_t *codes,
                        float *scales, float *offsets)
{
    int64_t at = head * l->rows + row, dim = l->dim[which], groups = dim / l->group;
    const uint8_t *words = l->part[which]->data;
    prompt_bits_unpack(words + (size_t)(at * dim * l->bits / 8), (int)dim, l->bits, codes);
    for (int64_t j = 0; j < groups; j++) {
        scales[j] = element(l->scales[which], at * groups + j);
        offsets[j] = element(l->offsets[which], at * groups + j);
    }
}

void prompt_layer_fetch(const struct prompt_layer *l, int which, int64_t head, int64_t row, float *x)
{
    int64_t dim = l->dim[which];
    if (!l->bits) {
        for (int64_t d = 0; d < dim; d++)
            x[d] = element(l->part[which], (head * l->rows + row) * dim + d);
        return;
    }
    uint8_t codes[KV_DIM_MAX];
    float scales[KV_DIM_MAX / 32], offsets[KV_DIM_MAX / 32];
    prompt_layer_codes(l, which, head, row, codes, scales, offsets);
    for (int64_t d = 0; d < dim; d++)
        x[d] = (float)codes[d] * scales[d / l->group] + offsets[d / l->group];
}
