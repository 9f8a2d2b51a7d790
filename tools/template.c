/* turbolm template: the text that a chat template makes of a conversation. */
#include <stdint.h>
#include <string.h>

#include <turbolm/turbolm.h>

#include "cli.h"
#include "out.h"
#include "run.h"

enum { MODEL, REQUEST, TEMPLATE, BOS, EOS, NOW, N_OPTIONS };

static const struct cli_option options[N_OPTIONS] = {
    [MODEL] = {"--model", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
               "model directory or GGUF file; neither needs weights"},
    [REQUEST] = {"--request", NULL, CLI_TEXT, CLI_REQUIRED, NULL, NULL, NULL, NULL,
                 "JSON file with the conversation; - is standard input"},
    [TEMPLATE] = {"--chat-template", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL,
                  "file with a Jinja template, in place of the model's; - is standard input"},
    [BOS] = {"--bos-token", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL, "bos_token, in place of the model's"},
    [EOS] = {"--eos-token", NULL, CLI_TEXT, 0, NULL, NULL, NULL, NULL, "eos_token, in place of the model's"},
    [NOW] = {"--now", NULL, CLI_INT, 0, NULL, "0", "253402300799", NULL,
             "clock for strftime_now in seconds since 1970, by default the system's"},
};

extern const struct command template_command;

/* 0, or the exit status after a message: every failure of a template or request is 1. */
static int render(const struct cli_value *v, const char *path, const char *source, const char *request, size_t n)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_chat_template *t = NULL;
    char *text = NULL;
    size_t len = 0;
    int status = 0;
    const char *name = strcmp(v[REQUEST].text, "-") != 0 ? v[REQUEST].text : NULL;
    if (tlm_chat_template_load(path, source, v[TEMPLATE].text, v[BOS].text, v[EOS].text, &t, &e) != TLM_OK) {
        (void)out_tlm_error(&e);
        status = 1;
    } else if (t == NULL) {
        out_error("%s has no chat template; --chat-template gives one", v[MODEL].text);
        status = 1;
    } else if (tlm_chat_template_render_json(t, request, n, name, v[NOW].given ? v[NOW].integer : -1, &text, &len,
                                             &e) != TLM_OK) {
        (void)out_tlm_error(&e);
        status = 1;
    } else {
        out_write(text, len);
    }
    tlm_free(text);
    tlm_chat_template_free(t);
    return status;
}

static int run(const char *prog, const struct cli_value *v)
{
    char *path = NULL, *source = NULL, *request = NULL;
    size_t source_n = 0, n = 0;
    int status = 0;
    if (v[MODEL].text == NULL && v[TEMPLATE].text == NULL)
        return cli_usage_error(&template_command, prog, NULL,
                               "one of the arguments --model --chat-template is required");
    if (v[TEMPLATE].text != NULL && strcmp(v[TEMPLATE].text, "-") == 0 && strcmp(v[REQUEST].text, "-") == 0)
        return cli_usage_error(&template_command, prog, "--request", "standard input cannot be template and request");
    if (v[MODEL].text != NULL)
        status = run_resolve(v[MODEL].text, &path);
    if (status == 0 && v[TEMPLATE].text != NULL)
        status = run_read_text(v[TEMPLATE].text, &source, &source_n);
    if (status == 0)
        status = run_read_text(v[REQUEST].text, &request, &n);
    if (status == 0)
        status = run_check_utf8("--bos-token", v[BOS].text);
    if (status == 0)
        status = run_check_utf8("--eos-token", v[EOS].text);
    if (status == 0)
        status = render(v, path, source, request, n);
    tlm_hub_path_free(path);
    tool_free(source);
    tool_free(request);
    return status;
}

static const struct cli_table tables[] = {{options, N_OPTIONS}, {NULL, 0}};

const struct command template_command = {
    "template", "Print what a chat template makes of a conversation.",
    "The request is a JSON object with messages and optionally tools, documents, add_generation_prompt (true unless "
    "given), continue_final_message (true, or the name of the message's field to continue) and chat_template_kwargs, "
    "an object of further variables. The text is printed as it is, without a newline after it. A template that "
    "raises an exception ends the command with its message and status 1.",
    tables, run};
