/* Any bytes as a JSON document, read by both readers: into a tree (configs,
 * indexes) and by pulling (tokenizer.json). What the stricter one takes, the
 * other must take too, and every number and string of the tree must be usable. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "fuzz.h"
#include "text/json_stream.h"

/* Walks without recursion, reading every value by the typed getters. */
static void use(const cJSON *v)
{
    int64_t ints[4];
    float f = 0;
    bool b = false;
    int n = 0;
    const char *s = "";
    for (; v; v = v->next) {
        if (cJSON_IsObject(v) && v->child) {
            const char *key = v->child->string;
            (void)json_int(v, key, -1000, 1000, ints, NULL);
            (void)json_ints(v, key, ints, 4, &n, NULL);
            (void)json_bool(v, key, &b, NULL);
            if (json_float(v, key, &f, NULL) == TLM_OK && !isfinite(f))
                abort();
            if (json_str(v, key, &s, NULL) == TLM_OK)
                (void)strlen(s);
        }
        use(v->child); /* the parser bounds the depth */
    }
}

static bool pull(const char *text, size_t n)
{
    struct json_stream j;
    struct json_text t;
    json_stream_init(&j, text, n, "fuzz", NULL);
    if (json_skip(&j, &t) && (t.s < text || t.s + t.n > text + n))
        abort();
    bool ok = json_at_end(&j);
    json_stream_deinit(&j);

    /* Once more, reading strings and numbers of the outermost object. */
    json_stream_init(&j, text, n, "fuzz", NULL);
    if (json_enter(&j, '{'))
        while (json_next_key(&j, &t)) {
            int64_t i;
            double d;
            struct json_text value;
            char c = json_peek(&j);
            if (c == '"')
                json_text_get(&j, &value);
            else if (c == '0' && t.n % 2)
                json_int_get(&j, &i);
            else if (c == '0')
                json_double_get(&j, &d);
            else
                json_skip(&j, NULL);
        }
    json_stream_deinit(&j);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    cJSON *tree = NULL;
    struct tlm_error e = {TLM_OK, ""};
    bool pulled = pull(size ? text : "", size);
    enum tlm_status s = json_parse(size ? text : "", size, "fuzz", &tree, &e);
    if ((s == TLM_OK) != (tree != NULL) || (s != TLM_OK && !e.message[0]))
        abort();
    if (s == TLM_OK)
        use(tree);
    else if (pulled && s != TLM_EFORMAT && s != TLM_ELIMIT)
        abort();
    cJSON_Delete(tree);
    return 0;
}
