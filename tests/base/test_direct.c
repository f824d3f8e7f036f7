/* Ranges of any offset and length are read back as written, with several writers per file, with and
 * without the page cache. Failures are injected into every call. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/direct.h"
#include "base/file.h"
#include "base/output.h"
#include "base/rng.h"

enum { FILE_BYTES = 40 * DIRECT_BLOCK + 777, ROOM_BYTES = 4 * DIRECT_BLOCK, WRITERS = 3 };

struct scene {
    struct env env;
    struct output_faults faults;
    char folder[32], path[64];
    char *memory[WRITERS + 1]; /* buffers, not aligned */
    char *content;             /* expected content of the file */
};

static uint64_t pick(uint64_t number, uint64_t below)
{
    return rng_below(rng_stream(1, "direct"), number, below);
}

static void make_file(struct scene *s)
{
    int fd = open(s->path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
    close(fd);
}

static void open_scene(struct scene *s)
{
    *s = (struct scene){.folder = "sifr-direct-XXXXXX"}; /* not in /tmp, which may be in memory */
    assert_int_equal(env_create(&s->env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->path, sizeof s->path, "%s/file", s->folder);
    s->env.faults = &s->faults;
    for (int i = 0; i <= WRITERS; i++)
        assert_int_equal(
            mem_alloc(&s->env, MEM_OTHER, "room", FILE_BYTES + 3 * DIRECT_BLOCK, &s->memory[i]),
            STATUS_OK);
    assert_int_equal(mem_alloc(&s->env, MEM_OTHER, "content", FILE_BYTES, &s->content), STATUS_OK);
    for (int i = 0; i < FILE_BYTES; i++)
        s->content[i] = (char)pick((uint64_t)i, 251);
    make_file(s);
}

static void close_scene(struct scene *s)
{
    for (int i = 0; i <= WRITERS; i++)
        mem_free(&s->env, s->memory[i]);
    mem_free(&s->env, s->content);
    unlink(s->path);
    assert_int_equal(rmdir(s->folder), 0);
    env_destroy(&s->env);
}

static void expect_content(struct scene *s)
{
    char *data;
    size_t bytes;
    assert_int_equal(file_read(&s->env, s->path, FILE_BYTES, &data, &bytes), STATUS_OK);
    assert_int_equal(bytes, FILE_BYTES);
    assert_memory_equal(data, s->content, FILE_BYTES);
    mem_free(&s->env, data);
}

/* Several writers take turns writing consecutive runs of the file, each run in several ranges.
 * Returns false if a call failed. */
static bool write_runs(struct scene *s, bool past_cache, uint64_t seed)
{
    struct direct files[WRITERS];
    uint64_t number = seed * 100000;
    bool done = true;
    int opened = 0;
    while (opened < WRITERS && done) {
        done = direct_open(&s->env, s->path, past_cache, direct_align(s->memory[opened]),
                           ROOM_BYTES, &files[opened]);
        opened += done;
    }
    uint64_t at = 0;
    for (int turn = 0; done && at < FILE_BYTES; turn++) {
        uint64_t run = 1 + pick(number++, turn % 3 == 0 ? 9 * DIRECT_BLOCK : DIRECT_BLOCK / 3);
        uint64_t end = at + run < FILE_BYTES ? at + run : FILE_BYTES;
        while (done && at < end) {
            uint64_t part = 1 + pick(number++, 2 * DIRECT_BLOCK);
            part = part < end - at ? part : end - at;
            done = direct_write(&files[turn % WRITERS], at, s->content + at, part);
            at += part;
        }
    }
    for (int i = 0; i < opened; i++) {
        done = done && direct_sync(&files[i]);
        done = direct_close(&files[i]) && done;
    }
    return done;
}

static void test_writers_of_one_file(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s);
    for (uint64_t seed = 0; seed < 20; seed++) {
        make_file(&s);
        assert_true(write_runs(&s, seed % 4 != 3, seed));
        expect_content(&s);
    }
    close_scene(&s);
}

/* Ranges that start on a block boundary, lie within a block, are empty, and continue an earlier
 * range. */
static void test_edges(void **state)
{
    (void)state;
    static const uint64_t ranges[][2] = {{0, DIRECT_BLOCK},
                                         {3 * DIRECT_BLOCK, 0},
                                         {2 * DIRECT_BLOCK + 5, 7},
                                         {DIRECT_BLOCK, DIRECT_BLOCK + 5},
                                         {2 * DIRECT_BLOCK + 12, 6 * DIRECT_BLOCK - 12},
                                         {8 * DIRECT_BLOCK, FILE_BYTES - 8 * DIRECT_BLOCK}};
    struct scene s;
    struct direct file;
    open_scene(&s);
    assert_true(direct_open(&s.env, s.path, true, direct_align(s.memory[0]), ROOM_BYTES, &file));
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        assert_true(direct_write(&file, ranges[i][0], s.content + ranges[i][0], ranges[i][1]));
    assert_true(direct_sync(&file));
    assert_true(direct_close(&file));
    expect_content(&s);
    close_scene(&s);
}

static void test_every_call_fails(void **state)
{
    (void)state;
    struct scene s;
    int failed = 0;
    open_scene(&s);
    for (int n = 1;; n++, failed++) {
        s.faults.error = n % 2 ? ENOSPC : EIO;
        atomic_store(&s.faults.left, n);
        errno = 0;
        if (write_runs(&s, true, 1))
            break;
        assert_int_equal(errno, s.faults.error);
    }
    assert_true(failed > 4 * WRITERS);
    for (int n = 1; n <= failed; n++) { /* now call n transfers only half at first */
        make_file(&s);
        s.faults.error = 0;
        atomic_store(&s.faults.left, n);
        assert_true(write_runs(&s, true, 1));
        expect_content(&s);
    }
    close_scene(&s);
}

static void drop_from_cache(struct scene *s)
{
    int fd = open(s->path, O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static int open_to_read(const char *path)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    direct_past_cache(fd);
    return fd;
}

static void test_reading(void **state)
{
    (void)state;
    struct scene s;
    void *data;
    open_scene(&s);
    assert_true(write_runs(&s, true, 5));
    for (uint64_t n = 0; n < 200; n++) {
        uint64_t at = pick(2 * n, FILE_BYTES), bytes = 1 + pick(2 * n + 1, FILE_BYTES - at);
        if (n % 50 == 0)
            drop_from_cache(&s);
        int fd = open_to_read(s.path);
        assert_int_equal(direct_read(&s.env, fd, at, bytes, direct_align(s.memory[0]), &data),
                         bytes);
        assert_memory_equal(data, s.content + at, bytes);
        /* A range past the end of the file is cut. */
        assert_int_equal(
            direct_read(&s.env, fd, FILE_BYTES - 9, 20, direct_align(s.memory[0]), &data), 9);
        assert_memory_equal(data, s.content + FILE_BYTES - 9, 9);
        assert_int_equal(direct_read(&s.env, fd, FILE_BYTES + DIRECT_BLOCK, 20,
                                     direct_align(s.memory[0]), &data),
                         0);
        close(fd);
    }
    assert_int_equal(direct_read(&s.env, -1, 0, 20, direct_align(s.memory[0]), &data), -1);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writers_of_one_file),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
