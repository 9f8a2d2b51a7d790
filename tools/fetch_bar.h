/* Progress on standard error: of work on bytes, and of fetching a model, one
 * line that is redrawn on a terminal, else one line for each file. */
#ifndef TOOLS_FETCH_BAR_H
#define TOOLS_FETCH_BAR_H

#include <turbolm/turbolm.h>

/* A line with a bar, rate and time left, redrawn on a terminal. */
struct meter {
    int shown;
    double drawn;
    double rate; /* bytes a second, of the last while */
    double rate_time;
    uint64_t rate_bytes;
};

void meter_start(struct meter *m, uint64_t done);
/* Draws it when the last time is long enough ago, or last is set. tail: what stands behind the time left. */
void meter_show(struct meter *m, const char *label, uint64_t done, uint64_t total, const char *tail, int last);
/* A whole line of text instead of the bar. */
void meter_print(struct meter *m, const char *text);
void meter_end(struct meter *m);
/* Takes the line away. */
void meter_clear(struct meter *m);

struct fetch_bar {
    const char *model;
    int terminal;
    struct meter meter;
};

void fetch_bar_init(struct fetch_bar *b, const char *model);
/* A tlm_hub_progress_fn on a struct fetch_bar; stops after Ctrl-C. */
int fetch_bar_show(const struct tlm_hub_progress *p, void *bar);
void fetch_bar_end(struct fetch_bar *b);

/* "1.2 GB" */
void format_bytes(char *out, size_t n, double bytes);

#endif
