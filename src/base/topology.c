/* topology -- reads
 *
 *     devices/system/cpu/online                              which CPUs are there
 *     devices/system/cpu/cpuN/topology/thread_siblings_list  those that share the core of N
 *     devices/system/node/nodeM/cpulist                      those of NUMA node M
 *     bus/pci/devices/ADDRESS/numa_node                      M, or -1
 *
 * A core is known by its lowest CPU, also if the process may not use that one. */
#include "base/topology.h"
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES = 4096 };

/* --- lists ---------------------------------------------------------------------------------- */

/* Reads a number at *at and moves behind it. */
static bool take_number(const char **at, long *number)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    *number = strtol(*at, &end, 10);
    *at = end;
    return *number < INT_MAX;
}

bool topology_parse(const char *list, cpu_set_t *set)
{
    CPU_ZERO(set);
    list += strspn(list, " \t\n");
    while (*list) {
        long first, last;
        if (!take_number(&list, &first))
            return false;
        last = first;
        if (*list == '-') {
            list++;
            if (!take_number(&list, &last) || last < first)
                return false;
        }
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((size_t)cpu, set);
        if (*list == ',' && list[1] >= '0' && list[1] <= '9')
            list++;
        else if (list[strspn(list, " \t\n")] != '\0')
            return false;
        else
            break;
    }
    return true;
}

void topology_print(const cpu_set_t *set, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < CPU_SETSIZE && used < bytes; i++) {
        if (!CPU_ISSET(i, set))
            continue;
        int last = i;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        const char *comma = used ? "," : "";
        used += (size_t)(last > i ? snprintf(out + used, bytes - used, "%s%d-%d", comma, i, last)
                                  : snprintf(out + used, bytes - used, "%s%d", comma, i));
        i = last;
    }
}

void topology_print_nodes(const struct topology *topology, char *out, size_t bytes)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int n = 0; n < topology->node_count; n++)
        CPU_SET((size_t)topology->nodes[n], &set);
    topology_print(&set, out, bytes);
}

__attribute__((format(printf, 2, 3))) static bool read_list(cpu_set_t *set, const char *format, ...)
{
    char path[PATH_MAX], line[LIST_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(path, sizeof path, format, args);
    va_end(args);
    FILE *file = length < (int)sizeof path ? fopen(path, "r") : NULL;
    if (!file)
        return false;
    size_t got = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[got] = '\0';
    return topology_parse(line, set);
}

/* --- cores and nodes ------------------------------------------------------------------------ */

/* Sets node[c] of all CPUs of each node. Folders have gaps: node0, node8. */
static void read_nodes(const char *sys, int *node)
{
    char path[PATH_MAX];
    cpu_set_t set;
    int number, end;
    memset(node, 0, CPU_SETSIZE * sizeof *node);
    if (snprintf(path, sizeof path, "%s/devices/system/node", sys) >= (int)sizeof path)
        return;
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        end = 0;
        if (sscanf(entry->d_name, "node%d%n", &number, &end) != 1 || entry->d_name[end] ||
            number < 0 || number >= CPU_SETSIZE ||
            !read_list(&set, "%s/node%d/cpulist", path, number))
            continue;
        for (int c = 0; c < CPU_SETSIZE; c++)
            if (CPU_ISSET(c, &set))
                node[c] = number;
    }
    if (folder)
        closedir(folder);
}

/* The lowest CPU that shares the core of `cpu`. */
static int core_of(const char *sys, int cpu)
{
    cpu_set_t set;
    if (!read_list(&set, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", sys, cpu) ||
        !CPU_ISSET(cpu, &set))
        return cpu;
    int lowest = 0;
    while (!CPU_ISSET(lowest, &set))
        lowest++;
    return lowest;
}

static int compare(const void *a, const void *b)
{
    const struct topology_cpu *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->core != y->core)
        return x->core < y->core ? -1 : 1;
    return x->cpu < y->cpu ? -1 : x->cpu > y->cpu;
}

/* The system's numbers become those of the list. */
static void number_from_zero(struct topology *t)
{
    int core = -1, node = -1;
    for (int i = 0; i < t->count; i++) {
        struct topology_cpu *cpu = &t->cpus[i];
        if (i == 0 || cpu->node != node)
            t->nodes[t->node_count++] = node = cpu->node;
        if (i == 0 || cpu->core != core)
            t->core_count++;
        core = cpu->core;
        cpu->core = t->core_count - 1;
        cpu->node = t->node_count - 1;
    }
}

void topology_read(const char *sys, const cpu_set_t *allowed, struct topology *topology)
{
    cpu_set_t online;
    int node[CPU_SETSIZE];
    memset(topology, 0, sizeof *topology);
    if (!read_list(&online, "%s/devices/system/cpu/online", sys))
        online = *allowed;
    read_nodes(sys, node);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, allowed) && CPU_ISSET(c, &online))
            topology->cpus[topology->count++] =
                (struct topology_cpu){.cpu = c, .core = core_of(sys, c), .node = node[c]};
    qsort(topology->cpus, (size_t)topology->count, sizeof *topology->cpus, compare);
    number_from_zero(topology);
}

int topology_pci_node(const char *sys, const char *bus)
{
    char address[32], path[PATH_MAX], line[32] = "", *end;
    size_t length = strcspn(bus, " ");
    if (length == 0 || length >= sizeof address)
        return -1;
    for (size_t i = 0; i <= length; i++) /* drivers write capitals, /sys does not */
        address[i] = i < length ? (char)tolower((unsigned char)bus[i]) : '\0';
    if (snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sys, address) >=
        (int)sizeof path)
        return -1;
    FILE *file = fopen(path, "r");
    bool got = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    long node = got ? strtol(line, &end, 10) : -1;
    return got && end != line && *end == '\n' && node >= 0 && node < CPU_SETSIZE ? (int)node : -1;
}
