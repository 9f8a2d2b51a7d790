/* Rows of a data set to token ids. */
#include "text/dataset.h"

#include <string.h>

#include "base/mem.h"
#include "base/mt19937.h"
#include "text/chat.h"

static const char *const format_names[] = {
    [DATASET_TEXT] = "text", [DATASET_CHAT] = "chat", [DATASET_COMPLETIONS] = "completions"};

enum field { PROMPT, COMPLETION, MESSAGES, TEXT, TOOLS, N_FIELDS };

static const char *const field_names[N_FIELDS] = {"prompt", "completion", "messages", "text", "tools"};

/* The values as the row has them in JSON; s NULL: absent. Positions are in j's
 * text. The last of equal keys counts. */
static enum tlm_status read_fields(struct json_stream *j, struct json_text fields[N_FIELDS], bool alone)
{
    struct json_text key, *field;
    for (int i = 0; i < N_FIELDS; i++)
        fields[i] = (struct json_text){NULL, 0};
    json_enter(j, '{');
    while (json_next_key(j, &key)) {
        field = NULL;
        for (int i = 0; i < N_FIELDS; i++)
            if (json_text_is(key, field_names[i]))
                field = &fields[i];
        json_skip(j, field);
    }
    if (alone)
        json_at_end(j);
    return j->status;
}

static enum tlm_status find_format(struct tlm_dataset *d, struct tlm_error *e)
{
    struct json_stream j;
    struct json_text f[N_FIELDS];
    enum tlm_status s = dataset_rows_find(d, 0, &j, e);
    if (s != TLM_OK)
        return s;
    s = read_fields(&j, f, !d->remote);
    if (s == TLM_OK && f[PROMPT].s && f[COMPLETION].s)
        d->format = DATASET_COMPLETIONS;
    else if (s == TLM_OK && f[MESSAGES].s)
        d->format = DATASET_CHAT;
    else if (s == TLM_OK && f[TEXT].s)
        d->format = DATASET_TEXT;
    else if (s == TLM_OK)
        s = json_fail(&j, "expected a row with prompt and completion, with messages, or with text");
    json_stream_deinit(&j);
    return s;
}

/* A value of the row that must begin with `first`. */
static enum tlm_status check(struct json_stream *j, const struct json_text *value, char first, const char *missing)
{
    if (value->s && value->s[0] == first)
        return TLM_OK;
    if (value->s)
        j->p = value->s;
    return json_fail(j, missing);
}

static enum tlm_status encode_text(struct json_stream *j, const struct json_text *value, const struct tlm_tokenizer *t,
                                   int32_t **ids, size_t *n, struct tlm_error *e)
{
    struct json_text text;
    struct tlm_tokenizer_info info;
    enum tlm_status s = check(j, value, '"', "text: expected a string");
    if (s != TLM_OK)
        return s;
    j->p = value->s;
    if (!json_text_get(j, &text))
        return j->status;
    s = tlm_tokenizer_encode(t, text.s, text.n, TLM_ENCODE_SPECIAL, ids, n, e);
    tlm_tokenizer_info_get(t, &info);
    if (s != TLM_OK || info.eos < 0 || (*n && (*ids)[*n - 1] == info.eos))
        return s;
    int32_t *more = mem_realloc_array(*ids, *n + 1, sizeof *more);
    if (!more) {
        mem_free(*ids);
        *ids = NULL;
        return err_nomem(e, (*n + 1) * sizeof *more);
    }
    more[(*n)++] = info.eos;
    *ids = more;
    return TLM_OK;
}

/* The row's own JSON, so that numbers keep their form. */
static enum tlm_status make_messages(const struct tlm_dataset *d, struct json_stream *j, const struct json_text *f,
                                     struct buf *out)
{
    enum tlm_status s;
    if (d->format == DATASET_CHAT) {
        s = check(j, &f[MESSAGES], '[', "messages: expected an array");
        return s == TLM_OK ? buf_add(out, f[MESSAGES].s, f[MESSAGES].n) : s;
    }
    s = check(j, &f[PROMPT], '"', "prompt: expected a string");
    if (s == TLM_OK)
        s = check(j, &f[COMPLETION], '"', "completion: expected a string");
    if (s != TLM_OK)
        return s;
    buf_add_str(out, "[{\"role\": \"user\", \"content\": ");
    buf_add(out, f[PROMPT].s, f[PROMPT].n);
    buf_add_str(out, "}, {\"role\": \"assistant\", \"content\": ");
    buf_add(out, f[COMPLETION].s, f[COMPLETION].n);
    return buf_add_str(out, "}]");
}

static enum tlm_status encode_messages(const struct tlm_dataset *d, size_t i, struct json_stream *j,
                                       const struct json_text *f, const struct tlm_tokenizer *t,
                                       const struct tlm_chat_template *chat, const char *kwargs, int32_t **ids,
                                       size_t *n, struct tlm_error *e)
{
    struct buf messages;
    struct tlm_error why = {0};
    char *tools = NULL, *text = NULL;
    size_t len = 0;
    bool has_tools = f[TOOLS].s && f[TOOLS].s[0] != 'n';
    if (!chat)
        return err_set(e, TLM_EUNSUPPORTED, "%s: the rows are conversations, and the model has no chat template",
                       d->name);
    buf_init(&messages, (size_t)(j->end - j->start) + 128);
    enum tlm_status s = make_messages(d, j, f, &messages);
    if (s == TLM_OK && has_tools)
        s = check(j, &f[TOOLS], '[', "tools: expected an array or null");
    if (s == TLM_OK && has_tools && !(tools = mem_strndup(f[TOOLS].s, f[TOOLS].n)))
        s = err_nomem(e, f[TOOLS].n);
    if (s == TLM_OK) {
        struct tlm_chat_request r = {.messages = buf_str(&messages), .tools = tools, .kwargs = kwargs, .now = -1};
        s = tlm_chat_template_render(chat, &r, &text, &len, &why);
        if (s != TLM_OK)
            err_set(e, s, "%s: row %zu: %s", d->name, i, why.message);
    }
    if (s == TLM_OK)
        s = tlm_tokenizer_encode(t, text, len, 0, ids, n, e);
    mem_free(text);
    mem_free(tools);
    buf_deinit(&messages);
    return s;
}

enum tlm_status tlm_dataset_encode(struct tlm_dataset *d, size_t i, const struct tlm_tokenizer *t,
                                   const struct tlm_chat_template *chat, const char *kwargs, int32_t **ids, size_t *n,
                                   struct tlm_error *e)
{
    struct json_stream j;
    struct json_text f[N_FIELDS];
    *ids = NULL;
    *n = 0;
    if (i >= d->n_rows)
        return err_set(e, TLM_EINVAL, "%s: row %zu, expected 0 to %zu", d->name, i, d->n_rows - 1);
    enum tlm_status s = dataset_rows_find(d, i, &j, e);
    if (s != TLM_OK)
        return s;
    s = read_fields(&j, f, !d->remote);
    if (s == TLM_OK && d->format == DATASET_TEXT)
        s = encode_text(&j, &f[TEXT], t, ids, n, e);
    else if (s == TLM_OK)
        s = encode_messages(d, i, &j, f, t, chat, kwargs, ids, n, e);
    json_stream_deinit(&j);
    return s;
}

enum tlm_status tlm_dataset_open(const char *path, const char *split, struct tlm_dataset **out, struct tlm_error *e)
{
    *out = NULL;
    if (!path || !*path || !split || !*split)
        return err_set(e, TLM_EINVAL, "data set: no path, name or split given");
    struct tlm_dataset *d = mem_new(sizeof *d);
    if (!d)
        return err_nomem(e, sizeof *d);
    enum tlm_status s = (d->name = mem_strdup(path)) ? TLM_OK : err_nomem(e, strlen(path));
    if (s == TLM_OK)
        s = dataset_rows_open(d, path, split, e);
    if (s == TLM_OK)
        s = find_format(d, e);
    if (s != TLM_OK) {
        tlm_dataset_close(d);
        return s;
    }
    *out = d;
    return TLM_OK;
}

void tlm_dataset_close(struct tlm_dataset *d)
{
    if (!d)
        return;
    dataset_rows_close(d);
    mem_free(d->name);
    mem_free(d);
}

void tlm_dataset_info_get(const struct tlm_dataset *d, struct tlm_dataset_info *out)
{
    *out = (struct tlm_dataset_info){format_names[d->format], d->n_rows, d->remote};
}

void tlm_dataset_order(uint32_t seed, size_t n, size_t *order)
{
    struct mt19937 r;
    mt19937_seed(&r, seed);
    mt19937_permutation(&r, n, order);
}
