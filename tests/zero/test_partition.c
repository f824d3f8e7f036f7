/* The layout of pieces: aligned, disjoint, and covered by the owners' shards for any number of
 * owners. */
#include "testing.h"
#include "zero/partition.h"

static const struct unit_tensor tensors[] = {
    {.name = "a", .dims = 2, .shape = {7, 13}},  {.name = "b", .dims = 1, .shape = {5}},
    {.name = "c", .dims = 2, .shape = {3, 64}},  {.name = "d", .dims = 1, .shape = {1}},
    {.name = "e", .dims = 2, .shape = {129, 3}},
};
static const struct unit_param params[] = {{0, 2, 0}, {2, 1, 0}, {3, 1, 1}, {4, 1, 1}};
static const struct unit_piece pieces[] = {{"one", 0, 2}, {"two", 2, 2}};
static const struct unit_graph graph = {
    .tensors = tensors,
    .params = params,
    .pieces = pieces,
    .tensor_count = 5,
    .param_count = 4,
    .piece_count = 2,
};

static void test_params_are_aligned_and_tensors_follow_each_other(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct partition p;
    assert_ok(partition_create(&env, &graph, 1, &p));
    for (int i = 0; i < graph.param_count; i++)
        assert_int_equal(p.param_offset[i] % OPS_BLOCK, 0);
    struct piece_range a = partition_tensor(&p, 0), b = partition_tensor(&p, 1),
                       c = partition_tensor(&p, 2);
    assert_int_equal(b.first, a.first + a.count); /* fused: no gap */
    assert_int_equal(c.first, 128);               /* 91 + 5 = 96, rounded up to blocks */
    assert_int_equal(p.piece_count[0], 128 + 192);
    partition_free(&env, &p);
    env_destroy(&env);
}

static void test_owners_cover_every_element_once(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    for (int owners = 1; owners <= 17; owners++) {
        struct partition p;
        assert_ok(partition_create(&env, &graph, owners, &p));
        for (int i = 0; i < graph.piece_count; i++)
            assert_int_equal(partition_reduce_shard(&p, i) % OPS_BLOCK, 0);
        for (int t = 0; t < graph.tensor_count; t++) {
            struct piece_range whole = partition_tensor(&p, t);
            int64_t next = whole.first;
            for (int owner = 0; owner < owners; owner++) {
                struct piece_range part = partition_clip(&p, whole, owner);
                if (part.count == 0)
                    continue;
                assert_int_equal(part.first, next);
                next += part.count;
            }
            assert_int_equal(next, whole.first + whole.count);
        }
        partition_free(&env, &p);
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_are_aligned_and_tensors_follow_each_other),
        cmocka_unit_test(test_owners_cover_every_element_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
