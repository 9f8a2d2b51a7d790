/* Ids of a growing conversation (tools/chat_ids.c): whatever was kept, the new
 * ids stand for the text, and they begin as what was kept where it is the same.
 * The tokenizers are those of tests/data/tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"

/* A file of the program, which no library has, and what it needs of the others. */
#include "../tools/chat_ids.c"

void *tool_grow(void *p, size_t n, size_t size)
{
    void *q = mem_realloc_array(p, n, size);
    assert_non_null(q);
    return q;
}

void *tool_alloc(size_t n, size_t size)
{
    void *p = mem_new_array(n, size);
    assert_non_null(p);
    return p;
}

void tool_free(void *p)
{
    mem_free(p);
}

void out_error(const char *fmt, ...)
{
    fail_msg("%s", fmt);
}

int out_tlm_error(const struct tlm_error *e)
{
    fail_msg("%s", e->message);
    return 1;
}

static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static struct tlm_tokenizer *open_tokenizer(const char *name)
{
    char path[512];
    struct tlm_error e = {0};
    struct tlm_tokenizer *t = NULL;
    snprintf(path, sizeof path, "%s/tokenizer/%s.json", TURBOLM_TEST_DATA, name);
    if (tlm_tokenizer_open(path, &t, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return t;
}

static char *text_of(const struct tlm_tokenizer *t, const int32_t *ids, size_t n)
{
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(tlm_tokenizer_decode(t, ids, n, 0, &text, &len, NULL), TLM_OK);
    assert_int_equal(strlen(text), len);
    return text;
}

/* Text in random parts, each encoded alone: ids that the whole would not give. */
static void keep_parts(struct chat_ids *k, const struct tlm_tokenizer *t, const char *text)
{
    size_t len = strlen(text);
    for (size_t at = 0; at < len;) {
        size_t n = 1 + draw(5), got = 0;
        int32_t *ids = NULL;
        if (n > len - at)
            n = len - at;
        while (at + n < len && ((unsigned char)text[at + n] & 0xC0) == 0x80)
            n++;
        assert_int_equal(tlm_tokenizer_encode(t, text + at, n, 0, &ids, &got, NULL), TLM_OK);
        chat_ids_add(k, ids, got);
        tlm_free(ids);
        at += n;
    }
}

/* Encodes text over k, checks what it stands for, and gives how many ids are as in k. */
static size_t check(const struct chat_ids *k, const struct tlm_tokenizer *t, const char *text, size_t *n)
{
    int32_t *ids = NULL, *plain = NULL;
    size_t n_plain = 0, same = 0;
    assert_int_equal(chat_ids_encode(k, t, text, strlen(text), &ids, n), 0);
    assert_int_equal(tlm_tokenizer_encode(t, text, strlen(text), 0, &plain, &n_plain, NULL), TLM_OK);
    char *a = text_of(t, ids, *n), *b = text_of(t, plain, n_plain);
    assert_string_equal(a, b);
    if (k->n == 0) {
        assert_int_equal(*n, n_plain);
        assert_memory_equal(ids, plain, n_plain * sizeof *ids);
    }
    while (same < *n && same < k->n && ids[same] == k->ids[same])
        same++;
    tlm_free(a);
    tlm_free(b);
    tlm_free(plain);
    tool_free(ids);
    return same;
}

static const char *const texts[] = {
    "The quick brown fox jumps over the lazy dog. It's 42 o'clock!\n\nNew paragraph, with  two spaces.",
    "d\xC3\xA9j\xC3\xA0 vu \xE2\x82\xAC"
    "5 \xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC na\xC3\xAFve",
    "int main(void)\n{\n    return 0;\n}\n",
    "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 "
    "\xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D",
    " leading and trailing ",
};

/* special: a token that ends a turn, which stands behind what was kept. */
static void run_tokenizer(const char *name, const char *special)
{
    struct tlm_tokenizer *t = open_tokenizer(name);
    for (int round = 0; round < 300; round++) {
        struct chat_ids k = {0};
        char next[1024];
        size_t n;
        const char *tail = texts[draw(5)];
        if (round % 10 != 0)
            keep_parts(&k, t, texts[round % 5]);
        char *kept = text_of(t, k.ids, k.n);
        /* It goes on with a special token: all that was kept stays. */
        snprintf(next, sizeof next, "%s%s%s", kept, special, tail);
        size_t same = check(&k, t, next, &n);
        if (strcmp(name, "unigram") != 0) /* which makes one space of several */
            assert_true(same >= k.n);
        /* It goes on with anything: tokens of the text may run over the seam. */
        snprintf(next, sizeof next, "%s%s", kept, tail);
        check(&k, t, next, &n);
        /* Something before was changed, cut off, or repeated. */
        size_t len = strlen(kept), cut = len > 0 ? draw((uint32_t)len) : 0;
        while (cut > 0 && ((unsigned char)kept[cut] & 0xC0) == 0x80)
            cut--;
        snprintf(next, sizeof next, "%.*s%s%s", (int)cut, kept, tail, kept + cut);
        check(&k, t, next, &n);
        snprintf(next, sizeof next, "%.*s%s", (int)cut, kept, special);
        check(&k, t, next, &n);
        if (len > 0)
            check(&k, t, kept, &n);
        /* The answer ended inside a character, of which the text has all. */
        snprintf(next, sizeof next, "%s%s", kept, tail);
        k.n = k.n > 0 ? draw((uint32_t)k.n) : 0;
        check(&k, t, next, &n);
        tlm_free(kept);
        chat_ids_clear(&k);
    }
    tlm_tokenizer_free(t);
}

static void byte_level(void **state)
{
    (void)state;
    run_tokenizer("level", "</s>");
}

static void sentencepiece(void **state)
{
    (void)state;
    run_tokenizer("spm", "</s>");
}

static void unigram(void **state)
{
    (void)state;
    run_tokenizer("unigram", "</s>");
}

/* Loses case and spaces, so that the text is never what was encoded. */
static void wordpiece(void **state)
{
    (void)state;
    run_tokenizer("wordpiece", "[SEP]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level),
        cmocka_unit_test(sentencepiece),
        cmocka_unit_test(unigram),
        cmocka_unit_test(wordpiece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
