/* Chat templates: the variables of a template as transformers 5.24 prepares
 * them, rendering, and ending inside the final message. */
#include "text/chat.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"

static const char tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";
static const char *const reasoning_fields[] = {"reasoning_content", "thinking", "reasoning"};

void tlm_chat_template_free(struct tlm_chat_template *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_named; i++) {
        mem_free(t->named[i].name);
        mem_free(t->named[i].source);
        jinja_free(t->named[i].tpl);
    }
    for (size_t i = 0; i < t->n_tokens; i++) {
        mem_free(t->tokens[i].name);
        mem_free(t->tokens[i].text);
    }
    mem_free(t->named);
    mem_free(t->tokens);
    mem_free(t);
}

/* path: a directory when g is NULL. */
static enum tlm_status open_from(const struct gguf *g, const char *path, struct tlm_chat_template **out,
                                 struct tlm_error *e)
{
    *out = NULL;
    struct tlm_chat_template *t = mem_new(sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t);
    enum tlm_status s = g ? chat_load_gguf(t, g, e) : chat_load_dir(t, path, e);
    if (s == TLM_OK && t->n_named)
        *out = t;
    else
        tlm_chat_template_free(t);
    return s;
}

enum tlm_status chat_template_from_gguf(const struct gguf *g, struct tlm_chat_template **out, struct tlm_error *e)
{
    return open_from(g, NULL, out, e);
}

enum tlm_status tlm_chat_template_open(const char *path, struct tlm_chat_template **out, struct tlm_error *e)
{
    struct gguf *g = NULL;
    *out = NULL;
    if (file_is_dir(path))
        return open_from(NULL, path, out, e);
    enum tlm_status s = gguf_open(path, &g, e);
    if (s == TLM_OK)
        s = open_from(g, NULL, out, e);
    gguf_close(g);
    return s;
}

enum tlm_status tlm_chat_template_new(const char *source, const char *name, const char *bos, const char *eos,
                                      struct tlm_chat_template **out, struct tlm_error *e)
{
    struct tlm_error local = {0};
    *out = NULL;
    struct tlm_chat_template *t = mem_new(sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t);
    if (!e)
        e = &local;
    if (chat_add_template(t, "default", source, strlen(source), e) &&
        (!bos || chat_add_token(t, "bos_token", bos, strlen(bos), e)) &&
        (!eos || chat_add_token(t, "eos_token", eos, strlen(eos), e)) &&
        jinja_compile(source, strlen(source), name ? name : "chat template", &t->named[0].tpl, e) == TLM_OK) {
        *out = t;
        return TLM_OK;
    }
    tlm_chat_template_free(t);
    return e->status != TLM_OK ? e->status : TLM_ENOMEM;
}

static const struct chat_named *find_named(const struct tlm_chat_template *t, const char *name)
{
    for (size_t i = 0; i < t->n_named; i++)
        if (!strcmp(t->named[i].name, name))
            return &t->named[i];
    return NULL;
}

const char *tlm_chat_template_source(const struct tlm_chat_template *t)
{
    const struct chat_named *n = find_named(t, "default");
    return n ? n->source : t->n_named ? t->named[0].source : "";
}

static struct jv read_json(struct jinja_run *r, const char *text, const char *what, enum jv_type want)
{
    r->name = what;
    struct jv v = text ? jinja_json_read(r, text, strlen(text)) : jv_none;
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

static struct jv read_messages(struct jinja_run *r, const char *text)
{
    struct jv list = read_json(r, text, "messages", JV_LIST);
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

static struct jv with_tag(struct jinja_run *r, struct jv text)
{
    struct jv t = jv_cstr(r, tag);
    if (text.type != JV_STR)
        return jv_fail(r, TLM_EINVAL, "the final message's text is %s, expected a string", jv_type_name(text));
    return jv_is_error(t) ? t : jinja_concat2(r, text, t);
}

/* Marks the end of the last text of the final message; gives that text. */
static struct jv mark_final(struct jinja_run *r, struct jv messages, const char *source)
{
    struct jv_dict *last = messages.u.l->v[messages.u.l->n - 1].u.d;
    struct jv key = jv_cstr(r, "content"), text_key = jv_cstr(r, "text");
    const struct jv *content = jv_dict_find(last, "content");
    r->name = "messages";
    if (!content)
        return jv_fail(r, TLM_EINVAL,
                       "continue_final_message is set but the final message has no \"content\" to "
                       "continue");
    if (!strstr(source, "content"))
        return jv_fail(r, TLM_EINVAL, "continue_final_message is set but the template does not use \"content\"");
    if (content->type != JV_LIST) {
        struct jv text = *content;
        return jv_dict_set(r, last, key, with_tag(r, text)) ? text : jv_error;
    }
    for (size_t i = content->u.l->n; i-- > 0;) {
        struct jv block = content->u.l->v[i];
        const struct jv *text = block.type == JV_DICT ? jv_dict_find(block.u.d, "text") : NULL;
        if (!text)
            continue;
        struct jv was = *text;
        return jv_dict_set(r, block.u.d, text_key, with_tag(r, was)) ? was : jv_error;
    }
    return jv_fail(r, TLM_EINVAL, "continue_final_message is set but there is no text in the final message");
}

static bool cut_at_tag(struct jinja_run *r, struct buf *out, struct jv final)
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

static bool set(struct jinja_run *r, struct jv vars, const char *name, struct jv v)
{
    return !jv_is_error(vars) && jv_dict_set(r, vars.u.d, jv_cstr(r, name), v);
}

static struct jv make_variables(struct jinja_run *r, const struct tlm_chat_template *t,
                                const struct tlm_chat_request *q, struct jv messages, struct jv tools,
                                struct jv documents, struct jv kwargs)
{
    struct jv vars = jv_dict_new(r);
    bool ok = true;
    for (size_t i = 0; ok && i < t->n_tokens; i++)
        ok = set(r, vars, t->tokens[i].name, jv_cstr(r, t->tokens[i].text));
    static const char *const fixed[] = {"messages", "tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; ok && kwargs.type == JV_DICT && i < kwargs.u.d->n; i++) {
        const struct jv_entry *k = &kwargs.u.d->e[i];
        for (int j = 0; j < 4; j++)
            if (jv_str_is(k->key, fixed[j]))
                return jv_fail(r, TLM_EINVAL, "%s must not be given as a further variable", fixed[j]);
        ok = jv_dict_set(r, vars.u.d, k->key, k->value);
    }
    ok = ok && set(r, vars, "messages", messages) && set(r, vars, "tools", tools) &&
         set(r, vars, "documents", documents) &&
         set(r, vars, "add_generation_prompt", jv_bool(q->add_generation_prompt != 0));
    return ok ? vars : jv_error;
}

static const struct chat_named *choose(const struct tlm_chat_template *t, bool tools, struct jinja_run *r)
{
    const struct chat_named *n = tools ? find_named(t, "tool_use") : NULL;
    if (!n)
        n = find_named(t, "default");
    if (!n)
        jv_fail(r, TLM_EINVAL, "the model has several chat templates and none is called \"default\"");
    return n;
}

static bool render(struct jinja_run *r, const struct tlm_chat_template *t, const struct tlm_chat_request *q,
                   struct buf *out)
{
    struct jv messages = read_messages(r, q->messages);
    struct jv tools = read_json(r, q->tools, "tools", JV_LIST);
    bool ok = all_objects(r, tools);
    struct jv documents = read_json(r, q->documents, "documents", JV_LIST);
    ok = ok && all_objects(r, documents);
    struct jv kwargs = read_json(r, q->kwargs, "template variables", JV_DICT), final = jv_none;
    r->name = "chat template";
    if (!ok || r->status != TLM_OK)
        return false;
    if (q->continue_final_message && q->add_generation_prompt) {
        jv_fail(r, TLM_EINVAL, "continue_final_message and add_generation_prompt are not compatible");
        return false;
    }
    const struct chat_named *n = choose(t, tools.type != JV_NONE, r);
    if (!n)
        return false;
    if (q->continue_final_message) {
        final = mark_final(r, messages, n->source);
        if (jv_is_error(final))
            return false;
    }
    struct jv vars = make_variables(r, t, q, messages, tools, documents, kwargs);
    if (jv_is_error(vars) || jinja_render(n->tpl, r, vars, out) != TLM_OK)
        return false;
    return !q->continue_final_message || cut_at_tag(r, out, final);
}

enum tlm_status tlm_chat_template_render(const struct tlm_chat_template *t, const struct tlm_chat_request *q,
                                         char **text, size_t *len, struct tlm_error *e)
{
    struct jinja_run r;
    struct buf out;
    *text = NULL;
    jinja_run_init(&r, NULL, "chat template", e);
    r.now = q->now;
    buf_init(&out, r.max.output);
    if (render(&r, t, q, &out))
        *text = buf_take(&out, len);
    enum tlm_status s = r.status;
    if (s == TLM_OK && !*text)
        s = err_nomem(e, out.len);
    buf_deinit(&out);
    jinja_run_deinit(&r);
    return s;
}
