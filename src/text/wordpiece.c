/* WordPiece: the longest piece from the left, again and again; a word with a
 * place where none fits is unk as a whole. Word level: the word or unk. */
#include <string.h>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

static enum tlm_status unknown(struct encoder *x)
{
    if (x->t->model.unk < 0)
        return err_set(x->e, TLM_EFORMAT,
                       "the model's unk_token is not in its vocabulary, and the text has an unknown "
                       "word");
    return encoder_push(x, x->t->model.unk);
}

enum tlm_status wordpiece_word(struct encoder *x, const char *s, size_t n)
{
    const struct tok_model *m = &x->t->model;
    const struct tok_vocab *v = &x->t->vocab;
    if (m->kind == MODEL_WORDLEVEL) {
        int32_t id = vocab_find(v, s, n);
        return id >= 0 ? encoder_push(x, id) : unknown(x);
    }
    if (n > m->max_chars && utf8_count(s, n) > m->max_chars)
        return unknown(x);
    size_t before = x->n_ids;
    for (size_t i = 0; i < n;) {
        size_t end = n, prefix = i ? m->prefix_n : 0;
        int32_t id = -1;
        buf_clear(&x->c);
        buf_add(&x->c, m->prefix, prefix);
        if (buf_add(&x->c, s + i, n - i) != TLM_OK)
            return buf_check(&x->c, x->e, "word");
        if (end - i > m->max_piece) { /* to a character's start */
            end = i + m->max_piece;
            while (end > i && ((uint8_t)s[end] & 0xc0) == 0x80)
                end--;
        }
        while (end > i && id < 0) {
            id = vocab_find(v, x->c.data, prefix + end - i);
            if (id < 0)
                end = (size_t)(utf8_prev(s + i, s + end) - s);
        }
        if (id < 0) {
            x->n_ids = before;
            return unknown(x);
        }
        enum tlm_status status = encoder_push(x, id);
        if (status != TLM_OK)
            return status;
        i = end;
    }
    return TLM_OK;
}
