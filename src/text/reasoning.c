/* The splitter of thoughts and content; see reasoning.h. */
#include "text/reasoning.h"

#include <string.h>

#include <turbolm/tokenizer.h>

#include "base/mem.h"

enum { PENDING_MAX = 1 << 24 }; /* bytes pushed and not taken */

int tlm_reasoning_tags_get(const struct tlm_tokenizer *t, struct tlm_reasoning_tags *out)
{
    static const struct {
        const char *open_token, *close_token, *open;
    } pairs[] = {
        {"<think>", "</think>", "<think>"},
        {"<longcat_think>", "</longcat_think>", "<longcat_think>"},
        {"<|channel>", "<channel|>", "<|channel>thought"},
    };
    *out = (struct tlm_reasoning_tags){NULL, NULL, -1, -1};
    for (size_t i = 0; t && i < sizeof pairs / sizeof *pairs; i++) {
        int32_t open = tlm_tokenizer_token_id(t, pairs[i].open_token);
        int32_t close = tlm_tokenizer_token_id(t, pairs[i].close_token);
        if (open < 0 || close < 0)
            continue;
        *out = (struct tlm_reasoning_tags){pairs[i].open, pairs[i].close_token, open, close};
        return 1;
    }
    return 0;
}

static bool ends_with(const char *text, size_t n, const char *tag)
{
    size_t len = strlen(tag);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        n--;
    return n >= len && !memcmp(text + n - len, tag, len);
}

enum tlm_status tlm_reasoning_new(const struct tlm_reasoning_tags *tags, const char *prompt, size_t n,
                                  struct tlm_reasoning **out, struct tlm_error *e)
{
    struct tlm_reasoning *r = mem_new(sizeof *r);
    *out = r;
    if (!r)
        return err_nomem(e, sizeof *r);
    buf_init(&r->text, PENDING_MAX);
    if (tags && tags->open && tags->close) {
        r->open = tags->open;
        r->close = tags->close;
        if (prompt && ends_with(prompt, n, r->open))
            r->part = TLM_PART_REASONING;
    }
    return TLM_OK;
}

void tlm_reasoning_free(struct tlm_reasoning *r)
{
    if (!r)
        return;
    buf_deinit(&r->text);
    mem_free(r);
}

enum tlm_status tlm_reasoning_push(struct tlm_reasoning *r, const char *text, size_t n, struct tlm_error *e)
{
    if (r->at) {
        memmove(r->text.data, r->text.data + r->at, r->text.len - r->at);
        r->text.len -= r->at;
        r->at = 0;
    }
    if (n)
        buf_add(&r->text, text, n);
    return buf_check(&r->text, e, "an answer's text");
}

void tlm_reasoning_finish(struct tlm_reasoning *r)
{
    r->ended = true;
}

static const char *find(const char *text, size_t n, const char *tag, size_t len)
{
    for (const char *p = text; n >= len; p++, n--) {
        const char *q = memchr(p, tag[0], n - len + 1);
        if (!q)
            return NULL;
        n -= (size_t)(q - p);
        p = q;
        if (!memcmp(p, tag, len))
            return p;
    }
    return NULL;
}

size_t reasoning_held(const char *text, size_t n, const char *tag)
{
    size_t most = strlen(tag) - 1;
    for (size_t k = n < most ? n : most; k > 0; k--)
        if (!memcmp(text + n - k, tag, k))
            return k;
    return 0;
}

int tlm_reasoning_next(struct tlm_reasoning *r, struct tlm_piece *piece)
{
    const char *text, *tag, *hit;
    size_t n;
    do {
        text = r->text.len ? r->text.data + r->at : "";
        n = r->text.len - r->at;
        tag = r->part == TLM_PART_CONTENT ? r->open : r->close;
        size_t len = tag ? strlen(tag) : 0;
        hit = tag ? find(text, n, tag, len) : NULL;
        if (hit == text) {
            r->part = r->part == TLM_PART_CONTENT ? TLM_PART_REASONING : TLM_PART_CONTENT;
            r->at += len;
        }
    } while (hit && hit == text);
    if (hit)
        n = (size_t)(hit - text);
    else if (tag && !r->ended)
        n -= reasoning_held(text, n, tag);
    if (!n)
        return 0;
    *piece = (struct tlm_piece){r->part, text, n};
    r->at += n;
    return 1;
}
