/* Rows of a decoder that are fed together: each has the bits that it has alone, and all of them share
 * one read of params that are in far memory. */
#include "engine/rig.h"

enum { ROWS = 3, STEPS = 6, PROMPT = 1 + 4 * (ROWS - 1), CHUNK = 4 };

/* A store that is only read, with params on disk or on the device, and decoders. */
struct fixture {
    struct env env;
    struct rig rig;
    int64_t vocab;
};

static void open_fixture(struct model_config model, enum far_kind params, int prefetch,
                         struct fixture *f)
{
    struct rig_config config = {.model = model,
                                .threads = 2,
                                .batch = 1,
                                .tokens = 8,
                                .prefetch = prefetch,
                                .offload = {.params = params}};
    f->env = testing_env(2);
    f->vocab = model.vocab;
    assert_ok(rig_create(&f->env, config, &f->rig));
}

static void close_fixture(struct fixture *f)
{
    rig_destroy(&f->rig);
    env_destroy(&f->env);
}

static struct decoder *new_decoder(struct fixture *f, int rows)
{
    struct rig *rig = &f->rig;
    struct decoder *decoder;
    const struct decoder_config config = {
        .tokens = rig->config.model.context, .chunk = CHUNK, .rows = rows};
    assert_ok(
        decoder_create(rig->ops, rig->stream, rig->spread.graph, rig->zero, &config, &decoder));
    return decoder;
}

/* --- bits ----------------------------------------------------------------------------------- */

/* Row r has a prompt of 1 + 4 r tokens, then one token per step; row 1 rests in every other step. */
static int64_t tokens_in(int step, int r)
{
    return step == 0 ? 1 + 4 * r : r != 1 || step % 2 == 0;
}

static void fill_tokens(int64_t vocab, int32_t tokens[ROWS][PROMPT + STEPS])
{
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < PROMPT + STEPS; i++)
            tokens[r][i] = (int32_t)((i * 7 + r * 11) % vocab);
}

/* logits (ROWS, STEPS, vocab) of rows that are fed together; where a row rests they are kept. */
static void feed_together(struct fixture *f, int32_t tokens[ROWS][PROMPT + STEPS], float *logits)
{
    struct decoder *decoder = new_decoder(f, ROWS);
    int64_t at[ROWS] = {0};
    for (int step = 0; step < STEPS; step++) {
        struct decoder_input inputs[ROWS];
        int count = 0;
        for (int r = 0; r < ROWS; r++)
            if (tokens_in(step, r) > 0)
                inputs[count++] = (struct decoder_input){
                    .row = r, .tokens = tokens[r] + at[r], .count = tokens_in(step, r)};
        assert_ok(decoder_feed_rows(decoder, inputs, count));
        for (int i = 0; i < count; i++) {
            int r = inputs[i].row;
            at[r] += inputs[i].count;
            memcpy(logits + (r * STEPS + step) * f->vocab, inputs[i].logits,
                   (size_t)f->vocab * sizeof *logits);
        }
    }
    decoder_destroy(decoder);
}

static void compare_with_one_row(struct model_config model, enum far_kind params, int prefetch)
{
    struct fixture f;
    int32_t tokens[ROWS][PROMPT + STEPS];
    open_fixture(model, params, prefetch, &f);
    fill_tokens(f.vocab, tokens);
    float *found = malloc((size_t)(ROWS * STEPS * f.vocab) * sizeof *found);
    feed_together(&f, tokens, found);
    struct decoder *alone = new_decoder(&f, 1);
    for (int r = 0; r < ROWS; r++) {
        int64_t at = 0;
        decoder_reset(alone);
        for (int step = 0; step < STEPS; step++) {
            int64_t count = tokens_in(step, r);
            const float *logits;
            if (count == 0)
                continue;
            assert_ok(decoder_feed(alone, tokens[r] + at, count, &logits));
            assert_memory_equal(logits, found + (r * STEPS + step) * f.vocab,
                                (size_t)f.vocab * sizeof *logits);
            at += count;
        }
    }
    free(found);
    decoder_destroy(alone);
    close_fixture(&f);
}

static void test_rows_have_the_bits_of_one_row(void **state)
{
    (void)state;
    const struct model_config models[] = {rig_gpt2(), rig_llama(), rig_sars()};
    for (int m = 0; m < 3; m++) {
        compare_with_one_row(models[m], FAR_NONE, 1);
        for (int prefetch = 0; prefetch < 3; prefetch++)
            compare_with_one_row(models[m], FAR_DISK, prefetch);
    }
}

/* --- reads ---------------------------------------------------------------------------------- */

static int64_t bytes_read(const struct fixture *f)
{
    return zero_traffic(f->rig.zero).moved[TRAFFIC_DISK_READ];
}

struct reads {
    int64_t first, next; /* bytes that the first token of every row reads, and each that follows */
    int64_t model;       /* bytes of all params */
};

static struct reads count_reads(struct model_config model, int rows, int prefetch)
{
    struct fixture f;
    open_fixture(model, FAR_DISK, prefetch, &f);
    struct decoder *decoder = new_decoder(&f, rows);
    int64_t read[4];
    for (int32_t step = 0; step < 4; step++) {
        struct decoder_input inputs[ROWS];
        for (int r = 0; r < rows; r++)
            inputs[r] = (struct decoder_input){.row = r, .tokens = &step, .count = 1};
        assert_ok(decoder_feed_rows(decoder, inputs, rows));
        read[step] = bytes_read(&f);
    }
    assert_int_equal(read[3] - read[2], read[2] - read[1]);
    size_t model_bytes = mem_sums(f.env.mem, MEM_DISK, false).bytes[MEM_PARAMS];
    decoder_destroy(decoder);
    close_fixture(&f);
    return (struct reads){read[0], read[3] - read[2], (int64_t)model_bytes};
}

static void test_rows_share_a_read(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        struct reads one = count_reads(rig_llama(), 1, prefetch);
        struct reads all = count_reads(rig_llama(), ROWS, prefetch);
        assert_int_equal(one.next, one.model);
        assert_memory_equal(&one, &all, sizeof one);
    }
}

/* The first params of the next walk are read before it begins. */
static void test_reads_run_ahead_of_the_next_token(void **state)
{
    (void)state;
    struct reads none = count_reads(rig_llama(), 1, 0), one = count_reads(rig_llama(), 1, 1);
    assert_true(none.first > none.model);
    assert_true(one.first > none.first);
}

/* The tied embedding is the last that a token uses, and the first of the next one: it is read once. */
static void test_a_tied_param_stays(void **state)
{
    (void)state;
    struct model_config model = rig_gpt2();
    for (model.layers = 2; model.layers < 5; model.layers++)
        for (int prefetch = 0; prefetch < 3; prefetch++) {
            struct reads tied = count_reads(model, 1, prefetch);
            assert_true(tied.first >= tied.model);
            assert_true(tied.next <=
                        tied.model - model.vocab * model.width * (int64_t)sizeof(float));
        }
}

/* A prompt of three chunks: the head is read for the last one only. */
static void test_a_prompt_reads_the_head_once(void **state)
{
    (void)state;
    struct fixture f;
    int32_t tokens[ROWS][PROMPT + STEPS];
    struct reads token = count_reads(rig_llama(), 1, 0);
    open_fixture(rig_llama(), FAR_DISK, 0, &f);
    fill_tokens(f.vocab, tokens);
    struct decoder *decoder = new_decoder(&f, 1);
    const float *logits;
    assert_ok(decoder_feed(decoder, tokens[0], PROMPT, &logits));
    assert_true(PROMPT > 2 * CHUNK && bytes_read(&f) < token.first + 2 * token.next);
    decoder_destroy(decoder);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_have_the_bits_of_one_row),
        cmocka_unit_test(test_rows_share_a_read),
        cmocka_unit_test(test_reads_run_ahead_of_the_next_token),
        cmocka_unit_test(test_a_tied_param_stays),
        cmocka_unit_test(test_a_prompt_reads_the_head_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
