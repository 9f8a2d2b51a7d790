/* Prompt cache files: opening, becoming a sequence, saving one. */
#include "kvcache/prompt_file.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fp.h"
#include "base/json.h"
#include "base/mem.h"
#include "kvcache/prompt_mlx.h"
#include "kvformat/kv_spec.h"

enum { VERSION = 1, HAVE_NONE = 0, HAVE_BLOCK = 1, HAVE_ROWS = 2 };

/* --- opening -------------------------------------------------------------- */

static int64_t extension_at(const struct prompt_file *f)
{
    return f->n_layers;
}

/* One of our tensors; group < 0: none in its name. */
static const struct st_tensor *own(const struct prompt_file *f, const char *name, int group)
{
    char full[64];
    if (group < 0)
        snprintf(full, sizeof full, "%lld.%s", (long long)extension_at(f), name);
    else
        snprintf(full, sizeof full, "%lld.%s.%d", (long long)extension_at(f), name, group);
    return st_find(f->st, full);
}

static enum tlm_status read_tokens(struct prompt_file *f, struct tlm_error *e)
{
    const struct st_tensor *t = own(f, "tokens", -1);
    if (!t || t->dtype != DT_I32 || t->n_dims != 1 || t->shape[0] < 1 || t->shape[0] > PROMPT_LENGTH_MAX)
        return err_set(e, TLM_EFORMAT, "%s: tensor tokens: expected i32 [1 to %d]", f->st->path, PROMPT_LENGTH_MAX);
    if (f->n_layers && t->shape[0] != f->length)
        return err_set(e, TLM_EFORMAT, "%s: %lld tokens, but the layers have %lld", f->st->path, (long long)t->shape[0],
                       (long long)f->length);
    f->length = t->shape[0];
    f->tokens = mem_alloc_array((size_t)f->length, sizeof *f->tokens);
    if (!f->tokens)
        return err_nomem(e, (size_t)f->length * sizeof *f->tokens);
    memcpy(f->tokens, t->data, t->bytes);
    return TLM_OK;
}

static enum tlm_status read_extension(struct prompt_file *f, const char *text, struct tlm_error *e)
{
    int64_t version = 0;
    bool rows = false;
    enum tlm_status s = json_parse(text, strlen(text), f->st->path, &f->extension, e);
    if (s == TLM_OK)
        s = json_int(f->extension, "version", 1, INT32_MAX, &version, e);
    if (s == TLM_OK && version != VERSION)
        s = err_set(e, TLM_EUNSUPPORTED, "%s: version %lld of turbolm's part, expected %d", f->st->path,
                    (long long)version, VERSION);
    if (s == TLM_OK)
        s = json_bool(f->extension, "mlx", &rows, e);
    if (s == TLM_OK && rows)
        s = prompt_layers_read(f, true, e);
    return s == TLM_OK ? read_tokens(f, e) : s;
}

enum tlm_status prompt_file_open(const char *path, struct prompt_file **out, struct tlm_error *e)
{
    *out = NULL;
    struct prompt_file *f = mem_new(sizeof *f);
    if (!f)
        return err_nomem(e, sizeof *f);
    enum tlm_status s = st_open(path, &f->st, e);
    const char *text = s == TLM_OK ? st_metadata(f->st, "0.turbolm") : NULL;
    if (text) {
        s = read_extension(f, text, e);
    } else if (s == TLM_OK) {
        /* In the older form "2.0" is a class. */
        const char *first = st_metadata(f->st, "2.0");
        s = prompt_layers_read(f, !first || !*first, e);
    }
    if (s != TLM_OK) {
        prompt_file_close(f);
        return s;
    }
    f->model = st_metadata(f->st, "0.model");
    f->tokenizer_config = st_metadata(f->st, "0.tokenizer_config");
    if (!f->model)
        f->model = st_metadata(f->st, "1.model");
    if (!f->tokenizer_config)
        f->tokenizer_config = st_metadata(f->st, "1.tokenizer_config");
    *out = f;
    return TLM_OK;
}

void prompt_file_close(struct prompt_file *f)
{
    if (!f)
        return;
    st_close(f->st);
    cJSON_Delete(f->extension);
    mem_free(f->layers);
    mem_free(f->tokens);
    mem_free(f);
}

/* Where only some layers are rotating, their size is the model's window. */
struct prompt_kind prompt_file_kind(const struct prompt_file *f)
{
    struct prompt_kind k = {0};
    bool all = f->n_layers > 0;
    for (int i = 0; i < f->n_layers; i++) {
        const struct prompt_layer *l = &f->layers[i];
        all = all && l->size == f->layers[0].size && l->keep == f->layers[0].keep;
        if (l->bits) {
            k.bits = l->bits;
            k.group = l->group;
        }
    }
    k.size = all ? f->layers[0].size : 0;
    k.keep = all ? f->layers[0].keep : 0;
    return k;
}

char *prompt_file_spec(const struct prompt_file *f)
{
    struct prompt_kind k = prompt_file_kind(f);
    struct buf b;
    buf_init(&b, (size_t)1 << 20);
    buf_printf(&b, "affine%dg%d", k.bits, k.group);
    for (int i = 0; i < f->n_layers; i++)
        if (!f->layers[i].bits)
            buf_printf(&b, ";%d=f16", i);
        else if (f->layers[i].bits != k.bits || f->layers[i].group != k.group)
            buf_printf(&b, ";%d=affine%dg%d", i, f->layers[i].bits, f->layers[i].group);
    return buf_take(&b, NULL);
}

const int32_t *kv_seq_tokens(const struct kv_seq *s)
{
    return s->known ? s->tokens : NULL;
}

/* --- becoming a sequence -------------------------------------------------- */

struct loading {
    const struct prompt_file *f;
    const struct prompt_rotary *r;
    struct kv_seq *s;
    float *x, *work;
    struct prompt_codes *codes;
    bool turned; /* the file's blocks are in the other order of channels */
    struct tlm_error *e;
};

static enum tlm_status check_layers(const struct loading *l)
{
    const struct kv_cache *kv = l->s->cache;
    const struct prompt_file *f = l->f;
    for (int i = 0; f->n_layers && i < kv->n_layers; i++)
        if (kv->layers[i].shape.head_dim > KV_DIM_MAX || kv->layers[i].shape.v_dim > KV_DIM_MAX)
            return err_set(l->e, TLM_EUNSUPPORTED, "%s: heads of more than %d", f->st->path, KV_DIM_MAX);
    if (f->n_layers && f->n_layers != kv->n_layers)
        return err_set(l->e, TLM_EINVAL, "%s: a cache of %d layers, but the model has %d", f->st->path, f->n_layers,
                       kv->n_layers);
    for (int i = 0; i < f->n_layers; i++) {
        const struct prompt_layer *p = &f->layers[i];
        const struct kv_shape *s = &kv->layers[i].shape;
        if (p->heads != s->n_heads || p->dim[0] != s->head_dim || p->dim[1] != s->v_dim)
            return err_set(l->e, TLM_EINVAL,
                           "%s: layer %d has %lld heads of %lld and %lld, but the model's %d of %d and %d", f->st->path,
                           i, (long long)p->heads, (long long)p->dim[0], (long long)p->dim[1], s->n_heads, s->head_dim,
                           s->v_dim);
    }
    return TLM_OK;
}

/* Can blocks of this file's tokens be encoded? Keys before rotary would need
 * the angles, which the cache learns in its first pass: such tokens stay exact. */
static bool can_seal(const struct kv_cache *kv)
{
    for (int i = 0; i < kv->n_layers; i++)
        if (kv->layers[i].key->f.pre)
            return false;
    return kv->encoded;
}

static enum tlm_status add_block(const struct loading *l, int group, char **memory)
{
    struct kv_seq *s = l->s;
    struct kv_pool *p = kv_entry_pool(s->cache, group, s->entries[s->n - 1].sealed);
    int32_t *id = &kv_entry_ids(s, s->n - 1)[group];
    enum tlm_status st = kv_block_get(s->cache, p, id, l->e);
    if (st == TLM_OK)
        *memory = kv_pool_memory(p, *id);
    return st;
}

static bool same_codes(const struct loading *l, int layer, int which)
{
    const struct prompt_layer *p = &l->f->layers[layer];
    const struct kv_layer *to = &l->s->cache->layers[layer];
    const struct kv_format *f = which ? &to->value->f : &to->key->f;
    return p->bits && f->kind == KVF_AFFINE && f->bits == p->bits && f->group == p->group &&
           (which || prompt_same_groups(f, l->r));
}

/* One head's part of the last entry, from mlx-lm's rows. Rows that are not
 * there are zeros: nobody sees them. */
static void fill_part(const struct loading *l, int layer, int which, int head)
{
    struct kv_seq *s = l->s;
    const struct prompt_layer *p = &l->f->layers[layer];
    const struct kv_layer *to = &s->cache->layers[layer];
    const struct kv_entry *en = &s->entries[s->n - 1];
    int64_t dim = p->dim[which];
    bool as_is = en->sealed && s->cache->groups[to->group].encoded && same_codes(l, layer, which);
    memset(l->x, 0, (size_t)(KV_BLOCK * dim) * sizeof *l->x);
    if (as_is)
        memset(l->codes, 0, sizeof *l->codes);
    for (int t = 0; t < en->count; t++) {
        int64_t row = prompt_layer_row(p, en->start + t);
        if (row < 0)
            continue;
        if (as_is) {
            float scales[KV_DIM_MAX / 32], offsets[KV_DIM_MAX / 32];
            int64_t groups = dim / p->group;
            prompt_layer_codes(p, which, head, row, l->codes->codes + t * dim, scales, offsets);
            if (!which)
                prompt_permute_codes(l->codes->codes + t * dim, dim, l->r, false);
            for (int64_t j = 0; j < groups; j++) {
                l->codes->scales[t * groups + j] = fp_to_f16(scales[j]);
                l->codes->offsets[t * groups + j] = fp_to_f16(offsets[j]);
            }
            continue;
        }
        prompt_layer_fetch(p, which, head, row, l->x + t * dim);
        if (!which)
            prompt_permute(l->x + t * dim, dim, l->r, false);
    }
    if (as_is)
        prompt_codes_put(which ? to->value : to->key, l->codes, prompt_block_at(s, layer, s->n - 1, which, head));
    else
        prompt_block_put(s, layer, s->n - 1, which, head, l->x, l->work);
}

/* The last entry's block of a group, from mlx-lm's rows. */
static enum tlm_status fill_block(const struct loading *l, int group)
{
    struct kv_seq *s = l->s;
    struct kv_cache *kv = s->cache;
    char *memory;
    enum tlm_status st = add_block(l, group, &memory);
    if (st != TLM_OK)
        return st;
    memset(memory, 0, kv_entry_pool(kv, group, s->entries[s->n - 1].sealed)->block_bytes);
    for (int i = 0; i < kv->n_layers; i++)
        for (int h = 0; h < kv->layers[i].shape.n_heads && kv->layers[i].group == group; h++) {
            fill_part(l, i, 0, h);
            fill_part(l, i, 1, h);
        }
    return TLM_OK;
}

/* What later rows see must be what they would see in mlx-lm. */
static bool same_view(const struct prompt_layer *p, const struct kv_group *g)
{
    if (!p->size || (g->window + g->keep == p->size && g->keep == p->keep))
        return true;
    return g->window && !g->keep && g->window <= p->size - p->keep;
}

/* Positions that a later row sees must be there. */
static enum tlm_status check_rows(const struct loading *l)
{
    const struct kv_cache *kv = l->s->cache;
    const struct prompt_file *f = l->f;
    for (int i = 0; i < kv->n_layers; i++) {
        const struct kv_group *g = &kv->groups[kv->layers[i].group];
        const struct prompt_layer *p = &f->layers[i];
        int64_t seen = g->window && f->length >= g->window ? f->length - g->window + 1 : 0;
        int64_t kept = g->keep < seen ? g->keep : seen;
        if (!same_view(p, g))
            return err_set(l->e, TLM_EINVAL,
                           "%s: layer %d is a %s of %lld tokens that keeps the first %lld, which this model's layer is "
                           "not (see --max-kv-size)",
                           f->st->path, i, p->class_name, (long long)p->size, (long long)p->keep);
        if ((seen < f->length && prompt_layer_row(p, seen) < 0) || (kept && prompt_layer_row(p, kept - 1) < 0))
            return err_set(l->e, TLM_EINVAL,
                           "%s: layer %d keeps %lld of %lld tokens, too few for this cache (see --max-kv-size)",
                           f->st->path, i, (long long)p->n_rows, (long long)f->length);
    }
    return TLM_OK;
}

static enum tlm_status load_rows(const struct loading *l)
{
    struct kv_seq *s = l->s;
    struct kv_cache *kv = s->cache;
    int64_t n = l->f->length;
    bool seals = can_seal(kv) && n >= kv->start;
    s->known = l->f->tokens != NULL;
    enum tlm_status st = check_rows(l);
    for (int64_t at = 0; at < n && st == TLM_OK; at += KV_BLOCK) {
        st = kv_seq_add_entry(s, at, l->e);
        if (st != TLM_OK)
            break;
        struct kv_entry *en = &s->entries[s->n - 1];
        en->count = (int32_t)(n - at < KV_BLOCK ? n - at : KV_BLOCK);
        en->sealed = seals && en->count == KV_BLOCK && at >= kv->sink;
        for (int g = 0; g < kv->n_groups && st == TLM_OK; g++) {
            const struct kv_group *group = &kv->groups[g];
            int64_t seen = group->window && n >= group->window ? n - group->window + 1 : 0;
            s->known = s->known && !seen; /* else it must not be rewound: rows may be missing within a block */
            if (at + en->count > seen || at < group->keep)
                st = fill_block(l, g);
        }
        s->length += en->count;
    }
    return st;
}

/* Bit sets of channels decide where a block's parts lie, so they must be as the
 * encoder makes them. */
static bool sets_are_sound(const struct kv_codec *c, const char *block)
{
    const uint8_t *set = (const uint8_t *)block + c->sets;
    size_t bytes = ((size_t)c->dim + 7) / 8;
    int wide = 0, narrow = 0;
    if (c->f.kind != KVF_SPLIT && !(c->f.kind == KVF_CHAN && c->f.mix))
        return true;
    for (int i = 0; i < (int)bytes * 8; i++) {
        int w = set[i / 8] >> (i % 8) & 1, n = c->f.mix ? set[bytes + (size_t)i / 8] >> (i % 8) & 1 : 0;
        if ((w || n) && (i >= c->dim || (w && n)))
            return false;
        wide += w;
        narrow += n;
    }
    return c->f.mix ? wide == narrow : wide == c->wide;
}

static bool block_is_sound(const struct kv_seq *s, int entry, int group)
{
    const struct kv_cache *kv = s->cache;
    for (int i = 0; i < kv->n_layers; i++)
        for (int h = 0; h < kv->layers[i].shape.n_heads && kv->layers[i].group == group; h++)
            if (!sets_are_sound(kv->layers[i].key, prompt_block_at(s, i, entry, 0, h)) ||
                !sets_are_sound(kv->layers[i].value, prompt_block_at(s, i, entry, 1, h)))
                return false;
    return true;
}

struct stored {
    const struct st_tensor *have, *open, *sealed;
    int64_t next_open, next_sealed;
};

static enum tlm_status find_stored(const struct loading *l, int group, int64_t entries, struct stored *out)
{
    struct kv_group *g = &l->s->cache->groups[group];
    *out = (struct stored){own(l->f, "have", group), own(l->f, "open", group), own(l->f, "sealed", group), 0, 0};
    const struct st_tensor *blocks[] = {out->open, out->sealed};
    const size_t bytes[] = {g->open.block_bytes, g->sealed.block_bytes};
    bool ok = out->have && out->have->dtype == DT_U8 && out->have->n_dims == 1 && out->have->shape[0] == entries;
    for (int i = 0; i < 2; i++)
        ok = ok && (!blocks[i] ||
                    (blocks[i]->dtype == DT_U8 && blocks[i]->n_dims == 2 && blocks[i]->shape[1] == (int64_t)bytes[i]));
    return ok ? TLM_OK
              : err_set(l->e, TLM_EFORMAT, "%s: the blocks of layer group %d are not those of this cache",
                        l->f->st->path, group);
}

/* The last entry's exact block from the order of channels in a GGUF file to
 * mlx-lm's, or back. */
static void turn_block(const struct loading *l, int group)
{
    struct kv_seq *s = l->s;
    const struct kv_cache *kv = s->cache;
    const struct prompt_rotary r = {true, l->r->dims};
    for (int i = 0; i < kv->n_layers; i++)
        for (int h = 0; h < kv->layers[i].shape.n_heads && kv->layers[i].group == group; h++) {
            int64_t dim = kv->layers[i].shape.head_dim;
            prompt_block_get(s, i, s->n - 1, 0, h, l->x, l->work);
            for (int t = 0; t < KV_BLOCK; t++)
                prompt_permute(l->x + t * dim, dim, &r, !l->r->permuted);
            prompt_block_put(s, i, s->n - 1, 0, h, l->x, l->work);
        }
}

static enum tlm_status load_block(const struct loading *l, int group, struct stored *from)
{
    struct kv_seq *s = l->s;
    const char *path = l->f->st->path;
    int have = ((const uint8_t *)from->have->data)[s->n - 1];
    bool sealed = s->cache->groups[group].encoded && s->entries[s->n - 1].sealed;
    const struct st_tensor *t = sealed ? from->sealed : from->open;
    int64_t *next = sealed ? &from->next_sealed : &from->next_open;
    char *memory;
    if (have == HAVE_NONE)
        return TLM_OK;
    if (have == HAVE_BLOCK && sealed && l->turned)
        ++*next; /* no more than mlx-lm's part is of use */
    if (l->f->n_layers && (have == HAVE_ROWS || (sealed && l->turned))) {
        /* Rows of a ring may be missing within a block: it must not be rewound. */
        if (s->cache->groups[group].window && l->f->length >= s->cache->groups[group].window)
            s->known = false;
        return fill_block(l, group);
    }
    if (have != HAVE_BLOCK || !t || *next >= t->shape[0])
        return err_set(l->e, TLM_EFORMAT, "%s: layer group %d: a block is missing", path, group);
    enum tlm_status st = add_block(l, group, &memory);
    if (st != TLM_OK)
        return st;
    size_t bytes = (size_t)t->shape[1];
    memcpy(memory, (const char *)t->data + (size_t)(*next)++ * bytes, bytes);
    if (sealed && !block_is_sound(s, s->n - 1, group))
        return err_set(l->e, TLM_EFORMAT, "%s: layer group %d: the channel sets of a block are not sound", path, group);
    if (l->turned)
        turn_block(l, group);
    return TLM_OK;
}

static enum tlm_status load_entries(const struct loading *l, struct stored *stored)
{
    struct kv_seq *s = l->s;
    struct kv_cache *kv = s->cache;
    const struct st_tensor *t = own(l->f, "entries", -1);
    int64_t n = t && t->dtype == DT_I64 && t->n_dims == 2 && t->shape[1] == 3 ? t->shape[0] : -1;
    enum tlm_status st = TLM_OK;
    if (n < 1 || n > l->f->length)
        return err_set(l->e, TLM_EFORMAT, "%s: tensor entries: expected i64 [1 to %lld, 3]", l->f->st->path,
                       (long long)l->f->length);
    if (l->turned)
        st = check_rows(l);
    for (int g = 0; g < kv->n_groups && st == TLM_OK; g++)
        st = find_stored(l, g, n, &stored[g]);
    for (int64_t i = 0; i < n && st == TLM_OK; i++) {
        const char *at = (const char *)t->data + i * 24;
        int64_t start = (int64_t)load_u64(at), count = (int64_t)load_u64(at + 8);
        uint64_t sealed = load_u64(at + 16);
        if (start != s->length || count < 1 || count > KV_BLOCK || count > l->f->length - start || sealed > 1 ||
            (sealed && !kv->encoded))
            return err_set(l->e, TLM_EFORMAT, "%s: entry %lld of the cache is not sound", l->f->st->path, (long long)i);
        st = kv_seq_add_entry(s, start, l->e);
        if (st != TLM_OK)
            break;
        s->entries[i].count = (int32_t)count;
        s->entries[i].sealed = sealed;
        for (int g = 0; g < kv->n_groups && st == TLM_OK; g++)
            st = load_block(l, g, &stored[g]);
        s->length += count;
    }
    if (st == TLM_OK && (s->length != l->f->length || !kv_seq_reaches(s, s->length)))
        st = err_set(l->e, TLM_EFORMAT, "%s: the cache's blocks do not hold its %lld tokens", l->f->st->path,
                     (long long)l->f->length);
    return st;
}

static enum tlm_status load_own(const struct loading *l)
{
    struct kv_seq *s = l->s;
    struct kv_cache *kv = s->cache;
    const char *spec = NULL;
    char *mine = prompt_spec(kv);
    enum tlm_status st = mine ? json_str(l->f->extension, "kv_format", &spec, l->e) : err_nomem(l->e, 256);
    if (st == TLM_OK && !spec)
        st = err_set(l->e, TLM_EFORMAT, "%s: kv_format is missing", l->f->st->path);
    if (st == TLM_OK && strcmp(spec, mine))
        st = err_set(l->e, TLM_EINVAL, "%s: the cache is %.200s, but the model was opened with a cache of %.200s",
                     l->f->st->path, spec, mine);
    mem_free(mine);
    struct stored *stored = st == TLM_OK ? mem_new_array((size_t)kv->n_groups, sizeof *stored) : NULL;
    if (st == TLM_OK && !stored)
        st = err_nomem(l->e, (size_t)kv->n_groups * sizeof *stored);
    if (st == TLM_OK)
        st = load_entries(l, stored);
    mem_free(stored);
    return st;
}

enum tlm_status prompt_file_load(const struct prompt_file *f, struct kv_cache *kv, const struct prompt_rotary *r,
                                 struct kv_seq **out, struct tlm_error *e)
{
    struct loading l = {.f = f, .r = r, .e = e};
    size_t floats = 0;
    *out = NULL;
    if (kv_has_states(kv))
        return err_set(e, TLM_EUNSUPPORTED, "%s: the model has recurrent layers, whose state such files do not hold",
                       f->st->path);
    for (int i = 0; i < kv->n_codecs; i++) {
        size_t n = kv_codec_work(&kv->codecs[i]);
        floats = n > floats ? n : floats;
    }
    enum tlm_status s = kv_seq_new(kv, &l.s, e);
    if (s != TLM_OK)
        return s;
    l.x = mem_new_array(KV_BLOCK * KV_DIM_MAX, sizeof *l.x);
    l.work = mem_alloc_array(floats, sizeof *l.work);
    l.codes = mem_new(sizeof *l.codes);
    s = l.x && l.work && l.codes ? check_layers(&l) : err_nomem(e, sizeof *l.codes);
    bool permuted = r->permuted;
    if (s == TLM_OK && f->extension)
        s = json_bool(f->extension, "permuted", &permuted, e);
    if (s == TLM_OK && permuted != r->permuted && !f->n_layers)
        s = err_set(
            e, TLM_EUNSUPPORTED,
            "%s: made with a %s of the model, whose keys are in another order; a cache of this format cannot be "
            "taken over",
            f->st->path, permuted ? "GGUF file" : "directory");
    l.turned = permuted != r->permuted;
    if (s == TLM_OK)
        s = f->extension ? load_own(&l) : load_rows(&l);
    if (s == TLM_OK && l.s->known)
        s = kv_seq_reserve_tokens(l.s, l.s->length, e);
    if (s == TLM_OK && l.s->known)
        memcpy(l.s->tokens, f->tokens, (size_t)f->length * sizeof *f->tokens);
    mem_free(l.x);
    mem_free(l.work);
    mem_free(l.codes);
    if (s != TLM_OK) {
        kv_seq_free(l.s);
        return s;
    }
    kv_seq_release_windows(l.s);
    *out = l.s;
    return TLM_OK;
}

void prompt_cut(struct kv_seq *s, int64_t n)
{
    n = n < s->length ? n : s->length;
    if (n < s->length && !s->known)
        n = 0;
    for (int i = s->n - 1; i >= 0; i--) {
        const struct kv_entry *en = &s->entries[i];
        if (en->start >= n)
            continue;
        if ((en->sealed && n < en->start + en->count) || !kv_seq_reaches(s, n))
            n = en->start;
    }
    kv_seq_trim(s, n);
}

/* --- saving --------------------------------------------------------------- */

char *prompt_spec(const struct kv_cache *kv)
{
    enum { PLACE = 32 }; /* ";", layers and "=" */
    size_t n = (size_t)kv->n_layers, size = n * (KV_CHOICE_NAME_MAX + PLACE) + PLACE;
    struct kv_choice *c = mem_new_array(n, sizeof *c);
    char *out = c ? mem_alloc(size) : NULL;
    for (size_t i = 0; out && i < n; i++)
        c[i] = (struct kv_choice){kv->layers[i].key->f, kv->layers[i].value->f, false};
    if (out)
        kv_choices_name(c, kv->n_layers, out, size);
    mem_free(c);
    return out;
}

struct saving {
    const struct kv_seq *s;
    const struct prompt_rotary *r;
    struct st_writer *w;
    bool rows; /* mlx-lm's part is there */
    struct tlm_error *e;
};

static int have(const struct saving *v, int entry, int group)
{
    const struct kv_cache *kv = v->s->cache;
    if (kv_entry_ids(v->s, entry)[group] == KV_NONE)
        return HAVE_NONE;
    bool rows = v->rows;
    for (int i = 0; i < kv->n_layers && rows; i++)
        rows = kv->layers[i].group != group || prompt_class_holds(v->s, i, entry, v->r);
    return rows ? HAVE_ROWS : HAVE_BLOCK;
}

static enum tlm_status declare_own(const struct saving *v)
{
    const struct kv_seq *s = v->s;
    const struct kv_cache *kv = s->cache;
    int at = v->rows ? kv->n_layers : 0;
    char name[64];
    snprintf(name, sizeof name, "%d.tokens", at);
    enum tlm_status st = st_writer_add(v->w, name, DT_I32, 1, &s->length, v->e);
    snprintf(name, sizeof name, "%d.entries", at);
    if (st == TLM_OK)
        st = st_writer_add(v->w, name, DT_I64, 2, (int64_t[]){s->n, 3}, v->e);
    for (int g = 0; g < kv->n_groups && st == TLM_OK; g++) {
        int64_t n[2] = {0};
        for (int i = 0; i < s->n; i++)
            if (have(v, i, g) == HAVE_BLOCK)
                n[kv->groups[g].encoded && s->entries[i].sealed]++;
        snprintf(name, sizeof name, "%d.have.%d", at, g);
        st = st_writer_add(v->w, name, DT_U8, 1, (int64_t[]){s->n}, v->e);
        for (int k = 0; k < 2 && st == TLM_OK; k++) {
            const struct kv_pool *p = k ? &kv->groups[g].sealed : &kv->groups[g].open;
            snprintf(name, sizeof name, "%d.%s.%d", at, k ? "sealed" : "open", g);
            if (n[k])
                st = st_writer_add(v->w, name, DT_U8, 2, (int64_t[]){n[k], (int64_t)p->block_bytes}, v->e);
        }
    }
    return st;
}

/* A block as it is; places of an exact one that hold no token are cleared, for
 * what was there before may be somebody else's. */
static enum tlm_status write_block(const struct saving *v, int entry, int group, char *copy)
{
    struct kv_cache *kv = v->s->cache;
    const struct kv_entry *en = &v->s->entries[entry];
    const struct kv_pool *p = kv_entry_pool(kv, group, en->sealed);
    bool sealed = kv->groups[group].encoded && en->sealed;
    memcpy(copy, kv_pool_memory(p, kv_entry_ids(v->s, entry)[group]), p->block_bytes);
    for (int i = 0; i < kv->n_layers && !sealed && en->count < KV_BLOCK; i++) {
        const struct kv_layer *l = &kv->layers[i];
        if (l->group != group)
            continue;
        size_t elem = kv_elem_bytes(l->shape.type), rest = (size_t)(KV_BLOCK - en->count);
        char *keys = copy + l->open_offset, *values = keys + kv_keys_bytes(&l->shape);
        for (int k = 0; k < l->shape.n_heads * l->shape.head_dim; k++)
            memset(keys + ((size_t)k * KV_BLOCK + (size_t)en->count) * elem, 0, rest * elem);
        for (int h = 0; h < l->shape.n_heads; h++)
            memset(values + ((size_t)h * KV_BLOCK + (size_t)en->count) * (size_t)l->shape.v_dim * elem, 0,
                   rest * (size_t)l->shape.v_dim * elem);
    }
    return st_writer_put(v->w, copy, p->block_bytes, v->e);
}

static enum tlm_status write_group(const struct saving *v, int group)
{
    const struct kv_seq *s = v->s;
    const struct kv_group *g = &s->cache->groups[group];
    size_t bytes = g->open.block_bytes > g->sealed.block_bytes ? g->open.block_bytes : g->sealed.block_bytes;
    char *copy = mem_alloc(bytes);
    enum tlm_status st = copy ? TLM_OK : err_nomem(v->e, bytes);
    for (int i = 0; i < s->n && st == TLM_OK; i++) {
        uint8_t h = (uint8_t)have(v, i, group);
        st = st_writer_put(v->w, &h, 1, v->e);
    }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < s->n && st == TLM_OK; i++)
            if (have(v, i, group) == HAVE_BLOCK && (g->encoded && s->entries[i].sealed) == k)
                st = write_block(v, i, group, copy);
    mem_free(copy);
    return st;
}

static enum tlm_status write_own(const struct saving *v)
{
    const struct kv_seq *s = v->s;
    enum tlm_status st = st_writer_put(v->w, s->tokens, (size_t)s->length * sizeof *s->tokens, v->e);
    for (int i = 0; i < s->n && st == TLM_OK; i++) {
        int64_t row[] = {s->entries[i].start, s->entries[i].count, s->entries[i].sealed};
        st = st_writer_put(v->w, row, sizeof row, v->e);
    }
    for (int g = 0; g < s->cache->n_groups && st == TLM_OK; g++)
        st = write_group(v, g);
    return st;
}

static enum tlm_status write_metadata(const struct saving *v, const struct prompt_record *m)
{
    cJSON *x = m->extension;
    char *spec = prompt_spec(v->s->cache), class_name[KV_CHOICE_NAME_MAX + 160], *text = NULL;
    enum tlm_status st = TLM_OK;
    if (spec && cJSON_AddNumberToObject(x, "version", VERSION) && cJSON_AddBoolToObject(x, "mlx", v->rows) &&
        cJSON_AddStringToObject(x, "kv_format", spec) && cJSON_AddBoolToObject(x, "permuted", v->r->permuted) &&
        cJSON_AddNumberToObject(x, "kv_sink", (double)v->s->cache->sink) &&
        cJSON_AddNumberToObject(x, "quantized_kv_start", (double)v->s->cache->start))
        text = cJSON_PrintUnformatted(x);
    if (!text)
        st = err_nomem(v->e, 0);
    if (st == TLM_OK)
        st = st_writer_meta(v->w, "0.turbolm", text, v->e);
    if (st == TLM_OK && m->model)
        st = st_writer_meta(v->w, "0.model", m->model, v->e);
    if (st == TLM_OK)
        st = st_writer_meta(v->w, "0.tokenizer_config", m->tokenizer_config ? m->tokenizer_config : "{}", v->e);
    if (st == TLM_OK)
        st = st_writer_meta(v->w, "2.0", "", v->e);
    if (st == TLM_OK && !v->rows) {
        snprintf(class_name, sizeof class_name, "turbolm cache of format %.64s, which mlx-lm does not have", spec);
        st = st_writer_meta(v->w, "1.0", class_name, v->e);
    }
    cJSON_free(text);
    mem_free(spec);
    return st;
}

enum tlm_status prompt_file_save(const struct kv_seq *s, const struct prompt_rotary *r, const struct prompt_record *m,
                                 const char *path, struct tlm_error *e)
{
    struct saving v = {.s = s, .r = r, .rows = true, .e = e};
    if (!s->known || s->length == 0 || s->length > PROMPT_LENGTH_MAX)
        return err_set(e, TLM_EINVAL, "%s: a sequence of %lld tokens%s cannot be saved", path, (long long)s->length,
                       s->known ? "" : ", some of them unknown,");
    if (kv_has_states(s->cache))
        return err_set(e, TLM_EUNSUPPORTED, "%s: the model has recurrent layers, whose state cannot be saved yet",
                       path);
    for (int i = 0; i < s->cache->n_layers; i++) {
        const struct kv_shape *shape = &s->cache->layers[i].shape;
        v.rows = v.rows && prompt_class_of(s, i) != PROMPT_NONE && shape->head_dim <= KV_DIM_MAX &&
                 shape->v_dim <= KV_DIM_MAX;
    }
    enum tlm_status st = st_writer_new(path, &v.w, e);
    if (st == TLM_OK)
        st = write_metadata(&v, m);
    if (st == TLM_OK && v.rows)
        st = prompt_layers_declare(s, v.w, e);
    if (st == TLM_OK)
        st = declare_own(&v);
    if (st == TLM_OK)
        st = st_writer_begin(v.w, e);
    if (st == TLM_OK && v.rows)
        st = prompt_layers_write(s, r, v.w, e);
    if (st == TLM_OK)
        st = write_own(&v);
    if (st == TLM_OK)
        st = st_writer_commit(v.w, e);
    st_writer_free(v.w);
    return st;
}
