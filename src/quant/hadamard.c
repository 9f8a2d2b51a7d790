/* Hadamard transforms: the definition that kernels are checked against. */
#include "quant/hadamard.h"

#include <math.h>
#include <string.h>

#include "base/fp.h"

/* y[j] = sum over i of M[i][j] x[i]. Sloane's had.12, had.20.hall.n, had.28.will1
 * in the orientation that MLX applies them. */
static const char m12[12][13] = {"+-++++++++++", "--+-+-+-+-+-", "+++-++----++", "+---+--+-++-",
                                 "+++++-++----", "+-+---+--+-+", "++--+++-++--", "+--++---+--+",
                                 "++----+++-++", "+--+-++---+-", "++++----+++-", "+-+--+-++---"};
static const char m20[20][21] = {
    "+-----++++--++--+--+", "-+---+-+++---+++-+--", "--+--++-+++---+-+-+-", "---+-+++-+++-----+-+",
    "----+++++--++--+--+-", "+----+----+-++---++-", "-+----+----+-++---++", "--+----+--+-+-++---+",
    "---+----+-++-+-++---", "----+----+-++-+-++--", "++--+-+--++----+----", "+++--+-+---+----+---",
    "-+++--+-+---+----+--", "--+++--+-+---+----+-", "+--+++--+-----+----+", "+-++-++--+-+++++----",
    "-+-+++++--+-+++-+---", "+-+-+-+++-++-++--+--", "++-+---++++++-+---+-", "-++-++--++++++-----+"};
static const char m28[28][29] = {
    "+--------++++--+-++-+-++--++", "-+--------+++++-+-++-+-++--+", "--+----+---+++-+-+-++++-++--",
    "---+---++---+++-+-+-+-++-++-", "----+--+++---+++-+-+---++-++", "-----+-++++----++-+-++--++-+",
    "------+-++++--+-++-+-++--++-", "++----++------+--++---+-++-+", "+++-----+------+--++-+-+-++-",
    "-+++-----+------+--++-+-+-++", "--+++-----+---+--+--++-+-+-+", "---+++-----+--++--+--++-+-+-",
    "----+++-----+--++--+--++-+-+", "+----++------+--++--++-++-+-", "+-+--+--++--+++------++----+",
    "-+-+--++-++--+-+-----+++----", "+-+-+--++-++----+-----+++---", "-+-+-+--++-++----+-----+++--",
    "--+-+-+--++-++----+-----+++-", "+--+-+-+--++-+-----+-----+++", "-+--+-+++--++-------++----++",
    "+--++--+-+--+---++++-+------", "-+--++--+-+--+---++++-+-----", "--+--+++-+-+--+---+++--+----",
    "+--+--+-+-+-+-++---++---+---", "++--+----+-+-++++---+----+--", "-++--+-+--+-+-++++--------+-",
    "--++--+-+--+-+-++++--------+"};

int hadamard_odd(int64_t h)
{
    static const int ms[] = {28, 20, 12};
    for (int i = 0; i < 3; i++)
        if (h % ms[i] == 0) {
            int64_t rest = h / ms[i];
            if ((rest & (rest - 1)) == 0)
                return ms[i];
        }
    return 1;
}

void hadamard_signs(int m, bool back, float *out)
{
    for (int j = 0; j < m; j++)
        for (int i = 0; i < m; i++) {
            int row = back ? j : i, col = back ? i : j;
            char c = m == 12 ? m12[row][col] : m == 20 ? m20[row][col] : m == 28 ? m28[row][col] : '+';
            out[j * m + i] = c == '+' ? 1.0f : -1.0f;
        }
}

int64_t hadamard_block(int64_t n)
{
    static const int ms[] = {1, 12, 20, 28};
    int64_t best = 1;
    for (int i = 0; i < 4; i++)
        for (int64_t h = ms[i]; h <= n && n % h == 0; h *= 2)
            best = h > best ? h : best;
    return best;
}

static void butterflies(float *x, int64_t n)
{
    for (int64_t len = 1; len < n; len *= 2)
        for (int64_t i = 0; i < n; i += 2 * len)
            for (int64_t j = i; j < i + len; j++) {
                float a = x[j], b = x[j + len];
                x[j] = a + b;
                x[j + len] = a - b;
            }
}

/* The m x m matrix along m, a few columns at a time. */
static void across(float *x, int m, int64_t n, bool back)
{
    enum { COLUMNS = 16 };
    float sign[HADAMARD_M_MAX * HADAMARD_M_MAX], y[HADAMARD_M_MAX][COLUMNS];
    hadamard_signs(m, back, sign);
    for (int64_t c = 0; c < n; c += COLUMNS) {
        int64_t count = n - c < COLUMNS ? n - c : COLUMNS;
        memset(y, 0, sizeof y);
        for (int j = 0; j < m; j++)
            for (int i = 0; i < m; i++)
                for (int64_t k = 0; k < count; k++)
                    y[j][k] += sign[j * m + i] * x[i * n + c + k];
        for (int j = 0; j < m; j++)
            memcpy(x + j * n + c, y[j], (size_t)count * sizeof(float));
    }
}

void hadamard(float *x, int64_t h, bool back)
{
    int m = hadamard_odd(h);
    int64_t n = h / m;
    for (int i = 0; i < m; i++)
        butterflies(x + i * n, n);
    if (m > 1)
        across(x, m, n, back);
    float scale = (float)(1 / sqrt((double)h)); /* as MLX rounds it */
    for (int64_t i = 0; i < h; i++)
        x[i] *= scale;
}

static void round_all(float *x, int64_t n, enum dtype t)
{
    if (t == DT_BF16)
        for (int64_t i = 0; i < n; i++)
            x[i] = fp_from_bf16(fp_to_bf16(x[i]));
    else if (t == DT_F16)
        for (int64_t i = 0; i < n; i++)
            x[i] = fp_from_f16(fp_to_f16(x[i]));
}

void hadamard_rounded(float *x, int64_t h, enum dtype t)
{
    int m = hadamard_odd(h);
    int64_t n = h / m;
    for (int64_t len = 1; len < n; len *= 2) {
        for (int64_t i = 0; i < h; i += 2 * len)
            for (int64_t j = i; j < i + len; j++) {
                float a = x[j], b = x[j + len];
                x[j] = a + b;
                x[j + len] = a - b;
            }
        round_all(x, h, t);
    }
    if (m > 1)
        across(x, m, n, false);
    float scale = (float)(1 / sqrt((double)h));
    for (int64_t i = 0; i < h; i++)
        x[i] *= scale;
    round_all(x, h, t);
}

static void flip(const float *sign, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= sign[i];
}

void quant_input_rotate(const struct quant_input *in, float *x, int64_t n)
{
    if (!in->block)
        return;
    if (in->signs_first)
        flip(in->signs, x, n);
    for (int64_t k = 0; k < n; k += in->block)
        hadamard(x + k, in->block, false);
    if (!in->signs_first)
        flip(in->signs, x, n);
}

void quant_input_rotate_back(const struct quant_input *in, int64_t k0, float *x, int64_t n)
{
    if (!in->block)
        return;
    if (!in->signs_first)
        flip(in->signs + k0, x, n);
    for (int64_t k = 0; k < n; k += in->block)
        hadamard(x + k, in->block, true);
    if (in->signs_first)
        flip(in->signs + k0, x, n);
}

void quant_input_apply(const struct quant_input *in, const float *x, int64_t n, float *y)
{
    if (in->order)
        for (int64_t k = 0; k < n; k++)
            y[k] = x[in->order[k]];
    else if (y != x)
        memcpy(y, x, (size_t)n * sizeof *y);
    quant_input_rotate(in, y, n);
}
