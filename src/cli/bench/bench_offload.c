/* bench_offload -- the rates of the ways that offloaded state takes.
 *
 * Far memory is read and written as the store does it (device/far.h): in pieces, one stream each
 * way. Each rate is measured alone and on all ranks at once.
 */
#include "cli/bench/bench.h"

#include "base/clock.h"
#include "device/far.h"
#include "ops/ops_trial.h"

enum { TIMES = 3, PIECES = 8, PIECE = 8 << 20, PARAMETERS = 1 << 24 };

struct trip {
    struct session *session;
    struct far *far;
    struct stream *stream;
    char *memory; /* (PIECE) of the device */
};

/* Bytes per second of the whole far memory, one way. */
static enum status time_way(const struct trip *trip, bool write, double *rate)
{
    double samples[TIMES];
    for (int i = 0; i < TIMES; i++) {
        if (trip->session->comm)
            TRY(comm_barrier(trip->session->comm));
        double start = clock_seconds();
        for (size_t at = 0; at < (size_t)PIECES * PIECE; at += PIECE)
            if (write)
                far_write(trip->stream, trip->far, at, trip->memory, PIECE);
            else
                far_read(trip->stream, trip->far, at, trip->memory, PIECE);
        TRY(stream_sync(trip->stream));
        samples[i] = clock_seconds() - start;
    }
    double seconds = machine_fit_median(samples, TIMES);
    TRY(bench_median(trip->session, &seconds));
    *rate = (double)PIECES * PIECE / seconds;
    return STATUS_OK;
}

static enum status time_far(struct session *session, enum far_kind kind, const char *folder,
                            double *read, double *write)
{
    struct device *device = session->device;
    struct trip trip = {.session = session};
    struct far_config config = {.kind = kind,
                                .category = MEM_OTHER,
                                .name = "bench",
                                .bytes = (size_t)PIECES * PIECE,
                                .folder = folder};
    enum status st;
    TRY_OR(done, far_create(device, &config, &trip.far));
    TRY_OR(done, far_stream_create(device, kind, "bench", &trip.stream));
    TRY_OR(done, device_alloc(device, MEM_OTHER, "bench", PIECE, &trip.memory));
    TRY_OR(done, time_way(&trip, true, write));
    st = time_way(&trip, false, read);
done:
    stream_destroy(trip.stream);
    device_free(device, trip.memory);
    far_destroy(trip.far);
    return st;
}

/* AdamW with 16-bit params on the cores of this rank. */
static enum status time_update(struct session *session, double seconds, double *rate)
{
    const struct ops_case update = {"adamw", .count = PARAMETERS, .to = DTYPE_BF16};
    struct device *device = NULL;
    struct ops *ops = NULL;
    struct ops_bench_result timed;
    enum status st;
    TRY_OR(done, device_create(device_env(session->device), "cpu", 0, &device));
    TRY_OR(done, ops_create(device, "cpu", DTYPE_F32, &ops));
    if (session->comm)
        TRY_OR(done, comm_barrier(session->comm));
    TRY_OR(done, ops_bench_run(ops, &update, 1, seconds, &timed));
    *rate = 1e9 * timed.gbytes_per_second;
    st = bench_median(session, rate);
done:
    ops_destroy(ops);
    device_destroy(device);
    return st;
}

enum status bench_offload_run(struct session *session, const char *folder, double seconds,
                              struct machine_offload *rates)
{
    double in, out;
    *rates = (struct machine_offload){0};
    TRY(time_far(session, FAR_DISK, folder, &rates->disk_read, &rates->disk_write));
    if (device_memory(session->device) != MEM_GPU)
        return STATUS_OK;
    TRY(time_far(session, FAR_HOST, NULL, &in, &out));
    rates->link = in < out ? in : out;
    return time_update(session, seconds, &rates->host_update);
}
