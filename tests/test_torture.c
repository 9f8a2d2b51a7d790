/* Every allocation fails once: opening a tiny model from a directory and from a
 * GGUF file, rendering, encoding and generating must end with a clean error of
 * memory or with the right result, and must free what was allocated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "turbolm/turbolm.h"

enum { HIDDEN = 64, FF = 32, VOCAB = 34, PROMPT = 150, GENERATED = 3, RESULT_MAX = 4096, PATH_BYTES = 128 };

/* A prompt this long seals a block of 64 tokens behind the first, which stays exact. */
static const char text[] = "ab abc the cab";

/* What one run gave, as bytes to compare. */
struct result {
    char data[RESULT_MAX];
    size_t len;
};

static char folder[PATH_BYTES], gguf_path[PATH_BYTES + 32];
static int problems;

/* Says what is wrong and goes on: one run shows all places. */
#define WRONG(...) (++problems <= 20 ? print_error(__VA_ARGS__) : (void)0)

/* ---- the files ---- */

static const char chat_template[] =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[{{ m.content | trim }}]{% else %}"
    "{{ raise_exception('no') }}{% endif %}{% endfor %}{% set ns = namespace(n=0) %}{% for i in range(3) %}"
    "{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ tools | tojson }}{{ messages[0].content.split(' ') | join('-') "
    "}}"
    "{% macro m(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ m('x') }}";

static const char *const pieces[VOCAB] = {
    "<s>", "</s>", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j",        "k",  "l",  "m",   "n",          "o",
    "p",   "q",    "r", "s", "t", "u", "v", "w", "x", "y", "z", "\304\240", "ab", "th", "the", "\304\240ab", "[]"};
static const char *const merges[] = {"a b", "t h", "th e", "\304\240 ab"};

struct tensor_row {
    const char *hf, *gguf;
    int rows, cols; /* 0 rows: a vector */
};

static const struct tensor_row tensors[] = {
    {"model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN},
    {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", 0, HIDDEN},
    {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", HIDDEN, FF},
    {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", FF, HIDDEN},
    {"model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight", FF, HIDDEN},
    {"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", 0, HIDDEN},
    {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", HIDDEN, HIDDEN},
    {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", HIDDEN, HIDDEN},
    {"model.norm.weight", "output_norm.weight", 0, HIDDEN},
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };

static size_t floats_of(const struct tensor_row *t)
{
    return (size_t)(t->rows ? t->rows : 1) * (size_t)t->cols;
}

static void write_floats(FILE *f)
{
    uint32_t x = 1;
    for (int i = 0; i < N_TENSORS; i++)
        for (size_t k = 0; k < floats_of(&tensors[i]); k++) {
            x = x * 1664525u + 1013904223u;
            float v = tensors[i].rows ? ((float)(x >> 8) / 8388608.0f - 1) / 4 : 1;
            assert_int_equal(fwrite(&v, sizeof v, 1, f), 1);
        }
}

static void write_u64(FILE *f, uint64_t v)
{
    assert_int_equal(fwrite(&v, 8, 1, f), 1);
}

static void write_u32(FILE *f, uint32_t v)
{
    assert_int_equal(fwrite(&v, 4, 1, f), 1);
}

static FILE *create(const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    return f;
}

static void write_text(const char *name, const char *s)
{
    FILE *f = create(name);
    assert_true(fputs(s, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void write_safetensors(void)
{
    static char head[8192];
    size_t n = 0, at = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        size_t bytes = floats_of(&tensors[i]) * 4;
        n += (size_t)snprintf(head + n, sizeof head - n, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", i ? "," : "{",
                              tensors[i].hf);
        if (tensors[i].rows)
            n += (size_t)snprintf(head + n, sizeof head - n, "%d,", tensors[i].rows);
        n += (size_t)snprintf(head + n, sizeof head - n, "%d],\"data_offsets\":[%zu,%zu]}", tensors[i].cols, at,
                              at + bytes);
        at += bytes;
    }
    n += (size_t)snprintf(head + n, sizeof head - n, "}");
    FILE *f = create("model.safetensors");
    write_u64(f, n);
    assert_int_equal(fwrite(head, 1, n, f), n);
    write_floats(f);
    assert_int_equal(fclose(f), 0);
}

static void write_tokenizer(void)
{
    FILE *f = create("tokenizer.json");
    fputs(
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
        "{\"id\":1,\"content\":\"</s>\",\"special\":true,\"normalized\":true}],"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":"
        "{\"Regex\":\"X+\"},\"content\":\"x\"}]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
        "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[0]}}},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{",
        f);
    for (int i = 0; i < VOCAB; i++)
        fprintf(f, "%s\"%s\":%d", i ? "," : "", pieces[i], i);
    fputs("},\"merges\":[", f);
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++)
        fprintf(f, "%s\"%s\"", i ? "," : "", merges[i]);
    fputs("]}}", f);
    assert_int_equal(fclose(f), 0);
}

static void write_str(FILE *f, const char *s)
{
    write_u64(f, strlen(s));
    assert_int_equal(fwrite(s, 1, strlen(s), f), strlen(s));
}

static void key_u32(FILE *f, const char *key, uint32_t v)
{
    write_str(f, key);
    write_u32(f, 4);
    write_u32(f, v);
}

static void key_float(FILE *f, const char *key, float v)
{
    write_str(f, key);
    write_u32(f, 6);
    assert_int_equal(fwrite(&v, sizeof v, 1, f), 1);
}

static void key_str(FILE *f, const char *key, const char *v)
{
    write_str(f, key);
    write_u32(f, 8);
    write_str(f, v);
}

static void key_strs(FILE *f, const char *key, const char *const *v, size_t n)
{
    write_str(f, key);
    write_u32(f, 9);
    write_u32(f, 8);
    write_u64(f, n);
    for (size_t i = 0; i < n; i++)
        write_str(f, v[i]);
}

static void write_gguf(void)
{
    static const char *const named[] = {"tool_use"};
    FILE *f = fopen(gguf_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite("GGUF", 1, 4, f), 4);
    write_u32(f, 3);
    write_u64(f, N_TENSORS);
    write_u64(f, 20);
    key_str(f, "general.architecture", "llama");
    key_u32(f, "llama.block_count", 1);
    key_u32(f, "llama.context_length", 4096);
    key_u32(f, "llama.embedding_length", HIDDEN);
    key_u32(f, "llama.feed_forward_length", FF);
    key_u32(f, "llama.attention.head_count", 1);
    key_float(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_float(f, "llama.rope.freq_base", 10000);
    key_str(f, "llama.rope.scaling.type", "linear");
    key_float(f, "llama.rope.scaling.factor", 2);
    key_str(f, "tokenizer.ggml.model", "gpt2");
    key_str(f, "tokenizer.ggml.pre", "llama-bpe");
    key_strs(f, "tokenizer.ggml.tokens", pieces, VOCAB);
    key_strs(f, "tokenizer.ggml.merges", merges, sizeof merges / sizeof merges[0]);
    key_u32(f, "tokenizer.ggml.bos_token_id", 0);
    key_u32(f, "tokenizer.ggml.eos_token_id", 1);
    key_str(f, "tokenizer.chat_template", chat_template);
    key_strs(f, "tokenizer.chat_templates", named, 1);
    key_str(f, "tokenizer.chat_template.tool_use", chat_template);
    key_str(f, "general.name", "tiny");
    uint64_t at = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        const struct tensor_row *t = &tensors[i];
        write_str(f, t->gguf);
        write_u32(f, t->rows ? 2 : 1);
        write_u64(f, (uint64_t)t->cols);
        if (t->rows)
            write_u64(f, (uint64_t)t->rows);
        write_u32(f, 0);
        write_u64(f, at);
        at += floats_of(t) * 4; /* a multiple of the alignment */
    }
    while (ftell(f) % 32)
        assert_int_equal(fputc(0, f), 0);
    write_floats(f);
    assert_int_equal(fclose(f), 0);
}

static int make_files(void **state)
{
    (void)state;
    char config[1024];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.80s/turbolm-torture-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return -1;
    snprintf(gguf_path, sizeof gguf_path, "%s/tiny.gguf", folder);
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"vocab_size\":%d,\"hidden_size\":%d,\"intermediate_size\":%d,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"max_position_embeddings\":4096,\"rope_scaling\":{"
             "\"type\":\"linear\",\"factor\":2},\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"unread\":NaN}",
             VOCAB, HIDDEN, FF);
    write_text("config.json", config);
    write_text("generation_config.json", "{\"eos_token_id\":[1]}");
    write_text("tokenizer_config.json", "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"}}");
    write_text("chat_template.jinja", chat_template);
    write_safetensors();
    write_tokenizer();
    write_gguf();
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        "model.safetensors",
                                        "tokenizer.json",
                                        "tiny.gguf"};
    char path[PATH_BYTES + 64];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

/* ---- one run ---- */

static void add(struct result *r, const void *p, size_t n)
{
    assert_true(n <= sizeof r->data - r->len);
    memcpy(r->data + r->len, p, n);
    r->len += n;
}

static enum tlm_status render(const struct tlm_chat_template *t, struct result *r, struct tlm_error *e)
{
    const struct tlm_chat_request q = {.messages = "[{\"role\":\"user\",\"content\":\" ab\\u0020the \"}]",
                                       .tools = "[{\"name\":\"f\"}]",
                                       .kwargs = "{\"x\":[1.5,null]}",
                                       .add_generation_prompt = 1};
    char *out;
    size_t len;
    enum tlm_status s = tlm_chat_template_render(t, &q, &out, &len, e);
    if (s == TLM_OK)
        add(r, out, len);
    tlm_free(s == TLM_OK ? out : NULL);
    return s;
}

static enum tlm_status encode(const struct tlm_tokenizer *t, struct result *r, struct tlm_error *e)
{
    int32_t *ids;
    size_t n, len;
    char *out;
    enum tlm_status s = tlm_tokenizer_encode(t, text, sizeof text - 1, TLM_ENCODE_SPECIAL, &ids, &n, e);
    if (s != TLM_OK)
        return s;
    add(r, ids, n * sizeof *ids);
    s = tlm_tokenizer_decode(t, ids, n, 0, &out, &len, e);
    if (s == TLM_OK) {
        add(r, out, len);
        tlm_free(out);
    }
    tlm_free(ids);
    return s;
}

static enum tlm_status generate(struct tlm_model *m, struct result *r, struct tlm_error *e)
{
    static const char *const stops[] = {"zzzzzzzz"};
    static const struct tlm_logit_bias bias[] = {{1, -100}};
    struct tlm_engine *g = NULL;
    int32_t prompt[PROMPT];
    uint64_t id;
    struct tlm_request q = {.prompt = prompt, .n_prompt = PROMPT, .max_tokens = GENERATED, .stop = stops, .n_stop = 1};
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 2 + i * 7 % (VOCAB - 2);
    tlm_sampling_default(&q.sampling);
    q.sampling.temperature = 0.7f;
    q.sampling.top_p = 0.9f;
    q.sampling.repetition_penalty = 1.1f;
    q.sampling.logit_bias = bias;
    q.sampling.n_logit_bias = 1;
    q.sampling.has_seed = 1;
    enum tlm_status s = tlm_engine_new(m, NULL, &g, e);
    if (s == TLM_OK)
        s = tlm_engine_submit(g, &q, &id, e);
    bool done = s != TLM_OK;
    while (!done) {
        struct tlm_event ev;
        s = tlm_engine_next(g, 20000, &ev, e);
        if (s == TLM_OK && ev.type == TLM_EVENT_NONE)
            fail_msg("no event of a request within 20 s");
        done = s != TLM_OK || ev.type == TLM_EVENT_DONE;
        if (s != TLM_OK || ev.type == TLM_EVENT_PROGRESS)
            continue;
        if (ev.type == TLM_EVENT_TOKEN)
            add(r, &ev.token, sizeof ev.token);
        if (ev.text)
            add(r, ev.text, ev.text_len);
        if (done && ev.finish == TLM_FINISH_ERROR) {
            *e = (struct tlm_error){.status = ev.status};
            snprintf(e->message, sizeof e->message, "%s", ev.message ? ev.message : "");
            s = ev.status;
        }
    }
    tlm_engine_free(g);
    return s;
}

enum part { GENERATION, TEXT, TOKENIZER };

struct torture {
    const char *path, *kv_format;
    enum part part;
};

static enum tlm_status whole(const struct torture *t, struct result *r, struct tlm_error *e)
{
    const struct tlm_model_options o = {.threads = 1, .kv_format = t->kv_format};
    struct tlm_model *m = NULL;
    enum tlm_status s = tlm_model_open(t->path, &o, &m, e);
    if (s == TLM_OK) {
        if (!tlm_model_tokenizer(m) || !tlm_model_chat_template(m))
            WRONG("a part is left out for want of memory\n");
        s = generate(m, r, e);
    }
    tlm_model_close(m);
    return s;
}

static enum tlm_status text_parts(const struct torture *t, struct result *r, struct tlm_error *e)
{
    struct tlm_tokenizer *tok = NULL;
    struct tlm_chat_template *tpl = NULL;
    enum tlm_status s = tlm_tokenizer_open(t->path, &tok, e);
    if (s == TLM_OK)
        s = encode(tok, r, e);
    if (s == TLM_OK && t->part == TEXT)
        s = tlm_chat_template_open(t->path, &tpl, e);
    if (tpl)
        s = render(tpl, r, e);
    tlm_chat_template_free(tpl);
    tlm_tokenizer_free(tok);
    return s;
}

/* The n-th allocation fails, and with sticky all that follow; 0: none. */
static enum tlm_status once(const struct torture *t, long n, int sticky, struct result *r)
{
    struct tlm_error e = {TLM_OK, ""};
    long live = mem_live();
    *r = (struct result){.len = 0};
    mem_fail_at(n, sticky);
    enum tlm_status s = t->part != GENERATION ? text_parts(t, r, &e) : whole(t, r, &e);
    mem_fail_at(0, 0);
    if (mem_live() != live)
        WRONG("allocation %ld fails: %ld blocks are left over (%s)\n", n, mem_live() - live, e.message);
    if (s != TLM_OK && (s != TLM_ENOMEM || !strstr(e.message, "memory")))
        WRONG("allocation %ld fails: status %d, \"%s\"\n", n, (int)s, e.message);
    return s;
}

static void torture(const struct torture *t, long least)
{
    static struct result want, got;
    cJSON_Hooks hooks = {mem_alloc, mem_free};
    cJSON_InitHooks(&hooks);
    long before = mem_count();
    assert_int_equal(once(t, 0, 0, &want), TLM_OK);
    long n = mem_count() - before, failures = 0;
    problems = 0;
    assert_true(n > least && want.len > 0);
    for (long i = 1; i <= 2 * n; i++) { /* each alone, and with all that follow */
        enum tlm_status s = once(t, (i + 1) / 2, (int)(i & 1), &got);
        failures += s != TLM_OK;
        if (s == TLM_OK && (got.len != want.len || memcmp(got.data, want.data, want.len)))
            WRONG("allocation %ld fails: no error, but another result\n", (i + 1) / 2);
    }
    cJSON_InitHooks(NULL);
    assert_int_equal(problems, 0);
    /* Some may fail unnoticed, as those of the regex compiler's machine code. */
    assert_true(failures > n);
}

/* Tokenizers of other kinds: the inputs of a fuzz target, up to their first NUL. */
static void other_tokenizers(void **state)
{
    static const char *const names[] = {"unigram", "wordpiece", "ctc", "bpe_spm", "bpe_level"};
    (void)state;
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/other.json", folder);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char from[512], *json;
        size_t n;
        snprintf(from, sizeof from, TURBOLM_TEST_DATA "/../fuzz/corpus/tokenizer/%s", names[i]);
        assert_int_equal(file_read(from, 1 << 20, &json, &n, NULL), TLM_OK);
        write_text("other.json", json);
        mem_free(json);
        torture(&(struct torture){path, NULL, TOKENIZER}, 10);
    }
    unlink(path);
}

static void directory_f16(void **state)
{
    (void)state;
    torture(&(struct torture){folder, NULL, GENERATION}, 100);
}

static void directory_turbo4(void **state)
{
    (void)state;
    torture(&(struct torture){folder, "turbo4", GENERATION}, 100);
}

static void gguf_f16(void **state)
{
    (void)state;
    torture(&(struct torture){gguf_path, "f16", GENERATION}, 100);
}

static void gguf_turbo4(void **state)
{
    (void)state;
    torture(&(struct torture){gguf_path, "turbo4", GENERATION}, 100);
}

static void directory_text(void **state)
{
    (void)state;
    torture(&(struct torture){folder, NULL, TEXT}, 100);
}

static void gguf_text(void **state)
{
    (void)state;
    torture(&(struct torture){gguf_path, NULL, TEXT}, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directory_text),   cmocka_unit_test(other_tokenizers), cmocka_unit_test(gguf_text),
        cmocka_unit_test(directory_f16),    cmocka_unit_test(gguf_f16),         cmocka_unit_test(gguf_turbo4),
        cmocka_unit_test(directory_turbo4),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
