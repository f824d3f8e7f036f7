/* far -- memory that is larger and slower than the device's: pinned host memory, or a file without
 * a name.
 *
 * Streams copy ranges of it to and from device memory; the host may read and write it, too. Work of
 * several streams on different ranges overlaps. Everything is created at start-up: copies allocate
 * nothing. Bytes count as MEM_HOST or MEM_DISK under the category and name of the config. A device
 * with far memory on disk also has bounce buffers (far_disk.c), which count as MEM_COMM.
 *
 * Dry devices only count the bytes and simulate the time of copies.
 */
#ifndef DEVICE_FAR_H
#define DEVICE_FAR_H
#include "device/device.h"

enum far_kind { FAR_NONE, FAR_HOST, FAR_DISK };
extern const char *const far_words[]; /* "none", "host", "disk"; NULL ends the list */
/* FAR_DISK: offsets and lengths of far_read and far_write are multiples of this. */
enum { FAR_ALIGN = 4096 };

struct far;

struct far_config {
    enum far_kind kind; /* FAR_HOST or FAR_DISK */
    enum mem_category category;
    const char *name;
    size_t bytes;       /* rounded up to a multiple of FAR_ALIGN */
    const char *folder; /* FAR_DISK: where the file is; it must exist */
    const char *key;    /* the option that names the folder, for messages; NULL: none */
};

/* Zeroed. FAR_DISK reserves the space: a full disk is STATUS_IO here, not later. Not thread-safe,
 * like all that allocates from a device. */
enum status far_create(struct device *device, const struct far_config *config, struct far **far);
void far_destroy(struct far *far); /* NULL is fine; no stream uses it any more */

/* A stream for far_read and far_write that overlaps with the caller: a plain one for FAR_HOST on a
 * GPU, otherwise a worker. Reads and writes overlap with each other on different streams. */
enum status far_stream_create(struct device *device, enum far_kind kind, const char *name,
                              struct stream **stream);

/* Enqueued copies between bytes `at` .. `at` + `bytes` and device memory. With FAR_DISK a failure
 * of the disk sticks to the stream (STATUS_IO). On the CPU, addresses that are multiples of
 * FAR_ALIGN save a copy through bounce buffers. */
void far_read(struct stream *stream, struct far *far, size_t at, void *dst, size_t bytes);
void far_write(struct stream *stream, struct far *far, size_t at, const void *src, size_t bytes);

/* Copies between the far memory and host memory, for the host: any range, any thread. They return
 * when the copy is done and wait for no stream. far_put also rewrites the rest of the first and the
 * last FAR_ALIGN bytes it touches, so no stream may write those meanwhile. No effect on dry
 * devices. */
enum status far_get(struct far *far, size_t at, void *out, size_t bytes);
enum status far_put(struct far *far, size_t at, const void *values, size_t bytes);

/* Whether FAR_HOST is the memory that the device computes in, where moving gains nothing: on a CPU.
 * Environment, for tests: with SIFR_CPU_OFFLOAD=1 a CPU moves what a GPU would move. */
bool far_host_is_near(const struct device *device);

/* What streams have been asked to copy so far: bytes over the link between host and GPU, and bytes
 * of the file. On a GPU a file's bytes count as both. Any thread may ask. */
struct far_counts {
    int64_t link_in, link_out; /* to the GPU, and from it */
    int64_t disk_read, disk_written;
};
struct far_counts far_counted(const struct far *far); /* NULL: nothing */

/* FAR_HOST: where its bytes are; otherwise NULL. */
char *far_address(const struct far *far);

#endif
