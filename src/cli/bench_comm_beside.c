/* bench_comm_beside -- what calls between ranks take from the rank's own work: sums inside them, and
 * the processors that move their bytes. */
#include <math.h>
#include "base/clock.h"
#include "cli/bench_comm_impl.h"
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

/* --- theft ---------------------------------------------------------------------------------- */

enum { ROUNDS = 5, MOST_AHEAD = 16, MOST_PRODUCTS = 10000 };

/* Gathers that are to go on beside products. */
struct gathers {
    const struct bench_rig *rig;
    int64_t count;  /* elements of each */
    int64_t before; /* calls that were counted when they began */
    int made, most, ahead;
};

static int gathers_done(const struct gathers *g)
{
    return (int)(comm_counted(g->rig->comm, COMM_ALL_GATHER).calls - g->before);
}

/* So many are under way that the worker has something to do, and room is left in its ring. */
static void feed(struct gathers *g, int ahead)
{
    for (; g->made < g->most && g->made - gathers_done(g) < ahead; g->made++)
        bench_call_gather(g->rig, g->count);
}

static enum status time_products(struct session *session, struct ops_trial *trial, int calls,
                                 struct gathers *beside, double *seconds)
{
    double start = clock_seconds();
    for (int i = 0; i < calls; i++) {
        if (beside)
            feed(beside, beside->ahead);
        ops_trial_run(trial);
    }
    TRY(stream_sync(session->stream));
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* A product in a loop, alone and beside gathers: how much longer it took, for each second that these
 * take by themselves. */
static enum status theft_round(struct session *session, const struct bench_rig *rig,
                               struct ops_trial *trial, int64_t count, double *theft)
{
    double alone, beside, quiet, product;
    TRY(bench_time_call(rig, bench_call_gather, count, &quiet));
    TRY(time_products(session, trial, 1, NULL, &product));
    TRY(bench_agree(rig, &product));
    int products = (int)fmin(MOST_PRODUCTS, 1 + 3 * rig->budget / product);
    TRY(comm_barrier(rig->comm));
    TRY(time_products(session, trial, products, NULL, &alone));
    struct gathers gathers = {.rig = rig,
                              .count = count,
                              .before = comm_counted(rig->comm, COMM_ALL_GATHER).calls,
                              .most = (int)fmin(1e6, 1 + products * product / quiet),
                              .ahead = (int)fmin(MOST_AHEAD, 1 + product / quiet)};
    TRY(comm_barrier(rig->comm));
    TRY(time_products(session, trial, products, &gathers, &beside));
    int done = gathers_done(&gathers);
    feed(&gathers, gathers.most); /* others may have come further */
    TRY(stream_sync(rig->stream));
    *theft = done > 0 ? fmax(0, (beside - alone) / (done * quiet)) : 0;
    return bench_agree(rig, theft);
}

enum status bench_time_theft(struct session *session, const struct bench_rig *rig, double *theft)
{
    bool card = device_place(session->device) == MEM_CARD;
    int side = card ? 4096 : 512;
    const struct ops_case product = {
        .op = "linear", .rows = card ? 4096 : 256, .linear = {.in = side, .out = side}};
    int size = comm_size(rig->comm);
    int64_t count = bench_gather_count(size, fmin((double)rig->most / size, 1 << 20));
    double rounds[ROUNDS];
    enum status st = STATUS_OK;
    struct ops_trial *trial;
    TRY(ops_trial_create(session->ops, session->stream, &product, 1, &trial));
    for (int i = 0; st == STATUS_OK && i < ROUNDS; i++)
        st = theft_round(session, rig, trial, count, &rounds[i]);
    if (st == STATUS_OK)
        *theft = machine_fit_median(rounds, ROUNDS);
    ops_trial_destroy(trial);
    return st;
}
