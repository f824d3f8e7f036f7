/* beside -- see the header. */
#include "engine/beside.h"

static enum status fill(struct device *device, struct comm *group, struct unit_beside *beside)
{
    TRY(comm_stream_create(group, "tensor", &beside->stream));
    TRY(event_create(device, &beside->written));
    for (int call = 0; call < UNIT_CALLS; call++)
        TRY(event_create(device, &beside->done[call]));
    return STATUS_OK;
}

enum status beside_create(struct device *device, struct comm *group, struct unit_beside **beside)
{
    struct unit_beside *b;
    TRY(mem_alloc(device_env(device), MEM_OTHER, "engine", sizeof *b, &b));
    *b = (struct unit_beside){0};
    enum status st = fill(device, group, b);
    if (st != STATUS_OK) {
        beside_destroy(device, b);
        return st;
    }
    *beside = b;
    return STATUS_OK;
}

void beside_destroy(struct device *device, struct unit_beside *beside)
{
    if (!beside)
        return;
    stream_destroy(beside->stream);
    event_destroy(beside->written);
    for (int call = 0; call < UNIT_CALLS; call++)
        event_destroy(beside->done[call]);
    mem_free(device_env(device), beside);
}
