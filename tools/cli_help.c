/* What the option tables say, as usage line, help text and manual page. The
 * first two are laid out as argparse does it. */
#include "cli.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "out.h"

enum { HELP_COLUMN = 24, MIN_HELP_WIDTH = 11 };

/* Prints to one of the two streams. */
static void put(int to_stderr, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (to_stderr)
        fputs(text, stderr);
    else
        out_write(text, strlen(text));
}

static size_t line_width(void)
{
    const char *s = getenv("COLUMNS");
    long n = s != NULL ? strtol(s, NULL, 10) : 0;
    return n > 20 && n < 1000 ? (size_t)n - 2 : 78;
}

const char *cli_metavar(const struct cli_option *o, char *out, size_t n)
{
    size_t k = 0;
    out[0] = '\0';
    if (o->type == CLI_FLAG)
        return out;
    if (o->type == CLI_CHOICE) {
        for (size_t i = 0; o->choices[i] != NULL; i++) {
            snprintf(out + k, n - k, "%s%s", i > 0 ? "," : "{", o->choices[i]);
            k = strlen(out);
        }
        snprintf(out + k, n - k, "}");
        return out;
    }
    const char *p = o->name;
    while (*p == '-')
        p++;
    for (; *p != '\0' && k + 1 < n; p++)
        out[k++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    out[k] = '\0';
    return out;
}

/* "--extra-eos-token EXTRA_EOS_TOKEN [EXTRA_EOS_TOKEN ...]" */
static void with_value(const struct cli_option *o, const char *name, char *out, size_t n)
{
    char meta[128];
    cli_metavar(o, meta, sizeof meta);
    if (o->type == CLI_FLAG)
        snprintf(out, n, "%s", name);
    else if (o->type == CLI_TEXTS)
        snprintf(out, n, o->flags & CLI_NONE ? "%s [%s ...]" : "%s %s [%s ...]", name, meta, meta);
    else
        snprintf(out, n, "%s %s", name, meta);
}

static void usage_part(const struct cli_option *o, char *out, size_t n)
{
    char text[400];
    if (o->name[0] != '-') {
        snprintf(out, n, o->flags & CLI_REQUIRED ? "%s" : "[%s]", o->name);
        return;
    }
    with_value(o, o->name, text, sizeof text);
    if (o->flags & CLI_REQUIRED)
        snprintf(out, n, "%s", text);
    else
        snprintf(out, n, "[%s]", text);
}

/* Positional arguments come last; -1 where there is no such part. */
static const struct cli_option *usage_row(const struct command *c, size_t i)
{
    const struct cli_option *o;
    for (int positional = 0; positional < 2; positional++) {
        for (size_t k = 0; (o = cli_row(c, k)) != NULL; k++) {
            if ((o->name[0] != '-') == positional && i-- == 0)
                return o;
        }
    }
    return NULL;
}

void cli_print_usage(const struct command *c, const char *prog, int to_stderr)
{
    const struct cli_option *o;
    char part[500];
    size_t indent = strlen("usage: ") + strlen(prog) + 1, width = line_width();
    size_t column = indent + strlen("[-h]");
    put(to_stderr, "usage: %s [-h]", prog);
    for (size_t i = 0; (o = usage_row(c, i)) != NULL; i++) {
        usage_part(o, part, sizeof part);
        if (column + 1 + strlen(part) > width) {
            put(to_stderr, "\n%*s%s", (int)indent, "", part);
            column = indent + strlen(part);
        } else {
            put(to_stderr, " %s", part);
            column += 1 + strlen(part);
        }
    }
    put(to_stderr, "\n");
}

/* Words of text in lines, the first starting at `column`, all indented. */
static void put_wrapped(const char *text, size_t column, size_t indent, size_t width)
{
    size_t room = width > indent + MIN_HELP_WIDTH ? width : indent + MIN_HELP_WIDTH;
    int first = 1;
    out_print("%*s", (int)(indent - column), "");
    column = indent;
    while (*text != '\0') {
        size_t n = strcspn(text, " ");
        if (!first && column + 1 + n > room) {
            out_print("\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            out_print(" ");
            column++;
        }
        out_write(text, n);
        column += n;
        first = 0;
        text += n;
        text += strspn(text, " ");
    }
    out_print("\n");
}

/* The row's help with its default and range. */
static void help_text(const struct cli_option *o, char *out, size_t n)
{
    char range[128] = "";
    if (o->flags & CLI_LATER) {
        snprintf(out, n, "%s (not supported yet)", o->help);
        return;
    }
    if (o->min != NULL && o->max != NULL)
        snprintf(range, sizeof range, "%s to %s", o->min, o->max);
    else if (o->min != NULL)
        snprintf(range, sizeof range, "at least %s", o->min);
    else if (o->max != NULL)
        snprintf(range, sizeof range, "at most %s", o->max);
    if (o->fallback == NULL && range[0] == '\0')
        snprintf(out, n, "%s", o->help);
    else
        snprintf(out, n, "%s (%s%s%s%s)", o->help, range, range[0] != '\0' && o->fallback != NULL ? "; " : "",
                 o->fallback != NULL ? "default: " : "", o->fallback != NULL ? o->fallback : "");
}

static void put_entry(const char *names, const char *help)
{
    size_t used = 2 + strlen(names);
    out_print("  %s", names);
    if (used > HELP_COLUMN - 2) {
        out_print("\n");
        used = 0;
    }
    put_wrapped(help, used, HELP_COLUMN, line_width());
}

void cli_print_help(const struct command *c, const char *prog)
{
    const struct cli_option *o;
    char names[900], help[1200], one[400];
    int positional = 0;
    cli_print_usage(c, prog, 0);
    out_print("\n");
    put_wrapped(c->summary, 0, 0, line_width());
    if (c->about != NULL) {
        out_print("\n");
        put_wrapped(c->about, 0, 0, line_width());
    }
    for (size_t i = 0; (o = cli_row(c, i)) != NULL; i++) {
        if (o->name[0] == '-')
            continue;
        out_print("%s", positional++ == 0 ? "\npositional arguments:\n" : "");
        put_entry(o->name, o->help);
    }
    out_print("\noptions:\n");
    put_entry("-h, --help", "show this help message and exit");
    for (size_t i = 0; (o = cli_row(c, i)) != NULL; i++) {
        if (o->name[0] != '-')
            continue;
        with_value(o, o->name, names, sizeof names);
        if (o->alias != NULL) {
            with_value(o, o->alias, one, sizeof one);
            size_t k = strlen(names);
            snprintf(names + k, sizeof names - k, ", %s", one);
        }
        help_text(o, help, sizeof help);
        put_entry(names, help);
    }
}

/* Manual page -------------------------------------------------------------- */

/* Text for troff: hyphens that can be copied, no accidental requests. */
static void put_roff(const char *text)
{
    if (*text == '.' || *text == '\'')
        out_print("\\&");
    for (; *text != '\0'; text++) {
        if (*text == '-')
            out_print("\\-");
        else if (*text == '\\')
            out_print("\\e");
        else
            out_write(text, 1);
    }
}

static void put_man_option(const struct cli_option *o)
{
    char meta[128], help[1200];
    cli_metavar(o, meta, sizeof meta);
    out_print(".TP\n\\fB");
    put_roff(o->name);
    if (o->alias != NULL) {
        out_print("\\fR, \\fB");
        put_roff(o->alias);
    }
    out_print("\\fR");
    if (o->type != CLI_FLAG && o->name[0] == '-') {
        out_print(" \\fI");
        put_roff(meta);
        out_print("\\fR%s", o->type == CLI_TEXTS ? " ..." : "");
    }
    out_print("\n");
    help_text(o, help, sizeof help);
    put_roff(help);
    out_print("\n");
}

static void put_man_models(void)
{
    out_print(".SH MODELS BY NAME\n");
    out_print("A model that is not a path is \\fIorg\\fB/\\fIname\\fR or \\fIorg\\fB/\\fIname\\fB@\\fIrevision\\fR; "
              "of a repository of\nGGUF files \\fIorg\\fB/\\fIname\\fB:\\fIFILE\\fR or "
              "\\fIorg\\fB/\\fIname\\fB:\\fIFORMAT\\fR, as in :Q4_K_M. What the cache lacks is\n"
              "fetched into it, in the layout of Python's huggingface_hub. An interrupted download goes on where it\n"
              "ended.\n");
}

static void put_man_environment(void)
{
    static const struct {
        const char *names, *text;
    } rows[] = {
        {"HF_HUB_CACHE", "Folder of the cache; else hub in HF_HOME, else in $XDG_CACHE_HOME/huggingface, else in "
                         "~/.cache/huggingface."},
        {"HF_ENDPOINT", "Address of the hub (https://huggingface.co)."},
        {"TURBOLM_DATASETS_SERVER", "Address of the server of rows of data sets; by default that of the hub with "
                                    "datasets-server. before its host."},
        {"HF_TOKEN", "Access token; else the file HF_TOKEN_PATH, else token in HF_HOME. It is sent to the hub and to "
                     "the server of rows alone."},
        {"HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE", "1: use the cache alone."},
        {"HF_HUB_ETAG_TIMEOUT, HF_HUB_DOWNLOAD_TIMEOUT", "Seconds to wait for an answer, and for data (10)."},
        {"CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE, SSL_CERT_FILE", "Certificates to trust."},
        {"TURBOLM_CPU", "Highest instruction set to use, for tests; one that is not there is refused."},
        {"COLUMNS", "Width of help texts."},
        {"NO_COLOR", "Not empty: no colours in chat."},
        {"XDG_STATE_HOME", "Where chat keeps its history, by default ~/.local/state."},
    };
    out_print(".SH ENVIRONMENT\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        out_print(".TP\n\\fB");
        put_roff(rows[i].names);
        out_print("\\fR\n");
        put_roff(rows[i].text);
        out_print("\n");
    }
}

/* before: the name of its group and a space, or nothing. */
static void put_man_command(const struct command *c, const char *before)
{
    const struct cli_option *o;
    out_print(".SS %s%s\n", before, c->name);
    put_roff(c->summary);
    out_print("\n");
    if (c->about != NULL) {
        out_print(".PP\n");
        put_roff(c->about);
        out_print("\n");
    }
    for (size_t i = 0; (o = cli_row(c, i)) != NULL; i++)
        put_man_option(o);
}

static void put_man_group(const struct command_group *g)
{
    char name[64];
    snprintf(name, sizeof name, "%s ", g->name);
    for (size_t i = 0; g->parts[i] != NULL; i++)
        put_man_command(g->parts[i], name);
    for (size_t i = 0; g->later[i] != NULL; i++)
        out_print(".SS %s%s\nNot supported yet.\n", name, g->later[i]);
}

void cli_print_man(const struct command *const *commands, size_t n, const struct command_group *const *groups,
                   size_t n_groups)
{
    out_print(".\\\" Made by: turbolm \\-\\-man\n");
    out_print(".TH TURBOLM 1 \"\" \"turbolm %s\" \"User Commands\"\n", tlm_version());
    out_print(".SH NAME\nturbolm \\- run language models\n.SH SYNOPSIS\n");
    out_print(".B turbolm\n.I command\n[\\fIoptions\\fR]\n.br\n.B turbolm \\-\\-version\n.br\n");
    out_print(".B turbolm\n[\\fIcommand\\fR]\n.B \\-\\-help\n.SH DESCRIPTION\n");
    out_print("Runs language models from Hugging Face and MLX directories and from GGUF files. Called by the name\n"
              "\\fBmlx_lm.\\fIcommand\\fR, the program is that command. Long options may be cut to a unique prefix.\n");
    out_print(".SH COMMANDS\n");
    for (size_t c = 0; c < n; c++)
        put_man_command(commands[c], "");
    for (size_t g = 0; g < n_groups; g++)
        put_man_group(groups[g]);
    put_man_models();
    out_print(".SH EXIT STATUS\n");
    out_print("0: done. 1: failed, with a line on standard error. 2: wrong usage, or not supported yet. 130: ended by\n"
              "Ctrl\\-C. 141: the reader of standard output went away.\n");
    put_man_environment();
}
