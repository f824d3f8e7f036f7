/* Ranges are delivered complete and in the order of the requests; errors keep their position. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/direct.h"
#include "base/rng.h"

enum { FILE_BYTES = 5 * DIRECT_BLOCK + 99, MOST_BYTES = 2 * DIRECT_BLOCK + 5, RANGES = 300 };

struct scene {
    struct env env;
    char path[32];
    char *content;
    struct ahead *ahead;
};

static void open_scene(struct scene *s)
{
    *s = (struct scene){.path = "sifr-ahead-XXXXXX"};
    assert_int_equal(env_create(&s->env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(mem_alloc(&s->env, MEM_OTHER, "content", FILE_BYTES, &s->content), STATUS_OK);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        s->content[i] = (char)rng_bits(rng_stream(1, "content"), i);
    int fd = mkstemp(s->path);
    assert_int_equal(write(fd, s->content, FILE_BYTES), FILE_BYTES);
    close(fd);
    assert_int_equal(ahead_create(&s->env, MOST_BYTES, &s->ahead), STATUS_OK);
}

static void close_scene(struct scene *s)
{
    ahead_destroy(s->ahead);
    ahead_destroy(NULL);
    mem_free(&s->env, s->content);
    unlink(s->path);
    env_destroy(&s->env);
}

static uint64_t offset_of(int i)
{
    return rng_below(rng_stream(2, "place"), (uint64_t)i, FILE_BYTES);
}

static size_t length(int i)
{
    uint64_t left = FILE_BYTES - offset_of(i), most = left < MOST_BYTES ? left : MOST_BYTES;
    return 1 + (size_t)rng_below(rng_stream(3, "length"), (uint64_t)i, most);
}

static int open_to_read(const char *path)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    direct_past_cache(fd);
    return fd;
}

/* With 1 to AHEAD_RANGES requests in flight. */
static void test_order(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s);
    int fd = open_to_read(s.path);
    for (int depth = 1; depth <= AHEAD_RANGES; depth++)
        for (int i = 0, asked = 0; i < RANGES; i++) {
            char *data;
            for (; asked < RANGES && asked < i + depth; asked++)
                ahead_ask(s.ahead, fd, offset_of(asked), length(asked));
            assert_int_equal(ahead_take(s.ahead, (void **)&data), length(i));
            assert_memory_equal(data, s.content + offset_of(i), length(i));
            memset(data - offset_of(i) % DIRECT_BLOCK, 0, length(i)); /* the buffer is ours */
        }
    close(fd);
    close_scene(&s);
}

static void test_errors_keep_their_position(void **state)
{
    (void)state;
    struct scene s;
    void *data;
    open_scene(&s);
    int fd = open_to_read(s.path);
    ahead_ask(s.ahead, fd, 0, 10);
    ahead_ask(s.ahead, -1, 0, 10);
    ahead_ask(s.ahead, fd, FILE_BYTES - 4, 10);
    assert_int_equal(ahead_take(s.ahead, &data), 10);
    assert_int_equal(ahead_take(s.ahead, &data), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(ahead_take(s.ahead, &data), 4);
    ahead_ask(s.ahead, fd, 0, 10); /* a request that is never taken */
    close_scene(&s);
    close(fd);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct env env;
    struct ahead *ahead;
    assert_int_equal(env_create(&env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    for (int n = 1; n <= 2; n++) {
        mem_fail_at(env.mem, n);
        assert_int_equal(ahead_create(&env, MOST_BYTES, &ahead), STATUS_MEMORY);
        assert_int_equal(mem_total(env.mem), 0);
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_errors_keep_their_position),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
