/* beside -- see the header. */
#include "engine/side_stream.h"

static enum status fill(struct device *device, struct comm *group,
                        struct unit_side_stream *side_stream)
{
    TRY(comm_stream_create(group, "tensor", &side_stream->stream));
    TRY(event_create(device, &side_stream->written));
    for (int call = 0; call < UNIT_CALLS; call++)
        TRY(event_create(device, &side_stream->done[call]));
    return STATUS_OK;
}

enum status side_stream_create(struct device *device, struct comm *group,
                               struct unit_side_stream **side_stream)
{
    struct unit_side_stream *b;
    TRY(mem_alloc(device_env(device), MEM_OTHER, "engine", sizeof *b, &b));
    *b = (struct unit_side_stream){0};
    enum status st = fill(device, group, b);
    if (st != STATUS_OK) {
        side_stream_destroy(device, b);
        return st;
    }
    *side_stream = b;
    return STATUS_OK;
}

void side_stream_destroy(struct device *device, struct unit_side_stream *side_stream)
{
    if (!side_stream)
        return;
    stream_destroy(side_stream->stream);
    event_destroy(side_stream->written);
    for (int call = 0; call < UNIT_CALLS; call++)
        event_destroy(side_stream->done[call]);
    mem_free(device_env(device), side_stream);
}
