/* One writer at a time: a lock is held by a process, ends with it, and no file other than a lock
 * file is ever touched. */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "train/scratch.h"
#include "base/input.h"
#include "base/lock_file.h"

static const struct lock_words words = {
    .writer = "export", .output = "out", .advice = "choose another OUT"};

static enum status take(struct scratch *s, struct lock_file **lock)
{
    return lock_file_take(&s->env, scratch_path(s, "lock"), &words, lock);
}

/* Start a process that takes the lock, reports it and waits to be killed. */
static pid_t start_holder(struct scratch *s)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct lock_file *lock;
        if (take(s, &lock) == STATUS_OK && write(ends[1], "x", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void test_another_process(void **state)
{
    (void)state;
    struct scratch s;
    struct lock_file *lock = NULL;
    char who[64];
    scratch_open(&s);
    pid_t pid = start_holder(&s);
    snprintf(who, sizeof who, "another export is writing to 'out' (process %d on ", (int)pid);
    assert_int_equal(take(&s, &lock), STATUS_CONFIG);
    scratch_expect(&s, who);
    assert_int_equal(lock_file_check(&s.env, scratch_path(&s, "lock"), &words), STATUS_CONFIG);
    scratch_expect(&s, "choose another OUT, or stop that export first");
    assert_false(lock_file_is_left(scratch_path(&s, "lock")));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(lock_file_is_left(scratch_path(&s, "lock")));
    assert_int_equal(lock_file_check(&s.env, scratch_path(&s, "lock"), &words), STATUS_OK);
    assert_int_equal(take(&s, &lock), STATUS_OK);
    lock_file_release(lock);
    assert_true(dir_is_empty(NULL, s.folder));
    scratch_close(&s);
}

static void test_foreign_files(void **state)
{
    (void)state;
    struct scratch s;
    struct lock_file *lock = NULL;
    char target[128];
    struct stat info;
    scratch_open(&s);
    strcpy(target, scratch_text(&s, "empty", ""));
    for (int i = 0; i < 4; i++) {
        const char *path = scratch_path(&s, "lock");
        switch (i) {
        case 0: scratch_text(&s, "lock", "mine"); break;
        case 1: assert_int_equal(symlink(target, path), 0); break;
        case 2: assert_int_equal(mkdir(path, 0777), 0); break;
        default: assert_int_equal(mkfifo(path, 0666), 0); break;
        }
        assert_int_equal(take(&s, &lock), STATUS_CONFIG);
        scratch_expect(&s, "lock' is not a lock file of sifr");
        assert_int_equal(lock_file_check(&s.env, s.path, &words), STATUS_CONFIG);
        scratch_expect(&s, "is not a lock file of sifr");
        assert_false(lock_file_is_left(s.path));
        assert_int_equal(remove(scratch_path(&s, "lock")), 0); /* the file was left in place */
    }
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_size, 0);
    scratch_close(&s);
}

/* The lock file is renamed with its folder. Releasing a lock whose file was replaced leaves the new
 * file alone. */
static void test_moved(void **state)
{
    (void)state;
    struct scratch s;
    struct lock_file *lock;
    char to[128];
    scratch_open(&s);
    assert_int_equal(take(&s, &lock), STATUS_OK);
    strcpy(to, scratch_path(&s, "moved"));
    assert_int_equal(rename(scratch_path(&s, "lock"), to), 0);
    assert_int_equal(lock_file_moved(lock, to), STATUS_OK);
    lock_file_release(lock);
    assert_true(dir_is_empty(NULL, s.folder));
    assert_int_equal(take(&s, &lock), STATUS_OK);
    assert_int_equal(unlink(scratch_path(&s, "lock")), 0);
    scratch_text(&s, "lock", "mine");
    lock_file_release(lock);
    assert_true(file_exists(scratch_path(&s, "lock")));
    scratch_close(&s);
}

/* Simulates a disk that fails from now on. */
static bool disk_fails;

bool __real_file_is_at(int fd, int folder, const char *name);
bool __wrap_file_is_at(int fd, int folder, const char *name);
bool __wrap_file_is_at(int fd, int folder, const char *name)
{
    return !disk_fails && __real_file_is_at(fd, folder, name);
}

static void test_failing_disk(void **state)
{
    (void)state;
    struct scratch s;
    struct lock_file *lock = NULL;
    scratch_open(&s);
    disk_fails = true;
    assert_int_equal(take(&s, &lock), STATUS_IO); /* and it does not retry forever */
    scratch_expect(&s, "cannot tell that it is still there");
    disk_fails = false;
    /* a failed read does not prove that the file belongs to someone else */
    struct input_faults faults = {.times = INPUT_TRIES, .error = EIO};
    atomic_store(&faults.left, 1);
    s.env.input_faults = &faults;
    assert_int_equal(take(&s, &lock), STATUS_IO);
    scratch_expect(&s, "Input/output error");
    faults.times = 1;
    atomic_store(&faults.left, 1);
    assert_int_equal(take(&s, &lock), STATUS_OK); /* a single failure is retried */
    s.env.input_faults = NULL;
    lock_file_release(lock);
    assert_int_equal(take(&s, &lock), STATUS_OK);
    lock_file_release(lock);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_process),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_failing_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
