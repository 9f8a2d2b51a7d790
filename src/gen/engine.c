/* The engine's thread and its scheduler.
 *
 * Each step packs one row of every decoding sequence and then as much prompt
 * as the step size allows, oldest request first. A failed pass ends the
 * requests that were in it, with the reason, never the engine. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "gen/events.h"
#include "gen/prompt_cache.h"
#include "gen/request.h"
#include "models/model.h"

/* Prefixes of earlier requests are kept in this part of memory. */
enum { KEEP_SHARE = 8 };

enum { DEFAULT_STEP = 2048, DEFAULT_SEQUENCES = 64, DEFAULT_QUEUE = 1024, SEQUENCES_MAX = 4096, KEEP_MAX = 4096 };

struct tlm_engine {
    struct tlm_model *model;
    struct ctx ctx;
    struct kv_cache *kv;
    int step_size, max_sequences, max_queue;
    int64_t prefix_bytes; /* below 0: none are kept */
    int32_t *keep;        /* ids that XTC leaves alone */
    size_t n_keep;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct request *waiting, **waiting_tail;
    int n_waiting;
    uint64_t next_id;
    uint64_t *cancels; /* [max_queue + max_sequences] */
    int n_cancels;
    size_t promised; /* bytes of cache for what waits and runs */
    bool stop;

    /* Set by cancel when the pass that runs is that request's alone. */
    atomic_ullong sole_id;
    atomic_int abort_pass;
    atomic_int ending; /* set before abort_pass when the engine is freed */

    /* The engine's thread alone. */
    struct request **running; /* [max_sequences], oldest first */
    int n_running;
    int32_t *ids; /* [step_size + max_sequences] */
    struct kv_span *spans;
    struct request **in_pass; /* of each span */
    int32_t *out_rows;
    struct request **out_requests;
    struct events events;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t physical_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (int64_t)pages * page : INT64_C(1) << 40;
}

/* --- ending and reporting ------------------------------------------------ */

static void report_done(struct tlm_engine *g, struct request *q, enum tlm_finish finish, const struct tlm_error *err)
{
    const char *piece;
    size_t len;
    struct tlm_error lost = {0}; /* of what was held back */
    if (q->detok && finish != TLM_FINISH_ERROR && q->generated) {
        if (tlm_detokenizer_finish(q->detok, &piece, &len, &lost) == TLM_OK && finish != TLM_FINISH_STOP)
            stop_push(&q->stop, piece, len, &q->text);
        stop_flush(&q->stop, &q->text);
    }
    struct tlm_event ev = {.type = TLM_EVENT_DONE,
                           .id = q->id,
                           .finish = finish,
                           .text = q->detok ? buf_str(&q->text) : NULL,
                           .text_len = q->text.len};
    buf_check(&q->text, &lost, "generated text");
    if (!err && lost.status != TLM_OK) {
        err = &lost;
        ev.finish = TLM_FINISH_ERROR;
        ev.text_len = 0;
    }
    if (err) {
        ev.status = err->status;
        ev.message = err->message;
    }
    ev.stats.prompt_tokens = q->n_prompt + q->n_before;
    ev.stats.cached_tokens = q->n_cached;
    ev.stats.generated_tokens = q->generated;
    if (q->generated) {
        ev.stats.prompt_seconds = q->first_token - q->started;
        ev.stats.generation_seconds = q->last_token - q->first_token;
    }
    events_put(&g->events, &ev);
    buf_clear(&q->text);
}

/* Without memory for it the prefix is not kept, no more. */
static void keep_prefix(struct tlm_engine *g, const struct request *q)
{
    if (q->seq && g->prefix_bytes >= 0)
        kv_index_add(q->seq, NULL);
}

static void end_request(struct tlm_engine *g, struct request *q, enum tlm_finish finish, const struct tlm_error *err)
{
    struct tlm_error failed = {0};
    if (q->save && (finish == TLM_FINISH_STOP || finish == TLM_FINISH_LENGTH) &&
        prompt_cache_save(g->model, q->seq, q->save, &failed) != TLM_OK) {
        finish = TLM_FINISH_ERROR;
        err = &failed;
    }
    /* Before the caller hears of it, who may submit the next at once. */
    pthread_mutex_lock(&g->lock);
    g->promised -= q->cache_bytes;
    pthread_mutex_unlock(&g->lock);
    report_done(g, q, finish, err);
    keep_prefix(g, q);
    for (int i = 0; i < g->n_running; i++)
        if (g->running[i] == q) {
            memmove(&g->running[i], &g->running[i + 1], (size_t)(g->n_running - i - 1) * sizeof *g->running);
            g->n_running--;
            break;
        }
    request_free(q);
}

static void end_with_error(struct tlm_engine *g, struct request *q, const struct tlm_error *err)
{
    end_request(g, q, TLM_FINISH_ERROR, err);
}

static void report_progress(struct tlm_engine *g, const struct request *q)
{
    struct tlm_event ev = {.type = TLM_EVENT_PROGRESS, .id = q->id, .processed = q->done, .total = q->n_prompt};
    events_put(&g->events, &ev);
}

/* --- one step ------------------------------------------------------------ */

struct pass {
    int n_ids, n_spans, n_out;
};

static void add_span(struct tlm_engine *g, struct pass *p, struct request *q, const int32_t *ids, int n, bool wants_out)
{
    memcpy(g->ids + p->n_ids, ids, (size_t)n * sizeof *ids);
    g->spans[p->n_spans] = (struct kv_span){q->seq, p->n_ids, n};
    g->in_pass[p->n_spans++] = q;
    p->n_ids += n;
    if (wants_out) {
        g->out_rows[p->n_out] = p->n_ids - 1;
        g->out_requests[p->n_out++] = q;
    }
}

static struct pass plan(struct tlm_engine *g)
{
    struct pass p = {0};
    for (int i = 0; i < g->n_running; i++)
        if (g->running[i]->done == g->running[i]->n_prompt)
            add_span(g, &p, g->running[i], &g->running[i]->next, 1, true);
    int room = g->step_size;
    for (int i = 0; i < g->n_running && room > 0; i++) {
        struct request *q = g->running[i];
        size_t left = q->n_prompt - q->done;
        if (!left)
            continue;
        int64_t most = kv_seq_most_rows(q->seq);
        int n = left < (size_t)room ? (int)left : room;
        if (n > most)
            n = (int)most;
        add_span(g, &p, q, q->prompt + q->done, n, (size_t)n == left);
        room -= n;
    }
    return p;
}

/* The text of a token into q->text; true when a stop text is complete. */
static bool add_text(struct request *q, int32_t token, struct tlm_error *err)
{
    const char *piece;
    size_t len;
    if (!q->detok)
        return false;
    if (tlm_detokenizer_push(q->detok, token, &piece, &len, err) != TLM_OK)
        return false;
    bool hit = stop_push(&q->stop, piece, len, &q->text);
    buf_check(&q->text, err, "generated text");
    return hit;
}

static bool is_full(const struct tlm_engine *g, const struct request *q)
{
    int64_t context = model_base(g->model)->cfg.max_positions;
    if (q->max_tokens >= 0)
        return (int64_t)q->generated >= q->max_tokens;
    return context > 0 && kv_seq_length(q->seq) >= context;
}

static void take_token(struct tlm_engine *g, struct request *q, float *logits)
{
    if (q->max_tokens == 0) { /* only the prompt was wanted, to save it */
        end_request(g, q, TLM_FINISH_LENGTH, NULL);
        return;
    }
    struct tlm_error err = {0};
    struct tlm_event ev = {.type = TLM_EVENT_TOKEN, .id = q->id};
    if (sampler_draw(q->sampler, logits, &ev.token, &ev.logprob, &err) != TLM_OK ||
        sampler_accept(q->sampler, &ev.token, 1, &err) != TLM_OK) {
        end_with_error(g, q, &err);
        return;
    }
    q->last_token = now();
    if (!q->generated++)
        q->first_token = q->last_token;
    q->next = ev.token;
    bool eos = request_is_eos(q, ev.token);
    bool stopped = !eos && add_text(q, ev.token, &err);
    if (err.status != TLM_OK) {
        end_with_error(g, q, &err);
        return;
    }
    ev.text = q->detok ? buf_str(&q->text) : NULL;
    ev.text_len = q->text.len;
    bool kept = events_put(&g->events, &ev);
    buf_clear(&q->text);
    if (!kept) {
        err_set(&err, TLM_ENOMEM, "generated text: out of memory");
        end_with_error(g, q, &err);
        return;
    }
    if (stopped)
        end_request(g, q, TLM_FINISH_STOP, NULL);
    else if (eos)
        end_request(g, q, TLM_FINISH_STOP, NULL);
    else if (is_full(g, q))
        end_request(g, q, TLM_FINISH_LENGTH, NULL);
}

static void fail_pass(struct tlm_engine *g, const struct pass *p)
{
    struct tlm_error err = g->ctx.err;
    for (int i = 0; i < p->n_spans; i++)
        if (err.status == TLM_ECANCELED)
            end_request(g, g->in_pass[i], TLM_FINISH_CANCELLED, NULL);
        else
            end_with_error(g, g->in_pass[i], &err);
}

static void step(struct tlm_engine *g)
{
    struct pass p = plan(g);
    if (p.n_spans == 0)
        return;
    atomic_store(&g->abort_pass, 0);
    if (atomic_load(&g->ending))
        return;
    atomic_store(&g->sole_id, p.n_spans == 1 ? g->in_pass[0]->id : 0);
    float *logits = model_forward(g->model, &g->ctx, g->kv, g->ids, g->spans, p.n_spans, g->out_rows, p.n_out);
    atomic_store(&g->sole_id, 0);
    if (!logits) {
        fail_pass(g, &p);
        return;
    }
    for (int i = 0; i < p.n_spans; i++) {
        struct request *q = g->in_pass[i];
        if (q->done < q->n_prompt) {
            q->done += (size_t)g->spans[i].rows;
            report_progress(g, q);
            if (q->done == q->n_prompt)
                keep_prefix(g, q);
        }
    }
    size_t vocab = (size_t)model_base(g->model)->cfg.vocab_size;
    for (int i = 0; i < p.n_out; i++)
        take_token(g, g->out_requests[i], logits + (size_t)i * vocab);
}

/* --- admission and the loop ---------------------------------------------- */

static void start_request(struct tlm_engine *g, struct request *q)
{
    struct tlm_error err = {0};
    q->started = now();
    g->running[g->n_running++] = q;
    if (atomic_load(&g->ending)) {
        end_request(g, q, TLM_FINISH_CANCELLED, NULL);
        return;
    }
    if (q->max_tokens == 0 && !q->save) {
        end_request(g, q, TLM_FINISH_LENGTH, NULL);
        return;
    }
    enum tlm_status s;
    bool follows = false; /* the prompt comes after what the cache holds */
    if (q->assumed_depth)
        s = kv_seq_new(g->kv, &q->seq, &err);
    else if (q->prompt_cache)
        s = prompt_cache_start(g->model, g->kv, q->prompt_cache, q->prompt, q->n_prompt, &q->seq, &follows, &err);
    else
        s = kv_index_match(g->kv, q->prompt, (int64_t)q->n_prompt - 1, true, &q->seq, &err);
    if (s == TLM_OK && q->assumed_depth)
        s = kv_seq_assume(q->seq, q->assumed_depth, &err);
    if (s != TLM_OK) {
        end_with_error(g, q, &err);
        return;
    }
    if (!q->assumed_depth)
        q->n_cached = (size_t)kv_seq_length(q->seq);
    if (follows)
        q->n_before = q->n_cached;
    else
        q->done = q->n_cached;
    q->started = now();
    report_progress(g, q);
}

/* With the lock held: moves cancels and waiting requests over. */
static void admit(struct tlm_engine *g, struct request **fresh, int *n_fresh)
{
    for (int c = 0; c < g->n_cancels; c++) {
        for (int i = 0; i < g->n_running; i++)
            if (g->running[i]->id == g->cancels[c])
                g->running[i]->cancelled = true;
        for (struct request *q = g->waiting; q; q = q->link)
            if (q->id == g->cancels[c])
                q->cancelled = true;
    }
    g->n_cancels = 0;
    *n_fresh = 0;
    while (g->waiting && g->n_running + *n_fresh < g->max_sequences) {
        struct request *q = g->waiting;
        g->waiting = q->link;
        if (!g->waiting)
            g->waiting_tail = &g->waiting;
        g->n_waiting--;
        fresh[(*n_fresh)++] = q;
    }
}

static void end_cancelled(struct tlm_engine *g)
{
    for (int i = 0; i < g->n_running;)
        if (g->running[i]->cancelled)
            end_request(g, g->running[i], TLM_FINISH_CANCELLED, NULL);
        else
            i++;
}

static void *engine_main(void *arg)
{
    struct tlm_engine *g = arg;
    struct request **fresh = g->in_pass; /* free between steps */
    for (;;) {
        int n_fresh;
        pthread_mutex_lock(&g->lock);
        while (!g->stop && !g->waiting && g->n_running == 0)
            pthread_cond_wait(&g->wake, &g->lock);
        bool stop = g->stop;
        admit(g, fresh, &n_fresh);
        pthread_mutex_unlock(&g->lock);
        /* start_request may end at once, which never touches `fresh`. */
        for (int i = 0; i < n_fresh; i++)
            start_request(g, fresh[i]);
        if (stop)
            break;
        end_cancelled(g);
        step(g);
    }
    while (g->n_running)
        end_request(g, g->running[0], TLM_FINISH_CANCELLED, NULL);
    return NULL;
}

/* --- the public side ------------------------------------------------------ */

static enum tlm_status collect_keep(struct tlm_engine *g, struct tlm_error *e)
{
    const struct tlm_model *m = g->model;
    int32_t *newline = NULL;
    size_t n_newline = 0;
    enum tlm_status s = TLM_OK;
    if (m->tokenizer)
        s = tlm_tokenizer_encode(m->tokenizer, "\n", 1, 0, &newline, &n_newline, e);
    if (s != TLM_OK)
        return s;
    g->keep = mem_alloc_array(n_newline + m->n_eos, sizeof *g->keep);
    if (!g->keep)
        s = err_nomem(e, (n_newline + m->n_eos) * sizeof *g->keep);
    for (size_t i = 0; i < n_newline && g->keep; i++)
        g->keep[g->n_keep++] = newline[i];
    for (size_t i = 0; i < m->n_eos && g->keep; i++)
        g->keep[g->n_keep++] = m->eos[i];
    tlm_free(newline);
    return s;
}

static enum tlm_status set_up(struct tlm_engine *g, struct tlm_error *e)
{
    size_t n = (size_t)g->max_sequences, rows = n + (size_t)g->step_size;
    g->running = mem_new_array(n, sizeof *g->running);
    g->in_pass = mem_new_array(n, sizeof *g->in_pass);
    g->out_requests = mem_new_array(n, sizeof *g->out_requests);
    g->spans = mem_new_array(n, sizeof *g->spans);
    g->out_rows = mem_new_array(n, sizeof *g->out_rows);
    g->ids = mem_new_array(rows, sizeof *g->ids);
    g->cancels = mem_new_array(n + (size_t)g->max_queue, sizeof *g->cancels);
    if (!g->running || !g->in_pass || !g->out_requests || !g->spans || !g->out_rows || !g->ids || !g->cancels)
        return err_nomem(e, rows * sizeof *g->ids);
    enum tlm_status s = events_init(&g->events, e);
    if (s == TLM_OK)
        s = ctx_init(&g->ctx, g->model->be, e);
    g->ctx.abort = &g->abort_pass;
    if (s == TLM_OK)
        s = model_cache_new(g->model, &g->model->cache, g->prefix_bytes > 0 ? (size_t)g->prefix_bytes : 0, &g->kv, e);
    if (s == TLM_OK)
        s = collect_keep(g, e);
    if (s == TLM_OK && pthread_create(&g->thread, NULL, engine_main, g) != 0)
        s = err_set(e, TLM_ENOMEM, "cannot start the engine's thread");
    else if (s == TLM_OK)
        g->has_thread = true;
    return s;
}

static int choose(int asked, int otherwise)
{
    return asked > 0 ? asked : otherwise;
}

enum tlm_status tlm_engine_new(struct tlm_model *m, const struct tlm_engine_options *o, struct tlm_engine **out,
                               struct tlm_error *e)
{
    static const struct tlm_engine_options defaults;
    *out = NULL;
    if (!o)
        o = &defaults;
    if (!m->be)
        return err_set(e, TLM_EINVAL, "the model was opened for its description only");
    if (m->engines)
        return err_set(e, TLM_EBUSY, "the model already has an engine");
    if (o->prefill_step_size < 0 || o->prefill_step_size > 1 << 20)
        return err_set(e, TLM_EINVAL, "prefill step size: %d, expected 1 to %d", o->prefill_step_size, 1 << 20);
    if (o->max_sequences < 0 || o->max_sequences > SEQUENCES_MAX)
        return err_set(e, TLM_EINVAL, "sequences: %d, expected 1 to %d", o->max_sequences, SEQUENCES_MAX);
    struct tlm_engine *g = mem_new(sizeof *g);
    if (!g)
        return err_nomem(e, sizeof *g);
    g->model = m;
    g->step_size = choose(o->prefill_step_size, DEFAULT_STEP);
    g->max_sequences = choose(o->max_sequences, DEFAULT_SEQUENCES);
    g->max_queue = choose(o->max_queue, DEFAULT_QUEUE);
    g->prefix_bytes = o->prefix_cache_bytes ? o->prefix_cache_bytes : physical_memory() / KEEP_SHARE;
    g->waiting_tail = &g->waiting;
    g->next_id = 1;
    m->engines = 1;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->wake, NULL);
    enum tlm_status s = set_up(g, e);
    if (s != TLM_OK) {
        tlm_engine_free(g);
        return s;
    }
    *out = g;
    return TLM_OK;
}

void tlm_engine_free(struct tlm_engine *g)
{
    if (!g)
        return;
    atomic_store(&g->ending, 1);
    atomic_store(&g->abort_pass, 1);
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
    if (g->has_thread) {
        events_close(&g->events);
        pthread_join(g->thread, NULL);
    }
    while (g->waiting) {
        struct request *q = g->waiting;
        g->waiting = q->link;
        request_free(q);
    }
    kv_cache_free(g->kv);
    ctx_deinit(&g->ctx);
    events_deinit(&g->events);
    mem_free(g->running);
    mem_free(g->in_pass);
    mem_free(g->out_requests);
    mem_free(g->spans);
    mem_free(g->out_rows);
    mem_free(g->ids);
    mem_free(g->keep);
    mem_free(g->cancels);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    g->model->engines = 0;
    mem_free(g);
}

/* Bytes of cache for so many tokens in each of n sequences, which fit in memory alone. */
static enum tlm_status cache_needs(const struct tlm_engine *g, int64_t tokens, int64_t n, size_t *out,
                                   struct tlm_error *e)
{
    const int64_t memory = physical_memory(), most = INT64_C(1) << 40;
    char sequences[64] = "";
    *out = kv_cache_needs(g->kv, tokens < most ? tokens : most);
    if (n > 1)
        snprintf(sequences, sizeof sequences, " in each of %lld sequences", (long long)n);
    if (*out > (size_t)memory / (size_t)n)
        return err_set(e, TLM_ELIMIT, "%lld tokens%s need %.1f GB of cache; this machine has %.1f GB",
                       (long long)tokens, sequences, (double)*out * (double)n * 1e-9, (double)memory * 1e-9);
    *out *= (size_t)n;
    return TLM_OK;
}

static int64_t add_tokens(int64_t a, size_t b)
{
    return b <= (uint64_t)(INT64_MAX - a) ? a + (int64_t)b : INT64_MAX;
}

enum tlm_status tlm_engine_check_size(const struct tlm_engine *g, int64_t tokens, int64_t sequences,
                                      struct tlm_error *e)
{
    size_t bytes;
    if (tokens < 0 || sequences < 1)
        return err_set(e, TLM_EINVAL, "%lld tokens in %lld sequences: expected at least 0 and 1", (long long)tokens,
                       (long long)sequences);
    return cache_needs(g, tokens, sequences, &bytes, e);
}

static enum tlm_status check_request(const struct tlm_engine *g, const struct tlm_request *r, size_t *bytes,
                                     struct tlm_error *e)
{
    int64_t vocab = model_base(g->model)->cfg.vocab_size, context = model_base(g->model)->cfg.max_positions;
    if (!r->prompt || r->n_prompt == 0)
        return err_set(e, TLM_EINVAL, "the prompt is empty");
    if (r->max_tokens < -1)
        return err_set(e, TLM_EINVAL, "max_tokens: %lld, expected -1 or more", (long long)r->max_tokens);
    if (r->assumed_depth < 0)
        return err_set(e, TLM_EINVAL, "depth: %lld, expected 0 or more", (long long)r->assumed_depth);
    if (r->prompt_cache) {
        enum tlm_status s = r->assumed_depth
                                ? err_set(e, TLM_EINVAL, "a prompt cache and an assumed depth exclude each other")
                                : prompt_cache_check(r->prompt_cache, g->model, e);
        if (s != TLM_OK)
            return s;
    }
    enum tlm_status writable = r->save ? prompt_cache_save_check(r->save, e) : TLM_OK;
    if (writable != TLM_OK)
        return writable;
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab)
            return err_set(e, TLM_EINVAL, "prompt token %zu: id %d is outside the vocabulary of %lld", i, r->prompt[i],
                           (long long)vocab);
    enum tlm_status fits = cache_needs(g, add_tokens(r->assumed_depth, r->n_prompt), 1, bytes, e);
    if (fits != TLM_OK)
        return fits;
    for (size_t i = 0; r->eos && i < r->n_eos; i++)
        if (r->eos[i] < 0 || r->eos[i] >= vocab)
            return err_set(e, TLM_EINVAL, "end token %d is outside the vocabulary of %lld", r->eos[i],
                           (long long)vocab);
    if (context > 0 && r->assumed_depth + (int64_t)r->n_prompt > context)
        log_warn("the prompt of %lld tokens is longer than the model's context of %lld",
                 (long long)(r->assumed_depth + (int64_t)r->n_prompt), (long long)context);
    return tlm_sampling_check(&r->sampling, (size_t)vocab, e);
}

enum tlm_status tlm_engine_submit(struct tlm_engine *g, const struct tlm_request *r, uint64_t *id, struct tlm_error *e)
{
    struct sampler_env env = {(size_t)model_base(g->model)->cfg.vocab_size, g->keep, g->n_keep};
    struct request *q = NULL;
    size_t bytes = 0, memory = (size_t)physical_memory();
    enum tlm_status s = check_request(g, r, &bytes, e);
    if (s == TLM_OK)
        s = request_new(r, g->model->tokenizer, &env, g->model->eos, g->model->n_eos, &q, e);
    if (s != TLM_OK)
        return s;
    pthread_mutex_lock(&g->lock);
    if (g->n_waiting >= g->max_queue) {
        s = err_set(e, TLM_EBUSY, "the queue of %d requests is full", g->max_queue);
    } else if (bytes > memory - g->promised) {
        s = err_set(e, TLM_EBUSY,
                    "the request needs %.1f GB of cache beside %.1f GB of those that wait or run; this machine has "
                    "%.1f GB",
                    (double)bytes * 1e-9, (double)g->promised * 1e-9, (double)memory * 1e-9);
    } else {
        q->cache_bytes = bytes;
        g->promised += bytes;
        *id = q->id = g->next_id++;
        *g->waiting_tail = q;
        g->waiting_tail = &q->link;
        g->n_waiting++;
        pthread_cond_signal(&g->wake);
    }
    pthread_mutex_unlock(&g->lock);
    if (s != TLM_OK)
        request_free(q);
    return s;
}

void tlm_engine_cancel(struct tlm_engine *g, uint64_t id)
{
    if (id && atomic_load(&g->sole_id) == id)
        atomic_store(&g->abort_pass, 1);
    pthread_mutex_lock(&g->lock);
    bool known = false;
    for (int i = 0; i < g->n_cancels; i++)
        known = known || g->cancels[i] == id;
    /* There is room for every request that can exist at once. */
    if (!known && g->n_cancels < g->max_queue + g->max_sequences)
        g->cancels[g->n_cancels++] = id;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

enum tlm_status tlm_engine_next(struct tlm_engine *g, int timeout_ms, struct tlm_event *ev, struct tlm_error *e)
{
    (void)e;
    events_take(&g->events, timeout_ms, ev);
    return TLM_OK;
}
