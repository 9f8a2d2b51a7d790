/* Times of the vector and attention kernels; a part of check_vector.c, which includes it. */
#ifndef TESTS_BENCH_VECTOR_H
#define TESTS_BENCH_VECTOR_H

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void bench_attend(const struct isa *isa, int threads, enum kv_type type, int dim, int64_t context, int64_t rows)
{
    struct cpu_backend *b = backend_with(isa, threads);
    /* enough layers that a decode step's cache does not fit the caches */
    struct attn_args a = {.shape = {type, 3, dim, dim}, .n_heads = 9, .scale = 0.125f};
    int layers = rows > 1 ? 1 : 30, n_blocks = (int)((context + KV_BLOCK - 1) / KV_BLOCK);
    size_t bytes = kv_layer_bytes(&a.shape);
    char *memory = mem_alloc_pages((size_t)(layers * n_blocks) * bytes);
    struct attn_block *blocks = mem_new_array((size_t)(layers * n_blocks), sizeof *blocks);
    float *q = guard_random(rows * 9 * dim, 1), *y = guard_f32(rows * 9 * dim);
    if (!memory || !blocks)
        exit(1);
    for (int i = 0; i < layers * n_blocks; i++) { /* a layer's blocks lie apart, as in a cache */
        blocks[i].data = memory + (size_t)((i % n_blocks) * layers + i / n_blocks) * bytes;
        for (size_t j = 0; j < bytes; j += 2)
            memcpy((char *)blocks[i].data + j, type == KV_F16 ? "\x12\x34" : "\x12\x3f", 2);
    }
    for (int l = 0; l < layers; l++)
        count_blocks(blocks + l * n_blocks, n_blocks, context);
    struct attn_span span;
    a.spans = &span;
    a.n_spans = 1;
    struct tensor tq = matrix(q, rows, 9 * dim), ty = matrix(y, rows, 9 * dim);
    double best = 1e9;
    for (int i = 0; i < 7; i++) {
        double t0 = now();
        for (int l = 0; l < layers; l++) {
            span = exact_span(0, rows, context - rows, blocks + l * n_blocks, 0);
            cpu_attend(&b->base, &a, &ty, &tq);
        }
        best = fmin(best, (now() - t0) / layers);
    }
    double pairs = (double)rows * ((double)context - (double)(rows - 1) / 2) * 9;
    printf("%-7s %d thread%s attend %-4s head %3d, context %5ld, rows %4ld: %9.1f us  %6.1f GB/s  %6.1f GFLOP/s\n",
           isa->name, threads, threads > 1 ? "s" : " ",
           type == KV_F32   ? "f32"
           : type == KV_F16 ? "f16"
                            : "bf16",
           dim, (long)context, (long)rows, best * 1e6, (double)n_blocks * (double)bytes / best * 1e-9,
           pairs * 4 * dim / best * 1e-9);
    mem_free(blocks);
    mem_free_pages(memory, (size_t)(layers * n_blocks) * bytes);
    guard_release();
    backend_free(b);
}

static void bench_kernels(const struct isa *isa)
{
    enum { N = 4096, TIMES = 2000 };
    struct vector_kernels k;
    vector_init_scalar(&k);
    isa->init(&k);
    float *x = guard_random(N, 3), *g = guard_random(N, 3), *y = guard_f32(N);
    double t[9];
    for (int op = 0; op < 8; op++) {
        double t0 = now();
        for (int i = 0; i < TIMES; i++) {
            switch (op) {
            case 0:
                k.rms_norm(y, x, g, N, 1e-5f, 0);
                break;
            case 1:
                k.add(y, x, g, N);
                break;
            case 2:
                k.act_mul[ACT_SILU](y, x, g, N);
                break;
            case 3:
                k.act_mul[ACT_GELU_TANH](y, x, g, N);
                break;
            case 4:
                k.softcap(y, x, 30, N);
                break;
            case 5:
                k.rope[0](y, x, g, g, N);
                break;
            case 6:
                k.rope[1](y, x, g, g, N);
                break;
            default:
                y[0] = k.log_sum_exp(x, N);
                break;
            }
        }
        t[op] = (now() - t0) / TIMES / N * 1e9;
    }
    printf("%-7s ns per element: rms_norm %.3f add %.3f silu %.3f gelu %.3f softcap %.3f rope %.3f %.3f lse %.3f\n",
           isa->name, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
    guard_release();
}

/* Everything in the first level of cache. */
static void bench_ints(const struct isa *isa, int rows)
{
    enum { N = 64 };
    const int times = isa->init == vector_init_scalar ? 200 : 20000;
    struct vector_kernels k;
    vector_init_scalar(&k);
    isa->init(&k);
    struct int_dot d = {rows, N, N, N, N, N, true, NULL, 0};
    int16_t *a = guard_words(rows * N, 2000), *tile = guard_words(N * N, 4000);
    float *y = guard_random(rows * N, 3), *scale = guard_random(rows, 1e-4f);
    uint8_t *codes = guard(N * N / 2);
    double best[3] = {1e9, 1e9, 1e9};
    for (int op = 0; op < 3; op++)
        for (int round = 0; round < 5; round++) {
            double t0 = now();
            for (int i = 0; i < times; i++) {
                if (op == 0)
                    k.int_dot(y, a, tile, scale, NULL, &d);
                else if (op == 1)
                    k.kv_words(tile, codes, 4, N, N);
                else
                    k.kv_level_words(tile, codes, 4, N, N, a);
            }
            double t = (now() - t0) / times;
            best[op] = t < best[op] ? t : best[op];
        }
    printf("%-7s block of 64 x 64, %d queries: int_dot %.0f ns (%.1f G products/s), 4 bits kv_words %.0f ns, "
           "kv_level_words %.0f ns\n",
           isa->name, rows, best[0] * 1e9, rows * N * N / best[0] * 1e-9, best[1] * 1e9, best[2] * 1e9);
    guard_release();
}

static int bench(const struct isa *list, int n)
{
    for (int i = 0; i < n; i++) {
        bench_kernels(&list[i]);
        bench_ints(&list[i], 3);
        bench_ints(&list[i], 7);
        bench_ints(&list[i], 48);
    }
    for (int i = n > 1; i < n; i++)
        for (int threads = 1; threads <= 2; threads++)
            for (int type = 0; type < KV_TYPE_COUNT; type++) {
                bench_attend(&list[i], threads, (enum kv_type)type, 64, 1024, 1);
                bench_attend(&list[i], threads, (enum kv_type)type, 64, 8192, 1);
                bench_attend(&list[i], threads, (enum kv_type)type, 128, 8192, 1);
                bench_attend(&list[i], threads, (enum kv_type)type, 64, 512, 512);
                bench_attend(&list[i], threads, (enum kv_type)type, 128, 2048, 512);
            }
    return 0;
}

#endif
