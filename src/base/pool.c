/* Thread pool: tickets, futexes, no locks. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

#if defined(__x86_64__)
#define cpu_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define cpu_relax() __asm__ volatile("yield")
#else
#define cpu_relax() ((void)0)
#endif

/* About 50 µs: longer than the serial work between two loops of a step. */
enum { SPINS = 3000 };

struct pool {
    int threads;
    int spins; /* none when threads have to share processors */
    pthread_t *ids;

    /* A loop is open while its ticket holds tasks: the loop's round in the
     * upper half, tasks not yet taken in the lower. Taking one is a
     * compare-and-swap, so a worker that wakes late finds another round or
     * nothing left and touches nothing. The caller waits for tasks that were
     * taken, never for workers that were not scheduled. */
    _Alignas(64) atomic_ullong ticket;
    pool_fn *fn; /* these three are stable for whoever holds a task */
    void *arg;
    int tasks;
    _Alignas(64) atomic_uint round; /* sleepers wait for it to change */
    atomic_int stop;
    _Alignas(64) atomic_uint done; /* tasks that are through */
    atomic_int caller_sleeps;
    _Alignas(64) atomic_int sleepers;
};

struct worker_arg {
    struct pool *pool;
    int index;
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, (uintptr_t)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, (uintptr_t)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void run_tasks(struct pool *p, int worker, unsigned round)
{
    for (;;) {
        unsigned long long t = atomic_load_explicit(&p->ticket, memory_order_acquire);
        do {
            if ((unsigned)(t >> 32) != round || (unsigned)t == 0)
                return;
        } while (
            !atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel, memory_order_acquire));
        unsigned tasks = (unsigned)p->tasks;
        p->fn(p->arg, (int)(tasks - (unsigned)t), worker);
        if (atomic_fetch_add_explicit(&p->done, 1, memory_order_seq_cst) + 1 == tasks &&
            atomic_load_explicit(&p->caller_sleeps, memory_order_seq_cst))
            futex_wake_all(&p->done);
    }
}

static unsigned wait_for_round(struct pool *p, unsigned seen)
{
    for (int i = 0; i < p->spins; i++) {
        unsigned r = atomic_load_explicit(&p->round, memory_order_acquire);
        if (r != seen)
            return r;
        cpu_relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    unsigned r;
    while ((r = atomic_load_explicit(&p->round, memory_order_seq_cst)) == seen)
        futex_wait(&p->round, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return r;
}

static void *worker_main(void *arg)
{
    struct worker_arg w = *(struct worker_arg *)arg;
    mem_free(arg);
    struct pool *p = w.pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_round(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        run_tasks(p, w.index, seen);
    }
}

enum tlm_status pool_new(int threads, struct pool **out, struct tlm_error *e)
{
    *out = NULL;
    if (threads < 1)
        return err_set(e, TLM_EINVAL, "threads: %d, expected at least 1", threads);
    struct pool *p = mem_alloc_pages(sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p);
    p->threads = 1;
    p->spins = threads > sysconf(_SC_NPROCESSORS_ONLN) ? 0 : SPINS;
    p->ids = mem_alloc_array((size_t)threads, sizeof *p->ids);
    if (!p->ids) {
        pool_free(p);
        return err_nomem(e, (size_t)threads * sizeof *p->ids);
    }
    while (p->threads < threads) {
        struct worker_arg *w = mem_alloc(sizeof *w);
        if (w)
            *w = (struct worker_arg){p, p->threads};
        if (!w || pthread_create(&p->ids[p->threads], NULL, worker_main, w) != 0) {
            int started = p->threads;
            mem_free(w);
            pool_free(p);
            return err_set(e, TLM_ENOMEM, "cannot start thread %d of %d", started + 1, threads);
        }
        p->threads++;
    }
    *out = p;
    return TLM_OK;
}

static void publish(struct pool *p)
{
    atomic_fetch_add_explicit(&p->round, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&p->sleepers, memory_order_seq_cst) > 0)
        futex_wake_all(&p->round);
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    if (p->ids) {
        atomic_store(&p->stop, 1);
        publish(p);
        for (int i = 1; i < p->threads; i++)
            pthread_join(p->ids[i], NULL);
    }
    mem_free(p->ids);
    mem_free_pages(p, sizeof *p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

void pool_run(struct pool *p, int tasks, pool_fn *fn, void *arg)
{
    if (p->threads == 1 || tasks <= 1) {
        for (int t = 0; t < tasks; t++)
            fn(arg, t, 0);
        return;
    }
    unsigned round = atomic_load_explicit(&p->round, memory_order_relaxed) + 1;
    p->fn = fn;
    p->arg = arg;
    p->tasks = tasks;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->ticket, (unsigned long long)round << 32 | (unsigned)tasks, memory_order_release);
    publish(p);
    run_tasks(p, 0, round);
    for (int i = 0; i < p->spins; i++) {
        if (atomic_load_explicit(&p->done, memory_order_acquire) == (unsigned)tasks)
            return;
        cpu_relax();
    }
    unsigned done;
    atomic_store_explicit(&p->caller_sleeps, 1, memory_order_seq_cst);
    while ((done = atomic_load_explicit(&p->done, memory_order_seq_cst)) != (unsigned)tasks)
        futex_wait(&p->done, done);
    atomic_store_explicit(&p->caller_sleeps, 0, memory_order_relaxed);
}
