/* Compiling and rendering of templates: the parts put together. */
#include "text/jinja.h"

#include <string.h>

#include "base/mem.h"
#include "text/jinja_eval.h"

enum { SOURCE_MAX = 4 << 20 };

void jinja_free(struct jinja_template *t)
{
    if (!t)
        return;
    jinja_run_deinit(&t->run);
    mem_free(t->name);
    mem_free(t);
}

enum tlm_status jinja_compile(const char *source, size_t len, const char *name, struct jinja_template **out,
                              struct tlm_error *e)
{
    *out = NULL;
    if (len > SOURCE_MAX)
        return err_set(e, TLM_ELIMIT, "%s: the template is larger than %d bytes", name, SOURCE_MAX);
    struct jinja_template *t = mem_new(sizeof *t);
    char *copy = t ? mem_strdup(name) : NULL;
    if (!copy) {
        mem_free(t);
        return err_nomem(e, sizeof *t);
    }
    jinja_run_init(&t->run, NULL, copy, e);
    t->name = copy;
    if (jinja_lex(t, source, len) && jinja_parse(t) && jinja_resolve_scopes(t)) {
        t->run.e = NULL;
        *out = t;
        return TLM_OK;
    }
    enum tlm_status s = t->run.status;
    jinja_free(t);
    return s;
}

enum tlm_status jinja_render(const struct jinja_template *t, struct jinja_run *r, struct jv vars, struct buf *out)
{
    if (r->status != TLM_OK)
        return r->status;
    struct jv exported = jv_dict_new(r);
    size_t frames = (size_t)t->n_scopes;
    r->free_frames = jv_alloc_array(r, frames, sizeof *r->free_frames);
    if (vars.type != JV_DICT || jv_is_error(exported) || !r->free_frames) {
        jv_fail(r, TLM_EINTERNAL, "the variables of a template must be a dict");
        return r->status;
    }
    memset(r->free_frames, 0, frames * sizeof *r->free_frames);
    r->name = t->name;
    r->tpl = t;
    r->vars = vars.u.d;
    r->exported = exported.u.d;
    r->out = out;
    if (jinja_exec_root(r) == FLOW_ERROR && r->status == TLM_OK)
        jv_fail(r, TLM_EINTERNAL, "the template ended early");
    jv_buf_ok(r, out);
    r->out = NULL;
    return r->status;
}
