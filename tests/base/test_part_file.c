/* A file appears complete or not at all, whatever else uses its names: links, leftovers of killed
 * processes, other writers. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "train/scratch.h"
#include "base/file.h"

static void expect_content(struct scratch *s, const char *path, const char *wanted)
{
    char *text;
    size_t bytes;
    assert_int_equal(file_read(&s->env, path, 1000, &text, &bytes), STATUS_OK);
    assert_string_equal(text, wanted);
    mem_free(&s->env, text);
}

static void appears_complete_when_committed(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_text(&s, "a", "old");
    assert_int_equal(part_file_create(&s.env, path, &file), STATUS_OK);
    assert_int_equal(part_file_reserve(file, 8), STATUS_OK);
    assert_int_equal(part_file_write(file, 4, "5678", 4), STATUS_OK);
    assert_int_equal(part_file_write(file, 0, "1234", 4), STATUS_OK);
    expect_content(&s, path, "old");
    assert_int_equal(part_file_commit(file), STATUS_OK);
    part_file_destroy(file);
    expect_content(&s, path, "12345678");
    assert_int_equal(unlink(path), 0);
    assert_true(dir_is_empty(NULL, s.folder));
    scratch_close(&s);
}

static void leaves_nothing_when_abandoned(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    assert_int_equal(part_file_create(&s.env, scratch_path(&s, "a"), &file), STATUS_OK);
    assert_int_equal(part_file_write(file, 0, "1234", 4), STATUS_OK);
    part_file_destroy(file);
    assert_true(dir_is_empty(NULL, s.folder));
    scratch_close(&s);
}

static void names_what_it_cannot_create(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_path(&s, "none/a");
    assert_int_equal(part_file_create(&s.env, path, &file), STATUS_IO);
    scratch_expect(&s, path);
    scratch_close(&s);
}

/* A link at the target path is replaced; a link at a temporary name is left alone. */
static void follows_no_link(void **state)
{
    struct scratch s;
    struct part_file *file;
    char precious[128], goal[128], name[64];
    (void)state;
    scratch_open(&s);
    strcpy(precious, scratch_text(&s, "precious", "mine"));
    strcpy(goal, scratch_path(&s, "a"));
    assert_int_equal(symlink(precious, goal), 0);
    assert_int_equal(symlink(precious, scratch_path(&s, "a.partial")), 0);
    snprintf(name, sizeof name, ".a.%d-0.tmp", (int)getpid());
    assert_int_equal(symlink(precious, scratch_path(&s, name)), 0);
    assert_int_equal(part_file_create(&s.env, goal, &file), STATUS_OK);
    assert_int_equal(part_file_write(file, 0, "new", 3), STATUS_OK);
    assert_int_equal(part_file_commit(file), STATUS_OK);
    part_file_destroy(file);
    assert_false(path_is_link(goal));
    expect_content(&s, goal, "new");
    expect_content(&s, precious, "mine");
    assert_true(path_is_link(scratch_path(&s, name)));
    assert_true(path_is_link(scratch_path(&s, "a.partial")));
    scratch_close(&s);
}

/* Two concurrent writers have separate files, and the last to commit wins completely. */
static void two_writers_do_not_mix(void **state)
{
    struct scratch s;
    struct part_file *first, *second;
    char goal[128];
    (void)state;
    scratch_open(&s);
    strcpy(goal, scratch_path(&s, "a"));
    assert_int_equal(part_file_create(&s.env, goal, &first), STATUS_OK);
    assert_int_equal(part_file_write(first, 0, "11111111", 8), STATUS_OK);
    assert_int_equal(part_file_create(&s.env, goal, &second), STATUS_OK);
    assert_int_equal(part_file_write(second, 0, "22", 2), STATUS_OK);
    assert_int_equal(part_file_commit(second), STATUS_OK);
    expect_content(&s, goal, "22");
    assert_int_equal(part_file_commit(first), STATUS_OK);
    expect_content(&s, goal, "11111111");
    part_file_destroy(first);
    part_file_destroy(second);
    assert_int_equal(unlink(goal), 0);
    assert_true(dir_is_empty(NULL, s.folder));
    scratch_close(&s);
}

/* Start a process that creates its temporary file, reports it and waits to be killed. */
static pid_t start_writer(struct scratch *s, const char *goal)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct part_file *file;
        if (part_file_create(&s->env, goal, &file) == STATUS_OK && write(ends[1], "x", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void write_once(struct scratch *s, const char *goal)
{
    assert_int_equal(file_write_atomic(&s->env, goal, "new", 3), STATUS_OK);
}

static void removes_leftovers_of_killed_writers(void **state)
{
    struct scratch s;
    char goal[128], name[64];
    (void)state;
    scratch_open(&s);
    strcpy(goal, scratch_path(&s, "a"));
    pid_t pid = start_writer(&s, goal);
    snprintf(name, sizeof name, ".a.%d-0.tmp", (int)pid);
    write_once(&s, goal); /* the writer is alive: its file stays */
    assert_true(file_exists(scratch_path(&s, name)));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    write_once(&s, goal);
    assert_false(file_exists(scratch_path(&s, name)));

    /* another target's file, or a name of another form: a user's file */
    static const char *const others[] = {".b.1-0.tmp", ".a.1-0.tmp.old", ".a.x-0.tmp", ".a.1-.tmp",
                                         ".a.-0.tmp",  "a.1-0.tmp",      ".a.tmp"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        scratch_text(&s, others[i], "mine");
    assert_int_equal(dir_create(&s.env, scratch_path(&s, ".a.7-0.tmp")), STATUS_OK);
    write_once(&s, goal);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_content(&s, scratch_path(&s, others[i]), "mine");
    assert_true(dir_exists(scratch_path(&s, ".a.7-0.tmp")));
    scratch_close(&s);
}

static void unwinds_from_every_failed_allocation(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    for (int n = 1; n <= 4; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(part_file_create(&s.env, scratch_path(&s, "a"), &file), STATUS_MEMORY);
        assert_int_equal(mem_total(s.env.mem), 0);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appears_complete_when_committed),
        cmocka_unit_test(leaves_nothing_when_abandoned),
        cmocka_unit_test(names_what_it_cannot_create),
        cmocka_unit_test(follows_no_link),
        cmocka_unit_test(two_writers_do_not_mix),
        cmocka_unit_test(removes_leftovers_of_killed_writers),
        cmocka_unit_test(unwinds_from_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
