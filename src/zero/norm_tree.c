/* norm_tree -- adding leaves in order is counting in binary: a carry is a complete pair. */
#include "zero/norm_tree.h"

#include "base/status.h"

void norm_tree_add(struct norm_tree *tree, int level, double value)
{
    uint64_t width = (uint64_t)1 << level;
    CHECK((tree->leaves & (width - 1)) == 0);
    while (tree->leaves >> level & 1) {
        value = tree->node[level] + value;
        level++;
    }
    tree->node[level] = value;
    tree->leaves += width;
}

double norm_tree_sum(const struct norm_tree *tree)
{
    double sum = 0.0;
    for (int level = 0, first = 1; level < 64; level++) {
        if (!(tree->leaves >> level & 1))
            continue;
        sum = first ? tree->node[level] : tree->node[level] + sum;
        first = 0;
    }
    return sum;
}

static double node_of_eight(const double *x)
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

double norm_tree_node(const double *values, int64_t count)
{
    CHECK(count > 0 && (count & (count - 1)) == 0);
    if (count == 8)
        return node_of_eight(values);
    if (count == 1)
        return values[0];
    int64_t half = count / 2;
    return norm_tree_node(values, half) + norm_tree_node(values + half, half);
}
