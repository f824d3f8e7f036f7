#include "train/scratch.h"
#include "train/data/dataset.h"

static struct data_config config_of(const char *path, const char *tokenizer)
{
    return (struct data_config){.path = path, .val = "", .tokenizer = tokenizer};
}

static enum status make(struct scratch *s, struct data_config config, struct tokenizer **t)
{
    return data_tokenizer_create(&s->env, &config, NULL, NULL, t);
}

static bool knows(const struct tokenizer *tokenizer, const char *word)
{
    for (int32_t id = 0; id < tokenizer_vocab(tokenizer); id++) {
        size_t bytes;
        const void *token = tokenizer_token(tokenizer, id, &bytes);
        if (token && bytes == strlen(word) && memcmp(token, word, bytes) == 0)
            return true;
    }
    return false;
}

static void test_specifications_are_parsed(void **state)
{
    struct scratch s;
    struct tokenizer *t;
    (void)state;
    scratch_open(&s);
    assert_int_equal(make(&s, config_of("", ""), &t), STATUS_OK);
    assert_null(t);
    assert_int_equal(make(&s, config_of("", "bytes"), &t), STATUS_OK);
    assert_int_equal(tokenizer_vocab(t), 257);
    tokenizer_destroy(t);
    assert_int_equal(make(&s, config_of("x", "train:many"), &t), STATUS_CONFIG);
    scratch_expect(&s, "must be a number");
    assert_int_equal(make(&s, config_of("x", "train:10"), &t), STATUS_CONFIG);
    scratch_expect(&s, "from 257");
    scratch_close(&s);
}

/* The held-out end of the text must not shape the vocabulary. */
static void test_only_training_text_is_learnt_from(void **state)
{
    struct scratch s;
    struct tokenizer *t;
    struct text text;
    (void)state;
    scratch_open(&s);
    text_init(&text, &s.env);
    for (int i = 0; i < 50; i++)
        text_add(&text, "apple\n");
    for (int i = 0; i < 50; i++)
        text_add(&text, "zebra\n");
    struct data_config config =
        config_of(scratch_text(&s, "a.txt", text_string(&text)), "train:300");
    config.split = 0.5;
    assert_int_equal(make(&s, config, &t), STATUS_OK);
    assert_true(knows(t, "apple"));
    assert_false(knows(t, "zebra") || knows(t, "ze") || knows(t, "ra"));
    tokenizer_destroy(t);
    text_free(&text);
    scratch_close(&s);
}

static char told[512];

static void keep_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level;
    snprintf(told, sizeof told, "%s", line);
}

static bool show_nothing(void *user, int done, int total)
{
    (void)user, (void)done, (void)total;
    return true;
}

/* 8 MiB with a different word in each MiB; two of them are read. */
static void test_long_text_is_sampled_evenly(void **state)
{
    static const char *const words[] = {"first", "b", "c", "d", "middle", "f", "g", "h"};
    (void)state;
    for (int jsonl = 0; jsonl < 2; jsonl++) {
        struct scratch s;
        struct tokenizer *t;
        scratch_open(&s);
        log_destroy(s.env.log);
        s.env.log = log_create(keep_line, NULL, LOG_INFO);
        *told = 0;
        FILE *file = fopen(scratch_path(&s, jsonl ? "a.jsonl" : "a.txt"), "wb");
        assert_non_null(file);
        for (size_t used = 0; used < (size_t)8 << 20;) {
            const char *w = words[used >> 20];
            used += (size_t)fprintf(
                file, jsonl ? "{\"text\":\"%s %s%s %s%s\"}\n" : "%s %s%s %s%s\n", w, w, w, w, w);
        }
        fclose(file);
        struct data_config config = config_of(s.path, "train:400");
        config.max_text = 2 << 20;
        assert_int_equal(data_tokenizer_create(&s.env, &config, show_nothing, NULL, &t), STATUS_OK);
        assert_true(knows(t, " firstfirst") && knows(t, " middlemiddle"));
        assert_false(knows(t, " bb") || knows(t, " dd") || knows(t, " ff") || knows(t, " hh"));
        assert_non_null(strstr(told, "evenly spread"));
        assert_non_null(strstr(told, jsonl ? " of 8.0 MiB" : "2.0 MiB of 8.0 MiB"));
        assert_true(mem_peak(s.env.mem, MEM_LOADER) + mem_peak(s.env.mem, MEM_OTHER) < (size_t)6
                                                                                           << 20);
        tokenizer_destroy(t);
        scratch_close(&s);
    }
}

static void test_jsonl_documents_are_learnt_from(void **state)
{
    struct scratch s;
    struct tokenizer *t;
    bool has_text;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_text(&s, "a.jsonl",
                                    "{\"text\":\"apple apple apple\"}\n"
                                    "{\"prompt\":\"pear pear\",\"completion\":\"plum plum\"}\n");
    struct data_config config = config_of(path, "train:300");
    assert_int_equal(make(&s, config, &t), STATUS_OK);
    assert_true(knows(t, "apple") || knows(t, " apple"));
    tokenizer_destroy(t);
    assert_int_equal(data_has_text(&s.env, &config, &has_text), STATUS_OK);
    assert_true(has_text);
    config.format = DATA_U16;
    assert_int_equal(data_has_text(&s.env, &config, &has_text), STATUS_OK);
    assert_false(has_text);
    assert_int_equal(make(&s, config, &t), STATUS_CONFIG);
    scratch_expect(&s, "holds tokens");
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specifications_are_parsed),
        cmocka_unit_test(test_only_training_text_is_learnt_from),
        cmocka_unit_test(test_long_text_is_sampled_evenly),
        cmocka_unit_test(test_jsonl_documents_are_learnt_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
