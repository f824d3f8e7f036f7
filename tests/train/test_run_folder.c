/* A run's folder: made, gone on with, moved aside; what was there is never lost. One run at a time has
 * it, also where locks are those of a server. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "scratch.h"
#include "train/run/run_folder.h"

/* As sifr writes them. */
#define BEGIN "{\"step\":1,\"tokens\":8,\"loss\":2.5,\"grad_norm\":null,\"lr\":0.1,\"seconds\":1"
#define LINE \
    BEGIN ",\"tokens_per_second\":null,\"mfu\":null,\"skipped\":true,\"mem\":{},\"comm\":{}}\n"

/* --- locks of other file systems ------------------------------------------------------------ */

static enum { LOCKS_HERE, LOCKS_NFS, LOCKS_NONE } locks;

/* In the place of the C library's. Over NFS the system asks the server for a lock of all bytes, which
 * a file must be open for: reading for a shared one, writing for the other. */
int flock(int fd, int operation)
{
    struct flock range = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (locks == LOCKS_HERE)
        return (int)syscall(SYS_flock, fd, operation);
    if (locks == LOCKS_NONE) {
        errno = ENOLCK;
        return -1;
    }
    if (operation & LOCK_EX)
        range.l_type = F_WRLCK;
    else if (operation & LOCK_SH)
        range.l_type = F_RDLCK;
    return fcntl(fd, F_OFD_SETLK, &range); /* EAGAIN is EWOULDBLOCK, EBADF what NFS says too */
}

/* A run that ends at once. */
static enum status prepare(struct scratch *s, const char *path, bool fresh)
{
    struct lock_file *lock = NULL;
    enum status st = run_folder_prepare(&s->env, path, fresh, &lock);
    lock_file_release(lock);
    return st;
}

static void test_made_with_parents(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    assert_true(dir_is_empty(scratch_path(&s, "a/b/c"))); /* the probe is gone */
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    scratch_text(&s, "a/b/c/notes.txt", "mine");
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "a/b/c/notes.txt")));
    scratch_close(&s);
}

/* A folder "run" with notes of somebody's in it. */
static void make_folder(struct scratch *s)
{
    scratch_open(s);
    assert_int_equal(dir_create(&s->env, scratch_path(s, "run/checkpoints")), STATUS_OK);
    scratch_text(s, "run/notes.txt", "x");
}

static void test_each_sign_of_a_run_is_seen(void **state)
{
    (void)state;
    static const char *const signs[][2] = {{"metrics.jsonl", LINE},
                                           {"metrics.jsonl", ""},
                                           {"metrics.jsonl.1", LINE},
                                           {"checkpoints/step-20/COMPLETE", "x"},
                                           /* the first line is damaged */
                                           {"metrics.jsonl", "\001\002\n" LINE},
                                           {"metrics.jsonl", "oss\":1}\n" LINE "{\"step\":2,\"to"},
                                           {"metrics.jsonl", BEGIN "\n" LINE},
                                           /* and cut off */
                                           {"metrics.jsonl", BEGIN},
                                           {"metrics.jsonl", "{\"step\":1"},
                                           {"metrics.jsonl.1", "\n\n" LINE}};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        struct scratch s;
        char path[64];
        bool holds = false;
        make_folder(&s);
        if (i == 3)
            assert_int_equal(dir_create(&s.env, scratch_path(&s, "run/checkpoints/step-20")),
                             STATUS_OK);
        snprintf(path, sizeof path, "run/%s", signs[i][0]);
        scratch_text(&s, path, signs[i][1]);
        scratch_text(&s, "run/config.yaml", "x");
        scratch_text(&s, "run/summary.json", "x");
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), false, &holds),
                         STATUS_OK);
        assert_true(holds);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
        assert_true(file_exists(scratch_path(&s, path))); /* it is gone on with */
        scratch_close(&s);
    }
}

/* What no run wrote is neither written over nor moved. */
static void test_files_of_others(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        {"config.yaml", "mine"},
        {"summary.json", "mine"},
        {"metrics.jsonl", "mine"},
        {"samples.jsonl", "mine"},
        {"config.json", "mine"},
        {"model.safetensors", "mine"},
        {"metrics.jsonl", "mine\n{\"step\":1,\"tok\n"},
        /* as others may write them */
        {"metrics.jsonl", "{\"config\":\"mine\"}\n" LINE},
        {"metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n"},
        {"metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n" LINE},
        {"metrics.jsonl", "{\"step\":1,\"loss\":2.5,\"grad"},
        {"metrics.jsonl", "{\"step\":1 mine"},
        {"metrics.jsonl", "{\"step\":1,\"tokens\":8,\"loss\":2.5,\"lr\":0.1}\n"},
        {"metrics.jsonl", "mine\n{\"step\":1,\"loss\":2.5}\n"},
        {"metrics.jsonl", "mine\n" BEGIN "\n"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct scratch s;
        char path[64];
        bool holds;
        make_folder(&s);
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), false, &holds),
                         STATUS_OK);
        assert_true(holds); /* checkpoints, if none yet */
        snprintf(path, sizeof path, "run/%s", files[i][0]);
        scratch_text(&s, path, files[i][1]);
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), false, &holds),
                         STATUS_CONFIG);
        scratch_expect(&s, files[i][0]);
        for (int fresh = 0; fresh < 2; fresh++) {
            assert_int_equal(prepare(&s, scratch_path(&s, "run"), fresh), STATUS_CONFIG);
            scratch_expect(&s, "choose another folder with --out");
        }
        assert_true(file_exists(scratch_path(&s, path)));
        assert_false(file_exists(scratch_path(&s, "run/lock")));
        scratch_close(&s);
    }
}

static void test_fresh_moves_aside(void **state)
{
    (void)state;
    struct scratch s;
    char name[64], content[sizeof LINE] = LINE;
    scratch_open(&s);
    for (int i = 1; i <= 3; i++) {
        /* A slash at the end must not put the old run inside the new one. */
        assert_int_equal(prepare(&s, scratch_path(&s, i == 2 ? "run/" : "run"), true), STATUS_OK);
        assert_true(dir_is_empty(scratch_path(&s, "run")));
        content[strlen("{\"step\":")] = (char)('0' + i);
        scratch_text(&s, "run/metrics.jsonl", content);
    }
    for (int i = 1; i <= 2; i++) {
        char *text;
        size_t bytes;
        snprintf(name, sizeof name, "run.%d/metrics.jsonl", i);
        assert_int_equal(file_read(&s.env, scratch_path(&s, name), 1000, &text, &bytes), STATUS_OK);
        assert_int_equal(text[strlen("{\"step\":")], '0' + i);
        mem_free(&s.env, text);
    }
    scratch_close(&s);
}

/* There is nothing beside "." that could have its name with a number. */
static void test_fresh_without_a_name(void **state)
{
    (void)state;
    static const char *const names[] = {"run/.", "run/./", "run/checkpoints/.."};
    for (int i = 0; i < 3; i++) {
        struct scratch s;
        bool holds;
        make_folder(&s);
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, names[i]), false, &holds),
                         STATUS_OK);
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, names[i]), true, &holds),
                         STATUS_CONFIG);
        scratch_expect(&s, "--out=../NAME");
        assert_int_equal(prepare(&s, scratch_path(&s, names[i]), true), STATUS_CONFIG);
        scratch_expect(&s, "--out=../NAME");
        assert_int_equal(dir_create(&s.env, scratch_path(&s, ".../checkpoints")), STATUS_OK);
        assert_int_equal(prepare(&s, scratch_path(&s, "..."), true), STATUS_OK); /* a name */
        assert_true(file_exists(scratch_path(&s, "....1/checkpoints")));
        scratch_close(&s);
    }
}

static void test_a_file_in_the_way(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    scratch_text(&s, "file", "x");
    assert_int_equal(prepare(&s, scratch_path(&s, "file"), true), STATUS_IO);
    scratch_expect(&s, "file");
    assert_int_equal(prepare(&s, "/proc/sifr-run", true), STATUS_IO);
    scratch_expect(&s, "/proc/sifr-run");
    scratch_close(&s);
}

/* No file may grow, as on a disk that is full: a folder that was made for nothing is gone again. */
static void test_a_full_disk(void **state)
{
    (void)state;
    struct scratch s;
    struct rlimit before, none;
    scratch_open(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "mine")), STATUS_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    enum status fresh = prepare(&s, scratch_path(&s, "run"), false);
    enum status there = prepare(&s, scratch_path(&s, "mine"), false);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(fresh, STATUS_IO);
    assert_int_equal(there, STATUS_IO);
    scratch_expect(&s, "run");
    assert_false(file_exists(scratch_path(&s, "run")));
    assert_true(dir_exists(scratch_path(&s, "mine")) && dir_is_empty(scratch_path(&s, "mine")));
    scratch_close(&s);
}

static void expect_one_run(void)
{
    struct scratch s;
    struct lock_file *lock = NULL;
    char who[160], host[65] = "";
    scratch_open(&s);
    assert_int_equal(run_folder_prepare(&s.env, scratch_path(&s, "run"), false, &lock), STATUS_OK);
    scratch_text(&s, "run/metrics.jsonl", LINE);
    gethostname(host, sizeof host - 1);
    snprintf(who, sizeof who, "(process %d on %s)", (int)getpid(), host);
    for (int fresh = 0; fresh < 2; fresh++) {
        bool holds;
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), false, &holds),
                         STATUS_CONFIG);
        scratch_expect(&s, who);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), fresh), STATUS_CONFIG);
        scratch_expect(&s, who);
    }
    assert_false(file_exists(scratch_path(&s, "run.1")));
    lock_file_release(lock);
    assert_false(file_exists(scratch_path(&s, "run/lock")));

    /* The next one has the folder, and the lock did not stay with the old one. */
    assert_int_equal(run_folder_prepare(&s.env, scratch_path(&s, "run"), true, &lock), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "run.1/metrics.jsonl")));
    assert_false(file_exists(scratch_path(&s, "run.1/lock")));
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), true), STATUS_CONFIG);
    log_error_clear(s.env.log);
    lock_file_release(lock);
    scratch_close(&s);
}

static void test_one_run_at_a_time(void **state)
{
    (void)state;
    expect_one_run();
}

static void test_one_run_over_nfs(void **state)
{
    (void)state;
    locks = LOCKS_NFS;
    expect_one_run();
    locks = LOCKS_HERE;
}

static void keep_line(void *user, enum log_level level, const char *line)
{
    if (level == LOG_WARN)
        snprintf(user, 512, "%s", line);
}

/* A file system without locks: said, and the run begins. */
static void test_no_locks(void **state)
{
    (void)state;
    struct scratch s;
    struct lock_file *lock = NULL;
    struct env env;
    char line[512] = "";
    scratch_open(&s);
    assert_int_equal(env_create(&env, keep_line, line, LOG_WARN, 1), STATUS_OK);
    locks = LOCKS_NONE;
    assert_int_equal(run_folder_prepare(&env, scratch_path(&s, "run"), false, &lock), STATUS_OK);
    assert_non_null(strstr(line, "make sure that no other run writes to"));
    lock_file_release(lock);
    locks = LOCKS_HERE;
    env_destroy(&env);
    scratch_close(&s);
}

/* What a killed run leaves behind locks nothing. */
static void test_a_left_lock_file(void **state)
{
    (void)state;
    static const char *const left[] = {"1\n", "1 host\n", "1 \n", ""};
    struct scratch s;
    scratch_open(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "run")), STATUS_OK);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        scratch_text(&s, "run/lock", left[i]);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
        assert_false(file_exists(scratch_path(&s, "run/lock")));
    }
    scratch_write(&s, "run/lock", (const char[8]){0}, 8); /* the machine crashed */
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
    scratch_write(&s, "run/lock", "\0\0mine", 6);
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_CONFIG);
    scratch_expect(&s, "is not a lock file of sifr");
    scratch_close(&s);
}

/* A file of that name that no run wrote: it stays as it is, also where the folder holds a run. */
static void test_a_lock_of_others(void **state)
{
    (void)state;
    static const char *const others[] = {"mine\n", "\n",         "12",         "12 host",
                                         " 12\n",  "12 host \n", "12 host\nx", "12 host\n\n"};
    struct scratch s;
    scratch_open(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "run/checkpoints")), STATUS_OK);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool holds;
        char *text;
        size_t bytes;
        scratch_text(&s, "run/lock", others[i]);
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), false, &holds),
                         STATUS_CONFIG);
        scratch_expect(&s, "run/lock' is not a lock file of sifr");
        for (int fresh = 0; fresh < 2; fresh++) {
            assert_int_equal(prepare(&s, scratch_path(&s, "run"), fresh), STATUS_CONFIG);
            scratch_expect(&s, "is not a lock file of sifr");
        }
        struct lock_file *lock = NULL;
        assert_int_equal(run_lock_take(&s.env, scratch_path(&s, "run"), &lock), STATUS_CONFIG);
        scratch_expect(&s, "choose another folder with --out");
        assert_int_equal(file_read(&s.env, scratch_path(&s, "run/lock"), 100, &text, &bytes),
                         STATUS_OK);
        assert_string_equal(text, others[i]);
        mem_free(&s.env, text);
    }
    scratch_close(&s);
}

/* A link is somebody's own, wherever it leads: it is not followed, and stays. */
static void test_a_lock_that_is_a_link(void **state)
{
    (void)state;
    static const char *const targets[] = {"precious", "nothing"};
    struct scratch s;
    char target[128];
    scratch_open(&s);
    scratch_text(&s, "precious", ""); /* an empty file would pass for a lock */
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "run")), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        strcpy(target, scratch_path(&s, targets[i]));
        assert_int_equal(symlink(target, scratch_path(&s, "run/lock")), 0);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_CONFIG);
        scratch_expect(&s, "run/lock' is not a lock file of sifr");
        assert_true(path_is_link(scratch_path(&s, "run/lock")));
        assert_int_equal(unlink(s.path), 0);
    }
    assert_true(dir_is_empty(scratch_path(&s, "run")));
    assert_true(file_exists(scratch_path(&s, "precious")));
    assert_true(path_is_free(scratch_path(&s, "nothing")));
    scratch_close(&s);
}

/* The probe whether a folder can be written to has no name that a user's file could have. */
static void test_files_of_any_name_stay(void **state)
{
    (void)state;
    struct scratch s;
    char *text;
    size_t bytes;
    scratch_open(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "run")), STATUS_OK);
    scratch_text(&s, "run/.writable", "mine");
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
    assert_int_equal(file_read(&s.env, scratch_path(&s, "run/.writable"), 100, &text, &bytes),
                     STATUS_OK);
    assert_string_equal(text, "mine");
    mem_free(&s.env, text);
    scratch_close(&s);
}

/* Of a folder that cannot be used, the parents that were made for it are gone too. */
static void test_parents_go_again(void **state)
{
    (void)state;
    struct scratch s;
    struct rlimit before, none;
    scratch_open(&s);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    enum status st = prepare(&s, scratch_path(&s, "a/b/c"), false);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(st, STATUS_IO);
    assert_true(dir_is_empty(s.folder));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_with_parents),
        cmocka_unit_test(test_each_sign_of_a_run_is_seen),
        cmocka_unit_test(test_files_of_others),
        cmocka_unit_test(test_fresh_moves_aside),
        cmocka_unit_test(test_fresh_without_a_name),
        cmocka_unit_test(test_a_file_in_the_way),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_one_run_at_a_time),
        cmocka_unit_test(test_one_run_over_nfs),
        cmocka_unit_test(test_no_locks),
        cmocka_unit_test(test_a_left_lock_file),
        cmocka_unit_test(test_a_lock_of_others),
        cmocka_unit_test(test_a_lock_that_is_a_link),
        cmocka_unit_test(test_files_of_any_name_stay),
        cmocka_unit_test(test_parents_go_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
