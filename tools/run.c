/* Opening models and reading input, for every command that runs a model. */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fetch_bar.h"
#include "out.h"

static const char *const precisions[] = {"exact", "fast", NULL};

const struct cli_option run_options[RUN_N] = {
    [RUN_THREADS] = {"--threads", NULL, CLI_INT, CLI_EXTRA, NULL, "1", "1024", NULL,
                     "threads to compute with, by default one for each physical core"},
    [RUN_DEVICE] = {"--device", NULL, CLI_TEXT, CLI_EXTRA, "cpu", NULL, NULL, NULL, "where to compute"},
    [RUN_PRECISION] = {"--precision", NULL, CLI_CHOICE, CLI_EXTRA, NULL, NULL, NULL, precisions,
                       "exact: float32 activations; fast: 16-bit activations for quantised weights, by "
                       "default fast where its results are close enough, else exact"},
    [RUN_PREFILL_STEP_SIZE] = {"--prefill-step-size", NULL, CLI_INT, CLI_EXTRA, "2048", "1", "1048576", NULL,
                               "tokens of the prompt that are computed at a time"},
    [RUN_KV_FORMAT] = {"--kv-format", NULL, CLI_TEXT, CLI_EXTRA, NULL, NULL, NULL, NULL,
                       "format of the key-value cache: turbo5, turbo4, turbo3, turbo2, safe, auto, or KEYS[:VALUES] "
                       "of f32, f16, bf16, fp8, affine4g64, chan4+pre+mix, rot4+qjl, tq4 and the like; "
                       ";LAYERS=SPEC changes layers; by default f16"},
    [RUN_KV_SINK] = {"--kv-sink", NULL, CLI_INT, CLI_EXTRA, "64", "0", "1048576", NULL,
                     "first tokens that a quantised cache keeps exact, in whole blocks of 64; 0: none"},
    [RUN_QJL] = {"--qjl", NULL, CLI_FLAG, CLI_EXTRA, NULL, NULL, NULL, NULL,
                 "with --kv-bits: rotated keys, with a sketch of one bit of what quantisation leaves"},
};

const struct cli_option run_cache_options[RUN_CACHE_N] = {
    [RUN_MAX_KV_SIZE] = RUN_MAX_KV_SIZE_ROW(CLI_EXTRA),
    [RUN_KV_BITS] = RUN_KV_BITS_ROW(CLI_EXTRA),
    [RUN_KV_GROUP_SIZE] = RUN_KV_GROUP_SIZE_ROW(CLI_EXTRA),
    [RUN_QUANTIZED_KV_START] = RUN_QUANTIZED_KV_START_ROW(CLI_EXTRA),
};

struct run_cache run_cache_of(const struct cli_value *v)
{
    return (struct run_cache){v + RUN_MAX_KV_SIZE, v + RUN_KV_BITS, v + RUN_KV_GROUP_SIZE, v + RUN_QUANTIZED_KV_START,
                              NULL};
}

int run_resolve(const char *model, char **path)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_hub_options o = {0};
    struct fetch_bar bar;
    fetch_bar_init(&bar, model);
    o.progress = fetch_bar_show;
    o.user = &bar;
    catch_interrupt();
    enum tlm_status s = tlm_hub_resolve(model, &o, path, &e);
    fetch_bar_end(&bar);
    release_interrupt();
    if (s == TLM_OK && !interrupted()) {
        out_name_model(model);
        return 0;
    }
    if (s == TLM_OK)
        tlm_hub_path_free(*path);
    else
        out_tlm_error(&e);
    return interrupted() ? EXIT_INTERRUPTED : tlm_status_exit(s);
}

int run_open(const char *model, const struct cli_value *run, const struct run_cache *cache,
             enum tlm_precision precision, struct tlm_model **out)
{
    struct tlm_error e = {TLM_OK, ""};
    struct tlm_model_options o = {0};
    char kv_format[RUN_KV_FORMAT_MAX];
    if (strcmp(run[RUN_DEVICE].text, "cpu") != 0) {
        out_error("--device %s is not supported yet", run[RUN_DEVICE].text);
        return 2;
    }
    char *path;
    int status = run_kv_options(run, cache, &o, kv_format);
    if (status == 0)
        status = run_resolve(model, &path);
    if (status != 0)
        return status;
    o.threads = run[RUN_THREADS].given ? (int)run[RUN_THREADS].integer : 0;
    o.device = run[RUN_DEVICE].text;
    o.precision = precision;
    if (run[RUN_PRECISION].given)
        o.precision = strcmp(run[RUN_PRECISION].text, "exact") == 0 ? TLM_PRECISION_EXACT : TLM_PRECISION_FAST;
    enum tlm_status s = tlm_model_open(path, &o, out, &e);
    tlm_hub_path_free(path);
    /* What options may be is checked before: the format is the file's. */
    if (s == TLM_EINVAL && cache->file != NULL && o.kv_format == cache->file->kv_format) {
        out_error("%s: %s", cache->file->path, e.message);
        status = 1;
    } else if (s != TLM_OK) {
        status = out_tlm_error(&e);
    }
    if (status == 0)
        run_kv_report(run, cache, *out);
    return status;
}

void run_sampling(const struct cli_value *v, struct tlm_sampling *s)
{
    tlm_sampling_default(s);
    s->temperature = (float)v[RUN_TEMP].number;
    s->top_p = (float)v[RUN_TOP_P].number;
    s->min_p = (float)v[RUN_MIN_P].number;
    s->min_tokens_to_keep = (int)v[RUN_MIN_TOKENS_TO_KEEP].integer;
    s->top_k = (int)v[RUN_TOP_K].integer;
    s->xtc_probability = (float)v[RUN_XTC_PROBABILITY].number;
    s->xtc_threshold = (float)v[RUN_XTC_THRESHOLD].number;
    if (v[RUN_XTC_THRESHOLD].given && s->xtc_probability <= 0)
        out_warning("--xtc-threshold has no effect without --xtc-probability");
    if (v[RUN_MIN_TOKENS_TO_KEEP].given && s->min_p <= 0)
        out_warning("--min-tokens-to-keep has no effect without --min-p");
}

double run_rate(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

void run_warn_of_context(const struct tlm_request *r, const struct tlm_stats *s, enum tlm_finish finish,
                         int64_t context)
{
    int64_t generated = (int64_t)s->generated_tokens, prompt = (int64_t)r->n_prompt;
    if (finish == TLM_FINISH_LENGTH && generated != r->max_tokens)
        out_warning("the text ends after %lld tokens because the context is full", (long long)generated);
    else if (context > 0 && prompt <= context && prompt + generated > context) /* else said at the start */
        out_warning("prompt and text have %lld tokens, the model's context %lld", (long long)(prompt + generated),
                    (long long)context);
}

/* name: for messages. Ends with the part that has a NUL byte: it is no text, and may be a device without end. */
static int read_all(FILE *f, const char *name, char **text, size_t *len)
{
    size_t room = 65536, n = 0, got;
    char *buffer = tool_alloc(room, 1);
    while ((got = fread(buffer + n, 1, room - n - 1, f)) > 0) {
        n += got;
        if (memchr(buffer + n - got, '\0', got) != NULL)
            break;
        if (room - n - 1 == 0) {
            buffer = tool_grow(buffer, room, 2);
            room *= 2;
        }
    }
    buffer[n] = '\0';
    if (ferror(f)) {
        out_error("cannot read %s: %s", name, strerror(errno));
        tool_free(buffer);
        return 1;
    }
    *text = buffer;
    *len = n;
    return 0;
}

int run_read_stdin(char **text, size_t *len)
{
    int status = read_all(stdin, "standard input", text, len);
    if (status == 0 && memchr(*text, '\0', *len) != NULL) {
        out_error("the prompt on standard input has a NUL byte");
        tool_free(*text);
        *text = NULL;
        status = 2;
    }
    return status;
}

int run_read_text(const char *path, char **text, size_t *len)
{
    int from_stdin = strcmp(path, "-") == 0;
    FILE *f = from_stdin ? stdin : fopen(path, "rb");
    if (f == NULL) {
        out_error("%s: %s", path, strerror(errno));
        return 1;
    }
    int status = read_all(f, from_stdin ? "standard input" : path, text, len);
    if (!from_stdin)
        fclose(f);
    if (status == 0 && memchr(*text, '\0', *len) != NULL) {
        out_error("%s has a NUL byte", from_stdin ? "standard input" : path);
        tool_free(*text);
        *text = NULL;
        status = 1;
    }
    return status;
}

int run_check_utf8(const char *what, const char *text)
{
    size_t len = text != NULL ? strlen(text) : 0;
    size_t valid = len > 0 ? tool_utf8_valid(text, len) : 0;
    if (valid == len)
        return 0;
    out_error("%s is not valid UTF-8 at byte %zu", what, valid);
    return 2;
}

int run_check_ids(const struct tlm_model *m, const int32_t *ids, size_t n)
{
    struct tlm_error e = {TLM_OK, ""};
    return tlm_model_check_ids(m, ids, n, &e) == TLM_OK ? 0 : out_tlm_error(&e);
}

int32_t *run_parse_ids(const char *text, int64_t vocab_size, size_t *n_ids, char *message, size_t n)
{
    static const char separators[] = " ,\t\r\n";
    size_t room = strlen(text) / 2 + 1, k = 0;
    int32_t *ids = tool_alloc(room, sizeof *ids);
    message[0] = '\0';
    for (const char *p = text + strspn(text, separators); *p != '\0'; p += strspn(p, separators)) {
        char word[32];
        int negative, overflow;
        uint64_t id;
        size_t len = strcspn(p, separators);
        snprintf(word, sizeof word, "%.*s", len < sizeof word ? (int)len : (int)sizeof word - 1, p);
        if (!cli_read_integer(word, &negative, &id, &overflow)) {
            snprintf(message, n, "invalid token id: '%s'", word);
            break;
        }
        if (overflow || (negative && id > 0) || id >= (uint64_t)vocab_size || id > INT32_MAX) {
            snprintf(message, n, "token ids must be from 0 to %lld, but one is %s", (long long)vocab_size - 1, word);
            break;
        }
        ids[k++] = (int32_t)id;
        p += len;
    }
    if (k == 0 && message[0] == '\0')
        snprintf(message, n, "no token ids");
    if (message[0] == '\0') {
        *n_ids = k;
        return ids;
    }
    tool_free(ids);
    return NULL;
}
