/* Stop texts, matched across tokens. Text that could still become one is held
 * back, so that no part of a stop text is ever emitted. */
#ifndef GEN_STOP_H
#define GEN_STOP_H

#include <stdbool.h>

#include "base/buf.h"

struct stop {
    char **texts;
    size_t *lens;
    size_t n;
    struct buf held;
};

/* Copies the texts; an empty one is an error. */
enum tlm_status stop_init(struct stop *s, const char *const *texts, size_t n, struct tlm_error *e);
void stop_deinit(struct stop *s);

/* Appends what may be emitted to out. True once a stop text is complete: what
 * precedes it is in out, and the rest is dropped. */
bool stop_push(struct stop *s, const char *text, size_t len, struct buf *out);
/* No more text follows: what is held back goes to out. */
void stop_flush(struct stop *s, struct buf *out);

#endif
