/* Command-line options as rows of a table: parsing, help and the manual page.
 *
 * Parsing follows Python's argparse, which the tools that turbolm stands in
 * for are written with: --x v, --x=v, unique prefixes, -pVALUE, the last
 * repetition wins, "--" ends the options, negative numbers are values, and
 * the messages are argparse's. */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H

#include <stddef.h>
#include <stdint.h>

#include "out.h"

enum cli_type {
    CLI_FLAG,    /* no value */
    CLI_TEXT,    /* any text */
    CLI_TEXTS,   /* one or more texts */
    CLI_INT,     /* int64_t */
    CLI_NATURAL, /* uint64_t */
    CLI_FLOAT,   /* finite double */
    CLI_BOOL,    /* only "false" and "f", in any case, are false; with CLI_EXTRA: true, false and the like, no others */
    CLI_OBJECT,  /* the text of a JSON object */
    CLI_CHOICE   /* one of `choices` */
};

enum cli_option_flags {
    CLI_REQUIRED = 1,
    CLI_LATER = 2,  /* refused: "error: --x is not supported yet" */
    CLI_EXTRA = 4,  /* mlx-lm does not have it: never makes a prefix of one of its options ambiguous */
    CLI_REPEAT = 8, /* of CLI_TEXT: all repetitions count, in items */
    CLI_NONE = 16   /* of CLI_TEXTS: no text is fine too */
};

struct cli_option {
    const char *name;  /* "--prompt", or "MODEL" for a positional argument */
    const char *alias; /* "-p" or NULL */
    enum cli_type type;
    unsigned flags;
    const char *fallback;       /* the default as text; NULL: none */
    const char *min, *max;      /* bounds of numbers, as text; NULL: none */
    const char *const *choices; /* NULL-terminated, for CLI_CHOICE */
    const char *help;
};

struct cli_value {
    int given;        /* by the user, not from the default */
    const char *text; /* as written; NULL without a default */
    int64_t integer;  /* CLI_INT */
    uint64_t natural; /* CLI_NATURAL */
    double number;    /* CLI_FLOAT */
    int truth;        /* CLI_BOOL, CLI_FLAG */
    const char *const *items;
    size_t n_items;        /* CLI_TEXTS, CLI_REPEAT */
    const char **repeated; /* CLI_REPEAT: what items is, owned */
};

enum { CLI_MAX_OPTIONS = 64 };

/* Several tables make one command line; values[i] belongs to rows[i]. */
struct cli_table {
    const struct cli_option *rows;
    size_t n;
};

struct command {
    const char *name;
    const char *summary;            /* one line */
    const char *about;              /* a paragraph for help and manual, or NULL */
    const struct cli_table *tables; /* ends with a row of n 0 */
    /* prog: the name for messages; values: of all tables, one after the other.
     * Returns the exit status. */
    int (*run)(const char *prog, const struct cli_value *values);
};

/* A name with commands below it, as in "turboquant eval". */
struct command_group {
    const char *name;
    const char *summary;                /* one line */
    const struct command *const *parts; /* ends with NULL */
    const char *const *later;           /* names of those that do not work yet, then NULL */
};

/* Parses argv[0..n) (the program's name not included) into values, which has
 * room for every row. Returns -1 to go on, else the exit status: 0 after
 * --help, 2 after a usage error or a refused option, all already printed. */
int cli_parse(const struct command *c, const char *prog, int n, char **argv, struct cli_value *values);

/* Parses and runs. Returns the exit status, standard output finished. */
int cli_run(const struct command *c, const char *prog, int n, char **argv);
/* The same with the part that argv[0] names. */
int cli_run_group(const struct command_group *g, const char *prog, int n, char **argv);

/* usage line and "prog: error: argument NAME: message" to stderr; returns 2. */
int cli_usage_error(const struct command *c, const char *prog, const char *option, const char *fmt, ...)
    TOOLS_PRINTF(4, 5);

/* Row i of all tables of a command, or NULL past the last. */
const struct cli_option *cli_row(const struct command *c, size_t i);
/* "PROMPT" for "--prompt", "{exact,fast}" for choices, "" for a flag; out has room for n bytes. */
const char *cli_metavar(const struct cli_option *o, char *out, size_t n);

/* As printed by --help. To stdout or stderr. */
void cli_print_usage(const struct command *c, const char *prog, int to_stderr);
void cli_print_help(const struct command *c, const char *prog);
void cli_print_man(const struct command *const *commands, size_t n, const struct command_group *const *groups,
                   size_t n_groups);

/* The number at the start of text as Python's int() reads it: spaces around,
 * a sign, single underscores between digits. Returns 0 when it is none;
 * *overflow is set when it does not fit. */
int cli_read_integer(const char *text, int *negative, uint64_t *magnitude, int *overflow);

#endif
