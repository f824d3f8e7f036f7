/* search_tune -- how what has left the device moves: who updates far state, how much device memory
 * it passes through, and how many layers' activations leave. These change time, and memory that is
 * left over, so a layout is tuned once it is listed.
 */
#include "plan/search_impl.h"

enum { WINDOW_UNIT = 1000000000 }; /* "12G" in a command */

/* Less gain is not worth another key in the command. */
static const double worth = 0.995;

/* Simulate the layout with other settings, and take these over if it fits and is faster. */
static enum status try_request(struct env *env, const struct search_space *space,
                               const struct plan_request *request, struct search_layout *layout)
{
    struct plan_room room = search_room(space);
    struct search_layout other = *layout;
    struct plan_zero_stage stage = {0};
    other.request = *request;
    TRY(plan_worst_memory(env, request, &stage));
    if (!plan_fits(&stage, &room))
        return STATUS_OK;
    TRY(plan_time(env, request, space->machine, &other.time));
    if (other.time.step > worth * layout->time.step)
        return STATUS_OK;
    struct plan_room needs = plan_needs(&stage);
    other.needed_bytes = needs.memory;
    other.host_bytes = needs.host;
    other.disk_bytes = needs.disk;
    *layout = other;
    return STATUS_OK;
}

/* The less leaves, the less time it takes; the fastest that fits has the least to hide. */
static enum status tune_activations(struct env *env, const struct search_space *space,
                                    struct search_layout *layout)
{
    static const double shares[] = {0.5, 0.33, 0.25, 0.125};
    struct plan_request request = layout->request;
    if (space->fixed.activations || request.engine.activations == FAR_NONE)
        return STATUS_OK;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        request.engine.activations_share = shares[i];
        TRY(try_request(env, space, &request, layout));
    }
    return STATUS_OK;
}

static enum status tune_update(struct env *env, const struct search_space *space,
                               struct search_layout *layout)
{
    struct plan_request request = layout->request;
    if (space->fixed.update || request.zero.offload.optimizer != FAR_HOST ||
        space->machine->offload.host_update <= 0)
        return STATUS_OK;
    request.zero.offload.on_host = true;
    return try_request(env, space, &request, layout);
}

/* All memory that is left. */
static enum status tune_window(struct env *env, const struct search_space *space,
                               struct search_layout *layout)
{
    struct plan_request request = layout->request;
    struct zero_offload *offload = &request.zero.offload;
    if (space->fixed.window || offload->optimizer == FAR_NONE || offload->on_host ||
        space->memory <= layout->needed_bytes)
        return STATUS_OK;
    int64_t window = offload->window + (int64_t)(space->memory - layout->needed_bytes);
    window = window / WINDOW_UNIT * WINDOW_UNIT - WINDOW_UNIT;
    if (window <= offload->window)
        return STATUS_OK;
    offload->window = window;
    return try_request(env, space, &request, layout);
}

enum status search_tune(struct env *env, const struct search_space *space,
                        struct search_layout *layout)
{
    TRY(tune_activations(env, space, layout));
    TRY(tune_update(env, space, layout));
    return tune_window(env, space, layout);
}
