/* Samples: every window once per pass, sources in proportion to their weights, no hidden state;
 * every held-out token once. */
#include "train/scratch.h"
#include "train/data/dataset.h"

#define T     16
#define VOCAB 60000

struct fixture {
    struct scratch s;
    struct dataset *set;
    struct data_config config;
    char paths[4][128];
};

static void begin(struct fixture *f)
{
    *f = (struct fixture){.config = {.path = "", .val = "", .tokenizer = "", .format = DATA_AUTO}};
    scratch_open(&f->s);
}

static void end(struct fixture *f)
{
    dataset_destroy(f->set);
    scratch_close(&f->s);
}

/* A file of 16-bit tokens without a header: first, first+1, ... */
static const char *numbers(struct fixture *f, int index, uint16_t first, int count)
{
    static uint16_t tokens[70000];
    char name[16];
    for (int i = 0; i < count; i++)
        tokens[i] = (uint16_t)(first + i);
    snprintf(name, sizeof name, "%d.bin", index);
    scratch_write(&f->s, name, tokens, (size_t)count * 2);
    return strcpy(f->paths[index], f->s.path);
}

static enum status make(struct fixture *f, const struct tokenizer *tokenizer, int64_t vocab,
                        uint64_t seed)
{
    dataset_destroy(f->set);
    f->set = NULL;
    return dataset_create(&f->s.env, &f->config, tokenizer, vocab, T, seed, &f->set);
}

static int first_of(struct fixture *f, uint64_t sample)
{
    int32_t tokens[T], labels[T];
    assert_int_equal(dataset_sample(f->set, sample, tokens, labels), STATUS_OK);
    for (int i = 0; i < T; i++) {
        assert_int_equal(tokens[i], tokens[0] + i);
        assert_int_equal(labels[i], tokens[0] + i + 1);
    }
    return tokens[0];
}

static void test_a_pass_has_every_window_once(void **state)
{
    struct fixture f;
    (void)state;
    for (int count = T + 1; count < 6 * T; count++) {
        begin(&f);
        f.config.path = numbers(&f, 0, 0, count);
        f.config.format = DATA_U16;
        assert_int_equal(make(&f, NULL, VOCAB, 1), STATUS_OK);
        int windows = (int)dataset_train_windows(f.set);
        assert_true(windows >= 1 && (windows + 2) * T > count - 1);
        for (int pass = 0; pass < 3; pass++) {
            bool seen[6 * T] = {false};
            int offset = first_of(&f, (uint64_t)(pass * windows)) % T;
            for (int i = 0; i < windows; i++) {
                int first = first_of(&f, (uint64_t)(pass * windows + i));
                assert_int_equal(first % T, offset);
                assert_false(seen[first]);
                seen[first] = true;
            }
        }
        end(&f);
    }
}

static void test_passes_and_seeds_differ(void **state)
{
    struct fixture f;
    int order[2][200], same_pass = 0, same_seed = 0, offsets = 0;
    (void)state;
    begin(&f);
    f.config.path = numbers(&f, 0, 0, 101 * T);
    f.config.format = DATA_U16;
    for (int seed = 0; seed < 2; seed++) {
        assert_int_equal(make(&f, NULL, VOCAB, (uint64_t)seed), STATUS_OK);
        assert_int_equal(dataset_train_windows(f.set), 100);
        for (int i = 0; i < 200; i++)
            order[seed][i] = first_of(&f, (uint64_t)i);
        for (int i = 199; i >= 0; i--) /* no state: any order gives the same */
            assert_int_equal(order[seed][i], first_of(&f, (uint64_t)i));
    }
    for (int i = 0; i < 100; i++) {
        same_pass += order[0][i] / T == order[0][100 + i] / T;
        same_seed += order[0][i] / T == order[1][i] / T;
    }
    assert_true(same_pass < 20 && same_seed < 20);
    for (uint64_t pass = 1; pass < 20; pass++)
        offsets += first_of(&f, 100 * pass) % T != first_of(&f, 0) % T;
    assert_true(offsets > 10);
    end(&f);
}

static void test_sources_are_drawn_by_weight(void **state)
{
    struct fixture f;
    int counts[3] = {0}, seen[3][300] = {{0}};
    (void)state;
    begin(&f);
    struct data_mix_item items[] = {{numbers(&f, 0, 0, 11 * T), 1, DATA_U16},
                                    {numbers(&f, 1, 10000, 21 * T), 2, DATA_U16},
                                    {numbers(&f, 2, 20000, 11 * T), 0.2, DATA_U16}};
    f.config.mix = (struct option_list){items, 3};
    assert_int_equal(make(&f, NULL, VOCAB, 7), STATUS_OK);
    for (uint64_t i = 0; i < 8192; i++) {
        int first = first_of(&f, i), source = first / 10000;
        counts[source]++;
        if (counts[source] <= (source == 1 ? 20 : 10))
            seen[source][first % 10000 / T]++;
    }
    assert_in_range(counts[0], 2559, 2561);
    assert_in_range(counts[1], 5119, 5121);
    assert_in_range(counts[2], 511, 513);
    /* In its first pass a source yields each window once, also in a mix. */
    for (int w = 0; w < 20; w++)
        assert_true(seen[1][w] <= 1 && seen[0][w] <= 1 && seen[2][w] <= 1);
    items[2].weight = 1e-6;
    assert_int_equal(make(&f, NULL, VOCAB, 7), STATUS_CONFIG);
    scratch_expect(&f.s, "under 1/4096");
    end(&f);
}

/* Every held-out token is predicted once, in order, however many there are. */
static void test_held_out_tokens_are_predicted_once(void **state)
{
    struct fixture f;
    (void)state;
    for (int count = 2; count < 4 * T; count += 5) {
        int32_t tokens[T], labels[T];
        int64_t bytes;
        begin(&f);
        f.config.val = numbers(&f, 0, 0, count);
        f.config.format = DATA_U16;
        assert_int_equal(make(&f, NULL, VOCAB, 1), STATUS_OK);
        assert_int_equal(dataset_train_tokens(f.set), 0);
        assert_int_equal(dataset_eval_tokens(f.set), count - 1);
        int next = 1;
        for (int64_t w = 0; w < dataset_eval_count(f.set); w++) {
            assert_int_equal(dataset_eval_window(f.set, w, tokens, labels, &bytes), STATUS_OK);
            assert_int_equal(bytes, 0);
            for (int i = 0; i < T; i++) {
                if (labels[i] < 0) {
                    assert_int_equal(next, count);
                    assert_int_equal(tokens[i], 0);
                    continue;
                }
                assert_int_equal(labels[i], next++);
                assert_int_equal(tokens[i], labels[i] - 1);
            }
        }
        assert_int_equal(next, count);
        end(&f);
    }
}

static void test_held_out_bytes_are_counted_in_the_text(void **state)
{
    static const char line[] = "The quick brown fox, \xc3\xa9t\xc3\xa9.\n";
    struct fixture f;
    struct tokenizer *tokenizer;
    struct text text;
    int64_t sum = 0, bytes, labels_seen = 0;
    int32_t tokens[T], labels[T];
    (void)state;
    begin(&f);
    text_init(&text, &f.s.env);
    for (int i = 0; i < 100; i++)
        text_add(&text, line);
    f.config.path = scratch_text(&f.s, "a.txt", text_string(&text));
    f.config.val = "0.1";
    f.config.tokenizer = "train:280";
    assert_int_equal(data_tokenizer_create(&f.s.env, &f.config, NULL, NULL, &tokenizer), STATUS_OK);
    assert_in_range(tokenizer_vocab(tokenizer), 265, 280);
    assert_int_equal(make(&f, tokenizer, 300, 1), STATUS_OK);
    for (int64_t w = 0; w < dataset_eval_count(f.set); w++) {
        assert_int_equal(dataset_eval_window(f.set, w, tokens, labels, &bytes), STATUS_OK);
        sum += bytes;
        for (int i = 0; i < T; i++)
            labels_seen += labels[i] >= 0;
    }
    assert_int_equal(sum, 10 * (sizeof line - 1));
    assert_int_equal(labels_seen, dataset_eval_tokens(f.set));
    tokenizer_destroy(tokenizer);
    text_free(&text);
    end(&f);
}

static void refuse(struct fixture *f, const struct tokenizer *tokenizer, int64_t vocab,
                   enum status st, const char *message)
{
    assert_int_equal(make(f, tokenizer, vocab, 1), st);
    scratch_expect(&f->s, message);
}

static void test_impossible_datasets_are_refused(void **state)
{
    struct fixture f;
    struct tokenizer *tokenizer;
    (void)state;
    begin(&f);
    refuse(&f, NULL, VOCAB, STATUS_CONFIG, "data.path is not set");
    f.config.path = numbers(&f, 0, 0, T);
    f.config.format = DATA_U16;
    refuse(&f, NULL, VOCAB, STATUS_CONFIG, "context of 16 is longer than the data: ");
    f.config.path = numbers(&f, 0, 0, 100);
    refuse(&f, NULL, 99, STATUS_CONFIG, "token 99 at position 99 is beyond the vocabulary of 99");
    f.config.path = "/nonexistent/x";
    refuse(&f, NULL, VOCAB, STATUS_IO, "/nonexistent/x");
    struct data_mix_item items[] = {{numbers(&f, 0, 0, 100), 1, DATA_U16}, {"", 1, DATA_U16}};
    f.config.mix = (struct option_list){items, 2};
    refuse(&f, NULL, VOCAB, STATUS_CONFIG, "not both");
    f.config.path = "";
    refuse(&f, NULL, VOCAB, STATUS_CONFIG, "item 2 has no path");
    f.config.mix.count = 0;
    assert_int_equal(tokenizer_bytes(&f.s.env, &tokenizer), STATUS_OK);
    f.config.path = scratch_text(&f.s, "a.txt", "this text is long enough for one window");
    f.config.format = DATA_AUTO;
    refuse(&f, tokenizer, 256, STATUS_CONFIG,
           "the tokenizer has 257 tokens but model.vocab is 256");
    tokenizer_destroy(tokenizer);
    end(&f);
}

/* The first shard is checked at the start, later ones when a sample reaches them. */
static void test_a_bad_token_in_a_later_shard_is_found(void **state)
{
    struct fixture f;
    int32_t tokens[T], labels[T];
    char pattern[80];
    bool found = false;
    (void)state;
    begin(&f);
    numbers(&f, 0, 0, 100);
    numbers(&f, 1, 100, 100);
    snprintf(pattern, sizeof pattern, "%s/*.bin", f.s.folder);
    f.config.path = pattern;
    f.config.format = DATA_U16;
    assert_int_equal(make(&f, NULL, 150, 1), STATUS_OK);
    for (uint64_t i = 0; i < 20 && !found; i++)
        found = dataset_sample(f.set, i, tokens, labels) == STATUS_CONFIG;
    assert_true(found);
    scratch_expect(&f.s, "1.bin': token ");
    end(&f);
}

static void test_sampling_allocates_nothing(void **state)
{
    struct fixture f;
    int64_t bytes;
    int32_t tokens[T], labels[T];
    (void)state;
    begin(&f);
    struct data_mix_item items[] = {{numbers(&f, 0, 0, 1000), 1, DATA_U16},
                                    {numbers(&f, 1, 0, 1000), 1, DATA_U16}};
    f.config.mix = (struct option_list){items, 2};
    f.config.split = 0.1;
    assert_int_equal(make(&f, NULL, VOCAB, 1), STATUS_OK);
    int64_t before = mem_allocation_count(f.s.env.mem);
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(dataset_sample(f.set, i, tokens, labels), STATUS_OK);
    assert_int_equal(dataset_eval_tokens(f.set), 200);
    assert_int_equal(
        dataset_eval_window(f.set, dataset_eval_count(f.set) - 1, tokens, labels, &bytes),
        STATUS_OK);
    assert_int_equal(labels[200 - 100 - 6 * T - 1], 999);
    assert_int_equal(mem_allocation_count(f.s.env.mem), before);
    end(&f);
}

static void test_every_allocation_may_fail(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    struct data_mix_item items[] = {{numbers(&f, 0, 0, 100), 1, DATA_U16},
                                    {numbers(&f, 1, 0, 100), 1, DATA_U16}};
    f.config.mix = (struct option_list){items, 2};
    f.config.val = items[0].path;
    f.config.format = DATA_U16;
    enum status st = STATUS_MEMORY;
    for (int n = 1; st != STATUS_OK; n++) {
        mem_fail_at(f.s.env.mem, n);
        st = make(&f, NULL, VOCAB, 1);
        assert_true(st == STATUS_OK || st == STATUS_MEMORY);
        if (st != STATUS_OK)
            assert_int_equal(mem_total(f.s.env.mem), 0);
    }
    mem_fail_at(f.s.env.mem, 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pass_has_every_window_once),
        cmocka_unit_test(test_passes_and_seeds_differ),
        cmocka_unit_test(test_sources_are_drawn_by_weight),
        cmocka_unit_test(test_held_out_tokens_are_predicted_once),
        cmocka_unit_test(test_held_out_bytes_are_counted_in_the_text),
        cmocka_unit_test(test_impossible_datasets_are_refused),
        cmocka_unit_test(test_a_bad_token_in_a_later_shard_is_found),
        cmocka_unit_test(test_sampling_allocates_nothing),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
