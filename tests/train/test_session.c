/* Where a rank computes: its GPU on the machine, the available devices, and the peak rate of a
 * GPU. What a rank reads of a model. */
#include <stdlib.h>
#include "run_rig.h"
#include "threads.h"
#include "comm/launcher.h"
#include "device/gpu_facts.h"
#include "train/session.h"

static void test_ranks_take_gpus_in_turn(void **state)
{
    (void)state;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    assert_int_equal(launcher_gpu(4), 0); /* started by hand */
    setenv("OMPI_COMM_WORLD_SIZE", "16", 1);
    setenv("OMPI_COMM_WORLD_RANK", "13", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "5", 1);
    assert_int_equal(launcher_gpu(4), 1);
    assert_int_equal(launcher_gpu(8), 5);
    assert_int_equal(launcher_gpu(1), 0);
    assert_int_equal(launcher_gpu(0), 0);
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    assert_int_equal(launcher_gpu(8), 5); /* 13 mod 8 */
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
}

static void test_devices_are_described(void **state)
{
    (void)state;
    struct device_info info;
    device_look("cpu", 0, &info);
    assert_true(info.loaded);
    assert_int_equal(info.count, 1);
    assert_string_equal(info.name, "");
    assert_int_equal(info.total_bytes, 0);
    setenv("SIFR_PLUGIN_FOLDER", "/nowhere", 1);
    device_look("cuda", -1, &info);
    unsetenv("SIFR_PLUGIN_FOLDER");
    assert_false(info.loaded);
    assert_int_equal(info.count, 0);
    assert_non_null(strstr(info.why, "libsifr-cuda.so is not there"));
}

static void test_peak_rates_are_found_by_name(void **state)
{
    (void)state;
    assert_true(gpu_peak_flops("NVIDIA H200", DTYPE_BF16) == 989e12);
    assert_true(gpu_peak_flops("NVIDIA H100 80GB HBM3", DTYPE_BF16) == 989e12);
    assert_true(gpu_peak_flops("NVIDIA H100 PCIe", DTYPE_F16) == 756e12);
    assert_true(gpu_peak_flops("NVIDIA A100-SXM4-80GB", DTYPE_F32) == 156e12);
    assert_true(gpu_peak_flops("NVIDIA L40S", DTYPE_BF16) == 362e12);
    assert_true(gpu_peak_flops("NVIDIA L40", DTYPE_BF16) == 181e12);
    assert_true(gpu_peak_flops("NVIDIA L4", DTYPE_BF16) == 121e12);
    assert_true(gpu_peak_flops("NVIDIA A10", DTYPE_BF16) == 125e12);
    assert_true(gpu_peak_flops("NVIDIA H20", DTYPE_BF16) == 148e12);
    assert_true(gpu_peak_flops("NVIDIA GeForce RTX 4090", DTYPE_BF16) == 165e12);
    assert_true(gpu_peak_flops("NVIDIA RTX A4000", DTYPE_BF16) == 0); /* not an A40 */
    assert_true(gpu_peak_flops("NVIDIA Something", DTYPE_BF16) == 0);
    assert_true(gpu_peak_flops("", DTYPE_BF16) == 0);
}

/* The device of a run: as configured, and what follows from it. */
static void test_the_device_of_a_run_is_resolved(void **state)
{
    (void)state;
    struct run_rig rig;
    setenv("SIFR_PLUGIN_FOLDER", "/nowhere", 1);
    rig_open(&rig);
    rig_config(&rig, "run.device=auto precision.mode=bf16");
    assert_int_equal(rig.config.machine.device, RUN_DEVICE_CPU);
    assert_string_equal(run_compute(&rig.config).backend, "cpu");
    assert_int_equal(run_compute(&rig.config).type, DTYPE_F32);
    assert_true(run_peak(&rig.config, 1) == 0);
    rig.config.machine.device = RUN_DEVICE_CUDA; /* as if there were a GPU */
    snprintf(rig.config.device.name, sizeof rig.config.device.name, "NVIDIA H200");
    assert_int_equal(run_compute(&rig.config).type, DTYPE_BF16);
    assert_true(run_peak(&rig.config, 2) == 2 * 989e12);
    rig.config.machine.peak_tflops = 5;
    assert_true(run_peak(&rig.config, 2) == 5e12);

    rig_bind(&rig);
    assert_int_equal(rig_resolve(&rig, "run.device=cuda model.vocab=9 data.path=x"), STATUS_CONFIG);
    scratch_expect(&rig.scratch, "run.device: cuda: libsifr-cuda.so is not there");
    rig_close(&rig);
    unsetenv("SIFR_PLUGIN_FOLDER");
}

/* The device of a session has the run's limit. */
static void test_a_session_has_the_limit_of_its_run(void **state)
{
    (void)state;
    struct run_rig rig;
    struct session session;
    char *block;
    rig_open(&rig);
    rig_config(&rig, "run.device=cpu run.device_memory=64M");
    struct env *env = &rig.scratch.env;
    assert_int_equal(session_join(env, run_compute(&rig.config), NULL, &session), STATUS_OK);
    assert_int_equal(device_alloc(session.device, MEM_GRADS, "sums", 64000000, &block),
                     STATUS_MEMORY);
    scratch_expect(&rig.scratch, "run.device_memory allows");
    assert_int_equal(device_alloc(session.device, MEM_GRADS, "sums", 32000000, &block), STATUS_OK);
    device_free(session.device, block);
    session_destroy(&session);
    rig_close(&rig);
}

/* A rank that only reads a model, and the elements that it has to read. */
struct reader {
    const struct run_config *config;
    const struct session_spread *spread;
    struct session_ranks ranks;
    int stage;
    enum status status;
    int64_t wanted, whole; /* out: of all tensors */
};

static void *reader_main(void *argument)
{
    struct reader *reader = argument;
    struct env env;
    struct session session;
    const struct layout_config layout = {.ranks = {.stage = reader->stage, .prefetch = 1}};
    const struct zero_config store = session_reading_store(&layout);
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    reader->status = session_join(&env, run_compute(reader->config), &reader->ranks, &session);
    if (reader->status == STATUS_OK)
        reader->status = session_fill(&reader->config->model, &store, reader->spread, &session);
    if (reader->status == STATUS_OK) {
        const struct unit_graph *graph = model_graph(session.model);
        for (int i = 0; i < graph->tensor_count; i++) {
            reader->wanted += zero_state_held(session.zero, ZERO_MASTER, i).count;
            reader->whole += unit_tensor_whole(&graph->tensors[i]);
        }
    }
    session_destroy(&session);
    env_destroy(&env);
    return NULL;
}

/* The sum of what four ranks read is the model, once, or once for each copy. */
static void test_a_rank_reads_only_what_it_holds(void **state)
{
    (void)state;
    static const struct {
        int stage, pp, copies;
    } cases[] = {{0, 1, 4}, {3, 1, 1}, {0, 2, 2}, {3, 2, 1}};
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "run.device=cpu");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct session_spread spread = {.parallel = {.tp = 1, .pp = cases[c].pp},
                                              .shape = {.batch = 1, .tokens = 4}};
        struct reader readers[4];
        struct comm_hub *hub;
        int64_t wanted = 0;
        assert_int_equal(comm_hub_create(&rig.scratch.env, 4, &hub), STATUS_OK);
        for (int r = 0; r < 4; r++)
            readers[r] = (struct reader){
                .config = &rig.config,
                .spread = &spread,
                .stage = cases[c].stage,
                .ranks = {.comm = {.backend = "threads", .timeout = 60}, .hub = hub, .rank = r}};
        threads_run(reader_main, readers, 4, sizeof *readers);
        comm_hub_destroy(hub);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(readers[r].status, STATUS_OK);
            assert_true(cases[c].copies == 4 || readers[r].wanted < readers[r].whole);
            wanted += readers[r].wanted;
        }
        assert_int_equal(wanted, cases[c].copies * readers[0].whole);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_take_gpus_in_turn),
        cmocka_unit_test(test_devices_are_described),
        cmocka_unit_test(test_peak_rates_are_found_by_name),
        cmocka_unit_test(test_the_device_of_a_run_is_resolved),
        cmocka_unit_test(test_a_session_has_the_limit_of_its_run),
        cmocka_unit_test(test_a_rank_reads_only_what_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
