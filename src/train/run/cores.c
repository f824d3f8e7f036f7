/* cores -- two ranks are on one machine if its name and boot id are equal. Containers of one machine
 * have different names, so they count as different machines. */
#include "train/run/cores.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static uint64_t host_print(void)
{
    char text[256] = {0};
    gethostname(text, 128);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        size_t bytes = fread(text + 128, 1, 127, file);
        (void)bytes;
        fclose(file);
    }
    return XXH3_64bits(text, sizeof text);
}

static bool is_within(const cpu_set_t *inner, const cpu_set_t *outer)
{
    cpu_set_t both;
    CPU_AND(&both, inner, outer);
    return CPU_EQUAL(&both, inner);
}

static bool overlap(const cpu_set_t *a, const cpu_set_t *b)
{
    cpu_set_t both;
    CPU_AND(&both, a, b);
    return CPU_COUNT(&both) > 0;
}

/* Count the threads on the CPUs of rank `r`; true = there are more than CPUs. */
static bool is_crowded(const struct cores_report *all, int size, int r, struct cores *cores)
{
    cores->threads = 0;
    cores->also = -1;
    for (int s = 0; s < size; s++) {
        if (all[s].host != all[r].host || !is_within(&all[s].mask, &all[r].mask))
            continue;
        cores->threads += (int)all[s].threads;
        if (s != r && cores->also < 0)
            cores->also = s;
    }
    cores->cpus = CPU_COUNT(&all[r].mask);
    return cores->threads > cores->cpus;
}

struct cores cores_judge(const struct cores_report *all, int size)
{
    struct cores cores = {.apart = true, .crowded = -1};
    for (int r = 0; r < size; r++) {
        if (all[r].host != all[0].host)
            continue;
        cores.ranks++;
        for (int s = 0; s < r && cores.apart; s++)
            cores.apart = all[s].host != all[r].host || !overlap(&all[s].mask, &all[r].mask);
    }
    for (int r = 0; r < size && cores.crowded < 0; r++)
        if (is_crowded(all, size, r, &cores))
            cores.crowded = r;
    return cores;
}

enum status cores_compare(struct env *env, struct comm *comm, struct cores *cores)
{
    struct cores_report mine, *all;
    memset(&mine, 0, sizeof mine);
    mine.host = host_print();
    mine.threads = env->threads;
    if (sched_getaffinity(0, sizeof mine.mask, &mine.mask) != 0)
        memset(&mine.mask, 0xff, sizeof mine.mask); /* more CPUs than the set can represent */
    *cores = cores_judge(&mine, 1);
    if (!comm)
        return STATUS_OK;
    size_t size = (size_t)comm_size(comm);
    TRY(mem_alloc_array(env, MEM_OTHER, "cores", size, sizeof *all, &all));
    enum status st = comm_exchange(comm, &mine, sizeof mine, all);
    if (st == STATUS_OK)
        *cores = cores_judge(all, (int)size);
    mem_free(env, all);
    return st;
}
