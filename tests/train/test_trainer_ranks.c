/* Training on ranks, as the loop sees it: a late rank is named together with what it is doing, and
 * the traffic of steps is counted separately from all other traffic. */
#include <time.h>
#include "ranks_rig.h"

enum { RANKS = 2 };

static void run_quietly(const char *settings, struct trainer_summary *summary)
{
    struct run_rig rig;
    struct rank_run runs[RANKS];
    rig_open(&rig);
    rig_config(&rig, settings);
    rank_runs_fill(&rig, "run", runs, RANKS);
    rank_runs(&rig.scratch.env, runs, RANKS);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(runs[r].status, STATUS_OK);
    *summary = runs[0].summary;
    rig_close(&rig);
}

static void test_traffic_counts_steps_only(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct trainer_summary plain, busy, shorter;
        char settings[128];
        snprintf(settings, sizeof settings, "train.steps=6 data.split=0 zero.stage=%d", stage);
        run_quietly(settings, &plain);
        settings[12] = '3';
        run_quietly(settings, &shorter);
        snprintf(settings, sizeof settings,
                 "train.steps=6 train.eval_every=2 train.sample_every=3 train.sample_tokens=3 "
                 "zero.stage=%d",
                 stage);
        run_quietly(settings, &busy);
        assert_true(plain.traffic.sent[TRAFFIC_GATHER] > 0 &&
                    plain.traffic.sent[TRAFFIC_REDUCE] > 0);
        assert_int_equal(plain.traffic.sent[TRAFFIC_GATHER],
                         2 * shorter.traffic.sent[TRAFFIC_GATHER]);
        assert_int_equal(plain.traffic.sent[TRAFFIC_REDUCE],
                         2 * shorter.traffic.sent[TRAFFIC_REDUCE]);
        assert_int_equal(plain.traffic.sent[TRAFFIC_GATHER], busy.traffic.sent[TRAFFIC_GATHER]);
        assert_int_equal(plain.traffic.sent[TRAFFIC_REDUCE], busy.traffic.sent[TRAFFIC_REDUCE]);
    }
}

/* Hold up rank 0 after step 2 until the rank that waits for it has ended. */
static void dawdle(void *user, const struct trainer_step *step)
{
    struct rank_run *other = user;
    while (step->step == 2 && !atomic_load(&other->has_ended))
        threads_nap(0.01);
}

static void test_a_late_rank_is_named_with_its_step(void **state)
{
    struct run_rig rig;
    struct rank_run runs[RANKS];
    (void)state;
    rig_open(&rig);
    rig_config(&rig, "train.steps=4 zero.stage=3");
    rank_runs_fill(&rig, "run", runs, RANKS);
    for (int r = 0; r < RANKS; r++) {
        runs[r].callbacks = (struct trainer_callbacks){.step = dawdle, .user = &runs[1]};
        runs[r].timeout = 5; /* seconds; no other call takes that long, even on a busy machine */
    }
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
        cmocka_unit_test(test_traffic_counts_steps_only),
        cmocka_unit_test(test_a_late_rank_is_named_with_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
