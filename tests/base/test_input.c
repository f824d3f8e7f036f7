/* Transient errors are retried a limited number of times; all others are returned at once. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/input.h"

struct scene {
    struct env env;
    struct input_faults faults;
    char folder[32], path[64];
    int fd;
};

static int open_scene(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    strcpy(s->folder, "/tmp/sifr-test-input-XXXXXX");
    assert_int_equal(env_create(&s->env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->path, sizeof s->path, "%s/file", s->folder);
    s->fd = open(s->path, O_CREAT | O_RDWR, 0666);
    assert_int_equal(write(s->fd, "content", 7), 7);
    s->env.input_faults = &s->faults;
    *state = s;
    return 0;
}

static int close_scene(void **state)
{
    struct scene *s = *state;
    close(s->fd);
    unlink(s->path);
    rmdir(s->folder);
    env_destroy(&s->env);
    free(s);
    return 0;
}

/* --- each kind of call ---------------------------------------------------------------------- */

static bool try_stat(struct scene *s)
{
    struct stat info;
    return input_stat(&s->env, s->path, &info) && info.st_size == 7;
}

static bool try_open(struct scene *s)
{
    struct stat info;
    int fd;
    bool done = input_open(&s->env, s->path, &fd, &info);
    assert_true(done == (fd >= 0));
    assert_true(!done || (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
    if (done)
        close(fd);
    return done;
}

static bool try_read(struct scene *s)
{
    char room[8];
    lseek(s->fd, 0, SEEK_SET);
    return input_read(&s->env, s->fd, room, sizeof room) == 7 && memcmp(room, "content", 7) == 0;
}

static bool try_read_at(struct scene *s)
{
    char room[8];
    return input_read_at(&s->env, s->fd, 3, room, sizeof room) == 4 && memcmp(room, "tent", 4) == 0;
}

static bool try_map(struct scene *s)
{
    void *data;
    bool done = input_map(&s->env, s->fd, 7, &data);
    assert_true(done == (data != NULL));
    if (done)
        munmap(data, 7);
    return done;
}

static void count_name(void *user, const char *name)
{
    assert_string_equal(name, "file");
    ++*(int *)user;
}

static bool try_list(struct scene *s)
{
    int names = 0;
    bool done = input_list(&s->env, s->folder, count_name, &names);
    assert_true(!done || names >= 1);
    return done;
}

static bool glob_all(struct scene *s, size_t expected)
{
    glob_t found;
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s/f*", s->folder);
    bool done = input_glob(&s->env, pattern, &found);
    if (!done)
        return false;
    assert_int_equal(found.gl_pathc, expected);
    globfree(&found);
    return true;
}

static bool try_glob(struct scene *s)
{
    return glob_all(s, 1);
}

static bool (*const calls[])(struct scene *) = {try_stat, try_open, try_read, try_read_at,
                                                try_map,  try_list, try_glob};
enum { GLOB = sizeof calls / sizeof *calls - 1 };

static bool fail_some(struct scene *s, size_t call, int error, int times)
{
    s->faults.error = error;
    s->faults.times = times;
    atomic_store(&s->faults.left, 1);
    return calls[call](s);
}

static void test_transient_errors(void **state)
{
    static const int errors[] = {EIO, ETIMEDOUT, ESTALE, EAGAIN, EMFILE, ENFILE, ENOMEM};
    struct scene *s = *state;
    for (size_t call = 0; call < sizeof calls / sizeof *calls; call++) {
        for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
            assert_true(fail_some(s, call, errors[e], INPUT_TRIES - 1));
            assert_false(fail_some(s, call, errors[e], INPUT_TRIES));
            assert_int_equal(errno, errors[e]);
            assert_int_equal(atomic_load(&s->faults.left), 1 - INPUT_TRIES);
        }
        assert_true(fail_some(s, call, EINTR, 50));
        assert_false(fail_some(s, call, EINTR, 1 << 20)); /* not retried forever */
    }
}

static void test_permanent_errors(void **state)
{
    static const int errors[] = {ENOENT, ENOTDIR, EACCES, ELOOP, EISDIR};
    struct scene *s = *state;
    for (size_t call = 0; call < GLOB; call++) /* glob treats such folders like any other */
        for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
            assert_false(fail_some(s, call, errors[e], 1));
            assert_int_equal(errno, errors[e]);
            assert_int_equal(atomic_load(&s->faults.left), 0);
        }
}

/* An incomplete listing is an error, not a shorter listing. */
static void test_broken_listing(void **state)
{
    struct scene *s = *state;
    int names = 0;
    s->faults.error = EIO;
    s->faults.times = 1;
    for (int call = 2; call <= 4; call++) {
        atomic_store(&s->faults.left, call);
        assert_true(try_list(s));
    }
    s->faults.error = EACCES;
    atomic_store(&s->faults.left, 3);
    assert_false(input_list(&s->env, s->folder, count_name, &names));
    assert_int_equal(errno, EACCES);
}

/* Wherever a listing fails, glob finds all names or fails. */
static void test_broken_pattern(void **state)
{
    struct scene *s = *state;
    s->faults.error = EIO;
    for (int call = 1; call <= 8; call++) {
        s->faults.times = 1;
        atomic_store(&s->faults.left, call);
        assert_true(glob_all(s, 1));
    }
    for (int call = 1; call <= 4; call++) {
        s->faults.times = 1 << 20;
        atomic_store(&s->faults.left, call);
        assert_false(glob_all(s, 1));
        assert_int_equal(errno, EIO);
    }
}

static void test_words(void **state)
{
    char out[64];
    (void)state;
    assert_string_equal(input_reason(ENOENT, out, sizeof out), strerror(ENOENT));
    assert_non_null(strstr(input_reason(EIO, out, sizeof out), "(tried 5 times)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_transient_errors, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_permanent_errors, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_broken_listing, open_scene, close_scene),
        cmocka_unit_test_setup_teardown(test_broken_pattern, open_scene, close_scene),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
