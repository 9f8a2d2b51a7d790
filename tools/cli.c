/* The option parser: argparse's algorithm over a table of rows. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <cjson/cJSON.h>

#include "out.h"

enum { NOT_FOUND = -1, HELP = -2 };

enum arg_kind { ARG_VALUE, ARG_OPTION, ARG_DASHES };

struct arg {
    enum arg_kind kind;
    int option;           /* a row, HELP or NOT_FOUND */
    const char *explicit; /* after '=' or behind a short option; NULL: none */
};

struct parser {
    const struct command *command;
    const char *prog;
    int n;
    char **argv;
    struct arg *args;
    struct cli_value *values;
    const char **extras; /* arguments nobody wants */
    int n_extras;
};

const struct cli_option *cli_row(const struct command *c, size_t i)
{
    for (const struct cli_table *t = c->tables; t->n > 0; t++) {
        if (i < t->n)
            return &t->rows[i];
        i -= t->n;
    }
    return NULL;
}

static int is_positional(const struct cli_option *o)
{
    return o->name[0] != '-';
}

/* "--prompt/-p", as argparse names an option in messages. */
static void option_label(const struct cli_option *o, char *out, size_t n)
{
    snprintf(out, n, "%s%s%s", o->name, o->alias != NULL ? "/" : "", o->alias != NULL ? o->alias : "");
}

int cli_usage_error(const struct command *c, const char *prog, const char *option, const char *fmt, ...)
{
    char label[128] = "";
    va_list ap;
    for (size_t i = 0; option != NULL && cli_row(c, i) != NULL; i++) {
        if (strcmp(cli_row(c, i)->name, option) == 0)
            option_label(cli_row(c, i), label, sizeof label);
    }
    cli_print_usage(c, prog, 1);
    fprintf(stderr, "%s: error: ", prog);
    if (option != NULL)
        fprintf(stderr, "argument %s: ", label);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return 2;
}

/* The text as Python's repr() shows it; out is cut at n bytes. */
static const char *show(const char *text, char *out, size_t n)
{
    char quote = strchr(text, '\'') != NULL && strchr(text, '"') == NULL ? '"' : '\'';
    size_t k = 0;
    out[k++] = quote;
    for (const char *p = text; *p != '\0' && k + 8 < n; p++) {
        unsigned char ch = (unsigned char)*p;
        if (ch == '\n' || ch == '\t' || ch == '\r' || ch == '\\' || *p == quote) {
            out[k++] = '\\';
            out[k++] = ch == '\n' ? 'n' : ch == '\t' ? 't' : ch == '\r' ? 'r' : *p;
        } else if (ch < 0x20 || ch == 0x7f) {
            k += (size_t)snprintf(out + k, n - k, "\\x%02x", ch);
        } else {
            out[k++] = *p;
        }
    }
    out[k++] = quote;
    out[k] = '\0';
    return out;
}

/* Finding options ---------------------------------------------------------- */

static int name_equals(const char *name, const char *text, size_t len)
{
    return name != NULL && strlen(name) == len && memcmp(name, text, len) == 0;
}

static int find_exact(const struct command *c, const char *text, size_t len)
{
    const struct cli_option *o;
    if (name_equals("-h", text, len) || name_equals("--help", text, len))
        return HELP;
    for (size_t i = 0; (o = cli_row(c, i)) != NULL; i++) {
        if (!is_positional(o) && (name_equals(o->name, text, len) || name_equals(o->alias, text, len)))
            return (int)i;
    }
    return NOT_FOUND;
}

struct matches {
    int n, n_known; /* n_known: options that mlx-lm has too */
    int option, known;
    const char *explicit, *known_explicit;
    char names[1024];
};

static void add_match(struct matches *m, int option, unsigned flags, const char *name, const char *explicit)
{
    size_t k = strlen(m->names);
    snprintf(m->names + k, sizeof m->names - k, "%s%s", m->n > 0 ? ", " : "", name);
    m->n++;
    m->option = option;
    m->explicit = explicit;
    if (!(flags & CLI_EXTRA)) {
        m->n_known++;
        m->known = option;
        m->known_explicit = explicit;
    }
}

static void try_match(struct matches *m, int option, unsigned flags, const char *name, const char *arg)
{
    if (name == NULL || name[0] != '-')
        return;
    if (arg[1] == '-') {
        const char *equals = strchr(arg, '=');
        size_t len = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
        if (strncmp(name, arg, len) == 0)
            add_match(m, option, flags, name, equals != NULL ? equals + 1 : NULL);
    } else if (strlen(name) == 2 && name[1] == arg[1]) {
        add_match(m, option, flags, name, arg + 2);
    } else if (strncmp(name, arg, strlen(arg)) == 0) {
        add_match(m, option, flags, name, NULL);
    }
}

static int looks_negative(const char *s)
{
    if (*s++ != '-')
        return 0;
    size_t before = strspn(s, "0123456789");
    if (s[before] == '\0')
        return before > 0;
    return s[before] == '.' && s[before + 1] != '\0' && s[before + 1 + strspn(s + before + 1, "0123456789")] == '\0';
}

/* Fills *a; returns -1, or the exit status of an ambiguous option. */
static int classify(const struct parser *p, const char *text, struct arg *a)
{
    const struct command *c = p->command;
    const struct cli_option *o;
    *a = (struct arg){ARG_VALUE, NOT_FOUND, NULL};
    if (text[0] != '-' || text[1] == '\0')
        return -1;
    a->kind = ARG_OPTION;
    a->option = find_exact(c, text, strlen(text));
    if (a->option != NOT_FOUND)
        return -1;
    const char *equals = strchr(text, '=');
    if (equals != NULL) {
        a->option = find_exact(c, text, (size_t)(equals - text));
        a->explicit = equals + 1;
        if (a->option != NOT_FOUND)
            return -1;
        a->explicit = NULL;
    }
    struct matches m = {.option = NOT_FOUND};
    try_match(&m, HELP, 0, "-h", text);
    try_match(&m, HELP, 0, "--help", text);
    for (size_t i = 0; (o = cli_row(c, i)) != NULL; i++) {
        try_match(&m, (int)i, o->flags, o->name, text);
        try_match(&m, (int)i, o->flags, o->alias, text);
    }
    if (m.n == 1) {
        a->option = m.option;
        a->explicit = m.explicit;
    } else if (m.n_known == 1) {
        a->option = m.known;
        a->explicit = m.known_explicit;
    } else if (m.n > 1) {
        return cli_usage_error(c, p->prog, NULL, "ambiguous option: %s could match %s", text, m.names);
    } else if (looks_negative(text) || strchr(text, ' ') != NULL) {
        a->kind = ARG_VALUE;
    }
    return -1;
}

/* Values ------------------------------------------------------------------- */

int cli_read_integer(const char *text, int *negative, uint64_t *magnitude, int *overflow)
{
    int digits = 0;
    *magnitude = 0;
    *overflow = 0;
    while (isspace((unsigned char)*text))
        text++;
    *negative = *text == '-';
    if (*text == '-' || *text == '+')
        text++;
    for (; isdigit((unsigned char)*text) || (*text == '_' && digits && isdigit((unsigned char)text[1])); text++) {
        if (*text == '_')
            continue;
        unsigned d = (unsigned)(*text - '0');
        if (*magnitude > (UINT64_MAX - d) / 10)
            *overflow = 1;
        *magnitude = *magnitude * 10 + d;
        digits = 1;
    }
    while (isspace((unsigned char)*text))
        text++;
    return digits && *text == '\0';
}

static int read_double(const char *text, double *out)
{
    char *end;
    while (isspace((unsigned char)*text))
        text++;
    /* strtod also reads hexadecimal, float() does not. */
    if (*text == '\0' || strpbrk(text, "xX(") != NULL)
        return 0;
    *out = strtod(text, &end);
    while (isspace((unsigned char)*end))
        end++;
    return *end == '\0';
}

static int range_error(const struct parser *p, const struct cli_option *o, const char *value)
{
    char text[128];
    tool_fit_text(text, sizeof text, value);
    if (o->min != NULL && o->max != NULL)
        return cli_usage_error(p->command, p->prog, o->name, "must be from %s to %s, but is %s", o->min, o->max, text);
    if (o->min != NULL)
        return cli_usage_error(p->command, p->prog, o->name, "must be at least %s, but is %s", o->min, text);
    return cli_usage_error(p->command, p->prog, o->name, "must be at most %s, but is %s", o->max, text);
}

static int type_error(const struct parser *p, const struct cli_option *o, const char *type, const char *text)
{
    char shown[512];
    return cli_usage_error(p->command, p->prog, o->name, "invalid %s value: %s", type, show(text, shown, sizeof shown));
}

static int in_range(const struct cli_option *o, double value)
{
    return (o->min == NULL || value >= strtod(o->min, NULL)) && (o->max == NULL || value <= strtod(o->max, NULL));
}

static int take_integer(const struct parser *p, const struct cli_option *o, const char *text, struct cli_value *v)
{
    int negative, overflow;
    uint64_t magnitude;
    if (!cli_read_integer(text, &negative, &magnitude, &overflow))
        return type_error(p, o, "int", text);
    if (o->type == CLI_NATURAL) {
        unsigned long long most = o->max != NULL ? strtoull(o->max, NULL, 10) : UINT64_MAX;
        if (overflow || (negative && magnitude > 0) || magnitude > most) {
            char shown[128];
            tool_fit_text(shown, sizeof shown, text);
            return cli_usage_error(p->command, p->prog, o->name, "must be from 0 to %llu, but is %s", most, shown);
        }
        v->natural = magnitude;
        return -1;
    }
    if (overflow || magnitude > (uint64_t)INT64_MAX) {
        char shown[128];
        if ((negative ? o->min : o->max) != NULL)
            return range_error(p, o, text);
        tool_fit_text(shown, sizeof shown, text);
        return cli_usage_error(p->command, p->prog, o->name, "too %s: %s does not fit into 64 bits",
                               negative ? "small" : "large", shown);
    }
    v->integer = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return in_range(o, (double)v->integer) ? -1 : range_error(p, o, text);
}

static int take_float(const struct parser *p, const struct cli_option *o, const char *text, struct cli_value *v)
{
    if (!read_double(text, &v->number))
        return type_error(p, o, "float", text);
    if (!isfinite(v->number))
        return cli_usage_error(p->command, p->prog, o->name, "must be a finite number, but is %s", text);
    return in_range(o, v->number) ? -1 : range_error(p, o, text);
}

static int take_object(const struct parser *p, const struct cli_option *o, const char *text)
{
    cJSON *json = cJSON_ParseWithOpts(text, NULL, 1);
    int is_object = cJSON_IsObject(json);
    int is_json = json != NULL;
    cJSON_Delete(json);
    if (!is_json)
        return type_error(p, o, "loads", text);
    if (!is_object)
        return cli_usage_error(p->command, p->prog, o->name, "must be a JSON object, but is %s", text);
    return -1;
}

static int take_choice(const struct parser *p, const struct cli_option *o, const char *text)
{
    char list[512] = "", shown[512];
    for (size_t i = 0; o->choices[i] != NULL; i++) {
        if (strcmp(o->choices[i], text) == 0)
            return -1;
        size_t k = strlen(list);
        snprintf(list + k, sizeof list - k, "%s'%s'", i > 0 ? ", " : "", o->choices[i]);
    }
    return cli_usage_error(p->command, p->prog, o->name, "invalid choice: %s (choose from %s)",
                           show(text, shown, sizeof shown), list);
}

static int is_false(const char *s)
{
    static const char word[] = "false";
    size_t n = strlen(s);
    if (n != 1 && n != 5)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (tolower((unsigned char)s[i]) != word[i])
            return 0;
    }
    return 1;
}

/* An option of our own knows what it is given; mlx-lm's take all but "false" and "f" as true. */
static int take_bool(const struct parser *p, const struct cli_option *o, const char *text, struct cli_value *v)
{
    static const char *const words[] = {"false", "f", "no", "off", "0", "true", "t", "yes", "on", "1"};
    enum { N = sizeof words / sizeof *words };
    int i = 0;
    v->truth = !is_false(text);
    if (!(o->flags & CLI_EXTRA))
        return -1;
    while (i < N && strcasecmp(text, words[i]) != 0)
        i++;
    v->truth = i >= N / 2;
    return i < N ? -1 : cli_usage_error(p->command, p->prog, o->name, "must be true or false, but is %s", text);
}

/* Converts text into *v by the row's type; -1, or the exit status. */
static int take_value(const struct parser *p, const struct cli_option *o, const char *text, struct cli_value *v)
{
    v->text = text;
    switch (o->type) {
    case CLI_INT:
    case CLI_NATURAL:
        return take_integer(p, o, text, v);
    case CLI_FLOAT:
        return take_float(p, o, text, v);
    case CLI_BOOL:
        return take_bool(p, o, text, v);
    case CLI_OBJECT:
        return take_object(p, o, text);
    case CLI_CHOICE:
        return take_choice(p, o, text);
    case CLI_FLAG:
    case CLI_TEXT:
    case CLI_TEXTS:
        break;
    }
    return -1;
}

/* One more of an option that collects. */
static void repeat(struct cli_value *v, const char *text)
{
    v->repeated = tool_grow(v->repeated, v->n_items + 1, sizeof *v->repeated);
    v->repeated[v->n_items++] = text;
    v->items = v->repeated;
}

/* The walk over the arguments ---------------------------------------------- */

/* Option at argument *i; moves *i behind its values. -1, or the exit status. */
static int take_option(struct parser *p, int *i)
{
    const struct arg *a = &p->args[*i];
    char shown[512];
    int count = 0;
    (*i)++;
    if (a->option == NOT_FOUND) {
        p->extras[p->n_extras++] = p->argv[*i - 1];
        return -1;
    }
    if (a->option == HELP) {
        if (a->explicit != NULL) {
            cli_print_usage(p->command, p->prog, 1);
            fprintf(stderr, "%s: error: argument -h/--help: ignored explicit argument %s\n", p->prog,
                    show(a->explicit, shown, sizeof shown));
            return 2;
        }
        cli_print_help(p->command, p->prog);
        return out_finish(0);
    }
    const struct cli_option *o = cli_row(p->command, (size_t)a->option);
    struct cli_value *v = &p->values[a->option];
    v->given = 1;
    if (o->type == CLI_FLAG) {
        if (a->explicit != NULL)
            return cli_usage_error(p->command, p->prog, o->name, "ignored explicit argument %s",
                                   show(a->explicit, shown, sizeof shown));
        v->truth = 1;
        return -1;
    }
    if (a->explicit != NULL && (o->flags & CLI_REPEAT)) {
        repeat(v, a->explicit);
        return take_value(p, o, a->explicit, v);
    }
    if (a->explicit != NULL) {
        v->text = a->explicit;
        v->items = &v->text;
        v->n_items = 1;
        return take_value(p, o, a->explicit, v);
    }
    while (*i + count < p->n && p->args[*i + count].kind == ARG_VALUE && (o->type == CLI_TEXTS || count < 1))
        count++;
    if (count == 0 && (o->flags & CLI_NONE)) {
        v->n_items = 0;
        return -1;
    }
    if (count == 0)
        return cli_usage_error(p->command, p->prog, o->name, "expected %s",
                               o->type == CLI_TEXTS ? "at least one argument" : "one argument");
    if (o->flags & CLI_REPEAT) {
        repeat(v, p->argv[*i]);
    } else {
        v->items = (const char *const *)&p->argv[*i];
        v->n_items = (size_t)count;
    }
    *i += count;
    return take_value(p, o, p->argv[*i - count], v);
}

/* "error: --x is not supported yet" for the first given option of that kind. */
static int refuse_later(const struct parser *p)
{
    const struct cli_option *o;
    for (size_t i = 0; (o = cli_row(p->command, i)) != NULL; i++) {
        if ((o->flags & CLI_LATER) && p->values[i].given) {
            out_error("%s is not supported yet", o->name);
            return 2;
        }
    }
    return -1;
}

static int check_required(const struct parser *p)
{
    const struct cli_option *o;
    char list[512] = "", label[128];
    for (size_t i = 0; (o = cli_row(p->command, i)) != NULL; i++) {
        if (!(o->flags & CLI_REQUIRED) || p->values[i].given)
            continue;
        size_t k = strlen(list);
        option_label(o, label, sizeof label);
        snprintf(list + k, sizeof list - k, "%s%s", k > 0 ? ", " : "", label);
    }
    if (list[0] != '\0')
        return cli_usage_error(p->command, p->prog, NULL, "the following arguments are required: %s", list);
    if (p->n_extras == 0)
        return -1;
    cli_print_usage(p->command, p->prog, 1);
    fprintf(stderr, "%s: error: unrecognized arguments:", p->prog);
    for (int i = 0; i < p->n_extras; i++)
        fprintf(stderr, " %s", p->extras[i]);
    fputc('\n', stderr);
    return 2;
}

static int next_positional(const struct parser *p)
{
    const struct cli_option *o;
    for (size_t i = 0; (o = cli_row(p->command, i)) != NULL; i++) {
        if (is_positional(o) && !p->values[i].given)
            return (int)i;
    }
    return NOT_FOUND;
}

static int walk(struct parser *p)
{
    for (int i = 0; i < p->n;) {
        int row = next_positional(p), status = -1;
        if (p->args[i].kind == ARG_OPTION) {
            status = take_option(p, &i);
        } else if (row != NOT_FOUND && p->args[i].kind == ARG_VALUE) {
            p->values[row].given = 1;
            status = take_value(p, cli_row(p->command, (size_t)row), p->argv[i++], &p->values[row]);
            if (i < p->n && p->args[i].kind == ARG_DASHES)
                i++;
        } else if (row != NOT_FOUND && i + 1 < p->n) {
            i++; /* "--" before a positional argument */
        } else {
            p->extras[p->n_extras++] = p->argv[i++];
        }
        if (status >= 0)
            return status;
    }
    int status = refuse_later(p);
    return status >= 0 ? status : check_required(p);
}

static int set_defaults(const struct parser *p)
{
    const struct cli_option *o;
    for (size_t i = 0; (o = cli_row(p->command, i)) != NULL; i++) {
        memset(&p->values[i], 0, sizeof p->values[i]);
        int status = o->fallback != NULL ? take_value(p, o, o->fallback, &p->values[i]) : -1;
        if (status >= 0)
            return status;
    }
    return -1;
}

int cli_parse(const struct command *c, const char *prog, int n, char **argv, struct cli_value *values)
{
    struct parser p = {c, prog, n, argv, NULL, values, NULL, 0};
    int status = set_defaults(&p), after_dashes = 0;
    p.args = tool_alloc((size_t)n, sizeof *p.args);
    p.extras = tool_alloc((size_t)n, sizeof *p.extras);
    for (int i = 0; i < n && status < 0; i++) {
        if (!after_dashes && strcmp(argv[i], "--") == 0) {
            p.args[i].kind = ARG_DASHES;
            after_dashes = 1;
        } else if (after_dashes) {
            p.args[i].kind = ARG_VALUE;
        } else {
            status = classify(&p, argv[i], &p.args[i]);
        }
    }
    if (status < 0)
        status = walk(&p);
    tool_free(p.args);
    tool_free(p.extras);
    return status;
}
