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
};

/* A copy in which "\n" and "\t", written with a backslash, are the characters;
 * free with tool_free. */
char *prompt_expand(const char *text);

/* Variables for the model's template as the text of a JSON object: the user's,
 * with enable_thinking where they do not say it. user may be NULL; free with
 * tool_free. */
char *prompt_kwargs(const struct tlm_model *m, const char *user);

/* Renders p with the model's template, or takes its text alone where there is
 * none. *ids: free with tlm_free. Returns 0, or the exit status after a
 * message; warns of parts that only a template could use. */
int prompt_encode(const struct tlm_model *m, const struct prompt *p, int32_t **ids, size_t *n);

#endif
