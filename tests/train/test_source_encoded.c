/* Text is encoded once: later readers map the tokens. The tokens are the same either way. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file_guard.h"
#include "base/output.h"
#include "threads.h"
#include "train/scratch.h"
#include "train/data/source.h"
#include "train/learn.h"

enum { TEXT_BYTES = 400000, TOKENS_MOST = 500000 };

struct fixture {
    struct scratch s;
    struct tokenizer *tokenizer;
    char cache[96], warning[512];
};

static void keep_warning(void *user, enum log_level level, const char *line)
{
    struct fixture *f = user;
    if (level == LOG_WARN)
        snprintf(f->warning, sizeof f->warning, "%s", line);
}

/* Words of many lengths, in lines. */
static void fill_text(char *text, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1103515245u + 12345u;
        unsigned r = seed >> 16;
        text[i] = r % 7 == 0 ? (r % 63 == 0 ? '\n' : ' ') : (char)('a' + r % 11);
    }
}

static void begin(struct fixture *f)
{
    static char text[TEXT_BYTES];
    scratch_open(&f->s);
    log_destroy(f->s.env.log);
    f->s.env.log = log_create(keep_warning, f, LOG_WARN);
    *f->warning = 0;
    snprintf(f->cache, sizeof f->cache, "%s/run/cache", f->s.folder);
    fill_text(text, sizeof text, 1);
    assert_int_equal(learn_text(&f->s.env, text, 20000, 300, NULL, NULL, &f->tokenizer), STATUS_OK);
    scratch_write(&f->s, "a.txt", text, sizeof text);
}

static void end(struct fixture *f)
{
    tokenizer_destroy(f->tokenizer);
    scratch_close(&f->s);
}

static struct source *load(struct fixture *f, const char *cache, const char *name, double split)
{
    struct source *source = NULL;
    struct source_spec spec = {.path = scratch_path(&f->s, name),
                               .split = split,
                               .tokenizer = f->tokenizer,
                               .vocab = 300,
                               .cache = cache};
    assert_int_equal(source_create(&f->s.env, &spec, &source), STATUS_OK);
    return source;
}

static int cache_files(const struct fixture *f)
{
    uint64_t bytes;
    return token_cache_list(f->cache, &bytes);
}

static void expect_same(struct fixture *f, const struct token_stream *a,
                        const struct token_stream *b)
{
    static int32_t left[TOKENS_MOST], right[TOKENS_MOST];
    assert_int_equal(a->count, b->count);
    assert_true(a->count < TOKENS_MOST);
    assert_int_equal(token_stream_read(a, &f->s.env, 0, a->count, 300, left), STATUS_OK);
    assert_int_equal(token_stream_read(b, &f->s.env, 0, b->count, 300, right), STATUS_OK);
    assert_memory_equal(left, right, (size_t)a->count * sizeof *left);
    for (int64_t i = 0; i < a->count; i++)
        assert_int_equal(token_stream_masked(a, i), token_stream_masked(b, i));
}

static void expect_same_source(struct fixture *f, const struct source *a, const struct source *b)
{
    expect_same(f, &a->train, &b->train);
    expect_same(f, &a->held_out, &b->held_out);
}

static void test_text_is_encoded_once_and_then_mapped(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    struct source *plain = load(&f, NULL, "a.txt", 0.1);
    struct source *first = load(&f, f.cache, "a.txt", 0.1);
    assert_int_equal(cache_files(&f), 1);
    size_t before = mem_bytes(f.s.env.mem, MEM_LOADER);
    int64_t allocations = mem_allocation_count(f.s.env.mem);
    struct source *second = load(&f, f.cache, "a.txt", 0.1);
    assert_int_equal(cache_files(&f), 1);
    /* no encoder was created, and this rank allocated no tokens */
    assert_true(mem_allocation_count(f.s.env.mem) - allocations < 20);
    assert_true(mem_bytes(f.s.env.mem, MEM_LOADER) - before < 2048);
    expect_same_source(&f, plain, first);
    expect_same_source(&f, plain, second);
    assert_string_equal(f.warning, "");
    source_destroy(second);
    source_destroy(first);
    source_destroy(plain);
    end(&f);
}

static void test_whatever_changes_tokens_has_its_own_file(void **state)
{
    struct fixture f;
    struct tokenizer *bytes, *learnt;
    (void)state;
    begin(&f);
    source_destroy(load(&f, f.cache, "a.txt", 0.1));
    source_destroy(load(&f, f.cache, "a.txt", 0.2));
    assert_int_equal(cache_files(&f), 2);
    learnt = f.tokenizer;
    assert_int_equal(tokenizer_bytes(&f.s.env, &bytes), STATUS_OK);
    f.tokenizer = bytes;
    source_destroy(load(&f, f.cache, "a.txt", 0.1));
    f.tokenizer = learnt;
    tokenizer_destroy(bytes);
    assert_int_equal(cache_files(&f), 3);
    FILE *file = fopen(scratch_path(&f.s, "a.txt"), "r+b"); /* change one byte in the middle */
    assert_non_null(file);
    assert_int_equal(fseek(file, TEXT_BYTES / 2, SEEK_SET), 0);
    fputc('~', file);
    fclose(file);
    source_destroy(load(&f, f.cache, "a.txt", 0.1));
    assert_int_equal(cache_files(&f), 4);
    end(&f);
}

static void test_jsonl_keeps_its_mask(void **state)
{
    struct fixture f;
    (void)state;
    begin(&f);
    scratch_text(&f.s, "a.jsonl",
                 "{\"text\":\"ab\"}\n{\"prompt\":\"pq\",\"completion\":\"c\"}\n"
                 "{\"prompt\":\"x\",\"completion\":\"y\"}\n{\"text\":\"z\"}\n");
    for (int i = 0; i < 2; i++) {
        struct source *plain = load(&f, NULL, "a.jsonl", 0.4 * i);
        struct source *first = load(&f, f.cache, "a.jsonl", 0.4 * i);
        struct source *second = load(&f, f.cache, "a.jsonl", 0.4 * i);
        assert_non_null(second->train.mask);
        expect_same_source(&f, plain, first);
        expect_same_source(&f, plain, second);
        source_destroy(second);
        source_destroy(first);
        source_destroy(plain);
    }
    end(&f);
}

/* If the cache cannot be written, there is a warning, and the tokens are kept in memory. */
static void test_tokens_stay_in_memory_without_a_cache(void **state)
{
    struct fixture f;
    struct output_faults faults = {.error = ENOSPC};
    (void)state;
    begin(&f);
    struct source *plain = load(&f, NULL, "a.txt", 0.1);
    assert_int_equal(mkdir(scratch_path(&f.s, "run"), 0777), 0);
    int kept = 0;
    for (int n = 1; kept == 0; n++) {
        *f.warning = 0;
        atomic_store(&faults.left, n);
        f.s.env.faults = &faults;
        struct source *source = load(&f, f.cache, "a.txt", 0.1);
        f.s.env.faults = NULL;
        kept = cache_files(&f);
        if (kept == 0)
            assert_non_null(strstr(f.warning, "cannot be kept in"));
        expect_same_source(&f, plain, source);
        source_destroy(source);
        assert_true(n < 100);
    }
    assert_string_equal(log_first_error(f.s.env.log), "");
    /* a file has the name of the folder */
    scratch_text(&f.s, "taken", "");
    char taken[96];
    snprintf(taken, sizeof taken, "%s/taken/cache", f.s.folder);
    struct source *source = load(&f, taken, "a.txt", 0.1);
    assert_non_null(strstr(f.warning, "taken"));
    expect_same_source(&f, plain, source);
    source_destroy(source);
    source_destroy(plain);
    end(&f);
}

static void test_a_damaged_cache_is_replaced(void **state)
{
    struct fixture f;
    char command[256];
    (void)state;
    begin(&f);
    struct source *plain = load(&f, NULL, "a.txt", 0.1);
    source_destroy(load(&f, f.cache, "a.txt", 0.1));
    snprintf(command, sizeof command,
             "printf X | dd of=$(echo %s/tokens-*) bs=1 seek=9000 conv=notrunc status=none",
             f.cache);
    assert_int_equal(system(command), 0);
    struct source *source = load(&f, f.cache, "a.txt", 0.1);
    assert_non_null(strstr(f.warning, "': its content does not match its hash"));
    expect_same_source(&f, plain, source);
    source_destroy(source);
    *f.warning = 0;
    source_destroy(load(&f, f.cache, "a.txt", 0.1));
    assert_string_equal(f.warning, "");
    source_destroy(plain);
    end(&f);
}

/* --- ranks ---------------------------------------------------------------------------------- */

struct rank {
    struct fixture *f;
    struct env env;
    struct source *source;
    enum status st;
    int encoders;
};

static void *rank_load(void *user)
{
    struct rank *rank = user;
    char path[128];
    snprintf(path, sizeof path, "%s/a.txt", rank->f->s.folder);
    struct source_spec spec = {.path = path,
                               .split = 0.1,
                               .tokenizer = rank->f->tokenizer,
                               .vocab = 300,
                               .cache = rank->f->cache};
    rank->st = source_create(&rank->env, &spec, &rank->source);
    rank->encoders = mem_peak(rank->env.mem, MEM_LOADER) > 65536;
    return NULL;
}

static void test_one_rank_encodes_for_all(void **state)
{
    struct fixture f;
    struct rank ranks[4];
    int encoders = 0;
    (void)state;
    begin(&f);
    for (int i = 0; i < 4; i++) {
        ranks[i] = (struct rank){.f = &f};
        assert_int_equal(env_create(&ranks[i].env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    }
    threads_run(rank_load, ranks, 4, sizeof *ranks);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ranks[i].st, STATUS_OK);
        expect_same_source(&f, ranks[0].source, ranks[i].source);
        encoders += ranks[i].encoders;
    }
    assert_int_equal(encoders, 1);
    for (int i = 0; i < 4; i++) {
        source_destroy(ranks[i].source);
        env_destroy(&ranks[i].env);
    }
    end(&f);
}

/* The error names the cache file, also where only part of a page is cut off and reads as zeros. A
 * closed map is no longer guarded: another file may be mapped at its address. */
static void test_a_truncated_cache_is_reported(void **state)
{
    struct fixture f;
    struct file_guard_news news;
    int32_t tokens[16];
    (void)state;
    begin(&f);
    struct source *source = load(&f, f.cache, "a.txt", 0.1);
    const struct token_stream *stream = &source->train;
    const struct token_span *piece = stream->spans;
    assert_int_equal(token_stream_read(stream, &f.s.env, 0, 16, 300, tokens), STATUS_OK);
    assert_non_null(strstr(piece->file, "/run/cache/tokens-"));
    assert_true(file_guard_look(piece->tokens, &news));
    assert_int_equal(truncate(piece->file, (off_t)news.bytes - 3), 0);
    assert_int_equal(token_stream_read(stream, &f.s.env, 0, 16, 300, tokens), STATUS_IO);
    assert_non_null(strstr(log_first_error(f.s.env.log), "/run/cache/tokens-"));
    const void *begins = piece->tokens;
    source_destroy(source);
    assert_false(file_guard_look(begins, &news));
    end(&f);
}

static void test_every_allocation_may_fail(void **state)
{
    struct fixture f;
    struct source *source = NULL;
    enum status st = STATUS_MEMORY;
    char path[128];
    (void)state;
    begin(&f);
    snprintf(path, sizeof path, "%s",
             scratch_text(&f.s, "a.jsonl",
                          "{\"prompt\":\"a\","
                          "\"completion\":\"b\"}\n"));
    struct source_spec spec = {
        .path = path, .tokenizer = f.tokenizer, .vocab = 300, .cache = f.cache};
    size_t before = mem_total(f.s.env.mem);
    for (int n = 1; st != STATUS_OK; n++) {
        mem_fail_at(f.s.env.mem, n);
        st = source_create(&f.s.env, &spec, &source);
        mem_fail_at(f.s.env.mem, 0);
        assert_true(st == STATUS_OK || st == STATUS_MEMORY);
        assert_true(st == STATUS_OK || mem_total(f.s.env.mem) == before);
        assert_true(st == STATUS_OK || *log_first_error(f.s.env.log));
        log_error_clear(f.s.env.log);
    }
    assert_string_equal(f.warning, ""); /* running out of memory is not blamed on the folder */
    source_destroy(source);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_encoded_once_and_then_mapped),
        cmocka_unit_test(test_whatever_changes_tokens_has_its_own_file),
        cmocka_unit_test(test_jsonl_keeps_its_mask),
        cmocka_unit_test(test_tokens_stay_in_memory_without_a_cache),
        cmocka_unit_test(test_a_damaged_cache_is_replaced),
        cmocka_unit_test(test_a_truncated_cache_is_reported),
        cmocka_unit_test(test_one_rank_encodes_for_all),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
