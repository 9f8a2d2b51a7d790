/* turbolm manage: what the cache of models holds, and deleting from it. The
 * texts and the table are mlx-lm's; data sets and spaces, which share the
 * cache, are left alone. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"

enum { SCAN, DELETE, PATTERN, N_OPTIONS };

static const struct cli_option options[N_OPTIONS] = {
    [SCAN] = {"--scan", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL, "list the models of the cache"},
    [DELETE] = {"--delete", NULL, CLI_FLAG, 0, NULL, NULL, NULL, NULL, "delete models of the cache, after a question"},
    [PATTERN] = {"--pattern", NULL, CLI_TEXT, 0, "mlx", NULL, NULL, NULL, "text that the names of the models contain"},
};

/* Cells of a table, row after row, the headings first. */
struct table {
    size_t n_columns, n_cells;
    char **cells;
    const char *align; /* per column: 'l' or 'r' */
};

static void table_add(struct table *t, const char *text)
{
    t->cells = tool_grow(t->cells, t->n_cells + 1, sizeof *t->cells);
    t->cells[t->n_cells++] = tool_clean_text(text, 1);
}

/* Characters, which are one column wide here. */
static size_t width_of(const char *s)
{
    size_t n = 0;
    for (; *s != '\0'; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void print_cell(const char *text, size_t width, char align)
{
    size_t used = width_of(text);
    int pad = (int)(width > used ? width - used : 0);
    if (align == 'r')
        out_print("%*s%s ", pad, "", text);
    else
        out_print("%s%*s ", text, pad, "");
}

static void table_print(const struct table *t)
{
    enum { COLUMNS_MAX = 8 };
    size_t widths[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t n = width_of(t->cells[i]);
        if (n > widths[i % t->n_columns])
            widths[i % t->n_columns] = n;
    }
    for (size_t i = 0; i < t->n_cells; i++) {
        size_t column = i % t->n_columns;
        print_cell(t->cells[i], widths[column], i < t->n_columns ? 'l' : t->align[column]);
        if (column + 1 < t->n_columns)
            continue;
        out_print("\n");
        for (size_t c = 0; i + 1 == t->n_columns && c < t->n_columns; c++) {
            for (size_t k = 0; k < widths[c]; k++)
                out_print("-");
            out_print("%s", c + 1 < t->n_columns ? " " : " \n");
        }
    }
}

static void table_free(struct table *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        tool_free(t->cells[i]);
    tool_free(t->cells);
}

/* "269.1M": thousands, as huggingface_hub counts. */
static void format_size(char *out, size_t n, double bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P", "E"};
    size_t u = 0;
    while (bytes >= 1000 && u + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, n, "%3.1f%s", bytes, units[u]);
}

/* "2 weeks ago", in the units and the rounding of huggingface_hub. */
static void format_age(char *out, size_t n, double then)
{
    static const struct {
        const char *name;
        double seconds, most;
    } units[] = {{"second", 1, 59},   {"minute", 60, 59},     {"hour", 3600, 23},      {"day", 86400, 6},
                 {"week", 604800, 6}, {"month", 2592000, 11}, {"year", 31536000, 1e18}};
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double age = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - then;
    if (age < 20) {
        snprintf(out, n, "a few seconds ago");
        return;
    }
    size_t u = 0;
    while (rint(age / units[u].seconds) > units[u].most)
        u++;
    double value = rint(age / units[u].seconds);
    snprintf(out, n, "%.0f %s%s ago", value, units[u].name, value > 1 ? "s" : "");
}

/* The next model from *i on whose name has the pattern. */
static int next_match(const struct tlm_hub_cache *c, const char *pattern, size_t *i, struct tlm_hub_repo *out)
{
    while (tlm_hub_cache_repo(c, *i, out)) {
        if (strstr(out->id, pattern) != NULL)
            return 1;
        ++*i;
    }
    return 0;
}

static void print_scan(const struct tlm_hub_cache *c, const char *pattern)
{
    static const char *const heads[] = {"REPO ID",       "REPO TYPE",     "SIZE ON DISK", "NB FILES",
                                        "LAST_ACCESSED", "LAST_MODIFIED", "LOCAL PATH"};
    struct table t = {.n_columns = sizeof heads / sizeof heads[0], .align = "lllrlll"};
    struct tlm_hub_repo r;
    char text[64], wide[64];
    for (size_t i = 0; i < t.n_columns; i++)
        table_add(&t, heads[i]);
    for (size_t i = 0; next_match(c, pattern, &i, &r); i++) {
        table_add(&t, r.id);
        table_add(&t, "model");
        format_size(text, sizeof text, (double)r.bytes);
        snprintf(wide, sizeof wide, "%12s", text);
        table_add(&t, wide);
        snprintf(text, sizeof text, "%llu", (unsigned long long)r.files);
        table_add(&t, text);
        format_age(text, sizeof text, r.last_access);
        table_add(&t, text);
        format_age(text, sizeof text, r.last_change);
        table_add(&t, text);
        table_add(&t, r.path);
    }
    table_print(&t);
    table_free(&t);
}

/* A line of standard input without its end: 1, or 0 when it was cut; -1: there is none. */
static int read_answer(char *line, size_t size)
{
    size_t n = 0;
    int c;
    while ((c = getchar()) != EOF && c != '\n') {
        if (n + 1 < size)
            line[n] = (char)c;
        n++;
    }
    if (c == EOF && n == 0)
        return -1;
    line[n < size ? n : size - 1] = '\0';
    return n < size;
}

/* 1 yes, 0 no, -1 the end of standard input. */
static int ask(const char *question)
{
    static const char *const yes[] = {"y", "yes", "1"}, *const no[] = {"n", "no", "0", ""};
    char line[256];
    for (;;) {
        out_print("%s (y/n) ", question);
        out_flush();
        int whole = out_failed() ? -1 : read_answer(line, sizeof line);
        if (whole < 0)
            return -1;
        for (size_t i = 0; whole && i < sizeof yes / sizeof yes[0]; i++) {
            if (strcasecmp(line, yes[i]) == 0)
                return 1;
        }
        for (size_t i = 0; whole && i < sizeof no / sizeof no[0]; i++) {
            if (strcasecmp(line, no[i]) == 0)
                return 0;
        }
        out_print("Invalid input. Must be one of: yes/no/y/n or empty for no\n");
    }
}

static int delete_matches(struct tlm_hub_cache *c, const char *pattern)
{
    struct tlm_hub_repo r;
    int status = 0;
    for (size_t i = 0; next_match(c, pattern, &i, &r); i++) {
        struct tlm_error e = {TLM_OK, ""};
        char *id = tool_clean_text(r.id, 1);
        out_print("\nDeleting %s...\n", id);
        out_flush();
        tool_free(id);
        if (tlm_hub_cache_delete(c, i, &e) != TLM_OK)
            status = out_tlm_error(&e);
    }
    if (status == 0)
        out_print("\nModel(s) deleted successfully.\n");
    return status;
}

static int run_delete(struct tlm_hub_cache *c, const char *pattern)
{
    static const char *const heads[] = {"REPO ID", "SIZE", "LOCAL PATH"};
    struct table t = {.n_columns = sizeof heads / sizeof heads[0], .align = "lll"};
    struct tlm_hub_repo r;
    char text[64];
    size_t first = 0;
    if (!next_match(c, pattern, &first, &r)) {
        out_print("No models found matching pattern \"%s\"\n", pattern);
        return 0;
    }
    for (size_t i = 0; i < t.n_columns; i++)
        table_add(&t, heads[i]);
    for (size_t i = first; next_match(c, pattern, &i, &r); i++) {
        table_add(&t, r.id);
        format_size(text, sizeof text, (double)r.bytes);
        table_add(&t, text);
        table_add(&t, r.path);
    }
    out_print("\nFound the following models:\n");
    table_print(&t);
    table_free(&t);
    int answer = ask("\nAre you sure you want to delete these models?");
    if (answer > 0)
        return delete_matches(c, pattern);
    if (answer == 0) {
        out_print("\nDeletion cancelled - no changes made.\n");
        return 0;
    }
    out_print("\n");
    out_error("standard input ended before an answer: nothing is deleted");
    return 1;
}

/* Opens the cache after the first line of the output, as the original does. */
static int with_cache(const char *pattern, int (*act)(struct tlm_hub_cache *c, const char *pattern))
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_hub_cache *c;
    if (tlm_hub_cache_open(NULL, &c, &e) != TLM_OK)
        return out_tlm_error(&e);
    int status = act(c, pattern);
    tlm_hub_cache_close(c);
    return status;
}

static int run_scan(struct tlm_hub_cache *c, const char *pattern)
{
    print_scan(c, pattern);
    return 0;
}

static int run(const char *prog, const struct cli_value *v)
{
    const char *pattern = v[PATTERN].text;
    int status = 0;
    (void)prog;
    if (v[SCAN].truth) {
        out_print("Scanning Hugging Face cache for models with pattern \"%s\".\n", pattern);
        status = with_cache(pattern, run_scan);
    }
    if (v[DELETE].truth && status == 0) {
        out_print("Deleting models matching pattern \"%s\"\n", pattern);
        status = with_cache(pattern, run_delete);
    }
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {NULL, 0}};

const struct command manage_command = {"manage", "List the models in the Hugging Face cache, or delete some.",
                                       "The cache is the folder in HF_HUB_CACHE, by default ~/.cache/huggingface/hub.",
                                       tables, run};
