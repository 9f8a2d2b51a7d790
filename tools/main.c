/* turbolm: finds the command, in the name it was called by ("mlx_lm.generate")
 * or in the first argument, and runs it. */
#include <stdio.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"

#define READY(name) extern const struct command name##_command;
#define LATER(name)
#include "commands.def"
#undef READY
#undef LATER

static const struct command *const commands[] = {
#define READY(name) &name##_command,
#define LATER(name)
#include "commands.def"
#undef READY
#undef LATER
};

static const char *const later_commands[] = {
#define READY(name)
#define LATER(name) #name,
#include "commands.def"
#undef READY
#undef LATER
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0], N_LATER = sizeof later_commands / sizeof later_commands[0] };

static void list_names(char *out, size_t n)
{
    out[0] = '\0';
    for (size_t i = 0; i < N_COMMANDS; i++) {
        size_t k = strlen(out);
        snprintf(out + k, n - k, "%s%s", i > 0 ? ", " : "", commands[i]->name);
    }
}

static int print_overview(void)
{
    out_print("usage: turbolm [-h] [--version] command ...\n\nRuns language models.\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        out_print("  %-22s%s\n", commands[i]->name, commands[i]->summary);
    out_print("\noptions:\n  %-22s%s\n  %-22s%s\n\n", "-h, --help", "show this help message and exit", "--version",
              "show version, backends and instruction sets");
    out_print("\"turbolm command --help\" shows the options of a command.\n");
    return out_finish(0);
}

static int run_command(const char *prog, const char *name, int n, char **argv)
{
    struct cli_value values[CLI_MAX_OPTIONS];
    char names[256];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) != 0)
            continue;
        int status = cli_parse(commands[i], prog, n, argv, values);
        return status >= 0 ? status : out_finish(commands[i]->run(prog, values));
    }
    for (size_t i = 0; i < N_LATER; i++) {
        if (strcmp(later_commands[i], name) == 0) {
            out_error("%s is not supported yet", name);
            return 2;
        }
    }
    list_names(names, sizeof names);
    out_error("unknown command '%s'; the commands are: %s", name, names);
    return 2;
}

static int run_by_argument(int argc, char **argv)
{
    char names[256], prog[128];
    if (argc < 2) {
        list_names(names, sizeof names);
        out_error("a command is needed, one of: %s", names);
        return 2;
    }
    if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)
        return print_overview();
    if (strcmp(argv[1], "--version") == 0) {
        out_print("turbolm %s\n%s\n", tlm_version(), tlm_build_info());
        return out_finish(0);
    }
    if (strcmp(argv[1], "--man") == 0) {
        cli_print_man(commands, N_COMMANDS);
        return out_finish(0);
    }
    snprintf(prog, sizeof prog, "turbolm %s", argv[1]);
    return run_command(prog, argv[1], argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    static const char prefix[] = "mlx_lm.";
    char *none[] = {(char[]){"turbolm"}, NULL};
    out_init();
    if (argc < 1) {
        argc = 1;
        argv = none;
    }
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash != NULL ? slash + 1 : argv[0];
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        return run_command(name, name + sizeof prefix - 1, argc - 1, argv + 1);
    return run_by_argument(argc, argv);
}
