/* tracing -- aligns clocks with barriers: every rank reads its own clock after each of BARRIERS
 * barriers. All ranks leave a barrier at about the same time, so the difference to rank 0's reading
 * is the clock offset plus noise. The median of the differences is used as the offset.
 */
#include "train/run/tracing.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"

enum { BARRIERS = 9 };
static const int64_t most_spans = 1 << 19;

/* --- range of steps ------------------------------------------------------------------------- */

static bool parse_step(const char *text, char end, const char **rest, int64_t *step)
{
    char *after;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *step = strtoll(text, &after, 10);
    *rest = after + 1;
    return errno == 0 && *after == end && *step >= 1;
}

static bool parse_steps(const char *text, int64_t *first, int64_t *last)
{
    bool range = strchr(text, ':') != NULL;
    if (!parse_step(text, range ? ':' : '\0', &text, first))
        return false;
    *last = *first;
    return !range || (parse_step(text, '\0', &text, last) && *first <= *last);
}

/* A generous estimate of the number of spans, limited to most_spans: passes, waits, collectives and
 * copies of far memory of the traced steps, and an evaluation. */
static int64_t span_room(const struct run_config *config, int64_t steps)
{
    int64_t units = config->model.layers + 2;
    int64_t batches = run_micro_batches(config), eval = config->train.eval_batches;
    bool tp_group = config->parallel.tp > 1;
    const struct offload_config *o = &config->offload;
    bool far = (o->optimizer | o->grads | o->params) != FAR_NONE;
    int64_t copies = far ? (64 + 16 * batches) * units : 0;
    double room = (double)steps * (double)((tp_group ? 32 : 12) * units * batches + copies + 64) +
                  (tp_group ? 7.0 : 3.0) * (double)(units + 4) * (double)(eval > 0 ? eval : 1000);
    return room < (double)most_spans ? (int64_t)room : most_spans;
}

enum status tracing_start(struct env *env, const char *steps, const struct run_config *config,
                          struct device *device, struct tracing *tracing)
{
    int64_t first = 0, last = 0;
    *tracing = (struct tracing){.env = env, .device = device};
    if (steps == NULL || *steps == '\0')
        return STATUS_OK;
    if (!parse_steps(steps, &first, &last))
        return FAIL(env, CONFIG,
                    "--trace: '%s' is not a range of steps; write 5:8 for steps 5 to 8", steps);
    if (first > config->train.steps)
        return FAIL(env, CONFIG, "--trace: step %" PRId64 " is beyond train.steps %" PRId64, first,
                    config->train.steps);
    if (last > config->train.steps)
        last = config->train.steps;
    int64_t room = span_room(config, last - first + 1);
    TRY(trace_create(env, room, &tracing->trace));
    trace_set_origin(tracing->trace, clock_seconds());
    tracing->first = first;
    tracing->last = last;
    env->trace = tracing->trace;
    return device_spans_create(device, room);
}

void tracing_stop(struct tracing *tracing)
{
    if (tracing->trace == NULL)
        return;
    tracing->env->trace = NULL;
    trace_destroy(tracing->trace);
    tracing->trace = NULL;
}

/* --- clocks --------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum status tracing_align(struct tracing *tracing, struct comm *comm)
{
    double mine[BARRIERS], offsets[BARRIERS], *all;
    if (tracing->trace == NULL || comm == NULL)
        return STATUS_OK;
    for (int i = 0; i < BARRIERS; i++) {
        TRY(comm_barrier(comm));
        mine[i] = clock_seconds();
    }
    TRY(mem_alloc_array(tracing->env, MEM_OTHER, "clocks", (size_t)comm_size(comm), sizeof mine,
                        &all));
    enum status st = comm_exchange(comm, mine, sizeof mine, all);
    for (int i = 0; i < BARRIERS; i++)
        offsets[i] = mine[i] - all[i]; /* rank 0's readings come first */
    qsort(offsets, BARRIERS, sizeof offsets[0], by_size);
    trace_set_origin(tracing->trace, all[BARRIERS - 1] + offsets[BARRIERS / 2]);
    mem_free(tracing->env, all);
    return st;
}

/* --- recording ------------------------------------------------------------------------------ */

void tracing_step_begins(struct tracing *tracing, int64_t step)
{
    bool inside = step >= tracing->first && step <= tracing->last;
    if (tracing->trace == NULL)
        return;
    if (inside)
        device_spans_open(tracing->device);
    trace_open(tracing->trace, inside);
}

void tracing_close(struct tracing *tracing)
{
    if (tracing->trace != NULL)
        trace_open(tracing->trace, false);
}

enum status tracing_step_ends(struct tracing *tracing, int64_t step, bool over, int rank,
                              const char *folder)
{
    if (tracing->trace == NULL || tracing->written || step < tracing->first ||
        (!over && step <= tracing->last))
        return STATUS_OK;
    tracing->written = true;
    device_spans_close(tracing->device);
    if (trace_left_out(tracing->trace) > 0)
        log_warn(tracing->env,
                 "the trace of rank %d is full: %" PRId64 " spans are left out; trace fewer steps",
                 rank, trace_left_out(tracing->trace));
    char name[64], host[64] = "", process[128], *path;
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "trace-rank-%d.json", rank);
    snprintf(process, sizeof process, "rank %d (%s)", rank, host);
    TRY(path_join(tracing->env, folder, name, &path));
    enum status st = trace_write(tracing->trace, rank, process, path);
    mem_free(tracing->env, path);
    return st;
}
