/* Matrices are given to owners so that no two owners differ by more than one of them. */
#include "testing.h"
#include "base/rng.h"
#include "zero/zero_impl.h"

enum { MOST_TASKS = 60, MOST_OWNERS = 70 };

/* Tasks whose costs are those of a model (few different ones) or all different. */
static int make_tasks(struct muon_task *tasks, int count, bool model)
{
    for (int i = 0; i < count; i++) {
        int64_t random = (int64_t)rng_below(rng_stream(3, "costs"), (uint64_t)i, 1000) + 1;
        tasks[i] = (struct muon_task){.tensor = i, .cost = model ? 100 + 300 * (i % 4) : random};
    }
    return count;
}

static void check(int count, int owners, bool model)
{
    struct muon_task tasks[MOST_TASKS];
    int64_t work[MOST_OWNERS] = {0}, sums[MOST_OWNERS] = {0}, largest = 0, least, most;
    bool seen[MOST_TASKS] = {false}, busy[MOST_TASKS][MOST_OWNERS] = {{false}};
    make_tasks(tasks, count, model);
    int rounds = zero_muon_assign(tasks, count, owners, work), last = 0;
    for (int i = 0; i < count; i++) {
        const struct muon_task *t = &tasks[i];
        assert_true(t->owner >= 0 && t->owner < owners && t->round < rounds);
        assert_false(seen[t->tensor]);
        assert_false(busy[t->round][t->owner]); /* one in a round, and no round is skipped */
        assert_true(t->round == 0 || busy[t->round - 1][t->owner]);
        seen[t->tensor] = busy[t->round][t->owner] = true;
        sums[t->owner] += t->cost;
        largest = t->cost > largest ? t->cost : largest;
        last = t->round > last ? t->round : last;
    }
    assert_int_equal(rounds, last + 1);
    least = most = work[0];
    for (int owner = 0; owner < owners; owner++) {
        assert_int_equal(work[owner], sums[owner]);
        least = work[owner] < least ? work[owner] : least;
        most = work[owner] > most ? work[owner] : most;
    }
    assert_true(most - least <= largest);
}

static void test_balance(void **state)
{
    (void)state;
    for (int owners = 1; owners <= MOST_OWNERS; owners = owners * 3 / 2 + 1)
        for (int count = 1; count <= MOST_TASKS; count += 7)
            for (int model = 0; model < 2; model++)
                check(count, owners, model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_balance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
