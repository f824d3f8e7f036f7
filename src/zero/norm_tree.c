/* norm_tree -- adding leaves in order is counting in binary: a carry is a finished pair. */
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
