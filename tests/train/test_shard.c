#include "train/scratch.h"
#include "train/data/shard.h"

struct sample {
    int32_t header[256];
    uint8_t tokens[16];
};

static const uint16_t NARROW[] = {1, 2, 3, 60000};
static const uint32_t WIDE[] = {1, 70000, 128255};

static struct sample make(int32_t magic, int32_t version, int32_t count, const void *tokens,
                          size_t bytes)
{
    struct sample f = {.header = {magic, version, count}};
    memcpy(f.tokens, tokens, bytes);
    return f;
}

static void refuse_with(struct scratch *s, const void *data, size_t bytes, enum shard_format format,
                        enum status st, const char *message)
{
    struct shard *shard = NULL;
    assert_int_equal(shard_open_memory(&s->env, data, bytes, "x", format, &shard), st);
    scratch_expect(s, message);
    assert_null(shard);
}

static void refuse(struct scratch *s, const void *data, size_t bytes, enum shard_format format,
                   const char *message)
{
    refuse_with(s, data, bytes, format, STATUS_FORMAT, message);
}

static void test_both_kinds_are_read(void **state)
{
    struct scratch s;
    struct shard *shard;
    (void)state;
    scratch_open(&s);
    struct sample f = make(20240520, 1, 4, NARROW, sizeof NARROW);
    const char *path = scratch_write(&s, "a.bin", &f, 1024 + sizeof NARROW);
    assert_int_equal(shard_open(&s.env, path, SHARD_LLMC, &shard), STATUS_OK);
    assert_int_equal(shard_count(shard), 4);
    assert_int_equal(shard_token_bytes(shard), 2);
    assert_memory_equal(shard_tokens(shard), NARROW, sizeof NARROW);
    assert_int_equal(shard_vocab(shard), 0);
    assert_int_equal(shard_fingerprint(shard), 0);
    assert_int_equal(shard_check(shard, 60001), STATUS_OK);
    assert_int_equal(shard_check(shard, 60000), STATUS_CONFIG);
    scratch_expect(&s, "token 60000 at position 3 is beyond the vocabulary of 60000");
    shard_close(shard);
    f = make(20240801, 7, 3, WIDE, sizeof WIDE);
    assert_int_equal(shard_open_memory(&s.env, &f, 1024 + sizeof WIDE, "x", SHARD_LLMC, &shard),
                     STATUS_OK);
    assert_int_equal(shard_token_bytes(shard), 4);
    assert_memory_equal(shard_tokens(shard), WIDE, sizeof WIDE);
    assert_int_equal(shard_check(shard, 128000), STATUS_CONFIG);
    scratch_expect(&s, "token 128255 at position 2");
    shard_close(shard);
    scratch_close(&s);
}

static void test_bare_numbers_are_read_when_configured(void **state)
{
    struct scratch s;
    struct shard *shard;
    (void)state;
    scratch_open(&s);
    assert_int_equal(shard_open_memory(&s.env, NARROW, sizeof NARROW, "x", SHARD_U16, &shard),
                     STATUS_OK);
    assert_int_equal(shard_count(shard), 4);
    shard_close(shard);
    assert_int_equal(shard_open_memory(&s.env, WIDE, sizeof WIDE, "x", SHARD_U32, &shard),
                     STATUS_OK);
    assert_int_equal(shard_count(shard), 3);
    assert_int_equal(shard_token_bytes(shard), 4);
    shard_close(shard);
    scratch_close(&s);
}

static void test_wrong_files_are_refused(void **state)
{
    struct scratch s;
    struct sample f = make(20240520, 1, 4, NARROW, sizeof NARROW);
    struct shard *shard;
    (void)state;
    scratch_open(&s);
    refuse(&s, &f, 1024 + 7, SHARD_LLMC,
           "truncated: 1031 bytes, but 4 tokens of 2 bytes need 1032");
    refuse(&s, &f, 1024 + 9, SHARD_LLMC, "too long");
    refuse(&s, &f, 100, SHARD_LLMC, "truncated");
    refuse(&s, NARROW, sizeof NARROW, SHARD_LLMC, "data.format to u16 or u32");
    refuse(&s, NULL, 0, SHARD_LLMC, "no token shard header");
    refuse(&s, NULL, 0, SHARD_U16, "empty");
    refuse(&s, NARROW, 3, SHARD_U16, "is not a multiple of 2");
    /* the file is fine, the configured format is not */
    refuse_with(&s, &f, 1024 + 8, SHARD_U16, STATUS_CONFIG, "has an llm.c header");
    f.header[1] = 2;
    refuse(&s, &f, 1024 + 8, SHARD_LLMC, "version 2");
    f.header[1] = 1;
    f.header[2] = 0;
    refuse(&s, &f, 1024, SHARD_LLMC, "no tokens");
    f.header[2] = -5;
    refuse(&s, &f, 1024, SHARD_LLMC, "no tokens");
    assert_int_equal(shard_open(&s.env, scratch_path(&s, "none"), SHARD_LLMC, &shard), STATUS_IO);
    scratch_expect(&s, "none");
    for (int n = 1; n <= 2; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(shard_open_memory(&s.env, NARROW, 8, "x", SHARD_U16, &shard),
                         STATUS_MEMORY);
    }
    scratch_close(&s);
}

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
    assert_true(dir_is_empty(NULL, s.folder));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_kinds_are_read),
        cmocka_unit_test(test_bare_numbers_are_read_when_configured),
        cmocka_unit_test(test_wrong_files_are_refused),
        cmocka_unit_test(test_the_vocabulary_decides_the_kind),
        cmocka_unit_test(test_tokens_beyond_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
