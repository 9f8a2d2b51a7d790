/* Bytes as a tokenizer.json, up to the first NUL; the rest as text for it. What
 * opens must encode any text and decode its own ids, streamed as in one go. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "text/tokenizer_impl.h"

static void use(const struct tlm_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids;
    size_t count, len, done = 0;
    char *whole;
    struct tlm_detokenizer *d;
    if (tlm_tokenizer_encode(t, text, n, TLM_ENCODE_SPECIAL, &ids, &count, NULL) != TLM_OK)
        return;
    if (tlm_tokenizer_decode(t, ids, count, 0, &whole, &len, NULL) == TLM_OK) {
        if (tlm_detokenizer_new(t, 0, &d, NULL) == TLM_OK) {
            for (size_t i = 0; i <= count; i++) {
                const char *piece;
                size_t m;
                enum tlm_status s = i < count ? tlm_detokenizer_push(d, ids[i], &piece, &m, NULL)
                                              : tlm_detokenizer_finish(d, &piece, &m, NULL);
                if (s != TLM_OK || m > len - done || memcmp(whole + done, piece, m))
                    abort();
                done += m;
            }
            if (done != len)
                abort();
            tlm_detokenizer_free(d);
        }
        mem_free(whole);
    }
    mem_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *split = size ? memchr(data, 0, size) : NULL;
    size_t n = split ? (size_t)(split - text) : size;
    struct tlm_tokenizer *t = tokenizer_alloc(NULL);
    if (!t)
        return 0;
    if (tokenizer_read_json(t, n ? text : "", n, "fuzz", NULL) == TLM_OK && tokenizer_finish(t, NULL) == TLM_OK) {
        static const char usual[] = "Hello  w\xc3\xb6rld\n\xff 12345 <s> \xe6\xbc\xa2 e\xcc\x81";
        use(t, usual, sizeof usual - 1);
        if (split)
            use(t, split + 1, size - n - 1);
    }
    tlm_tokenizer_free(t);
    return 0;
}
