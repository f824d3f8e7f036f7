/* test_progress -- what is counted, and the text that a watcher reads. */
#include "testing.h"
#include "base/output.h"
#include "base/progress.h"
#include <fcntl.h>
#include <unistd.h>

static void test_notes_and_counts(void **state)
{
    (void)state;
    static struct progress progress;
    struct env env = testing_env(1);
    char words[PROGRESS_BYTES], lengthy[3 * PROGRESS_BYTES];
    progress_add(&env); /* without a watcher */
    progress_note(&env, "step 1");
    env.progress = &progress;
    assert_int_equal(progress_count(&progress), 0);
    progress_words(&progress, words);
    assert_string_equal(words, "");
    progress_note(&env, "step 12, block 3 backward");
    progress_note(&env, "step 13");
    progress_add(&env);
    assert_int_equal(progress_count(&progress), 3);
    progress_words(&progress, words);
    assert_string_equal(words, "step 13");
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    progress_note(&env, lengthy);
    progress_words(&progress, words);
    assert_int_equal(strlen(words), PROGRESS_BYTES - 1);
    env_destroy(&env);
}

static void test_longest_expectation_counts(void **state)
{
    (void)state;
    static struct progress progress;
    struct env env = testing_env(1);
    progress_expect(&env, 5);
    env.progress = &progress;
    progress_expect(&env, 2.5);
    progress_expect(&env, 1);
    assert_int_equal(atomic_load(&progress.expected_ms), 2500);
    env_destroy(&env);
}

/* A save counts as progress: each of its chunks is counted. */
static void test_writes_are_progress(void **state)
{
    (void)state;
    static struct progress progress;
    struct env env = testing_env(1);
    env.progress = &progress;
    int fd;
    assert_true(output_open(&env, "/dev/null", O_WRONLY, &fd));
    uint64_t before = progress_count(&progress);
    assert_true(output_write_at(&env, fd, 0, "abc", 3));
    assert_true(output_write_at(&env, fd, 0, "abc", 3));
    assert_true(progress_count(&progress) >= before + 2);
    assert_true(output_close(&env, fd));
    env_destroy(&env);
}

struct drawn {
    int shows, clears;
    uint64_t done;
};

static void show(void *user, struct progress_task *task, double now)
{
    struct drawn *drawn = user;
    assert_true(now >= task->begin);
    drawn->shows++;
    drawn->done = task->done;
    if (task->done >= 10)
        task->shown = task->begin + 1; /* as a view that has drawn */
}

static void clear(void *user)
{
    struct drawn *drawn = user;
    drawn->clears++;
}

static void test_tasks_are_drawn_and_cleared(void **state)
{
    (void)state;
    static struct progress progress;
    struct drawn drawn = {0};
    const struct progress_view view = {show, clear, &drawn};
    struct env env = testing_env(1);
    struct progress_task task;
    progress_begin(&task, "counting", "sheep", 100);
    progress_advance(&env, &task, 3); /* nobody looks */
    assert_int_equal(task.done, 3);
    env.view = &view;
    env.progress = &progress;
    progress_reach(&env, &task, 8);
    assert_int_equal(drawn.done, 8);
    progress_reach(&env, &task, 5); /* never back */
    assert_int_equal(drawn.done, 8);
    progress_end(&env, &task);
    assert_int_equal(drawn.clears, 0); /* nothing was drawn */
    progress_advance(&env, &task, 2);
    progress_end(&env, &task);
    assert_int_equal(drawn.clears, 1);
    assert_int_equal(drawn.shows, 3);
    assert_int_equal(progress_count(&progress), 3); /* a watcher counts them, too */
    progress_begin(&task, "again", NULL, 0);
    assert_int_equal(task.done, 0);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notes_and_counts),
        cmocka_unit_test(test_longest_expectation_counts),
        cmocka_unit_test(test_writes_are_progress),
        cmocka_unit_test(test_tasks_are_drawn_and_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
