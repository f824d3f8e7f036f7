/* A token cache reads back as written, is used only if it is intact, and touches no other files. */
#include <unistd.h>
#include "base/file_guard.h"
#include "train/scratch.h"
#include "train/data/token_cache.h"

static const struct token_cache_key KEY = {0x0123456789abcdefu, 0xfedcba9876543210u};
#define NAME "cache/tokens-0123456789abcdef-fedcba9876543210.bin"

static char folder[96];

static void begin(struct scratch *s)
{
    scratch_open(s);
    snprintf(folder, sizeof folder, "%s/cache", s->folder);
}

/* 20 training tokens, of which 3 .. 5 are masked, and `held_out` more. */
static struct token_cache *write_cache(struct scratch *s, const char *where, int64_t vocab,
                                       int held_out)
{
    struct token_cache_writer *writer;
    struct token_cache *cache = NULL;
    assert_int_equal(token_cache_writer_create(&s->env, where, KEY, vocab, &writer), STATUS_OK);
    for (int32_t i = 0; i < 20 + held_out; i++) {
        int32_t token = i * 7;
        if (i == 20)
            token_cache_writer_hold_out(writer);
        assert_int_equal(token_cache_writer_add(writer, &token, 1, i >= 3 && i <= 5), STATUS_OK);
    }
    assert_int_equal(token_cache_writer_count(writer), held_out ? held_out : 20);
    assert_int_equal(token_cache_writer_finish(writer, &cache), STATUS_OK);
    assert_non_null(cache);
    token_cache_writer_destroy(writer);
    return cache;
}

static void expect(const struct token_cache *cache, int token_bytes, int held_out)
{
    assert_int_equal(cache->token_bytes, token_bytes);
    assert_int_equal(cache->train, 20);
    assert_int_equal(cache->held_out, held_out);
    assert_true(cache->masked[0] && !cache->masked[1]);
    for (int i = 0; i < 20 + held_out; i++) {
        uint32_t token = 0;
        memcpy(&token, (const uint8_t *)cache->tokens + i * token_bytes, (size_t)token_bytes);
        assert_int_equal(token, i * 7);
        assert_int_equal(cache->mask[i / 8] >> (i % 8) & 1, i >= 3 && i <= 5);
    }
}

static void test_a_cache_reads_back(void **state)
{
    struct scratch s;
    struct token_cache *cache;
    (void)state;
    begin(&s);
    for (int wide = 0; wide < 2; wide++) {
        cache = write_cache(&s, folder, wide ? 65537 : 65536, 9);
        expect(cache, wide ? 4 : 2, 9);
        token_cache_close(cache);
        assert_int_equal(token_cache_open(&s.env, folder, KEY, &cache), STATUS_OK);
        expect(cache, wide ? 4 : 2, 9);
        assert_int_equal(unlink(scratch_path(&s, NAME)), 0); /* the cache stays mapped */
        expect(cache, wide ? 4 : 2, 9);
        token_cache_close(cache);
        assert_int_equal(token_cache_open(&s.env, folder, KEY, &cache), STATUS_OK);
        assert_null(cache);
    }
    scratch_close(&s);
}

/* Otherwise another file mapped later at the same address would be mistaken for this one. */
static void test_a_closed_map_is_not_guarded(void **state)
{
    struct scratch s;
    struct file_guard_news news;
    (void)state;
    begin(&s);
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        struct token_cache *cache = write_cache(&s, in_memory ? NULL : folder, 1000, 9);
        const void *tokens = cache->tokens;
        assert_true(file_guard_look(tokens, &news));
        token_cache_close(cache);
        assert_false(file_guard_look(tokens, &news));
    }
    scratch_close(&s);
}

static void test_only_memory_is_accounted(void **state)
{
    struct scratch s;
    (void)state;
    begin(&s);
    size_t before = mem_bytes(s.env.mem, MEM_LOADER);
    struct token_cache *cache = write_cache(&s, folder, 1000, 0);
    size_t mapped = mem_bytes(s.env.mem, MEM_LOADER) - before;
    assert_true(mapped < cache->bytes);
    token_cache_close(cache);
    cache = write_cache(&s, NULL, 1000, 0);
    expect(cache, 2, 0);
    assert_int_equal(mem_bytes(s.env.mem, MEM_LOADER) - before, mapped + cache->bytes);
    token_cache_close(cache);
    scratch_close(&s);
}

static void test_a_damaged_cache_is_not_used(void **state)
{
    struct scratch s;
    struct token_cache *cache;
    char *text;
    size_t bytes;
    (void)state;
    begin(&s);
    token_cache_close(write_cache(&s, folder, 1000, 9));
    assert_int_equal(file_read(&s.env, scratch_path(&s, NAME), 1 << 20, &text, &bytes), STATUS_OK);
    size_t places[] = {0, 8, 20, 40, 60, 4096, 4120, bytes - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        text[places[i]] ^= 4;
        scratch_write(&s, NAME, text, bytes);
        text[places[i]] ^= 4;
        assert_int_equal(token_cache_open(&s.env, folder, KEY, &cache), STATUS_OK);
        assert_null(cache);
    }
    size_t lengths[] = {0, 100, 4096, bytes - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        scratch_write(&s, NAME, text, lengths[i]);
        assert_int_equal(token_cache_open(&s.env, folder, KEY, &cache), STATUS_OK);
        assert_null(cache);
    }
    cache = write_cache(&s, folder, 1000, 9); /* replaces the damaged file */
    expect(cache, 2, 9);
    token_cache_close(cache);
    mem_free(&s.env, text);
    scratch_close(&s);
}

static void test_foreign_files_are_kept(void **state)
{
    static const char *const others[] = {
        "cache/notes.txt", "cache/tokens-0123456789abcdef-0000000000000000.bin",
        "cache/tokens-0123456789abcdef-fedcba9876543210.bin.old", NULL};
    const struct token_cache_key other = {1, 2};
    struct scratch s;
    char moved[96];
    uint64_t bytes;
    (void)state;
    begin(&s);
    snprintf(moved, sizeof moved, "%s/moved", s.folder);
    token_cache_close(write_cache(&s, folder, 1000, 0));
    for (int i = 0; others[i]; i++)
        scratch_text(&s, others[i], "somebody's");
    assert_int_equal(symlink("notes.txt", scratch_path(&s, "cache/"
                                                           "tokens-0000000000000000-"
                                                           "0000000000000000.bin")),
                     0);
    token_cache_prune(folder, &KEY, 1);
    assert_int_equal(token_cache_list(folder, &bytes), 1);
    token_cache_move(&s.env, folder, moved);
    assert_int_equal(token_cache_list(folder, &bytes), 0);
    assert_int_equal(token_cache_list(moved, &bytes), 1);
    token_cache_prune(moved, &other, 1);
    assert_int_equal(token_cache_list(moved, &bytes), 0);
    token_cache_discard(moved);
    assert_false(file_exists(moved));
    token_cache_discard(folder);
    for (int i = 0; others[i]; i++)
        assert_true(file_exists(scratch_path(&s, others[i])));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cache_reads_back),
        cmocka_unit_test(test_a_closed_map_is_not_guarded),
        cmocka_unit_test(test_only_memory_is_accounted),
        cmocka_unit_test(test_a_damaged_cache_is_not_used),
        cmocka_unit_test(test_foreign_files_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
