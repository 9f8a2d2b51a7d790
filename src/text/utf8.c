/* See utf8.h. */
#include "text/utf8.h"

#include <string.h>

int utf8_scan(const char *s, size_t n, int *bad, bool *cut)
{
    const uint8_t *p = (const uint8_t *)s;
    uint8_t lo = 0x80, hi = 0xbf;
    int need;
    *cut = false;
    if (p[0] < 0x80)
        return 1;
    *bad = 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    need = p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    if (p[0] == 0xe0)
        lo = 0xa0;
    else if (p[0] == 0xed)
        hi = 0x9f;
    else if (p[0] == 0xf0)
        lo = 0x90;
    else if (p[0] == 0xf4)
        hi = 0x8f;
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= n) {
            *cut = true;
            return 0;
        }
        if (p[i] < lo || p[i] > hi)
            return 0;
        lo = 0x80;
        hi = 0xbf;
        *bad = i + 1;
    }
    return need + 1;
}

int utf8_put(char out[4], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

size_t utf8_valid_len(const char *s, size_t n)
{
    size_t i = 0;
    int bad;
    bool cut;
    while (i < n) {
        uint64_t word;
        while (i + 8 <= n) {
            memcpy(&word, s + i, 8);
            if (word & 0x8080808080808080u)
                break;
            i += 8;
        }
        if (i == n)
            break;
        int len = utf8_scan(s + i, n - i, &bad, &cut);
        if (!len)
            break;
        i += (size_t)len;
    }
    return i;
}

bool utf8_valid(const char *s, size_t n)
{
    return utf8_valid_len(s, n) == n;
}

size_t utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)s[i] & 0xc0) != 0x80;
    return count;
}

enum tlm_status utf8_add_lossy(struct buf *out, const char *s, size_t n)
{
    struct utf8_stream u = {{0}, 0};
    enum tlm_status status = utf8_stream_add(&u, out, s, n);
    return status == TLM_OK ? utf8_stream_end(&u, out) : status;
}

enum tlm_status utf8_stream_end(struct utf8_stream *u, struct buf *out)
{
    /* What is held is the valid beginning of one character: one part. */
    enum tlm_status status = u->n ? buf_add(out, "\xef\xbf\xbd", 3) : TLM_OK;
    u->n = 0;
    return status;
}

enum tlm_status utf8_stream_add(struct utf8_stream *u, struct buf *out, const char *s, size_t n)
{
    int bad = 0;
    bool cut;
    while (u->n && n) { /* finish the held character a byte at a time */
        u->held[u->n] = *s;
        int len = utf8_scan(u->held, (size_t)u->n + 1, &bad, &cut);
        if (len) {
            if (buf_add(out, u->held, (size_t)len) != TLM_OK)
                return out->status;
            u->n = 0;
        } else if (cut) {
            u->n++;
        } else { /* this byte does not belong to it; look at it anew */
            u->n = 0;
            if (buf_add(out, "\xef\xbf\xbd", 3) != TLM_OK)
                return out->status;
            continue;
        }
        s++;
        n--;
    }
    while (n) {
        size_t good = utf8_valid_len(s, n);
        if (good && buf_add(out, s, good) != TLM_OK)
            return out->status;
        s += good;
        n -= good;
        if (!n)
            break;
        utf8_scan(s, n, &bad, &cut);
        if (cut) {
            memcpy(u->held, s, n);
            u->n = (int)n;
            break;
        }
        if (buf_add(out, "\xef\xbf\xbd", 3) != TLM_OK)
            return out->status;
        s += bad;
        n -= (size_t)bad;
    }
    return TLM_OK;
}
