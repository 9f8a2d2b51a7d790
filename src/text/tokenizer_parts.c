/* Walks a component of tokenizer.json: one part, or a Sequence of parts, which
 * is flattened. Normalizers, pre-tokenizers and decoders have this in common. */
#include <string.h>

#include "base/json.h"
#include "text/tokenizer_impl.h"

enum { MAX_DEPTH = 16 };

enum tlm_status tok_parse_parts(const cJSON *v, const char *what, const char *list_key, tok_part_fn *add, void *out,
                                int depth, struct tlm_error *e)
{
    const char *type = NULL;
    if (!v)
        return TLM_OK;
    if (json_str(v, "type", &type, e) != TLM_OK)
        return TLM_EFORMAT;
    if (!type)
        return err_set(e, TLM_EFORMAT, "%s: found %s without a type", what, json_type_name(v));
    if (strcmp(type, "Sequence"))
        return add(v, type, out, e);
    const cJSON *list = json_get(v, list_key);
    if (!cJSON_IsArray(list) || depth >= MAX_DEPTH)
        return err_set(e, TLM_EFORMAT, "%s.%s: found %s, expected an array nested at most %d deep", what, list_key,
                       json_type_name(list), MAX_DEPTH);
    enum tlm_status s = TLM_OK;
    for (const cJSON *c = list->child; c && s == TLM_OK; c = c->next)
        s = tok_parse_parts(c, what, list_key, add, out, depth + 1, e);
    return s;
}
