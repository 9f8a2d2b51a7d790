/* Rows of token ids from a text or a data set. */
#include "text_rows.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "out.h"
#include "prompt.h"
#include "run.h"

static int is_data_set(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    if (strcmp(path, "-") == 0)
        return 0;
    return stat(path, &st) != 0 || S_ISDIR(st.st_mode) || (n > 6 && strcmp(path + n - 6, ".jsonl") == 0);
}

int text_rows_open(struct text_rows *t)
{
    struct tlm_error e = {TLM_OK, ""};
    if (t->inner != NULL)
        return 0;
    if (is_data_set(t->path)) {
        if (tlm_dataset_open(t->path, "train", &t->data, &e) == TLM_OK)
            return 0;
        (void)out_tlm_error(&e);
        return 1;
    }
    if (t->seed_given)
        out_warning("--seed has no effect on a text, which is read in its order");
    int status = run_read_text(t->path, &t->text, &t->len);
    if (status != 0)
        return status;
    size_t valid = tool_utf8_valid(t->text, t->len);
    if (valid == t->len)
        return 0;
    out_error("%s is not valid UTF-8 at byte %zu", t->path, valid);
    return 1;
}

void text_rows_close(struct text_rows *t)
{
    tool_free(t->text);
    tlm_dataset_close(t->data);
    t->text = NULL;
    t->data = NULL;
}

int text_rows_are_remote(const struct text_rows *t)
{
    struct tlm_dataset_info info = {0};
    if (t->data != NULL)
        tlm_dataset_info_get(t->data, &info);
    return info.remote;
}

/* The token before each row, or -1; -2 after a message. */
static int32_t first_token(const struct tlm_model *m, const struct text_rows *t)
{
    struct tlm_tokenizer_info info;
    tlm_tokenizer_info_get(tlm_model_tokenizer(m), &info);
    int bos = t->bos < 0 ? t->data == NULL && info.adds_bos && info.bos >= 0 : t->bos;
    if (!bos || info.bos >= 0)
        return bos ? info.bos : -1;
    out_error("--bos: the tokenizer has no beginning-of-text token");
    return -2;
}

/* Rows of the ids, to which a bos belongs in front; it also takes the place of
 * each later row's first id, as in llama-perplexity. */
static int cut(const struct text_rows *t, int32_t bos, const int32_t *ids, size_t n, int32_t **rows, size_t *n_rows)
{
    size_t has_bos = bos >= 0, whole = (n + has_bos) / t->length;
    if (whole == 0) {
        out_error("%s has %zu tokens, but a row takes %zu", t->path, n, t->length - has_bos);
        return 1;
    }
    *n_rows = whole < t->most ? whole : t->most;
    *rows = tool_alloc(*n_rows * t->length, sizeof **rows);
    memcpy(*rows + has_bos, ids, (*n_rows * t->length - has_bos) * sizeof *ids);
    for (size_t i = 0; has_bos && i < *n_rows; i++)
        (*rows)[i * t->length] = bos;
    return 0;
}

/* Ids that grow. */
struct ids {
    int32_t *data;
    size_t n, room;
};

static void add_ids(struct ids *out, const int32_t *ids, size_t n)
{
    if (out->room - out->n < n) {
        size_t room = 2 * out->room + n;
        out->data = tool_grow(out->data, room, sizeof *ids);
        out->room = room;
    }
    if (n > 0)
        memcpy(out->data + out->n, ids, n * sizeof *ids);
    out->n += n;
}

/* A document of a data set. */
struct document {
    size_t at, n; /* its ids among all */
};

static void show_progress(const struct text_rows *t, size_t documents, size_t tokens, int done)
{
    if (text_rows_are_remote(t) && isatty(2))
        fprintf(stderr, done ? "\r\033[K" : "\r%s: %zu documents, %zu tokens", done ? "" : t->path, documents, tokens);
}

static int encode_document(const struct tlm_model *m, const struct text_rows *t, const char *kwargs, size_t row,
                           struct ids *out)
{
    struct tlm_error e = {TLM_OK, ""};
    int32_t *ids;
    size_t n;
    if (tlm_dataset_encode(t->data, row, tlm_model_tokenizer(m), tlm_model_chat_template(m), kwargs, &ids, &n, &e) !=
        TLM_OK) {
        const char *why = tlm_model_chat_template_error(m);
        if (e.status == TLM_EUNSUPPORTED && tlm_model_chat_template(m) == NULL && why != NULL)
            out_error("%s", why);
        else
            (void)out_tlm_error(&e);
        return 1;
    }
    add_ids(out, ids, n);
    tlm_free(ids);
    return 0;
}

/* Every document is wanted: they are taken in their own order, in which they
 * come fastest, and put into the other one. */
static int join_all(const struct tlm_model *m, const struct text_rows *t, const char *kwargs, const size_t *order,
                    size_t n, struct ids *out)
{
    struct document *documents = tool_alloc(n, sizeof *documents);
    struct ids all = {NULL, 0, 0};
    int status = 0;
    for (size_t i = 0; i < n && status == 0; i++) {
        documents[i].at = all.n;
        status = encode_document(m, t, kwargs, i, &all);
        documents[i].n = all.n - documents[i].at;
        show_progress(t, i + 1, all.n, 0);
    }
    for (size_t i = 0; i < n && status == 0; i++)
        add_ids(out, all.data + documents[order[i]].at, documents[order[i]].n);
    tool_free(all.data);
    tool_free(documents);
    return status;
}

static int join(const struct tlm_model *m, const struct text_rows *t, int has_bos, struct ids *out)
{
    struct tlm_dataset_info info;
    tlm_dataset_info_get(t->data, &info);
    size_t *order = tool_alloc(info.rows, sizeof *order);
    char *kwargs = prompt_kwargs(m, NULL);
    int status = 0;
    tlm_dataset_order(t->seed, info.rows, order);
    if (t->most == SIZE_MAX)
        status = join_all(m, t, kwargs, order, info.rows, out);
    for (size_t i = 0; t->most != SIZE_MAX && i < info.rows && status == 0 && (out->n + has_bos) / t->length < t->most;
         i++) {
        status = encode_document(m, t, kwargs, order[i], out);
        show_progress(t, i + 1, out->n, 0);
    }
    show_progress(t, 0, 0, 1);
    tool_free(kwargs);
    tool_free(order);
    return status;
}

static int read_ids(const struct tlm_model *m, const struct text_rows *t, int has_bos, struct ids *out)
{
    struct tlm_error e = {TLM_OK, ""};
    const char *text = t->inner != NULL ? t->inner : t->text;
    size_t len = t->inner != NULL ? strlen(t->inner) : t->len, n;
    int32_t *ids;
    if (t->data != NULL)
        return join(m, t, has_bos, out);
    if (tlm_tokenizer_encode(tlm_model_tokenizer(m), text, len, 0, &ids, &n, &e) != TLM_OK)
        return out_tlm_error(&e);
    add_ids(out, ids, n);
    tlm_free(ids);
    return 0;
}

int text_rows_read(const struct tlm_model *m, const struct text_rows *t, int32_t **rows, size_t *n_rows)
{
    struct tlm_model_info info;
    struct ids ids = {NULL, 0, 0};
    tlm_model_info_get(m, &info);
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    int32_t bos = first_token(m, t);
    if (bos == -2)
        return 2;
    int status = read_ids(m, t, bos >= 0, &ids);
    if (status == 0)
        status = cut(t, bos, ids.data, ids.n, rows, n_rows);
    tool_free(ids.data);
    if (status == 0) {
        status = run_check_ids(m, *rows, *n_rows * t->length);
        if (status != 0)
            tool_free(*rows);
    }
    if (status == 0 && info.context_length > 0 && t->length > (size_t)info.context_length)
        out_warning("rows have %zu tokens, the model's context %lld", t->length, (long long)info.context_length);
    return status;
}
