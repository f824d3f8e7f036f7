/* Every kind of tokenizer.json gives the ids of Hugging Face `tokenizers`: for hard texts, and for
 * every assigned code point in three contexts (tools/tokenizer_kinds.py --golden). */
#include <jansson.h>
#include "testing.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

#define FILE_PATH "tests/train/golden/tokenizer/kinds.json"

struct kind {
    struct env env;
    const char *name;
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct token_list ids;
};

/* A hash of 53 bits, as in the tool. */
static uint64_t fold(uint64_t value, uint64_t next)
{
    return (value ^ (next + 1)) * 0x100000001b3u & (((uint64_t)1 << 53) - 1);
}

static uint64_t fold_text(struct kind *k, const void *text, size_t bytes, bool special,
                          uint64_t value)
{
    k->ids.count = 0;
    assert_ok(tokenizer_encode(k->encoder, text, bytes, special, &k->ids));
    value = fold(value, (uint64_t)k->ids.count);
    for (int64_t i = 0; i < k->ids.count; i++)
        value = fold(value, (uint64_t)k->ids.ids[i]);
    return value;
}

static void check_texts(struct kind *k, const json_t *texts, const json_t *hashes)
{
    const json_t *text;
    size_t i;
    json_array_foreach(texts, i, text)
    {
        uint64_t value = fold_text(k, json_string_value(text), json_string_length(text), true, 0);
        if (value != (uint64_t)json_integer_value(json_array_get(hashes, i)))
            fail_msg("%s: text %zu, '%s' gives different ids", k->name, i, json_string_value(text));
    }
}

static void check_ordinary_texts(struct kind *k, const json_t *texts, uint64_t expected)
{
    const json_t *text;
    size_t i;
    uint64_t value = 0;
    json_array_foreach(texts, i, text)
    {
        value = fold_text(k, json_string_value(text), json_string_length(text), false, value);
    }
    if (value != expected)
        fail_msg("%s: without special tokens, some text gives different ids", k->name);
}

/* The ids of a code point in three contexts: "a?b", " ??", "1? \u0301?". */
static uint64_t fold_code(struct kind *k, uint32_t code, uint64_t value)
{
    static const char *const contexts[] = {"a?b", " ??", "1? \xcc\x81?"};
    uint8_t utf8[4];
    size_t length = utf8_write(code, utf8);
    for (int i = 0; i < 3; i++) {
        char text[32];
        size_t bytes = 0;
        for (const char *c = contexts[i]; *c; c++) {
            bool here = *c == '?';
            memcpy(text + bytes, here ? (const char *)utf8 : c, here ? length : 1);
            bytes += here ? length : 1;
        }
        value = fold_text(k, text, bytes, true, value);
    }
    return value;
}

static bool is_assigned(const struct unicode_run *run)
{
    const char *category = unicode_categories[run->category];
    return category[0] != 'C' || category[1] == 'c' || category[1] == 'f'; /* not Cn, Co, Cs */
}

static void check_codes(struct kind *k, uint64_t expected)
{
    uint64_t value = 0;
    int64_t count = 0;
    for (size_t i = 0; i < unicode_runs_count; i++) {
        uint32_t end = i + 1 < unicode_runs_count ? unicode_runs[i + 1].start : UNICODE_END;
        for (uint32_t code = unicode_runs[i].start; is_assigned(&unicode_runs[i]) && code < end;
             code++, count++)
            value = fold_code(k, code, value);
    }
    assert_int_equal(count, 155063); /* of Unicode 16, private use excluded */
    if (value != expected)
        fail_msg("%s: some code point gives different ids", k->name);
}

/* The file has the models once; a tokenizer names its own. */
static char *whole_file(json_t *tokenizer, const json_t *models)
{
    json_t *model = json_object_get(tokenizer, "model");
    const json_t *of = json_object_get(models, json_string_value(json_object_get(model, "of")));
    assert_int_equal(json_object_set(model, "vocab", json_object_get(of, "vocab")), 0);
    assert_int_equal(json_object_set(model, "merges", json_object_get(of, "merges")), 0);
    return json_dumps(tokenizer, 0);
}

static void check_kind(const char *name, const json_t *entry, const json_t *root)
{
    struct kind k = {.env = testing_env(1), .name = name};
    const json_t *texts = json_object_get(root, "texts");
    char *source = whole_file(json_object_get(entry, "tokenizer"), json_object_get(root, "models"));
    assert_ok(tokenizer_parse(&k.env, source, strlen(source), name, &k.tokenizer));
    assert_ok(encoder_create(&k.env, k.tokenizer, &k.encoder));
    check_texts(&k, texts, json_object_get(entry, "special"));
    check_ordinary_texts(&k, texts,
                         (uint64_t)json_integer_value(json_object_get(entry, "ordinary")));
    if (testing_sampled())
        check_codes(&k, (uint64_t)json_integer_value(json_object_get(entry, "codes")));
    free(source);
    token_list_free(&k.env, &k.ids);
    encoder_destroy(k.encoder);
    tokenizer_destroy(k.tokenizer);
    env_destroy(&k.env);
}

static void test_ids_of_every_kind_match(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(FILE_PATH, JSON_ALLOW_NUL, &error), *entry;
    json_t *kinds = json_object_get(root, "kinds");
    const char *name;
    assert_non_null(root);
    assert_true(json_array_size(json_object_get(root, "texts")) > 200);
    assert_true(json_object_size(kinds) > 40);
    json_object_foreach(kinds, name, entry)
    {
        check_kind(name, entry, root);
    }
    json_decref(root);
}

/* --- decoding and the post-processor -------------------------------------------------------- */

#define CHARS(pre, decoder)                                                                       \
    "{\"version\":\"1.0\",\"pre_tokenizer\":" pre ",\"decoder\":" decoder                         \
    ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"RobertaProcessing\"," \
    "\"cls\":[\"b\",1],\"sep\":[\"a\",0]},{\"type\":\"TemplateProcessing\",\"single\":["          \
    "{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}},"                            \
    "{\"SpecialToken\":{\"id\":\"y\"}}],\"special_tokens\":{\"x\":{\"ids\":[3,2]},"               \
    "\"y\":{\"ids\":[4]}}}]},"                                                                    \
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"b\":1,"              \
    "\"\\u2581\":2,\"\\u2581a\":3,\"<0xC3>\":4,\"<0xA9>\":5,\"<0xFF>\":6},"                       \
    "\"merges\":[[\"\\u2581\",\"a\"]]}}"
#define METASPACE \
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\"}"
#define STEPS                                                                             \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":" \
    "\"\\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"    \
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}]}"

static void check_decode(const char *json, const char *text, const char *expected)
{
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct token_list ids = {0};
    struct text out;
    text_init(&out, &env);
    text_add(&out, ">");
    assert_ok(tokenizer_parse(&env, json, strlen(json), "file.json", &tokenizer));
    assert_ok(encoder_create(&env, tokenizer, &encoder));
    assert_ok(tokenizer_encode(encoder, text, strlen(text), true, &ids));
    assert_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, &out));
    assert_string_equal(text_string(&out), expected);
    text_free(&out);
    token_list_free(&env, &ids);
    encoder_destroy(encoder);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

static void test_decoders_restore_the_text(void **state)
{
    (void)state;
    check_decode(CHARS(METASPACE, STEPS), "a b\xc3\xa9 a", ">a b\xc3\xa9 a");
    check_decode(CHARS(METASPACE, STEPS), "a\xff", ">a\xff"); /* bytes survive, valid or not */
    check_decode(CHARS(METASPACE, STEPS), "a  ", ">a ");      /* stop strips one */
    check_decode(CHARS(METASPACE, STEPS), "", ">");
    check_decode(CHARS(METASPACE, METASPACE), "a  a", ">a  a");
    check_decode(CHARS("null", METASPACE), " a", ">a"); /* the space has no token and is dropped */
}

static void test_the_template_nests(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    int64_t count;
    static const char json[] = CHARS(METASPACE, STEPS);
    assert_ok(tokenizer_parse(&env, json, strlen(json), "file.json", &tokenizer));
    const int32_t *ids = tokenizer_template(tokenizer, false, &count);
    assert_int_equal(count, 3);
    assert_true(ids[0] == 3 && ids[1] == 2 && ids[2] == 1);
    ids = tokenizer_template(tokenizer, true, &count);
    assert_int_equal(count, 2);
    assert_true(ids[0] == 0 && ids[1] == 4);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_of_every_kind_match),
        cmocka_unit_test(test_decoders_restore_the_text),
        cmocka_unit_test(test_the_template_nests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
