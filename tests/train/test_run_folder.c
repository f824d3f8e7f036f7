/* A run folder is created, resumed or moved aside, and nothing in it is ever lost. Only one run at
 * a time uses it, also where a server manages the locks. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "scratch.h"
#include "train/run/run_folder.h"

/* Records as sifr writes them. */
#define BEGIN "{\"step\":1,\"tokens\":8,\"loss\":2.5,\"grad_norm\":null,\"lr\":0.1,\"seconds\":1"
#define LINE \
    BEGIN ",\"tokens_per_second\":null,\"mfu\":null,\"skipped\":true,\"mem\":{},\"comm\":{}}\n"

/* --- locks of other file systems ------------------------------------------------------------ */

static enum { LOCKS_HERE, LOCKS_NFS, LOCKS_NONE } locks;

/* Replaces the C library's flock. Over NFS the kernel asks the server for a lock of all bytes, for
 * which the file must be open for reading (shared lock) or for writing (exclusive lock). */
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
    return fcntl(fd, F_OFD_SETLK, &range); /* EAGAIN is EWOULDBLOCK; NFS fails with EBADF, too */
}

/* A run that ends at once. */
static enum status prepare(struct scratch *s, const char *path, bool fresh)
{
    struct lock_file *lock = NULL;
    enum status st = run_folder_prepare(&s->env, path, fresh, &lock);
    lock_file_release(lock);
    return st;
}

static void test_a_folder_is_created_with_its_parents(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    assert_true(dir_is_empty(NULL, scratch_path(&s, "a/b/c"))); /* the probe file is gone */
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    scratch_text(&s, "a/b/c/notes.txt", "mine");
    assert_int_equal(prepare(&s, scratch_path(&s, "a/b/c"), false), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "a/b/c/notes.txt")));
    scratch_close(&s);
}

/* A folder "run" with somebody's notes in it. */
static void make_folder(struct scratch *s)
{
    scratch_open(s);
    assert_int_equal(dir_create(&s->env, scratch_path(s, "run/checkpoints")), STATUS_OK);
    scratch_text(s, "run/notes.txt", "x");
}

static void test_every_sign_of_a_run_is_recognized(void **state)
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
                                           /* cut off */
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
        assert_true(file_exists(scratch_path(&s, path))); /* the run is resumed */
        scratch_close(&s);
    }
}

/* Files that no run wrote are neither overwritten nor moved. */
static void test_foreign_files_are_kept(void **state)
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
        /* records of other programs */
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
        assert_true(holds); /* its folder `checkpoints` marks a run */
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

static void test_fresh_moves_the_old_run_aside(void **state)
{
    (void)state;
    struct scratch s;
    char name[64], content[sizeof LINE] = LINE;
    scratch_open(&s);
    for (int i = 1; i <= 3; i++) {
        /* With a slash at the end, the old run must not end up inside the new one. */
        assert_int_equal(prepare(&s, scratch_path(&s, i == 2 ? "run/" : "run"), true), STATUS_OK);
        assert_true(dir_is_empty(NULL, scratch_path(&s, "run")));
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

/* A path that ends in "." or ".." cannot get a numbered name. */
static void test_fresh_refuses_paths_without_a_name(void **state)
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
        scratch_text(&s, ".../metrics.jsonl", LINE);
        /* an ordinary name */
        assert_int_equal(prepare(&s, scratch_path(&s, "..."), true), STATUS_OK);
        assert_true(file_exists(scratch_path(&s, "....1/checkpoints")));
        scratch_close(&s);
    }
}

/* A folder `checkpoints`, even with a step-N in it, may be another program's. */
static void test_fresh_moves_only_runs(void **state)
{
    (void)state;
    static const char *const files[] = {NULL, "run/checkpoints/w.pt",
                                        "run/checkpoints/step-20/COMPLETE"};
    for (int i = 0; i < 3; i++) {
        struct scratch s;
        bool holds;
        make_folder(&s);
        assert_int_equal(dir_create(&s.env, scratch_path(&s, "run/checkpoints/step-20")),
                         STATUS_OK);
        if (files[i])
            scratch_text(&s, files[i], "x");
        assert_int_equal(run_folder_check(&s.env, scratch_path(&s, "run"), true, &holds),
                         STATUS_CONFIG);
        scratch_expect(&s, "--fresh moves only runs aside");
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), true), STATUS_CONFIG);
        assert_true(file_exists(scratch_path(&s, "run/notes.txt")));
        scratch_close(&s);
    }
}

static void test_a_file_is_not_a_folder(void **state)
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

/* No file may grow, as on a full disk: a folder that was created for nothing is removed. */
static void test_a_full_disk_leaves_no_folder(void **state)
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
    assert_true(dir_exists(scratch_path(&s, "mine")) &&
                dir_is_empty(NULL, scratch_path(&s, "mine")));
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

    /* The next run gets the folder, and no lock stays in the old one. */
    assert_int_equal(run_folder_prepare(&s.env, scratch_path(&s, "run"), true, &lock), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "run.1/metrics.jsonl")));
    assert_false(file_exists(scratch_path(&s, "run.1/lock")));
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), true), STATUS_CONFIG);
    log_error_clear(s.env.log);
    lock_file_release(lock);
    scratch_close(&s);
}

static void test_one_run_uses_a_folder_at_a_time(void **state)
{
    (void)state;
    expect_one_run();
}

static void test_one_run_uses_a_folder_at_a_time_over_nfs(void **state)
{
    (void)state;
    locks = LOCKS_NFS;
    expect_one_run();
    locks = LOCKS_HERE;
}

/* A file system without locks: there is a warning, and the run starts. */
static void test_a_file_system_without_locks_is_reported(void **state)
{
    (void)state;
    struct scratch s;
    struct lock_file *lock = NULL;
    struct env env;
    char line[512] = "";
    scratch_open(&s);
    assert_int_equal(env_create(&env, scratch_keep_warning, line, LOG_WARN, 1), STATUS_OK);
    locks = LOCKS_NONE;
    assert_int_equal(run_folder_prepare(&env, scratch_path(&s, "run"), false, &lock), STATUS_OK);
    assert_non_null(strstr(line, "make sure that no other run writes to"));
    lock_file_release(lock);
    locks = LOCKS_HERE;
    env_destroy(&env);
    scratch_close(&s);
}

/* A lock file that a killed run left behind locks nothing. */
static void test_a_stale_lock_file_is_replaced(void **state)
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
    scratch_write(&s, "run/lock", (const char[8]){0}, 8); /* after a crash of the machine */
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_OK);
    scratch_write(&s, "run/lock", "\0\0mine", 6);
    assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_CONFIG);
    scratch_expect(&s, "is not a lock file of sifr");
    scratch_close(&s);
}

/* A file named `lock` that no run wrote stays unchanged, even if the folder holds a run. */
static void test_a_foreign_lock_file_is_kept(void **state)
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
            scratch_expect(&s, "choose another folder with --out");
        }
        assert_int_equal(file_read(&s.env, scratch_path(&s, "run/lock"), 100, &text, &bytes),
                         STATUS_OK);
        assert_string_equal(text, others[i]);
        mem_free(&s.env, text);
    }
    scratch_close(&s);
}

/* A link belongs to the user, wherever it points: it is not followed, and stays. */
static void test_a_linked_lock_file_is_kept(void **state)
{
    (void)state;
    static const char *const targets[] = {"precious", "nothing"};
    struct scratch s;
    char target[128];
    scratch_open(&s);
    scratch_text(&s, "precious", ""); /* an empty file counts as a lock file */
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "run")), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        strcpy(target, scratch_path(&s, targets[i]));
        assert_int_equal(symlink(target, scratch_path(&s, "run/lock")), 0);
        assert_int_equal(prepare(&s, scratch_path(&s, "run"), false), STATUS_CONFIG);
        scratch_expect(&s, "run/lock' is not a lock file of sifr");
        assert_true(path_is_link(scratch_path(&s, "run/lock")));
        assert_int_equal(unlink(s.path), 0);
    }
    assert_true(dir_is_empty(NULL, scratch_path(&s, "run")));
    assert_true(file_exists(scratch_path(&s, "precious")));
    assert_true(path_is_free(scratch_path(&s, "nothing")));
    scratch_close(&s);
}

/* The probe for write access must not overwrite a user's file. */
static void test_the_probe_overwrites_nothing(void **state)
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

/* If a folder cannot be used, the parents created for it are removed, too. */
static void test_unused_parents_are_removed(void **state)
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
    assert_true(dir_is_empty(NULL, s.folder));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_folder_is_created_with_its_parents),
        cmocka_unit_test(test_every_sign_of_a_run_is_recognized),
        cmocka_unit_test(test_foreign_files_are_kept),
        cmocka_unit_test(test_fresh_moves_the_old_run_aside),
        cmocka_unit_test(test_fresh_refuses_paths_without_a_name),
        cmocka_unit_test(test_fresh_moves_only_runs),
        cmocka_unit_test(test_a_file_is_not_a_folder),
        cmocka_unit_test(test_a_full_disk_leaves_no_folder),
        cmocka_unit_test(test_one_run_uses_a_folder_at_a_time),
        cmocka_unit_test(test_one_run_uses_a_folder_at_a_time_over_nfs),
        cmocka_unit_test(test_a_file_system_without_locks_is_reported),
        cmocka_unit_test(test_a_stale_lock_file_is_replaced),
        cmocka_unit_test(test_a_foreign_lock_file_is_kept),
        cmocka_unit_test(test_a_linked_lock_file_is_kept),
        cmocka_unit_test(test_the_probe_overwrites_nothing),
        cmocka_unit_test(test_unused_parents_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
