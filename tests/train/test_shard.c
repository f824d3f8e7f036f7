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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_kinds_are_read),
        cmocka_unit_test(test_bare_numbers_are_read_when_configured),
        cmocka_unit_test(test_wrong_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
