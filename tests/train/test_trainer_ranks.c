/* Training over ranks, as the loop sees it: who is late is named with what it does. */
#include <time.h>
#include "ranks_rig.h"

enum { RANKS = 2 };

/* Rank 0 is held up when step 2 is done. */
static void dawdle(void *user, const struct trainer_step *step)
{
    struct timespec span = {3, 0};
    (void)user;
    if (step->step == 2)
        nanosleep(&span, NULL);
}

static void test_a_late_rank_is_named_with_its_step(void **state)
{
    struct run_rig rig;
    struct rank_run runs[RANKS];
    char path[128];
    (void)state;
    rig_open(&rig);
    rig_config(&rig, "train.steps=4 zero.stage=3");
    snprintf(path, sizeof path, "%s/run", rig.scratch.folder);
    for (int r = 0; r < RANKS; r++)
        runs[r] = (struct rank_run){
            .config = &rig.config,
            .place = {.folder = path, .config_yaml = text_string(&rig.yaml)},
            .callbacks = {.step = dawdle},
            .timeout = 1.0,
        };
    rank_runs(&rig.scratch.env, runs, RANKS);
    assert_int_equal(runs[1].status, STATUS_COMM);
    if (!strstr(runs[1].error, "rank 0 has not arrived") ||
        !strstr(runs[1].error, "it is in \"step 2, optimizer update\""))
        fail_msg("%s", runs[1].error);
    assert_int_equal(runs[0].status, STATUS_COMM);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_late_rank_is_named_with_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
