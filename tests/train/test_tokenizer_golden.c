/* The ids equal those of Hugging Face `tokenizers` (tools/tokenizer_vectors.py) and decode to the
 * text. */
#include <jansson.h>
#include "testing.h"
#include "train/tokenizer/tokenizer.h"

#define FOLDER "tests/train/golden/tokenizer/"

struct golden {
    struct env env;
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct token_list ids;
    struct text text;
};

static void check_ids(struct golden *g, const json_t *text, bool special, const json_t *expected)
{
    g->ids.count = 0;
    assert_ok(tokenizer_encode(g->encoder, json_string_value(text), json_string_length(text),
                               special, &g->ids));
    bool same = (size_t)g->ids.count == json_array_size(expected);
    for (int64_t i = 0; same && i < g->ids.count; i++)
        same = g->ids.ids[i] == json_integer_value(json_array_get(expected, (size_t)i));
    if (!same)
        fail_msg("'%s' (special %d) gives different ids", json_string_value(text), special);
}

/* For tokenizers that add and strip nothing. */
static void check_text(struct golden *g, const json_t *text)
{
    text_clear(&g->text);
    assert_ok(tokenizer_decode(g->tokenizer, g->ids.ids, g->ids.count, &g->text));
    assert_int_equal(g->text.bytes, json_string_length(text));
    assert_memory_equal(text_string(&g->text), json_string_value(text), g->text.bytes);
}

static void check_file(const char *tokenizer, const char *vectors, bool exact_text, int eot)
{
    struct golden g = {.env = testing_env(1)};
    json_error_t error;
    json_t *list = json_load_file(vectors, JSON_ALLOW_NUL, &error), *entry;
    size_t i;
    assert_non_null(list);
    assert_true(json_array_size(list) > 200);
    text_init(&g.text, &g.env);
    assert_ok(tokenizer_load(&g.env, tokenizer, &g.tokenizer));
    assert_ok(encoder_create(&g.env, g.tokenizer, &g.encoder));
    assert_int_equal(tokenizer_eot(g.tokenizer), eot);
    for (int again = 0; again < 2; again++) /* the second pass uses the cache */
        json_array_foreach(list, i, entry)
        {
            const json_t *text = json_object_get(entry, "text"),
                         *ordinary = json_object_get(entry, "ordinary");
            const json_t *special = json_object_get(entry, "special");
            check_ids(&g, text, true, special);
            check_ids(&g, text, false, json_is_array(ordinary) ? ordinary : special);
            if (exact_text)
                check_text(&g, text);
        }
    json_decref(list);
    token_list_free(&g.env, &g.ids);
    text_free(&g.text);
    encoder_destroy(g.encoder);
    tokenizer_destroy(g.tokenizer);
    env_destroy(&g.env);
}

static void test_gpt2_ids_match(void **state)
{
    (void)state;
    check_file(FOLDER "gpt2.json", FOLDER "gpt2-vectors.json", true, 0);
}

static void test_llama3_ids_match(void **state)
{
    (void)state;
    check_file(FOLDER "llama3.json", FOLDER "llama3-vectors.json", false, 1301);
}

static void test_prefixed_ids_match(void **state)
{
    (void)state;
    check_file(FOLDER "prefixed.json", FOLDER "prefixed-vectors.json", false, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_ids_match),
        cmocka_unit_test(test_llama3_ids_match),
        cmocka_unit_test(test_prefixed_ids_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
