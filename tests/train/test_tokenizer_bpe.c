/* Merging, compared with its definition: repeatedly apply the pair of lowest rank, leftmost
 * first. */
#include <time.h>
#include "testing.h"
#include "base/rng.h"
#include "train/tokenizer/tokenizer_impl.h"

static const struct bpe_rules by_bytes = {.byte_level = true, .unknown = -1};
static const struct bpe_rules whole_words = {
    .byte_level = true, .whole_words = true, .unknown = -1};

enum { LETTERS = 3, MERGES = 60 };

/* A vocabulary over a, b, c whose merges join random earlier tokens. Unlike learnt merges they are
 * in random order. */
struct toy {
    struct env env;
    struct token tokens[LETTERS + MERGES];
    uint8_t blob[65536];
    struct vocab vocab;
    struct merge merges[MERGES];
    int count;
};

static bool toy_has(const struct toy *toy, const uint8_t *data, size_t bytes)
{
    for (int i = 0; i < toy->vocab.count; i++)
        if (toy->tokens[i].bytes == bytes &&
            memcmp(toy->blob + toy->tokens[i].at, data, bytes) == 0)
            return true;
    return false;
}

static void toy_init(struct toy *toy, uint64_t seed)
{
    struct rng rng = rng_stream(seed, "toy");
    size_t used = LETTERS;
    *toy = (struct toy){.env = testing_env(1)};
    toy->vocab = (struct vocab){toy->tokens, LETTERS, toy->blob};
    for (uint32_t i = 0; i < LETTERS; i++) {
        toy->blob[i] = (uint8_t)('a' + i);
        toy->tokens[i] = (struct token){i, 1, TOKEN_USED | TOKEN_WORD};
    }
    for (uint64_t n = 0; n < MERGES * 4 && toy->count < MERGES; n++) {
        int32_t left = (int32_t)rng_below(rng, 2 * n, (uint64_t)toy->vocab.count);
        int32_t right = (int32_t)rng_below(rng, 2 * n + 1, (uint64_t)toy->vocab.count);
        const struct token *l = &toy->tokens[left], *r = &toy->tokens[right];
        size_t bytes = l->bytes + r->bytes;
        memcpy(toy->blob + used, toy->blob + l->at, l->bytes);
        memcpy(toy->blob + used + l->bytes, toy->blob + r->at, r->bytes);
        if (bytes > 12 || toy_has(toy, toy->blob + used, bytes))
            continue;
        toy->tokens[toy->vocab.count] =
            (struct token){(uint32_t)used, (uint32_t)bytes, TOKEN_USED | TOKEN_WORD};
        toy->merges[toy->count++] = (struct merge){left, right, toy->vocab.count++};
        used += bytes;
    }
    for (int i = toy->count - 1; i > 0; i--) { /* ranks in random order */
        int j = (int)rng_below(rng, 10000 + (uint64_t)i, (uint64_t)i + 1);
        struct merge swap = toy->merges[i];
        toy->merges[i] = toy->merges[j];
        toy->merges[j] = swap;
    }
}

static size_t merge_by_definition(const struct toy *toy, int32_t *ids, size_t count)
{
    for (int rank = 0; rank < toy->count; rank++) {
        const struct merge *m = &toy->merges[rank];
        for (size_t i = 0; i + 1 < count; i++)
            if (ids[i] == m->left && ids[i + 1] == m->right) {
                ids[i] = m->result;
                memmove(ids + i + 1, ids + i + 2, (--count - i - 1) * sizeof *ids);
                rank = -1; /* lower ranks may apply now */
                break;
            }
    }
    return count;
}

static void test_merging_follows_its_definition(void **state)
{
    (void)state;
    static struct toy toy;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct bpe *bpe;
        struct bpe_work *work;
        struct token_list out = {0};
        struct rng rng = rng_stream(seed, "pre-tokens");
        toy_init(&toy, seed);
        assert_ok(bpe_create(&toy.env, &toy.vocab, toy.merges, toy.count, &by_bytes, &bpe));
        assert_ok(bpe_work_create(&toy.env, bpe, &work));
        for (uint64_t n = 0; n < 200; n++) {
            uint8_t pretoken[160];
            int32_t ids[160];
            size_t bytes = 1 + n % 2 * 40 + rng_below(rng, n, n % 10 ? 20 : 110);
            for (size_t i = 0; i < bytes; i++) {
                pretoken[i] = (uint8_t)('a' + rng_below(rng, 1000 + n * 200 + i, LETTERS));
                ids[i] = pretoken[i] - 'a';
            }
            size_t count = merge_by_definition(&toy, ids, bytes);
            for (int again = 0; again < 2; again++) {
                out.count = 0;
                assert_ok(bpe_encode(work, pretoken, bytes, &out));
                assert_int_equal(out.count, count);
                assert_memory_equal(out.ids, ids, count * sizeof *ids);
            }
        }
        token_list_free(&toy.env, &out);
        bpe_work_destroy(work);
        bpe_destroy(bpe);
        env_destroy(&toy.env);
    }
}

static void test_whole_words_skip_merges(void **state)
{
    (void)state;
    uint8_t blob[] = "abababXaX";
    struct token tokens[] = {{0, 1, TOKEN_USED | TOKEN_WORD}, /* a */
                             {1, 1, TOKEN_USED | TOKEN_WORD}, /* b */
                             {0, 4, TOKEN_USED | TOKEN_WORD}, /* abab, without a merge */
                             {1, 4, TOKEN_USED | TOKEN_WORD | TOKEN_SPECIAL}, /* baba */
                             {0, 3, TOKEN_USED}}; /* aba, not in the byte alphabet */
    struct vocab vocab = {tokens, 5, blob};
    struct env env = testing_env(1);
    struct bpe *bpe;
    struct bpe_work *work;
    struct token_list out = {0};
    static const struct {
        const char *pretoken;
        int64_t count;
    } cases[] = {{"abab", 1}, {"baba", 4}, {"aba", 3}, {"b", 1}, {"ababa", 5}};
    assert_ok(bpe_create(&env, &vocab, NULL, 0, &whole_words, &bpe));
    assert_false(bpe_is_plain(bpe));
    assert_ok(bpe_work_create(&env, bpe, &work));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        out.count = 0;
        assert_ok(
            bpe_encode(work, (const uint8_t *)cases[i].pretoken, strlen(cases[i].pretoken), &out));
        assert_int_equal(out.count, cases[i].count);
    }
    log_error_clear(env.log);
    assert_int_equal(bpe_encode(work, (const uint8_t *)"a?", 2, &out), STATUS_FORMAT);
    assert_non_null(strstr(log_first_error(env.log), "0x3f"));
    token_list_free(&env, &out);
    bpe_work_destroy(work);
    bpe_destroy(bpe);
    env_destroy(&env);
}

/* More distinct pre-tokens than the cache can hold: it is emptied, memory stays bounded, and the
 * ids stay correct. */
static void test_a_full_cache_keeps_ids_correct(void **state)
{
    (void)state;
    static struct toy toy;
    struct bpe *bpe;
    struct bpe_work *work;
    struct token_list out = {0};
    toy_init(&toy, 3);
    assert_ok(bpe_create(&toy.env, &toy.vocab, NULL, 0, &by_bytes, &bpe));
    assert_ok(bpe_work_create(&toy.env, bpe, &work));
    for (uint32_t n = 0; n < 150000; n++) {
        uint8_t pretoken[100];
        for (uint32_t i = 0; i < sizeof pretoken; i++)
            pretoken[i] = (uint8_t)('a' + (n >> (i % 20) & 1));
        out.count = 0;
        assert_ok(bpe_encode(work, pretoken, sizeof pretoken, &out));
        assert_int_equal(out.count, sizeof pretoken);
        for (size_t i = 0; i < sizeof pretoken; i++)
            if (out.ids[i] != pretoken[i] - 'a')
                fail_msg("wrong ids for pre-token %u", n);
    }
    assert_true(mem_total_peak(toy.env.mem) < (size_t)110 << 20);
    token_list_free(&toy.env, &out);
    bpe_work_destroy(work);
    bpe_destroy(bpe);
    env_destroy(&toy.env);
}

/* A pre-token of a megabyte takes n log n steps, not n squared. */
static void test_a_long_pretoken_takes_n_log_n(void **state)
{
    (void)state;
    static struct toy toy;
    static uint8_t pretoken[1 << 20];
    struct bpe *bpe;
    struct bpe_work *work;
    struct token_list out = {0};
    size_t bytes = 0;
    toy_init(&toy, 5);
    memset(pretoken, 'a', sizeof pretoken);
    assert_ok(bpe_create(&toy.env, &toy.vocab, toy.merges, toy.count, &by_bytes, &bpe));
    assert_ok(bpe_work_create(&toy.env, bpe, &work));
    clock_t start = clock(); /* CPU time: n squared would take hours of it */
    assert_ok(bpe_encode(work, pretoken, sizeof pretoken, &out));
    assert_true((clock() - start) / CLOCKS_PER_SEC < 20);
    for (int64_t i = 0; i < out.count; i++)
        bytes += toy.tokens[out.ids[i]].bytes;
    assert_int_equal(bytes, sizeof pretoken);
    token_list_free(&toy.env, &out);
    bpe_work_destroy(work);
    bpe_destroy(bpe);
    env_destroy(&toy.env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merging_follows_its_definition),
        cmocka_unit_test(test_whole_words_skip_merges),
        cmocka_unit_test(test_a_full_cache_keeps_ids_correct),
        cmocka_unit_test(test_a_long_pretoken_takes_n_log_n),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
