/* The engine with small real models: equal bits on one rank, skipped steps, counts. */
#include <math.h>

#include "engine/rig.h"

enum { STEPS = 4 };

struct trace {
    double loss[STEPS], norm[STEPS];
    float *params;
    int64_t count;
};

static struct trace run(struct rig_config config)
{
    struct env env = testing_env(1);
    struct rig rig;
    struct trace trace;
    assert_ok(rig_create(&env, config, &rig));
    for (int step = 0; step < STEPS; step++) {
        struct engine_result result = rig_step(&rig, step);
        assert_false(result.skipped);
        trace.loss[step] = result.loss;
        trace.norm[step] = result.grad_norm;
    }
    trace.params = rig_params(&rig, &trace.count);
    rig_destroy(&rig);
    env_destroy(&env);
    return trace;
}

static struct rig_config base_config(int llama)
{
    return (struct rig_config){.model = llama ? rig_llama() : rig_gpt2(),
                               .threads = 1,
                               .batch = 2,
                               .tokens = 19,
                               .micro_batches = 3,
                               .clip = 1.0};
}

static void assert_same_bits(const struct trace *a, const struct trace *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    assert_memory_equal(a->params, b->params, (size_t)a->count * sizeof *a->params);
}

static void test_bits_do_not_depend_on_threads_or_recomputation(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(base_config(llama));
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++)
            for (int threads = 1; threads <= 3; threads++) {
                struct rig_config config = base_config(llama);
                config.recompute = recompute;
                config.threads = threads;
                struct trace other = run(config);
                assert_same_bits(&plain, &other);
                free(other.params);
            }
        free(plain.params);
    }
}

static void test_another_seed_or_batch_gives_other_bits(void **state)
{
    (void)state;
    struct trace a = run(base_config(0));
    struct rig_config config = base_config(0);
    config.micro_batches = 2;
    struct trace b = run(config);
    assert_memory_not_equal(a.loss, b.loss, sizeof a.loss);
    free(a.params);
    free(b.params);
}

/* The mean over the step's valid labels does not depend on how sequences are grouped, up to
 * rounding. */
static void test_loss_is_the_mean_over_the_labels_of_a_step(void **state)
{
    (void)state;
    struct rig_config grouped = base_config(0), single = base_config(0);
    grouped.batch = 3, grouped.micro_batches = 1;
    single.batch = 1, single.micro_batches = 3;
    struct env env_a = testing_env(1), env_b = testing_env(1);
    struct rig a, b;
    struct engine_result ra, rb;
    assert_ok(rig_create(&env_a, grouped, &a));
    assert_ok(rig_create(&env_b, single, &b));
    int32_t *tokens, *labels, *to_tokens, *to_labels;
    rig_fill(&a, 0, 0);
    engine_batch(a.engine, 0, &tokens, &labels);
    for (int i = 0; i < 19; i++)
        labels[i] = i < 15 ? -1 : labels[i]; /* unequal counts of labels */
    for (int m = 0; m < 3; m++) {
        engine_batch(b.engine, m, &to_tokens, &to_labels);
        memcpy(to_tokens, tokens + m * 19, 19 * sizeof *tokens);
        memcpy(to_labels, labels + m * 19, 19 * sizeof *labels);
    }
    assert_ok(engine_gradients(a.engine, &ra));
    assert_ok(engine_gradients(b.engine, &rb));
    assert_true(ra.count == rb.count);
    double looser = test_on_cpu() ? 1 : 100; /* products of another shape in TF32 */
    assert_true(fabs(ra.loss - rb.loss) < looser * 1e-6 * fabs(ra.loss));
    assert_true(fabs(ra.grad_norm - rb.grad_norm) < looser * 1e-5 * ra.grad_norm);
    rig_destroy(&a);
    rig_destroy(&b);
    env_destroy(&env_a);
    env_destroy(&env_b);
}

static void test_memorizes_a_batch(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct env env = testing_env(2);
        struct rig rig;
        struct engine_result first = {0}, last = {0};
        struct rig_config config = base_config(llama);
        config.micro_batches = 1;
        assert_ok(rig_create(&env, config, &rig));
        for (int t = 1; t <= 60; t++) {
            rig_fill(&rig, 0, 0);
            assert_ok(engine_step(rig.engine, t, 1e-2, &last));
            first = t == 1 ? last : first;
        }
        assert_true(last.loss < 0.2 * first.loss);
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

static void test_nan_skips_the_step_and_is_reported(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, base_config(0), &rig));
    const struct unit_graph *graph = model_graph(rig.model);
    int victim = graph->tensor_count / 2;
    float nan = NAN;
    assert_ok(zero_write(rig.zero, victim, 1, 1, &nan));
    int64_t count;
    float *before = rig_params(&rig, &count);
    struct engine_result result = rig_step(&rig, 0);
    float *after = rig_params(&rig, &count);
    assert_true(result.skipped);
    assert_true(result.bad_tensor >= 0 && result.bad_tensor < graph->tensor_count);
    assert_int_equal(result.bad_micro_batch, 0);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    free(before);
    free(after);
    rig_destroy(&rig);
    env_destroy(&env);
}

static void test_a_step_without_labels_is_skipped(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    struct engine_result result;
    int32_t *tokens, *labels;
    assert_ok(rig_create(&env, base_config(0), &rig));
    for (int m = 0; m < 3; m++) {
        rig_fill(&rig, 0, m);
        engine_batch(rig.engine, m, &tokens, &labels);
        for (int i = 0; i < 2 * 19; i++)
            labels[i] = -1;
    }
    assert_ok(engine_step(rig.engine, 1, 1e-2, &result));
    assert_true(result.skipped && result.count == 0 && isnan(result.loss));
    for (int m = 0; m < 3; m++) /* the next step is the first update */
        rig_fill(&rig, 0, m);
    assert_ok(engine_step(rig.engine, 1, 1e-2, &result));
    assert_true(!result.skipped && result.count > 0 && isfinite(result.loss));
    rig_destroy(&rig);
    env_destroy(&env);
}

static void test_steps_allocate_nothing(void **state)
{
    (void)state;
    struct env env = testing_env(2);
    struct rig rig;
    assert_ok(rig_create(&env, base_config(1), &rig));
    rig_step(&rig, 0);
    int64_t before = mem_allocation_count(env.mem);
    for (int step = 1; step < 4; step++)
        rig_step(&rig, step);
    assert_int_equal(mem_allocation_count(env.mem), before);
    rig_destroy(&rig);
    env_destroy(&env);
}

static void test_dry_device_counts_the_same_bytes(void **state)
{
    (void)state;
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
        struct env real_env = testing_env(1), dry_env = testing_env(1);
        struct rig real, dry;
        struct rig_config config = base_config(0);
        config.recompute = recompute;
        assert_ok(rig_create(&real_env, config, &real));
        config.device = "dry";
        assert_ok(rig_create(&dry_env, config, &dry));
        for (int c = 0; c < MEM_OTHER; c++) /* `other` has the back ends' bookkeeping */
            assert_int_equal(mem_bytes(real_env.mem, c), mem_bytes(dry_env.mem, c));
        rig_destroy(&real);
        rig_destroy(&dry);
        env_destroy(&real_env);
        env_destroy(&dry_env);
    }
}

static void test_recomputation_saves_activations(void **state)
{
    (void)state;
    size_t bytes[3];
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct rig_config config = base_config(1);
        config.recompute = recompute;
        config.model.layers = 8;
        assert_ok(rig_create(&env, config, &rig));
        bytes[recompute] = mem_bytes(env.mem, MEM_ACTIVATIONS);
        rig_destroy(&rig);
        env_destroy(&env);
    }
    assert_true(bytes[RECOMPUTE_FULL] < bytes[RECOMPUTE_SELECTIVE]);
    assert_true(bytes[RECOMPUTE_SELECTIVE] < bytes[RECOMPUTE_NONE]);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    int64_t n = 1;
    for (;; n++) {
        struct env env = testing_env(1);
        struct rig rig;
        mem_fail_at(env.mem, n);
        enum status st = rig_create(&env, base_config(1), &rig);
        mem_fail_at(env.mem, 0);
        if (st == STATUS_OK)
            rig_destroy(&rig);
        assert_int_equal(mem_total(env.mem), 0);
        env_destroy(&env);
        if (st == STATUS_OK)
            break;
        assert_int_equal(st, STATUS_MEMORY);
    }
    assert_true(n > 30);
}

static void *run_in_thread(void *argument)
{
    struct trace *trace = argument;
    *trace = run(base_config(0));
    return NULL;
}

static void test_two_engines_in_one_process(void **state)
{
    (void)state;
    struct trace traces[2], alone = run(base_config(0));
    threads_run(run_in_thread, traces, 2, sizeof *traces);
    for (int i = 0; i < 2; i++) {
        assert_same_bits(&alone, &traces[i]);
        free(traces[i].params);
    }
    free(alone.params);
}

static void test_evaluation_gives_the_loss_of_training(void **state)
{
    (void)state;
    struct env env = testing_env(1), eval_env = testing_env(1);
    struct rig rig, eval;
    struct rig_config config = base_config(1);
    struct engine_result result;
    double sum = 0.0, labels = 0.0;
    config.micro_batches = 1;
    assert_ok(rig_create(&env, config, &rig));
    rig_fill(&rig, 0, 0);
    assert_ok(engine_gradients(rig.engine, &result));
    config.micro_batches = 0;
    assert_ok(rig_create(&eval_env, config, &eval));
    rig_fill(&eval, 0, 0);
    assert_ok(engine_eval(eval.engine, 1, &sum, &labels));
    assert_true(labels == result.count);
    double loss = sum / labels;
    assert_memory_equal(&loss, &result.loss, sizeof loss);
    assert_int_equal(mem_bytes(eval_env.mem, MEM_OPTIMIZER) + mem_bytes(eval_env.mem, MEM_GRADS),
                     0);
    rig_destroy(&rig);
    rig_destroy(&eval);
    env_destroy(&env);
    env_destroy(&eval_env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_do_not_depend_on_threads_or_recomputation),
        cmocka_unit_test(test_another_seed_or_batch_gives_other_bits),
        cmocka_unit_test(test_loss_is_the_mean_over_the_labels_of_a_step),
        cmocka_unit_test(test_memorizes_a_batch),
        cmocka_unit_test(test_nan_skips_the_step_and_is_reported),
        cmocka_unit_test(test_a_step_without_labels_is_skipped),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_dry_device_counts_the_same_bytes),
        cmocka_unit_test(test_recomputation_saves_activations),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_two_engines_in_one_process),
        cmocka_unit_test(test_evaluation_gives_the_loss_of_training),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
