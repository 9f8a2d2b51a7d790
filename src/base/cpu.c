/* Instruction sets and cores of this machine. */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const isa_names[CPU_ISA_COUNT] = {
    [CPU_SCALAR] = "scalar",          [CPU_AVX2] = "avx2", [CPU_AVX512] = "avx512", [CPU_AVX512_VNNI] = "avx512vnni",
    [CPU_AVX512_BF16] = "avx512bf16", [CPU_NEON] = "neon",
};

const char *cpu_isa_name(enum cpu_isa isa)
{
    return isa_names[isa];
}

static unsigned detect(void)
{
    unsigned f = 1u << CPU_SCALAR;
#if defined(__x86_64__)
    unsigned eax, ebx, ecx = 0, edx;
    __builtin_cpu_init();
    bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !f16c)
        return f;
    f |= 1u << CPU_AVX2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return f;
    f |= 1u << CPU_AVX512;
    if (!__builtin_cpu_supports("avx512vnni"))
        return f;
    f |= 1u << CPU_AVX512_VNNI;
    if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 5)) /* AVX512_BF16 */
        f |= 1u << CPU_AVX512_BF16;
#elif defined(__aarch64__)
    f |= 1u << CPU_NEON;
#endif
    return f;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned features;
static const char *mask_error;

static void init(void)
{
    features = detect();
    const char *mask = getenv("TURBOLM_CPU");
    if (!mask || !*mask)
        return;
    for (int i = 0; i < CPU_ISA_COUNT; i++)
        if (!strcmp(mask, isa_names[i]) && (features >> i & 1)) {
            features &= (2u << i) - 1; /* the list is in rising order */
            return;
        }
    mask_error = mask;
}

unsigned cpu_features(void)
{
    pthread_once(&once, init);
    return features;
}

enum tlm_status cpu_check(struct tlm_error *e)
{
    char here[128] = "";
    pthread_once(&once, init);
    if (!mask_error)
        return TLM_OK;
    size_t n = 0;
    for (int i = 0; i < CPU_ISA_COUNT && n < sizeof here; i++)
        if (features >> i & 1)
            n += (size_t)snprintf(here + n, sizeof here - n, "%s%s", n ? ", " : "", isa_names[i]);
    return err_set(e, TLM_EINVAL, "TURBOLM_CPU: '%.100s', expected one of what this processor has: %s", mask_error,
                   here);
}

/* The first sibling in the kernel's list stands for its core. */
static int is_first_sibling(int cpu)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f)
        return 1;
    int first = cpu;
    if (fscanf(f, "%d", &first) != 1)
        first = cpu;
    fclose(f);
    return first == cpu;
}

int cpu_physical_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int allowed = 0, cores = 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set)) {
            allowed++;
            cores += is_first_sibling(i);
        }
    if (cores == 0) /* only second siblings are allowed */
        cores = allowed;
    return cores > 0 ? cores : 1;
}
