/* The kernels of dense matrices, part of matmul_tmpl.h: rows as files have them, and bf16 in 12 bits (bf12.h). */

/* ---- few tokens ---- */

enum { DENSE_ROWS = 4 };

ALWAYS_INLINE vf load_dense(const uint8_t *p, int64_t k, enum dtype t)
{
    if (t == DT_F16)
        return vf_load_f16((const void *)(p + 2 * k));
    if (t == DT_BF16)
        return vf_load_bf16((const void *)(p + 2 * k));
    return vf_load((const void *)(p + 4 * k));
}

ALWAYS_INLINE vf load_dense_part(const uint8_t *p, int64_t k, int n, enum dtype t)
{
    if (t == DT_F16)
        return vf_load_f16_part((const void *)(p + 2 * k), n);
    if (t == DT_BF16)
        return vf_load_bf16_part((const void *)(p + 2 * k), n);
    return vf_load_part((const void *)(p + 4 * k), n);
}

/* `rows` rows by `tokens` tokens, both constants: lanes run along the inputs,
 * one accumulator per row and token. */
ALWAYS_INLINE void dense_tile(const uint8_t *w, size_t row_bytes, int rows, int64_t cols, const float *x,
                              int64_t x_stride, int tokens, float *y, enum dtype type)
{
    vf acc[DENSE_ROWS][MATMUL_DENSE_FEW], xv[MATMUL_DENSE_FEW];
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            acc[r][t] = vf_zero();
    /* One token: FETCH_AHEAD bytes on in each row; where that is behind its end, in the row that comes in its place. */
    const int64_t size = type == DT_F32 ? 4 : 2, length = (int64_t)row_bytes, below = rows * length;
    const int64_t ahead = length < FETCH_AHEAD ? FETCH_AHEAD / length * below : FETCH_AHEAD;
    const int64_t turn = length < FETCH_AHEAD ? length : length - FETCH_AHEAD;
    int64_t k = 0;
    for (; k + VF_LANES <= cols; k += VF_LANES) {
        for (int r = 0; tokens == 1 && k * size % 64 == 0 && r < rows; r++)
            __builtin_prefetch(w + (size_t)r * row_bytes + k * size +
                               (k * size < turn ? ahead : ahead + below - length));
        for (int t = 0; t < tokens; t++)
            xv[t] = vf_load(x + t * x_stride + k);
        for (int r = 0; r < rows; r++) {
            vf v = load_dense(w + (size_t)r * row_bytes, k, type);
            for (int t = 0; t < tokens; t++)
                acc[r][t] = vf_fma(v, xv[t], acc[r][t]);
        }
    }
    const int rest = (int)(cols - k);
    if (rest) {
        for (int t = 0; t < tokens; t++)
            xv[t] = vf_load_part(x + t * x_stride + k, rest);
        for (int r = 0; r < rows; r++) {
            vf v = load_dense_part(w + (size_t)r * row_bytes, k, rest, type);
            for (int t = 0; t < tokens; t++)
                acc[r][t] = vf_fma(v, xv[t], acc[r][t]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            y[t * PANEL_ROWS + r] = vf_sum(acc[r][t]);
}

ALWAYS_INLINE void dense_rows(const uint8_t *w, size_t row_bytes, int rows, int64_t cols, const float *x,
                              int64_t x_stride, int tokens, float *y, enum dtype type)
{
    int t = 0;
    for (; t + MATMUL_DENSE_FEW <= tokens; t += MATMUL_DENSE_FEW)
        dense_tile(w, row_bytes, rows, cols, x + t * x_stride, x_stride, MATMUL_DENSE_FEW, y + t * PANEL_ROWS, type);
    for (; t < tokens; t++)
        dense_tile(w, row_bytes, rows, cols, x + t * x_stride, x_stride, 1, y + t * PANEL_ROWS, type);
}

ALWAYS_INLINE void dense(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int64_t x_stride,
                         int tokens, float *y, enum dtype type)
{
    int r = 0;
    for (; r + DENSE_ROWS <= n; r += DENSE_ROWS)
        dense_rows(w + (size_t)r * row_bytes, row_bytes, DENSE_ROWS, cols, x, x_stride, tokens, y + r, type);
    for (; r < n; r++)
        dense_rows(w + (size_t)r * row_bytes, row_bytes, 1, cols, x, x_stride, tokens, y + r, type);
}

/* At most n. */
ALWAYS_INLINE vf load_dense_some(const uint8_t *p, int64_t k, int64_t n, enum dtype t)
{
    return n <= 0 ? vf_zero() : n < VF_LANES ? load_dense_part(p, k, (int)n, t) : load_dense(p, k, t);
}

/* Blocks of a bf12 panel as floats. */
struct bf12_tables {
    vq part[PARTS];
};

ALWAYS_INLINE struct bf12_tables bf12_tables(const uint8_t *panel)
{
    struct bf12_tables t;
    for (int p = 0; p < PARTS; p++)
        t.part[p] = vq_load(panel + p * VQ_BYTES);
    return t;
}

/* Two quads, 2 * pair and the next, of one part. */
ALWAYS_INLINE void bf12_pair(const uint8_t *block, int pair, int part, vq table, vf out[8])
{
    const vq mask = vq_set1(15), codes = vq_load(block + BF12_CODES + pair * VECTOR + part * VQ_BYTES);
    const uint8_t *low = block + 2 * pair * VECTOR + part * VQ_BYTES;
    vq_floats(vq_load(low), vq_lookup(table, vq_and(codes, mask)), out);
    vq_floats(vq_load(low + VECTOR), vq_lookup(table, vq_and(vq_shr(codes, 4), mask)), out + 4);
}

/* One block enters a token's sums. */
ALWAYS_INLINE void bf12_step(const uint8_t *block, const struct bf12_tables *t, const float *x,
                             vf acc[BF12_SUMS][PARTS])
{
    for (int pair = 0; pair < QUADS / 2; pair++)
        for (int p = 0; p < PARTS; p++) {
            vf v[8];
            bf12_pair(block, pair, p, t->part[p], v);
            for (int i = 0; i < 8; i++)
                acc[i % BF12_SUMS][p] = vf_fma(v[i], vf_set1(x[8 * pair + i]), acc[i % BF12_SUMS][p]);
        }
}

static void NAME(bf12)(const uint8_t *panel, int64_t cols, const float *x, int64_t x_stride, int tokens, float *y)
{
    const struct bf12_tables tables = bf12_tables(panel);
    for (int t = 0; t < tokens; t++, x += x_stride, y += PANEL_ROWS) {
        const uint8_t *block = panel + BF12_TABLES;
        vf acc[BF12_SUMS][PARTS];
        int64_t k = 0;
        for (int l = 0; l < BF12_SUMS; l++)
            for (int p = 0; p < PARTS; p++)
                acc[l][p] = vf_zero();
        for (; k + PANEL_BLOCK <= cols; k += PANEL_BLOCK, block += BF12_BLOCK) {
            if (t == 0)
                fetch(block + FETCH_AHEAD, BF12_BLOCK);
            bf12_step(block, &tables, x + k, acc);
        }
        if (k < cols) {
            float last[PANEL_BLOCK] = {0};
            memcpy(last, x + k, (size_t)(cols - k) * sizeof *x);
            bf12_step(block, &tables, last, acc);
        }
        for (int p = 0; p < PARTS; p++)
            vf_store(y + p * VF_LANES, vf_add(vf_add(acc[0][p], acc[2][p]), vf_add(acc[1][p], acc[3][p])));
    }
}

/* ---- many tokens ---- */

/* Rows of a chunk as floats: out [BF12_SUMS][steps][16]. */
ALWAYS_INLINE void bf12_unpack(const uint8_t *panel, const uint8_t *block, int steps, float *out)
{
    const struct bf12_tables tables = bf12_tables(panel);
    for (int q = 0; q < steps; q += 2, block += q % QUADS ? 0 : BF12_BLOCK)
        for (int p = 0; p < PARTS; p++) {
            vf v[8];
            if (p == 0)
                fetch(block + q % QUADS / 2 * (BF12_BLOCK / 4) + FETCH_AHEAD, BF12_BLOCK / 4);
            bf12_pair(block, q % QUADS / 2, p, tables.part[p], v);
            for (int i = 0; i < (q + 1 < steps ? 8 : 4); i++)
                vf_store(out + (i % 4 * steps + q + i / 4) * PANEL_ROWS + p * VF_LANES, v[i]);
        }
}

/* Rows of a chunk as floats: out [lanes][steps][16]. */
ALWAYS_INLINE void dense_unpack(const uint8_t *w, size_t row_bytes, int n, int64_t first, int64_t cols, int steps,
                                float *out, enum dtype type)
{
    /* What is unpacked next, of these rows or the next ones. */
    const int64_t size = type == DT_F32 ? 4 : 2, rest = cols - first - MATMUL_DENSE_INPUTS;
    const int64_t ahead = rest > 0 ? MATMUL_DENSE_INPUTS * size : PANEL_ROWS * (int64_t)row_bytes - first * size;
    for (int s = 0; s < steps; s++) {
        const int64_t k = first + s * VF_LANES;
        for (int r = 0; k * size % 64 == 0 && r < n; r++)
            __builtin_prefetch(w + (size_t)r * row_bytes + ahead + k * size);
        for (int p = 0; p < PARTS; p++) {
            const uint8_t *row = w + (size_t)(p * VF_LANES) * row_bytes;
            vf v[VF_LANES];
            if (n == PANEL_ROWS && k + VF_LANES <= cols)
                for (int i = 0; i < VF_LANES; i++)
                    v[i] = load_dense(row + (size_t)i * row_bytes, k, type);
            else
                for (int i = 0; i < VF_LANES; i++)
                    v[i] = load_dense_some(row + (size_t)i * row_bytes, k, p * VF_LANES + i < n ? cols - k : 0, type);
            vf_transpose(v);
            for (int l = 0; l < VF_LANES; l++)
                vf_store(out + (l * steps + s) * PANEL_ROWS + p * VF_LANES, v[l]);
        }
    }
}

/* One lane's inputs of n tokens, a constant, enter their sums [n][16]. */
ALWAYS_INLINE void many_tile(const float *w, const float *x, int steps, float *sum, int n)
{
    vf acc[MATMUL_TILE_MANY][PARTS];
    for (int t = 0; t < n; t++)
        for (int p = 0; p < PARTS; p++)
            acc[t][p] = vf_load(sum + t * PANEL_ROWS + p * VF_LANES);
#pragma GCC unroll 1
    for (int s = 0; s < steps; s++, w += PANEL_ROWS, x += n) {
        vf v[PARTS];
        for (int p = 0; p < PARTS; p++)
            v[p] = vf_load(w + p * VF_LANES);
        for (int t = 0; t < n; t++)
            for (int p = 0; p < PARTS; p++)
                acc[t][p] = vf_fma(v[p], vf_set1(x[t]), acc[t][p]);
    }
    for (int t = 0; t < n; t++)
        for (int p = 0; p < PARTS; p++)
            vf_store(sum + t * PANEL_ROWS + p * VF_LANES, acc[t][p]);
}

static void many_any_tile(const float *w, const float *x, int steps, float *sum, int n)
{
#define CASE(N)                                                                                                        \
    case N:                                                                                                            \
        if (N <= MATMUL_TILE_MANY)                                                                                     \
            many_tile(w, x, steps, sum, N <= MATMUL_TILE_MANY ? N : 1);                                                \
        return;
    switch (n) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
    }
#undef CASE
}

_Static_assert(MATMUL_TILE_MANY <= 12, "many_any_tile has all sizes");

struct dense_source {
    const uint8_t *w; /* rows, or a bf12 panel */
    size_t row_bytes;
    int rows;
    int64_t cols;
};

ALWAYS_INLINE void dense_many(const struct dense_source *source, enum dtype type, bool bf12, const float *x, int tokens,
                              float *y)
{
    const int sums = bf12 ? BF12_SUMS : VF_LANES;
    _Alignas(64) float rows[MATMUL_DENSE_INPUTS * PANEL_ROWS];
    _Alignas(64) float sum[VF_LANES * MATMUL_DENSE_TOKENS * PANEL_ROWS];
    const int tiles = matmul_dense_tiles(tokens, MATMUL_TILE_MANY), outputs = tokens * PANEL_ROWS;
    memset(sum, 0, (size_t)(sums * outputs) * sizeof *sum);
    for (int64_t k = 0; k < source->cols; k += MATMUL_DENSE_INPUTS) {
        const int64_t left = source->cols - k < MATMUL_DENSE_INPUTS ? source->cols - k : MATMUL_DENSE_INPUTS;
        const int steps = (int)(left + sums - 1) / sums;
        if (bf12)
            bf12_unpack(source->w, source->w + BF12_TABLES + k / PANEL_BLOCK * BF12_BLOCK, steps, rows);
        else
            dense_unpack(source->w, source->row_bytes, source->rows, k, source->cols, steps, rows, type);
        for (int l = 0; l < sums; l++)
            for (int i = 0; i < tiles; i++) {
                int t = matmul_dense_tile_start(tokens, MATMUL_TILE_MANY, i);
                int size = matmul_dense_tile_start(tokens, MATMUL_TILE_MANY, i + 1) - t;
                many_any_tile(rows + l * steps * PANEL_ROWS, x, steps, sum + l * outputs + t * PANEL_ROWS, size);
                x += steps * size;
            }
    }
    for (int i = 0; i < outputs; i += VF_LANES) {
        vf s[VF_LANES];
        for (int l = 0; l < sums; l++)
            s[l] = vf_load(sum + l * outputs + i);
        for (int half = sums / 2; half; half /= 2) /* the order of vf_sum */
            for (int l = 0; l < half; l++)
                s[l] = vf_add(s[l], s[l + half]);
        vf_store(y + i, s[0]);
    }
}

#define DEFINE(name, TYPE)                                                                                             \
    static void NAME(dense_##name)(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x,            \
                                   int64_t x_stride, int tokens, float *y)                                             \
    {                                                                                                                  \
        dense(w, row_bytes, n, cols, x, x_stride, tokens, y, TYPE);                                                    \
    }                                                                                                                  \
    static void NAME(many_##name)(const uint8_t *w, size_t row_bytes, int n, int64_t cols, const float *x, int tokens, \
                                  float *y)                                                                            \
    {                                                                                                                  \
        const struct dense_source source = {w, row_bytes, n, cols};                                                    \
        dense_many(&source, TYPE, false, x, tokens, y);                                                                \
    }
DEFINE(f32, DT_F32)
DEFINE(f16, DT_F16)
DEFINE(bf16, DT_BF16)
#undef DEFINE

static void NAME(many_bf12)(const uint8_t *panel, int64_t cols, const float *x, int tokens, float *y)
{
    const struct dense_source source = {panel, 0, PANEL_ROWS, cols};
    dense_many(&source, DT_BF16, true, x, tokens, y);
}

/* ---- packing ---- */

static void NAME(turn_quads)(uint8_t *p, int n)
{
    static const int8_t turned[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const vq order = vq_table(turned);
    for (int i = 0; i < n * VECTOR; i += VQ_BYTES)
        vq_store(p + i, vq_lookup(vq_load(p + i), order));
}
