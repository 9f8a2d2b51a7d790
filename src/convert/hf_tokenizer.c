/* The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json, so
 * that the tokenizers library and our reader give the ids that the file gives.
 *
 * Byte-level BPE: the steps of the file's splitting (text/tokenizer_pre.def) and
 * its merges. SentencePiece BPE by score: a merge for each way to cut a piece
 * into two pieces, in the order of the scores. Added tokens stand in the model's
 * vocabulary too, which is what gives them their ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "convert/mlx_dir.h"
#include "text/tokenizer_gguf.h"
#include "text/utf8.h"

#define MARK "\xe2\x96\x81" /* U+2581 */
#define TEMPLATE_KEY "tokenizer.chat_template"

enum { FILE_MAX = 1 << 29 };

struct writer {
    struct buf *b;
    const struct gguf *g;
    const struct tlm_tokenizer *t;
    struct tok_source p;
    const struct pre_row *pre; /* of byte-level ones */
};

/* A JSON string; text is valid UTF-8. */
static void add_string(struct buf *b, const char *s, size_t n)
{
    buf_add_char(b, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            buf_printf(b, "\\u%04x", c);
        else
            buf_add_char(b, (char)c);
    }
    buf_add_char(b, '"');
}

static void add_text(struct buf *b, const char *s)
{
    add_string(b, s, strlen(s));
}

static const char *text_of(const struct writer *w, uint32_t id, size_t *n)
{
    *n = w->t->vocab.piece[id].len;
    return vocab_text(&w->t->vocab, id);
}

/* Whether the token stands in the file that is written. */
static bool is_written(const struct writer *w, uint32_t id)
{
    uint8_t flags = w->t->vocab.flags[id];
    size_t n;
    const char *s = text_of(w, id, &n);
    if (!n || !(flags & (TOK_MODEL | TOK_ADDED)) || (flags & TOK_SILENT) || !utf8_valid(s, n))
        return false;
    int32_t found = vocab_find(&w->t->vocab, s, n); /* of equal texts one counts */
    return found < 0 || (uint32_t)found == id;
}

/* Parts around the model ------------------------------------------------------ */

static void add_added(const struct writer *w)
{
    const struct tok_added_list *a = &w->t->added;
    bool first = true;
    buf_add_str(w->b, "\"added_tokens\":[");
    for (uint32_t i = 0; i < a->n; i++) {
        size_t n;
        const char *s = text_of(w, a->list[i].id, &n);
        if (!is_written(w, a->list[i].id))
            continue;
        buf_printf(w->b, "%s\n{\"id\":%u,\"content\":", first ? "" : ",", a->list[i].id);
        add_string(w->b, s, n);
        buf_printf(w->b, ",\"single_word\":false,\"lstrip\":%s,\"rstrip\":%s,\"normalized\":false,\"special\":%s}",
                   a->list[i].lstrip ? "true" : "false", a->list[i].rstrip ? "true" : "false",
                   a->list[i].special ? "true" : "false");
        first = false;
    }
    buf_add_str(w->b, "],\n");
}

static void add_normalizer(const struct writer *w)
{
    buf_add_str(w->b, "\"normalizer\":");
    if (w->p.kind == SOURCE_LEVEL) {
        bool nfc = w->pre->flags & PRE_NFC, nfkc = w->pre->flags & PRE_NFKC;
        buf_add_str(w->b, nfc ? "{\"type\":\"NFC\"},\n" : nfkc ? "{\"type\":\"NFKC\"},\n" : "null,\n");
        return;
    }
    buf_add_str(w->b, "{\"type\":\"Sequence\",\"normalizers\":[");
    if (w->p.merge_spaces)
        buf_add_str(w->b, "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},{\"type\":\"Replace\","
                          "\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},");
    if (w->p.space_prefix)
        buf_add_str(w->b, "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},");
    buf_add_str(w->b, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]},\n");
}

/* Oniguruma names scripts as it names other properties. */
static void add_regex(struct buf *b, const char *regex)
{
    struct buf own;
    buf_init(&own, 1 << 20);
    for (const char *p = regex; *p; p++) {
        buf_add_char(&own, *p);
        if (!strncmp(p, "\\p{sc:", 6)) {
            buf_add_str(&own, "p{");
            p += 5;
        }
    }
    buf_add_str(b, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    add_text(b, buf_str(&own));
    buf_add_str(b, "},\"behavior\":\"Isolated\",\"invert\":false}");
    buf_deinit(&own);
}

static void add_level(struct buf *b)
{
    buf_add_str(b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}");
}

static void add_step(struct buf *b, const char *step)
{
    if (!strcmp(step, "@Punctuation"))
        buf_add_str(b, "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}");
    else if (!strcmp(step, "@DigitRuns"))
        buf_add_str(b, "{\"type\":\"Digits\",\"individual_digits\":false}");
    else if (!strcmp(step, "@ByteLevel"))
        add_level(b);
    else if (!strcmp(step, "@Thousands"))
        add_regex(b, "\\d{1,3}(?=(?:\\d{3})*\\b)");
    else if (!strcmp(step, "@Threes"))
        add_regex(b, "(?=(\\d{3})+(?!\\d))");
    else
        add_regex(b, step);
}

static void add_pretokenizer(const struct writer *w)
{
    bool level = false;
    buf_add_str(w->b, "\"pre_tokenizer\":");
    if (w->p.kind != SOURCE_LEVEL) {
        buf_add_str(w->b, "null,\n");
        return;
    }
    buf_add_str(w->b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < PRE_STEPS && w->pre->step[i]; i++) {
        level = level || !strcmp(w->pre->step[i], "@ByteLevel");
        add_step(w->b, w->pre->step[i]);
        buf_add_str(w->b, i + 1 < PRE_STEPS && w->pre->step[i + 1] ? "," : "");
    }
    if (!level) {
        buf_add_str(w->b, ",");
        add_level(w->b);
    }
    buf_add_str(w->b, "]},\n");
}

static void add_special_item(const struct writer *w, int32_t id)
{
    size_t n;
    const char *s = text_of(w, (uint32_t)id, &n);
    buf_add_str(w->b, "{\"SpecialToken\":{\"id\":");
    add_string(w->b, s, n);
    buf_add_str(w->b, ",\"type_id\":0}}");
}

static void add_special_entry(const struct writer *w, int32_t id)
{
    size_t n;
    const char *s = text_of(w, (uint32_t)id, &n);
    add_string(w->b, s, n);
    buf_add_str(w->b, ":{\"id\":");
    add_string(w->b, s, n);
    buf_printf(w->b, ",\"ids\":[%d],\"tokens\":[", id);
    add_string(w->b, s, n);
    buf_add_str(w->b, "]}");
}

static void add_processor(const struct writer *w)
{
    const struct tok_template *p = &w->t->post;
    buf_add_str(w->b, "\"post_processor\":");
    if (!p->n_before && !p->n_after) {
        buf_add_str(w->b, "null,\n");
        return;
    }
    buf_add_str(w->b, "{\"type\":\"TemplateProcessing\"");
    for (int pair = 0; pair < 2; pair++) {
        buf_add_str(w->b, pair ? ",\"pair\":[" : ",\"single\":[");
        for (int part = 0; part <= pair; part++) {
            if (part)
                buf_add_char(w->b, ',');
            for (uint32_t i = 0; i < p->n_before; i++) {
                add_special_item(w, p->before[i]);
                buf_add_char(w->b, ',');
            }
            buf_printf(w->b, "{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}}", 'A' + part, part);
            for (uint32_t i = 0; i < p->n_after; i++) {
                buf_add_char(w->b, ',');
                add_special_item(w, p->after[i]);
            }
        }
        buf_add_char(w->b, ']');
    }
    buf_add_str(w->b, ",\"special_tokens\":{");
    for (uint32_t i = 0; i < p->n_before; i++)
        add_special_entry(w, p->before[i]);
    for (uint32_t i = 0; i < p->n_after; i++) {
        if (p->n_before)
            buf_add_char(w->b, ',');
        add_special_entry(w, p->after[i]);
    }
    buf_add_str(w->b, "}},\n");
}

static void add_decoder(const struct writer *w)
{
    buf_add_str(w->b, "\"decoder\":");
    if (w->p.kind == SOURCE_LEVEL) {
        buf_add_str(w->b,
                    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n");
        return;
    }
    buf_add_str(w->b, "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK
                      "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (w->p.space_prefix)
        buf_add_str(w->b, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    buf_add_str(w->b, "]},\n");
}

/* The model ------------------------------------------------------------------- */

static void add_vocab(const struct writer *w)
{
    bool first = true;
    buf_add_str(w->b, "\"vocab\":{");
    for (uint32_t id = 0; id < w->t->vocab.n; id++) {
        size_t n;
        const char *s = text_of(w, id, &n);
        if (!is_written(w, id))
            continue;
        buf_add_str(w->b, first ? "\n" : ",\n");
        add_string(w->b, s, n);
        buf_printf(w->b, ":%u", id);
        first = false;
    }
    buf_add_str(w->b, "},\n\"merges\":[");
}

static void add_merge(struct buf *b, bool first, const char *left, size_t n, const char *right, size_t m)
{
    buf_add_str(b, first ? "\n[" : ",\n[");
    add_string(b, left, n);
    buf_add_char(b, ',');
    add_string(b, right, m);
    buf_add_char(b, ']');
}

static enum tlm_status add_file_merges(const struct writer *w, struct tlm_error *e)
{
    const struct gguf_array *merges = NULL;
    enum tlm_status s = gguf_get_array(w->g, "tokenizer.ggml.merges", GGUF_STR, &merges, e);
    bool first = true;
    for (uint64_t i = 0; s == TLM_OK && merges && i < merges->n; i++) {
        struct gguf_str m = merges->strings[i]; /* its form was checked when the tokenizer was read */
        const char *space = memchr(m.data + 1, ' ', m.len - 1);
        size_t n = (size_t)(space - m.data);
        if (!utf8_valid(m.data, m.len))
            continue;
        add_merge(w->b, first, m.data, n, space + 1, m.len - n - 1);
        first = false;
    }
    return s;
}

struct merge {
    uint32_t order, id, left_len; /* left_len: bytes */
};

/* Best score first, of equal ones the lower id, then the longer left part. */
static int merge_compare(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->left_len > y->left_len ? -1 : x->left_len < y->left_len;
}

static enum tlm_status collect(const struct writer *w, struct merge **list, size_t *n, struct tlm_error *e)
{
    const struct tok_vocab *v = &w->t->vocab;
    size_t room = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        size_t len;
        const char *s = text_of(w, id, &len);
        if (w->t->model.order[id] == UINT32_MAX || !is_written(w, id))
            continue;
        for (size_t cut = 1; cut < len; cut++) {
            if (((unsigned char)s[cut] & 0xC0) == 0x80 || vocab_find(v, s, cut) < 0 ||
                vocab_find(v, s + cut, len - cut) < 0)
                continue;
            if (*n == room) {
                room = room ? room * 2 : 1 << 16;
                struct merge *more = mem_realloc_array(*list, room, sizeof *more);
                if (!more)
                    return err_nomem(e, room * sizeof *more);
                *list = more;
            }
            (*list)[(*n)++] = (struct merge){w->t->model.order[id], id, (uint32_t)cut};
        }
    }
    return TLM_OK;
}

static enum tlm_status add_score_merges(const struct writer *w, struct tlm_error *e)
{
    struct merge *list = NULL;
    size_t n = 0;
    enum tlm_status s = collect(w, &list, &n, e);
    if (s == TLM_OK && n)
        qsort(list, n, sizeof *list, merge_compare);
    for (size_t i = 0; s == TLM_OK && i < n; i++) {
        size_t len;
        const char *text = text_of(w, list[i].id, &len);
        add_merge(w->b, i == 0, text, list[i].left_len, text + list[i].left_len, len - list[i].left_len);
    }
    mem_free(list);
    return s;
}

static enum tlm_status add_model(const struct writer *w, struct tlm_error *e)
{
    bool marks = w->p.kind != SOURCE_LEVEL;
    buf_add_str(w->b, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (marks && w->t->unk >= 0) {
        size_t n;
        const char *s = text_of(w, (uint32_t)w->t->unk, &n);
        add_string(w->b, s, n);
    } else {
        buf_add_str(w->b, "null");
    }
    buf_printf(w->b,
               ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,\"byte_fallback\":%s,"
               "\"ignore_merges\":%s,",
               marks ? "true" : "false", marks ? "true" : "false", w->t->model.ignore_merges ? "true" : "false");
    add_vocab(w);
    enum tlm_status s = w->p.kind == SOURCE_SPM ? add_score_merges(w, e) : add_file_merges(w, e);
    buf_add_str(w->b, "]}}\n");
    return s;
}

/* Files ----------------------------------------------------------------------- */

static enum tlm_status find_row(struct writer *w, struct tlm_error *e)
{
    struct gguf_str name = {"default", 7};
    enum tlm_status s = gguf_string(w->g, "tokenizer.ggml.pre", &name, e);
    for (size_t i = 0; s == TLM_OK && (w->pre = tok_pre_row(i)) != NULL; i++)
        if (gguf_str_is(name, w->pre->name))
            break;
    return s;
}

static enum tlm_status write_json(struct writer *w, const struct work_dir *d, struct tlm_error *e)
{
    if (w->p.kind != SOURCE_LEVEL && w->p.kind != SOURCE_SPM && w->p.kind != SOURCE_MARKS)
        return err_set(e, TLM_EUNSUPPORTED, "%s: tokenizer.ggml.model: this kind is not written as tokenizer.json",
                       w->g->path);
    buf_add_str(w->b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    add_added(w);
    add_normalizer(w);
    add_pretokenizer(w);
    add_processor(w);
    add_decoder(w);
    enum tlm_status s = add_model(w, e);
    if (s == TLM_OK)
        s = buf_check(w->b, e, "tokenizer.json");
    return s == TLM_OK ? work_dir_write(d, "tokenizer.json", buf_str(w->b), w->b->len, e) : s;
}

static enum tlm_status write_config(struct writer *w, const struct work_dir *d, struct tlm_error *e)
{
    const struct {
        const char *key;
        int32_t id;
    } tokens[] = {{"bos_token", w->t->bos},
                  {"eos_token", w->t->eos},
                  {"pad_token", w->t->pad},
                  {"unk_token", w->p.kind == SOURCE_LEVEL ? -1 : w->t->unk}};
    buf_clear(w->b);
    buf_add_str(w->b, "{\n");
    for (size_t i = 0; i < 4; i++)
        if (tokens[i].id >= 0) {
            size_t n;
            const char *s = text_of(w, (uint32_t)tokens[i].id, &n);
            buf_printf(w->b, "  \"%s\": ", tokens[i].key);
            add_string(w->b, s, n);
            buf_add_str(w->b, ",\n");
        }
    buf_printf(w->b,
               "  \"add_bos_token\": %s,\n  \"add_eos_token\": %s,\n  \"clean_up_tokenization_spaces\": false,\n"
               "  \"model_max_length\": 1000000000000000019884624838656,\n"
               "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
               w->t->post.n_before ? "true" : "false", w->t->post.n_after ? "true" : "false");
    enum tlm_status s = buf_check(w->b, e, "tokenizer_config.json");
    return s == TLM_OK ? work_dir_write(d, "tokenizer_config.json", buf_str(w->b), w->b->len, e) : s;
}

/* The template, and those with a name of their own. */
static enum tlm_status write_templates(const struct gguf *g, const struct work_dir *d, struct tlm_error *e)
{
    static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t n = strlen(TEMPLATE_KEY);
    enum tlm_status s = TLM_OK;
    for (uint64_t i = 0; i < g->n_kv && s == TLM_OK; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        char file[160];
        if (kv->type != GGUF_STR || strncmp(kv->key, TEMPLATE_KEY, n) != 0)
            continue;
        const char *name = kv->key[n] == '.' ? kv->key + n + 1 : NULL;
        if (name && (!*name || strlen(name) > 64 || strspn(name, name_chars) != strlen(name)))
            return err_set(e, TLM_EFORMAT, "%s: %s: not a name for a file", g->path, kv->key);
        if (!name && kv->key[n])
            continue;
        snprintf(file, sizeof file, name ? "additional_chat_templates/%s.jinja" : "chat_template.jinja%s",
                 name ? name : "");
        s = work_dir_write(d, file, kv->v.str.data, kv->v.str.len, e);
    }
    return s;
}

enum tlm_status mlx_write_gguf_tokenizer(const struct gguf *g, const struct work_dir *d, struct tlm_error *e)
{
    struct tlm_tokenizer *t = NULL, *scratch = NULL;
    struct buf b;
    struct writer w = {.b = &b, .g = g, .p = {.g = g}};
    if (!gguf_find(g, "tokenizer.ggml.model")) {
        log_warn("%s: has no tokenizer, so the directory has none", g->path);
        return TLM_OK;
    }
    buf_init(&b, FILE_MAX);
    enum tlm_status s = tokenizer_from_gguf(g, &t, e);
    w.t = t;
    if (s == TLM_OK)
        s = (scratch = tokenizer_alloc(e)) ? gguf_setup(scratch, &w.p, e) : TLM_ENOMEM;
    if (s == TLM_OK)
        s = find_row(&w, e);
    if (s == TLM_OK)
        s = write_json(&w, d, e);
    if (s == TLM_OK)
        s = write_config(&w, d, e);
    if (s == TLM_OK)
        s = write_templates(g, d, e);
    buf_deinit(&b);
    tlm_tokenizer_free(scratch);
    tlm_tokenizer_free(t);
    return s;
}
