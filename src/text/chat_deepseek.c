/* The renderer that tokenizer_config.json's chat_template_type "deepseek_v32"
 * names: DeepSeek V3.2's prompt format. The texts are the model's own.
 *
 * Apart from mlx-lm's, which this follows: arguments of calls may be an object
 * as well as JSON text, a developer message before the last user is kept,
 * tools without a system message get one, content may be a list of texts, and
 * what would be printed as Python's None or a list is refused. */
#include <string.h>

#include "text/chat.h"
#include "text/jinja_eval.h"

#define DSML                                                                                                           \
    "\xef\xbd\x9c"                                                                                                     \
    "DSML"                                                                                                             \
    "\xef\xbd\x9c"
#define BAR "\xef\xbd\x9c"
#define SPACE "\xe2\x96\x81"

static const char bos[] = "<" BAR "begin" SPACE "of" SPACE "sentence" BAR ">";
static const char eos[] = "<" BAR "end" SPACE "of" SPACE "sentence" BAR ">";
static const char user_mark[] = "<" BAR "User" BAR ">", assistant_mark[] = "<" BAR "Assistant" BAR ">";
static const char think[] = "<think>", end_think[] = "</think>";

static const char tools_before[] =
    "## Tools\n\nYou have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<" DSML "function_calls>\" block like the following as part of your "
    "reply to the user:\n<" DSML "function_calls>\n<" DSML "invoke name=\"$FUNCTION_NAME\">\n<" DSML
    "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" DSML "parameter>\n...\n</" DSML
    "invoke>\n<" DSML "invoke name=\"$FUNCTION_NAME2\">\n...\n</" DSML "invoke>\n</" DSML "function_calls>\n\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects "
    "should use JSON format. The \"string\" attribute should be set to \"true\" for string type parameters and "
    "\"false\" for other types (numbers, booleans, arrays, objects).\n\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking "
    "block. Here is an example:\n\n<" DSML "function_calls>\n...\n</" DSML "function_calls>\n\n<function_results>\n"
    "...\n</function_results>\n\n<think>...thinking about results</think>\n\n"
    "Here are the functions available in JSONSchema format:\n<functions>\n";
static const char tools_after[] = "\n</functions>\n";

struct dialog {
    struct jinja_run *r;
    struct buf *out;
    const struct jv_list *messages;
    struct jv tools;
    size_t last_user; /* messages->n: none */
    bool thinking;
};

static bool is_role(const struct jv_dict *m, const char *role)
{
    const struct jv *v = jv_dict_find(m, "role");
    return v && jv_str_is(*v, role);
}

static bool add(struct dialog *d, const char *text)
{
    buf_add_str(d->out, text);
    return jv_buf_ok(d->r, d->out);
}

static bool fail(struct dialog *d, size_t index, const char *message)
{
    jv_fail(d->r, TLM_EINVAL, "message %zu: %s", index + 1, message);
    return false;
}

static bool add_json(struct dialog *d, struct jv v)
{
    static const struct jinja_dump how = {.item_sep = ", ", .key_sep = ": "};
    return jinja_json_write(d->r, d->out, v, &how);
}

/* A string, or the texts of a list of text parts; absent: nothing, if allowed. */
static bool add_content(struct dialog *d, size_t index, bool required)
{
    const struct jv *v = jv_dict_find(d->messages->v[index].u.d, "content");
    if (!v)
        return !required || fail(d, index, "content is missing");
    if (v->type == JV_STR)
        return jv_add_str(d->r, d->out, *v);
    if (v->type != JV_LIST)
        return fail(d, index, "content must be a string or a list of texts");
    for (size_t i = 0; i < v->u.l->n; i++) {
        struct jv part = v->u.l->v[i];
        const struct jv *type = part.type == JV_DICT ? jv_dict_find(part.u.d, "type") : NULL;
        const struct jv *text = part.type == JV_DICT ? jv_dict_find(part.u.d, "text") : NULL;
        if (!type || !jv_str_is(*type, "text") || !text || text->type != JV_STR)
            return fail(d, index, "only text is supported as content");
        if (!jv_add_str(d->r, d->out, *text))
            return false;
    }
    return true;
}

static bool add_tools(struct dialog *d, struct jv tools)
{
    if (!jv_truth(tools))
        return true;
    if (tools.type != JV_LIST) {
        jv_fail(d->r, TLM_EINVAL, "tools: found %s, expected an array", jv_type_name(tools));
        return false;
    }
    add(d, "\n\n");
    add(d, tools_before);
    for (size_t i = 0; i < tools.u.l->n; i++) {
        struct jv tool = tools.u.l->v[i];
        const struct jv *f = tool.type == JV_DICT ? jv_dict_find(tool.u.d, "function") : NULL;
        if (!f) {
            jv_fail(d->r, TLM_EINVAL, "tools: entry %zu has no \"function\"", i + 1);
            return false;
        }
        if (i)
            add(d, "\n");
        if (!add_json(d, *f))
            return false;
    }
    return add(d, tools_after);
}

/* Tools and response format of a system or developer message. */
static bool add_abilities(struct dialog *d, const struct jv_dict *m)
{
    const struct jv *own = jv_dict_find(m, "tools"), *format = jv_dict_find(m, "response_format");
    if (!add_tools(d, jv_truth(d->tools) ? d->tools : own ? *own : jv_none))
        return false;
    if (!format || !jv_truth(*format))
        return true;
    add(d, "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    return add_json(d, *format);
}

static bool is_last_user(const struct dialog *d, size_t index)
{
    return d->last_user == index;
}

static bool render_user(struct dialog *d, size_t index, bool developer)
{
    const struct jv_dict *m = d->messages->v[index].u.d;
    const struct jv *content = jv_dict_find(m, "content");
    add(d, user_mark);
    if (developer) {
        if (!content || !jv_truth(*content))
            return fail(d, index, "a developer message needs content");
        if (!add_abilities(d, m) || !add(d, "\n\n# The user's message is: "))
            return false;
    }
    if (!add_content(d, index, true))
        return false;
    add(d, assistant_mark);
    return add(d, is_last_user(d, index) && d->thinking ? think : end_think);
}

/* <parameter> lines of one call. */
static bool add_arguments(struct dialog *d, size_t index, struct jv arguments)
{
    if (arguments.type == JV_STR)
        arguments = jinja_json_read(d->r, arguments.u.s->p, arguments.u.s->n);
    if (jv_is_error(arguments))
        return false;
    if (arguments.type != JV_DICT)
        return fail(d, index, "the arguments of a call must be an object");
    for (size_t i = 0; i < arguments.u.d->n; i++) {
        const struct jv_entry *a = &arguments.u.d->e[i];
        bool is_text = a->value.type == JV_STR;
        if (i)
            add(d, "\n");
        add(d, "<" DSML "parameter name=\"");
        if (!jv_add_str(d->r, d->out, a->key) || !add(d, is_text ? "\" string=\"true\">" : "\" string=\"false\">"))
            return false;
        if (is_text ? !jv_add_str(d->r, d->out, a->value) : !add_json(d, a->value))
            return false;
        add(d, "</" DSML "parameter>");
    }
    return true;
}

static bool add_calls(struct dialog *d, size_t index, struct jv calls)
{
    if (calls.type != JV_LIST)
        return fail(d, index, "tool_calls must be an array");
    add(d, "\n\n<" DSML "function_calls>\n");
    for (size_t i = 0; i < calls.u.l->n; i++) {
        struct jv call = calls.u.l->v[i];
        const struct jv *f = call.type == JV_DICT ? jv_dict_find(call.u.d, "function") : NULL;
        const struct jv *name = f && f->type == JV_DICT ? jv_dict_find(f->u.d, "name") : NULL;
        const struct jv *arguments = name ? jv_dict_find(f->u.d, "arguments") : NULL;
        if (!arguments || name->type != JV_STR)
            return fail(d, index, "a call needs \"function\" with \"name\" and \"arguments\"");
        if (i)
            add(d, "\n");
        add(d, "<" DSML "invoke name=\"");
        if (!jv_add_str(d->r, d->out, *name) || !add(d, "\">\n") || !add_arguments(d, index, *arguments))
            return false;
        add(d, "\n</" DSML "invoke>");
    }
    return add(d, "\n</" DSML "function_calls>");
}

static bool render_assistant(struct dialog *d, size_t index)
{
    const struct jv_dict *m = d->messages->v[index].u.d;
    const struct jv *calls = jv_dict_find(m, "tool_calls"), *reasoning = jv_dict_find(m, "reasoning_content");
    bool has_calls = calls && jv_truth(*calls), has_reasoning = reasoning && jv_truth(*reasoning);
    if (d->thinking && (d->last_user == d->messages->n || index > d->last_user)) {
        if (!has_calls && !has_reasoning)
            return fail(d, index,
                        "thinking is on: after the last user's message an answer needs reasoning_content "
                        "or tool_calls");
        if (has_reasoning && reasoning->type != JV_STR)
            return fail(d, index, "reasoning_content must be a string");
        if (has_reasoning && !jv_add_str(d->r, d->out, *reasoning))
            return false;
        add(d, end_think);
    }
    if (!add_content(d, index, false) || (has_calls && !add_calls(d, index, *calls)))
        return false;
    return add(d, eos);
}

static bool render_tool(struct dialog *d, size_t index)
{
    size_t at = index;
    while (at > 0 && is_role(d->messages->v[at].u.d, "tool"))
        at--;
    const struct jv_dict *m = d->messages->v[at].u.d;
    const struct jv *calls = is_role(m, "assistant") ? jv_dict_find(m, "tool_calls") : NULL;
    size_t n = calls && calls->type == JV_LIST ? calls->u.l->n : 0, order = index - at;
    if (n < order || !n)
        return fail(d, index, "a tool's result without a call before it");
    if (order == 1)
        add(d, "\n\n<function_results>");
    add(d, "\n<result>");
    if (!add_content(d, index, true))
        return false;
    add(d, "</result>");
    if (order < n)
        return jv_buf_ok(d->r, d->out);
    bool after = d->last_user == d->messages->n || index >= d->last_user;
    add(d, "\n</function_results>\n\n");
    return add(d, after && d->thinking ? think : end_think);
}

static bool render_message(struct dialog *d, size_t index)
{
    const struct jv_dict *m = d->messages->v[index].u.d;
    if (!jv_step(d->r, 1))
        return false;
    if (is_role(m, "system"))
        return add_content(d, index, false) && add_abilities(d, m);
    if (is_role(m, "user") || is_role(m, "developer"))
        return render_user(d, index, is_role(m, "developer"));
    if (is_role(m, "tool"))
        return render_tool(d, index);
    if (is_role(m, "assistant"))
        return render_assistant(d, index);
    return fail(d, index, "unknown role");
}

/* enable_thinking or thinking_mode; every other variable is unknown here. */
static bool read_kwargs(struct dialog *d, struct jv kwargs, bool *with_bos)
{
    for (size_t i = 0; kwargs.type == JV_DICT && i < kwargs.u.d->n; i++) {
        const struct jv_entry *k = &kwargs.u.d->e[i];
        if (jv_str_is(k->key, "enable_thinking"))
            d->thinking = jv_truth(k->value);
        else if (jv_str_is(k->key, "thinking_mode") && (jv_str_is(k->value, "chat") || jv_str_is(k->value, "thinking")))
            d->thinking = jv_str_is(k->value, "thinking");
        else if (jv_str_is(k->key, "add_default_bos_token"))
            *with_bos = jv_truth(k->value);
        else {
            jv_fail(d->r, TLM_EINVAL,
                    "the variable \"%.*s\" or its value is not known to deepseek_v32; it knows enable_thinking, "
                    "thinking_mode (\"chat\" or \"thinking\") and add_default_bos_token",
                    (int)(k->key.u.s->n & 127), k->key.u.s->p);
            return false;
        }
    }
    return true;
}

static void drop_end(struct buf *b, const char *suffix, size_t n)
{
    if (b->len < n || memcmp(b->data + b->len - n, suffix, n))
        return;
    b->len -= n;
    b->data[b->len] = 0;
}

bool chat_render_deepseek(struct jinja_run *r, const struct chat_inputs *in, struct buf *out)
{
    struct dialog d = {.r = r, .out = out, .messages = in->messages.u.l, .tools = in->tools, .thinking = true};
    bool with_bos = true, takes_tools = false;
    r->name = "deepseek_v32";
    if (!read_kwargs(&d, in->kwargs, &with_bos))
        return false;
    if (jv_truth(in->documents)) {
        jv_fail(r, TLM_EUNSUPPORTED, "documents are not supported");
        return false;
    }
    d.last_user = d.messages->n;
    for (size_t i = 0; i < d.messages->n; i++) {
        const struct jv_dict *m = d.messages->v[i].u.d;
        if (is_role(m, "user") || is_role(m, "developer"))
            d.last_user = i;
        takes_tools = takes_tools || is_role(m, "system") || is_role(m, "developer");
    }
    if (with_bos)
        add(&d, bos);
    if (!takes_tools && !add_tools(&d, d.tools))
        return false;
    for (size_t i = 0; i < d.messages->n; i++)
        if (!render_message(&d, i))
            return false;
    size_t last = d.messages->n - 1;
    static const char header[] = "<" BAR "Assistant" BAR "><think>";
    if (!in->generate && is_role(d.messages->v[last].u.d, "user"))
        drop_end(out, header, sizeof header - 1);
    if (in->go_on && (!is_role(d.messages->v[last].u.d, "assistant") || strcmp(in->go_on, "content")))
        return fail(&d, last, "only the content of an assistant's message can be continued");
    if (in->go_on)
        drop_end(out, eos, sizeof eos - 1);
    return jv_buf_ok(r, out);
}
