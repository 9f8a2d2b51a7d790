/* Standard output, messages, memory and signals of the program. */
#include "out.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int write_errno;
static volatile sig_atomic_t interrupt_count;
static volatile sig_atomic_t interrupt_caught;
static void (*noticed_hook)(void);
static void (*ending_hook)(void);
static char *volatile unfinished; /* a file that is in the making */

static void log_message(enum tlm_log_level level, const char *message, void *user)
{
    (void)user;
    if (level == TLM_LOG_WARNING)
        out_warning("%s", message);
    else if (level == TLM_LOG_ERROR)
        out_error("%s", message);
}

/* Before the program ends by a signal or by exit(). */
static void at_exit(void)
{
    if (unfinished != NULL)
        unlink(unfinished);
    if (ending_hook != NULL)
        ending_hook();
}

static void on_interrupt(int number)
{
    (void)number;
    if (!interrupt_caught || interrupt_count > 0) {
        at_exit();
        _exit(EXIT_INTERRUPTED);
    }
    interrupt_count = 1;
    if (noticed_hook != NULL)
        noticed_hook();
}

static void set_handler(int number, void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART; /* an interrupted write is not a failed one */
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

/* A page of a mapped file that is no longer there: the file was shortened, or
 * its disk fails. The line is made beforehand, as a handler may not format. */
static char bus_message[1024];
static size_t bus_message_len;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        end_by_signal(number);
        return;
    }
    at_exit();
    (void)!write(STDERR_FILENO, bus_message, bus_message_len);
    _exit(1);
}

void out_name_model(const char *model)
{
    char line[sizeof bus_message - 1], name[512];
    tool_fit_text(name, sizeof name, model);
    int n = snprintf(line, sizeof line, "error: %s%sa file was shortened, or cannot be read any more, while in use",
                     name, name[0] != '\0' ? ": " : "");
    bus_message_len = 0;
    for (int i = 0; i < n; i++)
        bus_message[i] = (unsigned char)line[i] < 0x20 || line[i] == 0x7f ? '?' : line[i];
    bus_message[n] = '\n';
    bus_message_len = (size_t)n + 1;
}

static void catch_bus_errors(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

void out_init(void)
{
    /* Opened for reading: a write to what was a closed stream still fails. */
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDONLY) < 0)
            _exit(1);
    }
    if (atexit(at_exit) != 0)
        _exit(1);
    set_handler(SIGPIPE, SIG_IGN);
    set_handler(SIGXFSZ, SIG_IGN); /* a file at its limit is a failed write as well */
    set_handler(SIGINT, on_interrupt);
    out_name_model("");
    catch_bus_errors();
    tlm_log_set(log_message, NULL);
}

static void note_failure(void)
{
    if (write_errno == 0)
        write_errno = errno != 0 ? errno : EIO;
}

void out_write(const char *text, size_t len)
{
    if (write_errno == 0 && len > 0 && fwrite(text, 1, len, stdout) != len)
        note_failure();
}

void out_print(const char *fmt, ...)
{
    va_list ap;
    if (write_errno != 0)
        return;
    va_start(ap, fmt);
    if (vprintf(fmt, ap) < 0)
        note_failure();
    va_end(ap);
}

void out_flush(void)
{
    if (write_errno == 0 && fflush(stdout) != 0)
        note_failure();
}

int out_failed(void)
{
    return write_errno != 0;
}

int out_finish(int status)
{
    out_flush();
    if (write_errno == 0)
        return status;
    if (write_errno == EPIPE)
        return 128 + SIGPIPE;
    out_error("cannot write to standard output: %s", strerror(write_errno));
    return 1;
}

static void print_message(const char *kind, const char *fmt, va_list ap)
{
    char line[4096], *whole = NULL;
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    if (n >= (int)sizeof line && (whole = malloc((size_t)n + 1)) != NULL) {
        vsnprintf(whole, (size_t)n + 1, fmt, again);
        tool_fit_text(line, sizeof line, whole);
    }
    va_end(again);
    free(whole);
    for (char *p = line; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    }
    out_flush();
    fprintf(stderr, "%s: %s\n", kind, line);
}

void out_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_message("error", fmt, ap);
    va_end(ap);
}

void out_warning(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_message("warning", fmt, ap);
    va_end(ap);
}

int out_tlm_error(const struct tlm_error *e)
{
    out_error("%s", e->message[0] != '\0' ? e->message : tlm_status_name(e->status));
    return e->status == TLM_OK ? 1 : tlm_status_exit(e->status);
}

void *tool_grow(void *p, size_t n, size_t size)
{
    void *q = NULL;
    if (n == 0)
        n = 1;
    if (size <= SIZE_MAX / n)
        q = realloc(p, n * size);
    if (q == NULL) {
        out_error("out of memory");
        exit(1);
    }
    return q;
}

void *tool_alloc(size_t n, size_t size)
{
    void *p = tool_grow(NULL, n, size);
    memset(p, 0, n * size);
    return p;
}

void tool_free(void *p)
{
    free(p);
}

void tool_fit_text(char *out, size_t room, const char *text)
{
    static const char dots[] = "...";
    size_t len = strlen(text);
    if (len < room) {
        memcpy(out, text, len + 1);
        return;
    }
    size_t head = (room - sizeof dots) / 2, tail = room - sizeof dots - head;
    while (head > 0 && ((unsigned char)text[head] & 0xC0) == 0x80)
        head--;
    while (tail > 0 && ((unsigned char)text[len - tail] & 0xC0) == 0x80)
        tail--;
    memcpy(out, text, head);
    memcpy(out + head, dots, sizeof dots - 1);
    memcpy(out + head + sizeof dots - 1, text + len - tail, tail + 1);
}

/* Length of the valid UTF-8 character at p, or 0. Table 3-7 of the Unicode
 * standard: the second byte's range depends on the first. */
static size_t utf8_char(const unsigned char *p, size_t left)
{
    unsigned low = 0x80, high = 0xBF;
    size_t need;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        need = 2;
    else if (p[0] >= 0xE0 && p[0] <= 0xEF)
        need = 3;
    else if (p[0] >= 0xF0 && p[0] <= 0xF4)
        need = 4;
    else
        return 0;
    if (p[0] == 0xE0)
        low = 0xA0;
    else if (p[0] == 0xED)
        high = 0x9F;
    else if (p[0] == 0xF0)
        low = 0x90;
    else if (p[0] == 0xF4)
        high = 0x8F;
    if (left < need || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < need; i++) {
        if (p[i] < 0x80 || p[i] > 0xBF)
            return 0;
    }
    return need;
}

size_t tool_utf8_valid(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len) {
        size_t n = utf8_char((const unsigned char *)text + i, len - i);
        if (n == 0)
            break;
        i += n;
    }
    return i;
}

char *tool_clean_text(const char *text, int plain)
{
    if (text == NULL)
        return NULL;
    size_t len = strlen(text), n = 0;
    char *out = tool_alloc(len + 1, 3);
    for (size_t i = 0; i < len;) {
        size_t k = utf8_char((const unsigned char *)text + i, len - i);
        if (k == 0) {
            memcpy(out + n, "\xEF\xBF\xBD", 3);
            n += 3;
            i++;
            continue;
        }
        if (plain && ((unsigned char)text[i] < 0x20 || text[i] == 0x7f))
            out[n++] = '?';
        else
            for (size_t j = 0; j < k; j++)
                out[n++] = text[i + j];
        i += k;
    }
    return out;
}

void catch_interrupt(void)
{
    interrupt_caught = 1;
}

void release_interrupt(void)
{
    interrupt_caught = 0;
}

int interrupted(void)
{
    return interrupt_count > 0;
}

void forget_interrupt(void)
{
    interrupt_count = 0;
}

void set_signal_hooks(void (*noticed)(void), void (*ending)(void))
{
    noticed_hook = noticed;
    ending_hook = ending;
}

void end_by_signal(int number)
{
    at_exit();
    signal(number, SIG_DFL);
    raise(number);
}

static void handle_endings(void (*handler)(int))
{
    static const int numbers[] = {SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            set_handler(numbers[i], handler);
    }
}

void catch_endings(void)
{
    handle_endings(end_by_signal);
}

static volatile sig_atomic_t terminated_by;

static void on_termination(int number)
{
    terminated_by = number;
}

void catch_terminations(void)
{
    handle_endings(on_termination);
}

int terminated(void)
{
    return terminated_by != 0;
}

void end_if_terminated(void)
{
    if (terminated_by)
        end_by_signal(terminated_by);
}

const char *begin_unfinished(const char *path)
{
    size_t n = strlen(path) + 32;
    char *name = tool_alloc(n, 1);
    snprintf(name, n, "%s.%ld.tmp", path, (long)getpid());
    catch_endings();
    unfinished = name;
    return name;
}

void end_unfinished(void)
{
    char *name = unfinished;
    unfinished = NULL;
    tool_free(name);
}

double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
