/* The memory of every rank equals the plan to the byte, also in unusual layouts: a run on ranks
 * that are threads is compared with each rank built on the dry back end. The rank that the plan
 * shows is the one that needs the most memory. */
#include "ranks_rig.h"
#include "train/run_plan.h"

enum { MOST_RANKS = 8, KEYS = 320 };
enum { BOOKKEEPING = 512 }; /* lists of owned pieces: a few bytes more on some ranks */

struct layout {
    int ranks;
    const char *keys;
};

/* A plan does not read the data, which the loader holds; `other` holds files and names. */
static bool is_planned(int category)
{
    return category != MEM_LOADER && category != MEM_OTHER;
}

/* After it is built, a run allocates only for files, so the peak is what was built. */
static int compare(const struct layout *layout, const struct plan_request *request, struct env *env,
                   const struct rank_run *runs)
{
    struct plan_zero_stage worst;
    size_t most = 0;
    int bad = 0;
    assert_int_equal(plan_worst_memory(env, request, &worst), STATUS_OK);
    for (int r = 0; r < layout->ranks; r++) {
        struct plan_rank rank;
        assert_int_equal(plan_rank_memory(env, request, r, NULL, NULL, &rank), STATUS_OK);
        for (int c = 0; c < MEM_CATEGORY_COUNT; c++) {
            if (!is_planned(c) || rank.bytes[c] == runs[r].peaks[c])
                continue;
            print_error("%d ranks, %s: rank %d: %s is %zu, planned %zu\n", layout->ranks,
                        layout->keys, r, mem_category_word((enum mem_category)c), runs[r].peaks[c],
                        rank.bytes[c]);
            bad++;
        }
        most = rank.total_bytes > most ? rank.total_bytes : most;
    }
    size_t shown = worst.worker.total_bytes > worst.server.total_bytes ? worst.worker.total_bytes
                                                                       : worst.server.total_bytes;
    if (shown > most || most - shown > BOOKKEEPING) {
        print_error("%d ranks, %s: a rank needs %zu, the plan shows %zu\n", layout->ranks,
                    layout->keys, most, shown);
        bad++;
    }
    return bad;
}

static int try_layout(struct run_rig *rig, const struct layout *layout)
{
    static struct rank_run runs[MOST_RANKS];
    char keys[KEYS];
    if (!testing_sampled())
        return 0;
    snprintf(keys, sizeof keys,
             "model.arch=gpt2 model.kv_heads=0 model.ff=0 train.steps=2 train.micro_batch=2 "
             "train.global_batch=20 train.eval_every=0 %s",
             layout->keys);
    rig_config(rig, keys);
    rank_runs_fill(rig, "run", runs, layout->ranks);
    for (int r = 0; r < layout->ranks; r++)
        runs[r].place.fresh = true;
    rank_runs(&rig->scratch.env, runs, layout->ranks);
    for (int r = 0; r < layout->ranks; r++) {
        if (runs[r].status != STATUS_OK)
            print_error("%d ranks, %s: %s\n", layout->ranks, layout->keys, runs[r].error);
        assert_int_equal(runs[r].status, STATUS_OK);
    }
    const struct plan_request request = run_plan_request(&rig->config, layout->ranks);
    return compare(layout, &request, &rig->scratch.env, runs);
}

static void try_layouts(const struct layout *layouts, size_t count)
{
    struct run_rig rig;
    int bad = 0;
    rig_open(&rig);
    for (size_t i = 0; i < count; i++)
        bad += try_layout(&rig, &layouts[i]);
    assert_int_equal(bad, 0);
    rig_close(&rig);
}

static void test_zero_stages_match_their_plan(void **state)
{
    static const int ranks[] = {1, 2, 3, 5, 6, 7};
    char keys[64];
    struct run_rig rig;
    int bad = 0;
    (void)state;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int stage = 0; stage < 4; stage++) {
            snprintf(keys, sizeof keys, "zero.stage=%d checkpoint.every=1", stage);
            bad += try_layout(&rig, &(struct layout){ranks[i], keys});
        }
    assert_int_equal(bad, 0);
    rig_close(&rig);
}

static void test_runs_without_a_snapshot_match_their_plan(void **state)
{
    static const struct layout layouts[] = {
        {1, "checkpoint.every=0"},
        {5, "zero.stage=2 checkpoint.every=0"},
        {7, "zero.stage=3 checkpoint.async=false checkpoint.every=1"},
        {3, "zero.stage=3 precision.mode=bf16 checkpoint.every=1"},
        {5, "zero.stage=1 precision.mode=bf16 precision.accumulate=bf16 checkpoint.every=1"},
    };
    (void)state;
    try_layouts(layouts, sizeof layouts / sizeof *layouts);
}

static void test_local_sums_match_their_plan(void **state)
{
    static const char *const types[] = {"precision.mode=fp32", "precision.mode=bf16",
                                        "precision.mode=bf16 precision.accumulate=bf16",
                                        "precision.mode=fp16 precision.accumulate=bf16"};
    static const char *const layouts[] = {
        "zero.stage=0", "zero.stage=1 zero.shard_group=3", "zero.stage=2 zero.servers=2",
        "zero.stage=3", "zero.stage=2 parallel.pp=2",      "zero.stage=3 parallel.tp=2"};
    char keys[200];
    struct run_rig rig;
    int bad = 0;
    (void)state;
    rig_open(&rig);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            snprintf(keys, sizeof keys, "zero.accumulate=local train.global_batch=64 %s %s",
                     types[t], layouts[i]);
            bad += try_layout(&rig, &(struct layout){6, keys});
        }
    assert_int_equal(bad, 0);
    rig_close(&rig);
}

static void test_servers_and_groups_match_their_plan(void **state)
{
    static const struct layout layouts[] = {
        {7, "zero.stage=1 zero.servers=2 checkpoint.every=1"},
        {7, "zero.stage=3 zero.servers=2 checkpoint.every=1"},
        {5, "zero.stage=2 zero.servers=3 checkpoint.every=1"},
        {6, "zero.stage=3 zero.shard_group=3 checkpoint.every=1"},
        {6, "zero.stage=1 zero.shard_group=2 checkpoint.every=1"},
        {4, "zero.stage=2 zero.shard_group=2 checkpoint.every=0"},
    };
    (void)state;
    try_layouts(layouts, sizeof layouts / sizeof *layouts);
}

static void test_sars_matches_its_plan(void **state)
{
    static const struct layout layouts[] = {
        {1, "model.arch=sars model.heads=1 model.width=22 checkpoint.every=1"},
        {2, "model.arch=sars model.heads=1 model.width=22 zero.stage=1 engine.recompute=selective "
            "checkpoint.every=1"},
        {3, "model.arch=sars model.heads=1 model.width=22 zero.stage=3 precision.mode=bf16 "
            "engine.recompute=full checkpoint.every=1"},
        {5, "model.arch=sars model.heads=2 model.width=22 zero.stage=2 zero.servers=2 "
            "sars.gate=local checkpoint.every=1"},
        {6, "model.arch=sars model.heads=1 model.width=22 zero.stage=3 zero.shard_group=3 "
            "optimizer.kind=adamw8bit checkpoint.every=0"},
    };
    (void)state;
    try_layouts(layouts, sizeof layouts / sizeof *layouts);
}

static void test_frozen_parameters_match_their_plan(void **state)
{
    static const struct layout layouts[] = {
        {1, "train.freeze=*.bias checkpoint.every=1"},
        {3, "train.freeze=*wte*,*.h.0.* zero.stage=0 checkpoint.every=1"},
        {2, "train.freeze=*.ln_* zero.stage=1 precision.mode=bf16 checkpoint.every=1"},
        {3, "train.freeze=*mlp* zero.stage=2 checkpoint.every=1"},
        {5, "train.freeze=*attn*,*wte* zero.stage=3 precision.mode=bf16 checkpoint.every=1"},
        {4, "train.freeze=*.h.1.* parallel.pp=2 parallel.schedule=zero-bubble zero.stage=2"},
        {4, "train.freeze=*wte* parallel.pp=2 zero.stage=1 checkpoint.every=1"},
        {4, "train.freeze=*.weight parallel.tp=2 parallel.sequence=true zero.stage=3"},
        {5, "train.freeze=*.ln_* zero.stage=2 zero.servers=2 checkpoint.every=1"},
        {3, "train.freeze=*.c_fc.* zero.stage=3 optimizer.kind=muon train.noise_scale=true"},
    };
    (void)state;
    try_layouts(layouts, sizeof layouts / sizeof *layouts);
}

static void test_meshes_match_their_plan(void **state)
{
    static const struct layout layouts[] = {
        {3, "parallel.tp=3 model.heads=6 model.width=48 checkpoint.every=1"},
        {6, "parallel.tp=3 parallel.pp=2 parallel.schedule=zero-bubble model.heads=6 "
            "model.width=48 checkpoint.every=1"},
        {6, "parallel.tp=2 zero.stage=3 checkpoint.every=1"},
        {5, "parallel.pp=5 model.layers=5 checkpoint.every=1"},
        {6, "parallel.pp=3 model.layers=4 zero.stage=2 checkpoint.every=1"},
        {4, "parallel.pp=2 parallel.schedule=interleaved model.layers=4 zero.stage=1 "
            "checkpoint.every=1"},
        {6, "parallel.pp=2 zero.stage=2 zero.servers=1 checkpoint.every=1"},
        {8, "parallel.pp=2 parallel.tp=2 zero.stage=3 checkpoint.every=1"},
        {4, "parallel.tp=2 parallel.sequence=true zero.stage=3 checkpoint.every=1"},
    };
    (void)state;
    try_layouts(layouts, sizeof layouts / sizeof *layouts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero_stages_match_their_plan),
        cmocka_unit_test(test_runs_without_a_snapshot_match_their_plan),
        cmocka_unit_test(test_local_sums_match_their_plan),
        cmocka_unit_test(test_servers_and_groups_match_their_plan),
        cmocka_unit_test(test_sars_matches_its_plan),
        cmocka_unit_test(test_frozen_parameters_match_their_plan),
        cmocka_unit_test(test_meshes_match_their_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
