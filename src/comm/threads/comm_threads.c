/* comm_threads -- ranks that are threads of one process: for tests, and for several ranks without
 * MPI.
 *
 * The ranks share a hub; every communicator has a *group* in it, found by its id. A group has a
 * mailbox for each ordered pair of ranks, which holds one message: the sender puts the address of
 * its data there and waits until the mailbox is empty again; the receiver copies directly from the
 * sender's memory. So nothing is buffered, and a send ends when it is received.
 *
 *     mailbox [from][to]:   empty -> full (sender) -> being copied -> empty (receiver)
 *
 * Each rank sleeps on its own bell, which is rung by any rank that changes one of its mailboxes,
 * leaves, or ends the job.
 */
#include <stdio.h>
#include <time.h>
#include "base/clock.h"
#include "comm/comm_impl.h"

struct mailbox {
    const char *data; /* borrowed from the sender; NULL = empty */
    size_t bytes;
    uint64_t stamp;
    bool copying;
};

struct member {
    pthread_cond_t bell;
    bool left;
};

struct group {
    struct group *next; /* in the hub's list */
    uint64_t id;
    int size, left_count;
    pthread_mutex_t lock;
    struct mailbox *mailboxes; /* (size, size): [from][to] */
    struct member members[];   /* (size) */
};

struct comm_hub {
    struct env *env; /* borrowed */
    int size;
    pthread_mutex_t lock;
    struct group *groups;
    bool failed;
    char failure[COMM_FAILURE_BYTES];
    struct comm_job *jobs[]; /* (size) NULL = has not joined, or has left */
};

struct threads_job {
    struct comm_job base;
    struct comm_hub *hub; /* borrowed */
};

struct threads_comm {
    struct comm base;
    struct group *group; /* shared; the last to leave frees it */
};

static struct comm_hub *hub_of(const struct comm_job *job)
{
    return ((const struct threads_job *)job)->hub;
}

/* --- the hub -------------------------------------------------------------------------------- */

enum status comm_hub_create(struct env *env, int size, struct comm_hub **hub)
{
    struct comm_hub *h;
    CHECK_LE(1, size);
    TRY(mem_alloc(env, MEM_OTHER, "hub", sizeof *h + (size_t)size * sizeof *h->jobs, &h));
    h->env = env;
    h->size = size;
    pthread_mutex_init(&h->lock, NULL);
    *hub = h;
    return STATUS_OK;
}

static void free_group(struct env *env, struct group *group)
{
    for (int r = 0; r < group->size; r++)
        pthread_cond_destroy(&group->members[r].bell);
    pthread_mutex_destroy(&group->lock);
    mem_free(env, group->mailboxes);
    mem_free(env, group);
}

void comm_hub_destroy(struct comm_hub *hub)
{
    if (hub == NULL)
        return;
    for (int r = 0; r < hub->size; r++)
        CHECK(hub->jobs[r] == NULL);
    for (struct group *group = hub->groups, *next; group != NULL; group = next) {
        next = group->next; /* a rank never joined it */
        free_group(hub->env, group);
    }
    pthread_mutex_destroy(&hub->lock);
    mem_free(hub->env, hub);
}

static enum status threads_join(struct comm_job *job, const struct comm_member *member)
{
    struct comm_hub *hub = member->hub;
    CHECK(0 <= member->rank && member->rank < hub->size);
    job->rank = member->rank;
    job->size = hub->size;
    ((struct threads_job *)job)->hub = hub;
    pthread_mutex_lock(&hub->lock);
    CHECK(hub->jobs[member->rank] == NULL);
    hub->jobs[member->rank] = job;
    if (hub->failed)
        comm_job_fail(job, hub->failure);
    pthread_mutex_unlock(&hub->lock);
    return STATUS_OK;
}

static void threads_quit(struct comm_job *job)
{
    struct comm_hub *hub = hub_of(job);
    pthread_mutex_lock(&hub->lock);
    hub->jobs[job->rank] = NULL;
    pthread_mutex_unlock(&hub->lock);
}

/* --- groups --------------------------------------------------------------------------------- */

static void init_bell(pthread_cond_t *bell)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(bell, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static enum status make_group(struct env *env, uint64_t id, int size, struct group **group)
{
    enum status st;
    struct group *g;
    size_t n = (size_t)size;
    TRY(mem_alloc(env, MEM_OTHER, "groups", sizeof *g + n * sizeof *g->members, &g));
    TRY_OR(undo_self,
           mem_alloc_array(env, MEM_OTHER, "groups", n * n, sizeof *g->mailboxes, &g->mailboxes));
    g->id = id;
    g->size = size;
    pthread_mutex_init(&g->lock, NULL);
    for (int r = 0; r < size; r++)
        init_bell(&g->members[r].bell);
    *group = g;
    return STATUS_OK;
undo_self:
    mem_free(env, g);
    return st;
}

static enum status threads_open(struct comm *comm, struct comm *parent, int colour)
{
    enum status st = STATUS_OK;
    (void)parent, (void)colour;
    if (comm == NULL)
        return STATUS_OK;
    struct comm_hub *hub = hub_of(comm->job);
    pthread_mutex_lock(&hub->lock);
    struct group *group = hub->groups;
    while (group != NULL && group->id != comm->id)
        group = group->next;
    if (group == NULL) {
        st = make_group(hub->env, comm->id, comm->size, &group);
        if (st == STATUS_OK) {
            group->next = hub->groups;
            hub->groups = group;
        }
    }
    pthread_mutex_unlock(&hub->lock);
    ((struct threads_comm *)comm)->group = group;
    return st;
}

static void threads_close(struct comm *comm)
{
    struct comm_hub *hub = hub_of(comm->job);
    struct group *group = ((struct threads_comm *)comm)->group;
    pthread_mutex_lock(&hub->lock);
    pthread_mutex_lock(&group->lock);
    group->members[comm->rank].left = true;
    bool last = ++group->left_count == group->size;
    for (int r = 0; r < group->size; r++)
        pthread_cond_signal(&group->members[r].bell);
    pthread_mutex_unlock(&group->lock);
    if (last) {
        struct group **at = &hub->groups;
        while (*at != group)
            at = &(*at)->next;
        *at = group->next;
        free_group(hub->env, group);
    }
    pthread_mutex_unlock(&hub->lock);
}

static void fail_hub(struct comm_hub *hub, const char *text)
{
    pthread_mutex_lock(&hub->lock);
    bool first = !hub->failed;
    hub->failed = true;
    if (first)
        snprintf(hub->failure, sizeof hub->failure, "%s", text);
    for (int r = 0; first && r < hub->size; r++) {
        if (hub->jobs[r] != NULL)
            comm_job_fail(hub->jobs[r], text);
    }
    for (struct group *group = hub->groups; first && group != NULL; group = group->next) {
        pthread_mutex_lock(&group->lock);
        for (int r = 0; r < group->size; r++)
            pthread_cond_signal(&group->members[r].bell);
        pthread_mutex_unlock(&group->lock);
    }
    pthread_mutex_unlock(&hub->lock);
}

static void threads_spread(struct comm_job *job, const char *text)
{
    fail_hub(hub_of(job), text);
}

void comm_hub_abort(struct comm_hub *hub, int rank, const char *reason)
{
    char text[COMM_FAILURE_BYTES];
    snprintf(text, sizeof text, "rank %d: %s", rank, reason);
    fail_hub(hub, text);
}

static bool threads_ask(struct comm *comm, int peer, struct comm_position *position)
{
    struct comm_hub *hub = hub_of(comm->job);
    *position = (struct comm_position){.here = false};
    pthread_mutex_lock(&hub->lock);
    struct comm_job *job = hub->jobs[comm->job_ranks[peer]];
    if (job != NULL)
        comm_job_position(job, comm->id, position);
    pthread_mutex_unlock(&hub->lock);
    return true;
}

/* --- swaps ---------------------------------------------------------------------------------- */

/* A swap in progress, on the stack of its thread. The group's lock is held except while bytes
 * move. */
struct swap {
    struct comm *comm;
    struct group *group;
    uint64_t stamp;
    double since; /* when something last moved */
    int asked;    /* how often since then a late rank was asked */
};

static struct mailbox *mailbox(const struct swap *swap, int from, int to)
{
    return &swap->group->mailboxes[from * swap->group->size + to];
}

static void ring(const struct swap *swap, int rank)
{
    pthread_cond_signal(&swap->group->members[rank].bell);
}

static void post_sends(const struct swap *swap)
{
    const struct comm *comm = swap->comm;
    for (int r = 0; r < comm->size; r++) {
        const struct comm_move *move = &comm->sends[r];
        if (move->bytes == 0)
            continue;
        CHECK(mailbox(swap, comm->rank, r)->data == NULL);
        *mailbox(swap, comm->rank, r) =
            (struct mailbox){.data = move->data, .bytes = move->bytes, .stamp = swap->stamp};
        ring(swap, r);
    }
}

/* After an error: make sure that no rank copies from our memory any more. */
static void retract_sends(const struct swap *swap)
{
    const struct comm *comm = swap->comm;
    for (int r = 0; r < comm->size; r++) {
        struct mailbox *out = mailbox(swap, comm->rank, r);
        while (out->copying)
            pthread_cond_wait(&swap->group->members[comm->rank].bell, &swap->group->lock);
        out->data = NULL;
    }
}

/* Copy the message in the mailbox from `peer`. */
static enum status take(struct swap *swap, int peer)
{
    struct comm *comm = swap->comm;
    struct comm_move *move = &comm->recvs[peer];
    struct mailbox *in = mailbox(swap, peer, comm->rank);
    bool same_call = in->stamp == swap->stamp;
    if (!same_call || in->bytes != move->bytes) {
        pthread_mutex_unlock(&swap->group->lock);
        enum status st = comm_mismatch(
            comm, peer, same_call ? "sends another number of bytes" : "makes another call");
        pthread_mutex_lock(&swap->group->lock);
        return st;
    }
    in->copying = true;
    pthread_mutex_unlock(&swap->group->lock);
    memcpy(move->data, in->data, move->bytes);
    pthread_mutex_lock(&swap->group->lock);
    in->copying = false;
    in->data = NULL;
    move->bytes = 0;
    ring(swap, peer);
    return STATUS_OK;
}

/* Copy what has arrived and note what was taken; *moved = anything did. */
static enum status advance(struct swap *swap, bool *moved)
{
    struct comm *comm = swap->comm;
    *moved = false;
    for (int i = 1; i < comm->size; i++) {
        int r = (comm->rank + i) % comm->size;
        if (comm->recvs[r].bytes > 0 && mailbox(swap, r, comm->rank)->data != NULL) {
            TRY(take(swap, r));
            *moved = true;
        }
        if (comm->sends[r].bytes > 0 && mailbox(swap, comm->rank, r)->data == NULL) {
            comm->sends[r].bytes = 0;
            *moved = true;
        }
    }
    if (*moved) {
        swap->since = clock_seconds();
        swap->asked = 0;
    }
    return STATUS_OK;
}

/* A rank with outstanding messages, preferably one that has left; -1 = none. */
static int waits_for(const struct swap *swap)
{
    const struct comm *comm = swap->comm;
    int rank = -1;
    for (int r = 0; r < comm->size; r++) {
        if (comm->recvs[r].bytes == 0 && comm->sends[r].bytes == 0)
            continue;
        if (rank < 0 || swap->group->members[r].left)
            rank = r;
    }
    return rank;
}

/* Sleep until the bell rings; after a timeout, ask the peer where it is. */
static enum status wait_for(struct swap *swap, int peer)
{
    struct comm_job *job = swap->comm->job;
    pthread_cond_t *bell = &swap->group->members[swap->comm->rank].bell;
    enum status st = STATUS_OK;
    if (comm_job_failed(job) || swap->group->members[peer].left) {
        pthread_mutex_unlock(&swap->group->lock);
        st = comm_job_failed(job) ? comm_job_ended(job) : comm_gone(swap->comm, peer);
        pthread_mutex_lock(&swap->group->lock);
        return st;
    }
    if (job->timeout <= 0) {
        pthread_cond_wait(bell, &swap->group->lock);
        return STATUS_OK;
    }
    double deadline = swap->since + job->timeout * (swap->asked + 1);
    struct timespec until = {(time_t)deadline, (long)(1e9 * (deadline - (double)(time_t)deadline))};
    if (pthread_cond_timedwait(bell, &swap->group->lock, &until) == 0 || clock_seconds() < deadline)
        return STATUS_OK;
    pthread_mutex_unlock(&swap->group->lock);
    swap->asked++;
    st = comm_late(swap->comm, peer, clock_seconds() - swap->since);
    pthread_mutex_lock(&swap->group->lock);
    return st;
}

static enum status threads_swap(struct comm *comm, uint64_t stamp)
{
    struct swap swap = {.comm = comm,
                        .group = ((struct threads_comm *)comm)->group,
                        .stamp = stamp,
                        .since = clock_seconds()};
    enum status st = STATUS_OK;
    bool moved;
    pthread_mutex_lock(&swap.group->lock);
    post_sends(&swap);
    while (st == STATUS_OK && waits_for(&swap) >= 0) {
        st = advance(&swap, &moved);
        if (st == STATUS_OK && !moved) /* copying releases the lock: bells may have been missed */
            st = wait_for(&swap, waits_for(&swap));
    }
    if (st != STATUS_OK)
        retract_sends(&swap);
    pthread_mutex_unlock(&swap.group->lock);
    return st;
}

const struct comm_backend comm_threads = {
    .name = "threads",
    .job_bytes = sizeof(struct threads_job),
    .comm_bytes = sizeof(struct threads_comm),
    .join = threads_join,
    .quit = threads_quit,
    .open = threads_open,
    .close = threads_close,
    .swap = threads_swap,
    .ask = threads_ask,
    .spread = threads_spread,
};
