/* UTF-8: one character at a time, validation, and the replacement of invalid
 * parts by U+FFFD (one for each maximal part, as Unicode 15 section 3.9 has it
 * and as Rust and WHATWG do). */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define UTF8_INVALID UINT32_MAX

/* Length of the well-formed character at s (n > 0 bytes are there), or 0 with
 * *bad the length of the maximal invalid part, 1 to 3. *cut: the part is
 * invalid only because the text ends in it. */
int utf8_scan(const char *s, size_t n, int *bad, bool *cut);

/* The character at s, which must be valid; *len its bytes. */
static inline uint32_t utf8_get(const char *s, int *len)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *len = 4;
    return (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

/* Bytes of the character whose first byte this is, in valid text. */
static inline int utf8_len(char first)
{
    uint8_t b = (uint8_t)first;
    return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

/* Start of the last character before end; start < end, valid text. */
static inline const char *utf8_prev(const char *start, const char *end)
{
    do
        end--;
    while (end > start && ((uint8_t)*end & 0xc0) == 0x80);
    return end;
}

int utf8_put(char out[4], uint32_t c); /* bytes written; c is a valid scalar value */
bool utf8_valid(const char *s, size_t n);
/* Bytes of valid text from the start. */
size_t utf8_valid_len(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n);

/* Appends s with its invalid parts replaced. */
enum tlm_status utf8_add_lossy(struct buf *out, const char *s, size_t n);

/* The same for a text that comes in pieces: holds back up to three bytes. */
struct utf8_stream {
    char held[4];
    int n;
};

enum tlm_status utf8_stream_add(struct utf8_stream *u, struct buf *out, const char *s, size_t n);
enum tlm_status utf8_stream_end(struct utf8_stream *u, struct buf *out);

#endif
