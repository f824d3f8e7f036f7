/* Which params unit_freeze freezes, how it splits pieces, and what it refuses, on a graph made by
 * hand. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "unit/unit_freeze.h"

static void nothing(const struct unit *unit, struct unit_run *run)
{
    (void)unit, (void)run;
}

#define USES UNIT_ALL_USES
static const struct unit_type body = {
    .name = "body",
    .reads = {[PASS_FORWARD] = USES, [PASS_BACKWARD] = USES},
    .writes = {[PASS_BACKWARD] = USES},
    .run = {[PASS_FORWARD] = nothing, [PASS_BACKWARD] = nothing},
};
static const struct unit_type head = {
    .name = "head",
    .reads = {[PASS_LOSS] = USES},
    .writes = {[PASS_LOSS] = USES},
    .run = {[PASS_LOSS] = nothing},
};

/* wte | norm, q + k, out, bias | last norm; the head also uses wte. */
enum { WTE, NORM, QK, OUT, BIAS, LAST, PARAMS };
static const char *const names[] = {"wte", "0.norm", "0.q", "0.k", "0.out", "0.out.bias", "norm"};
enum { TENSORS = 7, PIECES = 3, UNITS = 3 };

struct fixture {
    struct env env;
    struct unit_tensor tensors[TENSORS];
    struct unit_param params[PARAMS];
    struct unit_piece pieces[PARAMS];
    struct unit units[UNITS];
    struct unit_graph graph;
};

static void open_fixture(struct fixture *f)
{
    static const int first_param[PIECES + 1] = {WTE, NORM, LAST, PARAMS};
    *f = (struct fixture){.env = testing_env(1)};
    for (int t = 0; t < TENSORS; t++) {
        f->tensors[t] = (struct unit_tensor){.dims = 1, .shape = {64}};
        snprintf(f->tensors[t].name, UNIT_NAME, "%s", names[t]);
    }
    for (int i = 0, t = 0; i < PIECES; i++) {
        int count = first_param[i + 1] - first_param[i];
        f->pieces[i] = (struct unit_piece){.first_param = first_param[i], .param_count = count};
        snprintf(f->pieces[i].name, UNIT_NAME, "p%d", i);
        for (int p = first_param[i]; p < first_param[i + 1]; p++) {
            f->params[p] = (struct unit_param){t, p == QK ? 2 : 1, i};
            t += p == QK ? 2 : 1;
        }
    }
    f->units[0] = (struct unit){.type = &body, .use_count = 1, .uses = {WTE}};
    f->units[1] = (struct unit){.type = &body, .use_count = 4, .uses = {NORM, QK, OUT, BIAS}};
    f->units[2] = (struct unit){.type = &head, .use_count = 2, .uses = {LAST, WTE}};
    f->graph = (struct unit_graph){.tensors = f->tensors,
                                   .params = f->params,
                                   .pieces = f->pieces,
                                   .units = f->units,
                                   .tensor_count = TENSORS,
                                   .param_count = PARAMS,
                                   .piece_count = PIECES,
                                   .unit_count = UNITS,
                                   .stream_width = 1};
    unit_graph_check(&f->graph);
}

static enum status freeze(struct fixture *f, const char *globs)
{
    return unit_freeze(&f->env, globs, &f->graph, f->params, f->pieces, f->units);
}

static void close_fixture(struct fixture *f)
{
    assert_int_equal(mem_total(f->env.mem), 0);
    env_destroy(&f->env);
}

/* Params of each piece, with "*" if it is frozen: "1* 2 1*". */
static void expect_pieces(const char *globs, const char *expected)
{
    struct fixture f;
    bool frozen[PARAMS];
    char text[64];
    size_t used = 0;
    open_fixture(&f);
    assert_ok(freeze(&f, globs));
    unit_graph_check(&f.graph);
    unit_find_frozen(&f.graph, frozen);
    for (int i = 0; i < f.graph.piece_count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d%s", i > 0 ? " " : "",
                                 f.graph.pieces[i].param_count, frozen[i] ? "*" : "");
    assert_string_equal(text, expected);
    close_fixture(&f);
}

static void test_pieces(void **state)
{
    (void)state;
    expect_pieces("0.*", "1 4* 1");
    expect_pieces("wte", "1* 4 1");
    expect_pieces("*norm", "1 1* 3 1*");
    expect_pieces("0.q,0.k", "1 1 1* 2 1");
    expect_pieces("0.[qk]", "1 1 1* 2 1");
    expect_pieces("*.bias,wte", "1* 3 1* 1");
    expect_pieces("0.norm,0.out", "1 1* 1 1* 1 1");
}

static void test_uses(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f);
    assert_ok(freeze(&f, "wte,0.out"));
    assert_true(unit_is_frozen(&f.units[0]));
    assert_false(unit_is_frozen(&f.units[1]));
    assert_int_equal(unit_written_uses(&f.units[1], PASS_BACKWARD) & 15, 11);
    assert_false(unit_writes(&f.units[1], PASS_BACKWARD, 2));
    assert_true(unit_writes(&f.units[1], PASS_BACKWARD, 3));
    assert_true(unit_writes(&f.units[2], PASS_LOSS, 0));
    assert_false(unit_writes(&f.units[2], PASS_LOSS, 1)); /* the second use of wte */
    close_fixture(&f);
}

static void expect_refusal(const char *globs, const char *words)
{
    struct fixture f;
    open_fixture(&f);
    assert_int_equal(freeze(&f, globs), STATUS_CONFIG);
    if (!strstr(log_first_error(f.env.log), words))
        fail_msg("'%s' is not in '%s'", words, log_first_error(f.env.log));
    assert_int_equal(f.graph.piece_count, PIECES);
    close_fixture(&f);
}

/* The first unit that learns: those before it need no backward pass. */
static void test_backward_from(void **state)
{
    (void)state;
    static const struct {
        const char *globs;
        int first;
    } cases[] = {{"0.*", 0}, {"norm", 0}, {"wte", 1}, {"wte,0.q,0.k", 1}, {"wte,0.*", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        open_fixture(&f);
        assert_ok(freeze(&f, cases[i].globs));
        assert_int_equal(f.graph.backward_from, cases[i].first);
        close_fixture(&f);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    expect_refusal("0.*,layers.*", "'layers.*' matches no parameter");
    expect_refusal("*", "every parameter");
    expect_refusal("0.q", "'0.q' would be frozen, '0.k' would not");
    expect_refusal("*k", "'0.k' would be frozen, '0.q' would not");
    expect_refusal("wte,,norm", "empty");
    expect_refusal("wte,", "empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_uses),
        cmocka_unit_test(test_backward_from),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
