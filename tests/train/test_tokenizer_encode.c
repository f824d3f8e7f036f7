/* decode(encode(x)) == x for any bytes; the encoder's state never changes a result; threads may
 * share a tokenizer. */
#include <pthread.h>
#include "testing.h"
#include "base/file.h"
#include "base/rng.h"
#include "train/tokenizer/tokenizer.h"

#define GOLDEN "tests/train/golden/tokenizer/"

struct rig {
    struct env env;
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct token_list ids;
    struct text back;
};

static void rig_open(struct rig *rig, const char *path)
{
    *rig = (struct rig){.env = testing_env(1)};
    text_init(&rig->back, &rig->env);
    assert_ok(tokenizer_load(&rig->env, path, &rig->tokenizer));
    assert_ok(encoder_create(&rig->env, rig->tokenizer, &rig->encoder));
}

static void rig_close(struct rig *rig)
{
    token_list_free(&rig->env, &rig->ids);
    text_free(&rig->back);
    encoder_destroy(rig->encoder);
    tokenizer_destroy(rig->tokenizer);
    env_destroy(&rig->env);
}

static void check_round_trip(struct rig *rig, const void *text, size_t bytes, bool special)
{
    rig->ids.count = 0;
    text_clear(&rig->back);
    assert_ok(tokenizer_encode(rig->encoder, text, bytes, special, &rig->ids));
    assert_ok(tokenizer_decode(rig->tokenizer, rig->ids.ids, rig->ids.count, &rig->back));
    assert_int_equal(rig->back.bytes, bytes);
    assert_memory_equal(text_string(&rig->back), text, bytes);
}

static void random_bytes(struct rng rng, uint8_t *text, size_t bytes, uint64_t kinds)
{
    static const char alphabet[] =
        " \n\t'aest.<|>0\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80\xff\xc0\xed\xa0";
    for (size_t i = 0; i < bytes; i++)
        text[i] = kinds % 2 ? (uint8_t)rng_bits(rng, i)
                            : (uint8_t)alphabet[rng_below(rng, i, sizeof alphabet - 1)];
}

static void test_any_bytes_decode_to_themselves(void **state)
{
    (void)state;
    static const char *const files[] = {"bytes", GOLDEN "gpt2.json", GOLDEN "llama3.json"};
    static uint8_t text[1 << 16];
    for (size_t f = 0; f < 3; f++) {
        struct rig rig;
        rig_open(&rig, files[f]);
        for (uint64_t n = 0; n < 400; n++) {
            struct rng rng = rng_stream(n, "bytes");
            size_t bytes = n < 300 ? rng_below(rng, 1 << 20, 80) : n < 399 ? 2000 : sizeof text;
            random_bytes(rng, text, bytes, n);
            check_round_trip(&rig, text, bytes, false);
            check_round_trip(&rig, text, bytes, true);
        }
        for (int byte = 0; byte < 256;
             byte++) { /* long runs of one byte, and each byte in a word */
            memset(text, byte, 5000);
            check_round_trip(&rig, text, 5000, false);
            memcpy(text, "word word", 9);
            text[4] = (uint8_t)byte;
            check_round_trip(&rig, text, 9, false);
        }
        rig_close(&rig);
    }
}

static void test_special_is_ordinary_text_by_default(void **state)
{
    (void)state;
    static const char text[] = "a<|endoftext|>b";
    struct rig rig;
    rig_open(&rig, GOLDEN "gpt2.json");
    check_round_trip(&rig, text, strlen(text), false);
    for (int64_t i = 0; i < rig.ids.count; i++)
        assert_int_not_equal(rig.ids.ids[i], tokenizer_eot(rig.tokenizer));
    check_round_trip(&rig, text, strlen(text), true);
    assert_int_equal(rig.ids.count, 3);
    assert_int_equal(rig.ids.ids[1], tokenizer_eot(rig.tokenizer));
    rig_close(&rig);
}

struct job {
    const struct tokenizer *tokenizer;
    const struct file_map *map;
    struct env env;
    struct token_list ids;
};

static void *encode_alone(void *user)
{
    struct job *job = user;
    struct encoder *encoder;
    if (encoder_create(&job->env, job->tokenizer, &encoder) != STATUS_OK)
        return "encoder_create";
    for (size_t at = 0; at < job->map->bytes; at += 1000) {
        size_t bytes = job->map->bytes - at < 1000 ? job->map->bytes - at : 1000;
        if (tokenizer_encode(encoder, job->map->data + at, bytes, false, &job->ids) != STATUS_OK)
            return "tokenizer_encode";
    }
    encoder_destroy(encoder);
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    struct rig rig;
    struct job jobs[THREADS];
    pthread_t threads[THREADS];
    struct file_map map;
    void *failed;
    rig_open(&rig, GOLDEN "llama3.json");
    assert_ok(file_map_open(&rig.env, GOLDEN "gpt2.json", &map));
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){rig.tokenizer, &map, testing_env(1), {0}};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_alone, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        assert_int_equal(jobs[i].ids.count, jobs[0].ids.count);
        assert_memory_equal(jobs[i].ids.ids, jobs[0].ids.ids,
                            (size_t)jobs[0].ids.count * sizeof(int32_t));
    }
    for (int i = 0; i < THREADS; i++) {
        token_list_free(&jobs[i].env, &jobs[i].ids);
        env_destroy(&jobs[i].env);
    }
    file_map_close(&map);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_bytes_decode_to_themselves),
        cmocka_unit_test(test_special_is_ordinary_text_by_default),
        cmocka_unit_test(test_threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
