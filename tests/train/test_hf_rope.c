/* test_hf_rope -- rotary positions: the rope keys of a config.json give the cos and sin of
 * transformers (golden/rope.json, by tools/golden_rope.py), also after they were written and read
 * again. */
#include <math.h>
#include "testing.h"
#include "model/model.h"
#include "train/weights/hf_rope.h"

#define BOUND 5e-6 /* transformers forms angles in fp32 */

struct fixture {
    struct env env;
    json_t *golden;
};

static int open_fixture(void **state)
{
    static struct fixture f;
    json_error_t error;
    f.env = testing_env(1);
    f.golden = json_load_file("tests/train/golden/rope.json", 0, &error);
    *state = &f;
    return f.golden ? 0 : -1;
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    json_decref(f->golden);
    env_destroy(&f->env);
    return 0;
}

static struct model_config model_of(const struct hf_config *hf)
{
    return (struct model_config){.arch = MODEL_LLAMA,
                                 .head_width = hf->head_dim,
                                 .context = hf->context,
                                 .rope_theta = hf->rope_theta,
                                 .rope_scaling = (int)hf->rope,
                                 .rope_factor = hf->rope_factor,
                                 .rope_low = hf->rope_low,
                                 .rope_high = hf->rope_high,
                                 .rope_original = hf->rope_original,
                                 .rope = hf->rope_extras};
}

/* Rows of a table are those of the positions, as far as the text reaches. */
static void check_table(const char *name, const struct model_config *c, enum rope_table which,
                        const json_t *positions, const json_t *rows)
{
    int64_t half = rope_width(c) / 2;
    float *table = calloc((size_t)(c->context * half * 2), sizeof *table);
    assert_non_null(table);
    assert_true(rope_has(c, which) && json_array_size(rows) > 0);
    rope_table_fill(c, which, table);
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r);
        int64_t t = json_integer_value(json_array_get(positions, r));
        assert_int_equal(json_array_size(row), half);
        for (int64_t i = 0; i < half; i++)
            for (int k = 0; k < 2; k++) {
                const json_t *pair = json_array_get(row, (size_t)i);
                double wanted = json_number_value(json_array_get(pair, (size_t)k));
                double found = (double)table[2 * (t * half + i) + k];
                if (!(fabs(found - wanted) < BOUND))
                    fail_msg("%s, table %d: position %d, pair %d: %s is %.8f, not %.8f", name,
                             (int)which, (int)t, (int)i, k ? "sin" : "cos", found, wanted);
            }
    }
    free(table);
}

static void read_keys(struct fixture *f, const json_t *root, struct hf_config *config)
{
    *config = (struct hf_config){
        .head_dim = json_integer_value(json_object_get(root, "head_dim")),
        .context = json_integer_value(json_object_get(root, "max_position_embeddings"))};
    assert_ok(hf_rope_read(&f->env, "rope.json", root, 1, config));
}

static void check_tables(struct fixture *f, const char *name, const struct hf_config *config,
                         const json_t *tables)
{
    static const char *const words[ROPE_TABLES] = {"usual", "longer", "local"};
    struct model_config c = model_of(config);
    for (int which = 0; which < ROPE_TABLES; which++) {
        const json_t *rows = json_object_get(tables, words[which]);
        if (rows)
            check_table(name, &c, which, json_object_get(f->golden, "positions"), rows);
        else if (rope_has(&c, which))
            fail_msg("%s: transformers has no table '%s'", name, words[which]);
    }
}

static void test_tables(void **state)
{
    struct fixture *f = *state;
    const json_t *cases = json_object_get(f->golden, "cases");
    assert_true(json_array_size(cases) >= 32);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        struct hf_config config, again;
        read_keys(f, json_object_get(c, "config"), &config);
        check_tables(f, name, &config, json_object_get(c, "tables"));

        struct text text;
        text_init(&text, &f->env);
        text_printf(&text, "{\"head_dim\": %d, \"max_position_embeddings\": %d",
                    (int)config.head_dim, (int)config.context);
        hf_rope_print(&config, &text);
        text_add(&text, "}");
        json_t *written = json_loads(text.data, 0, NULL);
        assert_non_null(written);
        read_keys(f, written, &again);
        assert_memory_equal(&again, &config, sizeof again);
        check_tables(f, name, &again, json_object_get(c, "tables"));
        json_decref(written);
        text_free(&text);
    }
}

static void refuse(struct fixture *f, const char *json, const char *why)
{
    struct hf_config config = {.head_dim = 16, .context = 64};
    json_t *root = json_loads(json, 0, NULL);
    assert_non_null(root);
    log_error_clear(f->env.log);
    assert_int_not_equal(hf_rope_read(&f->env, "x.json", root, 10000, &config), STATUS_OK);
    assert_non_null(strstr(log_first_error(f->env.log), why));
    json_decref(root);
}

static void accept(struct fixture *f, const char *text, enum model_arch arch, enum hf_rope rope)
{
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    struct hf_config config = {.arch = arch, .head_dim = 2, .context = 64};
    assert_non_null(root);
    assert_ok(hf_rope_read(&f->env, "x.json", root, 10000, &config));
    assert_int_equal(config.rope, rope);
    json_decref(root);
}

static void test_refusals(void **state)
{
    struct fixture *f = *state;
    refuse(f, "{\"rope_scaling\":{\"type\":\"proportional\"}}", "'proportional' is not supported");
    refuse(f, "{\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[1]}}", "mrope_section");
    refuse(f, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":-1}}", "factor is not a positive");
    refuse(f, "{\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":0}}",
           "original_max_position_embeddings");
    refuse(f, "{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}", "long_factor");
    refuse(f, "{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[0]}}", "short_factor");
    refuse(f, "{\"partial_rotary_factor\":2}", "partial_rotary_factor 2 is above 1");
    refuse(f,
           "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},"
           "\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}}",
           "sliding_attention");
    refuse(f, "{\"rope_parameters\":[1]}", "rope_parameters is not an object");
    refuse(f, "{\"rope_scaling\":\"linear\"}", "rope_scaling is not an object");
    refuse(f, "{\"rope_parameters\":{\"full_attention\":1}}", "full_attention is not an object");
    refuse(f, "{\"rope_scaling\":{\"type\":\"linear\"}}", "the rope object has no factor");
    refuse(f, "{\"rope_scaling\":{\"type\":\"dynamic\"}}", "the rope object has no factor");
    refuse(f, "{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":[1]}}",
           "'su' is not supported"); /* only in Phi-3 */
}

#define PLAIN "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6}"
#define YARN  "\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32"

/* Qwen's model cards tell users to add rope_scaling to config.json. Files of transformers 5 already
 * have rope_parameters there, so the two may disagree. */
static void test_both_objects_agree(void **state)
{
    struct fixture *f = *state;
    refuse(f, "{" PLAIN ",\"rope_scaling\":{" YARN "}}", "rope_scaling and rope_parameters differ");
    refuse(f, "{\"rope_parameters\":{" YARN "},\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}",
           "differ in their factor");
    refuse(f,
           "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6},"
           "\"sliding_attention\":{}},\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
           "differ in their");
    accept(f, "{" PLAIN ",\"rope_scaling\":null}", MODEL_LLAMA, HF_ROPE_PLAIN);
    accept(f, "{" PLAIN ",\"rope_scaling\":{}}", MODEL_LLAMA, HF_ROPE_PLAIN);
    accept(f,
           "{\"rope_parameters\":{\"rope_theta\":1e6," YARN
           "},\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
           MODEL_LLAMA, HF_ROPE_YARN);
}

#define LISTS ",\"short_factor\":[1],\"long_factor\":[2],\"original_max_position_embeddings\":16}}"
static void test_older_words_of_phi3(void **state)
{
    struct fixture *f = *state;
    accept(f, "{\"rope_scaling\":{\"type\":\"su\"" LISTS, MODEL_PHI3, HF_ROPE_LONGROPE);
    accept(f, "{\"rope_scaling\":{\"type\":\"yarn\"" LISTS, MODEL_PHI3, HF_ROPE_LONGROPE);
    accept(f, "{\"rope_scaling\":{" YARN "}}", MODEL_PHI3, HF_ROPE_YARN);
    accept(f, "{\"rope_scaling\":{\"type\":\"yarn\"" LISTS, MODEL_LLAMA, HF_ROPE_YARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tables, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_refusals, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_both_objects_agree, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(test_older_words_of_phi3, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
