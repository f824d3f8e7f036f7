/* fault_hooks -- a sifr in which one rank suffers a fault at a chosen point.
 *
 * `sifr_faults` is the command linked from the same objects, with a few calls between them
 * redirected (--wrap) to the functions below, which inject the fault and then call the original. So
 * the point is exact, and the command itself contains no fault code.
 *
 *     FAULT="RANK ACTION POINT"
 *     FAULT_ONCE=FILE: only if FILE does not exist; the fault creates it
 *
 * kill, stop: send this process SIGKILL or SIGSTOP; hang: block this thread, ignoring signals.
 *     POINT is what the rank notes that it is doing, such as "step 3, block 0 backward", or
 *     "in NAME N": inside call N of the communicator NAME, before anything is sent.
 *     RANK -1: this process, which may be a single-rank run that notes only its progress.
 * disk: from that point on, reads of far memory on disk fail with EIO.
 * slow: with rank -1: sleep 0.4 s at every note, and raise SIGTERM at POINT.
 * nan: POINT is "reduce A B": calls A to B of the communicator "reduce" send a NaN as their first
 *     element; a call is one micro-batch's gradient of one piece.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/unnamed_file.h"
#include "comm/mpi/mpi_impl.h"

struct fault {
    int rank;
    char action[8], point[COMM_NOTE_BYTES];
};

static bool fault_for(int rank, const char *action, struct fault *fault)
{
    const char *text = getenv("FAULT");
    return text &&
           sscanf(text, "%d %7s %95[^\n]", &fault->rank, fault->action, fault->point) == 3 &&
           fault->rank == rank && (action == NULL || strcmp(action, fault->action) == 0);
}

/* Lets a restarted run get past the point. */
static bool has_happened(void)
{
    const char *file = getenv("FAULT_ONCE");
    int made = file ? open(file, O_CREAT | O_EXCL | O_WRONLY, 0666) : -1;
    if (made >= 0)
        close(made);
    return file && made < 0;
}

static atomic_bool disk_fails;

static void act(const struct fault *fault)
{
    if (has_happened())
        return;
    if (strcmp(fault->action, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(fault->action, "stop") == 0)
        kill(getpid(), SIGSTOP);
    if (strcmp(fault->action, "slow") == 0)
        raise(SIGTERM);
    if (strcmp(fault->action, "disk") == 0)
        atomic_store(&disk_fails, true);
    while (strcmp(fault->action, "hang") == 0)
        pause();
}

void kill_hooks_note(const char *what); /* tests/kill/kill_hooks.c */
void __real_comm_note(struct comm *comm, const char *what);
void __wrap_comm_note(struct comm *comm, const char *what);
void __wrap_comm_note(struct comm *comm, const char *what)
{
    struct fault fault;
    __real_comm_note(comm, what);
    kill_hooks_note(what);
    if (fault_for(comm->job->rank, NULL, &fault) && strcmp(fault.point, what) == 0)
        act(&fault);
}

void __real_progress_note(const struct env *env, const char *what);
void __wrap_progress_note(const struct env *env, const char *what);
void __wrap_progress_note(const struct env *env, const char *what)
{
    struct fault fault;
    __real_progress_note(env, what);
    if (!fault_for(-1, NULL, &fault))
        return;
    if (strcmp(fault.point, what) == 0)
        act(&fault);
    if (strcmp(fault.action, "slow") == 0)
        usleep(400000);
}

bool __real_unnamed_file_read(const struct unnamed_file *file, uint64_t at, void *room,
                              size_t bytes);
bool __wrap_unnamed_file_read(const struct unnamed_file *file, uint64_t at, void *room,
                              size_t bytes);
bool __wrap_unnamed_file_read(const struct unnamed_file *file, uint64_t at, void *room,
                              size_t bytes)
{
    errno = EIO;
    return !atomic_load(&disk_fails) && __real_unnamed_file_read(file, at, room, bytes);
}

enum status __real_mpi_swap(struct comm *comm, uint64_t stamp);
enum status __wrap_mpi_swap(struct comm *comm, uint64_t stamp);
enum status __wrap_mpi_swap(struct comm *comm, uint64_t stamp)
{
    struct fault fault;
    char here[COMM_NOTE_BYTES];
    snprintf(here, sizeof here, "in %s %lld", comm->name, (long long)comm->position.call);
    if (fault_for(comm->job->rank, NULL, &fault) && strcmp(fault.point, here) == 0)
        act(&fault);
    return __real_mpi_swap(comm, stamp);
}

/* Write a NaN to the first element that is sent. Compute is done when the call is enqueued. */
static void spoil(const void *send, const int64_t *counts, const int64_t *offsets, int size,
                  enum dtype type)
{
    static const float wide = 0.0f / 0.0f;
    static const uint16_t narrow = 0x7fff; /* a NaN in bf16 and f16 */
    size_t bytes = dtype_bytes(type);
    for (int r = 0; r < size; r++) {
        if (counts[r] == 0)
            continue;
        memcpy((char *)send + (size_t)offsets[r] * bytes,
               bytes == 4 ? (const void *)&wide : (const void *)&narrow, bytes);
        return;
    }
}

void __real_comm_all_to_all_v(struct comm *comm, const void *send, void *recv,
                              const struct comm_parts *parts, enum dtype type,
                              struct stream *stream);
void __wrap_comm_all_to_all_v(struct comm *comm, const void *send, void *recv,
                              const struct comm_parts *parts, enum dtype type,
                              struct stream *stream);
void __wrap_comm_all_to_all_v(struct comm *comm, const void *send, void *recv,
                              const struct comm_parts *parts, enum dtype type,
                              struct stream *stream)
{
    struct fault fault;
    if (strcmp(comm->name, "reduce") == 0 && fault_for(comm->job->rank, "nan", &fault)) {
        long long first = 0, last = 0;
        if (sscanf(fault.point, "reduce %lld %lld", &first, &last) == 2 &&
            comm->collective_count + 1 >= first && comm->collective_count + 1 <= last)
            spoil(send, parts->send_counts, parts->send_offsets, comm->size, type);
    }
    __real_comm_all_to_all_v(comm, send, recv, parts, type, stream);
}
