/* The parts of the gradient noise scale, against the gradients of each micro-batch, computed one by
 * one. */
#include <math.h>
#include "engine/ranks.h"

struct gradient {
    float *values;
    int64_t count;
    double labels;
};

/* The gradient of the mean loss of micro-batch m alone, or of all if m < 0. */
static struct gradient gradient_of(int llama, int64_t m, struct noise *noise)
{
    struct rig_config config = base_config(llama);
    struct env env = testing_env(1);
    struct rig rig;
    struct engine_result result;
    config.micro_batches = m < 0 ? MICRO_BATCHES : 1;
    assert_ok(rig_create(&env, config, &rig));
    for (int64_t i = 0; i < config.micro_batches; i++)
        rig_fill_round(&rig, 0, m < 0 ? i : m, i);
    assert_ok(engine_gradients(rig.engine, &result));
    const struct unit_graph *graph = model_graph(rig.model);
    struct gradient out = {.count = unit_graph_count(graph), .labels = result.count};
    out.values = malloc((size_t)out.count * sizeof *out.values);
    float *next = out.values;
    assert_non_null(next);
    for (int t = 0; t < graph->tensor_count; t++) {
        int64_t count = unit_tensor_whole(&graph->tensors[t]);
        assert_ok(zero_read_gradient(rig.zero, t, 0, count, next));
        next += count;
    }
    *noise = result.noise;
    rig_destroy(&rig);
    env_destroy(&env);
    return out;
}

static double square(const float *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sum;
}

static void near(double found, double wanted)
{
    double limit = test_on_cpu() ? 1e-4 : 1e-2; /* a GPU multiplies in TF32 */
    if (!(fabs(found - wanted) < limit * fabs(wanted)))
        fail_msg("%.9g instead of %.9g", found, wanted);
}

/* Of an untied model: the uses of a tied tensor cannot be read one by one. */
static void test_each_micro_batch_counts(void **state)
{
    struct noise noise, one;
    struct gradient all = gradient_of(1, -1, &noise);
    double n = MICRO_BATCHES, sum = square(all.values, all.count), each = 0, least = 1e9, most = 0;
    (void)state;
    for (int64_t m = 0; m < MICRO_BATCHES; m++) {
        struct gradient g = gradient_of(1, m, &one);
        each += g.labels / all.labels * square(g.values, g.count);
        least = g.labels < least ? g.labels : least;
        most = g.labels > most ? g.labels : most;
        assert_false(one.known); /* one micro-batch says nothing about noise */
        free(g.values);
    }
    assert_true(least < most); /* the weights differ */
    assert_true(noise.known);
    near(noise.square, (n * sum - each) / (n - 1));
    near(noise.trace, n * (each - sum) / (n - 1));
    free(all.values);
}

/* Measuring changes nothing else, and what is not measured is 0. */
static void compare_measured(const struct trace *without, struct rig_config config, int ranks)
{
    config.noise = true;
    struct trace with = run(config, ranks);
    assert_memory_equal(with.params, without->params, (size_t)with.count * sizeof(float));
    assert_memory_equal(with.norm, without->norm, sizeof with.norm);
    assert_memory_equal(with.meta_norm, without->meta_norm, sizeof with.meta_norm);
    assert_true(with.noise[0][1] > 0 && without->noise[0][1] == 0);
    free(with.params);
}

/* In SARS and with sequence parallelism, some elements are added that do not count. */
static void test_measuring_changes_nothing(void **state)
{
    enum { KINDS = 6 };
    static const int ranks[KINDS][2] = {{1, 3}, {1, 3}, {1, 3}, {1, 3}, {1, 1}, {2, 4}};
    struct rig_config configs[KINDS];
    (void)state;
    for (int i = 0; i < KINDS; i++)
        configs[i] = base_config(i == 1);
    configs[2].model = rig_sars();
    configs[3].type = DTYPE_BF16;
    configs[4].type = configs[4].sum_type = DTYPE_BF16; /* depends on the number of workers */
    configs[5] = shared_config(0);
    configs[5].tp = 2, configs[5].sequence = true, configs[5].tokens = 12;
    for (int i = 0; i < KINDS; i++) {
        configs[i].noise = false;
        struct trace without = run(configs[i], ranks[i][0]);
        for (int k = 0; k < 2; k++)
            compare_measured(&without, configs[i], ranks[i][k]);
        free(without.params);
    }
}

/* In 16 bits, with loss scaling, with sums of each worker, and where two PP stages share a tied
 * tensor, the parts are the same up to the rounding of gradients. */
static void test_other_ways_measure_the_same(void **state)
{
    struct trace plain = run(base_config(0), 1);
    struct rig_config ways[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        ways[i] = base_config(0);
    ways[0].type = DTYPE_F16;
    ways[1].type = DTYPE_BF16;
    ways[2].local = true;
    ways[3].local = true, ways[3].pp = 2, ways[3].chunks = 1;
    for (int i = 0; i < 4; i++) {
        struct trace other = run(ways[i], i < 2 ? 1 : 4);
        double limit = i == 0 ? 5e-3 : i == 1 ? 3e-2 : 1e-5;
        for (int part = 0; part < 2; part++)
            if (!(fabs(other.noise[0][part] - plain.noise[0][part]) <
                  limit * fabs(plain.noise[0][1])))
                fail_msg("way %d, part %d: %g instead of %g", i, part, other.noise[0][part],
                         plain.noise[0][part]);
        free(other.params);
    }
    free(plain.params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_micro_batch_counts),
        cmocka_unit_test(test_measuring_changes_nothing),
        cmocka_unit_test(test_other_ways_measure_the_same),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
