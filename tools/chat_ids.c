/* Token ids of a growing conversation.
 *
 * The text of an answer, encoded again, need not give the tokens that were
 * generated, and then the cache would hold another beginning than the next
 * turn asks for. So the ids that were given and generated are kept, and the new
 * conversation takes as many of them as stand for the same text: both id lists
 * are decoded, special tokens shown, and where tokens of both end at one place
 * of the common text, the new ids may change over from the kept ones to the
 * encoded ones. The last such place is taken. The result always decodes to what
 * the encoded ids decode to; a template that changes what was said before only
 * makes the common text shorter. */
#include "chat.h"

#include <string.h>

enum { TRIES_MAX = 16 };

struct decoded {
    char *text;
    size_t len, room;
    size_t *ends; /* bytes of text that are known after each token */
};

void chat_ids_clear(struct chat_ids *k)
{
    tool_free(k->ids);
    *k = (struct chat_ids){0};
}

void chat_ids_add(struct chat_ids *k, const int32_t *ids, size_t n)
{
    if (k->n + n > k->room) {
        k->room = 2 * (k->n + n);
        k->ids = tool_grow(k->ids, k->room, sizeof *k->ids);
    }
    if (n > 0)
        memcpy(k->ids + k->n, ids, n * sizeof *ids);
    k->n += n;
}

static void add_piece(struct decoded *d, const char *piece, size_t n)
{
    if (d->len + n > d->room) {
        d->room = 2 * (d->len + n);
        d->text = tool_grow(d->text, d->room, 1);
    }
    if (n > 0)
        memcpy(d->text + d->len, piece, n);
    d->len += n;
}

static void decoded_free(struct decoded *d)
{
    tool_free(d->text);
    tool_free(d->ends);
}

static enum tlm_status decode(const struct tlm_tokenizer *t, const int32_t *ids, size_t n, struct decoded *d,
                              struct tlm_error *e)
{
    struct tlm_detokenizer *detok = NULL;
    const char *piece;
    size_t len;
    *d = (struct decoded){NULL, 0, 0, tool_alloc(n, sizeof *d->ends)};
    enum tlm_status s = tlm_detokenizer_new(t, 0, &detok, e);
    for (size_t i = 0; i < n && s == TLM_OK; i++) {
        s = tlm_detokenizer_push(detok, ids[i], &piece, &len, e);
        if (s == TLM_OK)
            add_piece(d, piece, len);
        d->ends[i] = d->len;
    }
    if (s == TLM_OK)
        s = tlm_detokenizer_finish(detok, &piece, &len, e);
    if (s == TLM_OK)
        add_piece(d, piece, len);
    tlm_detokenizer_free(detok);
    return s;
}

/* The last place up to `most` at which tokens of both end; *i and *j: the fewest tokens up to it. 0: none. */
static int common_end(const struct decoded *a, size_t *i, const struct decoded *b, size_t *j, size_t most)
{
    while (*i > 0 && *j > 0) {
        size_t x = a->ends[*i - 1], y = b->ends[*j - 1];
        if (x > most || x > y) {
            --*i;
        } else if (y > x) {
            --*j;
        } else {
            while (*i > 1 && a->ends[*i - 2] == x)
                --*i;
            while (*j > 1 && b->ends[*j - 2] == x)
                --*j;
            return 1;
        }
    }
    return 0;
}

static int same_text(const struct tlm_tokenizer *t, const int32_t *ids, size_t n, const struct decoded *want)
{
    struct decoded d;
    int same = decode(t, ids, n, &d, NULL) == TLM_OK && d.len == want->len &&
               (d.len == 0 || memcmp(d.text, want->text, d.len) == 0);
    decoded_free(&d);
    return same;
}

/* Puts the beginning of k before what is left of ids, which has room for both.
 * What a tokenizer holds back at a place (half a character) is found out by
 * decoding the result. */
static void join(const struct chat_ids *k, const struct tlm_tokenizer *t, const struct decoded *kept,
                 const struct decoded *whole, int32_t *ids, size_t *n)
{
    size_t i = k->n, j = *n, most = 0;
    int32_t *tried = tool_alloc(k->n + *n, sizeof *tried);
    while (most < kept->len && most < whole->len && kept->text[most] == whole->text[most])
        most++;
    for (int tries = 0; tries < TRIES_MAX && common_end(kept, &i, whole, &j, most); tries++) {
        memcpy(tried, k->ids, i * sizeof *tried);
        memcpy(tried + i, ids + j, (*n - j) * sizeof *tried);
        if (same_text(t, tried, i + *n - j, whole)) {
            *n = i + *n - j;
            memcpy(ids, tried, *n * sizeof *tried);
            break;
        }
        i--;
        j--;
    }
    tool_free(tried);
}

int chat_ids_encode(const struct chat_ids *k, const struct tlm_tokenizer *t, const char *text, size_t len,
                    int32_t **out, size_t *n)
{
    struct tlm_error e = {TLM_OK, ""};
    struct decoded kept = {0}, whole = {0};
    int32_t *ids = NULL;
    *out = NULL;
    if (tlm_tokenizer_encode(t, text, len, 0, &ids, n, &e) != TLM_OK)
        return out_tlm_error(&e);
    if (*n == 0) {
        out_error("the prompt is empty");
        tlm_free(ids);
        return 2;
    }
    *out = tool_alloc(k->n + *n, sizeof **out);
    memcpy(*out, ids, *n * sizeof **out);
    tlm_free(ids);
    enum tlm_status s = decode(t, k->ids, k->n, &kept, &e);
    if (s == TLM_OK)
        s = decode(t, *out, *n, &whole, &e);
    if (s == TLM_OK)
        join(k, t, &kept, &whole, *out, n);
    decoded_free(&kept);
    decoded_free(&whole);
    if (s == TLM_OK)
        return 0;
    tool_free(*out);
    *out = NULL;
    return out_tlm_error(&e);
}
