/* Progress of fetching a model. */
#include "fetch_bar.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "out.h"

void format_bytes(char *out, size_t n, double bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    size_t u = 0;
    while (bytes >= 999.95 && u + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, n, "%.*f %s", u == 0 ? 0 : 1, bytes, units[u]);
}

void fetch_bar_init(struct fetch_bar *b, const char *model)
{
    *b = (struct fetch_bar){.model = model, .terminal = isatty(2)};
}

void meter_start(struct meter *m, uint64_t done)
{
    m->rate_time = now_seconds();
    m->rate_bytes = done;
}

/* A rate that follows the last seconds. */
static void measure(struct meter *m, uint64_t done, double now)
{
    double seconds = now - m->rate_time;
    if (seconds < 0.5)
        return;
    /* What was thrown away and done anew counts for nothing. */
    double last = done > m->rate_bytes ? (double)(done - m->rate_bytes) / seconds : 0;
    double weight = m->rate == 0 ? 1 : 0.25;
    m->rate += weight * (last - m->rate);
    m->rate_time = now;
    m->rate_bytes = done;
}

static void format_left(char *out, size_t n, const struct meter *m, uint64_t done, uint64_t total)
{
    uint64_t left = total > done ? total - done : 0;
    if (m->rate < 1 || (double)left / m->rate > 359999) {
        snprintf(out, n, "--:-- left");
        return;
    }
    unsigned s = (unsigned)((double)left / m->rate + 0.5);
    if (s >= 3600)
        snprintf(out, n, "%u:%02u:%02u left", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, n, "%u:%02u left", s / 60, s % 60);
}

void meter_show(struct meter *m, const char *label, uint64_t done, uint64_t total, const char *tail, int last)
{
    enum { BAR = 24 };
    char done_text[32], total_text[32], rate[32], left[32], line[512], bar[BAR + 1];
    struct winsize size = {0};
    double now = now_seconds(), part = total > 0 ? (double)done / (double)total : 1;
    if (now - m->drawn < 0.1 && !last)
        return;
    measure(m, done, now);
    m->drawn = now;
    int filled = part >= 1 ? BAR : (int)(part * BAR);
    format_bytes(done_text, sizeof done_text, (double)done);
    format_bytes(total_text, sizeof total_text, (double)total);
    format_bytes(rate, sizeof rate, m->rate);
    format_left(left, sizeof left, m, done, total);
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    snprintf(line, sizeof line, "%s [%s] %3d%%  %s of %s  %s/s  %s%s%s", label, bar, (int)(part * 100), done_text,
             total_text, rate, left, *tail != '\0' ? "  " : "", tail);
    /* A line that wraps could not be redrawn. */
    if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && strlen(line) >= size.ws_col)
        line[size.ws_col - 1] = '\0';
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    m->shown = 1;
}

void meter_clear(struct meter *m)
{
    if (m->shown)
        fprintf(stderr, "\r\033[K");
    m->shown = 0;
}

void meter_print(struct meter *m, const char *text)
{
    meter_clear(m);
    fprintf(stderr, "%s\n", text);
}

void meter_end(struct meter *m)
{
    if (m->shown)
        fprintf(stderr, "\n");
    m->shown = 0;
}

static void print_file(struct fetch_bar *b, const struct tlm_hub_progress *p)
{
    char bytes[32], line[1200];
    char *clean = tool_clean_text(p->name, 1);
    format_bytes(bytes, sizeof bytes, (double)p->name_bytes);
    snprintf(line, sizeof line, "fetched %s (%s), %llu of %llu files", clean, bytes, (unsigned long long)p->files_done,
             (unsigned long long)p->files);
    meter_print(&b->meter, line);
    tool_free(clean);
}

static void print_start(struct fetch_bar *b, const struct tlm_hub_progress *p)
{
    char total[32], done[32], line[512];
    format_bytes(total, sizeof total, (double)p->total_bytes);
    format_bytes(done, sizeof done, (double)p->done_bytes);
    if (p->done_bytes > 0)
        snprintf(line, sizeof line, "fetching %s: %llu files, %s, of which %s are here", b->model,
                 (unsigned long long)p->files, total, done);
    else
        snprintf(line, sizeof line, "fetching %s: %llu files, %s", b->model, (unsigned long long)p->files, total);
    meter_print(&b->meter, line);
}

int fetch_bar_show(const struct tlm_hub_progress *p, void *user)
{
    struct fetch_bar *b = user;
    if (p->event == TLM_HUB_START) {
        print_start(b, p);
        meter_start(&b->meter, p->done_bytes);
    } else if (p->event == TLM_HUB_NOTE) {
        meter_print(&b->meter, p->name);
    } else if (p->event == TLM_HUB_FILE && !b->terminal) {
        print_file(b, p);
    } else if (p->files > 0 && b->terminal) {
        char files[64];
        snprintf(files, sizeof files, "%llu of %llu files", (unsigned long long)p->files_done,
                 (unsigned long long)p->files);
        meter_show(&b->meter, b->model, p->done_bytes, p->total_bytes, files, p->files_done == p->files);
    }
    return interrupted();
}

void fetch_bar_end(struct fetch_bar *b)
{
    meter_end(&b->meter);
}
