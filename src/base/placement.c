/* placement -- the list of a topology is cut into one slice for each rank.
 *
 * What is cut is cores, or CPUs if there are not enough cores. Ranks are first dealt to the NUMA
 * nodes: the next rank goes to the node that has most for each of its ranks, itself included. If
 * then no rank has less than an equal share of the machine, each node is cut for its ranks.
 * Otherwise the whole list is cut, and slices may cross nodes: three ranks on two nodes of eight
 * cores get five or six cores each. */
#include "base/placement.h"
#include <stdlib.h>
#include <string.h>

/* A list of `count` pieces, each a core or a CPU. */
struct pieces {
    const struct topology *topology; /* borrowed */
    bool cores;
    int count;
};

static int piece_of(const struct pieces *pieces, int at)
{
    return pieces->cores ? pieces->topology->cpus[at].core : at;
}

/* first[n] = the first piece of node n, and the end of the last node. */
static void find_nodes(const struct pieces *pieces, int *first)
{
    const struct topology *t = pieces->topology;
    for (int at = t->count - 1; at >= 0; at--)
        first[t->cpus[at].node] = piece_of(pieces, at);
    first[t->node_count] = pieces->count;
}

struct slice {
    int first, end; /* pieces */
};

static struct slice part(int first, int end, int parts, int number)
{
    long long count = end - first;
    return (struct slice){first + (int)(count * number / parts),
                          first + (int)(count * (number + 1) / parts)};
}

static struct slice cut(const struct pieces *pieces, int ranks, int rank)
{
    int nodes = pieces->topology->node_count;
    int first[CPU_SETSIZE + 1], dealt[CPU_SETSIZE] = {0};
    find_nodes(pieces, first);
    for (int r = 0; r < ranks; r++) {
        int best = 0;
        for (int n = 1; n < nodes; n++)
            if ((first[n + 1] - first[n]) * (dealt[best] + 1) >
                (first[best + 1] - first[best]) * (dealt[n] + 1))
                best = n;
        dealt[best]++;
    }
    for (int n = 0; n < nodes; n++)
        if (dealt[n] * (pieces->count / ranks) > first[n + 1] - first[n])
            return part(0, pieces->count, ranks, rank);
    int node = 0;
    while (rank >= dealt[node])
        rank -= dealt[node++];
    return part(first[node], first[node + 1], dealt[node], rank);
}

static void fill(const struct pieces *pieces, struct slice slice, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (int at = 0; at < pieces->topology->count; at++) {
        int piece = piece_of(pieces, at);
        if (piece >= slice.first && piece < slice.end)
            CPU_SET((size_t)pieces->topology->cpus[at].cpu, set);
    }
}

bool placement_slice(const struct topology *topology, int ranks, int threads, int rank,
                     cpu_set_t *slice)
{
    for (int way = 0; way < 2; way++) {
        struct pieces pieces = {topology, way == 0,
                                way == 0 ? topology->core_count : topology->count};
        bool enough = ranks <= pieces.count;
        for (int r = 0; r < ranks && enough; r++) {
            fill(&pieces, cut(&pieces, ranks, r), slice);
            enough = CPU_COUNT(slice) >= threads;
        }
        if (!enough)
            continue;
        fill(&pieces, cut(&pieces, ranks, rank), slice);
        return true;
    }
    return false;
}

const char *placement_openmp(void)
{
    static const char *const names[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && *value && strcmp(value, "false") != 0 && strcmp(value, "disabled") != 0)
            return names[i];
    }
    return NULL;
}

void placement_prepare(void)
{
    if (!placement_openmp())
        setenv("KMP_AFFINITY", "disabled", 1);
}

bool placement_bind(int ranks, int threads, int rank)
{
    struct topology topology;
    cpu_set_t allowed, slice;
    if (ranks < 2 || rank < 0 || rank >= ranks || placement_openmp() ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    topology_read("/sys", &allowed, &topology);
    return placement_slice(&topology, ranks, threads, rank, &slice) &&
           sched_setaffinity(0, sizeof slice, &slice) == 0;
}

bool placement_near(const struct topology *topology, int node, int threads, cpu_set_t *slice)
{
    int cores = 0, last = -1;
    CPU_ZERO(slice);
    for (int at = 0; at < topology->count; at++) {
        const struct topology_cpu *cpu = &topology->cpus[at];
        if (topology->nodes[cpu->node] != node)
            continue;
        CPU_SET((size_t)cpu->cpu, slice);
        cores += cpu->core != last;
        last = cpu->core;
    }
    return cores > 0 && cores >= threads;
}

bool placement_bind_near(const char *gpu, int threads)
{
    struct topology topology;
    cpu_set_t allowed, slice;
    int node = topology_pci_node("/sys", gpu);
    if (node < 0 || placement_openmp() || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    topology_read("/sys", &allowed, &topology);
    return placement_near(&topology, node, threads, &slice) &&
           sched_setaffinity(0, sizeof slice, &slice) == 0;
}
