/* mesh -- the ranks of a job as a dp x pp x tp mesh: copies of pipelines of TP groups.
 *
 *     rank = (d * pp + p) * tp + t           t is innermost: TP ranks are adjacent, on one node
 *
 *     tp 2, pp 2, dp 2     stage 0   stage 1
 *         copy 0             0-1       2-3        TP groups 0-1, 2-3, 4-5, 6-7
 *         copy 1             4-5       6-7        PP groups 0 2, 1 3, 4 6, 5 7
 *                                                 DP groups 0 4, 1 5, 2 6, 3 7
 *
 * Tensor parallelism communicates most and waits for every message, pipelines communicate little,
 * and copies once per step, so t gets the fastest links.
 */
#ifndef COMM_MESH_H
#define COMM_MESH_H
#include "base/text.h"
#include "comm/comm.h"

struct mesh {
    int size, tp, pp, dp; /* size = dp * pp * tp */
    int rank, t, p, d;    /* this rank and its coordinates */
};

/* The coordinates of `rank` among `size` ranks; dp is what tp and pp leave. STATUS_CONFIG, with
 * values to try, when tp and pp do not divide the ranks. */
enum status mesh_of(struct env *env, int size, int rank, int tp, int pp, struct mesh *mesh);
int mesh_rank(const struct mesh *mesh, int d, int p, int t);

/* hosts (size): the node name of each rank. STATUS_CONFIG unless each TP group is on one node;
 * names the ranks, and a tp that works. */
enum status mesh_check_hosts(struct env *env, const struct mesh *mesh, const char *const *hosts);

/* The groups of this rank, in which it is rank t, p and d. */
struct mesh_groups {
    struct comm *tp, *pp, *dp;
};
/* Collective over `world`, whose ranks are the mesh's; works dry. The caller frees *groups. */
enum status mesh_groups_create(struct comm *world, const struct mesh *mesh,
                               struct mesh_groups *groups);
void mesh_groups_free(struct mesh_groups *groups); /* collective, like comm_destroy */

/* Print the map of ranks, one line per copy. The middle of a large map is omitted. */
void mesh_print(const struct mesh *mesh, struct text *text);

#endif
