/* Checks of the kernel that rotates and orders inputs; a part of check_vector.c, which includes it. */
#ifndef TESTS_CHECK_INPUT_H
#define TESTS_CHECK_INPUT_H

/* Rotations of whole blocks, to the bit, and against the scalar way back. */
static void check_input(const struct vector_kernels *k, const struct vector_kernels *ref)
{
    static const int64_t shapes[][2] = {{1, 1},    {8, 8},     {12, 12},   {20, 20},     {28, 28},    {36, 12},
                                        {48, 48},  {56, 56},   {64, 16},   {64, 64},     {96, 96},    {160, 160},
                                        {192, 64}, {576, 192}, {896, 896}, {1792, 1792}, {4864, 256}, {2048, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 4; how++) {
            int64_t n = shapes[i][0];
            float *x = guard_random(n, 3), *signs = guard_f32(n), *y = guard_f32(n), *want = guard_f32(n);
            int32_t *order = guard((size_t)n * sizeof *order);
            for (int64_t j = 0; j < n; j++) {
                signs[j] = pick(2) ? 1.0f : -1.0f;
                order[j] = (int32_t)j;
            }
            for (int64_t j = n - 1; j > 0; j--) {
                int64_t other = pick((int)j + 1);
                int32_t at = order[j];
                order[j] = order[other];
                order[other] = at;
            }
            struct quant_input in = {how & 2 ? order : NULL, shapes[i][1], how & 1, signs, 0};
            k->input(y, x, &in, n);
            ref->input(want, x, &in, n);
            check(same(y, want, n), "input", n, how);
            if (!in.order) {
                memcpy(y, x, (size_t)n * sizeof *y);
                k->input(y, y, &in, n);
                check(same(y, want, n), "input in place", n, how);
            }
            double before = 0, after = 0;
            for (int64_t j = 0; j < n; j++) {
                before += (double)x[j] * (double)x[j];
                after += (double)y[j] * (double)y[j];
            }
            check(fabs(before - after) <= 1e-5 * before, "length of a rotated input", n, how);
            guard_release();
        }
}

#endif
