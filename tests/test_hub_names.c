/* Names on a hub: of models, revisions and files, and which files of a listing
 * are chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "io/hub_id.h"
#include "io/hub_list.h"

static void names_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *repo, *revision, *pick;
    } good[] = {
        {"org/name", "org/name", "main", ""},
        {"o/n", "o/n", "main", ""},
        {"Org_1/Na.me-4bit", "Org_1/Na.me-4bit", "main", ""},
        {"org/name@v1.0", "org/name", "v1.0", ""},
        {"org/name@refs/pr/1", "org/name", "refs/pr/1", ""},
        {"org/name:Q4_K_M", "org/name", "main", "Q4_K_M"},
        {"org/name@main:dir/f.gguf", "org/name", "main", "dir/f.gguf"},
        {"org/name:a@b:c", "org/name", "main", "a@b:c"},
    };
    static const char *const bad[] = {
        "",
        "name",
        "/name",
        "org/",
        "org/name/x",
        "org/-name",
        "org/name-",
        "-org/name",
        "org./name",
        "org/na--me",
        "org/na..me",
        "org/name.git",
        "org/name.gguf",
        "org/na me",
        "org/name@",
        "org/name:",
        "org/name@:x",
        "org/name@/x",
        "org/name@x/",
        "org/name@a..b",
        "org/name@.x",
        "~/x",
        "./x",
        "../x",
        "org/name@a b",
        "org/name@x.lock",
        "org/name:../x",
        "org/name:/x",
        "org/na\nme",
        "org/name@-x",
        "org/name@a//b",
        "org/n\xc3\xa4me",
    };
    struct hub_id id;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(hub_id_parse(good[i].text, &id));
        assert_string_equal(id.repo, good[i].repo);
        assert_string_equal(id.revision, good[i].revision);
        assert_string_equal(id.pick, good[i].pick);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (hub_id_parse(bad[i], &id))
            fail_msg("'%s' was taken for a name", bad[i]);
}

/* Lengths at the limits: 96, 200 and 512 characters. */
static void long_names_are_refused(void **state)
{
    (void)state;
    char text[1200];
    struct hub_id id;
    memset(text, 'a', sizeof text);
    text[1] = '/';
    text[96] = 0;
    assert_true(hub_id_parse(text, &id));
    text[96] = 'a';
    text[97] = 0;
    assert_false(hub_id_parse(text, &id));
    for (int at = 0; at < 2; at++) {
        int limit = at ? 200 : 255; /* of a pick: one part of a path */
        memset(text, 'a', sizeof text);
        memcpy(text, at ? "o/n@" : "o/n:", 4);
        text[4 + limit] = 0;
        assert_true(hub_id_parse(text, &id));
        text[4 + limit] = 'a';
        text[5 + limit] = 0;
        assert_false(hub_id_parse(text, &id));
    }
}

static void file_names_are_checked(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "a/b/c.json", ".gitattributes", "a..b", "...", "\xc3\xa4.txt", "a b"};
    static const char *const bad[] = {"",     "/a",    "a/",   "a//b",      "..",    ".",          "a/..",
                                      "../a", "a/./b", "a\\b", "a\nb.json", "a\x7f", "a\xc2\x9b.b"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(hub_name_is_safe(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(hub_name_is_safe(bad[i]));
}

static void fill(struct hub_listing *l, const char *const *names)
{
    *l = (struct hub_listing){0};
    for (size_t i = 0; names[i]; i++) {
        struct hub_file *f;
        assert_int_equal(hub_listing_add(l, names[i], "test", &f, NULL), TLM_OK);
        f->size = 1000000000;
    }
}

/* Names of the wanted files, joined by spaces. */
static const char *chosen(const char *const *names, const char *pick, enum tlm_status want, const char *want_main)
{
    static char text[1024];
    struct hub_listing l;
    struct tlm_error e = {TLM_OK, ""};
    const char *main;
    fill(&l, names);
    assert_int_equal(hub_listing_choose(&l, "o/n", pick, &main, &e), want);
    text[0] = 0;
    for (size_t i = 0; i < l.n && want == TLM_OK; i++)
        if (l.files[i].wanted) {
            strncat(text, l.files[i].name, sizeof text - strlen(text) - 2);
            strncat(text, " ", 2);
        }
    if (want != TLM_OK)
        snprintf(text, sizeof text, "%s", e.message);
    if (want_main)
        assert_string_equal(main, want_main);
    else
        assert_null(main);
    hub_listing_deinit(&l);
    return text;
}

static void files_are_chosen(void **state)
{
    (void)state;
    const char *const plain[] = {
        "config.json", "model-1.safetensors", "README.md", "x/y.json", "x/model.safetensors", "m.gguf", NULL};
    assert_string_equal(chosen(plain, "", TLM_OK, NULL), "config.json model-1.safetensors x/y.json ");
    assert_string_equal(chosen(plain, "m.gguf", TLM_OK, "m.gguf"), "m.gguf ");
    const char *const quants[] = {"m-Q4_K.gguf",
                                  "m-Q4_K_M.gguf",
                                  "m-IQ4_XS.gguf",
                                  "m.Q8_0.gguf",
                                  "m_Q5_0.gguf",
                                  "BF16/m-BF16-00002-of-00002.gguf",
                                  "BF16/m-BF16-00001-of-00002.gguf",
                                  NULL};
    assert_string_equal(chosen(quants, "Q4_K", TLM_OK, "m-Q4_K.gguf"), "m-Q4_K.gguf ");
    assert_string_equal(chosen(quants, "q4_k_m", TLM_OK, "m-Q4_K_M.gguf"), "m-Q4_K_M.gguf ");
    assert_string_equal(chosen(quants, "q8_0", TLM_OK, "m.Q8_0.gguf"), "m.Q8_0.gguf ");
    assert_string_equal(chosen(quants, "Q5_0", TLM_OK, "m_Q5_0.gguf"), "m_Q5_0.gguf ");
    assert_string_equal(chosen(quants, "BF16", TLM_OK, "BF16/m-BF16-00001-of-00002.gguf"),
                        "BF16/m-BF16-00002-of-00002.gguf BF16/m-BF16-00001-of-00002.gguf ");
    assert_non_null(strstr(chosen(quants, "Q4_XS", TLM_EINVAL, NULL), "has no GGUF file 'Q4_XS'; there are: m-Q4_K.g"));
    assert_non_null(strstr(chosen(quants, "", TLM_EINVAL, NULL), "BF16/m-BF16-00001-of-00002.gguf (2.0 GB)"));
    const char *const odd[] = {"m-00003-of-00002.gguf", "m-00000-of-00002.gguf", ".gguf", "x-of-.gguf", NULL};
    assert_non_null(strstr(chosen(odd, "m", TLM_EINVAL, NULL), "several"));
}

/* Every allocation of reading, choosing and writing fails once. */
static void memory_that_ends_is_an_error(void **state)
{
    (void)state;
    static const char json[] = "{\"sha\":\"0123456789012345678901234567890123456789\",\"siblings\":["
                               "{\"rfilename\":\"a-Q8_0-00001-of-00002.gguf\",\"size\":1,"
                               "\"blobId\":\"0123456789012345678901234567890123456789\"},"
                               "{\"rfilename\":\"a-Q8_0-00002-of-00002.gguf\",\"size\":1,"
                               "\"blobId\":\"0123456789012345678901234567890123456789\"}]}";
    bool whole = false;
    for (long n = 1; n < 100 && !whole; n++) {
        struct hub_listing l = {0};
        struct tlm_error e = {TLM_OK, ""};
        const char *main;
        char *text = NULL;
        mem_fail_at(n, 0);
        enum tlm_status s = hub_listing_from_api(&l, json, sizeof json - 1, "test", &e);
        if (s == TLM_OK)
            s = hub_listing_choose(&l, "o/n", "Q8_0", &main, &e);
        if (s == TLM_OK)
            s = hub_listing_to_tree(&l, &text, &e);
        mem_fail_at(0, 0);
        whole = s == TLM_OK;
        assert_int_equal(s, e.status);
        assert_true(whole ? n > 4 : s == TLM_ENOMEM);
        mem_free(text);
        hub_listing_deinit(&l);
    }
    assert_true(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_parsed),
        cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(file_names_are_checked),
        cmocka_unit_test(files_are_chosen),
        cmocka_unit_test(memory_that_ends_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
