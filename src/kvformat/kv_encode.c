/* Encoding one head's block: the definition of every format.
 *
 * Codes are first one byte each, [channels][64] for keys and [64][row] for
 * values, then packed row by row. */
#include <math.h>
#include <string.h>

#include "base/fp.h"
#include "kvformat/kv_codec.h"

struct encoder {
    const struct kv_codec *c;
    uint8_t *out;
    float *x;       /* [64][dim], a copy that may be changed */
    uint8_t *codes; /* [rows][row] */
    float *spare;   /* [3 dim] */
};

/* Finite numbers stay finite. */
static uint16_t to_half(float v)
{
    return fp_to_f16(isfinite(v) ? fminf(fmaxf(v, -65504), 65504) : v);
}

static void put_half(uint8_t *out, size_t part, size_t i, float v)
{
    uint16_t h = to_half(v);
    memcpy(out + part + i * 2, &h, 2);
}

static float half_of(float v)
{
    return fp_from_f16(to_half(v));
}

static void set_code(const struct encoder *n, int t, int d, int code)
{
    if (n->c->key)
        n->codes[d * KV_BLOCK + t] = (uint8_t)code;
    else
        n->codes[t * n->c->row + d] = (uint8_t)code;
}

static void pack_rows(const struct encoder *n, int bits)
{
    const struct kv_codec *c = n->c;
    int rows = c->key ? c->dim : KV_BLOCK;
    for (int r = 0; r < rows; r++)
        kv_planes_pack(n->out + c->codes + (size_t)r * kv_planes_bytes(c->row, bits), n->codes + r * c->row, c->row,
                       bits);
}

/* --- elements ------------------------------------------------------------- */

static void encode_exact(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++) {
            float v = n->x[t * c->dim + d];
            size_t at = c->key ? (size_t)d * KV_BLOCK + (size_t)t : (size_t)t * (size_t)c->dim + (size_t)d;
            if (c->f.kind == KVF_F32) {
                memcpy(n->out + at * 4, &v, 4);
            } else {
                uint16_t h = c->f.kind == KVF_F16 ? fp_to_f16(v) : fp_to_bf16(v);
                memcpy(n->out + at * 2, &h, 2);
            }
        }
}

/* The block shares a scale, so what is not finite becomes the largest code
 * rather than spoiling it. */
static void encode_fp8(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    float most = 0;
    for (int i = 0; i < KV_BLOCK * c->dim; i++)
        most = fmaxf(most, isfinite(n->x[i]) ? fabsf(n->x[i]) : 0);
    float scale = most > 0 ? most / 448 : 1;
    memcpy(n->out + c->scales, &scale, 4);
    for (int t = 0; t < KV_BLOCK; t++)
        for (int d = 0; d < c->dim; d++) {
            float v = n->x[t * c->dim + d] / scale;
            set_code(n, t, d, fp_to_e4m3(isnan(v) ? 448 : v));
        }
    pack_rows(n, 8);
}

/* --- affine --------------------------------------------------------------- */

/* MLX's rule: the range's end that is farther from zero is met exactly. */
static void affine_group(const float *x, int n, int bits, float *scale, float *offset, uint8_t *codes)
{
    float lo = x[0], hi = x[0];
    int most = (1 << bits) - 1;
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    float s = fmaxf((hi - lo) / (float)most, 1e-7f), edge = hi, b = 0;
    if (fabsf(lo) > fabsf(hi))
        edge = lo;
    else
        s = -s;
    float q0 = rintf(edge / s);
    if (q0 != 0) {
        s = edge / q0;
        b = edge;
    }
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)fminf(fmaxf(rintf((x[i] - b) / s), 0), (float)most);
    *scale = s;
    *offset = b;
}

static void encode_affine(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    int g = c->f.group, groups = c->dim / g;
    for (int t = 0; t < KV_BLOCK; t++) {
        float *x = n->x + t * c->dim;
        if (c->rotation.dim)
            kv_rotate(&c->rotation, x);
        for (int j = 0; j < groups; j++) {
            uint8_t codes[128];
            float scale, offset;
            affine_group(x + j * g, g, c->f.bits, &scale, &offset, codes);
            size_t at = c->key ? (size_t)(j * KV_BLOCK + t) : (size_t)(t * groups + j);
            put_half(n->out, c->scales, at, scale);
            put_half(n->out, c->offsets, at, offset);
            scale = half_of(scale);
            offset = half_of(offset);
            for (int i = 0; i < g; i++) {
                set_code(n, t, j * g + i, codes[i]);
                x[j * g + i] -= (float)codes[i] * scale + offset; /* what the sketch is of */
            }
        }
    }
    pack_rows(n, c->f.bits);
}

static float length(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return (float)sqrt(sum);
}

/* Signs of the sketch of what is left in x, and its length. */
static void encode_sketch(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    uint8_t *rows = n->codes;
    for (int t = 0; t < KV_BLOCK; t++) {
        float *x = n->x + t * c->dim, *s = n->spare;
        put_half(n->out, c->sketch_scales, (size_t)t, length(x, c->dim));
        for (int d = 0; d < c->dim; d++) {
            s[d] = c->gauss ? 0 : x[d];
            for (int i = 0; c->gauss && i < c->dim; i++)
                s[d] += c->gauss[d * c->dim + i] * x[i];
        }
        if (!c->gauss)
            kv_rotate(&c->second, s);
        for (int d = 0; d < c->dim; d++)
            rows[d * KV_BLOCK + t] = s[d] >= 0;
    }
    for (int d = 0; d < c->dim; d++)
        kv_planes_pack(n->out + c->sketch + (size_t)d * 8, rows + d * KV_BLOCK, KV_BLOCK, 1);
}

/* --- per channel ---------------------------------------------------------- */

/* The f16 at or below v; and the f16 for a step that must reach over `range`
 * in n steps, never zero. */
static float half_below(float v)
{
    v = fminf(fmaxf(v, -65504), 65504);
    float h = half_of(v);
    if (h <= v)
        return h;
    uint16_t b = fp_to_f16(v);
    return fp_from_f16(b == 0 ? 0x8001 : b & 0x8000 ? (uint16_t)(b + 1) : (uint16_t)(b - 1));
}

static float half_step(float range, int n)
{
    uint16_t b = fp_to_f16(range / (float)n);
    if (b < 0x7bff && (b == 0 || (b < 0x400 && fp_from_f16(b) * (float)n < range)))
        b++; /* subnormals are coarse */
    return fp_from_f16(b > 0x7bff ? 0x7bff : b);
}

/* Bits move from the narrowest channel to the widest, pair by pair, while the
 * squared error falls: an error goes with (range / (2^bits - 1))^2. */
static void choose_widths(const struct kv_codec *c, const float *range, uint8_t *sets)
{
    int dim = c->dim, b = c->f.bits;
    uint16_t order[KV_DIM_MAX];
    uint8_t *wide = sets, *narrow = sets + (dim + 7) / 8;
    memset(sets, 0, 2 * (size_t)((dim + 7) / 8));
    for (int d = 0; d < dim; d++) { /* falling, equal ones in order */
        int at = d;
        for (; at > 0 && range[order[at - 1]] < range[d]; at--)
            order[at] = order[at - 1];
        order[at] = (uint16_t)d;
    }
    double n1 = (1 << b) - 1, n2 = (1 << (b + 1)) - 1, n0 = (1 << (b - 1)) - 1;
    double gain = 1 / (n1 * n1) - 1 / (n2 * n2), cost = n0 > 0 ? 1 / (n0 * n0) - 1 / (n1 * n1) : INFINITY;
    for (int i = 0; i < dim / 2; i++) {
        int up = order[i], down = order[dim - 1 - i];
        double r1 = range[up], r0 = range[down];
        if (!(r1 * r1 * gain > r0 * r0 * cost))
            break;
        wide[up >> 3] = (uint8_t)(wide[up >> 3] | 1 << (up & 7));
        narrow[down >> 3] = (uint8_t)(narrow[down >> 3] | 1 << (down & 7));
    }
}

static void encode_channel(const struct encoder *n, int d, float lo, float hi, int bits)
{
    const struct kv_codec *c = n->c;
    int most = (1 << bits) - 1;
    float offset = half_below(lo), step = half_step(hi - offset, most);
    put_half(n->out, c->offsets, (size_t)d, offset);
    put_half(n->out, c->scales, (size_t)d, step);
    for (int t = 0; t < KV_BLOCK; t++) {
        float q = rintf((n->x[t * c->dim + d] - offset) / step);
        set_code(n, t, d, (int)fminf(fmaxf(q, 0), (float)most));
    }
}

/* Rows by width, the widest first. */
static void pack_mixed(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    uint8_t *out = n->out + c->codes;
    for (int w = c->f.bits + 1; w >= c->f.bits - 1; w--)
        for (int d = 0; d < c->dim; d++)
            if (kv_codec_width(c, n->out, d) == w) {
                kv_planes_pack(out, n->codes + d * KV_BLOCK, KV_BLOCK, w);
                out += kv_planes_bytes(KV_BLOCK, w);
            }
}

static void encode_chan(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    float *lo = n->spare, *hi = lo + c->dim, *range = hi + c->dim;
    for (int d = 0; d < c->dim; d++) {
        lo[d] = hi[d] = n->x[d];
        for (int t = 1; t < KV_BLOCK; t++) {
            lo[d] = fminf(lo[d], n->x[t * c->dim + d]);
            hi[d] = fmaxf(hi[d], n->x[t * c->dim + d]);
        }
        range[d] = hi[d] - lo[d];
    }
    if (c->f.mix)
        choose_widths(c, range, n->out + c->sets);
    for (int d = 0; d < c->dim; d++)
        encode_channel(n, d, lo[d], hi[d], kv_codec_width(c, n->out, d));
    if (c->f.mix)
        pack_mixed(n);
    else
        pack_rows(n, c->f.bits);
}

/* --- TurboQuant ----------------------------------------------------------- */

static int nearest(const float *levels, int n, float v)
{
    int i = 0;
    for (int k = 1; k < n; k++)
        i += v > 0.5f * (levels[k - 1] + levels[k]);
    return i;
}

/* Codes of a rotated vector y [dim] and the scalar beside them. */
static float code_vector(const float *y, int dim, const float *levels, int bits, enum kv_scalar rule, uint8_t *codes)
{
    float norm = length(y, dim), unit = norm / sqrtf((float)dim);
    double cc = 0, yc = 0;
    for (int d = 0; d < dim; d++) {
        codes[d] = (uint8_t)nearest(levels, 1 << bits, unit > 0 ? y[d] / unit : 0);
        cc += (double)levels[codes[d]] * levels[codes[d]];
        yc += (double)y[d] * levels[codes[d]];
    }
    switch (rule) {
    case KV_SCALAR_MATCHED:
        return norm / (float)sqrt(cc);
    case KV_SCALAR_UNBIASED:
        return yc > 0 ? (float)((double)norm * norm / yc) : 0;
    default:
        return unit;
    }
}

static void subtract_mean(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    for (int d = 0; d < c->dim; d++) {
        double sum = 0;
        for (int t = 0; t < KV_BLOCK; t++)
            sum += n->x[t * c->dim + d];
        float mean = half_of((float)(sum / KV_BLOCK));
        put_half(n->out, c->centre, (size_t)d, mean);
        for (int t = 0; t < KV_BLOCK; t++)
            n->x[t * c->dim + d] -= mean;
    }
}

static void encode_tq(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    bool prod = c->f.kind == KVF_PROD;
    int bits = c->f.bits - prod;
    if (c->f.centred)
        subtract_mean(n);
    for (int t = 0; t < KV_BLOCK; t++) {
        float *y = n->x + t * c->dim;
        uint8_t *codes = (uint8_t *)(void *)n->spare;
        kv_rotate(&c->rotation, y);
        float scalar = code_vector(y, c->dim, c->levels, bits, prod ? KV_SCALAR_NORM : c->f.scalar, codes);
        put_half(n->out, c->scales, (size_t)t, scalar);
        scalar = half_of(scalar);
        for (int d = 0; d < c->dim; d++) {
            set_code(n, t, d, codes[d]);
            y[d] -= scalar * c->levels[codes[d]];
        }
    }
    pack_rows(n, bits);
    if (prod)
        encode_sketch(n);
}

/* The channels of the most energy over the block are the wide ones. */
static void choose_wide(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    float *energy = n->spare;
    uint8_t *set = n->out + c->sets;
    memset(set, 0, (size_t)(c->dim + 7) / 8);
    for (int d = 0; d < c->dim; d++) {
        double sum = 0;
        for (int t = 0; t < KV_BLOCK; t++)
            sum += (double)n->x[t * c->dim + d] * n->x[t * c->dim + d];
        energy[d] = (float)sum;
    }
    for (int k = 0; k < c->wide; k++) {
        int best = -1;
        for (int d = 0; d < c->dim; d++)
            if (!(set[d >> 3] >> (d & 7) & 1) && (best < 0 || energy[d] > energy[best]))
                best = d;
        set[best >> 3] = (uint8_t)(set[best >> 3] | 1 << (best & 7));
    }
}

static void encode_split(const struct encoder *n)
{
    const struct kv_codec *c = n->c;
    const uint8_t *set = n->out + c->sets;
    int narrow = c->dim - c->wide, wide_row = (c->wide + 7) / 8 * 8, narrow_row = (narrow + 7) / 8 * 8;
    uint8_t *out = n->out + c->codes;
    choose_wide(n);
    for (int t = 0; t < KV_BLOCK; t++) {
        float *x = n->x + t * c->dim, *a = n->spare, *b = a + c->wide;
        uint8_t codes[KV_DIM_MAX + 16] = {0};
        for (int d = 0, i = 0, j = 0; d < c->dim; d++)
            if (set[d >> 3] >> (d & 7) & 1)
                a[i++] = x[d];
            else
                b[j++] = x[d];
        kv_rotate(&c->rotation, a);
        kv_rotate(&c->second, b);
        put_half(n->out, c->scales, (size_t)t,
                 code_vector(a, c->wide, c->wide_levels, c->f.bits + 1, KV_SCALAR_NORM, codes));
        put_half(n->out, c->offsets, (size_t)t,
                 code_vector(b, narrow, c->levels, c->f.bits, KV_SCALAR_NORM, codes + wide_row));
        if (c->key) { /* a channel of the rotated frame is a row */
            for (int d = 0; d < c->dim; d++)
                n->codes[d * KV_BLOCK + t] = d < c->wide ? codes[d] : codes[wide_row + d - c->wide];
        } else {
            kv_planes_pack(out, codes, wide_row, c->f.bits + 1);
            out += kv_planes_bytes(wide_row, c->f.bits + 1);
            kv_planes_pack(out, codes + wide_row, narrow_row, c->f.bits);
            out += kv_planes_bytes(narrow_row, c->f.bits);
        }
    }
    for (int d = 0; c->key && d < c->dim; d++) {
        int bits = c->f.bits + (d < c->wide);
        kv_planes_pack(out, n->codes + d * KV_BLOCK, KV_BLOCK, bits);
        out += kv_planes_bytes(KV_BLOCK, bits);
    }
}

/* --- rotary --------------------------------------------------------------- */

static void turn_pair(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;
    *a = x * c - y * s;
    *b = x * s + y * c;
}

/* By the angles of the start and the place, or back. */
static void turn_tokens(const struct kv_turn *r, float *x, int dim, float sign)
{
    for (int t = 0; t < KV_BLOCK; t++)
        for (int i = 0; i < r->dims / 2; i++) {
            float *v = x + t * dim, *a = r->interleaved ? v + 2 * i : v + i;
            float *b = r->interleaved ? a + 1 : a + r->dims / 2;
            turn_pair(a, b, r->start_cos[i], sign * r->start_sin[i]);
            turn_pair(a, b, r->cos[i * KV_BLOCK + t], sign * r->sin[i * KV_BLOCK + t]);
        }
}

void kv_turn_rows(uint16_t *rows, int dims, bool interleaved)
{
    for (int c = 0; c < KV_DIM_MAX; c++) {
        int second = c >= dims / 2;
        bool apart = c < dims && !interleaved;
        rows[c] = (uint16_t)(apart ? 2 * (c - second * dims / 2) + second : c);
    }
}

void kv_turn_back(const struct kv_turn *r, float *x, int dim)
{
    turn_tokens(r, x, dim, -1);
}

void kv_turn_forth(const struct kv_turn *r, float *x, int dim)
{
    turn_tokens(r, x, dim, 1);
}

void kv_codec_encode(const struct kv_codec *c, const float *x, const struct kv_turn *turn, void *out, float *work)
{
    size_t n = (size_t)KV_BLOCK * (size_t)c->dim;
    struct encoder e = {c, out, work, NULL, work + n};
    e.codes = (uint8_t *)(void *)(e.spare + 3 * c->dim);
    memcpy(e.x, x, n * sizeof *x);
    memset(e.codes, 0, (size_t)KV_BLOCK * (size_t)(c->row > c->dim ? c->row : c->dim));
    memset(out, 0, c->codes);
    if (c->f.pre && turn)
        kv_turn_back(turn, e.x, c->dim);
    switch (c->f.kind) {
    case KVF_FP8:
        encode_fp8(&e);
        break;
    case KVF_AFFINE:
    case KVF_ROT:
        encode_affine(&e);
        if (c->f.qjl)
            encode_sketch(&e);
        break;
    case KVF_CHAN:
        encode_chan(&e);
        break;
    case KVF_TQ:
    case KVF_PROD:
        encode_tq(&e);
        break;
    case KVF_SPLIT:
        encode_split(&e);
        break;
    default:
        encode_exact(&e);
    }
}
