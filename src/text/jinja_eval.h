/* The evaluator's parts: expressions, operators, calls, filters and tests. */
#ifndef TEXT_JINJA_EVAL_H
#define TEXT_JINJA_EVAL_H

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

/* Variables of one entered scope. */
struct jinja_frame {
    struct jinja_frame *parent, *next_free;
    const struct jinja_scope *scope;
    bool captured; /* a macro or iterator keeps it */
    struct jv v[];
};

struct jv_loop {
    struct jv_iter *it;
    struct jv source;
    int64_t index0, length; /* length -1: not known yet */
    struct jv current, before, after, changed;
    bool has_after;
    int64_t depth0;
    const struct jinja_node *node;
    struct jinja_frame *frame;
};

enum jinja_flow { FLOW_NORMAL, FLOW_BREAK, FLOW_CONTINUE, FLOW_ERROR };

/* jinja_exec.c */
enum jinja_flow jinja_exec_root(struct jinja_run *r);
enum jinja_flow jinja_exec(struct jinja_run *r, struct jinja_frame *f, const struct jinja_list *body);
struct jv jinja_call_macro(struct jinja_run *r, const struct jv_func *fn, const struct jinja_args *args);
struct jv jinja_call_block(struct jinja_run *r, const struct jv_func *fn, const struct jinja_args *args);
struct jv jinja_find_block(struct jinja_run *r, struct jv name); /* JV_MISSING: none */
struct jv jinja_call_loop(struct jinja_run *r, struct jv_loop *l, const struct jinja_args *args);
struct jv jinja_macro_new(struct jinja_run *r, const struct jinja_node *node, struct jinja_frame *f);
int jinja_loop_next(struct jinja_run *r, struct jv_iter *it, struct jv *out);
int64_t jinja_loop_length(struct jinja_run *r, struct jv_loop *l);
bool jinja_loop_repr(struct jinja_run *r, struct buf *b, struct jv_loop *l);
struct jv jinja_loop_attr(struct jinja_run *r, struct jv_loop *l, const char *name);
/* The value of a name that no scope stores. */
struct jv jinja_resolve(struct jinja_run *r, const char *name);

/* jinja_expr.c */
struct jv jinja_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n);
bool jinja_eval_args(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n, struct jinja_args *out);
struct jv jinja_eval_filter(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *n, struct jv value);

/* jinja_ops.c */
struct jv jinja_binary(struct jinja_run *r, char op, struct jv a, struct jv b);
struct jv jinja_unary(struct jinja_run *r, char op, struct jv a);
struct jv jinja_getattr(struct jinja_run *r, struct jv obj, struct jv name);
struct jv jinja_getitem(struct jinja_run *r, struct jv obj, struct jv key);
struct jv jinja_slice(struct jinja_run *r, struct jv obj, const struct jv part[3]);
struct jv jinja_concat2(struct jinja_run *r, struct jv a, struct jv b); /* two strings */
struct jv jinja_escape(struct jinja_run *r, struct jv v);               /* HTML, a safe string */
struct jv jinja_safe_if(struct jinja_run *r, struct jv v, bool safe);   /* a string as a safe one */
static inline bool jinja_escapes(const struct jinja_run *r, const struct jinja_node *n)
{
    return n->escape == ESCAPE_ASK ? r->autoescape : n->escape == ESCAPE_ON;
}

/* jinja_big.c: integers beyond 64 bits */
struct jv jinja_big_binary(struct jinja_run *r, char op, struct jv a, struct jv b); /* integers of any size */
/* Digits of that base, with sign and prefix; other characters are passed over. */
struct jv jinja_big_read(struct jinja_run *r, const char *p, size_t n, int base);
bool jinja_big_digits(struct jinja_run *r, struct jv v, unsigned base, struct buf *out); /* of |v| */
struct jv jinja_big_from_double(struct jinja_run *r, double f);                          /* of a whole number */

/* jinja_call.c */
struct jv jinja_call(struct jinja_run *r, struct jv callee, const struct jinja_args *args);
struct jv jinja_global(struct jinja_run *r, const char *name);
/* Distributes arguments over parameters: "old,new,count?" ('?': optional, left
 * JV_MISSING; '/' at the front: no keywords). */
bool jinja_bind(struct jinja_run *r, const char *function, const char *spec, const struct jinja_args *args,
                struct jv *out);
bool jinja_int_arg(struct jinja_run *r, struct jv v, int64_t *out); /* an index: int or bool */
bool jinja_str_arg(struct jinja_run *r, const char *function, struct jv v);
struct jv jinja_dict_from(struct jinja_run *r, const struct jinja_args *args);

/* jinja_method.c: methods of the built-in types */
/* Whether Python's object has the attribute; *out is it, or JV_MISSING when
 * the sandbox forbids it. */
bool jinja_attribute(struct jinja_run *r, struct jv obj, const char *name, size_t n, struct jv *out);
struct jv jinja_call_method(struct jinja_run *r, const struct jv_func *fn, const struct jinja_args *args);
struct jv jinja_split(struct jinja_run *r, struct jv s, struct jv sep, int64_t max, bool right);
struct jv jinja_replace(struct jinja_run *r, struct jv s, struct jv old, struct jv new, int64_t count);
struct jv jinja_split_lines(struct jinja_run *r, struct jv s, bool keep);
struct jv jinja_strip(struct jinja_run *r, struct jv s, struct jv chars, bool left, bool right);
struct jv jinja_case(struct jinja_run *r, struct jv s, int how);
struct jv jinja_pad(struct jinja_run *r, struct jv s, int64_t width, struct jv fill, int side); /* -1 left, 0, 1 */

/* jinja_method_more.c */
struct jv jinja_casefold(struct jinja_run *r, struct jv s);
struct jv jinja_expand_tabs(struct jinja_run *r, struct jv s, int64_t size);
struct jv jinja_translate(struct jinja_run *r, struct jv s, struct jv table);
struct jv jinja_make_trans(struct jinja_run *r, const struct jv *a); /* three arguments */
bool jinja_is_identifier(const struct jv_str *s);
struct jv jinja_bits(struct jinja_run *r, struct jv v, bool count); /* bit_count, or bit_length */

/* jinja_format.c */
struct jv jinja_percent(struct jinja_run *r, struct jv format, struct jv value);
struct jv jinja_format(struct jinja_run *r, struct jv format, const struct jinja_args *args);

/* jinja_filter.c */
struct jv jinja_filter(struct jinja_run *r, int row, const char *name, struct jv value, const struct jinja_args *args);
int jinja_test(struct jinja_run *r, int row, const char *name, struct jv value, const struct jinja_args *args);

typedef struct jv jinja_filter_fn(struct jinja_run *r, struct jv value, const struct jv *a,
                                  const struct jinja_args *args);
struct jinja_filter_def {
    const char *name, *spec; /* spec NULL: the function reads args itself */
    jinja_filter_fn *fn;
};
extern const struct jinja_filter_def jinja_text_filters[], jinja_seq_filters[], jinja_misc_filters[],
    jinja_wrap_filters[];
/* Path "a.b.0", integer or JV_NONE applied to an item. */
struct jv jinja_attr_path(struct jinja_run *r, struct jv item, struct jv path, struct jv fallback);
struct jv jinja_ignore_case(struct jinja_run *r, struct jv v);
bool jinja_sort(struct jinja_run *r, struct jv *items, struct jv *keys, size_t n, bool reverse);

/* jinja_json.c */
struct jv jinja_json_read(struct jinja_run *r, const char *text, size_t len);
struct jinja_dump {
    bool ascii, sort_keys;
    const char *indent; /* NULL: one line */
    size_t indent_n;
    const char *item_sep, *key_sep;
};
bool jinja_json_write(struct jinja_run *r, struct buf *b, struct jv v, const struct jinja_dump *how);

#endif
