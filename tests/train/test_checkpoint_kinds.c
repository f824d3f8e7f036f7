/* Checkpoints of every kind of optimizer: a run continues from one with the same bits on any
 * layout; adamw and adamw8bit are converted into each other, other changes are refused; damaged
 * codes and scales are named. Ranks are threads of one process. */
#include <math.h>
#include "job_rig.h"

#define ADAM .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8

/* Tensors that Llama fuses into one param have different kinds. */
static const struct zero_group mixed[] = {
    {"*q_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9}},
    {"*k_proj*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*gate_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD}},
    {"*norm*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
};

enum { KIND_ADAMW, KIND_ADAMW8BIT, KIND_SGD, KIND_SGD_MOMENTUM, KIND_MIXED, KIND_MUON, KINDS };

static struct rig_config config_of(int kind)
{
    static const enum optimizer_kind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_ADAMW8BIT,
                                                OPTIMIZER_SGD,   OPTIMIZER_SGD,
                                                OPTIMIZER_ADAMW, OPTIMIZER_MUON};
    struct rig_config config = shared_config(1);
    config.optimizer = kinds[kind];
    config.no_momentum = kind == KIND_SGD;
    if (kind == KIND_MIXED)
        config.groups = mixed, config.group_count = 4;
    return config;
}

/* --- the same kind ---------------------------------------------------------------------------- */

static void test_a_run_continues_on_any_layout(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct rig_config one = config_of(kind), many = one, pipe = one;
        struct files f;
        files_open(&f);
        many.stage = 3;
        pipe.pp = 2, pipe.stage = 1;
        struct run_job plain = {.config = one, .end = 3, .to = f.plain};
        struct run_job first = {.config = many, .end = 2, .to = f.there};
        struct run_job second = {
            .config = pipe, .from = f.there, .begin = 2, .end = 3, .to = f.back};
        run_job(&plain, 1);
        run_job(&first, 5);
        run_job(&second, 4);
        expect_same_params(&plain, &second);
        expect_same_files(&f, 3);
        assert_null(strstr(second.lines, "the checkpoint has the state"));
        assert_null(strstr(second.lines, "arithmetic"));
        free(first.params);
        free(plain.params);
        scratch_close(&f.s);
    }
}

static void test_tp_ranks_continue(void **state)
{
    (void)state;
    struct rig_config one = config_of(KIND_ADAMW8BIT), many;
    struct files f;
    files_open(&f);
    one.tp = 2;
    many = one;
    many.stage = 3;
    struct run_job plain = {.config = one, .end = 3};
    struct run_job first = {.config = one, .end = 2, .to = f.there};
    struct run_job second = {.config = many, .from = f.there, .begin = 2, .end = 3};
    run_job(&plain, 2);
    run_job(&first, 2);
    run_job(&second, 6);
    expect_same_params(&plain, &second);
    assert_null(strstr(second.lines, "encoded again"));

    /* with another tp: both ways */
    struct run_job whole = {
        .config = config_of(KIND_ADAMW8BIT), .from = f.there, .begin = 2, .end = 3, .to = f.back};
    struct run_job halves = {.config = one, .from = f.back, .begin = 3, .end = 4};
    run_job(&whole, 1);
    run_job(&halves, 2);
    assert_int_equal(whole.status, STATUS_OK);
    assert_int_equal(halves.status, STATUS_OK);
    assert_non_null(
        strstr(whole.lines, "8-bit moments are encoded again, because parallel.tp changed"));
    assert_non_null(strstr(halves.lines, "8-bit moments are encoded again"));
    free(whole.params), free(halves.params), free(first.params), free(plain.params);
    scratch_close(&f.s);
}

/* --- other kinds ------------------------------------------------------------------------------ */

static int count_lines(const char *lines, const char *part)
{
    int count = 0;
    for (const char *at = lines; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

/* adamw <-> adamw8bit; the layout does not matter. */
static void test_adamw_is_converted(void **state)
{
    (void)state;
    static const char *const lines[] = {"was rounded to 8 bits for adamw8bit",
                                        "was widened to fp32 for adamw"};
    for (int way = 0; way < 2; way++) {
        struct rig_config from = config_of(way == 0 ? KIND_ADAMW : KIND_ADAMW8BIT);
        struct rig_config to = config_of(way == 0 ? KIND_ADAMW8BIT : KIND_ADAMW), many = to;
        struct files f;
        files_open(&f);
        many.stage = 3;
        struct run_job plain = {.config = from, .end = 3};
        struct run_job first = {.config = from, .end = 2, .to = f.there};
        struct run_job one = {.config = to, .from = f.there, .begin = 2, .end = 3};
        struct run_job other = {.config = many, .from = f.there, .begin = 2, .end = 3};
        run_job(&plain, 1);
        run_job(&first, 3);
        run_job(&one, 1);
        run_job(&other, 5);
        expect_same_params(&one, &other);
        assert_int_equal(count_lines(one.lines, lines[way]), 1);
        assert_int_equal(count_lines(other.lines, lines[way]), 1);
        /* The moments were kept: the step is about the same. Codes as fp32 have the same values, so
         * the first step has even the same bits. */
        bool same = memcmp(one.params, plain.params, (size_t)one.count * sizeof(float)) == 0;
        assert_true(same == (way == 1));
        for (int64_t i = 0; i < one.count; i++)
            assert_true(fabs((double)one.params[i] - (double)plain.params[i]) < 5e-3);
        free(one.params), free(first.params), free(plain.params);
        scratch_close(&f.s);
    }
}

/* A group may convert some tensors only. Each line counts its own. */
static void test_conversions_are_counted(void **state)
{
    (void)state;
    static const struct zero_group one[] = {
        {"*layers.0.self_attn.k_proj.weight", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}}};
    static const char *const lines[] = {
        "the adamw state of 1 tensor was rounded to 8 bits for adamw8bit",
        "the adamw8bit state of 1 tensor was widened to fp32 for adamw"};
    for (int way = 0; way < 2; way++) {
        struct rig_config configs[2] = {config_of(KIND_ADAMW), config_of(KIND_ADAMW)};
        struct files f;
        files_open(&f);
        configs[1 - way].groups = one, configs[1 - way].group_count = 1;
        struct run_job first = {.config = configs[0], .end = 1, .to = f.there};
        struct run_job then = {.config = configs[1], .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        run_job(&then, 2);
        assert_int_equal(count_lines(then.lines, lines[way]), 1);
        assert_int_equal(count_lines(then.lines, lines[1 - way]), 0);
        free(then.params), free(first.params);
        scratch_close(&f.s);
    }
}

static void test_other_changes_are_refused(void **state)
{
    (void)state;
    static const struct {
        int from, to;
        const char *words[3];
    } cases[] = {
        {KIND_SGD, KIND_ADAMW, {"the state of sgd for", "now uses adamw", "embed_tokens"}},
        {KIND_ADAMW, KIND_SGD_MOMENTUM, {"state of adamw", "uses sgd with momentum", "model.path"}},
        {KIND_SGD_MOMENTUM, KIND_SGD, {"sgd with momentum for", "now uses sgd,", "set the opt"}},
        {KIND_ADAMW8BIT,
         KIND_MIXED,
         {"adamw8bit for", "uses sgd with mom", "layers.0.self_attn.q"}},
        {KIND_MUON, KIND_ADAMW, {"state of muon for", "now uses adamw", "layers.0.self_attn"}},
        {KIND_MIXED, KIND_ADAMW, {"sgd with momentum for", "now uses adamw", "q_proj.weight"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct files f;
        files_open(&f);
        struct run_job first = {.config = config_of(cases[i].from), .end = 1, .to = f.there};
        struct run_job second = {
            .config = config_of(cases[i].to), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        run_job(&second, 1);
        assert_int_equal(second.status, STATUS_CONFIG);
        for (int w = 0; w < 3; w++)
            if (!strstr(second.lines, cases[i].words[w]))
                fail_msg("case %zu: no '%s' in %s", i, cases[i].words[w], second.lines);
        free(first.params);
        scratch_close(&f.s);
    }
}

/* --- checkpoints that were changed ------------------------------------------------------------ */

static void test_changed_codes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *changes[3][2];
        const char *message;
    } cases[] = {
        {{{"k_proj.weight.scales", "k_proj.weight.scalez"}},
         "k_proj.weight' has 8-bit codes without scales"},
        {{{"0.self_attn.q_proj.weight.scales", "0.self_attn.#_proj.weight.scales"},
          {"0.self_attn.k_proj.weight.scales", "0.self_attn.q_proj.weight.scales"},
          {"0.self_attn.#_proj.weight.scales", "0.self_attn.k_proj.weight.scales"}},
         "weight.scales' has another type or shape than the codes need"},
        {{{"0.self_attn.q_proj.weight\"", "0.self_attn.x_proj.weight\""}}, "is not in the model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct files f;
        char folder[128], pattern[160];
        files_open(&f);
        struct run_job first = {.config = config_of(KIND_ADAMW8BIT), .end = 1, .to = f.there};
        struct run_job second = {
            .config = config_of(KIND_ADAMW8BIT), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        snprintf(folder, sizeof folder, "%s/step-1", f.there);
        snprintf(pattern, sizeof pattern, "%s/optimizer/momentum*", folder);
        for (int c = 0; c < 3 && cases[i].changes[c][0]; c++)
            replace(&f.s, pattern, cases[i].changes[c][0], cases[i].changes[c][1]);
        seal(&f.s, folder, OPS_ARITHMETIC);
        run_job(&second, 1);
        assert_int_equal(second.status, STATUS_FORMAT);
        if (!strstr(second.lines, cases[i].message) || !strstr(second.lines, "optimizer/momentum"))
            fail_msg("case %zu: %s", i, second.lines);
        free(first.params);
        scratch_close(&f.s);
    }
}

static void test_older_arithmetic_is_told(void **state)
{
    (void)state;
    for (int arithmetic = 0; arithmetic <= OPS_ARITHMETIC; arithmetic++) {
        struct files f;
        char folder[128];
        files_open(&f);
        struct run_job first = {.config = config_of(KIND_ADAMW), .end = 1, .to = f.there};
        struct run_job second = {
            .config = config_of(KIND_ADAMW), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        snprintf(folder, sizeof folder, "%s/step-1", f.there);
        seal(&f.s, folder, arithmetic);
        run_job(&second, 2);
        assert_int_equal(second.status, STATUS_OK);
        assert_int_equal(count_lines(second.lines, "CPU arithmetic differed in the last bits"),
                         arithmetic < OPS_ARITHMETIC);
        free(first.params), free(second.params);
        scratch_close(&f.s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_continues_on_any_layout),
        cmocka_unit_test(test_tp_ranks_continue),
        cmocka_unit_test(test_adamw_is_converted),
        cmocka_unit_test(test_conversions_are_counted),
        cmocka_unit_test(test_other_changes_are_refused),
        cmocka_unit_test(test_changed_codes_are_named),
        cmocka_unit_test(test_older_arithmetic_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
