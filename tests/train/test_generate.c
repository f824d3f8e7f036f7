/* Text from a trained model: it has learnt something, the same settings give the same text, and
 * limits are respected. */
#include "run_rig.h"
#include "train/generate.h"

struct out {
    char text[1024];
    size_t bytes;
    int64_t tokens, most; /* most: stop after that many tokens; 0 = never */
};

static bool collect(void *user, int32_t token, const void *bytes, size_t byte_count)
{
    struct out *out = user;
    (void)token;
    assert_true(out->bytes + byte_count < sizeof out->text);
    memcpy(out->text + out->bytes, bytes, byte_count);
    out->bytes += byte_count;
    return ++out->tokens != out->most;
}

/* One model, shared by all tests of this file. */
struct fixture {
    struct run_rig rig;
    struct generator *generator;
};
static struct fixture fixture;

static int set_up(void **state)
{
    struct trainer_summary summary;
    struct run_rig *rig = &fixture.rig;
    rig_open(rig);
    rig_config(rig, "train.steps=400");
    assert_int_equal(rig_train(rig, "run", false, NULL, &summary), STATUS_OK);
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    struct model_source *source;
    assert_int_equal(
        model_source_open(&rig->scratch.env, scratch_path(&rig->scratch, "run"), &want, &source),
        STATUS_OK);
    const struct layout_config layout = {0};
    const struct generator_config config = {.compute =
                                                run_device_compute(RUN_DEVICE_CPU, DTYPE_F32),
                                            .source = source,
                                            .tokenizer = "",
                                            .layout = &layout};
    assert_int_equal(generator_create(&rig->scratch.env, &config, &fixture.generator), STATUS_OK);
    model_source_close(source);
    *state = &fixture;
    return 0;
}

static int tidy_up(void **state)
{
    (void)state;
    generator_destroy(fixture.generator);
    rig_close(&fixture.rig);
    return 0;
}

static const struct generate_config greedy = {
    .prompt = "the cat ", .tokens = 12, .temperature = 0, .top_p = 1, .seed = 1};

static void test_text_has_been_learnt(void **state)
{
    static const char *const verbs[] = {"sees ", "likes ", "follows ", "forgets "};
    struct fixture *f = *state;
    struct out out = {0}, again = {0};
    struct generate_result result;
    bool known = false;
    assert_int_equal(generator_run(f->generator, &greedy, collect, &out, &result), STATUS_OK);
    assert_int_equal(result.prompt_tokens, 8);
    assert_int_equal(result.tokens, out.tokens);
    assert_true(result.prefill_seconds > 0 && result.decode_seconds > 0);
    for (int i = 0; i < 4; i++)
        known = known || strncmp(out.text, verbs[i], strlen(verbs[i])) == 0;
    assert_true(known);
    assert_int_equal(generator_run(f->generator, &greedy, collect, &again, &result), STATUS_OK);
    assert_memory_equal(&out, &again, sizeof out);
}

static void test_the_seed_decides_the_text(void **state)
{
    struct fixture *f = *state;
    struct generate_config config = greedy;
    struct generate_result result;
    struct out first = {0}, same = {0}, other = {0};
    config.temperature = 1.5;
    assert_int_equal(generator_run(f->generator, &config, collect, &first, &result), STATUS_OK);
    assert_int_equal(generator_run(f->generator, &config, collect, &same, &result), STATUS_OK);
    config.seed = 2;
    assert_int_equal(generator_run(f->generator, &config, collect, &other, &result), STATUS_OK);
    assert_memory_equal(&first, &same, sizeof first);
    assert_true(memcmp(&first, &other, sizeof first) != 0);
}

static void test_top_k_of_one_is_greedy(void **state)
{
    struct fixture *f = *state;
    struct generate_config config = greedy;
    struct generate_result result;
    struct out a = {0}, b = {0};
    assert_int_equal(generator_run(f->generator, &greedy, collect, &a, &result), STATUS_OK);
    config.temperature = 5;
    config.top_k = 1;
    assert_int_equal(generator_run(f->generator, &config, collect, &b, &result), STATUS_OK);
    assert_memory_equal(&a, &b, sizeof a);
}

static void test_limits_end_the_text(void **state)
{
    struct fixture *f = *state;
    struct generate_config config = greedy;
    struct generate_result result;
    struct out out = {0}, stopped = {.most = 3};
    config.ignore_eot = true;
    config.tokens = 0; /* up to the end of the context; the last token is not fed */
    assert_int_equal(generator_run(f->generator, &config, collect, &out, &result), STATUS_OK);
    assert_int_equal(result.tokens, 24 - 8 + 1);
    assert_int_equal(generator_run(f->generator, &config, collect, &stopped, &result), STATUS_OK);
    assert_int_equal(stopped.tokens, 3);
    config.prompt = "this prompt is far longer than the context of the model";
    assert_int_equal(generator_run(f->generator, &config, collect, &out, &result), STATUS_CONFIG);
    scratch_expect(&f->rig.scratch, "does not fit the context of 24");
}

static void test_an_empty_prompt_begins_a_text(void **state)
{
    struct fixture *f = *state;
    struct generate_config config = greedy;
    struct generate_result result;
    struct out out = {0};
    config.prompt = "";
    assert_int_equal(generator_run(f->generator, &config, collect, &out, &result), STATUS_OK);
    assert_int_equal(result.prompt_tokens, 1);
}

/* A model folder without a tokenizer: creating the generator fails and frees everything. */
static void test_a_model_without_a_tokenizer_is_refused(void **state)
{
    struct fixture *f = *state;
    struct scratch *s = &f->rig.scratch;
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    struct model_source *source;
    struct generator *generator;
    assert_int_equal(model_source_open(&s->env, scratch_path(s, "run"), &want, &source), STATUS_OK);
    const struct layout_config layout = {0};
    const struct generator_config config = {.compute =
                                                run_device_compute(RUN_DEVICE_CPU, DTYPE_F32),
                                            .source = source,
                                            .tokenizer = "/nowhere",
                                            .layout = &layout};
    assert_int_equal(generator_create(&s->env, &config, &generator), STATUS_IO);
    scratch_expect(s, "/nowhere");
    model_source_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_has_been_learnt),
        cmocka_unit_test(test_the_seed_decides_the_text),
        cmocka_unit_test(test_top_k_of_one_is_greedy),
        cmocka_unit_test(test_limits_end_the_text),
        cmocka_unit_test(test_an_empty_prompt_begins_a_text),
        cmocka_unit_test(test_a_model_without_a_tokenizer_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tidy_up);
}
