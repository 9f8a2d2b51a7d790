/* Rotary tables against transformers (tests/data/rope, made by
 * tests/oracle/make_rope_goldens.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tensor/rope.h"

static double number(const cJSON *c, const char *key)
{
    const cJSON *v = json_get(c, key);
    assert_true(cJSON_IsNumber(v));
    return v->valuedouble;
}

/* Angles at a position tell the frequency: cos and sin of p * inv_freq. */
static void check_case(const cJSON *c)
{
    struct tlm_error e = {0};
    struct rope r;
    int64_t dim = (int64_t)number(c, "dim"), length = (int64_t)number(c, "length");
    struct rope_params p = {dim, dim, (float)number(c, "theta"), (int64_t)number(c, "max_positions"), false};
    assert_int_equal(rope_init(&r, &p, json_get(c, "settings"), "settings", &e), TLM_OK);
    float *cs = mem_alloc_array((size_t)(length * dim / 2), sizeof *cs);
    float *sn = mem_alloc_array((size_t)(length * dim / 2), sizeof *sn);
    assert_non_null(cs);
    assert_non_null(sn);
    rope_table(&r, 0, length, cs, sn); /* a call of this length */
    if (length == 1)
        rope_table(&r, 1, 1, cs, sn);
    int64_t at = length == 1 ? 0 : 1; /* the row of position 1 */
    double factor = number(c, "factor");
    const cJSON *want = json_get(c, "inv_freq");
    int i = 0;
    for (const cJSON *v = want->child; v; v = v->next, i++) {
        double f = v->valuedouble;
        assert_true(fabs(cs[at * dim / 2 + i] - factor * cos(f)) < 2e-6);
        assert_true(fabs(sn[at * dim / 2 + i] - factor * sin(f)) < 2e-6);
    }
    assert_int_equal(i, dim / 2);
    mem_free(cs);
    mem_free(sn);
    rope_deinit(&r);
}

static void test_goldens(void **state)
{
    (void)state;
    struct tlm_error e = {0};
    cJSON *doc;
    assert_int_equal(json_load(TURBOLM_TEST_DATA "/rope/goldens.json", 1 << 20, &doc, &e), TLM_OK);
    int n = 0;
    for (const cJSON *c = json_get(doc, "cases")->child; c; c = c->next, n++)
        check_case(c);
    assert_true(n >= 11);
    cJSON_Delete(doc);
}

static void refuse(const char *text, const char *needle)
{
    struct tlm_error e = {0};
    struct rope r;
    struct rope_params p = {64, 64, 10000, 4096, false};
    cJSON *s = cJSON_Parse(text);
    assert_non_null(s);
    assert_int_not_equal(rope_init(&r, &p, s, "rope_scaling", &e), TLM_OK);
    if (!strstr(e.message, needle))
        fail_msg("%s: message '%s' lacks '%s'", text, e.message, needle);
    cJSON_Delete(s);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("{\"rope_type\": \"new\", \"factor\": 2}", "'new'");
    refuse("{\"rope_type\": \"linear\"}", "rope_scaling.factor");
    refuse("{\"rope_type\": \"linear\", \"factor\": -1}", "rope_scaling.factor");
    refuse("{\"rope_type\": \"yarn\", \"factor\": \"4\"}", "a string");
    refuse("{\"rope_type\": 5}", "a number");
    refuse("{\"rope_theta\": 0.5}", "rope_theta");
    refuse("{\"rope_type\": \"longrope\", \"short_factor\": [1]}", "original_max_position_embeddings");
    refuse("{\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 64, \"long_factor\": [1]}",
           "long_factor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goldens), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
