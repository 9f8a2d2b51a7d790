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

/* A rate that follows the last seconds. */
static void measure(struct fetch_bar *b, const struct tlm_hub_progress *p, double now)
{
    double seconds = now - b->rate_time;
    if (seconds < 0.5)
        return;
    /* What was thrown away and fetched anew counts for nothing. */
    double last = p->done_bytes > b->rate_bytes ? (double)(p->done_bytes - b->rate_bytes) / seconds : 0;
    double weight = b->rate == 0 ? 1 : 0.25;
    b->rate += weight * (last - b->rate);
    b->rate_time = now;
    b->rate_bytes = p->done_bytes;
}

static void format_left(char *out, size_t n, const struct fetch_bar *b, const struct tlm_hub_progress *p)
{
    uint64_t left = p->total_bytes > p->done_bytes ? p->total_bytes - p->done_bytes : 0;
    if (b->rate < 1 || (double)left / b->rate > 359999) {
        snprintf(out, n, "--:-- left");
        return;
    }
    unsigned s = (unsigned)((double)left / b->rate + 0.5);
    if (s >= 3600)
        snprintf(out, n, "%u:%02u:%02u left", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, n, "%u:%02u left", s / 60, s % 60);
}

static void draw(struct fetch_bar *b, const struct tlm_hub_progress *p)
{
    enum { BAR = 24 };
    char done[32], total[32], rate[32], left[32], line[512], bar[BAR + 1];
    struct winsize size = {0};
    double part = p->total_bytes > 0 ? (double)p->done_bytes / (double)p->total_bytes : 1;
    int filled = part >= 1 ? BAR : (int)(part * BAR);
    format_bytes(done, sizeof done, (double)p->done_bytes);
    format_bytes(total, sizeof total, (double)p->total_bytes);
    format_bytes(rate, sizeof rate, b->rate);
    format_left(left, sizeof left, b, p);
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    snprintf(line, sizeof line, "%s [%s] %3d%%  %s of %s  %s/s  %s  %llu of %llu files", b->model, bar,
             (int)(part * 100), done, total, rate, left, (unsigned long long)p->files_done,
             (unsigned long long)p->files);
    /* A line that wraps could not be redrawn. */
    if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && strlen(line) >= size.ws_col)
        line[size.ws_col - 1] = '\0';
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    b->shown = 1;
}

static void print_line(struct fetch_bar *b, const char *text)
{
    fprintf(stderr, "%s%s\n", b->shown ? "\r\033[K" : "", text);
    b->shown = 0;
}

static void print_file(struct fetch_bar *b, const struct tlm_hub_progress *p)
{
    char bytes[32], line[1200];
    char *clean = tool_clean_text(p->name, 1);
    format_bytes(bytes, sizeof bytes, (double)p->name_bytes);
    snprintf(line, sizeof line, "fetched %s (%s), %llu of %llu files", clean, bytes, (unsigned long long)p->files_done,
             (unsigned long long)p->files);
    print_line(b, line);
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
    print_line(b, line);
}

int fetch_bar_show(const struct tlm_hub_progress *p, void *user)
{
    struct fetch_bar *b = user;
    double now = now_seconds();
    if (p->event == TLM_HUB_START) {
        print_start(b, p);
        b->rate_time = now;
        b->rate_bytes = p->done_bytes;
    } else if (p->event == TLM_HUB_NOTE) {
        print_line(b, p->name);
    } else if (p->event == TLM_HUB_FILE && !b->terminal) {
        print_file(b, p);
    } else if (p->files > 0 && b->terminal && (now - b->drawn >= 0.1 || p->files_done == p->files)) {
        measure(b, p, now);
        draw(b, p);
        b->drawn = now;
    }
    return interrupted();
}

void fetch_bar_end(struct fetch_bar *b)
{
    if (b->shown)
        fprintf(stderr, "\n");
    b->shown = 0;
}
