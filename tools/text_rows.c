/* Rows of token ids from a text. */
#include "text_rows.h"

#include <string.h>
#include <unistd.h>

#include "out.h"
#include "run.h"

int text_rows_open(struct text_rows *t)
{
    if (t->inner != NULL)
        return 0;
    if (strcmp(t->path, "-") != 0 && access(t->path, F_OK) != 0) {
        out_error("%s: no such file; data sets of a hub are not supported yet", t->path);
        return 1;
    }
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
    t->text = NULL;
}

static int cut(const struct tlm_model *m, const struct text_rows *t, const int32_t *ids, size_t n, int32_t **rows,
               size_t *n_rows)
{
    struct tlm_tokenizer_info info;
    tlm_tokenizer_info_get(tlm_model_tokenizer(m), &info);
    int bos = t->bos < 0 ? info.adds_bos && info.bos >= 0 : t->bos;
    size_t step = t->length - (size_t)bos, whole = n / step;
    if (bos && info.bos < 0) {
        out_error("--bos: the tokenizer has no beginning-of-text token");
        return 2;
    }
    if (whole == 0) {
        out_error("%s has %zu tokens, but a row takes %zu", t->path, n, step);
        return 1;
    }
    *n_rows = whole < t->most ? whole : t->most;
    *rows = tool_alloc(*n_rows * t->length, sizeof **rows);
    for (size_t i = 0; i < *n_rows; i++) {
        (*rows)[i * t->length] = info.bos;
        memcpy(*rows + i * t->length + bos, ids + i * step, step * sizeof *ids);
    }
    return 0;
}

int text_rows_read(const struct tlm_model *m, const struct text_rows *t, int32_t **rows, size_t *n_rows)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    const char *text = t->inner != NULL ? t->inner : t->text;
    size_t len = t->inner != NULL ? strlen(t->inner) : t->len, n;
    int32_t *ids;
    tlm_model_info_get(m, &info);
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    if (tlm_tokenizer_encode(tlm_model_tokenizer(m), text, len, 0, &ids, &n, &e) != TLM_OK)
        return out_tlm_error(&e);
    int status = cut(m, t, ids, n, rows, n_rows);
    tlm_free(ids);
    if (status == 0) {
        status = run_check_ids(m, *rows, *n_rows * t->length);
        if (status != 0)
            tool_free(*rows);
    }
    if (status == 0 && info.context_length > 0 && t->length > (size_t)info.context_length)
        out_warning("rows have %zu tokens, the model's context %lld", t->length, (long long)info.context_length);
    return status;
}
