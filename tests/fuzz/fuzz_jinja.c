/* Any bytes as a template: refused, or rendered within the limits. Up to the
 * first NUL it is the template, after it the variables as JSON. */
#include <string.h>

#include "fuzz.h"
#include "text/jinja.h"
#include "text/jinja_eval.h"

static const char usual[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\",\"n\":1.5},{\"role\":\"assistant\",\"content\":[{\"type\":"
    "\"text\",\"text\":\"\\u00e9\"}],\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,null]}}}]}],"
    "\"tools\":null,\"s\":\"Hello World\",\"l\":[3,1,2],\"add_generation_prompt\":true,\"bos_token\":\"<s>\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct jinja_limits limits = {.memory = 8 << 20, .output = 1 << 20, .steps = 200000, .depth = 200};
    const char *text = (const char *)data, *split = size ? memchr(data, 0, size) : NULL;
    size_t n = split ? (size_t)(split - text) : size;
    struct tlm_error e = {0};
    struct jinja_template *t;
    if (jinja_compile(n ? text : "", n, "fuzz", &t, &e) != TLM_OK)
        return 0;
    struct jinja_run r;
    struct buf out;
    jinja_run_init(&r, &limits, "fuzz", &e);
    r.now = 0;
    buf_init(&out, limits.output);
    struct jv vars = split ? jinja_json_read(&r, split + 1, size - n - 1) : jinja_json_read(&r, usual, strlen(usual));
    if (vars.type == JV_DICT)
        (void)jinja_render(t, &r, vars, &out);
    buf_deinit(&out);
    jinja_run_deinit(&r);
    jinja_free(t);
    return 0;
}
