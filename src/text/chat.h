/* Chat templates inside the library: what the tokenizer layer and the server
 * need beyond turbolm/chat.h. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include <turbolm/chat.h>

#include "io/gguf.h"
#include "text/jinja.h"

struct chat_named {
    char *name, *source;
    char *origin; /* "DIR/chat_template.jinja", "FILE.gguf: tokenizer.chat_template"; NULL: given as text */
    struct jinja_template *tpl;
};

struct chat_token {
    char *name, *text; /* "bos_token", "<s>" */
};

enum chat_builtin { CHAT_JINJA, CHAT_DEEPSEEK_V32 };

struct tlm_chat_template {
    enum chat_builtin builtin; /* chat_template_type of tokenizer_config.json */
    bool no_templates;         /* loading looks for tokens only */
    struct chat_named *named;
    size_t n_named;
    struct chat_token *tokens;
    size_t n_tokens;
};

/* One rendering's inputs, normalised. */
struct chat_inputs {
    struct jv messages, tools, documents, kwargs; /* a list each, kwargs a dict, or None */
    bool generate;                                /* add_generation_prompt */
    const char *go_on;                            /* the message's field to continue, or NULL */
};

/* chat_messages.c */
bool chat_read_request(struct jinja_run *r, const struct tlm_chat_request *q, struct chat_inputs *in);
/* name: of the request, for messages. */
bool chat_read_json(struct jinja_run *r, const char *text, size_t n, const char *name, struct chat_inputs *in);
/* Marks the end of the final message's text; gives that text. */
struct jv chat_mark_final(struct jinja_run *r, const struct chat_inputs *in, const char *source);
bool chat_cut_at_tag(struct jinja_run *r, struct buf *out, struct jv final);

/* chat_deepseek.c */
bool chat_render_deepseek(struct jinja_run *r, const struct chat_inputs *in, struct buf *out);

void chat_drop_templates(struct tlm_chat_template *t);

/* chat_load.c */
/* A later template of the same name replaces an earlier one; of tokens the
 * first one counts. origin, of mem_alloc or NULL, becomes the template's. */
bool chat_add_template(struct tlm_chat_template *t, const char *name, const char *source, size_t len, char *origin,
                       struct tlm_error *e);
bool chat_add_token(struct tlm_chat_template *t, const char *name, const char *text, size_t len, struct tlm_error *e);
enum tlm_status chat_load_dir(struct tlm_chat_template *t, const char *path, struct tlm_error *e);
enum tlm_status chat_load_gguf(struct tlm_chat_template *t, const struct gguf *g, struct tlm_error *e);

/* The template of a file that is open already; NULL when it has none. */
enum tlm_status chat_template_from_gguf(const struct gguf *g, struct tlm_chat_template **out, struct tlm_error *e);

#endif
