/* The inputs of a rendering: read from JSON, checked and completed as
 * transformers 5.24's apply_chat_template does; ending inside the final message. */
#include <string.h>

#include "text/chat.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"

static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";
static const char *const reasoning_fields[] = {"reasoning_content", "thinking", "reasoning"};

/* v, which must be of that type or null. */
static struct jv expect(struct jinja_run *r, struct jv v, const char *what, enum jv_type want)
{
    r->name = what;
    if (jv_is_error(v) || v.type == JV_NONE || v.type == want)
        return v;
    return jv_fail(r, TLM_EINVAL, "found %s, expected %s", jv_type_name(v), want == JV_LIST ? "an array" : "an object");
}

/* A copy without the keys whose value is null; reasoning under any of its
 * names is also given as reasoning_content and, first, as thinking. */
static struct jv normalize_message(struct jinja_run *r, struct jv message)
{
    struct jv plain = jv_dict_new(r), out = jv_dict_new(r), thinking = jv_cstr(r, "thinking");
    struct jv content = jv_cstr(r, "reasoning_content");
    if (message.type != JV_DICT)
        return jv_fail(r, TLM_EINVAL, "found %s, expected an object for each message", jv_type_name(message));
    if (jv_is_error(plain) || jv_is_error(out))
        return jv_error;
    for (size_t i = 0; i < message.u.d->n; i++) {
        const struct jv_entry *m = &message.u.d->e[i];
        if (m->value.type != JV_NONE && !jv_dict_set(r, plain.u.d, m->key, m->value))
            return jv_error;
    }
    const struct jv *reasoning = NULL;
    for (int i = 0; i < 3 && !reasoning; i++)
        reasoning = jv_dict_find(plain.u.d, reasoning_fields[i]);
    if (!reasoning)
        return plain;
    if (!jv_dict_set(r, out.u.d, thinking, *reasoning))
        return jv_error;
    for (size_t i = 0; i < plain.u.d->n; i++)
        if (!jv_dict_set(r, out.u.d, plain.u.d->e[i].key, plain.u.d->e[i].value))
            return jv_error;
    return jv_dict_set(r, out.u.d, content, *reasoning) ? out : jv_error;
}

static struct jv normalize_messages(struct jinja_run *r, struct jv v)
{
    r->name = "messages";
    if (v.type == JV_MISSING)
        return jv_fail(r, TLM_EINVAL, "the key is missing; expected an array of at least one message");
    struct jv list = expect(r, v, "messages", JV_LIST);
    if (list.type == JV_NONE || (list.type == JV_LIST && !list.u.l->n))
        return jv_fail(r, TLM_EINVAL, "the conversation is empty; expected at least one message");
    for (size_t i = 0; !jv_is_error(list) && i < list.u.l->n; i++) {
        list.u.l->v[i] = normalize_message(r, list.u.l->v[i]);
        if (jv_is_error(list.u.l->v[i]))
            return jv_error;
    }
    return list;
}

static bool all_objects(struct jinja_run *r, struct jv list)
{
    for (size_t i = 0; list.type == JV_LIST && i < list.u.l->n; i++)
        if (list.u.l->v[i].type != JV_DICT) {
            jv_fail(r, TLM_EINVAL, "found %s, expected an object for each entry", jv_type_name(list.u.l->v[i]));
            return false;
        }
    return !jv_is_error(list);
}

/* Checks what was read, as apply_chat_template does. */
static bool check_inputs(struct jinja_run *r, struct chat_inputs *in)
{
    in->messages = normalize_messages(r, in->messages);
    in->tools = expect(r, in->tools, "tools", JV_LIST);
    bool ok = all_objects(r, in->tools);
    in->documents = expect(r, in->documents, "documents", JV_LIST);
    ok = ok && all_objects(r, in->documents);
    in->kwargs = expect(r, in->kwargs, "template variables", JV_DICT);
    return ok && r->status == TLM_OK;
}

static struct jv read_text(struct jinja_run *r, const char *text, const char *what)
{
    r->name = what;
    return text ? jinja_json_read(r, text, strlen(text)) : jv_none;
}

bool chat_read_request(struct jinja_run *r, const struct tlm_chat_request *q, struct chat_inputs *in)
{
    *in = (struct chat_inputs){.generate = q->add_generation_prompt != 0,
                               .go_on = q->continue_final_message ? "content" : NULL};
    in->messages = read_text(r, q->messages, "messages");
    in->tools = read_text(r, q->tools, "tools");
    in->documents = read_text(r, q->documents, "documents");
    in->kwargs = read_text(r, q->kwargs, "template variables");
    return check_inputs(r, in);
}

enum key_kind { K_MESSAGES, K_TOOLS, K_DOCUMENTS, K_KWARGS, K_GENERATE, K_GO_ON, K_REFUSED };

static const struct {
    const char *name;
    enum key_kind kind;
} request_keys[] = {
    {"messages", K_MESSAGES},
    {"tools", K_TOOLS},
    {"documents", K_DOCUMENTS},
    {"chat_template_kwargs", K_KWARGS},
    {"add_generation_prompt", K_GENERATE},
    {"continue_final_message", K_GO_ON},
    /* These would change the text, elsewhere or under another key. */
    {"chat_template", K_REFUSED},
    {"enable_thinking", K_REFUSED},
    {"reasoning_effort", K_REFUSED},
    {"functions", K_REFUSED},
    {"sanitize_control_tokens", K_REFUSED},
};

static bool read_flag(struct jinja_run *r, const char *name, struct jv v, bool *out)
{
    if (v.type == JV_BOOL)
        *out = v.u.i;
    else if (v.type != JV_NONE)
        jv_fail(r, TLM_EINVAL, "%s: found %s, expected true or false", name, jv_type_name(v));
    return r->status == TLM_OK;
}

/* true, or the name of the message's field to continue. */
static bool read_go_on(struct jinja_run *r, struct jv v, const char **field)
{
    bool on = false;
    if (v.type == JV_STR) {
        char *name = jv_alloc(r, v.u.s->n + 1);
        if (!name)
            return false;
        memcpy(name, v.u.s->p, v.u.s->n);
        name[v.u.s->n] = 0;
        *field = *name ? name : NULL;
        return true;
    }
    if (!read_flag(r, "continue_final_message", v, &on))
        return false;
    *field = on ? "content" : NULL;
    return true;
}

static bool read_member(struct jinja_run *r, const struct jv_entry *m, struct chat_inputs *in)
{
    enum { KEYS = sizeof request_keys / sizeof request_keys[0] };
    int k = 0;
    while (k < KEYS && !jv_str_is(m->key, request_keys[k].name))
        k++;
    if (k == KEYS) {
        log_warn("the request's key \"%.*s\" is not known", (int)(m->key.u.s->n & 127), m->key.u.s->p);
        return true;
    }
    switch (request_keys[k].kind) {
    case K_MESSAGES:
        in->messages = m->value;
        return true;
    case K_TOOLS:
        in->tools = m->value;
        return true;
    case K_DOCUMENTS:
        in->documents = m->value;
        return true;
    case K_KWARGS:
        in->kwargs = m->value;
        return true;
    case K_GENERATE:
        return read_flag(r, "add_generation_prompt", m->value, &in->generate);
    case K_GO_ON:
        return read_go_on(r, m->value, &in->go_on);
    default:
        jv_fail(r, TLM_EINVAL,
                "\"%s\" is not a key of a request; variables of the template belong into "
                "\"chat_template_kwargs\"",
                request_keys[k].name);
        return false;
    }
}

bool chat_read_json(struct jinja_run *r, const char *text, size_t n, const char *name, struct chat_inputs *in)
{
    *in = (struct chat_inputs){
        .messages = jv_missing, .tools = jv_none, .documents = jv_none, .kwargs = jv_none, .generate = true};
    r->name = name;
    struct jv v = jinja_json_read(r, text, n);
    if (!jv_is_error(v) && v.type != JV_DICT)
        v = jv_fail(r, TLM_EINVAL, "found %s, expected an object", jv_type_name(v));
    if (jv_is_error(v))
        return false;
    for (size_t i = 0; i < v.u.d->n; i++)
        if (!read_member(r, &v.u.d->e[i], in))
            return false;
    return check_inputs(r, in);
}

static struct jv with_tag(struct jinja_run *r, struct jv text)
{
    struct jv t = jv_cstr(r, tag);
    if (text.type != JV_STR)
        return jv_fail(r, TLM_EINVAL, "the final message's text is %s, expected a string", jv_type_name(text));
    return jv_is_error(t) ? t : jinja_concat2(r, text, t);
}

/* The names under which the field's text stands in the message: reasoning has
 * several. */
static int aliases(struct jinja_run *r, const struct jv_dict *message, const char *field, struct jv final,
                   const char *out[3])
{
    bool reasoning = false;
    int n = 0;
    for (int i = 0; i < 3; i++)
        reasoning = reasoning || !strcmp(field, reasoning_fields[i]);
    if (!reasoning)
        out[n++] = field;
    for (int i = 0; reasoning && i < 3; i++) {
        const struct jv *v = jv_dict_find(message, reasoning_fields[i]);
        if (v && jv_equal(r, *v, final) > 0)
            out[n++] = reasoning_fields[i];
    }
    return n;
}

struct jv chat_mark_final(struct jinja_run *r, const struct chat_inputs *in, const char *source)
{
    struct jv_dict *last = in->messages.u.l->v[in->messages.u.l->n - 1].u.d;
    struct jv text_key = jv_cstr(r, "text");
    const struct jv *content = jv_dict_find(last, in->go_on);
    const char *field[3];
    r->name = "messages";
    if (!content)
        return jv_fail(r, TLM_EINVAL,
                       "continue_final_message is set but the final message has no \"%.100s\" to continue", in->go_on);
    struct jv final = *content;
    int n = aliases(r, last, in->go_on, final, field);
    bool used = false;
    for (int i = 0; i < n; i++)
        used = used || strstr(source, field[i]);
    if (!used)
        return jv_fail(r, TLM_EINVAL, "continue_final_message is set but the template does not use \"%.100s\"",
                       in->go_on);
    if (final.type != JV_LIST) {
        struct jv tagged = with_tag(r, final);
        for (int i = 0; i < n; i++)
            if (!jv_dict_set(r, last, jv_cstr(r, field[i]), tagged))
                return jv_error;
        return final;
    }
    for (size_t i = final.u.l->n; i-- > 0;) {
        struct jv block = final.u.l->v[i];
        const struct jv *text = block.type == JV_DICT ? jv_dict_find(block.u.d, "text") : NULL;
        if (!text)
            continue;
        struct jv was = *text;
        return jv_dict_set(r, block.u.d, text_key, with_tag(r, was)) ? was : jv_error;
    }
    return jv_fail(r, TLM_EINVAL, "continue_final_message is set but there is no text in the final message");
}

bool chat_cut_at_tag(struct jinja_run *r, struct buf *out, struct jv final)
{
    size_t start = 0, end = final.u.s->n, tag_n = sizeof tag - 2; /* without its space */
    text_strip(final.u.s->p, &start, &end, NULL, 0, true, true);
    size_t at = text_rfind(buf_str(out), out->len, tag, tag_n);
    if (at == SIZE_MAX || text_find(buf_str(out), out->len, final.u.s->p + start, end - start) == SIZE_MAX) {
        jv_fail(r, TLM_EINVAL,
                "continue_final_message is set but the final message does not appear in the chat "
                "after applying the chat template; the template may delete parts of it");
        return false;
    }
    size_t from = 0;
    bool spaced = at + tag_n < out->len && out->data[at + tag_n] == ' ';
    if (!spaced)
        text_strip(out->data, &from, &at, NULL, 0, false, true);
    out->len = at;
    out->data[at] = 0;
    return true;
}
