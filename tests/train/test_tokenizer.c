/* The byte tokenizer, loading from a path, saving byte for byte, decoding, ids without a token. */
#include <sys/stat.h>
#include <unistd.h>
#include "testing.h"
#include "base/file.h"
#include "train/tokenizer/tokenizer.h"

#define GOLDEN "tests/train/golden/tokenizer/"

static void test_every_byte_is_a_token(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct token_list ids = {0};
    struct text back;
    uint8_t all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    assert_ok(tokenizer_load(&env, "bytes", &tokenizer));
    assert_int_equal(tokenizer_vocab(tokenizer), 257);
    assert_int_equal(tokenizer_eot(tokenizer), 256);
    assert_ok(encoder_create(&env, tokenizer, &encoder));
    assert_ok(tokenizer_encode(encoder, all, sizeof all, false, &ids));
    assert_int_equal(ids.count, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(ids.ids[i], i);
    assert_ok(tokenizer_encode(encoder, "<|endoftext|>", 13, true, &ids)); /* appends */
    assert_int_equal(ids.count, 257);
    assert_int_equal(ids.ids[256], 256);
    text_init(&back, &env);
    assert_ok(tokenizer_decode(tokenizer, ids.ids, 257, &back));
    assert_int_equal(back.bytes, 256 + 13);
    assert_memory_equal(back.data, all, 256);
    ids.count = 0;
    assert_ok(tokenizer_encode(encoder, "<|endoftext|>", 13, false, &ids));
    assert_int_equal(ids.count, 13);
    assert_ok(tokenizer_encode(encoder, NULL, 0, true, &ids));
    assert_int_equal(ids.count, 13);
    text_free(&back);
    token_list_free(&env, &ids);
    encoder_destroy(encoder);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

static void test_save_writes_the_same_file(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct file_map before, after;
    char folder[] = "/tmp/sifr-tokenizer-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_ok(tokenizer_load(&env, GOLDEN "llama3.json", &tokenizer));
    assert_ok(tokenizer_save(tokenizer, path));
    tokenizer_destroy(tokenizer);
    assert_ok(file_map_open(&env, GOLDEN "llama3.json", &before));
    assert_ok(file_map_open(&env, path, &after));
    assert_int_equal(before.bytes, after.bytes);
    assert_memory_equal(before.data, after.data, before.bytes);
    file_map_close(&before);
    file_map_close(&after);
    assert_ok(tokenizer_load(&env, folder, &tokenizer)); /* the folder that contains it */
    assert_int_equal(tokenizer_vocab(tokenizer), 1309);
    tokenizer_destroy(tokenizer);
    unlink(path);
    assert_int_equal(tokenizer_load(&env, folder, &tokenizer), STATUS_IO);
    assert_non_null(strstr(log_first_error(env.log), "tokenizer.json"));
    rmdir(folder);
    env_destroy(&env);
}

static void test_decode_names_unknown_ids(void **state)
{
    (void)state;
    static const char holes[] =
        "{\"version\":\"1.0\",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
        ","
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":5},\"merges\":[]}}";
    static const int32_t bad[] = {-1, 1, 6, INT32_MAX};
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct text text;
    size_t bytes;
    const int32_t good[] = {5, 0};
    assert_ok(tokenizer_parse(&env, holes, strlen(holes), "holes", &tokenizer));
    assert_int_equal(tokenizer_vocab(tokenizer), 6);
    assert_int_equal(tokenizer_eot(tokenizer), -1);
    text_init(&text, &env);
    assert_ok(tokenizer_decode(tokenizer, good, 2, &text));
    assert_string_equal(text_string(&text), "ba");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[32];
        log_error_clear(env.log);
        assert_null(tokenizer_token(tokenizer, bad[i], &bytes));
        assert_int_equal(tokenizer_decode(tokenizer, &bad[i], 1, &text), STATUS_FORMAT);
        snprintf(name, sizeof name, "id %d ", bad[i]);
        assert_non_null(strstr(log_first_error(env.log), name));
    }
    text_free(&text);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_is_a_token),
        cmocka_unit_test(test_save_writes_the_same_file),
        cmocka_unit_test(test_decode_names_unknown_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
