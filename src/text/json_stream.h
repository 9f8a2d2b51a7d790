/* Pull reader of JSON for one large document (tokenizer.json): no tree, no
 * allocation but one buffer for strings with escapes.
 *
 *     json_enter(&j, '{');
 *     while (json_next_key(&j, &key)) { … read or json_skip the value … }
 *     if (j.status) …
 *
 * The first failure sticks, names file and line, and makes every later call
 * return false or nothing. Nesting is bounded. */
#ifndef TEXT_JSON_STREAM_H
#define TEXT_JSON_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum { JSON_STREAM_DEPTH = 64 };

struct json_text {
    const char *s; /* into the document, or into the reader's buffer: valid until the next string */
    size_t n;
};

struct json_stream {
    const char *start, *p, *end;
    const char *where; /* the file's name */
    struct tlm_error *e;
    enum tlm_status status;
    struct buf text;
    int depth;
    char close[JSON_STREAM_DEPTH]; /* of what is open */
    bool first[JSON_STREAM_DEPTH]; /* nothing read in it yet */
};

void json_stream_init(struct json_stream *j, const char *text, size_t n, const char *where, struct tlm_error *e);
void json_stream_deinit(struct json_stream *j);
enum tlm_status json_fail(struct json_stream *j, const char *what);

char json_peek(struct json_stream *j); /* { [ " t f n 0 (a number), or 0 at an error */
bool json_enter(struct json_stream *j, char open);
bool json_next(struct json_stream *j); /* another element of the array? Leaves it at its end */
bool json_next_key(struct json_stream *j, struct json_text *key);
bool json_text_get(struct json_stream *j, struct json_text *out);
bool json_bool_get(struct json_stream *j, bool *out);
bool json_int_get(struct json_stream *j, int64_t *out);
bool json_double_get(struct json_stream *j, double *out);
/* Any value; *span: its text, if not NULL. */
bool json_skip(struct json_stream *j, struct json_text *span);
/* Nothing but white space may follow. */
bool json_at_end(struct json_stream *j);

bool json_text_is(struct json_text t, const char *s);

#endif
