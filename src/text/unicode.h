/* Character classes as the HF tokenizers library uses them, and the four
 * normal forms. Tables come from utf8proc. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

bool unicode_is_space(uint32_t c);    /* property White_Space */
bool unicode_is_numeric(uint32_t c);  /* Nd, Nl, No */
bool unicode_is_decimal(uint32_t c);  /* Nd */
bool unicode_is_punct(uint32_t c);    /* P*, and ASCII symbols */
bool unicode_is_word(uint32_t c);     /* \w of Unicode technical standard 18 */
bool unicode_is_mark(uint32_t c);     /* Mn */
bool unicode_is_any_mark(uint32_t c); /* Mn, Mc, Me */
bool unicode_is_other(uint32_t c);    /* Cc, Cf, Co */
bool unicode_is_han(uint32_t c);      /* the blocks that BERT spaces out */
/* Equal for characters of one script, Han and kana being one; 0: of any. */
int unicode_script(uint32_t c);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends s (valid UTF-8) in the normal form. Linear in n for any input. */
enum tlm_status unicode_normalize(struct buf *out, const char *s, size_t n, enum unicode_form form);
/* Appends the full lower-case mapping, without context rules. */
enum tlm_status unicode_add_lower(struct buf *out, const char *s, size_t n);

#endif
