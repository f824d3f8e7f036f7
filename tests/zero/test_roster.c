/* Which rank owns which shard and sums which reduce shard. */
#include "testing.h"
#include "zero/roster.h"

static void test_one_copy(void **state)
{
    (void)state;
    struct roster r = roster_of(1, 4, 0);
    assert_int_equal(roster_shards(&r), 4);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(roster_shard(&r, rank), rank);
        assert_int_equal(roster_reduce_shard(&r, rank), rank);
    }
}

static void test_servers_own(void **state)
{
    (void)state;
    struct roster r = roster_of(0, 5, 2);
    assert_int_equal(roster_shards(&r), 2);
    assert_int_equal(roster_shard(&r, 2), -1);
    assert_int_equal(roster_reduce_shard(&r, 2), -1);
    assert_int_equal(roster_shard(&r, 4), 1);
    assert_int_equal(roster_reduce_shard(&r, 4), 1);
    assert_false(roster_is_even(&r));
}

/* Every reduce shard is summed by one rank, and is part of the shard that this rank holds. */
static void test_copies(void **state)
{
    (void)state;
    for (int copies = 1; copies <= 12; copies++) {
        struct roster r = roster_of(0, 12, 0);
        uint32_t seen = 0;
        bool even = true;
        r.copies = copies;
        if (12 % copies != 0)
            continue;
        for (int rank = 0; rank < 12; rank++) {
            seen |= 1u << roster_reduce_shard(&r, rank);
            assert_int_equal(roster_reduce_shard(&r, rank) / copies, roster_shard(&r, rank));
            even = even && roster_reduce_shard(&r, rank) == rank;
        }
        assert_int_equal(seen, (1u << 12) - 1);
        assert_int_equal(roster_is_even(&r), even);
    }
}

static void test_micro_batches(void **state)
{
    (void)state;
    struct roster r = roster_of(2, 4, 1);
    assert_int_equal(roster_rounds(&r, 7), 3);
    assert_int_equal(roster_active(&r, 7, 1), 3);
    assert_int_equal(roster_active(&r, 7, 2), 1);
    assert_int_equal(roster_micro_batch(&r, 7, 1), 5);
    assert_int_equal(roster_micro_batch(&r, 7, 2), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_copy),
        cmocka_unit_test(test_servers_own),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
