/* tfevents -- encodes protocol-buffer messages by hand, in TFRecord frames.
 *
 *     frame:  u64 length | u32 masked crc of it | data | u32 masked crc of the data
 *     data:   Event { 1: double wall_time  2: varint step  3: version  5: Summary { 1: Value } }
 *             Value { 1: tag  2: float }  or  Value { 1: tag  8: TensorProto  9: metadata }
 *
 * A message is preceded by its length, so every message is built in its own buffer, innermost
 * first.
 */
#include "train/run/tfevents.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/output.h"
#include "base/text.h"

enum { /* (field number << 3) | wire type */
       EVENT_WALL_TIME = 0x09,
       EVENT_STEP = 0x10,
       EVENT_FILE_VERSION = 0x1a,
       EVENT_SUMMARY = 0x2a,
       SUMMARY_VALUE = 0x0a,
       VALUE_TAG = 0x0a,
       VALUE_SIMPLE = 0x15,
       VALUE_TENSOR = 0x42,
       VALUE_METADATA = 0x4a,
       TENSOR_TYPE = 0x08,
       TENSOR_SHAPE = 0x12,
       TENSOR_STRING = 0x42,
};

struct tfevents {
    struct env *env; /* borrowed */
    int fd;
    struct text event, summary, value, tensor; /* reused, so that a step need not allocate */
};

/* --- framing -------------------------------------------------------------------------------- */

uint32_t tfevents_crc32c(const void *data, size_t bytes)
{
    const uint8_t *from = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= from[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = tfevents_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Bytes of length and CRC before the data; reserved at the start of the buffer. */
#define FRAME_HEAD 12

static void event_begin(struct text *event)
{
    text_clear(event);
    text_add_bytes(event, "\0\0\0\0\0\0\0\0\0\0\0", FRAME_HEAD);
}

static enum status event_write(struct tfevents *events)
{
    struct text *event = &events->event;
    TRY(event->status);
    uint64_t length = event->bytes - FRAME_HEAD;
    uint32_t crc = masked_crc(&length, sizeof length);
    memcpy(event->data, &length, sizeof length);
    memcpy(event->data + sizeof length, &crc, sizeof crc);
    crc = masked_crc(event->data + FRAME_HEAD, (size_t)length);
    text_add_bytes(event, &crc, sizeof crc);
    TRY(event->status);
    return output_append(events->fd, event->data, event->bytes) ? STATUS_OK : STATUS_IO;
}

/* --- messages ------------------------------------------------------------------------------- */

static void add_varint(struct text *text, uint64_t value)
{
    uint8_t bytes[10];
    size_t count = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[count++] = (uint8_t)(value | 0x80);
    bytes[count++] = (uint8_t)value;
    text_add_bytes(text, bytes, count);
}

static void add_key(struct text *text, uint8_t key)
{
    text_add_bytes(text, &key, 1);
}

static void add_block(struct text *text, uint8_t key, const void *data, size_t bytes)
{
    add_key(text, key);
    add_varint(text, bytes);
    text_add_bytes(text, data, bytes);
}

static void add_message(struct text *text, uint8_t key, const struct text *message)
{
    add_block(text, key, text_string(message), message->bytes);
    if (text->status == STATUS_OK)
        text->status = message->status;
}

static void add_event_head(struct text *event, double wall_time, int64_t step)
{
    add_key(event, EVENT_WALL_TIME);
    text_add_bytes(event, &wall_time, sizeof wall_time);
    if (step == 0)
        return; /* a missing field means zero */
    add_key(event, EVENT_STEP);
    add_varint(event, (uint64_t)step);
}

static enum status summary_write(struct tfevents *events, double wall_time, int64_t step)
{
    event_begin(&events->event);
    add_event_head(&events->event, wall_time, step);
    add_message(&events->event, EVENT_SUMMARY, &events->summary);
    return event_write(events);
}

enum status tfevents_scalars(struct tfevents *events, double wall_time, int64_t step,
                             const struct tfevents_scalar *scalars, int count)
{
    struct text *summary = &events->summary, *value = &events->value;
    text_clear(summary);
    for (int i = 0; i < count; i++) {
        text_clear(value);
        add_block(value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        add_key(value, VALUE_SIMPLE);
        text_add_bytes(value, &scalars[i].value, sizeof scalars[i].value);
        add_message(summary, SUMMARY_VALUE, value);
    }
    return summary_write(events, wall_time, step);
}

enum status tfevents_text(struct tfevents *events, double wall_time, int64_t step, const char *tag,
                          const char *text, size_t bytes)
{
    static const uint8_t shape[] = {0x12, 2, 0x08, 1};                      /* {2: {1: size 1}} */
    static const uint8_t plugin[] = {0x0a, 6, 0x0a, 4, 't', 'e', 'x', 't'}; /* {1: {1: "text"}} */
    struct text *summary = &events->summary, *value = &events->value, *tensor = &events->tensor;
    text_clear(tensor);
    add_key(tensor, TENSOR_TYPE);
    add_varint(tensor, 7); /* DT_STRING */
    add_block(tensor, TENSOR_SHAPE, shape, sizeof shape);
    add_block(tensor, TENSOR_STRING, text, bytes);
    text_clear(value);
    add_block(value, VALUE_TAG, tag, strlen(tag));
    add_message(value, VALUE_TENSOR, tensor);
    add_block(value, VALUE_METADATA, plugin, sizeof plugin);
    text_clear(summary);
    add_message(summary, SUMMARY_VALUE, value);
    return summary_write(events, wall_time, step);
}

/* --- the file ------------------------------------------------------------------------------- */

enum status tfevents_create_file(struct env *env, const char *path, double wall_time,
                                 struct tfevents **events)
{
    static const char version[] = "brain.Event:2";
    struct tfevents *e;
    TRY(mem_alloc(env, MEM_OTHER, "tfevents", sizeof *e, &e));
    e->env = env;
    text_init(&e->event, env);
    text_init(&e->summary, env);
    text_init(&e->value, env);
    text_init(&e->tensor, env);
    e->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    const char *what = e->fd < 0 ? "create" : "write";
    enum status st = STATUS_IO;
    if (e->fd >= 0) {
        event_begin(&e->event);
        add_event_head(&e->event, wall_time, 0);
        add_block(&e->event, EVENT_FILE_VERSION, version, strlen(version));
        st = event_write(e);
    }
    if (st == STATUS_IO)
        st = FAIL(env, IO, "cannot %s '%s': %s", what, path, strerror(errno));
    if (st == STATUS_OK)
        *events = e;
    else
        tfevents_destroy(e);
    return st;
}

enum status tfevents_create(struct env *env, const char *folder, struct tfevents **events)
{
    char host[128] = "localhost", name[256], *path;
    double now = clock_wall();
    gethostname(host, sizeof host - 1);
    /* The last number distinguishes files that one process creates within a second. */
    for (int n = 0;; n++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d.%d", (long long)now, host,
                 (int)getpid(), n);
        TRY(path_join(env, folder, name, &path));
        if (path_is_free(path))
            break;
        mem_free(env, path);
    }
    enum status st = tfevents_create_file(env, path, now, events);
    mem_free(env, path);
    return st;
}

void tfevents_destroy(struct tfevents *events)
{
    if (!events)
        return;
    struct env *env = events->env;
    if (events->fd >= 0)
        close(events->fd);
    text_free(&events->tensor);
    text_free(&events->value);
    text_free(&events->summary);
    text_free(&events->event);
    mem_free(env, events);
}
