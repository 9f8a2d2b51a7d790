/* Templates after compiling: tokens, syntax tree and variable scopes. All of
 * it lives in the arena of the template. */
#ifndef TEXT_JINJA_AST_H
#define TEXT_JINJA_AST_H

#include "text/jinja_value.h"

enum jinja_token_kind {
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_NUMBER,
    T_OP, /* op: the character; F //, P **, E ==, N !=, G >=, L <= */
    T_EOF
};

struct jinja_token {
    enum jinja_token_kind kind;
    char op;
    int line;
    const char *name; /* T_NAME: interned, so equal names are equal pointers */
    struct jv value;  /* T_DATA, T_STRING, T_NUMBER */
};

enum jinja_node_kind {
    /* expressions */
    N_CONST,   /* value */
    N_NAME,    /* s; hops and slot once scopes are known */
    N_NSREF,   /* target only: s is the variable, value the attribute's name */
    N_TUPLE,   /* l[0] */
    N_LIST,    /* l[0] */
    N_DICT,    /* l[0]: key, value, key, value … */
    N_UNARY,   /* op, a */
    N_BINARY,  /* op, a, b */
    N_AND,     /* a, b */
    N_OR,      /* a, b */
    N_NOT,     /* a */
    N_COMPARE, /* a, l[0] of N_OPERAND */
    N_OPERAND, /* op (E N < > L G i for in, n for not in), a */
    N_CONCAT,  /* l[0] */
    N_COND,    /* a if b else c (or NULL) */
    N_GETATTR, /* a, value: the name */
    N_GETITEM, /* a, b */
    N_SLICE,   /* a, b, c or NULL each; only as b of N_GETITEM or in a tuple there */
    N_CALL,    /* a; l[0] arguments, l[1] of N_KEYWORD, b *args, c **kwargs */
    N_FILTER,  /* a (NULL: the block's text), s, the rest as N_CALL */
    N_TEST,    /* a, s, the rest as N_CALL */
    N_KEYWORD, /* value: the name, a */
    /* statements */
    N_DATA,        /* value */
    N_PRINT,       /* a */
    N_SET,         /* a target, b */
    N_SETBLOCK,    /* a target, b filter or NULL, l[0] body */
    N_FOR,         /* a target, b iterable, c filter or NULL, l[0] body, l[1] else; flag: recursive */
    N_IF,          /* a, l[0] body, l[1] else */
    N_MACRO,       /* s, a its N_NAME, l[0] parameters, l[1] defaults of the last ones, l[2] body */
    N_CALLBLOCK,   /* a the call, lists as N_MACRO */
    N_FILTERBLOCK, /* a filter, l[0] body */
    N_WITH,        /* l[0] targets, l[1] values, l[2] body */
    N_GENERATION,  /* l[0] body */
    N_BLOCK,       /* s, l[0] body; caller, kwargs: slots of self and super; flag: scoped; op: r when required */
    N_AUTOESCAPE,  /* a, l[0] body */
    N_LOAD,        /* include, import, from, extends: a, l[0] names to store; flag: a missing template is no error */
    N_BREAK,
    N_CONTINUE
};

struct jinja_list {
    struct jinja_node **v;
    size_t n, cap;
};

struct jinja_node {
    enum jinja_node_kind kind;
    char op;
    bool flag;
    char escape; /* output: ESCAPE_… */
    int line, depth;
    const char *s;
    struct jinja_node *a, *b, *c;
    struct jinja_list l[3];
    struct jv value;
    int hops, slot;               /* N_NAME, N_NSREF */
    int row;                      /* N_FILTER, N_TEST: row of the table, -1 unknown */
    int caller, kwargs, varargs;  /* N_MACRO, N_CALLBLOCK: slots of the special names or -1 */
    struct jinja_scope *scope[3]; /* body; N_FOR: body, filter, else */
};

/* How a variable starts when its scope is entered. */
enum jinja_load { LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED };

struct jinja_ref {
    const char *name;
    enum jinja_load load;
    int hops, slot; /* LOAD_ALIAS */
    bool stored;
};

struct jinja_scope {
    struct jinja_scope *parent;
    int id;
    struct jinja_ref *ref;
    size_t n, cap;
    int *stores; /* slots in the order they were first stored */
    size_t n_stores, stores_cap;
};

/* Whether output is escaped: known where an autoescape block has a constant,
 * else asked for at run time. */
enum { ESCAPE_OFF, ESCAPE_ON, ESCAPE_ASK };

struct jinja_template {
    struct jinja_run run; /* arena and limits of the compiler */
    char *name;
    struct jinja_token *tokens;
    size_t n_tokens;
    const char **names; /* interned: hash table */
    size_t names_slots, n_names;
    struct jinja_list body;
    struct jinja_list blocks;
    struct jinja_scope *root;
    int self; /* slot of self in the root scope, or -1 */
    int n_scopes;
};

const char *jinja_intern(struct jinja_template *t, const char *p, size_t n);
bool jinja_lex(struct jinja_template *t, const char *source, size_t len);
bool jinja_parse(struct jinja_template *t);
bool jinja_resolve_scopes(struct jinja_template *t);
/* Rows of the filter and test tables by name; -1: none. */
int jinja_filter_row(const char *name);
int jinja_test_row(const char *name);

/* of the parser */
struct jinja_parser {
    struct jinja_template *t;
    struct jinja_run *r;
    size_t at;
    int loops; /* enclosing loops that break may leave */
    int nesting;
    char escape;
    int inner;         /* enclosing scopes */
    const char *block; /* the statement that is parsed */
    struct jinja_open {
        const char *block;
        const char *const *ends; /* tags that end its body, NULL last */
    } open[64];                  /* blocks whose end is waited for, innermost last */
    int n_open;
};

#define PARSE_MAX_DEPTH 200

struct jinja_token *jinja_peek(struct jinja_parser *p);
bool jinja_at_op(struct jinja_parser *p, char op);
bool jinja_skip_op(struct jinja_parser *p, char op);
bool jinja_expect_op(struct jinja_parser *p, char op);
bool jinja_at_name(struct jinja_parser *p, const char *name);
bool jinja_skip_name(struct jinja_parser *p, const char *name);
const char *jinja_expect_any_name(struct jinja_parser *p);
const char *jinja_describe(struct jinja_parser *p, char out[80]);
struct jinja_node *jinja_node(struct jinja_parser *p, enum jinja_node_kind kind, int line);
bool jinja_list_add(struct jinja_parser *p, struct jinja_list *l, struct jinja_node *n);
struct jinja_node *jinja_parse_expression(struct jinja_parser *p, bool with_cond);
enum { TUPLE_NO_COND = 1, TUPLE_SIMPLE = 2, TUPLE_NAMESPACE = 4, TUPLE_PARENTHESES = 8 };
struct jinja_node *jinja_parse_tuple(struct jinja_parser *p, int flags, const char *end_name);
struct jinja_node *jinja_parse_primary(struct jinja_parser *p, bool with_namespace);
struct jinja_node *jinja_parse_filters(struct jinja_parser *p, struct jinja_node *n, bool start_inline);

#endif
