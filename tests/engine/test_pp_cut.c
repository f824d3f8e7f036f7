/* The cut of units into PP stages, compared with all possible cuts. */
#include <math.h>
#include <stdbool.h>
#include <time.h>
#include "base/rng.h"
#include "engine/spread.h"
#include "testing.h"

enum { MOST_UNITS = 9 };

/* --- all cuts ------------------------------------------------------------------------------- */

struct best {
    bool found;
    int64_t largest, squares;
    int first[MOST_UNITS + 1];
};

static bool is_better(int64_t largest, int64_t squares, const int *first, const struct best *b,
                      int stages)
{
    if (!b->found || largest != b->largest)
        return !b->found || largest < b->largest;
    if (squares != b->squares)
        return squares < b->squares;
    for (int s = 1; s < stages; s++)
        if (first[s] != b->first[s])
            return first[s] < b->first[s];
    return false;
}

static void look(const struct pp_cut_task *task, const int *first, struct best *best)
{
    int64_t largest = 0, squares = 0;
    for (int s = 0; s < task->pp_stages; s++) {
        int64_t cost = 0;
        size_t bytes = 0;
        for (int u = first[s]; u < first[s + 1]; u++) {
            cost += task->cost[u];
            if (task->most_bytes > 0)
                bytes += task->bytes[u] + (size_t)task->in_flight[s] * task->round_bytes[u];
        }
        if (task->most_bytes > 0 && bytes > task->most_bytes)
            return;
        largest = cost > largest ? cost : largest;
        squares += cost * cost;
    }
    if (is_better(largest, squares, first, best, task->pp_stages)) {
        best->found = true;
        best->largest = largest;
        best->squares = squares;
        memcpy(best->first, first, (size_t)(task->pp_stages + 1) * sizeof *first);
    }
}

static void try_all(const struct pp_cut_task *task, int stage, int *first, struct best *best)
{
    if (stage == task->pp_stages - 1) {
        first[task->pp_stages] = task->units;
        look(task, first, best);
        return;
    }
    for (int u = first[stage] + 1; u <= task->units - (task->pp_stages - 1 - stage); u++) {
        first[stage + 1] = u;
        try_all(task, stage + 1, first, best);
    }
}

static void compare(struct env *env, const struct pp_cut_task *task, int *unfit)
{
    struct best best = {0};
    int first[MOST_UNITS + 1] = {0}, cut[MOST_UNITS + 1];
    try_all(task, 0, first, &best);
    enum status st = pp_cut(env, task, cut);
    log_error_clear(env->log);
    assert_int_equal(st, best.found ? STATUS_OK : STATUS_FIT);
    *unfit += !best.found;
    for (int s = 0; s <= task->pp_stages && best.found; s++)
        assert_int_equal(cut[s], best.first[s]);
}

static void test_against_all_cuts(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rng rng = rng_stream(6, "cuts");
    int unfit = 0, cases = 0;
    for (uint64_t n = 0; n < 400; n++) {
        int64_t cost[MOST_UNITS];
        size_t bytes[MOST_UNITS], round_bytes[MOST_UNITS];
        int in_flight[MOST_UNITS];
        struct pp_cut_task task = {.cost = cost, .units = 1 + (int)(n % MOST_UNITS)};
        for (int u = 0; u < task.units; u++) {
            uint64_t bits = rng_bits(rng, MOST_UNITS * n + (uint64_t)u);
            cost[u] = (int64_t)(bits % (n % 3 == 0 ? 3 : 100)); /* small ones have many ties */
            bytes[u] = bits >> 8 & 15;
            round_bytes[u] = bits >> 16 & 7;
        }
        for (task.pp_stages = 1; task.pp_stages <= task.units; task.pp_stages++, cases++) {
            for (int s = 0; s < task.pp_stages; s++)
                in_flight[s] = task.pp_stages - s;
            task.most_bytes = 0;
            compare(&env, &task, &unfit);
            task.bytes = bytes;
            task.round_bytes = round_bytes;
            task.in_flight = in_flight;
            task.most_bytes = 10 + (size_t)(rng_bits(rng, n + 7777) % 60);
            compare(&env, &task, &unfit);
        }
    }
    assert_true(unfit > 100 && unfit < cases);
    env_destroy(&env);
}

static void test_heavy_ends(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    /* an embedding that costs nothing, twelve blocks, a head worth three: 15 units of work */
    const int64_t cost[] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3};
    struct pp_cut_task task = {.units = 14, .pp_stages = 5, .cost = cost};
    const int even[] = {0, 4, 7, 10, 13, 14};
    int first[6];
    assert_ok(pp_cut(&env, &task, first));
    assert_memory_equal(first, even, sizeof even);
    /* a model with more operations than doubles can count */
    int64_t huge[14];
    for (int u = 0; u < 14; u++)
        huge[u] = cost[u] * INT64_C(100000000000000003);
    task.cost = huge;
    assert_ok(pp_cut(&env, &task, first));
    assert_memory_equal(first, even, sizeof even);
    env_destroy(&env);
}

static double seconds_of_cut(struct env *env, const struct pp_cut_task *task, int *first)
{
    double best = 1e9;
    for (int attempt = 0; attempt < 5; attempt++) { /* the machine may be busy */
        clock_t begin = clock();
        assert_ok(pp_cut(env, task, first));
        best = fmin(best, (double)(clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
}

/* Four times the units would take sixteen times as long if all cuts were tried. */
static void test_many_units(void **state)
{
    (void)state;
    enum { FEW = TESTING_SANITIZED ? 500 : 10000, STAGES = 8 };
    struct env env = testing_env(1);
    int64_t *cost = malloc(4 * FEW * sizeof *cost);
    struct pp_cut_task task = {.units = FEW, .pp_stages = STAGES, .cost = cost};
    int first[STAGES + 1];
    for (int u = 0; u < 4 * FEW; u++)
        cost[u] = 1000003;
    double small = seconds_of_cut(&env, &task, first);
    task.units = 4 * FEW;
    double large = seconds_of_cut(&env, &task, first);
    for (int s = 0; s <= STAGES; s++)
        assert_int_equal(first[s], s * (4 * FEW / STAGES));
    if (!TESTING_SANITIZED && large > 8 * small)
        fail_msg("%.4f s for %d units, %.4f s for four times as many", small, FEW, large);
    free(cost);
    env_destroy(&env);
}

static void test_refused(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    const int64_t cost[] = {1, 1, 1};
    const size_t bytes[] = {10, 10, 20}, round_bytes[] = {1, 1, 1};
    const int in_flight[] = {2, 1};
    struct pp_cut_task task = {.units = 3, .pp_stages = 4, .cost = cost};
    int first[5];
    assert_int_equal(pp_cut(&env, &task, first), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "3 units cannot be cut into 4"));
    log_error_clear(env.log);
    task = (struct pp_cut_task){.units = 3,
                                .pp_stages = 2,
                                .cost = cost,
                                .most_bytes = 23,
                                .bytes = bytes,
                                .round_bytes = round_bytes,
                                .in_flight = in_flight};
    assert_int_equal(pp_cut(&env, &task, first), STATUS_FIT);
    assert_non_null(strstr(log_first_error(env.log), "the smallest one needs 24 B"));
    log_error_clear(env.log);
    task.most_bytes = 24;
    assert_ok(pp_cut(&env, &task, first));
    assert_int_equal(first[1], 2);
    env_destroy(&env);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    const int64_t cost[] = {1, 2, 3};
    struct pp_cut_task task = {.units = 3, .pp_stages = 2, .cost = cost};
    int first[3];
    for (int64_t n = 1; n <= 3; n++) {
        mem_fail_at(env.mem, n);
        assert_int_equal(pp_cut(&env, &task, first), STATUS_MEMORY);
        assert_int_equal(mem_total(env.mem), 0);
    }
    mem_fail_at(env.mem, 4);
    assert_ok(pp_cut(&env, &task, first));
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all_cuts),    cmocka_unit_test(test_heavy_ends),
        cmocka_unit_test(test_many_units),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
