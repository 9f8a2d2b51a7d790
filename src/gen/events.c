/* Event ring of the engine. */
#include "gen/events.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/mem.h"

enum { EVENT_TEXT_MAX = 1 << 22 };

enum tlm_status events_init(struct events *q, struct tlm_error *e)
{
    *q = (struct events){0};
    q->ring = mem_new_array(EVENTS_RING, sizeof *q->ring);
    if (!q->ring)
        return err_nomem(e, EVENTS_RING * sizeof *q->ring);
    for (int i = 0; i < EVENTS_RING; i++)
        buf_init(&q->ring[i].text, EVENT_TEXT_MAX);
    buf_init(&q->taken.text, EVENT_TEXT_MAX);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&q->lock, NULL);
    return TLM_OK;
}

void events_deinit(struct events *q)
{
    if (!q->ring)
        return;
    for (int i = 0; i < EVENTS_RING; i++)
        buf_deinit(&q->ring[i].text);
    buf_deinit(&q->taken.text);
    mem_free(q->ring);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
}

static void without_text(struct event_slot *s)
{
    struct tlm_error e = {TLM_OK, ""};
    s->ev.status = buf_check(&s->text, &e, "generated text");
    s->ev.finish = TLM_FINISH_ERROR;
    s->ev.message = s->message;
    snprintf(s->message, sizeof s->message, "%s", e.message);
    buf_clear(&s->text);
}

bool events_put(struct events *q, const struct tlm_event *ev)
{
    bool ok = true;
    pthread_mutex_lock(&q->lock);
    while (q->count == EVENTS_RING && !q->closed)
        pthread_cond_wait(&q->changed, &q->lock);
    if (q->count < EVENTS_RING) {
        struct event_slot *s = &q->ring[(q->first + q->count++) % EVENTS_RING];
        s->ev = *ev;
        buf_clear(&s->text);
        s->message[0] = 0;
        if (ev->message)
            snprintf(s->message, sizeof s->message, "%s", ev->message);
        ok = !ev->text || buf_add(&s->text, ev->text, ev->text_len) == TLM_OK;
        if (!ok && ev->type == TLM_EVENT_DONE)
            without_text(s);
        else if (!ok)
            buf_clear(&s->text);
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

static bool wait_for_event(struct events *q, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ms > 0) {
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (long)(timeout_ms % 1000) * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000L;
        }
    }
    while (q->count == 0) {
        if (timeout_ms == 0)
            return false;
        int r = timeout_ms < 0 ? pthread_cond_wait(&q->changed, &q->lock)
                               : pthread_cond_timedwait(&q->changed, &q->lock, &until);
        if (r == ETIMEDOUT)
            return q->count > 0;
    }
    return true;
}

void events_take(struct events *q, int timeout_ms, struct tlm_event *ev)
{
    *ev = (struct tlm_event){.type = TLM_EVENT_NONE};
    pthread_mutex_lock(&q->lock);
    if (wait_for_event(q, timeout_ms)) {
        struct event_slot *s = &q->ring[q->first];
        q->first = (q->first + 1) % EVENTS_RING;
        q->count--;
        struct event_slot tmp = q->taken; /* the buffers change places */
        q->taken = *s;
        *s = tmp;
        *ev = q->taken.ev;
        ev->text = q->taken.ev.text ? buf_str(&q->taken.text) : NULL;
        ev->text_len = q->taken.text.len;
        ev->message = q->taken.message[0] ? q->taken.message : NULL;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
}

void events_close(struct events *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}
