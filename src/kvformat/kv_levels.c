/* Lloyd's iteration on the positive half of the density, over a fine grid. */
#include "kvformat/kv_levels.h"

#include <math.h>

#include "base/mem.h"

enum { GRID = 8192, ROUNDS = 4000 };

/* Sums up to each grid edge, x from 0 to 1 in GRID cells: of the density, and
 * of x times the density. */
struct moments {
    double *mass, *first; /* [GRID + 1] */
    double step;
};

static void fill(struct moments *m, int dim)
{
    /* Below 3 dimensions the density has poles; there the normal one serves. */
    double top = dim < 4 ? 6 : 1, power = 0.5 * (dim - 3);
    m->step = top / GRID;
    m->mass[0] = m->first[0] = 0;
    for (int i = 0; i < GRID; i++) {
        double x = (i + 0.5) * m->step;
        double f = dim < 4 ? exp(-0.5 * x * x) : power > 0 ? exp(power * log1p(-x * x)) : 1;
        m->mass[i + 1] = m->mass[i] + f;
        m->first[i + 1] = m->first[i] + f * x;
    }
}

/* A sum up to x, straight within a cell. */
static double up_to(const struct moments *m, const double *sum, double x)
{
    double at = x / m->step;
    if (at >= GRID)
        return sum[GRID];
    int i = (int)at;
    return sum[i] + (sum[i + 1] - sum[i]) * (at - i);
}

static double lloyd_round(const struct moments *m, double *level, int n)
{
    double from = 0, change = 0, old = level[0];
    for (int i = 0; i < n; i++) {
        double to = i + 1 < n ? 0.5 * (old + level[i + 1]) : m->step * GRID;
        double mass = up_to(m, m->mass, to) - up_to(m, m->mass, from);
        double x = mass > 0 ? (up_to(m, m->first, to) - up_to(m, m->first, from)) / mass : 0.5 * (from + to);
        change = fmax(change, fabs(x - old));
        if (i + 1 < n)
            old = level[i + 1];
        level[i] = x;
        from = to;
    }
    return change;
}

enum tlm_status kv_levels(int bits, int dim, float *levels, struct tlm_error *e)
{
    struct moments m;
    m.mass = mem_alloc_array(2 * (GRID + 1), sizeof *m.mass);
    if (!m.mass)
        return err_nomem(e, 2 * (GRID + 1) * sizeof *m.mass);
    m.first = m.mass + GRID + 1;
    fill(&m, dim);
    int n = 1 << (bits - 1);
    double half[KV_LEVELS_MAX / 2], unit = dim < 4 ? 1 : sqrt((double)dim);
    for (int i = 0; i < n; i++) /* a start near the end: normal levels are about evenly spaced */
        half[i] = (i + 0.5) * 3.0 / n / unit;
    for (int i = 0; i < ROUNDS && lloyd_round(&m, half, n) > 1e-12; i++)
        ;
    for (int i = 0; i < n; i++) {
        levels[n + i] = (float)(half[i] * unit);
        levels[n - 1 - i] = -levels[n + i];
    }
    mem_free(m.mass);
    return TLM_OK;
}
