/* bench_comm -- groups the ranks, times them and fits the prices. bench_comm_calls.c has the calls,
 * bench_comm_overlap.c their cost for concurrent compute, bench_comm_view.c the output.
 *
 * Calls within a node and calls between nodes are timed in separate groups. All groups run at the
 * same time, so that they compete for memory and NICs as in a real step.
 */
#include "cli/bench/bench.h"
#include <string.h>
#include <unistd.h>
#include "cli/bench/bench_comm_impl.h"

enum { HOST_BYTES = 64 };

/* --- nodes ---------------------------------------------------------------------------------- */

struct node_position {
    int node, index; /* the node, and the index of this rank in it */
    int most;        /* ranks of the largest node */
    int nodes;
};

static void position_by_name(const char *names, int rank, int size, struct node_position *position)
{
    *position = (struct node_position){.node = -1};
    for (int r = 0; r < size; r++) {
        int first = 0, before = 0;
        while (strcmp(names + first * HOST_BYTES, names + r * HOST_BYTES) != 0)
            first++;
        for (int other = first; other < r; other++)
            before += strcmp(names + other * HOST_BYTES, names + r * HOST_BYTES) == 0;
        position->nodes += before == 0;
        position->most = before + 1 > position->most ? before + 1 : position->most;
        if (r == rank) {
            position->node = first;
            position->index = before;
        }
    }
}

/* Nodes are hosts, or groups of --node ranks. Collective. Fails when the ranks have different
 * settings: they would wait for each other. */
static enum status find_position(struct env *env, struct comm *comm,
                                 const struct bench_comm_config *config,
                                 struct node_position *position)
{
    struct mine {
        char host[HOST_BYTES];
        double largest, seconds, node;
    } mine = {.largest = (double)config->largest,
              .seconds = config->seconds,
              .node = (double)config->node},
      *all;
    int rank = comm_rank(comm), size = comm_size(comm);
    char *names;
    enum status st;
    gethostname(mine.host, sizeof mine.host - 1);
    if (config->node > 0)
        snprintf(mine.host, sizeof mine.host, "%lld", (long long)(rank / config->node));
    TRY(mem_alloc_array(env, MEM_OTHER, "hosts", (size_t)size, sizeof *all, &all));
    TRY_OR(undo_all, mem_alloc_array(env, MEM_OTHER, "names", (size_t)size, HOST_BYTES, &names));
    TRY_OR(undo_names, comm_exchange(comm, &mine, sizeof mine, all));
    for (int r = 0; r < size; r++) {
        memcpy(names + r * HOST_BYTES, all[r].host, HOST_BYTES);
        if (memcmp(&all[r].largest, &mine.largest, 3 * sizeof(double)) != 0)
            st = FAIL(env, USAGE, "rank %d has another --largest, --seconds or --node than rank %d",
                      r, rank);
    }
    position_by_name(names, rank, size, position);
undo_names:
    mem_free(env, names);
undo_all:
    mem_free(env, all);
    return st;
}

static enum status time_split(struct session *session, int colour, bool between,
                              const struct bench_comm_config *config,
                              struct bench_comm_result *result)
{
    enum status st = STATUS_OK;
    struct comm *group;
    struct bench_rig rig;
    TRY(comm_split(session->comm, colour, between ? "between" : "inside", &group));
    if (comm_size(group) > 1) {
        TRY_OR(undo_group, bench_rig_open(session, group, config, &rig));
        st = bench_time_group(&rig, config, between, result);
        bench_rig_close(session, &rig);
    }
undo_group:
    comm_destroy(group);
    return st;
}

/* --- fitting -------------------------------------------------------------------------------- */

/* Fits the calls that only move bytes. A small send_recv, one direction at a time, adds the cost of
 * a single message. */
static double fit_group(const struct bench_comm_result *result, bool between,
                        struct comm_wire *wire)
{
    struct fit_message calls[BENCH_COMM_KINDS * BENCH_COMM_SIZES];
    int count = 0;
    for (int i = 0; i < result->count; i++) {
        const struct bench_comm_line *line = &result->lines[i];
        bool single =
            strcmp(line->what, "send_recv") == 0 && line->bytes < 16 * BENCH_COMM_SMALLEST;
        bool moves_only =
            strcmp(line->what, "all_gather") == 0 || strcmp(line->what, "all_to_all") == 0;
        if (line->between == between && (moves_only || single))
            calls[count++] = (struct fit_message){line->messages, line->bytes, line->seconds};
    }
    *wire = machine_fit_wire(calls, count);
    return machine_fit_wire_error(*wire, calls, count);
}

static void call_exchange(const struct bench_rig *rig, int64_t count)
{
    (void)count;
    comm_exchange(rig->comm, rig->said, sizeof(double),
                  rig->said); /* a failure shows in comm_status */
}

/* A small exchange between the hosts of all ranks, as for votes, losses and norms. */
static enum status time_exchange(struct bench_rig *rig, struct bench_comm_result *result)
{
    struct bench_comm_line *line = &result->lines[result->count++];
    int doublings = 0, others = comm_size(rig->comm) - 1;
    while (1 << doublings <= others)
        doublings++;
    *line = (struct bench_comm_line){
        .what = "exchange", .messages = others, .bytes = others * (double)sizeof(double)};
    TRY(bench_time_call(rig, call_exchange, 1, &line->seconds));
    result->prices.exchange = line->seconds / doublings;
    return comm_status(rig->comm);
}

/* Measurements over all ranks. */
static enum status time_all(struct session *session, const struct bench_comm_config *config,
                            struct bench_comm_result *result)
{
    enum status st;
    struct comm *comm;
    struct bench_rig rig;
    TRY(comm_dup(session->comm, "bench", &comm));
    TRY_OR(undo_comm, bench_rig_open(session, comm, config, &rig));
    st = time_exchange(&rig, result);
    if (st == STATUS_OK)
        st = bench_time_sums(&rig, &result->prices.sum_bytes_per_second);
    if (st == STATUS_OK)
        st = bench_time_theft(session, &rig, result->node, &result->prices.theft);
    bench_rig_close(session, &rig);
undo_comm:
    comm_destroy(comm);
    return st;
}

/* --- the benchmark -------------------------------------------------------------------------- */

enum status bench_comm_run(struct session *session, const struct bench_comm_config *config,
                           struct bench_comm_result *result)
{
    struct node_position position;
    struct comm_prices *prices = &result->prices;
    *result = (struct bench_comm_result){.ranks = comm_size(session->comm)};
    TRY(find_position(device_env(session->device), session->comm, config, &position));
    result->node = position.most;
    if (position.most > 1)
        TRY(time_split(session, position.node, false, config, result));
    if (position.nodes > 1)
        TRY(time_split(session, position.index, true, config, result));
    result->inside_error = fit_group(result, false, &prices->inside);
    result->between_error = fit_group(result, true, &prices->between);
    if (position.most == 1)
        prices->inside = prices->between;
    if (position.nodes == 1)
        prices->between = prices->inside;
    prices->node = position.nodes > 1 ? position.most : 0;
    return time_all(session, config, result);
}
