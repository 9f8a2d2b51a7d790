/* Errors inside the library: set once, keep the first. See turbolm/status.h. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>

#include <turbolm/log.h>
#include <turbolm/status.h>

#if defined(__GNUC__)
#define BASE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define BASE_PRINTF(f, a)
#endif

/* Records status and message unless e is NULL or already holds an error.
 * Returns status, so that `return err_set(e, …)` reads well. A message that
 * holds newlines or control bytes (from a hostile file) has them replaced. */
enum tlm_status err_set(struct tlm_error *e, enum tlm_status status, const char *format, ...) BASE_PRINTF(3, 4);

enum tlm_status err_nomem(struct tlm_error *e, size_t bytes);

/* Puts "prefix: " before the message; how a reader adds the file's name. */
void err_prefix(struct tlm_error *e, const char *format, ...) BASE_PRINTF(2, 3);

void log_message(enum tlm_log_level level, const char *format, ...) BASE_PRINTF(2, 3);
#define log_warn(...) log_message(TLM_LOG_WARNING, __VA_ARGS__)

#endif
