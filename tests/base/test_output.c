/* Injected write failures: every call fails in turn, partial transfers are completed, and an atomic
 * write leaves either the old file or the new one. */
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
#include "base/file.h"
#include "base/output.h"

struct scene {
    struct env env;
    struct output_faults faults;
    char folder[32], path[64];
};

static void open_scene(struct scene *s)
{
    *s = (struct scene){.folder = "/tmp/sifr-output-XXXXXX"};
    assert_int_equal(env_create(&s->env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->path, sizeof s->path, "%s/file", s->folder);
    s->env.faults = &s->faults;
}

static void close_scene(struct scene *s)
{
    unlink(s->path);
    assert_int_equal(rmdir(s->folder), 0); /* nothing else was left behind */
    env_destroy(&s->env);
}

static void expect_content(struct scene *s, const char *content)
{
    char *text;
    size_t bytes;
    assert_int_equal(file_read(&s->env, s->path, 100, &text, &bytes), STATUS_OK);
    assert_string_equal(text, content);
    mem_free(&s->env, text);
}

static void test_every_call_of_an_atomic_write(void **state)
{
    (void)state;
    struct scene s;
    int failed = 0;
    open_scene(&s);
    assert_int_equal(file_write_atomic(&s.env, s.path, "old", 3), STATUS_OK);
    for (int n = 1; n < 100; n++) {
        s.faults.error = n % 2 ? ENOSPC : EIO;
        atomic_store(&s.faults.left, n);
        enum status st = file_write_atomic(&s.env, s.path, "new", 3);
        if (st == STATUS_OK)
            break;
        failed++;
        assert_non_null(strstr(log_first_error(s.env.log), s.folder));
        log_error_clear(s.env.log);
        if (n <= 5) /* open, write, fsync, close, rename */
            expect_content(&s, "old");
    }
    assert_int_equal(failed, 7); /* five calls, and open and fsync of the folder */
    expect_content(&s, "new");
    close_scene(&s);
}

static void test_partial_transfer(void **state)
{
    (void)state;
    struct scene s;
    int fd;
    open_scene(&s);
    for (int n = 1; n <= 5; n++) { /* whichever call is cut short */
        atomic_store(&s.faults.left, n);
        assert_true(output_open(&s.env, s.path, O_WRONLY | O_CREAT | O_TRUNC, &fd));
        assert_true(output_reserve(&s.env, fd, 9));
        assert_true(output_write_at(&s.env, fd, 4, "fghij", 5));
        assert_true(output_write_at(&s.env, fd, 0, "abcd", 4));
        assert_true(output_close(&s.env, fd));
        expect_content(&s, "abcdfghij");
    }
    close_scene(&s);
}

static void test_removing(void **state)
{
    (void)state;
    struct scene s;
    char folder[64];
    open_scene(&s);
    assert_int_equal(file_write_atomic(&s.env, s.path, "old", 3), STATUS_OK);
    s.faults.error = EROFS;
    atomic_store(&s.faults.left, 1);
    assert_false(output_remove_at(&s.env, AT_FDCWD, s.path, false));
    assert_int_equal(errno, EROFS);
    assert_true(file_exists(s.path));
    assert_true(output_remove_at(&s.env, AT_FDCWD, s.path, false));
    assert_false(output_remove_at(&s.env, AT_FDCWD, s.path, false));
    assert_int_equal(errno, ENOENT);
    snprintf(folder, sizeof folder, "%s/below", s.folder);
    assert_true(output_mkdir(&s.env, folder));
    assert_int_equal(symlink(folder, s.path), 0);
    assert_false(output_remove_at(&s.env, AT_FDCWD, s.path, true)); /* the target stays */
    int above = open(s.folder, O_RDONLY | O_DIRECTORY);
    assert_true(output_remove_at(&s.env, above, "file", false));
    assert_true(dir_exists(folder));
    assert_true(output_remove_at(&s.env, above, "below", true));
    close(above);
    close_scene(&s);
}

/* Each new folder is synced in its parent folder; existing folders are not. */
static void test_new_folders_are_synced(void **state)
{
    (void)state;
    struct scene s;
    char path[64];
    open_scene(&s);
    snprintf(path, sizeof path, "%s/a/b", s.folder);
    s.faults.error = EIO;
    for (int n = 1; n <= 7; n++) { /* mkdir, open and fsync, twice */
        struct dir_made made;
        atomic_store(&s.faults.left, n);
        assert_int_equal(dir_make(&s.env, path, &made), n <= 6 ? STATUS_IO : STATUS_OK);
        atomic_store(&s.faults.left, 0);
        log_error_clear(s.env.log);
        if (n == 7)
            assert_int_equal(dir_create(&s.env, path), STATUS_OK);
        if (n == 7)
            assert_int_equal(atomic_load(&s.faults.left), 0); /* no call was made */
        dir_unmake(&s.env, path, &made);
        assert_true(dir_is_empty(NULL, s.folder));
    }
    close_scene(&s);
}

static void test_a_read_only_file(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s);
    int fd = open("/dev/null", O_RDONLY);
    assert_false(output_write_at(&s.env, fd, 0, "a", 1));
    assert_int_equal(errno, EBADF);
    close(fd);
    close_scene(&s);
}

static bool say_seven(void *user, const char *path, uint64_t *bytes)
{
    (void)user, (void)path;
    *bytes = 7;
    return true;
}

static void test_free_space(void **state)
{
    (void)state;
    struct scene s;
    char deeper[128];
    uint64_t here, there;
    open_scene(&s);
    assert_true(output_free(&s.env, s.folder, &here));
    snprintf(deeper, sizeof deeper, "%s/not/there/yet", s.folder);
    assert_true(output_free(&s.env, deeper, &there));
    assert_true(here > 0 && there > 0);
    assert_true(output_free(&s.env, "no-such-folder", &there)); /* that of the current folder */
    assert_false(output_free(&s.env, "", &there));
    s.faults.free_bytes = say_seven;
    assert_true(output_free(&s.env, s.folder, &there) && there == 7);
    close_scene(&s);
}

static void test_out_of_space(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EDQUOT, EIO, EROFS};
    struct scene s;
    open_scene(&s);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        for (int n = 1; n < 6; n++) { /* open, write, sync, close, rename */
            output_forget();
            assert_false(output_ran_out());
            s.faults.error = errors[i];
            atomic_store(&s.faults.left, n);
            assert_int_equal(file_write_atomic(&s.env, s.path, "x", 1), STATUS_IO);
            assert_true(output_ran_out() == (i < 2));
        }
    }
    atomic_store(&s.faults.left, 0);
    output_forget();
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_free_space),
        cmocka_unit_test(test_out_of_space),
        cmocka_unit_test(test_every_call_of_an_atomic_write),
        cmocka_unit_test(test_partial_transfer),
        cmocka_unit_test(test_removing),
        cmocka_unit_test(test_new_folders_are_synced),
        cmocka_unit_test(test_a_read_only_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
