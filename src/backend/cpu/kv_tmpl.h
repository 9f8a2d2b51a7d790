/* Kernels that read encoded cache blocks, over simd.h. Included by the file of
 * an instruction set's attention kernels. Bits are constants in every inlined
 * copy, so that unpacking is a few shifts and masks of whole words. */
#include <string.h>

#include "base/fp.h"
#include "kvformat/kv_planes.h"

/* Bits of codes t .. t + VF_LANES of a run from the plane of b bits at `in`,
 * put at `low`. */
TILE_INLINE vu ISA(kv_plane)(int b, const uint8_t *in, int t, int low)
{
#if defined(__AVX512F__) || defined(TLM_SIMD_AVX512)
    if (b == 1)
        return vu_two_bits(in, t / 8, low);
#endif
    return vu_field(vu_load_u8(in + t % (8 * b)), b * (t / (8 * b)), b, low);
}

TILE_INLINE vu ISA(kv_codes)(int bits, const uint8_t *in, int t)
{
    const int low2 = bits & 4, low1 = low2 + (bits & 2);
    vu c;
    if (bits == 8)
        return vu_load_u8(in + t);
    if (bits & 4)
        c = ISA(kv_plane)(4, in, t, 0);
    if (bits & 2)
        c = low2 ? vu_or(c, ISA(kv_plane)(2, in + low2 * 8, t, low2)) : ISA(kv_plane)(2, in, t, 0);
    if (bits & 1)
        c = low1 ? vu_or(c, ISA(kv_plane)(1, in + low1 * 8, t, low1)) : ISA(kv_plane)(1, in, t, 0);
    return c;
}

#ifdef SIMD_CODE_BYTES
/* Codes 32 half up of a run, as bytes. */
TILE_INLINE vc ISA(kv_code_bytes)(int bits, const uint8_t *in, int half)
{
    if (bits == 8)
        return vc_plane(in, 8, half);
    int low = 0;
    vc c;
    for (int b = 4; b; b /= 2) {
        if (!(bits & b))
            continue;
        vc plane = vc_plane(in + low * 8, b, half);
        c = low ? vc_or_shl(c, plane, low) : plane;
        low += b;
    }
    return c;
}
#endif

/* How codes become floats. */
enum kv_map { KV_MAP_AFFINE, KV_MAP_COLUMNS, KV_MAP_LEVELS };

struct kv_map_args {
    vf scale, offset;
    const float *scales, *offsets;
    struct vf_table table;
};

TILE_INLINE vf ISA(kv_value)(enum kv_map map, const struct kv_map_args *a, vu codes, int at)
{
    switch (map) {
    case KV_MAP_AFFINE:
        return vf_fma(vf_from_vu(codes), a->scale, a->offset);
    case KV_MAP_COLUMNS:
        return vf_fma(vf_from_vu(codes), vf_load(a->scales + at), vf_load(a->offsets + at));
    default:
        return vf_table_get(&a->table, codes);
    }
}

TILE_INLINE void ISA(kv_row)(enum kv_map map, int bits, float *y, const uint8_t *in, int n, struct kv_map_args a)
{
    int i = 0;
    a.table.n = 1 << (bits & 7); /* a constant, which the compiler wants to see */
    for (; i + KV_RUN <= n; i += KV_RUN) {
        const uint8_t *run = in + i / 8 * bits;
#ifdef SIMD_CODE_BYTES
        if (map == KV_MAP_LEVELS && bits <= 4) {
            vf_table_store(y + i, &a.table, ISA(kv_code_bytes)(bits, run, 0));
            vf_table_store(y + i + 32, &a.table, ISA(kv_code_bytes)(bits, run, 1));
            continue;
        }
        uint8_t codes[KV_RUN];
        if (bits & (bits - 1)) { /* several planes: put together as bytes */
            vc_store(codes, ISA(kv_code_bytes)(bits, run, 0));
            vc_store(codes + 32, ISA(kv_code_bytes)(bits, run, 1));
#pragma GCC unroll 16
            for (int t = 0; t < KV_RUN; t += VF_LANES)
                vf_store(y + i + t, ISA(kv_value)(map, &a, vu_load_u8(codes + t), i + t));
            continue;
        }
#endif
#pragma GCC unroll 16
        for (int t = 0; t < KV_RUN; t += VF_LANES)
            vf_store(y + i + t, ISA(kv_value)(map, &a, ISA(kv_codes)(bits, run, t), i + t));
    }
    if (i < n) { /* at most 56, by way of a whole run */
        uint8_t codes[KV_RUN] = {0};
        float t[KV_RUN], s[KV_RUN] = {0}, o[KV_RUN] = {0};
        kv_planes_unpack(codes, in + i / 8 * bits, n - i, bits);
        if (map == KV_MAP_COLUMNS) {
            memcpy(s, a.scales + i, (size_t)(n - i) * sizeof *s);
            memcpy(o, a.offsets + i, (size_t)(n - i) * sizeof *o);
            a.scales = s;
            a.offsets = o;
        }
        for (int j = 0; j < KV_RUN; j += VF_LANES)
            vf_store(t + j, ISA(kv_value)(map, &a, vu_load_u8(codes + j), j));
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

static void ISA(kv_affine_runs)(float *y, const uint8_t *in, int bits, const uint16_t *at, int runs, const float *scale,
                                const float *offset)
{
    struct kv_map_args a;
#define KV_RUNS(b)                                                                                                     \
    for (int i = 0; i < runs; i++) {                                                                                   \
        a.scale = vf_set1(scale[at[i]]);                                                                               \
        a.offset = vf_set1(offset[at[i]]);                                                                             \
        ISA(kv_row)(KV_MAP_AFFINE, b, y + (size_t)at[i] * KV_RUN, in + (size_t)i * (8 * (b)), KV_RUN, a);              \
    }                                                                                                                  \
    break;
    switch (bits) {
    case 1:
        KV_RUNS(1)
    case 2:
        KV_RUNS(2)
    case 3:
        KV_RUNS(3)
    case 4:
        KV_RUNS(4)
    case 5:
        KV_RUNS(5)
    case 6:
        KV_RUNS(6)
    case 7:
        KV_RUNS(7)
    default:
        KV_RUNS(8)
    }
#undef KV_RUNS
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
    vf f = vf_set1(scale);
    int i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(y + i, vf_mul(vf_from_e4m3(in + i), f));
    for (; i < n; i++)
        y[i] = fp_from_e4m3(in[i]) * scale;
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
    k->kv_affine_runs = ISA(kv_affine_runs);
    k->kv_affine_columns = ISA(kv_affine_columns);
    k->kv_levels = ISA(kv_levels);
    k->kv_e4m3 = ISA(kv_e4m3);
    k->kv_turn = ISA(kv_turn);
    k->kv_scores = ISA(kv_scores);
}
