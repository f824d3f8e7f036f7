/* far_impl -- moving bytes between an unnamed file and memory, for far.c. */
#ifndef DEVICE_FAR_IMPL_H
#define DEVICE_FAR_IMPL_H
#include "base/unnamed_file.h"
#include "device/device_impl.h"

/* One range of a file, and where its bytes come from or go to. */
struct far_move {
    const struct unnamed_file *file; /* borrowed */
    struct stream *stream;           /* whose task moves device memory; NULL: it is host memory */
    bool write;                      /* to the file */
    size_t at, bytes;                /* with a stream: multiples of FAR_ALIGN */
    char *memory;                    /* is only read when writing */
};

/* The device's threads and bounce buffers for far memory on disk exist from the first far_disk_join
 * to the last far_disk_leave. */
enum status far_disk_join(struct device *device);
void far_disk_leave(struct device *device);

/* Move the range, and return when that is done. Several threads may move at once. Returns 0, or the
 * errno of the first failure and its offset in the file. A failed stream ends the move early,
 * without an error. */
int far_disk_move(struct device *device, const struct far_move *move, size_t *failed_at);

#endif
