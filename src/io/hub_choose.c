/* Which files of a repository make a model: a directory of safetensors with
 * what stands around it, or one GGUF file, which may be split into several. */
#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "io/hub_list.h"

/* What mlx-lm fetches; "*" also stands for a slash. */
static const char *const patterns[] = {"*.json",     "model*.safetensors", "*.py",  "tokenizer.model",
                                       "*.tiktoken", "tiktoken.model",     "*.txt", "*.jsonl",
                                       "*.jinja"};

static bool is_weights(const char *name)
{
    return fnmatch("model*.safetensors", name, 0) == 0;
}

/* A GGUF file or all parts of a split one. */
struct gguf_set {
    const char *first; /* name of the file to open */
    size_t stem;       /* length of its name without part numbers and ".gguf" */
    int parts, found;
    int64_t bytes; /* -1: not known */
};

struct gguf_sets {
    struct gguf_set *rows;
    size_t n;
};

/* "stem-00002-of-00005.gguf"; false for a name without numbers, whose stem is
 * all before ".gguf". */
static bool read_part(const char *name, size_t *stem, int *part, int *parts)
{
    size_t n = strlen(name) - strlen(".gguf");
    *stem = n;
    *part = *parts = 1;
    if (n < 16 || name[n - 15] != '-' || memcmp(name + n - 9, "-of-", 4) != 0)
        return false;
    int a = 0, b = 0;
    for (int i = 0; i < 5; i++) {
        char c = name[n - 14 + (size_t)i], d = name[n - 5 + (size_t)i];
        if (!isdigit((unsigned char)c) || !isdigit((unsigned char)d))
            return false;
        a = 10 * a + (c - '0');
        b = 10 * b + (d - '0');
    }
    if (a < 1 || a > b)
        return false;
    *stem = n - 15;
    *part = a;
    *parts = b;
    return true;
}

static bool is_gguf(const char *name)
{
    size_t n = strlen(name);
    const char *slash = strrchr(name, '/');
    const char *base = slash ? slash + 1 : name;
    /* Image projectors and importance matrices are no models. */
    return n > 5 && !strcmp(name + n - 5, ".gguf") && strncmp(base, "mmproj", 6) != 0 && !strstr(base, "imatrix");
}

static bool in_set(const struct gguf_set *set, const char *name)
{
    size_t stem;
    int part, parts;
    if (!is_gguf(name))
        return false;
    read_part(name, &stem, &part, &parts);
    return stem == set->stem && parts == set->parts && !memcmp(name, set->first, stem) &&
           strlen(name) == strlen(set->first);
}

static enum tlm_status find_sets(const struct hub_listing *l, struct gguf_sets *out, struct tlm_error *e)
{
    *out = (struct gguf_sets){.rows = mem_new_array(l->n + 1, sizeof *out->rows)};
    if (!out->rows)
        return err_nomem(e, l->n * sizeof *out->rows);
    for (size_t i = 0; i < l->n; i++) {
        const struct hub_file *f = &l->files[i];
        if (!is_gguf(f->name))
            continue;
        struct gguf_set set = {.first = f->name};
        int part;
        read_part(f->name, &set.stem, &part, &set.parts);
        size_t k = 0;
        /* Parts of one file stand together in every listing; looking back a
         * little keeps a hostile listing from costing its square. */
        if (out->n > 64)
            k = out->n - 64;
        while (k < out->n && !in_set(&out->rows[k], f->name))
            k++;
        if (k == out->n)
            out->rows[out->n++] = set;
        struct gguf_set *row = &out->rows[k];
        if (part == 1)
            row->first = f->name;
        row->bytes = f->size < 0 || row->bytes < 0 ? -1 : row->bytes + f->size;
        row->found++;
    }
    return TLM_OK;
}

/* "q4_k_m" in "model-Q4_K_M": a word of the stem, in any case. */
static bool has_word(const struct gguf_set *set, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= set->stem; i++) {
        size_t k = 0;
        while (k < n && tolower((unsigned char)set->first[i + k]) == tolower((unsigned char)word[k]))
            k++;
        if (k == n && (i == 0 || strchr("-._/", set->first[i - 1])) &&
            (i + n == set->stem || strchr("-./", set->first[i + n])))
            return true;
    }
    return false;
}

static bool is_picked(const struct gguf_set *set, const char *pick)
{
    return !strcmp(set->first, pick) || (strlen(pick) == set->stem && !memcmp(pick, set->first, set->stem));
}

/* "A.gguf (1.2 GB), B.gguf (…)" of the sets that match pick ("": all). */
static void list_sets(const struct gguf_sets *sets, const char *pick, struct buf *out)
{
    size_t shown = 0, left = 0;
    for (size_t i = 0; i < sets->n; i++) {
        if (*pick && !has_word(&sets->rows[i], pick))
            continue;
        if (out->len > 600) {
            left++;
            continue;
        }
        buf_printf(out, "%s%.160s", shown++ ? ", " : "", sets->rows[i].first);
        if (sets->rows[i].bytes >= 0)
            buf_printf(out, " (%.1f GB)", (double)sets->rows[i].bytes / 1e9);
    }
    if (left)
        buf_printf(out, " and %zu more", left);
}

static enum tlm_status no_choice(const struct gguf_sets *sets, const char *repo, const char *pick, size_t matches,
                                 struct tlm_error *e)
{
    struct buf text;
    enum tlm_status s;
    buf_init(&text, TLM_ERROR_MAX);
    list_sets(sets, matches ? pick : "", &text);
    if (!*pick)
        s = err_set(e, TLM_EINVAL, "%s has only GGUF files; name one, as in %s:%.160s; there are: %s", repo, repo,
                    sets->rows[0].first, buf_str(&text));
    else if (matches)
        s = err_set(e, TLM_EINVAL, "%s has several GGUF files for '%.100s'; name one of: %s", repo, pick,
                    buf_str(&text));
    else
        s = err_set(e, TLM_EINVAL, "%s has no GGUF file '%.100s'; there are: %s", repo, pick, buf_str(&text));
    buf_deinit(&text);
    return s;
}

static enum tlm_status choose_gguf(struct hub_listing *l, const char *repo, const char *pick, const char **main,
                                   const struct gguf_sets *sets, struct tlm_error *e)
{
    size_t matches = 0;
    const struct gguf_set *chosen = NULL;
    for (size_t i = 0; i < sets->n && *pick && !chosen; i++)
        if (is_picked(&sets->rows[i], pick))
            chosen = &sets->rows[i];
    for (size_t i = 0; i < sets->n && !chosen; i++)
        matches += !*pick || has_word(&sets->rows[i], pick);
    if (!chosen && matches != 1)
        return no_choice(sets, repo, pick, matches, e);
    for (size_t i = 0; i < sets->n && !chosen; i++)
        if (!*pick || has_word(&sets->rows[i], pick))
            chosen = &sets->rows[i];
    if (chosen->found != chosen->parts)
        return err_set(e, TLM_EFORMAT, "%s: %s has %d of %d parts", repo, chosen->first, chosen->found, chosen->parts);
    for (size_t i = 0; i < l->n; i++)
        l->files[i].wanted = in_set(chosen, l->files[i].name);
    *main = chosen->first;
    return TLM_OK;
}

enum tlm_status hub_listing_choose(struct hub_listing *l, const char *repo, const char *pick, const char **main,
                                   struct tlm_error *e)
{
    struct gguf_sets sets;
    bool has_weights = false;
    *main = NULL;
    for (size_t i = 0; i < l->n; i++) {
        l->files[i].wanted = false;
        has_weights = has_weights || is_weights(l->files[i].name);
        for (size_t k = 0; k < sizeof patterns / sizeof patterns[0] && !*pick; k++)
            if (fnmatch(patterns[k], l->files[i].name, 0) == 0)
                l->files[i].wanted = true;
    }
    if (!*pick && has_weights)
        return TLM_OK;
    enum tlm_status s = find_sets(l, &sets, e);
    if (s == TLM_OK && sets.n == 0)
        s = err_set(e, TLM_ENOTFOUND, "%s has %s", repo,
                    *pick ? "no GGUF files" : "no weights in a format we read: neither model*.safetensors nor GGUF");
    if (s == TLM_OK)
        s = choose_gguf(l, repo, pick, main, &sets, e);
    mem_free(sets.rows);
    return s;
}
