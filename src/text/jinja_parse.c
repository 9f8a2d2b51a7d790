/* Expressions of the template language, with jinja2's precedence:
 * inline if < or < and < not < comparison < + - < ~ < * / // % < ** <
 * unary < postfix < filters and tests. */
#include <stdio.h>
#include <string.h>

#include "text/jinja_ast.h"

struct jinja_token *jinja_peek(struct jinja_parser *p)
{
    return &p->t->tokens[p->at];
}

static struct jinja_token *peek2(struct jinja_parser *p)
{
    size_t next = p->at + 1 < p->t->n_tokens ? p->at + 1 : p->at;
    return &p->t->tokens[next];
}

static void advance(struct jinja_parser *p)
{
    if (p->at + 1 < p->t->n_tokens)
        p->at++;
}

bool jinja_at_op(struct jinja_parser *p, char op)
{
    struct jinja_token *k = jinja_peek(p);
    return k->kind == T_OP && k->op == op;
}

bool jinja_skip_op(struct jinja_parser *p, char op)
{
    if (!jinja_at_op(p, op))
        return false;
    advance(p);
    return true;
}

bool jinja_at_name(struct jinja_parser *p, const char *name)
{
    struct jinja_token *k = jinja_peek(p);
    return k->kind == T_NAME && !strcmp(k->name, name);
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    if (!jinja_at_name(p, name))
        return false;
    advance(p);
    return true;
}

const char *jinja_describe(struct jinja_parser *p, char out[80])
{
    static const char *const kinds[] = {"template data / text",
                                        "begin of print statement",
                                        "end of print statement",
                                        "begin of statement block",
                                        "end of statement block",
                                        "name",
                                        "string",
                                        "number",
                                        "operator",
                                        "end of template"};
    struct jinja_token *k = jinja_peek(p);
    static const char code[] = "FPENGL", two[][3] = {"//", "**", "==", "!=", ">=", "<="};
    const char *c = k->kind == T_OP ? strchr(code, k->op) : NULL;
    if (k->kind == T_NAME)
        snprintf(out, 80, "%.70s", k->name);
    else if (k->kind != T_OP)
        snprintf(out, 80, "%s", kinds[k->kind]);
    else if (c && *c)
        snprintf(out, 80, "%s", two[c - code]);
    else
        snprintf(out, 80, "%c", k->op);
    return out;
}

static void *expected(struct jinja_parser *p, const char *what)
{
    char got[80];
    p->r->line = jinja_peek(p)->line;
    if (jinja_peek(p)->kind == T_EOF)
        jv_fail(p->r, TLM_EFORMAT, "unexpected end of template, expected '%s'.", what);
    else
        jv_fail(p->r, TLM_EFORMAT, "expected token '%s', got '%s'", what, jinja_describe(p, got));
    return NULL;
}

bool jinja_expect_op(struct jinja_parser *p, char op)
{
    char what[2] = {op, 0};
    return jinja_skip_op(p, op) || expected(p, what);
}

const char *jinja_expect_any_name(struct jinja_parser *p)
{
    struct jinja_token *k = jinja_peek(p);
    if (k->kind != T_NAME)
        return expected(p, "name");
    advance(p);
    return k->name;
}

struct jinja_node *jinja_node(struct jinja_parser *p, enum jinja_node_kind kind, int line)
{
    struct jinja_node *n = jv_alloc(p->r, sizeof *n);
    if (n)
        *n = (struct jinja_node){.kind = kind,
                                 .line = line,
                                 .escape = p->escape,
                                 .value = jv_none,
                                 .row = -1,
                                 .caller = -1,
                                 .kwargs = -1,
                                 .varargs = -1};
    return n;
}

bool jinja_list_add(struct jinja_parser *p, struct jinja_list *l, struct jinja_node *n)
{
    if (!n)
        return false;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jinja_node **v = jv_grow(p->r, l->v, l->n * sizeof *v, cap * sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return true;
}

/* Fills in children and refuses trees that are too deep to walk. */
static struct jinja_node *with(struct jinja_parser *p, struct jinja_node *n, struct jinja_node *a, struct jinja_node *b)
{
    if (!n || !a || p->r->status != TLM_OK)
        return NULL;
    n->a = a;
    n->b = b;
    n->depth = 1 + (b && b->depth > a->depth ? b->depth : a->depth);
    if (n->depth <= 400)
        return n;
    p->r->line = n->line;
    jv_fail(p->r, TLM_ELIMIT, "an expression is nested too deeply");
    return NULL;
}

static struct jinja_node *constant(struct jinja_parser *p, struct jv v, int line)
{
    struct jinja_node *n = jinja_node(p, N_CONST, line);
    if (n)
        n->value = v;
    return n;
}

static struct jv name_value(struct jinja_parser *p, const char *name)
{
    return jv_cstr(p->r, name);
}

static struct jinja_node *parse_name(struct jinja_parser *p, bool with_namespace)
{
    struct jinja_token *k = jinja_peek(p);
    advance(p);
    if (!strcmp(k->name, "true") || !strcmp(k->name, "True"))
        return constant(p, jv_true, k->line);
    if (!strcmp(k->name, "false") || !strcmp(k->name, "False"))
        return constant(p, jv_false, k->line);
    if (!strcmp(k->name, "none") || !strcmp(k->name, "None"))
        return constant(p, jv_none, k->line);
    struct jinja_node *n = jinja_node(p, N_NAME, k->line);
    if (!n)
        return NULL;
    n->s = k->name;
    if (with_namespace && jinja_skip_op(p, '.')) {
        const char *attr = jinja_expect_any_name(p);
        n->kind = N_NSREF;
        n->value = attr ? name_value(p, attr) : jv_error;
        return attr && n->value.type == JV_STR ? n : NULL;
    }
    return n;
}

static struct jinja_node *parse_strings(struct jinja_parser *p)
{
    struct jinja_token *k = jinja_peek(p);
    struct jv v = k->value;
    advance(p);
    if (jinja_peek(p)->kind == T_STRING) {
        struct buf b;
        jv_buf_init(p->r, &b);
        buf_add(&b, v.u.s->p, v.u.s->n);
        for (; jinja_peek(p)->kind == T_STRING; advance(p))
            buf_add(&b, jinja_peek(p)->value.u.s->p, jinja_peek(p)->value.u.s->n);
        v = jv_from_buf(p->r, &b);
    }
    return jv_is_error(v) ? NULL : constant(p, v, k->line);
}

static struct jinja_node *parse_list(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, N_LIST, jinja_peek(p)->line);
    if (!n || !jinja_expect_op(p, '['))
        return NULL;
    while (!jinja_at_op(p, ']')) {
        if (n->l[0].n && !jinja_expect_op(p, ','))
            return NULL;
        if (jinja_at_op(p, ']'))
            break;
        if (!jinja_list_add(p, &n->l[0], jinja_parse_expression(p, true)))
            return NULL;
    }
    return jinja_expect_op(p, ']') ? n : NULL;
}

static struct jinja_node *parse_dict(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node(p, N_DICT, jinja_peek(p)->line);
    if (!n || !jinja_expect_op(p, '{'))
        return NULL;
    while (!jinja_at_op(p, '}')) {
        if (n->l[0].n && !jinja_expect_op(p, ','))
            return NULL;
        if (jinja_at_op(p, '}'))
            break;
        if (!jinja_list_add(p, &n->l[0], jinja_parse_expression(p, true)) || !jinja_expect_op(p, ':') ||
            !jinja_list_add(p, &n->l[0], jinja_parse_expression(p, true)))
            return NULL;
    }
    return jinja_expect_op(p, '}') ? n : NULL;
}

struct jinja_node *jinja_parse_primary(struct jinja_parser *p, bool with_namespace)
{
    struct jinja_token *k = jinja_peek(p);
    struct jinja_node *n;
    char got[80];
    if (k->kind == T_NAME)
        return parse_name(p, with_namespace);
    if (k->kind == T_STRING)
        return parse_strings(p);
    if (k->kind == T_NUMBER) {
        advance(p);
        return constant(p, k->value, k->line);
    }
    if (jinja_skip_op(p, '(')) {
        n = jinja_parse_tuple(p, TUPLE_PARENTHESES, NULL);
        return n && jinja_expect_op(p, ')') ? n : NULL;
    }
    if (jinja_at_op(p, '['))
        return parse_list(p);
    if (jinja_at_op(p, '{'))
        return parse_dict(p);
    p->r->line = k->line;
    jv_fail(p->r, TLM_EFORMAT, "unexpected '%s'", jinja_describe(p, got));
    return NULL;
}

static bool tuple_end(struct jinja_parser *p, const char *end_name)
{
    struct jinja_token *k = jinja_peek(p);
    return k->kind == T_VAR_END || k->kind == T_BLOCK_END || jinja_at_op(p, ')') ||
           (end_name && jinja_at_name(p, end_name));
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, int flags, const char *end_name)
{
    struct jinja_node *n = jinja_node(p, N_TUPLE, jinja_peek(p)->line);
    bool is_tuple = false;
    char got[80];
    while (n) {
        if (n->l[0].n && !jinja_expect_op(p, ','))
            return NULL;
        if (tuple_end(p, end_name))
            break;
        struct jinja_node *item = flags & TUPLE_SIMPLE ? jinja_parse_primary(p, flags & TUPLE_NAMESPACE)
                                                       : jinja_parse_expression(p, !(flags & TUPLE_NO_COND));
        if (!jinja_list_add(p, &n->l[0], item))
            return NULL;
        if (!jinja_at_op(p, ','))
            break;
        is_tuple = true;
    }
    if (!n || is_tuple)
        return n;
    if (n->l[0].n)
        return n->l[0].v[0];
    if (flags & TUPLE_PARENTHESES)
        return n;
    p->r->line = jinja_peek(p)->line;
    jv_fail(p->r, TLM_EFORMAT, "Expected an expression, got '%s'", jinja_describe(p, got));
    return NULL;
}

static bool parse_call_args(struct jinja_parser *p, struct jinja_node *n)
{
    int line = jinja_peek(p)->line;
    bool ok = jinja_expect_op(p, '('), comma = false;
    while (ok && !jinja_at_op(p, ')')) {
        if (comma) {
            ok = jinja_expect_op(p, ',');
            if (!ok || jinja_at_op(p, ')'))
                break;
        }
        comma = true;
        bool order = true;
        if (jinja_skip_op(p, '*')) {
            order = !n->b && !n->c;
            n->b = jinja_parse_expression(p, true);
            ok = n->b != NULL;
        } else if (jinja_skip_op(p, 'P')) {
            order = !n->c;
            n->c = jinja_parse_expression(p, true);
            ok = n->c != NULL;
        } else if (jinja_peek(p)->kind == T_NAME && peek2(p)->kind == T_OP && peek2(p)->op == '=') {
            struct jinja_node *kw = jinja_node(p, N_KEYWORD, jinja_peek(p)->line);
            order = !n->c;
            if (!kw)
                return false;
            kw->value = name_value(p, jinja_peek(p)->name);
            p->at += 2;
            kw->a = jinja_parse_expression(p, true);
            for (size_t i = 0; kw->a && i < n->l[1].n; i++)
                if (jv_identical(n->l[1].v[i]->value, kw->value))
                    order = false;
            ok = kw->a && jinja_list_add(p, &n->l[1], kw);
        } else {
            order = !n->b && !n->c && !n->l[1].n;
            ok = jinja_list_add(p, &n->l[0], jinja_parse_expression(p, true));
        }
        if (ok && !order) {
            p->r->line = line;
            jv_fail(p->r, TLM_EFORMAT, "invalid syntax for function call expression");
            return false;
        }
    }
    return ok && jinja_expect_op(p, ')');
}

/* The parts of a call apart from the callee count for the depth, too. */
static struct jinja_node *finish_call(struct jinja_parser *p, struct jinja_node *n, struct jinja_node *callee)
{
    if (!n)
        return NULL;
    struct jinja_node *args = n->b;
    n = callee ? with(p, n, callee, NULL) : n;
    if (n)
        n->b = args;
    return n;
}

static struct jinja_node *parse_call(struct jinja_parser *p, struct jinja_node *callee)
{
    struct jinja_node *n = jinja_node(p, N_CALL, jinja_peek(p)->line);
    return n && parse_call_args(p, n) ? finish_call(p, n, callee) : NULL;
}

/* a.b.c of a filter's or test's name. */
static const char *dotted_name(struct jinja_parser *p)
{
    const char *name = jinja_expect_any_name(p);
    while (name && jinja_skip_op(p, '.')) {
        const char *more = jinja_expect_any_name(p);
        char joined[256];
        if (!more)
            return NULL;
        int n = snprintf(joined, sizeof joined, "%s.%s", name, more);
        name = jinja_intern(p->t, joined, n < (int)sizeof joined ? (size_t)n : sizeof joined - 1);
    }
    return name;
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *n, bool start_inline)
{
    while (start_inline || jinja_skip_op(p, '|')) {
        start_inline = false;
        struct jinja_node *f = jinja_node(p, N_FILTER, jinja_peek(p)->line);
        if (!f || !(f->s = dotted_name(p)))
            return NULL;
        if (jinja_at_op(p, '(') && !parse_call_args(p, f))
            return NULL;
        n = finish_call(p, f, n);
        if (!n)
            return NULL;
    }
    return n;
}

static struct jinja_node *parse_subscribed(struct jinja_parser *p)
{
    struct jinja_node *part[3] = {NULL, NULL, NULL};
    int line = jinja_peek(p)->line;
    if (!jinja_at_op(p, ':')) {
        part[0] = jinja_parse_expression(p, true);
        if (!part[0] || !jinja_at_op(p, ':'))
            return part[0];
    }
    for (int i = 1; i < 3 && jinja_skip_op(p, ':'); i++) {
        if (jinja_at_op(p, ':') || jinja_at_op(p, ']') || jinja_at_op(p, ','))
            continue;
        part[i] = jinja_parse_expression(p, true);
        if (!part[i])
            return NULL;
    }
    struct jinja_node *n = jinja_node(p, N_SLICE, line);
    if (n) {
        n->a = part[0];
        n->b = part[1];
        n->c = part[2];
    }
    return n;
}

static struct jinja_node *parse_subscript(struct jinja_parser *p, struct jinja_node *node)
{
    int line = jinja_peek(p)->line;
    if (jinja_skip_op(p, '.')) {
        struct jinja_token *k = jinja_peek(p);
        bool name = k->kind == T_NAME;
        if (!name && !(k->kind == T_NUMBER && k->value.type != JV_FLOAT)) {
            p->r->line = k->line;
            jv_fail(p->r, TLM_EFORMAT, "expected name or number");
            return NULL;
        }
        advance(p);
        struct jinja_node *n = with(p, jinja_node(p, name ? N_GETATTR : N_GETITEM, line), node, NULL);
        if (n && name)
            n->value = name_value(p, k->name);
        else if (n)
            n->b = constant(p, k->value, k->line);
        return n && (name ? n->value.type == JV_STR : n->b != NULL) ? n : NULL;
    }
    if (!jinja_expect_op(p, '['))
        return NULL;
    struct jinja_node *t = jinja_node(p, N_TUPLE, line);
    while (t && !jinja_at_op(p, ']')) {
        if (t->l[0].n && !jinja_expect_op(p, ','))
            return NULL;
        if (!jinja_list_add(p, &t->l[0], parse_subscribed(p)))
            return NULL;
    }
    if (!t || !jinja_expect_op(p, ']'))
        return NULL;
    return with(p, jinja_node(p, N_GETITEM, line), node, t->l[0].n == 1 ? t->l[0].v[0] : t);
}

static struct jinja_node *parse_postfix(struct jinja_parser *p, struct jinja_node *n)
{
    while (n) {
        if (jinja_at_op(p, '.') || jinja_at_op(p, '['))
            n = parse_subscript(p, n);
        else if (jinja_at_op(p, '('))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

static struct jinja_node *parse_test(struct jinja_parser *p, struct jinja_node *node)
{
    int line = jinja_peek(p)->line;
    advance(p);
    bool negated = jinja_skip_name(p, "not");
    struct jinja_node *n = jinja_node(p, N_TEST, line);
    if (!n || !(n->s = dotted_name(p)))
        return NULL;
    struct jinja_token *k = jinja_peek(p);
    bool primary =
        k->kind == T_NAME || k->kind == T_STRING || k->kind == T_NUMBER || jinja_at_op(p, '[') || jinja_at_op(p, '{');
    if (jinja_at_op(p, '(')) {
        if (!parse_call_args(p, n))
            return NULL;
    } else if (primary && !jinja_at_name(p, "else") && !jinja_at_name(p, "or") && !jinja_at_name(p, "and")) {
        if (jinja_at_name(p, "is")) {
            p->r->line = k->line;
            jv_fail(p->r, TLM_EFORMAT, "You cannot chain multiple tests with is");
            return NULL;
        }
        struct jinja_node *arg = jinja_parse_primary(p, false);
        if (!jinja_list_add(p, &n->l[0], parse_postfix(p, arg)))
            return NULL;
    }
    n = finish_call(p, n, node);
    return negated ? with(p, jinja_node(p, N_NOT, line), n, NULL) : n;
}

static struct jinja_node *parse_unary(struct jinja_parser *p, bool with_filter)
{
    int line = jinja_peek(p)->line;
    struct jinja_node *n;
    if (p->nesting >= PARSE_MAX_DEPTH) {
        p->r->line = line;
        jv_fail(p->r, TLM_ELIMIT, "an expression is nested too deeply");
        return NULL;
    }
    p->nesting++;
    if (jinja_at_op(p, '-') || jinja_at_op(p, '+')) {
        char op = jinja_peek(p)->op;
        advance(p);
        n = with(p, jinja_node(p, N_UNARY, line), parse_unary(p, false), NULL);
        if (n)
            n->op = op;
    } else {
        n = jinja_parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (n && with_filter) {
        if (jinja_at_op(p, '|'))
            n = jinja_parse_filters(p, n, false);
        else if (jinja_at_name(p, "is"))
            n = parse_test(p, n);
        else if (jinja_at_op(p, '('))
            n = parse_call(p, n);
        else
            break;
    }
    p->nesting--;
    return n;
}

static struct jinja_node *parse_binary(struct jinja_parser *p, int level);

/* One chain of left-associative operators; level 0: + -, 2: * / // %, 3: **. */
static struct jinja_node *parse_chain(struct jinja_parser *p, int level)
{
    static const char *const ops[] = {"+-", "", "*/F%", "P"};
    int line = jinja_peek(p)->line;
    struct jinja_node *left = level == 3 ? parse_unary(p, true) : parse_binary(p, level + 1);
    while (left && jinja_peek(p)->kind == T_OP && strchr(ops[level], jinja_peek(p)->op)) {
        char op = jinja_peek(p)->op;
        advance(p);
        struct jinja_node *right = level == 3 ? parse_unary(p, true) : parse_binary(p, level + 1);
        left = right ? with(p, jinja_node(p, N_BINARY, line), left, right) : NULL;
        if (left)
            left->op = op;
    }
    return left;
}

static struct jinja_node *parse_binary(struct jinja_parser *p, int level)
{
    if (level != 1)
        return parse_chain(p, level);
    int line = jinja_peek(p)->line;
    struct jinja_node *first = parse_chain(p, 2);
    if (!first || !jinja_at_op(p, '~'))
        return first;
    struct jinja_node *n = jinja_node(p, N_CONCAT, line);
    if (!n || !jinja_list_add(p, &n->l[0], first))
        return NULL;
    while (jinja_skip_op(p, '~'))
        if (!jinja_list_add(p, &n->l[0], parse_chain(p, 2)))
            return NULL;
    return n;
}

static char comparison(struct jinja_parser *p)
{
    struct jinja_token *k = jinja_peek(p), *next = peek2(p);
    if (k->kind == T_OP && k->op && strchr("ENGL<>", k->op)) {
        advance(p);
        return k->op;
    }
    if (jinja_skip_name(p, "in"))
        return 'i';
    if (jinja_at_name(p, "not") && next->kind == T_NAME && !strcmp(next->name, "in")) {
        p->at += 2;
        return 'n';
    }
    return 0;
}

static struct jinja_node *parse_compare(struct jinja_parser *p)
{
    int line = jinja_peek(p)->line;
    struct jinja_node *first = parse_binary(p, 0), *n = NULL;
    char op;
    while (first && (op = comparison(p)) != 0) {
        struct jinja_node *operand = with(p, jinja_node(p, N_OPERAND, line), parse_binary(p, 0), NULL);
        if (operand)
            operand->op = op;
        if (!n)
            n = with(p, jinja_node(p, N_COMPARE, line), first, NULL);
        if (!n || !jinja_list_add(p, &n->l[0], operand))
            return NULL;
    }
    return n ? n : first;
}

static struct jinja_node *parse_not(struct jinja_parser *p)
{
    int line = jinja_peek(p)->line, count = 0;
    while (jinja_skip_name(p, "not"))
        count++;
    struct jinja_node *n = parse_compare(p);
    while (n && count--)
        n = with(p, jinja_node(p, N_NOT, line), n, NULL);
    return n;
}

static struct jinja_node *parse_logic(struct jinja_parser *p, bool is_or)
{
    int line = jinja_peek(p)->line;
    struct jinja_node *left = is_or ? parse_logic(p, false) : parse_not(p);
    while (left && jinja_skip_name(p, is_or ? "or" : "and")) {
        struct jinja_node *right = is_or ? parse_logic(p, false) : parse_not(p);
        left = right ? with(p, jinja_node(p, is_or ? N_OR : N_AND, line), left, right) : NULL;
    }
    return left;
}

static struct jinja_node *parse_cond(struct jinja_parser *p)
{
    int line = jinja_peek(p)->line;
    struct jinja_node *n = parse_logic(p, true);
    while (n && jinja_skip_name(p, "if")) {
        struct jinja_node *test = parse_logic(p, true), *other = NULL;
        if (!test)
            return NULL;
        if (jinja_skip_name(p, "else") && !(other = jinja_parse_expression(p, true)))
            return NULL;
        n = with(p, jinja_node(p, N_COND, line), n, test);
        if (n) {
            n->c = other;
            if (other && other->depth >= n->depth)
                n->depth = other->depth + 1;
        }
    }
    return n;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool with_cond)
{
    if (p->nesting >= PARSE_MAX_DEPTH || !jv_step(p->r, 1)) {
        p->r->line = jinja_peek(p)->line;
        jv_fail(p->r, TLM_ELIMIT, "an expression is nested too deeply");
        return NULL;
    }
    p->nesting++;
    struct jinja_node *n = with_cond ? parse_cond(p) : parse_logic(p, true);
    p->nesting--;
    return n;
}
