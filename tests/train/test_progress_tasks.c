/* The long parts of a run show how far they are, from one thread only, and end complete. */
#include <pthread.h>
#include "save_rig.h"
#include "train/models/model_export.h"

/* The names of the tasks that were shown, each once, with how far it came. */
struct seen {
    pthread_t thread; /* that may print */
    bool on_thread;   /* all were shown by it */
    int count;
    struct {
        char what[40];
        uint64_t done, total;
    } tasks[16];
};

static void show(void *user, struct progress_task *task, double now)
{
    struct seen *seen = user;
    int i = 0;
    (void)now;
    seen->on_thread = seen->on_thread && pthread_equal(pthread_self(), seen->thread);
    while (i < seen->count && strcmp(seen->tasks[i].what, task->what) != 0)
        i++;
    assert_true(i < 16);
    seen->count = i == seen->count ? i + 1 : seen->count;
    snprintf(seen->tasks[i].what, sizeof seen->tasks[i].what, "%s", task->what);
    seen->tasks[i].done = task->done;
    seen->tasks[i].total = task->total;
}

static void clear(void *user)
{
    (void)user;
}

/* The first task to be shown says which thread is the run's. */
static void show_in_run(void *user, struct progress_task *task, double now)
{
    struct seen *seen = user;
    if (seen->count == 0)
        seen->thread = pthread_self();
    show(user, task, now);
}

static void expect(const struct seen *seen, const char *what)
{
    for (int i = 0; i < seen->count; i++)
        if (strcmp(seen->tasks[i].what, what) == 0) {
            if (seen->tasks[i].done != seen->tasks[i].total)
                fail_msg("'%s' ended at %llu of %llu", what,
                         (unsigned long long)seen->tasks[i].done,
                         (unsigned long long)seen->tasks[i].total);
            return;
        }
    fail_msg("'%s' was not shown", what);
}

static void test_save_resume_and_evaluation(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    struct seen first = {.on_thread = true}, second = {.on_thread = true};
    const struct progress_view view = {show_in_run, clear, &first},
                               again = {show_in_run, clear, &second};
    save_open(&rig);
    rig.view = &view;
    assert_int_equal(save_train(&rig, "run", 2,
                                "train.steps=4 train.stop_at=2 train.eval_every=2 "
                                "checkpoint.async=no zero.stage=2"),
                     STATUS_SAVED);
    assert_true(first.on_thread);
    expect(&first, "evaluating");
    expect(&first, "saving the checkpoint");
    rig.view = &again;
    assert_int_equal(save_train(&rig, "run", 2, "train.steps=4 checkpoint.every=1 zero.stage=2"),
                     STATUS_OK);
    assert_true(second.on_thread); /* the worker that saves prints nothing */
    expect(&second, "loading the checkpoint");
    rig_close(&rig.run);
}

/* A disk that takes its time, so that the run has to wait for a save in the background. */
static bool slow_free(void *user, const char *path, uint64_t *bytes)
{
    (void)user, (void)path;
    usleep(300000);
    *bytes = (uint64_t)1 << 40;
    return true;
}

static void test_a_wait_for_a_background_save(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    struct seen seen = {.on_thread = true};
    const struct progress_view view = {show_in_run, clear, &seen};
    save_open(&rig);
    rig.view = &view;
    rig.faults[0].free_bytes = slow_free;
    assert_int_equal(save_train(&rig, "run", 1,
                                "train.steps=3 checkpoint.every=1 "
                                "checkpoint.async=yes data.split=0"),
                     STATUS_OK);
    assert_true(seen.on_thread);
    bool shown = false;
    for (int i = 0; i < seen.count; i++)
        shown = shown || strcmp(seen.tasks[i].what, "saving the checkpoint") == 0;
    assert_true(shown);
    rig_close(&rig.run);
}

static void test_export(void **state)
{
    (void)state;
    struct scratch s;
    struct seen seen = {.thread = pthread_self(), .on_thread = true};
    const struct progress_view view = {show, clear, &seen};
    struct export_request request = {
        .from = "tests/train/golden/checkpoint-1", .type = DTYPE_BF16, .file_bytes = 2000};
    struct export_result result;
    scratch_open(&s);
    request.to = scratch_path(&s, "out");
    s.env.view = &view;
    assert_int_equal(model_export(&s.env, &request, &result), STATUS_OK);
    s.env.view = NULL;
    assert_true(seen.on_thread);
    expect(&seen, "verifying the checkpoint");
    expect(&seen, "writing the weights");
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_resume_and_evaluation),
        cmocka_unit_test(test_a_wait_for_a_background_save),
        cmocka_unit_test(test_export),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
