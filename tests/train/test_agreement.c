/* A rank whose configuration, binary, model or data differs is reported on every rank before
 * training starts. Settings that may differ are accepted. */
#include "ranks_rig.h"
#include "train/config/agreement.h"

enum { RANKS = 3 };

/* --- in a training run ---------------------------------------------------------------------- */

/* Rank 1 has `odd_settings`, and `odd_text` in place of the others' text (NULL: the same text).
 * Every rank ends with `st` and an error that contains `part`. */
static void run_odd(const char *settings, const char *odd_settings, const char *odd_text,
                    enum status st, const char *part)
{
    struct run_rig rig, odd;
    struct rank_run runs[RANKS];
    rig_open(&rig);
    rig_open(&odd);
    rig_config(&rig, settings);
    rig_config(&odd, odd_settings);
    const char *odd_path = odd.config.data.path;
    odd.config.data.path = rig.config.data.path; /* the same path, with other content on rank 1 */
    text_clear(&odd.yaml);
    options_print_yaml(odd.options, &odd.yaml);
    if (odd_text != NULL) {
        scratch_text(&odd.scratch, "text.txt", odd_text);
        odd.config.data.path = odd_path;
    }
    rank_runs_fill(&rig, "run", runs, RANKS);
    runs[1].config = &odd.config;
    runs[1].place.config_yaml = text_string(&odd.yaml);
    rank_runs(&rig.scratch.env, runs, RANKS);
    for (int r = 0; r < RANKS; r++) {
        if (runs[r].status != st || !strstr(runs[r].error, part))
            fail_msg("rank %d: %s: %s", r, status_name(runs[r].status), runs[r].error);
    }
    rig_close(&odd);
    rig_close(&rig);
}

static void test_a_different_configuration_is_reported(void **state)
{
    (void)state;
    run_odd("train.steps=2", "train.steps=2 train.beta1=0.8", NULL, STATUS_CONFIG,
            "rank 1 has another configuration than rank 0: 'train.beta1: 0.8' there, "
            "'train.beta1: 0.9'");
    run_odd("train.steps=2 zero.stage=3", "train.steps=2 zero.stage=2", NULL, STATUS_CONFIG,
            "'zero.stage: \"2\"' there");
}

static void test_some_keys_may_differ(void **state)
{
    (void)state;
    run_odd("train.steps=2", "train.steps=2 train.log_every=7 run.peak_tflops=2", NULL, STATUS_OK,
            "");
}

static void test_different_data_is_reported(void **state)
{
    (void)state;
    run_odd("train.steps=2", "train.steps=2",
            "something else entirely, and long enough for a window or two of this small context, "
            "with some held out as well; and once more: something else entirely, long enough",
            STATUS_CONFIG, "rank 1 has other data than rank 0");
}

/* The model path of rank 1 holds another model of the same sizes. */
static void test_a_different_model_is_reported(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary first, second;
    struct rank_run runs[RANKS];
    struct run_config other;
    char settings[256];
    rig_open(&rig);
    rig_config(&rig, "train.steps=1");
    assert_int_equal(rig_train(&rig, "first", false, NULL, &first), STATUS_OK);
    rig_config(&rig, "train.steps=1 train.lr=2e-2");
    assert_int_equal(rig_train(&rig, "second", false, NULL, &second), STATUS_OK);
    rig_bind(&rig);
    snprintf(settings, sizeof settings,
             "train.steps=2 train.micro_batch=4 train.global_batch=12 run.threads=1 "
             "model.path=%s/first data.path=%s/text.txt",
             rig.scratch.folder, rig.scratch.folder);
    assert_int_equal(rig_resolve(&rig, settings), STATUS_OK);
    options_print_yaml(rig.options, &rig.yaml);
    other = rig.config;
    for (int same = 0; same < 2; same++) {
        const struct model_want want = {.depth = MODEL_DEPTH_ALL};
        assert_int_equal(model_source_open(&rig.scratch.env,
                                           same ? first.checkpoint : second.checkpoint, &want,
                                           &other.source),
                         STATUS_OK);
        rank_runs_fill(&rig, "run", runs, RANKS);
        runs[1].config = &other;
        rank_runs(&rig.scratch.env, runs, RANKS);
        for (int r = 0; r < RANKS; r++) {
            const char *part = same ? "" : "rank 1 has another model than rank 0";
            if (runs[r].status != (same ? STATUS_OK : STATUS_CONFIG) ||
                !strstr(runs[r].error, part))
                fail_msg("rank %d: %s: %s", r, status_name(runs[r].status), runs[r].error);
        }
        model_source_close(other.source);
    }
    rig_close(&rig);
}

/* One rank cannot use its data: all ranks report that rank's reason. */
static void test_bad_data_on_one_rank_is_reported_by_all(void **state)
{
    (void)state;
    struct run_rig rig;
    struct rank_run runs[RANKS];
    struct run_config other;
    rig_open(&rig);
    rig_config(&rig, "train.steps=2");
    other = rig.config;
    scratch_text(&rig.scratch, "short.txt", "too short");
    other.data.path = rig.scratch.path;
    rank_runs_fill(&rig, "run", runs, RANKS);
    runs[1].config = &other;
    rank_runs(&rig.scratch.env, runs, RANKS);
    for (int r = 0; r < RANKS; r++) {
        if (runs[r].status != (r == 1 ? STATUS_CONFIG : STATUS_COMM) ||
            !strstr(runs[r].error, "short.txt' has"))
            fail_msg("rank %d: %s: %s", r, status_name(runs[r].status), runs[r].error);
    }
    rig_close(&rig);
}

/* --- in isolation --------------------------------------------------------------------------- */

struct seat {
    struct agreement mine;
    struct comm_hub *hub;
    int rank;
    char error[512];
    enum status status;
};

static void *check_main(void *argument)
{
    struct seat *seat = argument;
    struct env env;
    struct device *device;
    struct comm *comm;
    const struct comm_config config = {.backend = "threads", .timeout = 60};
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(device_create(&env, "cpu", 0, &device), STATUS_OK);
    assert_int_equal(comm_join(seat->hub, seat->rank, &config, device, &comm), STATUS_OK);
    text_init(&seat->mine.config, &env);
    text_printf(&seat->mine.config, "train.lr: 1\n");
    seat->status = agreement_check(&seat->mine, comm);
    snprintf(seat->error, sizeof seat->error, "%s", log_first_error(env.log));
    text_free(&seat->mine.config);
    comm_destroy(comm);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void check_prints(const uint64_t (*prints)[AGREEMENT_PARTS], int count, enum status st,
                         const char *error)
{
    struct scratch s;
    struct seat seats[4];
    struct comm_hub *hub;
    scratch_open(&s);
    assert_int_equal(comm_hub_create(&s.env, count, &hub), STATUS_OK);
    for (int r = 0; r < count; r++) {
        seats[r] = (struct seat){.hub = hub, .rank = r};
        memcpy(seats[r].mine.prints, prints[r], sizeof seats[r].mine.prints);
    }
    threads_run(check_main, seats, count, sizeof *seats);
    for (int r = 0; r < count; r++) {
        assert_int_equal(seats[r].status, st);
        if (!strstr(seats[r].error, error))
            fail_msg("%s", seats[r].error);
    }
    comm_hub_destroy(hub);
    scratch_close(&s);
}

static void test_the_minority_is_reported(void **state)
{
    (void)state;
    const uint64_t same[][AGREEMENT_PARTS] = {{1, 2, 3}, {1, 2, 3}, {1, 2, 3}};
    const uint64_t first_is_odd[][AGREEMENT_PARTS] = {{9, 2, 3}, {1, 2, 3}, {1, 2, 3}};
    const uint64_t two_odd[][AGREEMENT_PARTS] = {{1, 2, 3}, {1, 2, 4}, {1, 2, 3}, {1, 2, 5}};
    const uint64_t halves[][AGREEMENT_PARTS] = {{1, 2, 3}, {1, 2, 4}};
    check_prints(same, 3, STATUS_OK, "");
    check_prints(first_is_odd, 3, STATUS_CONFIG, "rank 0 has another build of sifr than rank 1");
    check_prints(two_odd, 4, STATUS_CONFIG, "ranks 1, 3 have other data than rank 0");
    check_prints(halves, 2, STATUS_CONFIG, "rank 1 has other data than rank 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_different_configuration_is_reported),
        cmocka_unit_test(test_some_keys_may_differ),
        cmocka_unit_test(test_different_data_is_reported),
        cmocka_unit_test(test_a_different_model_is_reported),
        cmocka_unit_test(test_bad_data_on_one_rank_is_reported_by_all),
        cmocka_unit_test(test_the_minority_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
