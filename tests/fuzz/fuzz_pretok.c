/* Bytes as the pre-tokenizer of a tokenizer.json up to the first NUL, else as a
 * bare pattern when they do not begin with '{'; the rest is a text. What is taken
 * must cut any text into words inside it, in order, soon. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "fuzz.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum { TEXT_MAX = 4096 };

static void match_all(const struct tok_regex *r, const char *s, size_t n)
{
    struct tok_regex_work *w = regex_work_new();
    size_t at = 0, start, end;
    bool found = true;
    while (w && at <= n && regex_next(r, w, s, n, at, &start, &end, &found, NULL) == TLM_OK && found) {
        if (start < at || end < start || end > n)
            abort();
        at = end > start ? end : end + 1;
        while (at < n && ((uint8_t)s[at] & 0xc0) == 0x80)
            at++;
    }
    regex_work_free(w);
}

static void use(const char *pattern, size_t n, const char *text, size_t len)
{
    struct tok_regex *r;
    if (regex_new(pattern, n, &r, NULL) != TLM_OK)
        return;
    match_all(r, text, len);
    regex_free(r);
}

static void use_parts(const char *text, size_t n, const char *s, size_t len)
{
    struct tok_pretoks list = {NULL, 0};
    cJSON *v = NULL;
    if (json_parse(text, n, "fuzz", &v, NULL) == TLM_OK && pretok_parse(v, &list, NULL) == TLM_OK)
        for (uint32_t i = 0; i < list.n; i++)
            if (list.list[i].pattern.regex)
                match_all(list.list[i].pattern.regex, s, len);
    pretok_deinit(&list);
    cJSON_Delete(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] =
        "It's  12345 w\xc3\xb6rlds\n\n \xe6\xbc\xa2\xe5\xad\x97 aaaaaaaaaaaaaaaaaaaaaaaa!?\t e\xcc\x81";
    const char *text = (const char *)data, *split = size ? memchr(data, 0, size) : NULL;
    size_t n = split ? (size_t)(split - text) : size, len = split ? size - n - 1 : 0;
    const char *s = split && len <= TEXT_MAX && utf8_valid(split + 1, len) ? split + 1 : usual;
    if (s == usual)
        len = sizeof usual - 1;
    char *pattern = mem_strndup(size ? text : "", n);
    if (!pattern)
        return 0;
    if (n && *pattern == '{')
        use_parts(pattern, n, s, len);
    else
        use(pattern, n, s, len);
    mem_free(pattern);
    return 0;
}
