/* Two models whose pieces are looked up by the text that begins at a place.
 * Longest (RWKV): the longest piece from the left, again and again; pieces are
 * bytes and need not be UTF-8. Cheapest (PLaMo 2): the segmentation with the
 * lowest sum of costs, found from right to left; a character that no piece
 * covers costs as much as a score of -1000 and becomes its bytes. Costs are
 * scores times 10,000, rounded. Of two equal sums the longer piece wins. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define UNKNOWN_COST 1e7
#define MAX_COST 2e7 /* a piece at or above this is never taken */

enum tlm_status pieces_build(struct tlm_tokenizer *t, struct tlm_error *e)
{
    struct tok_matcher *m = &t->model.pieces;
    const struct tok_vocab *v = &t->vocab;
    m->keys = mem_new_array(v->n, sizeof *m->keys);
    if (!m->keys)
        return err_nomem(e, v->n * sizeof *m->keys);
    for (uint32_t id = 0; id < v->n; id++)
        if ((v->flags[id] & TOK_MODEL) && v->piece[id].len)
            m->keys[m->n++] = (struct tok_match_key){vocab_text(v, id), v->piece[id].len, id};
    matcher_index(m);
    return TLM_OK;
}

enum tlm_status longest_word(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    enum tlm_status status = TLM_OK;
    for (size_t i = 0; i < n && status == TLM_OK;) {
        const struct tok_match_key *key = matcher_longest(&m->pieces, s + i, n - i);
        if (!key && m->unk < 0)
            return err_set(x->e, TLM_EFORMAT, "the vocabulary has no token for byte %u", (uint8_t)s[i]);
        status = encoder_push(x, key ? (int32_t)key->added : m->unk);
        i += key ? key->n : 1;
    }
    return status;
}

struct node {
    double cost;
    int32_t id; /* -1: a character as bytes */
    uint32_t len;
};

static enum tlm_status push_bytes(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    enum tlm_status status = TLM_OK;
    for (size_t i = 0; i < n && status == TLM_OK; i++) {
        int32_t id = m->byte_piece[(uint8_t)s[i]];
        if (id < 0 && m->unk < 0)
            return err_set(x->e, TLM_EFORMAT, "the vocabulary has no token for byte %u", (uint8_t)s[i]);
        status = encoder_push(x, id < 0 ? m->unk : id);
    }
    return status;
}

enum tlm_status cheapest_word(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    if (n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3)) { /* a byte order mark at the start is dropped */
        s += 3;
        n -= 3;
    }
    if (n > INT32_MAX / 4)
        return err_set(x->e, TLM_ELIMIT, "a word of %zu bytes, at most %d are taken", n, INT32_MAX / 4);
    enum tlm_status status = tok_grow(&x->lattice, &x->cap_lattice, (n + 1) * 2, sizeof *x->lattice, x->e);
    if (status != TLM_OK)
        return status;
    struct node *node = (struct node *)(void *)x->lattice;
    node[n] = (struct node){0, -1, 0};
    for (size_t i = n; i-- > 0;) {
        struct tok_match_place place = {0};
        const struct tok_match_key *key;
        if (((uint8_t)s[i] & 0xc0) == 0x80)
            continue;
        size_t len = (size_t)utf8_len(s[i]);
        struct node best = {node[i + len].cost + UNKNOWN_COST, -1, (uint32_t)len};
        while ((key = matcher_next(&m->pieces, &place, s + i, n - i)) != NULL) {
            double cost = m->scores[key->added];
            if (cost < MAX_COST && node[i + key->n].cost + cost <= best.cost)
                best = (struct node){node[i + key->n].cost + cost, (int32_t)key->added, key->n};
        }
        node[i] = best;
    }
    for (size_t i = 0; i < n && status == TLM_OK; i += node[i].len)
        status = node[i].id >= 0 ? encoder_push(x, node[i].id) : push_bytes(x, s + i, node[i].len);
    return status;
}
