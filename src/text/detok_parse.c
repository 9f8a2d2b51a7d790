/* Decoders from tokenizer.json. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"

enum { MAX_PARTS = 64 };

struct tok_decoder *decoder_push(struct tok_decoders *l)
{
    struct tok_decoder *p = mem_realloc_array(l->list, (size_t)l->n + 1, sizeof *p);
    if (!p)
        return NULL;
    l->list = p;
    p[l->n] = (struct tok_decoder){0};
    return &p[l->n++];
}

void decoder_deinit(struct tok_decoders *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        pattern_deinit(&l->list[i].pattern);
        mem_free(l->list[i].content);
        mem_free(l->list[i].delimiter);
    }
    mem_free(l->list);
    *l = (struct tok_decoders){NULL, 0};
}

static enum tlm_status get_text(const cJSON *v, const char *key, const char *value, char **out, size_t *n,
                                struct tlm_error *e)
{
    if (json_str(v, key, &value, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!value)
        return err_set(e, TLM_EFORMAT, "decoder.%s: missing, expected a string", key);
    *out = mem_strdup(value);
    *n = strlen(value);
    return *out ? TLM_OK : err_nomem(e, *n + 1);
}

static enum tlm_status parse_one(const cJSON *v, const char *type, struct tok_decoder *p, struct tlm_error *e)
{
    static const struct {
        const char *name;
        enum decoder_kind kind;
    } known[] = {
        {"ByteLevel", DECODER_BYTE_LEVEL},
        {"Replace", DECODER_REPLACE},
        {"ByteFallback", DECODER_BYTE_FALLBACK},
        {"Fuse", DECODER_FUSE},
        {"Strip", DECODER_STRIP},
        {"Metaspace", DECODER_METASPACE},
        {"WordPiece", DECODER_WORDPIECE},
        {"BPEDecoder", DECODER_BPE},
        {"CTC", DECODER_CTC},
    };
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(type, known[k].name))
        k++;
    if (k == sizeof known / sizeof *known)
        return err_set(e, TLM_EUNSUPPORTED, "decoder: unknown type \"%s\"", type);
    p->kind = known[k].kind;
    enum tlm_status s = TLM_OK;
    char mark[4];
    int mark_n;
    switch (p->kind) {
    case DECODER_REPLACE:
        s = pattern_parse(json_get(v, "pattern"), &p->pattern, e);
        return s == TLM_OK ? get_text(v, "content", NULL, &p->content, &p->content_n, e) : s;
    case DECODER_STRIP:
        s = json_int(v, "start", 0, INT32_MAX, &p->start, e);
        if (s == TLM_OK)
            s = json_int(v, "stop", 0, INT32_MAX, &p->stop, e);
        if (s == TLM_OK) /* one character */
            s = pretok_parse_replacement(v, "content", mark, &mark_n, e);
        return s == TLM_OK ? get_text(v, "content", NULL, &p->content, &p->content_n, e) : s;
    case DECODER_METASPACE:
        s = pretok_parse_prepend(v, &p->prepend, e);
        if (s == TLM_OK)
            s = pretok_parse_replacement(v, "replacement", mark, &mark_n, e);
        return s == TLM_OK ? get_text(v, "replacement", "\xe2\x96\x81", &p->content, &p->content_n, e) : s;
    case DECODER_WORDPIECE:
        p->cleanup = true;
        s = json_bool(v, "cleanup", &p->cleanup, e);
        return s == TLM_OK ? get_text(v, "prefix", "##", &p->content, &p->content_n, e) : s;
    case DECODER_BPE:
        return get_text(v, "suffix", "</w>", &p->content, &p->content_n, e);
    case DECODER_CTC:
        p->cleanup = true;
        s = json_bool(v, "cleanup", &p->cleanup, e);
        if (s == TLM_OK)
            s = get_text(v, "word_delimiter_token", "|", &p->delimiter, &p->delimiter_n, e);
        return s == TLM_OK ? get_text(v, "pad_token", "<pad>", &p->content, &p->content_n, e) : s;
    default:
        return TLM_OK;
    }
}

static enum tlm_status add_part(const cJSON *v, const char *type, void *list, struct tlm_error *e)
{
    struct tok_decoders *out = list;
    if (out->n >= MAX_PARTS)
        return err_set(e, TLM_ELIMIT, "decoder: more than %d parts", MAX_PARTS);
    struct tok_decoder *p = decoder_push(out);
    return p ? parse_one(v, type, p, e) : err_nomem(e, sizeof *p);
}

enum tlm_status decoder_parse(const cJSON *v, struct tok_decoders *out, struct tlm_error *e)
{
    return tok_parse_parts(v, "decoder", "decoders", add_part, out, 0, e);
}
