/* norm_tree -- a sum of many numbers whose bits depend on their order alone, not on how they were
 * cut.
 *
 * Numbers 0, 1, 2, ... are the leaves of a binary tree: a node covers 2^level leaves from a
 * multiple of 2^level and is the sum of its two children. Whoever has all leaves of an aligned node
 * may send just the node. A node whose right half is past the end is its left half.
 */
#ifndef ZERO_NORM_TREE_H
#define ZERO_NORM_TREE_H
#include <stdint.h>

struct norm_tree {
    uint64_t leaves; /* added so far: bit `level` set = node[level] waits for its right neighbour */
    double node[64];
};

/* The next 2^level leaves as one node. `leaves` must be a multiple of 2^level. */
void norm_tree_add(struct norm_tree *tree, int level, double value);
double norm_tree_sum(const struct norm_tree *tree);

/* The node over `count` values, a power of two, without counting: a tenth of the time. */
double norm_tree_node(const double *values, int64_t count);

#endif
