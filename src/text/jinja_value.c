/* Values: memory, construction, containers. */
#include "text/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_text.h"

struct jv_chunk {
    struct jv_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

enum { CHUNK_MIN = 16 << 10, CHUNK_MAX = 1 << 20 };

const struct jv jv_none = {JV_NONE, {0}}, jv_true = {JV_BOOL, {1}}, jv_false = {JV_BOOL, {0}};
const struct jv jv_missing = {JV_MISSING, {0}}, jv_error = {JV_ERROR, {0}};

void jinja_run_init(struct jinja_run *r, const struct jinja_limits *limits, const char *name, struct tlm_error *e)
{
    *r = (struct jinja_run){.e = e, .name = name, .now = -1};
    if (limits)
        r->max = *limits;
    if (!r->max.memory)
        r->max.memory = (size_t)256 << 20;
    if (!r->max.output)
        r->max.output = (size_t)64 << 20;
    if (!r->max.steps)
        r->max.steps = 50000000;
    if (!r->max.depth)
        r->max.depth = 1000;
}

void jinja_run_deinit(struct jinja_run *r)
{
    while (r->chunks) {
        struct jv_chunk *c = r->chunks;
        r->chunks = c->next;
        mem_free(c);
    }
    r->memory = 0;
}

static struct jv_chunk *add_chunk(struct jinja_run *r, size_t bytes)
{
    size_t cap = r->chunks ? r->chunks->cap * 2 : CHUNK_MIN;
    if (cap > CHUNK_MAX)
        cap = CHUNK_MAX;
    if (cap < bytes)
        cap = bytes;
    if (cap > r->max.memory || r->memory > r->max.memory - cap) {
        jv_fail(r, TLM_ELIMIT, "the template needs more than the limit of %zu bytes of memory", r->max.memory);
        return NULL;
    }
    struct jv_chunk *c = mem_alloc(sizeof *c + cap);
    if (!c) {
        jv_fail(r, TLM_ENOMEM, "out of memory");
        return NULL;
    }
    *c = (struct jv_chunk){.next = r->chunks, .cap = cap};
    r->memory += cap;
    r->chunks = c;
    return c;
}

void *jv_alloc(struct jinja_run *r, size_t bytes)
{
    if (r->status != TLM_OK)
        return NULL;
    if (bytes > SIZE_MAX / 4) {
        jv_fail(r, TLM_ELIMIT, "a value of %zu bytes is too large", bytes);
        return NULL;
    }
    size_t need = (bytes + 15) & ~(size_t)15;
    struct jv_chunk *c = r->chunks;
    if (!c || need > c->cap - c->used) {
        c = add_chunk(r, need);
        if (!c)
            return NULL;
    }
    void *p = c->data + c->used;
    c->used += need;
    return p;
}

void *jv_alloc_array(struct jinja_run *r, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / 8 / size) {
        jv_fail(r, TLM_ELIMIT, "%zu values are too many", n);
        return NULL;
    }
    return jv_alloc(r, n * size);
}

void *jv_grow(struct jinja_run *r, const void *old, size_t old_bytes, size_t bytes)
{
    struct jv_chunk *c = r->chunks;
    size_t was = (old_bytes + 15) & ~(size_t)15;
    if (c && old_bytes && bytes >= old_bytes && bytes < SIZE_MAX / 4 && c->used >= was &&
        (const char *)old == c->data + (c->used - was)) {
        size_t need = (bytes + 15) & ~(size_t)15;
        if (need - was <= c->cap - c->used) {
            char *same = c->data + (c->used - was);
            c->used += need - was;
            return same;
        }
    }
    char *p = jv_alloc(r, bytes);
    if (p && old_bytes)
        memcpy(p, old, old_bytes);
    return p;
}

struct jv jv_fail(struct jinja_run *r, enum tlm_status status, const char *format, ...)
{
    if (r->status != TLM_OK)
        return jv_error;
    char message[TLM_ERROR_MAX];
    va_list ap;
    va_start(ap, format);
    vsnprintf(message, sizeof message, format, ap);
    va_end(ap);
    r->status = status;
    if (r->line > 0)
        err_set(r->e, status, "%s: line %d: %s", r->name, r->line, message);
    else
        err_set(r->e, status, "%s: %s", r->name, message);
    return jv_error;
}

bool jv_step(struct jinja_run *r, uint64_t n)
{
    if (r->status != TLM_OK)
        return false;
    r->steps += n;
    if (r->steps <= r->max.steps)
        return true;
    jv_fail(r, TLM_ELIMIT, "the template takes more than the limit of %llu steps", (unsigned long long)r->max.steps);
    return false;
}

bool jv_enter(struct jinja_run *r)
{
    if (r->status != TLM_OK)
        return false;
    if (r->depth >= r->max.depth) {
        jv_fail(r, TLM_ELIMIT, "maximum recursion depth exceeded");
        return false;
    }
    r->depth++;
    return true;
}

struct jv jv_bool(bool b)
{
    return b ? jv_true : jv_false;
}

struct jv jv_int(int64_t i)
{
    return (struct jv){JV_INT, {.i = i}};
}

struct jv jv_float(double f)
{
    return (struct jv){JV_FLOAT, {.f = f}};
}

struct jv jv_str_borrow(struct jinja_run *r, const char *p, size_t n)
{
    struct jv_str *s = jv_alloc(r, sizeof *s);
    if (!s || !jv_step(r, n / 64))
        return jv_error;
    *s = (struct jv_str){p, n, text_count(p, n), false};
    return (struct jv){JV_STR, {.s = s}};
}

struct jv jv_str(struct jinja_run *r, const char *p, size_t n)
{
    char *copy = jv_alloc(r, n);
    if (!copy)
        return jv_error;
    if (n)
        memcpy(copy, p, n);
    return jv_str_borrow(r, copy, n);
}

struct jv jv_cstr(struct jinja_run *r, const char *s)
{
    return jv_str_borrow(r, s, strlen(s));
}

void jv_buf_init(struct jinja_run *r, struct buf *b)
{
    buf_init(b, r->max.memory);
}

bool jv_buf_ok(struct jinja_run *r, const struct buf *b)
{
    if (r->status != TLM_OK)
        return false;
    if (b->status == TLM_OK)
        return true;
    jv_fail(r, b->status, b->status == TLM_ELIMIT ? "a text is larger than the limit" : "out of memory");
    return false;
}

struct jv jv_from_buf(struct jinja_run *r, struct buf *b)
{
    struct jv v = jv_buf_ok(r, b) ? jv_str(r, buf_str(b), b->len) : jv_error;
    buf_deinit(b);
    return v;
}

static struct jv new_undefined(struct jinja_run *r, const char *hint, struct jv obj, struct jv name)
{
    struct jv_undefined *u = jv_alloc(r, sizeof *u);
    if (!u)
        return jv_error;
    *u = (struct jv_undefined){hint, obj, name};
    return (struct jv){JV_UNDEFINED, {.u = u}};
}

struct jv jv_undefined(struct jinja_run *r, const char *name)
{
    struct jv n = jv_cstr(r, name);
    return jv_is_error(n) ? n : new_undefined(r, NULL, jv_missing, n);
}

struct jv jv_undefined_hint(struct jinja_run *r, const char *hint)
{
    return new_undefined(r, hint, jv_missing, jv_none);
}

struct jv jv_undefined_attr(struct jinja_run *r, struct jv obj, struct jv name)
{
    return new_undefined(r, NULL, obj, name);
}

struct jv jv_undefined_error(struct jinja_run *r, struct jv v)
{
    const struct jv_undefined *u = v.u.u;
    if (u->hint)
        return jv_fail(r, TLM_EINVAL, "%s", u->hint);
    int n = u->name.type == JV_STR ? (int)(u->name.u.s->n < 200 ? u->name.u.s->n : 200) : 0;
    const char *name = u->name.type == JV_STR ? u->name.u.s->p : "";
    if (u->obj.type == JV_MISSING)
        return jv_fail(r, TLM_EINVAL, "'%.*s' is undefined", n, name);
    const char *type = jv_type_name(u->obj), *object = u->obj.type == JV_NONE ? "" : " object";
    if (u->obj.type == JV_NONE)
        type = "None";
    if (u->name.type == JV_STR)
        return jv_fail(r, TLM_EINVAL, "'%s%s' has no attribute '%.*s'", type, object, n, name);
    if (u->name.type == JV_INT)
        return jv_fail(r, TLM_EINVAL, "%s%s has no element %lld", type, object, (long long)u->name.u.i);
    return jv_fail(r, TLM_EINVAL, "%s%s has no element of type %s", type, object, jv_type_name(u->name));
}

struct jv jv_list_new(struct jinja_run *r, size_t cap)
{
    struct jv_list *l = jv_alloc(r, sizeof *l);
    struct jv *v = cap ? jv_alloc_array(r, cap, sizeof *v) : NULL;
    if (!l || (cap && !v))
        return jv_error;
    *l = (struct jv_list){v, 0, cap, false};
    return (struct jv){JV_LIST, {.l = l}};
}

struct jv jv_tuple_new(struct jinja_run *r, size_t n)
{
    struct jv t = jv_list_new(r, n);
    if (jv_is_error(t))
        return t;
    for (size_t i = 0; i < n; i++)
        t.u.l->v[i] = jv_none;
    t.u.l->n = n;
    t.type = JV_TUPLE;
    return t;
}

bool jv_list_add(struct jinja_run *r, struct jv list, struct jv item)
{
    if (jv_is_error(list) || jv_is_error(item))
        return false;
    struct jv_list *l = list.u.l;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        if (cap > SIZE_MAX / 8 / sizeof *l->v) {
            jv_fail(r, TLM_ELIMIT, "a list is too long");
            return false;
        }
        struct jv *v = jv_grow(r, l->v, l->n * sizeof *v, cap * sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = item;
    return true;
}

struct jv jv_pair(struct jinja_run *r, struct jv a, struct jv b)
{
    struct jv t = jv_tuple_new(r, 2);
    if (!jv_is_error(t)) {
        t.u.l->v[0] = a;
        t.u.l->v[1] = b;
    }
    return t;
}

struct jv jv_dict_new(struct jinja_run *r)
{
    struct jv_dict *d = jv_alloc(r, sizeof *d);
    if (!d)
        return jv_error;
    *d = (struct jv_dict){0};
    return (struct jv){JV_DICT, {.d = d}};
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 31;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u ^ n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return mix(h);
}

bool jv_hash(struct jinja_run *r, struct jv v, uint64_t *out)
{
    switch (v.type) {
    case JV_BOOL:
    case JV_INT:
        *out = mix((uint64_t)v.u.i);
        return true;
    case JV_FLOAT:
        if (v.u.f == floor(v.u.f) && v.u.f >= -0x1p63 && v.u.f < 0x1p63)
            *out = mix((uint64_t)(int64_t)v.u.f);
        else if (isfinite(v.u.f)) { /* as the integer of that value */
            char t[400];
            *out = hash_bytes(t, (size_t)snprintf(t, sizeof t, "%.0f", v.u.f));
        } else
            *out = hash_bytes((const char *)&v.u.f, sizeof v.u.f);
        return true;
    case JV_STR:
    case JV_BIG:
        *out = hash_bytes(v.u.s->p, v.u.s->n);
        return jv_step(r, v.u.s->n / 16);
    case JV_TUPLE: {
        uint64_t h = v.u.l->n + 77, one;
        if (!jv_enter(r))
            return false;
        bool ok = jv_step(r, v.u.l->n);
        for (size_t i = 0; ok && i < v.u.l->n; i++) {
            ok = jv_hash(r, v.u.l->v[i], &one);
            h = ok ? mix(h * 31 + one) : 0;
        }
        jv_leave(r);
        *out = h;
        return ok;
    }
    case JV_VIEW:
        if (v.u.view->kind == JV_VALUES) {
            *out = mix((uint64_t)(uintptr_t)v.u.view);
            return true;
        }
        jv_type_error(r, "unhashable type: '%s'", jv_type_name(v));
        return false;
    case JV_LIST:
    case JV_DICT:
        jv_type_error(r, "unhashable type: '%s'", jv_type_name(v));
        return false;
    case JV_NONE:
    case JV_UNDEFINED:
        *out = mix(v.type);
        return true;
    default:
        *out = mix((uint64_t)(uintptr_t)v.u.it);
        return true;
    }
}

/* The entry's number, or d->n. */
static int find_entry(struct jinja_run *r, const struct jv_dict *d, struct jv key, uint64_t hash, size_t *at)
{
    size_t i = d->index ? hash & (d->slots - 1) : 0;
    for (size_t probes = 0;; probes++) {
        size_t entry;
        if (d->index) {
            if (!d->index[i])
                break;
            entry = d->index[i] - 1;
            i = (i + 1) & (d->slots - 1);
        } else {
            if (probes == d->n)
                break;
            entry = probes;
        }
        if (d->e[entry].hash != hash)
            continue;
        int same = jv_identical(d->e[entry].key, key) ? 1 : jv_equal(r, d->e[entry].key, key);
        if (same < 0)
            return -1;
        if (same) {
            *at = entry;
            return 1;
        }
        if (!jv_step(r, probes))
            return -1;
    }
    *at = d->n;
    return 0;
}

static bool rebuild_index(struct jinja_run *r, struct jv_dict *d)
{
    size_t slots = d->slots ? d->slots * 2 : 32;
    d->index = jv_alloc_array(r, slots, sizeof *d->index);
    if (!d->index)
        return false;
    memset(d->index, 0, slots * sizeof *d->index);
    d->slots = slots;
    for (size_t k = 0; k < d->n; k++) {
        size_t i = d->e[k].hash & (slots - 1);
        while (d->index[i])
            i = (i + 1) & (slots - 1);
        d->index[i] = (uint32_t)k + 1;
    }
    return true;
}

bool jv_dict_set(struct jinja_run *r, struct jv_dict *d, struct jv key, struct jv value)
{
    uint64_t hash;
    size_t at;
    if (jv_is_error(key) || jv_is_error(value) || !jv_hash(r, key, &hash))
        return false;
    int found = find_entry(r, d, key, hash, &at);
    if (found < 0)
        return false;
    if (found) {
        d->e[at].value = value;
        return true;
    }
    if (d->n >= UINT32_MAX / 4) {
        jv_fail(r, TLM_ELIMIT, "a dict has too many keys");
        return false;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct jv_entry *e = jv_grow(r, d->e, d->n * sizeof *e, cap * sizeof *e);
        if (!e)
            return false;
        d->e = e;
        d->cap = cap;
    }
    if (d->n + 1 > (d->index ? d->slots / 2 : 8) && !rebuild_index(r, d))
        return false;
    d->e[d->n] = (struct jv_entry){key, value, hash};
    if (d->index) {
        size_t i = hash & (d->slots - 1);
        while (d->index[i])
            i = (i + 1) & (d->slots - 1);
        d->index[i] = (uint32_t)d->n + 1;
    }
    d->n++;
    return true;
}

int jv_dict_get(struct jinja_run *r, const struct jv_dict *d, struct jv key, struct jv *out)
{
    uint64_t hash;
    size_t at;
    if (!jv_hash(r, key, &hash))
        return -1;
    int found = find_entry(r, d, key, hash, &at);
    if (found > 0)
        *out = d->e[at].value;
    return found;
}

const struct jv *jv_dict_find(const struct jv_dict *d, const char *key)
{
    for (size_t i = 0; i < d->n; i++)
        if (jv_str_is(d->e[i].key, key))
            return &d->e[i].value;
    return NULL;
}

const char *jv_type_name(struct jv v)
{
    switch (v.type) {
    case JV_UNDEFINED:
    case JV_MISSING:
    case JV_ERROR:
        return "Undefined";
    case JV_NONE:
        return "NoneType";
    case JV_BOOL:
        return "bool";
    case JV_INT:
    case JV_BIG:
        return "int";
    case JV_FLOAT:
        return "float";
    case JV_STR:
        return v.u.s->safe ? "Markup" : "str";
    case JV_LIST:
        return "list";
    case JV_TUPLE:
        return "tuple";
    case JV_DICT:
        return "dict";
    case JV_RANGE:
        return "range";
    case JV_VIEW:
        return v.u.view->kind == JV_KEYS ? "dict_keys" : v.u.view->kind == JV_ITEMS ? "dict_items" : "dict_values";
    case JV_ITER:
        return v.u.it->name;
    case JV_NAMESPACE:
        return "TemplateNamespace";
    case JV_LOOP:
        return "LoopContext";
    case JV_CYCLER:
        return "Cycler";
    case JV_JOINER:
        return "Joiner";
    case JV_TEMPLATE:
        return "TemplateReference";
    case JV_FUNC:
        return v.u.fn->kind == JV_MACRO ? "Macro" : "function";
    }
    return "object";
}

bool jv_is_number(struct jv v)
{
    return v.type == JV_INT || v.type == JV_BOOL || v.type == JV_FLOAT || v.type == JV_BIG;
}

double jv_to_double(struct jv v)
{
    if (v.type == JV_FLOAT)
        return v.u.f;
    if (v.type != JV_BIG)
        return (double)v.u.i;
    double f = 0;
    const struct jv_str *s = v.u.s;
    text_to_double(s->p, s->n, &f);
    return f;
}

bool jv_str_is(struct jv v, const char *s)
{
    size_t n = strlen(s);
    return v.type == JV_STR && v.u.s->n == n && !memcmp(v.u.s->p, s, n);
}
