/* Pre-tokenizers from tokenizer.json. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum { MAX_PARTS = 256 };

/* The pattern of the ByteLevel pre-tokenizer, that of GPT-2. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct tok_pretok *pretok_push(struct tok_pretoks *l)
{
    struct tok_pretok *p = mem_realloc_array(l->list, (size_t)l->n + 1, sizeof *p);
    if (!p)
        return NULL;
    l->list = p;
    p[l->n] = (struct tok_pretok){.behavior = PRETOK_ISOLATED};
    return &p[l->n++];
}

void pretok_deinit(struct tok_pretoks *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        pattern_deinit(&l->list[i].pattern);
    mem_free(l->list);
    *l = (struct tok_pretoks){NULL, 0};
}

static enum tlm_status parse_behavior(const cJSON *v, enum pretok_behavior *out, struct tlm_error *e)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *s = NULL;
    if (json_str(v, "behavior", &s, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!s)
        return TLM_OK;
    for (unsigned k = 0; k < sizeof names / sizeof *names; k++)
        if (!strcmp(s, names[k])) {
            *out = (enum pretok_behavior)k;
            return TLM_OK;
        }
    return err_set(e, TLM_EUNSUPPORTED, "pre_tokenizer.behavior: unknown \"%s\"", s);
}

enum tlm_status pretok_parse_prepend(const cJSON *v, enum pretok_prepend *out, struct tlm_error *e)
{
    const char *s = NULL;
    bool prefix = true;
    *out = PRETOK_PREPEND_ALWAYS;
    if (json_str(v, "prepend_scheme", &s, e) != TLM_OK || json_bool(v, "add_prefix_space", &prefix, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!s)
        *out = prefix ? PRETOK_PREPEND_ALWAYS : PRETOK_PREPEND_NEVER;
    else if (!strcmp(s, "first"))
        *out = PRETOK_PREPEND_FIRST;
    else if (!strcmp(s, "never"))
        *out = PRETOK_PREPEND_NEVER;
    else if (strcmp(s, "always"))
        return err_set(e, TLM_EUNSUPPORTED, "Metaspace.prepend_scheme: unknown \"%s\"", s);
    return TLM_OK;
}

enum tlm_status pretok_parse_replacement(const cJSON *v, const char *key, char mark[4], int *n, struct tlm_error *e)
{
    const char *s = "\xe2\x96\x81";
    if (json_str(v, key, &s, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!*s || !utf8_valid(s, strlen(s)) || strlen(s) != (size_t)utf8_len(*s))
        return err_set(e, TLM_EFORMAT, "%s: found \"%s\", expected one character", key, s);
    *n = (int)strlen(s);
    memcpy(mark, s, (size_t)*n);
    return TLM_OK;
}

static enum tlm_status parse_one(const cJSON *v, const char *type, struct tok_pretok *p, struct tlm_error *e)
{
    static const struct {
        const char *name;
        enum pretok_kind kind;
    } known[] = {
        {"ByteLevel", PRETOK_BYTE_LEVEL},
        {"Split", PRETOK_SPLIT},
        {"Digits", PRETOK_DIGITS},
        {"Metaspace", PRETOK_METASPACE},
        {"Punctuation", PRETOK_PUNCTUATION},
        {"Whitespace", PRETOK_WHITESPACE},
        {"WhitespaceSplit", PRETOK_WHITESPACE_SPLIT},
        {"BertPreTokenizer", PRETOK_BERT},
        {"CharDelimiterSplit", PRETOK_DELIMITER},
        {"FixedLength", PRETOK_FIXED_LENGTH},
        {"UnicodeScripts", PRETOK_SCRIPTS},
    };
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(type, known[k].name))
        k++;
    if (k == sizeof known / sizeof *known)
        return err_set(e, TLM_EUNSUPPORTED, "pre_tokenizer: unknown type \"%s\"", type);
    p->kind = known[k].kind;
    enum tlm_status s = TLM_OK;
    int64_t length = 0;
    switch (p->kind) {
    case PRETOK_BYTE_LEVEL:
        p->add_prefix_space = p->use_regex = true;
        if (json_bool(v, "add_prefix_space", &p->add_prefix_space, e) != TLM_OK ||
            json_bool(v, "use_regex", &p->use_regex, e) != TLM_OK)
            return TLM_EFORMAT;
        return p->use_regex ? regex_new(gpt2_pattern, sizeof gpt2_pattern - 1, &p->pattern.regex, e) : TLM_OK;
    case PRETOK_SPLIT:
        s = json_bool(v, "invert", &p->invert, e);
        if (s == TLM_OK)
            s = parse_behavior(v, &p->behavior, e);
        return s == TLM_OK ? pattern_parse(json_get(v, "pattern"), &p->pattern, e) : s;
    case PRETOK_DIGITS:
        return json_bool(v, "individual_digits", &p->individual_digits, e);
    case PRETOK_PUNCTUATION:
        return parse_behavior(v, &p->behavior, e);
    case PRETOK_METASPACE:
        p->split = true;
        p->behavior = PRETOK_MERGED_WITH_NEXT;
        s = json_bool(v, "split", &p->split, e);
        if (s == TLM_OK)
            s = pretok_parse_prepend(v, &p->prepend, e);
        if (s == TLM_OK)
            s = pretok_parse_replacement(v, "replacement", p->mark, &p->mark_n, e);
        if (s != TLM_OK)
            return s;
        p->pattern.n = (size_t)p->mark_n;
        p->pattern.text = mem_strndup(p->mark, (size_t)p->mark_n);
        return p->pattern.text ? TLM_OK : err_nomem(e, 5);
    case PRETOK_WHITESPACE_SPLIT:
        p->behavior = PRETOK_REMOVED;
        return TLM_OK;
    case PRETOK_DELIMITER:
        p->behavior = PRETOK_REMOVED;
        return pretok_parse_replacement(v, "delimiter", p->mark, &p->mark_n, e);
    case PRETOK_FIXED_LENGTH:
        length = 5;
        s = json_int(v, "length", 1, INT32_MAX, &length, e);
        p->length = (uint32_t)length;
        return s;
    default:
        return TLM_OK;
    }
}

static enum tlm_status add_part(const cJSON *v, const char *type, void *list, struct tlm_error *e)
{
    struct tok_pretoks *out = list;
    if (out->n >= MAX_PARTS)
        return err_set(e, TLM_ELIMIT, "pre_tokenizer: more than %d parts", MAX_PARTS);
    struct tok_pretok *p = pretok_push(out);
    return p ? parse_one(v, type, p, e) : err_nomem(e, sizeof *p);
}

enum tlm_status pretok_parse(const cJSON *v, struct tok_pretoks *out, struct tlm_error *e)
{
    return tok_parse_parts(v, "pre_tokenizer", "pretokenizers", add_part, out, 0, e);
}
