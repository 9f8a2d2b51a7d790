/* Growing byte buffer with a declared maximum: what fills it from outside
 * cannot exhaust memory. Content is always followed by a NUL. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>

#include "base/err.h"

struct buf {
    char *data; /* NULL while empty */
    size_t len, cap, max;
    enum tlm_status status; /* first failure sticks: TLM_ENOMEM or TLM_ELIMIT */
};

void buf_init(struct buf *b, size_t max);
void buf_deinit(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory and the limit, forgets the failure */
enum tlm_status buf_add(struct buf *b, const void *bytes, size_t n);
enum tlm_status buf_add_str(struct buf *b, const char *s);
enum tlm_status buf_add_char(struct buf *b, char c);
enum tlm_status buf_printf(struct buf *b, const char *format, ...) BASE_PRINTF(2, 3);
enum tlm_status buf_reserve(struct buf *b, size_t extra);
/* Hands the memory over (free with mem_free) and empties b; NULL after a
 * failure. An empty buffer gives "". */
char *buf_take(struct buf *b, size_t *len);
const char *buf_str(const struct buf *b); /* "" while empty */
/* Reports b->status on e in the words of `what`. */
enum tlm_status buf_check(const struct buf *b, struct tlm_error *e, const char *what);

#endif
