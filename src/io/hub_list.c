/* Listings: reading and writing them. */
#include "io/hub_list.h"

#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/hub_id.h"

/* Sizes above 2^53 do not survive JSON's doubles, and no file is that large. */
static const int64_t size_max = (int64_t)1 << 53;

void hub_listing_deinit(struct hub_listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->files[i].name);
    mem_free(l->files);
    *l = (struct hub_listing){0};
}

enum tlm_status hub_listing_add(struct hub_listing *l, const char *name, const char *where, struct hub_file **out,
                                struct tlm_error *e)
{
    if (!hub_name_is_safe(name))
        return err_set(e, TLM_EFORMAT, "%s: unsafe file name '%.200s'", where, name);
    if (l->n == l->room) {
        if (l->n >= HUB_FILES_MAX)
            return err_set(e, TLM_ELIMIT, "%s: more than %d files", where, HUB_FILES_MAX);
        size_t room = l->room ? 2 * l->room : 64;
        struct hub_file *p = mem_realloc_array(l->files, room, sizeof *p);
        if (!p)
            return err_nomem(e, room * sizeof *p);
        l->files = p;
        l->room = room;
    }
    struct hub_file *f = &l->files[l->n];
    *f = (struct hub_file){.name = mem_strdup(name), .size = -1};
    if (!f->name)
        return err_nomem(e, strlen(name) + 1);
    l->n++;
    *out = f;
    return TLM_OK;
}

/* A hexadecimal member of n digits; absent is fine. */
static enum tlm_status get_hex(const cJSON *obj, const char *key, int n, char *out, struct tlm_error *e)
{
    const char *text = NULL;
    enum tlm_status s = json_str(obj, key, &text, e);
    if (s != TLM_OK || !text)
        return s;
    if (!hub_is_hex(text, n))
        return err_set(e, TLM_EFORMAT, "%s: found '%.80s', expected %d hexadecimal digits", key, text, n);
    memcpy(out, text, (size_t)n + 1);
    return TLM_OK;
}

static enum tlm_status read_file(struct hub_file *f, const cJSON *obj, const char *git_key, const cJSON *lfs,
                                 const char *sha_key, const char *size_key, struct tlm_error *e)
{
    enum tlm_status s = json_int(obj, "size", 0, size_max, &f->size, e);
    if (s == TLM_OK)
        s = get_hex(obj, git_key, 40, f->git_id, e);
    if (s != TLM_OK)
        return s;
    memcpy(f->etag, f->git_id, sizeof f->git_id);
    if (lfs && json_get(lfs, sha_key)) {
        s = get_hex(lfs, sha_key, 64, f->etag, e);
        if (s == TLM_OK)
            s = json_int(lfs, size_key, 0, size_max, &f->size, e);
    }
    return s;
}

static enum tlm_status read_api(struct hub_listing *l, const cJSON *root, const char *where, struct tlm_error *e)
{
    const char *sha = NULL;
    enum tlm_status s = json_str(root, "sha", &sha, e);
    if (s == TLM_OK && (!sha || !hub_is_commit(sha)))
        s = err_set(e, TLM_EFORMAT, "sha: found '%.80s', expected a commit", sha ? sha : "nothing");
    const cJSON *list = json_get(root, "siblings"), *row;
    if (s == TLM_OK && !cJSON_IsArray(list))
        s = err_set(e, TLM_EFORMAT, "siblings: found %s, expected an array", json_type_name(list));
    if (s != TLM_OK)
        return s;
    memcpy(l->commit, sha, sizeof l->commit);
    cJSON_ArrayForEach(row, list)
    {
        const char *name = NULL;
        struct hub_file *f = NULL;
        if (!cJSON_IsObject(row))
            s = err_set(e, TLM_EFORMAT, "siblings: found %s, expected an object", json_type_name(row));
        else
            s = json_str(row, "rfilename", &name, e);
        if (s == TLM_OK && !name)
            s = err_set(e, TLM_EFORMAT, "siblings: a file without rfilename");
        if (s == TLM_OK)
            s = hub_listing_add(l, name, where, &f, e);
        if (s == TLM_OK)
            s = read_file(f, row, "blobId", json_get(row, "lfs"), "sha256", "size", e);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

static enum tlm_status read_tree(struct hub_listing *l, const cJSON *root, const char *where, struct tlm_error *e)
{
    int64_t version = 0;
    const cJSON *files = json_get(root, "files"), *row;
    enum tlm_status s = json_int(root, "format_version", 1, 1, &version, e);
    if (s == TLM_OK && (version != 1 || !cJSON_IsObject(files)))
        s = err_set(e, TLM_EFORMAT, "no listing of format 1");
    if (s != TLM_OK)
        return s;
    cJSON_ArrayForEach(row, files)
    {
        struct hub_file *f = NULL;
        s = cJSON_IsObject(row) ? hub_listing_add(l, row->string, where, &f, e)
                                : err_set(e, TLM_EFORMAT, "files: found %s, expected an object", json_type_name(row));
        if (s == TLM_OK)
            s = read_file(f, row, "blob_id", row, "lfs_sha256", "lfs_size", e);
        if (s != TLM_OK)
            return s;
    }
    return TLM_OK;
}

typedef enum tlm_status read_fn(struct hub_listing *l, const cJSON *root, const char *where, struct tlm_error *e);

static enum tlm_status from_json(struct hub_listing *l, const char *json, size_t len, const char *where, read_fn *read,
                                 struct tlm_error *e)
{
    cJSON *root = NULL;
    enum tlm_status s = json_parse(json, len, where, &root, e);
    if (s != TLM_OK)
        return s;
    s = cJSON_IsObject(root) ? read(l, root, where, e)
                             : err_set(e, TLM_EFORMAT, "found %s, expected an object", json_type_name(root));
    if (s == TLM_EFORMAT)
        err_prefix(e, "%s", where);
    cJSON_Delete(root);
    return s;
}

enum tlm_status hub_listing_from_api(struct hub_listing *l, const char *json, size_t len, const char *where,
                                     struct tlm_error *e)
{
    return from_json(l, json, len, where, read_api, e);
}

enum tlm_status hub_listing_from_tree(struct hub_listing *l, const char *json, size_t len, const char *where,
                                      struct tlm_error *e)
{
    return from_json(l, json, len, where, read_tree, e);
}

/* size as text: cJSON would print a double. */
static bool add_size(cJSON *obj, const char *key, int64_t size)
{
    struct buf text;
    buf_init(&text, 32);
    bool ok = buf_printf(&text, "%lld", (long long)size) == TLM_OK && cJSON_AddRawToObject(obj, key, buf_str(&text));
    buf_deinit(&text);
    return ok;
}

enum tlm_status hub_listing_to_tree(const struct hub_listing *l, char **out, struct tlm_error *e)
{
    *out = NULL;
    for (size_t i = 0; i < l->n; i++)
        if (l->files[i].size < 0 || !l->files[i].git_id[0])
            return TLM_OK;
    cJSON *root = cJSON_CreateObject();
    bool ok = root && cJSON_AddNumberToObject(root, "format_version", 1);
    cJSON *files = ok ? cJSON_AddObjectToObject(root, "files") : NULL;
    ok = files != NULL;
    for (size_t i = 0; ok && i < l->n; i++) {
        const struct hub_file *f = &l->files[i];
        cJSON *row = cJSON_AddObjectToObject(files, f->name);
        ok = row && add_size(row, "size", f->size) && cJSON_AddStringToObject(row, "blob_id", f->git_id);
        if (ok && strlen(f->etag) == HUB_ETAG_MAX)
            ok = cJSON_AddStringToObject(row, "lfs_sha256", f->etag) && add_size(row, "lfs_size", f->size);
    }
    char *text = ok ? cJSON_Print(root) : NULL;
    *out = text ? mem_strdup(text) : NULL;
    cJSON_free(text);
    cJSON_Delete(root);
    return *out ? TLM_OK : err_nomem(e, l->n * 64);
}
