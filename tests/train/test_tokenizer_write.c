/* The written file is JSON, has the fields that other readers need, and parses to the same
 * tokens. */
#include <jansson.h>
#include "testing.h"
#include "train/tokenizer/tokenizer_impl.h"

static void test_the_file_has_all_fields(void **state)
{
    (void)state;
    /* byte b has id 255 - b: " " is 223, "a" 158, "\"" 221, "\\" 163, 0xff 0 */
    static const struct merge merges[] = {{223, 158, 256}, {221, 163, 257}, {256, 0, 258}};
    static const struct {
        int32_t id;
        const char *spelling, *bytes;
    } tokens[] = {{256, "\u0120a", " a"},           {257, "\"\\", "\"\\"},
                  {258, "\u0120a\u00ff", " a\xff"}, {255, "\u0100", "\0"},
                  {82, "\u0143", "\xad"},           {259, "<|endoftext|>", "<|endoftext|>"}};
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    uint8_t order[256];
    size_t bytes;
    for (int i = 0; i < 256; i++)
        order[i] = (uint8_t)(255 - i);
    assert_ok(tokenizer_build(&env, order, merges, 3, "test", &tokenizer));
    assert_int_equal(tokenizer_vocab(tokenizer), 260);
    assert_int_equal(tokenizer_eot(tokenizer), 259);
    json_t *root =
        json_loadb(tokenizer->source, tokenizer->source_bytes, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    assert_int_equal(json_object_size(vocab), 260);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const void *token = tokenizer_token(tokenizer, tokens[i].id, &bytes);
        size_t expected = tokens[i].id == 255 ? 1 : strlen(tokens[i].bytes);
        assert_int_equal(bytes, expected);
        assert_memory_equal(token, tokens[i].bytes, bytes);
        assert_int_equal(json_integer_value(json_object_get(vocab, tokens[i].spelling)),
                         tokens[i].id);
    }
    static const char *const needed[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                         "end_of_word_suffix"};
    for (size_t i = 0; i < 4; i++)
        assert_true(json_is_null(json_object_get(model, needed[i])));
    assert_true(json_is_null(json_object_get(root, "normalizer")));
    assert_string_equal(json_string_value(json_object_get(root, "version")), "1.0");
    const json_t *first = json_array_get(json_object_get(model, "merges"), 0);
    assert_string_equal(json_string_value(json_array_get(first, 0)), "\u0120");
    assert_string_equal(json_string_value(json_array_get(first, 1)), "a");
    json_decref(root);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_file_has_all_fields)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
