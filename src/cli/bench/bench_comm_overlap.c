/* bench_comm_overlap -- what calls between ranks take from the rank's own work: sums inside them,
 * and the processors that move their bytes. */
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

/* A copy of the first part, the others added, and a copy of the sum: block by block. */
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
 * Products in a loop, alone and beside gathers. On a GPU: how much longer they take. On processors,
 * which other programs may use too: how much more processor time this process takes, which is taken
 * from the products as far as there is no processor left for the thread that makes the calls.
 */

enum { ROUNDS = 9, MOST_PRODUCTS = 10000, AHEAD = 16 };

struct beside {
    struct session *session;
    const struct bench_rig *rig;
    struct ops_trial *trial;
    int64_t count; /* elements of a gather */
    bool gpu;
    double processors; /* of those that the calls keep busy, how many would compute: 0 .. 1 */
};

static double seconds_used(const struct beside *b)
{
    struct timespec used;
    if (b->gpu)
        return clock_seconds();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* Both to their end; gathers are enqueued as they come off, for there is little room in a ring. */
static enum status time_both(const struct beside *b, int products, int gathers, double *seconds)
{
    int64_t before = comm_counted(b->rig->comm, COMM_ALL_GATHER).calls;
    int made = 0;
    TRY(comm_barrier(b->rig->comm));
    double start = seconds_used(b);
    for (int i = 0; i < products; i++) {
        int64_t done = comm_counted(b->rig->comm, COMM_ALL_GATHER).calls - before;
        for (; made < gathers && made - done < AHEAD; made++)
            bench_call_gather(b->rig, b->count);
        ops_trial_run(b->trial);
    }
    for (; made < gathers; made++)
        bench_call_gather(b->rig, b->count);
    TRY(stream_sync(b->session->stream));
    TRY(stream_sync(b->rig->stream));
    *seconds = seconds_used(b) - start;
    return comm_barrier(b->rig->comm);
}

static enum status theft_round(const struct beside *b, double *theft)
{
    const struct bench_rig *rig = b->rig;
    double alone, both, quiet, product;
    bool shared = strcmp(comm_backend_name(rig->comm), "threads") == 0;
    TRY(bench_time_call(rig, bench_call_gather, b->count, &quiet));
    TRY(time_both(b, 1, 0, &product));
    TRY(bench_agree(rig, &product));
    int products = (int)fmin(MOST_PRODUCTS, 1 + rig->budget / product);
    TRY(time_both(b, products, 0, &alone));
    int gathers = 1 + (int)(products * product / 2 / quiet);
    TRY(time_both(b, products, gathers, &both));
    *theft = b->processors * (both - alone) / (gathers * quiet);
    if (shared && !b->gpu) /* the process is all ranks */
        *theft /= comm_size(rig->comm);
    return STATUS_OK;
}

/* A rank's share of the processors, less its threads, is free for its calls. */
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
    struct beside beside = {
        .session = session,
        .rig = rig,
        .count = bench_gather_count(size, fmin((double)rig->most / size, 1 << 20)),
        .gpu = gpu,
        .processors = gpu ? 1 : busy_processors(session, node),
    };
    double rounds[ROUNDS];
    enum status st = STATUS_OK;
    TRY(ops_trial_create(session->ops, session->stream, &product, 1, &beside.trial));
    for (int i = 0; st == STATUS_OK && i < ROUNDS; i++)
        st = theft_round(&beside, &rounds[i]);
    ops_trial_destroy(beside.trial);
    TRY(st);
    *theft = fmax(0, machine_fit_median(rounds, ROUNDS));
    return bench_agree(rig, theft);
}
