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
TLM_API void tlm_chat_template_free(struct tlm_chat_template *t);
/* The template's source (the default one of several). */
TLM_API const char *tlm_chat_template_source(const struct tlm_chat_template *t);

/* *text: len bytes and a NUL; free with tlm_free. A template that raises gives
 * its own message with TLM_EINVAL. */
TLM_API enum tlm_status tlm_chat_template_render(const struct tlm_chat_template *t, const struct tlm_chat_request *r,
                                                 char **text, size_t *len, struct tlm_error *e);

#ifdef __cplusplus
}
#endif
#endif
