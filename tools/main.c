/* turbolm: finds the command, in the name it was called by ("mlx_lm.generate",
 * "turboquant") or in the first argument, and runs it. */
#include <stdio.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"

#define READY(name) extern const struct command name##_command;
#define GROUP(name) extern const struct command_group name##_group;
#define LATER(name)
#include "commands.def"
#undef READY
#undef GROUP
#undef LATER

static const struct command *const commands[] = {
#define READY(name) &name##_command,
#define GROUP(name)
#define LATER(name)
#include "commands.def"
#undef READY
#undef GROUP
#undef LATER
};

static const struct command_group *const groups[] = {
#define READY(name)
#define GROUP(name) &name##_group,
#define LATER(name)
#include "commands.def"
#undef READY
#undef GROUP
#undef LATER
};

static const char *const later_commands[] = {
#define READY(name)
#define GROUP(name)
#define LATER(name) #name,
#include "commands.def"
#undef READY
#undef GROUP
#undef LATER
};

enum {
    N_COMMANDS = sizeof commands / sizeof commands[0],
    N_GROUPS = sizeof groups / sizeof groups[0],
    N_LATER = sizeof later_commands / sizeof later_commands[0]
};

static void list_names(char *out, size_t n)
{
    out[0] = '\0';
    for (size_t i = 0; i < N_COMMANDS + N_GROUPS; i++) {
        size_t k = strlen(out);
        const char *name = i < N_COMMANDS ? commands[i]->name : groups[i - N_COMMANDS]->name;
        snprintf(out + k, n - k, "%s%s", i > 0 ? ", " : "", name);
    }
}

static int print_overview(void)
{
    out_print("usage: turbolm [-h] [--version] command ...\n\nRuns language models.\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        out_print("  %-22s%s\n", commands[i]->name, commands[i]->summary);
    for (size_t i = 0; i < N_GROUPS; i++)
        out_print("  %-22s%s\n", groups[i]->name, groups[i]->summary);
    out_print("\noptions:\n  %-22s%s\n  %-22s%s\n\n", "-h, --help", "show this help message and exit", "--version",
              "show version, backends and instruction sets");
    out_print("\"turbolm command --help\" shows the options of a command.\n");
    return out_finish(0);
}

static int run_command(const char *prog, const char *name, int n, char **argv)
{
    char names[256];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return cli_run(commands[i], prog, n, argv);
    }
    for (size_t i = 0; i < N_GROUPS; i++) {
        if (strcmp(groups[i]->name, name) == 0)
            return cli_run_group(groups[i], prog, n, argv);
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
        cli_print_man(commands, N_COMMANDS, groups, N_GROUPS);
        return out_finish(0);
    }
    snprintf(prog, sizeof prog, "turbolm %s", argv[1]);
    return run_command(prog, argv[1], argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    static const char prefix[] = "mlx_lm.";
    char *none[] = {(char[]){"turbolm"}, NULL};
    struct tlm_error e = {TLM_OK, ""};
    out_init();
    if (tlm_environment_check(&e) != TLM_OK)
        return out_tlm_error(&e);
    if (argc < 1) {
        argc = 1;
        argv = none;
    }
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash != NULL ? slash + 1 : argv[0];
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        return run_command(name, name + sizeof prefix - 1, argc - 1, argv + 1);
    if (strcmp(name, "turboquant") == 0)
        return run_command(name, name, argc - 1, argv + 1);
    return run_by_argument(argc, argv);
}
