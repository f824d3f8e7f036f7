/* restarts -- simulated attempts: each writes the results of its scene to the run folder, then dies
 * or ends. */
#include "testing.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "cli/launch/launch.h"

enum { MOST_SCENES = 12 };

struct scene {
    int64_t step, saved; /* the last step and checkpoint of the attempt; saved 0 = none */
    enum status status;
    bool died, said, moves; /* `moves`: it renames the earlier run first, as --fresh does */
};

struct stage {
    struct env env;
    struct console console;
    volatile sig_atomic_t stop;
    struct cli cli;
    char folder[64];
    struct scene scenes[MOST_SCENES];
    struct restarts_attempt seen[MOST_SCENES];
    int count;
};

static void open_stage(struct stage *stage)
{
    *stage = (struct stage){.env = testing_env(1), .folder = "/tmp/sifr-restarts.XXXXXX"};
    console_open(&stage->console, 0, false, false);
    stage->cli = (struct cli){.env = &stage->env, .console = &stage->console, .stop = &stage->stop};
    assert_non_null(mkdtemp(stage->folder));
    strcat(stage->folder, "/run");
}

static void close_stage(struct stage *stage)
{
    char command[128];
    *strrchr(stage->folder, '/') = 0;
    snprintf(command, sizeof command, "rm -r '%s'", stage->folder);
    assert_int_equal(system(command), 0);
    env_destroy(&stage->env);
}

static void write_run(const char *folder, const struct scene *scene)
{
    char path[128];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "w");
    for (int64_t step = 1; step <= scene->step; step++)
        fprintf(file,
                "{\"step\":%lld,\"tokens\":8,\"loss\":2.5,\"grad_norm\":null,\"lr\":0.1,"
                "\"seconds\":1,\"tokens_per_second\":null,\"mfu\":null,\"skipped\":true,"
                "\"mem\":{},\"comm\":{}}\n",
                (long long)step);
    fprintf(file, "{\"step\":99"); /* an incomplete line does not count */
    fclose(file);
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/checkpoints/step-%lld", folder, (long long)scene->saved);
    if (scene->saved > 0)
        mkdir(path, 0777);
}

static enum status play(void *user, const struct restarts_attempt *attempt, struct launch_end *end)
{
    struct stage *stage = user;
    const struct scene *scene = &stage->scenes[stage->count];
    char aside[80];
    stage->seen[stage->count++] = *attempt;
    snprintf(aside, sizeof aside, "%s.1", stage->folder);
    if (scene->moves)
        assert_int_equal(rename(stage->folder, aside), 0);
    if (scene->step > 0)
        write_run(stage->folder, scene);
    *end = (struct launch_end){.died = scene->died, .said = scene->said};
    if (scene->status != STATUS_OK)
        strcpy(end->words, "rank 1 fell");
    return scene->status;
}

static enum status run(struct stage *stage, struct restarts_order order)
{
    order.folder = stage->folder;
    stage->count = 0;
    log_error_clear(stage->env.log);
    return restarts_run(&stage->cli, &order, play, stage);
}

#define DEATH(step_, saved_)                                                \
    {                                                                       \
        .step = step_, .saved = saved_, .status = STATUS_COMM, .died = true \
    }

static void a_death_is_followed_by_a_restart(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    stage.scenes[0] = (struct scene)DEATH(5, 4);
    stage.scenes[1] = (struct scene)DEATH(9, 8);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 2}), STATUS_OK);
    assert_string_equal(log_first_error(stage.env.log), "");
    assert_int_equal(stage.count, 3);
    assert_false(stage.seen[0].again);
    assert_true(stage.seen[1].again && stage.seen[2].again);
    close_stage(&stage);
}

static void only_a_death_is_followed_by_a_restart(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    stage.scenes[0] = (struct scene){.step = 5, .status = STATUS_CONFIG};
    assert_int_equal(run(&stage, (struct restarts_order){.most = 5}), STATUS_CONFIG);
    assert_int_equal(stage.count, 1);
    assert_string_equal(log_first_error(stage.env.log), "rank 1 fell");
    stage.scenes[0] = (struct scene)DEATH(5, 4);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 0}), STATUS_COMM);
    assert_int_equal(stage.count, 1);
    assert_string_equal(log_first_error(stage.env.log), "rank 1 fell");
    stage.scenes[0].said = true; /* a rank has logged it: not logged again */
    assert_int_equal(run(&stage, (struct restarts_order){.most = 0}), STATUS_COMM);
    assert_string_equal(log_first_error(stage.env.log), "");
    close_stage(&stage);
}

static void the_number_of_restarts_is_limited(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    for (int i = 0; i < 3; i++)
        stage.scenes[i] = (struct scene)DEATH(i + 1, 0);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 2}), STATUS_COMM);
    assert_int_equal(stage.count, 3);
    assert_string_equal(log_first_error(stage.env.log),
                        "rank 1 fell; giving up: all 2 restarts (--restarts) are used");
    close_stage(&stage);
}

/* Restarts 2, 3 and 4 get no further than restart 1; reaching a step again is not progress. */
static void gives_up_after_three_without_progress(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    static const int64_t steps[] = {7, 8, 6, 8, 8};
    for (int i = 0; i < 5; i++)
        stage.scenes[i] = (struct scene)DEATH(steps[i], 4);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 100}), STATUS_COMM);
    assert_int_equal(stage.count, 5);
    assert_non_null(strstr(log_first_error(stage.env.log),
                           "3 restarts in a row made no progress after step 8"));
    close_stage(&stage);
}

/* A newer checkpoint is progress though no larger step is recorded. */
static void a_checkpoint_is_progress(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    static const int64_t saved[] = {1, 2, 3, 4, 5};
    for (int i = 0; i < 5; i++)
        stage.scenes[i] = (struct scene)DEATH(7, saved[i]);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 100}), STATUS_OK);
    assert_int_equal(stage.count, 6);
    close_stage(&stage);
}

/* --fresh holds until an attempt has renamed the earlier run; later attempts resume the new one. */
static void an_earlier_run_is_renamed_once(void **state)
{
    (void)state;
    struct stage stage;
    const struct scene earlier = {.step = 50, .saved = 40};
    open_stage(&stage);
    write_run(stage.folder, &earlier);
    stage.scenes[0] = (struct scene){.status = STATUS_COMM, .died = true}; /* no rename yet */
    stage.scenes[1] = (struct scene)DEATH(3, 2);
    stage.scenes[1].moves = true;
    stage.scenes[2] = (struct scene)DEATH(5, 4);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 9, .fresh = true}), STATUS_OK);
    assert_int_equal(stage.count, 4);
    assert_true(stage.seen[0].fresh);
    assert_true(stage.seen[1].fresh);
    assert_false(stage.seen[2].fresh);
    assert_false(stage.seen[3].fresh);
    close_stage(&stage);
}

/* Without an earlier run, --fresh never renames anything. */
static void a_new_run_is_never_renamed(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    stage.scenes[0] = (struct scene)DEATH(5, 4);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 9, .fresh = true}), STATUS_OK);
    assert_int_equal(stage.count, 2);
    assert_false(stage.seen[1].fresh);
    close_stage(&stage);
}

static void the_time_of_all_attempts_is_limited(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    stage.scenes[0] = (struct scene)DEATH(5, 4);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 9, .max_seconds = 1000}),
                     STATUS_OK);
    assert_true(stage.seen[1].max_seconds > 1 && stage.seen[1].max_seconds < 1000);
    assert_int_equal(run(&stage, (struct restarts_order){.most = 9, .max_seconds = 0.5}),
                     STATUS_COMM);
    assert_non_null(strstr(log_first_error(stage.env.log), "train.max_time is over"));
    close_stage(&stage);
}

static void no_restart_after_a_request_to_stop(void **state)
{
    (void)state;
    struct stage stage;
    open_stage(&stage);
    stage.scenes[0] = (struct scene)DEATH(5, 4);
    stage.stop = SIGTERM;
    assert_int_equal(run(&stage, (struct restarts_order){.most = 9}), STATUS_COMM);
    assert_int_equal(stage.count, 1);
    close_stage(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_followed_by_a_restart),
        cmocka_unit_test(only_a_death_is_followed_by_a_restart),
        cmocka_unit_test(the_number_of_restarts_is_limited),
        cmocka_unit_test(gives_up_after_three_without_progress),
        cmocka_unit_test(a_checkpoint_is_progress),
        cmocka_unit_test(an_earlier_run_is_renamed_once),
        cmocka_unit_test(a_new_run_is_never_renamed),
        cmocka_unit_test(the_time_of_all_attempts_is_limited),
        cmocka_unit_test(no_restart_after_a_request_to_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
