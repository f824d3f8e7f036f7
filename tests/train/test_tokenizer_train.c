/* Learning, compared with its definition: for every merge count all pairs of all words again, and
 * merge the most frequent one everywhere. */
#include <stdlib.h>
#include "testing.h"
#include "base/rng.h"
#include "train/learn.h"

enum { TEXT = 3000, MERGES = 120, IDS = 256 + MERGES };

struct naive {
    int32_t symbols[TEXT]; /* words, each terminated by -1 */
    int count;
    char tokens[IDS][300];
};

/* Words of these texts are an optional space and letters. The ids are GPT-2's: '!' is 0, the space
 * is 220. */
static void naive_init(struct naive *n, const char *text, size_t bytes)
{
    n->count = 0;
    memset(n->tokens, 0, sizeof n->tokens);
    for (char c = 'a'; c <= 'z'; c++)
        n->tokens[c - 33][0] = c;
    n->tokens[220][0] = ' '; /* 188 bytes map to themselves, 32 others come before the space */
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ' && i)
            n->symbols[n->count++] = -1;
        n->symbols[n->count++] = text[i] == ' ' ? 220 : text[i] - 33;
    }
    n->symbols[n->count++] = -1;
}

static bool naive_best(const struct naive *n, int *left, int *right)
{
    static int counts[IDS][IDS];
    int best = 1;
    memset(counts, 0, sizeof counts);
    for (int i = 0; i + 1 < n->count; i++)
        if (n->symbols[i] >= 0 && n->symbols[i + 1] >= 0)
            counts[n->symbols[i]][n->symbols[i + 1]]++;
    for (int l = 0; l < IDS; l++)
        for (int r = 0; r < IDS; r++)
            if (counts[l][r] > best) {
                best = counts[l][r];
                *left = l;
                *right = r;
            }
    return best > 1;
}

static void naive_merge(struct naive *n, int left, int right, int result)
{
    int out = 0;
    for (int i = 0; i < n->count; out++) {
        bool here = i + 1 < n->count && n->symbols[i] == left && n->symbols[i + 1] == right;
        n->symbols[out] = here ? result : n->symbols[i];
        i += here ? 2 : 1;
    }
    n->count = out;
    snprintf(n->tokens[result], sizeof n->tokens[result], "%.140s%.140s", n->tokens[left],
             n->tokens[right]);
}

static void test_learning_follows_its_definition(void **state)
{
    (void)state;
    static struct naive naive;
    static char text[TEXT / 2];
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct env env = testing_env(1);
        struct rng rng = rng_stream(seed, "text");
        struct tokenizer *tokenizer;
        size_t bytes = sizeof text - seed * 100, token_bytes;
        for (size_t i = 0; i < bytes; i++) /* few letters: many ties, many repeats inside a word */
            text[i] = i && text[i - 1] != ' ' && rng_below(rng, 2 * i, 6) == 0 && i + 1 < bytes
                          ? ' '
                          : (char)('a' + rng_below(rng, 2 * i + 1, 2 + seed % 3));
        assert_ok(learn_text(&env, text, bytes, 257 + MERGES, NULL, NULL, &tokenizer));
        naive_init(&naive, text, bytes);
        int merges = 0, left, right;
        for (; merges < MERGES && naive_best(&naive, &left, &right); merges++) {
            naive_merge(&naive, left, right, 256 + merges);
            const char *expected = naive.tokens[256 + merges];
            const void *token = tokenizer_token(tokenizer, 256 + merges, &token_bytes);
            assert_non_null(token);
            if (token_bytes != strlen(expected) || memcmp(token, expected, token_bytes) != 0)
                fail_msg("seed %d: merge %d is '%.*s', expected '%s'", (int)seed, merges,
                         (int)token_bytes, (const char *)token, expected);
        }
        assert_int_equal(tokenizer_vocab(tokenizer), 257 + merges);
        assert_int_equal(tokenizer_eot(tokenizer), 256 + merges);
        tokenizer_destroy(tokenizer);
        env_destroy(&env);
    }
}

/* --- text in parts -------------------------------------------------------------------------- */

static struct tokenizer *learn_parts(struct env *env, const char *text, size_t bytes, size_t part,
                                     const struct tokenizer_limits *limits,
                                     struct tokenizer_dropped *dropped)
{
    struct tokenizer_learner *learner = NULL;
    struct tokenizer *tokenizer = NULL;
    assert_ok(tokenizer_learner_create(env, 600, limits, NULL, NULL, &learner));
    for (size_t at = 0; at < bytes; at += part)
        assert_ok(tokenizer_learner_add(learner, text + at, bytes - at < part ? bytes - at : part));
    assert_ok(tokenizer_learner_finish(learner, &tokenizer));
    *dropped = tokenizer_learner_dropped(learner);
    tokenizer_learner_destroy(learner);
    return tokenizer;
}

/* All kinds of white space between all kinds of words: a wrong cut changes the result. */
static size_t fill_words(char *text, size_t bytes)
{
    static const char *const parts[] = {" ab",          "\n",   "  ", "\xe3\x80\x80",
                                        "\xe4\xb8\xad", "7",    "!?", "x'll",
                                        "\xc2\xa0",     "\xff", "\t", "\xe3\x80 "};
    struct rng rng = rng_stream(1, "words");
    size_t used = 0;
    for (uint64_t i = 0; used + 8 < bytes; i++) {
        const char *part = parts[rng_below(rng, i, sizeof parts / sizeof *parts)];
        memcpy(text + used, part, strlen(part));
        used += strlen(part);
    }
    return used;
}

static void test_cutting_the_text_makes_no_difference(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct tokenizer_dropped dropped;
    size_t room = (size_t)5 << 19;
    char *text = malloc(room);
    assert_non_null(text);
    size_t bytes = fill_words(text, room);
    struct tokenizer *whole = learn_parts(&env, text, bytes, bytes, NULL, &dropped);
    struct tokenizer *parts = learn_parts(&env, text, bytes, 70001, NULL, &dropped);
    assert_true(tokenizer_hash(whole) == tokenizer_hash(parts));
    assert_int_equal(dropped.words, 0);
    tokenizer_destroy(parts);
    tokenizer_destroy(whole);
    free(text);
    env_destroy(&env);
}

/* Memory grows neither with the text nor, beyond a limit, with the number of its words. */
static void test_rare_words_are_dropped(void **state)
{
    (void)state;
    static char text[600000];
    const struct tokenizer_limits limits = {.words = 300, .word_bytes = 4000};
    struct tokenizer_dropped dropped;
    size_t used = 0, bytes;
    for (int i = 0; used + 32 < sizeof text; i++) /* every third word is new */
        used += (size_t)snprintf(text + used, 32, i % 3 ? " common" : " %c%d", 'a' + i % 26, i);
    for (int limited = 0; limited < 2; limited++) {
        struct env env = testing_env(1);
        struct tokenizer *t =
            learn_parts(&env, text, used, used, limited ? &limits : NULL, &dropped);
        const void *token = tokenizer_token(t, 261, &bytes); /* the sixth merge */
        assert_int_equal(bytes, 7);
        assert_memory_equal(token, " common", 7);
        assert_int_equal(dropped.words > 0, limited);
        assert_int_equal(mem_peak(env.mem, MEM_LOADER) < (size_t)2 << 20, limited);
        tokenizer_destroy(t);
        env_destroy(&env);
    }
}

static bool count_calls(void *user, int done, int total)
{
    int *calls = user;
    assert_in_range(done, 257, total);
    assert_int_equal(total, 400);
    calls[0]++;
    calls[1] = done;
    return true;
}

static bool stop_at_once(void *user, int done, int total)
{
    (void)done, (void)total;
    ++*(int *)user;
    return false;
}

static void test_the_callback_can_stop_learning(void **state)
{
    (void)state;
    static const char text[] = "the cat and the dog and the cat and the dog";
    struct env env = testing_env(1);
    struct tokenizer *tokenizer = NULL;
    int calls = 0;
    assert_int_equal(learn_text(&env, text, sizeof text - 1, 300, stop_at_once, &calls, &tokenizer),
                     STATUS_STOPPED);
    assert_int_equal(calls, 1);
    assert_null(tokenizer);
    env_destroy(&env);
}

/* Small and unusual texts. */
static void test_small_texts_are_learnt(void **state)
{
    (void)state;
    static char run[20000];
    struct env env = testing_env(1);
    struct tokenizer *tokenizer;
    int calls[2] = {0};
    size_t bytes;
    memset(run, 'a', sizeof run);
    assert_ok(learn_text(&env, NULL, 0, 1000, NULL, NULL, &tokenizer));
    assert_int_equal(tokenizer_vocab(tokenizer), 257);
    tokenizer_destroy(tokenizer);
    assert_ok(learn_text(&env, "abc", 3, 1000, NULL, NULL, &tokenizer));
    assert_int_equal(tokenizer_vocab(tokenizer), 257);
    tokenizer_destroy(tokenizer);
    assert_ok(learn_text(&env, "\xff\xfe\xff\xfe the the\x80", 13, 1000, NULL, NULL, &tokenizer));
    assert_int_equal(tokenizer_vocab(tokenizer), 260); /* " t", "he", " the" */
    tokenizer_destroy(tokenizer);
    assert_ok(learn_text(&env, run, sizeof run, 400, count_calls, calls, &tokenizer));
    assert_true(calls[0] >= 2);
    assert_int_equal(calls[1], tokenizer_vocab(tokenizer));
    for (int32_t id = 256; id < tokenizer_eot(tokenizer); id++) { /* tokens have a maximal length */
        assert_non_null(tokenizer_token(tokenizer, id, &bytes));
        assert_in_range(bytes, 2, 256);
    }
    tokenizer_destroy(tokenizer);
    assert_int_equal(learn_text(&env, "abc", 3, 256, NULL, NULL, &tokenizer), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "257"));
    env_destroy(&env);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    static char text[6000];
    struct env env = testing_env(1);
    struct rng rng = rng_stream(1, "memory");
    bool reached = true;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(rng_below(rng, i, 8) ? 'a' + rng_below(rng, i + 100000, 26) : ' ');
    for (int64_t n = 1; reached; n++) {
        struct tokenizer *tokenizer = NULL;
        int64_t before = mem_allocation_count(env.mem);
        mem_fail_at(env.mem, n);
        enum status st = learn_text(&env, text, sizeof text, 500, NULL, NULL, &tokenizer);
        mem_fail_at(env.mem, 0);
        reached = mem_allocation_count(env.mem) - before >= n;
        assert_true(st == STATUS_OK || (reached && st == STATUS_MEMORY));
        assert_true(n > 4 || st == STATUS_MEMORY);
        tokenizer_destroy(tokenizer);
        assert_true(n < 1000);
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learning_follows_its_definition),
        cmocka_unit_test(test_small_texts_are_learnt),
        cmocka_unit_test(test_cutting_the_text_makes_no_difference),
        cmocka_unit_test(test_rare_words_are_dropped),
        cmocka_unit_test(test_the_callback_can_stop_learning),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
