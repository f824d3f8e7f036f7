/* launcher -- the environment variables in which launchers pass a process its rank.
 *
 * A Slurm batch script also has SLURM_PROCID, but only processes that srun starts have a step ID.
 * So a command run by hand inside an allocation is not taken for a rank.
 */
#include "comm/launcher.h"
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *needs, *rank, *size, *local_rank;
} launchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MPICH's mpirun", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};
enum { LAUNCHER_COUNT = sizeof launchers / sizeof launchers[0] };

static bool read_number(const char *variable, int *number)
{
    const char *text = getenv(variable);
    char *end;
    if (text == NULL || *text == '\0')
        return false;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value < 0 || value > INT_MAX)
        return false;
    *number = (int)value;
    return true;
}

/* Does the process have this variable? Another user's process cannot be read: it has not. */
static bool process_has(int process, const char *variable)
{
    char path[64], *entry = NULL;
    size_t room = 0, length = strlen(variable);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", process);
    FILE *file = fopen(path, "r");
    while (file && !found && getdelim(&entry, &room, 0, file) > 0)
        found = strncmp(entry, variable, length) == 0 && entry[length] == '=';
    if (file)
        fclose(file);
    free(entry);
    return found;
}

static int parent_of(int process)
{
    char path[64], line[512];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    const char *name_end = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (name_end && sscanf(name_end, ") %*c %d", &parent) != 1)
        parent = 0;
    if (file)
        fclose(file);
    return parent;
}

/* A launcher gives the variable to its ranks and does not have it itself. */
static int find_process(const char *variable)
{
    int process = (int)getppid();
    while (process > 1 && process_has(process, variable))
        process = parent_of(process);
    return process;
}

bool launcher_find(struct launcher *launcher)
{
    for (int i = 0; i < LAUNCHER_COUNT; i++) {
        struct launcher found = {.name = launchers[i].name, .local_rank = -1};
        if (getenv(launchers[i].needs) == NULL || !read_number(launchers[i].rank, &found.rank) ||
            !read_number(launchers[i].size, &found.size) || found.rank >= found.size)
            continue;
        read_number(launchers[i].local_rank, &found.local_rank);
        found.process = find_process(launchers[i].needs);
        *launcher = found;
        return true;
    }
    return false;
}

int launcher_gpu(int count)
{
    struct launcher launcher;
    if (count < 2 || !launcher_find(&launcher))
        return 0;
    return (launcher.local_rank >= 0 ? launcher.local_rank : launcher.rank) % count;
}

int launcher_local_ranks(int size)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_STEP_TASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && atoi(text) > 0)
            return atoi(text);
    }
    return size;
}

bool launcher_has_bound(const struct launcher *launcher)
{
    cpu_set_t mine, above;
    return sched_getaffinity(0, sizeof mine, &mine) == 0 &&
           sched_getaffinity(launcher->process, sizeof above, &above) == 0 &&
           !CPU_EQUAL(&mine, &above);
}

bool launcher_is_bare_srun(const struct launcher *launcher)
{
    static const char *const names[] = {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD",
                                        "PMI_PORT"};
    if (strcmp(launcher->name, "srun") != 0)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (getenv(names[i]))
            return false;
    }
    return true;
}

int launcher_slurm_nodes(void)
{
    const char *text = getenv("SLURM_JOB_ID") ? getenv("SLURM_NNODES") : NULL;
    return text && atoi(text) > 1 ? atoi(text) : 1;
}

double launcher_slurm_end_time(void)
{
    const char *text = getenv("SLURM_JOB_END_TIME");
    return text ? strtod(text, NULL) : 0;
}
