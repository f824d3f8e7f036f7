/* The search finds what an exhaustive search finds; slower wires and less memory change the choice,
 * fixed settings stay, and a hundred thousand ranks need few simulations. */
#include <math.h>

#include "plan/search_impl.h"
#include "plan/search_rig.h"

static struct plan_request request_of(int ranks)
{
    return search_request_of(ranks, 6, 256, 1, 16);
}

static struct search_space space_of(const struct plan_request *request,
                                    const struct machine_profile *machine)
{
    return (struct search_space){.request = request,
                                 .global_batch = 16,
                                 .machine = machine,
                                 .node = machine->comm.node,
                                 .most = 5};
}

static struct search_result search(struct env *env, const struct search_space *space)
{
    struct search_result result;
    assert_ok(search_layouts(env, space, &result));
    return result;
}

static bool same_layout(const struct search_layout *a, const struct search_layout *b)
{
    const struct parallel_config *p = &a->request.parallel, *q = &b->request.parallel;
    return p->tp == q->tp && p->pp == q->pp && p->schedule == q->schedule &&
           spread_chunks(p) == spread_chunks(q) && p->sequence == q->sequence &&
           p->regather == q->regather && a->request.zero.stage == b->request.zero.stage &&
           a->request.zero.shard_group == b->request.zero.shard_group &&
           a->request.zero.local == b->request.zero.local &&
           a->request.engine.recompute == b->request.engine.recompute &&
           a->request.engine.micro_batch == b->request.engine.micro_batch;
}

/* --- exactness ------------------------------------------------------------------------------ */

static void compare_with_all(struct env *env, struct search_space space)
{
    struct search_result quick = search(env, &space);
    space.exhaustive = true;
    struct search_result all = search(env, &space);
    assert_int_equal(all.bounded, 0);
    if (quick.timed >= all.timed)
        fail_msg("%d simulated, of all %d; %d possible, %d too large, refused %d", (int)quick.timed,
                 (int)all.timed, (int)all.possible, (int)all.too_large, (int)all.refused);
    assert_int_equal(quick.count, all.count);
    for (int i = 0; i < all.count; i++)
        if (!same_layout(&quick.layouts[i], &all.layouts[i]))
            fail_msg("rank %d: tp %d pp %d stage %d %g s, of all: tp %d pp %d stage %d %g s", i,
                     (int)quick.layouts[i].request.parallel.tp,
                     (int)quick.layouts[i].request.parallel.pp, quick.layouts[i].request.zero.stage,
                     quick.layouts[i].time.step, (int)all.layouts[i].request.parallel.tp,
                     (int)all.layouts[i].request.parallel.pp, all.layouts[i].request.zero.stage,
                     all.layouts[i].time.step);
    search_result_free(env, &quick);
    search_result_free(env, &all);
}

static void test_finds_what_an_exhaustive_search_finds(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile fast = search_machine(1e10, 2e9), slow = search_machine(1e9, 1e8);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &fast);
    space.fixed = (struct search_fixed){.recompute = true, .micro_batch = true, .regather = true};
    space.fixed.chunks = true;
    compare_with_all(&env, space);
    space.machine = &slow;
    space.memory = 48 << 20;
    space.fixed = (struct search_fixed){.micro_batch = true, .regather = true, .schedule = true};
    compare_with_all(&env, space);
    env_destroy(&env);
}

/* A bound never exceeds the simulation, in time or in memory. */
static void check_memory(struct env *env, const struct search_space *space,
                         const struct search_point *p)
{
    struct plan_request request = search_request(space, p);
    struct plan_zero_stage worst;
    assert_ok(plan_worst_memory(env, &request, &worst));
    if (p->bytes > plan_needed_bytes(&worst.worker))
        fail_msg("tp %d pp %d x %d stage %d/%d micro-batch %d recompute %d schedule %d: bound %zu "
                 "bytes; built %zu bytes",
                 p->tp, p->pp, p->chunks, p->stage, p->shard_group, p->micro_batch, p->recompute,
                 p->schedule, p->bytes, plan_needed_bytes(&worst.worker));
}

static void check_bounds(struct env *env, const struct search_space *space, int every)
{
    struct search_points points;
    assert_ok(search_points_make(env, space, &points));
    assert_true(points.count > 0);
    for (int64_t i = 0; i < points.count; i += every) {
        if (!testing_sampled())
            continue;
        struct search_point *p = &points.points[i];
        struct plan_request request = search_request(space, p);
        struct plan_time time;
        assert_ok(search_points_refine(env, space, &points, p));
        assert_ok(plan_time(env, &request, space->machine, &time));
        check_memory(env, space, p);
        if (p->bound > time.step * (1 + 1e-9))
            fail_msg("tp %d pp %d x %d stage %d/%d micro-batch %d recompute %d schedule %d: bound "
                     "%g s; simulated %g s",
                     p->tp, p->pp, p->chunks, p->stage, p->shard_group, p->micro_batch,
                     p->recompute, p->schedule, p->bound, time.step);
    }
    search_points_free(env, &points);
}

static void test_bounds_are_lower_bounds(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile fast = search_machine(1e10, 2e9), slow = search_machine(1e9, 1e8);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &fast);
    check_bounds(&env, &space, 139);
    space.machine = &slow;
    request.zero.type = request.zero.sum_type = DTYPE_F32;
    request.zero.local = space.fixed.accumulate = true;
    check_bounds(&env, &space, 73);
    request.ops = "ref";
    request.compute = request.zero.type = DTYPE_BF16;
    space.fixed.accumulate = false;
    request.model.tied = 1;
    check_bounds(&env, &space, 157);
    request.zero.sum_type = DTYPE_BF16;
    request.zero.servers = 1;
    check_bounds(&env, &space, 157);
    request = request_of(8); /* activations leave the device; no pipelines */
    request.model.layers = 24;
    request.gpu = true;
    request.engine.activations = FAR_HOST;
    check_bounds(&env, &space, 11);
    env_destroy(&env);
}

/* --- what the choice follows ------------------------------------------------------------------ */

static struct search_layout best_of(struct env *env, const struct search_space *space)
{
    struct search_result result = search(env, space);
    assert_true(result.count > 0);
    struct search_layout best = result.layouts[0];
    assert_true(space->memory == 0 || best.needed_bytes <= space->memory);
    for (int i = 1; i < result.count; i++)
        assert_true(result.layouts[i].time.step >= best.time.step * (1 - 1e-6));
    assert_true(strlen(best.why) > 0);
    search_result_free(env, &result);
    return best;
}

/* Optimizers that keep less than AdamW have lower bounds; Muon also rules out tensor
 * parallelism. */
static void test_optimizers_have_their_own_bounds(void **state)
{
    (void)state;
    static const struct {
        struct optimizer optimizer;
        double mean, least; /* bytes per parameter */
    } cases[] = {{{.kind = OPTIMIZER_ADAMW}, 8, 8},
                 {{.kind = OPTIMIZER_ADAMW8BIT}, 2.03125, 2.03125},
                 {{.kind = OPTIMIZER_SGD}, 0, 0},
                 {{.kind = OPTIMIZER_SGD, .momentum = 0.9}, 4, 4},
                 {{.kind = OPTIMIZER_MUON, .momentum = 0.9}, -1, 4}};
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 2e9);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_request request = request_of(4);
        struct search_space space = space_of(&request, &machine);
        struct plan_optimizers found;
        struct search_points points;
        bool muon = cases[i].optimizer.kind == OPTIMIZER_MUON;
        request.zero.optimizer = cases[i].optimizer;
        assert_ok(plan_optimizers(&env, &request, &found));
        assert_true(found.least == cases[i].least && found.muon == muon);
        assert_true(muon ? found.widths.optimizer > 4 && found.widths.optimizer < 8
                         : fabs(found.widths.optimizer - cases[i].mean) < 1e-9);
        request.zero.type = DTYPE_BF16;
        assert_ok(plan_optimizers(&env, &request, &found));
        assert_true(found.least == cases[i].least + 4); /* the master */
        request.zero.type = DTYPE_F32;
        assert_ok(search_points_make(&env, &space, &points));
        int most = 1;
        for (int64_t p = 0; p < points.count; p++)
            most = points.points[p].tp > most ? points.points[p].tp : most;
        assert_int_equal(most, muon ? 1 : 4);
        for (int64_t p = 0; p < points.count; p += 29)
            check_memory(&env, &space, &points.points[p]);
        search_points_free(&env, &points);
    }
    env_destroy(&env);
}

static void test_a_slower_link_changes_the_choice(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile fast = search_machine(1e11, 1e11), slow = search_machine(1e11, 1e11);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &fast);
    slow.comm.inside.bytes_per_second /= 10;
    slow.comm.between.bytes_per_second /= 100;
    struct search_layout a = best_of(&env, &space);
    space.machine = &slow;
    struct search_layout b = best_of(&env, &space);
    assert_false(same_layout(&a, &b));
    assert_true(b.time.step > a.time.step);
    env_destroy(&env);
}

static void test_less_memory_changes_the_choice(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &machine);
    struct search_layout a = best_of(&env, &space);
    space.memory = a.needed_bytes / 2;
    struct search_layout b = best_of(&env, &space);
    assert_false(same_layout(&a, &b));
    assert_true(b.needed_bytes <= a.needed_bytes / 2);
    assert_true(b.time.step >= a.time.step * (1 - 1e-6));
    env_destroy(&env);
}

/* Slow wires and several micro-batches per worker: the first layout sums locally, is faster than
 * sending every micro-batch, and says what it costs. Where each worker has one, nothing is gained.
 */
static void test_local_sums_are_found(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e9, 1e8);
    struct plan_request request = request_of(4);
    struct search_space space = space_of(&request, &machine);
    request.zero.stage = 2;
    space.fixed = (struct search_fixed){
        .tp = true, .pp = true, .stage = true, .micro_batch = true, .recompute = true};
    struct search_result result = search(&env, &space);
    const struct search_layout *first = &result.layouts[0];
    struct text text;
    text_init(&text, &env);
    search_explain(&space, &result, &text);
    assert_true(first->request.zero.local);
    assert_true(first->each > first->time.step);
    assert_non_null(strstr(text_string(&text), "local    each worker sums its micro-batches"));
    assert_non_null(strstr(text_string(&text), "the bits depend on the number of workers"));
    text_free(&text);
    double local = first->time.step, each = first->each;
    search_result_free(&env, &result);
    space.fixed.accumulate = true;
    result = search(&env, &space);
    assert_false(result.layouts[0].request.zero.local);
    assert_true(result.layouts[0].time.step == each && each > local);
    search_result_free(&env, &result);
    space.fixed.accumulate = false;
    space.global_batch = 4;
    struct search_layout best = best_of(&env, &space);
    assert_false(best.request.zero.local);
    env_destroy(&env);
}

/* --- what is given ---------------------------------------------------------------------------- */

static void test_fixed_settings_stay(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &machine);
    request.parallel.tp = request.parallel.pp = 2;
    request.parallel.schedule = TIMETABLE_GPIPE;
    request.zero.stage = 3;
    request.engine.micro_batch = 2;
    request.engine.recompute = RECOMPUTE_FULL;
    space.fixed = (struct search_fixed){
        .tp = true, .pp = true, .stage = true, .micro_batch = true, .recompute = true};
    space.fixed.schedule = space.fixed.accumulate = true;
    struct search_result result = search(&env, &space);
    assert_int_equal(result.count, 2 * 1); /* regather or not; a node has one copy, hence no shard
                                              groups */
    for (int i = 0; i < result.count; i++) {
        const struct plan_request *r = &result.layouts[i].request;
        assert_int_equal(r->parallel.tp, 2);
        assert_int_equal(r->parallel.pp, 2);
        assert_int_equal(r->parallel.schedule, TIMETABLE_GPIPE);
        assert_int_equal(r->zero.stage, 3);
        assert_int_equal(r->engine.micro_batch, 2);
        assert_int_equal(r->engine.micro_batches, 8);
        assert_int_equal(r->engine.recompute, RECOMPUTE_FULL);
        assert_false(r->zero.local);
        assert_int_equal(result.layouts[i].dp, 2);
        assert_int_equal(result.layouts[i].rounds, 4);
    }
    search_result_free(&env, &result);
    env_destroy(&env);
}

/* Where smaller steps exist, too, micro-batches divide all of them. */
static void test_micro_batches_divide_all_steps(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(1);
    struct search_space space = space_of(&request, &machine);
    space.fixed = (struct search_fixed){.tp = true, .pp = true};
    space.most = 100;
    for (space.batch_divisor = 0; space.batch_divisor <= 2; space.batch_divisor++) {
        int64_t most = 0;
        struct search_result result = search(&env, &space);
        for (int i = 0; i < result.count; i++)
            if (result.layouts[i].request.engine.micro_batch > most)
                most = result.layouts[i].request.engine.micro_batch;
        assert_int_equal(most, space.batch_divisor == 0 ? 16 : space.batch_divisor);
        search_result_free(&env, &result);
    }
    env_destroy(&env);
}

static void test_each_mesh_is_listed_once(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &machine);
    space.fixed.micro_batch = true;
    struct search_result result = search(&env, &space);
    assert_int_equal(result.count, 5);
    for (int i = 0; i < result.count; i++)
        for (int j = 0; j < i; j++)
            assert_false(
                result.layouts[i].request.parallel.tp == result.layouts[j].request.parallel.tp &&
                result.layouts[i].request.parallel.pp == result.layouts[j].request.parallel.pp);
    search_result_free(&env, &result);
    env_destroy(&env);
}

/* A model that cannot be split or be a pipeline: every rank has a copy, in every listed layout. */
static void test_limits_of_the_architecture(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(8);
    request.model = (struct model_config){.arch = MODEL_SARS,
                                          .layers = 2,
                                          .width = 64,
                                          .heads = 2,
                                          .kv_heads = 2,
                                          .head_width = 32,
                                          .context = 128,
                                          .vocab = 300,
                                          .norm_eps = 1e-5,
                                          .init_std = 0.02,
                                          .rope_theta = 10000,
                                          .path = ""};
    struct search_space space = space_of(&request, &machine);
    space.exhaustive = true;
    struct search_result result = search(&env, &space);
    assert_int_equal(result.count, 1); /* of the only mesh */
    assert_int_equal(result.layouts[0].dp, 8);
    assert_int_equal(result.refused, 0);
    search_result_free(&env, &result);
    check_bounds(&env, &space, 1); /* with the carry from block to block */
    env_destroy(&env);
}

/* On one rank nothing is sharded and nothing need be recomputed. */
static void test_ties_go_to_the_simplest(void **state)
{
    (void)state;
    struct search_point a = {.tp = 1, .pp = 1, .stage = 1}, b = a;
    b.stage = 2;
    assert_true(search_simpler(&a, &b) < 0);
    b = a;
    b.recompute = RECOMPUTE_SELECTIVE;
    assert_true(search_simpler(&a, &b) < 0);
    b = a;
    b.local = true; /* equal bits for every number of workers come before less sharding */
    a.stage = 2;
    assert_true(search_simpler(&a, &b) < 0);
    b = a;
    b.pp = 2;
    a.stage = 3;
    assert_true(search_simpler(&a, &b) < 0);
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(1);
    struct search_space space = space_of(&request, &machine);
    struct search_layout best = best_of(&env, &space);
    assert_int_equal(best.request.zero.stage, 0);
    assert_int_equal(best.request.parallel.tp, 1);
    assert_int_equal(best.request.engine.recompute, RECOMPUTE_NONE);
    env_destroy(&env);
}

static void test_nothing_fits(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(4);
    struct search_space space = space_of(&request, &machine);
    space.memory = 100000;
    struct search_result result = search(&env, &space);
    assert_int_equal(result.count, 0);
    assert_int_equal(result.too_large, result.possible);
    assert_true(result.nearest.needed_bytes > space.memory);
    assert_true(result.nearest.request.parallel.tp * result.nearest.request.parallel.pp > 1 ||
                result.nearest.request.zero.stage == 3);
    search_result_free(&env, &result);
    env_destroy(&env);
}

static void test_impossible_requests_are_refused(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 1e9);
    struct plan_request request = request_of(8);
    struct search_space space = space_of(&request, &machine);
    struct search_result result;
    request.parallel.tp = 3;
    space.fixed.tp = true;
    assert_int_equal(search_layouts(&env, &space, &result), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "parallel.tp=3"));
    env_destroy(&env);
}

/* --- size ------------------------------------------------------------------------------------- */

static void test_many_ranks_need_few_simulations(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(3e11, 4e10);
    struct ops_rate gpu = {3e-6, 6e14, 3e12};
    for (int k = 0; k < OPS_KIND_COUNT; k++)
        machine.ops.rates[k] = gpu;
    machine.comm.node = 8;
    int ranks = TESTING_SANITIZED ? 12800 : 100000; /* there it takes minutes */
    struct plan_request request = request_of(ranks);
    request.model.layers = 32;
    request.model.width = 8192;
    request.model.heads = 64;
    request.model.kv_heads = 8;
    request.model.head_width = 128;
    request.model.ff = 28672;
    request.model.vocab = 128256;
    request.model.context = request.engine.tokens = 8192;
    request.ops = "ref";
    request.compute = request.zero.type = DTYPE_BF16;
    struct search_space space = space_of(&request, &machine);
    space.global_batch = ranks;
    space.memory = (size_t)80e9;
    space.most = 2;
    space.fixed = (struct search_fixed){.tp = true, .micro_batch = true, .recompute = true};
    space.fixed.chunks = space.fixed.regather = true;
    request.parallel.tp = 8;
    struct search_result result = search(&env, &space);
    assert_int_equal(result.count, 2);
    assert_true(result.possible > 50);
    if (result.timed > 35)
        fail_msg("%d of %d simulated", (int)result.timed, (int)result.possible);
    assert_true(result.layouts[0].needed_bytes <= space.memory);
    search_result_free(&env, &result);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_an_exhaustive_search_finds),
        cmocka_unit_test(test_bounds_are_lower_bounds),
        cmocka_unit_test(test_optimizers_have_their_own_bounds),
        cmocka_unit_test(test_a_slower_link_changes_the_choice),
        cmocka_unit_test(test_less_memory_changes_the_choice),
        cmocka_unit_test(test_local_sums_are_found),
        cmocka_unit_test(test_fixed_settings_stay),
        cmocka_unit_test(test_micro_batches_divide_all_steps),
        cmocka_unit_test(test_each_mesh_is_listed_once),
        cmocka_unit_test(test_limits_of_the_architecture),
        cmocka_unit_test(test_ties_go_to_the_simplest),
        cmocka_unit_test(test_nothing_fits),
        cmocka_unit_test(test_impossible_requests_are_refused),
        cmocka_unit_test(test_many_ranks_need_few_simulations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
