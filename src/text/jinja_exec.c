/* Execution of statements: variables, loops, macros, output. */
#include <stdio.h>
#include <string.h>

#include "text/jinja_eval.h"

static void load_variables(struct jinja_run *r, struct jinja_frame *f)
{
    const struct jinja_scope *s = f->scope;
    for (size_t i = 0; i < s->n; i++) {
        const struct jinja_ref *ref = &s->ref[i];
        if (ref->load == LOAD_RESOLVE) {
            f->v[i] = jinja_resolve(r, ref->name);
        } else if (ref->load == LOAD_ALIAS) {
            const struct jinja_frame *from = f;
            for (int k = 0; k < ref->hops; k++)
                from = from->parent;
            f->v[i] = from->v[ref->slot];
        } else {
            f->v[i] = jv_missing;
        }
    }
}

static struct jinja_frame *enter(struct jinja_run *r, const struct jinja_scope *s, struct jinja_frame *parent)
{
    struct jinja_frame *f = r->free_frames[s->id];
    if (f)
        r->free_frames[s->id] = f->next_free;
    else
        f = jv_alloc(r, sizeof *f + s->n * sizeof f->v[0]);
    if (!f || !jv_step(r, s->n))
        return NULL;
    f->parent = parent;
    f->scope = s;
    f->captured = false;
    load_variables(r, f);
    return r->status == TLM_OK ? f : NULL;
}

/* A frame nobody kept serves the next time its scope is entered. */
static void leave(struct jinja_run *r, struct jinja_frame *f)
{
    if (!f || f->captured)
        return;
    f->next_free = r->free_frames[f->scope->id];
    r->free_frames[f->scope->id] = f;
}

static void capture(struct jinja_frame *f)
{
    for (; f && !f->captured; f = f->parent)
        f->captured = true;
}

struct jv jinja_resolve(struct jinja_run *r, const char *name)
{
    struct jv key = jv_cstr(r, name), v;
    if (jv_is_error(key))
        return jv_error;
    if ((r->scoped && jv_dict_get(r, r->scoped, key, &v) > 0) || jv_dict_get(r, r->exported, key, &v) > 0 ||
        jv_dict_get(r, r->vars, key, &v) > 0)
        return v;
    return r->status == TLM_OK ? jinja_global(r, name) : jv_error;
}

static bool assign(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target, struct jv v, int shift);

static bool unpack(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target, struct jv v, int shift)
{
    size_t want = target->l[0].n;
    if (!jv_iterable(v)) {
        jv_type_error(r, "cannot unpack non-iterable %s object", jv_type_name(v));
        return false;
    }
    struct jv list = jv_to_list(r, v);
    if (jv_is_error(list))
        return false;
    if (list.u.l->n != want) {
        if (list.u.l->n < want)
            jv_fail(r, TLM_EINVAL, "not enough values to unpack (expected %zu, got %zu)", want, list.u.l->n);
        else
            jv_fail(r, TLM_EINVAL, "too many values to unpack (expected %zu)", want);
        return false;
    }
    for (size_t i = 0; i < want; i++)
        if (!assign(r, f, target->l[0].v[i], list.u.l->v[i], shift))
            return false;
    return true;
}

static bool namespace_store(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target, struct jv v)
{
    struct jinja_frame *at = f;
    for (int i = 0; i < target->hops; i++)
        at = at->parent;
    struct jv ns = at->v[target->slot];
    if (ns.type != JV_NAMESPACE) {
        jv_fail(r, TLM_EINVAL, "cannot assign attribute on non-namespace object");
        return false;
    }
    if (target->value.u.s->p[0] == '_') {
        jv_fail(r, TLM_EINVAL,
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
                "'%.*s'.",
                (int)(target->value.u.s->n & 127), target->value.u.s->p);
        return false;
    }
    return jv_dict_set(r, ns.u.d, target->value, v);
}

/* shift: a for loop's target is resolved against its body, whose first
 * variable is loop; its filter's scope lacks that one. */
static bool assign(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target, struct jv v, int shift)
{
    if (jv_is_error(v))
        return false;
    if (target->kind == N_TUPLE)
        return unpack(r, f, target, v, shift);
    if (target->kind == N_NSREF)
        return namespace_store(r, f, target, v);
    f->v[target->slot - shift] = v;
    if (f->parent || f->scope != r->tpl->root)
        return true;
    return jv_dict_set(r, r->exported, jv_cstr(r, target->s), v);
}

static bool check_namespaces(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *target)
{
    if (target->kind == N_NSREF) {
        struct jinja_frame *at = f;
        for (int i = 0; i < target->hops; i++)
            at = at->parent;
        if (at->v[target->slot].type != JV_NAMESPACE) {
            jv_fail(r, TLM_EINVAL, "cannot assign attribute on non-namespace object");
            return false;
        }
    }
    for (size_t i = 0; target->kind == N_TUPLE && i < target->l[0].n; i++)
        if (!check_namespaces(r, f, target->l[0].v[i]))
            return false;
    return true;
}

/* Runs a body with its output going to a text of its own. */
static enum jinja_flow exec_captured(struct jinja_run *r, struct jinja_frame *f, const struct jinja_list *body,
                                     struct jv *text)
{
    struct buf b, *outer = r->out;
    jv_buf_init(r, &b);
    r->out = &b;
    enum jinja_flow flow = jinja_exec(r, f, body);
    r->out = outer;
    *text = jv_from_buf(r, &b);
    return jv_is_error(*text) ? FLOW_ERROR : flow;
}

/* ---- loops ---- */

static int peek_next(struct jinja_run *r, struct jv_loop *l)
{
    if (l->has_after)
        return 1;
    int got = jv_next(r, l->it, &l->after);
    l->has_after = got > 0;
    return got;
}

static int advance_loop(struct jinja_run *r, struct jv_loop *l, struct jv *out)
{
    int got = peek_next(r, l);
    if (got <= 0)
        return got;
    l->has_after = false;
    l->index0++;
    l->before = l->current;
    l->current = *out = l->after;
    return 1;
}

int jinja_loop_next(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    struct jv v;
    int got = advance_loop(r, it->src.u.loop, &v);
    if (got > 0)
        *out = jv_pair(r, v, it->src);
    return got > 0 && jv_is_error(*out) ? -1 : got;
}

int64_t jinja_loop_length(struct jinja_run *r, struct jv_loop *l)
{
    if (l->length >= 0)
        return l->length;
    int64_t n = jv_len(r, l->source);
    if (n == -1)
        return -1;
    if (n == -2) {
        struct jv rest = jv_list_new(r, 4), item;
        int got;
        while ((got = jv_next(r, l->it, &item)) > 0)
            if (!jv_list_add(r, rest, item))
                return -1;
        l->it = got < 0 ? NULL : jv_iterate(r, rest);
        if (!l->it)
            return -1;
        n = (int64_t)rest.u.l->n + l->index0 + 1 + l->has_after;
    }
    return l->length = n;
}

bool jinja_loop_repr(struct jinja_run *r, struct buf *b, struct jv_loop *l)
{
    int64_t n = jinja_loop_length(r, l);
    buf_printf(b, "<LoopContext %lld/%lld>", (long long)l->index0 + 1, (long long)n);
    return n >= 0;
}

struct jv jinja_loop_attr(struct jinja_run *r, struct jv_loop *l, const char *name)
{
    if (!strcmp(name, "index0"))
        return jv_int(l->index0);
    if (!strcmp(name, "index"))
        return jv_int(l->index0 + 1);
    if (!strcmp(name, "first"))
        return jv_bool(l->index0 == 0);
    if (!strcmp(name, "depth0"))
        return jv_int(l->depth0);
    if (!strcmp(name, "depth"))
        return jv_int(l->depth0 + 1);
    if (!strcmp(name, "previtem"))
        return l->index0 == 0 ? jv_undefined_hint(r, "there is no previous item") : l->before;
    if (!strcmp(name, "last") || !strcmp(name, "nextitem")) {
        int got = peek_next(r, l);
        if (got < 0)
            return jv_error;
        if (name[0] == 'l')
            return jv_bool(!got);
        return got ? l->after : jv_undefined_hint(r, "there is no next item");
    }
    int64_t n;
    if (strcmp(name, "length") && strcmp(name, "revindex") && strcmp(name, "revindex0"))
        return jv_missing;
    n = jinja_loop_length(r, l);
    if (n < 0)
        return jv_error;
    return jv_int(!strcmp(name, "length") ? n : !strcmp(name, "revindex") ? n - l->index0 : n - l->index0 - 1);
}

/* The items of a loop that pass its `if`. */
static int next_filtered(struct jinja_run *r, struct jv_iter *it, struct jv *out)
{
    const struct jinja_node *n = it->node;
    struct jinja_frame *f = enter(r, n->scope[1], it->a.u.loop->frame);
    int got = f ? 0 : -1;
    while (f && (got = jv_next(r, it->inner, out)) > 0) {
        struct jv test = assign(r, f, n->a, *out, 1) ? jinja_eval(r, f, n->c) : jv_error;
        if (jv_is_error(test))
            return -1;
        if (jv_truth(test))
            break;
    }
    if (got > 0 && n->a->kind == N_TUPLE)
        *out = jv_to_tuple(r, *out);
    leave(r, f);
    return got > 0 && jv_is_error(*out) ? -1 : got;
}

static bool start_loop(struct jinja_run *r, struct jv_loop *l, struct jv source)
{
    l->it = jv_iterate(r, source);
    l->source = source;
    if (l->it && l->node->c) {
        struct jv filtered = jv_iter_new(r, next_filtered, "generator", source);
        if (jv_is_error(filtered))
            return false;
        filtered.u.it->inner = l->it;
        filtered.u.it->node = l->node;
        filtered.u.it->a = (struct jv){JV_LOOP, {.loop = l}};
        l->it = filtered.u.it;
        l->source = filtered;
    }
    return l->it != NULL;
}

static enum jinja_flow run_loop(struct jinja_run *r, struct jv_loop *l)
{
    const struct jinja_node *n = l->node;
    struct jinja_frame *f = enter(r, n->scope[0], l->frame);
    struct jv item;
    bool completed = false;
    int got = f ? 1 : -1;
    enum jinja_flow flow = FLOW_NORMAL;
    while (got > 0 && (got = advance_loop(r, l, &item)) > 0) {
        load_variables(r, f);
        f->v[n->slot] = (struct jv){JV_LOOP, {.loop = l}};
        r->line = n->line;
        flow = assign(r, f, n->a, item, 0) ? jinja_exec(r, f, &n->l[0]) : FLOW_ERROR;
        if (flow == FLOW_ERROR || flow == FLOW_BREAK)
            break;
        completed = completed || flow == FLOW_NORMAL;
    }
    leave(r, f);
    if (got < 0 || flow == FLOW_ERROR)
        return FLOW_ERROR;
    if (completed || !n->l[1].n)
        return FLOW_NORMAL;
    f = enter(r, n->scope[2], l->frame);
    flow = f ? jinja_exec(r, f, &n->l[1]) : FLOW_ERROR;
    leave(r, f);
    return flow;
}

static struct jv_loop *new_loop(struct jinja_run *r, const struct jinja_node *n, struct jinja_frame *f, int64_t depth0)
{
    struct jv_loop *l = jv_alloc(r, sizeof *l);
    if (l)
        *l = (struct jv_loop){.index0 = -1,
                              .length = -1,
                              .current = jv_missing,
                              .before = jv_missing,
                              .changed = jv_missing,
                              .depth0 = depth0,
                              .node = n,
                              .frame = f};
    return l;
}

struct jv jinja_call_loop(struct jinja_run *r, struct jv_loop *l, const struct jinja_args *args)
{
    struct jv source;
    if (!jinja_bind(r, "loop", "iterable", args, &source))
        return jv_error;
    if (!l->node->flag)
        return jv_type_error(r, "The loop must have the 'recursive' marker to be called recursively.");
    struct jv_loop *inner = new_loop(r, l->node, l->frame, l->depth0 + 1);
    if (!inner || !start_loop(r, inner, source) || !jv_enter(r))
        return jv_error;
    struct buf b, *outer = r->out;
    jv_buf_init(r, &b);
    r->out = &b;
    enum jinja_flow flow = run_loop(r, inner);
    r->out = outer;
    jv_leave(r);
    struct jv text = jv_from_buf(r, &b);
    return flow == FLOW_ERROR ? jv_error : jinja_safe_if(r, text, r->autoescape);
}

static enum jinja_flow exec_for(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv source = jinja_eval(r, f, n->b);
    struct jv_loop *l = jv_is_error(source) ? NULL : new_loop(r, n, f, 0);
    if (!l || !start_loop(r, l, source))
        return FLOW_ERROR;
    return run_loop(r, l);
}

/* ---- macros ---- */

struct jv jinja_macro_new(struct jinja_run *r, const struct jinja_node *node, struct jinja_frame *f)
{
    struct jv_func *fn = jv_alloc(r, sizeof *fn);
    if (!fn)
        return jv_error;
    *fn = (struct jv_func){.kind = JV_MACRO, .self = jv_none, .node = node, .frame = f};
    capture(f);
    return (struct jv){JV_FUNC, {.fn = fn}};
}

/* Removes a keyword; JV_MISSING when it was not given. */
static struct jv take_keyword(struct jinja_run *r, struct jinja_args *args, const char *name)
{
    struct jv found = jv_missing, rest = args->kw ? jv_dict_new(r) : jv_none;
    if (!args->kw || jv_is_error(rest))
        return args->kw ? jv_error : jv_missing;
    if (!jv_dict_find(args->kw, name))
        return jv_missing;
    for (size_t i = 0; i < args->kw->n; i++) {
        const struct jv_entry *e = &args->kw->e[i];
        if (jv_str_is(e->key, name))
            found = e->value;
        else if (!jv_dict_set(r, rest.u.d, e->key, e->value))
            return jv_error;
    }
    args->kw = rest.u.d;
    return found;
}

static struct jv missing_parameter(struct jinja_run *r, const char *name)
{
    struct buf b;
    jv_buf_init(r, &b);
    buf_printf(&b, "parameter '%s' was not provided", name);
    buf_add_char(&b, 0);
    struct jv hint = jv_from_buf(r, &b);
    return jv_is_error(hint) ? hint : jv_undefined_hint(r, hint.u.s->p);
}

static bool bind_special(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                         struct jinja_args *args)
{
    size_t want = n->l[0].n;
    if (n->caller >= 0) {
        struct jv caller = take_keyword(r, args, "caller");
        f->v[n->caller] =
            caller.type == JV_MISSING || caller.type == JV_NONE ? jv_undefined_hint(r, "No caller defined") : caller;
    }
    if (n->kwargs >= 0) {
        struct jv kw = args->kw ? (struct jv){JV_DICT, {.d = args->kw}} : jv_dict_new(r);
        f->v[n->kwargs] = kw;
    } else if (args->kw && args->kw->n) {
        const struct jv_str *key = args->kw->e[0].key.u.s;
        jv_type_error(r, "macro '%s' takes no keyword argument '%.*s'", n->s ? n->s : "caller", (int)(key->n & 127),
                      key->p);
    }
    if (n->varargs >= 0) {
        struct jv rest = jv_tuple_new(r, args->n > want ? args->n - want : 0);
        for (size_t i = want; !jv_is_error(rest) && i < args->n; i++)
            rest.u.l->v[i - want] = args->v[i];
        f->v[n->varargs] = rest;
    } else if (args->n > want) {
        jv_type_error(r, "macro '%s' takes not more than %zu argument(s)", n->s ? n->s : "caller", want);
    }
    return r->status == TLM_OK;
}

static bool bind_parameters(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n,
                            struct jinja_args *args)
{
    size_t want = n->l[0].n, first_default = want - n->l[1].n;
    for (size_t i = 0; i < want; i++) {
        const struct jinja_node *p = n->l[0].v[i];
        f->v[p->slot] = i < args->n ? args->v[i] : take_keyword(r, args, p->s);
    }
    if (r->status != TLM_OK || !bind_special(r, f, n, args))
        return false;
    for (size_t i = 0; i < want; i++) {
        struct jv *v = &f->v[n->l[0].v[i]->slot];
        if (v->type != JV_MISSING)
            continue;
        *v =
            i >= first_default ? jinja_eval(r, f, n->l[1].v[i - first_default]) : missing_parameter(r, n->l[0].v[i]->s);
        if (jv_is_error(*v))
            return false;
    }
    return true;
}

struct jv jinja_call_macro(struct jinja_run *r, const struct jv_func *fn, const struct jinja_args *args)
{
    const struct jinja_node *n = fn->node;
    struct jinja_args own = *args;
    struct jinja_frame *f = jv_enter(r) ? enter(r, n->scope[0], fn->frame) : NULL;
    struct jv text = jv_error;
    enum jinja_flow flow = FLOW_ERROR;
    if (f && bind_parameters(r, f, n, &own))
        flow = exec_captured(r, f, &n->l[2], &text);
    leave(r, f);
    jv_leave(r);
    return flow == FLOW_ERROR ? jv_error : jinja_safe_if(r, text, r->autoescape);
}

/* ---- statements ---- */

static bool print(struct jinja_run *r, struct jv v)
{
    if (jv_is_error(v) || !jv_add_str(r, r->out, v))
        return false;
    if (r->out->len <= r->max.output)
        return true;
    jv_fail(r, TLM_ELIMIT, "the template's output is larger than the limit of %zu bytes", r->max.output);
    return false;
}

static enum jinja_flow exec_set(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    if (!check_namespaces(r, f, n->a))
        return FLOW_ERROR;
    return assign(r, f, n->a, jinja_eval(r, f, n->b), 0) ? FLOW_NORMAL : FLOW_ERROR;
}

/* Set and filter blocks. */
static enum jinja_flow exec_text_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jinja_frame *inner = enter(r, n->scope[0], f);
    struct jv text;
    const struct jinja_node *filter = n->kind == N_SETBLOCK ? n->b : n->a;
    enum jinja_flow flow = inner ? exec_captured(r, inner, &n->l[0], &text) : FLOW_ERROR;
    if (flow == FLOW_NORMAL) {
        text = jinja_safe_if(r, text, jinja_escapes(r, n));
        if (filter)
            text = jinja_eval_filter(r, inner, filter, text);
        bool ok = n->kind == N_SETBLOCK ? assign(r, f, n->a, text, 0) : print(r, text);
        flow = ok ? FLOW_NORMAL : FLOW_ERROR;
    }
    leave(r, inner);
    return flow;
}

static enum jinja_flow exec_call_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv caller = jinja_macro_new(r, n, f), callee = jinja_eval(r, f, n->a->a);
    struct jinja_args args;
    if (jv_is_error(caller) || jv_is_error(callee) || !jinja_eval_args(r, f, n->a, &args))
        return FLOW_ERROR;
    struct jv kw = jv_dict_new(r), key = jv_cstr(r, "caller");
    if (jv_is_error(kw))
        return FLOW_ERROR;
    for (size_t i = 0; args.kw && i < args.kw->n; i++)
        if (!jv_dict_set(r, kw.u.d, args.kw->e[i].key, args.kw->e[i].value))
            return FLOW_ERROR;
    if (!jv_dict_set(r, kw.u.d, key, caller))
        return FLOW_ERROR;
    args.kw = kw.u.d;
    return print(r, jinja_call(r, callee, &args)) ? FLOW_NORMAL : FLOW_ERROR;
}

static enum jinja_flow exec_with(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jinja_frame *inner = enter(r, n->scope[0], f);
    enum jinja_flow flow = inner ? FLOW_NORMAL : FLOW_ERROR;
    for (size_t i = 0; flow == FLOW_NORMAL && i < n->l[0].n; i++)
        if (!assign(r, inner, n->l[0].v[i], jinja_eval(r, f, n->l[1].v[i]), 0))
            flow = FLOW_ERROR;
    if (flow == FLOW_NORMAL)
        flow = jinja_exec(r, inner, &n->l[2]);
    leave(r, inner);
    return flow;
}

/* Generation blocks are call blocks whose caller's text is printed. */
static enum jinja_flow exec_generation(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jinja_frame *inner = enter(r, n->scope[0], f);
    struct jinja_args none = {0};
    enum jinja_flow flow = inner && bind_special(r, inner, n, &none) ? jinja_exec(r, inner, &n->l[0]) : FLOW_ERROR;
    leave(r, inner);
    return flow;
}

/* What the stored variables around a scoped block are. */
static struct jv around(struct jinja_run *r, const struct jinja_frame *f)
{
    struct jv d = jv_dict_new(r), old;
    for (; f && !jv_is_error(d); f = f->parent)
        for (size_t i = 0; i < f->scope->n; i++) {
            struct jv key = jv_cstr(r, f->scope->ref[i].name);
            if (!f->scope->ref[i].stored || f->v[i].type == JV_MISSING || jv_dict_get(r, d.u.d, key, &old) != 0)
                continue;
            if (!jv_dict_set(r, d.u.d, key, f->v[i]))
                return jv_error;
        }
    return d;
}

/* A block sees the template's variables only, and those around it if scoped. */
static enum jinja_flow run_block(struct jinja_run *r, const struct jinja_node *n, struct jv_dict *scoped)
{
    struct jv_dict *outer = r->scoped;
    enum jinja_flow flow = FLOW_ERROR;
    r->scoped = scoped;
    struct jinja_frame *inner = jv_enter(r) ? enter(r, n->scope[0], NULL) : NULL;
    if (inner && n->caller >= 0)
        inner->v[n->caller] = (struct jv){JV_TEMPLATE, {.i = 0}};
    if (inner && n->kwargs >= 0) {
        char *hint = jv_alloc(r, 160);
        if (hint)
            snprintf(hint, 160, "there is no parent block called '%.100s'.", n->s);
        inner->v[n->kwargs] = hint ? jv_undefined_hint(r, hint) : jv_error;
    }
    if (inner && r->status == TLM_OK)
        flow = jinja_exec(r, inner, &n->l[0]);
    leave(r, inner);
    jv_leave(r);
    r->scoped = outer;
    return flow;
}

static enum jinja_flow exec_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv scoped = n->flag ? around(r, f) : jv_none;
    if (n->op)
        jv_fail(r, TLM_EINVAL, "Required block '%s' not found", n->s);
    return r->status == TLM_OK ? run_block(r, n, n->flag ? scoped.u.d : NULL) : FLOW_ERROR;
}

struct jv jinja_call_block(struct jinja_run *r, const struct jv_func *fn, const struct jinja_args *args)
{
    struct buf b, *outer = r->out;
    if (args->n || (args->kw && args->kw->n))
        return jv_type_error(r, "a block takes no arguments");
    jv_buf_init(r, &b);
    r->out = &b;
    enum jinja_flow flow = run_block(r, fn->node, NULL);
    r->out = outer;
    struct jv text = jv_from_buf(r, &b);
    return flow == FLOW_ERROR ? jv_error : jinja_safe_if(r, text, r->autoescape);
}

struct jv jinja_find_block(struct jinja_run *r, struct jv name)
{
    for (size_t i = 0; name.type == JV_STR && i < r->tpl->blocks.n; i++) {
        if (!jv_str_is(name, r->tpl->blocks.v[i]->s))
            continue;
        struct jv_func *fn = jv_alloc(r, sizeof *fn);
        if (!fn)
            return jv_error;
        *fn = (struct jv_func){.kind = JV_BLOCK, .self = jv_none, .node = r->tpl->blocks.v[i]};
        return (struct jv){JV_FUNC, {.fn = fn}};
    }
    return jv_missing;
}

static enum jinja_flow exec_autoescape(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jinja_frame *inner = enter(r, n->scope[0], f);
    struct jv on = inner ? jinja_eval(r, inner, n->a) : jv_error;
    bool outer = r->autoescape;
    enum jinja_flow flow = FLOW_ERROR;
    if (!jv_is_error(on)) {
        r->autoescape = jv_truth(on);
        flow = jinja_exec(r, inner, &n->l[0]);
        r->autoescape = outer;
    }
    leave(r, inner);
    return flow;
}

static enum jinja_flow exec_load(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    struct jv name = jinja_eval(r, f, n->a);
    if (jv_is_error(name) || (n->flag && jv_is_seq(name) && !name.u.l->n))
        return jv_is_error(name) ? FLOW_ERROR : FLOW_NORMAL;
    jv_fail(r, TLM_EINVAL, "a chat template cannot load another template");
    return FLOW_ERROR;
}

static enum jinja_flow exec_if(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    for (;;) {
        r->line = n->line;
        struct jv test = jinja_eval(r, f, n->a);
        if (jv_is_error(test))
            return FLOW_ERROR;
        if (jv_truth(test))
            return jinja_exec(r, f, &n->l[0]);
        if (n->l[1].n != 1 || n->l[1].v[0]->kind != N_IF)
            return jinja_exec(r, f, &n->l[1]);
        n = n->l[1].v[0];
    }
}

static enum jinja_flow exec_statement(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n)
{
    r->line = n->line;
    switch (n->kind) {
    case N_DATA:
        return print(r, n->value) ? FLOW_NORMAL : FLOW_ERROR;
    case N_PRINT: {
        struct jv v = jinja_eval(r, f, n->a);
        /* jinja2 writes constants when it compiles, not knowing the block's value. */
        bool constant = n->escape == ESCAPE_ASK && n->a->kind == N_CONST;
        return print(r, jinja_escapes(r, n) && !constant ? jinja_escape(r, v) : v) ? FLOW_NORMAL : FLOW_ERROR;
    }
    case N_SET:
        return exec_set(r, f, n);
    case N_SETBLOCK:
    case N_FILTERBLOCK:
        return exec_text_block(r, f, n);
    case N_FOR:
        return exec_for(r, f, n);
    case N_IF:
        return exec_if(r, f, n);
    case N_MACRO: {
        struct jinja_node target = {.kind = N_NAME, .s = n->s, .slot = n->slot};
        return assign(r, f, &target, jinja_macro_new(r, n, f), 0) ? FLOW_NORMAL : FLOW_ERROR;
    }
    case N_CALLBLOCK:
        return exec_call_block(r, f, n);
    case N_WITH:
        return exec_with(r, f, n);
    case N_GENERATION:
        return exec_generation(r, f, n);
    case N_BLOCK:
        return exec_block(r, f, n);
    case N_AUTOESCAPE:
        return exec_autoescape(r, f, n);
    case N_LOAD:
        return exec_load(r, f, n);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        jv_fail(r, TLM_EINTERNAL, "an expression where a statement was expected");
        return FLOW_ERROR;
    }
}

enum jinja_flow jinja_exec(struct jinja_run *r, struct jinja_frame *f, const struct jinja_list *body)
{
    enum jinja_flow flow = jv_enter(r) ? FLOW_NORMAL : FLOW_ERROR;
    if (flow == FLOW_ERROR)
        return flow;
    for (size_t i = 0; flow == FLOW_NORMAL && i < body->n; i++)
        flow = jv_step(r, 1) ? exec_statement(r, f, body->v[i]) : FLOW_ERROR;
    jv_leave(r);
    return r->status == TLM_OK ? flow : FLOW_ERROR;
}

enum jinja_flow jinja_exec_root(struct jinja_run *r)
{
    struct jinja_frame *f = enter(r, r->tpl->root, NULL);
    if (f && r->tpl->self >= 0)
        f->v[r->tpl->self] = (struct jv){JV_TEMPLATE, {.i = 0}};
    return f ? jinja_exec(r, f, &r->tpl->body) : FLOW_ERROR;
}
