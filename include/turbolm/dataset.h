/* Data sets: documents to measure and train on, in the forms that mlx-lm takes.
 *
 * Each row is a JSON object: {"prompt", "completion"}, {"messages"}, the two
 * optionally with "tools", or {"text"}; the first row says which of them all
 * are. */
#ifndef TURBOLM_DATASET_H
#define TURBOLM_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "chat.h"
#include "status.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tlm_dataset;

/* path: a .jsonl file; a folder of such files, of which those with the split as
 * a word of their name count, in the order of names, or all where none has the
 * name of a split; else the name of a data set on a hub, "org/name" or
 * "org/name:configuration", whose rows are fetched as they are asked for and
 * kept nowhere. Environment: see hub.h; TURBOLM_DATASETS_SERVER is the address
 * of the rows server in place of HF_ENDPOINT's. TLM_ENOTFOUND: no such data
 * set, or offline. */
TLM_API enum tlm_status tlm_dataset_open(const char *path, const char *split, struct tlm_dataset **out,
                                         struct tlm_error *e);
TLM_API void tlm_dataset_close(struct tlm_dataset *d);

struct tlm_dataset_info {
    const char *format; /* "text", "chat", "completions" */
    size_t rows;        /* at least 1 */
    int remote;         /* its rows are fetched */
};
TLM_API void tlm_dataset_info_get(const struct tlm_dataset *d, struct tlm_dataset_info *out);

/* Ids of row i as mlx-lm makes them: of a text with special tokens, and the end
 * token where it is not the last; of messages what the template renders,
 * encoded without. chat and kwargs (variables for it, a JSON object) may
 * be NULL; messages need a template. *ids: n ids, free with tlm_free. Rows that
 * are asked for in their order are fetched many at a time, others alone. One
 * thread at a time. */
TLM_API enum tlm_status tlm_dataset_encode(struct tlm_dataset *d, size_t i, const struct tlm_tokenizer *t,
                                           const struct tlm_chat_template *chat, const char *kwargs, int32_t **ids,
                                           size_t *n, struct tlm_error *e);

/* order: a permutation of 0 .. n - 1, which numpy gives after np.random.seed(seed)
 * by np.random.permutation(n). */
TLM_API void tlm_dataset_order(uint32_t seed, size_t n, size_t *order);

#ifdef __cplusplus
}
#endif
#endif
