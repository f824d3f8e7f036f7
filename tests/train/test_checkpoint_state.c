/* state.json: printed and parsed it is the same; errors are reported by name. */
#include <math.h>
#include "scratch.h"
#include "train/checkpoint/checkpoint_state.h"

static struct checkpoint_state sample(struct checkpoint_chunk *pieces,
                                      struct checkpoint_entry *entries)
{
    pieces[0] = (struct checkpoint_chunk){0, CHECKPOINT_CHUNK, 1};
    pieces[1] = (struct checkpoint_chunk){CHECKPOINT_CHUNK, 5, 0xfedcba9876543210};
    entries[0] = (struct checkpoint_entry){.name = "model.safetensors",
                                           .role = CHECKPOINT_MODEL,
                                           .bytes = CHECKPOINT_CHUNK + 5,
                                           .chunks = pieces,
                                           .chunk_count = 2};
    entries[1] = (struct checkpoint_entry){.name = "optimizer/momentum.safetensors",
                                           .role = CHECKPOINT_MOMENTUM};
    return (struct checkpoint_state){
        .progress = {.step = 12,
                     .updates = 10,
                     .samples = 96,
                     .tokens = 12288,
                     .skipped = 2,
                     .skips_in_row = 1,
                     .loss = 0.1 + 0.2,
                     .scaled = true,
                     .scale = {32768, 7, 1}},
        .config = "train:\n  lr: 0.1\n  name: \"\\u00e4\"\n",
        .data = 7,
        .files = {.kinds = 1,
                  .files = 2,
                  .whole_bytes = 3,
                  .sampled_bytes = 4,
                  .samples = 5,
                  .hash = 6,
                  .more = 7,
                  .times = 8},
        .workers = 3,
        .arithmetic = 2,
        .print = {.binary = 9, .cpu = "A", .blas = "B \"C\"", .device = "cpu"},
        .entries = entries,
        .entry_count = 2};
}

static void test_printed_state_parses_to_the_same(void **state)
{
    (void)state;
    struct scratch s;
    struct text text;
    struct checkpoint_chunk pieces[2];
    struct checkpoint_entry entries[2];
    struct checkpoint_state a = sample(pieces, entries), b;
    scratch_open(&s);
    text_init(&text, &s.env);
    for (int scaled = 0; scaled < 2; scaled++) {
        a.progress.scaled = scaled;
        text_clear(&text);
        checkpoint_state_print(&a, &text);
        assert_int_equal(checkpoint_state_parse(&s.env, text.data, text.bytes, "state.json", &b),
                         STATUS_OK);
        assert_int_equal(b.progress.step, 12);
        assert_int_equal(b.progress.updates, 10);
        assert_int_equal(b.progress.samples, 96);
        assert_int_equal(b.progress.tokens, 12288);
        assert_int_equal(b.progress.skipped, 2);
        assert_int_equal(b.progress.skips_in_row, 1);
        assert_true(b.progress.loss == 0.1 + 0.2);
        assert_int_equal(b.progress.scaled, scaled);
        if (scaled) {
            assert_true(b.progress.scale.scale == 32768);
            assert_int_equal(b.progress.scale.good_steps, 7);
            assert_int_equal(b.progress.scale.patience, 1);
        }
        assert_string_equal(b.config, a.config);
        assert_memory_equal(&b.files, &a.files, sizeof a.files);
        assert_true(b.data == 7 && b.workers == 3 && b.print.binary == 9);
        assert_string_equal(b.print.blas, "B \"C\"");
        assert_int_equal(b.entry_count, 2);
        assert_int_equal(b.entries[0].chunk_count, 2);
        assert_true(b.entries[0].chunks[1].begin == CHECKPOINT_CHUNK);
        assert_true(b.entries[0].chunks[1].hash == 0xfedcba9876543210);
        assert_int_equal(b.entries[1].role, CHECKPOINT_MOMENTUM);
        checkpoint_state_free(&b);
    }
    a.progress.loss = NAN;
    a.workers = 0; /* not recorded */
    text_clear(&text);
    checkpoint_state_print(&a, &text);
    assert_int_equal(checkpoint_state_parse(&s.env, text.data, text.bytes, "state.json", &b),
                     STATUS_OK);
    assert_true(isnan(b.progress.loss) && b.workers == 0);
    checkpoint_state_free(&b);
    text_free(&text);
    scratch_close(&s);
}

/* AdamW alone is version 1, which earlier versions of sifr read. */
static void test_optimizers(void **state)
{
    (void)state;
    struct scratch s;
    struct text text;
    struct checkpoint_chunk pieces[2];
    struct checkpoint_entry entries[2];
    struct checkpoint_state a = sample(pieces, entries), b;
    struct checkpoint_other others[] = {{"wte", (enum optimizer_state)OPTIMIZER_ADAMW},
                                        {"a \"b\"", (enum optimizer_state)OPTIMIZER_ADAMW},
                                        {"wpe", OPTIMIZER_SGD_MOMENTUM}};
    scratch_open(&s);
    text_init(&text, &s.env);
    checkpoint_state_print(&a, &text);
    assert_non_null(strstr(text_string(&text), "\"version\": 1,"));
    assert_non_null(strstr(text_string(&text), "\"optimizer\": {\"kind\": \"adamw\"},"));
    a.optimizers = (struct checkpoint_optimizers){(enum optimizer_state)OPTIMIZER_MUON, others, 3};
    text_clear(&text);
    checkpoint_state_print(&a, &text);
    assert_non_null(strstr(text_string(&text), "\"version\": 2,"));
    assert_non_null(strstr(text_string(&text),
                           "{\"kind\": \"muon\", \"tensors\": {\"adamw\": [\"wte\", \"a "
                           "\\\"b\\\"\"], \"sgd with momentum\": [\"wpe\"]}},"));
    assert_int_equal(checkpoint_state_parse(&s.env, text.data, text.bytes, "state.json", &b),
                     STATUS_OK);
    assert_int_equal(b.optimizers.kind, OPTIMIZER_MUON);
    assert_int_equal(b.optimizers.other_count, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(b.optimizers.others[i].tensor, others[i].tensor);
        assert_int_equal(b.optimizers.others[i].kind, others[i].kind);
    }
    assert_int_equal(b.arithmetic, 2);
    checkpoint_state_free(&b);
    text_free(&text);
    scratch_close(&s);
}

/* `whole` with the first `old` replaced by `new`. */
static void replace(struct text *text, const char *whole, const char *old, const char *new)
{
    const char *at = strstr(whole, old);
    assert_non_null(at);
    text_clear(text);
    text_add_bytes(text, whole, (size_t)(at - whole));
    text_add(text, new);
    text_add(text, at + strlen(old));
}

static void test_wrong_states_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new, *message;
    } cases[] = {
        {"sifr checkpoint", "another", "is not the state of a checkpoint"},
        {"\"version\": 1", "\"version\": 0", "has no version"},
        {"\"version\": 1", "\"version\": 3", "version 3, and this sifr reads versions up to 2"},
        {"\"kind\": \"adamw\"", "\"kind\": \"lion\"", "the optimizer 'lion' is not known"},
        {"\"kind\": \"adamw\"", "\"kind\": 1", "the optimizer '' is not known"},
        {"{\"kind\": \"adamw\"", "{\"kind\": \"sgd\", \"tensors\": {\"lion\": []}",
         "the optimizer 'lion' is not known"},
        {"{\"kind\": \"adamw\"", "{\"kind\": \"sgd\", \"tensors\": {\"muon\": [1]}",
         "a tensor without a name"},
        {"\"arithmetic\": 2", "\"arithmetic\": -2", "\"arithmetic\" is not a count"},
        {"\"step\": 12", "\"step\": -1", "\"step\" is not a count"},
        {"\"step\": 12", "\"step\": 9", "more updates than steps"},
        {"\"samples\": 96,", "", "\"samples\" is not a count"},
        {"\"step\": 12", "\"step\": 9223372036854775807", "the most is 1000000000000"},
        {"\"samples\": 96", "\"samples\": 9223372036854775807",
         "\"samples\" is 9223372036854775807"},
        {"\"tokens\": 12288", "\"tokens\": 9223372036854775000", "\"tokens\" is 92233720368547"},
        {"\"skipped\": 2", "\"skipped\": 13", "more skipped steps than steps"},
        {"\"skips_in_row\": 1", "\"skips_in_row\": 3", "more skipped steps than steps"},
        {"\"workers\": 3", "\"workers\": 3000000000", "\"workers\" is 3000000000"},
        {"32768", "0.25", "out of range"},
        {"\"workers\": 3", "\"workers\": -3", "\"workers\" is not a count"},
        {"\"patience\": 1", "\"patience\": 9", "out of range"},
        {"lr: 0.1", "lr: 0.2", "not what its hash says"},
        {"\"binary\": \"", "\"binary\": \"x", "\"binary\" is not a hash"},
        {"\"name\": \"model.safetensors\"", "\"name\": \"/etc/passwd\"", "no file of this folder"},
        {"\"name\": \"model.safetensors\"", "\"name\": \"../a\"", "no file of this folder"},
        {"\"name\": \"model.safetensors\"", "\"name\": \"a/b/c\"", "no file of this folder"},
        {"\"name\": \"model.safetensors\"", "\"name\": \"optimizer/momentum.safetensors\"",
         "two files are called"},
        {"\"role\": \"model\"", "\"role\": \"mouse\"", "'mouse', which is not known"},
        {"[5, ", "[6, ", "bytes together"},
        {"[5, ", "[4194305, ", "is not [bytes, hash]"},
        {"[5, ", "[0, ", "is not [bytes, hash]"},
        {"fedcba9876543210", "fedcba987654321", "is not [bytes, hash]"},
        {"\"files\": [", "\"files\": 3, \"others\": [", "not a list of files"},
        {"{", "", "line 2"},
    };
    struct scratch s;
    struct text good, bad;
    struct checkpoint_chunk pieces[2];
    struct checkpoint_entry entries[2];
    struct checkpoint_state a = sample(pieces, entries), b;
    scratch_open(&s);
    text_init(&good, &s.env);
    text_init(&bad, &s.env);
    checkpoint_state_print(&a, &good);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        replace(&bad, text_string(&good), cases[i].old, cases[i].new);
        bool newer = strcmp(cases[i].new, "\"version\": 3") == 0; /* not damaged */
        assert_int_equal(checkpoint_state_parse(&s.env, bad.data, bad.bytes, "run/state.json", &b),
                         newer ? STATUS_CONFIG : STATUS_FORMAT);
        const char *error = log_first_error(s.env.log);
        if (!strstr(error, cases[i].message) || !strstr(error, "run/state.json"))
            fail_msg("case %zu: '%s'", i, error);
        log_error_clear(s.env.log);
    }
    text_free(&good);
    text_free(&bad);
    scratch_close(&s);
}

/* More lists than a checkpoint can have chunks: refused before the tree is built. */
static void test_too_many_lists_are_refused(void **state)
{
    (void)state;
    struct scratch s;
    struct checkpoint_state got;
    const size_t lists = 9000000, bytes = 3 * lists + 1;
    char *json;
    scratch_open(&s);
    assert_int_equal(mem_alloc(&s.env, MEM_OTHER, "text", bytes, &json), STATUS_OK);
    json[0] = '[';
    for (size_t i = 0; i < lists; i++)
        memcpy(json + 1 + 3 * i, i + 1 < lists ? "[]," : "[]]", 3);
    assert_int_equal(checkpoint_state_parse(&s.env, json, bytes, "state.json", &got),
                     STATUS_FORMAT);
    assert_non_null(strstr(log_first_error(s.env.log),
                           "9000001 lists and objects where at most 8500000 are allowed"));
    mem_free(&s.env, json);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed_state_parses_to_the_same),
        cmocka_unit_test(test_too_many_lists_are_refused),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_wrong_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
