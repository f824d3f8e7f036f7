/* comm_mpi -- initialize and finalize MPI, and one MPI communicator for each of ours.
 *
 * MPI is initialized when the back end is chosen and finalized with the last communicator, unless
 * the process had initialized it before. When a job failed and messages may still be in flight, MPI
 * is not finalized: MPI_Finalize could wait forever, and the process is about to end.
 */
#include <stdio.h>
#include "comm/launcher.h"
#include "comm/mpi/mpi_impl.h"

enum status mpi_failed(struct env *env, const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    return FAIL(env, COMM, "MPI failed: %s: %s", call, text);
}

/* --- the job -------------------------------------------------------------------------------- */

void comm_mpi_library(char *out, size_t bytes)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "an unknown MPI";
    int length;
    MPI_Get_library_version(text, &length);
    snprintf(out, bytes, "%.*s", (int)strcspn(text, ",\n"), text);
    for (char *c = out; *c != '\0'; c++) {
        if (*c == '\t')
            *c = ' ';
    }
}

static enum status start_mpi(struct mpi_job *job)
{
    struct env *env = job->base.env;
    int running, over, level;
    MPI_TRY(env, MPI_Finalized(&over));
    if (over)
        return FAIL(env, COMM, "MPI was finalized in this process and cannot be initialized again");
    MPI_TRY(env, MPI_Initialized(&running));
    if (running)
        MPI_TRY(env, MPI_Query_thread(&level));
    else
        MPI_TRY(env, MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level));
    job->owns_mpi = !running;
    if (level < MPI_THREAD_MULTIPLE)
        return FAIL(env, CONFIG,
                    "the MPI library was built without MPI_THREAD_MULTIPLE, which sifr needs");
    if (job->owns_mpi)
        MPI_TRY(env, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_TRY(env, MPI_Comm_rank(MPI_COMM_WORLD, &job->base.rank));
    MPI_TRY(env, MPI_Comm_size(MPI_COMM_WORLD, &job->base.size));
    return STATUS_OK;
}

/* The most common mistake: the mpirun of one library starts N processes of a program linked with
 * another, and each of them is alone. */
static enum status check_launcher(const struct mpi_job *job)
{
    struct launcher launcher;
    char library[64];
    if (job->base.size > 1 || !launcher_find(&launcher) || launcher.size == 1)
        return STATUS_OK;
    comm_mpi_library(library, sizeof library);
    bool is_open = strncmp(library, "Open MPI", 8) == 0;
    return FAIL(job->base.env, CONFIG,
                "started by %s as one of %d ranks, but linked with %s, which sees only one; use %s",
                launcher.name, launcher.size, library,
                is_open ? "mpirun.openmpi" : "mpirun.mpich, or the mpirun of that library");
}

static void stop_mpi(struct mpi_job *job)
{
    int running = 0, over = 1;
    MPI_Initialized(&running);
    MPI_Finalized(&over);
    if (job->owns_mpi && running && !over)
        MPI_Finalize();
}

static enum status mpi_join(struct comm_job *base, const struct comm_member *member)
{
    enum status st;
    struct mpi_job *job = (struct mpi_job *)base;
    (void)member;
    TRY_OR(undo_mpi, start_mpi(job));
    TRY_OR(undo_mpi, check_launcher(job));
    if (MPI_Type_contiguous(BLOCK_BYTES, MPI_BYTE, &job->block) != MPI_SUCCESS ||
        MPI_Type_commit(&job->block) != MPI_SUCCESS) {
        st = FAIL(base->env, COMM, "MPI failed to create a data type");
        goto undo_mpi;
    }
    TRY_OR(undo_type, mpi_monitor_start(job));
    return STATUS_OK;
undo_type:
    MPI_Type_free(&job->block);
undo_mpi:
    stop_mpi(job);
    return st;
}

static void mpi_quit(struct comm_job *base)
{
    struct mpi_job *job = (struct mpi_job *)base;
    if (!mpi_monitor_stop(job))
        return;
    MPI_Type_free(&job->block);
    stop_mpi(job);
}

/* --- communicators -------------------------------------------------------------------------- */

static enum status make_wire(struct env *env, struct comm *parent, int colour, MPI_Comm *wire)
{
    if (parent == NULL)
        MPI_TRY(env, MPI_Comm_dup(MPI_COMM_WORLD, wire));
    else
        MPI_TRY(env, MPI_Comm_split(((struct mpi_comm *)parent)->wire,
                                    colour < 0 ? MPI_UNDEFINED : colour, parent->rank, wire));
    if (*wire != MPI_COMM_NULL)
        MPI_TRY(env, MPI_Comm_set_errhandler(*wire, MPI_ERRORS_RETURN));
    return STATUS_OK;
}

static void free_arrays(struct mpi_comm *mpi)
{
    struct env *env = mpi->base.env;
    mem_free(env, mpi->departures);
    mem_free(env, mpi->indices);
    mem_free(env, mpi->statuses);
    mem_free(env, mpi->requests);
}

static enum status make_arrays(struct mpi_comm *mpi)
{
    struct env *env = mpi->base.env;
    size_t size = (size_t)mpi->base.size, slots = SLOT_COUNT * size;
    TRY(mem_alloc_array(env, MEM_OTHER, "requests", slots, sizeof(MPI_Request), &mpi->requests));
    TRY(mem_alloc_array(env, MEM_OTHER, "requests", slots, sizeof(MPI_Status), &mpi->statuses));
    TRY(mem_alloc_array(env, MEM_OTHER, "requests", slots, sizeof(int), &mpi->indices));
    TRY(mem_alloc_array(env, MEM_OTHER, "requests", size, sizeof *mpi->departures,
                        &mpi->departures));
    for (size_t i = 0; i < slots; i++)
        mpi->requests[i] = MPI_REQUEST_NULL;
    atomic_init(&mpi->departure_count, 0);
    return STATUS_OK;
}

static enum status mpi_open(struct comm *comm, struct comm *parent, int colour)
{
    enum status st;
    MPI_Comm none;
    struct mpi_comm *mpi = (struct mpi_comm *)comm;
    if (comm == NULL)
        return make_wire(parent->env, parent, colour, &none);
    TRY_OR(undo_arrays, make_arrays(mpi));
    TRY_OR(undo_arrays, make_wire(comm->env, parent, colour, &mpi->wire));
    return STATUS_OK;
undo_arrays:
    free_arrays(mpi);
    return st;
}

static void mpi_close(struct comm *comm)
{
    struct mpi_comm *mpi = (struct mpi_comm *)comm;
    mpi_monitor_left(comm);
    if (!comm_job_failed(comm->job))
        MPI_Comm_free(&mpi->wire);
    free_arrays(mpi);
}

const struct comm_backend comm_mpi = {
    .name = "mpi",
    .job_bytes = sizeof(struct mpi_job),
    .comm_bytes = sizeof(struct mpi_comm),
    .join = mpi_join,
    .quit = mpi_quit,
    .open = mpi_open,
    .close = mpi_close,
    .swap = mpi_swap,
    .ask = mpi_monitor_ask,
    .spread = mpi_monitor_spread,
};
