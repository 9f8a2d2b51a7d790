/* Reading of safetensors files. The header is scanned in place, without a
 * tree: its shape is fixed, numbers must stay exact, and memory stays in
 * proportion to the header.
 *
 *     {"__metadata__": {"key": "value"} or null,
 *      "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * The rules are those of the official library: tensors cover the data exactly,
 * without overlap or hole; see
 * https://github.com/huggingface/safetensors/blob/main/README.md */
#include "io/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/fp.h"
#include "base/mem.h"
#include "base/utf8_length.h"
#include "io/name_index.h"

enum { HEADER_MAX = 100000000, NAME_SHOWN = 200 };

/* Text being scanned. Functions return false after an error was set. */
struct scan {
    struct st_file *f;
    const uint8_t *start, *at, *end;
    char *strings; /* where the next decoded string goes; never more than the header's bytes */
    int tensors_cap, metadata_cap;
    bool has_metadata;
    enum tlm_status status;
    struct tlm_error *e;
};

/* Where a tensor's data lie, for the check of coverage. */
struct span {
    uint64_t begin, end;
    int tensor;
};

static bool fail(struct scan *s, const char *expected)
{
    s->status = err_set(s->e, TLM_EFORMAT, "%s: header byte %zu: expected %s", s->f->path, (size_t)(s->at - s->start),
                        expected);
    return false;
}

static bool fail_tensor(struct scan *s, const char *name, const char *problem)
{
    s->status = err_set(s->e, TLM_EFORMAT, "%s: tensor %.*s: %s", s->f->path, NAME_SHOWN, name, problem);
    return false;
}

static bool fail_memory(struct scan *s, size_t bytes)
{
    s->status = err_nomem(s->e, bytes);
    return false;
}

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

/* Takes c if it is next. */
static bool accept(struct scan *s, char c)
{
    skip_space(s);
    if (s->at == s->end || *s->at != (uint8_t)c)
        return false;
    s->at++;
    return true;
}

static bool expect(struct scan *s, char c, const char *expected)
{
    return accept(s, c) || fail(s, expected);
}

static bool scan_number(struct scan *s, uint64_t *out)
{
    skip_space(s);
    const uint8_t *first = s->at;
    uint64_t v = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        uint64_t digit = (uint64_t)(*s->at - '0');
        if (v > (INT64_MAX - digit) / 10)
            return fail(s, "a number below 2^63");
        v = v * 10 + digit;
        s->at++;
    }
    if (s->at == first || (*first == '0' && s->at - first > 1))
        return fail(s, "a whole number");
    *out = v;
    return true;
}

static bool scan_hex4(struct scan *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int c = s->at < s->end ? *s->at : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return fail(s, "four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 63));
        *to++ = (char)(0x80 | (c & 63));
    } else {
        *to++ = (char)(0xf0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 63));
        *to++ = (char)(0x80 | (c >> 6 & 63));
        *to++ = (char)(0x80 | (c & 63));
    }
    return to;
}

/* After the backslash. */
static bool scan_escape(struct scan *s, char **to)
{
    static const char from[] = "\"\\/bfnrt", as[] = "\"\\/\b\f\n\r\t";
    int c = s->at < s->end ? *s->at : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        s->at++;
        *(*to)++ = as[known - from];
        return true;
    }
    if (c != 'u')
        return fail(s, "an escape sequence");
    s->at++;
    uint32_t high, low;
    if (!scan_hex4(s, &high))
        return false;
    if (high >= 0xd800 && high < 0xdc00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return fail(s, "the second half of a surrogate pair");
        s->at += 2;
        if (!scan_hex4(s, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return fail(s, "the second half of a surrogate pair");
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    } else if (high >= 0xdc00 && high < 0xe000) {
        return fail(s, "the first half of a surrogate pair");
    }
    if (high == 0)
        return fail(s, "a string without NUL characters");
    *to = put_utf8(*to, high);
    return true;
}

/* A string, decoded and followed by a NUL, into s->strings. The quotes make
 * room for the NUL, and an escape is never shorter than what it stands for. */
static bool scan_string(struct scan *s, const char **out)
{
    if (!expect(s, '"', "a string"))
        return false;
    char *to = s->strings;
    for (;;) {
        if (s->at == s->end || *s->at < 0x20)
            return fail(s, "the end of a string");
        if (*s->at == '"')
            break;
        if (*s->at == '\\') {
            s->at++;
            if (!scan_escape(s, &to))
                return false;
            continue;
        }
        int n = utf8_length(s->at, s->end);
        if (!n)
            return fail(s, "UTF-8");
        memcpy(to, s->at, (size_t)n);
        to += n;
        s->at += n;
    }
    s->at++;
    *to = 0;
    *out = s->strings;
    s->strings = to + 1;
    return true;
}

/* Room for one more of n items. */
static bool grow(struct scan *s, void **items, int n, int *cap, size_t size)
{
    if (n < *cap)
        return true;
    int more = *cap ? *cap * 2 : 64; /* below HEADER_MAX, so no overflow */
    void *p = mem_realloc_array(*items, (size_t)more, size);
    if (!p)
        return fail_memory(s, (size_t)more * size);
    *items = p;
    *cap = more;
    return true;
}

static bool scan_metadata(struct scan *s)
{
    if (s->has_metadata)
        return fail(s, "one __metadata__, not two");
    s->has_metadata = true;
    skip_space(s);
    if (s->end - s->at >= 4 && !memcmp(s->at, "null", 4)) {
        s->at += 4;
        return true;
    }
    if (!expect(s, '{', "an object or null as __metadata__"))
        return false;
    if (accept(s, '}'))
        return true;
    do {
        void *items = s->f->metadata;
        if (!grow(s, &items, s->f->n_metadata, &s->metadata_cap, sizeof *s->f->metadata))
            return false;
        s->f->metadata = items;
        struct st_meta *m = &s->f->metadata[s->f->n_metadata];
        if (!scan_string(s, &m->key) || !expect(s, ':', "':'") || !scan_string(s, &m->value))
            return false;
        s->f->n_metadata++;
    } while (accept(s, ','));
    return expect(s, '}', "',' or '}'");
}

static enum dtype dtype_named(const char *name)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } known[] = {{"F32", DT_F32},         {"F16", DT_F16},         {"BF16", DT_BF16},       {"F64", DT_F64},
                 {"F8_E4M3", DT_F8_E4M3}, {"F8_E5M2", DT_F8_E5M2}, {"F8_E8M0", DT_F8_E8M0}, {"U8", DT_U8},
                 {"I8", DT_I8},           {"U16", DT_U16},         {"I16", DT_I16},         {"U32", DT_U32},
                 {"I32", DT_I32},         {"U64", DT_U64},         {"I64", DT_I64},         {"BOOL", DT_BOOL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            return known[i].dtype;
    return DT_NONE;
}

static bool scan_dtype(struct scan *s, struct st_tensor *t)
{
    const char *dtype;
    char *mark = s->strings; /* the name of a type need not be kept */
    if (!scan_string(s, &dtype))
        return false;
    t->dtype = dtype_named(dtype);
    s->strings = mark;
    if (t->dtype == DT_NONE) {
        s->status = err_set(s->e, TLM_EUNSUPPORTED, "%s: tensor %.*s: element type \"%.40s\" is not supported",
                            s->f->path, NAME_SHOWN, t->name, dtype);
        return false;
    }
    return true;
}

static bool scan_shape(struct scan *s, struct st_tensor *t)
{
    if (!expect(s, '[', "an array as shape"))
        return false;
    t->n_dims = 0;
    if (accept(s, ']'))
        return true;
    do {
        uint64_t n;
        if (!scan_number(s, &n))
            return false;
        if (t->n_dims == ST_MAX_DIMS)
            return fail_tensor(s, t->name, "more than 8 dimensions");
        t->shape[t->n_dims++] = (int64_t)n;
    } while (accept(s, ','));
    return expect(s, ']', "',' or ']'");
}

static bool scan_offsets(struct scan *s, struct span *at)
{
    return expect(s, '[', "an array as data_offsets") && scan_number(s, &at->begin) && expect(s, ',', "','") &&
           scan_number(s, &at->end) && expect(s, ']', "']' after two data_offsets");
}

/* The object of a tensor: three members, each once, and no others. */
static bool scan_tensor_object(struct scan *s, struct st_tensor *t, struct span *at)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0;
    if (!expect(s, '{', "an object"))
        return false;
    if (!accept(s, '}')) {
        do {
            const char *key;
            char *mark = s->strings;
            if (!scan_string(s, &key) || !expect(s, ':', "':'"))
                return false;
            s->strings = mark;
            int which = !strcmp(key, "dtype")          ? DTYPE
                        : !strcmp(key, "shape")        ? SHAPE
                        : !strcmp(key, "data_offsets") ? OFFSETS
                                                       : 0;
            if (!which)
                return fail_tensor(s, t->name, "a member other than dtype, shape and data_offsets");
            if (seen & which)
                return fail_tensor(s, t->name, "a member that occurs twice");
            seen |= which;
            if (!(which == DTYPE ? scan_dtype(s, t) : which == SHAPE ? scan_shape(s, t) : scan_offsets(s, at)))
                return false;
        } while (accept(s, ','));
        if (!expect(s, '}', "',' or '}'"))
            return false;
    }
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return fail_tensor(s, t->name, "dtype, shape or data_offsets is missing");
    return true;
}

/* Checks size against shape and sets data; the range is checked later. */
static bool check_size(struct scan *s, struct st_tensor *t, const struct span *at)
{
    uint64_t bytes = dtype_size(t->dtype);
    bool empty = false;
    for (int i = 0; i < t->n_dims; i++)
        empty |= t->shape[i] == 0;
    for (int i = 0; i < t->n_dims && !empty; i++) {
        if (bytes > INT64_MAX / (uint64_t)t->shape[i])
            return fail_tensor(s, t->name, "the product of its shape is too large");
        bytes *= (uint64_t)t->shape[i];
    }
    if (empty)
        bytes = 0;
    if (at->end < at->begin || at->end - at->begin != bytes) {
        s->status = err_set(
            s->e, TLM_EFORMAT, "%s: tensor %.*s: data_offsets %llu to %llu, but its shape needs %llu bytes", s->f->path,
            NAME_SHOWN, t->name, (unsigned long long)at->begin, (unsigned long long)at->end, (unsigned long long)bytes);
        return false;
    }
    t->bytes = (size_t)bytes;
    return true;
}

static bool scan_header(struct scan *s, struct span **spans)
{
    int spans_cap = 0;
    if (s->at == s->end || *s->at != '{')
        return fail(s, "'{'");
    s->at++;
    if (accept(s, '}'))
        return true;
    do {
        const char *name;
        if (!scan_string(s, &name) || !expect(s, ':', "':'"))
            return false;
        if (!strcmp(name, "__metadata__")) {
            if (!scan_metadata(s))
                return false;
            continue;
        }
        void *tensors = s->f->tensors, *places = *spans;
        int n = s->f->n_tensors;
        bool ok = grow(s, &tensors, n, &s->tensors_cap, sizeof *s->f->tensors);
        s->f->tensors = tensors;
        ok = ok && grow(s, &places, n, &spans_cap, sizeof **spans);
        *spans = places;
        if (!ok)
            return false;
        struct st_tensor *t = &s->f->tensors[n];
        struct span *at = &(*spans)[n];
        *t = (struct st_tensor){.name = name};
        *at = (struct span){.tensor = n};
        if (!scan_tensor_object(s, t, at) || !check_size(s, t, at))
            return false;
        s->f->n_tensors++;
    } while (accept(s, ','));
    return expect(s, '}', "',' or '}'");
}

static int span_compare(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static bool check_coverage(struct scan *s, struct span *spans, const uint8_t *data, uint64_t size)
{
    struct st_file *f = s->f;
    uint64_t next = 0;
    if (f->n_tensors)
        qsort(spans, (size_t)f->n_tensors, sizeof *spans, span_compare);
    for (int i = 0; i < f->n_tensors; i++) {
        struct st_tensor *t = &f->tensors[spans[i].tensor];
        if (spans[i].end > size)
            return fail_tensor(s, t->name, "its data lie outside the file");
        if (spans[i].begin != next)
            return fail_tensor(s, t->name,
                               spans[i].begin < next ? "its data overlap those of another tensor"
                                                     : "there is a hole in front of its data");
        next = spans[i].end;
        t->data = data + spans[i].begin;
    }
    if (next != size) {
        s->status = err_set(s->e, TLM_EFORMAT, "%s: %llu bytes after the last tensor", f->path,
                            (unsigned long long)(size - next));
        return false;
    }
    return true;
}

static bool check_names(struct scan *s)
{
    struct st_file *f = s->f;
    int twice, size, *slots;
    s->status =
        name_index_new(f->tensors, sizeof *f->tensors, (size_t)f->n_tensors, &f->index, &f->index_size, &twice, s->e);
    if (s->status != TLM_OK)
        return false;
    if (twice >= 0)
        return fail_tensor(s, f->tensors[twice].name, "the name occurs twice");
    s->status = name_index_new(f->metadata, sizeof *f->metadata, (size_t)f->n_metadata, &slots, &size, &twice, s->e);
    mem_free(slots);
    if (s->status == TLM_OK && twice >= 0)
        s->status = err_set(s->e, TLM_EFORMAT, "%s: __metadata__: key %.*s occurs twice", f->path, NAME_SHOWN,
                            f->metadata[twice].key);
    return s->status == TLM_OK;
}

static enum tlm_status read_header(struct st_file *f, struct tlm_error *e)
{
    const uint8_t *file = f->map.data;
    if (f->map.size < 8)
        return err_set(e, TLM_EFORMAT, "%s: %zu bytes, too short for a safetensors file", f->path, f->map.size);
    uint64_t len = load_u64(file);
    if (len > HEADER_MAX)
        return err_set(e, TLM_EFORMAT, "%s: a header of %llu bytes, more than the limit of %d", f->path,
                       (unsigned long long)len, HEADER_MAX);
    if (len > f->map.size - 8)
        return err_set(e, TLM_EFORMAT, "%s: a header of %llu bytes in a file of %zu", f->path, (unsigned long long)len,
                       f->map.size);
    f->strings = mem_alloc((size_t)len + 1);
    if (!f->strings)
        return err_nomem(e, (size_t)len + 1);
    struct scan s = {.f = f, .start = file + 8, .at = file + 8, .end = file + 8 + len, .strings = f->strings, .e = e};
    struct span *spans = NULL;
    bool ok = scan_header(&s, &spans);
    skip_space(&s);
    if (ok && s.at < s.end)
        ok = fail(&s, "the end of the header");
    ok = ok && check_names(&s) && check_coverage(&s, spans, s.end, f->map.size - 8 - len);
    mem_free(spans);
    return ok ? TLM_OK : s.status;
}

enum tlm_status st_open(const char *path, struct st_file **out, struct tlm_error *e)
{
    *out = NULL;
    struct st_file *f = mem_new(sizeof *f);
    if (!f)
        return err_nomem(e, sizeof *f);
    f->path = mem_strdup(path);
    enum tlm_status status = f->path ? file_map_open(&f->map, path, e) : err_nomem(e, strlen(path) + 1);
    if (status == TLM_OK)
        status = read_header(f, e);
    if (status != TLM_OK) {
        st_close(f);
        return status;
    }
    *out = f;
    return TLM_OK;
}

void st_close(struct st_file *f)
{
    if (!f)
        return;
    file_map_close(&f->map);
    mem_free(f->path);
    mem_free(f->tensors);
    mem_free(f->metadata);
    mem_free(f->strings);
    mem_free(f->index);
    mem_free(f);
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
    int i = name_index_find(f->index, f->index_size, f->tensors, sizeof *f->tensors, name);
    return i < 0 ? NULL : &f->tensors[i];
}

const char *st_metadata(const struct st_file *f, const char *key)
{
    for (int i = 0; i < f->n_metadata; i++)
        if (!strcmp(f->metadata[i].key, key))
            return f->metadata[i].value;
    return NULL;
}
