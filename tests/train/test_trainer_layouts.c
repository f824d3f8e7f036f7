/* Complete runs on ranks that are threads: losses, evaluations, text samples and the saved model
 * equal those of one rank, in every precision and every layout. */
#include "run_rig.h"
#include "threads.h"

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
    struct session_ranks ranks = {
        .comm = {.backend = "threads", .timeout = 60.0}, .hub = job->hub, .rank = job->rank};
    struct trainer_target place = {.folder = job->folder,
                                   .config_yaml = text_string(&job->rig->yaml)};
    struct env env;
    assert_int_equal(env_create(&env, quiet, NULL, LOG_WARN, 1), STATUS_OK);
    job->st = trainer_run(&env, &job->rig->config, job->hub ? &ranks : NULL, &place, &none,
                          &job->summary);
    env_destroy(&env);
    return NULL;
}

/* Train with `settings` on this number of ranks, in a folder of this name. */
static struct trainer_summary train(struct run_rig *rig, const char *folder, int ranks,
                                    const char *settings)
{
    struct job jobs[MOST_RANKS];
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
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct job){.rig = rig, .hub = hub, .rank = r, .folder = path};
    threads_run(train_rank, jobs, ranks, sizeof *jobs);
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

/* The state is the mode. */
static void test_every_layout_has_equal_bits(void **state)
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
    const char *mode = *state;
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
        expect_same_file(&rig, "plain", folder,
                         "checkpoints/step-8/optimizer/variance.safetensors");
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {.name = "fp32", .test_func = test_every_layout_has_equal_bits, .initial_state = "fp32"},
        {.name = "bf16", .test_func = test_every_layout_has_equal_bits, .initial_state = "bf16"},
        {.name = "fp16", .test_func = test_every_layout_has_equal_bits, .initial_state = "fp16"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
