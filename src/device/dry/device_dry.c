/* device_dry -- a device that counts memory and has none: `sifr plan` builds the real engine on
 * it.
 *
 * Addresses come from a counter that starts where no process has memory on any machine we know
 * (above 52 bits of address, below the bits that arm64 ignores), so arithmetic on them is fine
 * and touching them faults at once. Bytes are counted under the same category and name as on a
 * device with memory.
 */
#include "device/device_impl.h"

struct dry_device {
    struct device base;
    uintptr_t next; /* the address of the next block, a multiple of 64 */
};

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
    TRY(mem_count(device->env, block->category, block->name, block->bytes));
    block->address = (void *)dry->next;
    dry->next += (block->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return STATUS_OK;
}

static void dry_free(struct device *device, struct device_block *block)
{
    mem_uncount(device->env, block->category, block->name, block->bytes);
}

const struct device_backend device_dry = {
    .name = "dry",
    .dry = true,
    .device_bytes = sizeof(struct dry_device),
    .stream_bytes = sizeof(struct stream),
    .event_bytes = sizeof(struct event),
    .open = dry_open,
    .alloc = dry_alloc,
    .free = dry_free,
};
