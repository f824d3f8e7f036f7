/* Special tokens: what tokenizer.json and the files next to it say, and which of them decides. */
#include "train/scratch.h"
#include "train/tokenizer/tokenizer_impl.h"

#define ADDED(id, content)                                                                \
    "{\"id\":" #id ",\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false," \
    "\"rstrip\":false,\"normalized\":false,\"special\":true}"
#define TEMPLATE                                                                                \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","           \
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":" \
    "{\"id\":\"<s>\",\"ids\":[2],\"tokens\":[\"<s>\"]}}}"
#define AFTER                                                                                   \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}," \
    "{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"special_tokens\":{\"</s>\":"         \
    "{\"id\":\"</s>\",\"ids\":[3],\"tokens\":[\"</s>\"]}}}"

/* a 0, b 1, <s> 2, </s> 3, <end> 4, <pad> 5; </s> is the end of text by its name. */
static void save_tokenizer(struct scratch *s, const char *processor)
{
    char json[4096];
    snprintf(
        json, sizeof json,
        "{\"version\":\"1.0\",\"added_tokens\":[" ADDED(2, "<s>") "," ADDED(3, "</s>") "," ADDED(
            4, "<end>") "," ADDED(5, "<pad>") "],\"normalizer\":null,\"pre_tokenizer\":{"
                                              "\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                              "\"use_regex\":false},"
                                              "\"post_processor\":%s,\"model\":{\"type\":\"BPE\","
                                              "\"vocab\":{\"a\":0,\"b\":1},"
                                              "\"merges\":[]}}",
        processor);
    scratch_write(s, "tokenizer.json", json, strlen(json));
}

struct expected {
    int eot, begin, bos, pad;
    const char *eos, *stops; /* "3 4" */
};

static void expect_ids(const struct tokenizer_ids *list, const char *expected)
{
    char text[128] = "";
    size_t used = 0;
    for (int i = 0; i < list->count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? " " : "",
                                 (int)list->ids[i]);
    assert_string_equal(text, expected);
}

/* A file whose text is NULL does not exist. */
static void expect(const char *processor, const char *config, const char *generation,
                   const char *tokenizer_config, struct expected e)
{
    struct scratch s;
    struct tokenizer *t;
    const char *const names[] = {"config.json", "generation_config.json", "tokenizer_config.json"};
    const char *const texts[] = {config, generation, tokenizer_config};
    scratch_open(&s);
    save_tokenizer(&s, processor);
    for (int i = 0; i < 3; i++)
        if (texts[i])
            scratch_write(&s, names[i], texts[i], strlen(texts[i]));
    assert_ok(tokenizer_load(&s.env, scratch_path(&s, "tokenizer.json"), &t));
    const struct tokenizer_special *special = tokenizer_special(t);
    assert_int_equal(tokenizer_eot(t), e.eot);
    assert_int_equal(special->begin, e.begin);
    assert_int_equal(special->bos, e.bos);
    assert_int_equal(special->pad, e.pad);
    expect_ids(&special->eos, e.eos);
    expect_ids(&special->stops, e.stops);
    for (int id = 0; id < 6; id++)
        assert_int_equal(tokenizer_stops(t, id), strchr(e.stops, '0' + id) != NULL);
    assert_false(tokenizer_stops(t, -1));
    tokenizer_destroy(t);
    scratch_close(&s);
}

static void test_tokenizer_alone(void **state)
{
    (void)state;
    expect("null", NULL, NULL, NULL, (struct expected){3, -1, -1, -1, "3", "3"});
    expect(TEMPLATE, NULL, NULL, NULL, (struct expected){3, 2, -1, -1, "3", "3"});
    expect("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE "]}", NULL,
           NULL, NULL, (struct expected){3, 2, -1, -1, "3", "3"});
    expect(AFTER, NULL, NULL, NULL, (struct expected){3, -1, -1, -1, "3", "3"});
    expect("{\"type\":\"ByteLevel\"}", NULL, NULL, NULL,
           (struct expected){3, -1, -1, -1, "3", "3"});
}

static void test_ends(void **state)
{
    (void)state;
    expect("null", "{\"eos_token_id\":4,\"bos_token_id\":2,\"pad_token_id\":5}", NULL, NULL,
           (struct expected){4, -1, 2, 5, "4", "4"});
    expect("null", "{\"eos_token_id\":[4,3,4]}", NULL, NULL,
           (struct expected){4, -1, -1, -1, "4 3 4", "4 3"});
    expect("null", "{\"eos_token_id\":4}", "{\"eos_token_id\":[3,5]}", NULL,
           (struct expected){4, -1, -1, -1, "4", "3 5"});
    expect("null", "{\"eos_token_id\":null}", "{\"eos_token_id\":[5,4]}", NULL,
           (struct expected){5, -1, -1, -1, "5 4", "5 4"});
    expect("null", "{}", NULL, "{\"eos_token\":{\"content\":\"<end>\"}}",
           (struct expected){4, -1, -1, -1, "4", "4"});
    /* an ordinary token, a hole, a fraction and a name do not end texts */
    expect("null", "{\"eos_token_id\":[0,900,1.5,\"x\",4]}", NULL, NULL,
           (struct expected){4, -1, -1, -1, "0 900 4", "4"});
    expect("null", "{\"eos_token_id\":1}", NULL, "{\"eos_token\":\"a\"}",
           (struct expected){3, -1, -1, -1, "1", "3"});
}

static void test_begin(void **state)
{
    (void)state;
    const struct expected with = {3, 2, 2, -1, "3", "3"}, without = {3, -1, 2, -1, "3", "3"};
    expect("null", NULL, NULL, "{\"add_bos_token\":true,\"bos_token\":\"<s>\"}", with);
    expect("null", "{\"bos_token_id\":2}", NULL, "{\"add_bos_token\":true}", with);
    expect("null", "{\"bos_token_id\":2}", NULL, "{\"add_bos_token\":false}", without);
    expect(TEMPLATE, "{\"bos_token_id\":2}", NULL, "{\"add_bos_token\":false}", with);
    expect("null", "{\"bos_token_id\":2}", NULL,
           "{\"model_max_length\":1000000000000000019884624838656,\"add_bos_token\":true}", with);
    expect(TEMPLATE, "{\"bos_token_id\":2}", NULL, "{}", with);
}

static void test_bad_files_are_ignored(void **state)
{
    (void)state;
    const struct expected plain = {3, -1, -1, -1, "3", "3"};
    expect("null", "{\"eos_token_id\":", "[]", "nothing", plain);
    expect("null", "[1,2]", "", "\"x\"", plain);
}

static void test_files_are_kept(void **state)
{
    static const char text[] = "{ \"bos_token\" :\"<s>\"}\r\n\r\n";
    struct scratch s;
    struct tokenizer *t;
    char *back;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    save_tokenizer(&s, "null");
    scratch_write(&s, "special_tokens_map.json", text, sizeof text - 1);
    assert_ok(tokenizer_load(&s.env, s.folder, &t));
    assert_true(tokenizer_has_file(t, "special_tokens_map.json"));
    assert_false(tokenizer_has_file(t, "chat_template.jinja"));
    assert_ok(dir_create(&s.env, scratch_path(&s, "to")));
    assert_ok(tokenizer_save_files(t, scratch_path(&s, "to")));
    assert_ok(
        file_read(&s.env, scratch_path(&s, "to/special_tokens_map.json"), 1 << 20, &back, &bytes));
    assert_int_equal(bytes, sizeof text - 1);
    assert_memory_equal(back, text, bytes);
    assert_false(file_exists(scratch_path(&s, "to/chat_template.jinja")));
    mem_free(&s.env, back);
    tokenizer_destroy(t);
    scratch_close(&s);
}

static enum status load_and_destroy(struct env *env, const char *folder)
{
    struct tokenizer *t;
    TRY(tokenizer_load(env, folder, &t));
    tokenizer_destroy(t);
    return STATUS_OK;
}

static void test_each_allocation_may_fail(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    save_tokenizer(&s, TEMPLATE);
    scratch_text(&s, "config.json", "{\"eos_token_id\":[3,4]}");
    scratch_text(&s, "tokenizer_config.json", "{\"bos_token\":\"<s>\"}");
    scratch_text(&s, "chat_template.jinja", "{{ x }}");
    assert_true(testing_fail_each(load_and_destroy, s.folder) > 10);
    scratch_close(&s);
}

static void test_description(void **state)
{
    struct scratch s;
    struct tokenizer *t;
    struct text text;
    (void)state;
    scratch_open(&s);
    save_tokenizer(&s, TEMPLATE);
    scratch_write(&s, "generation_config.json", "{\"eos_token_id\":[3,4]}", 22);
    assert_ok(tokenizer_load(&s.env, s.folder, &t));
    text_init(&text, &s.env);
    tokenizer_describe_special(t, &text);
    assert_string_equal(text_string(&text), "texts begin with <s> (2) and end with </s> (3); "
                                            "generation stops at </s> (3), <end> (4)");
    text_free(&text);
    tokenizer_destroy(t);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_alone), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_begin),           cmocka_unit_test(test_bad_files_are_ignored),
        cmocka_unit_test(test_files_are_kept),  cmocka_unit_test(test_each_allocation_may_fail),
        cmocka_unit_test(test_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
