/* The three kinds of sources become the token streams drawn in source.h. */
#include "train/scratch.h"
#include "train/data/shard.h"
#include "train/data/source.h"
#include "train/learn.h"

#define EOT 256 /* of the byte tokenizer */

struct fixture {
    struct scratch s;
    struct tokenizer *tokenizer;
    struct source *source;
};

static void begin(struct fixture *f)
{
    scratch_open(&f->s);
    assert_int_equal(tokenizer_bytes(&f->s.env, &f->tokenizer), STATUS_OK);
    f->source = NULL;
}

static void end(struct fixture *f)
{
    source_destroy(f->source);
    tokenizer_destroy(f->tokenizer);
    scratch_close(&f->s);
}

static enum status load(struct fixture *f, const char *path, enum data_format format, double split)
{
    struct source_spec spec = {
        .path = path, .format = format, .split = split, .tokenizer = f->tokenizer, .vocab = 257};
    source_destroy(f->source);
    f->source = NULL;
    return source_create(&f->s.env, &spec, &f->source);
}

/* The stream as text: '$' is end-of-text, a masked token is followed by '-'. */
static void expect_stream(struct fixture *f, const struct token_stream *stream, const char *wanted)
{
    char text[256] = "", *to = text;
    int32_t token;
    for (int64_t i = 0; i < stream->count; i++) {
        assert_int_equal(token_stream_read(stream, &f->s.env, i, 1, 257, &token), STATUS_OK);
        *to++ = token == EOT ? '$' : (char)token;
        if (token_stream_masked(stream, i))
            *to++ = '-';
    }
    assert_string_equal(text, wanted);
}

static void test_text_is_surrounded_by_end_of_text(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    scratch_text(&f.s, "1.txt", "one\n");
    scratch_text(&f.s, "2.txt", "two\nthree\n");
    scratch_text(&f.s, "3.txt", "");
    scratch_path(&f.s, "*.txt");
    assert_int_equal(load(&f, f.s.path, DATA_AUTO, 0), STATUS_OK);
    expect_stream(&f, &f.source->train, "$one\n$two\nthree\n$");
    assert_int_equal(f.source->held_out.count, 0);
    assert_int_equal(load(&f, f.s.path, DATA_AUTO, 0.45), STATUS_OK);
    expect_stream(&f, &f.source->train, "$one\n$two\n");
    expect_stream(&f, &f.source->held_out, "$three\n$");
    end(&f);
}

static void test_jsonl_masks_prompts(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    const char *path = scratch_text(&f.s, "a.jsonl",
                                    "{\"text\":\"ab\"}\n{\"prompt\":\"pq\",\"completion\":\"c\"}\n"
                                    "{\"prompt\":\"x\",\"completion\":\"y\"}\n{\"text\":\"z\"}\n");
    assert_int_equal(load(&f, path, DATA_AUTO, 0), STATUS_OK);
    expect_stream(&f, &f.source->train, "$ab$p-q-c$x-y$z$");
    assert_int_equal(load(&f, path, DATA_AUTO, 0.4), STATUS_OK);
    expect_stream(&f, &f.source->train, "$ab$p-q-c$x-y$");
    expect_stream(&f, &f.source->held_out, "$z$");
    assert_null(f.source->held_out.mask);
    end(&f);
}

static void write_shard(struct fixture *f, const char *name, const char *text, int64_t vocab,
                        uint64_t fingerprint)
{
    struct shard_writer *writer;
    struct env *env = &f->s.env;
    assert_int_equal(
        shard_writer_create(env, scratch_path(&f->s, name), vocab, fingerprint, &writer),
        STATUS_OK);
    for (const char *c = text; *c; c++) {
        int32_t token = *c;
        assert_int_equal(shard_writer_add(writer, &token, 1), STATUS_OK);
    }
    assert_int_equal(shard_writer_finish(writer), STATUS_OK);
    shard_writer_destroy(writer);
}

static void test_shards_are_joined(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    write_shard(&f, "t_2.bin", "fghij", 257, 5);
    write_shard(&f, "t_1.bin", "abcde", 257, 0);
    scratch_path(&f.s, "t_*.bin");
    assert_int_equal(load(&f, f.s.path, DATA_AUTO, 0), STATUS_OK);
    expect_stream(&f, &f.source->train, "abcdefghij");
    assert_int_equal(f.source->fingerprint, 5);
    assert_int_equal(load(&f, f.s.path, DATA_AUTO, 0.3), STATUS_OK);
    expect_stream(&f, &f.source->train, "abcdefg");
    expect_stream(&f, &f.source->held_out, "ghij"); /* g is context only */
    end(&f);
}

static void test_bare_shards_need_a_configured_format(void **state)
{
    static const uint16_t tokens[] = {'a', 'b', 'c'};
    struct fixture f;
    (void)state;
    begin(&f);
    const char *path = scratch_write(&f.s, "train.bin", tokens, sizeof tokens);
    assert_int_equal(load(&f, path, DATA_AUTO, 0), STATUS_FORMAT);
    scratch_expect(&f.s, "set data.format=u16 or u32");
    assert_int_equal(load(&f, path, DATA_U16, 0), STATUS_OK);
    expect_stream(&f, &f.source->train, "abc");
    end(&f);
}

static void test_mixed_shards_are_refused(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    write_shard(&f, "a1.bin", "abc", 257, 1);
    write_shard(&f, "a2.bin", "abc", 257, 2);
    assert_int_equal(load(&f, scratch_path(&f.s, "a*.bin"), DATA_AUTO, 0), STATUS_CONFIG);
    scratch_expect(&f.s, "mixed tokenizers");
    write_shard(&f, "b1.bin", "abc", 257, 0);
    write_shard(&f, "b2.bin", "abc", 100000, 0);
    assert_int_equal(load(&f, scratch_path(&f.s, "b*.bin"), DATA_AUTO, 0), STATUS_CONFIG);
    scratch_expect(&f.s, "mixed tokenizers");
    write_shard(&f, "c.bin", "abc", 257, 0);
    struct source_spec spec = {.path = scratch_path(&f.s, "c.bin"), .vocab = 'c'};
    assert_int_equal(source_create(&f.s.env, &spec, &f.source), STATUS_CONFIG);
    scratch_expect(&f.s, "token 99 at position 2 is beyond the vocabulary of 99");
    end(&f);
}

static void test_text_needs_a_tokenizer(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    struct source_spec spec = {.path = scratch_text(&f.s, "a.txt", "abc"), .vocab = 257};
    assert_int_equal(source_create(&f.s.env, &spec, &f.source), STATUS_CONFIG);
    scratch_expect(&f.s, "data.tokenizer");
    end(&f);
}

static void test_lines_without_text_are_not_data(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    static const char *const lines[] = {"\n \n",
                                        "{\"text\":\"\"}\n{\"prompt\":\"\",\"completion\":\"\"}\n"};
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_text(&f.s, "a.jsonl", lines[i]);
        assert_int_equal(load(&f, path, DATA_AUTO, 0), STATUS_FORMAT);
        scratch_expect(&f.s, "no text in '");
    }
    const char *path = scratch_text(&f.s, "a.jsonl",
                                    "{\"text\":\"\"}\n{\"text\":\"ab\"}\n{\"text\":\"\"}\n"
                                    "{\"prompt\":\"p\",\"completion\":\"\"}\n");
    assert_int_equal(load(&f, path, DATA_AUTO, 0), STATUS_OK);
    expect_stream(&f, &f.source->train, "$ab$p-$");
    end(&f);
}

static void test_fingerprints_depend_on_the_tokens(void **state)
{
    struct fixture f;
    struct tokenizer *trained;
    (void)state;
    begin(&f);
    static const char text[] = "aaaa bbbb aaaa bbbb aaaa bbbb";
    assert_int_equal(learn_text(&f.s.env, text, sizeof text - 1, 260, NULL, NULL, &trained),
                     STATUS_OK);
    assert_true(source_tokenizer_fingerprint(trained) != source_tokenizer_fingerprint(f.tokenizer));
    assert_true(source_tokenizer_fingerprint(trained) == source_tokenizer_fingerprint(trained));
    tokenizer_destroy(trained);
    end(&f);
}

static void test_every_allocation_may_fail(void **state)
{
    static const char *const names[] = {"a.txt", "a.jsonl", "a.bin"};
    struct fixture f;
    (void)state;
    begin(&f);
    scratch_text(&f.s, "a.txt", "some text");
    scratch_text(&f.s, "a.jsonl", "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"text\":\"c\"}\n");
    write_shard(&f, "a.bin", "abc", 257, 0);
    size_t before = mem_total(f.s.env.mem);
    for (int i = 0; i < 3; i++) {
        enum status st = STATUS_MEMORY;
        for (int n = 1; st != STATUS_OK; n++) {
            mem_fail_at(f.s.env.mem, n);
            st = load(&f, scratch_path(&f.s, names[i]), DATA_AUTO, 0.5);
            assert_true(st == STATUS_OK || st == STATUS_MEMORY);
            if (st != STATUS_OK)
                assert_int_equal(mem_total(f.s.env.mem), before);
        }
        mem_fail_at(f.s.env.mem, 0);
        source_destroy(f.source);
        f.source = NULL;
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_surrounded_by_end_of_text),
        cmocka_unit_test(test_jsonl_masks_prompts),
        cmocka_unit_test(test_shards_are_joined),
        cmocka_unit_test(test_bare_shards_need_a_configured_format),
        cmocka_unit_test(test_mixed_shards_are_refused),
        cmocka_unit_test(test_text_needs_a_tokenizer),
        cmocka_unit_test(test_lines_without_text_are_not_data),
        cmocka_unit_test(test_fingerprints_depend_on_the_tokens),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
