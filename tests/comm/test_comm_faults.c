/* How jobs fail, on every back end: an abort, a rank that is late, has left, makes other calls, is
 * stopped, or failed elsewhere. All other ranks end with the same message, and nothing hangs. */
#include <signal.h>
#include <unistd.h>
#include "comm/comm_rig.h"

enum { N = 5000 }; /* large enough that ranks exchange hellos first (mpi_swap.c) */
/* A loaded machine can delay a rank for seconds. LATE is the timeout of jobs in which a rank never
 * arrives; SOON is well below the minute that all other jobs have. */
enum { LATE = 3, SOON = 30 }; /* seconds */

static double seconds_since(struct member *m, double start)
{
    double seconds = clock_seconds() - start;
    EXPECT(m, seconds < SOON);
    return seconds;
}

/* Called by the last rank: receive a message from every other rank. */
static void recv_from_all(struct member *m)
{
    for (int from = 0; from < m->size - 1; from++) {
        int32_t done = 0;
        comm_recv(m->comm, &done, 1, DTYPE_I32, from, m->other);
        EXPECT(m, stream_sync(m->other) == STATUS_OK && done == 1);
    }
}

static void send_to_last(struct member *m)
{
    int32_t done = 1;
    comm_send(m->comm, &done, 1, DTYPE_I32, m->size - 1, m->other);
    EXPECT(m, stream_sync(m->other) == STATUS_OK);
}

/* After a failure every communicator and every stream fails at once. */
static void expect_ended(struct member *m, struct comm *comm, struct stream *stream)
{
    float x[MOST_RANKS] = {0};
    double start = clock_seconds();
    EXPECT(m, comm_status(comm) == STATUS_COMM);
    EXPECT(m, comm_barrier(comm) == STATUS_COMM);
    EXPECT(m, comm_exchange(comm, x, 4, x) == STATUS_COMM);
    comm_all_gather(comm, x + comm_rank(comm), x, 1, DTYPE_F32, stream);
    EXPECT(m, stream_sync(stream) == STATUS_COMM);
    EXPECT(m, comm_status(m->comm) == STATUS_COMM);
    seconds_since(m, start);
}

/* The last rank aborts while the others wait in two communicators, on two streams and on the
 * host. */
static void case_abort(struct member *m)
{
    struct comm *gather, *reduce;
    float *x = take(m, MOST_RANKS * N * sizeof *x), *y = take(m, 3 * MOST_RANKS * N * sizeof *y);
    int last = m->size - 1;
    char expected[64];
    EXPECT(m, comm_dup(m->comm, "gather", &gather) == STATUS_OK);
    EXPECT(m, comm_dup(m->comm, "reduce", &reduce) == STATUS_OK);
    double start = clock_seconds();
    if (m->rank == last) {
        recv_from_all(m); /* every rank has both communicators */
        nap(0.1);
        comm_abort(m->comm, "the disk is full");
        comm_abort(m->comm, "a second reason");
    } else {
        send_to_last(m);
        comm_all_gather(gather, x + m->rank * N, x, N, DTYPE_F32, m->worker);
        comm_all_gather(gather, x + m->rank * N, x, N, DTYPE_F32, m->worker);
        comm_all_reduce(reduce, y, N, DTYPE_F32, y + N, m->other);
        EXPECT(m, comm_barrier(m->comm) == STATUS_COMM);
        EXPECT(m, stream_sync(m->worker) == STATUS_COMM);
        EXPECT(m, stream_sync(m->other) == STATUS_COMM);
        snprintf(expected, sizeof expected, "rank %d: the disk is full", last);
        EXPECT_TEXT(m, log_first_error(m->env.log), expected);
    }
    seconds_since(m, start);
    expect_ended(m, gather, m->worker);
    expect_ended(m, reduce, m->other);
    if (m->rank == last)
        EXPECT(m, log_first_error(m->env.log)[0] == '\0'); /* the caller has logged the reason */
    comm_destroy(gather);
    comm_destroy(reduce);
    give(m, x);
    give(m, y);
}

/* A rank does not arrive: all ranks name it and say what it is doing. */
static void case_late(struct member *m)
{
    struct comm *gather;
    float *x = take(m, MOST_RANKS * N * sizeof *x);
    int late = m->size / 2;
    char expected[128];
    EXPECT(m, comm_dup(m->comm, "gather", &gather) == STATUS_OK);
    comm_all_gather(gather, x + m->rank * N, x, N, DTYPE_F32, m->worker);
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    double start = clock_seconds();
    comm_note(m->comm, "step 11");
    if (m->rank == late) {
        comm_note(m->comm, "step 12, block 3 backward");
        for (int i = 0; m->size > 1 && comm_status(m->comm) == STATUS_OK && i < 6000; i++)
            nap(0.01); /* until the others have given up */
    }
    comm_all_gather(gather, x + m->rank * N, x, N, DTYPE_F32, m->worker);
    if (m->size == 1) {
        EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    } else {
        EXPECT(m, stream_sync(m->worker) == STATUS_COMM);
        snprintf(expected, sizeof expected, "rank %d has not arrived at all_gather 2 (\"gather\")",
                 late);
        EXPECT_TEXT(m, log_first_error(m->env.log), expected);
        EXPECT_TEXT(m, log_first_error(m->env.log), "it is in \"step 12, block 3 backward\"");
        EXPECT(m, seconds_since(m, start) > 0.4 * LATE);
        expect_ended(m, gather, m->worker);
    }
    comm_destroy(gather);
    give(m, x);
}

/* Rank 0 waits for rank 1, which is one call behind because it waits for rank 2. Rank 2 is named,
 * even though rank 0 has waited longer. */
static void case_held_up(struct member *m)
{
    float x[MOST_RANKS] = {0}, y[MOST_RANKS] = {0};
    int64_t none[MOST_RANKS] = {0}, to_1[MOST_RANKS] = {0, 1}, of_2[MOST_RANKS] = {0, 0, 1};
    int64_t to_0[MOST_RANKS] = {1}, of_1[MOST_RANKS] = {0, 1};
    if (m->size < 3 || rig_nccl()) /* this test's buffers are in host memory */
        return;
    if (m->rank == 1)
        nap(0.3 * LATE);
    if (m->rank == 2) {
        comm_note(m->comm, "step 12, block 3 backward");
        while (comm_status(m->comm) == STATUS_OK)
            nap(0.01); /* until the others have given up */
    }
    struct comm_parts from_2_to_1 = {m->rank == 2 ? to_1 : none, none, m->rank == 1 ? of_2 : none,
                                     none};
    struct comm_parts from_1_to_0 = {m->rank == 1 ? to_0 : none, none, m->rank == 0 ? of_1 : none,
                                     none};
    comm_all_to_all_v(m->comm, x, y, &from_2_to_1, DTYPE_F32, m->worker);
    comm_all_to_all_v(m->comm, x, y, &from_1_to_0, DTYPE_F32, m->worker);
    enum status st = stream_sync(m->worker);
    if (m->rank < 2) {
        EXPECT(m, st == STATUS_COMM);
        EXPECT_TEXT(m, log_first_error(m->env.log), "rank 2 has not arrived at all_to_all 1 ");
    }
}

/* Rank 0 waits for rank 1 in one communicator, and rank 1 for rank 2 in another: rank 2 is named.
 * But if rank 1 computes while its own call is merely in flight, rank 1 is named. */
static void wait_in_two(struct member *m, bool held_up)
{
    struct comm *acts, *grads;
    float x[1] = {0}, y[1] = {0};
    if (m->size != 3 || rig_nccl()) /* this test's buffers are in host memory */
        return;
    EXPECT(m, comm_dup(m->comm, "acts", &acts) == STATUS_OK);
    EXPECT(m, comm_dup(m->comm, "grads", &grads) == STATUS_OK);
    if (m->rank == 1) {
        comm_set_compute_stream(m->comm, m->direct);
        nap(0.3 * LATE);
        comm_recv(grads, y, 1, DTYPE_F32, 2, m->worker);
        if (held_up)
            EXPECT(m, stream_sync(m->worker) == STATUS_COMM);
    }
    if (m->rank == 0) {
        comm_recv(acts, x, 1, DTYPE_F32, 1, m->worker);
        EXPECT(m, stream_sync(m->worker) == STATUS_COMM);
        EXPECT_TEXT(m, log_first_error(m->env.log),
                    held_up ? "rank 2 has not arrived at recv 1 (\"grads\")"
                            : "rank 1 has not arrived at recv 1 (\"acts\")");
    }
    while (comm_status(m->comm) == STATUS_OK)
        nap(0.01); /* until the others have given up */
    stream_sync(m->worker);
    comm_set_compute_stream(m->comm, NULL);
    comm_destroy(grads);
    comm_destroy(acts);
}

static void case_held_up_elsewhere(struct member *m)
{
    wait_in_two(m, true);
}

static void case_computes(struct member *m)
{
    wait_in_two(m, false);
}

/* A rank that is slow, but always within the timeout, is not late. */
static void case_slow(struct member *m)
{
    char x[MOST_RANKS];
    for (int i = 0; i < 3; i++) {
        char mine = (char)i;
        if (m->size > 1 && m->rank == i % m->size)
            nap(0.4);
        EXPECT(m, comm_exchange(m->comm, &mine, 1, x) == STATUS_OK);
    }
}

/* In patient mode, a rank that is busy for several timeouts is waited for. */
static void case_patient(struct member *m)
{
    char mine = 1, x[MOST_RANKS];
    comm_set_patient(m->comm, true);
    if (m->size > 1 && m->rank == m->size / 2)
        nap(2.2 * LATE);
    EXPECT(m, comm_exchange(m->comm, &mine, 1, x) == STATUS_OK);
    comm_set_patient(m->comm, false);
    EXPECT(m, comm_barrier(m->comm) == STATUS_OK);
}

/* A rank leaves a communicator that others still use. With NCCL this cannot be seen: the rank is
 * late instead. */
static void case_leave(struct member *m)
{
    struct comm *gather;
    float *x = take(m, MOST_RANKS * N * sizeof *x);
    int last = m->size - 1;
    int32_t done = 1;
    char expected[64];
    if (rig_nccl()) {
        give(m, x);
        return;
    }
    EXPECT(m, comm_dup(m->comm, "gather", &gather) == STATUS_OK);
    double start = clock_seconds();
    comm_all_gather(gather, x + m->rank * N, x, N, DTYPE_F32, m->worker);
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    if (m->rank == last) {
        /* a barrier is not enough: it may return here before it returns elsewhere */
        recv_from_all(m);
        comm_destroy(gather);
    } else {
        comm_send(m->comm, &done, 1, DTYPE_I32, last, m->other);
        comm_all_gather(gather, x + m->rank * N, x, N, DTYPE_F32, m->worker);
        EXPECT(m, stream_sync(m->worker) == STATUS_COMM);
        snprintf(expected, sizeof expected, "rank %d has left; all_gather 2", last);
        EXPECT_TEXT(m, log_first_error(m->env.log), expected);
        seconds_since(m, start);
        expect_ended(m, gather, m->worker);
        comm_destroy(gather);
    }
    give(m, x);
}

/* Ranks that make different calls get an error, at the latest at the timeout. Not with NCCL, which
 * takes one message for another. */
static void case_different_calls(struct member *m)
{
    float *x = take(m, MOST_RANKS * N * sizeof *x);
    double start = clock_seconds();
    if (rig_nccl()) {
        give(m, x);
        return;
    }
    if (m->rank == 0)
        comm_broadcast(m->comm, x, N, DTYPE_F32, 0, m->worker);
    else
        comm_all_gather(m->comm, x + m->rank * N, x, N, DTYPE_F32, m->worker);
    if (m->size > 1) {
        EXPECT(m, stream_sync(m->worker) == STATUS_COMM);
        EXPECT_TEXT(m, log_first_error(m->env.log), "rank ");
        seconds_since(m, start);
        expect_ended(m, m->comm, m->worker);
    }
    give(m, x);
}

/* A rank sends fewer bytes than another expects. */
static void case_short(struct member *m)
{
    char x[MOST_RANKS * 16] = {0};
    size_t bytes = m->rank == 0 ? 8 : 16;
    if (m->size > 1)
        EXPECT(m, comm_exchange(m->comm, x, bytes, x) == STATUS_COMM);
    else
        EXPECT(m, comm_exchange(m->comm, x, bytes, x) == STATUS_OK);
}

static void fail_task(struct stream *stream, const void *args)
{
    struct env *env = *(struct env *const *)args;
    stream_fail(stream, FAIL(env, DEVICE, "a kernel failed"));
}

/* A stream that failed for another reason makes no calls. The other ranks do not wait for it. */
static void case_failed_stream(struct member *m)
{
    float *x = take(m, MOST_RANKS * N * sizeof *x);
    struct env *env = &m->env;
    double start = clock_seconds();
    if (m->rank == 0)
        stream_enqueue(m->worker, fail_task, &env, sizeof env);
    comm_all_gather(m->comm, x + m->rank * N, x, N, DTYPE_F32, m->worker);
    enum status st = stream_sync(m->worker);
    EXPECT(m, st == (m->rank == 0 ? STATUS_DEVICE : STATUS_COMM));
    EXPECT_TEXT(m, log_first_error(m->env.log), "a kernel failed");
    if (m->rank > 0)
        EXPECT_TEXT(m, log_first_error(m->env.log), "rank 0: ");
    EXPECT(m, comm_status(m->comm) == STATUS_COMM);
    seconds_since(m, start);
    give(m, x);
}

/* A stopped process does not answer. */
static void case_stopped(struct member *m)
{
    int pids[MOST_RANKS], pid = (int)getpid(), last = m->size - 1;
    char expected[64];
    comm_note(m->comm, "step 12, block 3 backward");
    if (strcmp(comm_backend_name(m->comm), "mpi") != 0 || m->size == 1)
        return;
    EXPECT(m, comm_exchange(m->comm, &pid, sizeof pid, pids) == STATUS_OK);
    if (m->rank == last) {
        raise(SIGSTOP);
        return; /* rank 0 continues this process at the end */
    }
    EXPECT(m, comm_barrier(m->comm) == STATUS_COMM);
    snprintf(expected, sizeof expected, "rank %d does not answer", last);
    EXPECT_TEXT(m, log_first_error(m->env.log), expected);
    EXPECT_TEXT(m, log_first_error(m->env.log), ", in \"step 12, block 3 backward\", has waited");
    if (m->rank == 0)
        kill(pids[last], SIGCONT);
}

static const struct comm_case cases[] = {
    {.name = "abort", .run = case_abort, .alone = true},
    {.name = "late", .run = case_late, .timeout = LATE, .alone = true},
    {.name = "held_up", .run = case_held_up, .timeout = LATE, .alone = true},
    {.name = "held_up_elsewhere", .run = case_held_up_elsewhere, .timeout = LATE, .alone = true},
    {.name = "computes", .run = case_computes, .timeout = LATE, .alone = true},
    {.name = "slow", .run = case_slow, .timeout = 10, .alone = true},
    {.name = "patient", .run = case_patient, .timeout = LATE, .alone = true},
    {.name = "leave", .run = case_leave, .alone = true},
    {.name = "different_calls", .run = case_different_calls, .timeout = LATE, .alone = true},
    {.name = "short", .run = case_short, .alone = true},
    {.name = "failed_stream", .run = case_failed_stream, .alone = true},
    {.name = "stopped", .run = case_stopped, .timeout = LATE, .alone = true},
};

int main(int argc, char **argv)
{
    return rig_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
