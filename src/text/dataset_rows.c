/* Where the rows of a data set are: lines of files, or pages of a hub. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/dataset.h"

/* An order of all rows is held in memory. */
enum { FILES_MAX = 4096, ROWS_MAX = 100000000 };

/* Files --------------------------------------------------------------------- */

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

static enum tlm_status add_line(struct tlm_dataset *d, size_t *room, struct dataset_line line, struct tlm_error *e)
{
    if (d->n_rows == *room) {
        size_t n = *room ? 2 * *room : 256;
        struct dataset_line *p = mem_realloc_array(d->lines, n, sizeof *p);
        if (!p)
            return err_nomem(e, n * sizeof *p);
        d->lines = p;
        *room = n;
    }
    d->lines[d->n_rows++] = line;
    return TLM_OK;
}

/* Every line that is not empty is a row. */
static enum tlm_status find_lines(struct tlm_dataset *d, struct tlm_error *e)
{
    size_t room = 0;
    for (size_t f = 0; f < d->n_files; f++) {
        const char *text = (const char *)d->files[f].map.data;
        size_t size = d->files[f].map.size;
        size_t at = size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* byte order mark */
        for (size_t next; at < size; at = next) {
            const char *end = memchr(text + at, '\n', size - at);
            size_t len = end ? (size_t)(end - text) - at : size - at, blank = 0;
            next = at + len + 1;
            while (blank < len && strchr(" \t\r", text[at + blank]) && text[at + blank])
                blank++;
            enum tlm_status s = blank < len ? add_line(d, &room, (struct dataset_line){f, at, len}, e) : TLM_OK;
            if (s != TLM_OK)
                return s;
        }
    }
    return d->n_rows ? TLM_OK : err_set(e, TLM_EFORMAT, "%s: the data set has no rows", d->name);
}

/* Takes path over. */
static enum tlm_status add_file(struct tlm_dataset *d, char *path, struct tlm_error *e)
{
    struct dataset_file *p = path ? mem_realloc_array(d->files, d->n_files + 1, sizeof *p) : NULL;
    if (!p) {
        mem_free(path);
        return err_nomem(e, (d->n_files + 1) * sizeof *p);
    }
    d->files = p;
    p[d->n_files++] = (struct dataset_file){.path = path};
    return TLM_OK;
}

/* A word of the file's name: what stands between anything but letters. */
static bool has_word(const char *name, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(name, word); p; p = strstr(p + 1, word)) {
        bool begins = p == name || strchr("-._ 0123456789", p[-1]);
        if (begins && strchr("-._ 0123456789", p[n]))
            return true;
    }
    return false;
}

static bool names_split(const char *name, const char *split)
{
    return has_word(name, split) || (!strcmp(split, "train") && has_word(name, "training"));
}

static bool names_any_split(const char *name)
{
    static const char *const words[] = {"train", "validation", "valid", "dev",       "val",
                                        "test",  "testing",    "eval",  "evaluation"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (names_split(name, words[i]))
            return true;
    return false;
}

struct names {
    char *jsonl[FILES_MAX];
    size_t n;
    char parquet[128]; /* one of these, or "" */
    bool any_split;
};

static enum tlm_status read_folder(const char *path, struct names *out, struct tlm_error *e)
{
    DIR *dir = opendir(path);
    enum tlm_status s = TLM_OK;
    if (!dir)
        return err_set(e, TLM_EIO, "%s: %s", path, strerror(errno));
    for (struct dirent *entry = readdir(dir); entry && s == TLM_OK; entry = readdir(dir)) {
        const char *name = entry->d_name;
        if (has_suffix(name, ".parquet"))
            snprintf(out->parquet, sizeof out->parquet, "%s", name);
        if (name[0] == '.' || !has_suffix(name, ".jsonl"))
            continue;
        if (out->n == FILES_MAX)
            s = err_set(e, TLM_ELIMIT, "%s: more than %d files", path, FILES_MAX);
        else if (!(out->jsonl[out->n] = mem_strdup(name)))
            s = err_nomem(e, strlen(name));
        else
            out->any_split = names_any_split(out->jsonl[out->n++]) || out->any_split;
    }
    closedir(dir);
    return s;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum tlm_status choose_files(struct tlm_dataset *d, const char *path, const char *split, struct names *names,
                                    struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    qsort(names->jsonl, names->n, sizeof names->jsonl[0], by_name);
    for (size_t i = 0; i < names->n && s == TLM_OK; i++)
        if (!names->any_split || names_split(names->jsonl[i], split))
            s = add_file(d, path_join(path, names->jsonl[i]), e);
    if (s != TLM_OK || d->n_files)
        return s;
    if (names->parquet[0])
        return err_set(e, TLM_EUNSUPPORTED, "%s/%s: Parquet is not read; expected %s.jsonl in this folder", path,
                       names->parquet, split);
    return err_set(e, TLM_ENOTFOUND, "%s: no file %s.jsonl in this folder", path, split);
}

static enum tlm_status open_folder(struct tlm_dataset *d, const char *path, const char *split, struct tlm_error *e)
{
    struct names *names = mem_new(sizeof *names);
    if (!names)
        return err_nomem(e, sizeof *names);
    enum tlm_status s = read_folder(path, names, e);
    if (s == TLM_OK)
        s = choose_files(d, path, split, names, e);
    for (size_t i = 0; i < names->n; i++)
        mem_free(names->jsonl[i]);
    mem_free(names);
    return s;
}

static enum tlm_status open_files(struct tlm_dataset *d, const char *path, const char *split, struct tlm_error *e)
{
    enum tlm_status s = file_is_dir(path) ? open_folder(d, path, split, e) : add_file(d, mem_strdup(path), e);
    for (size_t i = 0; i < d->n_files && s == TLM_OK; i++)
        s = file_map_open(&d->files[i].map, d->files[i].path, e);
    return s == TLM_OK ? find_lines(d, e) : s;
}

/* The hub ------------------------------------------------------------------- */

/* {"row_idx": 5, "row": {...}, "truncated_cells": []} */
static void read_row(struct json_stream *j, struct dataset_page *p, size_t first)
{
    struct json_text key;
    int64_t index = -1;
    p->rows[p->n] = (struct json_text){NULL, 0};
    p->cut[p->n] = false;
    json_enter(j, '{');
    while (json_next_key(j, &key)) {
        if (json_text_is(key, "row_idx")) {
            json_int_get(j, &index);
        } else if (json_text_is(key, "row")) {
            json_skip(j, &p->rows[p->n]);
        } else if (json_text_is(key, "truncated_cells")) {
            json_enter(j, '[');
            while (json_next(j))
                p->cut[p->n] = json_skip(j, NULL);
        } else {
            json_skip(j, NULL);
        }
    }
    if (j->status == TLM_OK && (index < 0 || (uint64_t)index != first + p->n))
        json_fail(j, "row_idx: expected that of the next row");
    if (j->status == TLM_OK && !p->rows[p->n].s)
        json_fail(j, "row: expected an object, found nothing");
    p->n++;
}

/* total: num_rows_total, or -1; partial: the server has not all. */
static enum tlm_status read_page(struct dataset_page *p, size_t first, int64_t *total, bool *partial,
                                 struct tlm_error *e)
{
    struct json_stream j;
    struct json_text key;
    *total = -1;
    *partial = false;
    p->first = first;
    p->n = 0;
    json_stream_init(&j, buf_str(&p->body), p->body.len, p->where, e);
    json_enter(&j, '{');
    while (json_next_key(&j, &key)) {
        if (json_text_is(key, "num_rows_total")) {
            json_int_get(&j, total);
        } else if (json_text_is(key, "partial")) {
            json_bool_get(&j, partial);
        } else if (json_text_is(key, "rows")) {
            json_enter(&j, '[');
            while (json_next(&j)) {
                if (p->n == HUB_ROWS_PAGE)
                    json_fail(&j, "rows: more than were asked for");
                else
                    read_row(&j, p, first);
            }
        } else {
            json_skip(&j, NULL);
        }
    }
    json_at_end(&j);
    if (j.status == TLM_OK && p->n == 0)
        json_fail(&j, "rows: found none");
    enum tlm_status s = j.status;
    json_stream_deinit(&j);
    p->n = s == TLM_OK ? p->n : 0;
    return s;
}

static enum tlm_status fetch(struct tlm_dataset *d, size_t first, int n, int64_t *total, bool *partial,
                             struct tlm_error *e)
{
    struct dataset_page *p = &d->page;
    buf_deinit(&p->body);
    p->n = 0;
    snprintf(p->where, sizeof p->where, "%.200s: rows from %zu", d->name, first);
    enum tlm_status s = hub_rows_get(&d->hub, first, n, &p->body, e);
    return s == TLM_OK ? read_page(p, first, total, partial, e) : s;
}

static enum tlm_status open_remote(struct tlm_dataset *d, const char *path, const char *split, struct tlm_error *e)
{
    int64_t total;
    bool partial;
    d->remote = true;
    enum tlm_status s = hub_rows_open(&d->hub, path, split, e);
    if (s == TLM_OK)
        s = fetch(d, 0, 1, &total, &partial, e);
    if (s != TLM_OK)
        return s;
    if (total < 1 || total > ROWS_MAX)
        return err_set(e, TLM_EFORMAT, "%s: num_rows_total: found %lld, expected 1 to %d", path, (long long)total,
                       ROWS_MAX);
    if (partial)
        log_warn("%s: the server has only the first %lld rows of the data set", path, (long long)total);
    d->n_rows = (size_t)total;
    return TLM_OK;
}

static enum tlm_status find_remote(struct tlm_dataset *d, size_t i, struct json_stream *j, struct tlm_error *e)
{
    struct dataset_page *p = &d->page;
    int64_t total;
    bool partial;
    enum tlm_status s = TLM_OK;
    if (i < p->first || i - p->first >= p->n) {
        bool small = d->n_rows <= HUB_ROWS_PAGE, next = p->n && i == p->first + p->n;
        s = fetch(d, small ? 0 : i, small || next ? HUB_ROWS_PAGE : 1, &total, &partial, e);
    }
    if (s == TLM_OK && (i < p->first || i - p->first >= p->n))
        return err_set(e, TLM_EFORMAT, "%s: the server sent %zu rows, without row %zu", p->where, p->n, i);
    /* A large answer is cut, which one row may not be. */
    if (s == TLM_OK && p->cut[i - p->first] && p->n > 1)
        s = fetch(d, i, 1, &total, &partial, e);
    if (s == TLM_OK && p->cut[i - p->first])
        s = err_set(e, TLM_EUNSUPPORTED, "%s: the server sends only the beginning of row %zu", d->name, i);
    if (s != TLM_OK)
        return s;
    json_stream_init(j, buf_str(&p->body), p->body.len, p->where, e);
    j->p = p->rows[i - p->first].s;
    return TLM_OK;
}

/* Both ---------------------------------------------------------------------- */

enum tlm_status dataset_rows_open(struct tlm_dataset *d, const char *path, const char *split, struct tlm_error *e)
{
    static const char *const files[] = {".jsonl", ".json", ".txt", ".parquet", ".csv"};
    if (file_exists(path))
        return open_files(d, path, split, e);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (has_suffix(path, files[i]))
            return err_set(e, TLM_ENOTFOUND, "%s: no such file", path);
    return open_remote(d, path, split, e);
}

void dataset_rows_close(struct tlm_dataset *d)
{
    for (size_t i = 0; i < d->n_files; i++) {
        file_map_close(&d->files[i].map);
        mem_free(d->files[i].path);
    }
    mem_free(d->files);
    mem_free(d->lines);
    buf_deinit(&d->page.body);
    if (d->remote)
        hub_rows_close(&d->hub);
}

enum tlm_status dataset_rows_find(struct tlm_dataset *d, size_t i, struct json_stream *j, struct tlm_error *e)
{
    if (d->remote)
        return find_remote(d, i, j, e);
    const struct dataset_line *line = &d->lines[i];
    const struct dataset_file *f = &d->files[line->file];
    json_stream_init(j, (const char *)f->map.data, line->at + line->len, f->path, e);
    j->p = j->start + line->at;
    return TLM_OK;
}
