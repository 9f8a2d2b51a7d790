/* Evaluation of expressions. */
#include <string.h>

#include "text/jinja_eval.h"

static struct jv eval_name(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    for (int i = 0; i < n->hops; i++)
        f = f->parent;
    struct jv v = f->v[n->slot];
    return v.type == JV_MISSING ? jv_undefined(r, n->s) : v;
}

static struct jv eval_list(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv list = jv_list_new(r, n->l[0].n);
    for (size_t i = 0; i < n->l[0].n; i++)
        if (!jv_list_add(r, list, jinja_eval(r, f, n->l[0].v[i])))
            return jv_error;
    if (!jv_is_error(list) && n->kind == N_TUPLE)
        list.type = JV_TUPLE;
    return list;
}

static struct jv eval_dict(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv d = jv_dict_new(r);
    for (size_t i = 0; !jv_is_error(d) && i + 1 < n->l[0].n; i += 2) {
        struct jv key = jinja_eval(r, f, n->l[0].v[i]), value = jinja_eval(r, f, n->l[0].v[i + 1]);
        if (!jv_dict_set(r, d.u.d, key, value))
            return jv_error;
    }
    return d;
}

static int compare_once(struct jinja_run *r, char op, struct jv a, struct jv b)
{
    if (jv_is_error(a) || jv_is_error(b))
        return -1;
    int same;
    switch (op) {
    case 'E':
        return jv_equal(r, a, b);
    case 'N':
        same = jv_equal(r, a, b);
        return same < 0 ? same : !same;
    case 'i':
        return jv_contains(r, b, a);
    case 'n':
        same = jv_contains(r, b, a);
        return same < 0 ? same : !same;
    default:
        return jv_compare(r, a, b, op == 'L' ? 'l' : op == 'G' ? 'g' : op);
    }
}

static struct jv eval_compare(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv left = jinja_eval(r, f, n->a);
    for (size_t i = 0; i < n->l[0].n; i++) {
        const struct jinja_node *o = n->l[0].v[i];
        struct jv right = jv_is_error(left) ? jv_error : jinja_eval(r, f, o->a);
        int holds = compare_once(r, o->op, left, right);
        if (holds <= 0)
            return holds < 0 ? jv_error : jv_false;
        left = right;
    }
    return jv_true;
}

static struct jv eval_concat(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct buf b;
    jv_buf_init(r, &b);
    struct jv list = eval_list(r, f, n);
    bool safe = false;
    for (size_t i = 0; jinja_escapes(r, n) && !jv_is_error(list) && i < list.u.l->n; i++)
        safe = safe || (list.u.l->v[i].type == JV_STR && list.u.l->v[i].u.s->safe);
    for (size_t i = 0; !jv_is_error(list) && i < list.u.l->n; i++) {
        struct jv part = list.u.l->v[i];
        part = safe ? jinja_escape(r, part) : part;
        if (jv_is_error(part) || !jv_add_str(r, &b, part))
            break;
    }
    return jinja_safe_if(r, jv_from_buf(r, &b), safe);
}

static struct jv eval_item(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv obj = jinja_eval(r, f, n->a);
    if (jv_is_error(obj))
        return obj;
    if (n->b->kind != N_SLICE)
        return jinja_getitem(r, obj, jinja_eval(r, f, n->b));
    const struct jinja_node *s = n->b, *part[3] = {s->a, s->b, s->c};
    struct jv v[3];
    for (int i = 0; i < 3; i++) {
        v[i] = part[i] ? jinja_eval(r, f, part[i]) : jv_none;
        if (jv_is_error(v[i]))
            return jv_error;
    }
    return jinja_slice(r, obj, v);
}

static bool add_keyword(struct jinja_run *r, struct jinja_args *out, struct jv key, struct jv value)
{
    struct jv old;
    if (!out->kw) {
        struct jv d = jv_dict_new(r);
        if (jv_is_error(d))
            return false;
        out->kw = d.u.d;
    }
    if (key.type != JV_STR) {
        jv_type_error(r, "keywords must be strings");
        return false;
    }
    if (jv_dict_get(r, out->kw, key, &old) > 0) {
        jv_type_error(r, "got multiple values for keyword argument '%.*s'", (int)(key.u.s->n & 127), key.u.s->p);
        return false;
    }
    return jv_dict_set(r, out->kw, key, value);
}

bool jinja_eval_args(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n, struct jinja_args *out)
{
    *out = (struct jinja_args){0};
    struct jv list = jv_list_new(r, n->l[0].n), item;
    for (size_t i = 0; i < n->l[0].n; i++)
        if (!jv_list_add(r, list, jinja_eval(r, f, n->l[0].v[i])))
            return false;
    if (n->b) {
        struct jv more = jinja_eval(r, f, n->b);
        struct jv_iter *it = jv_is_error(more) ? NULL : jv_iterate(r, more);
        int got = it ? 0 : -1;
        while (it && (got = jv_next(r, it, &item)) > 0)
            if (!jv_list_add(r, list, item))
                return false;
        if (got < 0)
            return false;
    }
    if (jv_is_error(list))
        return false;
    out->v = list.u.l->v;
    out->n = list.u.l->n;
    for (size_t i = 0; i < n->l[1].n; i++)
        if (!add_keyword(r, out, n->l[1].v[i]->value, jinja_eval(r, f, n->l[1].v[i]->a)))
            return false;
    if (!n->c)
        return true;
    struct jv more = jinja_eval(r, f, n->c);
    if (more.type != JV_DICT) {
        if (!jv_is_error(more))
            jv_type_error(r, "argument after ** must be a mapping, not %s", jv_type_name(more));
        return false;
    }
    for (size_t i = 0; i < more.u.d->n; i++)
        if (!add_keyword(r, out, more.u.d->e[i].key, more.u.d->e[i].value))
            return false;
    return true;
}

struct jv jinja_eval_filter(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n, struct jv value)
{
    struct jinja_args args;
    if (n->a) /* in a chain of block filters the innermost one takes the block's text */
        value = n->a->kind == N_FILTER ? jinja_eval_filter(r, f, n->a, value) : jinja_eval(r, f, n->a);
    if (jv_is_error(value) || !jinja_eval_args(r, f, n, &args))
        return jv_error;
    r->line = n->line;
    return jinja_filter(r, n->row, n->s, value, &args);
}

static struct jv eval_test(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jinja_args args;
    struct jv value = jinja_eval(r, f, n->a);
    if (jv_is_error(value) || !jinja_eval_args(r, f, n, &args))
        return jv_error;
    int holds = jinja_test(r, n->row, n->s, value, &args);
    return holds < 0 ? jv_error : jv_bool(holds);
}

static struct jv eval_call(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jinja_args args;
    struct jv callee = jinja_eval(r, f, n->a);
    if (jv_is_error(callee) || !jinja_eval_args(r, f, n, &args))
        return jv_error;
    int line = r->line;
    r->line = n->line;
    struct jv v = jinja_call(r, callee, &args);
    if (!jv_is_error(v))
        r->line = line;
    return v;
}

static struct jv eval_cond(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv test = jinja_eval(r, f, n->b);
    if (jv_is_error(test))
        return test;
    if (jv_truth(test))
        return jinja_eval(r, f, n->a);
    if (n->c)
        return jinja_eval(r, f, n->c);
    return jv_undefined_hint(r, "the inline if-expression evaluated to false and no else section was defined.");
}

static struct jv eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv v;
    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return eval_name(r, f, n);
    case N_TUPLE:
    case N_LIST:
        return eval_list(r, f, n);
    case N_DICT:
        return eval_dict(r, f, n);
    case N_UNARY:
        return jinja_unary(r, n->op, jinja_eval(r, f, n->a));
    case N_BINARY:
        v = jinja_eval(r, f, n->a);
        return jv_is_error(v) ? v : jinja_binary(r, n->op, v, jinja_eval(r, f, n->b));
    case N_AND:
        v = jinja_eval(r, f, n->a);
        return jv_is_error(v) || !jv_truth(v) ? v : jinja_eval(r, f, n->b);
    case N_OR:
        v = jinja_eval(r, f, n->a);
        return jv_is_error(v) || jv_truth(v) ? v : jinja_eval(r, f, n->b);
    case N_NOT:
        v = jinja_eval(r, f, n->a);
        return jv_is_error(v) ? v : jv_bool(!jv_truth(v));
    case N_COMPARE:
        return eval_compare(r, f, n);
    case N_CONCAT:
        return eval_concat(r, f, n);
    case N_COND:
        return eval_cond(r, f, n);
    case N_GETATTR:
        return jinja_getattr(r, jinja_eval(r, f, n->a), n->value);
    case N_GETITEM:
        return eval_item(r, f, n);
    case N_CALL:
        return eval_call(r, f, n);
    case N_FILTER:
        return jinja_eval_filter(r, f, n, jv_missing);
    case N_TEST:
        return eval_test(r, f, n);
    case N_SLICE:
        return jv_type_error(r, "a slice inside a tuple is not supported");
    default:
        return jv_fail(r, TLM_EINTERNAL, "a statement where an expression was expected");
    }
}

struct jv jinja_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    if (!jv_step(r, 1) || !jv_enter(r))
        return jv_error;
    struct jv v = eval(r, f, n);
    jv_leave(r);
    return r->status == TLM_OK ? v : jv_error;
}
