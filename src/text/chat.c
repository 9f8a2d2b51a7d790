/* Chat templates: opening, the variables of a template as transformers 5.24
 * prepares them, rendering. */
#include "text/chat.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "io/gguf.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"

void chat_drop_templates(struct tlm_chat_template *t)
{
    for (size_t i = 0; i < t->n_named; i++) {
        mem_free(t->named[i].name);
        mem_free(t->named[i].source);
        mem_free(t->named[i].origin);
        jinja_free(t->named[i].tpl);
    }
    mem_free(t->named);
    t->named = NULL;
    t->n_named = 0;
}

void tlm_chat_template_free(struct tlm_chat_template *t)
{
    if (!t)
        return;
    chat_drop_templates(t);
    for (size_t i = 0; i < t->n_tokens; i++) {
        mem_free(t->tokens[i].name);
        mem_free(t->tokens[i].text);
    }
    mem_free(t->tokens);
    mem_free(t);
}

enum tlm_status chat_template_from_gguf(const struct gguf *g, struct tlm_chat_template **out, struct tlm_error *e)
{
    *out = NULL;
    struct tlm_chat_template *t = mem_new(sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t);
    enum tlm_status s = chat_load_gguf(t, g, e);
    if (s == TLM_OK && t->n_named)
        *out = t;
    else
        tlm_chat_template_free(t);
    return s;
}

enum tlm_status tlm_chat_template_open(const char *path, struct tlm_chat_template **out, struct tlm_error *e)
{
    return tlm_chat_template_load(path, NULL, NULL, NULL, NULL, out, e);
}

/* The source in place of every template of t. */
static enum tlm_status use_source(struct tlm_chat_template *t, const char *source, const char *name,
                                  struct tlm_error *e)
{
    chat_drop_templates(t);
    t->builtin = CHAT_JINJA;
    if (!chat_add_template(t, "default", source, strlen(source), NULL, e))
        return TLM_ENOMEM;
    return jinja_compile(source, strlen(source), name ? name : "chat template", &t->named[0].tpl, e);
}

enum tlm_status tlm_chat_template_load(const char *path, const char *source, const char *name, const char *bos,
                                       const char *eos, struct tlm_chat_template **out, struct tlm_error *e)
{
    struct gguf *g = NULL;
    struct tlm_error local = {0};
    enum tlm_status s = TLM_OK;
    e = e ? e : &local;
    *out = NULL;
    struct tlm_chat_template *t = mem_new(sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t);
    t->no_templates = source != NULL;
    if ((bos && !chat_add_token(t, "bos_token", bos, strlen(bos), e)) ||
        (eos && !chat_add_token(t, "eos_token", eos, strlen(eos), e)))
        s = TLM_ENOMEM;
    if (s == TLM_OK && path && !file_is_dir(path))
        s = gguf_open(path, &g, e);
    if (s == TLM_OK && path)
        s = g ? chat_load_gguf(t, g, e) : chat_load_dir(t, path, e);
    gguf_close(g);
    if (s == TLM_OK && source)
        s = use_source(t, source, name, e);
    if (s == TLM_OK && (t->n_named || t->builtin != CHAT_JINJA))
        *out = t;
    else
        tlm_chat_template_free(t);
    return s;
}

enum tlm_status tlm_chat_template_new(const char *source, const char *name, const char *bos, const char *eos,
                                      struct tlm_chat_template **out, struct tlm_error *e)
{
    return tlm_chat_template_load(NULL, source, name, bos, eos, out, e);
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

const char *tlm_chat_template_origin(const struct tlm_chat_template *t)
{
    const struct chat_named *n = t->builtin == CHAT_JINJA ? find_named(t, "default") : NULL;
    return n ? n->origin : NULL;
}

static bool set(struct jinja_run *r, struct jv vars, const char *name, struct jv v)
{
    return !jv_is_error(vars) && jv_dict_set(r, vars.u.d, jv_cstr(r, name), v);
}

static struct jv make_variables(struct jinja_run *r, const struct tlm_chat_template *t, const struct chat_inputs *in)
{
    struct jv vars = jv_dict_new(r);
    bool ok = true;
    for (size_t i = 0; ok && i < t->n_tokens; i++)
        ok = set(r, vars, t->tokens[i].name, jv_cstr(r, t->tokens[i].text));
    static const char *const fixed[] = {"messages", "tools", "documents", "add_generation_prompt"};
    for (size_t i = 0; ok && in->kwargs.type == JV_DICT && i < in->kwargs.u.d->n; i++) {
        const struct jv_entry *k = &in->kwargs.u.d->e[i];
        for (int j = 0; j < 4; j++)
            if (jv_str_is(k->key, fixed[j]))
                return jv_fail(r, TLM_EINVAL, "%s must not be given as a further variable", fixed[j]);
        ok = jv_dict_set(r, vars.u.d, k->key, k->value);
    }
    ok = ok && set(r, vars, "messages", in->messages) && set(r, vars, "tools", in->tools) &&
         set(r, vars, "documents", in->documents) && set(r, vars, "add_generation_prompt", jv_bool(in->generate));
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

static bool render(struct jinja_run *r, const struct tlm_chat_template *t, const struct chat_inputs *in,
                   struct buf *out)
{
    struct jv final = jv_none;
    r->name = "chat template";
    if (in->go_on && in->generate) {
        jv_fail(r, TLM_EINVAL, "continue_final_message and add_generation_prompt are not compatible");
        return false;
    }
    if (t->builtin == CHAT_DEEPSEEK_V32)
        return chat_render_deepseek(r, in, out);
    const struct chat_named *n = choose(t, in->tools.type != JV_NONE, r);
    if (!n)
        return false;
    if (in->go_on) {
        final = chat_mark_final(r, in, n->source);
        if (jv_is_error(final))
            return false;
    }
    struct jv vars = make_variables(r, t, in);
    if (jv_is_error(vars) || jinja_render(n->tpl, r, vars, out) != TLM_OK)
        return false;
    return !in->go_on || chat_cut_at_tag(r, out, final);
}

/* request: JSON text that messages call name, or NULL for q. */
static enum tlm_status render_request(const struct tlm_chat_template *t, const struct tlm_chat_request *q,
                                      const char *request, size_t n, const char *name, int64_t now, char **text,
                                      size_t *len, struct tlm_error *e)
{
    static const char plain[] = "request";
    struct jinja_run r;
    struct buf out;
    struct chat_inputs in;
    *text = NULL;
    jinja_run_init(&r, NULL, "chat template", e);
    r.now = now;
    buf_init(&out, r.max.output);
    bool good = request ? chat_read_json(&r, request, n, name ? name : plain, &in) : chat_read_request(&r, q, &in);
    if (!good && name && e && strncmp(e->message, name, strlen(name)) != 0)
        err_prefix(e, "%s", name);
    if (good && render(&r, t, &in, &out))
        *text = buf_take(&out, len);
    enum tlm_status s = r.status;
    if (s == TLM_OK && !*text)
        s = err_nomem(e, 1);
    buf_deinit(&out);
    jinja_run_deinit(&r);
    return s;
}

enum tlm_status tlm_chat_template_render(const struct tlm_chat_template *t, const struct tlm_chat_request *q,
                                         char **text, size_t *len, struct tlm_error *e)
{
    return render_request(t, q, NULL, 0, NULL, q->now, text, len, e);
}

enum tlm_status tlm_chat_template_render_json(const struct tlm_chat_template *t, const char *request, size_t n,
                                              const char *name, int64_t now, char **text, size_t *len,
                                              struct tlm_error *e)
{
    return render_request(t, NULL, request, n, name, now, text, len, e);
}
