/* The tree sum has the same bits however the leaves are grouped into aligned nodes, and other bits
 * than a plain loop. */
#include "testing.h"
#include "base/rng.h"
#include "zero/zero_norm.h"

static double leaf(int64_t i)
{
    return 1.0 + 1e3 * rng_uniform(rng_stream(7, "leaves"), (uint64_t)i);
}

/* The definition, by recursion over [first, first + width) cut at `count`. */
static double tree_by_definition(int64_t first, int64_t width, int64_t count)
{
    if (width == 1)
        return leaf(first);
    int64_t half = width / 2;
    double left = tree_by_definition(first, half, count);
    return first + half < count ? left + tree_by_definition(first + half, half, count) : left;
}

static double tree_of_leaves(int64_t count)
{
    struct norm_tree tree = {0};
    for (int64_t i = 0; i < count; i++)
        norm_tree_add(&tree, 0, leaf(i));
    return norm_tree_sum(&tree);
}

static void test_agrees_with_the_definition(void **state)
{
    (void)state;
    for (int64_t count = 1; count <= 300; count++) {
        double a = tree_of_leaves(count), b = tree_by_definition(0, 512, count);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void test_nodes_give_the_bits_of_their_leaves(void **state)
{
    (void)state;
    const int64_t count = 203;
    for (int most = 0; most < 8; most++) {
        struct norm_tree tree = {0};
        for (int64_t i = 0; i < count;) {
            int level = 0;
            while (level < most && i % (2 << level) == 0 && i + (2 << level) <= count)
                level++;
            norm_tree_add(&tree, level, tree_by_definition(i, 1 << level, count));
            i += 1 << level;
        }
        double a = norm_tree_sum(&tree), b = tree_of_leaves(count);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void test_node_over_many_values(void **state)
{
    (void)state;
    double leaves[512];
    for (int64_t i = 0; i < 512; i++)
        leaves[i] = leaf(i);
    for (int64_t count = 1; count <= 512; count *= 2) {
        double a = norm_tree_node(leaves, count), b = tree_by_definition(0, count, count);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void test_empty_is_zero(void **state)
{
    (void)state;
    struct norm_tree tree = {0};
    assert_true(norm_tree_sum(&tree) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_the_definition),
        cmocka_unit_test(test_nodes_give_the_bits_of_their_leaves),
        cmocka_unit_test(test_node_over_many_values),
        cmocka_unit_test(test_empty_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
