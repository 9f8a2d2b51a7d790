/* Codes of 1 to 8 bits as byte planes.
 *
 * A row of n codes (n a multiple of 8) is cut into runs of 64 and a last run
 * of r = n % 64. A run of width w is w/8 bytes a code: width 8 is the codes
 * themselves; else one plane for each of the bits of w that is set, the widest
 * first, holding the next 4, 2 or 1 low bits of every code. In a plane of b
 * bits, byte i holds the codes i, i + rb/8, i + 2rb/8 ..., the first in the
 * low bits. So whole bytes are shifted and masked, and codes come out in
 * order; 3 bits are a plane of 2 and a plane of 1, and no code crosses a
 * byte. */
#ifndef KVFORMAT_KV_PLANES_H
#define KVFORMAT_KV_PLANES_H

#include <stddef.h>
#include <stdint.h>

enum { KV_RUN = 64 };

static inline size_t kv_planes_bytes(int n, int bits)
{
    return (size_t)n / 8 * (size_t)bits;
}

/* codes [n] below 2^bits to out [kv_planes_bytes] and back. */
void kv_planes_pack(uint8_t *out, const uint8_t *codes, int n, int bits);
void kv_planes_unpack(uint8_t *codes, const uint8_t *in, int n, int bits);

#endif
