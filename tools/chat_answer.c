/* One answer of turbolm chat: the conversation through the template, the
 * request, and what comes back, thoughts apart from what is said. */
#include "chat.h"

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "prompt.h"
#include "run.h"

enum { POLL_MS = 50 };

/* Text of one part as it is stored. */
struct text {
    char *data;
    size_t n, room;
};

/* What is shown: blocks of thoughts and of content, in turn. */
struct display {
    enum tlm_part part; /* of the block that is open */
    int begun;          /* it shows something; spaces at the start do not */
    int any_reasoning, any;
    size_t newlines; /* of thoughts, shown once more follows */
    int at_start;    /* of a line */
};

struct listener {
    struct chat_speaker *s;
    struct tlm_detokenizer *detok;
    struct tlm_reasoning *reasoning;
    struct text parts[2]; /* by enum tlm_part */
    struct display shown;
};

static void text_add(struct text *t, const char *bytes, size_t n)
{
    if (t->n + n + 1 > t->room) {
        t->room = 2 * (t->n + n + 1);
        t->data = tool_grow(t->data, t->room, 1);
    }
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\0') { /* JSON texts and templates cannot hold it */
            text_add(t, "\xEF\xBF\xBD", 3);
            text_add(t, bytes + i + 1, n - i - 1);
            return;
        }
        t->data[t->n++] = bytes[i];
    }
    t->data[t->n] = '\0';
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Showing ------------------------------------------------------------------- */

static void show(struct display *d, const char *text, size_t n)
{
    if (n == 0)
        return;
    screen_text(text, n);
    d->at_start = text[n - 1] == '\n';
}

static void end_line(struct display *d)
{
    if (!d->at_start)
        out_print("\n");
    d->at_start = 1;
}

static void end_block(struct display *d)
{
    if (d->begun && d->part == TLM_PART_REASONING)
        screen_dim(0);
    d->begun = 0;
    d->newlines = 0;
}

static void begin_block(struct display *d)
{
    if (d->any) {
        end_line(d);
        out_print("\n");
    }
    if (d->part == TLM_PART_REASONING) {
        screen_dim(1);
        out_print(screen_has_colours() ? "thinking\n" : "[thinking]\n");
        d->any_reasoning = 1;
    } else if (d->any_reasoning && !screen_has_colours()) {
        out_print("[answer]\n");
    }
    d->begun = 1;
    d->any = 1;
}

/* Newlines at the end of thoughts are not shown. */
static void show_lines(struct display *d, const char *text, size_t n)
{
    while (n > 0) {
        size_t end = 0, newlines = 0;
        while (end < n && text[end] != '\n')
            end++;
        while (end + newlines < n && text[end + newlines] == '\n')
            newlines++;
        for (; end > 0 && d->newlines > 0; d->newlines--)
            show(d, "\n", 1);
        show(d, text, end);
        d->newlines += newlines;
        text += end + newlines;
        n -= end + newlines;
    }
}

static void show_piece(struct display *d, const struct tlm_piece *p)
{
    const char *text = p->text;
    size_t n = p->len;
    if (p->part != d->part) {
        end_block(d);
        d->part = p->part;
    }
    if (!d->begun) {
        for (; n > 0 && (d->any || p->part == TLM_PART_REASONING) && is_space(*text); n--)
            text++;
        if (n == 0)
            return;
        begin_block(d);
    }
    if (p->part == TLM_PART_REASONING)
        show_lines(d, text, n);
    else
        show(d, text, n);
}

static void take_pieces(struct listener *l)
{
    struct tlm_piece p;
    while (tlm_reasoning_next(l->reasoning, &p)) {
        text_add(&l->parts[p.part], p.text, p.len);
        show_piece(&l->shown, &p);
    }
    out_flush();
}

/* Listening ----------------------------------------------------------------- */

static int is_end(const struct tlm_model *m, int32_t id)
{
    size_t n = 0;
    const int32_t *eos = tlm_model_eos(m, &n);
    for (size_t i = 0; i < n; i++) {
        if (eos[i] == id)
            return 1;
    }
    return 0;
}

/* The engine's own text leaves special tokens out, and the tags of thoughts may be such. */
static enum tlm_status hear(struct listener *l, int32_t id, struct tlm_error *e)
{
    const struct tlm_tokenizer *t = tlm_model_tokenizer(l->s->model);
    const struct tlm_reasoning_tags *tags = &l->s->tags;
    const char *piece;
    size_t n;
    chat_ids_add(&l->s->ids, &id, 1);
    int is_tag = tags->open != NULL && (id == tags->open_id || id == tags->close_id);
    if (is_end(l->s->model, id) || (tlm_tokenizer_is_special(t, id) && !is_tag))
        return TLM_OK;
    enum tlm_status status = tlm_detokenizer_push(l->detok, id, &piece, &n, e);
    if (status == TLM_OK)
        status = tlm_reasoning_push(l->reasoning, piece, n, e);
    if (status == TLM_OK)
        take_pieces(l);
    return status;
}

static enum tlm_status hear_end(struct listener *l, struct tlm_error *e)
{
    const char *piece;
    size_t n;
    enum tlm_status status = tlm_detokenizer_finish(l->detok, &piece, &n, e);
    if (status == TLM_OK)
        status = tlm_reasoning_push(l->reasoning, piece, n, e);
    tlm_reasoning_finish(l->reasoning);
    if (status == TLM_OK)
        take_pieces(l);
    end_block(&l->shown);
    end_line(&l->shown);
    return status;
}

/* Follows the request to its end; *last is its last event. */
static enum tlm_status listen(struct listener *l, uint64_t id, struct tlm_event *last, struct tlm_error *e)
{
    struct tlm_engine *engine = l->s->engine;
    enum tlm_status status = TLM_OK;
    int cancelled = 0;
    do {
        enum tlm_status next = tlm_engine_next(engine, POLL_MS, last, e);
        if (next != TLM_OK)
            return next;
        if (last->type == TLM_EVENT_TOKEN && status == TLM_OK)
            status = hear(l, last->token, e);
        if (!cancelled && last->type != TLM_EVENT_DONE && (interrupted() || out_failed() || status != TLM_OK)) {
            tlm_engine_cancel(engine, id);
            cancelled = 1;
        }
    } while (last->type != TLM_EVENT_DONE);
    if (status == TLM_OK && last->finish == TLM_FINISH_ERROR) {
        status = e->status = last->status != TLM_OK ? last->status : TLM_EINTERNAL;
        snprintf(e->message, sizeof e->message, "%s", last->message != NULL ? last->message : "");
    }
    enum tlm_status ended = hear_end(l, e);
    return status != TLM_OK ? status : ended;
}

/* After the answer ---------------------------------------------------------- */

static void print_statistics(const struct tlm_stats *s)
{
    size_t prompt = s->prompt_tokens - s->cached_tokens;
    screen_note("%zu tokens \xC2\xB7 %.1f tok/s \xC2\xB7 prompt %zu tokens %.1f tok/s \xC2\xB7 peak %.2f GB",
                s->generated_tokens, run_rate(s->generated_tokens, s->generation_seconds), prompt,
                run_rate(prompt, s->prompt_seconds), (double)tlm_peak_memory() / 1e9);
}

/* Without the spaces at both ends; NULL for nothing. Takes t's memory. */
static char *trimmed(struct text *t)
{
    char *data = t->data;
    size_t first = 0;
    while (t->n > 0 && is_space(data[t->n - 1]))
        t->n--;
    while (first < t->n && is_space(data[first]))
        first++;
    if (t->n == first)
        return NULL;
    memmove(data, data + first, t->n - first);
    data[t->n - first] = '\0';
    t->data = NULL;
    return data;
}

/* What is stored: templates put thoughts and answer together in their own way,
 * so the spaces around thoughts are not part of either. */
static void keep(struct listener *l, struct chat_answer *a)
{
    struct text *content = &l->parts[TLM_PART_CONTENT];
    size_t first = 0;
    text_add(content, "", 0);
    a->reasoning = trimmed(&l->parts[TLM_PART_REASONING]);
    while (a->reasoning != NULL && is_space(content->data[first]))
        first++;
    memmove(content->data, content->data + first, content->n - first + 1);
    a->content = content->data;
    content->data = NULL;
}

static int finish(struct listener *l, const struct tlm_request *r, const struct tlm_event *last, struct chat_answer *a)
{
    keep(l, a);
    if (last->finish == TLM_FINISH_CANCELLED && a->content[0] == '\0' && a->reasoning == NULL) {
        screen_note("stopped before anything was said");
        tool_free(a->content);
        a->content = NULL;
        return 0;
    }
    if (last->finish == TLM_FINISH_CANCELLED)
        screen_note("stopped");
    else if (last->finish == TLM_FINISH_LENGTH && (int64_t)last->stats.generated_tokens == r->max_tokens)
        screen_note("stopped at %lld tokens (--max-tokens)", (long long)r->max_tokens);
    print_statistics(&last->stats);
    run_warn_of_context(r, &last->stats, last->finish, l->s->context);
    return 1;
}

/* Filters without effect are warned of by the first request, not by every one. */
static void drop_inert(struct tlm_sampling *s)
{
    struct tlm_sampling none;
    tlm_sampling_default(&none);
    if (s->temperature > 0)
        return;
    s->top_p = none.top_p;
    s->min_p = none.min_p;
    s->top_k = none.top_k;
    s->xtc_probability = none.xtc_probability;
}

static int speak(struct listener *l, const char *prompt, size_t len, struct chat_answer *a)
{
    struct chat_speaker *s = l->s;
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_request r = {.max_tokens = s->max_tokens, .sampling = s->sampling};
    struct tlm_event last = {0};
    int32_t *ids = NULL;
    uint64_t id;
    if (chat_ids_encode(&s->ids, tlm_model_tokenizer(s->model), prompt, len, &ids, &r.n_prompt) != 0)
        return 0;
    if (run_check_ids(s->model, ids, r.n_prompt) != 0) {
        tool_free(ids);
        return 0;
    }
    r.prompt = ids;
    r.sampling.seed += s->answers++;
    chat_ids_clear(&s->ids);
    chat_ids_add(&s->ids, ids, r.n_prompt);
    enum tlm_status status = tlm_reasoning_new(&s->tags, prompt, len, &l->reasoning, &e);
    if (status == TLM_OK)
        status = tlm_detokenizer_new(tlm_model_tokenizer(s->model), 0, &l->detok, &e);
    if (status == TLM_OK)
        status = tlm_engine_submit(s->engine, &r, &id, &e);
    drop_inert(&s->sampling);
    if (status == TLM_OK)
        status = listen(l, id, &last, &e);
    int good = 0;
    if (status != TLM_OK)
        out_tlm_error(&e);
    else
        good = finish(l, &r, &last, a);
    tlm_detokenizer_free(l->detok);
    tlm_reasoning_free(l->reasoning);
    tool_free(ids);
    return good;
}

int chat_answer(struct chat_speaker *s, const struct chat_messages *c, struct chat_answer *a)
{
    struct listener l = {.s = s, .shown = {.at_start = 1}};
    char *messages = messages_text(c, 0), *prompt = NULL;
    size_t len = 0;
    struct tlm_chat_request r = {.messages = messages, .kwargs = s->kwargs, .now = -1, .add_generation_prompt = 1};
    int good = 0;
    *a = (struct chat_answer){NULL, NULL};
    if (prompt_render(s->model, &r, &prompt, &len) == 0)
        good = speak(&l, prompt, len, a);
    tool_free(l.parts[TLM_PART_CONTENT].data);
    tool_free(l.parts[TLM_PART_REASONING].data);
    cJSON_free(messages);
    tlm_free(prompt);
    return good;
}
