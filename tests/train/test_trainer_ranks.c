<<<<<<< HEAD
/* Training over ranks, as the loop sees it: who is late is named with what it does, and what steps
 * send is counted apart from everything else. */
#include <time.h>
#include "ranks_rig.h"

enum { RANKS = 2 };

static void run_quietly(const char *settings, struct trainer_summary *summary)
{
    struct run_rig rig;
    struct rank_run runs[RANKS];
    char path[128];
    rig_open(&rig);
    rig_config(&rig, settings);
    snprintf(path, sizeof path, "%s/run", rig.scratch.folder);
    for (int r = 0; r < RANKS; r++)
        runs[r] = (struct rank_run){
            .config = &rig.config,
            .place = {.folder = path, .config_yaml = text_string(&rig.yaml)},
        };
    rank_runs(&rig.scratch.env, runs, RANKS);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(runs[r].status, STATUS_OK);
    *summary = runs[0].summary;
    rig_close(&rig);
}

static void test_traffic_is_that_of_steps(void **state)
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
        assert_true(plain.traffic.gather > 0 && plain.traffic.reduce > 0);
        assert_int_equal(plain.traffic.gather, 2 * shorter.traffic.gather);
        assert_int_equal(plain.traffic.reduce, 2 * shorter.traffic.reduce);
        assert_int_equal(plain.traffic.gather, busy.traffic.gather);
        assert_int_equal(plain.traffic.reduce, busy.traffic.reduce);
    }
}

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
        cmocka_unit_test(test_traffic_is_that_of_steps),
        cmocka_unit_test(test_a_late_rank_is_named_with_its_step),
=======
/* Whole runs on ranks that are threads: losses, evaluations, text samples and the model that is
 * saved are those of one rank, in every precision and however the state is cut.
 */
#include "run_rig.h"
#include <pthread.h>

enum { MOST_RANKS = 6 };

struct job {
    const struct run_rig *rig;
    struct comm_hub *hub; /* NULL: one rank */
    int rank;
    const char *folder;
    enum status st;
    struct trainer_summary summary;
};

static void quiet(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void *train_rank(void *argument)
{
    static const struct trainer_callbacks none = {0};
    struct job *job = argument;
    struct session_ranks ranks = {.comm = {"threads", 60.0}, .hub = job->hub, .rank = job->rank};
    struct trainer_place place = {.folder = job->folder,
                                  .config_yaml = text_string(&job->rig->yaml)};
    struct env env;
    assert_int_equal(env_create(&env, quiet, NULL, LOG_WARN, 1), STATUS_OK);
    job->st = trainer_run(&env, &job->rig->config, job->hub ? &ranks : NULL, &place, &none,
                          &job->summary);
    env_destroy(&env);
    return NULL;
}

/* Train with `settings` on so many ranks, in a folder of that name. */
static struct trainer_summary train(struct run_rig *rig, const char *folder, int ranks,
                                    const char *settings)
{
    struct job jobs[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    struct comm_hub *hub = NULL;
    char all[512], path[128];
    snprintf(all, sizeof all,
             "train.steps=8 train.global_batch=20 train.eval_every=4 train.eval_batches=3 "
             "train.sample_every=4 train.sample_tokens=6 %s",
             settings);
    snprintf(path, sizeof path, "%s/%s", rig->scratch.folder, folder);
    rig_config(rig, all);
    if (ranks > 1)
        assert_int_equal(comm_hub_create(&rig->scratch.env, ranks, &hub), STATUS_OK);
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (struct job){.rig = rig, .hub = hub, .rank = r, .folder = path};
        assert_int_equal(pthread_create(&threads[r], NULL, train_rank, &jobs[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(hub);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(jobs[r].st, STATUS_OK);
    return jobs[0].summary;
}

static void expect_same_file(struct run_rig *rig, const char *a, const char *b, const char *name)
{
    char *texts[2], path[60];
    const char *folders[2] = {a, b};
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folders[i], name);
        assert_int_equal(file_read(&rig->scratch.env, scratch_path(&rig->scratch, path), 1 << 26,
                                   &texts[i], &bytes[i]),
                         STATUS_OK);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(texts[0], texts[1], bytes[0]);
    for (int i = 0; i < 2; i++)
        mem_free(&rig->scratch.env, texts[i]);
}

static void check_precision(const char *mode)
{
    static const struct {
        int ranks;
        const char *settings;
    } cuts[] = {
        {2, "zero.stage=0"},
        {3, "zero.stage=3 zero.prefetch=2"},
        {4, "zero.stage=2 zero.servers=1"},
        {6, "zero.stage=3 zero.shard_group=3"},
    };
    struct run_rig rig;
    char settings[128], folder[16];
    rig_open(&rig);
    snprintf(settings, sizeof settings, "precision.mode=%s", mode);
    struct trainer_summary plain = train(&rig, "plain", 1, settings);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        snprintf(settings, sizeof settings, "precision.mode=%s %s", mode, cuts[i].settings);
        snprintf(folder, sizeof folder, "cut-%zu", i);
        struct trainer_summary cut = train(&rig, folder, cuts[i].ranks, settings);
        assert_true(cut.loss == plain.loss && cut.val.loss == plain.val.loss);
        expect_same_file(&rig, "plain", folder, "samples.jsonl");
        expect_same_file(&rig, "plain", folder, "checkpoints/step-8/model.safetensors");
    }
    rig_close(&rig);
}

static void test_fp32(void **state)
{
    (void)state;
    check_precision("fp32");
}

static void test_bf16(void **state)
{
    (void)state;
    check_precision("bf16");
}

static void test_fp16(void **state)
{
    (void)state;
    check_precision("fp16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp16),
>>>>>>> e1ec81b5d9fc61f58a55615ccfa277ee90f60d8c
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
