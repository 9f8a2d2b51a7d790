/* Post-processors: which ids stand before and after a single text. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"

enum { MAX_TEMPLATE = 64, MAX_DEPTH = 16 };

void template_deinit(struct tok_template *p)
{
    mem_free(p->before);
    mem_free(p->after);
    *p = (struct tok_template){0};
}

static enum tlm_status put(int32_t **list, uint32_t *n, int64_t id, struct tlm_error *e)
{
    if (*n == MAX_TEMPLATE)
        return err_set(e, TLM_ELIMIT, "post_processor: more than %d special tokens", MAX_TEMPLATE);
    int32_t *p = mem_realloc_array(*list, (size_t)*n + 1, sizeof *p);
    if (!p)
        return err_nomem(e, (*n + 1) * sizeof *p);
    *list = p;
    p[(*n)++] = (int32_t)id;
    return TLM_OK;
}

enum tlm_status template_set(struct tok_template *p, int32_t bos, int32_t eos, struct tlm_error *e)
{
    template_deinit(p);
    p->present = true;
    enum tlm_status s = bos >= 0 ? put(&p->before, &p->n_before, bos, e) : TLM_OK;
    return s == TLM_OK && eos >= 0 ? put(&p->after, &p->n_after, eos, e) : s;
}

static enum tlm_status parse_single(const cJSON *v, struct tok_template *p, struct tlm_error *e)
{
    const cJSON *single = json_get(v, "single"), *tokens = json_get(v, "special_tokens");
    bool text = false;
    enum tlm_status s = TLM_OK;
    if (!cJSON_IsArray(single))
        return err_set(e, TLM_EFORMAT, "post_processor.single: found %s, expected an array", json_type_name(single));
    for (const cJSON *c = single->child; c && s == TLM_OK; c = c->next) {
        if (json_get(c, "Sequence")) {
            if (text)
                return err_set(e, TLM_EUNSUPPORTED, "post_processor.single: the text more than once");
            text = true;
            continue;
        }
        const char *name = NULL;
        const cJSON *special = json_get(c, "SpecialToken"), *entry = NULL;
        if (json_str(special, "id", &name, e) != TLM_OK)
            return TLM_EFORMAT;
        for (entry = tokens && name ? tokens->child : NULL; entry; entry = entry->next)
            if (entry->string && !strcmp(entry->string, name))
                break;
        const cJSON *ids = json_get(entry, "ids");
        if (!cJSON_IsArray(ids))
            return err_set(e, TLM_EFORMAT, "post_processor.single: \"%s\" has no ids in special_tokens",
                           name ? name : "");
        for (const cJSON *id = ids->child; id && s == TLM_OK; id = id->next) {
            if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0 && id->valuedouble < TOK_MAX_ID))
                return err_set(e, TLM_EFORMAT, "post_processor.special_tokens: an id that is no token id");
            s = text ? put(&p->after, &p->n_after, id->valueint, e) : put(&p->before, &p->n_before, id->valueint, e);
        }
    }
    if (s == TLM_OK && !text)
        return err_set(e, TLM_EUNSUPPORTED, "post_processor.single: does not contain the text");
    return s;
}

/* ["[SEP]", 102] */
static enum tlm_status pair_id(const cJSON *v, const char *key, int64_t *id, struct tlm_error *e)
{
    const cJSON *pair = json_get(v, key);
    const cJSON *number = cJSON_IsArray(pair) && pair->child ? pair->child->next : NULL;
    if (!cJSON_IsNumber(number) || !(number->valuedouble >= 0 && number->valuedouble < TOK_MAX_ID))
        return err_set(e, TLM_EFORMAT, "post_processor.%s: found %s, expected [token, id]", key, json_type_name(pair));
    *id = number->valueint;
    return TLM_OK;
}

enum tlm_status template_parse(const cJSON *v, struct tlm_tokenizer *t, int depth, struct tlm_error *e)
{
    struct tok_template *p = &t->post;
    const char *type = NULL;
    int64_t cls = 0, sep = 0;
    if (!v)
        return TLM_OK;
    if (json_str(v, "type", &type, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!type)
        return err_set(e, TLM_EFORMAT, "post_processor: found %s without a type", json_type_name(v));
    p->present = true;
    if (!strcmp(type, "ByteLevel"))
        return TLM_OK; /* changes offsets only */
    if (!strcmp(type, "TemplateProcessing"))
        return parse_single(v, p, e);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing")) {
        enum tlm_status s = pair_id(v, "cls", &cls, e);
        if (s == TLM_OK)
            s = pair_id(v, "sep", &sep, e);
        if (s == TLM_OK)
            s = put(&p->before, &p->n_before, cls, e);
        return s == TLM_OK ? put(&p->after, &p->n_after, sep, e) : s;
    }
    if (strcmp(type, "Sequence"))
        return err_set(e, TLM_EUNSUPPORTED, "post_processor: unknown type \"%s\"", type);
    const cJSON *list = json_get(v, "processors");
    if (!cJSON_IsArray(list) || depth >= MAX_DEPTH)
        return err_set(e, TLM_EFORMAT, "post_processor.processors: found %s, expected an array nested at most %d deep",
                       json_type_name(list), MAX_DEPTH);
    enum tlm_status s = TLM_OK;
    for (const cJSON *c = list->child; c && s == TLM_OK; c = c->next)
        s = template_parse(c, t, depth + 1, e);
    return s;
}
