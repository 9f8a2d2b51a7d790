/* Running a command, alone or as the part of a group that the first argument
 * names; usage, help and errors of groups are those of argparse's subparsers. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "out.h"

enum { NAMES_MAX = 200 };

/* "convert,eval" or, with quotes, "'convert', 'eval'". */
static void part_names(const struct command_group *g, const char *quote, const char *between, char out[NAMES_MAX])
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; g->parts[i] != NULL; i++, n = strlen(out))
        snprintf(out + n, NAMES_MAX - n, "%s%s%s%s", n > 0 ? between : "", quote, g->parts[i]->name, quote);
    for (size_t i = 0; g->later[i] != NULL; i++, n = strlen(out))
        snprintf(out + n, NAMES_MAX - n, "%s%s%s%s", n > 0 ? between : "", quote, g->later[i], quote);
}

static int part_error(const struct command_group *g, const char *prog, const char *what, const char *name)
{
    char names[NAMES_MAX], *clean = tool_clean_text(name, 1);
    part_names(g, "", ",", names);
    out_flush();
    fprintf(stderr, "usage: %s [-h] {%s} ...\n%s: error: %s", prog, names, prog, what);
    part_names(g, "'", ", ", names);
    if (clean != NULL)
        fprintf(stderr, "'%s' (choose from %s)", clean, names);
    fputc('\n', stderr);
    tool_free(clean);
    return 2;
}

static int print_parts(const struct command_group *g, const char *prog)
{
    char names[NAMES_MAX];
    part_names(g, "", ",", names);
    out_print("usage: %s [-h] {%s} ...\n\n%s\n\ncommands:\n", prog, names, g->summary);
    for (size_t i = 0; g->parts[i] != NULL; i++)
        out_print("  %-22s%s\n", g->parts[i]->name, g->parts[i]->summary);
    for (size_t i = 0; g->later[i] != NULL; i++)
        out_print("  %-22s(not supported yet)\n", g->later[i]);
    out_print("\noptions:\n  %-22s%s\n", "-h, --help", "show this help message and exit");
    return out_finish(0);
}

int cli_run_group(const struct command_group *g, const char *prog, int n, char **argv)
{
    char name[128];
    if (n == 0)
        return part_error(g, prog, "the following arguments are required: command", NULL);
    if (strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "--help") == 0)
        return print_parts(g, prog);
    for (size_t i = 0; g->parts[i] != NULL; i++) {
        if (strcmp(g->parts[i]->name, argv[0]) == 0) {
            snprintf(name, sizeof name, "%s %s", prog, argv[0]);
            return cli_run(g->parts[i], name, n - 1, argv + 1);
        }
    }
    for (size_t i = 0; g->later[i] != NULL; i++) {
        if (strcmp(g->later[i], argv[0]) == 0) {
            out_error("%s %s is not supported yet", g->name, argv[0]);
            return 2;
        }
    }
    return part_error(g, prog, "argument command: invalid choice: ", argv[0]);
}

int cli_run(const struct command *c, const char *prog, int n, char **argv)
{
    struct cli_value values[CLI_MAX_OPTIONS] = {0};
    int status = cli_parse(c, prog, n, argv, values);
    if (status < 0)
        status = out_finish(c->run(prog, values));
    for (size_t i = 0; cli_row(c, i) != NULL; i++)
        tool_free(values[i].repeated);
    return status;
}
