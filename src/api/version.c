/* Version, build information, memory figures, tlm_free. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <turbolm/turbolm.h>

#include "backend/cpu/cpu_backend.h"
#include "base/cpu.h"
#include "base/mem.h"

#ifndef TLM_VERSION
#define TLM_VERSION "0.1.0"
#endif

const char *tlm_version(void)
{
    return TLM_VERSION;
}

const char *tlm_build_info(void)
{
    static char line[256];
    if (!line[0])
        snprintf(line, sizeof line, "cpu: %s", backend_cpu_isa_list());
    return line;
}

enum tlm_status tlm_environment_check(struct tlm_error *e)
{
    return cpu_check(e);
}

void tlm_free(void *p)
{
    mem_free(p);
}

uint64_t tlm_peak_memory(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0)
        return 0;
    return (uint64_t)u.ru_maxrss * 1024;
}
