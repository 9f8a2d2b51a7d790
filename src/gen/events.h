/* The engine's event stream: a bounded ring between the engine's thread and
 * one reader. Slots keep their text buffers, so a steady stream allocates
 * nothing. A full ring makes the writer wait. */
#ifndef GEN_EVENTS_H
#define GEN_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <turbolm/engine.h>

#include "base/buf.h"

enum { EVENTS_RING = 1024 };

struct event_slot {
    struct tlm_event ev;
    struct buf text;
    char message[TLM_ERROR_MAX];
};

struct events {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct event_slot *ring;
    size_t first, count;
    bool closed;             /* the engine is going: writers do not wait */
    struct event_slot taken; /* what the reader holds */
};

enum tlm_status events_init(struct events *q, struct tlm_error *e);
void events_deinit(struct events *q);
/* Copies ev, its text and message. False when there is no memory for the text:
 * the text is left out then, and a last event says so. */
bool events_put(struct events *q, const struct tlm_event *ev);
void events_take(struct events *q, int timeout_ms, struct tlm_event *ev);
void events_close(struct events *q);

#endif
