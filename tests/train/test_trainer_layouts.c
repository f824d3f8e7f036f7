/* Complete runs on ranks that are threads: losses, evaluations, text samples and the saved model
 * equal those of one rank, in every precision and every layout. */
#include "ranks_rig.h"

enum { MOST_RANKS = 6 };

/* Train with `settings` on this number of ranks, in a folder of this name. */
static struct trainer_summary train(struct run_rig *rig, const char *folder, int ranks,
                                    const char *settings)
{
    struct rank_run runs[MOST_RANKS];
    char all[512];
    snprintf(all, sizeof all,
             "train.steps=8 train.global_batch=20 train.eval_every=4 train.eval_batches=3 "
             "train.sample_every=4 train.sample_tokens=6 %s",
             settings);
    rig_config(rig, all);
    rank_runs_fill(rig, folder, runs, ranks);
    rank_runs(&rig->scratch.env, runs, ranks);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(runs[r].status, STATUS_OK);
    return runs[0].summary;
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
