/* norm_tree -- sums many numbers; the bits depend only on their order, not on how they were split.
 *
 * Numbers 0, 1, 2, ... are the leaves of a binary tree. A node covers 2^level leaves, starting at a
 * multiple of 2^level, and is the sum of its two children. A rank that has all leaves of an aligned
 * node can send just the node. A node whose right half is past the end equals its left half.
 */
#ifndef ZERO_NORM_TREE_H
#define ZERO_NORM_TREE_H
#include <stdint.h>

struct norm_tree {
    uint64_t leaves; /* added so far; bit `level` set = node[level] waits for its right sibling */
    double node[64];
};

/* Add the next 2^level leaves as one node. `leaves` must be a multiple of 2^level. */
void norm_tree_add(struct norm_tree *tree, int level, double value);
double norm_tree_sum(const struct norm_tree *tree);

/* The node over `count` values, where `count` is a power of two. Ten times as fast as adding
 * leaves. */
double norm_tree_node(const double *values, int64_t count);

#endif
