/* The thread pool: every task runs once, whatever the number of threads, tasks
 * and rounds, also with more threads than processors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "base/pool.h"

enum { TASKS_MAX = 1000 };

struct job {
    atomic_int runs[TASKS_MAX];
    atomic_int bad_worker;
    int threads, round;
};

static void count(void *arg, int task, int worker)
{
    struct job *j = arg;
    atomic_fetch_add(&j->runs[task], 1);
    if (worker < 0 || worker >= j->threads)
        atomic_store(&j->bad_worker, 1);
}

static void test_every_task_once(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    static struct job j;
    for (int threads = 1; threads <= 9; threads += 2) {
        struct pool *p;
        assert_int_equal(pool_new(threads, &p, &e), TLM_OK);
        assert_int_equal(pool_threads(p), threads);
        j.threads = threads;
        for (int round = 0; round < 3000; round++) {
            int tasks = round % 7 == 0 ? TASKS_MAX : round % 19;
            pool_run(p, tasks, count, &j);
            for (int t = 0; t < tasks; t++)
                if (atomic_exchange(&j.runs[t], 0) != 1)
                    fail_msg("threads %d, round %d: task %d did not run once", threads, round, t);
        }
        assert_int_equal(atomic_load(&j.bad_worker), 0);
        pool_free(p);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_idle_sleeps(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    static struct job j;
    struct pool *p;
    assert_int_equal(pool_new(4, &p, &e), TLM_OK);
    j.threads = 4;
    pool_run(p, 100, count, &j);
    struct timespec pause = {0, 50000000}, rest = {1, 0};
    nanosleep(&pause, NULL);
    double before = cpu_seconds();
    nanosleep(&rest, NULL);
    assert_true(cpu_seconds() - before < 0.2); /* a spinning worker would take a second */
    pool_free(p);
}

static void test_bad_count(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    struct pool *p;
    assert_int_equal(pool_new(0, &p, &e), TLM_EINVAL);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_task_once), cmocka_unit_test(test_idle_sleeps),
                                       cmocka_unit_test(test_bad_count)};
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
