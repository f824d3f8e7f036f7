/* kept -- slots, copies and the events between them.
 *
 *     slot.used      compute has written what is to be saved, or has read what was fetched
 *     slot.saved     the copy to host memory is complete
 *     slot.fetched   the copy from host memory is complete
 *
 * Forward pass k waits until unit k - S is saved, and is before the fetch of unit k - S, so no
 * fetch is before its save.
 */
#include "engine/kept.h"

#include <math.h>

enum { SLOTS = 3 }; /* a copy has the time of two passes */

struct kept_slot {
    char *at;
    struct event *used, *saved, *fetched;
};

struct kept_unit {
    size_t bytes;
    size_t at; /* in host memory, unless it stays */
};

struct kept {
    struct device *device; /* borrowed */
    struct env *env;       /* borrowed */
    struct far *far;
    struct stream *in, *out;
    struct kept_slot slots[SLOTS];
    struct kept_unit *units; /* (count) */
    int count;
    int *numbers; /* (units of the model) their index in `units`; -1: does not move */
};

static struct kept_slot *slot_of(struct kept *kept, int number)
{
    return &kept->slots[number % SLOTS];
}

static bool leaves(const struct kept *kept, int number)
{
    return number >= 0 && number + SLOTS < kept->count;
}

/* Does unit u move? *seen counts the units that keep something. */
static bool moves(const size_t *bytes, int u, double share, int *seen)
{
    if (bytes[u] == 0)
        return false;
    int before = (*seen)++;
    return floor(*seen * share) > floor(before * share);
}

static int count_units(const size_t *bytes, int unit_count, double share)
{
    int count = 0, seen = 0;
    for (int u = 0; u < unit_count; u++)
        count += moves(bytes, u, share, &seen);
    return count;
}

/* Returns the bytes of host memory. */
static size_t number_units(struct kept *kept, const size_t *bytes, int unit_count, double share)
{
    size_t at = 0;
    int number = 0, seen = 0;
    for (int u = 0; u < unit_count; u++) {
        kept->numbers[u] = moves(bytes, u, share, &seen) ? number : -1;
        if (kept->numbers[u] < 0)
            continue;
        kept->units[number] = (struct kept_unit){.bytes = bytes[u], .at = at};
        at += leaves(kept, number) ? bytes[u] : 0;
        number++;
    }
    return at;
}

/* A slot has room for the largest of its units. */
static enum status create_slot(struct kept *kept, int s)
{
    struct kept_slot *slot = &kept->slots[s];
    size_t most = 0;
    for (int number = s; number < kept->count; number += SLOTS)
        most = kept->units[number].bytes > most ? kept->units[number].bytes : most;
    TRY(device_alloc(kept->device, MEM_ACTIVATIONS, "slot of units", most, &slot->at));
    TRY(event_create(kept->device, &slot->used));
    TRY(event_create(kept->device, &slot->saved));
    return event_create(kept->device, &slot->fetched);
}

static enum status fill(struct kept *kept, const size_t *bytes, int unit_count, double share)
{
    struct device *device = kept->device;
    struct far_config far = {
        .kind = FAR_HOST, .category = MEM_ACTIVATIONS, .name = "kept by units"};
    TRY(mem_alloc_array(kept->env, MEM_OTHER, "kept", (size_t)kept->count, sizeof *kept->units,
                        &kept->units));
    TRY(mem_alloc_array(kept->env, MEM_OTHER, "kept", (size_t)unit_count, sizeof *kept->numbers,
                        &kept->numbers));
    far.bytes = number_units(kept, bytes, unit_count, share);
    TRY(far_create(device, &far, &kept->far));
    TRY(far_stream_create(device, FAR_HOST, "activations in", &kept->in));
    TRY(far_stream_create(device, FAR_HOST, "activations out", &kept->out));
    for (int s = 0; s < SLOTS; s++)
        TRY(create_slot(kept, s));
    return STATUS_OK;
}

enum status kept_create(struct device *device, const size_t *bytes, int unit_count, double share,
                        struct kept **kept)
{
    struct env *env = device_env(device);
    int count = count_units(bytes, unit_count, share);
    struct kept *k;
    *kept = NULL;
    if (count <= SLOTS)
        return STATUS_OK;
    TRY(mem_alloc(env, MEM_OTHER, "kept", sizeof *k, &k));
    *k = (struct kept){.device = device, .env = env, .count = count};
    enum status st = fill(k, bytes, unit_count, share);
    if (st != STATUS_OK) {
        kept_destroy(k);
        return st;
    }
    *kept = k;
    return STATUS_OK;
}

void kept_destroy(struct kept *kept)
{
    if (!kept)
        return;
    stream_destroy(kept->in);
    stream_destroy(kept->out);
    for (int s = 0; s < SLOTS; s++) {
        device_free(kept->device, kept->slots[s].at);
        event_destroy(kept->slots[s].used);
        event_destroy(kept->slots[s].saved);
        event_destroy(kept->slots[s].fetched);
    }
    far_destroy(kept->far);
    mem_free(kept->env, kept->numbers);
    mem_free(kept->env, kept->units);
    mem_free(kept->env, kept);
}

char *kept_at(const struct kept *kept, int u)
{
    int number = kept->numbers[u];
    return number < 0 ? NULL : kept->slots[number % SLOTS].at;
}

/* In a forward pass the last fetch is of an earlier micro-batch, and in a backward pass the last
 * save was before the forward pass: waiting for both is right in each. */
void kept_await(struct kept *kept, int u, struct stream *stream)
{
    if (kept->numbers[u] < 0)
        return;
    const struct kept_slot *slot = slot_of(kept, kept->numbers[u]);
    stream_wait(stream, slot->saved);
    stream_wait(stream, slot->fetched);
}

void kept_save(struct kept *kept, int u, struct stream *stream)
{
    int number = kept->numbers[u];
    if (!leaves(kept, number))
        return;
    const struct kept_unit *unit = &kept->units[number];
    const struct kept_slot *slot = slot_of(kept, number);
    event_record(slot->used, stream);
    stream_wait(kept->out, slot->used);
    far_write(kept->out, kept->far, unit->at, slot->at, unit->bytes);
    event_record(slot->saved, kept->out);
}

void kept_release(struct kept *kept, int u, struct stream *stream)
{
    int next = kept->numbers[u] - SLOTS;
    if (next < 0)
        return;
    const struct kept_unit *unit = &kept->units[next];
    const struct kept_slot *slot = slot_of(kept, next);
    event_record(slot->used, stream);
    stream_wait(kept->in, slot->used);
    far_read(kept->in, kept->far, unit->at, slot->at, unit->bytes);
    event_record(slot->fetched, kept->in);
}

enum status kept_check(struct kept *kept)
{
    if (kept && stream_failed(kept->in))
        return stream_sync(kept->in);
    return kept && stream_failed(kept->out) ? stream_sync(kept->out) : STATUS_OK;
}

const struct far *kept_far(const struct kept *kept)
{
    return kept ? kept->far : NULL;
}
