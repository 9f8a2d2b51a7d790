/* Errors, messages, status names. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const struct {
    const char *text;
    int exit_code;
} status_table[] = {
#define TLM_STATUS(name, exit_code, text) [name] = {text, exit_code},
#include <turbolm/status.def>
#undef TLM_STATUS
};

enum { STATUS_COUNT = sizeof status_table / sizeof status_table[0] };

const char *tlm_status_name(enum tlm_status status)
{
    if ((unsigned)status >= STATUS_COUNT)
        return "unknown status";
    return status_table[status].text;
}

int tlm_status_exit(enum tlm_status status)
{
    if ((unsigned)status >= STATUS_COUNT)
        return 1;
    return status_table[status].exit_code;
}

/* Text out of a file may hold anything; a message stays one printable line. */
static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

/* text into out, of TLM_ERROR_MAX bytes. What is too long, mostly a name, loses its middle: the reason stands at the
 * end. Starts and ends of UTF-8 characters stay whole. */
static void fit(char *out, const char *text, size_t len)
{
    static const char dots[] = "...";
    if (len < TLM_ERROR_MAX) {
        memcpy(out, text, len + 1);
        return;
    }
    size_t head = (TLM_ERROR_MAX - sizeof dots) / 2, tail = TLM_ERROR_MAX - sizeof dots - head;
    while (head > 0 && ((unsigned char)text[head] & 0xC0) == 0x80)
        head--;
    while (tail > 0 && ((unsigned char)text[len - tail] & 0xC0) == 0x80)
        tail--;
    memcpy(out, text, head);
    memcpy(out + head, dots, sizeof dots - 1);
    memcpy(out + head + sizeof dots - 1, text + len - tail, tail + 1);
}

/* Without memory for all of it the end is cut off. */
static void format_message(char *out, const char *format, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(out, TLM_ERROR_MAX, format, ap);
    char *whole = n >= TLM_ERROR_MAX ? mem_alloc((size_t)n + 1) : NULL;
    if (whole) {
        vsnprintf(whole, (size_t)n + 1, format, again);
        fit(out, whole, (size_t)n);
    }
    va_end(again);
    mem_free(whole);
    make_printable(out);
}

enum tlm_status err_set(struct tlm_error *e, enum tlm_status status, const char *format, ...)
{
    if (!e || e->status != TLM_OK)
        return status;
    va_list ap;
    va_start(ap, format);
    format_message(e->message, format, ap);
    va_end(ap);
    e->status = status;
    return status;
}

enum tlm_status err_nomem(struct tlm_error *e, size_t bytes)
{
    return err_set(e, TLM_ENOMEM, "out of memory: %zu bytes could not be allocated", bytes);
}

void err_prefix(struct tlm_error *e, const char *format, ...)
{
    if (!e || e->status == TLM_OK)
        return;
    char both[2 * TLM_ERROR_MAX + 2], prefix[TLM_ERROR_MAX];
    va_list ap;
    va_start(ap, format);
    format_message(prefix, format, ap);
    va_end(ap);
    int n = snprintf(both, sizeof both, "%s: %s", prefix, e->message);
    fit(e->message, both, (size_t)n);
}

static tlm_log_handler *log_handler;
static void *log_user;

void tlm_log_set(tlm_log_handler *handler, void *user)
{
    log_handler = handler;
    log_user = user;
}

void log_message(enum tlm_log_level level, const char *format, ...)
{
    if (!log_handler)
        return;
    char message[TLM_ERROR_MAX];
    va_list ap;
    va_start(ap, format);
    format_message(message, format, ap);
    va_end(ap);
    log_handler(level, message, log_user);
}
