/* Tensor, sequence and pipeline parallel plans: activations of a block are no more than the formula
 * has and divide as it says; what goes over the wire is the closed form, in a dry walk and in a run
 * of ranks that are threads, which also takes what was planned. */
#include <math.h>

#include "plan/planned.h"
#include "zero/partition.h"

/* Sizes that four ranks share in whole blocks of 64, so that nothing is padded. */
static struct rig_config even_config(bool llama)
{
    struct rig_config config = base_config(llama, 4);
    config.model.layers = 2;
    config.model.heads = 4;
    config.model.kv_heads = llama ? 2 : 4;
    config.model.width = 256;
    config.model.head_width = 64;
    config.model.ff = 512;
    config.model.vocab = 512;
    config.model.context = 256;
    config.tokens = 16;
    config.kind = TIMETABLE_1F1B;
    config.chunks = 1;
    return config;
}

/* --- activations ---------------------------------------------------------------------------- */

struct kept {
    size_t block[PLAN_RECOMPUTES], all[PLAN_RECOMPUTES];
    double formula[PLAN_RECOMPUTES];
};

/* As large as attention counts for something: a s / h is 4. */
static struct kept kept_of(bool llama, int tp, bool sequence, bool regather, enum dtype compute)
{
    struct env env = testing_env(1);
    struct rig_config config = even_config(llama);
    struct plan plan;
    struct kept kept;
    config.model.ff = llama ? 704 : 1024;
    config.tokens = 256;
    config.batch = 2;
    config.tp = tp;
    config.sequence = sequence, config.regather = regather;
    struct plan_request request = request_of(&config, tp);
    request.compute = request.zero.type = compute;
    request.card = request.staged = compute != DTYPE_F32;
    request.ops = compute == DTYPE_F32 ? "cpu" : "ref"; /* as plans of a card that is not here */
    assert_ok(plan_make(&env, &request, &plan));
    for (int r = 0; r < PLAN_RECOMPUTES; r++) {
        kept.block[r] = plan.block_bytes[r];
        kept.all[r] = plan.activation_bytes[r];
        kept.formula[r] = plan_block_formula(&request, r);
    }
    plan_free(&env, &plan);
    env_destroy(&env);
    return kept;
}

static void test_a_block_keeps_no_more_than_the_formula(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    (void)state;
    for (int i = 0; i < 36; i++) {
        bool llama = i % 2;
        int tp = 1 << i / 2 % 3, way = i / 6 % 3; /* plain, sequence, regather */
        enum dtype type = types[i / 18];
        struct kept kept = kept_of(llama, tp, way > 0, way > 1, type);
        for (int r = 0; r < PLAN_RECOMPUTES; r++) {
            double least = r == RECOMPUTE_FULL ? 0.99 / tp : 0.1; /* it is not nothing */
            if ((double)kept.block[r] > kept.formula[r] ||
                (double)kept.block[r] < least * kept.formula[r])
                fail_msg("llama %d, tp %d, way %d, type %d, recompute %d: keeps %zu, formula %.0f",
                         llama, tp, way, type, r, kept.block[r], kept.formula[r]);
            assert_true(kept.all[r] > kept.block[r]);
        }
        assert_true(kept.block[0] > kept.block[1] && kept.block[1] > kept.block[2]);
    }
}

/* With tp all but sums and norms divide; with sequence what is not gathered, with regather all. What
 * does not are the two inputs of matrices, and 4 bytes a row and norm or head. */
static void test_activations_divide_by_tp(void **state)
{
    (void)state;
    const double rows = 512, stream = rows * 256 * 4;
    for (int llama = 0; llama < 2; llama++)
        for (int tp = 2; tp <= 4; tp *= 2) {
            struct kept one = kept_of(llama, 1, false, false, DTYPE_F32);
            struct kept plain = kept_of(llama, tp, false, false, DTYPE_F32);
            struct kept sequence = kept_of(llama, tp, true, false, DTYPE_F32);
            struct kept again = kept_of(llama, tp, true, true, DTYPE_F32);
            double stats = rows * 4 * (llama ? 2 : 4), kv = 0; /* kv heads that two ranks have */
            if (llama && tp == 4)
                kv = 2 * rows * 64 * 4 * (1 - 2.0 / tp);
            for (int r = 0; r < PLAN_RECOMPUTES; r++) {
                double all = (double)one.block[r];
                double sums = r == RECOMPUTE_FULL ? stream : 2 * stream + stats;
                double inputs = r == RECOMPUTE_NONE ? 2 * stream : 0;
                double more = r == RECOMPUTE_FULL ? 0 : kv;
                double whole = sums + inputs;
                assert_int_equal(plain.block[r], llround(whole + (all - whole) / tp + more));
                assert_int_equal(sequence.block[r], llround(inputs + (all - inputs) / tp + more));
                assert_int_equal(again.block[r], llround(all / tp + more));
            }
        }
}

/* --- the wire ------------------------------------------------------------------------------- */

/* Of the ranks with stage p together: who has the norms' gradients, and how slices of a sum fall, is
 * another matter. */
static void check_formula(const struct rig_config *config, const struct plan_request *request,
                          const struct plan_rank *ranks, int p)
{
    int over = config->tp * (config->pp > 0 ? config->pp : 1), dp = request->ranks / over;
    for (int way = 0; way < ENGINE_CONTROL; way++) {
        double sent = 0, formula = 0;
        bool store = way == ENGINE_GATHER || way == ENGINE_REDUCE;
        bool twice = sharding_of(config->stage).params && way == ENGINE_GATHER;
        for (int i = 0; i < dp * config->tp; i++) {
            int d = i / config->tp, t = i % config->tp;
            const struct plan_rank *rank = &ranks[d * over + p * config->tp + t];
            sent += (double)rank->sent[way];
            formula += plan_sent_formula(request, config->micro_batches / dp, rank, config->stage,
                                         (enum engine_way)way);
        }
        /* pieces are padded to a block for each owner; in stage 3 some units are gathered once a
         * micro-batch, not twice */
        double padded = store ? 1.001 * formula : formula;
        if (sent > padded || sent < (twice ? 0.45 : 1) * formula)
            fail_msg("%s of stage %d: sent %.0f, formula %.0f; tp %d, sequence %d, regather %d, "
                     "recompute %d, pp %d, dp %d, llama %d",
                     engine_way_word((enum engine_way)way), config->stage, sent, formula,
                     config->tp, config->sequence, config->regather, config->recompute, config->pp,
                     dp, config->model.arch == MODEL_LLAMA);
    }
}

static void check_wire(const struct rig_config *config, int dp)
{
    struct env env = testing_env(1);
    struct plan_rank ranks[MOST_RANKS];
    int over = config->tp * (config->pp > 0 ? config->pp : 1);
    struct plan_request request = request_of(config, over * dp);
    assert_true(over * dp <= MOST_RANKS);
    for (int r = 0; r < over * dp; r++)
        assert_ok(plan_rank(&env, &request, r, &ranks[r]));
    for (int p = 0; p < over / config->tp; p++)
        check_formula(config, &request, ranks, p);
    env_destroy(&env);
}

/* 8 (t-1)/t activations a layer, 10 with regather; recomputation adds its own. */
static void test_what_is_sent_is_the_closed_form(void **state)
{
    int count = 0;
    (void)state;
    for (int way = 0; way < 3; way++)
        for (int recompute = 0; recompute < PLAN_RECOMPUTES; recompute++)
            for (int tp = 2; tp <= 4; tp *= 2)
                for (int pp = 1; pp <= 4; pp++) {
                    struct rig_config config = even_config(count++ % 2);
                    config.sequence = way > 0, config.regather = way > 1;
                    config.recompute = recompute;
                    config.tp = tp;
                    config.pp = pp;
                    config.stage = count % 4;
                    config.model.tied = pp > 1 && count / 2 % 2; /* else it is reduced twice */
                    config.kind = pp == 1 ? TIMETABLE_1F1B : count % 4;
                    if (config.kind == TIMETABLE_INTERLEAVED && pp > 2)
                        config.kind = TIMETABLE_ZERO_BUBBLE;
                    config.chunks = config.kind == TIMETABLE_INTERLEAVED ? 2 : 1;
                    config.batch = 1 + count % 3;
                    config.type = count % 5 ? DTYPE_F32 : DTYPE_BF16;
                    check_wire(&config, tp * pp <= 8 ? 2 : 1);
                }
}

/* The same figures, of a layer and in letters: what the paper has. */
static void test_a_layer_sends_eight_or_ten(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig_config config = even_config(false);
        struct env env = testing_env(1);
        int64_t sent[2];
        config.tp = 4;
        config.micro_batches = 1;
        config.sequence = i > 0, config.regather = i > 1;
        for (int more = 0; more < 2; more++) {
            struct plan_rank rank;
            config.model.layers = 2 + more;
            struct plan_request request = request_of(&config, 4);
            assert_ok(plan_rank(&env, &request, 1, &rank));
            sent[more] = rank.sent[ENGINE_TENSOR];
        }
        int64_t activation = 16 * 256 * (int64_t)sizeof(float);
        int64_t norms = i > 0 ? 4 * 256 * (int64_t)sizeof(float) * 2 * 3 / 4 : 0;
        assert_int_equal(sent[1] - sent[0], (i > 1 ? 10 : 8) * activation * 3 / 4 + norms);
        env_destroy(&env);
    }
}

/* And a run takes and sends it: every layout with what else may be set, in turn. */
static void test_a_run_takes_and_sends_it(void **state)
{
    static const struct {
        int tp, pp, dp;
    } layouts[] = {{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {2, 2, 2},
                   {4, 2, 1}, {2, 3, 1}, {4, 1, 2}, {2, 4, 1}, {2, 1, 3}};
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct rig_config config = i < 10 ? even_config(i % 2) : base_config(true, 5);
        int at = i % 10, dp = layouts[at].dp, pp = layouts[at].pp;
        config.model.layers = 4;
        config.tokens = i < 10 ? config.tokens : 12; /* the second ten do not divide well */
        config.tp = layouts[at].tp;
        config.pp = pp;
        config.kind = pp == 1 ? TIMETABLE_1F1B : i % 4;
        config.chunks = config.kind == TIMETABLE_INTERLEAVED && pp <= 3 ? 2 : 1;
        if (config.chunks == 1 && config.kind == TIMETABLE_INTERLEAVED)
            config.kind = TIMETABLE_ZERO_BUBBLE;
        config.sequence = i % 3 > 0, config.regather = i % 3 > 1;
        config.recompute = (i + i / 3) % 3;
        config.keep_swiglu = i / 2 % 2;
        config.stage = i % 4;
        config.type = i % 5 == 0 ? DTYPE_BF16 : DTYPE_F32;
        config.model.tied = (i >= 10 || pp > 1) && i / 2 % 2;
        run_and_compare(config, config.tp * pp * dp);
        if (i < 10 && config.micro_batches % dp == 0)
            check_wire(&config, dp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_block_keeps_no_more_than_the_formula),
        cmocka_unit_test(test_activations_divide_by_tp),
        cmocka_unit_test(test_what_is_sent_is_the_closed_form),
        cmocka_unit_test(test_a_layer_sends_eight_or_ten),
        cmocka_unit_test(test_a_run_takes_and_sends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
