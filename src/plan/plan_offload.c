/* plan_offload -- which state leaves the device when a rank does not fit.
 *
 * Each placement of the list below costs more time than the one before it: state on the host passes
 * the link twice per step, far gradients pass it twice per micro-batch, and a disk is slower than
 * the link. On the CPU, state is in host memory already, so only the disk is left. Params leave only
 * where the request says so.
 */
#include <stdio.h>

#include "plan/plan_impl.h"

static const struct {
    enum far_kind optimizer, grads;
} placements[] = {
    {FAR_NONE, FAR_NONE}, {FAR_HOST, FAR_NONE}, {FAR_HOST, FAR_HOST},
    {FAR_DISK, FAR_NONE}, {FAR_DISK, FAR_HOST}, {FAR_DISK, FAR_DISK},
};
enum { PLACEMENTS = sizeof placements / sizeof *placements, SHARES = 32 };

bool plan_is_offloaded(const struct plan_request *request)
{
    const struct zero_offload *offload = &request->zero.offload;
    return offload->optimizer != FAR_NONE || offload->grads != FAR_NONE ||
           offload->params != FAR_NONE;
}

char *plan_offload_left(const struct zero_offload *offload, char out[PLAN_OFFLOAD_KEYS])
{
    snprintf(out, PLAN_OFFLOAD_KEYS, "%s%s%s",
             offload->optimizer == FAR_NONE ? " offload.optimizer=disk" : "",
             offload->grads == FAR_NONE ? " offload.grads=disk" : "",
             offload->params == FAR_NONE ? " offload.params=disk" : "");
    return out;
}

bool plan_is_far(const struct plan_request *request, enum far_kind kind)
{
    return kind == FAR_DISK || (kind == FAR_HOST && request->gpu);
}

struct sharding plan_sharding(const struct plan_request *request, int stage)
{
    struct sharding cut = sharding_of(stage);
    cut.params = cut.params || plan_is_far(request, request->zero.offload.params);
    return cut;
}

bool plan_moves_anything(const struct plan_request *request)
{
    return plan_is_offloaded(request) || request->zero.offload.params != FAR_NONE ||
           request->engine.activations != FAR_NONE;
}

static bool has_room(const struct plan_request *request, const struct plan_room *room,
                     enum far_kind kind)
{
    switch (kind) {
    case FAR_HOST: return request->gpu && room->host > 0;
    case FAR_DISK: return room->disk > 0;
    default: return true;
    }
}

static bool is_possible(const struct plan_request *request, const struct plan_room *room, int i)
{
    return has_room(request, room, placements[i].optimizer) &&
           has_room(request, room, placements[i].grads);
}

static void place(struct zero_offload *offload, int i, int share)
{
    offload->optimizer = placements[i].optimizer;
    offload->grads = placements[i].grads;
    offload->share = (double)share / SHARES;
}

struct zero_offload plan_offload_most(const struct plan_request *request,
                                      const struct plan_room *room)
{
    struct zero_offload most = request->zero.offload;
    for (int i = 1; i < PLACEMENTS; i++)
        if (is_possible(request, room, i))
            place(&most, i, SHARES);
    return most;
}

/* Whether what stays on the device fits there. */
static enum status try(struct env *env, const struct plan_room *room,
                       const struct plan_request *request, struct plan_zero_stage *stage,
                       bool *stays)
{
    TRY(plan_worst_memory(env, request, stage));
    *stays = plan_fits(stage, &(struct plan_room){.memory = room->memory});
    return STATUS_OK;
}

/* With the whole share, the rest fits: find the smallest share with which it does. */
static enum status shrink_share(struct env *env, const struct plan_room *room, int placement,
                                struct plan_request *request, struct plan_zero_stage *stage)
{
    struct plan_request other = *request;
    struct plan_zero_stage its;
    int low = 0, high = SHARES; /* low is not enough */
    bool stays;
    while (high - low > 1) {
        int share = (low + high) / 2;
        place(&other.zero.offload, placement, share);
        TRY(try(env, room, &other, &its, &stays));
        if (!stays) {
            low = share;
            continue;
        }
        high = share;
        *request = other;
        *stage = its;
    }
    return STATUS_OK;
}

enum status plan_offload(struct env *env, const struct plan_room *room,
                         struct plan_request *request, struct plan_zero_stage *stage, bool *fits)
{
    bool stays;
    TRY(plan_worst_memory(env, request, stage));
    *fits = plan_fits(stage, room);
    for (int i = 1; !*fits && i < PLACEMENTS; i++) {
        if (!is_possible(request, room, i))
            continue;
        place(&request->zero.offload, i, SHARES);
        TRY(try(env, room, request, stage, &stays));
        if (stays)
            TRY(shrink_share(env, room, i, request, stage));
        *fits = plan_fits(stage, room);
    }
    return STATUS_OK;
}
