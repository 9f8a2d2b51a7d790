/* The template engine against goldens of jinja2 (tests/data/jinja, made by
 * tests/oracle/make_jinja_goldens.py), and its limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/jinja.h"
#include "text/jinja_eval.h"

static struct jinja_run golden_run;
static struct jv golden, programs;

static struct jv read_golden(const char *path, struct tlm_error *e)
{
    char *text;
    size_t n;
    if (file_read(path, 8 << 20, &text, &n, e) != TLM_OK)
        return jv_error;
    struct jv v = jinja_json_read(&golden_run, text, n);
    mem_free(text);
    return v;
}

static int load(void **state)
{
    (void)state;
    static struct tlm_error e;
    jinja_run_init(&golden_run, NULL, "goldens", &e);
    golden = read_golden(TURBOLM_TEST_DATA "/jinja/goldens.json", &e);
    programs = read_golden(TURBOLM_TEST_DATA "/jinja/programs.json", &e);
    return golden.type == JV_DICT && programs.type == JV_DICT ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    jinja_run_deinit(&golden_run);
    return 0;
}

static struct jv member(const char *name)
{
    const struct jv *v = jv_dict_find(golden.u.d, name);
    assert_non_null(v);
    return *v;
}

/* Renders with limits; the status, and the text in out. */
static enum tlm_status render(const char *source, size_t n, struct jv vars, const struct jinja_limits *limits,
                              struct buf *out, struct tlm_error *e)
{
    struct jinja_template *t;
    struct jinja_run r;
    enum tlm_status s = jinja_compile(source, n, "template", &t, e);
    if (s != TLM_OK)
        return s;
    jinja_run_init(&r, limits, "template", e);
    r.now = 0;
    if (vars.type != JV_DICT)
        vars = jv_dict_new(&r);
    s = jinja_render(t, &r, vars, out);
    jinja_run_deinit(&r);
    jinja_free(t);
    return s;
}

static int differs(const struct jv_str *source, struct jv vars, struct jv want, const char *label)
{
    struct buf out;
    struct tlm_error e = {0};
    buf_init(&out, 16 << 20);
    bool ok = render(source->p, source->n, vars, NULL, &out, &e) == TLM_OK;
    bool same = want.type == JV_STR ? ok && out.len == want.u.s->n && !memcmp(buf_str(&out), want.u.s->p, out.len)
                                    : !ok && e.message[0];
    if (!same)
        fprintf(stderr, "%s\n%.*s\nwant: %.*s\ngot: %s\n", label, (int)source->n, source->p,
                want.type == JV_STR ? (int)want.u.s->n : 7, want.type == JV_STR ? want.u.s->p : "(error)",
                ok ? buf_str(&out) : e.message);
    buf_deinit(&out);
    return !same;
}

static void test_random(void **state)
{
    (void)state;
    struct jv cases = member("cases"), vars = member("vars");
    int bad = 0;
    assert_true(cases.u.l->n > 500);
    for (size_t i = 0; i < cases.u.l->n; i++) {
        struct jv *row = cases.u.l->v[i].u.l->v;
        bad += differs(row[0].u.s, vars, row[1], "random template");
    }
    assert_int_equal(bad, 0);
}

/* Programs of tests/oracle/jinja_programs.py: every statement, filter and
 * method, with arguments that fit and that do not. */
static void test_programs(void **state)
{
    (void)state;
    const struct jv *cases = jv_dict_find(programs.u.d, "cases"), *vars = jv_dict_find(programs.u.d, "vars");
    int bad = 0;
    assert_non_null(cases);
    assert_non_null(vars);
    assert_true(cases->u.l->n > 1000);
    for (size_t i = 0; i < cases->u.l->n; i++) {
        struct jv *row = cases->u.l->v[i].u.l->v;
        bad += differs(row[0].u.s, *vars, row[1], "program");
    }
    assert_int_equal(bad, 0);
}

/* The variables of make_jinja_goldens.chat_variables. */
static struct jv chat_variables(struct jinja_run *r, const struct jv *row)
{
    static const char *const tokens[][2] = {{"bos_token", "<s>"},
                                            {"eos_token", "</s>"},
                                            {"unk_token", "<unk>"},
                                            {"pad_token", "<pad>"},
                                            {"date_string", "26 Jul 2024"}};
    struct jv v = jv_dict_new(r), conversations = member("conversations"), messages;
    assert_int_equal(jv_dict_get(r, conversations.u.d, row[1], &messages), 1);
    jv_dict_set(r, v.u.d, jv_cstr(r, "messages"), messages);
    jv_dict_set(r, v.u.d, jv_cstr(r, "tools"), row[2].u.i ? member("tools") : jv_none);
    jv_dict_set(r, v.u.d, jv_cstr(r, "documents"), jv_none);
    jv_dict_set(r, v.u.d, jv_cstr(r, "add_generation_prompt"), row[3]);
    if (!row[3].u.i)
        jv_dict_set(r, v.u.d, jv_cstr(r, "enable_thinking"), jv_false);
    for (int i = 0; i < 5; i++)
        jv_dict_set(r, v.u.d, jv_cstr(r, tokens[i][0]), jv_cstr(r, tokens[i][1]));
    return v;
}

static void test_chats(void **state)
{
    (void)state;
    struct jv chats = member("chats");
    int bad = 0;
    assert_true(chats.u.l->n > 200);
    for (size_t i = 0; i < chats.u.l->n; i++) {
        const struct jv *row = chats.u.l->v[i].u.l->v;
        char path[512], *text;
        size_t n;
        struct tlm_error e = {0};
        snprintf(path, sizeof path, "%s/jinja/%.*s", TURBOLM_TEST_DATA, (int)row[0].u.s->n, row[0].u.s->p);
        assert_int_equal(file_read(path, 1 << 20, &text, &n, &e), TLM_OK);
        struct jv_str source = {text, n, 0, false};
        bad += differs(&source, chat_variables(&golden_run, row), row[4], path);
        mem_free(text);
    }
    assert_int_equal(bad, 0);
}

static void test_limits(void **state)
{
    (void)state;
    static const char *const too_much[] = {
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 9999999999 }}",
        "{{ '%9999999d' % 1 }}",
        "{% for i in range(99999) %}{{ 'y' * 1000 }}{% endfor %}",
        "{{ range(10000000) }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    };
    const struct jinja_limits limits = {.memory = 4 << 20, .output = 1 << 20, .steps = 1000000, .depth = 300};
    for (size_t i = 0; i < sizeof too_much / sizeof too_much[0]; i++) {
        struct buf out;
        struct tlm_error e = {0};
        buf_init(&out, 2 << 20);
        assert_int_equal(render(too_much[i], strlen(too_much[i]), jv_none, &limits, &out, &e), TLM_ELIMIT);
        assert_true(e.message[0]);
        buf_deinit(&out);
    }
}

static void test_deep_source(void **state)
{
    (void)state;
    static const char *const open[] = {"(", "[", "{% if 1 %}", "not ", "-", "a.", "1+", "{{"};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        struct buf b, out;
        struct tlm_error e = {0};
        buf_init(&b, 1 << 20);
        buf_init(&out, 1 << 20);
        if (open[i][0] != '{')
            buf_add_str(&b, "{{ ");
        for (int k = 0; k < 20000; k++)
            buf_add_str(&b, open[i]);
        assert_int_not_equal(render(b.data, b.len, jv_none, NULL, &out, &e), TLM_OK);
        buf_deinit(&b);
        buf_deinit(&out);
    }
}

static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *source, *message;
        enum tlm_status status;
    } rows[] = {
        {"a\n{{ x.y }}", "template: line 2: 'x' is undefined", TLM_EINVAL},
        {"{{ raise_exception('own words') }}", "own words", TLM_EINVAL},
        {"{% include 'x' %}", "template: line 1: a chat template cannot load another template", TLM_EINVAL},
        {"{{ 'a'.encode() }}", "template: line 1: the method str.encode is not supported", TLM_EUNSUPPORTED},
        {"{{ [1, 2]|random }}", "template: line 1: the filter random is not supported", TLM_EUNSUPPORTED},
        {"{{ (-8) ** 0.5 }}", "template: line 1: complex numbers are not supported", TLM_EINVAL},
        {"{{ lipsum() }}", "template: line 1: the function lipsum is not supported", TLM_EUNSUPPORTED},
        {"{{ 'a'|nope }}", "template: line 1: No filter named 'nope'.", TLM_EFORMAT},
        {"\n{% if 1 %}",
         "template: line 2: Unexpected end of template. Jinja was looking for the following tags: "
         "'elif' or 'else' or 'endif'. The innermost block that needs to be closed is 'if'.",
         TLM_EFORMAT},
        {"{% if 1 %}{% set x %}a{% endset %}{% else %}",
         "template: line 1: Unexpected end of template. Jinja was looking for the following tags: "
         "'endif'. The innermost block that needs to be closed is 'if'.",
         TLM_EFORMAT},
        {"{% for a in b %}",
         "template: line 1: Unexpected end of template. Jinja was looking for the following tags: "
         "'endfor' or 'else'. The innermost block that needs to be closed is 'for'.",
         TLM_EFORMAT},
        {"{% if 1 %}{% nope %}",
         "template: line 1: Encountered unknown tag 'nope'. Jinja was looking for the following tags: "
         "'elif' or 'else' or 'endif'. The innermost block that needs to be closed is 'if'.",
         TLM_EFORMAT},
        {"{% if 1 %}{% call m() %}{% endif %}",
         "template: line 1: Encountered unknown tag 'endif'. You probably made a nesting mistake. Jinja is expecting "
         "this tag, but currently looking for 'endcall'. The innermost block that needs to be closed is 'call'.",
         TLM_EFORMAT},
        {"{% endif %}", "template: line 1: Encountered unknown tag 'endif'.", TLM_EFORMAT},
        {"{{ [].append(1) }}", "template: line 1: access to attribute 'append' of 'list' object is unsafe.",
         TLM_EINVAL},
        {"{{ 1 // 0 }}", "template: line 1: integer division or modulo by zero", TLM_EINVAL},
        {"{{ 10 ** 5000 }}", "template: line 1: an integer has more than the limit of 4300 digits", TLM_ELIMIT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf out;
        struct tlm_error e = {0};
        buf_init(&out, 1 << 20);
        assert_int_equal(render(rows[i].source, strlen(rows[i].source), jv_none, NULL, &out, &e), rows[i].status);
        assert_string_equal(e.message, rows[i].message);
        buf_deinit(&out);
    }
}

/* Every allocation fails once: an error each time, no leak, no crash. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char source[] = "{% for a in [1, 2, 'x'] %}{{ a|string|upper ~ [a] }}{% endfor %}";
    enum tlm_status s = TLM_ENOMEM;
    for (long n = 1; s != TLM_OK && n < 1000; n++) {
        struct buf out;
        struct tlm_error e = {0};
        buf_init(&out, 1 << 20);
        mem_fail_at(n, 0);
        s = render(source, sizeof source - 1, jv_none, NULL, &out, &e);
        mem_fail_at(0, 0);
        assert_true(s == TLM_OK || s == TLM_ENOMEM);
        if (s == TLM_OK)
            assert_string_equal(buf_str(&out), "1[1]2[2]X['x']");
        buf_deinit(&out);
    }
    assert_int_equal(s, TLM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),    cmocka_unit_test(test_programs),    cmocka_unit_test(test_chats),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_deep_source), cmocka_unit_test(test_messages),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("jinja", tests, load, unload);
}
