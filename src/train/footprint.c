/* footprint -- see the header. */
#include "train/footprint.h"
#include <math.h>
#include "base/resident.h"

void footprint_start(struct footprint *footprint, const struct mem *mem)
{
    size_t resident = resident_bytes(), accounted = mem_total(mem);
    *footprint =
        (struct footprint){.runtime_bytes = resident > accounted ? resident - accounted : 0,
                           .resident_bytes = resident,
                           .accounted_bytes = accounted};
}

void footprint_look(struct footprint *footprint, const struct mem *mem)
{
    if (footprint->resident_bytes == 0)
        return;
    size_t resident = resident_bytes();
    if (resident < footprint->resident_bytes)
        return;
    footprint->resident_bytes = resident;
    footprint->accounted_bytes = mem_total(mem);
}

double footprint_excess(const struct footprint *footprint)
{
    double planned = (double)footprint->accounted_bytes + (double)footprint->runtime_bytes;
    return footprint->resident_bytes > 0 ? (double)footprint->resident_bytes / planned - 1 : NAN;
}

/* --- of all ranks --------------------------------------------------------------------------- */

static struct footprint_worst describe(const struct footprint *own, bool most,
                                       const struct mem *mem, int rank)
{
    struct footprint_worst mine = {.total_bytes = most ? mem_total_peak(mem) : mem_total(mem),
                                   .state_rank = rank,
                                   .process = *own};
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        mine.bytes[c] =
            most ? mem_peak(mem, (enum mem_category)c) : mem_bytes(mem, (enum mem_category)c);
    mine.state_bytes = mine.bytes[MEM_PARAMS] + mine.bytes[MEM_GRADS] + mine.bytes[MEM_OPTIMIZER];
    return mine;
}

static void keep_larger(size_t *kept, size_t other)
{
    *kept = other > *kept ? other : *kept;
}

static void take_worse(struct footprint_worst *worst, const struct footprint_worst *other)
{
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        keep_larger(&worst->bytes[c], other->bytes[c]);
    keep_larger(&worst->total_bytes, other->total_bytes);
    if (other->state_bytes > worst->state_bytes) {
        worst->state_bytes = other->state_bytes;
        worst->state_rank = other->state_rank;
    }
    if (other->process.resident_bytes > worst->process.resident_bytes)
        worst->process = other->process;
}

enum status footprint_compare(const struct footprint *own, bool most, struct env *env,
                              struct comm *comm, struct footprint_worst *worst)
{
    const struct footprint_worst mine = describe(own, most, env->mem, comm ? comm_rank(comm) : 0);
    struct footprint_worst *all;
    *worst = mine;
    if (!comm)
        return STATUS_OK;
    worst->state_bytes = 0; /* the first of equals */
    size_t size = (size_t)comm_size(comm);
    TRY(mem_alloc_array(env, MEM_OTHER, "footprints", size, sizeof *all, &all));
    enum status st = comm_exchange(comm, &mine, sizeof mine, all);
    for (size_t r = 0; st == STATUS_OK && r < size; r++)
        take_worse(worst, &all[r]);
    mem_free(env, all);
    return st;
}
