/* The plan of SARS equals the run: bytes by category and bytes sent of ranks that are threads equal
 * the dry ones exactly. What SARS adds to memory and traffic follows formulas. */
#include "plan/planned.h"
#include "zero/partition.h"

static struct rig_config sars_run(int64_t micro_batches)
{
    struct rig_config config = base_config(false, micro_batches);
    config.model = rig_sars();
    return config;
}

static void test_a_run_matches_its_plan(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++)
            for (int recompute = 0; recompute <= 2; recompute++)
                for (int half = 0; half < 2; half++) {
                    struct rig_config config = sars_run(recompute == 1 ? ranks : 5);
                    config.stage = stage;
                    config.recompute = recompute;
                    config.type = half ? DTYPE_BF16 : DTYPE_F32;
                    config.sum_type = half && stage % 2 ? DTYPE_BF16 : DTYPE_F32;
                    config.prefetch = ranks - 1;
                    run_and_compare(config, ranks);
                }
}

static void test_other_layouts_match_their_plan(void **state)
{
    (void)state;
    for (int stage = 1; stage < PLAN_ZERO_STAGES; stage++) {
        struct rig_config config = sars_run(5);
        config.stage = stage;
        config.servers = 1;
        run_and_compare(config, 3);
        config.servers = 0;
        config.group = 2;
        config.snapshot = true;
        run_and_compare(config, 4);
        config.optimizer = OPTIMIZER_MUON;
        run_and_compare(config, 4);
    }
    for (int gate = 0; gate <= SARS_GATE_OFF; gate++) { /* only the global gate holds its sums */
        struct rig_config config = sars_run(5);
        config.model.sars.gate = gate;
        run_and_compare(config, 2);
    }
}

/* --- formulas ------------------------------------------------------------------------------- */

/* Elements of pieces with their padding. */
struct counts {
    int64_t all, trained; /* all but the maps of the chain and its norms */
    int64_t read;         /* all but the first block's maps of the chain */
    int64_t twice; /* gathered for forward and for backward: of all blocks but the last, which stays
                      gathered, what both read: not the prototypes */
};

static struct counts counts_of(const struct rig_config *config, int owners)
{
    enum { BLOCK_PIECES = 3, PROTOTYPES = 1, FIRST_CHAIN = 3 };
    struct env env = testing_env(1);
    struct device *device;
    struct model *model;
    struct partition p;
    struct counts c = {0};
    bool frozen[64];
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(model_create(device, &config->model, &model));
    assert_ok(partition_create(&env, model_graph(model), owners, &p));
    int pieces = p.graph->piece_count, blocks = (int)config->model.layers;
    assert_int_equal(pieces, BLOCK_PIECES * blocks + 2);
    assert_true(pieces <= (int)(sizeof frozen / sizeof *frozen));
    unit_find_frozen(p.graph, frozen);
    for (int i = 0; i < pieces; i++) {
        int64_t count = p.piece_count[i];
        bool in_block = i > 0 && i <= BLOCK_PIECES * (blocks - 1);
        c.all += count;
        c.read += i != FIRST_CHAIN ? count : 0;
        c.trained += frozen[i] ? 0 : count;
        c.twice += in_block && i != FIRST_CHAIN && (i - 1) % BLOCK_PIECES != PROTOTYPES ? count : 0;
    }
    partition_free(&env, &p);
    model_destroy(model);
    device_destroy(device);
    env_destroy(&env);
    return c;
}

static struct plan plan_of(const struct rig_config *config, int ranks)
{
    struct env env = testing_env(1);
    struct plan_request request = request_of(config, ranks);
    struct plan plan;
    assert_ok(plan_make(&env, &request, &plan));
    env_destroy(&env);
    return plan;
}

/* Frozen maps are gathered where params are sharded, and never sent otherwise. */
static void test_traffic(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 64; ranks = ranks * 2 + 1) {
        struct rig_config config = sars_run(ranks);
        struct plan plan = plan_of(&config, ranks);
        struct counts c = counts_of(&config, ranks);
        int64_t part = (int64_t)sizeof(float) * (ranks - 1);
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            const int64_t *sent = plan.stages[stage].worker.sent;
            int64_t gathered = sharding_of(stage).params ? c.read + c.twice : c.trained;
            assert_int_equal(sent[TRAFFIC_REDUCE], c.trained / ranks * part);
            assert_int_equal(sent[TRAFFIC_GATHER], gathered / ranks * part);
        }
    }
}

/* Each worker sends its sums of goodness, active neurons and entropy to all others, for each of its
 * micro-batches: L 4 (2 C + 1) floats. With them goes the loss, a double. */
static void test_traffic_of_the_sums(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    struct rig_config once = sars_run(RANKS), twice = sars_run(2 * RANKS);
    struct plan plans[2] = {plan_of(&once, RANKS), plan_of(&twice, RANKS)};
    int64_t statistics = once.model.layers * 4 * (2 * once.model.width + 1);
    int64_t each = statistics * (int64_t)sizeof(float) + (int64_t)sizeof(double);
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
        int64_t more = plans[1].stages[stage].worker.sent[TRAFFIC_CONTROL] -
                       plans[0].stages[stage].worker.sent[TRAFFIC_CONTROL];
        assert_int_equal(more, each * (RANKS - 1));
    }
}

/* Frozen params have no gradients and no optimizer state. */
static void test_state(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        struct rig_config config = sars_run(ranks);
        struct counts c = counts_of(&config, ranks);
        struct plan plan = plan_of(&config, ranks);
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            const size_t *bytes = plan.stages[stage].worker.bytes;
            struct sharding s = sharding_of(stage);
            assert_int_equal(bytes[MEM_PARAMS], 4 * c.all / (s.params ? ranks : 1));
            assert_int_equal(bytes[MEM_GRADS], 4 * c.trained / (s.grads ? ranks : 1));
            assert_int_equal(bytes[MEM_OPTIMIZER], 8 * c.trained / (s.optim ? ranks : 1));
        }
    }
}

/* A block more keeps its input (R, C) and its prototypes (4, C, C) under full recomputation, on
 * every rank: prototypes are not sharded. */
static void test_prototypes(void **state)
{
    (void)state;
    enum { RANKS = 3, ALIGNMENT = 64 };
    struct rig_config config = sars_run(RANKS);
    config.recompute = 2;
    size_t width = (size_t)config.model.width, rows = (size_t)(config.batch * config.tokens);
    size_t kept[] = {4 * rows * width, 4 * 4 * width * width}, expected = 0;
    for (int i = 0; i < 2; i++)
        expected += (kept[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct plan plan = plan_of(&config, RANKS);
    config.model.layers++;
    struct plan taller = plan_of(&config, RANKS);
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++)
        assert_int_equal(taller.stages[stage].worker.bytes[MEM_ACTIVATIONS] -
                             plan.stages[stage].worker.bytes[MEM_ACTIVATIONS],
                         expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_matches_its_plan),
        cmocka_unit_test(test_other_layouts_match_their_plan),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_traffic_of_the_sums),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_prototypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
