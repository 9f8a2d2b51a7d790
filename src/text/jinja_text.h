/* Unicode text as Python's str sees it: classes, case, white space, numbers.
 * The character tables are utf8proc's. */
#ifndef TEXT_JINJA_TEXT_H
#define TEXT_JINJA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

bool text_valid(const char *p, size_t n); /* no surrogates */
size_t text_count(const char *p, size_t n);
/* Code point at p and its length in bytes; p holds valid UTF-8 and n > 0. */
uint32_t text_get(const char *p, size_t n, size_t *len);
size_t text_put(uint32_t c, char out[4]);
/* Byte offset of code point number i. */
size_t text_offset(const char *p, size_t n, size_t i);

bool text_space(uint32_t c);     /* str.isspace */
bool text_printable(uint32_t c); /* str.isprintable */
bool text_alpha(uint32_t c);
bool text_decimal(uint32_t c);
bool text_digit(uint32_t c);
bool text_numeric(uint32_t c);
bool text_lower(uint32_t c);
bool text_upper(uint32_t c);
bool text_title(uint32_t c);
bool text_cased(uint32_t c);
bool text_word(uint32_t c);       /* \w */
bool text_name_start(uint32_t c); /* identifiers */
bool text_name_part(uint32_t c);

enum text_case { TEXT_LOWER, TEXT_UPPER, TEXT_CAPITALIZE, TEXT_TITLE, TEXT_SWAP, TEXT_FOLD };
void text_add_case(struct buf *b, const char *p, size_t n, enum text_case how);

/* [start, end) without the white space (chars NULL) or the code points of
 * chars at its ends. */
void text_strip(const char *p, size_t *start, size_t *end, const char *chars, size_t chars_n, bool left, bool right);
/* Byte offset of needle at or after / last before end; SIZE_MAX: none. */
size_t text_find(const char *p, size_t n, const char *needle, size_t m);
size_t text_rfind(const char *p, size_t n, const char *needle, size_t m);
/* Length in bytes of the line end at p, 0 if none (str.splitlines' set). */
size_t text_line_end(const char *p, size_t n);

/* float(text), int(text, base) of Python. 0: not a number, 1: done; int also
 * 2: outside 64 bits. */
int text_to_double(const char *p, size_t n, double *out);
int text_to_int(const char *p, size_t n, int base, int64_t *out);

#endif
