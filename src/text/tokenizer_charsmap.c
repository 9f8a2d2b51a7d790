/* The Precompiled normalizer: SentencePiece's character map. The blob is, in
 * base64: the byte size of a double array trie, the trie, then the replacement
 * texts, each ended by a NUL, which the trie's values point into. A grapheme
 * of less than six bytes is looked up whole, else its characters. */
#include <string.h>
#include <utf8proc.h>

#include "base/fp.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

struct tok_charsmap {
    uint32_t *trie, n_trie;
    char *texts; /* ends with a NUL of ours */
    size_t n_texts;
};

void charsmap_free(struct tok_charsmap *m)
{
    if (m) {
        mem_free(m->trie);
        mem_free(m->texts);
    }
    mem_free(m);
}

static int base64_value(char c)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(set, c) : NULL;
    return at ? (int)(at - set) : -1;
}

size_t base64_decode(char *out, const char *s, size_t n)
{
    size_t len = 0;
    uint32_t bits = 0;
    while (n && s[n - 1] == '=')
        n--;
    for (size_t i = 0; i < n; i++) {
        int v = base64_value(s[i]);
        if (v < 0)
            return SIZE_MAX;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4)
            out[len++] = (char)(bits >> (6 - 2 * (i % 4)) & 255);
    }
    return len;
}

enum tlm_status charsmap_new_raw(const char *blob, size_t n, struct tok_charsmap **out, struct tlm_error *e)
{
    uint32_t trie_bytes = n >= 4 ? load_u32(blob) : 0;
    *out = NULL;
    if (n < 8 || trie_bytes % 4 || !trie_bytes || trie_bytes > n - 4)
        return err_set(e, TLM_EFORMAT, "precompiled_charsmap: not a character map");
    struct tok_charsmap *m = mem_new(sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m);
    m->n_trie = trie_bytes / 4;
    m->n_texts = n - 4 - trie_bytes;
    m->trie = mem_alloc(trie_bytes);
    m->texts = mem_alloc(m->n_texts + 1);
    if (!m->trie || !m->texts) {
        charsmap_free(m);
        return err_nomem(e, n);
    }
    memcpy(m->trie, blob + 4, trie_bytes);
    memcpy(m->texts, blob + 4 + trie_bytes, m->n_texts);
    m->texts[m->n_texts] = 0;
    *out = m;
    return TLM_OK;
}

enum tlm_status charsmap_new(const char *base64, struct tok_charsmap **out, struct tlm_error *e)
{
    size_t n = strlen(base64);
    char *blob = mem_alloc(n + 4);
    *out = NULL;
    if (!blob)
        return err_nomem(e, n);
    size_t len = base64_decode(blob, base64, n);
    enum tlm_status s = charsmap_new_raw(blob, len == SIZE_MAX ? 0 : len, out, e);
    mem_free(blob);
    return s;
}

static uint32_t unit_offset(uint32_t u)
{
    return (u >> 10) << ((u & (1u << 9)) >> 6);
}

/* Replacement of the shortest prefix that has one, or NULL. */
static const char *look_up(const struct tok_charsmap *m, const char *s, size_t n)
{
    uint32_t pos = unit_offset(m->trie[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        pos ^= (uint8_t)s[i];
        if (pos >= m->n_trie)
            return NULL;
        uint32_t u = m->trie[pos];
        if ((u & ((1u << 31) | 0xff)) != (uint8_t)s[i])
            return NULL;
        pos ^= unit_offset(u);
        if (pos >= m->n_trie)
            return NULL;
        if (u >> 8 & 1) {
            uint32_t value = m->trie[pos] & 0x7fffffff;
            return value < m->n_texts ? m->texts + value : NULL;
        }
    }
    return NULL;
}

static enum tlm_status add_grapheme(const struct tok_charsmap *m, struct buf *out, const char *s, size_t n)
{
    const char *by = n < 6 ? look_up(m, s, n) : NULL;
    if (by)
        return buf_add_str(out, by);
    for (size_t i = 0; i < n;) {
        size_t len = (size_t)utf8_len(s[i]);
        by = look_up(m, s + i, len);
        if (by)
            buf_add_str(out, by);
        else
            buf_add(out, s + i, len);
        i += len;
    }
    return out->status;
}

enum tlm_status charsmap_add(const struct tok_charsmap *m, struct buf *out, const char *s, size_t n)
{
    size_t start = 0;
    int len, state = 0;
    uint32_t before = 0;
    for (size_t i = 0; i < n; i += (size_t)len) {
        uint32_t c = utf8_get(s + i, &len);
        if (i && utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state)) {
            enum tlm_status status = add_grapheme(m, out, s + start, i - start);
            if (status != TLM_OK)
                return status;
            start = i;
        }
        before = c;
    }
    if (start < n && add_grapheme(m, out, s + start, n - start) != TLM_OK)
        return out->status;
    /* A replacement is the file's and may be no UTF-8. */
    return utf8_valid(buf_str(out), out->len) ? TLM_OK : TLM_EFORMAT;
}
