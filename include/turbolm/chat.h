/* Chat templates: messages to the text that a model was trained on. */
#ifndef TURBOLM_CHAT_H
#define TURBOLM_CHAT_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tlm_chat_template;
struct tlm_tokenizer;

struct tlm_chat_request {
    const char *messages;  /* JSON array of {"role", "content", …}; required */
    const char *tools;     /* JSON array or NULL */
    const char *documents; /* JSON array or NULL */
    const char *kwargs;    /* JSON object of further template variables, or NULL */
    int add_generation_prompt;
    int continue_final_message; /* ends inside the last message; not together with the former */
    int64_t now;                /* clock for strftime_now, seconds since 1970; -1: the system's */
};

/* The template of a model directory or GGUF file. *out is NULL with TLM_OK when
 * the model has none. */
TLM_API enum tlm_status tlm_chat_template_open(const char *path, struct tlm_chat_template **out, struct tlm_error *e);
/* From text; name is for messages. bos and eos may be NULL. */
TLM_API enum tlm_status tlm_chat_template_new(const char *source, const char *name, const char *bos, const char *eos,
                                              struct tlm_chat_template **out, struct tlm_error *e);
/* Both: the template source (NULL: the model's own) with the special tokens of
 * the model at path (NULL: none). bos and eos, where given, replace its own. */
TLM_API enum tlm_status tlm_chat_template_load(const char *path, const char *source, const char *name, const char *bos,
                                               const char *eos, struct tlm_chat_template **out, struct tlm_error *e);
TLM_API void tlm_chat_template_free(struct tlm_chat_template *t);
/* The template's source (the default one of several); "" for a renderer that
 * chat_template_type names. */
TLM_API const char *tlm_chat_template_source(const struct tlm_chat_template *t);
/* Where in the model's files that source stands, for messages: "model/chat_template.jinja",
 * "model.gguf: tokenizer.chat_template". NULL for one given as text and for such a renderer. */
TLM_API const char *tlm_chat_template_origin(const struct tlm_chat_template *t);

/* *text: len bytes and a NUL; free with tlm_free. A template that raises gives
 * its own message with TLM_EINVAL. */
TLM_API enum tlm_status tlm_chat_template_render(const struct tlm_chat_template *t, const struct tlm_chat_request *r,
                                                 char **text, size_t *len, struct tlm_error *e);
/* The same from one JSON object: messages, tools, documents,
 * add_generation_prompt (default true), continue_final_message (true, or the
 * field of the message to continue) and chat_template_kwargs. Numbers keep
 * their form. An unknown key is a warning. name: of the request's file, for messages, or
 * NULL. now: as in tlm_chat_request. */
TLM_API enum tlm_status tlm_chat_template_render_json(const struct tlm_chat_template *t, const char *request, size_t n,
                                                      const char *name, int64_t now, char **text, size_t *len,
                                                      struct tlm_error *e);

/* Telling the thoughts of an answer from what it says.
 *
 * The tags that stand around thoughts: <think> or <longcat_think> where the
 * vocabulary has both tags of the pair, else <|channel>thought … <channel|>.
 * The ids are those of the tokens that the tags begin with; where these are
 * special, text that was decoded without special tokens has no tags. */
struct tlm_reasoning_tags {
    const char *open, *close; /* static */
    int32_t open_id, close_id;
};
/* 0 when the vocabulary has no such pair, or t is NULL: open is NULL then. */
TLM_API int tlm_reasoning_tags_get(const struct tlm_tokenizer *t, struct tlm_reasoning_tags *out);

enum tlm_part { TLM_PART_CONTENT, TLM_PART_REASONING };

struct tlm_piece {
    enum tlm_part part;
    const char *text; /* len bytes, no NUL behind them */
    size_t len;       /* never 0 */
};

/* Splits a text that comes in pieces of any size; tags are dropped, nothing
 * else is. What may still become a tag is held back. Without tags (NULL, or an
 * open of NULL) all is content. */
struct tlm_reasoning;

/* prompt: what the model was given, n bytes, or NULL. When it ends with the
 * opening tag, spaces aside, the answer begins inside thoughts. */
TLM_API enum tlm_status tlm_reasoning_new(const struct tlm_reasoning_tags *tags, const char *prompt, size_t n,
                                          struct tlm_reasoning **out, struct tlm_error *e);
TLM_API void tlm_reasoning_free(struct tlm_reasoning *r);
/* Adds text; then take its pieces with tlm_reasoning_next until that gives 0. */
TLM_API enum tlm_status tlm_reasoning_push(struct tlm_reasoning *r, const char *text, size_t n, struct tlm_error *e);
/* No more text follows: what was held back is given by tlm_reasoning_next. */
TLM_API void tlm_reasoning_finish(struct tlm_reasoning *r);
/* Pointers are valid until the next push. */
TLM_API int tlm_reasoning_next(struct tlm_reasoning *r, struct tlm_piece *piece);

#ifdef __cplusplus
}
#endif
#endif
