/* Stop texts across tokens. */
#include "gen/stop.h"

#include <string.h>

#include "base/mem.h"

enum { STOP_TEXT_MAX = 1 << 16 };

enum tlm_status stop_init(struct stop *s, const char *const *texts, size_t n, struct tlm_error *e)
{
    *s = (struct stop){0};
    size_t longest = 0;
    s->texts = mem_new_array(n, sizeof *s->texts);
    s->lens = mem_new_array(n, sizeof *s->lens);
    if (!s->texts || !s->lens)
        return err_nomem(e, n * sizeof *s->texts);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(texts[i]);
        if (len == 0 || len > STOP_TEXT_MAX)
            return err_set(e, TLM_EINVAL, "stop text %zu has %zu bytes, expected 1 to %d", i, len, STOP_TEXT_MAX);
        s->texts[i] = mem_strdup(texts[i]);
        if (!s->texts[i])
            return err_nomem(e, len);
        s->lens[i] = len;
        s->n++;
        if (len > longest)
            longest = len;
    }
    buf_init(&s->held, (size_t)1 << 20);
    if (n)
        buf_reserve(&s->held, longest + 256);
    return buf_check(&s->held, e, "stop texts");
}

void stop_deinit(struct stop *s)
{
    for (size_t i = 0; i < s->n; i++)
        mem_free(s->texts[i]);
    mem_free(s->texts);
    mem_free(s->lens);
    buf_deinit(&s->held);
}

static const char *find(const char *hay, size_t n, const char *needle, size_t m)
{
    for (size_t i = 0; i + m <= n; i++)
        if (hay[i] == needle[0] && !memcmp(hay + i, needle, m))
            return hay + i;
    return NULL;
}

/* The length of the longest end of the text that begins some stop text. */
static size_t open_suffix(const struct stop *s)
{
    size_t best = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t most = s->lens[i] - 1 < s->held.len ? s->lens[i] - 1 : s->held.len;
        for (size_t k = most; k > best; k--)
            if (!memcmp(s->held.data + s->held.len - k, s->texts[i], k))
                best = k;
    }
    return best;
}

bool stop_push(struct stop *s, const char *text, size_t len, struct buf *out)
{
    if (s->n == 0) {
        buf_add(out, text, len);
        return false;
    }
    buf_add(&s->held, text, len);
    if (s->held.status != TLM_OK)
        out->status = s->held.status;
    const char *first = NULL;
    for (size_t i = 0; i < s->n; i++) {
        const char *at = find(buf_str(&s->held), s->held.len, s->texts[i], s->lens[i]);
        if (at && (!first || at < first))
            first = at;
    }
    if (first) {
        buf_add(out, s->held.data, (size_t)(first - s->held.data));
        buf_clear(&s->held);
        return true;
    }
    size_t keep = open_suffix(s), emit = s->held.len - keep;
    if (emit) {
        buf_add(out, s->held.data, emit);
        memmove(s->held.data, s->held.data + emit, keep);
        s->held.len = keep;
    }
    return false;
}

void stop_flush(struct stop *s, struct buf *out)
{
    if (s->held.len)
        buf_add(out, s->held.data, s->held.len);
    buf_clear(&s->held);
}
