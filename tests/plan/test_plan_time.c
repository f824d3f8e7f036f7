/* The predicted time of a step: by hand where only products take time, hidden and exposed messages,
 * pipelines against the simulator, and that plans for many ranks and layers are quick. */
#include <math.h>
#include <time.h>

#include "engine/rig.h"
#include "engine/timetable_simulate.h"
#include "plan/plan_time.h"

#define assert_near(a, b) assert_true(fabs((a) - (b)) <= 1e-6 * (fabs(a) + fabs(b)))

static struct plan_request request_of(struct model_config model, int ranks, int64_t micro_batches)
{
    return (struct plan_request){
        .model = model,
        .engine = {.micro_batch = 2, .tokens = 8, .micro_batches = micro_batches},
        .zero = {.optimizer.beta1 = 0.9,
                 .optimizer.beta2 = 0.95,
                 .optimizer.eps = 1e-8,
                 .clip = 1.0,
                 .stage = 1,
                 .prefetch = 1},
        .parallel = {.tp = 1, .pp = 1},
        .ops = "cpu",
        .ranks = ranks,
        .threads = 1};
}

/* A machine on which only products take time, a microsecond per million operations: more than any
 * message, unless a test changes it. */
static struct machine_profile products_only(void)
{
    return (struct machine_profile){
        .ops = {.rates = {[OPS_KIND_PRODUCT] = {.flops_per_second = 1e12}}}, .has_ops = true};
}

static struct plan_time time_of(const struct plan_request *request,
                                const struct machine_profile *machine)
{
    struct env env = testing_env(1);
    struct plan_time time;
    if (plan_time(&env, request, machine, &time) != STATUS_OK)
        fail_msg("%s", log_first_error(env.log));
    env_destroy(&env);
    return time;
}

/* Seconds of the forward products of the small Llama. */
struct by_hand {
    double qkv, proj, up, down, head;
};

static struct by_hand products_of(const struct plan_request *r)
{
    const struct model_config *m = &r->model;
    double rows = (double)(r->engine.micro_batch * r->engine.tokens), c = (double)m->width;
    double heads = (double)(m->heads * m->head_width);
    double all = (double)((m->heads + 2 * m->kv_heads) * m->head_width);
    double each = 2e-12 * rows;
    return (struct by_hand){each * c * all, each * heads * c, each * c * 2 * (double)m->ff,
                            each * (double)m->ff * c, each * c * (double)m->vocab};
}

static double block_of(struct by_hand p)
{
    return p.qkv + p.proj + p.up + p.down;
}

static void test_products_by_hand(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    for (int gpu = 0; gpu < 2; gpu++)
        for (int64_t rounds = 1; rounds < 9; rounds += 3) {
            struct plan_request r = request_of(rig_llama(), 1, rounds);
            r.gpu = gpu;
            struct by_hand p = products_of(&r);
            double round = 3 * (3 * block_of(p) + p.head); /* layers; one forward and two backward
                                                              products */
            struct plan_time time = time_of(&r, &machine);
            assert_near(time.step, (double)rounds * round);
            assert_near(time.compute, time.step);
            assert_near(plan_time_hidden(&time), 1.0);
            assert_true(time.waited == 0.0 && time.bubble == 0.0);
        }
}

/* Full recomputation repeats the forward pass except the last product of a block. */
static void test_recomputation_costs_a_forward(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct plan_request r = request_of(rig_llama(), 1, 2);
    struct by_hand p = products_of(&r);
    double plain = time_of(&r, &machine).step;
    r.engine.recompute = RECOMPUTE_FULL;
    assert_near(time_of(&r, &machine).step, plain + 2 * 3 * (p.qkv + p.proj + p.up));
    r.engine.recompute = RECOMPUTE_SELECTIVE;
    assert_near(time_of(&r, &machine).step, plain);
}

static void test_update_time_follows_memory_traffic(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct plan_request r = request_of(rig_llama(), 1, 1);
    struct plan_time none = time_of(&r, &machine);
    struct ops_measured line = {{.op = "adamw", .count = 1000}, DTYPE_F32, 1.0};
    machine.ops.measured = &line;
    machine.ops.measured_count = 1;
    struct plan_time some = time_of(&r, &machine);
    struct env env = testing_env(1);
    int64_t parameters;
    double flops;
    assert_ok(plan_model(&env, &r, &parameters, &flops));
    /* The time of 1000 elements for each 1000, apart from what does not depend on the count. */
    assert_true(fabs((some.update - none.update) / ((double)parameters / 1000) - 1) < 1e-3);
    assert_near(some.step - none.step, some.update - none.update);
    env_destroy(&env);
}

/* --- messages ------------------------------------------------------------------------------- */

static void test_a_fast_wire_is_hidden(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++)
        for (int gpu = 0; gpu < 2; gpu++) {
            struct plan_request r = request_of(rig_llama(), 2, 8);
            struct plan_request alone = request_of(rig_llama(), 1, 4);
            r.zero.stage = stage;
            r.gpu = gpu;
            machine.comm.inside = (struct comm_wire){.bytes_per_second = 1e15};
            struct plan_time time = time_of(&r, &machine);
            double computed = time_of(&alone, &machine).step;
            assert_near(time.compute, computed);
            assert_true(time.in_flight > 0);
            assert_true(time.step >= computed && time.step < 1.01 * computed);
            assert_true(fabs(time.step - time.compute - time.waited) < 1e-8);
        }
}

/* In ZeRO stage 0 the sums of fp32 gradients are half of what is sent. They overlap with the next
 * forward pass, so that most of both halves is hidden; with shard groups of one rank, too. */
static void test_sums_overlap_with_the_next_step(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    for (int stage = 0; stage < 2; stage++)
        for (int gpu = 0; gpu < 2; gpu++) {
            struct plan_request r = request_of(rig_llama(), 2, 2);
            r.zero.stage = stage;
            r.zero.shard_group = stage > 0 ? 1 : 0;
            r.gpu = gpu;
            machine.comm.inside = (struct comm_wire){0}; /* takes no time */
            double computed = time_of(&r, &machine).compute;
            machine.comm.inside.bytes_per_second = 1e12;
            double unit = time_of(&r, &machine).in_flight / computed;
            machine.comm.inside.bytes_per_second *= unit / 0.2; /* a fifth of computing */
            struct plan_time time = time_of(&r, &machine);
            assert_true(fabs(time.in_flight / computed - 0.2) < 0.01);
            assert_true(plan_time_hidden(&time) > 0.55);
        }
}

/* So slow that nothing can hide it: gathers of all params, the loss that needs the last of them,
 * then one reduction after another. */
static void test_a_slow_wire_is_exposed(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    for (int gpu = 0; gpu < 2; gpu++) {
        struct plan_request r = request_of(rig_llama(), 2, 2);
        r.gpu = gpu;
        machine.comm.inside = (struct comm_wire){0}; /* takes no time */
        double computed = time_of(&r, &machine).compute;
        machine.comm.inside.bytes_per_second = 1e6;
        struct plan_time time = time_of(&r, &machine);
        double norm = time.compute - computed; /* its few numbers are sent on the compute stream */
        assert_true(time.in_flight > 1000 * computed && time.in_flight > 100 * norm);
        assert_near(time.step, time.in_flight + 3 * products_of(&r).head + norm);
        assert_near(time.step, time.compute + time.waited);
        assert_true(plan_time_hidden(&time) < 0.01);
        machine.comm.inside.bytes_per_second /= 1000;
        struct plan_time slower = time_of(&r, &machine);
        assert_near(slower.in_flight, 1000 * time.in_flight);
        assert_near(slower.step - time.step, 999 * (time.in_flight + norm));
    }
}

/* Only some of many rounds are simulated; the others take as long as those in the middle, waiting
 * included. */
static void test_rounds_that_are_not_simulated(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++)
        for (int64_t wire = 1; wire < 10000; wire *= 10) {
            struct plan_time times[4];
            struct plan_request r = request_of(rig_llama(), 2, 0);
            r.zero.stage = stage;
            machine.comm.inside = (struct comm_wire){.bytes_per_second = 1e12 / (double)wire};
            for (int i = 0; i < 4; i++) {
                r.engine.micro_batches = 2 * (i < 2 ? 4 + i : 7 + i);
                times[i] = time_of(&r, &machine);
            }
            double round = times[1].step - times[0].step;
            assert_near(times[2].step - times[1].step, 4 * round);
            assert_near(times[3].step - times[2].step, round);
            assert_near(times[3].in_flight - times[2].in_flight,
                        times[1].in_flight - times[0].in_flight);
            for (int purpose = 0; purpose < TRAFFIC_CONTROL; purpose++)
                assert_int_equal(times[3].sent[purpose] - times[2].sent[purpose],
                                 times[1].sent[purpose] - times[0].sent[purpose]);
        }
}

/* Bytes equal those of plan_rank, rounds that are not simulated included; except for losses, which
 * are exchanged at once. */
static void test_traffic(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = products_only();
    for (int pp = 1; pp <= 2; pp++)
        for (int64_t rounds = 2; rounds <= 12; rounds += 5) {
            struct plan_request r = request_of(rig_llama(), 4, 4 / pp * rounds);
            struct plan_rank ranks[2];
            r.parallel.pp = pp;
            struct plan_time time = time_of(&r, &machine);
            int most = 0;
            for (int p = 0; p < pp; p++) {
                assert_ok(plan_rank(&env, &r, p, &ranks[p]));
                int64_t more = ranks[p].sent[TRAFFIC_REDUCE] - ranks[most].sent[TRAFFIC_REDUCE];
                most = more > 0 ? p : most;
            }
            for (int purpose = 0; purpose < TRAFFIC_CONTROL; purpose++)
                assert_int_equal(time.sent[purpose], ranks[most].sent[purpose]);
        }
    env_destroy(&env);
}

/* Where the cores that compute also move the bytes, overlap gains nothing. */
static void test_theft(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct plan_request r = request_of(rig_llama(), 2, 8);
    r.zero.stage = 3;
    machine.comm.inside = (struct comm_wire){.bytes_per_second = 3e11};
    struct plan_time overlapped = time_of(&r, &machine);
    machine.comm.theft = 1.0;
    struct plan_time stolen = time_of(&r, &machine);
    assert_true(overlapped.waited < 0.5 * overlapped.in_flight);
    assert_near(stolen.in_flight, overlapped.in_flight);
    double together = overlapped.compute + overlapped.in_flight;
    assert_true(stolen.step > 0.95 * together && stolen.step < 1.05 * together);
}

static void test_more_ranks_are_faster(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    machine.comm.inside = (struct comm_wire){1e-7, 1e-9, 1e12};
    machine.comm.exchange = 1e-7;
    double before = 0.0;
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        struct plan_request r = request_of(rig_llama(), ranks, 16);
        double step = time_of(&r, &machine).step;
        assert_true(ranks == 1 || (step < before && step > before / 2));
        before = step;
    }
}

/* Two TP ranks compute half of every block each, and communicate. */
static void test_tensor_parallel(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct plan_request r = request_of(rig_llama(), 2, 1);
    struct by_hand p = products_of(&r);
    r.parallel.tp = 2;
    double step = time_of(&r, &machine).step;
    double vocab =
        (double)(r.model.vocab / 2) / (double)r.model.vocab; /* the first rank has fewer */
    assert_near(step, 3 * (3 * block_of(p) / 2 + p.head * vocab));
    machine.comm.inside.latency = 1.0;
    struct plan_time met = time_of(&r, &machine);
    assert_true(met.step > 3 * 4 * 2.0); /* layers, all-reduces of each, halves of an all-reduce */
    assert_true(met.in_flight > 3 * 4 * 2.0);
    assert_true(met.waited < met.in_flight); /* some overlap with weight gradients */
}

/* --- pipelines ------------------------------------------------------------------------------ */

/* The same pipeline, from the times of its units in isolation. */
static struct timetable_times simulate(struct env *env, const struct plan_request *r,
                                       const struct machine_profile *machine)
{
    struct plan_unit_cost *units;
    struct plan_pipe pipe;
    struct timetable table;
    struct timetable_times times;
    double forward[16] = {0}, backward[16] = {0}, none[16] = {0};
    int count;
    int64_t rounds = r->engine.micro_batches / (r->ranks / r->parallel.pp);
    assert_ok(plan_unit_costs(env, r, machine, &units, &count));
    assert_ok(plan_pipe_make(env, r, rounds, &pipe));
    int stages = pipe.pp * pipe.chunks;
    for (int s = 0; s < stages; s++)
        for (int u = pipe.first[s]; u < pipe.first[s + 1]; u++) {
            forward[s] += units[u].forward;
            backward[s] += units[u].backward;
        }
    struct timetable_shape shape = {
        .kind = r->parallel.schedule, .pp = pipe.pp, .chunks = pipe.chunks, .rounds = (int)rounds};
    const struct timetable_costs costs = {
        .forward = forward, .input = backward, .weight = none, .transfers = TIMETABLE_LINKS};
    assert_ok(timetable_create(env, &shape, &table));
    assert_ok(timetable_simulate(env, &table, &costs, &times));
    timetable_free(env, &table);
    plan_pipe_free(env, &pipe);
    mem_free(env, units);
    return times;
}

static void test_a_pipeline_is_the_simulated_one(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = products_only();
    const int64_t rounds[] = {1, 2, 5, 8, 40};
    for (int kind = TIMETABLE_GPIPE; kind <= TIMETABLE_INTERLEAVED; kind++)
        for (int i = 0; i < 5; i++) {
            struct model_config model = rig_llama();
            model.layers = 6;
            struct plan_request r = request_of(model, 6, 2 * rounds[i]);
            r.parallel.pp = 3;
            r.parallel.schedule = kind;
            struct timetable_times times = simulate(&env, &r, &machine);
            struct plan_time time = time_of(&r, &machine);
            assert_near(time.step, times.end);
            assert_near(time.bubble, times.bubble);
            assert_true(time.waited == 0.0);
            timetable_times_free(&env, &times);
        }
    env_destroy(&env);
}

/* With split backward passes stages do not wait for each other's weight gradients: a smaller
 * bubble. */
static void test_split_backward_has_a_smaller_bubble(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct model_config model = rig_llama();
    model.layers = 6;
    struct plan_request r = request_of(model, 3, 8);
    r.parallel.pp = 3;
    r.parallel.schedule = TIMETABLE_1F1B;
    struct plan_time plain = time_of(&r, &machine);
    r.parallel.schedule = TIMETABLE_ZERO_BUBBLE;
    struct plan_time split = time_of(&r, &machine);
    assert_true(split.step < plain.step && split.bubble < plain.bubble);
    assert_near(split.compute, plain.compute);
}

static void test_messages_of_a_pipeline(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct plan_request r = request_of(rig_gpt2(), 3, 1);
    r.parallel.pp = 3;
    double free = time_of(&r, &machine).step;
    machine.comm.inside.latency = 1.0;
    double slow = time_of(&r, &machine).step;
    /* Forward and backward messages between three stages, tied params and the norm. */
    assert_true(slow > free + 4.0 && slow < free + 16.0);
    machine.comm.between.latency = 10.0;
    machine.comm.node = 2;
    assert_true(time_of(&r, &machine).step > free + 40.0);
}

/* --- what is asked of it -------------------------------------------------------------------- */

static void test_the_calls_of_a_step(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request r = request_of(rig_gpt2(), 2, 2);
    struct machine_profile machine = {0};
    struct ops_case *calls;
    int count, dw = 0;
    r.parallel.pp = 2;
    assert_ok(plan_time_calls(&env, &r, &calls, &count));
    struct ops_measured *lines = calloc((size_t)count, sizeof *lines);
    for (int i = 0; i < count; i++) {
        dw += strcmp(calls[i].op, "linear_dw") == 0;
        for (int j = 0; j < i; j++)
            assert_false(ops_case_equal(&calls[i], &calls[j]));
        lines[i] = (struct ops_measured){calls[i], DTYPE_F32, 1.0};
    }
    assert_int_equal(dw, 5); /* four matrices of a block, and the head */
    /* With one second per call, the time of a step is the number of calls: none is missing. */
    machine.ops.measured = lines;
    machine.ops.measured_count = count;
    ops_prices_sort(&machine.ops);
    struct plan_time time = time_of(&r, &machine);
    assert_true(time.step > 50 && fabs(time.step - round(time.step)) < 1e-6);
    free(lines);
    mem_free(&env, calls);
    env_destroy(&env);
}

static void test_units_in_isolation(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = products_only();
    struct plan_request r = request_of(rig_llama(), 1, 1);
    struct by_hand p = products_of(&r);
    struct plan_unit_cost *units;
    int count;
    int64_t parameters, sum = 0;
    double flops;
    assert_ok(plan_unit_costs(&env, &r, &machine, &units, &count));
    assert_int_equal(count, 5);
    assert_true(units[0].forward == 0.0 && units[0].backward == 0.0);
    for (int u = 1; u <= 3; u++) {
        assert_near(units[u].forward, block_of(p));
        assert_near(units[u].backward, 2 * block_of(p));
        assert_true(units[u].activation_bytes > 0);
    }
    assert_true(units[4].forward == 0.0);
    assert_near(units[4].backward, 3 * p.head);
    for (int u = 0; u < count; u++)
        sum += units[u].parameters;
    assert_ok(plan_model(&env, &r, &parameters, &flops));
    assert_int_equal(sum, parameters);
    mem_free(&env, units);
    r.engine.recompute = RECOMPUTE_FULL;
    struct plan_unit_cost *again;
    assert_ok(plan_unit_costs(&env, &r, &machine, &again, &count));
    assert_near(again[1].backward, 2 * block_of(p) + p.qkv + p.proj + p.up);
    mem_free(&env, again);
    env_destroy(&env);
}

static void test_refused_requests(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = products_only();
    struct plan_time time;
    struct plan_request r = request_of(rig_llama(), 3, 4);
    r.parallel.pp = 2;
    assert_int_equal(plan_time(&env, &r, &machine, &time), STATUS_CONFIG);
    r = request_of(rig_llama(), 2, 4);
    r.zero.servers = 2;
    assert_int_equal(plan_time(&env, &r, &machine, &time), STATUS_CONFIG);
    r = request_of(rig_llama(), 2, 0);
    assert_int_equal(plan_time(&env, &r, &machine, &time), STATUS_CONFIG);
    env_destroy(&env);
}

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* The least of a few: the machine may be busy. */
static double seconds_of(const struct plan_request *request, const struct machine_profile *machine,
                         struct plan_time *time)
{
    double best = 1e9;
    for (int attempt = 0; attempt < 3; attempt++) {
        double begin = cpu_seconds();
        *time = time_of(request, machine);
        best = fmin(best, cpu_seconds() - begin);
    }
    return best;
}

/* A model of 126 layers on a hundred thousand ranks: two hundred times as many ranks take hardly
 * longer. The absolute limit of a minute only detects a hang. */
static void test_it_is_quick(void **state)
{
    (void)state;
    struct machine_profile machine = products_only();
    struct model_config model = {.arch = MODEL_LLAMA,
                                 .layers = 126,
                                 .heads = 128,
                                 .kv_heads = 8,
                                 .width = 16384,
                                 .head_width = 128,
                                 .ff = 53248,
                                 .context = 8192,
                                 .vocab = 128256,
                                 .norm_eps = 1e-5,
                                 .init_std = 0.02,
                                 .rope_theta = 5e5,
                                 .path = ""};
    struct plan_request r = request_of(model, 512, 4 * 64);
    r.engine.tokens = 8192;
    r.engine.micro_batch = 1;
    r.parallel =
        (struct parallel_config){.tp = 8, .pp = 16, .sequence = true, .schedule = TIMETABLE_1F1B};
    machine.comm = (struct comm_prices){
        .inside = {1e-5, 1e-6, 4e11}, .between = {2e-5, 1e-6, 5e10}, .node = 8, .exchange = 1e-5};
    struct plan_time few, many;
    double small = seconds_of(&r, &machine, &few);
    r.ranks = 102400;
    r.engine.micro_batches = 800 * 64;
    double large = seconds_of(&r, &machine, &many);
    assert_true(many.step > 0.95 * few.step && many.step < 1.3 * few.step);
    if (!TESTING_SANITIZED && (large > 20 * small || large > 60))
        fail_msg("%.3f s for 512 ranks, %.3f s for 102400", small, large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_by_hand),
        cmocka_unit_test(test_recomputation_costs_a_forward),
        cmocka_unit_test(test_update_time_follows_memory_traffic),
        cmocka_unit_test(test_a_fast_wire_is_hidden),
        cmocka_unit_test(test_sums_overlap_with_the_next_step),
        cmocka_unit_test(test_a_slow_wire_is_exposed),
        cmocka_unit_test(test_rounds_that_are_not_simulated),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_theft),
        cmocka_unit_test(test_more_ranks_are_faster),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_a_pipeline_is_the_simulated_one),
        cmocka_unit_test(test_split_backward_has_a_smaller_bubble),
        cmocka_unit_test(test_messages_of_a_pipeline),
        cmocka_unit_test(test_the_calls_of_a_step),
        cmocka_unit_test(test_units_in_isolation),
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_it_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
