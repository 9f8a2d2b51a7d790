/* Tokenizers against what the HF tokenizers library gave (tests/data/tokenizer,
 * made by tests/oracle/make_tokenizer_goldens.py), and malformed files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/json_stream.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define DATA TURBOLM_TEST_DATA "/tokenizer/"

static int nibble(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* Hex up to the next bar or line end; *p goes behind it. */
static size_t unhex(const char **p, char *out)
{
    size_t n = 0;
    for (; **p != '|' && **p != '\n'; *p += 2)
        out[n++] = (char)(nibble((*p)[0]) << 4 | nibble((*p)[1]));
    ++*p;
    return n;
}

static void check_decode(const struct tlm_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, const char *want,
                         size_t want_n)
{
    char *text;
    size_t len, done = 0;
    struct tlm_detokenizer *d;
    assert_int_equal(tlm_tokenizer_decode(t, ids, n, flags, &text, &len, NULL), TLM_OK);
    assert_int_equal(len, want_n);
    assert_memory_equal(text, want, len);
    mem_free(text);
    assert_int_equal(tlm_detokenizer_new(t, flags, &d, NULL), TLM_OK);
    for (size_t i = 0; i <= n; i++) {
        const char *piece;
        if (i < n)
            assert_int_equal(tlm_detokenizer_push(d, ids[i], &piece, &len, NULL), TLM_OK);
        else
            assert_int_equal(tlm_detokenizer_finish(d, &piece, &len, NULL), TLM_OK);
        assert_true(utf8_valid(piece, len));
        assert_true(done + len <= want_n);
        assert_memory_equal(piece, want + done, len);
        done += len;
    }
    assert_int_equal(done, want_n);
    tlm_detokenizer_free(d);
}

static void check_golden(const struct tlm_tokenizer *t, const char *name)
{
    char path[512], *file;
    size_t size;
    int lines = 0;
    snprintf(path, sizeof path, DATA "%s.golden", name);
    assert_int_equal(file_read(path, 1 << 24, &file, &size, NULL), TLM_OK);
    char *text = mem_alloc(size), *other = mem_alloc(size);
    int32_t *want = mem_alloc_array(size, sizeof *want);
    for (const char *p = file; *p; lines++) {
        size_t n = unhex(&p, text), count = 0, n_ids, m;
        int32_t *ids;
        while (*p != '|') {
            char *end;
            want[count++] = (int32_t)strtol(p, &end, 10);
            p = *end == ' ' ? end + 1 : end;
        }
        p++;
        struct tlm_error e = {0};
        if (tlm_tokenizer_encode(t, text, n, 0, &ids, &n_ids, &e) != TLM_OK)
            fail_msg("%s", e.message);
        if (n_ids != count || memcmp(ids, want, count * sizeof *ids))
            fail_msg("%s line %d: other ids for \"%.*s\"", name, lines + 1, (int)n, text);
        mem_free(ids);
        for (unsigned flags = 0; flags < 2; flags++) {
            if (*p == '=') {
                p += 2;
                if (!flags) {
                    memcpy(other, text, n);
                    m = n;
                }
            } else {
                m = unhex(&p, other);
            }
            check_decode(t, want, count, flags, other, m);
        }
    }
    assert_true(lines > 50);
    mem_free(text);
    mem_free(other);
    mem_free(want);
    mem_free(file);
}

static struct tlm_tokenizer *open_data(const char *name)
{
    char path[512];
    struct tlm_tokenizer *t;
    struct tlm_error e = {0};
    snprintf(path, sizeof path, DATA "%s.json", name);
    if (!file_exists(path)) /* a model directory */
        snprintf(path, sizeof path, DATA "%s", name);
    if (tlm_tokenizer_open(path, &t, &e) != TLM_OK)
        fail_msg("%s", e.message);
    return t;
}

static void test_goldens(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"level", "byte-level BPE"},
        {"spm", "SentencePiece BPE"},
        {"unigram", "Unigram"},
        {"wordpiece", "WordPiece"},
        {"wordlevel", "word level"},
        {"suffix", "BPE"},
        {"fallback", "SentencePiece BPE"},
        {"t5", "Unigram"},
        {"sentencepiece", "SentencePiece BPE"},
        {"tiktoken", "byte-level BPE"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct tlm_tokenizer *t = open_data(rows[k][0]);
        struct tlm_tokenizer_info info;
        tlm_tokenizer_info_get(t, &info);
        assert_string_equal(info.kind, rows[k][1]);
        check_golden(t, rows[k][0]);
        tlm_tokenizer_free(t);
    }
}

static void test_smollm2(void **state)
{
    (void)state;
    const char *models = getenv("TURBOLM_TEST_MODELS");
    char path[4096];
    struct tlm_tokenizer *t;
    struct tlm_error e = {0};
    struct tlm_tokenizer_info info;
    snprintf(path, sizeof path, "%s/smollm2-135m-instruct.Q4_1.gguf", models ? models : "");
    if (!models || !file_exists(path))
        skip();
    if (tlm_tokenizer_open(path, &t, &e) != TLM_OK)
        fail_msg("%s", e.message);
    tlm_tokenizer_info_get(t, &info);
    assert_int_equal(info.vocab_size, 49152);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_false(info.adds_bos);
    assert_int_equal(tlm_tokenizer_token_id(t, "<|im_end|>"), 2);
    assert_true(tlm_tokenizer_is_special(t, 2));
    assert_string_equal(tlm_tokenizer_token_text(t, 1), "<|im_start|>");
    assert_null(tlm_tokenizer_token_text(t, 49152));
    check_golden(t, "smollm2");
    tlm_tokenizer_free(t);
}

static size_t encode_n(const struct tlm_tokenizer *t, const char *s, size_t n, unsigned flags, int32_t *first,
                       int32_t *last)
{
    int32_t *ids;
    size_t count;
    assert_int_equal(tlm_tokenizer_encode(t, s, n, flags, &ids, &count, NULL), TLM_OK);
    *first = count ? ids[0] : -1;
    *last = count ? ids[count - 1] : -1;
    mem_free(ids);
    return count;
}

static void test_flags(void **state)
{
    (void)state;
    struct tlm_tokenizer *t = open_data("level");
    int32_t first, last;
    assert_int_equal(encode_n(t, "<s>", 3, 0, &first, &last), 1);
    assert_int_equal(first, 1);
    assert_true(encode_n(t, "<s>", 3, TLM_ENCODE_PLAIN, &first, &last) > 1);
    assert_int_equal(encode_n(t, "", 0, 0, &first, &last), 0);
    assert_int_equal(encode_n(t, "", 0, TLM_ENCODE_SPECIAL, &first, &last), 2);
    assert_true(first == 1 && last == 2);
    assert_int_equal(tlm_tokenizer_encode(t, "", 0, 4, &(int32_t *){NULL}, &(size_t){0}, NULL), TLM_EINVAL);
    tlm_tokenizer_free(t);
}

/* Invalid parts become U+FFFD, one for each maximal part. */
static void test_invalid_text(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } rows[] = {
        {"a\xff\xfe"
         "b",
         "a\xef\xbf\xbd\xef\xbf\xbd"
         "b"},
        {"\xe6\xbc", "\xef\xbf\xbd"},
        {"\xf0\x9f\x98"
         "x",
         "\xef\xbf\xbd"
         "x"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe6\xbc\xa2", "\xe6\xbc\xa2"},
    };
    struct tlm_tokenizer *t = open_data("level");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t *a, *b;
        size_t n, m;
        struct buf whole, parts;
        struct utf8_stream u = {{0}, 0};
        assert_int_equal(tlm_tokenizer_encode(t, rows[i].from, strlen(rows[i].from), 0, &a, &n, NULL), TLM_OK);
        assert_int_equal(tlm_tokenizer_encode(t, rows[i].to, strlen(rows[i].to), 0, &b, &m, NULL), TLM_OK);
        assert_int_equal(n, m);
        assert_memory_equal(a, b, n * sizeof *a);
        mem_free(a);
        mem_free(b);
        buf_init(&whole, 100);
        buf_init(&parts, 100);
        utf8_add_lossy(&whole, rows[i].from, strlen(rows[i].from));
        for (const char *p = rows[i].from; *p; p++)
            utf8_stream_add(&u, &parts, p, 1);
        utf8_stream_end(&u, &parts);
        assert_string_equal(buf_str(&whole), rows[i].to);
        assert_string_equal(buf_str(&parts), rows[i].to);
        buf_deinit(&whole);
        buf_deinit(&parts);
    }
    tlm_tokenizer_free(t);
}

static void test_long_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"level",  "spm",      "unigram", "wordpiece",     "wordlevel",
                                        "suffix", "fallback", "t5",      "sentencepiece", "tiktoken"};
    static const char *const units[] = {"a", " ", "\n", "!", "7", "\xc3\xa9", "\xf0\x9f\x99\x82", "<s", "e\xcc\x81"};
    size_t n = 200000;
    char *s = mem_alloc(n);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct tlm_tokenizer *t = open_data(names[k]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            int32_t first, last;
            size_t unit = strlen(units[u]);
            for (size_t i = 0; i + unit <= n; i += unit)
                memcpy(s + i, units[u], unit);
            encode_n(t, s, n / unit * unit, 0, &first, &last);
        }
        tlm_tokenizer_free(t);
    }
    mem_free(s);
}

static enum tlm_status try_json(const char *text, size_t n, struct tlm_error *e)
{
    char *copy = mem_alloc(n ? n : 1); /* exact, so that a read past the end shows */
    struct tlm_tokenizer *t = tokenizer_alloc(e);
    memcpy(copy, text, n);
    memset(e, 0, sizeof *e);
    enum tlm_status s = tokenizer_read_json(t, copy, n, "test.json", e);
    if (s == TLM_OK)
        s = tokenizer_finish(t, e);
    if (s != TLM_OK)
        assert_true(e->message[0]);
    tlm_tokenizer_free(t);
    mem_free(copy);
    return s;
}

static void test_truncated(void **state)
{
    (void)state;
    static const char *const names[] = {"level",     "spm",    "unigram",  "wordpiece",
                                        "wordlevel", "suffix", "fallback", "t5"};
    struct tlm_error e;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[512], *file;
        size_t size;
        snprintf(path, sizeof path, DATA "%s.json", names[k]);
        assert_int_equal(file_read(path, 1 << 24, &file, &size, NULL), TLM_OK);
        assert_int_equal(try_json(file, size, &e), TLM_OK);
        while (size && file[size - 1] != '}')
            size--;
        for (size_t n = 0; n < size; n += n < 3000 ? 7 : 411)
            assert_int_not_equal(try_json(file, n, &e), TLM_OK);
        for (size_t i = 0; i < size; i += 97) { /* any damage: an error or not, never a crash */
            char old = file[i];
            file[i] = (char)(old ^ (1 << (i % 7)));
            (void)try_json(file, size, &e);
            file[i] = old;
        }
        mem_free(file);
    }
}

static void test_malformed(void **state)
{
    (void)state;
#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
    static const struct {
        const char *text, *message; /* NULL: opens */
    } rows[] = {
        {"{" MODEL "}", NULL},
        {"{\"decoder\":null,\"version\":\"1.0\"," MODEL ",\"added_tokens\":[]}", NULL},
        {"", "ends"},
        {"[]", "object"},
        {"{}", "model"},
        {"{\"model\":[]}", "model"},
        {"{" MODEL "} x", "after the end"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "range"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999},\"merges\":[]}}", "range"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]}}", "integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "empty"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "right part"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "result"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "space"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "two texts"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.5}}", "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "unk_token"},
        {"{\"model\":{\"type\":\"Magic\",\"vocab\":{\"a\":0}}}", "Magic"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}", "number"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1]],\"unk_id\":7}}", "unk_id"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Odd\"}}", "Odd"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}", "regex"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}", "map"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Odd\"}}", "Odd"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{}}}", "pattern"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":3}}", "array"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}", "one character"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Odd\"}}", "Odd"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", "text"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Odd\"}}", "Odd"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":0}]}", "content"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", "another token"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":-1,\"content\":\"x\"}]}", "range"},
        {"{\"a\":\"\xff\"," MODEL "}", NULL}, /* skipped text is not looked at */
        {"{\"\xff\":1," MODEL "}", "UTF-8"},
        {"{\"a\":\"\\ud800\"," MODEL ",\"\\ud800\":1}", "escape"},
    };
    struct tlm_error e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum tlm_status s = try_json(rows[i].text, strlen(rows[i].text), &e);
        if (!rows[i].message)
            assert_int_equal(s, TLM_OK);
        else if (s == TLM_OK || !strstr(e.message, rows[i].message))
            fail_msg("%s: %s", rows[i].text, s == TLM_OK ? "opens" : e.message);
    }
    struct buf deep;
    buf_init(&deep, 1 << 20);
    buf_add_str(&deep, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        buf_add_char(&deep, '[');
    assert_int_equal(try_json(deep.data, deep.len, &e), TLM_EFORMAT);
    assert_non_null(strstr(e.message, "deep"));
    buf_deinit(&deep);
}

static void test_normal_forms(void **state)
{
    (void)state;
    static const struct {
        enum unicode_form form;
        const char *from, *to;
    } rows[] = {
        {UNICODE_NFC, "e\xcc\x81", "\xc3\xa9"},
        {UNICODE_NFD, "\xc3\xa9", "e\xcc\x81"},
        {UNICODE_NFC, "q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},
        {UNICODE_NFKC, "\xef\xac\x81", "fi"},
        {UNICODE_NFC, "\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"}, /* no trailing consonant */
        {UNICODE_NFC, "\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81"},
        {UNICODE_NFKD, "\xc2\xbd",
         "1\xe2\x81\x84"
         "2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;
        buf_init(&b, 100);
        assert_int_equal(unicode_normalize(&b, rows[i].from, strlen(rows[i].from), rows[i].form), TLM_OK);
        assert_string_equal(buf_str(&b), rows[i].to);
        buf_deinit(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),      cmocka_unit_test(test_smollm2),      cmocka_unit_test(test_flags),
        cmocka_unit_test(test_invalid_text), cmocka_unit_test(test_long_runs),    cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_malformed),    cmocka_unit_test(test_normal_forms),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
