/* mesh -- the ranks of a job as a block of dp x pp x tp: replicas of pipelines of tensor-parallel
 * groups.
 *
 *     rank = (d * pp + p) * tp + t           t innermost: neighbours, on one node
 *
 *     tp 2, pp 2, dp 2     stage 0   stage 1
 *         replica 0          0-1       2-3        tp groups 0-1, 2-3, 4-5, 6-7
 *         replica 1          4-5       6-7        pp groups 0 2, 1 3, 4 6, 5 7
 *                                                 dp groups 0 4, 1 5, 2 6, 3 7
 *
 * Tensor parallel talks most and waits for every word, pipelines talk little, replicas once a step:
 * so the fastest wires go to t. What the numbers mean to a model is said elsewhere.
 */
#ifndef COMM_MESH_H
#define COMM_MESH_H
#include "base/text.h"
#include "comm/comm.h"

struct mesh {
    int size, tp, pp, dp; /* size = dp * pp * tp */
    int rank, t, p, d;    /* this rank and its place */
};

/* The place of `rank` among `size`; dp is what tp and pp leave. STATUS_CONFIG when they do not
 * divide the ranks, with what would. */
enum status mesh_of(struct env *env, int size, int rank, int tp, int pp, struct mesh *mesh);
int mesh_rank(const struct mesh *mesh, int d, int p, int t);

/* hosts (size): the name of the node each rank is on. STATUS_CONFIG unless each tensor-parallel
 * group is on one node; says which is not, and what would be. */
enum status mesh_check_hosts(struct env *env, const struct mesh *mesh, const char *const *hosts);

/* The groups that this rank is in: its number in them is t, p and d. */
struct mesh_groups {
    struct comm *tp, *pp, *dp;
};
/* Collective over `world`, whose ranks are the mesh's; works dry. The caller frees *groups. */
enum status mesh_groups_create(struct comm *world, const struct mesh *mesh,
                               struct mesh_groups *groups);
void mesh_groups_free(struct mesh_groups *groups); /* collective, as comm_destroy */

/* The map of ranks, a line a replica; of long and wide ones the middle is left out. */
void mesh_print(const struct mesh *mesh, struct text *text);

#endif
