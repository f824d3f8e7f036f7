/* Decoding with a cache agrees with a whole forward pass; replayed tokens agree with launched ones.
 */
#include <math.h>

#include "engine/rig.h"

static double distance(const float *a, const float *b, int64_t count)
{
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (double)(a[i] - b[i]);
        norm += b[i] * (double)b[i];
    }
    return sqrt(difference / norm);
}

enum { TEXT = 21 };

/* Decode with `model`; the logits after `first` .. `end` - 1 tokens are those that `whole_model`
 * has in a forward pass. */
static void compare_texts(struct model_config model, struct model_config whole_model, int64_t first,
                          int64_t end, int64_t chunk)
{
    struct env env = testing_env(2);
    struct rig rig, forward;
    struct decoder *decoder;
    struct rig_config config = {.model = model, .threads = 2, .batch = 1, .tokens = TEXT};
    assert_ok(rig_create(&env, config, &rig));
    config.model = whole_model;
    assert_ok(rig_create(&env, config, &forward));
    int64_t vocab = model.vocab;
    float *whole = malloc((size_t)(TEXT * vocab) * sizeof *whole);
    int32_t *tokens, *labels;
    rig_fill(&forward, 0, 0);
    engine_batch(forward.engine, 0, &tokens, &labels);
    assert_ok(engine_logits(forward.engine, TEXT, whole));
    assert_ok(decoder_create(rig.ops, rig.stream, rig.spread.graph, rig.zero,
                             &(struct decoder_config){.tokens = model.context, .chunk = chunk},
                             &decoder));
    for (int round = 0; round < 2; round++) { /* twice: reset must clear the first sequence */
        decoder_reset(decoder);
        for (int64_t at = 0, n = 5; at < TEXT; at += n, n = 1) {
            const float *logits;
            assert_ok(decoder_feed(decoder, tokens + at, n, &logits));
            double bound = test_on_cpu() ? 1e-5 : 1e-2; /* other products in TF32 */
            double away = distance(logits, whole + (at + n - 1) * vocab, vocab);
            assert_true(at + n < first || at + n >= end || away < bound);
        }
    }
    free(whole);
    decoder_destroy(decoder);
    rig_destroy(&forward);
    rig_destroy(&rig);
    env_destroy(&env);
}

static void compare_with_forward(struct model_config model, int64_t chunk)
{
    compare_texts(model, model, 0, TEXT + 1, chunk);
}

/* A text that becomes longer than the original context is computed again, with other positions. */
static void test_a_text_that_becomes_long(void **state)
{
    (void)state;
    struct model_config model = rig_llama(), brief;
    model.rope_scaling = ROPE_LONGROPE;
    model.rope_original = 11;
    model.rope_factor = 2;
    model.rope.attention = 1;
    for (int i = 0; i < model.head_width / 2; i++) {
        model.rope.shorter.values[i] = 1 + 0.1 * i;
        model.rope.longer.values[i] = 2 + i;
    }
    model.rope.shorter.count = model.rope.longer.count = (int)model.head_width / 2;
    brief = model;
    brief.rope.longer = brief.rope.shorter;
    for (int64_t chunk = 3; chunk <= 8; chunk += 5) {
        compare_texts(model, brief, 0, model.rope_original + 1, chunk);
        compare_texts(model, model, model.rope_original + 1, TEXT + 1, chunk);
    }
}

static void test_cached_logits_agree_with_a_whole_forward(void **state)
{
    (void)state;
    for (int64_t chunk = 1; chunk <= 8; chunk += 3) {
        compare_with_forward(rig_gpt2(), chunk);
        compare_with_forward(rig_llama(), chunk);
        compare_with_forward(rig_sars(), chunk);
    }
}

/* On a GPU the first decoder records a token and the second does not; elsewhere neither does. */
static void test_replayed_tokens_have_the_same_bits(void **state)
{
    (void)state;
    const struct model_config models[] = {rig_gpt2(), rig_llama(), rig_sars()};
    for (int m = 0; m < 3; m++) {
        enum { TOKENS = 40, MOST = 1024 };
        struct env env = testing_env(2);
        struct rig rig;
        struct decoder *decoders[2];
        struct rig_config config = {.model = models[m], .threads = 2, .batch = 1, .tokens = 8};
        int64_t vocab = models[m].vocab;
        int64_t tokens = models[m].context < TOKENS ? models[m].context : TOKENS;
        float first[MOST];
        assert_true(vocab <= MOST);
        assert_ok(rig_create(&env, config, &rig));
        for (int i = 0; i < 2; i++)
            assert_ok(decoder_create(
                rig.ops, rig.stream, rig.spread.graph, rig.zero,
                &(struct decoder_config){.tokens = models[m].context, .chunk = 4}, &decoders[i]));
        for (int round = 0; round < 2; round++) {
            decoder_reset(decoders[0]);
            decoder_reset(decoders[1]);
            for (int64_t at = 0; at < tokens; at++) {
                int32_t token = (int32_t)((at * 7 + round) % vocab);
                const float *logits;
                unsetenv("SIFR_CUDA_GRAPH");
                assert_ok(decoder_feed(decoders[0], &token, 1, &logits));
                memcpy(first, logits, (size_t)vocab * sizeof *first);
                setenv("SIFR_CUDA_GRAPH", "off", 1);
                assert_ok(decoder_feed(decoders[1], &token, 1, &logits));
                assert_memory_equal(first, logits, (size_t)vocab * sizeof *first);
            }
        }
        unsetenv("SIFR_CUDA_GRAPH");
        decoder_destroy(decoders[0]);
        decoder_destroy(decoders[1]);
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

/* Feed `count` tokens from position 0 on, the last one on its own, and compare. */
static void check_decoder(struct rig *rig, struct decoder *decoder, const int32_t *tokens,
                          int64_t count)
{
    int64_t vocab = rig->config.model.vocab;
    float *whole = malloc((size_t)(count * vocab) * sizeof *whole);
    const float *logits;
    assert_ok(engine_logits(rig->engine, count, whole));
    decoder_reset(decoder);
    assert_ok(decoder_feed(decoder, tokens, count - 1, &logits));
    assert_ok(decoder_feed(decoder, tokens + count - 1, 1, &logits));
    double bound = test_on_cpu() ? 1e-5 : 1e-2;
    assert_true(distance(logits, whole + (count - 1) * vocab, vocab) < bound);
    free(whole);
}

/* The prototypes of SARS are in the cache: they must be those of the params at the time of the
 * reset. All other params stay the same. */
static void test_reset_forms_new_prototypes(void **state)
{
    (void)state;
    enum { TOKENS = 9 };
    struct env env = testing_env(2);
    struct rig rig;
    struct decoder *decoder;
    struct rig_config config = {.model = rig_sars(), .threads = 2, .batch = 1, .tokens = TOKENS};
    assert_ok(rig_create(&env, config, &rig));
    int32_t *tokens, *labels;
    rig_fill(&rig, 0, 0);
    engine_batch(rig.engine, 0, &tokens, &labels);
    assert_ok(decoder_create(rig.ops, rig.stream, rig.spread.graph, rig.zero,
                             &(struct decoder_config){.tokens = 24, .chunk = 4}, &decoder));
    check_decoder(&rig, decoder, tokens, TOKENS);
    float *before = malloc((size_t)rig.config.model.vocab * sizeof *before);
    assert_ok(engine_logits(rig.engine, 1, before));
    const struct unit_graph *graph = model_graph(rig.model);
    for (int t = 0; t < graph->tensor_count; t++) {
        int64_t count = unit_tensor_count(&graph->tensors[t]);
        if (!strstr(graph->tensors[t].name, "layers.0.self_attn.v_proj.proto_weight"))
            continue;
        float *values = malloc((size_t)count * sizeof *values);
        assert_ok(zero_read(rig.zero, t, 0, count, values));
        for (int64_t i = 0; i < count; i++)
            values[i] = -values[i];
        assert_ok(zero_write(rig.zero, t, 0, count, values));
        free(values);
    }
    assert_ok(zero_publish(rig.zero, 0));
    float *after = malloc((size_t)rig.config.model.vocab * sizeof *after);
    assert_ok(engine_logits(rig.engine, 1, after));
    assert_true(distance(after, before, rig.config.model.vocab) > 1e-2);
    check_decoder(&rig, decoder, tokens, TOKENS);
    free(after);
    free(before);
    decoder_destroy(decoder);
    rig_destroy(&rig);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cached_logits_agree_with_a_whole_forward),
        cmocka_unit_test(test_a_text_that_becomes_long),
        cmocka_unit_test(test_replayed_tokens_have_the_same_bits),
        cmocka_unit_test(test_reset_forms_new_prototypes),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
