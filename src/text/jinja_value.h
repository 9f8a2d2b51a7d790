/* Values of the template engine: Python's objects as far as chat templates see
 * them, in an arena that lives for one rendering. All values are immutable to
 * the template except namespaces, cyclers, joiners, loops and iterators.
 *
 * A function that can fail returns a value of type JV_ERROR (or false) after
 * the run's error was set with jv_fail. */
#ifndef TEXT_JINJA_VALUE_H
#define TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum jv_type {
    JV_ERROR,   /* an error was raised */
    JV_MISSING, /* no such variable, argument not given */
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_BIG, /* an integer outside 64 bits: its decimal digits */
    JV_FLOAT,
    JV_STR,
    JV_LIST,
    JV_TUPLE,
    JV_DICT,
    JV_RANGE,
    JV_VIEW, /* dict.items(), keys(), values() */
    JV_ITER, /* generators and other one-pass iterators */
    JV_NAMESPACE,
    JV_LOOP,
    JV_CYCLER,
    JV_JOINER,
    JV_TEMPLATE, /* self */
    JV_FUNC
};

struct jv {
    enum jv_type type;
    union {
        int64_t i; /* JV_INT, JV_BOOL */
        double f;
        const struct jv_str *s; /* JV_STR, JV_BIG */
        struct jv_list *l;      /* JV_LIST, JV_TUPLE */
        struct jv_dict *d;      /* JV_DICT, JV_NAMESPACE */
        const struct jv_undefined *u;
        const struct jv_range *range;
        const struct jv_view *view;
        struct jv_iter *it;
        struct jv_loop *loop;
        struct jv_cycler *cycler; /* JV_CYCLER, JV_JOINER */
        const struct jv_func *fn;
    } u;
};

struct jv_str {
    const char *p; /* valid UTF-8, not NUL-terminated */
    size_t n;
    size_t chars; /* code points */
    bool safe;    /* came from the filters safe and escape */
};

struct jv_list {
    struct jv *v;
    size_t n, cap;
    bool group; /* a tuple of the filter groupby: has .grouper and .list */
};

struct jv_entry {
    struct jv key, value;
    uint64_t hash;
};

struct jv_dict {
    struct jv_entry *e; /* in order of insertion */
    size_t n, cap;
    uint32_t *index; /* open addressing, entry + 1; NULL while small */
    size_t slots;
};

struct jv_undefined {
    const char *hint; /* whole message, or NULL */
    struct jv obj, name;
};

struct jv_range {
    int64_t start, stop, step;
    int64_t n;
};

enum jv_view_kind { JV_KEYS, JV_VALUES, JV_ITEMS };

struct jv_view {
    enum jv_view_kind kind;
    struct jv_dict *d;
};

struct jinja_run;
struct jinja_args;

/* A lazy iterator. next: 1 an item, 0 the end, -1 an error. */
struct jv_iter {
    int (*next)(struct jinja_run *r, struct jv_iter *it, struct jv *out);
    struct jv src;
    struct jv_iter *inner;
    size_t i;
    bool done, busy;
    const char *name;  /* type name: "generator" */
    struct jv a, b, c; /* state of the iterator's own */
    struct jinja_args *args;
    const void *node; /* the loop of a loop's filter */
};

struct jv_cycler {
    struct jv *v;
    size_t n, pos;
};

enum jv_func_kind { JV_MACRO, JV_METHOD, JV_GLOBAL, JV_BLOCK };

struct jv_func {
    enum jv_func_kind kind;
    int id;           /* row of the method or global table */
    struct jv self;   /* of a method */
    const void *node; /* of a macro or block */
    void *frame;      /* where the macro was defined */
};

struct jinja_args {
    struct jv *v;
    size_t n;
    struct jv_dict *kw; /* NULL: none */
};

struct jinja_limits {
    size_t memory, output;
    uint64_t steps;
    int depth;
};

/* One rendering, or the reading of its variables. */
struct jinja_run {
    struct tlm_error *e;
    enum tlm_status status; /* TLM_OK until the first failure */
    const char *name;       /* of the template, for messages */
    int line;
    uint64_t steps;
    int depth;
    struct jinja_limits max;
    int64_t now;
    struct jv_chunk *chunks;
    size_t memory;
    /* of the rendering in jinja_exec.c */
    const struct jinja_template *tpl;
    struct jv_dict *vars, *exported;
    struct jinja_frame **free_frames;
    struct jv_dict *scoped; /* variables around the scoped block that runs, or NULL */
    bool autoescape;
    struct buf *out;
    struct jv builtins[16];
};

void jinja_run_init(struct jinja_run *r, const struct jinja_limits *limits, const char *name, struct tlm_error *e);
void jinja_run_deinit(struct jinja_run *r);

/* Memory of the run; NULL after jv_fail when the limit is reached. */
void *jv_alloc(struct jinja_run *r, size_t bytes);
void *jv_alloc_array(struct jinja_run *r, size_t n, size_t size);
/* Grows the last block in place where possible; old content is kept. */
void *jv_grow(struct jinja_run *r, const void *old, size_t old_bytes, size_t bytes);

/* Raises: records "name: line N: message" and gives JV_ERROR. */
struct jv jv_fail(struct jinja_run *r, enum tlm_status status, const char *format, ...) BASE_PRINTF(3, 4);
#define jv_type_error(r, ...) jv_fail(r, TLM_EINVAL, __VA_ARGS__)
/* Counts work; false after jv_fail when the run did too much. */
bool jv_step(struct jinja_run *r, uint64_t n);
/* Counts nesting; every true return needs a jv_leave. */
bool jv_enter(struct jinja_run *r);
static inline void jv_leave(struct jinja_run *r)
{
    r->depth--;
}

static inline bool jv_is_error(struct jv v)
{
    return v.type == JV_ERROR;
}

extern const struct jv jv_none, jv_true, jv_false, jv_missing, jv_error;
struct jv jv_bool(bool b);
struct jv jv_int(int64_t i);
struct jv jv_float(double f);
struct jv jv_str(struct jinja_run *r, const char *p, size_t n); /* copies */
struct jv jv_str_borrow(struct jinja_run *r, const char *p, size_t n);
struct jv jv_cstr(struct jinja_run *r, const char *s);     /* borrows */
struct jv jv_from_buf(struct jinja_run *r, struct buf *b); /* copies and deinits */
struct jv jv_undefined(struct jinja_run *r, const char *name);
struct jv jv_undefined_hint(struct jinja_run *r, const char *hint);
struct jv jv_undefined_attr(struct jinja_run *r, struct jv obj, struct jv name);
struct jv jv_undefined_error(struct jinja_run *r, struct jv undefined);
struct jv jv_list_new(struct jinja_run *r, size_t cap);
struct jv jv_tuple_new(struct jinja_run *r, size_t n); /* n items, JV_NONE */
bool jv_list_add(struct jinja_run *r, struct jv list, struct jv item);
struct jv jv_pair(struct jinja_run *r, struct jv a, struct jv b);
struct jv jv_dict_new(struct jinja_run *r);
bool jv_dict_set(struct jinja_run *r, struct jv_dict *d, struct jv key, struct jv value);
/* 1 found, 0 not, -1 error (unhashable key). */
int jv_dict_get(struct jinja_run *r, const struct jv_dict *d, struct jv key, struct jv *out);
const struct jv *jv_dict_find(const struct jv_dict *d, const char *key); /* NULL when absent */
struct jv jv_iter_new(struct jinja_run *r, int (*next)(struct jinja_run *, struct jv_iter *, struct jv *),
                      const char *name, struct jv src);

const char *jv_type_name(struct jv v); /* Python's: "str" */
bool jv_truth(struct jv v);
bool jv_is_number(struct jv v);
static inline bool jv_is_int(struct jv v)
{
    return v.type == JV_INT || v.type == JV_BOOL;
}
static inline bool jv_is_seq(struct jv v)
{
    return v.type == JV_LIST || v.type == JV_TUPLE;
}
double jv_to_double(struct jv v); /* of a number */
bool jv_str_is(struct jv v, const char *s);

/* 1, 0, or -1 after an error. */
int jv_equal(struct jinja_run *r, struct jv a, struct jv b);
/* a op b where op is one of '<', '>', 'l' (<=), 'g' (>=). */
int jv_compare(struct jinja_run *r, struct jv a, struct jv b, char op);
int jv_contains(struct jinja_run *r, struct jv container, struct jv item);
bool jv_identical(struct jv a, struct jv b);
bool jv_hash(struct jinja_run *r, struct jv v, uint64_t *out);

/* len(); -1 after an error, -2 when v has no length (no error raised). */
int64_t jv_len(struct jinja_run *r, struct jv v);
/* Iterator over anything iterable; NULL after an error. */
struct jv_iter *jv_iterate(struct jinja_run *r, struct jv v);
int jv_next(struct jinja_run *r, struct jv_iter *it, struct jv *out);
bool jv_iterable(struct jv v);
struct jv jv_to_list(struct jinja_run *r, struct jv v); /* list(v) */
struct jv jv_to_tuple(struct jinja_run *r, struct jv v);
struct jv jv_range(struct jinja_run *r, int64_t start, int64_t stop, int64_t step);

/* str(v), repr(v) appended; false after an error. */
bool jv_add_str(struct jinja_run *r, struct buf *b, struct jv v);
bool jv_add_repr(struct jinja_run *r, struct buf *b, struct jv v);
struct jv jv_to_str(struct jinja_run *r, struct jv v);
void jv_buf_init(struct jinja_run *r, struct buf *b);
bool jv_buf_ok(struct jinja_run *r, const struct buf *b);
void jv_float_repr(double f, char out[64]);

#endif
