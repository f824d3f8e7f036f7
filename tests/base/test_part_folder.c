/* A folder appears complete or not at all, and leftovers of killed processes are handled. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "train/scratch.h"
#include "base/output.h"
#include "base/part_folder.h"

static char warned[1024]; /* the last warning */

static void keep_warning(void *user, enum log_level level, const char *line)
{
    (void)user;
    if (level == LOG_WARN)
        snprintf(warned, sizeof warned, "%s", line);
}

static void open_scene(struct scratch *s)
{
    scratch_open(s);
    env_destroy(&s->env);
    assert_int_equal(env_create(&s->env, keep_warning, NULL, LOG_WARN, 1), STATUS_OK);
    *warned = '\0';
}

static struct part_folder *begin(struct scratch *s, const char *stem)
{
    struct part_folder *folder;
    char path[256];
    assert_int_equal(part_folder_create(&s->env, scratch_path(s, stem), &folder), STATUS_OK);
    snprintf(path, sizeof path, "%s/file", part_folder_path(folder));
    assert_int_equal(file_write_atomic(&s->env, path, "x", 1), STATUS_OK);
    return folder;
}

static void test_complete_or_absent(void **state)
{
    (void)state;
    struct scratch s;
    open_scene(&s);
    struct part_folder *folder = begin(&s, "out.part");
    assert_string_equal(part_folder_path(folder), scratch_path(&s, "out.part"));
    part_folder_destroy(folder);
    assert_true(dir_is_empty(NULL, s.folder));
    folder = begin(&s, "out.part");
    assert_int_equal(part_folder_commit(folder, scratch_path(&s, "out")), STATUS_OK);
    part_folder_destroy(folder);
    assert_true(file_exists(scratch_path(&s, "out/file")));
    assert_true(path_is_free(scratch_path(&s, "out/" PART_FOLDER_MARKER)));
    assert_true(path_is_free(scratch_path(&s, "out.part")));
    folder = begin(&s, "out.part"); /* an existing folder is not replaced */
    assert_int_equal(part_folder_commit(folder, scratch_path(&s, "out")), STATUS_IO);
    part_folder_destroy(folder);
    assert_true(path_is_free(scratch_path(&s, "out.part")));
    scratch_close(&s);
}

/* An existing entry of that name stays, and the next free name is used. */
static void test_existing_name(void **state)
{
    (void)state;
    struct scratch s;
    char precious[128], name[128], *named;
    open_scene(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "precious")), STATUS_OK);
    strcpy(precious, s.path);
    scratch_text(&s, "precious/file", "mine");
    assert_int_equal(symlink(precious, scratch_path(&s, "out.part")), 0);
    scratch_text(&s, "out.part-2", "mine");
    struct part_folder *folder = begin(&s, "out.part");
    assert_int_equal(part_folder_number(folder), 3);
    strcpy(name, part_folder_path(folder));
    assert_int_equal(part_folder_name(&s.env, scratch_path(&s, "out.part"), 3, &named), STATUS_OK);
    assert_string_equal(named, name);
    mem_free(&s.env, named);
    part_folder_destroy(folder);
    assert_true(path_is_free(name));
    assert_true(path_is_link(scratch_path(&s, "out.part")));
    assert_true(file_exists(scratch_path(&s, "out.part-2")));
    assert_true(file_exists(scratch_path(&s, "precious/file")));
    scratch_close(&s);
}

/* Start a process that fills its folder partly, reports it and waits to be killed. */
static pid_t start_writer(struct scratch *s)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        begin(s, "out.part");
        if (write(ends[1], "x", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void test_leftovers_of_killed_processes(void **state)
{
    (void)state;
    struct scratch s;
    open_scene(&s);
    pid_t pid = start_writer(&s);
    assert_int_equal(part_folder_clear_all(&s.env, scratch_path(&s, "out.part")), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "out.part/file"))); /* the process is alive */
    assert_non_null(strstr(warned, "out.part' is left as it is"));
    *warned = '\0';
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "out.part-2")), STATUS_OK); /* empty */
    assert_int_equal(part_folder_clear_all(&s.env, scratch_path(&s, "out.part")), STATUS_OK);
    assert_true(dir_is_empty(NULL, s.folder));
    assert_string_equal(warned, "");
    scratch_close(&s);
}

/* A folder without sifr's marker belongs to a user, or to a version that wrote no marker. */
static void test_foreign_folders_are_left_alone(void **state)
{
    (void)state;
    static const char *const markers[] = {NULL, "my own notes\n", "12 host\nmore\n"};
    struct scratch s;
    char precious[128];
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        open_scene(&s);
        assert_int_equal(dir_create(&s.env, scratch_path(&s, "out.part")), STATUS_OK);
        scratch_text(&s, "out.part/file", "mine");
        if (markers[i])
            scratch_text(&s, "out.part/" PART_FOLDER_MARKER, markers[i]);
        assert_int_equal(part_folder_clear_all(&s.env, scratch_path(&s, "out.part")), STATUS_OK);
        assert_true(file_exists(scratch_path(&s, "out.part/file")));
        assert_non_null(strstr(warned, "out.part' is left as it is"));
        scratch_close(&s);
    }
    /* a link is left alone, even if it leads to a folder with a marker */
    open_scene(&s);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "precious")), STATUS_OK);
    strcpy(precious, s.path);
    scratch_text(&s, "precious/" PART_FOLDER_MARKER, "12 host\n");
    assert_int_equal(symlink(precious, scratch_path(&s, "out.part-7")), 0);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "out.part-mine")), STATUS_OK);
    assert_int_equal(part_folder_clear_all(&s.env, scratch_path(&s, "out.part")), STATUS_OK);
    assert_true(file_exists(scratch_path(&s, "precious/" PART_FOLDER_MARKER)));
    assert_true(path_is_link(scratch_path(&s, "out.part-7")));
    assert_true(dir_exists(scratch_path(&s, "out.part-mine")));
    scratch_close(&s);
}

/* Every write and every allocation fails in turn: the target is complete or absent, and nothing
 * else stays. */
static void test_every_call_fails(void **state)
{
    (void)state;
    enum status st = STATUS_IO;
    for (int n = 1; st != STATUS_OK; n++) {
        struct scratch s;
        struct part_folder *folder = NULL;
        struct output_faults faults = {.error = ENOSPC};
        open_scene(&s);
        s.env.faults = &faults;
        atomic_store(&faults.left, n);
        st = part_folder_create(&s.env, scratch_path(&s, "out.part"), &folder);
        if (st == STATUS_OK)
            st = part_folder_commit(folder, scratch_path(&s, "out"));
        part_folder_destroy(folder);
        s.env.faults = NULL;
        log_error_clear(s.env.log);
        assert_true(path_is_free(scratch_path(&s, "out.part")));
        if (dir_exists(scratch_path(&s, "out")))
            assert_true(dir_is_empty(NULL, s.path));
        scratch_close(&s);
    }
    st = STATUS_MEMORY;
    for (int n = 1; st != STATUS_OK; n++) {
        struct scratch s;
        struct part_folder *folder;
        open_scene(&s);
        mem_fail_at(s.env.mem, n);
        st = part_folder_create(&s.env, scratch_path(&s, "out.part"), &folder);
        mem_fail_at(s.env.mem, 0);
        if (st == STATUS_OK)
            part_folder_destroy(folder);
        assert_true(dir_is_empty(NULL, s.folder));
        scratch_close(&s);
    }
}

/* --- single files of a folder --------------------------------------------------------------- */

static const char *const files[] = {"file", "missing", "other"};

static struct part_folder *begin_files(struct scratch *s)
{
    char path[256];
    assert_int_equal(dir_create(&s->env, scratch_path(s, "goal")), STATUS_OK);
    struct part_folder *folder = begin(s, "goal/.part");
    snprintf(path, sizeof path, "%s/other", part_folder_path(folder));
    assert_int_equal(file_write_atomic(&s->env, path, "y", 1), STATUS_OK);
    return folder;
}

static void test_all_files_are_handed_over_or_none(void **state)
{
    (void)state;
    struct scratch s;
    char goal[128];
    open_scene(&s);
    strcpy(goal, scratch_path(&s, "goal"));
    enum status st = STATUS_IO;
    for (int n = 1; st != STATUS_OK; n++) {
        struct part_folder *folder = begin_files(&s);
        struct output_faults faults = {.error = EIO};
        atomic_store(&faults.left, n);
        s.env.faults = &faults;
        st = part_folder_hand_over(folder, goal, files, 3);
        s.env.faults = NULL;
        part_folder_destroy(folder);
        assert_true(st == STATUS_OK || dir_is_empty(NULL, goal));
        assert_true(n < 20);
    }
    assert_true(file_exists(scratch_path(&s, "goal/file")));
    assert_true(file_exists(scratch_path(&s, "goal/other")));
    assert_true(path_is_free(scratch_path(&s, "goal/.part")));
    scratch_close(&s);
}

static void test_handed_over_files_replace_nothing(void **state)
{
    (void)state;
    struct scratch s;
    char goal[128];
    open_scene(&s);
    strcpy(goal, scratch_path(&s, "goal"));
    struct part_folder *folder = begin_files(&s);
    assert_int_equal(symlink("nowhere", scratch_path(&s, "goal/other")), 0);
    assert_int_equal(part_folder_hand_over(folder, goal, files, 3), STATUS_CONFIG);
    part_folder_destroy(folder);
    assert_true(path_is_link(scratch_path(&s, "goal/other")));
    assert_int_equal(unlink(scratch_path(&s, "goal/other")), 0);
    assert_true(dir_is_empty(NULL, goal));
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete_or_absent),
        cmocka_unit_test(test_existing_name),
        cmocka_unit_test(test_leftovers_of_killed_processes),
        cmocka_unit_test(test_foreign_folders_are_left_alone),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_all_files_are_handed_over_or_none),
        cmocka_unit_test(test_handed_over_files_replace_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
