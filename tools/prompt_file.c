/* Prompt cache files on the side of the commands: which model, which text. */
#include <string.h>

#include <cjson/cJSON.h>

#include "out.h"
#include "prompt.h"

static int is_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0;
}

/* mlx-lm's files say only the model's name: another name is another model,
 * unless one of them is a GGUF file, which mlx-lm does not have. */
static int check_name(const char *given, const char *recorded, const char *path)
{
    if (recorded == NULL || strcmp(given, recorded) == 0)
        return 0;
    if (is_gguf(given) != is_gguf(recorded)) {
        out_warning("%s was made with %s; it says no more of the model, which is taken to be the same", path, recorded);
        return 0;
    }
    out_error("Providing a different model (%s) than that used to create the prompt cache (%s) is an error.", given,
              recorded);
    return 2;
}

static void go_on(const char *begin, struct prompt *p, char **text)
{
    size_t n = strlen(begin), k = strlen(*text);
    char *joined = tool_alloc(n + k + 1, 1);
    memcpy(joined, begin, n);
    memcpy(joined + n, *text, k + 1);
    tool_free(*text);
    *text = joined;
    p->text = joined;
}

int prompt_cache_use(const char *path, struct tlm_prompt_cache **out, const char **model, struct prompt *p, char **text)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_prompt_cache_info info;
    if (tlm_prompt_cache_open(path, out, &e) != TLM_OK)
        return out_tlm_error(&e);
    tlm_prompt_cache_info_get(*out, &info);
    if (*model == NULL && info.model == NULL) {
        out_error("%s does not say which model it is of: --model is needed", path);
        return 2;
    }
    if (*model == NULL)
        *model = info.model;
    if (info.text != NULL)
        go_on(info.text, p, text);
    p->is_suffix = info.tokens == NULL;
    return info.tokens == NULL ? check_name(*model, info.model, path) : 0;
}

int prompt_cache_eos(const struct tlm_model *m, const struct tlm_prompt_cache *cache, int32_t *id)
{
    struct tlm_prompt_cache_info info;
    *id = -1;
    if (cache == NULL)
        return 0;
    tlm_prompt_cache_info_get(cache, &info);
    cJSON *config = info.tokenizer_config != NULL ? cJSON_Parse(info.tokenizer_config) : NULL;
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(config, "eos_token");
    int status = 0;
    if (cJSON_IsString(eos)) {
        *id = tlm_tokenizer_token_id(tlm_model_tokenizer(m), eos->valuestring);
        if (*id < 0) {
            out_error("'%s' is not a token for this tokenizer", eos->valuestring);
            status = 2;
        }
    }
    cJSON_Delete(config);
    return status;
}
