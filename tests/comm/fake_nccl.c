/* fake_nccl -- the part of NCCL that comm/nccl calls, between GPUs simulated by threads
 * (fake_gpu.c).
 *
 * It is as strict as the real library may be:
 * - A group is one item of work on a stream and ends when all its messages have been received.
 * - Messages between two ranks match in order.
 * - A GPU runs one group at a time, so ranks that enqueue in different orders deadlock.
 * - No group may be enqueued while another rank is still creating its side of the communicator:
 *   that allocates GPU memory, and within one process the driver has locks that both need.
 * - An abort cancels the work on the GPU and frees the communicator.
 *
 * Reductions add from the last rank to the first, so that tests can tell these sums from sums in
 * rank order.
 */
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "device/fake_gpu.h"

enum { MOST_RANKS = 8, MOST_MESSAGES = 2 * MOST_RANKS };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects everything */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool busy[FAKE_GPUS];
static int newest_id;

struct message {
    bool sends;
    const char *data;
    size_t bytes;
    int peer;
};

/* One rank's part of a reduction. */
struct sum {
    enum { REDUCE_SCATTER, ALL_REDUCE } kind;
    const char *from;
    char *to;
    size_t count;
    bool wide; /* f64 */
    bool done;
};

/* A communicator, shared by all its ranks. */
struct clique {
    struct clique *next;
    int id, joined, left;
    int made;                                             /* ranks that have created their side */
    const struct message *offers[MOST_RANKS][MOST_RANKS]; /* [from][to], NULL = none */
    struct sum *sums[MOST_RANKS]; /* of the reduction in progress; NULL = none */
};
static struct clique *cliques;

struct ncclComm {
    struct clique *clique;
    int rank, size, gpu, groups; /* `groups`: not yet finished on the GPU */
    bool aborted;
};

struct group {
    ncclComm_t comm;
    cudaStream_t stream;
    int count;
    struct message messages[MOST_MESSAGES];
    bool sums; /* a reduction, which has no messages */
    struct sum sum;
};
static _Thread_local struct group *open_group;

/* --- running a group on a GPU --------------------------------------------------------------- */

/* Offer a message that is sent, or receive one that is offered. Returns false if nothing could be
 * done. */
static bool advance(struct group *group, struct message *message, bool *offered)
{
    ncclComm_t comm = group->comm;
    int from = message->sends ? comm->rank : message->peer;
    int to = message->sends ? message->peer : comm->rank;
    const struct message **position = &comm->clique->offers[from][to];
    if (message->bytes == 0) /* already received */
        return false;
    if (message->sends && !*offered && *position == NULL) {
        *position = message;
        *offered = true;
        return true;
    }
    if (message->sends || *position == NULL)
        return false;
    if ((*position)->bytes != message->bytes)
        abort(); /* the real library would hang or write out of bounds */
    memcpy(fake_gpu_bytes(message->data), fake_gpu_bytes((*position)->data), message->bytes);
    ((struct message *)*position)->bytes = message->bytes = 0;
    *position = NULL;
    return true;
}

/* The sum of element i over all ranks. */
static void add_element(struct clique *clique, int size, bool wide, size_t i, char *out)
{
    double total = 0;
    float narrow = 0;
    for (int r = size - 1; r >= 0; r--) {
        const char *from = fake_gpu_bytes(clique->sums[r]->from);
        double w = 0;
        float n = 0;
        memcpy(wide ? (void *)&w : (void *)&n, from + i * (wide ? 8 : 4), wide ? 8 : 4);
        total = r == size - 1 ? w : total + w;
        narrow = r == size - 1 ? n : narrow + n;
    }
    memcpy(out, wide ? (void *)&total : (void *)&narrow, wide ? 8 : 4);
}

/* The last rank to arrive adds for all ranks. Returns whether that was this rank. Results may
 * overwrite inputs, so all sums are computed first. */
static bool add_all(struct group *group)
{
    ncclComm_t comm = group->comm;
    struct sum **sums = comm->clique->sums, *mine = &group->sum;
    size_t width = mine->wide ? 8 : 4;
    size_t count = mine->count * (mine->kind == REDUCE_SCATTER ? (size_t)comm->size : 1);
    for (int r = 0; r < comm->size; r++) {
        if (sums[r] == NULL)
            return false;
        if (sums[r]->kind != mine->kind || sums[r]->count != mine->count ||
            sums[r]->wide != mine->wide)
            abort(); /* the real library would hang or write out of bounds */
    }
    char *all = malloc(count * width + 1);
    for (size_t i = 0; i < count; i++)
        add_element(comm->clique, comm->size, mine->wide, i, all + i * width);
    for (int r = 0; r < comm->size; r++) {
        size_t skip = mine->kind == REDUCE_SCATTER ? (size_t)r * mine->count * width : 0;
        memcpy(fake_gpu_bytes(sums[r]->to), all + skip, mine->count * width);
        sums[r]->done = true;
        sums[r] = NULL;
    }
    free(all);
    return true;
}

static bool advance_sum(struct group *group, bool *offered)
{
    struct sum **position = &group->comm->clique->sums[group->comm->rank];
    if (*offered || *position != NULL)
        return false;
    *position = &group->sum;
    *offered = true;
    add_all(group);
    return true;
}

static bool is_done(const struct group *group)
{
    if (group->sums)
        return group->sum.done;
    for (int i = 0; i < group->count; i++) {
        if (group->messages[i].bytes > 0)
            return false;
    }
    return true;
}

static void run_group(void *arg)
{
    struct group *group = arg;
    ncclComm_t comm = group->comm;
    bool offered[MOST_MESSAGES] = {false};
    pthread_mutex_lock(&lock);
    while (busy[comm->gpu] && !comm->aborted)
        pthread_cond_wait(&changed, &lock);
    bool mine = !comm->aborted;
    busy[comm->gpu] = busy[comm->gpu] || mine;
    while (!is_done(group) && !comm->aborted) {
        bool moved = group->sums && advance_sum(group, &offered[0]);
        for (int i = 0; i < group->count; i++)
            moved = advance(group, &group->messages[i], &offered[i]) || moved;
        if (moved)
            pthread_cond_broadcast(&changed);
        else
            pthread_cond_wait(&changed, &lock);
    }
    for (int i = 0; i < group->count; i++) { /* after an abort: withdraw the offers */
        const struct message **position =
            &comm->clique->offers[comm->rank][group->messages[i].peer];
        if (*position == &group->messages[i])
            *position = NULL;
    }
    if (comm->clique->sums[comm->rank] == &group->sum)
        comm->clique->sums[comm->rank] = NULL;
    if (mine)
        busy[comm->gpu] = false;
    comm->groups--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(group);
}

ncclResult_t ncclGroupStart(void); /* nccl.h declares these without (void) */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    open_group = calloc(1, sizeof *open_group);
    return ncclSuccess;
}

static ncclResult_t post(struct message message, ncclComm_t comm, cudaStream_t stream)
{
    open_group->comm = comm;
    open_group->stream = stream;
    open_group->messages[open_group->count++] = message;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return type == ncclUint8 ? post((struct message){true, data, count, peer}, comm, stream)
                             : ncclInvalidArgument;
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return type == ncclUint8 ? post((struct message){false, data, count, peer}, comm, stream)
                             : ncclInvalidArgument;
}

static ncclResult_t begin(struct group *group)
{
    pthread_mutex_lock(&lock);
    group->comm->groups++;
    if (group->comm->clique->made < group->comm->size) {
        fprintf(stderr, "fake_nccl: rank %d sends while others still create the communicator\n",
                group->comm->rank);
        abort();
    }
    pthread_mutex_unlock(&lock);
    fake_gpu_call(group->stream, run_group, group);
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return begin(open_group);
}

/* --- reductions ----------------------------------------------------------------------------- */

static ncclResult_t begin_sum(struct sum sum, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                              cudaStream_t stream)
{
    struct group *group = calloc(1, sizeof *group);
    if (op != ncclSum || (type != ncclFloat32 && type != ncclFloat64) || group == NULL) {
        free(group);
        return ncclInvalidArgument;
    }
    *group = (struct group){.comm = comm, .stream = stream, .sums = true, .sum = sum};
    group->sum.wide = type == ncclFloat64;
    return begin(group);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return begin_sum((struct sum){.kind = REDUCE_SCATTER, .from = from, .to = to, .count = count},
                     type, op, comm, stream);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return begin_sum((struct sum){.kind = ALL_REDUCE, .from = from, .to = to, .count = count}, type,
                     op, comm, stream);
}

/* --- communicators -------------------------------------------------------------------------- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    *id = (ncclUniqueId){{0}};
    pthread_mutex_lock(&lock);
    int number = ++newest_id;
    pthread_mutex_unlock(&lock);
    memcpy(id, &number, sizeof number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    int number;
    memcpy(&number, &id, sizeof number);
    pthread_mutex_lock(&lock);
    struct clique *clique = cliques;
    while (clique != NULL && clique->id != number)
        clique = clique->next;
    if (clique == NULL) {
        clique = calloc(1, sizeof *clique);
        *clique = (struct clique){.next = cliques, .id = number};
        cliques = clique;
    }
    clique->joined++;
    pthread_cond_broadcast(&changed);
    while (clique->joined < size)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    *comm = calloc(1, sizeof **comm);
    **comm = (struct ncclComm){.clique = clique, .rank = rank, .size = size};
    cudaGetDevice(&(*comm)->gpu);
    nanosleep(&(struct timespec){0, 1000000L * rank}, NULL);
    pthread_mutex_lock(&lock);
    clique->made++;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Called with the lock held, when the GPU runs none of the communicator's groups. */
static void leave(ncclComm_t comm)
{
    struct clique *clique = comm->clique, **channel = &cliques;
    if (++clique->left == comm->size) {
        while (*channel != clique)
            channel = &(*channel)->next;
        *channel = clique->next;
        free(clique);
    }
    free(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    while (comm->groups > 0)
        pthread_cond_wait(&changed, &lock);
    leave(comm);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->aborted = true;
    pthread_cond_broadcast(&changed);
    while (comm->groups > 0)
        pthread_cond_wait(&changed, &lock);
    leave(comm);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    (void)comm;
    *error = ncclSuccess;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code)
{
    return code == ncclSuccess ? "no error" : "an error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
