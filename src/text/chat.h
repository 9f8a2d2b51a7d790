/* Chat templates inside the library: what the tokenizer layer and the server
 * need beyond turbolm/chat.h. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include <turbolm/chat.h>

#include "io/gguf.h"
#include "text/jinja.h"

struct chat_named {
    char *name, *source;
    struct jinja_template *tpl;
};

struct chat_token {
    char *name, *text; /* "bos_token", "<s>" */
};

struct tlm_chat_template {
    struct chat_named *named;
    size_t n_named;
    struct chat_token *tokens;
    size_t n_tokens;
};

/* chat_load.c */
bool chat_add_template(struct tlm_chat_template *t, const char *name, const char *source, size_t len,
                       struct tlm_error *e);
bool chat_add_token(struct tlm_chat_template *t, const char *name, const char *text, size_t len, struct tlm_error *e);
enum tlm_status chat_load_dir(struct tlm_chat_template *t, const char *path, struct tlm_error *e);
enum tlm_status chat_load_gguf(struct tlm_chat_template *t, const struct gguf *g, struct tlm_error *e);

/* The template of a file that is open already; NULL when it has none. */
enum tlm_status chat_template_from_gguf(const struct gguf *g, struct tlm_chat_template **out, struct tlm_error *e);

#endif
