/* search_tune -- of a layout whose optimizer state has left the device: who updates it, and how
 * much device memory it passes through. Both change time alone, so a layout is tuned once it is
 * listed.
 */
#include "plan/search_impl.h"

enum { WINDOW_UNIT = 1000000000 }; /* "12G" in a command */

/* Less gain is not worth another key in the command. */
static const double worth = 0.995;

/* Simulate the layout with another way to move state, and take that over if it fits and is
 * faster. */
static enum status try_offload(struct env *env, const struct search_space *space,
                               const struct zero_offload *offload, struct search_layout *layout)
{
    struct plan_room room = search_room(space);
    struct search_layout other = *layout;
    struct plan_zero_stage stage = {0};
    other.request.zero.offload = *offload;
    TRY(plan_worst_memory(env, &other.request, &stage));
    if (!plan_fits(&stage, &room))
        return STATUS_OK;
    TRY(plan_time(env, &other.request, space->machine, &other.time));
    if (other.time.step > worth * layout->time.step)
        return STATUS_OK;
    struct plan_room needs = plan_needs(&stage);
    other.needed_bytes = needs.memory;
    other.host_bytes = needs.host;
    other.disk_bytes = needs.disk;
    *layout = other;
    return STATUS_OK;
}

enum status search_tune(struct env *env, const struct search_space *space,
                        struct search_layout *layout)
{
    struct zero_offload offload = layout->request.zero.offload;
    if (offload.optimizer == FAR_NONE)
        return STATUS_OK;
    if (!space->fixed.update && offload.optimizer == FAR_HOST &&
        space->machine->offload.host_update > 0) {
        offload.on_host = true;
        TRY(try_offload(env, space, &offload, layout));
    }
    offload = layout->request.zero.offload;
    if (space->fixed.window || space->memory <= layout->needed_bytes || offload.on_host)
        return STATUS_OK;
    offload.window += (int64_t)(space->memory - layout->needed_bytes);
    offload.window = offload.window / WINDOW_UNIT * WINDOW_UNIT - WINDOW_UNIT;
    return offload.window > layout->request.zero.offload.window
               ? try_offload(env, space, &offload, layout)
               : STATUS_OK;
}
