/* Thread pool: one parallel loop at a time. The caller works too. Workers spin
 * for a moment after a loop (the next one of a step follows within
 * microseconds), then sleep, so nothing is busy while idle. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/err.h"

struct pool;

typedef void pool_fn(void *arg, int task, int worker); /* worker: 0 .. threads-1 */

/* threads counts the caller; 1 starts none. */
enum tlm_status pool_new(int threads, struct pool **out, struct tlm_error *e);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);

/* Calls fn for tasks 0 .. tasks-1, each once, in any order on any worker;
 * returns when all are done. Which worker runs a task must not change its
 * result. A single task runs on the caller at no cost. */
void pool_run(struct pool *p, int tasks, pool_fn *fn, void *arg);

#endif
