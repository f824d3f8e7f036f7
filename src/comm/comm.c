/* comm -- jobs and communicators: choice of the back end, create, copy, split, destroy; and
 * counters.
 *
 * The id of a communicator is a hash of its parent's id and of its number among the parent's
 * children, so all its ranks compute the same id without communicating. Creating one is collective:
 * the ranks first meet in a control call, which fails by its timeout when a rank is missing, and
 * only then in the library's own constructor, which would wait forever.
 */
#include "comm/comm.h"
#include <stdio.h>
#include <string.h>
#include "comm/comm_impl.h"
#include "comm/launcher.h"

/* The back ends compiled in. Their names appear nowhere else. */
static const struct comm_backend *const backends[] = {&comm_self, &comm_threads, &comm_mpi};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };
enum { ROOT_ID = 1 };

/* --- jobs ----------------------------------------------------------------------------------- */

/* The back end that a name stands for, and whether GPU memory may use a transport. */
static enum status find_backend(struct env *env, const char *name,
                                const struct comm_backend **backend, enum comm_wish *wish)
{
    struct launcher launcher;
    bool several = launcher_find(&launcher) && launcher.size > 1;
    bool nccl = strcmp(name, "nccl") == 0, any = strcmp(name, "auto") == 0;
    *wish = nccl ? COMM_TRANSPORT : any && several ? COMM_TRANSPORT_IF_POSSIBLE : COMM_NO_TRANSPORT;
    if (nccl || any)
        name = several ? "mpi" : "self";
    for (int i = 0; i < BACKEND_COUNT; i++) {
        if (strcmp(backends[i]->name, name) == 0) {
            *backend = backends[i];
            return STATUS_OK;
        }
    }
    return FAIL(env, CONFIG, "unknown comm.backend '%s'; use auto, self, threads, mpi or nccl",
                name);
}

static enum status open_job(struct env *env, const struct comm_backend *backend, double timeout,
                            const struct comm_member *member, struct comm_job **job)
{
    enum status st;
    struct comm_job *h;
    TRY(mem_alloc(env, MEM_OTHER, "ranks", backend->job_bytes, &h));
    h->backend = backend;
    h->env = env;
    h->timeout = timeout;
    pthread_mutex_init(&h->lock, NULL);
    atomic_init(&h->failed, false);
    TRY_OR(undo_self, backend->join(h, member));
    *job = h;
    return STATUS_OK;
undo_self:
    pthread_mutex_destroy(&h->lock);
    mem_free(env, h);
    return st;
}

static void close_job(struct comm_job *job)
{
    comm_transport_quit(job);
    if (job->backend->quit != NULL)
        job->backend->quit(job);
    pthread_mutex_destroy(&job->lock);
    mem_free(job->env, job);
}

static void strike(struct comm_job *job, struct comm *comm)
{
    pthread_mutex_lock(&job->lock);
    struct comm **at = &job->comms;
    while (*at != comm)
        at = &(*at)->next;
    *at = comm->next;
    pthread_mutex_unlock(&job->lock);
}

/* --- communicators -------------------------------------------------------------------------- */

static void free_comm(struct comm *comm)
{
    comm_bounce_close(comm);
    comm_sums_close(comm);
    pthread_cond_destroy(&comm->idle);
    pthread_mutex_destroy(&comm->lock);
    mem_free(comm->env, comm->sends);
    mem_free(comm->env, comm->job_ranks);
    mem_free(comm->env, comm);
}

/* Everything except the back end's part. */
static enum status make_comm(struct comm_job *job, struct device *device, const char *name,
                             int size, struct comm **comm)
{
    enum status st;
    struct comm *c;
    struct env *env = job->env;
    TRY(mem_alloc(env, MEM_OTHER, "communicators", job->backend->comm_bytes, &c));
    TRY_OR(undo_self, mem_alloc_array(env, MEM_OTHER, "communicators", (size_t)size, sizeof(int),
                                      &c->job_ranks));
    TRY_OR(undo_ranks, mem_alloc_array(env, MEM_OTHER, "communicators", 2 * (size_t)size,
                                       sizeof *c->sends, &c->sends));
    c->recvs = c->sends + size;
    c->backend = job->backend;
    c->job = job;
    c->env = env;
    c->device = device;
    c->size = size;
    c->lane = &trace_lane_host;
    snprintf(c->name, sizeof c->name, "%s", name);
    atomic_init(&c->error, STATUS_OK);
    TRY_OR(undo_moves, comm_sums_open(c));
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->idle, NULL);
    *comm = c;
    return STATUS_OK;
undo_moves:
    mem_free(env, c->sends);
undo_ranks:
    mem_free(env, c->job_ranks);
undo_self:
    mem_free(env, c);
    return st;
}

/* The communicator is in the job's list before it is opened: a rank that is done first may ask
 * about it. */
static enum status open_comm(struct comm *comm, struct comm *parent, int colour)
{
    struct comm_job *job = comm->job;
    comm->position.here = true;
    pthread_mutex_lock(&job->lock);
    comm->next = job->comms;
    job->comms = comm;
    pthread_mutex_unlock(&job->lock);
    enum status st =
        comm->backend->open != NULL ? comm->backend->open(comm, parent, colour) : STATUS_OK;
    if (st != STATUS_OK) {
        strike(job, comm);
        free_comm(comm);
    }
    return st;
}

/* A rank that cannot start ends the job. */
static void end_start(struct comm_job *job)
{
    char text[COMM_FAILURE_BYTES];
    snprintf(text, sizeof text, "rank %d could not start: %s", job->rank,
             log_first_error(job->env->log));
    comm_job_end(job, text);
}

/* Prepare to move device memory: by a channel or by bounce buffers. */
static enum status open_data(struct comm *comm)
{
    return comm->job->transport != NULL ? comm_transport_open(comm) : comm_bounce_open(comm);
}

/* Close an open communicator; its job stays. */
static void close_comm(struct comm *comm)
{
    comm_transport_close(comm);
    strike(comm->job, comm);
    if (comm->backend->close != NULL)
        comm->backend->close(comm);
    free_comm(comm);
}

static enum status create(struct env *env, const struct comm_backend *backend, enum comm_wish wish,
                          const struct comm_member *member, const struct comm_config *config,
                          struct device *device, struct comm **comm)
{
    enum status st;
    struct comm_job *job;
    struct comm *c;
    CHECK(config->timeout >= 0);
    TRY(open_job(env, backend, config->timeout, member, &job));
    job->fast = config->fast;
    job->bounced =
        device_is_dry(device) ? member != NULL && member->bounced : !device_on_host(device);
    TRY_OR(undo_job, make_comm(job, device, "job", job->size, &c));
    c->rank = job->rank;
    c->id = ROOT_ID;
    for (int r = 0; r < c->size; r++)
        c->job_ranks[r] = r;
    TRY_OR(undo_job, open_comm(c, NULL, 0));
    TRY_OR(undo_comm, comm_transport_choose(c, wish));
    TRY_OR(undo_comm, open_data(c));
    *comm = c;
    return STATUS_OK;
undo_comm: /* the other ranks have joined: do not let them wait */
    end_start(job);
    close_comm(c);
    close_job(job);
    return st;
undo_job:
    end_start(job);
    close_job(job);
    return st;
}

enum status comm_create(const struct comm_config *config, struct device *device, struct comm **comm)
{
    struct env *env = device_env(device);
    const struct comm_backend *backend = NULL;
    enum comm_wish wish;
    TRY(find_backend(env, config->backend, &backend, &wish));
    if (backend == &comm_threads)
        return FAIL(env, CONFIG,
                    "comm.backend=threads only connects threads of one process; use auto or mpi");
    return create(env, backend, wish, NULL, config, device, comm);
}

enum status comm_join(struct comm_hub *hub, int rank, const struct comm_config *config,
                      struct device *device, struct comm **comm)
{
    struct env *env = device_env(device);
    struct comm_member member = {.hub = hub, .rank = rank};
    bool nccl = strcmp(config->backend, "nccl") == 0;
    enum comm_wish wish = nccl ? COMM_TRANSPORT : COMM_TRANSPORT_IF_POSSIBLE;
    return create(env, &comm_threads, wish, &member, config, device, comm);
}

enum status comm_create_dry(struct device *device, int rank, int size, bool bounced,
                            struct comm **comm)
{
    struct comm_member member = {.rank = rank, .size = size, .bounced = bounced};
    struct comm_config config = {.backend = "dry"};
    CHECK(device_is_dry(device));
    return create(device_env(device), &comm_dry, COMM_NO_TRANSPORT, &member, &config, device, comm);
}

static void set_delays(struct comm *comm, double max_seconds, uint64_t seed)
{
    comm->max_delay = max_seconds;
    comm->delay_seed = seed;
    comm->delays = rng_stream(seed + (uint64_t)comm->job->rank, comm->name);
}

/* `known`: the colours of all ranks, or NULL. */
static enum status split(struct comm *comm, int colour, const int *known, const char *name,
                         struct comm **group)
{
    enum status st;
    int *colours, size = 0, child = comm->child_count++;
    struct comm *c = NULL;
    *group = NULL;
    TRY(mem_alloc_array(comm->env, MEM_OTHER, "colours", (size_t)comm->size, sizeof(int),
                        &colours));
    TRY_OR(undo_colours, comm_exchange(comm, &colour, sizeof colour, colours));
    if (known)
        memcpy(colours, known, (size_t)comm->size * sizeof *colours);
    for (int r = 0; r < comm->size; r++)
        size += colours[r] == colour;
    if (colour < 0) {
        if (comm->backend->open != NULL)
            TRY_OR(undo_colours, comm->backend->open(NULL, comm, colour));
        mem_free(comm->env, colours);
        return STATUS_OK;
    }
    TRY_OR(undo_colours, make_comm(comm->job, comm->device, name, size, &c));
    c->id =
        rng_bits(rng_stream(comm->id, "comm"), (uint64_t)(uint32_t)child << 32 | (uint32_t)colour);
    set_delays(c, comm->max_delay, comm->delay_seed);
    for (int r = 0, member = 0; r < comm->size; r++) {
        if (r == comm->rank)
            c->rank = member;
        if (colours[r] == colour)
            c->job_ranks[member++] = comm->job_ranks[r];
    }
    TRY_OR(undo_colours, open_comm(c, comm, colour));
    TRY_OR(undo_comm, open_data(c));
    *group = c;
    mem_free(comm->env, colours);
    return STATUS_OK;
undo_comm:
    close_comm(c);
undo_colours:
    mem_free(comm->env, colours);
    return st;
}

enum status comm_split(struct comm *comm, int colour, const char *name, struct comm **group)
{
    return split(comm, colour, NULL, name, group);
}

enum status comm_split_known(struct comm *comm, const int *colours, const char *name,
                             struct comm **group)
{
    return split(comm, colours[comm->rank], colours, name, group);
}

enum status comm_dup(struct comm *comm, const char *name, struct comm **copy)
{
    return comm_split(comm, 0, name, copy);
}

void comm_destroy(struct comm *comm)
{
    if (comm == NULL)
        return;
    struct comm_job *job = comm->job;
    comm_wait_idle(comm);
    close_comm(comm);
    if (job->comms == NULL)
        close_job(job);
}

/* --- queries -------------------------------------------------------------------------------- */

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->size;
}

const char *comm_backend_name(const struct comm *comm)
{
    return comm->channel != NULL ? comm->job->transport->name : comm->backend->name;
}

enum status comm_stream_create(struct comm *comm, const char *name, struct stream **stream)
{
    return comm->channel != NULL ? stream_create(comm->device, name, stream)
                                 : stream_create_worker(comm->device, name, stream);
}

struct comm_counter comm_counted(const struct comm *comm, enum comm_kind kind)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&comm->lock;
    CHECK_LT((unsigned)kind, COMM_KIND_COUNT);
    pthread_mutex_lock(lock);
    struct comm_counter counter = comm->counters[kind];
    pthread_mutex_unlock(lock);
    return counter;
}

void comm_inject_delays(struct comm *comm, double max_seconds, uint64_t seed)
{
    CHECK(max_seconds >= 0);
    comm_wait_idle(comm);
    set_delays(comm, max_seconds, seed);
}

void comm_slow_down(struct comm *comm, double seconds)
{
    CHECK(seconds >= 0);
    comm_wait_idle(comm);
    comm->slow = seconds;
}

/* --- the trace ------------------------------------------------------------------------------ */

void comm_set_lane(struct comm *comm, const struct trace_lane *lane)
{
    comm_wait_idle(comm);
    comm->lane = lane;
}

void comm_label(struct comm *comm, const char *label)
{
    comm->label = label;
}
