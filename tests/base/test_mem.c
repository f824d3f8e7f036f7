/* Blocks are zeroed, aligned and counted; the n-th allocation fails on request; leaks are named;
 * threads can share an account. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/fixture.h"

static void assert_zeroed(const char *block, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (block[i])
            fail_msg("byte %zu is not zero", i);
}

static void test_blocks(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, (1 << 20) - 1, 1 << 20, 3 << 20};
    struct fixture f;
    struct env *env = fixture_open(&f);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *block;
        size_t counted = sizes[i] ? sizes[i] : 1;
        assert_int_equal(mem_alloc(env, MEM_GRADS, "bucket", sizes[i], &block), STATUS_OK);
        assert_int_equal((uintptr_t)block % 64, 0);
        assert_zeroed(block, counted);
        memset(block, 0xff, counted);
        assert_int_equal(mem_bytes(env->mem, MEM_GRADS), counted);
        mem_free(env, block);
        assert_int_equal(mem_bytes(env->mem, MEM_GRADS), 0);
    }
    mem_free(env, NULL);
    assert_int_equal(mem_peak(env->mem, MEM_GRADS), 3 << 20);
    fixture_close(&f);
}

struct seen {
    int lines;
    size_t bytes[8];
};

static void see(void *user, const struct mem_line *line)
{
    struct seen *seen = user;
    assert_int_equal(line->category, MEM_SLOTS);
    assert_true(line->name[0] >= 'a' && line->name[0] <= 'h');
    seen->lines++;
    seen->bytes[line->name[0] - 'a'] = line->bytes;
}

static void test_account(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    void *a, *a2, *b;
    char name[] = "a";
    mem_alloc(env, MEM_SLOTS, name, 10, &a);
    mem_alloc(env, MEM_SLOTS, name, 20, &a2);
    name[0] = 'b'; /* the account keeps its own copy of the name */
    mem_alloc(env, MEM_SLOTS, name, 5, &b);
    assert_int_equal(mem_count(env, MEM_GPU, MEM_SLOTS, "c", 100), STATUS_OK);

    struct seen seen = {0};
    mem_visit(env->mem, see, &seen);
    assert_int_equal(seen.lines, 3);
    assert_int_equal(seen.bytes[0], 30);
    assert_int_equal(seen.bytes[1], 5);
    assert_int_equal(seen.bytes[2], 100);
    assert_int_equal(mem_total(env->mem), 135);
    assert_int_equal(mem_allocation_count(env->mem), 4);

    mem_uncount(env, MEM_GPU, MEM_SLOTS, "c", 100);
    mem_free(env, a);
    mem_free(env, a2);
    mem_free(env, b);
    seen = (struct seen){0};
    mem_visit(env->mem, see, &seen);
    assert_int_equal(seen.lines, 0);
    assert_int_equal(mem_total_peak(env->mem), 135);
    assert_int_equal(mem_peak(env->mem, MEM_SLOTS), 135);
    assert_int_equal(mem_peak(env->mem, MEM_PARAMS), 0);
    assert_string_equal(mem_category_word(MEM_OPTIMIZER), "optimizer");
    fixture_close(&f);
}

/* GPU memory is not counted as host memory, even under the same name. */
static void test_locations(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    void *a;
    mem_alloc(env, MEM_SLOTS, "a", 10, &a);
    assert_int_equal(mem_count(env, MEM_GPU, MEM_SLOTS, "a", 100), STATUS_OK);
    assert_int_equal(mem_count(env, MEM_HOST, MEM_COMM, "pinned", 7), STATUS_OK);
    struct mem_sums host = mem_sums(env->mem, MEM_HOST, false);
    struct mem_sums gpu = mem_sums(env->mem, MEM_GPU, false);
    assert_int_equal(host.bytes[MEM_SLOTS], 10);
    assert_int_equal(host.total_bytes, 17);
    assert_int_equal(gpu.bytes[MEM_SLOTS], 100);
    assert_int_equal(gpu.bytes[MEM_COMM], 0);
    assert_int_equal(gpu.total_bytes, 100);
    assert_int_equal(mem_bytes(env->mem, MEM_SLOTS), 110);
    assert_int_equal(mem_total(env->mem), 117);

    mem_uncount(env, MEM_HOST, MEM_COMM, "pinned", 7);
    mem_uncount(env, MEM_GPU, MEM_SLOTS, "a", 100);
    assert_int_equal(mem_sums(env->mem, MEM_GPU, false).total_bytes, 0);
    assert_int_equal(mem_sums(env->mem, MEM_GPU, true).bytes[MEM_SLOTS], 100);
    assert_int_equal(mem_sums(env->mem, MEM_HOST, false).total_bytes, 10);
    assert_int_equal(mem_sums(env->mem, MEM_HOST, true).total_bytes, 17);
    mem_free(env, a);
    fixture_close(&f);
}

static void test_resize(void **state)
{
    (void)state;
    static const size_t sizes[] = {3, 100, 5000, 1 << 20, 5 << 20, 10};
    struct fixture f;
    struct env *env = fixture_open(&f);
    char *block;
    mem_alloc(env, MEM_LOADER, "buffer", 2, &block);
    memcpy(block, "ab", 2);
    size_t before = 2;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(mem_resize(env, &block, sizes[i]), STATUS_OK);
        assert_memory_equal(block, "ab", 2);
        if (sizes[i] > before)
            assert_zeroed(block + before, sizes[i] - before);
        assert_int_equal((uintptr_t)block % 64, 0);
        assert_int_equal(mem_bytes(env->mem, MEM_LOADER), sizes[i]);
        before = sizes[i];
    }
    assert_int_equal(mem_peak(env->mem, MEM_LOADER), 5 << 20);

    char *same = block;
    mem_fail_at(env->mem, 1);
    assert_int_equal(mem_resize(env, &block, 99), STATUS_MEMORY);
    assert_ptr_equal(block, same);
    assert_int_equal(mem_bytes(env->mem, MEM_LOADER), 10);
    mem_free(env, block);
    fixture_close(&f);
}

static void test_grow_array(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    char *array = NULL;
    assert_int_equal(mem_grow_array(env, MEM_LOADER, "list", 2, 3, &array), STATUS_OK);
    memcpy(array, "abcdef", 6);
    assert_int_equal(mem_grow_array(env, MEM_LOADER, "list", 4, 3, &array), STATUS_OK);
    assert_memory_equal(array, "abcdef", 6);
    assert_zeroed(array + 6, 6);
    assert_int_equal(mem_bytes(env->mem, MEM_LOADER), 12);

    char *same = array;
    assert_int_equal(mem_grow_array(env, MEM_LOADER, "list", SIZE_MAX / 2, 3, &array),
                     STATUS_MEMORY);
    assert_ptr_equal(array, same);
    mem_free(env, array);
    fixture_close(&f);
}

static void test_failure(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    void *a, *b = &a;
    mem_fail_at(env->mem, 2);
    assert_int_equal(mem_alloc(env, MEM_PARAMS, "w", 8, &a), STATUS_OK);
    assert_int_equal(mem_alloc(env, MEM_PARAMS, "block 3", 12 << 20, &b), STATUS_MEMORY);
    assert_null(b);
    assert_string_equal(log_first_error(env->log),
                        "out of memory: cannot take 12.0 MiB for params 'block 3'");
    assert_int_equal(mem_count(env, MEM_GPU, MEM_PARAMS, "device", 8), STATUS_OK);
    mem_fail_at(env->mem, 1);
    assert_int_equal(mem_count(env, MEM_GPU, MEM_PARAMS, "device", 8), STATUS_MEMORY);
    mem_fail_at(env->mem, 1);
    mem_fail_at(env->mem, 0);
    mem_uncount(env, MEM_GPU, MEM_PARAMS, "device", 8);
    mem_free(env, a);

    /* More than any machine has, and more than fits a size_t. */
    assert_int_equal(mem_alloc(env, MEM_OTHER, "all", SIZE_MAX, &b), STATUS_MEMORY);
    assert_int_equal(mem_alloc(env, MEM_OTHER, "all", SIZE_MAX / 4, &b), STATUS_MEMORY);
    b = &a;
    assert_int_equal(mem_alloc_array(env, MEM_OTHER, "all", SIZE_MAX / 2, 3, &b), STATUS_MEMORY);
    assert_null(b);
    assert_int_equal(mem_alloc_array(env, MEM_OTHER, "few", 5, 3, &b), STATUS_OK);
    assert_int_equal(mem_total(env->mem), 15);
    mem_free(env, b);
    fixture_close(&f);
}

/* Bytes on disk are in no total of memory, but in their own account, and a leak there is found. */
static void test_disk_is_not_memory(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct seen seen = {0};
    assert_int_equal(mem_count(env, MEM_DISK, MEM_SLOTS, "d", 1000), STATUS_OK);
    assert_int_equal(mem_count(env, MEM_GPU, MEM_SLOTS, "g", 10), STATUS_OK);
    assert_int_equal(mem_total(env->mem), 10);
    assert_int_equal(mem_bytes(env->mem, MEM_SLOTS), 10);
    assert_int_equal(mem_total_peak(env->mem), 10);
    assert_int_equal(mem_sums(env->mem, MEM_DISK, false).bytes[MEM_SLOTS], 1000);
    assert_int_equal(mem_sums(env->mem, MEM_DISK, true).total_bytes, 1000);
    mem_visit(env->mem, see, &seen);
    assert_int_equal(seen.bytes['d' - 'a'], 1000);
    assert_string_equal(mem_location_word(MEM_DISK), "disk");
    mem_uncount(env, MEM_DISK, MEM_SLOTS, "d", 1000);
    mem_uncount(env, MEM_GPU, MEM_SLOTS, "g", 10);
    fixture_close(&f);
}

/* Allocations, growth and counts up to the limit succeed; the first byte beyond it does not. */
static void test_limit(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    char *a, *b;
    mem_limit(env->mem, MEM_HOST, 3 << 20, "run.device_memory");
    mem_limit(env->mem, MEM_GPU, 100, "run.device_memory");
    assert_int_equal(mem_alloc(env, MEM_PARAMS, "a", 2 << 20, &a), STATUS_OK);
    assert_int_equal(mem_alloc(env, MEM_GRADS, "sums", (1 << 20) + 1, &b), STATUS_MEMORY);
    assert_null(b);
    assert_string_equal(
        log_first_error(env->log),
        "grads 'sums' needs 1.0 MiB, and 2.0 MiB of host memory is held: more than "
        "run.device_memory allows, 3.0 MiB; raise it, or use a smaller micro-batch, "
        "recomputation, offload or more ranks");
    assert_int_equal(mem_alloc(env, MEM_GRADS, "all", SIZE_MAX, &b), STATUS_MEMORY);
    assert_int_equal(mem_alloc(env, MEM_GRADS, "sums", 1 << 20, &b), STATUS_OK);
    assert_int_equal(mem_resize(env, &b, (1 << 20) + 1), STATUS_MEMORY);
    assert_int_equal(mem_total(env->mem), 3 << 20);
    assert_int_equal(mem_total_peak(env->mem), 3 << 20);
    assert_int_equal(mem_resize(env, &b, 100), STATUS_OK);
    assert_int_equal(mem_resize(env, &b, 1 << 20), STATUS_OK);
    /* Each location has its own. */
    assert_int_equal(mem_count(env, MEM_GPU, MEM_PARAMS, "device", 100), STATUS_OK);
    assert_int_equal(mem_count(env, MEM_GPU, MEM_PARAMS, "device", 1), STATUS_MEMORY);
    assert_int_equal(mem_count(env, MEM_DISK, MEM_PARAMS, "file", (size_t)1 << 40), STATUS_OK);
    /* A limit below what is held stops growth only. */
    mem_limit(env->mem, MEM_HOST, 1, "run.device_memory");
    assert_int_equal(mem_resize(env, &b, 50), STATUS_OK);
    mem_limit(env->mem, MEM_HOST, 0, "run.device_memory");
    assert_int_equal(mem_resize(env, &b, 5 << 20), STATUS_OK);
    mem_uncount(env, MEM_DISK, MEM_PARAMS, "file", (size_t)1 << 40);
    mem_uncount(env, MEM_GPU, MEM_PARAMS, "device", 100);
    mem_free(env, b);
    mem_free(env, a);
    fixture_close(&f);
}

static void *fill_up(void *arg)
{
    struct env *env = arg;
    for (int i = 0; i < 4000; i++) {
        char *block;
        if (mem_alloc(env, MEM_SCRATCH, "block", 1000000, &block) == STATUS_OK)
            mem_free(env, block);
    }
    return NULL;
}

/* Threads together do not exceed it. */
static void test_limit_of_threads(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    pthread_t threads[4];
    mem_limit(env->mem, MEM_HOST, 1500000, "run.device_memory");
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fill_up, env), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(mem_total_peak(env->mem), 1000000);
    fixture_close(&f);
}

static void test_strdup(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    char *copy;
    assert_int_equal(mem_strdup(env, "sifr", &copy), STATUS_OK);
    assert_string_equal(copy, "sifr");
    mem_free(env, copy);
    mem_fail_at(env->mem, 1);
    assert_int_equal(mem_strdup(env, "sifr", &copy), STATUS_MEMORY);
    fixture_close(&f);
}

static void test_leak_is_named(void **state)
{
    (void)state;
    int ends[2];
    char said[512] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct env env;
        dup2(ends[1], 2);
        signal(SIGABRT, SIG_DFL);
        if (env_create(&env, NULL, NULL, LOG_ERROR, 1) == STATUS_OK &&
            mem_count(&env, MEM_GPU, MEM_COMM, "ring", 77) == STATUS_OK)
            env_destroy(&env);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], said + used, sizeof said - 1 - used)) > 0;)
        used += (size_t)got;
    close(ends[0]);
    int result;
    waitpid(child, &result, 0);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    assert_contains(said, "77 bytes of comm 'ring'");
}

/* After mem_keep_freed, freed blocks stay mapped and are never reused: someone outside may still
 * write to them. */
static void test_freed_blocks_are_kept(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    static const size_t sizes[] = {100, (size_t)8 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *freed, *next, *grown;
        assert_int_equal(mem_alloc(env, MEM_COMM, "freed", sizes[i], &freed), STATUS_OK);
        assert_int_equal(mem_alloc(env, MEM_COMM, "grown", sizes[i], &grown), STATUS_OK);
        mem_keep_freed(env->mem);
        assert_true(mem_keeps_freed(env->mem));
        char *before = grown;
        mem_free(env, freed);
        assert_int_equal(mem_resize(env, &grown, sizes[i] + 1), STATUS_OK);
        assert_int_equal(mem_alloc(env, MEM_COMM, "next", sizes[i], &next), STATUS_OK);
        assert_true(next != freed && next != before && grown != freed);
        memset(freed, 7, sizes[i]);
        memset(before, 7, sizes[i]);
        for (size_t at = 0; at < sizes[i]; at++)
            assert_true(next[at] == 0 && grown[at] == 0);
        mem_free(env, next);
        mem_free(env, grown);
        assert_int_equal(mem_bytes(env->mem, MEM_COMM), 0);
    }
    fixture_close(&f);
}

static void *churn(void *user)
{
    struct env *env = user;
    char *block, name[16];
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "name %d", i % 7);
        if (mem_alloc(env, i % MEM_CATEGORY_COUNT, name, (size_t)(i % 100) + 1, &block))
            return "failed";
        if (mem_resize(env, &block, (size_t)(i % 100) + 50))
            return "failed";
        mem_free(env, block);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, env), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    assert_int_equal(mem_allocation_count(env->mem), 4 * 2 * 2000);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_account),
        cmocka_unit_test(test_locations),     cmocka_unit_test(test_resize),
        cmocka_unit_test(test_grow_array),    cmocka_unit_test(test_failure),
        cmocka_unit_test(test_leak_is_named), cmocka_unit_test(test_disk_is_not_memory),
        cmocka_unit_test(test_limit),         cmocka_unit_test(test_limit_of_threads),
        cmocka_unit_test(test_strdup),        cmocka_unit_test(test_freed_blocks_are_kept),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
