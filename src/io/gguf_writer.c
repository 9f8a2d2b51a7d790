/* Header and data of a GGUF file. Metadata and tensor list are gathered in two
 * buffers, as their counts stand in front of them. */
#include "io/gguf_writer.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "io/whole_file.h"

enum { ALIGNMENT = 32, NAME_MAX_BYTES = 63, KEY_MAX = 65535 };
#define HEADER_MAX ((size_t)1 << 30)

struct gguf_writer {
    struct whole_file file;
    struct buf kv, infos;
    uint64_t n_kv, n_tensors;
    uint64_t items;   /* texts of the open list that are still to come */
    uint64_t *sizes;  /* of the tensors' data */
    uint64_t offset;  /* of the next tensor, padding included */
    uint64_t total;   /* bytes of data without padding */
    uint64_t current; /* tensor that is being written, and bytes of it that are */
    uint64_t written;
};

enum tlm_status gguf_writer_new(const char *path, struct gguf_writer **out, struct tlm_error *e)
{
    *out = NULL;
    struct gguf_writer *w = mem_new(sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w);
    buf_init(&w->kv, HEADER_MAX);
    buf_init(&w->infos, HEADER_MAX);
    enum tlm_status s = whole_file_init(&w->file, path, e);
    if (s == TLM_OK)
        *out = w;
    else
        gguf_writer_free(w);
    return s;
}

void gguf_writer_free(struct gguf_writer *w)
{
    if (!w)
        return;
    whole_file_deinit(&w->file);
    buf_deinit(&w->kv);
    buf_deinit(&w->infos);
    mem_free(w->sizes);
    mem_free(w);
}

static void add_number(struct buf *b, uint64_t v, int bytes)
{
    char raw[8];
    for (int i = 0; i < bytes; i++)
        raw[i] = (char)(v >> (8 * i));
    buf_add(b, raw, (size_t)bytes);
}

static void add_text(struct buf *b, const char *s, size_t n)
{
    add_number(b, n, 8);
    buf_add(b, s, n);
}

static enum tlm_status add_key(struct gguf_writer *w, const char *key, enum gguf_type type, struct tlm_error *e)
{
    size_t n = strlen(key);
    if (!n || n > KEY_MAX)
        return err_set(e, TLM_EFORMAT, "%s: a key of %zu bytes, expected 1 to %d", w->file.path, n, KEY_MAX);
    if (w->items || w->file.f)
        return err_set(e, TLM_EINTERNAL, "%s: %s comes too early or too late", w->file.path, key);
    w->n_kv++;
    add_text(&w->kv, key, n);
    add_number(&w->kv, type, 4);
    return TLM_OK;
}

static enum tlm_status check(struct gguf_writer *w, struct tlm_error *e)
{
    return buf_check(&w->kv, e, "the metadata");
}

static enum tlm_status put_number(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t v, int bytes,
                                  struct tlm_error *e)
{
    enum tlm_status s = add_key(w, key, type, e);
    if (s != TLM_OK)
        return s;
    add_number(&w->kv, v, bytes);
    return check(w, e);
}

enum tlm_status gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v, struct tlm_error *e)
{
    return put_number(w, key, GGUF_U32, v, 4, e);
}

enum tlm_status gguf_writer_f32(struct gguf_writer *w, const char *key, float v, struct tlm_error *e)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return put_number(w, key, GGUF_F32, bits, 4, e);
}

enum tlm_status gguf_writer_bool(struct gguf_writer *w, const char *key, bool v, struct tlm_error *e)
{
    return put_number(w, key, GGUF_BOOL, v, 1, e);
}

enum tlm_status gguf_writer_string(struct gguf_writer *w, const char *key, const char *text, size_t n,
                                   struct tlm_error *e)
{
    enum tlm_status s = add_key(w, key, GGUF_STR, e);
    if (s != TLM_OK)
        return s;
    add_text(&w->kv, text, n);
    return check(w, e);
}

/* Bytes of one element; 0 for texts and arrays. */
static int size_of(enum gguf_type t)
{
    switch (t) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

enum tlm_status gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n,
                                  const void *data, struct tlm_error *e)
{
    uint64_t size = (uint64_t)size_of(type);
    if (!size || n > HEADER_MAX / size)
        return err_set(e, TLM_ELIMIT, "%s: %s: an array of %llu elements", w->file.path, key, (unsigned long long)n);
    enum tlm_status s = add_key(w, key, GGUF_ARRAY, e);
    if (s != TLM_OK)
        return s;
    add_number(&w->kv, type, 4);
    add_number(&w->kv, n, 8);
    if (n)
        buf_add(&w->kv, data, (size_t)(n * size));
    return check(w, e);
}

enum tlm_status gguf_writer_list(struct gguf_writer *w, const char *key, uint64_t n, struct tlm_error *e)
{
    enum tlm_status s = add_key(w, key, GGUF_ARRAY, e);
    if (s != TLM_OK)
        return s;
    add_number(&w->kv, GGUF_STR, 4);
    add_number(&w->kv, n, 8);
    w->items = n;
    return check(w, e);
}

enum tlm_status gguf_writer_item(struct gguf_writer *w, const char *text, size_t n, struct tlm_error *e)
{
    if (!w->items)
        return err_set(e, TLM_EINTERNAL, "%s: a text without a list", w->file.path);
    w->items--;
    add_text(&w->kv, text, n);
    return check(w, e);
}

enum tlm_status gguf_writer_copy(struct gguf_writer *w, const struct gguf_kv *kv, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    const struct gguf_array *a = &kv->v.array;
    switch (kv->type) {
    case GGUF_STR:
        return gguf_writer_string(w, kv->key, kv->v.str.data, (size_t)kv->v.str.len, e);
    case GGUF_ARRAY:
        if (a->type != GGUF_STR)
            return gguf_writer_array(w, kv->key, a->type, a->n, a->data, e);
        s = gguf_writer_list(w, kv->key, a->n, e);
        for (uint64_t i = 0; i < a->n && s == TLM_OK; i++)
            s = gguf_writer_item(w, a->strings[i].data, (size_t)a->strings[i].len, e);
        return s;
    case GGUF_F32:
        return gguf_writer_f32(w, kv->key, (float)kv->v.f, e);
    case GGUF_F64: {
        uint64_t bits;
        memcpy(&bits, &kv->v.f, 8);
        return put_number(w, kv->key, kv->type, bits, 8, e);
    }
    default:
        return put_number(w, kv->key, kv->type, kv->v.u, size_of(kv->type), e);
    }
}

enum tlm_status gguf_writer_tensor(struct gguf_writer *w, const char *name, uint32_t type, int n_dims,
                                   const int64_t *ne, struct tlm_error *e)
{
    int block, bytes;
    if (strlen(name) > NAME_MAX_BYTES)
        return err_set(e, TLM_ELIMIT, "%s: tensor %s: a name of more than %d bytes", w->file.path, name,
                       NAME_MAX_BYTES);
    if (!gguf_type_geometry(type, &block, &bytes) || n_dims < 1 || n_dims > 4 || ne[0] % block || w->file.f)
        return err_set(e, TLM_EINTERNAL, "%s: tensor %s: %d dimensions of %lld of type %u", w->file.path, name, n_dims,
                       (long long)ne[0], type);
    uint64_t size = (uint64_t)(ne[0] / block) * (uint64_t)bytes;
    add_text(&w->infos, name, strlen(name));
    add_number(&w->infos, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++) {
        add_number(&w->infos, (uint64_t)ne[i], 8);
        if (i)
            size *= (uint64_t)ne[i];
    }
    add_number(&w->infos, type, 4);
    add_number(&w->infos, w->offset, 8);
    if ((w->n_tensors & (w->n_tensors - 1)) == 0) { /* room for twice as many */
        uint64_t *sizes = mem_realloc_array(w->sizes, (size_t)(w->n_tensors ? 2 * w->n_tensors : 1), sizeof *sizes);
        if (!sizes)
            return err_nomem(e, (size_t)w->n_tensors * 2 * sizeof *sizes);
        w->sizes = sizes;
    }
    w->sizes[w->n_tensors++] = size;
    w->offset += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    w->total += size;
    return buf_check(&w->infos, e, "the list of tensors");
}

uint64_t gguf_writer_bytes(const struct gguf_writer *w)
{
    return w->total;
}

static enum tlm_status pad(struct gguf_writer *w, uint64_t at, struct tlm_error *e)
{
    static const char zeros[ALIGNMENT];
    return whole_file_put(&w->file, zeros, (size_t)((ALIGNMENT - at % ALIGNMENT) % ALIGNMENT), e);
}

/* Past every tensor that is complete; empty ones too. */
static enum tlm_status next_tensor(struct gguf_writer *w, struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    while (s == TLM_OK && w->current < w->n_tensors && w->written == w->sizes[w->current]) {
        s = pad(w, w->written, e);
        w->current++;
        w->written = 0;
    }
    return s;
}

enum tlm_status gguf_writer_begin(struct gguf_writer *w, struct tlm_error *e)
{
    struct buf head;
    buf_init(&head, 64);
    buf_add(&head, "GGUF", 4);
    add_number(&head, 3, 4);
    add_number(&head, w->n_tensors, 8);
    add_number(&head, w->n_kv, 8);
    enum tlm_status s = buf_check(&head, e, "the header");
    if (s == TLM_OK && w->items)
        s = err_set(e, TLM_EINTERNAL, "%s: %llu texts of a list are missing", w->file.path,
                    (unsigned long long)w->items);
    if (s == TLM_OK)
        s = whole_file_begin(&w->file, e);
    if (s == TLM_OK)
        s = whole_file_put(&w->file, head.data, head.len, e);
    if (s == TLM_OK)
        s = whole_file_put(&w->file, buf_str(&w->kv), w->kv.len, e);
    if (s == TLM_OK)
        s = whole_file_put(&w->file, buf_str(&w->infos), w->infos.len, e);
    if (s == TLM_OK)
        s = pad(w, head.len + w->kv.len + w->infos.len, e);
    buf_deinit(&head);
    buf_deinit(&w->kv);
    buf_deinit(&w->infos);
    return s == TLM_OK ? next_tensor(w, e) : s;
}

enum tlm_status gguf_writer_put(struct gguf_writer *w, const void *data, size_t bytes, struct tlm_error *e)
{
    const char *p = data;
    enum tlm_status s = TLM_OK;
    while (bytes && s == TLM_OK) {
        if (w->current == w->n_tensors)
            return err_set(e, TLM_EINTERNAL, "%s: more data than tensors", w->file.path);
        uint64_t left = w->sizes[w->current] - w->written;
        size_t n = bytes < left ? bytes : (size_t)left;
        s = whole_file_put(&w->file, p, n, e);
        p += n;
        bytes -= n;
        w->written += n;
        if (s == TLM_OK)
            s = next_tensor(w, e);
    }
    return s;
}

enum tlm_status gguf_writer_commit(struct gguf_writer *w, struct tlm_error *e)
{
    if (w->current != w->n_tensors)
        return err_set(e, TLM_EINTERNAL, "%s: data of %llu tensors, expected %llu", w->file.path,
                       (unsigned long long)w->current, (unsigned long long)w->n_tensors);
    return whole_file_commit(&w->file, false, e);
}
