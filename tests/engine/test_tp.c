/* Tensor parallelism: for a given tp the same bits in every layout, replicated gradients counted
 * once, and the losses of one rank up to rounding. Ranks are threads of one process. */
#include <math.h>

#include "engine/ranks.h"
#include "zero/partition.h"

static struct rig_config tp_config(int llama, int tp)
{
    struct rig_config config = shared_config(llama);
    config.tokens = 12;
    config.tp = tp;
    return config;
}

static struct trace run_tp_group(const struct rig_config *config)
{
    return run(*config, config->tp > 0 ? config->tp : 1);
}

/* Rounding errors grow with the depth of a step, and from step to step through AdamW. */
static double loss_bound(const struct rig_config *config, int step)
{
    return 0x1p-24 * 20 * (2 * (double)config->model.layers + 4) * (1 + step);
}

static void check_near(const struct trace *one, const struct trace *tp_group,
                       const struct rig_config *config)
{
    for (int step = 0; step < STEPS; step++) {
        double bound = loss_bound(config, step);
        double loss = fabs(tp_group->loss[step] / one->loss[step] - 1);
        double norm = fabs(tp_group->norm[step] / one->norm[step] - 1);
        if (!(loss <= bound) || !(norm <= 10 * bound))
            fail_msg("tp %d, sequence %d, step %d: loss off by %.2e, norm by %.2e, bound %.2e",
                     config->tp, config->sequence, step, loss, norm, bound);
    }
    double difference = 0, square = 0;
    assert_int_equal(tp_group->count, one->count);
    for (int64_t i = 0; i < one->count; i++) {
        difference += pow((double)tp_group->params[i] - (double)one->params[i], 2);
        square += pow(one->params[i], 2);
    }
    if (!(sqrt(difference / square) < 1e-3))
        fail_msg("tp %d: params off by %.2e", config->tp, sqrt(difference / square));
}

/* Initial values equal those of one rank; losses, norms and params after some steps are close. */
static void test_against_one_rank(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int tied = 0; tied < 2; tied++) {
            struct rig_config alone = tp_config(llama, 0);
            alone.model.tied = tied;
            struct trace one = run_tp_group(&alone);
            for (int tp = 2; tp <= 4; tp *= 2)
                for (int mode = 0; mode < 3; mode++) {
                    struct rig_config config = alone;
                    config.tp = tp;
                    config.sequence = mode > 0, config.regather = mode > 1;
                    struct trace tp_group = run_tp_group(&config);
                    check_near(&one, &tp_group, &config);
                    free(tp_group.params);
                }
            free(one.params);
        }
}

/* Copies, ZeRO stages, pipelines, recomputation: for a fixed tp they change no bit. */
static void test_same_bits(void **state)
{
    static const struct {
        int tp, pp, dp, stage;
    } shapes[] = {{2, 1, 2, 0}, {2, 1, 3, 3}, {2, 1, 2, 2}, {2, 1, 3, 1},
                  {2, 2, 1, 0}, {2, 2, 2, 3}, {2, 3, 2, 1}, {2, 3, 1, 2},
                  {2, 4, 2, 3}, {4, 1, 2, 3}, {4, 1, 3, 2}, {4, 2, 2, 3},
                  {4, 2, 1, 1}, {4, 3, 1, 0}, {4, 4, 1, 2}, {4, 2, 2, 0}};
    static const int kinds[] = {TIMETABLE_GPIPE, TIMETABLE_1F1B, TIMETABLE_ZERO_BUBBLE};
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int sequence = 0; sequence < 2; sequence++)
            for (int tp = 2; tp <= 4; tp *= 2) {
                struct rig_config config = tp_config(llama, tp);
                config.sequence = sequence;
                config.model.tied = (llama + sequence) % 2;
                struct trace plain = run_tp_group(&config);
                for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                    if (shapes[i].tp != tp)
                        continue;
                    config.pp = shapes[i].pp, config.stage = shapes[i].stage;
                    config.kind = kinds[i % 3];
                    config.prefetch = (int)i % 2;
                    config.recompute = (int)(i + i / 3) % 3;
                    compare(&plain, config, tp * config.pp * shapes[i].dp);
                }
                free(plain.params);
            }
}

/* 16-bit params, gradients and sums, also where a step has a single gradient. */
static void test_types(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct rig_config config = tp_config(i % 2, 4);
        config.model.tied = i / 2 % 2;
        config.sequence = i % 3 == 0;
        config.type = DTYPE_BF16;
        config.micro_batches = i < 4 ? MICRO_BATCHES : 1;
        struct trace plain = run_tp_group(&config);
        config.stage = i % 4;
        compare(&plain, config, 8);
        config.pp = 2;
        compare(&plain, config, 8);
        compare(&plain, config, 16);
        free(plain.params);
    }
}

static void test_delays_servers_groups(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct rig_config config = tp_config(i % 2, 2);
        config.sequence = i / 2;
        struct trace plain = run_tp_group(&config);
        config.delays = 2e-4;
        config.stage = 3 - i % 3;
        config.servers = i % 2;
        config.group = i % 2 ? 0 : 2;
        compare(&plain, config, 2 * (config.servers ? 3 : 4));
        free(plain.params);
    }
}

/* State is divided by tp, except for what all TP ranks have. */
static void test_state_divides(void **state)
{
    (void)state;
    struct rig_config config = tp_config(0, 0);
    config.model.ff = 400;
    struct trace one = run_tp_group(&config);
    config.tp = 4;
    struct trace tp_group = run_tp_group(&config);
    assert_true((double)tp_group.state < 0.3 * (double)one.state);
    assert_true(tp_group.traffic.sent[TRAFFIC_TENSOR] > 0 && one.traffic.sent[TRAFFIC_TENSOR] == 0);
    free(one.params);
    free(tp_group.params);
}

/* --- what is not finite --------------------------------------------------------------------- */

struct bad_job {
    struct rig_config config;
    int64_t bad; /* micro-batch with a token whose embedding is NaN; -1: the final norm is */
    struct engine_result result;
};

enum { LEAST_TOKEN = 50, BAD_TOKEN = 45 };

static void spoil(struct rig *rig, const char *name, int64_t element)
{
    const float none = NAN;
    const struct unit_graph *graph = model_graph(rig->model);
    for (int t = 0; t < graph->tensor_count; t++)
        if (strcmp(graph->tensors[t].name, name) == 0)
            assert_ok(zero_write(rig->zero, t, element, 1, &none));
    assert_ok(zero_publish(rig->zero, 0));
}

/* One weight of the final norm is NaN: all gradients are, in the embedding those of the tokens that
 * occur. */
static void *bad_rank(void *argument)
{
    struct bad_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    assert_ok(zero_settle(rig.zero)); /* initial params are being sent */
    if (job->bad < 0)
        spoil(&rig, "model.norm.weight", 0);
    else
        spoil(&rig, "model.embed_tokens.weight", BAD_TOKEN * job->config.model.width);
    for (int64_t round = 0; round < engine_rounds(rig.engine); round++) {
        int32_t *tokens, *labels;
        engine_batch(rig.engine, round, &tokens, &labels);
        for (int64_t i = 0; i < job->config.batch * job->config.tokens; i++)
            tokens[i] = labels[i] = LEAST_TOKEN + (int32_t)(i % 10);
        if (job->bad >= 0 && engine_micro_batch(rig.engine, round) == job->bad)
            tokens[3] = BAD_TOKEN;
    }
    assert_ok(engine_step(rig.engine, 1, 1e-2, &job->result));
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

/* All ranks report the same element, by its index in the whole tensor. */
static void test_not_finite(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct bad_job jobs[MOST_RANKS];
        struct rig_config config = tp_config(1, i < 3 ? 2 : 4);
        config.pp = i % 3;
        config.stage = i % 4;
        int ranks = config.tp * 2;
        for (int r = 0; r < ranks; r++)
            jobs[r] = (struct bad_job){.config = config, .bad = -1};
        rig_run_ranks(bad_rank, jobs, ranks, sizeof *jobs);
        for (int r = 0; r < ranks; r++) {
            assert_true(jobs[r].result.skipped);
            assert_int_equal(jobs[r].result.bad_tensor, 0);
            assert_int_equal(jobs[r].result.bad_index, LEAST_TOKEN * config.model.width);
            assert_int_equal(jobs[r].result.bad_micro_batch, 0);
        }
    }
}

/* All ranks report the same micro-batch, also those that did not compute its loss. */
static void test_bad_micro_batch(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct bad_job jobs[MOST_RANKS];
        struct rig_config config = tp_config(1, i < 3 ? 0 : 2);
        config.model.tied = false;
        config.pp = i % 3;
        int ranks = 4;
        for (int r = 0; r < ranks; r++)
            jobs[r] = (struct bad_job){.config = config, .bad = i % MICRO_BATCHES};
        rig_run_ranks(bad_rank, jobs, ranks, sizeof *jobs);
        for (int r = 0; r < ranks; r++)
            assert_int_equal(jobs[r].result.bad_micro_batch, i % MICRO_BATCHES);
    }
}

/* --- layout --------------------------------------------------------------------------------- */

/* Offsets are the same on all ranks of a TP group, whatever part each has of an odd vocabulary. */
static void test_one_layout(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct model_config config = tp_config(i % 2, 0).model;
        struct env env = testing_env(1);
        struct device *device;
        struct partition first = {0};
        config.tied = i / 2 % 2;
        config.vocab = i < 8 ? 61 + i : 4 * 64 * 64 + 9 * i;
        assert_ok(device_create(&env, "dry", 0, &device));
        struct model *models[4];
        for (int t = 0; t < 4; t++) {
            struct model_part part = {.tp = 4, .t = t};
            struct partition p;
            assert_ok(model_create_part(device, &config, &part, &models[t]));
            const struct unit_graph *graph = model_graph(models[t]);
            assert_ok(partition_create(&env, graph, 1 + i % 3, &p));
            if (t == 0) {
                first = p;
                continue;
            }
            for (int piece = 0; piece < graph->piece_count; piece++)
                assert_int_equal(p.piece_count[piece], first.piece_count[piece]);
            for (int tensor = 0; tensor < graph->tensor_count; tensor++)
                assert_int_equal(partition_tensor(&p, tensor).first,
                                 partition_tensor(&first, tensor).first);
            partition_free(&env, &p);
        }
        partition_free(&env, &first);
        for (int t = 0; t < 4; t++)
            model_destroy(models[t]);
        device_destroy(device);
        env_destroy(&env);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_one_rank),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_delays_servers_groups),
        cmocka_unit_test(test_state_divides),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_bad_micro_batch),
        cmocka_unit_test(test_one_layout),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
