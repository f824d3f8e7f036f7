/* bench_comm_overlap -- what communication costs the compute of a rank: the sums within
 * collectives, and the processors that move the bytes. The planner uses both (comm_prices.theft,
 * sum_bytes_per_second). */
#include <math.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "cli/bench/bench_comm_impl.h"
#include "base/host.h"
#include "ops/ops_trial.h"

/* --- sums ----------------------------------------------------------------------------------- */

enum { BLOCK = BENCH_COMM_BLOCK };

struct sums {
    const struct bench_rig *rig;
    int64_t count;
};

/* Block by block: copy the first part, add the others, copy the sum. */
static void sum_parts(struct stream *stream, const void *args)
{
    const struct sums *sums = args;
    const struct bench_rig *rig = sums->rig;
    int size = comm_size(rig->comm);
    for (int64_t at = 0; at + BLOCK <= sums->count; at += BLOCK) {
        device_copy(stream, rig->scratch, rig->a + at, BLOCK * sizeof(float));
        for (int r = 1; r < size; r++)
            device_accumulate(stream, rig->scratch, DTYPE_F32, rig->a + r * sums->count + at,
                              DTYPE_F32, BLOCK);
        device_copy(stream, rig->b + at, rig->scratch, BLOCK * sizeof(float));
    }
}

static void call_sums(const struct bench_rig *rig, int64_t count)
{
    struct sums sums = {rig, count};
    stream_enqueue(rig->stream, sum_parts, &sums, sizeof sums);
}

enum status bench_time_sums(const struct bench_rig *rig, double *rate)
{
    double seconds, part = (double)rig->most / sizeof(float) / comm_size(rig->comm);
    int64_t count = (int64_t)fmin(part, 1 << 20) / BLOCK * BLOCK;
    TRY(bench_time_call(rig, call_sums, count, &seconds));
    *rate = (double)count * comm_size(rig->comm) * sizeof(float) / seconds;
    return STATUS_OK;
}

/* --- theft ----------------------------------------------------------------------------------
 *
 * Times matrix products in a loop, alone and with concurrent gathers. On a GPU it measures how much
 * longer they take. On a CPU, which other programs may use too, it measures how much more processor
 * time this process uses; that time is lost for the products as far as no processor is left for the
 * thread that makes the calls.
 */

enum { ROUNDS = 9, MOST_PRODUCTS = 10000, AHEAD = 16 };

struct overlap {
    struct session *session;
    const struct bench_rig *rig;
    struct ops_trial *trial;
    int64_t count; /* elements of a gather */
    bool gpu;
    double processors; /* share of the calls' processor time that is lost for compute: 0 .. 1 */
};

static double seconds_used(const struct overlap *o)
{
    struct timespec used;
    if (o->gpu)
        return clock_seconds();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* Run both to their end. Gathers are enqueued as others complete, because the queue is short. */
static enum status time_both(const struct overlap *o, int products, int gathers, double *seconds)
{
    int64_t before = comm_counted(o->rig->comm, COMM_ALL_GATHER).calls;
    int made = 0;
    TRY(comm_barrier(o->rig->comm));
    double start = seconds_used(o);
    for (int i = 0; i < products; i++) {
        int64_t done = comm_counted(o->rig->comm, COMM_ALL_GATHER).calls - before;
        for (; made < gathers && made - done < AHEAD; made++)
            bench_call_gather(o->rig, o->count);
        ops_trial_run(o->trial);
    }
    for (; made < gathers; made++)
        bench_call_gather(o->rig, o->count);
    TRY(stream_sync(o->session->stream));
    TRY(stream_sync(o->rig->stream));
    *seconds = seconds_used(o) - start;
    return comm_barrier(o->rig->comm);
}

static enum status theft_round(const struct overlap *o, double *theft)
{
    const struct bench_rig *rig = o->rig;
    double alone, both, quiet, product;
    bool shared = strcmp(comm_backend_name(rig->comm), "threads") == 0;
    TRY(bench_time_call(rig, bench_call_gather, o->count, &quiet));
    TRY(time_both(o, 1, 0, &product));
    TRY(bench_agree(rig, &product));
    int products = (int)fmin(MOST_PRODUCTS, 1 + rig->budget / product);
    TRY(time_both(o, products, 0, &alone));
    int gathers = 1 + (int)(products * product / 2 / quiet);
    TRY(time_both(o, products, gathers, &both));
    *theft = o->processors * (both - alone) / (gathers * quiet);
    if (shared && !o->gpu) /* the processor time is that of all ranks */
        *theft /= comm_size(rig->comm);
    return STATUS_OK;
}

/* Processors of a rank that its compute threads do not use are free for its calls. */
static double busy_processors(const struct session *session, int ranks)
{
    struct machine host;
    machine_look(&host);
    bool bound = host.allowed < host.processors;
    double all = host.quota > 0 ? fmin(host.quota, host.processors) : host.processors;
    double mine = bound ? host.allowed : all / ranks;
    return fmax(0, fmin(1, 1 - (mine - device_env(session->device)->threads)));
}

enum status bench_time_theft(struct session *session, const struct bench_rig *rig, int node,
                             double *theft)
{
    bool gpu = device_memory(session->device) == MEM_GPU;
    int side = gpu ? 4096 : 512, size = comm_size(rig->comm);
    const struct ops_case product = {
        .op = "linear", .rows = gpu ? 4096 : 256, .linear = {.in = side, .out = side}};
    struct overlap overlap = {
        .session = session,
        .rig = rig,
        .count = bench_gather_count(size, fmin((double)rig->most / size, 1 << 20)),
        .gpu = gpu,
        .processors = gpu ? 1 : busy_processors(session, node),
    };
    double rounds[ROUNDS];
    enum status st = STATUS_OK;
    TRY(ops_trial_create(session->ops, session->stream, &product, 1, &overlap.trial));
    for (int i = 0; st == STATUS_OK && i < ROUNDS; i++)
        st = theft_round(&overlap, &rounds[i]);
    ops_trial_destroy(overlap.trial);
    TRY(st);
    *theft = fmax(0, machine_fit_median(rounds, ROUNDS));
    return bench_agree(rig, theft);
}
