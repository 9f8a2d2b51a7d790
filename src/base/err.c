/* Errors, messages, status names. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

enum tlm_status err_set(struct tlm_error *e, enum tlm_status status, const char *format, ...)
{
    if (!e || e->status != TLM_OK)
        return status;
    va_list ap;
    va_start(ap, format);
    vsnprintf(e->message, sizeof e->message, format, ap);
    va_end(ap);
    make_printable(e->message);
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
    char old[TLM_ERROR_MAX];
    memcpy(old, e->message, sizeof old);
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(e->message, sizeof e->message, format, ap);
    va_end(ap);
    if (n < 0)
        n = 0;
    if ((size_t)n < sizeof e->message)
        snprintf(e->message + n, sizeof e->message - (size_t)n, ": %.900s", old);
    make_printable(e->message);
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
    vsnprintf(message, sizeof message, format, ap);
    va_end(ap);
    make_printable(message);
    log_handler(level, message, log_user);
}
