/* footprint -- see the header. */
#include "train/run/footprint.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/resident.h"
#include "plan/formula.h"

double footprint_excess(const struct footprint *footprint)
{
    double planned = (double)footprint->accounted_bytes + (double)footprint->runtime_bytes;
    return footprint->held_bytes > 0 ? (double)footprint->held_bytes / planned - 1 : NAN;
}

/* --- of one rank ---------------------------------------------------------------------------- */

static size_t accounted(const struct mem *mem, enum mem_place place)
{
    return mem_sums(mem, place, false).total_bytes;
}

static bool on_card(const struct device *device)
{
    return device_place(device) == MEM_CARD;
}

void footprints_start(struct footprints *own, const struct mem *mem, struct device *device)
{
    size_t resident = resident_bytes(), host = accounted(mem, MEM_HOST);
    own->process = (struct footprint){.runtime_bytes = resident > host ? resident - host : 0,
                                      .held_bytes = resident,
                                      .accounted_bytes = host};
    own->card = (struct footprint){0};
    if (on_card(device))
        own->card = (struct footprint){.runtime_bytes = (size_t)formula_card_runtime(),
                                       .held_bytes = device_in_use(device),
                                       .accounted_bytes = accounted(mem, MEM_CARD)};
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
    if (device != NULL && own->card.held_bytes > 0)
        note(&own->card, device_in_use(device), accounted(mem, MEM_CARD));
}

/* --- of all ranks --------------------------------------------------------------------------- */

/* What a rank tells the others. */
struct report {
    struct footprint_worst held;
    char card[DEVICE_CARD_BYTES];
};

static void describe(const struct footprints *own, bool most, struct device *device, int rank,
                     struct report *mine)
{
    const struct mem *mem = device_env(device)->mem;
    struct mem_sums sums = mem_sums(mem, device_place(device), most);
    struct footprint_worst *held = &mine->held;
    memset(mine, 0, sizeof *mine);
    held->total_bytes = sums.total_bytes;
    memcpy(held->bytes, sums.bytes, sizeof held->bytes);
    held->state_bytes = sums.bytes[MEM_PARAMS] + sums.bytes[MEM_GRADS] + sums.bytes[MEM_OPTIMIZER];
    held->host_bytes = on_card(device) ? mem_sums(mem, MEM_HOST, most).total_bytes : 0;
    held->rank = held->state_rank = rank;
    held->process = own->process;
    held->card = own->card;
    snprintf(mine->card, sizeof mine->card, "%s", device_card(device));
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
    if (other->process.held_bytes > worst->process.held_bytes)
        worst->process = other->process;
    if (other->card.held_bytes > worst->card.held_bytes)
        worst->card = other->card;
}

/* The card of rank `r` with all its ranks: who opened it first sees most of it. */
static struct footprint whole_card(const struct report *all, size_t size, size_t r)
{
    struct footprint card = {0};
    for (size_t other = 0; other < size; other++) {
        const struct footprint *part = &all[other].held.card;
        if (strcmp(all[other].card, all[r].card) != 0)
            continue;
        keep_larger(&card.held_bytes, part->held_bytes);
        card.runtime_bytes += part->runtime_bytes;
        card.accounted_bytes += part->accounted_bytes;
    }
    return card;
}

static void find_worst(const struct report *all, size_t size, struct footprint_worst *worst)
{
    *worst = (struct footprint_worst){0};
    for (size_t r = 0; r < size; r++) {
        struct footprint_worst held = all[r].held;
        held.card = whole_card(all, size, r);
        take_worse(worst, &held);
    }
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
    worst->state_bytes = 0; /* the first of equals */
    size_t size = (size_t)comm_size(comm);
    TRY(mem_alloc_array(env, MEM_OTHER, "footprints", size, sizeof *all, &all));
    enum status st = comm_exchange(comm, &mine, sizeof mine, all);
    if (st == STATUS_OK)
        find_worst(all, size, worst);
    mem_free(env, all);
    return st;
}
