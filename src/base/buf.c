/* Growing byte buffer. */
#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_deinit(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->status = TLM_OK;
    if (b->data)
        b->data[0] = 0;
}

enum tlm_status buf_reserve(struct buf *b, size_t extra)
{
    if (b->status != TLM_OK)
        return b->status;
    if (extra > b->max || b->len > b->max - extra)
        return b->status = TLM_ELIMIT;
    size_t need = b->len + extra + 1;
    if (need <= b->cap)
        return TLM_OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap += cap / 2;
    char *p = mem_realloc_array(b->data, cap, 1);
    if (!p)
        return b->status = TLM_ENOMEM;
    b->data = p;
    b->cap = cap;
    return TLM_OK;
}

enum tlm_status buf_add(struct buf *b, const void *bytes, size_t n)
{
    if (buf_reserve(b, n) != TLM_OK)
        return b->status;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
    return TLM_OK;
}

enum tlm_status buf_add_str(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

enum tlm_status buf_add_char(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

enum tlm_status buf_printf(struct buf *b, const char *format, ...)
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n >= 0 && buf_reserve(b, (size_t)n) == TLM_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return b->status;
}

char *buf_take(struct buf *b, size_t *len)
{
    char *p = NULL;
    if (b->status == TLM_OK && buf_reserve(b, 0) == TLM_OK) {
        b->data[b->len] = 0;
        p = b->data;
        if (len)
            *len = b->len;
        b->data = NULL;
    }
    size_t max = b->max;
    buf_deinit(b);
    b->max = max;
    return p;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

enum tlm_status buf_check(const struct buf *b, struct tlm_error *e, const char *what)
{
    if (b->status == TLM_ELIMIT)
        return err_set(e, TLM_ELIMIT, "%s is larger than the limit of %zu bytes", what, b->max);
    if (b->status != TLM_OK)
        return err_set(e, b->status, "%s: out of memory", what);
    return TLM_OK;
}
