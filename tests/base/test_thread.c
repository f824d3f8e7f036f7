/* test_thread -- a new thread receives no signals of the process, but its faults are handled. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "testing.h"
#include "base/file.h"
#include "base/thread.h"

static void *read_mask(void *user)
{
    pthread_sigmask(SIG_SETMASK, NULL, user);
    return NULL;
}

static void test_only_faults_are_unblocked(void **state)
{
    (void)state;
    static const int blocked[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD};
    static const int heard[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t mask, before, after;
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, read_mask, &mask), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++) {
        assert_true(sigismember(&mask, blocked[i]));
        assert_int_equal(sigismember(&before, blocked[i]), sigismember(&after, blocked[i]));
    }
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        assert_false(sigismember(&mask, heard[i]));
}

static void *read_first(void *user)
{
    const struct file_map *map = user;
    return map->data[0] == 0 ? user : NULL;
}

/* Run in a process of its own, so that a fatal signal fails only this test. */
static int read_cut_file(const char *path)
{
    struct env env = testing_env(1);
    struct file_map map;
    pthread_t thread;
    void *read = NULL;
    signal(SIGBUS, SIG_DFL);
    bool good = file_map_open(&env, path, &map) == STATUS_OK && truncate(path, 0) == 0 &&
                thread_start(&thread, read_first, &map) == 0 && pthread_join(thread, &read) == 0 &&
                read == &map && file_map_check(&env, path, map.data) == STATUS_IO;
    return good ? 0 : 1;
}

static void test_truncated_file(void **state)
{
    (void)state;
    char path[] = "/tmp/sifr-thread.XXXXXX";
    int fd = mkstemp(path), status = 1;
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 10000), 0);
    close(fd);
    pid_t child = fork();
    if (child == 0)
        _exit(read_cut_file(path));
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(path);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_faults_are_unblocked),
        cmocka_unit_test(test_truncated_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
