/* A run or model that does not fit is refused before anything is allocated. */
#include "run_rig.h"
#include "train/run_plan.h"

static void test_a_run_that_fits_is_accepted(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "");
    struct env *env = &rig.scratch.env;
    struct run_ranks alone = {1, 0, 1};
    assert_int_equal(run_fit_check(env, &rig.config, &alone, (size_t)1 << 30), STATUS_OK);
    /* memory size unknown */
    assert_int_equal(run_fit_check(env, &rig.config, &alone, 0), STATUS_OK);
    rig_close(&rig);
}

static void test_a_run_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "train.micro_batch=1000000 train.global_batch=1000000");
    struct env *env = &rig.scratch.env;
    size_t before = mem_total_peak(env->mem);
    assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){1, 0, 1}, (size_t)1 << 30),
                     STATUS_FIT);
    scratch_expect(&rig.scratch, "train.micro_batch");
    assert_int_equal(mem_total_peak(env->mem), before);
    rig_close(&rig);
}

/* Ranks on one machine share its memory; with a higher ZeRO stage each needs less. */
static void test_ranks_share_a_machine(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "model.layers=12 model.width=256 model.ff=512");
    struct env *env = &rig.scratch.env;
    const struct plan_request request = run_plan_request(&rig.config, 1);
    struct plan_rank whole;
    assert_int_equal(plan_rank_memory(env, &request, 0, NULL, NULL, &whole), STATUS_OK);
    size_t room = whole.total_bytes + 4096;
    assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){1, 0, 1}, room),
                     STATUS_OK);
    assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){2, 0, 2}, room),
                     STATUS_FIT);
    log_error_clear(env->log);
    rig.config.ranks.stage = 3;
    assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){2, 1, 1}, room),
                     STATUS_OK);
    rig_close(&rig);
}

/* run.device_memory is a limit of each rank, however much is free. On a GPU the runtime comes on top
 * of it. */
static void test_a_limit_is_respected(void **state)
{
    (void)state;
    struct run_rig rig;
    struct plan_rank rank;
    struct run_ranks alone = {1, 0, 1};
    rig_open(&rig);
    rig_config(&rig, "model.layers=12 model.width=256 model.ff=512");
    struct env *env = &rig.scratch.env;
    const struct plan_request request = run_plan_request(&rig.config, 1);
    assert_int_equal(plan_rank_memory(env, &request, 0, NULL, NULL, &rank), STATUS_OK);
    rig.config.machine.device_memory = (int64_t)rank.total_bytes;
    assert_int_equal(run_fit_check(env, &rig.config, &alone, 0), STATUS_OK);
    assert_int_equal(run_memory(&rig.config, (size_t)1 << 40, 1), rank.total_bytes);
    assert_int_equal(run_memory(&rig.config, 4000, 2), 2000);
    rig.config.machine.device_memory--;
    assert_int_equal(run_fit_check(env, &rig.config, &alone, 0), STATUS_FIT);
    scratch_expect(&rig.scratch, "run.device_memory allows");
    rig.config.machine.device = RUN_DEVICE_CUDA; /* a plan for a GPU that is not here */
    assert_true(run_memory(&rig.config, 0, 1) > rank.total_bytes);
    rig_close(&rig);
}

/* State that is offloaded to the host of a GPU must fit there, for all ranks of the machine. */
static void test_the_host_of_a_gpu_is_checked(void **state)
{
    (void)state;
    static const char *const placements[] = {"offload.optimizer=host", "offload.grads=host",
                                             "offload.params=host", "offload.activations=host"};
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i++) {
        struct run_rig rig;
        struct plan_rank rank;
        char keys[256];
        rig_open(&rig);
        snprintf(keys, sizeof keys,
                 "model.layers=12 model.width=256 model.ff=512 train.global_batch=8 %s",
                 placements[i]);
        rig_config(&rig, keys);
        struct env *env = &rig.scratch.env;
        rig.config.machine.device =
            RUN_DEVICE_CUDA; /* a GPU that is not here, with memory enough */
        rig.config.device = (struct device_info){
            .count = 2, .total_bytes = (size_t)1 << 40, .free_bytes = (size_t)1 << 40};
        const struct plan_request request = run_plan_request(&rig.config, 1);
        assert_int_equal(plan_rank_memory(env, &request, 0, NULL, NULL, &rank), STATUS_OK);
        size_t host = rank.host_bytes;
        assert_true(host > (size_t)1 << 20);
        assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){1, 0, 1}, host),
                         STATUS_OK);
        assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){1, 0, 1}, host - 1),
                         STATUS_FIT);
        scratch_expect(&rig.scratch, "of host memory and");
        assert_int_equal(run_fit_check(env, &rig.config, &(struct run_ranks){1, 0, 2}, host),
                         STATUS_FIT);
        log_error_clear(env->log);
        rig_close(&rig);
    }
}

static void test_a_model_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct scratch s;
    char folder[64];
    scratch_open(&s);
    snprintf(folder, sizeof folder, "%s", s.folder);
    scratch_text(&s, "config.json",
                 "{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768, "
                 "\"n_positions\": 1024, \"vocab_size\": 50257}");
    struct layout_config layout = {.parallel = {.tp = 1, .pp = 1}};
    const struct run_text text = {.folder = folder,
                                  .compute = run_device_compute(RUN_DEVICE_CPU, DTYPE_F32),
                                  .layout = &layout};
    struct run_ranks ranks = {1, 0, 1};
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)400 << 20), STATUS_FIT);
    scratch_expect(&s, "the model needs");
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)600 << 20), STATUS_OK);

    /* One of four ranks, alone on its machine. */
    ranks.size = 4;
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)400 << 20), STATUS_FIT);
    layout.ranks.stage = 3;
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)100 << 20), STATUS_FIT);
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)400 << 20), STATUS_OK);
    layout = (struct layout_config){.parallel = {.tp = 4, .pp = 1}};
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)400 << 20), STATUS_OK);
    layout.parallel = (struct parallel_config){.tp = 1, .pp = 4};
    assert_int_equal(run_fit_text(&s.env, &text, &ranks, (size_t)400 << 20), STATUS_OK);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_that_fits_is_accepted),
        cmocka_unit_test(test_a_run_that_does_not_fit_is_refused),
        cmocka_unit_test(test_ranks_share_a_machine),
        cmocka_unit_test(test_a_limit_is_respected),
        cmocka_unit_test(test_the_host_of_a_gpu_is_checked),
        cmocka_unit_test(test_a_model_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
