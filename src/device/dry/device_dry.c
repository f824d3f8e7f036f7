/* device_dry -- devices that count memory without allocating: `sifr plan` builds the real engine on
 * them.
 *
 * Addresses come from a counter that starts where no process has memory on any known machine (above
 * 52 address bits, below the bits that arm64 ignores). So address arithmetic works, and touching
 * memory faults immediately. Bytes are counted in the same location, under the same category and
 * name, as on the planned device: the CPU, or a GPU, whose plain streams have pinned staging
 * buffers. Simulated time is in dry_time.c.
 */
#include "device/dry/dry_impl.h"

#define FIRST_ADDRESS ((uintptr_t)1 << 54)
#define ALIGNMENT     64

static enum status dry_open(struct device *device, int index)
{
    (void)index;
    ((struct dry_device *)device)->next = FIRST_ADDRESS;
    return STATUS_OK;
}

static enum status dry_alloc(struct device *device, struct device_block *block)
{
    struct dry_device *dry = (struct dry_device *)device;
    TRY(device_count_block(device, block));
    block->address = (void *)dry->next;
    dry->next += (block->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return STATUS_OK;
}

static enum status gpu_stream_open(struct stream *stream, const char *name)
{
    (void)name;
    if (stream->worker)
        return STATUS_OK;
    return device_alloc_host(stream->device, MEM_OTHER, "stream stage", DEVICE_STREAM_STAGE,
                             &((struct dry_stream *)stream)->stage);
}

static void gpu_stream_close(struct stream *stream)
{
    device_free(stream->device, ((struct dry_stream *)stream)->stage);
}

#define DRY                                                                             \
    .dry = true, .device_bytes = sizeof(struct dry_device),                             \
    .stream_bytes = sizeof(struct dry_stream), .event_bytes = sizeof(struct dry_event), \
    .open = dry_open, .alloc = dry_alloc, .free = device_uncount_block,                 \
    .stream_sync = dry_stream_sync, .enqueue = dry_enqueue, .record = dry_record,       \
    .wait = dry_wait, .copy = dry_copy, .zero = dry_zero, .accumulate = dry_accumulate, \
    .accumulate_parts = dry_accumulate_parts

const struct device_backend device_dry = {.name = "dry", .location = MEM_HOST, DRY};

const struct device_backend device_dry_gpu = {
    .name = "dry-gpu",
    .location = MEM_GPU,
    DRY,
    .stream_open = gpu_stream_open,
    .stream_close = gpu_stream_close,
};
