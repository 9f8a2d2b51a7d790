/* Packing codes into planes: the definition. */
#include "kvformat/kv_planes.h"

#include <string.h>

static void pack_run(uint8_t *out, const uint8_t *codes, int n, int bits)
{
    if (bits == 8) {
        memcpy(out, codes, (size_t)n);
        return;
    }
    int low = 0;
    for (int b = 4; b; b /= 2) {
        if (!(bits & b))
            continue;
        int bytes = n * b / 8, mask = (1 << b) - 1;
        memset(out, 0, (size_t)bytes);
        for (int i = 0; i < n; i++)
            out[i % bytes] = (uint8_t)(out[i % bytes] | ((codes[i] >> low) & mask) << (i / bytes * b));
        out += bytes;
        low += b;
    }
}

static void unpack_run(uint8_t *codes, const uint8_t *in, int n, int bits)
{
    if (bits == 8) {
        memcpy(codes, in, (size_t)n);
        return;
    }
    int low = 0;
    memset(codes, 0, (size_t)n);
    for (int b = 4; b; b /= 2) {
        if (!(bits & b))
            continue;
        int bytes = n * b / 8, mask = (1 << b) - 1;
        for (int i = 0; i < n; i++)
            codes[i] = (uint8_t)(codes[i] | ((in[i % bytes] >> (i / bytes * b)) & mask) << low);
        in += bytes;
        low += b;
    }
}

void kv_planes_pack(uint8_t *out, const uint8_t *codes, int n, int bits)
{
    for (int i = 0; i < n; i += KV_RUN) {
        int r = n - i < KV_RUN ? n - i : KV_RUN;
        pack_run(out + kv_planes_bytes(i, bits), codes + i, r, bits);
    }
}

void kv_planes_unpack(uint8_t *codes, const uint8_t *in, int n, int bits)
{
    for (int i = 0; i < n; i += KV_RUN) {
        int r = n - i < KV_RUN ? n - i : KV_RUN;
        unpack_run(codes + i, in + kv_planes_bytes(i, bits), r, bits);
    }
}
