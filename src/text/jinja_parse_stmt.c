/* Statements of the template language. */
#include <stdio.h>
#include <string.h>

#include "text/jinja_ast.h"
#include "text/jinja_text.h"

static bool parse_body(struct jinja_parser *p, struct jinja_list *body, const char *const *ends);

static void *fail_at(struct jinja_parser *p, int line, enum tlm_status status, const char *message)
{
    p->r->line = line;
    jv_fail(p->r, status, "%s", message);
    return NULL;
}

static bool expect_end(struct jinja_parser *p, enum jinja_token_kind kind, const char *what)
{
    char got[80];
    if (jinja_peek(p)->kind == kind) {
        p->at++;
        return true;
    }
    p->r->line = jinja_peek(p)->line;
    if (jinja_peek(p)->kind == T_EOF)
        jv_fail(p->r, TLM_EFORMAT, "unexpected end of template, expected '%s'.", what);
    else
        jv_fail(p->r, TLM_EFORMAT, "expected token '%s', got '%s'", what, jinja_describe(p, got));
    return false;
}

/* The rest of an opening tag, its body, and optionally the name of the end
 * tag that was met. */
static bool parse_statements(struct jinja_parser *p, struct jinja_list *body, const char *const *ends, bool drop)
{
    (void)jinja_skip_op(p, ':');
    if (!expect_end(p, T_BLOCK_END, "end of statement block") || !parse_body(p, body, ends))
        return false;
    if (drop)
        p->at++;
    return true;
}

static bool assignable(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const names[] = {[N_CONST] = "const", [N_LIST] = "list", [N_DICT] = "dict"};
    bool ok = n->kind == N_NSREF || n->kind == N_NAME || n->kind == N_TUPLE;
    for (size_t i = 0; ok && n->kind == N_TUPLE && i < n->l[0].n; i++)
        if (!assignable(p, n->l[0].v[i]))
            return false;
    if (ok)
        return true;
    p->r->line = n->line;
    const char *name = n->kind <= N_DICT && names[n->kind] ? names[n->kind] : "expression";
    jv_fail(p->r, TLM_EFORMAT, "can't assign to '%s'", name);
    return false;
}

static struct jinja_node *parse_target(struct jinja_parser *p, bool with_namespace, const char *end_name)
{
    struct jinja_node *n = jinja_parse_tuple(p, TUPLE_SIMPLE | (with_namespace ? TUPLE_NAMESPACE : 0), end_name);
    return n && assignable(p, n) ? n : NULL;
}

static struct jinja_node *parse_name_node(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, N_NAME, jinja_peek(p)->line);
    if (n)
        n->s = jinja_expect_any_name(p);
    if (!n || !n->s)
        return NULL;
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(n->s, constants[i]))
            return fail_at(p, n->line, TLM_EFORMAT, "can't assign to a constant");
    return n;
}

static struct jinja_node *parse_set(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endset", NULL};
    n->kind = N_SET;
    if (!(n->a = parse_target(p, true, NULL)))
        return NULL;
    if (jinja_skip_op(p, '=')) {
        n->b = jinja_parse_tuple(p, 0, NULL);
        return n->b ? n : NULL;
    }
    n->kind = N_SETBLOCK;
    if (jinja_at_op(p, '|') && !(n->b = jinja_parse_filters(p, NULL, false)))
        return NULL;
    p->inner++;
    bool ok = parse_statements(p, &n->l[0], ends, true);
    p->inner--;
    return ok ? n : NULL;
}

static bool stores_loop(const struct jinja_node *n)
{
    if (n->kind == N_NAME)
        return !strcmp(n->s, "loop");
    bool found = false;
    for (size_t i = 0; n->kind == N_TUPLE && i < n->l[0].n; i++)
        found = found || stores_loop(n->l[0].v[i]);
    return found;
}

static struct jinja_node *parse_for(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    if (!(n->a = parse_target(p, false, "in")))
        return NULL;
    if (stores_loop(n->a))
        return fail_at(p, n->line, TLM_EFORMAT, "Can't assign to special loop variable in for-loop target");
    if (!jinja_skip_name(p, "in"))
        return fail_at(p, jinja_peek(p)->line, TLM_EFORMAT, "expected token 'in'");
    if (!(n->b = jinja_parse_tuple(p, TUPLE_NO_COND, "recursive")))
        return NULL;
    if (jinja_skip_name(p, "if") && !(n->c = jinja_parse_expression(p, true)))
        return NULL;
    n->flag = jinja_skip_name(p, "recursive");
    int outer = p->loops;
    p->loops = outer + 1;
    if (!parse_statements(p, &n->l[0], ends, false))
        return NULL;
    p->loops = n->flag ? 0 : outer;
    if (jinja_skip_name(p, "else") && !parse_statements(p, &n->l[1], last, false))
        return NULL;
    p->loops = outer;
    return jinja_skip_name(p, "endfor") ? n : NULL;
}

static struct jinja_node *parse_if(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    struct jinja_node *top = n;
    for (;;) {
        if (!(n->a = jinja_parse_tuple(p, TUPLE_NO_COND, NULL)) || !parse_statements(p, &n->l[0], ends, false))
            return NULL;
        if (!jinja_skip_name(p, "elif"))
            break;
        struct jinja_node *next = jinja_node(p, N_IF, jinja_peek(p)->line);
        if (!jinja_list_add(p, &n->l[1], next))
            return NULL;
        n = next;
    }
    if (jinja_skip_name(p, "else"))
        return parse_statements(p, &n->l[1], last, true) ? top : NULL;
    return jinja_skip_name(p, "endif") ? top : NULL;
}

static bool parse_signature(struct jinja_parser *p, struct jinja_node *n)
{
    if (!jinja_expect_op(p, '('))
        return false;
    while (!jinja_at_op(p, ')')) {
        if (n->l[0].n && !jinja_expect_op(p, ','))
            return false;
        struct jinja_node *arg = parse_name_node(p);
        for (size_t i = 0; arg && i < n->l[0].n; i++)
            if (n->l[0].v[i]->s == arg->s)
                return fail_at(p, arg->line, TLM_EFORMAT, "a macro has two parameters of the same name");
        if (!jinja_list_add(p, &n->l[0], arg))
            return false;
        if (jinja_skip_op(p, '=')) {
            if (!jinja_list_add(p, &n->l[1], jinja_parse_expression(p, true)))
                return false;
        } else if (n->l[1].n) {
            return fail_at(p, arg->line, TLM_EFORMAT, "non-default argument follows default argument");
        }
    }
    return jinja_expect_op(p, ')');
}

/* A body that becomes a function: break and continue cannot leave it. */
static bool parse_function_body(struct jinja_parser *p, struct jinja_list *body, const char *end)
{
    const char *const ends[] = {end, NULL};
    int loops = p->loops;
    p->loops = 0;
    bool ok = parse_statements(p, body, ends, true);
    p->loops = loops;
    return ok;
}

static struct jinja_node *parse_macro(struct jinja_parser *p, struct jinja_node *n)
{
    if (!(n->a = parse_name_node(p)) || !parse_signature(p, n))
        return NULL;
    n->s = n->a->s;
    return parse_function_body(p, &n->l[2], "endmacro") ? n : NULL;
}

static struct jinja_node *parse_call_block(struct jinja_parser *p, struct jinja_node *n)
{
    if (jinja_at_op(p, '(') && !parse_signature(p, n))
        return NULL;
    n->a = jinja_parse_expression(p, true);
    if (!n->a)
        return NULL;
    if (n->a->kind != N_CALL)
        return fail_at(p, n->line, TLM_EFORMAT, "expected call");
    return parse_function_body(p, &n->l[2], "endcall") ? n : NULL;
}

static struct jinja_node *parse_filter_block(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endfilter", NULL};
    n->a = jinja_parse_filters(p, NULL, true);
    return n->a && parse_statements(p, &n->l[0], ends, true) ? n : NULL;
}

static struct jinja_node *parse_with(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endwith", NULL};
    while (jinja_peek(p)->kind != T_BLOCK_END) {
        if (n->l[0].n && !jinja_expect_op(p, ','))
            return NULL;
        if (!jinja_list_add(p, &n->l[0], parse_target(p, false, NULL)) || !jinja_expect_op(p, '=') ||
            !jinja_list_add(p, &n->l[1], jinja_parse_expression(p, true)))
            return NULL;
    }
    return parse_statements(p, &n->l[2], ends, true) ? n : NULL;
}

static bool is_space(const struct jv_str *s)
{
    size_t start = 0, end = s->n;
    text_strip(s->p, &start, &end, NULL, 0, true, false);
    return start == end;
}

static struct jinja_node *parse_block(struct jinja_parser *p, struct jinja_node *n)
{
    n->s = jinja_expect_any_name(p);
    if (!n->s)
        return NULL;
    n->flag = jinja_skip_name(p, "scoped");
    n->op = jinja_skip_name(p, "required") ? 'r' : 0;
    if (jinja_at_op(p, '-'))
        return fail_at(p, n->line, TLM_EFORMAT, "the name of a block may not contain hyphens");
    for (size_t i = 0; i < p->t->blocks.n; i++)
        if (p->t->blocks.v[i]->s == n->s)
            return fail_at(p, n->line, TLM_EFORMAT, "a block is defined twice");
    char outer = p->escape;
    p->escape = ESCAPE_OFF; /* whatever stands around a block */
    bool ok = jinja_list_add(p, &p->t->blocks, n) && parse_function_body(p, &n->l[0], "endblock");
    p->escape = outer;
    if (!ok)
        return NULL;
    for (size_t i = 0; n->op && i < n->l[0].n; i++)
        if (n->l[0].v[i]->kind != N_DATA || !is_space(n->l[0].v[i]->value.u.s))
            return fail_at(p, n->line, TLM_EFORMAT, "Required blocks can only contain comments or whitespace");
    (void)jinja_skip_name(p, n->s);
    return n;
}

static struct jinja_node *parse_autoescape(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endautoescape", NULL};
    char outer = p->escape;
    if (!(n->a = jinja_parse_expression(p, true)))
        return NULL;
    p->escape = n->a->kind != N_CONST ? ESCAPE_ASK : jv_truth(n->a->value) ? ESCAPE_ON : ESCAPE_OFF;
    bool ok = parse_statements(p, &n->l[0], ends, true);
    p->escape = outer;
    return ok ? n : NULL;
}

/* "with context", "without context" */
static bool skip_context(struct jinja_parser *p)
{
    const struct jinja_token *next = &p->t->tokens[p->at + 1];
    bool is = (jinja_at_name(p, "with") || jinja_at_name(p, "without")) && next->kind == T_NAME &&
              !strcmp(next->name, "context");
    p->at += is ? 2 : 0;
    return is;
}

static bool add_imported(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_node *name = parse_name_node(p);
    if (name && name->s[0] == '_')
        return fail_at(p, name->line, TLM_EFORMAT, "names starting with an underline can not be imported") != NULL;
    if (name && jinja_skip_name(p, "as"))
        name = parse_name_node(p);
    return jinja_list_add(p, &n->l[0], name);
}

/* Tags that load another template: there is none, so they fail when they are
 * reached. */
static struct jinja_node *parse_load(struct jinja_parser *p, struct jinja_node *n)
{
    const char *tag = p->t->tokens[p->at - 1].name;
    if (!(n->a = jinja_parse_expression(p, true)))
        return NULL;
    if (!strcmp(tag, "extends")) {
        if (p->inner)
            return fail_at(p, n->line, TLM_EFORMAT, "cannot use extend from a non top-level scope");
    } else if (!strcmp(tag, "include")) {
        const struct jinja_token *next = &p->t->tokens[p->at + 1];
        n->flag = jinja_at_name(p, "ignore") && next->kind == T_NAME && !strcmp(next->name, "missing");
        p->at += n->flag ? 2 : 0;
        (void)skip_context(p);
    } else if (!strcmp(tag, "import")) {
        if (!jinja_skip_name(p, "as"))
            return fail_at(p, n->line, TLM_EFORMAT, "expected token 'as'");
        if (!jinja_list_add(p, &n->l[0], parse_name_node(p)))
            return NULL;
        (void)skip_context(p);
    } else {
        if (!jinja_skip_name(p, "import"))
            return fail_at(p, n->line, TLM_EFORMAT, "expected token 'import'");
        do {
            if (skip_context(p))
                break;
            if (!add_imported(p, n))
                return NULL;
        } while (!skip_context(p) && jinja_skip_op(p, ','));
    }
    return n;
}

static struct jinja_node *parse_loop_control(struct jinja_parser *p, struct jinja_node *n)
{
    if (p->loops)
        return n;
    return fail_at(p, n->line, TLM_EFORMAT,
                   n->kind == N_BREAK ? "'break' outside loop" : "'continue' not properly in loop");
}

static struct jinja_node *parse_generation(struct jinja_parser *p, struct jinja_node *n)
{
    return parse_function_body(p, &n->l[0], "endgeneration") ? n : NULL;
}

static const struct statement {
    const char *name;
    enum jinja_node_kind kind;
    struct jinja_node *(*parse)(struct jinja_parser *p, struct jinja_node *n);
} statements[] = {
    {"set", N_SET, parse_set},
    {"for", N_FOR, parse_for},
    {"if", N_IF, parse_if},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALLBLOCK, parse_call_block},
    {"filter", N_FILTERBLOCK, parse_filter_block},
    {"with", N_WITH, parse_with},
    {"block", N_BLOCK, parse_block},
    {"generation", N_GENERATION, parse_generation},
    {"break", N_BREAK, parse_loop_control},
    {"continue", N_CONTINUE, parse_loop_control},
    {"autoescape", N_AUTOESCAPE, parse_autoescape},
    {"include", N_LOAD, parse_load},
    {"import", N_LOAD, parse_load},
    {"from", N_LOAD, parse_load},
    {"extends", N_LOAD, parse_load},
};

static bool parse_print_statement(struct jinja_parser *p, struct jinja_list *body)
{
    bool any = false;
    while (jinja_peek(p)->kind != T_BLOCK_END) {
        struct jinja_node *n = jinja_node(p, N_PRINT, jinja_peek(p)->line);
        if (!n || (any && !jinja_expect_op(p, ',')) || !(n->a = jinja_parse_expression(p, true)) ||
            !jinja_list_add(p, body, n))
            return false;
        any = true;
    }
    return true;
}

/* "'elif' or 'else' or 'endif'" */
static const char *list_ends(const char *const *ends, char out[80])
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; ends[i] && n < 80; i++)
        n += (size_t)snprintf(out + n, 80 - n, "%s'%s'", i ? " or " : "", ends[i]);
    return out;
}

static bool unknown_tag(struct jinja_parser *p, const char *name, int line)
{
    p->r->line = line;
    const struct jinja_open *o = p->n_open ? &p->open[p->n_open - 1] : NULL;
    char ends[80];
    bool elsewhere = false;
    for (int i = 0; i < p->n_open; i++)
        for (const char *const *end = p->open[i].ends; *end; end++)
            elsewhere = elsewhere || !strcmp(*end, name);
    if (!o)
        jv_fail(p->r, TLM_EFORMAT, "Encountered unknown tag '%s'.", name);
    else
        jv_fail(p->r, TLM_EFORMAT,
                elsewhere
                    ? "Encountered unknown tag '%s'. You probably made a nesting mistake. Jinja is expecting this "
                      "tag, but currently looking for %s. The innermost block that needs to be closed is '%s'."
                    : "Encountered unknown tag '%s'. Jinja was looking for the following tags: %s. The innermost "
                      "block that needs to be closed is '%s'.",
                name, list_ends(o->ends, ends), o->block);
    return false;
}

static bool parse_statement(struct jinja_parser *p, struct jinja_list *body)
{
    struct jinja_token *k = jinja_peek(p);
    if (k->kind != T_NAME)
        return fail_at(p, k->line, TLM_EFORMAT, "tag name expected");
    if (!strcmp(k->name, "print")) {
        p->at++;
        return parse_print_statement(p, body);
    }
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (strcmp(k->name, statements[i].name))
            continue;
        struct jinja_node *n = jinja_node(p, statements[i].kind, k->line);
        bool scope = n && n->kind != N_IF && n->kind != N_LOAD && n->kind != N_SET;
        p->at++;
        p->inner += scope;
        const char *outer = p->block;
        p->block = statements[i].name;
        n = n ? statements[i].parse(p, n) : NULL;
        p->block = outer;
        p->inner -= scope;
        return n && jinja_list_add(p, body, n);
    }
    return unknown_tag(p, k->name, k->line);
}

static bool at_end_tag(struct jinja_parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jinja_at_name(p, *ends))
            return true;
    return false;
}

static bool parse_body_items(struct jinja_parser *p, struct jinja_list *body, const char *const *ends)
{
    for (;;) {
        struct jinja_token *k = jinja_peek(p);
        if (k->kind == T_EOF) {
            if (!ends)
                return true;
            char list[80];
            p->r->line = k->line;
            jv_fail(
                p->r, TLM_EFORMAT,
                "Unexpected end of template. Jinja was looking for the following tags: %s. The innermost block that "
                "needs to be closed is '%s'.",
                list_ends(ends, list), p->block);
            return false;
        }
        p->at++;
        if (k->kind == T_DATA) {
            struct jinja_node *n = jinja_node(p, N_DATA, k->line);
            if (!jinja_list_add(p, body, n))
                return false;
            n->value = k->value;
        } else if (k->kind == T_VAR_BEGIN) {
            struct jinja_node *n = jinja_node(p, N_PRINT, k->line);
            if (!n || !(n->a = jinja_parse_tuple(p, 0, NULL)) || !expect_end(p, T_VAR_END, "end of print statement") ||
                !jinja_list_add(p, body, n))
                return false;
        } else {
            if (at_end_tag(p, ends))
                return true;
            if (!parse_statement(p, body) || !expect_end(p, T_BLOCK_END, "end of statement block"))
                return false;
        }
    }
}

static bool parse_body(struct jinja_parser *p, struct jinja_list *body, const char *const *ends)
{
    enum { MAX_BLOCKS = sizeof p->open / sizeof p->open[0] };
    if (ends && p->n_open == MAX_BLOCKS)
        return fail_at(p, jinja_peek(p)->line, TLM_ELIMIT, "blocks are nested too deeply");
    if (ends)
        p->open[p->n_open++] = (struct jinja_open){p->block, ends};
    bool ok = parse_body_items(p, body, ends);
    if (ends)
        p->n_open--;
    return ok;
}

bool jinja_parse(struct jinja_template *t)
{
    struct jinja_parser p = {.t = t, .r = &t->run};
    return parse_body(&p, &t->body, NULL) && t->run.status == TLM_OK;
}
