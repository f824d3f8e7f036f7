/* The tokenizer on real text. Without arguments this is a test: learn, save, load, encode and
 * decode a source file of this tree. With arguments it is the workbench that bench/tokenizer.py,
 * tools/tokenizer_peer.py and tools/tokenizer_kinds.py run. It prints one JSON object:
 *
 *   test_tokenizer_workbench encode TOKENIZER TEXT IDS    encode documents, write int32 ids
 *   test_tokenizer_workbench texts TOKENIZER TEXTS OUT    encode and decode each text, which follows
 *   test_tokenizer_workbench ordinary TOKENIZER TEXTS OUT its length as an int32; write counts, ids,
 *                                                         lengths, bytes; ordinary: no special tokens
 *   test_tokenizer_workbench train TEXT VOCAB TOKENIZER   learn a vocabulary, write tokenizer.json
 */
#include <time.h>
#include <unistd.h>
#include "testing.h"
#include "base/file.h"
#include "train/learn.h"

/* A document ends with the first line that reaches this size, as in bench/tokenizer.py. */
#define DOCUMENT_BYTES 4096
#define ROUNDS         5 /* the best is reported */

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static size_t document_bytes(const uint8_t *text, size_t bytes)
{
    if (bytes <= DOCUMENT_BYTES)
        return bytes;
    const uint8_t *end = memchr(text + DOCUMENT_BYTES - 1, '\n', bytes - DOCUMENT_BYTES + 1);
    return end ? (size_t)(end - text) + 1 : bytes;
}

/* Each round starts with an empty cache. */
static double encode_round(struct env *env, const struct tokenizer *tokenizer,
                           const struct file_map *map, struct token_list *ids)
{
    struct encoder *encoder;
    ids->count = 0;
    double start = cpu_seconds();
    assert_ok(encoder_create(env, tokenizer, &encoder));
    for (size_t at = 0, length; at < map->bytes; at += length) {
        length = document_bytes(map->data + at, map->bytes - at);
        assert_ok(tokenizer_encode(encoder, map->data + at, length, false, ids));
    }
    encoder_destroy(encoder);
    return cpu_seconds() - start;
}

static int bench_encode(const char *tokenizer_path, const char *text_path, const char *ids_path)
{
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct file_map map;
    struct token_list ids = {0};
    double best = 1e30;
    assert_ok(tokenizer_load(&env, tokenizer_path, &tokenizer));
    assert_ok(file_map_open(&env, text_path, &map));
    for (int round = 0; round < ROUNDS; round++) {
        double seconds = encode_round(&env, tokenizer, &map, &ids);
        best = seconds < best ? seconds : best;
    }
    assert_ok(file_write_atomic(&env, ids_path, ids.ids, (size_t)ids.count * sizeof *ids.ids));
    printf("{\"bytes\": %zu, \"tokens\": %lld, \"seconds\": %.6f}\n", map.bytes,
           (long long)ids.count, best);
    token_list_free(&env, &ids);
    file_map_close(&map);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
    return 0;
}

static int encode_texts(const char *tokenizer_path, const char *texts_path, const char *out_path,
                        bool special)
{
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct file_map map;
    struct token_list ids = {0};
    struct text out, back;
    int32_t bytes;
    size_t texts = 0;
    text_init(&out, &env);
    text_init(&back, &env);
    assert_ok(tokenizer_load(&env, tokenizer_path, &tokenizer));
    assert_ok(encoder_create(&env, tokenizer, &encoder));
    assert_ok(file_map_open(&env, texts_path, &map));
    for (size_t at = 0; at < map.bytes; at += (size_t)bytes, texts++) {
        memcpy(&bytes, map.data + at, sizeof bytes);
        at += sizeof bytes;
        ids.count = 0;
        assert_ok(tokenizer_encode(encoder, map.data + at, (size_t)bytes, special, &ids));
        text_clear(&back);
        assert_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, &back));
        int32_t count = (int32_t)ids.count, length = (int32_t)back.bytes;
        text_add_bytes(&out, &count, sizeof count);
        text_add_bytes(&out, ids.ids, (size_t)ids.count * sizeof *ids.ids);
        text_add_bytes(&out, &length, sizeof length);
        text_add_bytes(&out, text_string(&back), back.bytes);
    }
    assert_ok(file_write_atomic(&env, out_path, text_string(&out), out.bytes));
    printf("{\"texts\": %zu}\n", texts);
    text_free(&out);
    text_free(&back);
    token_list_free(&env, &ids);
    encoder_destroy(encoder);
    file_map_close(&map);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
    return 0;
}

static int bench_train(const char *text_path, int vocab, const char *tokenizer_path)
{
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    struct file_map map;
    assert_ok(file_map_open(&env, text_path, &map));
    double start = cpu_seconds();
    assert_ok(learn_text(&env, map.data, map.bytes, vocab, NULL, NULL, &tokenizer));
    double seconds = cpu_seconds() - start;
    assert_ok(tokenizer_save(tokenizer, tokenizer_path));
    printf("{\"bytes\": %zu, \"vocab\": %d, \"seconds\": %.6f, \"peak_bytes\": %zu}\n", map.bytes,
           tokenizer_vocab(tokenizer), seconds, mem_total_peak(env.mem));
    file_map_close(&map);
    tokenizer_destroy(tokenizer);
    env_destroy(&env);
    return 0;
}

static void test_a_source_file_round_trips(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer *learnt, *loaded;
    struct file_map map;
    struct token_list a = {0}, b = {0};
    struct text back;
    char folder[] = "/tmp/sifr-tokenizer-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_ok(file_map_open(&env, "src/train/tokenizer/tokenizer_json.c", &map));
    assert_ok(learn_text(&env, map.data, map.bytes, 600, NULL, NULL, &learnt));
    assert_ok(tokenizer_save(learnt, path));
    assert_ok(tokenizer_load(&env, folder, &loaded));
    encode_round(&env, learnt, &map, &a);
    encode_round(&env, loaded, &map, &b);
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.ids, b.ids, (size_t)a.count * sizeof *a.ids);
    assert_true((size_t)a.count * 2 < map.bytes);
    text_init(&back, &env);
    assert_ok(tokenizer_decode(loaded, a.ids, a.count, &back));
    assert_int_equal(back.bytes, map.bytes);
    assert_memory_equal(back.data, map.data, map.bytes);
    text_free(&back);
    unlink(path);
    rmdir(folder);
    token_list_free(&env, &a);
    token_list_free(&env, &b);
    file_map_close(&map);
    tokenizer_destroy(learnt);
    tokenizer_destroy(loaded);
    env_destroy(&env);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "encode") == 0)
        return bench_encode(argv[2], argv[3], argv[4]);
    if (argc == 5 && (strcmp(argv[1], "texts") == 0 || strcmp(argv[1], "ordinary") == 0))
        return encode_texts(argv[2], argv[3], argv[4], argv[1][0] == 't');
    if (argc == 5 && strcmp(argv[1], "train") == 0)
        return bench_train(argv[2], atoi(argv[3]), argv[4]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_source_file_round_trips)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
