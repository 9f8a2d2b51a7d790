/* Unigram model: the segmentation with the highest sum of scores, found from
 * left to right; a character that no piece covers costs the lowest score minus
 * ten. Neighbouring unknown characters are one. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

struct node {
    double score;
    int32_t id; /* -1: not reached */
    uint32_t start;
};

static enum tlm_status push_unknown(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    size_t known = 0;
    enum tlm_status status = TLM_OK;
    int32_t id = vocab_find(&x->t->vocab, s, n);
    if (id >= 0)
        return encoder_push(x, id);
    while (m->byte_fallback && known < n && m->byte_piece[(uint8_t)s[known]] >= 0)
        known++;
    if (known < n)
        return encoder_push(x, m->unk);
    for (size_t i = 0; i < n && status == TLM_OK; i++)
        status = encoder_push(x, m->byte_piece[(uint8_t)s[i]]);
    return status;
}

/* Writes the path's ids in order: the starts are reversed in place first. */
static enum tlm_status push_path(struct encoder *x, struct node *node, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    enum tlm_status status = TLM_OK;
    size_t end = n, next = n;
    node[0].start = 0;
    for (size_t i = n; i; i = end) { /* let each start know its end */
        end = node[i].start;
        node[end].score = (double)next; /* scores are done with */
        next = end;
    }
    for (size_t i = 0; i < n && status == TLM_OK;) {
        end = (size_t)node[i].score;
        if (node[end].id != m->unk) {
            status = encoder_push(x, node[end].id);
            i = end;
            continue;
        }
        size_t from = i;
        while (i < n && node[(size_t)node[i].score].id == m->unk)
            i = (size_t)node[i].score;
        status = push_unknown(x, s + from, i - from);
    }
    return status;
}

enum tlm_status unigram_word(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    if (n > INT32_MAX / 4)
        return err_set(x->e, TLM_ELIMIT, "a word of %zu bytes, at most %d are taken", n, INT32_MAX / 4);
    enum tlm_status status = tok_grow(&x->lattice, &x->cap_lattice, (n + 1) * 2, sizeof *x->lattice, x->e);
    if (status != TLM_OK)
        return status;
    struct node *node = (struct node *)(void *)x->lattice;
    for (size_t i = 0; i <= n; i++)
        node[i] = (struct node){0, -1, 0};
    for (size_t i = 0; i < n;) {
        size_t first = (size_t)utf8_len(s[i]);
        double here = node[i].score;
        bool single = false;
        for (size_t len = first; i + len <= n && len <= m->max_piece; len += (size_t)utf8_len(s[i + len])) {
            int32_t id = vocab_find(&x->t->vocab, s + i, len);
            if (id >= 0) {
                struct node *to = &node[i + len];
                double score = m->scores[id] + here;
                if (to->id < 0 || score > to->score)
                    *to = (struct node){score, id, (uint32_t)i};
                single = single || len == first;
            }
            if (i + len == n)
                break;
        }
        if (!single) {
            struct node *to = &node[i + first];
            double score = m->min_score - 10 + here;
            if (m->unk < 0)
                return err_set(x->e, TLM_EFORMAT,
                               "the Unigram model has no unk_id, and the text a character that it "
                               "does not know");
            if (to->id < 0 || score > to->score)
                *to = (struct node){score, m->unk, (uint32_t)i};
        }
        i += first;
    }
    return push_path(x, node, s, n);
}
