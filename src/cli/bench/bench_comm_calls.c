/* bench_comm_calls -- the timed calls between ranks, and how they are timed.
 *
 * Calls are enqueued on a stream of the communicator, one at a time, as in a run.
 */
#include <math.h>
#include "base/clock.h"
#include "cli/bench/bench_comm_impl.h"
#include "base/progress.h"

enum { LEAST_CALLS = 5, MOST_CALLS = 51 };

/* --- the calls, each with `count` elements -------------------------------------------------- */

void bench_call_gather(const struct bench_rig *rig, int64_t count)
{
    comm_all_gather(rig->comm, rig->b, rig->a, count, DTYPE_F32, rig->stream);
}

static void call_all_to_all(const struct bench_rig *rig, int64_t count)
{
    comm_all_to_all(rig->comm, rig->a, rig->b, count, DTYPE_F32, rig->stream);
}

static void call_reduce_scatter(const struct bench_rig *rig, int64_t count)
{
    comm_reduce_scatter(rig->comm, rig->a, rig->b, count, DTYPE_F32, rig->scratch, rig->stream);
}

static void call_all_reduce(const struct bench_rig *rig, int64_t count)
{
    comm_all_reduce(rig->comm, rig->a, count, DTYPE_F32, rig->scratch, rig->stream);
}

static void call_broadcast(const struct bench_rig *rig, int64_t count)
{
    comm_broadcast(rig->comm, rig->a, count, DTYPE_F32, 0, rig->stream);
}

/* A round trip between neighbours. */
static void call_pair(const struct bench_rig *rig, int64_t count)
{
    int rank = comm_rank(rig->comm), other = rank ^ 1;
    if (other >= comm_size(rig->comm))
        return;
    if (rank % 2 == 0)
        comm_send(rig->comm, rig->a, count, DTYPE_F32, other, rig->stream);
    comm_recv(rig->comm, rig->b, count, DTYPE_F32, other, rig->stream);
    if (rank % 2 == 1)
        comm_send(rig->comm, rig->a, count, DTYPE_F32, other, rig->stream);
}

static const struct kind {
    const char *word;
    enum comm_kind kind; /* the counter of its bytes */
    bench_call_fn *call;
    double parts_less_one, ends; /* for count_for */
} kinds[BENCH_COMM_KINDS] = {
    {"all_gather", COMM_ALL_GATHER, bench_call_gather, 1, 0},
    {"all_to_all", COMM_ALL_TO_ALL, call_all_to_all, 1, 0},
    {"reduce_scatter", COMM_REDUCE_SCATTER, call_reduce_scatter, 1, 0},
    {"all_reduce", COMM_ALL_REDUCE, call_all_reduce, 0, 2},
    {"broadcast", COMM_BROADCAST, call_broadcast, 0, 0},
    {"send_recv", COMM_SEND, call_pair, 0, 0},
};

/* Elements of a call in which a rank sends about `bytes`. */
static int64_t count_for(const struct kind *kind, int size, double bytes)
{
    double others = size - 1, elements = bytes / sizeof(float);
    if (kind->parts_less_one > 0)
        elements /= others;
    else if (kind->ends > 0)
        elements *= size / (kind->ends * others);
    return elements < 1 ? 1 : (int64_t)elements;
}

int64_t bench_gather_count(int size, double bytes)
{
    return count_for(&kinds[0], size, bytes);
}

/* --- one timing ----------------------------------------------------------------------------- */

enum status bench_agree(const struct bench_rig *rig, double *value)
{
    TRY(comm_exchange(rig->comm, value, sizeof *value, rig->said));
    for (int r = 0; r < comm_size(rig->comm); r++)
        *value = fmax(*value, rig->said[r]);
    return STATUS_OK;
}

static enum status time_once(const struct bench_rig *rig, bench_call_fn *call, int64_t count,
                             double *seconds)
{
    double start = clock_seconds();
    call(rig, count);
    TRY(stream_sync(rig->stream));
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* A barrier separates the calls: a rank that only sends may return early, and the ranks that
 * receive measure the real time. */
enum status bench_time_call(const struct bench_rig *rig, bench_call_fn *call, int64_t count,
                            double *seconds)
{
    double samples[MOST_CALLS], first = 0;
    for (int i = 0; i < 2; i++)
        TRY(time_once(rig, call, count, &first));
    TRY(bench_agree(rig, &first));
    int calls = (int)fmin(MOST_CALLS, fmax(LEAST_CALLS, rig->budget / first));
    for (int i = 0; i < calls; i++) {
        TRY(comm_barrier(rig->comm));
        TRY(time_once(rig, call, count, &samples[i]));
    }
    *seconds = machine_fit_median(samples, calls);
    return bench_agree(rig, seconds);
}

static void copy_bytes(const struct bench_rig *rig, int64_t count)
{
    device_copy(rig->stream, rig->a, rig->b, (size_t)count * sizeof(float));
}

static enum status time_copy(struct bench_rig *rig, double bytes, double *rate)
{
    double seconds;
    size_t count = (size_t)(fmin(bytes, (double)rig->most) / sizeof(float));
    TRY(bench_time_call(rig, copy_bytes, (int64_t)count, &seconds));
    *rate = (double)(count * sizeof(float)) / seconds;
    return STATUS_OK;
}

static enum status add_line(struct bench_rig *rig, const struct kind *kind, double bytes,
                            bool between, struct bench_comm_result *result)
{
    struct bench_comm_line *line = &result->lines[result->count++];
    int size = comm_size(rig->comm);
    bool pair = kind->kind == COMM_SEND;
    struct comm_counter before = comm_counted(rig->comm, kind->kind);
    *line = (struct bench_comm_line){
        .what = kind->word, .between = between, .messages = pair ? 1 : size - 1};
    TRY(bench_time_call(rig, kind->call, count_for(kind, size, bytes), &line->seconds));
    /* Bytes that this rank sent per call, as counted by the communicator. */
    struct comm_counter after = comm_counted(rig->comm, kind->kind);
    if (after.calls > before.calls)
        line->bytes = (double)(after.bytes - before.bytes) / (double)(after.calls - before.calls);
    TRY(bench_agree(rig, &line->bytes));
    if (pair)
        line->seconds /= 2;
    return time_copy(rig, line->bytes, &line->copy_rate);
}

enum status bench_time_group(struct bench_rig *rig, const struct bench_comm_config *config,
                             bool between, struct bench_comm_result *result)
{
    const struct env *env = device_env(stream_device(rig->stream));
    struct progress_task task;
    uint64_t sizes = 0;
    for (double bytes = BENCH_COMM_SMALLEST; bytes <= (double)config->largest;
         bytes *= BENCH_COMM_GROWTH)
        sizes++;
    progress_begin(&task, between ? "timing calls between nodes" : "timing calls", "calls",
                   sizes * BENCH_COMM_KINDS);
    for (int k = 0; k < BENCH_COMM_KINDS; k++) {
        snprintf(task.figure, sizeof task.figure, "%s", kinds[k].word);
        for (double bytes = BENCH_COMM_SMALLEST; bytes <= (double)config->largest;
             bytes *= BENCH_COMM_GROWTH) {
            TRY(add_line(rig, &kinds[k], bytes, between, result));
            progress_advance(env, &task, 1);
        }
    }
    progress_end(env, &task);
    return STATUS_OK;
}

/* --- a group and its buffers ---------------------------------------------------------------- */

void bench_rig_close(struct session *session, struct bench_rig *rig)
{
    stream_destroy(rig->stream);
    device_free(session->device, rig->scratch);
    device_free(session->device, rig->b);
    device_free(session->device, rig->a);
    mem_free(device_env(session->device), rig->said);
}

static enum status fill_rig(struct session *session, struct bench_rig *rig)
{
    struct device *device = session->device;
    TRY(mem_alloc_array(device_env(device), MEM_OTHER, "said", (size_t)comm_size(rig->comm),
                        sizeof *rig->said, &rig->said));
    TRY(device_alloc(device, MEM_COMM, "bench a", rig->most, &rig->a));
    TRY(device_alloc(device, MEM_COMM, "bench b", rig->most, &rig->b));
    TRY(device_alloc(device, MEM_COMM, "bench scratch", rig->most, &rig->scratch));
    return comm_stream_create(rig->comm, "bench", &rig->stream);
}

/* Each buffer has room for the parts of all ranks. */
enum status bench_rig_open(struct session *session, struct comm *comm,
                           const struct bench_comm_config *config, struct bench_rig *rig)
{
    size_t size = (size_t)comm_size(comm);
    size_t part = (size_t)config->largest / (size - 1) + 64 * sizeof(float);
    size_t least = BENCH_COMM_BLOCK * sizeof(float);
    *rig = (struct bench_rig){
        .comm = comm, .most = size * (part > least ? part : least), .budget = config->seconds};
    enum status st = fill_rig(session, rig);
    if (st != STATUS_OK)
        bench_rig_close(session, rig);
    return st;
}
