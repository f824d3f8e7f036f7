#include "train/scratch.h"
#include "train/data/shard.h"

/* Write `count` tokens i * 7 % vocab in parts of odd sizes, and read them back. */
static void round_trip(int64_t vocab, int token_bytes, int64_t count)
{
    struct scratch s;
    struct shard_writer *writer;
    struct shard *shard;
    int32_t piece[1000];
    scratch_open(&s);
    const char *path = scratch_path(&s, "a.bin");
    assert_int_equal(shard_writer_create(&s.env, path, vocab, 0x123456789abcdef0u, &writer),
                     STATUS_OK);
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < 1000 ? count - done : 1000;
        for (int64_t i = 0; i < n; i++)
            piece[i] = (int32_t)((done + i) * 7 % vocab);
        assert_int_equal(shard_writer_add(writer, piece, n), STATUS_OK);
    }
    assert_int_equal(shard_writer_count(writer), count);
    assert_false(file_exists(path));
    assert_int_equal(shard_writer_finish(writer), STATUS_OK);
    shard_writer_destroy(writer);
    assert_int_equal(shard_open(&s.env, path, SHARD_LLMC, &shard), STATUS_OK);
    assert_int_equal(shard_count(shard), count);
    assert_int_equal(shard_token_bytes(shard), token_bytes);
    assert_int_equal(shard_vocab(shard), vocab);
    assert_true(shard_fingerprint(shard) == 0x123456789abcdef0u);
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = 0;
        memcpy(&token, (const uint8_t *)shard_tokens(shard) + i * token_bytes, (size_t)token_bytes);
        assert_int_equal(token, i * 7 % vocab);
    }
    shard_close(shard);
    scratch_close(&s);
}

static void test_the_vocabulary_decides_the_kind(void **state)
{
    (void)state;
    round_trip(65536, 2, 300001);
    round_trip(65537, 4, 300001);
    round_trip(257, 2, 1);
}

static void test_tokens_beyond_the_vocabulary_are_refused(void **state)
{
    struct scratch s;
    struct shard_writer *writer;
    int32_t high = 100, negative = -1;
    (void)state;
    scratch_open(&s);
    assert_int_equal(shard_writer_create(&s.env, scratch_path(&s, "a"), 100, 0, &writer),
                     STATUS_OK);
    assert_int_equal(shard_writer_add(writer, &high, 1), STATUS_FORMAT);
    scratch_expect(&s, "token 100 is beyond the vocabulary of 100");
    assert_int_equal(shard_writer_add(writer, &negative, 1), STATUS_FORMAT);
    log_error_clear(s.env.log);
    assert_int_equal(shard_writer_finish(writer), STATUS_FORMAT);
    scratch_expect(&s, "no tokens");
    shard_writer_destroy(writer);
    assert_true(dir_is_empty(s.folder));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_vocabulary_decides_the_kind),
        cmocka_unit_test(test_tokens_beyond_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
