/* Thoughts and what is said in an answer: the state of the splitter behind
 * tlm_reasoning_* (turbolm/chat.h).
 *
 * Two states, and in each one tag is looked for: the opening one in content,
 * the closing one in thoughts. Only the longest end of the text that begins
 * the tag is held back, so memory is what was pushed since the last take. */
#ifndef TEXT_REASONING_H
#define TEXT_REASONING_H

#include <stdbool.h>

#include <turbolm/chat.h>

#include "base/buf.h"

struct tlm_reasoning {
    const char *open, *close; /* NULL: all is content */
    enum tlm_part part;
    struct buf text; /* from at on not given out yet */
    size_t at;
    bool ended;
};

/* Of the n bytes at text, how many at the end begin tag and are not all of it. */
size_t reasoning_held(const char *text, size_t n, const char *tag);

#endif
