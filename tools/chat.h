/* The parts of the chat command: the conversation, its token ids, one answer,
 * the screen, and the reading of messages. */
#ifndef TOOLS_CHAT_H
#define TOOLS_CHAT_H

#include <stddef.h>
#include <stdint.h>

#include <turbolm/turbolm.h>

#include "out.h"

/* The conversation (chat_messages.c): a system message or none, then what user
 * and assistant said. ------------------------------------------------------- */

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_message {
    enum chat_role role;
    char *content;
    char *reasoning; /* or NULL */
};

struct chat_messages {
    struct chat_message *list;
    size_t n, room;
};

/* The texts become the conversation's; both were made with tool_alloc. */
void messages_add(struct chat_messages *c, enum chat_role role, char *content, char *reasoning);
void messages_drop_last(struct chat_messages *c);
/* All but the system message. */
void messages_clear(struct chat_messages *c);
void messages_free(struct chat_messages *c);
const char *messages_system(const struct chat_messages *c); /* or NULL */
void messages_set_system(struct chat_messages *c, const char *text);
/* Is the last message of this role? */
int messages_end_with(const struct chat_messages *c, enum chat_role role);
/* A JSON array, free with cJSON_free. indent: for people to read. */
char *messages_text(const struct chat_messages *c, int indent);
/* 1, or 0 after a message. load: the file's conversation takes the place of
 * this one, which stays as it was when the file is bad. */
int messages_save(const struct chat_messages *c, const char *path);
int messages_load(struct chat_messages *c, const char *path);

/* Token ids (chat_ids.c) ---------------------------------------------------- */

/* The ids that the model was given and gave in the last answer. */
struct chat_ids {
    int32_t *ids;
    size_t n, room;
};

void chat_ids_clear(struct chat_ids *k);
void chat_ids_add(struct chat_ids *k, const int32_t *ids, size_t n);
/* Ids of a rendered conversation, which begin as k where the texts do; free
 * with tool_free. 0, or the exit status after a message. */
int chat_ids_encode(const struct chat_ids *k, const struct tlm_tokenizer *t, const char *text, size_t len,
                    int32_t **ids, size_t *n);

/* The screen (chat_screen.c) ------------------------------------------------ */

/* Finds out what standard output is. */
void screen_init(void);
int screen_is_terminal(void);
int screen_has_escapes(void); /* a terminal that understands them */
int screen_has_colours(void);
size_t screen_width(void);
/* The panel; system may be NULL. */
void screen_panel(const char *title, const char *model, int64_t max_tokens, const char *system);
void screen_rule(void);
/* Text that may hold anything. On a terminal control characters are shown
 * instead of obeyed: ^[ for an escape. */
void screen_text(const char *text, size_t n);
void screen_dim(int on);
/* A line of the program's own, dim and two columns in. */
void screen_note(const char *fmt, ...) TOOLS_PRINTF(1, 2);
/* For a signal handler: undoes colours. */
void screen_restore(void);

/* An answer (chat_answer.c): shows it as it comes, thoughts apart. ---------- */

struct chat_answer {
    char *content, *reasoning; /* reasoning: NULL when there is none */
};

struct chat_speaker {
    struct tlm_model *model;
    struct tlm_engine *engine;
    const char *kwargs; /* for the template */
    struct tlm_reasoning_tags tags;
    struct tlm_sampling sampling; /* seed: of the first answer */
    uint64_t answers;             /* begun so far */
    int64_t max_tokens, context;
    struct chat_ids ids;
};

/* The model's answer to the conversation, with statistics. Returns 1; 0 when
 * nothing was said for a reason that is printed. a: free both with tool_free. */
int chat_answer(struct chat_speaker *s, const struct chat_messages *c, struct chat_answer *a);

/* Reading (chat_input.c, chat_edit.c) --------------------------------------- */

enum chat_input { INPUT_TEXT, INPUT_BAD, INPUT_END, INPUT_FAILED, INPUT_INTERRUPT };

struct chat_text {
    char *text; /* free with tool_free */
    size_t len;
    int verbatim; /* not a command, whatever it looks like */
};

/* Standard input; with editing where it and the output are a terminal. */
void input_open(void);
void input_close(void);
int input_is_terminal(void);
/* A message, which may be of several lines. INPUT_BAD: refused, with a
 * message. INPUT_FAILED: standard input cannot be read, which was said. */
enum chat_input input_read(struct chat_text *out);

enum { INPUT_MAX = 1 << 24 }; /* bytes of a message */

struct chat_line {
    char *data;
    size_t n, room;
    int invalid; /* not UTF-8 */
};

/* One line without its end into *line. first: of a message. */
void edit_open(void);
void edit_close(void);
void edit_restore(void); /* the terminal as it was; for signal handlers too */
enum chat_input edit_line(struct chat_line *line, int first);
void line_add(struct chat_line *line, const char *bytes, size_t n);
/* Waits until standard input has something, and gives 1, or input_wake() was
 * called, which a signal handler may do. */
int input_wait(void);
void input_wake(void);

#endif
