/* Prompts: messages as JSON, the chat template, encoding. */
#include "prompt.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "out.h"
#include "run.h"

char *prompt_expand(const char *text)
{
    char *out = tool_alloc(strlen(text) + 1, 1);
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (p[0] == '\\' && (p[1] == 'n' || p[1] == 't'))
            out[n++] = *++p == 'n' ? '\n' : '\t';
        else
            out[n++] = *p;
    }
    return out;
}

static void add_message(cJSON *messages, const char *role, const char *content)
{
    cJSON *message = cJSON_CreateObject();
    if (content == NULL)
        cJSON_Delete(message);
    else if (cJSON_AddStringToObject(message, "role", role) == NULL ||
             cJSON_AddStringToObject(message, "content", content) == NULL || !cJSON_AddItemToArray(messages, message))
        cJSON_Delete(message);
}

/* [system?, user, assistant?] as JSON text, free with cJSON_free; NULL: no memory. */
static char *messages_text(const struct prompt *p, const char *user)
{
    cJSON *messages = cJSON_CreateArray();
    add_message(messages, "system", p->system);
    add_message(messages, "user", user);
    add_message(messages, "assistant", p->prefill);
    int want = 1 + (p->system != NULL) + (p->prefill != NULL);
    char *text = cJSON_GetArraySize(messages) == want ? cJSON_PrintUnformatted(messages) : NULL;
    cJSON_Delete(messages);
    return text;
}

/* The text is joined rather than the parsed values printed, so that numbers
 * stay as they were written. */
char *prompt_kwargs(const struct tlm_model *m, const char *user)
{
    struct tlm_reasoning_tags tags;
    const char *thinking = tlm_reasoning_tags_get(tlm_model_tokenizer(m), &tags) ? "true" : "false";
    cJSON *json = user != NULL ? cJSON_Parse(user) : NULL;
    int given = json != NULL && cJSON_GetObjectItemCaseSensitive(json, "enable_thinking") != NULL;
    int n_keys = cJSON_GetArraySize(json);
    cJSON_Delete(json);
    if (user == NULL)
        user = "{}";
    size_t n = strlen(user) + 64;
    char *out = tool_alloc(n, 1);
    if (given)
        snprintf(out, n, "%s", user);
    else
        snprintf(out, n, "{\"enable_thinking\": %s%s%s", thinking, n_keys > 0 ? "," : "", strchr(user, '{') + 1);
    return out;
}

static int encode(const struct tlm_model *m, const char *text, size_t len, unsigned flags, int32_t **ids, size_t *n)
{
    struct tlm_error e = {TLM_OK, ""};
    if (tlm_tokenizer_encode(tlm_model_tokenizer(m), text, len, flags, ids, n, &e) != TLM_OK)
        return out_tlm_error(&e);
    int status = run_check_ids(m, *ids, *n);
    if (status == 0 && *n > 0)
        return 0;
    tlm_free(*ids);
    *ids = NULL;
    if (status != 0)
        return status;
    out_error("the prompt is empty");
    return 2;
}

static int encode_plain(const struct tlm_model *m, const struct prompt *p, int32_t **ids, size_t *n)
{
    const char *why = p->ignore_template ? "--ignore-chat-template is given" : "the model has no chat template";
    if (p->system != NULL)
        out_warning("--system-prompt is not used: %s", why);
    if (p->prefill != NULL)
        out_warning("--prefill-response is not used: %s", why);
    if (p->kwargs != NULL)
        out_warning("--chat-template-config is not used: %s", why);
    return encode(m, p->text, strlen(p->text), p->is_suffix ? 0 : TLM_ENCODE_SPECIAL, ids, n);
}

int prompt_render(const struct tlm_model *m, const struct tlm_chat_request *r, char **text, size_t *len)
{
    struct tlm_error e = {TLM_OK, ""};
    const struct tlm_chat_template *t = tlm_model_chat_template(m);
    const char *origin = tlm_chat_template_origin(t);
    if (tlm_chat_template_render(t, r, text, len, &e) == TLM_OK)
        return 0;
    if (origin == NULL || strstr(e.message, origin) != NULL)
        out_error("%s", e.message);
    else
        out_error("%s: %s", origin, e.message); /* words that the template raised name no file */
    return 1;
}

/* p with another user's message through the template; *text: free with tlm_free. */
static int render(const struct tlm_model *m, const struct prompt *p, const char *user, int64_t now, char **text,
                  size_t *len)
{
    char *messages = messages_text(p, user), *kwargs = prompt_kwargs(m, p->kwargs);
    int status = 0;
    struct tlm_chat_request r = {.messages = messages, .kwargs = kwargs, .now = now};
    r.continue_final_message = p->prefill != NULL || p->is_whole;
    r.add_generation_prompt = !r.continue_final_message;
    if (messages == NULL) {
        out_error("out of memory");
        status = 1;
    } else {
        status = prompt_render(m, &r, text, len);
    }
    cJSON_free(messages);
    tool_free(kwargs);
    return status;
}

/* Where the user's message begins in a rendering: the renderings of it and of a
 * message that no prompt has are the same up to there. */
static int suffix_at(const struct tlm_model *m, const struct prompt *p, const char *text, int64_t now, size_t *at)
{
    static const char mark[] = "[[turbolm:message:5e0c1f]]";
    char *other = NULL;
    size_t len;
    int status = render(m, p, mark, now, &other, &len);
    if (status != 0)
        return status;
    const char *found = strstr(other, mark);
    *at = found != NULL ? (size_t)(found - other) : 0;
    if (found == NULL || strstr(found + 1, mark) != NULL || strncmp(text, other, *at) != 0) {
        out_error("the chat template does not show where the message begins, so that the prompt cannot follow the one "
                  "in the cache; --ignore-chat-template takes it as it is");
        status = 2;
    }
    tlm_free(other);
    return status;
}

int prompt_encode(const struct tlm_model *m, const struct prompt *p, int32_t **ids, size_t *n)
{
    struct tlm_model_info info;
    const struct tlm_chat_template *t = tlm_model_chat_template(m);
    tlm_model_info_get(m, &info);
    if (tlm_model_chat_template_error(m) != NULL && !p->ignore_template) {
        out_error("%s%s", tlm_model_chat_template_error(m),
                  p->is_whole ? "" : "; --ignore-chat-template works without it");
        return 1;
    }
    if (t == NULL && p->require_template) {
        out_error("--use-default-chat-template: %s has no chat template", info.path);
        return 2;
    }
    if (t == NULL || p->ignore_template)
        return encode_plain(m, p, ids, n);

    char *text = NULL;
    size_t len = 0, at = 0;
    int64_t now = (int64_t)time(NULL);
    int status = render(m, p, p->text, now, &text, &len);
    if (status == 0 && p->is_suffix)
        status = suffix_at(m, p, text, now, &at);
    if (status == 0)
        status = encode(m, text + at, len - at, 0, ids, n);
    tlm_free(text);
    return status;
}
