/* Kernels that read encoded cache blocks, over simd.h. Included by the file of
 * an instruction set's attention kernels. Bits are constants in every inlined
 * copy, so that unpacking is a few shifts and masks of whole words. */
#include <string.h>

#include "kvformat/kv_planes.h"

/* One plane of b bits, at `low` in the codes: a run of 64. */
TILE_INLINE void ISA(kv_plane)(int b, int low, int first, uint8_t *codes, const uint8_t *in)
{
    const uint64_t mask = b == 4 ? 0x0f0f0f0f0f0f0f0f : b == 2 ? 0x0303030303030303 : 0x0101010101010101;
    for (int i = 0; i < b; i++)
        for (int k = 0; k < 8 / b; k++) {
            uint64_t w, c = 0;
            uint8_t *to = codes + k * b * 8 + i * 8;
            memcpy(&w, in + i * 8, 8);
            w = ((w >> (k * b)) & mask) << low;
            if (!first)
                memcpy(&c, to, 8);
            w |= c;
            memcpy(to, &w, 8);
        }
}

TILE_INLINE const uint8_t *ISA(kv_codes)(int bits, uint8_t *codes, const uint8_t *in)
{
    if (bits == 8)
        return in;
    const int low2 = bits & 4, low1 = low2 + (bits & 2);
    if (bits & 4)
        ISA(kv_plane)(4, 0, 1, codes, in);
    if (bits & 2)
        ISA(kv_plane)(2, low2, low2 == 0, codes, in + low2 * 8);
    if (bits & 1)
        ISA(kv_plane)(1, low1, low1 == 0, codes, in + low1 * 8);
    return codes;
}

/* How codes become floats. */
enum kv_map { KV_MAP_AFFINE, KV_MAP_COLUMNS, KV_MAP_LEVELS, KV_MAP_E4M3 };

struct kv_map_args {
    vf scale, offset;
    const float *scales, *offsets;
    struct vf_table table;
};

TILE_INLINE vf ISA(kv_value)(enum kv_map map, const struct kv_map_args *a, const uint8_t *codes, int at)
{
    switch (map) {
    case KV_MAP_AFFINE:
        return vf_fma(vf_from_u8(codes), a->scale, a->offset);
    case KV_MAP_COLUMNS:
        return vf_fma(vf_from_u8(codes), vf_load(a->scales + at), vf_load(a->offsets + at));
    case KV_MAP_LEVELS:
        return vf_table_get(&a->table, codes);
    default:
        return vf_mul(vf_from_e4m3(codes), a->scale);
    }
}

TILE_INLINE void ISA(kv_row)(enum kv_map map, int bits, float *y, const uint8_t *in, int n, struct kv_map_args a)
{
    uint8_t buffer[KV_RUN];
    int i = 0;
    a.table.n = 1 << (bits & 7); /* a constant, which the compiler wants to see */
    for (; i + KV_RUN <= n; i += KV_RUN) {
        const uint8_t *codes = ISA(kv_codes)(bits, buffer, in + i / 8 * bits);
        for (int j = 0; j < KV_RUN; j += VF_LANES)
            vf_store(y + i + j, ISA(kv_value)(map, &a, codes + j, i + j));
    }
    if (i < n) { /* at most 56, by way of whole runs */
        float t[KV_RUN], s[KV_RUN] = {0}, o[KV_RUN] = {0};
        memset(buffer, 0, sizeof buffer);
        kv_planes_unpack(buffer, in + i / 8 * bits, n - i, bits);
        if (map == KV_MAP_COLUMNS) {
            memcpy(s, a.scales + i, (size_t)(n - i) * sizeof *s);
            memcpy(o, a.offsets + i, (size_t)(n - i) * sizeof *o);
            a.scales = s;
            a.offsets = o;
        }
        for (int j = 0; j < KV_RUN; j += VF_LANES)
            vf_store(t + j, ISA(kv_value)(map, &a, buffer + j, j));
        memcpy(y + i, t, (size_t)(n - i) * sizeof *t);
    }
}

#define KV_BITS(map)                                                                                                   \
    switch (bits) {                                                                                                    \
    case 1:                                                                                                            \
        ISA(kv_row)(map, 1, y, in, n, a);                                                                              \
        break;                                                                                                         \
    case 2:                                                                                                            \
        ISA(kv_row)(map, 2, y, in, n, a);                                                                              \
        break;                                                                                                         \
    case 3:                                                                                                            \
        ISA(kv_row)(map, 3, y, in, n, a);                                                                              \
        break;                                                                                                         \
    case 4:                                                                                                            \
        ISA(kv_row)(map, 4, y, in, n, a);                                                                              \
        break;                                                                                                         \
    case 5:                                                                                                            \
        ISA(kv_row)(map, 5, y, in, n, a);                                                                              \
        break;                                                                                                         \
    case 6:                                                                                                            \
        ISA(kv_row)(map, 6, y, in, n, a);                                                                              \
        break;                                                                                                         \
    case 7:                                                                                                            \
        ISA(kv_row)(map, 7, y, in, n, a);                                                                              \
        break;                                                                                                         \
    default:                                                                                                           \
        ISA(kv_row)(map, 8, y, in, n, a);                                                                              \
        break;                                                                                                         \
    }

static void ISA(kv_affine)(float *y, const uint8_t *in, int bits, int n, float scale, float offset)
{
    struct kv_map_args a = {.scale = vf_set1(scale), .offset = vf_set1(offset)};
    KV_BITS(KV_MAP_AFFINE)
}

static void ISA(kv_affine_columns)(float *y, const uint8_t *in, int bits, int n, const float *scale,
                                   const float *offset)
{
    struct kv_map_args a = {.scales = scale, .offsets = offset};
    KV_BITS(KV_MAP_COLUMNS)
}

static void ISA(kv_levels)(float *y, const uint8_t *in, int bits, int n, const float *levels)
{
    struct kv_map_args a = {.table = vf_table_load(levels, 1 << bits)};
    switch (bits) {
    case 1:
        ISA(kv_row)(KV_MAP_LEVELS, 1, y, in, n, a);
        break;
    case 2:
        ISA(kv_row)(KV_MAP_LEVELS, 2, y, in, n, a);
        break;
    case 3:
        ISA(kv_row)(KV_MAP_LEVELS, 3, y, in, n, a);
        break;
    case 4:
        ISA(kv_row)(KV_MAP_LEVELS, 4, y, in, n, a);
        break;
    default:
        ISA(kv_row)(KV_MAP_LEVELS, 5, y, in, n, a);
        break;
    }
}

static void ISA(kv_e4m3)(float *y, const uint8_t *in, int n, float scale)
{
    struct kv_map_args a = {.scale = vf_set1(scale)};
    ISA(kv_row)(KV_MAP_E4M3, 8, y, in, n, a);
}

static void ISA(kv_turn)(float *a, float *b, const float *cos, const float *sin)
{
    for (int t = 0; t < KV_RUN; t += VF_LANES) {
        vf x = vf_load(a + t), y = vf_load(b + t), c = vf_load(cos + t), s = vf_load(sin + t);
        vf_store(a + t, vf_sub(vf_mul(x, c), vf_mul(y, s)));
        vf_store(b + t, vf_fma(x, s, vf_mul(y, c)));
    }
}

static void ISA(kv_scores)(float *s, const float *factor, float add)
{
    vf a = vf_set1(add);
    for (int t = 0; t < KV_RUN; t += VF_LANES)
        vf_store(s + t, vf_fma(vf_load(s + t), vf_load(factor + t), a));
}

static void ISA(kv_init)(struct vector_kernels *k)
{
    k->kv_affine = ISA(kv_affine);
    k->kv_affine_columns = ISA(kv_affine_columns);
    k->kv_levels = ISA(kv_levels);
    k->kv_e4m3 = ISA(kv_e4m3);
    k->kv_turn = ISA(kv_turn);
    k->kv_scores = ISA(kv_scores);
}
