/* GGUF files: opening with all parts of a split file, lookup, typed getters.
 * Parsing of one part is in gguf_part.c. */
#include "io/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fp.h"
#include "base/mem.h"
#include "io/gguf_part.h"
#include "io/name_index.h"

/* What struct gguf keeps to itself. */
struct owned {
    struct gguf_own *memory;
    int *kv_index, kv_index_size;
    int *tensor_index, tensor_index_size;
};

enum { SUFFIX_BYTES = sizeof "-00001-of-00001.gguf" - 1, PARTS_MAX = 65535 };

/* ---- ggml types ---- */

static const struct ggml_type {
    const char *name;
    int block, bytes;
} ggml_types[] = {
#define GGML_TYPE(number, name, block, bytes) [number] = {name, block, bytes},
#include "io/ggml_types.def"
#undef GGML_TYPE
};

static const struct ggml_type *ggml_type_at(uint32_t type)
{
    return type < sizeof ggml_types / sizeof *ggml_types && ggml_types[type].name ? &ggml_types[type] : NULL;
}

bool gguf_type_geometry(uint32_t type, int *block, int *bytes)
{
    const struct ggml_type *t = ggml_type_at(type);
    if (!t)
        return false;
    *block = t->block;
    *bytes = t->bytes;
    return true;
}

const char *gguf_type_name(uint32_t type)
{
    const struct ggml_type *t = ggml_type_at(type);
    return t ? t->name : NULL;
}

/* ---- opening ---- */

bool gguf_is_file(const char *path)
{
    char magic[4];
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) /* opening a pipe would wait */
        return false;
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    bool is = fread(magic, 1, 4, f) == 4 && !memcmp(magic, "GGUF", 4);
    fclose(f);
    return is;
}

/* Metadata of a later part, which is not kept. */
static enum tlm_status part_int(const struct gguf_part *part, const char *path, const char *key, int64_t max,
                                int64_t *out, struct tlm_error *e)
{
    struct owned owned = {.kv_index = part->kv_index, .kv_index_size = part->kv_index_size};
    char *name = mem_strdup(path);
    if (!name)
        return err_nomem(e, strlen(path) + 1);
    struct gguf view = {.path = name, .kv = part->kv, .n_kv = part->n_kv, .owned = &owned};
    enum tlm_status s = gguf_int(&view, key, 0, max, out, e);
    mem_free(name);
    return s;
}

/* The path of part i of n (from 0) of the split file whose first part is
 * `first`; NULL when out of memory. */
static char *part_path(const char *first, int i, int n)
{
    size_t stem = strlen(first) - SUFFIX_BYTES;
    char *path = mem_alloc(stem + SUFFIX_BYTES + 16);
    if (path) {
        memcpy(path, first, stem);
        snprintf(path + stem, SUFFIX_BYTES + 16, "-%05d-of-%05d.gguf", i + 1, n);
    }
    return path;
}

static enum tlm_status check_split_name(const char *path, int n, struct tlm_error *e)
{
    char suffix[SUFFIX_BYTES + 16];
    size_t len = strlen(path);
    snprintf(suffix, sizeof suffix, "-00001-of-%05d.gguf", n);
    if (len < SUFFIX_BYTES || strcmp(path + len - SUFFIX_BYTES, suffix) != 0)
        return err_set(e, TLM_EFORMAT, "%s: split.count is %d, so the name of the first part must end in %s", path, n,
                       suffix);
    return TLM_OK;
}

static enum tlm_status check_part(const struct gguf_part *part, const char *path, int i, int n, struct tlm_error *e)
{
    int64_t no = -1, count = -1;
    enum tlm_status s = part_int(part, path, "split.no", PARTS_MAX, &no, e);
    if (s == TLM_OK)
        s = part_int(part, path, "split.count", PARTS_MAX, &count, e);
    if (s == TLM_OK && (no != i || count != n))
        return err_set(e, TLM_EFORMAT, "%s: split.no %lld of split.count %lld, expected %d of %d", path, (long long)no,
                       (long long)count, i, n);
    return s;
}

/* Part i of n of a split file, i > 0. */
static enum tlm_status read_part(struct gguf *g, struct gguf_part *part, int i, int n, struct tlm_error *e)
{
    struct owned *owned = g->owned;
    char *path = part_path(g->path, i, n);
    if (!path)
        return err_nomem(e, strlen(g->path) + 1);
    enum tlm_status s = file_map_open(&g->maps[i], path, e);
    if (s == TLM_OK) {
        g->n_maps = i + 1;
        s = gguf_part_read(part, path, &g->maps[i], i, &owned->memory, e);
    }
    if (s == TLM_OK)
        s = check_part(part, path, i, n, e);
    mem_free(part->kv_index);
    mem_free(path);
    return s;
}

/* Puts the tensors of n parts behind those of the first. */
static enum tlm_status join_tensors(struct gguf *g, const struct gguf_part *parts, int n, struct tlm_error *e)
{
    struct owned *owned = g->owned;
    uint64_t total = g->n_tensors; /* a sum of counts that memory holds already */
    for (int i = 0; i < n; i++)
        total += parts[i].n_tensors;
    struct gguf_tensor *all = gguf_own_alloc(&owned->memory, total, sizeof *all);
    if (!all)
        return err_nomem(e, total * sizeof *all);
    memcpy(all, g->tensors, g->n_tensors * sizeof *all);
    g->tensors = all;
    for (int i = 0; i < n; i++) {
        memcpy(all + g->n_tensors, parts[i].tensors, parts[i].n_tensors * sizeof *all);
        g->n_tensors += parts[i].n_tensors;
    }
    return TLM_OK;
}

static enum tlm_status read_other_parts(struct gguf *g, int count, struct tlm_error *e)
{
    enum tlm_status s = check_split_name(g->path, count, e);
    if (s != TLM_OK)
        return s;
    struct file_map *maps = mem_realloc_array(g->maps, (size_t)count, sizeof *maps);
    if (!maps)
        return err_nomem(e, (size_t)count * sizeof *maps);
    g->maps = maps;
    struct gguf_part *parts = mem_new_array((size_t)count - 1, sizeof *parts);
    if (!parts)
        return err_nomem(e, (size_t)count * sizeof *parts);
    for (int i = 1; i < count && s == TLM_OK; i++)
        s = read_part(g, &parts[i - 1], i, count, e);
    if (s == TLM_OK)
        s = join_tensors(g, parts, count - 1, e);
    mem_free(parts);
    return s;
}

static enum tlm_status read_split(struct gguf *g, struct tlm_error *e)
{
    int64_t no = 0, count = 1, tensors = -1;
    enum tlm_status s = gguf_int(g, "split.count", 0, PARTS_MAX, &count, e);
    if (s == TLM_OK)
        s = gguf_int(g, "split.no", 0, PARTS_MAX, &no, e);
    if (s == TLM_OK)
        s = gguf_int(g, "split.tensors.count", 0, INT64_MAX, &tensors, e);
    if (s != TLM_OK)
        return s;
    if (no != 0)
        return err_set(e, TLM_EINVAL, "%s: part %lld of %lld of a split file: give the first one", g->path,
                       (long long)no + 1, (long long)count);
    if (count > 1)
        s = read_other_parts(g, (int)count, e);
    if (s == TLM_OK && tensors >= 0 && (uint64_t)tensors != g->n_tensors)
        return err_set(e, TLM_EFORMAT, "%s: split.tensors.count is %lld, but %llu tensors were found", g->path,
                       (long long)tensors, (unsigned long long)g->n_tensors);
    return s;
}

static enum tlm_status read_all(struct gguf *g, struct tlm_error *e)
{
    struct owned *owned = g->owned;
    struct gguf_part part;
    g->maps = mem_new_array(1, sizeof *g->maps);
    if (!g->maps)
        return err_nomem(e, sizeof *g->maps);
    enum tlm_status s = file_map_open(&g->maps[0], g->path, e);
    if (s != TLM_OK)
        return s;
    g->n_maps = 1;
    s = gguf_part_read(&part, g->path, &g->maps[0], 0, &owned->memory, e);
    owned->kv_index = part.kv_index;
    owned->kv_index_size = part.kv_index_size;
    if (s != TLM_OK)
        return s;
    g->version = part.version;
    g->kv = part.kv;
    g->n_kv = part.n_kv;
    g->tensors = part.tensors;
    g->n_tensors = part.n_tensors;
    s = read_split(g, e);
    if (s != TLM_OK)
        return s;
    int twice;
    s = name_index_new(g->tensors, sizeof *g->tensors, g->n_tensors, &owned->tensor_index, &owned->tensor_index_size,
                       &twice, e);
    if (s == TLM_OK && twice >= 0)
        return err_set(e, TLM_EFORMAT, "%s: tensor %.200s: the name occurs twice", g->path, g->tensors[twice].name);
    return s;
}

enum tlm_status gguf_open(const char *path, struct gguf **out, struct tlm_error *e)
{
    *out = NULL;
    struct gguf *g = mem_new(sizeof *g);
    if (!g)
        return err_nomem(e, sizeof *g);
    g->owned = mem_new(sizeof(struct owned));
    g->path = mem_strdup(path);
    enum tlm_status s = g->owned && g->path ? read_all(g, e) : err_nomem(e, sizeof(struct owned));
    if (s != TLM_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return TLM_OK;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    struct owned *owned = g->owned;
    if (owned) {
        gguf_own_free(owned->memory);
        mem_free(owned->kv_index);
        mem_free(owned->tensor_index);
        mem_free(owned);
    }
    for (int i = 0; i < g->n_maps; i++)
        file_map_close(&g->maps[i]);
    mem_free(g->maps);
    mem_free(g->path);
    mem_free(g);
}

/* ---- lookup ---- */

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    const struct owned *owned = g->owned;
    int i = name_index_find(owned->kv_index, owned->kv_index_size, g->kv, sizeof *g->kv, key);
    return i < 0 ? NULL : &g->kv[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    const struct owned *owned = g->owned;
    int i = name_index_find(owned->tensor_index, owned->tensor_index_size, g->tensors, sizeof *g->tensors, name);
    return i < 0 ? NULL : &g->tensors[i];
}

static bool is_unsigned(enum gguf_type t)
{
    return t == GGUF_U8 || t == GGUF_U16 || t == GGUF_U32 || t == GGUF_U64;
}

static bool is_integer(enum gguf_type t)
{
    return is_unsigned(t) || t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
}

static enum tlm_status wrong_type(const struct gguf *g, const struct gguf_kv *kv, const char *expected,
                                  struct tlm_error *e)
{
    return err_set(e, TLM_EFORMAT, "%s: %s: found %s, expected %s", g->path, kv->key, gguf_kv_type_names[kv->type],
                   expected);
}

enum tlm_status gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                         struct tlm_error *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return TLM_OK;
    if (!is_integer(kv->type))
        return wrong_type(g, kv, "an integer", e);
    if (is_unsigned(kv->type) && kv->v.u > INT64_MAX)
        return err_set(e, TLM_EFORMAT, "%s: %s: found %llu, expected %lld to %lld", g->path, key,
                       (unsigned long long)kv->v.u, (long long)min, (long long)max);
    if (kv->v.i < min || kv->v.i > max)
        return err_set(e, TLM_EFORMAT, "%s: %s: found %lld, expected %lld to %lld", g->path, key, (long long)kv->v.i,
                       (long long)min, (long long)max);
    *out = kv->v.i;
    return TLM_OK;
}

enum tlm_status gguf_float(const struct gguf *g, const char *key, float *out, struct tlm_error *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return TLM_OK;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64)
        return wrong_type(g, kv, "a float", e);
    if (!isfinite((float)kv->v.f))
        return err_set(e, TLM_EFORMAT, "%s: %s: found %g, expected a finite float", g->path, key, kv->v.f);
    *out = (float)kv->v.f;
    return TLM_OK;
}

enum tlm_status gguf_bool(const struct gguf *g, const char *key, bool *out, struct tlm_error *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return TLM_OK;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, kv, "a bool", e);
    *out = kv->v.u != 0;
    return TLM_OK;
}

enum tlm_status gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct tlm_error *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return TLM_OK;
    if (kv->type != GGUF_STR)
        return wrong_type(g, kv, "a string", e);
    *out = kv->v.str;
    return TLM_OK;
}

enum tlm_status gguf_get_array(const struct gguf *g, const char *key, enum gguf_type type,
                               const struct gguf_array **out, struct tlm_error *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *out = NULL;
    if (!kv)
        return TLM_OK;
    if (kv->type != GGUF_ARRAY)
        return wrong_type(g, kv, "an array", e);
    const struct gguf_array *a = &kv->v.array;
    if (a->type != type && !(is_integer(type) && is_integer(a->type)))
        return err_set(e, TLM_EFORMAT, "%s: %s: found an array of %s, expected one of %s", g->path, key,
                       gguf_kv_type_names[a->type], gguf_kv_type_names[type]);
    *out = a;
    return TLM_OK;
}

int64_t gguf_array_int(const struct gguf_array *a, uint64_t i)
{
    const uint8_t *p = a->data;
    switch (a->type) {
    case GGUF_U8:
    case GGUF_BOOL:
        return p[i];
    case GGUF_I8:
        return (int8_t)p[i];
    case GGUF_U16:
        return load_u16(p + 2 * i);
    case GGUF_I16:
        return (int16_t)load_u16(p + 2 * i);
    case GGUF_U32:
        return load_u32(p + 4 * i);
    case GGUF_I32:
        return (int32_t)load_u32(p + 4 * i);
    case GGUF_U64:
    case GGUF_I64:
        return (int64_t)load_u64(p + 8 * i);
    default:
        return 0;
    }
}
