/* Thoughts and content: known texts in every split, and a slow definition of
 * the same over random texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <turbolm/tokenizer.h>

#include "base/mem.h"
#include "text/reasoning.h"

static const struct tlm_reasoning_tags think = {"<think>", "</think>", 1, 2};
static const struct tlm_reasoning_tags channel = {"<|channel>thought", "<channel|>", 1, 2};
static const struct tlm_reasoning_tags nested = {"aab", "aaab", 1, 2};

/* What came out: content as it is, thoughts between { and }. */
struct trace {
    char text[512];
    size_t n;
    int inside;
};

static void note(struct trace *t, enum tlm_part part, const char *text, size_t len)
{
    int inside = part == TLM_PART_REASONING;
    assert_true(t->n + len + 2 < sizeof t->text);
    if (inside != t->inside)
        t->text[t->n++] = inside ? '{' : '}';
    t->inside = inside;
    memcpy(t->text + t->n, text, len);
    t->n += len;
    t->text[t->n] = '\0';
}

static void take(struct tlm_reasoning *r, struct trace *t)
{
    struct tlm_piece p;
    while (tlm_reasoning_next(r, &p)) {
        assert_true(p.len > 0);
        note(t, p.part, p.text, p.len);
    }
}

/* Text in pieces of k bytes, the first of `first`. */
static struct trace split(const struct tlm_reasoning_tags *tags, const char *prompt, const char *text, size_t n,
                          size_t first, size_t k)
{
    struct trace t = {"", 0, 0};
    struct tlm_reasoning *r;
    assert_int_equal(tlm_reasoning_new(tags, prompt, prompt ? strlen(prompt) : 0, &r, NULL), TLM_OK);
    for (size_t at = 0; at < n;) {
        size_t len = at == 0 ? first : k;
        if (len > n - at)
            len = n - at;
        assert_int_equal(tlm_reasoning_push(r, text + at, len, NULL), TLM_OK);
        take(r, &t);
        at += len;
    }
    tlm_reasoning_finish(r);
    take(r, &t);
    tlm_reasoning_free(r);
    return t;
}

static const struct {
    const struct tlm_reasoning_tags *tags;
    const char *prompt, *text, *want;
} cases[] = {
    {&think, NULL, "", ""},
    {&think, NULL, "plain", "plain"},
    {&think, NULL, "<think>a</think>b", "{a}b"},
    {&think, NULL, "<think>\na\n</think>\n\nb", "{\na\n}\n\nb"},
    {&think, NULL, "x<think>a</think>b<think>c", "x{a}b{c"},
    {&think, NULL, "<think></think>b", "b"},
    {&think, NULL, "<think>only", "{only"},
    {&think, NULL, "a</think>b", "a</think>b"},
    {&think, NULL, "<think>a<think>b</think>c", "{a<think>b}c"},
    {&think, NULL, "<thin<think>a</think", "<thin{a</think"},
    {&think, NULL, "<<think>a<</think>b", "<{a<}b"},
    {&think, NULL, "a <", "a <"},
    {&think, NULL, "\xC3\xA9<think>\xF0\x9F\x98\x80</think>\xE2\x82\xAC", "\xC3\xA9{\xF0\x9F\x98\x80}\xE2\x82\xAC"},
    {&think, "[user]x[assistant]<think>", "a</think>b", "{a}b"},
    {&think, "[assistant]<think>\n", "a</think>b<think>c", "{a}b{c"},
    {&think, "[assistant]<think> \t\r\n", "a", "{a"},
    {&think, "[assistant]<think>\n\n</think>\n\n", "a", "a"},
    {&think, "[user]what is <think>?[assistant]", "a</think>b", "a</think>b"},
    {&think, "<think", "a</think>", "a</think>"},
    {&think, "", "a</think>", "a</think>"},
    {&channel, NULL, "<|channel>thought\na<channel|>b", "{\na}b"},
    {&channel, NULL, "<|channel>final a<channel|>", "<|channel>final a<channel|>"},
    {&channel, "<|channel>thought", "a<channel|>b", "{a}b"},
    {&nested, NULL, "aaabxaaaab", "a{xa"},
    {NULL, "<think>", "<think>a</think>b", "<think>a</think>b"},
};

static void known_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t first = 0; first <= n; first++)
            for (size_t k = 1; k <= n + 1; k++) {
                struct trace t = split(cases[i].tags, cases[i].prompt, cases[i].text, n, first ? first : k, k);
                assert_string_equal(t.text, cases[i].want);
            }
    }
}

/* The definition: byte by byte, the tag of the state at this place or text. */
static struct trace define(const struct tlm_reasoning_tags *tags, const char *text, size_t n)
{
    struct trace t = {"", 0, 0};
    enum tlm_part part = TLM_PART_CONTENT;
    for (size_t i = 0; i < n;) {
        const char *tag = part == TLM_PART_CONTENT ? tags->open : tags->close;
        if (n - i >= strlen(tag) && memcmp(text + i, tag, strlen(tag)) == 0) {
            part = part == TLM_PART_CONTENT ? TLM_PART_REASONING : TLM_PART_CONTENT;
            i += strlen(tag);
        } else {
            note(&t, part, text + i++, 1);
        }
    }
    return t;
}

static void random_texts(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        char text[64];
        for (size_t i = 0; i < sizeof text; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = (seed >> 24) % 4 == 0 ? 'b' : 'a';
        }
        struct trace want = define(&nested, text, sizeof text);
        struct trace got = split(&nested, NULL, text, sizeof text, 1 + (seed >> 8) % 8, 1 + (seed >> 16) % 5);
        assert_string_equal(got.text, want.text);
    }
}

/* Text comes out as soon as it cannot be a tag any more. */
static void holds_back_no_more_than_needed(void **state)
{
    (void)state;
    struct tlm_reasoning *r;
    struct tlm_piece p;
    assert_int_equal(tlm_reasoning_new(&think, NULL, 0, &r, NULL), TLM_OK);
    assert_int_equal(tlm_reasoning_push(r, "ab<th", 5, NULL), TLM_OK);
    assert_true(tlm_reasoning_next(r, &p) && p.len == 2 && !tlm_reasoning_next(r, &p));
    assert_int_equal(tlm_reasoning_push(r, "e", 1, NULL), TLM_OK);
    assert_true(tlm_reasoning_next(r, &p) && p.len == 4 && !memcmp(p.text, "<the", 4));
    tlm_reasoning_free(r);
    tlm_reasoning_free(NULL);
    assert_int_equal(reasoning_held("a<t", 3, "<think>"), 2);
    assert_int_equal(reasoning_held("<think>", 7, "<think>"), 0);
    assert_int_equal(reasoning_held("", 0, "<think>"), 0);
}

static void limits_and_no_memory(void **state)
{
    (void)state;
    struct tlm_reasoning *r;
    struct tlm_error e = {0};
    enum { CHUNK = 1 << 20 };
    char *big = mem_new(CHUNK);
    enum tlm_status s = TLM_OK;
    assert_int_equal(tlm_reasoning_new(&think, NULL, 0, &r, NULL), TLM_OK);
    for (int i = 0; i < 20 && s == TLM_OK; i++)
        s = tlm_reasoning_push(r, big, CHUNK, &e);
    assert_int_equal(s, TLM_ELIMIT);
    tlm_reasoning_free(r);
    mem_free(big);
    mem_fail_at(1, 0);
    assert_int_equal(tlm_reasoning_new(&think, NULL, 0, &r, NULL), TLM_ENOMEM);
    assert_null(r);
    assert_int_equal(tlm_reasoning_new(&think, NULL, 0, &r, NULL), TLM_OK);
    mem_fail_at(1, 0);
    assert_int_equal(tlm_reasoning_push(r, "a", 1, NULL), TLM_ENOMEM);
    mem_fail_at(0, 0);
    tlm_reasoning_free(r);
}

/* A vocabulary of these tokens. */
static struct tlm_tokenizer *vocabulary(const char *tokens)
{
    char json[1024], path[] = "/tmp/turbolm-reasoning-XXXXXX";
    struct tlm_tokenizer *t = NULL;
    snprintf(json, sizeof json,
             "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":null,"
             "\"post_processor\":null,\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"u\":0%s}}}",
             tokens);
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fputs(json, f);
    fclose(f);
    assert_int_equal(tlm_tokenizer_open(path, &t, NULL), TLM_OK);
    remove(path);
    return t;
}

static void expect_tags(const char *tokens, const char *open, const char *close, int32_t open_id)
{
    struct tlm_tokenizer *t = vocabulary(tokens);
    struct tlm_reasoning_tags tags;
    assert_int_equal(tlm_reasoning_tags_get(t, &tags), open != NULL);
    if (open) {
        assert_string_equal(tags.open, open);
        assert_string_equal(tags.close, close);
        assert_int_equal(tags.close_id, open_id + 1);
    } else {
        assert_null(tags.open);
    }
    assert_int_equal(tags.open_id, open_id);
    tlm_tokenizer_free(t);
}

static void tags_of_vocabularies(void **state)
{
    struct tlm_reasoning_tags tags;
    (void)state;
    expect_tags("", NULL, NULL, -1);
    expect_tags(",\"<think>\":1", NULL, NULL, -1);
    expect_tags(",\"</think>\":1", NULL, NULL, -1);
    expect_tags(",\"<think>\":1,\"</think>\":2", "<think>", "</think>", 1);
    expect_tags(",\"<longcat_think>\":1,\"</longcat_think>\":2", "<longcat_think>", "</longcat_think>", 1);
    expect_tags(",\"<|channel>\":1,\"<channel|>\":2", "<|channel>thought", "<channel|>", 1);
    expect_tags(",\"<|channel>\":1,\"<channel|>\":2,\"<think>\":3,\"</think>\":4", "<think>", "</think>", 3);
    assert_int_equal(tlm_reasoning_tags_get(NULL, &tags), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_texts),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(holds_back_no_more_than_needed),
        cmocka_unit_test(limits_and_no_memory),
        cmocka_unit_test(tags_of_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
