#include "train/run/footprint.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/host.h"
#include "plan/formula.h"

double footprint_excess(const struct footprint *footprint)
{
    double planned = (double)footprint->accounted_bytes + (double)footprint->runtime_bytes;
    return footprint->held_bytes > 0 ? (double)footprint->held_bytes / planned - 1 : NAN;
}

/* --- one rank ------------------------------------------------------------------------------- */

static size_t accounted(const struct mem *mem, enum mem_location location)
{
    return mem_sums(mem, location, false).total_bytes;
}

static bool on_gpu(const struct device *device)
{
    return device_memory(device) == MEM_GPU;
}

void footprints_start(struct footprints *own, const struct mem *mem, struct device *device)
{
    size_t resident = resident_bytes(), host = accounted(mem, MEM_HOST);
    own->process = (struct footprint){.runtime_bytes = resident > host ? resident - host : 0,
                                      .held_bytes = resident,
                                      .accounted_bytes = host};
    own->gpu = (struct footprint){0};
    if (on_gpu(device))
        own->gpu = (struct footprint){.runtime_bytes = (size_t)formula_gpu_runtime(),
                                      .held_bytes = device_in_use(device),
                                      .accounted_bytes = accounted(mem, MEM_GPU)};
}

static void note(struct footprint *footprint, size_t held, size_t accounted_bytes)
{
    if (footprint->held_bytes == 0 || held < footprint->held_bytes)
        return;
    footprint->held_bytes = held;
    footprint->accounted_bytes = accounted_bytes;
}

void footprints_look(struct footprints *own, const struct mem *mem, struct device *device)
{
    if (own->process.held_bytes > 0)
        note(&own->process, resident_bytes(), accounted(mem, MEM_HOST));
    if (device != NULL && own->gpu.held_bytes > 0)
        note(&own->gpu, device_in_use(device), accounted(mem, MEM_GPU));
}

/* --- all ranks ------------------------------------------------------------------------------ */

/* What a rank sends to the others. */
struct report {
    struct footprint_worst held;
    char gpu[DEVICE_GPU_BYTES];
};

static void describe(const struct footprints *own, bool most, struct device *device, int rank,
                     struct report *mine)
{
    const struct mem *mem = device_env(device)->mem;
    struct mem_sums sums = mem_sums(mem, device_memory(device), most);
    struct footprint_worst *held = &mine->held;
    memset(mine, 0, sizeof *mine);
    held->total_bytes = sums.total_bytes;
    memcpy(held->bytes, sums.bytes, sizeof held->bytes);
    for (int location = 0; location < MEM_LOCATION_COUNT; location++) {
        sums = mem_sums(mem, (enum mem_location)location, most);
        held->state_bytes +=
            sums.bytes[MEM_PARAMS] + sums.bytes[MEM_GRADS] + sums.bytes[MEM_OPTIMIZER];
    }
    held->host_bytes = on_gpu(device) ? mem_sums(mem, MEM_HOST, most).total_bytes : 0;
    held->disk_bytes = mem_sums(mem, MEM_DISK, most).total_bytes;
    held->rank = held->state_rank = rank;
    held->process = own->process;
    held->gpu = own->gpu;
    snprintf(mine->gpu, sizeof mine->gpu, "%s", device_gpu(device));
}

static void keep_larger(size_t *kept, size_t other)
{
    *kept = other > *kept ? other : *kept;
}

static void take_worse(struct footprint_worst *worst, const struct footprint_worst *other)
{
    if (other->total_bytes > worst->total_bytes) {
        worst->rank = other->rank;
        worst->total_bytes = other->total_bytes;
        memcpy(worst->bytes, other->bytes, sizeof worst->bytes);
    }
    if (other->state_bytes > worst->state_bytes) {
        worst->state_bytes = other->state_bytes;
        worst->state_rank = other->state_rank;
    }
    keep_larger(&worst->host_bytes, other->host_bytes);
    keep_larger(&worst->disk_bytes, other->disk_bytes);
    if (other->process.held_bytes > worst->process.held_bytes)
        worst->process = other->process;
    if (other->gpu.held_bytes > worst->gpu.held_bytes)
        worst->gpu = other->gpu;
}

/* The GPU of rank `r`, summed over all ranks that share it. Bytes in use are the maximum of what
 * they saw: the rank that opened the GPU first sees the most. */
static struct footprint whole_gpu(const struct report *all, size_t size, size_t r)
{
    struct footprint gpu = {0};
    for (size_t other = 0; other < size; other++) {
        const struct footprint *part = &all[other].held.gpu;
        if (strcmp(all[other].gpu, all[r].gpu) != 0)
            continue;
        keep_larger(&gpu.held_bytes, part->held_bytes);
        gpu.runtime_bytes += part->runtime_bytes;
        gpu.accounted_bytes += part->accounted_bytes;
    }
    return gpu;
}

enum status footprint_compare(const struct footprints *own, bool most, struct device *device,
                              struct comm *comm, struct footprint_worst *worst)
{
    struct env *env = device_env(device);
    struct report mine, *all;
    describe(own, most, device, comm ? comm_rank(comm) : 0, &mine);
    *worst = mine.held;
    if (!comm)
        return STATUS_OK;
    size_t size = (size_t)comm_size(comm);
    TRY(mem_alloc_array(env, MEM_OTHER, "footprints", size, sizeof *all, &all));
    enum status st = comm_exchange(comm, &mine, sizeof mine, all);
    if (st == STATUS_OK)
        *worst = (struct footprint_worst){0}; /* so that the first of equal ranks is reported */
    for (size_t r = 0; st == STATUS_OK && r < size; r++) {
        struct footprint_worst held = all[r].held;
        held.gpu = whole_gpu(all, size, r);
        take_worse(worst, &held);
    }
    mem_free(env, all);
    return st;
}
