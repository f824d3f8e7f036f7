/* Times of lists: the formulas of the bubble, the cost of transfers, and a comparison with a plain
 * recursion. Equal costs are multiples of a quarter, so that all figures are exact. */
#include <math.h>
#include "base/rng.h"
#include "engine/timetable_simulate.h"
#include "testing.h"

enum { MOST_STAGES = 256 };

struct case_of {
    struct env env;
    struct timetable t;
    struct timetable_times times;
    double forward[MOST_STAGES], input[MOST_STAGES], weight[MOST_STAGES];
    struct timetable_costs costs;
};

static void open_case(struct case_of *c, struct timetable_shape shape, double forward, double input,
                      double weight)
{
    c->env = testing_env(1);
    assert_ok(timetable_create(&c->env, &shape, &c->t));
    for (int s = 0; s < timetable_pp_stages(&shape); s++) {
        c->forward[s] = forward;
        c->input[s] = input;
        c->weight[s] = weight;
    }
    c->costs = (struct timetable_costs){.forward = c->forward,
                                        .input = c->input,
                                        .weight = c->weight,
                                        .transfers = TIMETABLE_LINKS};
}

static void simulate(struct case_of *c)
{
    timetable_times_free(&c->env, &c->times);
    assert_ok(timetable_simulate(&c->env, &c->t, &c->costs, &c->times));
}

static void close_case(struct case_of *c)
{
    timetable_times_free(&c->env, &c->times);
    timetable_free(&c->env, &c->t);
    env_destroy(&c->env);
}

/* With equal stages and transfers that take no time. */
static double bubble(struct timetable_shape shape, double forward, double input, double weight,
                     enum timetable_transfers transfers)
{
    struct case_of c = {0};
    open_case(&c, shape, forward, input, weight);
    c.costs.transfers = transfers;
    simulate(&c);
    double share = c.times.bubble;
    close_case(&c);
    return share;
}

/* --- formulas ------------------------------------------------------------------------------- */

static void expect_equal(double a, double b, struct timetable_shape s)
{
    if (a != b)
        fail_msg("%s, pp %d, chunks %d, rounds %d: %.17g, not %.17g", timetable_words[s.kind], s.pp,
                 s.chunks, s.rounds, a, b);
}

static void test_bubbles(void **state)
{
    (void)state;
    for (int transfers = TIMETABLE_LANE; transfers <= TIMETABLE_LINKS; transfers++) {
        for (int pp = 1; pp <= 8; pp++) {
            for (int m = 1; m <= 20; m++) {
                for (int kind = TIMETABLE_GPIPE; kind <= TIMETABLE_1F1B; kind++) {
                    struct timetable_shape s = {kind, pp, 1, m, false};
                    expect_equal(bubble(s, 1, 1, 1, transfers), (double)(pp - 1) / m, s);
                    expect_equal(bubble(s, 0.5, 1.25, 0.25, transfers), (double)(pp - 1) / m, s);
                }
                for (int v = 1; v <= 4 && m >= pp; v++) {
                    struct timetable_shape s = {TIMETABLE_INTERLEAVED, pp, v, m, m % 2};
                    expect_equal(bubble(s, 1, 1, 1, transfers), (double)(pp - 1) / (m * v), s);
                }
            }
        }
    }
}

/* The last rank cannot begin before (pp - 1) forwards. With equal parts that is the whole bubble;
 * the memory of 1f1b allows (pp - 1) (forward + input - weight). */
static void test_zero_bubble(void **state)
{
    (void)state;
    for (int pp = 2; pp <= 8; pp++) {
        for (int m = 1; m <= 24; m++) {
            struct timetable_shape s = {TIMETABLE_ZERO_BUBBLE, pp, 1, m, false};
            struct timetable_shape plain = {TIMETABLE_1F1B, pp, 1, m, false};
            if (m >= pp)
                expect_equal(bubble(s, 1, 1, 1, TIMETABLE_LINKS), (pp - 1) / (3.0 * m), s);
            assert_true(bubble(s, 1, 1, 1, TIMETABLE_LANE) <
                        bubble(plain, 1, 1, 1, TIMETABLE_LANE));
            /* unequal parts: close to the bound, and far below 1f1b */
            double unlike = bubble(s, 1, 1.25, 0.75, TIMETABLE_LINKS);
            if (m >= 2 * pp) {
                assert_true(unlike >= (pp - 1) * 1.0 / (3.0 * m));
                assert_true(unlike <= (pp - 1) * 2.0 / (3.0 * m));
            }
            s.eager = true;
            assert_true(bubble(s, 1, 1.25, 0.75, TIMETABLE_LINKS) <= unlike);
        }
    }
}

/* --- transfers ------------------------------------------------------------------------------ */

/* Each pass has its own time: a longer one delays the ranks that wait for it. */
static void test_passes_of_unequal_length(void **state)
{
    struct case_of c = {0};
    double each[64];
    (void)state;
    open_case(&c, (struct timetable_shape){TIMETABLE_1F1B, 2, 1, 2, false}, 1, 1, 1);
    assert_true(c.t.first[2] <= 64);
    for (int i = 0; i < c.t.first[2]; i++)
        each[i] = c.t.actions[i].verb == TIMETABLE_FORWARD ? 1 : 2;
    c.costs.each = each;
    simulate(&c);
    assert_true(c.times.end == 9); /* F0, then F0 B0 F1 B1 of the last stage, and B1 */
    for (int i = 0; i < c.t.first[1]; i++)
        if (c.t.actions[i].verb == TIMETABLE_FORWARD && c.t.actions[i].round == 0)
            each[i] = 4;
    simulate(&c);
    assert_true(c.times.end == 12 && c.times.ranks[0].busy == 9);
    close_case(&c);
}

static void test_one_round(void **state)
{
    (void)state;
    for (int kind = 0; timetable_words[kind] != NULL; kind++) {
        for (int transfers = TIMETABLE_BLOCKING; transfers <= TIMETABLE_LINKS; transfers++) {
            struct case_of c = {0};
            open_case(&c, (struct timetable_shape){kind, 3, 1, 1, false}, 1, 2, 4);
            c.costs.latency = 0.25;
            c.costs.transfer = 0.5;
            c.costs.transfers = transfers;
            simulate(&c);
            /* forwards, backward-inputs, the last backward-weights, four messages; a split backward
             * sends sooner */
            double end = kind == TIMETABLE_ZERO_BUBBLE ? 3 + 6 + 4 + 3 : 3 + 18 + 3;
            assert_true(c.times.end == end);
            assert_true(c.times.ranks[1].busy == 7 && c.times.ranks[1].idle == end - 7);
            assert_true(c.times.ranks[0].transfer == 1.5 && c.times.ranks[1].transfer == 3.0);
            close_case(&c);
        }
    }
}

static double end_with(struct case_of *c, double latency, double transfer,
                       enum timetable_transfers transfers)
{
    c->costs.latency = latency;
    c->costs.transfer = transfer;
    c->costs.transfers = transfers;
    simulate(c);
    return c->times.end;
}

/* One lane of transfers in list order is as good as buffered wires; blocking transfers are not;
 * rounds in flight hide transfers. */
static void test_hidden_transfers(void **state)
{
    (void)state;
    for (int kind = TIMETABLE_1F1B; kind <= TIMETABLE_ZERO_BUBBLE; kind++) {
        struct case_of c = {0}, eager = {0};
        int chunks = kind == TIMETABLE_INTERLEAVED ? 2 : 1;
        open_case(&c, (struct timetable_shape){kind, 4, chunks, 16, false}, 1, 1, 1);
        double none = end_with(&c, 0, 0, TIMETABLE_LANE);
        double links = end_with(&c, 0.0625, 0.0625, TIMETABLE_LINKS);
        double lane = end_with(&c, 0.0625, 0.0625, TIMETABLE_LANE);
        double blocking = end_with(&c, 0.0625, 0.0625, TIMETABLE_BLOCKING);
        assert_true(none < links && links <= lane && lane <= 1.01 * links && lane < blocking);
        open_case(&eager, (struct timetable_shape){kind, 4, chunks, 16, true}, 1, 1, 1);
        assert_true(end_with(&eager, 0.0625, 0.0625, TIMETABLE_LANE) < lane);
        close_case(&eager);
        close_case(&c);
    }
}

/* --- any costs ------------------------------------------------------------------------------ */

static int64_t find(const struct timetable *t, int stage, int verb, int round)
{
    int p = stage % t->shape.pp, chunk = stage / t->shape.pp;
    for (int64_t i = t->first[p]; i < t->first[p + 1]; i++)
        if (t->actions[i].verb == verb && t->actions[i].chunk == chunk &&
            t->actions[i].round == round)
            return i;
    return -1;
}

/* A pass begins as soon as the previous pass of its rank has ended and its data has arrived. */
static void expect_begin(const struct case_of *c, int p, int64_t i, double before)
{
    struct timetable_action a = c->t.actions[i];
    int s = timetable_pp_stage(&c->t.shape, p, a.chunk), verb = a.verb, last;
    double begin = before, way = c->costs.latency + c->costs.transfer;
    last = timetable_pp_stages(&c->t.shape) - 1;
    way = c->t.shape.pp > 1 ? way : 0.0;
    if (verb == TIMETABLE_FORWARD && s > 0)
        begin = fmax(begin, way + c->times.spans[find(&c->t, s - 1, verb, a.round)].end);
    if ((verb == TIMETABLE_BACKWARD || verb == TIMETABLE_INPUT) && s < last)
        begin = fmax(begin, way + c->times.spans[find(&c->t, s + 1, verb, a.round)].end);
    assert_float_equal((float)c->times.spans[i].begin, (float)begin, 1e-4f);
}

static void test_any_costs(void **state)
{
    (void)state;
    struct rng rng = rng_stream(3, "costs");
    uint64_t n = 0;
    for (int kind = 0; timetable_words[kind] != NULL; kind++) {
        for (int pp = 1; pp <= 4; pp++) {
            struct case_of c = {0};
            int chunks = kind == TIMETABLE_INTERLEAVED ? 3 : 1;
            open_case(&c, (struct timetable_shape){kind, pp, chunks, 7, false}, 0, 0, 0);
            for (int s = 0; s < pp * chunks; s++) {
                c.forward[s] = 0.1 + (double)(rng_bits(rng, n++) % 100);
                c.input[s] = 0.1 + (double)(rng_bits(rng, n++) % 100);
                c.weight[s] = 0.1 + (double)(rng_bits(rng, n++) % 100);
            }
            c.costs.latency = 3.0; /* infinitely fast wires: nothing queues */
            simulate(&c);
            for (int p = 0; p < pp; p++) {
                double before = 0.0;
                for (int64_t i = c.t.first[p]; i < c.t.first[p + 1]; i++) {
                    if (timetable_is_message(c.t.actions[i].verb))
                        continue;
                    expect_begin(&c, p, i, before);
                    before = c.times.spans[i].end;
                }
                assert_true(before <= c.times.end);
            }
            close_case(&c);
        }
    }
}

/* A large shape takes a fraction of a second; the test has a time limit. */
static void test_large(void **state)
{
    (void)state;
    struct case_of c = {0};
    struct timetable_shape shape = {TIMETABLE_INTERLEAVED, 64, 4, 1024, false};
    open_case(&c, shape, 1, 1, 1);
    assert_ok(timetable_check(&c.env, &c.t));
    simulate(&c);
    assert_true(c.times.bubble == 63.0 / (4 * 1024));
    close_case(&c);
}

/* --- the rest ------------------------------------------------------------------------------- */

static void test_printed(void **state)
{
    (void)state;
    struct case_of c = {0};
    struct text text;
    open_case(&c, (struct timetable_shape){TIMETABLE_ZERO_BUBBLE, 2, 1, 3, false}, 1, 1, 1);
    text_init(&text, &c.env);
    simulate(&c);
    timetable_print_times(&c.t, &c.times, 0, c.times.end, 10, &text);
    assert_string_equal(text_string(&text), "rank 0    01.aw2bwcw\n"
                                            "rank 1    .0a1bw2cww\n");
    text_clear(&text);
    timetable_print_times(&c.t, &c.times, 2, 6, 8, &text); /* an enlarged part */
    assert_string_equal(text_string(&text), "rank 0    ..aaww22\n"
                                            "rank 1    aa11bbww\n");
    text_clear(&text);
    c.costs.latency = 1;
    simulate(&c);
    timetable_print_times(&c.t, &c.times, 0, 5, 5, &text);
    assert_string_equal(text_string(&text), "rank 0    01-.-\n"
                                            "rank 1    .-0a1\n");
    text_free(&text);
    close_case(&c);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct case_of c = {0};
    open_case(&c, (struct timetable_shape){TIMETABLE_1F1B, 2, 1, 2, false}, 1, 1, 1);
    size_t bytes = mem_total(c.env.mem);
    for (int64_t n = 1;; n++) {
        mem_fail_at(c.env.mem, n);
        enum status st = timetable_simulate(&c.env, &c.t, &c.costs, &c.times);
        if (st == STATUS_OK) {
            assert_true(n > 6);
            break;
        }
        assert_int_equal(st, STATUS_MEMORY);
        assert_int_equal(mem_total(c.env.mem), bytes);
    }
    close_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bubbles),
        cmocka_unit_test(test_zero_bubble),
        cmocka_unit_test(test_passes_of_unequal_length),
        cmocka_unit_test(test_one_round),
        cmocka_unit_test(test_hidden_transfers),
        cmocka_unit_test(test_any_costs),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_printed),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
