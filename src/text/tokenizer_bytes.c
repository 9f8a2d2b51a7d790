/* The map of byte-level models between bytes and printable characters: 188
 * bytes stand for themselves, the others for U+0100 onwards in order. */
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define SAME4(b) (b), (b) + 1, (b) + 2, (b) + 3
#define SAME16(b) SAME4(b), SAME4((b) + 4), SAME4((b) + 8), SAME4((b) + 12)

const uint16_t byte_level_char[256] = {
    SAME16(0x100), SAME16(0x110), 0x120,                                                  /* 0x00 to 0x20 */
    0x21,          0x22,          0x23,          SAME4(0x24),  SAME4(0x28),  SAME4(0x2c), /* 0x21 to 0x2f */
    SAME16(0x30),  SAME16(0x40),  SAME16(0x50),  SAME16(0x60),                            /* to 0x6f */
    SAME4(0x70),   SAME4(0x74),   SAME4(0x78),   0x7c,         0x7d,         0x7e,        /* to 0x7e */
    0x121,         SAME16(0x122), SAME16(0x132), 0x142,                                   /* 0x7f to 0xa0 */
    0xa1,          0xa2,          0xa3,          SAME4(0xa4),  SAME4(0xa8),  0xac,        /* to 0xac */
    0x143,                                                                                /* 0xad */
    0xae,          0xaf,          SAME16(0xb0),  SAME16(0xc0), SAME16(0xd0), SAME16(0xe0), SAME16(0xf0),
};

int byte_level_byte(uint32_t c)
{
    if (c < 0x100)
        return byte_level_char[c] == c ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

enum tlm_status byte_level_add(struct buf *out, const char *s, size_t n)
{
    if (n > out->max / 2 || buf_reserve(out, 2 * n) != TLM_OK)
        return out->status = out->status == TLM_OK ? TLM_ELIMIT : out->status;
    for (size_t i = 0; i < n; i++)
        out->len += (size_t)utf8_put(out->data + out->len, byte_level_char[(uint8_t)s[i]]);
    if (out->data)
        out->data[out->len] = 0;
    return TLM_OK;
}
