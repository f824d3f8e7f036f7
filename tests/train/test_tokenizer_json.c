/* tokenizer.json: refused files and their messages, both forms of merges, failing allocations. */
#include "testing.h"
#include "base/file.h"
#include "train/tokenizer/tokenizer.h"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define SPLIT(regex, behavior) \
    "{\"type\":\"Split\",\"pattern\":" regex ",\"behavior\":\"" behavior "\",\"invert\":false}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define MODEL(more)           \
    "{\"type\":\"BPE\"," more \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3},\"merges\":[\"a b\"]}"
#define VOCAB(vocab, merges) "{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define FILE_OF(version, added, normalizer, pre, model)                                    \
    "{\"version\":\"" version "\",\"added_tokens\":[" added "],\"normalizer\":" normalizer \
    ",\"pre_tokenizer\":" pre ",\"model\":" model "}"
#define WITH_NORMALIZER(normalizer) FILE_OF("1.0", "", normalizer, BYTE_LEVEL, MODEL(""))
#define WITH_MODEL_AND(pre, model)  FILE_OF("1.0", "", "null", pre, model)
#define WITH_AFTER(more) \
    "{\"version\":\"1.0\",\"pre_tokenizer\":" BYTE_LEVEL "," more ",\"model\":" MODEL("") "}"
#define WITH_DECODER(decoder) \
    "{\"version\":\"1.0\",\"decoder\":" decoder ",\"model\":" MODEL("") "}"
#define WITH_PRE(pre)     FILE_OF("1.0", "", "null", pre, MODEL(""))
#define WITH_MODEL(model) FILE_OF("1.0", "", "null", BYTE_LEVEL, model)
#define WITH_ADDED(added) FILE_OF("1.0", added, "null", BYTE_LEVEL, MODEL(""))

static const struct {
    const char *json;
    enum status status;
    const char *message; /* part of it */
} bad[] = {
    {"", STATUS_FORMAT, "line 1"},
    {"{\"version\":\"1.0\",", STATUS_FORMAT, "line 1"},
    {"[]", STATUS_FORMAT, "it has no \"model\""},
    {"{\"model_type\":\"gpt2\"}", STATUS_FORMAT, "a model's config.json"},
    {"{\"model\":{\"type\":\"WordPiece\"}}", STATUS_CONFIG, "'WordPiece'"},
    {"{\"model\":{\"type\":\"BPE\"}}", STATUS_FORMAT, "version"},
    {FILE_OF("2.0", "", "null", BYTE_LEVEL, MODEL("")), STATUS_FORMAT, "'2.0'"},
    {WITH_NORMALIZER("{\"type\":\"StripAccents\"}"), STATUS_CONFIG, "'StripAccents'"},
    {WITH_NORMALIZER("{\"type\":\"Prepend\"}"), STATUS_CONFIG, "'Prepend'"},
    {WITH_NORMALIZER("{\"type\":\"Sequence\"}"), STATUS_FORMAT, "'normalizers'"},
    {WITH_NORMALIZER("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}"),
     STATUS_CONFIG, "Replace"},
    {WITH_PRE("null"), STATUS_CONFIG, "decoder is null"},
    {WITH_PRE("{\"type\":\"Metaspace\"}"), STATUS_FORMAT, "'replacement'"},
    {WITH_PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"),
     STATUS_CONFIG, "'last'"},
    {WITH_PRE("{\"type\":\"Whitespace\"}"), STATUS_CONFIG, "'Whitespace'"},
    {WITH_PRE("{\"type\":\"ByteLevel\",\"use_regex\":3}"), STATUS_FORMAT, "'use_regex'"},
    {WITH_PRE(SEQUENCE("{\"type\":\"Whitespace\"}," BYTE_LEVEL)), STATUS_CONFIG, "'Whitespace'"},
    {WITH_PRE(SEQUENCE(SEQUENCE(BYTE_LEVEL))), STATUS_CONFIG, "a Sequence in a Sequence"},
    {WITH_PRE(SEQUENCE(
         "{\"type\":\"Digits\"},{\"type\":\"Metaspace\",\"replacement\":\"_\"}," BYTE_LEVEL)),
     STATUS_CONFIG, "'Metaspace' after others"},
    {WITH_PRE(SEQUENCE(BYTE_LEVEL "," SPLIT("{\"Regex\":\"a\"}", "Isolated"))), STATUS_CONFIG,
     "'Split' after ByteLevel"},
    {WITH_PRE(SEQUENCE(SPLIT("{\"Regex\":\"a\"}", "Dropped") "," BYTE_LEVEL)), STATUS_CONFIG,
     "'Dropped'"},
    {WITH_PRE(SEQUENCE(SPLIT("{\"String\":\"\"}", "Isolated") "," BYTE_LEVEL)), STATUS_CONFIG,
     "String"},
    {WITH_PRE(SEQUENCE(SPLIT("{\"Regex\":\"(a\"}", "Isolated") "," BYTE_LEVEL)), STATUS_FORMAT,
     "'(a'"},
    {WITH_PRE(SEQUENCE(SPLIT("{\"Regex\":\"a\"}",
                             "Isolated") ",{\"type\":\"ByteLevel\",\"add_prefix_space\":true}")),
     STATUS_CONFIG, "add_prefix_space"},
    {WITH_MODEL("null"), STATUS_CONFIG, "model 'without a type'"},
    {WITH_MODEL("{\"type\":\"Unigram\"}"), STATUS_CONFIG, "'Unigram'"},
    {WITH_MODEL("{\"type\":\"WordPiece\"}"), STATUS_CONFIG, "'WordPiece'"},
    {WITH_MODEL(MODEL("\"byte_fallback\":true,")), STATUS_CONFIG, "byte_fallback"},
    {WITH_MODEL_AND("null", MODEL("\"unk_token\":\"?\",")), STATUS_FORMAT, "'?'"},
    {WITH_AFTER("\"post_processor\":{\"type\":\"Unknown\"}"), STATUS_CONFIG, "'Unknown'"},
    {WITH_AFTER("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"),
     STATUS_FORMAT, "no text"},
    {WITH_AFTER("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
                "[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]}"),
     STATUS_FORMAT, "item 1"},
    {WITH_AFTER("\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"x\",99]}"),
     STATUS_FORMAT, "not in the vocabulary"},
    {WITH_DECODER("{\"type\":\"WordPiece\"}"), STATUS_CONFIG, "'WordPiece'"},
    {WITH_DECODER("{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"), STATUS_CONFIG,
     "'Strip' is not supported here"},
    {WITH_DECODER("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                  "\"content\":\" \",\"start\":-1,\"stop\":0}]}"),
     STATUS_FORMAT, "'start'"},
    {WITH_MODEL(MODEL("\"dropout\":0.1,")), STATUS_CONFIG, "dropout"},
    {WITH_MODEL(MODEL("\"continuing_subword_prefix\":\"##\",")), STATUS_CONFIG,
     "continuing_subword_prefix"},
    {WITH_MODEL("{\"type\":\"WordLevel\"}"), STATUS_CONFIG, "'WordLevel'"},
    {WITH_MODEL(MODEL("\"end_of_word_suffix\":\"</w>\",")), STATUS_CONFIG, "end_of_word_suffix"},
    {WITH_MODEL(MODEL("\"ignore_merges\":1,")), STATUS_FORMAT, "ignore_merges"},
    {WITH_MODEL("{\"type\":\"BPE\",\"merges\":[]}"), STATUS_FORMAT, "vocab"},
    {WITH_MODEL("{\"type\":\"BPE\",\"vocab\":{}}"), STATUS_FORMAT, "merges"},
    {WITH_MODEL(VOCAB("\"a\":0,\"b\":0", "")), STATUS_FORMAT, "which another token also has"},
    {WITH_MODEL(VOCAB("\"a\":0,\"a\":1", "")), STATUS_FORMAT, "duplicate"},
    {WITH_MODEL(VOCAB("\"a\":-1", "")), STATUS_FORMAT, "'a'"},
    {WITH_MODEL(VOCAB("\"a\":2147483647", "")), STATUS_FORMAT, "'a'"},
    {WITH_MODEL(VOCAB("\"a\":\"0\"", "")), STATUS_FORMAT, "'a'"},
    {WITH_MODEL(VOCAB("\"a\":0,\"b\":1", "\"a b\"")), STATUS_FORMAT, "merge 0"},
    {WITH_MODEL(VOCAB("\"a\":0,\"aa\":1", "\"a  a\"")), STATUS_FORMAT, "merge 0"},
    {WITH_MODEL(VOCAB("\"a\":0,\"aa\":1", "[\"a\"]")), STATUS_FORMAT, "merge 0"},
    {WITH_MODEL(VOCAB("\"a\":0,\"aa\":1", "[\"a\",\"a\",\"a\"]")), STATUS_FORMAT, "merge 0"},
    {WITH_MODEL(VOCAB("\"a\":0,\"\":1", "[\"a\",\"\"]")), STATUS_FORMAT, "merge 0"},
    {WITH_MODEL(VOCAB("\"a\":0,\"aa\":1", "7")), STATUS_FORMAT, "merge 0"},
    /* é is byte 0xe9 in the byte alphabet, 語 is not in it: the result is stored as text and differs
     * from the concatenated bytes of its parts */
    {WITH_MODEL(VOCAB("\"é\":0,\"語\":1,\"é語\":2", "[\"é\",\"語\"]")), STATUS_FORMAT,
     "not those of its parts"},
    {WITH_ADDED("{\"id\":9}"), STATUS_FORMAT, "added token 0"},
    {WITH_ADDED("{\"id\":-9,\"content\":\"x\"}"), STATUS_FORMAT, "added token 0"},
    {WITH_ADDED("{\"id\":1,\"content\":\"x\"}"), STATUS_FORMAT, "'x'"},
    {WITH_ADDED("{\"id\":7,\"content\":\"ab\"}"), STATUS_FORMAT, "'ab'"},
    {WITH_ADDED("{\"id\":7,\"content\":\"x\",\"single_word\":true}"), STATUS_CONFIG, "single_word"},
    {WITH_ADDED("{\"id\":7,\"content\":\"x\",\"special\":\"yes\"}"), STATUS_FORMAT, "'special'"},
};

static void test_wrong_files_are_refused(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        log_error_clear(env.log);
        enum status st =
            tokenizer_parse(&env, bad[i].json, strlen(bad[i].json), "file.json", &tokenizer);
        const char *error = log_first_error(env.log);
        if (st != bad[i].status || !strstr(error, bad[i].message) ||
            strncmp(error, "file.json: ", 11) != 0)
            fail_msg("%s\ngave %s, '%s'", bad[i].json, status_name(st), error);
    }
    env_destroy(&env);
}

/* `expected` lists the ids of `text` as "7,8,9," */
static void check_encode(const char *json, const char *text, const char *expected)
{
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct token_list ids = {0};
    struct text list;
    text_init(&list, &env);
    assert_ok(tokenizer_parse(&env, json, strlen(json), "file.json", &tokenizer));
    assert_ok(encoder_create(&env, tokenizer, &encoder));
    assert_ok(tokenizer_encode(encoder, text, strlen(text), true, &ids));
    for (int64_t i = 0; i < ids.count; i++)
        text_printf(&list, "%d,", ids.ids[i]);
    assert_string_equal(text_string(&list), expected);
    text_free(&list);
    token_list_free(&env, &ids);
    encoder_destroy(encoder);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

static void test_both_forms_of_merges_are_read(void **state)
{
    (void)state;
    check_encode(WITH_MODEL(VOCAB("\"a\":0,\"b\":1,\"ab\":2,\"aab\":3",
                                  "\"#version: 0.2\",\"a b\",\"a ab\"")),
                 "aabab", "3,2,");
    check_encode(
        WITH_MODEL(VOCAB("\"a\":0,\"b\":1,\"ab\":2,\"aab\":3", "[\"a\",\"b\"],[\"a\",\"ab\"]")),
        "aabab", "3,2,");
    /* the rank is the index: now "aa" is merged before "ab" */
    check_encode(
        WITH_MODEL(VOCAB("\"a\":0,\"b\":1,\"ab\":2,\"aa\":3", "[\"a\",\"a\"],[\"a\",\"b\"]")),
        "aabab", "3,1,2,");
    /* of two equal merges the later one wins */
    check_encode(WITH_MODEL(VOCAB("\"a\":0,\"b\":1,\"ab\":2,\"aa\":3",
                                  "[\"a\",\"a\"],[\"a\",\"b\"],[\"a\",\"a\"]")),
                 "aabab", "0,2,2,");
}

static void test_ignore_merges_keeps_whole_words(void **state)
{
    (void)state;
#define WORDS(ignore)                                        \
    WITH_MODEL("{\"type\":\"BPE\",\"ignore_merges\":" ignore \
               ",\"vocab\":{\"a\":0,\"b\":1,\"ba\":2,\"aba\":3},\"merges\":[[\"b\",\"a\"]]}")
    check_encode(WORDS("true"), "aba", "3,");
    check_encode(WORDS("false"), "aba", "0,2,");
}

/* The bytes of an added token are its content; the vocabulary entry of the same name need not be
 * spelled in the byte alphabet. */
static void test_added_tokens_have_their_content(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    size_t bytes;
    static const char json[] = FILE_OF(
        "1.0",
        "{\"id\":1,\"content\":\"<a b>\",\"special\":true},{\"id\":7,\"content\":\"é\"},"
        "{\"id\":9,\"content\":\"\"},{\"id\":7,\"content\":\"é\"}",
        "null", BYTE_LEVEL, VOCAB("\"a\":0,\"<a b>\":1,\"\\u0120\":2,\"語\":3,\"é\":4", ""));
    assert_int_equal(tokenizer_parse(&env, json, strlen(json), "x", &tokenizer),
                     STATUS_FORMAT); /* é is 4 */
    static const char fine[] = FILE_OF(
        "1.0",
        "{\"id\":1,\"content\":\"<a b>\",\"special\":true},{\"id\":4,\"content\":\"é\"},"
        "{\"id\":9,\"content\":\"\"},{\"id\":4,\"content\":\"é\"}",
        "null", BYTE_LEVEL, VOCAB("\"a\":0,\"<a b>\":1,\"\\u0120\":2,\"語\":3,\"é\":4", ""));
    assert_ok(tokenizer_parse(&env, fine, strlen(fine), "x", &tokenizer));
    static const char *const contents[] = {"a", "<a b>", " ", "語", "é"};
    for (int id = 0; id < 5; id++) {
        const void *token = tokenizer_token(tokenizer, id, &bytes);
        assert_int_equal(bytes, strlen(contents[id]));
        assert_memory_equal(token, contents[id], bytes);
    }
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

static void test_end_of_text_is_found_by_name(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    static const char json[] =
        WITH_ADDED("{\"id\":8,\"content\":\"</s>\"},{\"id\":9,\"content\":\"<|end_of_text|>\"}");
    assert_ok(tokenizer_parse(&env, json, strlen(json), "x", &tokenizer));
    assert_int_equal(tokenizer_eot(tokenizer), 9);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

/* Every allocation fails once: nothing leaks (env_destroy checks), and the result is STATUS_MEMORY,
 * except in the JIT compiler of regexes, without which matching still works. */
static void fail_allocations(const char *path)
{
    struct env env = testing_env(1);
    struct file_map map;
    bool reached = true;
    assert_ok(file_map_open(&env, path, &map));
    for (int64_t n = 1; reached; n++) {
        struct tokenizer *tokenizer = NULL;
        struct encoder *encoder = NULL;
        struct token_list ids = {0};
        int64_t before = mem_allocation_count(env.mem);
        mem_fail_at(env.mem, n);
        enum status st = tokenizer_parse(&env, (const char *)map.data, map.bytes, "x", &tokenizer);
        if (st == STATUS_OK)
            st = encoder_create(&env, tokenizer, &encoder);
        if (st == STATUS_OK)
            st = tokenizer_encode(encoder, "the <strip> end", 15, true, &ids);
        mem_fail_at(env.mem, 0);
        reached = mem_allocation_count(env.mem) - before >= n;
        assert_true(st == STATUS_OK || (reached && st == STATUS_MEMORY));
        assert_true(n > 4 || st == STATUS_MEMORY);
        token_list_free(&env, &ids);
        encoder_destroy(encoder);
        tokenizer_destroy(tokenizer);
        assert_true(n < 200);
    }
    file_map_close(&map);
    env_destroy(&env);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    fail_allocations("tests/train/golden/tokenizer/llama3.json");
    fail_allocations("tests/fuzz/seeds/tokenizer_json/llama2.json");
    fail_allocations("tests/fuzz/seeds/tokenizer_json/metaspace.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_files_are_refused),
        cmocka_unit_test(test_both_forms_of_merges_are_read),
        cmocka_unit_test(test_ignore_merges_keeps_whole_words),
        cmocka_unit_test(test_added_tokens_have_their_content),
        cmocka_unit_test(test_end_of_text_is_found_by_name),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
