/* Validation of UTF-8 where text is only passed on; text/utf8.h does more. */
#ifndef BASE_UTF8_LENGTH_H
#define BASE_UTF8_LENGTH_H

#include <stdint.h>

/* Bytes of the well-formed UTF-8 sequence at p, or 0. */
static inline int utf8_length(const uint8_t *p, const uint8_t *end)
{
    int n = p[0] < 0x80                   ? 1
            : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
            : (p[0] & 0xf0) == 0xe0       ? 3
            : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                          : 0;
    if (!n || end - p < n)
        return 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

#endif
