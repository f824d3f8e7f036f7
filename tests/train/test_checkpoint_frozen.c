/* Checkpoints of a model with frozen tensors: in 16 bit, the model files have their only value. A
 * run continues with the same bits on any layout and in another precision. Ranks are threads of one
 * process. */
#include "job_rig.h"

static struct rig_config sars_config(enum dtype type, bool stochastic)
{
    struct rig_config config = base_config(0);
    config.model = rig_sars();
    config.type = type;
    config.stochastic = stochastic;
    return config;
}

/* --- resuming --------------------------------------------------------------------------------- */

struct layout {
    int ranks, stage, servers, group;
};

static struct rig_config laid_out(struct rig_config config, struct layout layout)
{
    config.stage = layout.stage;
    config.servers = layout.servers;
    config.group = layout.group;
    return config;
}

static void check_layouts(struct rig_config config)
{
    static const struct layout layouts[] = {
        {1, 0, 0, 0}, {5, 3, 0, 0}, {3, 1, 1, 0}, {2, 0, 0, 0},
        {4, 3, 0, 2}, {3, 2, 0, 0}, {4, 3, 1, 0}, {1, 0, 0, 0},
    };
    for (size_t i = 0; i + 1 < sizeof layouts / sizeof *layouts; i++) {
        struct files f;
        files_open(&f);
        struct run_job plain = {.config = config, .end = 3, .to = f.plain};
        struct run_job first = {.config = laid_out(config, layouts[i]), .end = 2, .to = f.there};
        struct run_job second = {.config = laid_out(config, layouts[i + 1]),
                                 .from = f.there,
                                 .begin = 2,
                                 .end = 3,
                                 .to = f.back};
        run_job(&plain, 1);
        run_job(&first, layouts[i].ranks);
        run_job(&second, layouts[i + 1].ranks);
        expect_same_params(&plain, &second);
        expect_same_files(&f, 3);
        free(first.params), free(plain.params);
        scratch_close(&f.s);
    }
}

static void test_a_run_continues_on_any_layout(void **state)
{
    (void)state;
    check_layouts(sars_config(DTYPE_F32, false));
    check_layouts(sars_config(DTYPE_BF16, false));
    check_layouts(sars_config(DTYPE_BF16, true));
}

/* A checkpoint of a bf16 run that is loaded and saved in fp32, and again in bf16, is the same. */
static void test_another_precision_keeps_every_value(void **state)
{
    (void)state;
    struct files f;
    files_open(&f);
    struct run_job first = {.config = sars_config(DTYPE_BF16, false), .end = 1, .to = f.plain};
    struct run_job wide = {.config = sars_config(DTYPE_F32, false),
                           .from = f.plain,
                           .begin = 1,
                           .end = 1,
                           .to = f.there};
    struct run_job again = {.config = sars_config(DTYPE_BF16, false),
                            .from = f.there,
                            .begin = 1,
                            .end = 1,
                            .to = f.back};
    wide.config.stage = 3;
    run_job(&first, 2);
    run_job(&wide, 3);
    run_job(&again, 1);
    expect_same_params(&first, &wide);
    expect_same_params(&first, &again);
    expect_same_files(&f, 1);
    free(first.params);
    scratch_close(&f.s);
}

/* --- what is on disk -------------------------------------------------------------------------- */

/* How often the files of each role have each tensor, and the elements in them. */
enum { MOST_TENSORS = 256 };
struct census {
    int times[CHECKPOINT_ROLES][MOST_TENSORS];
    int64_t elements[CHECKPOINT_ROLES];
    uint64_t bytes; /* of the tensor files */
};

static void take_census(struct env *env, const char *folder, const struct unit_graph *graph,
                        struct census *census)
{
    struct checkpoint *checkpoint;
    struct tensor_names names;
    *census = (struct census){0};
    assert_true(graph->tensor_count <= MOST_TENSORS);
    assert_ok(checkpoint_open(env, folder, &checkpoint));
    assert_ok(checkpoint_verify(checkpoint, NULL, NULL));
    assert_ok(tensor_names_create(env, graph, NULL, &names));
    const struct checkpoint_state *state = checkpoint_state(checkpoint);
    for (int e = 0; e < state->entry_count; e++) {
        const struct checkpoint_entry *entry = &state->entries[e];
        struct safetensors *file;
        char path[300];
        if (entry->role == CHECKPOINT_PLAIN)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->name);
        assert_ok(safetensors_open(env, path, &file));
        for (int i = 0; i < safetensors_count(file); i++) {
            const struct safetensor *tensor = safetensors_at(file, i);
            int t = tensor_names_find(&names, tensor->name);
            assert_true(t >= 0);
            census->times[entry->role][t]++;
            census->elements[entry->role] += tensor->count;
        }
        census->bytes += entry->bytes;
        safetensors_close(file);
    }
    tensor_names_free(&names);
    checkpoint_close(checkpoint);
}

static void test_frozen_tensors_are_saved_once(void **state)
{
    (void)state;
    static struct census census;
    struct files f;
    struct device *device;
    struct model *model;
    char folder[128];
    struct run_job job = {.config = sars_config(DTYPE_BF16, false), .end = 1};
    files_open(&f);
    job.to = f.there;
    run_job(&job, 1);
    assert_ok(device_create(&f.s.env, "dry", 0, &device));
    assert_ok(model_create(device, &job.config.model, &model));
    const struct unit_graph *graph = model_graph(model);
    snprintf(folder, sizeof folder, "%s/step-1", f.there);
    take_census(&f.s.env, folder, graph, &census);
    int64_t frozen = 0;
    for (int t = 0; t < graph->tensor_count; t++) {
        const char *name = graph->tensors[t].name;
        bool is_frozen = strstr(name, "proto_transform") || strstr(name, "proto_norm");
        frozen += is_frozen ? unit_tensor_whole(&graph->tensors[t]) : 0;
        assert_int_equal(census.times[CHECKPOINT_MODEL][t], 1);
        for (int role = CHECKPOINT_MASTER; role < CHECKPOINT_ROLES; role++)
            assert_int_equal(census.times[role][t], !is_frozen);
    }
    assert_true(frozen > 0);
    assert_int_equal(census.elements[CHECKPOINT_MODEL], unit_graph_count(graph));
    for (int role = CHECKPOINT_MASTER; role < CHECKPOINT_ROLES; role++)
        assert_int_equal(census.elements[role], unit_graph_count(graph) - frozen);
    assert_int_equal(job.predicted - census.bytes, 1 << 20); /* a margin */
    free(job.params);
    model_destroy(model);
    device_destroy(device);
    scratch_close(&f.s);
}

/* --- checkpoints that were changed ------------------------------------------------------------ */

/* state.json no longer lists one of the model files: in bf16 the frozen tensors in it have no value
 * left, the others still have masters. */
static void test_a_missing_frozen_tensor_is_named(void **state)
{
    (void)state;
    static const char *const files[] = {"model-00001-of-00003", "model-00002-of-00003",
                                        "model-00003-of-00003"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct files f;
        char folder[128], path[160], old[128], new[128];
        files_open(&f);
        struct run_job first = {.config = sars_config(DTYPE_BF16, false), .end = 1, .to = f.there};
        struct run_job second = {
            .config = sars_config(DTYPE_BF16, false), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        snprintf(folder, sizeof folder, "%s/step-1", f.there);
        snprintf(path, sizeof path, "%s/state.json", folder);
        snprintf(old, sizeof old, "\"%s.safetensors\", \"role\": \"model\"", files[i]);
        snprintf(new, sizeof new, "\"%s.safetensors\", \"role\": \"plain\"", files[i]);
        replace(&f.s, path, old, new);
        seal(&f.s, folder, OPS_ARITHMETIC);
        run_job(&second, 1 + (int)i);
        assert_int_equal(second.status, STATUS_FORMAT);
        if (!strstr(second.lines, ".proto_transform.weight' is missing in the model files"))
            fail_msg("without %s: %s", files[i], second.lines);
        free(first.params);
        scratch_close(&f.s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_continues_on_any_layout),
        cmocka_unit_test(test_another_precision_keeps_every_value),
        cmocka_unit_test(test_frozen_tensors_are_saved_once),
        cmocka_unit_test(test_a_missing_frozen_tensor_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
