/* far -- the public functions: host memory is copied by the device, a file by far_disk.c, and dry
 * devices count. */
#include "device/far.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "device/far_impl.h"

struct far {
    struct device *device; /* borrowed */
    enum far_kind kind;
    enum mem_category category;
    size_t bytes;  /* a multiple of FAR_ALIGN */
    char *address; /* FAR_HOST */
    struct unnamed_file file;
    char *folder;                  /* FAR_DISK */
    char hint[32];                 /* the option that names it, for messages; or "" */
    pthread_mutex_t put_lock;      /* two threads may put parts of one block */
    _Atomic int64_t read, written; /* bytes that streams were asked to copy */
    char name[];
};

const char *const far_words[] = {"none", "host", "disk", NULL};

/* In the trace: to device memory, and from it. */
static const struct trace_lane lane_in = {.row = 11, .word = "in"};
static const struct trace_lane lane_out = {.row = 12, .word = "out"};

/* --- creating ------------------------------------------------------------------------------- */

static enum status open_file(struct far *far)
{
    char what[160];
    snprintf(what, sizeof what, "%s '%s'%s", mem_category_word(far->category), far->name,
             far->hint);
    return unnamed_file_open(far->device->env, far->folder, what, far->bytes, &far->file);
}

static enum status open_disk(struct far *far, const char *folder)
{
    enum status st;
    struct device *device = far->device;
    TRY(mem_strdup(device->env, folder, &far->folder));
    TRY_OR(undo_folder, mem_count(device->env, MEM_DISK, far->category, far->name, far->bytes));
    TRY_OR(undo_count, far_disk_join(device));
    if (!device->backend->dry)
        TRY_OR(undo_join, open_file(far));
    return STATUS_OK;
undo_join:
    far_disk_leave(device);
undo_count:
    mem_uncount(device->env, MEM_DISK, far->category, far->name, far->bytes);
undo_folder:
    mem_free(device->env, far->folder);
    return st;
}

static void close_disk(struct far *far)
{
    struct device *device = far->device;
    unnamed_file_close(&far->file);
    far_disk_leave(device);
    mem_uncount(device->env, MEM_DISK, far->category, far->name, far->bytes);
    mem_free(device->env, far->folder);
}

enum status far_create(struct device *device, const struct far_config *config, struct far **far)
{
    enum status st;
    struct far *f;
    size_t name_bytes = strlen(config->name) + 1;
    CHECK(config->kind == FAR_HOST || (config->kind == FAR_DISK && config->folder != NULL));
    TRY(mem_alloc(device->env, MEM_OTHER, "far memory", sizeof *f + name_bytes, &f));
    f->device = device;
    f->kind = config->kind;
    f->category = config->category;
    f->bytes = (config->bytes + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
    f->file.fd = -1;
    memcpy(f->name, config->name, name_bytes);
    if (config->key != NULL)
        snprintf(f->hint, sizeof f->hint, " (%s)", config->key);
    if (f->kind == FAR_HOST)
        TRY_OR(undo_self, device_alloc_host(device, f->category, f->name, f->bytes, &f->address));
    else
        TRY_OR(undo_self, open_disk(f, config->folder));
    pthread_mutex_init(&f->put_lock, NULL);
    *far = f;
    return STATUS_OK;
undo_self:
    mem_free(device->env, f);
    return st;
}

void far_destroy(struct far *far)
{
    if (far == NULL)
        return;
    pthread_mutex_destroy(&far->put_lock);
    if (far->kind == FAR_HOST)
        device_free(far->device, far->address);
    else
        close_disk(far);
    mem_free(far->device->env, far);
}

enum status far_stream_create(struct device *device, enum far_kind kind, const char *name,
                              struct stream **stream)
{
    return kind == FAR_HOST && device_memory(device) == MEM_GPU
               ? stream_create(device, name, stream)
               : stream_create_worker(device, name, stream);
}

char *far_address(const struct far *far)
{
    return far->address;
}

/* --- the file ------------------------------------------------------------------------------- */

static enum status move_file(struct far *far, const struct far_move *move)
{
    size_t at = 0;
    int error = far_disk_move(far->device, move, &at);
    if (error == 0)
        return STATUS_OK;
    return FAIL(far->device->env, IO,
                "cannot %s %s '%s' on disk: %s, at byte %zu of its file in '%s'; %s%s",
                move->write ? "write" : "read", mem_category_word(far->category), far->name,
                strerror(error), at, far->folder,
                error == ENOSPC || error == EDQUOT
                    ? "free some space there, or name a folder on another disk"
                    : "check that disk (dmesg), or name a folder on another one",
                far->hint);
}

struct move_args {
    struct far *far;
    struct far_move move; /* all but the stream */
    int64_t mark;         /* of its span, or -1 */
};

static struct trace_span span_of(const struct far *far, bool write, size_t bytes)
{
    return (struct trace_span){
        .lane = write ? &lane_out : &lane_in, .name = far->name, .bytes = (int64_t)bytes};
}

static void move_task(struct stream *stream, const void *args)
{
    const struct move_args *a = args;
    struct far_move move = a->move;
    move.stream = stream;
    if (stream_failed(stream))
        return;
    stream_span_mark(stream, a->mark, false);
    stream_fail(stream, move_file(a->far, &move));
    stream_span_mark(stream, a->mark, true);
}

static void enqueue_move(struct stream *stream, struct far *far, bool write, size_t at,
                         char *memory, size_t bytes)
{
    struct trace_span span = span_of(far, write, bytes);
    struct move_args args = {
        far,
        {.file = &far->file, .write = write, .at = at, .bytes = bytes, .memory = memory},
        stream_span_claim(stream, &span)};
    stream_enqueue(stream, move_task, &args, sizeof args);
}

/* --- copies --------------------------------------------------------------------------------- */

static void check_range(const struct far *far, size_t at, size_t bytes)
{
    CHECK(at <= far->bytes && bytes <= far->bytes - at);
}

/* Whether a copy of a stream is still to be done; a dry device has done it. */
static bool is_to_do(struct stream *stream, struct far *far, bool write, size_t at, size_t bytes)
{
    CHECK(stream->device == far->device);
    CHECK(far->kind == FAR_HOST || (at | bytes) % FAR_ALIGN == 0);
    check_range(far, at, bytes);
    *(write ? &far->written : &far->read) += (int64_t)bytes;
    if (far->device->backend->dry)
        dry_copy_far(stream, far->kind, write, bytes);
    return !far->device->backend->dry && bytes > 0;
}

static void copy_host(struct stream *stream, const struct far *far, bool write, void *dst,
                      const void *src, size_t bytes)
{
    struct trace_span span = span_of(far, write, bytes);
    device_copy_traced(stream, dst, src, bytes, &span);
}

void far_read(struct stream *stream, struct far *far, size_t at, void *dst, size_t bytes)
{
    if (!is_to_do(stream, far, false, at, bytes))
        return;
    if (far->kind == FAR_HOST)
        copy_host(stream, far, false, dst, far->address + at, bytes);
    else
        enqueue_move(stream, far, false, at, dst, bytes);
}

void far_write(struct stream *stream, struct far *far, size_t at, const void *src, size_t bytes)
{
    if (!is_to_do(stream, far, true, at, bytes))
        return;
    if (far->kind == FAR_HOST)
        copy_host(stream, far, true, far->address + at, src, bytes);
    else
        enqueue_move(stream, far, true, at, (char *)src, bytes);
}

struct far_counts far_counted(const struct far *far)
{
    struct far_counts counts = {0};
    if (far && device_memory(far->device) == MEM_GPU) {
        counts.link_in = far->read;
        counts.link_out = far->written;
    }
    if (far && far->kind == FAR_DISK) {
        counts.disk_read = far->read;
        counts.disk_written = far->written;
    }
    return counts;
}

enum status far_get(struct far *far, size_t at, void *out, size_t bytes)
{
    check_range(far, at, bytes);
    if (far->device->backend->dry || bytes == 0)
        return STATUS_OK;
    if (far->kind == FAR_DISK)
        return move_file(
            far, &(struct far_move){.file = &far->file, .at = at, .bytes = bytes, .memory = out});
    memcpy(out, far->address + at, bytes);
    return STATUS_OK;
}

enum status far_put(struct far *far, size_t at, const void *values, size_t bytes)
{
    enum status st;
    struct far_move move = {
        .file = &far->file, .write = true, .at = at, .bytes = bytes, .memory = (char *)values};
    check_range(far, at, bytes);
    if (far->device->backend->dry || bytes == 0)
        return STATUS_OK;
    if (far->kind == FAR_HOST) {
        memcpy(far->address + at, values, bytes);
        return STATUS_OK;
    }
    pthread_mutex_lock(&far->put_lock);
    st = move_file(far, &move);
    pthread_mutex_unlock(&far->put_lock);
    return st;
}
