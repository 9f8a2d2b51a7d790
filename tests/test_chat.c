/* Chat templates: where they are found, their variables, and ending inside
 * the final message (expected texts as transformers 5.24 gives them). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <turbolm/chat.h>

#include "base/mem.h"

static const char simple[] = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
                             "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

static void expect(const struct tlm_chat_template *t, const struct tlm_chat_request *q, const char *want)
{
    struct tlm_error e = {0};
    char *text = NULL;
    size_t len = 0;
    enum tlm_status s = tlm_chat_template_render(t, q, &text, &len, &e);
    if (s != TLM_OK)
        fprintf(stderr, "%s\n", e.message);
    assert_int_equal(s, TLM_OK);
    assert_string_equal(text, want);
    assert_int_equal(len, strlen(want));
    mem_free(text);
}

static void expect_error(const struct tlm_chat_template *t, const struct tlm_chat_request *q, const char *part)
{
    struct tlm_error e = {0};
    char *text = NULL;
    size_t len;
    assert_int_equal(tlm_chat_template_render(t, q, &text, &len, &e), TLM_EINVAL);
    assert_null(text);
    if (!strstr(e.message, part))
        fail_msg("\"%s\" lacks \"%s\"", e.message, part);
}

static struct tlm_chat_template *make(const char *source)
{
    struct tlm_chat_template *t;
    struct tlm_error e = {0};
    assert_int_equal(tlm_chat_template_new(source, "test", "<s>", "</s>", &t, &e), TLM_OK);
    return t;
}

static void test_variables(void **state)
{
    (void)state;
    struct tlm_chat_template *t = make(simple);
    struct tlm_chat_request q = {.messages = "[{\"role\":\"user\",\"content\":\"a\"}]", .add_generation_prompt = 1};
    expect(t, &q, "<s>[user]a</s>[assistant]");
    q.kwargs = "{\"bos_token\": \"B\", \"x\": 1}";
    expect(t, &q, "B[user]a</s>[assistant]");
    q.kwargs = "{\"messages\": []}";
    expect_error(t, &q, "messages must not be given");
    q.kwargs = NULL;
    q.messages = "[]";
    expect_error(t, &q, "empty");
    q.messages = "[1]";
    expect_error(t, &q, "expected an object");
    q.messages = "[{]";
    expect_error(t, &q, "JSON line 1");
    assert_string_equal(tlm_chat_template_source(t), simple);
    tlm_chat_template_free(t);
}

static void test_messages_as_transformers(void **state)
{
    (void)state;
    struct tlm_chat_template *t = make("{{ messages|tojson }}{{ tools }}{{ documents }}");
    struct tlm_chat_request q = {.messages = "[{\"role\":\"user\",\"content\":null,\"n\":1.0,\"b\":[null,1e2]}]"};
    expect(t, &q, "[{\"role\": \"user\", \"n\": 1.0, \"b\": [null, 100.0]}]NoneNone");
    q.messages = "[{\"role\":\"assistant\",\"reasoning\":\"r\",\"content\":\"c\"}]";
    q.tools = "[]";
    expect(t, &q,
           "[{\"thinking\": \"r\", \"role\": \"assistant\", \"reasoning\": \"r\", \"content\": \"c\", "
           "\"reasoning_content\": \"r\"}][]None");
    tlm_chat_template_free(t);
}

static void test_continue(void **state)
{
    (void)state;
    struct tlm_chat_template *t = make(simple);
    struct tlm_chat_request q = {
        .messages = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b \"}]",
        .continue_final_message = 1};
    expect(t, &q, "<s>[user]a</s>[assistant]b ");
    q.add_generation_prompt = 1;
    expect_error(t, &q, "not compatible");
    q.add_generation_prompt = 0;
    q.messages = "[{\"role\":\"user\"}]";
    expect_error(t, &q, "no \"content\"");
    tlm_chat_template_free(t);
    t = make("{% for m in messages %}{{ m.content|trim }}!{% endfor %}");
    q.messages = "[{\"role\":\"assistant\",\"content\":\"b  \"}]";
    expect(t, &q, "b");
    tlm_chat_template_free(t);
    t = make("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}!");
    q.messages = "[{\"role\":\"assistant\",\"content\":[{\"text\":\"x\"},{\"text\":\"y\"},{\"type\":\"image\"}]}]";
    expect(t, &q, "xy");
    tlm_chat_template_free(t);
    t = make("no{# content #}");
    expect_error(t, &q, "does not appear");
    tlm_chat_template_free(t);
}

static void test_raise_and_clock(void **state)
{
    (void)state;
    struct tlm_chat_template *t = make("{{ raise_exception('roles must alternate') }}");
    struct tlm_chat_request q = {.messages = "[{\"role\":\"user\",\"content\":\"a\"}]", .now = 1700000000};
    expect_error(t, &q, "roles must alternate");
    tlm_chat_template_free(t);
    setenv("TZ", "UTC", 1);
    t = make("{{ strftime_now('%Y-%m-%d %H:%M') }}");
    expect(t, &q, "2023-11-14 22:13");
    tlm_chat_template_free(t);
}

static void put(const char *dir, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void drop(const char *dir, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    remove(path);
}

static void test_directory(void **state)
{
    (void)state;
    char dir[] = "/tmp/turbolm-chat-XXXXXX", sub[128];
    struct tlm_chat_template *t;
    struct tlm_error e = {0};
    struct tlm_chat_request q = {.messages = "[{\"role\":\"user\",\"content\":\"a\"}]"};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tlm_chat_template_open(dir, &t, &e), TLM_OK);
    assert_null(t);
    put(dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<b>\"}, \"chat_template\": ["
        "{\"name\": \"default\", "
        "\"template\": \"D{{ bos_token }}{{ eos_token }}\"}, {\"name\": \"tool_use\", "
        "\"template\": \"T\"}]}");
    put(dir, "special_tokens_map.json", "{\"bos_token\": \"<m>\", \"eos_token\": \"<e>\"}");
    assert_int_equal(tlm_chat_template_open(dir, &t, &e), TLM_OK);
    expect(t, &q, "D<m><e>");
    q.tools = "[]";
    expect(t, &q, "T");
    tlm_chat_template_free(t);
    put(dir, "chat_template.jinja", "file");
    assert_int_equal(tlm_chat_template_open(dir, &t, &e), TLM_OK);
    expect(t, &q, "file");
    tlm_chat_template_free(t);
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(sub, 0700), 0);
    put(sub, "tool_use.jinja", "more");
    assert_int_equal(tlm_chat_template_open(dir, &t, &e), TLM_OK);
    expect(t, &q, "more");
    tlm_chat_template_free(t);
    put(dir, "tokenizer_config.json", "{\"chat_template_type\": \"nope\"}");
    assert_int_equal(tlm_chat_template_open(dir, &t, &e), TLM_EUNSUPPORTED);
    assert_null(t);
    drop(sub, "tool_use.jinja");
    rmdir(sub);
    drop(dir, "tokenizer_config.json");
    drop(dir, "special_tokens_map.json");
    drop(dir, "chat_template.jinja");
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variables), cmocka_unit_test(test_messages_as_transformers),
        cmocka_unit_test(test_continue),  cmocka_unit_test(test_raise_and_clock),
        cmocka_unit_test(test_directory),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
