/* turbolm chat: a conversation. Every turn submits all of it, and the engine
 * takes what it has in its cache already. */
#include "chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "prompt.h"
#include "run.h"

enum {
    MODEL,
    TRUST_REMOTE_CODE,
    ADAPTER_PATH,
    SAMPLING,
    SAMPLING_LAST = SAMPLING + RUN_SAMPLING_N - 1,
    SEED,
    MAX_KV_SIZE,
    MAX_TOKENS,
    SYSTEM_PROMPT,
    PIPELINE,
    CHAT_TEMPLATE_CONFIG,
    N_OPTIONS
};

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = RUN_MODEL_ROW,
    [TRUST_REMOTE_CODE] = RUN_TRUST_REMOTE_CODE_ROW,
    [ADAPTER_PATH] = RUN_ADAPTER_PATH_ROW,
    RUN_SAMPLING_ROWS(SAMPLING, CLI_EXTRA),
    [SEED] = {"--seed", NULL, CLI_NATURAL, 0, "0", NULL, NULL, NULL,
              "seed of the first answer's random numbers; each further one counts it up"},
    [MAX_KV_SIZE] = RUN_MAX_KV_SIZE_ROW(0),
    [MAX_TOKENS] = RUN_MAX_TOKENS_ROW("256"),
    [SYSTEM_PROMPT] = RUN_SYSTEM_PROMPT_ROW,
    [PIPELINE] = {"--pipeline", NULL, CLI_FLAG, CLI_LATER, NULL, NULL, NULL, NULL, "split the model by layers"},
    [CHAT_TEMPLATE_CONFIG] = RUN_CHAT_TEMPLATE_CONFIG_ROW(CLI_EXTRA),
};

struct chat {
    struct chat_messages messages;
    struct chat_speaker speaker;
};

enum next { GO_ON, LEAVE };

/* Turns --------------------------------------------------------------------- */

/* The answer to the conversation, which ends with the user's message. */
static int answer(struct chat *c)
{
    struct chat_answer a;
    forget_interrupt();
    int good = chat_answer(&c->speaker, &c->messages, &a);
    if (good)
        messages_add(&c->messages, CHAT_ASSISTANT, a.content, a.reasoning);
    out_print("\n");
    return good;
}

static void say(struct chat *c, char *text)
{
    messages_add(&c->messages, CHAT_USER, text, NULL);
    if (!answer(c))
        messages_drop_last(&c->messages);
}

static void retry(struct chat *c)
{
    struct chat_messages *m = &c->messages;
    struct chat_message old = {CHAT_SYSTEM, NULL, NULL};
    if (messages_end_with(m, CHAT_ASSISTANT))
        old = m->list[--m->n];
    if (!messages_end_with(m, CHAT_USER)) {
        if (old.content != NULL)
            m->n++;
        out_error("there is no message to answer again");
        return;
    }
    if (answer(c)) {
        tool_free(old.content);
        tool_free(old.reasoning);
    } else if (old.content != NULL) {
        messages_add(m, old.role, old.content, old.reasoning);
    }
}

static void undo(struct chat *c)
{
    struct chat_messages *m = &c->messages;
    size_t before = m->n;
    if (messages_end_with(m, CHAT_ASSISTANT))
        messages_drop_last(m);
    if (messages_end_with(m, CHAT_USER))
        messages_drop_last(m);
    if (m->n == before)
        out_error("there is nothing to undo");
    else
        screen_note("took back the last message and its answer");
}

/* Commands ------------------------------------------------------------------ */

static void print_help(void)
{
    static const char *const lines[] = {
        "q, /exit         leave; so does Ctrl-D",
        "r, /reset        forget the conversation, not the system message",
        "h, /help         this list",
        "/system [TEXT]   set the system message; - removes it; without TEXT show it",
        "/undo            take back the last message and its answer",
        "/retry           answer the last message again",
        "/save FILE       write the conversation as JSON",
        "/load FILE       go on with a conversation from a file",
        "\\TEXT            send TEXT as it is, be it a command",
        "TEXT\\            go on in the next line",
        "\"\"\"TEXT\"\"\"       send TEXT, which may have many lines, as it is",
        "Ctrl-C           stop the answer; at the prompt clear the line, twice leave",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        screen_note("%s", lines[i]);
}

static void reset(struct chat *c)
{
    messages_clear(&c->messages);
    screen_note("reset context cleared");
}

static void set_system(struct chat *c, const char *text)
{
    const char *now = messages_system(&c->messages);
    if (*text == '\0') {
        screen_note("%s", now != NULL ? "the system message is:" : "there is no system message");
        screen_text(now != NULL ? now : "", now != NULL ? strlen(now) : 0);
        out_print("%s", now != NULL ? "\n" : "");
        return;
    }
    int removed = strcmp(text, "-") == 0;
    messages_set_system(&c->messages, removed ? NULL : text);
    screen_note(removed ? "system message removed" : "system message set");
}

/* ~/ at the start of a path is the home directory. Free with tool_free. */
static char *expand_home(const char *path)
{
    const char *home = path[0] == '~' && path[1] == '/' ? getenv("HOME") : NULL;
    size_t room = strlen(path) + (home != NULL ? strlen(home) : 0) + 1;
    char *out = tool_alloc(room, 1);
    snprintf(out, room, "%s%s", home != NULL ? home : "", home != NULL ? path + 1 : path);
    return out;
}

static void save_or_load(struct chat *c, const char *name, const char *argument)
{
    int load = strcmp(name, "/load") == 0;
    if (*argument == '\0') {
        out_error("%s needs the name of a file", name);
        return;
    }
    char *path = expand_home(argument);
    int good = load ? messages_load(&c->messages, path) : messages_save(&c->messages, path);
    if (good)
        screen_note("%zu message%s %s %s", c->messages.n, c->messages.n == 1 ? "" : "s", load ? "from" : "written to",
                    path);
    tool_free(path);
}

static void set_or_refuse(const char *name, const char *argument, void (*f)(struct chat *), struct chat *c)
{
    if (*argument != '\0')
        out_error("%s takes nothing behind it", name);
    else
        f(c);
}

static void help_of(struct chat *c)
{
    (void)c;
    print_help();
}

/* text: "/name argument", which is cut up. */
static enum next command(struct chat *c, char *text)
{
    static const struct {
        const char *name;
        void (*f)(struct chat *);
    } plain[] = {{"/help", help_of}, {"/reset", reset}, {"/undo", undo}, {"/retry", retry}, {"/exit", NULL}};
    size_t n = strcspn(text, " \t\n");
    char *argument = text + n + strspn(text + n, " \t\n"), *end = argument + strlen(argument);
    while (end > argument && strchr(" \t\n", end[-1]) != NULL)
        *--end = '\0';
    text[n] = '\0';
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(text, plain[i].name) != 0)
            continue;
        if (plain[i].f == NULL && *argument == '\0')
            return LEAVE;
        set_or_refuse(text, argument, plain[i].f, c);
        return GO_ON;
    }
    if (strcmp(text, "/system") == 0)
        set_system(c, argument);
    else if (strcmp(text, "/save") == 0 || strcmp(text, "/load") == 0)
        save_or_load(c, text, argument);
    else
        out_error("%s is not a command: /help lists them, a backslash before it sends it as text", text);
    return GO_ON;
}

/* The loop ------------------------------------------------------------------ */

static int is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

/* Takes t's memory. */
static enum next take(struct chat *c, struct chat_text *t)
{
    enum next next = GO_ON;
    char *text = t->text;
    if (text[0] == '\0' || (!t->verbatim && is_blank(text))) {
        tool_free(text);
        return GO_ON;
    }
    if (t->verbatim || (text[0] != '/' && (text[1] != '\0' || strchr("qrh", text[0]) == NULL))) {
        say(c, text);
        return GO_ON;
    }
    if (text[0] == '/')
        next = command(c, text);
    else if (text[0] == 'q')
        next = LEAVE;
    else if (text[0] == 'r')
        reset(c);
    else
        print_help();
    tool_free(text);
    return next;
}

static int converse(struct chat *c)
{
    int interrupts = 0;
    while (!out_failed()) {
        struct chat_text t;
        out_flush();
        forget_interrupt();
        enum chat_input got = input_read(&t);
        if (got == INPUT_INTERRUPT && (++interrupts == 2 || !input_is_terminal()))
            return EXIT_INTERRUPTED;
        if (got == INPUT_INTERRUPT)
            screen_note("Ctrl-C again or Ctrl-D leaves");
        if (got == INPUT_FAILED)
            return 1;
        if (got == INPUT_END && !input_is_terminal())
            return 0;
        if (got == INPUT_END || (got == INPUT_TEXT && take(c, &t) == LEAVE)) {
            out_print("bye\n");
            return 0;
        }
        if (got != INPUT_INTERRUPT)
            interrupts = 0;
        if (got == INPUT_TEXT && interrupted() && !input_is_terminal())
            return EXIT_INTERRUPTED; /* what feeds the chat was stopped too */
    }
    return 1;
}

static int start(struct tlm_model *m, const char *prog, const struct cli_value *v)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_info info;
    struct tlm_engine_options engine_options = {0};
    struct chat c = {0};
    struct chat_speaker *s = &c.speaker;
    tlm_model_info_get(m, &info);
    if (tlm_model_tokenizer(m) == NULL) {
        out_error("%s has no tokenizer", info.path);
        return 1;
    }
    if (tlm_model_chat_template_error(m) != NULL) {
        out_error("%s", tlm_model_chat_template_error(m));
        return 1;
    }
    if (tlm_model_chat_template(m) == NULL) {
        out_error("%s has no chat template: give the directory one (chat_template.jinja), or use a model that was "
                  "made for conversations, or turbolm generate, which continues plain text",
                  info.path);
        return 2;
    }
    engine_options.prefill_step_size = (int)v[N_OPTIONS + RUN_PREFILL_STEP_SIZE].integer;
    run_sampling(v + SAMPLING, &s->sampling);
    s->sampling.has_seed = 1;
    s->sampling.seed = v[SEED].natural;
    if (tlm_sampling_check(&s->sampling, (size_t)info.vocab_size, &e) != TLM_OK ||
        tlm_engine_new(m, &engine_options, &s->engine, &e) != TLM_OK)
        return out_tlm_error(&e);
    char *kwargs = prompt_kwargs(m, v[CHAT_TEMPLATE_CONFIG].text);
    s->model = m;
    s->kwargs = kwargs;
    s->max_tokens = v[MAX_TOKENS].integer;
    s->context = info.context_length;
    tlm_reasoning_tags_get(tlm_model_tokenizer(m), &s->tags);
    messages_set_system(&c.messages, v[SYSTEM_PROMPT].text);
    screen_init();
    input_open();
    screen_panel(prog, v[MODEL].text, s->max_tokens, v[SYSTEM_PROMPT].text);
    catch_interrupt();
    int status = converse(&c);
    input_close();
    tlm_engine_free(s->engine);
    messages_free(&c.messages);
    chat_ids_clear(&s->ids);
    tool_free(kwargs);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    struct tlm_model *m = NULL;
    struct run_cache cache = run_cache_of(v + N_OPTIONS + RUN_N - 1); /* its first row is our own */
    cache.max_size = &v[MAX_KV_SIZE];
    int status = run_check_utf8("--system-prompt", v[SYSTEM_PROMPT].text);
    if (status == 0)
        status = run_check_utf8("--chat-template-config", v[CHAT_TEMPLATE_CONFIG].text);
    if (status == 0)
        status = run_open(v[MODEL].text, v + N_OPTIONS, &cache, TLM_PRECISION_DEFAULT, &m);
    if (status == 0)
        status = start(m, prog, v);
    tlm_model_close(m);
    return status;
}

static const struct cli_table tables[] = {
    {options, N_OPTIONS}, {run_options, RUN_N}, {run_cache_options + 1, RUN_CACHE_N - 1}, {NULL, 0}};

const struct command chat_command = {
    "chat", "Talk with a model.",
    "A conversation, line by line, through the model's chat template. h or /help lists what can be typed beside "
    "messages. On a terminal lines can be edited, and their history is kept in turbolm/chat_history under "
    "XDG_STATE_HOME or ~/.local/state; NO_COLOR turns colours off. Into a pipe or file the text goes without escape "
    "codes. Thoughts of the model are shown apart from its answers. Ctrl-C ends an answer and keeps what was said; at "
    "the prompt it clears the line, and twice it leaves with status 130.",
    tables, run};
