#include "train/scratch.h"
#include "train/data/token_stream.h"

static const uint16_t NARROW[] = {10, 11, 12};
static const uint32_t WIDE[] = {13, 4000000000u, 15, 16};
static const struct token_span PIECES[] = {
    {NARROW, 2, 3, 0, "narrow", NULL},
    {WIDE, 4, 1, 3, "wide", NULL},
    {WIDE + 2, 4, 2, 4, "tail", NULL},
};

static void test_reads_cross_spans(void **state)
{
    struct scratch s;
    struct token_stream stream = {.spans = PIECES, .span_count = 3, .count = 6};
    int32_t out[6];
    (void)state;
    scratch_open(&s);
    for (int first = 0; first < 6; first++)
        for (int count = 0; count <= 6 - first; count++) {
            assert_int_equal(token_stream_read(&stream, &s.env, first, count, 20, out), STATUS_OK);
            for (int i = 0; i < count; i++)
                assert_int_equal(out[i], first + i < 4 ? 10 + first + i : 11 + first + i);
        }
    stream = (struct token_stream){.spans = PIECES, .span_count = 3, .first = 2, .count = 4};
    assert_int_equal(token_stream_read(&stream, &s.env, 1, 3, 20, out), STATUS_OK);
    assert_int_equal(out[0], 13);
    assert_int_equal(out[2], 16);
    scratch_close(&s);
}

static void test_a_bad_token_is_reported_with_its_position(void **state)
{
    static const struct token_span pieces[] = {{NARROW, 2, 3, 0, "good", NULL},
                                               {WIDE, 4, 4, 3, "bad", NULL}};
    struct scratch s;
    struct token_stream stream = {.spans = pieces, .span_count = 2, .count = 7};
    int32_t out[7];
    (void)state;
    scratch_open(&s);
    assert_int_equal(token_stream_read(&stream, &s.env, 0, 7, 20, out), STATUS_CONFIG);
    scratch_expect(&s, "'bad': token 4000000000 at position 1 is beyond the vocabulary of 20");
    scratch_close(&s);
}

static void test_windows_hide_masked_labels(void **state)
{
    static const uint8_t mask[] = {0x24}; /* tokens 2 and 5 */
    struct scratch s;
    struct token_stream stream = {.spans = PIECES, .span_count = 3, .count = 6, .mask = mask};
    int32_t tokens[5], labels[5];
    static const int32_t wanted[] = {11, -1, 13, 15, -1};
    (void)state;
    scratch_open(&s);
    assert_int_equal(token_stream_window(&stream, &s.env, 0, 5, 20, tokens, labels), STATUS_OK);
    assert_memory_equal(labels, wanted, sizeof wanted);
    assert_int_equal(tokens[2], 12);
    assert_true(token_stream_masked(&stream, 2));
    assert_false(token_stream_masked(&stream, 3));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_cross_spans),
        cmocka_unit_test(test_a_bad_token_is_reported_with_its_position),
        cmocka_unit_test(test_windows_hide_masked_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
