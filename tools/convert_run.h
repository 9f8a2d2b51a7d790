/* One conversion for a command: fetching, progress, endings. */
#ifndef TOOLS_CONVERT_RUN_H
#define TOOLS_CONVERT_RUN_H

#include <turbolm/turbolm.h>

struct convert_run {
    struct tlm_convert_options *options; /* progress, user and base_model are set here */
    const char *model, *out;             /* as the user gave them */
    int quiet;                           /* the library's notes are not printed */
};

/* The exit status, after a message. A signal that ends the program does so here. */
int convert_run(struct convert_run *r);

#endif
