/* Numbers keep their spelling: the tree's numbers are matched with the words of
 * the text in their order and become raw items. */
#include "convert/json_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { DEPTH_MAX = 1024 };

void json_out_double(double v, char out[JSON_OUT_NUMBER])
{
    char digits[JSON_OUT_NUMBER];
    if (!isfinite(v)) { /* transformers' way of keeping it JSON; the writer makes an object of it */
        snprintf(out, JSON_OUT_NUMBER, "%s", isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    int p = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", p, v);
    while (++p < 17 && strtod(digits, NULL) != v);
    char *mark = strchr(digits, 'e');
    int exponent = (int)strtol(mark + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16)
        snprintf(out, JSON_OUT_NUMBER, "%.*se%c%02d", (int)(mark - digits), digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else
        snprintf(out, JSON_OUT_NUMBER, "%.*f", p - 1 > exponent ? p - 1 - exponent : 1, v);
}

/* Next number or word of Python's in the text, or NULL. */
static const char *next_number(const char *p, const char *end, size_t *len)
{
    while (p < end) {
        if (*p == '"') {
            for (p++; *p != '"'; p++)
                if (*p == '\\')
                    p++;
            p++;
        } else if (*p == 'N' || *p == 'I' || *p == '-' || (*p >= '0' && *p <= '9')) {
            const char *start = p;
            while (p < end && (*p == '+' || *p == '-' || *p == '.' || (*p >= '0' && *p <= '9') ||
                               ((*p | 32) >= 'a' && (*p | 32) <= 'z')))
                p++;
            *len = (size_t)(p - start);
            return start;
        } else {
            p++;
        }
    }
    return NULL;
}

/* How Python writes a number that it read from this text. */
static void respell(const char *text, size_t len, char out[JSON_OUT_NUMBER])
{
    char word[JSON_OUT_NUMBER];
    if (len >= sizeof word || (!memchr(text, '.', len) && !memchr(text, 'e', len) && !memchr(text, 'E', len) &&
                               !memchr(text, 'N', len) && !memchr(text, 'I', len))) {
        snprintf(out, JSON_OUT_NUMBER, "%.*s", (int)(len < JSON_OUT_NUMBER ? len : JSON_OUT_NUMBER - 1), text);
        return;
    }
    memcpy(word, text, len);
    word[len] = 0;
    json_out_double(strtod(word, NULL), out);
}

struct spelling {
    const char *at, *end;
};

static enum tlm_status spell(cJSON *v, struct spelling *s, struct tlm_error *e)
{
    if (!cJSON_IsNumber(v)) {
        for (cJSON *c = v->child; c; c = c->next)
            if (spell(c, s, e) != TLM_OK)
                return TLM_ENOMEM;
        return TLM_OK;
    }
    size_t len = 0;
    char text[JSON_OUT_NUMBER];
    s->at = next_number(s->at, s->end, &len);
    if (!s->at)
        return err_set(e, TLM_EINTERNAL, "a number of a JSON text was not found again");
    respell(s->at, len, text);
    s->at += len;
    cJSON *raw = cJSON_CreateRaw(text); /* its text is moved, so that links stay */
    if (!raw)
        return err_nomem(e, sizeof *raw);
    v->valuestring = raw->valuestring;
    v->type = (v->type & ~0xff) | cJSON_Raw;
    raw->valuestring = NULL;
    cJSON_Delete(raw);
    return TLM_OK;
}

enum tlm_status json_out_load(const char *path, size_t max, cJSON **out, struct tlm_error *e)
{
    char *text;
    size_t len;
    *out = NULL;
    enum tlm_status s = file_read(path, max, &text, &len, e);
    if (s != TLM_OK)
        return s;
    s = json_parse(text, len, path, out, e);
    struct spelling from = {text, text + len};
    if (s == TLM_OK && !cJSON_IsObject(*out))
        s = err_set(e, TLM_EFORMAT, "%s: found %s, expected an object", path, json_type_name(*out));
    if (s == TLM_OK)
        s = spell(*out, &from, e);
    mem_free(text);
    if (s != TLM_OK) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return s;
}

struct member {
    cJSON *v;
    size_t at;
};

static int by_name(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int c = strcmp(x->v->string, y->v->string);
    return c ? c : x->at < y->at ? -1 : 1;
}

enum tlm_status json_out_sort(cJSON *object, struct tlm_error *e)
{
    size_t n = 0;
    for (const cJSON *v = object->child; v; v = v->next)
        n++;
    struct member *all = mem_alloc_array(n, sizeof *all);
    if (!all)
        return err_nomem(e, n * sizeof *all);
    for (size_t i = 0; i < n; i++)
        all[i] = (struct member){cJSON_DetachItemViaPointer(object, object->child), i};
    if (n)
        qsort(all, n, sizeof *all, by_name);
    for (size_t i = 0; i < n; i++)
        if (i + 1 < n && !strcmp(all[i].v->string, all[i + 1].v->string))
            cJSON_Delete(all[i].v);
        else
            cJSON_AddItemToArray(object, all[i].v); /* keeps its name */
    mem_free(all);
    return TLM_OK;
}

enum tlm_status json_out_set(cJSON *object, const char *name, cJSON *v, struct tlm_error *e)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    if (v && cJSON_AddItemToObject(object, name, v))
        return TLM_OK;
    cJSON_Delete(v);
    return err_nomem(e, strlen(name));
}

/* Code point at p, which is valid UTF-8 or else read byte by byte. */
static uint32_t next_char(const unsigned char **p)
{
    const unsigned char *s = *p;
    int more = *s >= 0xF0 ? 3 : *s >= 0xE0 ? 2 : *s >= 0xC0 ? 1 : 0;
    uint32_t c = more ? *s & (0x3Fu >> more) : *s;
    for (int i = 1; i <= more; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            *p = s + 1;
            return *s;
        }
        c = c << 6 | (s[i] & 0x3Fu);
    }
    *p = s + more + 1;
    return c;
}

static void write_string(struct buf *b, const char *s)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
    buf_add_char(b, '"');
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        uint32_t c = next_char(&p);
        const char *found = c < 0x80 ? strchr(plain, (int)c) : NULL;
        if (found)
            buf_printf(b, "\\%c", letter[found - plain]);
        else if (c >= 0x20 && c < 0x7f)
            buf_add_char(b, (char)c);
        else if (c < 0x10000)
            buf_printf(b, "\\u%04x", c);
        else
            buf_printf(b, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    }
    buf_add_char(b, '"');
}

static void indent(struct buf *b, int depth)
{
    buf_add_char(b, '\n');
    for (int i = 0; i < depth; i++)
        buf_add(b, "    ", 4);
}

static void write_value(struct buf *b, const cJSON *v, int depth);

static void write_raw(struct buf *b, const char *text, int depth)
{
    const char *word = *text == '-' ? text + 1 : text;
    if (*word != 'N' && *word != 'I') {
        buf_add_str(b, text);
        return;
    }
    buf_add_char(b, '{');
    indent(b, depth + 1);
    buf_printf(b, "\"__float__\": \"%s\"", text);
    indent(b, depth);
    buf_add_char(b, '}');
}

static void write_members(struct buf *b, const cJSON *v, int depth)
{
    bool object = cJSON_IsObject(v);
    buf_add_char(b, object ? '{' : '[');
    for (const cJSON *c = v->child; c; c = c->next) {
        indent(b, depth + 1);
        if (object) {
            write_string(b, c->string);
            buf_add(b, ": ", 2);
        }
        write_value(b, c, depth + 1);
        if (c->next)
            buf_add_char(b, ',');
    }
    if (v->child)
        indent(b, depth);
    buf_add_char(b, object ? '}' : ']');
}

static void write_value(struct buf *b, const cJSON *v, int depth)
{
    char number[JSON_OUT_NUMBER];
    if (depth > DEPTH_MAX)
        b->status = b->status == TLM_OK ? TLM_ELIMIT : b->status;
    else if (cJSON_IsObject(v) || cJSON_IsArray(v))
        write_members(b, v, depth);
    else if (cJSON_IsString(v))
        write_string(b, v->valuestring);
    else if (cJSON_IsRaw(v))
        write_raw(b, v->valuestring, depth);
    else if (cJSON_IsNumber(v) && v->valuedouble == floor(v->valuedouble) && fabs(v->valuedouble) < 0x1p53)
        buf_printf(b, "%.0f", v->valuedouble);
    else if (cJSON_IsNumber(v)) {
        json_out_double(v->valuedouble, number);
        write_raw(b, number, depth);
    } else
        buf_add_str(b, cJSON_IsNull(v) ? "null" : cJSON_IsTrue(v) ? "true" : "false");
}

enum tlm_status json_out_write(struct buf *b, const cJSON *v, struct tlm_error *e)
{
    write_value(b, v, 0);
    return buf_check(b, e, "JSON text");
}
