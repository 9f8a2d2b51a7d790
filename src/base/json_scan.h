/* The grammar of JSON, checked before a tree is made of it. */
#ifndef BASE_JSON_SCAN_H
#define BASE_JSON_SCAN_H

#include "base/err.h"

/* text must be one JSON value, with the words NaN, Infinity and -Infinity that
 * Python's reader also takes; *words: how many of them there are. Depth and the
 * number of values are bounded, so that a tree of it fits in memory. */
enum tlm_status json_scan(const char *text, size_t len, const char *where, size_t *words, struct tlm_error *e);

/* The same text without those words: a number beyond every double stands for
 * each. out has room for len bytes and 6 more for each word. Returns its length. */
size_t json_scan_replace(const char *text, size_t len, char *out);

#endif
