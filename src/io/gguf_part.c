/* Parsing of one GGUF file: "GGUF", version, tensor count, key count, keys
 * with values, tensor descriptions, padding, tensor data. Every count, length
 * and offset is checked against the bytes that are there before it is used. */
#include "io/gguf_part.h"

#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "io/name_index.h"

enum { NAME_MAX_BYTES = 65535, NAME_SHOWN = 200, DEFAULT_ALIGNMENT = 32, CHUNK = 32768 };

const char *const gguf_kv_type_names[GGUF_TYPE_COUNT] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                         "bool", "string", "array", "u64", "i64", "f64"};

/* Bytes of a value; 0 for those without a fixed size. */
static const uint8_t type_bytes[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- memory ---- */

struct gguf_own {
    struct gguf_own *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

void *gguf_own_alloc(struct gguf_own **own, size_t count, size_t size)
{
    if (size && count > (SIZE_MAX - CHUNK) / size)
        return NULL;
    size_t bytes = (count * size + 15) & ~(size_t)15;
    struct gguf_own *head = *own;
    if (head && bytes <= head->size - head->used) {
        void *p = head->data + head->used;
        head->used += bytes;
        return p;
    }
    size_t room = bytes > CHUNK / 4 ? bytes : CHUNK;
    struct gguf_own *chunk = mem_alloc(sizeof *chunk + room);
    if (!chunk)
        return NULL;
    *chunk = (struct gguf_own){.used = bytes, .size = room};
    if (head && room == bytes) { /* a large one of its own: the head still has room */
        chunk->next = head->next;
        head->next = chunk;
    } else {
        chunk->next = head;
        *own = chunk;
    }
    return chunk->data;
}

void gguf_own_free(struct gguf_own *own)
{
    while (own) {
        struct gguf_own *next = own->next;
        mem_free(own);
        own = next;
    }
}

/* ---- reading ---- */

struct reader {
    const char *path;
    const uint8_t *start, *at, *end;
    struct gguf_own **own;
    struct tlm_error *e;
};

/* n bytes of what `what` and `name` describe in an error; NULL after
 * TLM_EFORMAT. */
static const uint8_t *take(struct reader *r, uint64_t n, const char *what, const char *name)
{
    if (n > (uint64_t)(r->end - r->at)) {
        err_set(r->e, TLM_EFORMAT, "%s: byte %zu: the file ends inside %s %.*s (%llu bytes expected, %zu left)",
                r->path, (size_t)(r->at - r->start), what, NAME_SHOWN, name, (unsigned long long)n,
                (size_t)(r->end - r->at));
        return NULL;
    }
    const uint8_t *p = r->at;
    r->at += n;
    return p;
}

static enum tlm_status take_u32(struct reader *r, uint32_t *out, const char *what, const char *name)
{
    const uint8_t *p = take(r, 4, what, name);
    *out = p ? load_u32(p) : 0;
    return p ? TLM_OK : TLM_EFORMAT;
}

static enum tlm_status take_u64(struct reader *r, uint64_t *out, const char *what, const char *name)
{
    const uint8_t *p = take(r, 8, what, name);
    *out = p ? load_u64(p) : 0;
    return p ? TLM_OK : TLM_EFORMAT;
}

static enum tlm_status take_str(struct reader *r, struct gguf_str *out, const char *what, const char *name)
{
    if (take_u64(r, &out->len, what, name) != TLM_OK)
        return TLM_EFORMAT;
    out->data = (const char *)take(r, out->len, what, name);
    return out->data ? TLM_OK : TLM_EFORMAT;
}

/* A key or a tensor's name, as a C string of our own. */
static enum tlm_status take_name(struct reader *r, const char **out, const char *what)
{
    struct gguf_str str;
    size_t at = (size_t)(r->at - r->start);
    enum tlm_status s = take_str(r, &str, what, "name");
    if (s != TLM_OK)
        return s;
    if (!str.len || str.len > NAME_MAX_BYTES || memchr(str.data, 0, str.len))
        return err_set(r->e, TLM_EFORMAT, "%s: byte %zu: a %s name must have 1 to %d bytes, none of them NUL", r->path,
                       at, what, NAME_MAX_BYTES);
    char *name = gguf_own_alloc(r->own, str.len + 1, 1);
    if (!name)
        return err_nomem(r->e, str.len + 1);
    memcpy(name, str.data, str.len);
    name[str.len] = 0;
    *out = name;
    return TLM_OK;
}

static enum tlm_status check_bools(struct reader *r, const uint8_t *p, uint64_t n, const char *key)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return err_set(r->e, TLM_EFORMAT, "%s: %.*s: a bool of value %d, expected 0 or 1", r->path, NAME_SHOWN, key,
                           p[i]);
    return TLM_OK;
}

static enum tlm_status take_strings(struct reader *r, struct gguf_array *a, const char *key)
{
    if (a->n > (uint64_t)(r->end - r->at) / 8) /* each has a length */
        return err_set(r->e, TLM_EFORMAT, "%s: %.*s: %llu strings in %zu bytes", r->path, NAME_SHOWN, key,
                       (unsigned long long)a->n, (size_t)(r->end - r->at));
    struct gguf_str *strings = gguf_own_alloc(r->own, a->n, sizeof *strings);
    if (!strings)
        return err_nomem(r->e, (size_t)a->n * sizeof *strings);
    a->strings = strings;
    for (uint64_t i = 0; i < a->n; i++) {
        enum tlm_status s = take_str(r, &strings[i], "the array", key);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

static enum tlm_status take_array(struct reader *r, struct gguf_array *a, const char *key)
{
    uint32_t type;
    enum tlm_status s = take_u32(r, &type, "the array", key);
    if (s == TLM_OK)
        s = take_u64(r, &a->n, "the array", key);
    if (s != TLM_OK)
        return s;
    if (type >= GGUF_TYPE_COUNT)
        return err_set(r->e, TLM_EFORMAT, "%s: %.*s: array elements of unknown type %u", r->path, NAME_SHOWN, key,
                       type);
    if (type == GGUF_ARRAY)
        return err_set(r->e, TLM_EUNSUPPORTED, "%s: %.*s: arrays of arrays are not supported", r->path, NAME_SHOWN,
                       key);
    a->type = (enum gguf_type)type;
    if (type == GGUF_STR)
        return take_strings(r, a, key);
    if (a->n > UINT64_MAX / type_bytes[type])
        return err_set(r->e, TLM_EFORMAT, "%s: %.*s: an array of %llu elements", r->path, NAME_SHOWN, key,
                       (unsigned long long)a->n);
    a->data = take(r, a->n * type_bytes[type], "the array", key);
    if (!a->data)
        return TLM_EFORMAT;
    return type == GGUF_BOOL ? check_bools(r, a->data, a->n, key) : TLM_OK;
}

static enum tlm_status take_scalar(struct reader *r, struct gguf_kv *kv)
{
    const uint8_t *p = take(r, type_bytes[kv->type], "the value of", kv->key);
    if (!p)
        return TLM_EFORMAT;
    switch (kv->type) {
    case GGUF_BOOL:
        kv->v.u = *p;
        return check_bools(r, p, 1, kv->key);
    case GGUF_U8:
        kv->v.u = *p;
        break;
    case GGUF_U16:
        kv->v.u = load_u16(p);
        break;
    case GGUF_U32:
        kv->v.u = load_u32(p);
        break;
    case GGUF_U64:
        kv->v.u = load_u64(p);
        break;
    case GGUF_I8:
        kv->v.i = (int8_t)*p;
        break;
    case GGUF_I16:
        kv->v.i = (int16_t)load_u16(p);
        break;
    case GGUF_I32:
        kv->v.i = (int32_t)load_u32(p);
        break;
    case GGUF_I64:
        kv->v.i = (int64_t)load_u64(p);
        break;
    case GGUF_F32:
        kv->v.f = (double)fp_from_bits(load_u32(p));
        break;
    case GGUF_F64:
        memcpy(&kv->v.f, p, 8);
        break;
    default: /* strings and arrays are read elsewhere */
        break;
    }
    return TLM_OK;
}

static enum tlm_status take_kv(struct reader *r, struct gguf_kv *kv)
{
    uint32_t type;
    *kv = (struct gguf_kv){0};
    enum tlm_status s = take_name(r, &kv->key, "metadata");
    if (s == TLM_OK)
        s = take_u32(r, &type, "the value of", kv->key);
    if (s != TLM_OK)
        return s;
    if (type >= GGUF_TYPE_COUNT)
        return err_set(r->e, TLM_EFORMAT, "%s: %.*s: a value of unknown type %u", r->path, NAME_SHOWN, kv->key, type);
    kv->type = (enum gguf_type)type;
    if (type == GGUF_STR)
        return take_str(r, &kv->v.str, "the value of", kv->key);
    return type == GGUF_ARRAY ? take_array(r, &kv->v.array, kv->key) : take_scalar(r, kv);
}

static enum tlm_status check_geometry(struct reader *r, struct gguf_tensor *t)
{
    int block, block_bytes;
    if (!gguf_type_geometry(t->type, &block, &block_bytes))
        return err_set(r->e, TLM_EUNSUPPORTED, "%s: tensor %.*s: ggml type %u is not known", r->path, NAME_SHOWN,
                       t->name, t->type);
    if (t->ne[0] % block)
        return err_set(r->e, TLM_EFORMAT, "%s: tensor %.*s: rows of %lld elements, but %s has blocks of %d", r->path,
                       NAME_SHOWN, t->name, (long long)t->ne[0], gguf_type_name(t->type), block);
    int64_t n = 1;
    bool fits = true;
    for (int d = 0; d < 4 && fits; d++) {
        fits = !t->ne[d] || n <= INT64_MAX / t->ne[d];
        n = fits ? n * t->ne[d] : n;
    }
    if (!fits || n / block > INT64_MAX / block_bytes)
        return err_set(r->e, TLM_EFORMAT, "%s: tensor %.*s: the product of its dimensions is too large", r->path,
                       NAME_SHOWN, t->name);
    t->bytes = (size_t)(n / block * block_bytes);
    return TLM_OK;
}

/* *offset counts from the start of the data, which is not known yet. */
static enum tlm_status take_tensor(struct reader *r, struct gguf_tensor *t, uint64_t *offset)
{
    uint32_t n_dims;
    *t = (struct gguf_tensor){.ne = {1, 1, 1, 1}};
    enum tlm_status s = take_name(r, &t->name, "tensor");
    if (s == TLM_OK)
        s = take_u32(r, &n_dims, "tensor", t->name);
    if (s != TLM_OK)
        return s;
    if (n_dims > 4)
        return err_set(r->e, TLM_EFORMAT, "%s: tensor %.*s: %u dimensions, expected at most 4", r->path, NAME_SHOWN,
                       t->name, n_dims);
    t->n_dims = (int)n_dims;
    for (int d = 0; d < t->n_dims; d++) {
        uint64_t n;
        s = take_u64(r, &n, "tensor", t->name);
        if (s != TLM_OK)
            return s;
        if (n > INT64_MAX)
            return err_set(r->e, TLM_EFORMAT, "%s: tensor %.*s: a dimension of %llu", r->path, NAME_SHOWN, t->name,
                           (unsigned long long)n);
        t->ne[d] = (int64_t)n;
    }
    s = take_u32(r, &t->type, "tensor", t->name);
    if (s == TLM_OK)
        s = take_u64(r, offset, "tensor", t->name);
    return s == TLM_OK ? check_geometry(r, t) : s;
}

static enum tlm_status alignment_of(struct reader *r, const struct gguf_part *part, uint64_t *out)
{
    int i = name_index_find(part->kv_index, part->kv_index_size, part->kv, sizeof *part->kv, "general.alignment");
    *out = DEFAULT_ALIGNMENT;
    if (i < 0)
        return TLM_OK;
    const struct gguf_kv *kv = &part->kv[i];
    if (kv->type != GGUF_U32)
        return err_set(r->e, TLM_EFORMAT, "%s: general.alignment: found %s, expected u32", r->path,
                       gguf_kv_type_names[kv->type]);
    *out = kv->v.u;
    if (!*out || (*out & (*out - 1)))
        return err_set(r->e, TLM_EFORMAT, "%s: general.alignment: found %llu, expected a power of two", r->path,
                       (unsigned long long)*out);
    return TLM_OK;
}

/* Tensors follow each other in the order of their descriptions, each padded to
 * the alignment; so nothing overlaps. */
static enum tlm_status place_tensors(struct reader *r, struct gguf_part *part, const uint64_t *offsets,
                                     uint64_t alignment)
{
    uint64_t start = ((uint64_t)(r->at - r->start) + alignment - 1) & ~(alignment - 1), next = 0;
    uint64_t size = (uint64_t)(r->end - r->start);
    size = size > start ? size - start : 0;
    for (uint64_t i = 0; i < part->n_tensors; i++) {
        struct gguf_tensor *t = &part->tensors[i];
        if (offsets[i] != next)
            return err_set(r->e, TLM_EFORMAT, "%s: tensor %.*s: data at offset %llu, expected %llu", r->path,
                           NAME_SHOWN, t->name, (unsigned long long)offsets[i], (unsigned long long)next);
        if (next > size || t->bytes > size - next)
            return err_set(r->e, TLM_EFORMAT, "%s: tensor %.*s: %zu bytes of data at offset %llu end after the file",
                           r->path, NAME_SHOWN, t->name, t->bytes, (unsigned long long)next);
        t->data = t->bytes ? r->start + start + next : r->end; /* padding in front of nothing may be missing */
        next = (next + t->bytes + alignment - 1) & ~(alignment - 1);
    }
    return TLM_OK;
}

static enum tlm_status take_header(struct reader *r, struct gguf_part *part)
{
    const uint8_t *magic = take(r, 4, "the", "header");
    if (!magic)
        return TLM_EFORMAT;
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(r->e, TLM_EFORMAT, "%s: not a GGUF file: it does not begin with \"GGUF\"", r->path);
    enum tlm_status s = take_u32(r, &part->version, "the", "header");
    if (s != TLM_OK)
        return s;
    if (part->version && !(part->version & 0xffff))
        return err_set(r->e, TLM_EUNSUPPORTED, "%s: a big-endian GGUF file; only little-endian ones are supported",
                       r->path);
    if (part->version != 2 && part->version != 3)
        return err_set(r->e, TLM_EUNSUPPORTED, "%s: GGUF version %u, expected 2 or 3", r->path, part->version);
    s = take_u64(r, &part->n_tensors, "the", "header");
    if (s == TLM_OK)
        s = take_u64(r, &part->n_kv, "the", "header");
    if (s != TLM_OK)
        return s;
    uint64_t left = (uint64_t)(r->end - r->at);
    if (part->n_kv > left / 14) /* key length, one character, type, one byte */
        return err_set(r->e, TLM_EFORMAT, "%s: %llu metadata keys in %llu bytes", r->path,
                       (unsigned long long)part->n_kv, (unsigned long long)left);
    if (part->n_tensors > left / 25) /* name length, one character, dimensions, type, offset */
        return err_set(r->e, TLM_EFORMAT, "%s: %llu tensors in %llu bytes", r->path,
                       (unsigned long long)part->n_tensors, (unsigned long long)left);
    return TLM_OK;
}

static enum tlm_status take_metadata(struct reader *r, struct gguf_part *part)
{
    part->kv = gguf_own_alloc(r->own, part->n_kv, sizeof *part->kv);
    if (!part->kv)
        return err_nomem(r->e, part->n_kv * sizeof *part->kv);
    for (uint64_t i = 0; i < part->n_kv; i++) {
        enum tlm_status s = take_kv(r, &part->kv[i]);
        if (s != TLM_OK)
            return s;
    }
    int twice;
    enum tlm_status s =
        name_index_new(part->kv, sizeof *part->kv, part->n_kv, &part->kv_index, &part->kv_index_size, &twice, r->e);
    if (s == TLM_OK && twice >= 0)
        return err_set(r->e, TLM_EFORMAT, "%s: %.*s: the key occurs twice", r->path, NAME_SHOWN, part->kv[twice].key);
    return s;
}

enum tlm_status gguf_part_read(struct gguf_part *part, const char *path, const struct file_map *map, int file,
                               struct gguf_own **own, struct tlm_error *e)
{
    struct reader r = {
        .path = path, .start = map->data, .at = map->data, .end = map->data + map->size, .own = own, .e = e};
    uint64_t alignment, *offsets = NULL;
    *part = (struct gguf_part){0};
    enum tlm_status s = take_header(&r, part);
    if (s == TLM_OK)
        s = take_metadata(&r, part);
    if (s == TLM_OK)
        s = alignment_of(&r, part, &alignment);
    if (s != TLM_OK)
        return s;
    part->tensors = gguf_own_alloc(own, part->n_tensors, sizeof *part->tensors);
    offsets = mem_alloc_array(part->n_tensors, sizeof *offsets);
    if (!part->tensors || !offsets)
        s = err_nomem(e, part->n_tensors * sizeof *part->tensors);
    for (uint64_t i = 0; i < part->n_tensors && s == TLM_OK; i++) {
        s = take_tensor(&r, &part->tensors[i], &offsets[i]);
        part->tensors[i].file = file;
    }
    if (s == TLM_OK)
        s = place_tensors(&r, part, offsets, alignment);
    mem_free(offsets);
    return s;
}
