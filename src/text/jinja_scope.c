/* Which variable a name means. jinja2 decides this when it compiles, and its
 * rules show: blocks of for, macro, call, filter, with and set have their own
 * variables, if has not; a variable that a scope stores starts as the outer
 * one's value, as undefined, or (stored in an if only) as the template's
 * argument of that name; a scope is read completely before its inner ones. */
#include <string.h>

#include "text/jinja_ast.h"

struct analyzer {
    struct jinja_template *t;
    struct jinja_run *r;
    int in_for;
    int nesting;
};

static bool resolve_body(struct analyzer *a, struct jinja_scope *s, struct jinja_list *body, bool soft);
static void visit_body(struct analyzer *a, struct jinja_scope *s, const struct jinja_list *body);

static struct jinja_scope *new_scope(struct analyzer *a, struct jinja_scope *parent)
{
    struct jinja_scope *s = jv_alloc(a->r, sizeof *s);
    if (s)
        *s = (struct jinja_scope){.parent = parent, .id = a->t->n_scopes++};
    return s;
}

static int own_ref(struct analyzer *a, const struct jinja_scope *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->ref[i].name == name)
            return (int)i;
    jv_step(a->r, s->n);
    return -1;
}

static bool find_ref(struct analyzer *a, const struct jinja_scope *s, const char *name, int *hops, int *slot)
{
    for (*hops = 0; s; s = s->parent, ++*hops) {
        *slot = own_ref(a, s, name);
        if (*slot >= 0)
            return true;
    }
    return false;
}

static int define(struct analyzer *a, struct jinja_scope *s, const char *name, enum jinja_load load)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 8;
        struct jinja_ref *ref = jv_grow(a->r, s->ref, s->n * sizeof *ref, cap * sizeof *ref);
        if (!ref)
            return -1;
        s->ref = ref;
        s->cap = cap;
    }
    s->ref[s->n] = (struct jinja_ref){.name = name, .load = load};
    return (int)s->n++;
}

static void mark_stored(struct analyzer *a, struct jinja_scope *s, int slot)
{
    if (slot < 0 || s->ref[slot].stored)
        return;
    s->ref[slot].stored = true;
    if (s->n_stores == s->stores_cap) {
        size_t cap = s->stores_cap ? s->stores_cap * 2 : 8;
        int *stores = jv_grow(a->r, s->stores, s->n_stores * sizeof *stores, cap * sizeof *stores);
        if (!stores)
            return;
        s->stores = stores;
        s->stores_cap = cap;
    }
    s->stores[s->n_stores++] = slot;
}

static int declare_parameter(struct analyzer *a, struct jinja_scope *s, const char *name)
{
    int slot = own_ref(a, s, name);
    if (slot < 0)
        slot = define(a, s, name, LOAD_PARAMETER);
    if (slot >= 0)
        s->ref[slot].load = LOAD_PARAMETER;
    mark_stored(a, s, slot);
    return slot;
}

/* The outer variable of the same name, or the given way to start. */
static void start_from_outer(struct analyzer *a, struct jinja_scope *s, int slot, enum jinja_load otherwise)
{
    struct jinja_ref *ref = &s->ref[slot];
    ref->load = otherwise;
    if (find_ref(a, s->parent, ref->name, &ref->hops, &ref->slot)) {
        ref->load = LOAD_ALIAS;
        ref->hops++;
    }
}

static void store(struct analyzer *a, struct jinja_scope *s, const char *name)
{
    int slot = own_ref(a, s, name);
    if (slot < 0) {
        slot = define(a, s, name, LOAD_UNDEFINED);
        if (slot >= 0)
            start_from_outer(a, s, slot, LOAD_UNDEFINED);
    }
    mark_stored(a, s, slot);
}

static void load(struct analyzer *a, struct jinja_scope *s, const char *name)
{
    int hops, slot;
    if (!find_ref(a, s, name, &hops, &slot))
        define(a, s, name, LOAD_RESOLVE);
}

static void visit(struct analyzer *a, struct jinja_scope *s, const struct jinja_node *n)
{
    if (!n || a->r->status != TLM_OK)
        return;
    if (n->kind == N_NAME || n->kind == N_NSREF)
        load(a, s, n->s);
    visit(a, s, n->a);
    visit(a, s, n->b);
    visit(a, s, n->c);
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < n->l[k].n; i++)
            visit(a, s, n->l[k].v[i]);
}

static void visit_target(struct analyzer *a, struct jinja_scope *s, const struct jinja_node *n, bool parameter)
{
    if (n->kind == N_NSREF)
        load(a, s, n->s);
    else if (n->kind == N_NAME && parameter)
        declare_parameter(a, s, n->s);
    else if (n->kind == N_NAME)
        store(a, s, n->s);
    for (size_t i = 0; n->kind == N_TUPLE && i < n->l[0].n; i++)
        visit_target(a, s, n->l[0].v[i], parameter);
}

static void visit_if(struct analyzer *a, struct jinja_scope *s, const struct jinja_node *n)
{
    size_t before = s->n_stores;
    for (;;) {
        visit(a, s, n->a);
        visit_body(a, s, &n->l[0]);
        if (n->l[1].n != 1 || n->l[1].v[0]->kind != N_IF)
            break;
        n = n->l[1].v[0];
    }
    visit_body(a, s, &n->l[1]);
    for (size_t i = before; i < s->n_stores; i++)
        start_from_outer(a, s, s->stores[i], LOAD_RESOLVE);
}

static void visit_statement(struct analyzer *a, struct jinja_scope *s, const struct jinja_node *n)
{
    switch (n->kind) {
    case N_PRINT:
    case N_CALLBLOCK:
    case N_FILTERBLOCK:
        visit(a, s, n->a);
        break;
    case N_SET:
        visit(a, s, n->b);
        visit_target(a, s, n->a, false);
        break;
    case N_SETBLOCK:
        visit_target(a, s, n->a, false);
        break;
    case N_FOR:
        visit(a, s, n->b);
        break;
    case N_IF:
        visit_if(a, s, n);
        break;
    case N_MACRO:
        store(a, s, n->s);
        break;
    case N_WITH:
        for (size_t i = 0; i < n->l[1].n; i++)
            visit(a, s, n->l[1].v[i]);
        break;
    case N_LOAD:
        visit(a, s, n->a);
        for (size_t i = 0; i < n->l[0].n; i++)
            store(a, s, n->l[0].v[i]->s);
        break;
    default:
        break;
    }
}

static void visit_body(struct analyzer *a, struct jinja_scope *s, const struct jinja_list *body)
{
    for (size_t i = 0; i < body->n && a->r->status == TLM_OK; i++)
        visit_statement(a, s, body->v[i]);
}

static void *unknown(struct analyzer *a, const struct jinja_node *n)
{
    a->r->line = n->line;
    jv_fail(a->r, TLM_EFORMAT, "No %s named '%s'.", n->kind == N_FILTER ? "filter" : "test", n->s);
    return NULL;
}

static bool resolve(struct analyzer *a, struct jinja_scope *s, struct jinja_node *n, bool soft)
{
    if (!n)
        return true;
    if (!jv_step(a->r, 1))
        return false;
    if (n->kind == N_NAME || n->kind == N_NSREF) {
        if (!find_ref(a, s, n->s, &n->hops, &n->slot)) {
            a->r->line = n->line;
            jv_fail(a->r, TLM_EINTERNAL, "the variable '%s' has no scope", n->s);
            return false;
        }
        return a->r->status == TLM_OK;
    }
    if (n->kind == N_FILTER || n->kind == N_TEST) {
        n->row = n->kind == N_FILTER ? jinja_filter_row(n->s) : jinja_test_row(n->s);
        if (n->row < 0 && !soft)
            return unknown(a, n);
    }
    if (n->kind == N_COND)
        soft = true;
    bool ok = resolve(a, s, n->a, soft) && resolve(a, s, n->b, soft) && resolve(a, s, n->c, soft);
    for (int k = 0; ok && k < 3; k++)
        for (size_t i = 0; ok && i < n->l[k].n; i++)
            ok = resolve(a, s, n->l[k].v[i], soft);
    return ok;
}

static bool resolve_for(struct analyzer *a, struct jinja_scope *s, struct jinja_node *n, bool soft)
{
    for (int k = 0; k < 3; k++)
        if (!(n->scope[k] = new_scope(a, s)))
            return false;
    struct jinja_scope *body = n->scope[0], *filter = n->scope[1], *other = n->scope[2];
    n->slot = declare_parameter(a, body, jinja_intern(a->t, "loop", 4));
    visit_target(a, body, n->a, true);
    visit_body(a, body, &n->l[0]);
    visit_target(a, filter, n->a, true);
    visit(a, filter, n->c);
    visit_body(a, other, &n->l[1]);
    /* The target's names come first in both scopes (after loop in one), so
     * the target resolved against the body serves the filter shifted by one. */
    a->in_for++;
    bool ok = resolve(a, s, n->b, soft) && resolve(a, body, n->a, false) && resolve(a, filter, n->c, false) &&
              resolve_body(a, body, &n->l[0], false) && resolve_body(a, other, &n->l[1], false);
    a->in_for--;
    return ok;
}

/* Whether the body reads a name before it stores it. */
static int find_undeclared(const struct jinja_node *n, const char *name)
{
    int found = 0;
    if (!n)
        return 0;
    if (n->kind == N_NAME)
        return !strcmp(n->s, name);
    if (n->kind == N_BLOCK)
        return 0;
    if (n->kind == N_LOAD) {
        found = find_undeclared(n->a, name);
        for (size_t i = 0; !found && i < n->l[0].n; i++)
            found = !strcmp(n->l[0].v[i]->s, name) ? -1 : 0;
        return found;
    }
    if (n->kind == N_SET || n->kind == N_SETBLOCK) {
        found = n->kind == N_SET && n->b ? find_undeclared(n->b, name) : 0;
        if (!found && n->a->kind == N_NAME && !strcmp(n->a->s, name))
            return -1;
        if (found)
            return found;
    } else {
        const struct jinja_node *child[3] = {n->a, n->b, n->c};
        for (int i = n->kind == N_MACRO || n->kind == N_FOR; !found && i < 3; i++)
            found = find_undeclared(child[i], name);
        if (n->kind == N_FOR && !found && n->a->kind == N_NAME && !strcmp(n->a->s, name))
            return -1;
    }
    int first = n->kind == N_MACRO || n->kind == N_CALLBLOCK || n->kind == N_WITH;
    for (int k = first; !found && k < 3; k++)
        for (size_t i = 0; !found && i < n->l[k].n; i++)
            found = find_undeclared(n->l[k].v[i], name);
    return found;
}

static bool body_reads(const struct jinja_list *body, const char *name)
{
    int found = 0;
    for (size_t i = 0; !found && i < body->n; i++)
        found = find_undeclared(body->v[i], name);
    return found > 0;
}

static bool has_parameter(const struct jinja_node *n, const char *name, size_t *at)
{
    for (*at = 0; *at < n->l[0].n; ++*at)
        if (!strcmp(n->l[0].v[*at]->s, name))
            return true;
    return false;
}

/* Macros, call blocks and generation blocks. */
static bool resolve_function(struct analyzer *a, struct jinja_scope *s, struct jinja_node *n)
{
    struct jinja_list *body = n->kind == N_GENERATION ? &n->l[0] : &n->l[2];
    struct jinja_scope *f = n->scope[0] = new_scope(a, s);
    size_t at;
    if (!f)
        return false;
    if (n->kind == N_GENERATION) { /* the body of a call block without arguments */
        if (body_reads(body, "caller"))
            n->caller = declare_parameter(a, f, jinja_intern(a->t, "caller", 6));
        if (body_reads(body, "kwargs"))
            n->kwargs = declare_parameter(a, f, jinja_intern(a->t, "kwargs", 6));
        if (body_reads(body, "varargs"))
            n->varargs = declare_parameter(a, f, jinja_intern(a->t, "varargs", 7));
        visit_body(a, f, body);
        return resolve_body(a, f, body, false);
    }
    for (size_t i = 0; i < n->l[0].n; i++)
        declare_parameter(a, f, n->l[0].v[i]->s);
    if (body_reads(body, "caller")) {
        if (!has_parameter(n, "caller", &at)) {
            n->caller = declare_parameter(a, f, jinja_intern(a->t, "caller", 6));
        } else if (at < n->l[0].n - n->l[1].n) {
            a->r->line = n->line;
            jv_fail(a->r, TLM_EFORMAT,
                    "When defining macros or call blocks the special \"caller\" argument must be "
                    "omitted or be given a default.");
        }
    }
    if (body_reads(body, "kwargs") && !has_parameter(n, "kwargs", &at))
        n->kwargs = declare_parameter(a, f, jinja_intern(a->t, "kwargs", 6));
    if (body_reads(body, "varargs") && !has_parameter(n, "varargs", &at))
        n->varargs = declare_parameter(a, f, jinja_intern(a->t, "varargs", 7));
    for (size_t i = 0; i < n->l[1].n; i++)
        visit(a, f, n->l[1].v[i]);
    visit_body(a, f, body);
    bool ok = a->r->status == TLM_OK;
    for (size_t i = 0; ok && i < n->l[0].n; i++)
        ok = resolve(a, f, n->l[0].v[i], false);
    for (size_t i = 0; ok && i < n->l[1].n; i++)
        ok = resolve(a, f, n->l[1].v[i], false);
    int in_for = a->in_for;
    ok = ok && resolve_body(a, f, body, false);
    a->in_for = in_for;
    return ok;
}

static bool resolve_with(struct analyzer *a, struct jinja_scope *s, struct jinja_node *n, bool soft)
{
    struct jinja_scope *w = n->scope[0] = new_scope(a, s);
    if (!w)
        return false;
    for (size_t i = 0; i < n->l[0].n; i++)
        visit_target(a, w, n->l[0].v[i], true);
    visit_body(a, w, &n->l[2]);
    bool ok = true;
    for (size_t i = 0; ok && i < n->l[0].n; i++)
        ok = resolve(a, w, n->l[0].v[i], false) && resolve(a, s, n->l[1].v[i], soft);
    return ok && resolve_body(a, w, &n->l[2], false);
}

static bool no_loop_target(struct analyzer *a, const struct jinja_node *n)
{
    if (a->in_for && n->kind == N_NAME && !strcmp(n->s, "loop")) {
        a->r->line = n->line;
        jv_fail(a->r, TLM_EFORMAT, "Can't assign to special loop variable in for-loop target");
        return false;
    }
    for (size_t i = 0; n->kind == N_TUPLE && i < n->l[0].n; i++)
        if (!no_loop_target(a, n->l[0].v[i]))
            return false;
    return true;
}

static bool resolve_inner(struct analyzer *a, struct jinja_scope *s, struct jinja_node *n, bool soft)
{
    struct jinja_scope *inner;
    switch (n->kind) {
    case N_SET:
        return no_loop_target(a, n->a) && resolve(a, s, n->a, soft) && resolve(a, s, n->b, soft);
    case N_SETBLOCK:
        inner = n->scope[0] = new_scope(a, s);
        if (!inner)
            return false;
        visit_body(a, inner, &n->l[0]);
        visit(a, inner, n->b);
        return no_loop_target(a, n->a) && resolve(a, s, n->a, soft) && resolve(a, inner, n->b, false) &&
               resolve_body(a, inner, &n->l[0], false);
    case N_FILTERBLOCK:
        inner = n->scope[0] = new_scope(a, s);
        if (!inner)
            return false;
        visit_body(a, inner, &n->l[0]);
        visit(a, inner, n->a);
        return resolve_body(a, inner, &n->l[0], false) && resolve(a, inner, n->a, false);
    case N_IF:
        for (;;) {
            if (!resolve(a, s, n->a, true) || !resolve_body(a, s, &n->l[0], true))
                return false;
            if (n->l[1].n != 1 || n->l[1].v[0]->kind != N_IF)
                return resolve_body(a, s, &n->l[1], true);
            n = n->l[1].v[0];
        }
    case N_BLOCK:
        inner = n->scope[0] = new_scope(a, NULL);
        if (!inner)
            return false;
        if (body_reads(&n->l[0], "self"))
            n->caller = declare_parameter(a, inner, jinja_intern(a->t, "self", 4));
        if (body_reads(&n->l[0], "super"))
            n->kwargs = declare_parameter(a, inner, jinja_intern(a->t, "super", 5));
        visit_body(a, inner, &n->l[0]);
        return resolve_body(a, inner, &n->l[0], false);
    case N_AUTOESCAPE:
        inner = n->scope[0] = new_scope(a, s);
        if (!inner)
            return false;
        visit(a, inner, n->a);
        visit_body(a, inner, &n->l[0]);
        return resolve(a, inner, n->a, soft) && resolve_body(a, inner, &n->l[0], soft);
    case N_LOAD: {
        bool ok = resolve(a, s, n->a, soft);
        for (size_t i = 0; ok && i < n->l[0].n; i++)
            ok = resolve(a, s, n->l[0].v[i], soft);
        return ok;
    }
    default:
        return true;
    }
}

static bool resolve_statement(struct analyzer *a, struct jinja_scope *s, struct jinja_node *n, bool soft)
{
    int hops;
    switch (n->kind) {
    case N_PRINT:
        return resolve(a, s, n->a, soft);
    case N_FOR:
        return resolve_for(a, s, n, soft);
    case N_MACRO:
        return find_ref(a, s, n->s, &hops, &n->slot) && resolve_function(a, s, n);
    case N_CALLBLOCK:
        return resolve(a, s, n->a, soft) && resolve_function(a, s, n);
    case N_GENERATION:
        return resolve_function(a, s, n);
    case N_WITH:
        return resolve_with(a, s, n, soft);
    default:
        return resolve_inner(a, s, n, soft);
    }
}

static bool resolve_body(struct analyzer *a, struct jinja_scope *s, struct jinja_list *body, bool soft)
{
    bool ok = a->r->status == TLM_OK;
    for (size_t i = 0; ok && i < body->n; i++)
        ok = resolve_statement(a, s, body->v[i], soft) && a->r->status == TLM_OK;
    return ok;
}

bool jinja_resolve_scopes(struct jinja_template *t)
{
    struct analyzer a = {.t = t, .r = &t->run};
    t->root = new_scope(&a, NULL);
    if (!t->root)
        return false;
    t->self = body_reads(&t->body, "self") ? declare_parameter(&a, t->root, jinja_intern(t, "self", 4)) : -1;
    visit_body(&a, t->root, &t->body);
    return resolve_body(&a, t->root, &t->body, false);
}
