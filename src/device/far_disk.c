/* far_disk -- a device's threads and bounce buffers for far memory on disk.
 *
 * A disk is fast only with many requests in flight. A move is cut into requests of CHUNK bytes. The
 * moving thread (a stream's worker, or the host) keeps up to WINDOW of them in a queue, from which
 * THREADS threads take them in order:
 *
 *     read     | disk | disk | disk | done | copied by the mover | free
 *     write    | free | copied by the mover | disk | disk | done
 *
 * So the disk works on the next requests while one is copied. A request's memory is a bounce
 * buffer, or the mover's own memory where the system can transfer it directly: host memory that is
 * aligned, whole blocks. Bounce buffers are pinned, for fast copies to a GPU. There are enough for
 * two streams; other movers share them.
 *
 * No deadlock: a mover waits for a bounce buffer only while it has none, and one that has some
 * always frees them. No starvation: while somebody waits without any, others do not take more.
 */
#include <errno.h>
#include <string.h>
#include "base/thread.h"
#include "device/far_impl.h"

enum {
    CHUNK = 1 << 20,
    WINDOW = 8,           /* requests of one move */
    THREADS = 2 * WINDOW, /* two streams at full depth */
    BUFFERS = 2 * WINDOW,
};
_Static_assert(FAR_ALIGN % (int)UNNAMED_FILE_BLOCK == 0 && CHUNK % FAR_ALIGN == 0, "whole blocks");

struct request {
    struct request *next; /* in the queue */
    const struct far_move *move;
    size_t at, bytes; /* of the file: whole blocks */
    char *data;       /* bytes are transferred from or to here */
    bool bounced;     /* `data` is a bounce buffer */
    bool done;
    int error; /* errno; 0 = none */
};

struct far_disk {
    struct device *device; /* borrowed */
    int users;             /* far objects */
    void *memory;          /* of the bounce buffers */
    pthread_mutex_t lock;  /* guards all below */
    pthread_cond_t work;   /* a request was queued, or `ending` was set */
    pthread_cond_t moved;  /* a request is done, or a buffer is free */
    struct request *first, **last;
    bool ending;
    char *buffers[BUFFERS]; /* free ones */
    int buffer_count;
    int without; /* movers that wait and have no buffer */
    pthread_t threads[THREADS];
    int thread_count;
};

/* --- the threads ---------------------------------------------------------------------------- */

static int transfer(const struct request *request)
{
    const struct far_move *move = request->move;
    bool done = move->write
                    ? unnamed_file_write(move->file, request->at, request->data, request->bytes)
                    : unnamed_file_read(move->file, request->at, request->data, request->bytes);
    return done ? 0 : errno;
}

static void *disk_main(void *arg)
{
    struct far_disk *disk = arg;
    pthread_mutex_lock(&disk->lock);
    for (;;) {
        while (disk->first == NULL && !disk->ending)
            pthread_cond_wait(&disk->work, &disk->lock);
        struct request *request = disk->first;
        if (request == NULL)
            break;
        disk->first = request->next;
        if (disk->first == NULL)
            disk->last = &disk->first;
        pthread_mutex_unlock(&disk->lock);
        int error = transfer(request);
        pthread_mutex_lock(&disk->lock);
        request->error = error;
        request->done = true;
        pthread_cond_broadcast(&disk->moved);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static void stop_threads(struct far_disk *disk)
{
    pthread_mutex_lock(&disk->lock);
    disk->ending = true;
    pthread_cond_broadcast(&disk->work);
    pthread_mutex_unlock(&disk->lock);
    for (int i = 0; i < disk->thread_count; i++)
        pthread_join(disk->threads[i], NULL);
    pthread_cond_destroy(&disk->moved);
    pthread_cond_destroy(&disk->work);
    pthread_mutex_destroy(&disk->lock);
}

static enum status start_threads(struct far_disk *disk)
{
    disk->last = &disk->first;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->work, NULL);
    pthread_cond_init(&disk->moved, NULL);
    for (; disk->thread_count < THREADS; disk->thread_count++) {
        pthread_t *thread = &disk->threads[disk->thread_count];
        int error = thread_start(thread, disk_main, disk);
        if (error != 0) {
            stop_threads(disk);
            return FAIL(
                disk->device->env, DEVICE,
                "cannot start a thread that reads and writes far memory: %s; see ulimit -u, and "
                "-d and -v for its stack",
                strerror(error));
        }
        pthread_setname_np(*thread, "far disk");
    }
    return STATUS_OK;
}

/* --- creating ------------------------------------------------------------------------------- */

static void find_buffers(struct far_disk *disk)
{
    uintptr_t from = (uintptr_t)disk->memory;
    char *first = (char *)disk->memory + (FAR_ALIGN - from % FAR_ALIGN) % FAR_ALIGN;
    for (int i = 0; i < BUFFERS; i++)
        disk->buffers[disk->buffer_count++] = first + (size_t)i * CHUNK;
}

enum status far_disk_join(struct device *device)
{
    enum status st;
    struct far_disk *disk = device->far_disk;
    if (disk != NULL) {
        disk->users++;
        return STATUS_OK;
    }
    TRY(mem_alloc(device->env, MEM_OTHER, "far disk", sizeof *disk, &disk));
    disk->device = device;
    disk->users = 1;
    TRY_OR(undo_self, device_alloc_host(device, MEM_COMM, "far bounce buffers",
                                        (size_t)BUFFERS * CHUNK + FAR_ALIGN, &disk->memory));
    if (!device->backend->dry) {
        find_buffers(disk);
        TRY_OR(undo_memory, start_threads(disk));
    }
    device->far_disk = disk;
    return STATUS_OK;
undo_memory:
    device_free(device, disk->memory);
undo_self:
    mem_free(device->env, disk);
    return st;
}

void far_disk_leave(struct device *device)
{
    struct far_disk *disk = device->far_disk;
    if (--disk->users > 0)
        return;
    if (!device->backend->dry)
        stop_threads(disk);
    device_free(device, disk->memory);
    mem_free(device->env, disk);
    device->far_disk = NULL;
}

/* --- moves ---------------------------------------------------------------------------------- */

/* A free bounce buffer. A caller without any waits for one; a caller that has some gets NULL if none
 * is free now. */
static char *take_buffer(struct far_disk *disk, bool has_some)
{
    char *buffer = NULL;
    pthread_mutex_lock(&disk->lock);
    if (!has_some) {
        disk->without++;
        while (disk->buffer_count == 0)
            pthread_cond_wait(&disk->moved, &disk->lock);
        disk->without--;
    }
    if (disk->buffer_count > 0 && (!has_some || disk->without == 0))
        buffer = disk->buffers[--disk->buffer_count];
    pthread_mutex_unlock(&disk->lock);
    return buffer;
}

static void free_buffer(struct far_disk *disk, char *buffer)
{
    pthread_mutex_lock(&disk->lock);
    disk->buffers[disk->buffer_count++] = buffer;
    pthread_cond_broadcast(&disk->moved);
    pthread_mutex_unlock(&disk->lock);
}

/* The part of the request that the mover asked for. */
static size_t part_of(const struct request *request, size_t *begin)
{
    const struct far_move *move = request->move;
    size_t end = request->at + request->bytes, move_end = move->at + move->bytes;
    *begin = request->at > move->at ? request->at : move->at;
    return (end < move_end ? end : move_end) - *begin;
}

/* Copy that part between the bounce buffer and the mover's memory. */
static void copy_part(const struct request *request)
{
    const struct far_move *move = request->move;
    size_t begin, bytes = part_of(request, &begin);
    char *own = move->memory + (begin - move->at), *bounce = request->data + (begin - request->at);
    char *dst = move->write ? bounce : own, *src = move->write ? own : bounce;
    if (move->stream != NULL && !device_on_host(stream_device(move->stream)))
        device_copy(move->stream, dst, src, bytes); /* done when it returns: this is its task */
    else
        memcpy(dst, src, bytes);
}

/* Set up the request for the blocks from `at` on; false = no bounce buffer is free. */
static bool prepare(struct far_disk *disk, const struct far_move *move, size_t at, bool has_some,
                    struct request *request)
{
    size_t begin, end = (move->at + move->bytes + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
    *request =
        (struct request){.move = move, .at = at, .bytes = end - at < CHUNK ? end - at : CHUNK};
    bool whole = part_of(request, &begin) == request->bytes;
    char *own = move->memory + (begin - move->at);
    bool on_host = move->stream == NULL || device_on_host(stream_device(move->stream));
    request->bounced = !on_host || !whole || (uintptr_t)own % FAR_ALIGN != 0;
    request->data = request->bounced ? take_buffer(disk, has_some) : own;
    return request->data != NULL;
}

/* Queue it; a write first fills its bounce buffer, at the edges with what the file has. */
static void begin(struct far_disk *disk, struct request *request)
{
    size_t at;
    if (request->move->write && request->bounced) {
        if (part_of(request, &at) < request->bytes &&
            !unnamed_file_read(request->move->file, request->at, request->data, request->bytes)) {
            request->error = errno;
            request->done = true;
            return;
        }
        copy_part(request);
    }
    pthread_mutex_lock(&disk->lock);
    *disk->last = request;
    disk->last = &request->next;
    pthread_cond_signal(&disk->work);
    pthread_mutex_unlock(&disk->lock);
}

/* Wait for it; what was read is copied out, unless the move has failed. */
static void finish(struct far_disk *disk, struct request *request, bool failed)
{
    pthread_mutex_lock(&disk->lock);
    while (!request->done)
        pthread_cond_wait(&disk->moved, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
    if (!request->bounced)
        return;
    if (!request->move->write && !failed && request->error == 0)
        copy_part(request);
    free_buffer(disk, request->data);
}

int far_disk_move(struct device *device, const struct far_move *move, size_t *failed_at)
{
    struct far_disk *disk = device->far_disk;
    struct request window[WINDOW];
    unsigned begun = 0, finished = 0;
    size_t at = move->at / FAR_ALIGN * FAR_ALIGN, end = move->at + move->bytes;
    int error = 0;
    while (at < end || finished < begun) {
        struct request *next = &window[begun % WINDOW], *oldest = &window[finished % WINDOW];
        if (error != 0 || (move->stream != NULL && stream_failed(move->stream)))
            end = 0; /* begin no more */
        if (at < end && begun - finished < WINDOW &&
            prepare(disk, move, at, finished < begun, next)) {
            begin(disk, next);
            begun++;
            at += next->bytes;
        } else if (finished < begun) {
            finish(disk, oldest, error != 0);
            finished++;
            if (error == 0 && oldest->error != 0) {
                error = oldest->error;
                *failed_at = oldest->at;
            }
        }
    }
    return error;
}
