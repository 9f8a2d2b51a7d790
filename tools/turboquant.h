/* Shared by the files of the turboquant command only. */
#ifndef TOOLS_TURBOQUANT_H
#define TOOLS_TURBOQUANT_H

#include <stddef.h>

#include "cli.h"

/* A text in English for measuring: written for this program, of about 1,200 tokens. */
extern const char *const turboquant_text[];
extern const size_t turboquant_text_parts;

extern const struct command turboquant_convert_command;
extern const struct command turboquant_eval_command;
extern const struct command turboquant_generate_command;

struct plot_point {
    const char *name;
    double x, y;
};

/* 0 when gnuplot is there and path can be written, which leaves no file behind; else 1 after a message. */
int plot_check(const char *path);
/* A PNG file of named points, y on a logarithmic scale; points without a
 * positive y are left out. Returns 0, or 1 after a message. */
int plot_write(const char *path, const char *title, const char *x_label, const char *y_label,
               const struct plot_point *points, size_t n);

#endif
