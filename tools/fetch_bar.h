/* Progress of fetching a model, on standard error: one line that is redrawn on
 * a terminal, else one line for each file. */
#ifndef TOOLS_FETCH_BAR_H
#define TOOLS_FETCH_BAR_H

#include <turbolm/turbolm.h>

struct fetch_bar {
    const char *model;
    int terminal, shown;
    double drawn;
    double rate; /* bytes a second, of the last while */
    double rate_time;
    uint64_t rate_bytes;
};

void fetch_bar_init(struct fetch_bar *b, const char *model);
/* A tlm_hub_progress_fn on a struct fetch_bar; stops after Ctrl-C. */
int fetch_bar_show(const struct tlm_hub_progress *p, void *bar);
/* Takes the line away. */
void fetch_bar_end(struct fetch_bar *b);

/* "1.2 GB" */
void format_bytes(char *out, size_t n, double bytes);

#endif
