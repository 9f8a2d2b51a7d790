/* Jinja templates as chat templates use them: jinja2 3.1 in the immutable
 * sandbox with trim_blocks, lstrip_blocks, loop controls and the additions of
 * transformers (generation blocks, raise_exception, strftime_now, tojson
 * without HTML escaping). There is no other template to include or extend.
 *
 *     struct jinja_run r;
 *     jinja_run_init(&r, NULL, "template", e);
 *     struct jv vars = jinja_json_read(&r, text, len);   (jinja_eval.h)
 *     jinja_render(t, &r, vars, &out);
 *     jinja_run_deinit(&r);
 */
#ifndef TEXT_JINJA_H
#define TEXT_JINJA_H

#include "text/jinja_value.h"

struct jinja_template;

/* name is for messages. Syntax errors are TLM_EFORMAT. */
enum tlm_status jinja_compile(const char *source, size_t len, const char *name, struct jinja_template **out,
                              struct tlm_error *e);
void jinja_free(struct jinja_template *t);

/* vars: a dict made in the same run. A template may be rendered by several
 * threads at once, each with its own run. Errors of the template are
 * TLM_EINVAL, TLM_ELIMIT when it asks for too much. */
enum tlm_status jinja_render(const struct jinja_template *t, struct jinja_run *r, struct jv vars, struct buf *out);

#endif
