/* From the words of a user to the ids that a model is given. */
#ifndef TOOLS_PROMPT_H
#define TOOLS_PROMPT_H

#include <turbolm/turbolm.h>

struct prompt {
    const char *text;    /* the user's message */
    const char *system;  /* or NULL */
    const char *prefill; /* start of the answer, or NULL */
    const char *kwargs;  /* JSON object for the template, or NULL */
    int ignore_template;
    int require_template; /* an error when there is none */
    int is_whole;         /* of a prompt that is only computed: the message is not ended, no answer is begun */
    int is_suffix;        /* only what comes after the message's beginning: that is in a cache */
};

/* A copy in which "\n" and "\t", written with a backslash, are the characters;
 * free with tool_free. */
char *prompt_expand(const char *text);

/* Variables for the model's template as the text of a JSON object: the user's,
 * with enable_thinking where they do not say it. user may be NULL; free with
 * tool_free. */
char *prompt_kwargs(const struct tlm_model *m, const char *user);

/* r with the model's template; *text: free with tlm_free. Returns 0, or 1 after a message that names the template. */
int prompt_render(const struct tlm_model *m, const struct tlm_chat_request *r, char **text, size_t *len);

/* Renders p with the model's template, or takes its text alone where there is
 * none. *ids: free with tlm_free. Returns 0, or the exit status after a
 * message; warns of parts that only a template could use. */
int prompt_encode(const struct tlm_model *m, const struct prompt *p, int32_t **ids, size_t *n);

/* Opens a prompt cache file for p: *model is its model when it is NULL, and p's
 * text goes on with the file's (*text, from tool_alloc, is replaced) or becomes
 * a suffix. Returns 0, or the exit status after a message. */
int prompt_cache_use(const char *path, struct tlm_prompt_cache **out, const char **model, struct prompt *p,
                     char **text);
/* The end token that the file's maker asked for, or -1. cache may be NULL. */
int prompt_cache_eos(const struct tlm_model *m, const struct tlm_prompt_cache *cache, int32_t *id);

#endif
