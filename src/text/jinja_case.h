/* Case mappings that utf8proc's one-to-one functions do not give: the rows of
 * Unicode's SpecialCasing and what differs otherwise. Made by
 * tests/oracle/make_case_table.py. */
#ifndef TEXT_JINJA_CASE_H
#define TEXT_JINJA_CASE_H

#include <stdint.h>

enum case_kind { CASE_LOWER, CASE_UPPER, CASE_TITLE };

struct case_row {
    uint32_t from;
    uint8_t kind;
    uint16_t to[3]; /* 0: unused */
};

const struct case_row *case_find(uint32_t c, enum case_kind kind);

#endif
