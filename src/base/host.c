/* host -- reads /proc, /sys and the affinity mask. In a container these show the host's processors
 * and memory, so the limits of the control group are read as well. */
#include "base/host.h"
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/cgroup.h"
#include "base/topology.h"

/* The value of the first line of `path` that starts with `name`, after white space and colons. */
static bool read_field(const char *path, const char *name, char *out, size_t bytes)
{
    char line[512];
    FILE *file = fopen(path, "r");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t name_bytes = strlen(name);
        if (strncmp(line, name, name_bytes) != 0)
            continue;
        const char *value = line + name_bytes;
        value += strspn(value, " \t:");
        snprintf(out, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

static size_t meminfo_bytes(const char *name)
{
    char value[64];
    return read_field("/proc/meminfo", name, value, sizeof value) ? strtoull(value, NULL, 10) * 1024
                                                                  : 0;
}

static void look_at_processors(struct machine *machine)
{
    cpu_set_t mask;
    struct topology topology;
    machine->processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        topology_read("/sys", &mask, &topology);
        machine->allowed = CPU_COUNT(&mask);
        machine->cores = topology.core_count;
        machine->nodes = topology.node_count;
        topology_print(&mask, machine->mask, sizeof machine->mask);
        topology_print_nodes(&topology, machine->node_list, sizeof machine->node_list);
        memset(&mask, 0xff, sizeof mask);
        topology_read("/sys", &mask, &topology);
        machine->all_nodes = topology.node_count;
    }
    if (!read_field("/proc/cpuinfo", "model name", machine->cpu, sizeof machine->cpu))
        read_field("/proc/cpuinfo", "Model", machine->cpu, sizeof machine->cpu);
    machine->quota = cgroup_cpu_quota("");
}

void machine_look(struct machine *machine)
{
    struct statvfs folder;
    char limit[64];
    *machine = (struct machine){0};
    look_at_processors(machine);
    machine->memory_bytes = meminfo_bytes("MemTotal");
    machine->memory_free_bytes = meminfo_bytes("MemAvailable");
    if (read_field("/sys/fs/cgroup/memory.max", "", limit, sizeof limit))
        machine->memory_limit_bytes = strtoull(limit, NULL, 10); /* "max" reads as 0 */
    if (statvfs(".", &folder) == 0)
        machine->disk_free_bytes = (size_t)folder.f_bavail * folder.f_frsize;
    if (statvfs("/dev/shm", &folder) == 0)
        machine->shm_bytes = (size_t)folder.f_blocks * folder.f_frsize;
}

size_t machine_memory(void)
{
    struct machine machine;
    machine_look(&machine);
    size_t limit = machine.memory_limit_bytes;
    return limit && limit < machine.memory_free_bytes ? limit : machine.memory_free_bytes;
}

/* With more CPUs than cpu_set_t can represent there is no mask; then count those online. */
int machine_cpus(void)
{
    cpu_set_t mask;
    long count = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask)
                                                               : sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}

/* The value of a line "NAME: 1234 kB", in bytes. */
static size_t field_bytes(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

/* The system keeps no peak of RssAnon + RssShmem (VmHWM includes file pages), so a caller that
 * wants the peak must ask when usage is highest. */
size_t resident_bytes(void)
{
    char status[4096];
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t bytes = read(file, status, sizeof status - 1);
    close(file);
    if (bytes <= 0)
        return 0;
    status[bytes] = '\0';
    return field_bytes(status, "\nRssAnon:") + field_bytes(status, "\nRssShmem:");
}
