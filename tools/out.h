/* Standard output that reports write errors, messages on standard error,
 * memory, and signals: what every command shares with none of the library. */
#ifndef TOOLS_OUT_H
#define TOOLS_OUT_H

#include <stddef.h>

#include <turbolm/turbolm.h>

#if defined(__GNUC__)
#define TOOLS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TOOLS_PRINTF(f, a)
#endif

/* Call first: makes sure that descriptors 0 to 2 are taken, so that no file
 * that is opened later is mistaken for a closed stream, and ignores SIGPIPE
 * and SIGXFSZ, so that a closed pipe or a file limit is a write error. A mapped file that shrinks ends the program
 * with a message and status 1. Routes the library's messages. */
void out_init(void);

/* The model whose files are mapped from now on, for the message when one of them is shortened. */
void out_name_model(const char *model);

/* Standard output. After a failure further calls do nothing. */
void out_write(const char *text, size_t len);
void out_print(const char *fmt, ...) TOOLS_PRINTF(1, 2);
void out_flush(void);
/* 1 after a failed write. */
int out_failed(void);
/* Flushes. Returns status, or when writing failed, the status for that: 141
 * without a message for a closed pipe, as the shell reports a program that
 * SIGPIPE ended; else 1 with a message. */
int out_finish(int status);

/* One line "error: …" or "warning: …" on stderr. Control characters, which
 * may come from a file's names, are shown as '?'. */
void out_error(const char *fmt, ...) TOOLS_PRINTF(1, 2);
void out_warning(const char *fmt, ...) TOOLS_PRINTF(1, 2);
/* The library's error; returns the exit status for it. */
int out_tlm_error(const struct tlm_error *e);

/* Memory or an end of the program with a message. n * size is checked. */
void *tool_alloc(size_t n, size_t size);
void *tool_grow(void *p, size_t n, size_t size);
void tool_free(void *p);

/* A copy with every invalid part of UTF-8 as U+FFFD and, with plain set,
 * control characters as '?'; free with tool_free. NULL for NULL. */
char *tool_clean_text(const char *text, int plain);
/* text, its middle replaced by dots where it does not fit into out, of room bytes (at least 8). */
void tool_fit_text(char *out, size_t room, const char *text);
/* Offset of the first byte that is not part of valid UTF-8, or len. */
size_t tool_utf8_valid(const char *text, size_t len);

/* The first Ctrl-C after catch_interrupt only makes interrupted() true; the
 * second, or one before, ends the program with status 130. */
void catch_interrupt(void);
/* Ends that: the next Ctrl-C ends the program again. */
void release_interrupt(void);
int interrupted(void);
void forget_interrupt(void); /* interrupted() is false again */
/* What runs inside a signal handler, so may do only what handlers may; NULL:
 * nothing. noticed: at each Ctrl-C that is caught; ending: before a signal
 * that is handled here or exit() ends the program. */
void set_signal_hooks(void (*noticed)(void), void (*ending)(void));
/* Runs the second hook and ends the program as the signal does. A handler. */
void end_by_signal(int number);
/* Makes it the handler of the signals that would end the program without the
 * hook. One that is ignored, as nohup does it, stays so. */
void catch_endings(void);
/* Lets them only make terminated() true, for work that cleans up by itself
 * when it is told to end; then end_if_terminated does what the signal would. */
void catch_terminations(void);
int terminated(void);
void end_if_terminated(void);
/* The name of a file that the caller makes now, to be renamed to path when it
 * is whole: a signal or exit() that ends the program before end_unfinished
 * removes it. One at a time. */
const char *begin_unfinished(const char *path);
void end_unfinished(void); /* when it has been renamed or removed; frees the name */
enum { EXIT_INTERRUPTED = 130 };

double now_seconds(void); /* a clock that only goes forward */

#endif
