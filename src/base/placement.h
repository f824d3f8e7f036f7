/* placement -- which CPUs each rank of a machine uses.
 *
 * Ranks share nothing, so each gets CPUs of its own, next to each other: whole cores as long as
 * there are enough, and cores of one NUMA node where that takes no core from any rank. Its threads
 * inherit them. Bits do not depend on it. */
#ifndef BASE_PLACEMENT_H
#define BASE_PLACEMENT_H
#include "base/topology.h"

/* The CPUs of rank `rank` of `ranks`, each with at least one CPU for each of its `threads`. false =
 * there are not enough CPUs for all ranks: the system does better with all of them in common. */
bool placement_slice(const struct topology *topology, int ranks, int threads, int rank,
                     cpu_set_t *slice);

/* Keep the calling thread, and those that it starts later, to its part of the CPUs that it may use
 * now. false = nothing was changed: one rank alone, `rank` -1 for unknown, OpenMP binds, or there
 * are not enough CPUs. */
bool placement_bind(int ranks, int threads, int rank);

/* The CPUs of NUMA node `node`, by the system's number. false = it has fewer cores than
 * `threads`, or there is no such node. */
bool placement_near(const struct topology *topology, int node, int threads, cpu_set_t *slice);
/* Keep the calling thread, and those that it starts later, to the CPUs near a GPU, by its address
 * (topology_pci_node). Ranks with GPUs of one node share them: most of their work is elsewhere.
 * false = nothing was changed. */
bool placement_bind_near(const char *gpu, int threads);

/* Call it before OpenMP is used and threads are started: clang's library would give every thread
 * the CPUs of the first one that used it. */
void placement_prepare(void);

/* The variable that makes OpenMP bind the threads itself; NULL = none is set. */
const char *placement_openmp(void);

#endif
