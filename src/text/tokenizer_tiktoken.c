/* Vocabularies of tiktoken: "base64 rank" a line, the rank being the id. Any
 * two neighbours whose joined bytes are a token may merge; the lowest rank
 * first, then the leftmost. A word that is a token stays whole.
 *
 * The file says neither how text is split nor which special tokens there are.
 * Both follow from the class that tokenizer_config.json names, as that class's
 * own code has it; a class that is not known is an error. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define MAX_FILE ((size_t)256 << 20)

enum special_set { SPECIAL_CONFIG, SPECIAL_QWEN, SPECIAL_KIMI, SPECIAL_PHI };

static const struct family {
    const char *class;
    const char *pre; /* the row of tokenizer_pre.def with its regex */
    bool nfc;
    enum special_set special;
} families[] = {
    {"QWenTokenizer", "qwen2", true, SPECIAL_QWEN},
    {"TikTokenTokenizer", "kimi-k2", false, SPECIAL_KIMI},
    {"ChatGLM4Tokenizer", "llama-bpe", false, SPECIAL_CONFIG},
    {"Phi3SmallTokenizer", "llama-bpe", false, SPECIAL_PHI},
    /* What transformers makes of such a file without code of the model's own. */
    {"PreTrainedTokenizerFast", "llama-bpe", false, SPECIAL_CONFIG},
    {"TokenizersBackend", "llama-bpe", false, SPECIAL_CONFIG},
};

static enum tlm_status set_parts(struct tlm_tokenizer *t, const struct family *f, struct tlm_error *e)
{
    const char *regex = tok_pre_regex(f->pre);
    struct tok_norm *norm = f->nfc ? norm_push(&t->norms) : NULL;
    struct tok_decoder *decoder = decoder_push(&t->decoders);
    if ((f->nfc && !norm) || !decoder)
        return err_nomem(e, sizeof *decoder);
    if (norm)
        norm->kind = NORM_NFC;
    decoder->kind = DECODER_BYTE_LEVEL;
    for (int i = 0; i < 2; i++) {
        struct tok_pretok *p = pretok_push(&t->pretoks);
        if (!p)
            return err_nomem(e, sizeof *p);
        p->kind = i ? PRETOK_BYTE_LEVEL : PRETOK_SPLIT;
        enum tlm_status s = i ? TLM_OK : regex_new(regex, strlen(regex), &p->pattern.regex, e);
        if (s != TLM_OK)
            return s;
    }
    t->model.kind = MODEL_SPM;
    t->model.leftmost = t->model.ignore_merges = true;
    return TLM_OK;
}

/* One line; *text: the token's bytes as characters, *rank. */
static bool parse_line(const char *s, size_t n, struct buf *bytes, struct buf *text, uint32_t *rank)
{
    size_t word = 0, at;
    uint64_t value = 0;
    while (word < n && s[word] != ' ')
        word++;
    for (at = word + 1; at < n && s[at] >= '0' && s[at] <= '9' && value < TOK_MAX_ID; at++)
        value = value * 10 + (uint64_t)(s[at] - '0');
    buf_clear(bytes);
    buf_clear(text);
    if (!word || at == word + 1 || at != n || value >= TOK_MAX_ID || buf_reserve(bytes, word) != TLM_OK)
        return false;
    size_t len = base64_decode(bytes->data, s, word);
    *rank = (uint32_t)value;
    return len != SIZE_MAX && len && byte_level_add(text, bytes->data, len) == TLM_OK;
}

static enum tlm_status read_lines(struct tlm_tokenizer *t, const char *s, size_t n, struct tlm_error *e)
{
    struct buf bytes, text;
    enum tlm_status status = TLM_OK;
    unsigned long line = 1;
    uint32_t rank = 0;
    buf_init(&bytes, n);
    buf_init(&text, TOK_MAX_TEXT);
    for (const char *end = s + n; s < end && status == TLM_OK; line++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t len = (size_t)((stop ? stop : end) - s), used = len && s[len - 1] == '\r' ? len - 1 : len;
        if (used && !parse_line(s, used, &bytes, &text, &rank))
            status = err_set(e, TLM_EFORMAT, "line %lu: expected a token in base64, a space and its rank", line);
        else if (used && rank < t->vocab.n && (t->vocab.flags[rank] & TOK_PRESENT))
            status = err_set(e, TLM_EFORMAT, "line %lu: a second token with rank %u", line, rank);
        else if (used)
            status = vocab_put_later(&t->vocab, rank, text.data, text.len, TOK_MODEL, e);
        s += len + (stop != NULL);
    }
    vocab_flush(&t->vocab);
    buf_deinit(&bytes);
    buf_deinit(&text);
    return status;
}

/* The order of merges is the rank; every byte must be a token. */
static enum tlm_status set_order(struct tlm_tokenizer *t, struct tlm_error *e)
{
    const struct tok_vocab *v = &t->vocab;
    struct tok_model *m = &t->model;
    m->order = mem_alloc_array(v->n, sizeof *m->order);
    if (!m->order)
        return err_nomem(e, v->n * sizeof *m->order);
    for (uint32_t id = 0; id < v->n; id++) {
        m->order[id] = v->flags[id] & TOK_MODEL ? id : UINT32_MAX;
        if (v->piece[id].len > m->max_piece)
            m->max_piece = v->piece[id].len;
    }
    for (int b = 0; b < 256; b++) {
        char c[4];
        if (vocab_find(v, c, (size_t)utf8_put(c, byte_level_char[b])) < 0)
            return err_set(e, TLM_EFORMAT, "there is no token for byte %d", b);
    }
    return TLM_OK;
}

static enum tlm_status put_special(struct tlm_tokenizer *t, uint32_t id, const char *name, struct tlm_error *e)
{
    return tokenizer_put_added(t, (struct tok_added){.id = id, .special = true}, name, strlen(name), e);
}

static enum tlm_status put_numbered(struct tlm_tokenizer *t, uint32_t id, const char *format, int first, int n,
                                    struct tlm_error *e)
{
    enum tlm_status s = TLM_OK;
    char name[64];
    for (int i = 0; i < n && s == TLM_OK; i++) {
        snprintf(name, sizeof name, "<|%s_%d|>", format, first + i);
        s = put_special(t, id + (uint32_t)i, name, e);
    }
    return s;
}

/* Qwen 1: 205 spare tokens after three named ones. */
static enum tlm_status put_qwen(struct tlm_tokenizer *t, uint32_t id, struct tlm_error *e)
{
    static const char *const names[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    enum tlm_status s = TLM_OK;
    for (uint32_t i = 0; i < 3 && s == TLM_OK; i++)
        s = put_special(t, id + i, names[i], e);
    t->eos = t->pad = (int32_t)id;
    return s == TLM_OK ? put_numbered(t, id + 3, "extra", 0, 205, e) : s;
}

/* Phi-3-small: from 100256 on, up to the padded size of 100,352. */
static enum tlm_status put_phi(struct tlm_tokenizer *t, uint32_t id, struct tlm_error *e)
{
    static const char *const names[] = {"<|dummy_id_2|>", "<|endoftext|>",  "<|fim_prefix|>", "<|fim_middle|>",
                                        "<|fim_suffix|>", "<|system|>",     "<|user|>",       "<|assistant|>",
                                        "<|dummy_id_0|>", "<|dummy_id_1|>", "<|end|>"};
    enum tlm_status s = TLM_OK;
    for (uint32_t i = 0; i < 11 && s == TLM_OK; i++)
        s = put_special(t, id + i, names[i], e);
    if (s == TLM_OK)
        s = put_numbered(t, id + 11, "dummy_id", 3, 9, e);
    if (s == TLM_OK)
        s = put_special(t, id + 20, "<|endofprompt|>", e);
    t->bos = t->eos = (int32_t)id + 1;
    return s == TLM_OK ? put_numbered(t, id + 21, "dummy_id", 12, 75, e) : s;
}

enum tlm_status tokenizer_read_tiktoken(struct tlm_tokenizer *t, const char *path, const char *class, uint32_t *limit,
                                        struct tlm_error *e)
{
    const struct family *f = NULL;
    char *text = NULL;
    size_t n;
    for (size_t i = 0; i < sizeof families / sizeof *families && class; i++)
        if (!strcmp(families[i].class, class))
            f = &families[i];
    *limit = 0;
    if (!f)
        return err_set(e, TLM_EUNSUPPORTED,
                       "tokenizer_config.json: tokenizer_class: found \"%s\", which does not say how a tiktoken "
                       "vocabulary splits text",
                       class ? class : "");
    enum tlm_status s = set_parts(t, f, e);
    if (s == TLM_OK)
        s = file_read(path, MAX_FILE, &text, &n, e);
    if (s == TLM_OK)
        s = read_lines(t, text, n, e);
    mem_free(text);
    if (s == TLM_OK)
        s = set_order(t, e);
    uint32_t base = t->vocab.n;
    if (s == TLM_OK && f->special == SPECIAL_QWEN)
        s = put_qwen(t, base, e);
    else if (s == TLM_OK && f->special == SPECIAL_PHI)
        s = put_phi(t, base, e);
    *limit = f->special == SPECIAL_KIMI ? base + 258 : base;
    return s;
}
