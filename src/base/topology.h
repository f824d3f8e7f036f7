/* topology -- which CPUs share a core, and which NUMA nodes they belong to, as /sys says. Linux
 * only.
 *
 * A CPU is what the system schedules on: with hyper-threads a core has several. */
#ifndef BASE_TOPOLOGY_H
#define BASE_TOPOLOGY_H
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

struct topology_cpu {
    int cpu;
    int core; /* from 0, in the order of the list */
    int node; /* the same; topology.nodes has the system's number */
};

struct topology { /* open */
    int count;    /* CPUs; the list is in the order of nodes, then cores, then CPUs */
    int core_count, node_count;
    struct topology_cpu cpus[CPU_SETSIZE];
    int nodes[CPU_SETSIZE]; /* the system's numbers, which may have gaps */
};

/* The CPUs that are in `allowed` and online. `sys` is the folder to read, "/sys". Where a file is
 * missing, a CPU is a core of its own, and all CPUs are in node 0. */
void topology_read(const char *sys, const cpu_set_t *allowed, struct topology *topology);

/* The system's number of the NUMA node of a PCI device, such as a GPU; -1 = unknown, or the machine
 * has one node. `bus` is the device's address; what follows a space is ignored, as in "0000:1B:00.0
 * of host". */
int topology_pci_node(const char *sys, const char *bus);

/* A list as in /sys: "0-3,8". CPUs that cpu_set_t cannot represent are left out. false = it is not
 * a list. */
bool topology_parse(const char *list, cpu_set_t *set);
void topology_print(const cpu_set_t *set, char *out, size_t bytes);
/* The system's numbers of the nodes, as such a list. */
void topology_print_nodes(const struct topology *topology, char *out, size_t bytes);

#endif
