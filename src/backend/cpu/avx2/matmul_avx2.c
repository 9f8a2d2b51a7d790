/* Matmul kernels for AVX2 with FMA and F16C, and packing, which AVX-512 takes
 * from here too. */
#define MATMUL_ISA avx2
#define MATMUL_TILE_FLOAT 4
#define MATMUL_TILE_MANY 6
#include "backend/cpu/matmul_tmpl.h"

/* Eight rows of eight quads to eight quads of eight rows. */
ALWAYS_INLINE void transpose_quads(vq a[8])
{
    vq b[8], c[8];
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            c[i + 2 * j] = _mm256_unpacklo_epi64(b[i + j], b[i + 2 + j]);
            c[i + 2 * j + 1] = _mm256_unpackhi_epi64(b[i + j], b[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_permute2x128_si256(c[i], c[i + 4], 0x20);
        a[i + 4] = _mm256_permute2x128_si256(c[i], c[i + 4], 0x31);
    }
}

/* The plane of `bits` bits from bit `low` of the quads up. */
ALWAYS_INLINE uint8_t *store_plane(const vq q[8], int bits, int low, uint8_t *out)
{
    const int per = 8 / bits;
    const vq mask = vq_set1((1 << bits) - 1);
    for (int v = 0; v < QUADS / per; v++, out += VECTOR) {
        vq sum = vq_and(vq_shr(q[v * per], low), mask);
        for (int i = 1; i < per; i++)
            sum = vq_or(sum, vq_shl(vq_and(vq_shr(q[v * per + i], low), mask), i * bits));
        _mm256_storeu_si256((__m256i *)out, sum);
    }
    return out;
}

static void pack_block_avx2(enum panel_code code, const uint8_t *codes, size_t stride, uint8_t *out)
{
    for (int part = 0; part < PARTS; part++, out += VQ_BYTES) {
        vq q[8];
        for (int r = 0; r < 8; r++, codes += stride)
            q[r] = vq_load(codes);
        transpose_quads(q);
        switch (panel_bits(code)) {
        case 2:
            store_plane(q, 2, 0, out);
            break;
        case 3:
            store_plane(q, 1, 2, store_plane(q, 2, 0, out));
            break;
        case 4:
            store_plane(q, 4, 0, out);
            break;
        case 5:
            store_plane(q, 1, 4, store_plane(q, 4, 0, out));
            break;
        case 6:
            store_plane(q, 2, 4, store_plane(q, 4, 0, out));
            break;
        default:
            for (int i = 0; i < QUADS; i++)
                _mm256_storeu_si256((__m256i *)(out + i * VECTOR), q[i]);
        }
    }
}

void matmul_init_avx2(struct matmul_kernels *k)
{
    NAME(init_all)(k);
    k->pack_block = pack_block_avx2;
}
