/* Opening the files of a model. Views of quantised tensors: checkpoint_view.c. */
#define _GNU_SOURCE
#include "models/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/name_index.h"
#include "models/view.h"

enum { CONFIG_MAX = 64 << 20, SHARDS_MAX = 4096 };

static enum tlm_status load_optional(const char *dir, const char *name, cJSON **out, struct tlm_error *e)
{
    char *path = path_join(dir, name);
    if (!path)
        return err_nomem(e, strlen(dir) + strlen(name));
    enum tlm_status s = TLM_OK;
    if (file_exists(path))
        s = json_load_object(path, CONFIG_MAX, out, e);
    mem_free(path);
    return s;
}

static enum tlm_status add_shard(struct checkpoint *ck, const char *name, struct tlm_error *e)
{
    if (ck->n_shards == SHARDS_MAX)
        return err_set(e, TLM_ELIMIT, "%s: more than %d weight files", ck->path, SHARDS_MAX);
    struct st_file **shards = mem_realloc_array(ck->shards, (size_t)ck->n_shards + 1, sizeof *shards);
    if (!shards)
        return err_nomem(e, sizeof *shards);
    ck->shards = shards;
    char *path = path_join(ck->path, name);
    if (!path)
        return err_nomem(e, strlen(name));
    enum tlm_status s = st_open(path, &ck->shards[ck->n_shards], e);
    mem_free(path);
    if (s == TLM_OK)
        ck->n_shards++;
    return s;
}

/* Backwards: neighbours in the index are mostly in the newest shard. */
static int find_shard(const struct checkpoint *ck, const char *name)
{
    for (int i = ck->n_shards - 1; i >= 0; i--) {
        const char *slash = strrchr(ck->shards[i]->path, '/');
        if (!strcmp(slash ? slash + 1 : ck->shards[i]->path, name))
            return i;
    }
    return -1;
}

/* The index names the files; a file beside them that it does not name is left
 * alone, so that stale shards of an earlier conversion do no harm. */
static enum tlm_status open_by_index(struct checkpoint *ck, const cJSON *index, struct tlm_error *e)
{
    const cJSON *map = json_get(index, "weight_map");
    if (!cJSON_IsObject(map))
        return err_set(e, TLM_EFORMAT, "%s/model.safetensors.index.json: weight_map: found %s, expected an object",
                       ck->path, json_type_name(map));
    enum tlm_status s = TLM_OK;
    for (const cJSON *v = map->child; v && s == TLM_OK; v = v->next) {
        if (!cJSON_IsString(v) || strchr(v->valuestring, '/') || !*v->valuestring)
            return err_set(e, TLM_EFORMAT, "%s/model.safetensors.index.json: weight_map.%s: expected a file name",
                           ck->path, v->string);
        if (find_shard(ck, v->valuestring) < 0)
            s = add_shard(ck, v->valuestring, e);
    }
    for (const cJSON *v = map->child; v && s == TLM_OK; v = v->next) {
        int named = find_shard(ck, v->valuestring);
        bool found = st_find(ck->shards[named], v->string) != NULL;
        for (int i = 0; i < ck->n_shards && !found; i++)
            found = st_find(ck->shards[i], v->string) != NULL;
        if (!found)
            s = err_set(e, TLM_EFORMAT, "%s/%s: tensor %s is missing, which the index lists", ck->path, v->valuestring,
                        v->string);
    }
    return s;
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the weight files; *names and each of them are the caller's to free,
 * after a failure too. */
static enum tlm_status list_weight_files(const char *path, DIR *d, char ***names, int *n, struct tlm_error *e)
{
    for (struct dirent *f; (f = readdir(d)) != NULL;) {
        if (fnmatch("model*.safetensors", f->d_name, 0) != 0)
            continue;
        if (*n == SHARDS_MAX)
            return err_set(e, TLM_ELIMIT, "%s: more than %d weight files", path, SHARDS_MAX);
        char **more = mem_realloc_array(*names, (size_t)*n + 1, sizeof *more);
        if (!more)
            return err_nomem(e, ((size_t)*n + 1) * sizeof *more);
        *names = more;
        more[*n] = mem_strdup(f->d_name);
        if (!more[*n])
            return err_nomem(e, strlen(f->d_name));
        ++*n;
    }
    if (*n)
        qsort(*names, (size_t)*n, sizeof **names, name_compare);
    return TLM_OK;
}

static enum tlm_status open_by_pattern(struct checkpoint *ck, struct tlm_error *e)
{
    char **names = NULL;
    int n = 0;
    DIR *d = opendir(ck->path);
    if (!d)
        return err_set(e, TLM_EIO, "%s: %s", ck->path, strerror(errno));
    enum tlm_status s = list_weight_files(ck->path, d, &names, &n, e);
    closedir(d);
    for (int i = 0; i < n && s == TLM_OK; i++)
        s = add_shard(ck, names[i], e);
    for (int i = 0; i < n; i++)
        mem_free(names[i]);
    mem_free(names);
    return s;
}

static void fill_from_st(struct ckpt_tensor *t, const struct st_file *f, const struct st_tensor *s)
{
    *t = (struct ckpt_tensor){.name = s->name,
                              .file_name = s->name,
                              .dtype = s->dtype,
                              .format_name = dtype_name(s->dtype),
                              .n_dims = s->n_dims,
                              .data = s->data,
                              .bytes = s->bytes,
                              .map = &f->map};
    for (int d = 0; d < s->n_dims; d++)
        t->shape[d] = s->shape[d];
}

static enum tlm_status list_shards(struct checkpoint *ck, struct tlm_error *e)
{
    size_t n = 0;
    for (int i = 0; i < ck->n_shards; i++)
        n += (size_t)ck->shards[i]->n_tensors;
    if (n > INT32_MAX / 4)
        return err_set(e, TLM_ELIMIT, "%s: %zu tensors", ck->path, n);
    ck->tensors = mem_new_array(n, sizeof *ck->tensors);
    if (!ck->tensors)
        return err_nomem(e, n * sizeof *ck->tensors);
    for (int i = 0; i < ck->n_shards; i++)
        for (int t = 0; t < ck->shards[i]->n_tensors; t++)
            fill_from_st(&ck->tensors[ck->n_tensors++], ck->shards[i], &ck->shards[i]->tensors[t]);
    return TLM_OK;
}

static enum tlm_status open_dir(struct checkpoint *ck, bool metadata_only, struct tlm_error *e)
{
    cJSON *index = NULL;
    enum tlm_status s = load_optional(ck->path, "config.json", &ck->config, e);
    if (s != TLM_OK)
        return s;
    if (!ck->config)
        return err_set(e, TLM_ENOTFOUND, "%s: no config.json and not a GGUF file", ck->path);
    s = load_optional(ck->path, "generation_config.json", &ck->generation_config, e);
    if (s == TLM_OK)
        s = load_optional(ck->path, "model.safetensors.index.json", &index, e);
    if (s != TLM_OK)
        return s;
    s = index ? open_by_index(ck, index, e) : open_by_pattern(ck, e);
    cJSON_Delete(index);
    if (s == TLM_OK && ck->n_shards == 0 && !metadata_only)
        s = err_set(e, TLM_ENOTFOUND, "No safetensors found in %s", ck->path);
    return s == TLM_OK ? list_shards(ck, e) : s;
}

static enum tlm_status open_gguf(struct checkpoint *ck, struct tlm_error *e)
{
    enum tlm_status s = gguf_open(ck->path, &ck->gguf, e);
    if (s != TLM_OK)
        return s;
    ck->is_gguf = true;
    ck->config = cJSON_CreateObject();
    ck->tensors = mem_new_array(ck->gguf->n_tensors, sizeof *ck->tensors);
    if (!ck->tensors || !ck->config)
        return err_nomem(e, ck->gguf->n_tensors * sizeof *ck->tensors);
    for (uint64_t i = 0; i < ck->gguf->n_tensors; i++) {
        const struct gguf_tensor *g = &ck->gguf->tensors[i];
        struct ckpt_tensor *t = &ck->tensors[ck->n_tensors++];
        const struct quant *q = quant_by_ggml_type(g->type);
        *t = (struct ckpt_tensor){.name = g->name,
                                  .file_name = g->name,
                                  .block_format = q,
                                  .format_name = gguf_type_name(g->type),
                                  .n_dims = g->n_dims,
                                  .data = g->data,
                                  .bytes = g->bytes,
                                  .map = &ck->gguf->maps[g->file]};
        for (int d = 0; d < g->n_dims; d++)
            t->shape[d] = g->ne[g->n_dims - 1 - d];
    }
    return TLM_OK;
}

enum tlm_status checkpoint_open(const char *path, bool metadata_only, struct checkpoint **out, struct tlm_error *e)
{
    *out = NULL;
    struct checkpoint *ck = mem_new(sizeof *ck);
    if (!ck)
        return err_nomem(e, sizeof *ck);
    enum tlm_status s = TLM_OK;
    ck->path = mem_strdup(path);
    ck->inputs = mem_new(sizeof *ck->inputs);
    if (!ck->path || !ck->inputs)
        s = err_nomem(e, strlen(path));
    else if (!file_exists(path))
        s = err_set(e, TLM_ENOTFOUND, "%s: no such file or directory", path);
    else if (file_is_dir(path))
        s = open_dir(ck, metadata_only, e);
    else if (gguf_is_file(path))
        s = open_gguf(ck, e);
    else if ((s = file_check(path, e)) == TLM_OK)
        s = err_set(e, TLM_EFORMAT, "%s: neither a model directory nor a GGUF file", path);
    if (s != TLM_OK) {
        checkpoint_close(ck);
        return s;
    }
    *out = ck;
    return TLM_OK;
}

void checkpoint_close(struct checkpoint *ck)
{
    if (!ck)
        return;
    for (int i = 0; i < ck->n_shards; i++)
        st_close(ck->shards[i]);
    mem_free(ck->shards);
    gguf_close(ck->gguf);
    cJSON_Delete(ck->config);
    cJSON_Delete(ck->generation_config);
    mem_free(ck->tensors);
    mem_free(ck->index);
    mem_free(ck->names);
    mem_free(ck->quant_members);
    mem_free(ck->turbo);
    if (ck->inputs)
        view_inputs_free(*ck->inputs);
    mem_free(ck->inputs);
    mem_free(ck->path);
    mem_free(ck);
}

/* Seeded by an address, so that no file can be prepared to make names collide. */
static uint32_t hash_name(const struct checkpoint *ck, const char *s)
{
    return (uint32_t)name_index_hash(s, strlen(s), (int)((uintptr_t)ck->index >> 4 & INT_MAX));
}

static enum tlm_status build_index(struct checkpoint *ck, struct tlm_error *e)
{
    int size = 16;
    while (size < ck->n_tensors * 2)
        size *= 2;
    ck->index = mem_alloc_array((size_t)size, sizeof *ck->index);
    if (!ck->index)
        return err_nomem(e, (size_t)size * sizeof *ck->index);
    ck->index_size = size;
    for (int i = 0; i < size; i++)
        ck->index[i] = -1;
    for (int i = 0; i < ck->n_tensors; i++) {
        if (ck->tensors[i].left_out)
            continue;
        if (checkpoint_find(ck, ck->tensors[i].name))
            return err_set(e, TLM_EFORMAT, "%s: tensor %s is there twice", ck->path, ck->tensors[i].file_name);
        uint32_t h = hash_name(ck, ck->tensors[i].name) & (uint32_t)(size - 1);
        while (ck->index[h] >= 0)
            h = (h + 1) & (uint32_t)(size - 1);
        ck->index[h] = i;
    }
    return TLM_OK;
}

enum tlm_status checkpoint_rename(struct checkpoint *ck, ckpt_rename_fn *fn, const void *arg, struct tlm_error *e)
{
    char name[CKPT_NAME_MAX];
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        size_t at = 0;
        for (int i = 0; i < ck->n_tensors; i++) {
            struct ckpt_tensor *t = &ck->tensors[i];
            int r = fn(arg, t->file_name, name);
            size_t n = r > 0 ? strlen(name) + 1 : 0;
            if (pass == 1 && r > 0)
                t->name = memcpy(ck->names + at, name, n);
            if (r < 0)
                t->left_out = true;
            at += n;
        }
        bytes = at;
        if (pass == 0 && !(ck->names = mem_alloc(bytes)))
            return err_nomem(e, bytes);
    }
    enum tlm_status s = build_index(ck, e);
    return s == TLM_OK ? checkpoint_sort_quantization(ck, e) : s;
}

struct ckpt_tensor *checkpoint_find(const struct checkpoint *ck, const char *name)
{
    if (!ck->index)
        return NULL;
    uint32_t h = hash_name(ck, name) & (uint32_t)(ck->index_size - 1);
    for (; ck->index[h] >= 0; h = (h + 1) & (uint32_t)(ck->index_size - 1))
        if (!strcmp(ck->tensors[ck->index[h]].name, name))
            return &ck->tensors[ck->index[h]];
    return NULL;
}
